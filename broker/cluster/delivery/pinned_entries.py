"""Pinned entries: they leave the log while sessions move between brokers, and these sessions may
need them (docs/decisions/0016).

The broker that takes a session and the one that gives it find in their logs the messages that
arrived while it moved. Messages of some megabytes push everything else out of the log in less time
than a move takes; so entries that a moving session gets are pinned until it has arrived.

    on its way: taken here, or given from here -(an entry that it gets leaves the log)-> pinned
                                               -(no session is on its way)-> gone
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.replay_log import LogEntry, ReplayLog
    from mqttree.broker.cluster.ports import MemberBroker
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.session import Session

MAX_PINNED_BYTES = 128 * 1024 * 1024
"""bytes of entries that were trimmed from the log and are pinned for sessions on their way: of
one, `max_queued_bytes` may wait and twice that be in the log while it moves; and as many for
shared subscriptions just known. The oldest go first [replay_log_reserve_full]."""


class PinnedEntries:
    """Log entries that are pinned for sessions on their way to another broker (`ReplayLog.pinned`),
    by takeover or handover."""

    def __init__(self, node: MemberBroker, log: ReplayLog) -> None:
        """`node`: this broker; `log`: whose entries are pinned."""
        self._node = node
        self._counters = node.counters
        self._log = log
        self._movers: dict[object, Session] = {}
        self._moved: Counter[Session] = Counter()  # how many move each of them
        self.size = 0  # bytes

    def pin(self, mover: object, session: Session) -> None:
        """Pin what `session` gets from now on. `mover`: what moves it, for `unpin`."""
        log = self._log
        if not self._movers:
            log.on_dropped.append(self._dropped)
        self._movers[mover] = session
        self._moved[session] += 1

    def unpin(self, mover: object) -> None:
        """Note that a session has arrived, or is not moved."""
        if mover in self._movers:
            session = self._movers.pop(mover)
            self._moved[session] -= 1
            if not self._moved[session]:
                del self._moved[session]
            if not self._movers:
                log = self._log
                log.on_dropped.remove(self._dropped)
                log.pinned.clear()
                self.size = 0

    def _wanted(self, entry: LogEntry) -> bool:
        """Whether a session that moves gets a message of an entry."""
        dispatcher, moved = self._node.dispatcher, self._moved
        for topic in entry.topics():
            route = dispatcher.routes.get(topic) or dispatcher.route(topic, keep=False)
            if any(delivery.session in moved for delivery in route.deliveries):
                return True
        return False

    def _dropped(self, entry: LogEntry, position: int, source: Connection | None) -> None:
        """Keep an entry that leaves the log; the oldest ones are dropped if there is no room."""
        if not self._wanted(entry):
            return
        pinned = self._log.pinned
        pinned.append(entry)
        self.size += entry.size
        while self.size > MAX_PINNED_BYTES and len(pinned) > 1:
            oldest = pinned.popleft()
            self.size -= oldest.size
            self._counters.replay_log_reserve_full += oldest.count
