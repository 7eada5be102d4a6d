"""Sessions that have ended while brokers that are away have older sessions of the same clients,
which must not come back.

Such a session leaves its entry in the directory, GONE, until no broker has an older one
(docs/decisions/0016).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqttree.broker.cluster.sessions.session_entries import entries_of, key_of
from mqttree.broker.core.session_owner import GONE, Entry, digest

if TYPE_CHECKING:
    from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
    from mqttree.broker.cluster.sessions.ports import SessionBroker
    from mqttree.broker.core.session import Session

MAX_TOMBSTONES = 10_000
"""sessions that have ended while another broker that is away has an older one, which must not
come back [session_tombstones_forgotten]; some 100 bytes on every broker."""

TOMBSTONE_AGE_S = 86_400.0
"""s for which they are remembered: as long as deleted retained messages."""


class Tombstones:
    """The tombstones of one broker, by client id."""

    def __init__(self, node: SessionBroker, directory: LinkStateDirectory) -> None:
        self._node = node
        self._counters = node.counters
        self._directory = directory
        self._known: dict[str, Entry] = {}
        self._superseded = 0  # stamp of the session that ends because there is a newer one

    def __len__(self) -> int:
        return len(self._known)

    # ---------------------------------------------------------------- sessions that end

    def supersede(self, session: Session, *, resumed: bool) -> None:
        """End a session because the client has a newer one: its broker posts that one, and older
        ones at other brokers stay. `resumed`: another broker continues the queue of this one."""
        self._superseded = session.stamp
        if session.conn is not None:
            self._node.clients.take_over(session)
        if self._node.sessions.get(session.client_id) is session:
            if resumed:
                end_quietly(self._node, session, len(session.queue))
            else:
                self._node.end_session(session, None)
        self._superseded = 0

    def discard(self, session: Session) -> None:
        """End a session without a tombstone: older sessions at other brokers stay."""
        self._superseded = session.stamp
        end_quietly(self._node, session, len(session.queue))
        self._superseded = 0

    def ended(self, session: Session) -> None:
        """Withdraw the entry of a session that has ended, or leave a tombstone."""
        if session.stamp == self._superseded or not self.put(session):
            self._directory.withdraw(key_of(session.client_id))

    # ---------------------------------------------------------------- tombstones

    def put(self, session: Session) -> bool:
        """Post a tombstone, which ends older sessions of a client that other brokers have, or had
        when they were lost. Returns False if there are none."""
        whose = digest(session.owner)
        for _, entry in entries_of(self._directory.database, session.client_id):
            if not entry.flags & GONE and entry.owner == whose and entry.stamp <= session.stamp:
                break
        else:
            return False
        if len(self._known) >= MAX_TOMBSTONES:
            self._counters.session_tombstones_forgotten += 1
            return False
        floor = session.stamp + 1
        entry = Entry(GONE, floor, session.created, floor, whose)
        try:
            self._directory.post(key_of(session.client_id), entry.encode())
        except ValueError:  # the listing is full
            self._counters.session_tombstones_forgotten += 1
            return False
        self._known[session.client_id] = entry
        self._node.timers.schedule(
            self._node.now + TOMBSTONE_AGE_S,
            lambda now: self._remove(session.client_id, entry),
        )
        return True

    def withdrawn(self, client_id: str, broker_id: bytes) -> None:
        """Note that a broker has no session of a client any more: if no other broker has, there is
        nothing to be remembered."""
        entry = self._known.get(client_id)
        if entry is not None and all(
            other.stamp >= entry.floor
            for other_id, other in entries_of(self._directory.database, client_id)
            if other_id != broker_id
        ):
            self._remove(client_id, entry)

    def floor(self, client_id: str, owner: str | None) -> int:
        """Return since when nothing older is part of a client's session, as far as others, or this
        broker, remember."""
        whose = digest(owner)
        entries = [
            self._known.pop(client_id, None),
            *(entry for _, entry in entries_of(self._directory.database, client_id)),
        ]
        return max(
            (entry.floor for entry in entries if entry is not None and entry.owner == whose),
            default=0,
        )

    def _remove(self, client_id: str, entry: Entry) -> None:
        if self._known.get(client_id) is entry:
            del self._known[client_id]
            if client_id not in self._node.sessions:
                self._directory.withdraw(key_of(client_id))


def end_quietly(node: SessionBroker, session: Session, queued: int) -> None:
    """End a `session` that another broker has taken at `node`, with the first `queued` messages of
    its queue; its will is not published."""
    session.will = None
    session.inflight.clear()
    for _ in range(min(queued, len(session.queue))):
        session.queue.popleft()
    node.end_session(session, None)
