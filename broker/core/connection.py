"""A byte stream between this broker and a peer: bytes in, an outbox out, no socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from mqttree.broker.core.connection_states import Action, Input, State, transition
from mqttree.broker.core.core_broker import CoreBroker
from mqttree.broker.wire.constants import PacketType
from mqttree.broker.wire.publish_header import PUBLISH, QOS_BITS, RETAIN, packet_size

if TYPE_CHECKING:
    from collections import deque


CLOSE_TIMEOUT_S: Final = 5.0
"""s; from our decision to close until a peer that does not read its last packets is cut off."""


READING: Final = State.READING

LARGE: Final = 1 << 20
"""bytes of a packet that is worth the memory that the driver keeps for the next one."""


class Transport(Protocol):
    """What a driver (or a simulated network) offers a connection. None of it blocks or answers."""

    def write(self, data: bytes) -> None:
        """Send bytes; may call `Connection.pause` before it returns."""

    def close(self) -> None:
        """Close once everything written has gone out; with `Connection.linger` the peer may send
        for `linger` more."""

    def abort(self) -> None:
        """Close the connection at once; what has not gone out is lost."""

    def pause_reading(self) -> None:
        """Stop reading; TCP slows the peer down."""

    def resume_reading(self) -> None:
        """Read from the peer again after `pause_reading`; harmless when nothing was paused."""

    def unread(self) -> bool:
        """Hand over some of what the peer has sent, if that can be done at once; return whether
        there may be more, which is handed over in the next turns. Never calls
        `Node.connection_lost` before it returns."""

    def unsent(self) -> int:
        """Return the bytes written that the peer's system has not taken yet, as far as that is
        known."""


class Nowhere:
    """The transport of a connection without a peer: one that was closed while a packet waited for
    an answer, as what came before the end is still handled (`Node.connection_lost`), or one that
    stands for a client that is away."""

    __slots__ = ("conn",)

    conn: Connection

    def write(self, data: bytes) -> None:
        """Drop it: there is no peer any more."""

    def close(self) -> None:
        """Close a moment later: the caller may be in the middle of handling a packet."""
        conn, node = self.conn, self.conn.node
        node.timers.schedule(
            node.now, lambda now: node.connection_registry.on_closed(conn, conn.ended, now)
        )

    def abort(self) -> None:
        """`Connection.abort` does what there is to do."""

    def pause_reading(self) -> None:
        """Do nothing: there is no input."""

    def resume_reading(self) -> None:
        """Do nothing: there is no input."""

    def unread(self) -> bool:
        """Do nothing: there is no input."""
        return False

    def unsent(self) -> int:
        """Return 0: there is no peer."""
        return 0


class Owner:
    """The owner of a connection: a client or a link. A class, not a Protocol: compiled code finds
    the methods of a Protocol by their names, at each call."""

    __slots__ = ()

    def packets(self, data: bytes, now: float) -> int:
        """Handle the whole packets at the start of `data`; returns how many bytes were used up.

        Raises NotImplementedError: this class handles nothing.
        """
        raise NotImplementedError

    def on_connection_lost(self, reason: str, now: float) -> None:
        """Note that the connection is gone; called once.

        Raises NotImplementedError: this class handles nothing.
        """
        raise NotImplementedError

    def control_first(self) -> bytes:
        """Return bytes that overtake queued data (links: BPDUs), or b"".

        Raises NotImplementedError: this class handles nothing.
        """
        raise NotImplementedError

    def drained(self, now: float) -> None:
        """Note that the peer has caught up with everything that waited for it.

        Raises NotImplementedError: this class handles nothing.
        """
        raise NotImplementedError


Arrival = tuple[bytes, bytes, float]
"""A message at QoS 1 or 2 that a link has brought: its origin (16 characters), its topic, and when
it came (s)."""


class LinkEnd(Protocol):
    """The owner of a connection to another broker."""

    arrival: Arrival | None
    """The last message at QoS 1 or 2 that it has brought: its origin is asked to hold publishers
    while a subscriber is too slow for it."""

    def overflowed(self) -> None:
        """Note that it takes less than is sent to it: what is left out is replayed later."""


class Outlets(Protocol):
    """Connections, and sessions, whose outbox is flushed at the end of the turn."""

    def append(self, outlet: Connection, /) -> None:
        """Note one whose outbox is not empty any more."""


class Backpressure(Protocol):
    """Which connections are not read, as a subscriber is behind."""

    @property
    def unheld(self) -> deque[Connection]:
        """Publishers that were held, and had been read further than was handled."""

    def holds(self, source: Connection, /) -> bool:
        """Whether a connection is not read, for any reason."""

    def hold(self, source: Connection | None, reason: object, /) -> None:
        """Do not read `source` until `release(reason)`."""

    def hold_publishers(self, slow: Connection, source: Connection | None, /) -> None:
        """Do not read `source` until `slow` has caught up."""

    def release(self, reason: object, /) -> None:
        """Read the publishers again that waited for `reason` alone."""


class OpenConnections(Protocol):
    """The connections of one broker that are not closed yet."""

    def on_closed(self, conn: Connection, reason: str, now: float, /) -> None:
        """A connection (`conn`) is closed, for a `reason`, at `now` (s)."""


class OutputGate(Protocol):
    """Holds output back until the records that it depends on are durable."""

    def gates_output(self, conn: Connection, /) -> bool:
        """Whether output for a connection is held back."""


class ConnectionBroker(CoreBroker, Protocol):
    """What a connection asks of its broker."""

    large_message: bool
    """Whether a packet of LARGE bytes or more has come since the driver last looked."""

    paused: int
    """How many transports hold enough; not 0: the driver flushes after each read."""

    @property
    def dirty(self) -> Outlets:
        """Whose outbox is not empty."""

    @property
    def flow_control(self) -> Backpressure:
        """Says which connections are not read."""

    @property
    def connection_registry(self) -> OpenConnections:
        """The connections of this broker."""

    @property
    def journal(self) -> OutputGate:
        """Holds output back until the records that it depends on are durable."""


class Connection:
    """One connection. `receive` is the only entry of the hot path; whoever appends to `outbox`
    first lists it in `node.dirty`."""

    __slots__ = (
        "_have",
        "_need",
        "_parts",
        "asked",
        "backlog",
        "backlog_bytes",
        "conn",
        "counters",
        "dirty",
        "ended",
        "gate",
        "last_heard",
        "linger",
        "link",
        "listener",
        "max_packet_size",
        "node",
        "outbox",
        "owner",
        "paused",
        "peer",
        "secure",
        "stalled",
        "state",
        "traffic",
        "transport",
        "waiting_since",
    )

    def __init__(
        self,
        node: ConnectionBroker,
        peer: str,
        listener: str,
        transport: Transport,
        now: float,
    ) -> None:
        """`node`: its broker; `peer`: HOST:PORT for log lines; `listener`: the name of the listener
        that accepted it; `transport`: takes what is written; `now`: s."""
        self.node = node
        self.peer = peer
        self.listener = listener
        self.transport = transport
        self.owner: Owner | None = None
        self.link: LinkEnd | None = None  # the owner, if it is another broker
        # The broker's: every message needs them.
        self.counters = node.counters
        self.dirty = node.dirty
        self.traffic = node.counters.to_clients
        self.outbox: list[bytes] = []
        # An outlet's connection; a session's is None while its client is away.
        self.conn: Connection | None = self
        self.last_heard = now
        self.max_packet_size = node.limits.max_connect_size
        self.state = State.READING
        self.paused = False
        self.stalled = False  # too slow for too long: its publishers do not wait for it any more
        self.waiting_since = 0.0
        # bytes of memory of the last filters that were asked for: they are kept while `waiting`
        self.asked = 0
        self.ended = ""  # why the peer has gone, while what it sent before is not handled yet
        self.linger = False  # the peer may be sending while we close: it has to hear why
        self.backlog: list[bytes] = []
        self.backlog_bytes = 0
        # Not 0: what goes out waits for this frame of the journal (see `Journal.hold`).
        self.gate = 0
        self.secure: Any = None
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 0

    # ---------------------------------------------------------------- in

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes as they come, cut anywhere; linear in their number also for a packet that
        comes byte by byte."""
        self.last_heard = now
        self.node.now = now
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._parts)
            self._parts.clear()
            if len(data) >= LARGE:
                self.node.large_message = True
        if self.state is not READING:
            if self.state.waiting:
                self._keep(data, 0)
                if len(data) > self.node.limits.plugin_backlog_bytes:
                    self.hold()
                return
            if self.state.over:
                return
        if self.owner is None:
            return
        used = self.owner.packets(data, now)
        if used < len(data) and not self.state.over:
            self._keep(data, used)

    def _keep(self, data: bytes, used: int) -> None:
        rest = data[used:] if used else data
        self._parts.append(rest)
        self._have = len(rest)
        self._need = 0 if self.state.waiting or self.state.held else packet_size(rest)

    # ---------------------------------------------------------------- states

    def _on(self, given: Input) -> Action:
        """Go to the next state; returns what is to be done."""
        action, self.state = transition(self.state, given)
        return action

    @property
    def waiting(self) -> bool:
        """Whether a packet waits for the answer to an effect."""
        return self.state.waiting

    @property
    def held(self) -> bool:
        """Whether nothing is read, as its subscribers or a limit are behind."""
        return self.state.held

    @property
    def closing(self) -> bool:
        """Whether it is closed once the last bytes have gone out."""
        return self.state.closing

    @property
    def closed(self) -> bool:
        """Whether the transport is gone and no more bytes come or go."""
        return self.state.closed

    def wait(self) -> None:
        """Handle nothing more before the answer to an effect (`on_answer`, `resume`)."""
        self._on(Input.WAIT)

    def on_answer(self) -> None:
        """Note that the answer has come. What came meanwhile is handled by `resume`."""
        self._on(Input.ANSWERED)

    def peer_gone(self, reason: str) -> None:
        """Note that the peer has gone, for a `reason`, while a packet waits: what came before is
        handled all the same. Raises ImpossibleInputError if no packet waits."""
        self._on(Input.PEER_GONE)
        self.ended = reason
        self.transport = nowhere = Nowhere()
        nowhere.conn = self
        self.backlog.clear()
        self.backlog_bytes = 0

    def on_closed(self) -> None:
        """Note that it is closed; what is kept is dropped. Harmless when repeated."""
        if self._on(Input.GONE) is Action.LET_GO:
            self.traffic = self.counters.end_connection(self.traffic)
            if self.paused:
                self.paused = False
                self.node.paused -= 1
            self.backlog.clear()
            self.backlog_bytes = 0

    @property
    def mid_packet(self) -> bool:
        """True while part of a packet has come and the rest is on its way."""
        return bool(self._parts)

    @property
    def backed_up(self) -> bool:
        """True while packets that were read wait because their sender is held."""
        return bool(self._parts) and (self.held or self in self.node.flow_control.unheld)

    @property
    def unhandled(self) -> int:
        """Bytes that were read and not handled."""
        return self._have if self._parts else 0

    @property
    def says_goodbye(self) -> bool:
        """True if the peer has gone, and nothing that it sent is left to be handled but perhaps
        DISCONNECT."""
        left = self._parts[0] if self._parts else b""
        return bool(self.ended) and (not left or left[0] >> 4 == PacketType.DISCONNECT)

    def resume(self, now: float) -> None:
        """Go on after the answer that `waiting` waited for."""
        self._on(Input.ANSWERED)
        if self._parts:
            data = b"".join(self._parts)
            self._parts.clear()
            if not (self.state.over or self.owner is None):
                used = self.owner.packets(data, now)
                if used < len(data) and not self.state.closed:
                    self._keep(data, used)
        if self.state.held and not self.state.waiting and not self.node.flow_control.holds(self):
            self.unhold()
        self._end(now)

    def _end(self, now: float) -> None:
        """Let go of a peer that has gone, once all is handled that it sent."""
        if self.ended and not self.state.waiting and not self.backed_up:
            self.node.connection_registry.on_closed(self, self.ended, now)

    def hold(self) -> None:
        """Stop reading from this peer."""
        if self._on(Input.HOLD) is Action.STOP_READING:
            self.transport.pause_reading()

    def come_back(self) -> None:
        """Have the owner called once more when this peer is read again, though nothing that came
        may be left here."""
        if not self._parts:
            self._parts.append(b"")
            self._have = self._need = 0

    def unhold(self) -> None:
        """Read again; first, at the end of this turn, handle what was read already (`go_on`)."""
        if self._on(Input.RELEASE) is Action.READ_AGAIN:
            if self._parts:
                self.node.flow_control.unheld.append(self)
            else:
                self.transport.resume_reading()

    def go_on(self, now: float) -> None:
        """Handle what had been read when this peer was held, as far as it goes, and read again."""
        if self.state.held or self.state.closed:
            return
        if (
            not (self.state.waiting or self.state.closing or self.owner is None)
            and self._have >= self._need
        ):
            data = b"".join(self._parts)
            self._parts.clear()
            used = self.owner.packets(data, now)
            if used < len(data) and not self.state.over:
                self._keep(data, used)
        if not (self.state.held or self.state.closed):
            self.transport.resume_reading()
        self._end(now)

    # ---------------------------------------------------------------- out

    def send(self, data: bytes) -> None:
        """Queue bytes (whole packets, no messages of clients') for this connection."""
        if not self.outbox:
            self.dirty.append(self)
        self.outbox.append(data)
        self.traffic.other += len(data)

    def overtake(self, data: bytes) -> None:
        """Write bytes at once, ahead of what is queued."""
        self.traffic.sent += len(data)
        self.transport.write(data)

    def pass_gate(self, data: bytes) -> None:
        """Write bytes (whole packets) at once, ahead of the output that waits for the journal, but
        of no other."""
        if self.state.over:
            return
        outbox = [] if self.gate else self.outbox
        outbox.append(data)
        self.flush(outbox, None)

    def flush(self, outbox: list[bytes], source: Connection | None) -> None:
        """Hand the outbox to the transport, or keep it while the peer reads too slowly; empties
        `outbox`. `source`: the publisher that is held when too much is kept."""
        if self.state is READING and not (self.paused or self.backlog):
            # The same as below, with less to be looked at: nearly all are like this.
            data = outbox[0] if len(outbox) == 1 else b"".join(outbox)
            outbox.clear()
            self.traffic.sent += len(data)
            self.transport.write(data)
        elif self.state.closed:
            outbox.clear()
        elif self.paused or self.backlog:
            self._to_backlog(outbox, source)
        else:
            data = outbox[0] if len(outbox) == 1 else b"".join(outbox)
            outbox.clear()
            self.traffic.sent += len(data)
            self.transport.write(data)
            if self.state.closing and self._said_all():
                self.transport.close()

    def _to_backlog(self, outbox: list[bytes], source: Connection | None) -> None:
        link = self.link
        limits = self.node.limits
        limit = limits.link_backlog_bytes if link is not None else limits.client_backlog_bytes
        backlog = self.backlog
        size = self.backlog_bytes
        full = False
        # Retained messages are in the log: the link is replayed, in order.
        droppable = 0xF0 | QOS_BITS if link is None else 0xF0 | QOS_BITS | RETAIN
        for data in outbox:
            if (full or size + len(data) > limit) and data[0] & droppable == PUBLISH:
                # From the first that is dropped on: on a link a packet may refer to the one before
                # it.
                full = True
                count = count_packets(data)
                if link is None:
                    self.counters.dropped_slow_consumer += count
                else:
                    self.counters.dropped_link += count
                continue
            backlog.append(data)
            size += len(data)
        kept = (
            link is not None
            and size > limits.hold_link_bytes
            and any(d[0] >> 4 == 3 and d[0] & 7 for d in outbox)
        )
        outbox.clear()
        self.backlog_bytes = size
        if link is not None:
            if size > limits.link_kept_bytes:
                link.overflowed()
            if kept:
                self.node.flow_control.hold_publishers(self, source)
        elif size > 2 * limit:
            self.counters.slow_consumer_closed += 1
            self.abort("it reads too slowly: its acknowledgements pile up")
        elif size > self.node.limits.hold_backlog_bytes:
            self.node.flow_control.hold_publishers(self, source)

    def pause(self) -> None:
        """Note that the transport holds enough; what follows waits in `backlog`."""
        if not (self.paused or self.state.closed):
            self.paused = True
            self.node.paused += 1
            self.waiting_since = self.node.now

    def writable(self, now: float) -> None:
        """Note that the transport takes bytes again."""
        if self.paused:
            self.paused = False
            self.node.paused -= 1
        self.waiting_since = now
        if self.owner is not None and self.backlog:
            first = self.owner.control_first()
            if first:
                self.transport.write(first)
        backlog = self.backlog
        index = 0
        while index < len(backlog) and not self.paused:
            # In pieces, so that the transport can say "enough" and control packets can overtake.
            piece: list[bytes] = []
            size = 0
            while index < len(backlog) and size < 256 * 1024:
                piece.append(backlog[index])
                size += len(backlog[index])
                index += 1
            self.backlog_bytes -= size
            self.traffic.sent += size
            self.transport.write(b"".join(piece))
        del backlog[:index]
        if not backlog:
            self.backlog_bytes = 0
            if self.state.closing:
                if self._said_all():
                    self.transport.close()
            elif not self.paused:
                self.stalled = False
                self.node.flow_control.release(self)
                if self.owner is not None:
                    self.owner.drained(now)

    # ---------------------------------------------------------------- end

    def close(self, last: bytes = b"") -> None:
        """Send `last` and whatever is queued, then close. What comes in from now on is ignored."""
        if self._on(Input.CLOSE) is not Action.SAY_LAST_WORDS:
            return
        if last:
            self.send(last)
        if not self.backlog and self._said_all():
            self.transport.close()
        # A peer that does not read would keep what is queued for ever.
        self.node.timers.schedule(
            self.node.now + CLOSE_TIMEOUT_S,
            lambda now: self.abort("it did not read the last bytes before closing"),
        )

    def _said_all(self) -> bool:
        """Whether nothing is to be handed over any more: last words may still be in the outbox when
        what was held goes out."""
        return not self.outbox and not (self.gate and self.node.journal.gates_output(self))

    def abort(self, reason: str) -> None:
        """Close at once; `on_connection_lost` follows with `reason`."""
        if not self.state.closed:
            self.transport.abort()
            self.node.connection_registry.on_closed(self, reason, self.node.now)


def count_packets(data: bytes) -> int:
    """Count the packets in a run of whole packets (a dropped piece of outbox)."""
    position = count = 0
    while position < len(data):
        size = packet_size(data[position : position + 5])
        if not size:
            break
        position += size
        count += 1
    return count
