"""Clients of a scenario: one connection each, on the client's own host; what they publish and get
is noted by the crowd."""

from __future__ import annotations

import errno
import os
import random
import select
import socket
import time
from typing import Any, Protocol

from mqttree.bench.lab.lab import Lab
from mqttree.bench.load import LoadError, packets, scan
from mqttree.bench.load.channel import Channel
from mqttree.bench.runner.book import Book, Published, Receiver
from mqttree.bench.scenarios.scenario import Parameters
from mqttree.bench.scenarios.workload import ClientSpec
from mqttree.bench.trace import Writer, sample_offset

STALL = 1.0
"""s; a QoS 0 publisher whose window is full and of whose messages none has arrived for so long
takes them for lost."""
MAX_QUEUED = 32 << 20
"""bytes that a publisher keeps for a broker that does not read; it skips its turn while there are
more."""
KEEP_ALIVE = 60


class Surroundings(Protocol):
    """What a client asks of those who run it."""

    lab: Lab
    book: Book
    trace: Writer
    every: int
    """Of so many messages of the run one is in the trace."""
    epoll: select.epoll
    """Watches the clients' sockets."""
    connected: dict[int, Client]
    """Clients by the file descriptors of their sockets."""

    def timer(self, when: float, call: Any, argument: Any) -> None:
        """Calls `call` with `argument` at the time `when` (s, monotonic)."""

    def came(self, client: Client) -> None:
        """The client is connected, and has subscribed if it is to."""

    def went(self, client: Client, was: str, reason: str) -> None:
        """The `client` lost its connection, or could not make one: `was` is the state that it was
        in, `reason` is one line for people."""

    def note(self, text: str) -> None:
        """Notes something odd in the trace."""

    def arrived(
        self,
        client: Client,
        receiver: Receiver,
        number: int,
        sequence: int,
        topic: str,
        now: int,
        what: tuple[int, int, bool],
    ) -> None:
        """A message has come to the `client`.

        `receiver` notes what the subscription gets; `number` is the publisher's, `sequence` counts
        its messages; `topic` is the message's, `now` when it came (ns, monotonic), and `what` its
        (QoS, bytes of payload, DUP)."""

    def more(self, publisher: Publisher) -> None:
        """A message of a publisher without a rate is done: it may publish more."""


