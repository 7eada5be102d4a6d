"""Origins that are gone, and of which some brokers have messages that others lack: nobody else can
be asked for these.

With flooding the neighbours of a link that begins to forward replay all that is missing behind it,
whoever published it. Where messages cross only links behind which somebody wants them, a broker
takes what does not come for unwanted, and asks the origin. Of an origin that is gone it says what
may be missing (SEEN), and fetches history for others as with flooding (`resync`). With routing by
topic messages did not take the tree; so the neighbours there tell each other what they have of an
origin, as soon as it is gone, and send what the other one lacks. It passes that on over the tree
(`SourceTrees.onward`).

    origin   there -(the tree loses it; no links lead to it any more; it is back and knows nothing
                     of that incarnation)-> gone
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.cluster.events import RouteChanged
from broker.cluster.link.codec import OriginWindow, Vector, intersect, merge
from broker.cluster.link.control_records import ASK_SEEN

if TYPE_CHECKING:
    from broker.cluster.cluster import Cluster
    from broker.cluster.link.link import Link
    from broker.node import Node


class Orphans:
    """What is here of origins that are gone."""

    __slots__ = ("_cluster", "_node")

    def __init__(self, node: Node, cluster: Cluster) -> None:
        self._node = node
        self._cluster = cluster

    def route_changed(self, event: RouteChanged) -> None:
        """Exchange what is here of the origins of a broker that is gone."""
        if event.via is None:
            self.left()

    def gone(self, key: bytes) -> bool:
        """Whether an origin cannot be asked for what is wanted of it."""
        window = self._cluster.forwarder.vector.get(key)
        return (
            window is not None
            and window.stream is not None
            and not self._cluster.gap_recovery.reachable(window.stream)
        )

    def told(self) -> Vector:
        """Return what has been here, for neighbours; what may be missing of origins that are gone
        is not taken for unwanted."""
        vector = self._cluster.forwarder.vector
        told: Vector = {}
        for key, window in vector.items():
            if (
                window.stream is not None
                and self.gone(key)
                and (lacks := intersect(window.stream.lacks(), [(1, window.top)]))
            ):
                told[key] = OriginWindow(window.top, window.heard)
                told[key].gaps = merge([*window.gaps, *lacks])
        return vector | told if told else vector

    def left(self) -> None:
        """An origin is gone: exchange what is here of it with neighbours in the live stream, which
        may have got other parts."""
        if self._cluster.source_trees.active:
            for link in self._node.forwarding:
                self._cluster.resync.send_seen(link)
                link.add_record(ASK_SEEN, b"")

    def seen(self, link: Link, seen: Vector, now: float) -> None:
        """Send a neighbour in the live stream what it lacks of them."""
        vector = self._cluster.forwarder.vector
        lacking = {
            key: theirs
            for key, theirs in seen.items()
            if key in vector and (theirs.gaps or theirs.top < vector[key].top) and self.gone(key)
        }
        if lacking and self._cluster.source_trees.active:
            self._cluster.resync.walk(link, lacking, lambda at: None).begin(now)
