"""Messages that are still to come to a session which another broker takes.

They were published before the taker's subscriptions, so they are on their way to this broker alone,
the session's holder. `handover` lets the taker wait for them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import LAST, MAX_GAPS, Ranges, intersect, merge, subtract
from mqttree.broker.cluster.link.codec import split_key
from mqttree.broker.cluster.link.version_vector import OriginWindow, Vector
from mqttree.broker.cluster.sessions.message_vectors import (
    offered,
    only,
    ranges_of,
    uncovered,
    vector_of,
)
from mqttree.broker.cluster.sessions.takeover_messages import MERGE

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.gap_recovery import GapRecovery
    from mqttree.broker.cluster.delivery.origins import Origins
    from mqttree.broker.cluster.delivery.orphans import Orphans
    from mqttree.broker.cluster.ports import MemberBroker
    from mqttree.broker.cluster.sessions.pending_handover import Asked
    from mqttree.broker.cluster.strategy.directory import Directory
    from mqttree.broker.cluster.strategy.routing_strategy import RoutingStrategy

MAX_TAKEOVERS = 20_000
"""clients that wait for their session at a time; more are refused as busy (0x89)
[connects_refused]. Those of a broker that is stopped come at once; each costs two messages and
a connection that waits."""

COMPLETE_TIME = 5.0
"""s for which the rest of a session waits for messages that were published before the taker's
subscriptions: longer than it takes to notice that a neighbour is silent (2 s), and to ask again."""
MERGE_TIME = 30.0
"""s for which a session that is to be added to a newer one waits for such messages while their
origin can be reached: no client waits for it. The broker of the newer session asks for those that
have not come by then."""
MERGE_AWAY = 10.0
"""s; the same while their origin is away."""


class MessagesUnderWay:
    """Knows which messages are still to come to sessions here, and for how long takers wait."""

    __slots__ = (
        "_asked",
        "_directory",
        "_gap_recovery",
        "_never",
        "_node",
        "_origins",
        "_orphans",
        "_strategy",
    )

    def __init__(
        self,
        node: MemberBroker,
        *,
        directory: Directory,
        strategy: RoutingStrategy,
        origins: Origins,
        orphans: Orphans,
        gap_recovery: GapRecovery,
    ) -> None:
        """`node`: this broker; `directory`: which brokers can be reached; `strategy`: whether every
        message comes here; `origins`: which numbers have been here; `orphans`: who has messages of
        origins that are gone; `gap_recovery`: whether some are being asked for."""
        self._node = node
        self._directory = directory
        self._strategy = strategy
        self._origins = origins
        self._orphans = orphans
        self._gap_recovery = gap_recovery
        # Client -> stamp of the taker that waits until the session is complete, since when (s).
        self._asked: OrderedDict[str, tuple[int, float]] = OrderedDict()
        # Of flooded origins: numbers that were waited for and did not arrive.
        self._never: dict[bytes, Ranges] = {}

    def awaited(self, asked: Asked, now: float, *, late: bool = False) -> bool:
        """Whether messages are still to come to a session that were published before its taker's
        subscriptions. `asked`: the taker's request; `now`: s; `late`: they have been waited for too
        long, so that no more are: a link that is gone may have lost them, before this broker has
        noticed."""
        client_id, need, merge = asked.client_id, asked.need, asked.request == MERGE
        if self._asked.get(client_id, (0, now))[0] != asked.stamp:
            self._asked[client_id] = (asked.stamp, now)
        since = self._asked[client_id][1]
        waited = now - since
        if not merge and self._strategy.everything_arrives():
            flooded, asked_for = self._by_source(need)
            waits = self._under_way(flooded, waited, late) or self._lacks(asked_for, waited)
        else:
            unsettled = waited < COMPLETE_TIME and self._gap_recovery.unsettled()
            waits = unsettled or self._lacks(need, waited, merge=merge)
        if waits and not late:
            if len(self._asked) > MAX_TAKEOVERS:
                self._asked.popitem(last=False)
            return True
        del self._asked[client_id]
        return False

    def _by_source(self, need: Vector) -> tuple[Vector, Vector]:
        """Return the part of `need` that links bring without a question, and the part of origins
        that are asked for what is missing here, as some broker does not flood: their answer may
        take longer than a taker waits, and it can ask them itself."""
        vector = self._origins.vector
        asked_for = {
            key: window
            for key, window in need.items()
            if key in vector and vector[key].feed is not None
        }
        flooded = {key: window for key, window in need.items() if key not in asked_for}
        return flooded, asked_for

    def _lacks(self, need: Vector, waited: float, *, merge: bool = False) -> bool:
        """Whether messages of `need` are missing that are still worth waiting for."""
        vector = self._origins.vector
        known = {
            key: window
            for key, window in need.items()
            if key in vector and self._comes(key, waited, merge)
        }
        return bool(only(known, offered(vector)))

    def _under_way(self, need: Vector, waited: float, late: bool) -> bool:
        """Whether messages of `need`, of flooded origins, are still to come: over links, behind
        what is queued there, even if their origin is gone. Messages that newer ones have overtaken
        come soon, in a replay, or never, as an expired one is not replayed. Later takeovers do not
        wait for those that did not come."""
        vector = self._origins.vector
        lacks = uncovered(need, dict.fromkeys(need, OriginWindow(0, 0.0)), self.offered())
        overtaken = {
            key: subtract(ranges, [(vector[key].top + 1, LAST)])
            for key, ranges in lacks.items()
            if key in vector
        }
        lasts = {key: ranges for key, ranges in lacks.items() if ranges != overtaken.get(key)}
        if waited < COMPLETE_TIME and not late and any(key in vector for key in lacks):
            return True
        if not late and any(self._reachable(key) for key in lasts):
            return True
        self._gave_up(overtaken)
        if lasts:
            # This taker learns that it lacks them.
            self._node.timers.schedule(self._node.now, lambda now: self._gave_up(lasts))
        return False

    def _gave_up(self, lacks: dict[bytes, Ranges]) -> None:
        vector = self._origins.vector
        self._never = {
            key: intersect(old, vector[key].lacks)
            for key, old in self._never.items()
            if key in vector
        }
        for key, ranges in lacks.items():
            if ranges and key in vector:
                self._never[key] = merge([*self._never.get(key, ()), *ranges])[-MAX_GAPS:]

    def offered(self) -> Vector:
        """Return the numbers that local sessions have been offered, or will never be."""
        seen = offered(self._origins.vector)
        for key, never in self._never.items():
            if never and key in seen:
                seen |= vector_of({key: merge([*ranges_of({key: seen[key]}).get(key, ()), *never])})
        return seen

    def _reachable(self, key: bytes) -> bool:
        """Whether an origin can be reached."""
        broker_id, boot = split_key(key)
        return self._directory.reaches(broker_id) and self._directory.boot(broker_id) == boot

    def _comes(self, key: bytes, waited: float, merge: bool) -> bool:
        """Whether the missing messages of an origin are to be waited for, as some broker may have
        them."""
        if self._reachable(key):
            return waited < (MERGE_TIME if merge else COMPLETE_TIME)
        feed = self._origins.vector[key].feed
        if not merge:
            return False
        if feed is None:  # flooding brings them over links
            return waited < MERGE_AWAY
        return waited < (MERGE_TIME if self._orphans.reachable(feed) else MERGE_AWAY)
