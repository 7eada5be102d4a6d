"""Origins that are gone, and of which some brokers have messages that others lack. Only these other
brokers can be asked for them.

Messages cross only links that have subscribers behind them; a broker takes missing numbers for
unwanted ones, and asks the origin in doubt. Of an origin that is gone it tells its neighbours what
may be missing (SEEN), and fetches history for others (`resync`). With routing by topic, messages
did not take the tree; so as soon as an origin is gone, neighbours on the tree tell each other which
of its messages they have, and send what the other one lacks (`Resync.exchange`). These are passed
on over the tree (`SourceTrees.onward`).

    origin   reachable -(the tree loses it; no links lead to it; it is back and has no messages of
                         that incarnation)-> gone
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import intersect, merge
from mqttree.broker.cluster.directory.link_state_directory import STATE
from mqttree.broker.cluster.link.version_vector import OriginWindow, Vector, VectorView

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.ordered_feed import OrderedFeed
    from mqttree.broker.cluster.delivery.origins import Origins
    from mqttree.routing.link_state import LinkStateDatabase

EARLIER = STATE + b"earlier"
"""Directory entry: the boot numbers of a broker's earlier incarnations of which it still has
messages, 4 bytes each."""


class Orphans:
    """Knows which origins are gone, and makes the version vector for neighbours."""

    def __init__(self, database: LinkStateDatabase, origins: Origins) -> None:
        self._database = database
        self._origins = origins

    def reachable(self, feed: OrderedFeed) -> bool:
        """Whether the broker of a feed can be asked for messages of that incarnation."""
        listing = self._database.listings.get(feed.broker_id)
        if listing is None or listing.via is None:
            return False
        return listing.boot == feed.boot or feed.boot.to_bytes(4, "big") in earlier_boots(
            listing.entries.get(EARLIER, b"")
        )

    def is_gone(self, key: bytes) -> bool:
        """Whether an origin that has an ordered feed cannot be asked for messages."""
        window = self._origins.vector.get(key)
        return window is not None and window.feed is not None and not self.reachable(window.feed)

    def vector_for_neighbours(self) -> VectorView:
        """Return the version vector for neighbours. Of origins that are gone, numbers that are
        missing here count as lacking, not as unwanted."""
        vector = self._origins.vector
        found: Vector = {}
        for key, window in vector.items():
            if (
                window.feed is not None
                and self.is_gone(key)
                and (lacks := intersect(window.feed.lacks(), [(1, window.top)]))
            ):
                found[key] = OriginWindow(window.top, window.heard)
                found[key].gaps = merge([*window.gaps, *lacks])
        return {**vector, **found} if found else vector

    def lacked(self, seen: Vector) -> Vector:
        """Return the part of a neighbour's version vector `seen` with the origins that are gone and
        of which it lacks messages."""
        vector = self._origins.vector
        return {
            key: theirs
            for key, theirs in seen.items()
            if key in vector and (theirs.gaps or theirs.top < vector[key].top) and self.is_gone(key)
        }


def earlier_boots(value: bytes) -> list[bytes]:
    """Return the boot numbers in the value of EARLIER, 4 bytes each."""
    return [value[at : at + 4] for at in range(0, len(value), 4)]