class Client:
    """One connection, opened again whenever it is lost."""

    def __init__(self, crowd: Surroundings, spec: ClientSpec, flow: Parameters) -> None:
        """A client of `crowd`, not connected yet: `spec` says who it is and where it connects,
        `flow` how it speaks."""
        self.crowd, self.spec, self.flow = crowd, spec, flow
        self.channel: Channel | None = None
        self.state = "away"
        self.rest = bytearray()
        self._pinged = 0.0
        self.left = False
        """Whether it has gone, and does not come back."""

    def open(self) -> None:
        """Begin to connect, from the client's own host."""
        crowd = self.crowd
        with crowd.lab.inside(self.spec.host):
            sock = socket.socket()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.channel = Channel(sock, crowd.epoll, select.EPOLLIN | select.EPOLLOUT)
        self.state = "calling"
        self.rest.clear()
        crowd.connected[sock.fileno()] = self
        code = sock.connect_ex(crowd.lab.address(self.spec.host, self.spec.broker))
        if code not in (0, errno.EINPROGRESS):
            self.lost(os.strerror(code))
            return
        crowd.timer(time.monotonic() + 5, self._overdue, self.channel)

    def _overdue(self, channel: Any) -> None:
        if self.channel is channel and self.state in ("calling", "asking"):
            self.lost("no answer within 5 s")

    def ready(self, events: int) -> None:
        """Serve the socket."""
        channel = self.channel
        assert channel is not None
        if self.state == "calling":
            code = channel.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self.lost(os.strerror(code))
                return
            if not events & select.EPOLLOUT:
                return
            self.state = "asking"
            self.crowd.epoll.modify(channel.fileno(), select.EPOLLIN)
            self.send(packets.connect(self.spec.name, self.flow.version, KEEP_ALIVE))
        try:
            if events & select.EPOLLOUT:
                channel.flush()
            if events & ~select.EPOLLOUT:
                self.rest += channel.receive()
            self._packets()
        except LoadError as error:
            self.lost(str(error))
        except (ValueError, IndexError) as error:
            self.lost(f"broken stream: {error}")

    def _packets(self) -> None:
        """Take the packets that are complete. Raises ValueError and IndexError for others."""
        now, rest = time.monotonic_ns(), self.rest
        found, end = scan.walk(rest, 0)
        for first, start, stop in found:
            if self.channel is None:
                break
            self.packet(first, rest, start, stop, now)
        del rest[:end]

    def packet(self, first: int, data: bytearray, at: int, end: int, now: int) -> None:
        """Take one packet: `first` is its first byte, `data[at:end]` what comes behind its fixed
        header, `now` the time of its arrival (ns). Packets that this client does not know are
        passed over."""
        kind = first >> 4
        if kind == packets.CONNACK:
            if data[at + 1]:
                self.lost(f"refused with 0x{data[at + 1]:02x}")
            else:
                self.welcome(now)
        elif kind == packets.DISCONNECT:
            self.lost(f"disconnected with {bytes(data[at:end]).hex()}")

    def welcome(self, now: int) -> None:
        """The broker has accepted us."""
        self.come(now)

    def come(self, now: int) -> None:
        """Everything is as it should be."""
        self.state = "there"
        self.crowd.came(self)

    def send(self, data: bytes | bytearray) -> None:
        """Send, or queue what the socket does not take."""
        if self.channel is not None:
            try:
                self.channel.send(data)
            except LoadError as error:
                self.lost(str(error))

    def lost(self, reason: str) -> None:
        """The connection is gone; another is tried soon."""
        if self.channel is None:
            return
        was, self.state = self.state, "away"
        self.crowd.connected.pop(self.channel.fileno(), None)
        self.channel.close()
        self.channel = None
        self.crowd.went(self, was, reason)

    def leave(self) -> None:
        """Leave, and do not come back."""
        self.left = True
        self.send(packets.DISCONNECT_BYTES)
        self.lost("left")

    def ping(self, now: float) -> None:
        """Stay alive where nothing else is sent."""
        if self.state == "there" and now - self._pinged > KEEP_ALIVE / 2:
            self._pinged = now
            self.send(packets.PINGREQ_BYTES)


