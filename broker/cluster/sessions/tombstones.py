"""Sessions that have ended while brokers that are away have older ones of the same clients, which
must not come back.

Such a session leaves its entry in the directory, GONE, until nobody has an older one any more
(docs/decisions/0016).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.base import limits
from broker.cluster.strategy.directory import CLIENT
from broker.core.session_owner import GONE, Entry, digest, entries_of

if TYPE_CHECKING:
    from broker.cluster.cluster import Cluster
    from broker.core.local_broker import LocalBroker
    from broker.core.session import Session


class Tombstones:
    """Those of one broker, by client id."""

    __slots__ = ("_cluster", "_known", "_node")

    def __init__(self, node: LocalBroker, cluster: Cluster) -> None:
        self._node = node
        self._cluster = cluster
        self._known: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._known)

    def put(self, session: Session) -> bool:
        """Have older sessions of a client end that other brokers have, or had when they were lost;
        False when there are none."""
        key, whose = CLIENT + session.client_id.encode(), digest(session.owner)
        for _, entry in entries_of(self._cluster.directory.database.listings.values(), key):
            if not entry.flags & GONE and entry.owner == whose and entry.stamp <= session.stamp:
                break
        else:
            return False
        if len(self._known) >= limits.MAX_SESSION_TOMBSTONES:
            self._node.counters.sessions_forgotten += 1
            return False
        floor = session.stamp + 1
        entry = Entry(GONE, floor, session.born, floor, whose)
        try:
            self._cluster.directory.post(key, entry.encode())
        except ValueError:  # the listing is full
            self._node.counters.sessions_forgotten += 1
            return False
        self._known[session.client_id] = entry
        self._node.schedule(
            self._node.now + limits.SESSION_TOMBSTONE_TIME,
            lambda now: self._remove(session.client_id, entry),
        )
        return True

    def withdrawn(self, client_id: str, broker_id: bytes) -> None:
        """Note that a broker has no session of a client any more: if nobody else has, there is
        nothing to be remembered."""
        entry = self._known.get(client_id)
        if entry is not None:
            key = CLIENT + client_id.encode()
            listings = self._cluster.directory.database.listings.values()
            if all(
                other.stamp >= entry.floor
                for other_id, other in entries_of(listings, key)
                if other_id != broker_id
            ):
                self._remove(client_id, entry)

    def floor(self, client_id: str, owner: str | None) -> int:
        """Return since when nothing older is part of a client's session, as far as others, or this
        broker, remember."""
        key, whose = CLIENT + client_id.encode(), digest(owner)
        listings = self._cluster.directory.database.listings.values()
        entries = [
            self._known.pop(client_id, None),
            *(entry for _, entry in entries_of(listings, key)),
        ]
        return max(
            (entry.floor for entry in entries if entry is not None and entry.owner == whose),
            default=0,
        )

    def _remove(self, client_id: str, entry: Entry) -> None:
        if self._known.get(client_id) is entry:
            del self._known[client_id]
            if client_id not in self._node.sessions:
                self._cluster.directory.withdraw(CLIENT + client_id.encode())
