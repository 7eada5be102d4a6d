"""Messages that are still to come to a session which another broker takes.

They were published before the taker's subscriptions, so they are on their way to this broker alone,
the session's holder. `handover` lets the taker wait for them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.cluster.link.version_vector import Vector
from mqttree.broker.cluster.sessions.message_vectors import offered, ranges_of, without

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.gap_recovery import GapRecovery
    from mqttree.broker.cluster.delivery.origins import Origins
    from mqttree.broker.cluster.delivery.orphans import Orphans
    from mqttree.broker.cluster.sessions.pending_handover import Asked
    from mqttree.routing.link_state import LinkStateDatabase

MAX_TAKEOVERS = 20_000
"""clients that wait for their session at a time; more are refused as busy (0x89)
[connects_refused]. Those of a broker that is stopped come at once; each costs two messages and
a connection that waits."""

COMPLETE_TIME = 5.0
"""s for which an older session waits until it is known which messages are missing: longer than it
takes to notice that a neighbour is silent (2 s), and to ask again."""
MERGE_TIME = 30.0
"""s for which a session that is to be added to a newer one waits for such messages while their
origin can be reached: no client waits for it. The broker of the newer session asks for those that
have not come by then."""
MERGE_AWAY_S = 10.0
"""s; the same while their origin is away."""


class MessagesUnderWay:
    """Knows which messages are still to come to sessions here, and for how long takers wait."""

    def __init__(
        self,
        *,
        database: LinkStateDatabase,
        origins: Origins,
        orphans: Orphans,
        gap_recovery: GapRecovery,
    ) -> None:
        """`database`: which brokers can be reached; `origins`: which numbers have been here;
        `orphans`: which origins are gone; `gap_recovery`: whether messages are being asked for."""
        self._database = database
        self._origins = origins
        self._orphans = orphans
        self._gap_recovery = gap_recovery
        # Client -> stamp of the taker that waits until the session is complete, since when (s).
        self._asked: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def awaited(self, asked: Asked, now: float) -> bool:
        """Whether messages are still to come to a session that were published before its taker's
        subscriptions. `asked`: the taker's request; `now`: s."""
        client_id, need = asked.client_id, asked.need
        if self._asked.get(client_id, (0, now))[0] != asked.stamp:
            self._asked[client_id] = (asked.stamp, now)
        waited = now - self._asked[client_id][1]
        unsettled = waited < COMPLETE_TIME and self._gap_recovery.unsettled()
        if need and (unsettled or self._lacks(need, waited)):
            if len(self._asked) > MAX_TAKEOVERS:
                self._asked.popitem(last=False)
            return True
        del self._asked[client_id]
        return False

    def _lacks(self, need: Vector, waited: float) -> bool:
        """Whether messages of `need` are missing that are still worth waiting for."""
        vector = self._origins.vector
        known = ranges_of({key: need[key] for key in need if key in vector})
        missing = without(known, ranges_of(offered(vector)))
        return any(self._comes(key, waited) for key in missing)

    def _comes(self, key: bytes, waited: float) -> bool:
        """Whether the missing messages of an origin are to be waited for, as some broker may have
        them."""
        broker_id, boot = split_key(key)
        if self._database.reaches(broker_id) and self._database.boot(broker_id) == boot:
            return waited < MERGE_TIME
        feed = self._origins.vector[key].feed
        asked = feed is not None and self._orphans.reachable(feed)
        return waited < (MERGE_TIME if asked else MERGE_AWAY_S)
