"""A connection to another broker (MQTT-ST II-C): packets in and out, records in PINGREQ, messages.

Its states, and what each packet does in them, are a table (`link_states`). What comes before the
link is up is the handshake's; from then on PINGREQ with records, PINGRESP and PUBLISH go both ways,
with a cluster secret in encrypted records (`record_layer`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sized
from typing import Final, Protocol

from mqttree.broker.base.rate_limit import Budget
from mqttree.broker.cluster.link.control_records import (
    ORIGINS,
    PING,
    SEEN,
    decode_records,
    encode_record,
    walk,
    work,
)
from mqttree.broker.cluster.link.link_states import STANDING, Action, Input, State, transition
from mqttree.broker.cluster.link.peer import Peer
from mqttree.broker.cluster.link.version_vector import Vector
from mqttree.broker.cluster.ports import MemberBroker
from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.core.connection import Arrival, Connection, Owner
from mqttree.broker.wire.constants import MAX_PACKET_SIZE, PacketType, ReasonCode
from mqttree.broker.wire.decode import decode_packet
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.errors import ProtocolViolation, WireError
from mqttree.broker.wire.packets import Auth, Connack, Connect, Disconnect
from mqttree.broker.wire.publish_header import PUBLISH
from mqttree.broker.wire.varint import encode_varint, read_length

ROUND_TRIPS: Final = 64
"""round trips that are remembered. What a link costs paths is the shortest of them: half a minute
by default, in which a neighbour that waits for a processor has answered at once. (Linux remembers
the shortest one of a TCP connection for five minutes.)"""

MARKED: Final = 1 << 31
"""In the number of a PINGREQ: it is a mark, sent behind messages, and its PINGRESP says that these
have been handled."""

ACK_MARK: Final = 1 << 30
"""In the number of a mark: it asks for all messages that were sent up to there, and not for a step
of a comparison of retained ones."""


Handler = Callable[["Link", bytes, float], None]
"""Takes the body of a record from a link at `now` (s); raises MalformedPacket for one that cannot
be read."""


class Handshake(Protocol):
    """The handshake before a link is up (`LinkHandshake`)."""

    @property
    def method(self) -> str | None:
        """The Authentication Method of this broker; None: it has nothing to prove."""

    def call(self) -> None:
        """Send this broker's CONNECT on a connection that it dialled."""

    def connect_received(self, connect: Connect, body: bytes, now: float) -> None:
        """Take the other broker's CONNECT at `now` (s). `connect`: what it says; `body`: the same
        as it came.

        Raises:
            MalformedPacket: it does not say who connects.
        """

    def auth_received(self, packet: Auth, body: bytes, now: float) -> None:
        """Take the other broker's proof at `now` (s), a `packet` and its `body` as it came.

        Raises:
            MalformedPacket: it cannot be read.
            ProtocolViolation: nothing is to be proven now.
        """

    def refused(self, packet: Connack, now: float) -> None:
        """Take the other broker's CONNACK that says why it refuses."""

    def agreed(self, now: float) -> None:
        """Take the dialler's CONNACK, where brokers prove nothing."""

    def refuse(self, reason: int, why: str, counter: str, other: str = "") -> None:
        """Refuse the other broker with a `reason` code and with `why` as text; `counter`: its
        counter's name; `other`: where the broker is that has its id."""


class Encryption(Protocol):
    """What encrypts the bytes of a link (`RecordLayer`)."""

    @property
    def mid_packet(self) -> bool:
        """Whether part of a packet has come and the rest is on its way."""


FRAMES: Final[dict[int, Input]] = {
    PacketType.PUBLISH: Input.PUBLISH,
    PacketType.PINGREQ: Input.PINGREQ,
    PacketType.PINGRESP: Input.PINGRESP,
}
"""Packets of links that have another content than MQTT's."""