class Subscriber(Client):
    """Subscribes to its filters, acknowledges what comes, and notes it."""

    def __init__(
        self, crowd: Surroundings, spec: ClientSpec, flow: Parameters, receiver: Receiver
    ) -> None:
        """`crowd`, `spec` and `flow` are those of `Client`; `receiver` notes what comes, and when
        nothing can come."""
        super().__init__(crowd, spec, flow)
        self._receiver = receiver
        self._held: set[int] = set()  # identifiers of QoS 2 messages that are not released yet
        # Which of the receiver's gaps is this one's and has not ended; others may share the
        # receiver.
        self._gap = -1
        self._unanswered = 0  # subscriptions
        self.first_beacon = 0
        """ns; when it first said that it is there."""

    def welcome(self, now: int) -> None:
        """Subscribe."""
        self._held.clear()
        self._unanswered = len(self.spec.topics)
        flow = self.flow
        for number, topic in enumerate(self.spec.topics, 1):
            self.send(packets.subscribe(topic, flow.qos, flow.version, number))

    def come(self, now: int) -> None:
        """Note from when on messages have to arrive."""
        receiver = self._receiver
        receiver.since = receiver.since or now
        if self._gap >= 0:
            receiver.gaps[self._gap] = (receiver.gaps[self._gap][0], now)
            self._gap = -1
        for topic in self.spec.topics:
            self.crowd.trace.subscribed(now, self.spec.name, self.spec.broker, topic, self.flow.qos)
        super().come(now)
        if self.spec.beacon:
            self._beacon(self.channel)

    def _beacon(self, channel: Any) -> None:
        """Say that it is there, and again at each interval, while the connection lasts. The beacons
        are of QoS 0, as each one makes up for the one before."""
        if self.channel is None or self.channel is not channel:
            return
        self.first_beacon = self.first_beacon or time.monotonic_ns()
        self.send(packets.publish(self.spec.beacon, b"", 0, self.flow.version)[0])
        again = time.monotonic() + self.flow.beacon_interval
        self.crowd.timer(again, self._beacon, channel)

    def lost(self, reason: str) -> None:
        """Note since when messages cannot arrive."""
        if self.state == "there":
            now = time.monotonic_ns()
            self._gap = len(self._receiver.gaps)
            self._receiver.gaps.append((now, 0))
            for topic in self.spec.topics:
                self.crowd.trace.unsubscribed(now, self.spec.name, self.spec.broker, topic)
        super().lost(reason)

    def packet(self, first: int, data: bytearray, at: int, end: int, now: int) -> None:
        """Take a message, or what belongs to one; the arguments (`first`, `data`, `at`, `end`,
        `now`) are those of `Client.packet`."""
        kind = first >> 4
        if kind == packets.PUBLISH:
            self._message(first, data, at, end, now)
        elif kind == packets.PUBREL:
            self._held.discard(int.from_bytes(data[at : at + 2], "big"))
            self.send(packets.PUBCOMP_HEAD + data[at : at + 2])
        elif kind == packets.SUBACK:
            if data[end - 1] > 2:
                self.lost(f"subscription refused with 0x{data[end - 1]:02x}")
            elif self.state == "asking":
                self._unanswered -= 1
                if not self._unanswered:
                    self.come(now)
        else:
            super().packet(first, data, at, end, now)

    def _message(self, first: int, data: bytearray, at: int, end: int, now: int) -> None:
        length = int.from_bytes(data[at : at + 2], "big")
        topic = data[at + 2 : at + 2 + length]
        at += 2 + length
        qos = first >> 1 & 3
        again = False
        if qos:
            identifier = int.from_bytes(data[at : at + 2], "big")
            self.send(
                (packets.PUBACK_HEAD if qos == 1 else packets.PUBREC_HEAD) + data[at : at + 2]
            )
            at += 2
            if qos == 2:
                again = identifier in self._held
                self._held.add(identifier)
        if self.flow.version == 5:
            width = shift = 0
            while True:
                byte = data[at]
                width |= (byte & 0x7F) << shift
                at, shift = at + 1, shift + 7
                if byte < 0x80:
                    break
            at += width
        if again or end - at < 8:
            return
        number = int.from_bytes(data[at : at + 8], "big")
        what = (qos, end - at, bool(first & 8))
        self.crowd.arrived(
            self, self._receiver, number >> 48, number & 0xFFFF_FFFF_FFFF, topic.decode(), now, what
        )


