"""The sessions that brokers have posted: this broker posts its own ones, and knows at which other
brokers a client has one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mqttree.broker.base.hybrid_clock import LOGICAL
from mqttree.broker.cluster.directory.link_state_directory import standbys_of
from mqttree.broker.cluster.sessions.session_entries import entries_of, key_of
from mqttree.broker.core.session_owner import GONE, KEPT, RESUMED, Entry, digest

if TYPE_CHECKING:
    from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
    from mqttree.broker.cluster.link.link import Link
    from mqttree.broker.cluster.ports import Neighbours
    from mqttree.broker.cluster.sessions.handover import Handover
    from mqttree.broker.cluster.sessions.ports import SessionBroker
    from mqttree.broker.cluster.sessions.tombstones import Tombstones
    from mqttree.broker.core.session import Session

SPREAD = 40503
"""Factor that spreads times over packet identifiers: 65536 / 1.618."""
SLICE = 2000
SLICE_TIME = 0.02
"""entries posted at a time when the first other broker is met, and s between."""


class PostedSessions:
    """Posts the sessions of this broker, and finds those of others."""

    def __init__(
        self,
        node: SessionBroker,
        *,
        directory: LinkStateDirectory,
        links: Mapping[bytes, Link],
        handover: Handover,
        tombstones: Tombstones,
        neighbours: Neighbours,
    ) -> None:
        """`node`: this broker; `directory`: what brokers post; `links`: by the neighbour's id;
        `handover`: knows who has taken sessions from here; `tombstones`: of sessions that have
        ended; `neighbours`: get what is posted."""
        self._node = node
        self._directory = directory
        self._links = links
        self._handover = handover
        self._tombstones = tombstones
        self._neighbours = neighbours
        self.active = False
        """Whether another broker has ever been reached: then entries are posted."""

    def begin(self) -> None:
        """Post all sessions, as another broker has been reached for the first time."""
        self.active = True
        self._post_all(list(self._node.sessions.values()))

    def session_connected(self, session: Session, resumed: bool) -> None:
        """Post that a client is connected. `resumed`: its session existed before, here or at
        another broker."""
        if self.active:
            self._handover.on_client_connected(session)
            if not resumed and session.expiry and self.elsewhere(session.client_id, away=True):
                # Its client may connect to an older session before they are merged: packet
                # identifiers of that one must not be taken for this one's.
                session.next_packet_id = session.created * SPREAD >> LOGICAL & 0xFFFF
            self.post(session, resumed)
            # Ahead of CONNACK, as the client may then connect to another broker at once.
            self._neighbours.tell(self._node.now)

    def session_ended(self, session: Session) -> None:
        """Withdraw the entry of a session that has ended. The entry of one that another broker has
        taken stays until that one has posted its own."""
        if self.active:
            self._handover.ended(session.client_id)
            if session.stamp and self._handover.given(session.client_id) is None:
                self._tombstones.ended(session)

    def _post_all(self, sessions: list[Session]) -> None:
        for session in sessions[:SLICE]:
            if self._node.sessions.get(session.client_id) is session and session.stamp:
                self.post(session, False)
        if rest := sessions[SLICE:]:
            self._node.timers.schedule(
                self._node.now + SLICE_TIME, lambda now: self._post_all(rest)
            )

    def post(self, session: Session, resumed: bool) -> None:
        """Post a session of this broker. `resumed`: it existed before its client connected."""
        flags = (KEPT if session.expiry else 0) | (RESUMED if resumed else 0)
        entry = Entry(flags, session.stamp, session.created, session.floor, digest(session.owner))
        try:
            self._directory.post(key_of(session.client_id), entry.encode())
        except ValueError:  # the listing is full: other brokers do not know of this client
            self._node.counters.sessions_unannounced += 1

    def elsewhere(self, client_id: str, *, away: bool = False) -> list[tuple[bytes, Entry]]:
        """Return the sessions that a client id has at other brokers that can be reached, or whose
        standbys can be: as theirs. A broker with a link to here counts as reachable, even while the
        tree finds another path to it. `away`: also those at brokers that cannot be reached."""
        found = [
            (broker_id if away else self.holder(broker_id), entry)
            for broker_id, entry in entries_of(self._directory.database, client_id)
            if not entry.flags & GONE
        ]
        own = self._directory.own_id
        there = [
            (broker_id, entry)
            for broker_id, entry in found
            if broker_id is not None
            and (broker_id != own or self._handover.is_successor_of(client_id))
        ]
        return there + self._handover.takers(client_id, self.lives)

    def holder(self, broker_id: bytes) -> bytes | None:
        """Return the broker that has the sessions of `broker_id`: that one, or its first standby
        that can be reached if it cannot be; None: none can be."""
        having = (broker_id, *self.standbys(broker_id))
        return next(filter(self.lives, having), None)

    def standbys(self, broker_id: bytes) -> list[bytes]:
        """Return the brokers that have an image of a broker's journal, in the order in which they
        take its place. One that has started again has none, and its link may show that first."""
        database = self._directory.database
        return [
            standby
            for standby in standbys_of(database, broker_id)
            if (link := self._links.get(standby)) is None
            or link.peer is None
            or link.peer.boot == database.boot(standby)
        ]

    def next_holder(self, broker_id: bytes, client_id: str) -> bytes | None:
        """Return who has the session of a client for which `broker_id` was asked, as that one
        cannot be reached: it may have been its own, or one that it answered for as a standby. None:
        none can be reached."""
        database = self._directory.database
        found = [
            (entry.stamp, holder)
            for owner, entry in entries_of(database, client_id)
            if (broker_id == owner or broker_id in self.standbys(owner)) and not entry.flags & GONE
            if (holder := self.holder(owner)) is not None
        ]
        return max(found)[1] if found else self.holder(broker_id)

    def has(self, broker_id: bytes, client_id: str) -> bool:
        """Whether a broker has posted a session of a client as its own: one that stands in for a
        broker that is gone has not."""
        return self._directory.database.entry(broker_id, key_of(client_id)) is not None

    def lives(self, broker_id: bytes) -> bool:
        """Whether a broker can be reached: over the tree, or over a link to here."""
        directory = self._directory
        return (
            directory.database.reaches(broker_id)
            or broker_id in self._links
            or broker_id == directory.own_id
        )