class BatchReceiver(Protocol):
    """Takes the messages of links, which all come in batches."""

    def received(self, link: Link, data: bytes, body: int, now: float) -> None:
        """Deliver here, and pass on, a batch (`data`) that came over `link` at `now` (s). `body`:
        where it begins behind its length.

        Raises:
            MalformedPacket, ProtocolViolation: no broker sends such a batch.
        """


class Forwarding(Protocol):
    """What keeps the messages of links."""

    @property
    def log(self) -> Sized:
        """The replay log, of which a link asks only how many entries it has."""


class Acknowledgements(Protocol):
    """Takes notice that neighbours have handled messages (`LinkAcks`)."""

    def acknowledged(self, link: Link, number: int) -> None:
        """Take a neighbour's answer to a mark."""


class Comparing(Protocol):
    """Compares retained messages with a neighbour's (`RetainedComparison`)."""

    def marked(self, link: Link, number: int, now: float) -> None:
        """Take the answer of the neighbour at `link` to the mark `number`, at `now` (s)."""


class Advance(Protocol):
    """Tells neighbours up to which number they have had all messages that they want."""

    def send(self, link: Link) -> None:
        """Send the low watermarks over `link`, behind the messages that were sent on it."""


class Registry(Protocol):
    """The links of one broker."""

    @property
    def to_ping(self) -> list[Link]:
        """Links with records that are to be sent."""

    def on_link_up(self, link: Link, now: float) -> None:
        """Note that a handshake is complete."""

    def on_link_down(
        self, link: Link, reason: str, now: float, *, quiet: bool = False, replaced: bool = False
    ) -> None:
        """Note that `link` is gone, at `now` (s), for a `reason` that log lines say. `quiet`: it is
        no fault, so that no warning is logged; `replaced`: the next one to the same broker stands
        already."""

    def on_disconnect(self, link: Link, reason: int, now: float) -> None:
        """Take the DISCONNECT of the neighbour at `link`, with its `reason` code, at `now` (s)."""


class LinkHost(Protocol):
    """The cluster, as far as a link knows it."""

    @property
    def node(self) -> MemberBroker:
        """This broker, for its clients."""

    @property
    def config(self) -> NodeConfig:
        """The settings that this broker was started with."""

    @property
    def link_registry(self) -> Registry:
        """The links of this broker."""

    @property
    def forwarder(self) -> Forwarding:
        """Keeps the messages of links."""

    @property
    def incoming_batches(self) -> BatchReceiver:
        """Takes the messages of links."""

    @property
    def acks(self) -> Acknowledgements:
        """Takes the answers to marks: what neighbours have handled."""

    @property
    def retained_comparison(self) -> Comparing:
        """Compares the retained messages here with those of a neighbour."""

    @property
    def low_watermarks(self) -> Advance:
        """Tells neighbours up to which number they have all that they want."""

    def link_behind(self, link: Link) -> None:
        """Note that more waits for a link than it may have waiting."""

    def link_caught_up(self, link: Link, now: float) -> None:
        """Note that it has drained."""

    def on_link_alive(self, link: Link, now: float) -> None:
        """Note that part of a packet came."""

    def rtt_sample(self, link: Link, rtt_ms: float, now: float) -> None:
        """Take the time of a round trip on `link`, `rtt_ms`, measured at `now` (s)."""

    def record_received(self, link: Link, kind: int, body: bytes, now: float) -> None:
        """Take a record of a PINGREQ that came over `link` at `now` (s). `kind`: its number;
        `body`: what is in it.

        Raises:
            MalformedPacket: it cannot be read.
        """