class Publisher(Client):
    """Publishes on a schedule, or as its window allows."""

    def __init__(
        self, crowd: Surroundings, spec: ClientSpec, flow: Parameters, published: Published
    ) -> None:
        """`crowd`, `spec` and `flow` are those of `Client`; `published` notes what was sent and
        accepted."""
        super().__init__(crowd, spec, flow)
        self.published = published
        self.offset = sample_offset(spec.number, crowd.every)
        """Of its messages those are in the trace whose sequence number, with this added, is a
        multiple of `crowd.every`."""
        head = spec.number.to_bytes(2, "big") + bytes(6)
        # A random string, as in the papers.
        filler = os.urandom(min(flow.payload - 8, 4096)).hex().encode()
        payload = head + (filler * (flow.payload // max(1, len(filler)) + 1))[: flow.payload - 8]
        packet, self._id_at, self._payload_at = packets.publish(
            spec.topics[0], payload, flow.qos, flow.version
        )
        self._packet = bytearray(packet)
        self._topic = spec.topics[0]
        self.flight: dict[int, int] = {}  # packet identifier -> sequence number
        self._identifier = 0
        # Not the run's seed, but drawn by it.
        self._random = random.Random(f"{spec.number}/{spec.topics[0]}")
        self.floor = 0  # what is taken for arrived, as nothing has moved
        self.moved = (0, 0.0)

    def one(self, due: int) -> bool:
        """Publish one message that was due at a time (ns); False if that is not possible now."""
        channel = self.channel
        if (
            channel is None
            or self.state != "there"
            or channel.blocked > MAX_QUEUED
            or (self.flow.qos and len(self.flight) >= 65_000)
        ):
            return False
        crowd, packet = self.crowd, self._packet
        now = time.monotonic_ns()
        sequence = crowd.book.publish(self.spec.number, due or now, now)
        packet[self._payload_at + 2 : self._payload_at + 8] = sequence.to_bytes(6, "big")
        if self._id_at:
            identifier = self._identifier
            while True:
                identifier = identifier % 65_535 + 1
                if identifier not in self.flight:
                    break
            self._identifier = identifier
            self.flight[identifier] = sequence
            packet[self._id_at : self._id_at + 2] = identifier.to_bytes(2, "big")
        if (sequence + self.offset) % crowd.every == 0:
            spec, flow = self.spec, self.flow
            crowd.trace.published(
                now,
                spec.number,
                sequence,
                spec.name,
                spec.broker,
                self._topic,
                flow.qos,
                flow.payload,
                spec.flow,
                now - due if due else 0,
            )
        self.send(packet)
        return True

    def pause(self) -> float:
        """Return s from one message to the next."""
        flow = self.flow
        return (1 + flow.spread * (2 * self._random.random() - 1)) / flow.rate

    def room(self) -> int:
        """How many messages the window allows (as fast as possible, `rate` 0)."""
        if self.state != "there" or (self.channel is not None and self.channel.blocked):
            return 0
        if self.flow.qos:
            return self.flow.window - len(self.flight)
        number = self.spec.number
        fanout = self.crowd.book.fanout[number]
        sent = len(self.published.times)
        arrived = max(self.floor, self.published.echoes // fanout) if fanout else sent
        if arrived != self.moved[0]:
            self.moved = (arrived, time.monotonic())
        elif sent - arrived >= self.flow.window and time.monotonic() - self.moved[1] > STALL:
            self.floor = arrived = sent
        return self.flow.window - (sent - arrived)

    def packet(self, first: int, data: bytearray, at: int, end: int, now: int) -> None:
        """Take an acknowledgement; the arguments (`first`, `data`, `at`, `end`, `now`) are those of
        `Client.packet`."""
        kind = first >> 4
        if kind in (packets.PUBACK, packets.PUBCOMP, packets.PUBREC):
            failed = end - at > 2 and data[at + 2] >= 0x80
            if kind == packets.PUBREC and not failed:
                self.send(packets.PUBREL_HEAD + data[at : at + 2])
                return
            sequence = self.flight.pop(int.from_bytes(data[at : at + 2], "big"), -1)
            if sequence < 0:
                return
            if failed:
                self.crowd.note(f"{self.spec.name}: PUBLISH refused with 0x{data[at + 2]:02x}")
                return
            crowd = self.crowd
            crowd.book.accept(self.spec.number, sequence)
            if (sequence + self.offset) % crowd.every == 0:
                crowd.trace.accepted(
                    now, self.spec.number, sequence, self.spec.name, self.spec.broker
                )
            if not self.flow.rate:
                crowd.more(self)
        else:
            super().packet(first, data, at, end, now)

    def lost(self, reason: str) -> None:
        """What was in flight is not published again: it was not acknowledged."""
        self.flight.clear()
        super().lost(reason)
