"""How much memory the broker keeps for its clients, and what is refused and dropped when that is
too much.

The count is an estimate of what the broker keeps: queues of sessions, retained messages, the replay
log, messages for shared subscriptions that are not acknowledged, those that wait for what is
missing before them, bytes that wait for or come from connections, what other brokers say, kept
routes, a share for each session, subscription and connection, and filters, names, wills and
aliases. The process takes more: Python itself (some 60 MB), and what its allocator does not give
back. Counting costs a message nothing that is sent at once.

What happens, in this order:

    from 80 % of the limit on   new retained topics are refused [retained_refused], clients without
                                a session here [connects_refused, 0x89 or 3], and new filters
                                [subscriptions_refused, 0x97 or 0x80]; the replay log has no room
                                beside for large messages
    from 100 % on               messages for clients that are away are dropped [dropped_memory]
    from 110 % on               until it is 100 %: sessions of clients that are away end, the
                                largest queue first [sessions_shed]; then clients for which most
                                waits, or that keep most here, are closed, the largest first
                                [memory_closed]

Queues of all sessions together have their own limit (`max_queued_bytes`); beyond it messages for
clients that are away are dropped, too.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from mqttree.broker.base import costs
from mqttree.broker.core.client import Client
from mqttree.broker.core.message import size_of
from mqttree.broker.core.serving_broker import ServingBroker
from mqttree.broker.wire.properties import Property
from mqttree.broker.wire.strings import shorten

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.delivery_queue import DeliveryQueue
    from mqttree.broker.core.session import Session
    from mqttree.broker.core.traffic_meter import TrafficMeter
    from mqttree.broker.wire.packets import Will

HEAVY_BYTES = 64 * 1024
"""bytes that wait for a session or connection from which on it may be ended when memory is
short."""

ENDED_PER_TURN = 50
"""sessions, and connections, that are ended in one turn for that."""


NEVER = 1 << 62

IDLE_PERIOD = 1.0
"""s between two rounds of the count while the broker has little to do."""

PAUSE = 0.0001
"""s between two pieces of a round; sockets are read in between."""

PIECES = 64
"""pieces of a round after which counting waits for as long as before a new round: very many clients
must not have it take most of the time."""


class Pressure(IntEnum):
    """How close to its limit the broker is."""

    NONE = 0
    HIGH = 1
    FULL = 2
    OVER = 3


SAID = {
    Pressure.HIGH: "new retained topics, clients and filters are refused",
    Pressure.FULL: "messages for clients that are away are dropped, too",
}


class MemoryBroker(ServingBroker, Protocol):
    """What the count of memory asks of its broker."""

    traffic: TrafficMeter | None
    """Counts messages by topic; None: nothing does."""


class MemoryLimit:
    """The count of one node, and its limits in bytes; 0: none."""

    def __init__(self, node: MemoryBroker) -> None:
        config = node.config
        self._node = node
        self.limit = config.memory_limit
        self.queued_limit = config.max_queued_bytes or self.limit // 2
        self.pressure = Pressure.NONE
        self.appended = 0  # bytes that were ever queued
        self.brink = NEVER  # `appended` from which on `takes_queued` is to be asked
        self._base = 0  # bytes of all queues in the last round that is over,
        self._counted_at = 0  # and `appended` when that round began
        self._round_at = 0  # the same of the round that is under way, or over
        self._sessions: Iterator[Session] = iter(())
        self._sessions_sum = 0
        self._left = 0  # bytes of what clients leave with their sessions besides, in the last round
        self._left_sum = 0
        self._heavy: dict[Session, int] = {}  # those with much, in the last round
        self._heavy_next: dict[Session, int] = {}
        self._waiting = 0  # bytes of all connections in the last round
        self._connections: Iterator[Connection] = iter(())
        self._connections_sum = 0
        self._loud: dict[Connection, int] = {}
        self._loud_next: dict[Connection, int] = {}
        self._said = Pressure.NONE
        self._worked = 0.0  # s since the last round began
        self._pace = 0.0  # s of work from one round to the next; 0: there is none
        self._pieces = 0  # of the round that is under way, 0: there is none
        if limits := [limit for limit in (self.limit, self.queued_limit) if limit]:
            # Shorter than a fast network takes to fill an eighth of the limit.
            self._pace = min(IDLE_PERIOD, max(0.02, min(limits) / 8e9))
            self._set_brink()
            node.timers.schedule(node.now + self._pace, self._turn)

    # ---------------------------------------------------------------- how much

    @property
    def queued(self) -> int:
        """Bytes that wait for sessions: not less than there are, a little more until they are
        counted again."""
        return self._base + self.appended - self._counted_at

    @property
    def used(self) -> int:
        """Bytes that the broker keeps, estimated."""
        node = self._node
        return (
            self.queued
            + self._waiting
            + self._left
            + node.retained.size
            + len(node.retained) * costs.RETAINED_MEMORY
            + node.retained.index
            + node.retained.digests.memory
            + node.retained.tombstones * costs.TOMBSTONE_MEMORY
            + node.cluster.replay_log.memory
            + len(node.sessions) * costs.SESSION_MEMORY
            + node.dispatcher.memory
            + node.dispatcher.cache.memory
            + len(node.connections) * costs.CONNECTION_MEMORY
            + node.cluster.memory
            + (node.traffic.rates.memory if node.traffic is not None else 0)
        )

    # ---------------------------------------------------------------- what is refused

    def takes_queued(self, queue: DeliveryQueue) -> bool:
        """Whether a message may be queued; asked while `appended` is beyond
        `brink`."""
        if queue.conn is not None:
            return True  # its publishers are held, and its queue has a limit of its own
        return not (
            self.pressure >= Pressure.FULL
            or (self.queued_limit and self.queued >= self.queued_limit)
        )

    @property
    def takes_more(self) -> bool:
        """Whether there is room for retained topics, for clients that have no session here and for
        filters."""
        return self.pressure == Pressure.NONE

    # ---------------------------------------------------------------- counting

    def worked(self, seconds: float) -> None:
        """Note that this broker has worked for so many `seconds` of CPU time more. Counting goes by
        work: what takes memory takes time, and to count thousands of idle clients again and again
        would cost more than they do."""
        self._worked += seconds
        if self._worked >= self._pace > 0.0 and not self._pieces:
            self._count(self._node.now)

    def _turn(self, now: float) -> None:
        """Begin to count again, however little was done since the last round."""
        if not self._pieces:
            self._count(now)
        self._node.timers.schedule(now + IDLE_PERIOD, self._turn)

    def _count(self, now: float) -> None:
        """Count some clients more, decide, and drop what is too much. A round is counted in pieces,
        as messages wait while it goes on: the next piece comes in the next turn of the loop, after
        many of them when as much is due as a new round would be. `now`: s."""
        if not self._pieces:
            self._begin()
        self._pieces += 1
        left = self._count_sessions(self._node.limits.memory_step)
        left = self._count_connections(left)
        if left > 0:
            self._take()
        self._decide()
        if self.pressure == Pressure.OVER:
            self._shed()
            self._decide()
        self._set_brink()
        if self._pieces:
            wait = PAUSE if self._pieces % PIECES else self._pace
            self._node.timers.schedule(now + wait, self._count)

    def _begin(self) -> None:
        """Begin a round."""
        self._worked = 0.0
        self._round_at = self.appended
        self._sessions = iter(list(self._node.sessions.values()))
        self._connections = iter(list(self._node.connections))
        self._sessions_sum = self._left_sum = self._connections_sum = 0
        self._heavy_next = {}
        self._loud_next = {}

    def _take(self) -> None:
        """End a round: what it found is what there is."""
        self._pieces = 0
        self._base, self._counted_at = self._sessions_sum, self._round_at
        self._left = self._left_sum
        self._heavy = self._heavy_next
        self._waiting = self._connections_sum
        self._loud = self._loud_next

    def _set_brink(self) -> None:
        left = self.queued_limit - self.queued if self.queued_limit else NEVER
        self.brink = 0 if self.pressure >= Pressure.FULL else self.appended + max(0, left)

    def _count_sessions(self, steps: int) -> int:
        """Count the queues of some sessions more. What is queued meanwhile may count twice until
        the next round. Returns how many of the `steps` are left."""
        known = self._node.sessions
        heavy = HEAVY_BYTES
        while steps > 0:
            session = next(self._sessions, None)
            if session is None:
                break
            steps -= 1
            if known.get(session.client_id) is not session:
                continue  # it has ended since the round began
            size = queue_memory(session)
            left = left_memory(session)
            self._sessions_sum += size
            self._left_sum += left
            size += left + session.filters_memory
            if size > heavy:
                self._heavy_next[session] = size
            steps -= len(session.inflight) // 5
        return steps

    def _count_connections(self, steps: int) -> int:
        """Count what is queued for some more connections, in the same way."""
        heavy = HEAVY_BYTES
        while steps > 0:
            conn = next(self._connections, None)
            if conn is None:
                break
            steps -= 1
            if conn.closed:
                continue
            size = conn.backlog_bytes + conn.unhandled
            if isinstance(conn.owner, Client):
                size += client_memory(conn.owner)
                self._connections_sum += size
                size += left_memory(conn.owner.session)
            else:
                self._connections_sum += size
            if size > heavy:
                self._loud_next[conn] = size
        return steps

    # ---------------------------------------------------------------- deciding

    def _decide(self) -> None:
        """Say how close to the limit we are. What is under way goes down again at once."""
        share = self.used / self.limit if self.limit else 0.0
        self.pressure = Pressure((share >= 0.8) + (share >= 1.0) + (share >= 1.1))
        self._node.retained.closed = self.pressure > Pressure.NONE
        self._node.cluster.replay_log.give_room(
            0 if self.pressure else self._node.config.log_room(self._node.limits)
        )
        if self.pressure > self._said:
            what = SAID[min(self.pressure, Pressure.FULL)]
            self._node.log(
                "warning", f"memory: {self.used:,} of {self.limit:,} bytes are used; {what}"
            )
            self._said = self.pressure
        elif share < 0.7 and self._said:
            self._node.log(
                "info",
                f"memory: {self.used:,} of {self.limit:,} bytes are used; "
                "clients and messages are accepted again",
            )
            self._said = Pressure.NONE

    def _shed(self) -> None:
        """End what takes most, until the limit is kept."""
        node = self._node
        left = self.used - self.limit
        for session, size in sorted(self._heavy.items(), key=lambda item: -item[1])[
            :ENDED_PER_TURN
        ]:
            if left <= 0:
                return
            del self._heavy[session]
            if session.conn is None and node.sessions.get(session.client_id) is session:
                text = (
                    f"memory: the session of client {shorten(session.client_id)}, "
                    f"which is not connected, ends with {len(session.queue):,} queued messages"
                )
                node.log_limit.line("warning", "sessions ended for memory", "this broker", text)
                node.counters.sessions_shed += 1
                node.counters.dropped_memory += len(session.queue)
                queued, kept = queue_memory(session), left_memory(session)
                self._base -= queued
                self._left -= kept
                if self._heavy_next.pop(session, None) is not None:
                    # It was counted in the round that is under way, too.
                    self._sessions_sum -= queued
                    self._left_sum -= kept
                node.end_session(session, None)
                left -= size
        for conn, size in sorted(self._loud.items(), key=lambda item: -item[1])[:ENDED_PER_TURN]:
            if left <= 0:
                return
            del self._loud[conn]
            if not conn.closed and conn.link is None:
                text = (
                    f"memory: {conn.peer} is disconnected to free memory: "
                    f"{size:,} bytes are queued or stored for it"
                )
                node.log_limit.line("warning", "connections closed for memory", conn.peer, text)
                node.counters.memory_closed += 1
                kept = left_memory(conn.owner.session) if isinstance(conn.owner, Client) else 0
                conn.abort("it takes the most memory, and memory is short")
                # What is kept may go on with its session, which is away now.
                self._waiting -= size - kept
                if conn in self._loud_next:
                    self._connections_sum -= self._loud_next.pop(conn) - kept
                left -= size


def queue_memory(session: Session) -> int:
    """Return the bytes of memory of what is queued for a session or in flight to it, about."""
    size = session.queued_bytes + session.missed_bytes + len(session.queue) * costs.QUEUED_MEMORY
    for sent in session.inflight.values():
        size += (
            len(sent[0]) + costs.FLIGHT_MEMORY
            if isinstance(sent, tuple)
            else size_of(sent.message) + costs.QUEUED_MEMORY
        )
    return size


def left_memory(session: Session) -> int:
    """Return the bytes of memory of what a client leaves with its session besides messages and
    filters, about."""
    size = (
        2 * session.client_id.__sizeof__()
        + session.will_memory
        + len(session.incoming) * costs.IDENTIFIER_MEMORY
    )
    return size + (session.username.__sizeof__() if session.username is not None else 0)


def client_memory(client: Client) -> int:
    """Return the bytes of memory of what a client has for as long as it is connected, about."""
    aliases = client.session.aliases
    size = client.conn.asked if client.conn.waiting else 0
    size += client.aliases_memory + (aliases.memory if aliases is not None else 0)
    if client.session.permissions is not None:  # else all clients share these routes
        size += len(client.routes) * costs.ROUTE_SHOWN_MEMORY
    return size


def will_memory(will: Will | None) -> int:
    """Return the bytes of memory that a will takes, about."""
    if will is None:
        return 0
    said = (will.properties or {}).get(Property.USER_PROPERTY, ())
    size = sum(len(name) + len(value) + costs.PROPERTY_MEMORY for name, value in said)
    return size + will.topic.__sizeof__() + len(will.payload)
