"""The ordered feeds of all origins that this broker has heard of (docs/decisions/0013).

A broker that was restarted is a new origin, with a feed of its own. Subscribers get the messages of
an earlier incarnation first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mqttree.broker.cluster.delivery.local_window import LocalWindow
from mqttree.broker.cluster.delivery.ordered_feed import OrderedFeed

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.orphans import Orphans
    from mqttree.broker.cluster.ports import MemberBroker

PATIENCE_S = 30.0
"""s; longest wait for an origin that is reachable and does not answer: a broker that is too busy to
answer is too busy to publish."""


class OriginFeeds:
    """The ordered feeds of all origins."""

    def __init__(
        self, node: MemberBroker, vector: Mapping[bytes, LocalWindow], orphans: Orphans
    ) -> None:
        """`node`: this broker; `vector`: what has been here of each origin; `orphans`: knows which
        origins can be reached."""
        self._node = node
        self._vector = vector
        self._orphans = orphans

    def all(self) -> list[OrderedFeed]:
        """Return all feeds."""
        return [window.feed for window in self._vector.values() if window.feed is not None]

    def of(self, broker_id: bytes) -> list[OrderedFeed]:
        """Return the feeds of all incarnations of a broker."""
        return [feed for feed in self.all() if feed.broker_id == broker_id]

    def known(self, feed: OrderedFeed) -> bool:
        """Whether the origin of a feed has not been forgotten since the feed began."""
        window = self._vector.get(feed.key)
        return window is not None and window.feed is feed

    def follows(self, feed: OrderedFeed) -> bool:
        """Whether a feed has to wait for the feed of an earlier incarnation of its broker, whose
        messages come first. It waits for PATIENCE_S at most, if the broker does not answer."""
        earlier = [s for s in self.of(feed.broker_id) if s.boot < feed.boot and self._unfinished(s)]
        if not earlier or feed.unordered:
            feed.follows_since = 0.0
            return False
        now = self._node.now
        feed.follows_since = feed.follows_since or now
        if now >= feed.follows_since + PATIENCE_S:
            for unfinished in earlier:
                unfinished.finished = True
        return True

    def _unfinished(self, feed: OrderedFeed) -> bool:
        return bool(feed.waiting) or (
            not feed.finished and (feed.held or self._orphans.reachable(feed))
        )

    def advanced(self, feed: OrderedFeed, now: float) -> None:
        """Note that an answer advanced a feed at `now` (s): later feeds of the same broker wait on
        for the rest, however long that takes."""
        feed.since = now
        for later in self.of(feed.broker_id):
            if later.boot > feed.boot and later.follows_since:
                later.follows_since = now
