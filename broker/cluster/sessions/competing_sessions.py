"""Two sessions of one client, here and at another broker: the newer one stays.

A broker that sees an entry with a newer stamp than that of its own session (or an equal stamp of a
broker with a higher id) closes that one's connection, and ends the session unless the other broker
is going to fetch it. If its own one is newer, it has the other one merged into it.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from mqttree.broker.base.hybrid_clock import HybridClock
from mqttree.broker.cluster.directory.link_state_directory import CLIENT
from mqttree.broker.core.session_owner import GONE, RESUMED, Entry, decode_entry, digest
from mqttree.broker.wire.strings import shorten

if TYPE_CHECKING:
    from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
    from mqttree.broker.cluster.sessions.handover import Handover
    from mqttree.broker.cluster.sessions.merge import SessionMerge
    from mqttree.broker.cluster.sessions.ports import SessionBroker
    from mqttree.broker.cluster.sessions.tombstones import Tombstones
    from mqttree.broker.core.session import Session


class CompetingSessions:
    """Compares what other brokers post with the sessions of this one."""

    def __init__(
        self,
        node: SessionBroker,
        *,
        clock: HybridClock,
        directory: LinkStateDirectory,
        taken: Container[str],
        handover: Handover,
        merging: SessionMerge,
        tombstones: Tombstones,
    ) -> None:
        """`node`: this broker; `clock`: makes all stamps; `directory`: what
        brokers post; `taken`: clients whose sessions this broker takes just now; `handover`: knows
        who has taken sessions from here; `merging`: of older sessions; `tombstones`: of sessions
        that have ended."""
        self._node = node
        self._counters, self._log_limit = node.counters, node.log_limit
        self._own = node.config.id
        self._clock = clock
        self._taken = taken
        self._handover = handover
        self._merging = merging
        self._tombstones = tombstones
        directory.watch(CLIENT, self._posted)

    def _posted(
        self, broker_id: bytes, key: bytes, value: bytes | None, gone: bool = False
    ) -> None:
        try:
            client_id = key.decode()
        except UnicodeDecodeError:
            return
        if (entry := decode_entry(value)) is None:
            if not gone:
                self._withdrawn(client_id, broker_id)
            return
        self._clock.merge(entry.stamp, self._node.now)
        self._handover.known(client_id, broker_id, entry.stamp)
        self.compare(broker_id, client_id, entry, read=False)

    def compare(self, broker_id: bytes, client_id: str, entry: Entry, *, read: bool) -> None:
        """End the session of `client_id` here, or have it merged, if the one that the broker
        `broker_id` has posted (`entry`) competes with it. `read`: the client's connection here was
        read to its end."""
        session = self._node.sessions.get(client_id)
        if session is None or not session.stamp or client_id in self._taken:
            return
        newer = (entry.stamp, broker_id) > (session.stamp, self._own)
        same_user = entry.owner == digest(session.owner)
        if newer and same_user:
            session.successor = max(session.successor, entry.stamp)
        if newer and not read and session.conn is not None and same_user:
            leave = self._node.predecessors.leave
            leave(
                client_id,
                lambda now: self.compare(broker_id, client_id, entry, read=True),
                self._node.now,
            )
        elif not same_user:  # two users at once, at brokers that had not heard of each other
            if (entry.created, broker_id) < (session.created, self._own):
                self._lose(session, resumed=False)
        elif not newer:
            self._merging.found(session, broker_id, entry)
        elif entry.floor > session.stamp or not session.expiry or entry.flags & GONE:
            self._lose(session, resumed=bool(entry.flags & RESUMED))
        else:
            self._left(session)

    def _withdrawn(self, client_id: str, broker_id: bytes) -> None:
        self._merging.withdrawn(client_id, broker_id)
        self._tombstones.withdrawn(client_id, broker_id)

    def _left(self, session: Session) -> None:
        """Close the connection of a client that has a newer session at another broker, which is
        going to ask for this one."""
        node = self._node
        if (conn := session.conn) is not None:
            self._counters.sessions_superseded += 1
            node.log(
                "info",
                f"client {shorten(session.client_id)} at {conn.peer}"
                " has connected to another broker; closed",
            )
            node.clients.take_over(session)

    def _lose(self, session: Session, *, resumed: bool) -> None:
        """End a session because the client has a newer one at another broker. `resumed`: that one
        continues this one, or another."""
        self._counters.sessions_superseded += 1
        if (conn := session.conn) is not None:
            peer = conn.peer
            client = shorten(session.client_id)
            text = f"client {client} at {peer} has connected to another broker; closed"
            self._log_limit.line("info", "connected to another broker", peer, text)
        self._tombstones.supersede(session, resumed=resumed)