class Link(Owner):
    """One link. It parses and encodes; the cluster decides what follows."""

    __slots__ = (
        "_budget",
        "_control",
        "_ping",
        "_pings",
        "_receive_batch",
        "_records",
        "_waiting",
        "_walks",
        "address",
        "arrival",
        "behind",
        "cluster",
        "conn",
        "dialled",
        "fetching",
        "forwarding",
        "gossiped",
        "handshake",
        "introductions",
        "kept_from",
        "kept_since",
        "layer",
        "listings",
        "live",
        "log_lost",
        "marks",
        "next_hello",
        "opened",
        "peer",
        "replayed",
        "round_trips",
        "rtt_ms",
        "seen",
        "state",
        "taken_at",
        "unsent",
        "up",
        "upto",
        "vector_asked",
        "vector_at",
        "vector_planned",
        "vector_sent",
    )

    def __init__(
        self,
        cluster: LinkHost,
        conn: Connection,
        dialled: bool,
        address: tuple[str, int],
        handshake: Callable[[Link], Handshake],
        now: float,
    ):
        """Make a link of the connection `conn`, at `now` (s).

        `cluster`: what a link asks of what is above it; `dialled`: whether this broker dialled, or
        the other one; `address`: (host, port) of the other end; `handshake`: makes the handshake.
        """
        self.cluster = cluster
        self.conn = conn
        self.arrival: Arrival | None = None
        node = cluster.node
        conn.traffic = node.counters.begin_link()
        self.dialled = dialled
        self.address = address
        self.peer: Peer | None = None
        # Where the link has got to (`step`), and what that means for each message (`Standing`).
        self.state = State.DIALLED if dialled else State.CALLED
        self.up, self.forwarding, self.live, self.behind = STANDING[self.state]
        self.opened = now
        self.handshake = handshake(self)
        # With a secret, once both ends are authenticated.
        self.layer: Encryption | None = None
        # By origin, the low watermark that the neighbour was sent.
        self.upto: dict[bytes, int] = {}
        self.seen: Vector | None = None  # the neighbour's version vector
        # Of the exchange of version vectors (`Resync`): whether ours has been sent, or is planned,
        # and when (s) it may be sent; whether theirs was asked for.
        self.vector_sent = self.vector_planned = False
        self.vector_at = now
        self.vector_asked = False
        # How often origins were made known to the neighbour since it last got a replay.
        self.introductions = 0
        self.replayed = 0  # bytes, lately
        # Position of the log from which on it is kept for the neighbour.
        self.kept_from: int | None = None
        self.kept_since = now
        # (number, position) of each that the neighbour has not acknowledged.
        self.marks: deque[tuple[int, int]] = deque()
        self.log_lost = 0  # messages that the log could not keep for it, not reported yet
        self.unsent = 0  # bytes that its system had not taken when we looked last,
        self.taken_at = now  # and since when there was no progress
        self.gossiped = -1  # the membership's version that the neighbour knows
        self.next_hello = now
        self.rtt_ms: float | None = None  # smoothed, for people
        self.round_trips: list[float] = []  # the last ROUND_TRIPS of them (ms)
        self._ping = 0
        self._pings: dict[int, float] = {}
        self._control: list[bytes] = []
        self._records: list[bytes] = []
        self._receive_batch = cluster.incoming_batches.received
        limits = node.limits
        self._budget = Budget(limits.link_requests, limits.link_requests_per_second, now)
        self.listings = Budget(limits.max_replay, limits.max_replay / 32, now)
        self._walks = Budget(limits.link_requests, limits.link_requests_per_second, now)
        # The last SEEN, until the budget allows a walk through the log.
        self._waiting: bytes | None = None

    # ---------------------------------------------------------------- states

    def step(self, given: Input) -> Action:
        """Go to the next state of the table (`link_states`); returns what is to be done.

        Raises:
            ProtocolViolation: the input has no place in this state.
        """
        action, following = transition(self.state, given)
        if following is not self.state:
            self.state = following
            self.up, self.forwarding, self.live, self.behind = STANDING[following]
        return action

    def move(self, given: Input) -> Action:
        """Go to the next state of the table for an input that is not a packet, and return what
        is to be done. An input that has no place in this state closes the link."""
        try:
            return self.step(given)
        except ProtocolViolation as error:
            self.fail(error)
            return Action.IGNORE

    def introduce(self, connect: Connect, body: bytes, now: float) -> None:
        """Take the other broker's CONNECT at `now` (s). `connect`: what it says; `body`: the same
        as it came.

        Raises:
            MalformedPacket: it does not say who connects.
            ProtocolViolation: it comes a second time.
        """
        if self.step(Input.CONNECT) is Action.INTRODUCE:
            self.handshake.connect_received(connect, body, now)

    def come_up(self, now: float) -> None:
        """Note at `now` (s) that both ends have agreed."""
        if self.move(Input.AGREED) is Action.COME_UP:
            self.conn.max_packet_size = MAX_PACKET_SIZE
            self.cluster.link_registry.on_link_up(self, now)

    # ---------------------------------------------------------------- control out

    def add_record(self, kind: int, body: bytes) -> None:
        """Add a record to the next PINGREQ; `send_ping` sends it."""
        records = self._records
        if not records:
            self.cluster.link_registry.to_ping.append(self)
        elif (
            kind == ORIGINS and records[-1][0] == ORIGINS and len(records[-1]) + len(body) < 65_536
        ):
            # In one piece, as each record costs the neighbour some work.
            body = records.pop()[4:] + body
        records.append(encode_record(kind, body))

    def send_behind(self, kind: int, body: bytes) -> None:
        """Send a record that must not overtake the messages before it."""
        record = encode_record(PING, b"\0\0\0\0") + encode_record(kind, body)
        self.conn.send(b"\xc0" + encode_varint(len(record)) + record)

    def send_mark(self, number: int) -> None:
        """Ask the neighbour to say when it has handled what was sent up to here
        (`RetainedSync.marked`, `LinkAcks.acknowledged`); `number`: below 2^31."""
        self.conn.send(b"\xc0\x08" + encode_record(PING, (MARKED | number).to_bytes(4, "big")))

    def measure(self, now: float) -> None:
        """Send a PINGREQ without records: it measures the round trip apart from those that all
        links have sent at once, and that wait for each other. `now`: s."""
        if self.up and not self.conn.closing and self._sampled(now):
            self._send_control(b"\xc0\x08" + encode_record(PING, self._ping.to_bytes(4, "big")))

    def _sampled(self, now: float) -> bool:
        """Take the number of the next PINGREQ; return whether its PINGRESP measures the round trip.
        While data waits in this broker's queue it would measure the queue, not the path."""
        self._ping = self._ping + 1 & MARKED - 1
        if self.conn.backlog or self.conn.paused or self.mid_packet:
            return False
        if len(self._pings) > 16:
            self._pings.clear()
        self._pings[self._ping] = now
        return True

    def send_ping(self, now: float) -> None:
        """Send a PINGREQ with the records that are due; its PINGRESP measures the RTT."""
        self._sampled(now)
        self.cluster.low_watermarks.send(self)
        payload = encode_record(PING, self._ping.to_bytes(4, "big")) + b"".join(self._records)
        self._records.clear()
        self._send_control(b"\xc0" + encode_varint(len(payload)) + payload)
        self.next_hello = now + self.cluster.config.hello

    def _send_control(self, data: bytes) -> None:
        self.cluster.node.counters.link_bytes_control += len(data)
        if self.conn.backlog or self.conn.paused:
            self._control.append(data)
            if len(self._control) > 256:
                self._leave_out()
        elif self.conn.gate:
            # Messages wait for the journal: like those in a backlog, they are overtaken.
            self.conn.overtake(data)
        else:
            self.conn.send(data)

    def send_ahead(self, data: bytes, instead: bytes = b"") -> None:
        """Send a packet ahead of all that waits for the journal or, as the peer reads too slowly,
        here. `instead`: one that has not gone out need not go out any more."""
        conn = self.conn
        if not (conn.backlog or conn.paused):
            conn.pass_gate(data)
        elif instead in self._control:
            self._control[self._control.index(instead)] = data
        else:
            self._control.append(data)

    def _leave_out(self) -> None:
        """Drop one control packet, as too many wait: an answer to a PINGREQ (each record behind
        messages brings one) if it is not to a mark, which the peer waits for. Else the oldest: a
        peer that takes nothing any more is about to time out."""
        oldest = 0
        for at, data in enumerate(self._control):
            if data[0] == 0xD0 and not data[2:3] >= b"\x80":
                oldest = at
                break
        del self._control[oldest]

    def control_first(self) -> bytes:
        """Control packets overtake the data that waits."""
        data = b"".join(self._control)
        self._control.clear()
        return data

    def overflowed(self) -> None:
        """Stop being live: the log replays what it kept when the queue has drained."""
        if not self.behind and self.move(Input.OVERFLOWED) is Action.CHANGE:
            self.cluster.link_behind(self)

    def drained(self, now: float) -> None:
        """Become live again after an overflow."""
        if self._control:
            self.conn.send(self.control_first())
        if self.behind and self.move(Input.DRAINED) is Action.CHANGE:
            self.cluster.link_caught_up(self, now)

    # ---------------------------------------------------------------- in

    def packets(self, data: bytes, now: float) -> int:
        """Handle the whole packets at the start of `data`, at `now` (s); returns the bytes used. A
        ProtocolViolation, and any other WireError, closes the link (`fail`)."""
        position = 0
        size = len(data)
        conn = self.conn
        owner = conn.owner
        try:
            while position + 2 <= size:
                length = data[position + 1]
                body = position + 2
                if length >= 128:
                    if body < size and (more := data[body]) < 128:
                        length += (more << 7) - 128
                        body += 1
                    else:
                        length, body = read_length(data, position + 1)
                        if body < 0:
                            break
                end = body + length
                if end > size:
                    if end - position > conn.max_packet_size:
                        raise ProtocolViolation("packet too large", ReasonCode.PACKET_TOO_LARGE)
                    break
                first = data[position]
                if first & 0xF0 == PUBLISH and self.up:
                    self._receive_batch(self, data[position:end], body - position, now)
                    position = end
                else:
                    self._packet(first, data[body:end], now)
                    position = end
                    # What follows is encrypted.
                    if (other := conn.owner) is not owner and other is not None:
                        return position + other.packets(data[position:], now)
                if position == size:
                    return size
                if conn.state.over:
                    break
                node = self.cluster.node
                turns = node.turns
                if turns.work >= node.limits.turn_work:
                    turns.rest(conn)
                    break
        except WireError as error:
            self.fail(error)
            return size
        if position < size and not conn.state.over:
            self.cluster.on_link_alive(self, now)
        return position

    def _packet(self, first: int, body: bytes, now: float) -> None:
        """Take a packet, or refuse it in this state; a PUBLISH comes here only to be refused."""
        given = FRAMES.get(first >> 4)
        if given is not None:
            action = self.step(given)
            if action is Action.ANSWER:
                self._pingreq(body, now)
            elif action is Action.MEASURE:
                self._pingresp(body, now)
            return
        packet = decode_packet(first, body, 5)
        if isinstance(packet, Connect) and packet.bridge:
            self.introduce(packet, body, now)
        elif isinstance(packet, Auth):
            if self.step(Input.AUTH) is Action.VERIFY:
                self.handshake.auth_received(packet, body, now)
        elif isinstance(packet, Connack) and packet.code:
            if self.step(Input.REFUSAL) is Action.REFUSED:
                self.handshake.refused(packet, now)
        elif isinstance(packet, Connack):
            if self.step(Input.CONNACK) is Action.AGREE:
                self.handshake.agreed(now)
        elif isinstance(packet, Disconnect):
            if self.step(Input.DISCONNECT) is Action.CLOSE:
                self.conn.close()
                self.cluster.link_registry.on_disconnect(self, packet.reason, now)
        else:
            self.step(Input.OTHER)

    def _pingreq(self, payload: bytes, now: float) -> None:
        self.cluster.node.counters.link_bytes_control += len(payload) + 2
        number = b"\0\0\0\0"
        for kind, body in decode_records(payload):
            self._charge(kind, len(body), now)
            if kind == PING:
                number = body[:4]
            elif kind != SEEN or self._may_walk(body, now):
                self.cluster.record_received(self, kind, body, now)
        self._send_control(b"\xd0" + bytes((len(number),)) + number)

    def _charge(self, kind: int, size: int, now: float) -> None:
        """Note that the peer asks for some work.

        Raises:
            ProtocolViolation: it asks for more than any broker needs.
        """
        self._budget.earn(now)
        self._budget.left -= work(kind, size)
        if self._budget.left < 0:
            raise ProtocolViolation("too many requests on a link", ReasonCode.MESSAGE_RATE_TOO_HIGH)

    def _may_walk(self, body: bytes, now: float) -> bool:
        """Whether a SEEN (`body`) may make this broker walk through the log now; if not, the last
        one does later. `now`: s."""
        self._walks.earn(now)
        waiting, self._waiting = self._waiting is not None, body
        if not waiting and self._walks.left <= 0:
            wait = 0.001 - self._walks.left / self.cluster.node.limits.link_requests_per_second
            self.cluster.node.timers.schedule(now + wait, self._walk)
        elif not waiting:
            self._waiting = None
            self._walks.left -= walk(len(self.cluster.forwarder.log))
        return self._waiting is None

    def _walk(self, now: float) -> None:
        body, self._waiting = self._waiting, None
        if not self.up or body is None:
            return
        self._walks.earn(now)
        self._walks.left -= walk(len(self.cluster.forwarder.log))
        try:
            self.cluster.record_received(self, SEEN, body, now)
        except WireError as error:
            self.fail(error)

    def _pingresp(self, payload: bytes, now: float) -> None:
        number = int.from_bytes(payload[:4], "big")
        if number & MARKED:
            number -= MARKED
            if number & ACK_MARK:
                self.cluster.acks.acknowledged(self, number)
            else:
                self.cluster.retained_comparison.marked(self, number, now)
            return
        sent = self._pings.pop(number, None)
        if sent is not None:
            sample = (now - sent) * 1000
            self.rtt_ms = (
                sample if self.rtt_ms is None else self.rtt_ms + (sample - self.rtt_ms) / 8
            )
            self.round_trips = [*self.round_trips[1 - ROUND_TRIPS :], sample]
            self.cluster.rtt_sample(self, sample, now)

    # ---------------------------------------------------------------- end

    def fail(self, error: WireError) -> None:
        """Close after garbage: one line, a counter."""
        self.cluster.node.counters.link_garbage += 1
        text = f"link to {self.title}: {error.message}; closed"
        self.cluster.node.log_limit.line("warning", "garbage on a link", self.conn.peer, text)
        self.conn.close(encode_packet(Disconnect(error.reason), 5) if self.up else b"")
        self.cluster.link_registry.on_link_down(self, error.message, self.cluster.node.now)

    def protect(self, layer: Encryption) -> None:
        """Note that its bytes go through `layer`."""
        self.layer = layer

    def tampered(self, what: str) -> None:
        """Close because what came is not what the other broker sent: one line, a counter."""
        self.cluster.node.counters.link_tampered += 1
        text = f"link to {self.title}: {what}; closed"
        self.cluster.node.log_limit.line("warning", "altered on the way", self.conn.peer, text)
        self.conn.abort(what)

    @property
    def mid_packet(self) -> bool:
        """True while part of a packet has come and the rest is on its way."""
        return self.conn.mid_packet or (self.layer is not None and self.layer.mid_packet)

    def on_connection_lost(self, reason: str, now: float) -> None:
        """Note that the connection broke."""
        self.cluster.link_registry.on_link_down(self, reason, now)

    @property
    def title(self) -> str:
        """How log lines call the peer."""
        if self.peer is None:
            return self.conn.peer
        name = self.peer.name or self.peer.id.hex()
        return f"{name} ({self.peer.host}:{self.peer.port})"
