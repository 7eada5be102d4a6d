"""Origins that are gone, and of which some brokers have messages that others lack: nobody else can
be asked for these.

With flooding the neighbours of a link that begins to forward replay all that is missing behind it,
whoever published it. Where messages cross only links behind which somebody wants them, a broker
takes what does not come for unwanted, and asks the origin. Of an origin that is gone it says what
may be missing (SEEN), and fetches history for others as with flooding (`resync`). With routing by
topic messages did not take the tree; so the neighbours there tell each other what they have of an
origin, as soon as it is gone, and send what the other one lacks (`Resync.exchange`). It passes that
on over the tree (`SourceTrees.onward`).

    origin   there -(the tree loses it; no links lead to it any more; it is back and knows nothing
                     of that incarnation)-> gone
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.cluster.link.codec import OriginWindow, Vector, intersect, merge
from broker.cluster.strategy.directory import STATE

if TYPE_CHECKING:
    from broker.cluster.delivery.ordered_feed import OrderedFeed
    from broker.cluster.delivery.origins import Origins
    from broker.cluster.strategy.directory import Directory

EARLIER = STATE + b"earlier"
"""Boot numbers of a broker's earlier starts of which it still has messages, 4 bytes each."""


class Orphans:
    """Which origins are gone."""

    __slots__ = ("_directory", "_origins")

    def __init__(self, directory: Directory, origins: Origins) -> None:
        self._directory = directory
        self._origins = origins

    def reachable(self, feed: OrderedFeed) -> bool:
        """Whether an origin can be asked for messages of this incarnation."""
        listing = self._directory.listing(feed.broker_id)
        if listing is None or listing.via is None:
            return False
        return listing.boot == feed.boot or feed.boot.to_bytes(4, "big") in earlier_boots(
            listing.entries.get(EARLIER, b"")
        )

    def gone(self, key: bytes) -> bool:
        """Whether an origin cannot be asked for what is wanted of it."""
        window = self._origins.vector.get(key)
        return (
            window is not None and window.stream is not None and not self.reachable(window.stream)
        )

    def told(self) -> Vector:
        """Return what has been here, for neighbours; what may be missing of origins that are gone
        is not taken for unwanted."""
        vector = self._origins.vector
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

    def lacked(self, seen: Vector) -> Vector:
        """Return what a neighbour has had of origins that are gone and of which it lacks
        something."""
        vector = self._origins.vector
        return {
            key: theirs
            for key, theirs in seen.items()
            if key in vector and (theirs.gaps or theirs.top < vector[key].top) and self.gone(key)
        }


def earlier_boots(value: bytes) -> list[bytes]:
    """Return the boot numbers of EARLIER."""
    return [value[at : at + 4] for at in range(0, len(value), 4)]
