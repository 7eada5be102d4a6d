"""Sessions of a broker that does not return: its standby makes them its own, so that they outlive
that one, too, and get what is published for them where it is (docs/decisions/0063). Pure.

A session is taken as if its client had come (`takeover`), from the image here, but with a stamp
that is older by one: the copy that its broker has, if that returns, is the newer one of the two,
and this one is merged into it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from mqttree.broker.cluster.sessions.records import CLEAN
from mqttree.broker.wire.packets import Connect

if TYPE_CHECKING:
    from mqttree.broker.cluster.cluster import Cluster
    from mqttree.broker.cluster.sessions.image import Image
    from mqttree.broker.cluster.sessions.records import SessionRecord
    from mqttree.broker.persistence.ports import JournalBroker
    from mqttree.broker.wire.constants import ReasonCode

AT_A_TIME, PAUSE_S = 4, 0.1
"""sessions that are adopted at a time, and s until the next ones are: clients that connect come
first."""

LOOKED_AT = 64
"""sessions that are looked at each time."""


class Absentee:
    """In the place of a client that connects: its session is taken without it."""

    def __init__(
        self, node: JournalBroker, cluster: Cluster, head: SessionRecord, away: float
    ) -> None:
        """`node`, `cluster`: this broker; `head`: the session, as it is recorded; `away`: for how
        long its client has been away (s). Raises UnicodeDecodeError: it cannot be read."""
        self._node = node
        self._cluster = cluster
        self._head = head
        self._away = away
        self.client_id = head.client_id.decode()
        username = None if head.username is None else head.username.decode()
        self.connect = Connect("MQTT", head.version, False, 0, self.client_id, username)
        self.owner = None if head.owner is None else head.owner.decode()
        listener = "" if head.listener is None else head.listener.decode()
        self.conn = node.connection_registry.without_peer(listener)

    @property
    def stamp(self) -> int:
        """That of the session that is adopted."""
        return self._head.stamp - 1

    def turn_away(self, reason: ReasonCode, why: str) -> None:
        """Do nothing: there is no client."""

    def turn_away_other_user(self) -> None:
        """Do nothing: there is no client."""

    def on_predecessor_read(self, now: float) -> None:
        """Do nothing: it had no connection here."""

    def on_placement(self, where: str, now: float) -> None:
        """Do nothing: there is no client that could go elsewhere."""

    def on_takeover(self, stamp: int, now: float) -> None:
        """Keep the session that has come for as long as it would have been kept."""
        node, head = self._node, self._head
        session = node.sessions.get(self.client_id)
        if session is None or session.stamp != stamp or session.conn is not None:
            return
        session.listener = self.conn.listener or None
        session.clean = head.flags & CLEAN != 0
        self._cluster.posted_sessions.post(session, True)
        node.session_registry.expire_later(session, self._away)


class Adoption:
    """Adopts the sessions of one image, a few at a time."""

    def __init__(
        self,
        node: JournalBroker,
        cluster: Cluster,
        image: Image,
        *,
        wall: Callable[[float], int],
        waits: Callable[[], bool],
        lent: Callable[[bytes], bool],
        over: Callable[[], bool],
    ) -> None:
        """`node`, `cluster`: this broker; `image`: has the sessions; `wall`: returns the time of
        day (ms) at their broker; `waits`: whether none may be given away now; `lent`: whether a
        broker is taking that of a client; `over`: whether their broker is back, or the image is
        gone."""
        self._node = node
        self._cluster = cluster
        self._image = image
        self._wall = wall
        self._waits = waits
        self._lent = lent
        self._over = over
        self._numbers: deque[int] = deque()
        self._under_way: list[str] = []
        node.timers.schedule(node.now + node.limits.adoption_s, self._begin)

    def _begin(self, now: float) -> None:
        self._numbers.extend(self._image.sessions)
        self._go_on(now)

    def _go_on(self, now: float) -> None:
        if self._over():
            return
        self._node.now = now
        if not self._waits():
            takes = self._cluster.takeover.takes
            self._under_way = [each for each in self._under_way if takes(each)]
            for _ in range(min(LOOKED_AT, len(self._numbers))):
                if len(self._under_way) >= AT_A_TIME:
                    break
                self._look_at(self._numbers.popleft(), now)
        if self._numbers:
            self._node.timers.schedule(now + PAUSE_S, self._go_on)

    def _look_at(self, number: int, now: float) -> None:
        """Adopt a session, if it is there still. One with a will waits until that is published; one
        that is lent, until its taker has all of it, or asks no more."""
        recorded = self._image.sessions.get(number)
        if recorded is None:
            return
        head = recorded.head
        if (head.will and head.expiry) or self._lent(head.client_id):
            self._numbers.append(number)
            return
        away = self._image.away(head, self._wall(now))
        if away >= head.expiry:
            return
        with suppress(UnicodeDecodeError):
            absentee = Absentee(self._node, self._cluster, head, away)
            if self._cluster.takeover.adopt(absentee, absentee.client_id, absentee.stamp, now):
                self._under_way.append(absentee.client_id)
