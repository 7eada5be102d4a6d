"""Publishers and subscribers on raw non-blocking sockets.

The generator must not be what is measured: whole batches of packets are numbered and checked by
strided slices, so one message costs some nanoseconds of C and no Python bytecode. Packets of one
run have one size; whatever does not fit that picture (another packet, a gap, a repetition) is
parsed one by one.
"""

from __future__ import annotations

import re
import select
import socket
import struct
import time
from collections.abc import MutableSequence

from mqttree.bench.load import packets
from mqttree.bench.load.histogram import Histogram
from mqttree.bench.load.spec import HEADER_BYTES, LoadError, LoadSpec, Tally

_CYCLE = 65_536  # the two low bytes of a sequence number
_LOW = bytes(range(256)) * 512
_HIGH = b"".join(bytes((i,)) * 256 for i in range(256)) * 2
_RECV_BYTES = 1 << 19
_BATCH_BYTES = 1 << 20
_RUNS = re.compile(rb"(.)\1*+", re.DOTALL)
_MISSING_LIMIT = 1_000_000  # sequence numbers remembered as missing, to tell late from repeated
_buffer = bytearray(_RECV_BYTES)


def dial(
    spec: LoadSpec, client_id: str, version: int, timeout: float = 10.0, port: int | None = None
) -> tuple[socket.socket, int]:
    """Connect as `client_id` to the host of `spec` and its port, or to `port`, with protocol
    `version` 4 or 5. Returns the blocking socket and the broker's Receive Maximum.

    Raises LoadError when nothing answers within `timeout` seconds or the broker refuses.
    """
    try:
        sock = socket.create_connection((spec.host, port or spec.port), timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(packets.connect(client_id, version))
        body = expect(sock, packets.CONNACK)
    except OSError as error:
        raise LoadError(f"cannot connect to {spec.host}:{spec.port}: {error}") from error
    if len(body) < 2 or body[1]:
        raise LoadError(f"{spec.host}:{spec.port} refused the connection with {body.hex()}")
    return sock, packets.receive_maximum(body) if version == 5 else 65_535


def expect(sock: socket.socket, kind: int) -> bytes:
    """Read exactly one packet of a kind from a blocking socket and return its body; LoadError for
    anything else."""
    data = bytearray()
    while True:
        head = packets.header(data, 0, len(data)) if data else None
        if head is not None and len(data) >= head[1]:
            break
        # Never a byte of what comes after the packet.
        more = sock.recv(1 if head is None else head[1] - len(data))
        if not more:
            raise LoadError(f"connection closed while waiting for packet type {kind}")
        data += more
    if data[0] >> 4 != kind:
        raise LoadError(f"packet type {data[0] >> 4} where {kind} was expected")
    return bytes(data[head[0] :])


def topics(spec: LoadSpec, index: int) -> list[str]:
    """Return the topics, all of one length, of the publisher and the subscriber with this index."""
    stem = f"{spec.topic}/{index if spec.pattern == 'pairs' else 0:05d}"
    return [stem] if spec.topics == 1 else [f"{stem}/{number:03d}" for number in range(spec.topics)]


def subscribe(sock: socket.socket, topic_filter: str, qos: int, version: int) -> None:
    """Subscribe on the blocking socket `sock` to a `topic_filter` at `qos`, in protocol `version` 4
    or 5. Raises LoadError unless exactly this QoS is granted."""
    sock.sendall(packets.subscribe(topic_filter, qos, version))
    granted = expect(sock, packets.SUBACK)[-1]
    if granted != qos:
        raise LoadError(
            f"subscription to {topic_filter} was granted 0x{granted:02x} instead of QoS {qos}"
        )


class Peer:
    """A connection with an outbox that survives partial writes."""

    __slots__ = ("_blocked", "_epoll", "outbox", "rest", "sock")

    def __init__(self, sock: socket.socket, epoll: select.epoll) -> None:
        sock.setblocking(False)
        epoll.register(sock.fileno(), select.EPOLLIN)
        self.sock, self._epoll = sock, epoll
        self.outbox: memoryview = memoryview(b"")
        self._blocked = False
        self.rest = b""

    def ready(self, events: int) -> None:
        """Serve the socket after epoll reported these events."""
        if events & select.EPOLLOUT:
            self.flush()
        if events & ~select.EPOLLOUT:
            self.receive()

    def receive(self) -> None:
        """Read and handle what has arrived."""
        raise NotImplementedError

    def flush(self) -> bool:
        """Write what the socket takes; return True when the outbox is empty. Raises LoadError when
        the connection is lost."""
        while self.outbox:
            try:
                self.outbox = self.outbox[self.sock.send(self.outbox) :]
            except BlockingIOError:
                if not self._blocked:
                    self._blocked = True
                    self._epoll.modify(self.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
                return False
            except OSError as error:
                raise LoadError(f"connection lost while sending: {error}") from error
        if self._blocked:
            self._blocked = False
            self._epoll.modify(self.sock.fileno(), select.EPOLLIN)
        return True

    def write(self, data: bytes | bytearray) -> None:
        """Queue bytes behind what is waiting, and flush."""
        self.outbox = memoryview(bytes(self.outbox) + data) if self.outbox else memoryview(data)
        self.flush()

    def fill(self) -> int:
        """Receive into the shared buffer, behind the rest of the last read; return how many bytes
        lie there. Raises LoadError when the connection is lost."""
        rest = len(self.rest)
        if len(_buffer) < rest + _RECV_BYTES:
            _buffer.extend(bytes(rest + _RECV_BYTES - len(_buffer)))
        _buffer[:rest] = self.rest
        try:
            with memoryview(_buffer) as whole, whole[rest:] as space:
                count = self.sock.recv_into(space)
        except BlockingIOError:
            return rest
        except OSError as error:
            raise LoadError(f"connection lost while receiving: {error}") from error
        if not count:
            raise LoadError("the broker closed a connection")
        return rest + count

    def keep(self, pos: int, end: int) -> None:
        """Remember the incomplete packet at the end of the buffer."""
        self.rest = bytes(_buffer[pos:end])


class Publisher(Peer):
    """Publishes one topic as fast as its window allows, or message by message on a schedule."""

    __slots__ = (
        "_acks",
        "_batch",
        "_id_offset",
        "_inflight",
        "_least",
        "_packets",
        "_payload",
        "_qos",
        "_size",
        "_slots",
        "_topics",
        "_upper",
        "_window",
        "acked",
        "floor",
        "index",
        "sent",
    )

    def __init__(
        self,
        sock: socket.socket,
        epoll: select.epoll,
        spec: LoadSpec,
        index: int,
        *,
        receive_maximum: int,
    ) -> None:
        """Publish on the connected socket `sock`, which `epoll` watches, what `spec` says, as the
        publisher number `index`. `receive_maximum` is the broker's limit of messages in flight."""
        super().__init__(sock, epoll)
        self.index, self._qos = index, spec.qos
        payload = struct.pack("!H", index) + bytes(6) + b"x" * (spec.payload - HEADER_BYTES)
        encoded = [
            packets.publish(topic, payload, spec.qos, spec.version, spec.user_properties)
            for topic in topics(spec, index)
        ]
        packet, self._id_offset, self._payload = encoded[0]
        self._size, self._topics = len(packet), len(encoded)
        self._window = spec.window
        self._inflight = min(spec.window, receive_maximum) if spec.qos else spec.window
        self._batch = max(1, min(self._window, _BATCH_BYTES // self._size))
        # Waiting until a quarter of the window is free keeps writes large: the broker, not our
        # system calls, is busy.
        self._least = max(1, min(self._inflight // 4, self._batch))
        # Slot n holds a packet with topic n modulo the number of topics.
        self._slots = self._batch + self._topics
        self._packets = bytearray(
            b"".join(encoded[slot % self._topics][0] for slot in range(self._slots))
        )
        self._upper = 0
        self._acks = re.compile(rb"(?:\x40\x02..)++|(?:\x50\x02..)++|(?:\x70\x02..)++", re.DOTALL)
        self.sent = self.acked = 0
        self.floor = 0  # up to here the window no longer waits: given up as lost

    def pump(self, received: int, eager: bool = False) -> int:
        """Send what fits the window, given how many messages the slowest subscriber has; return how
        many were sent.

        Only fair-sized batches, unless eager.
        """
        if self.outbox and not self.flush():
            return 0
        before = self.sent
        while not self.outbox:
            free = min(self._window - self.sent + max(received, self.floor), self._batch)
            if self._qos:
                free = min(free, self._inflight - self.sent + self.acked)
            if free < (1 if eager else self._least):
                break
            self.outbox = self._number(free)
            self.flush()
        return self.sent - before

    def _number(self, count: int) -> memoryview:
        """Number the next packets, at most `count`, and return them; they hold good until the next
        call."""
        start, size, buffer = self.sent, self._size, self._packets
        low = start % _CYCLE
        count = min(count, _CYCLE - low)
        if self._qos:  # identifiers 1 to 65,535 in turn
            identifier = start % 65_535 + 1
            count = min(count, _CYCLE - identifier)
        base = start % self._topics * size
        at, end = base + self._payload, base + count * size
        buffer[at + 7 : end : size] = _LOW[low : low + count]
        buffer[at + 6 : end : size] = _HIGH[low : low + count]
        if start // _CYCLE != self._upper:
            self._upper = start // _CYCLE
            for offset, byte in enumerate(self._upper.to_bytes(4, "big")):
                buffer[self._payload + 2 + offset :: size] = bytes((byte,)) * self._slots
        if self._qos:
            at = base + self._id_offset
            buffer[at + 1 : end : size] = _LOW[identifier : identifier + count]
            buffer[at:end:size] = _HIGH[identifier : identifier + count]
        self.sent += count
        return memoryview(buffer)[base:end]

    def one(self, stamp: int) -> None:
        """Append one message to the outbox that carries the time at which it should be sent
        (ns)."""
        packet = bytearray(self._number(1))
        at = self._payload + HEADER_BYTES
        packet[at : at + 8] = stamp.to_bytes(8, "big")
        self.outbox = memoryview(bytes(self.outbox) + packet) if self.outbox else memoryview(packet)

    def room(self) -> bool:
        """Whether another QoS 1 or 2 message may be in flight."""
        return not self._qos or self.sent - self.acked < self._inflight

    def receive(self) -> None:
        """Read acknowledgements, answer PUBREC with PUBREL."""
        end = self.fill()
        pos = 0
        while pos < end:
            match = self._acks.match(_buffer, pos, end)
            if match:
                run = match.end() - pos
                if _buffer[pos] == 0x50:
                    answer = _buffer[pos : pos + run]
                    answer[0::4] = b"\x62" * (run // 4)
                    self.write(answer)
                else:
                    self.acked += run // 4
                pos += run
                continue
            head = packets.header(_buffer, pos, end)
            if head is None or head[1] > end:
                break
            self._single(_buffer[pos] >> 4, bytes(_buffer[head[0] : head[1]]))
            pos = head[1]
        self.keep(pos, end)

    def _single(self, kind: int, body: bytes) -> None:
        """Handle one packet outside of the usual picture: an acknowledgement with a reason code,
        above all."""
        if kind in (packets.PUBACK, packets.PUBREC, packets.PUBCOMP):
            if len(body) > 2 and body[2] >= 0x80:
                raise LoadError(f"a PUBLISH was refused with reason 0x{body[2]:02x}")
            if kind == packets.PUBREC:
                self.write(packets.PUBREL_HEAD + body[:2])
            else:
                self.acked += 1
        elif kind == packets.DISCONNECT:
            raise LoadError(f"the broker disconnected a publisher: {body.hex()}")
        elif kind != packets.PINGRESP:
            raise LoadError(f"a publisher was sent packet type {kind}")


class Subscriber(Peer):
    """Counts and checks everything that arrives, and acknowledges it.

    progress: a sequence shared with the publishers (of other processes too); entry publisher *
    width + index is one more than the last sequence number that came from that publisher.
    """

    __slots__ = (
        "_expected",
        "_heads",
        "_latency",
        "_missing",
        "_offset",
        "_only",
        "_progress",
        "_publish",
        "_qos",
        "_rels",
        "_size",
        "_slot",
        "_version",
        "_width",
        "index",
        "tally",
    )

    def __init__(
        self,
        sock: socket.socket,
        epoll: select.epoll,
        spec: LoadSpec,
        index: int,
        *,
        progress: MutableSequence[int],
        latency: Histogram | None = None,
    ) -> None:
        """Receive on the subscribed socket `sock`, which `epoll` watches, what `spec` says, as the
        subscriber number `index`. `progress` tells the publishers; delays are added to `latency`
        (None: they are not measured)."""
        super().__init__(sock, epoll)
        self.index = index
        self.tally = Tally()
        mesh = spec.pattern == "mesh"
        self._only = None if mesh and spec.publishers > 1 else (0 if mesh else index)
        self._expected = [0] * spec.publishers
        self._missing: dict[int, set[int]] = {}
        self._width, self._slot = (spec.subscribers, index) if mesh else (1, 0)
        self._progress, self._latency = progress, latency
        self._version = spec.subscriber_version or spec.version
        self._qos = spec.qos
        self._size = self._offset = 0
        self._publish: re.Pattern[bytes] | None = None
        self._heads = b""
        self._rels = re.compile(rb"(?:\x62\x02..)++", re.DOTALL)

    def receive(self) -> None:
        """Read and check what has arrived."""
        end = self.fill()
        pos = 0
        while pos < end:
            if self._size and end - pos >= self._size:
                count = self._run(pos, end)
                if count:
                    self._arrived(pos, count)
                    pos += count * self._size
                    continue
            if self._qos == 2 and (match := self._rels.match(_buffer, pos, end)):
                answer = _buffer[pos : match.end()]
                answer[0::4] = b"\x70" * (len(answer) // 4)
                self.write(answer)
                pos = match.end()
                continue
            head = packets.header(_buffer, pos, end)
            if head is None or head[1] > end:
                break
            kind = _buffer[pos] >> 4
            if kind == packets.PUBLISH:
                self._learn(pos, *head)
                continue
            self._single(kind, bytes(_buffer[head[0] : head[1]]))
            pos = head[1]
        self.keep(pos, end)

    def _run(self, pos: int, end: int) -> int:
        """Count the PUBLISH packets of the known layout that lie one after the other at pos."""
        size = self._size
        count = min((end - pos) // size, _CYCLE)
        # Only a first byte is looked at here; a stream that is out of step shows in its sequence
        # numbers.
        if self._qos < 2 and _buffer[pos : pos + count * size : size] == self._heads[:1] * count:
            return count
        assert self._publish is not None
        match = self._publish.match(_buffer, pos, end)
        return min((match.end() - pos) // size, _CYCLE) if match else 0

    def _learn(self, pos: int, body: int, end: int) -> None:
        """Take the layout of a PUBLISH as that of those to come: the broker may add properties of
        its own."""
        qos = _buffer[pos] >> 1 & 3
        if qos != self._qos:
            raise LoadError(f"a message arrived with QoS {qos} instead of {self._qos}")
        at = body + 2 + int.from_bytes(_buffer[body : body + 2], "big") + (2 if qos else 0)
        if self._version == 5:
            length = shift = 0
            while True:
                byte = _buffer[at]
                length |= (byte & 0x7F) << shift
                at, shift = at + 1, shift + 7
                if byte < 0x80 or shift > 21:
                    break
            at += length
        if at + HEADER_BYTES > end:
            raise LoadError(f"a message of {end - pos} bytes is shorter than any that was sent")
        self._size, self._offset = end - pos, at - pos
        first = _buffer[pos] & ~8 if qos else _buffer[pos]  # DUP comes and goes
        self._heads = bytes((first,)) + _buffer[pos + 1 : body]
        firsts = b"[" + re.escape(bytes((first,))) + re.escape(bytes((first | 8,))) + b"]"
        rest = self._size - len(self._heads)
        self._publish = re.compile(
            b"(?:%b%b.{%d})++" % (firsts, re.escape(self._heads[1:]), rest), re.DOTALL
        )

    def _arrived(self, pos: int, count: int) -> None:
        """Check and acknowledge a run of PUBLISH packets at pos."""
        size = self._size
        end = pos + count * size
        if self._qos:
            at = self._id_offset(pos)
            head = packets.PUBACK_HEAD if self._qos == 1 else packets.PUBREC_HEAD
            answer = bytearray((head + b"\0\0") * count)
            answer[2::4] = _buffer[at:end:size]
            answer[3::4] = _buffer[at + 1 : end : size]
            self.write(answer)
        self.tally.received += count
        if self._only is not None:
            self._check(pos, count, self._only)
        else:
            origins = bytes(_buffer[pos + self._offset + 1 : end : size])
            for match in _RUNS.finditer(origins):
                start = match.start()
                self._check(pos + start * size, match.end() - start, origins[start])
        if self._latency is not None:
            now = time.monotonic_ns()
            for at in range(pos + self._offset + HEADER_BYTES, end, size):
                self._latency.add(now - int.from_bytes(_buffer[at : at + 8], "big"))

    def _id_offset(self, pos: int) -> int:
        """Return where the packet identifier of the PUBLISH at pos lies."""
        body = pos + len(self._heads)
        return body + 2 + int.from_bytes(_buffer[body : body + 2], "big")

    def _check(self, pos: int, count: int, origin: int) -> None:
        """Compare a run's sequence numbers with the expected ones; they are the next `count` in all
        but rare cases."""
        size = self._size
        at = pos + self._offset
        last = at + (count - 1) * size
        expected = self._expected[origin]
        low = expected % _CYCLE
        if (
            _buffer[last : last + 8] == struct.pack("!Q", origin << 48 | (expected + count - 1))
            and _buffer[at + 7 : last + 8 : size] == _LOW[low : low + count]
            and _buffer[at + 6 : last + 8 : size] == _HIGH[low : low + count]
        ):
            self._expected[origin] = expected + count
        else:
            for _ in range(count):
                self._one(origin, at)
                at += size
        self._progress[origin * self._width + self._slot] = self._expected[origin]

    def _one(self, origin: int, at: int) -> None:
        """Book one message whose payload lies at `at` and that may not be the expected one."""
        number = int.from_bytes(_buffer[at : at + 8], "big")
        if number >> 48 != origin:
            raise LoadError(
                f"a message of publisher {number >> 48} where one of publisher {origin} was due"
            )
        sequence = number & 0xFFFF_FFFF_FFFF
        expected = self._expected[origin]
        missing = self._missing.setdefault(origin, set())
        if sequence >= expected:
            self.tally.lost += sequence - expected
            if len(missing) + sequence - expected <= _MISSING_LIMIT:
                missing.update(range(expected, sequence))
            self._expected[origin] = sequence + 1
        elif sequence in missing:
            missing.remove(sequence)
            self.tally.lost -= 1
            self.tally.out_of_order += 1
        else:
            self.tally.duplicated += 1

    def _single(self, kind: int, body: bytes) -> None:
        """Handle one packet outside of the usual picture."""
        if kind == packets.PUBREL:
            self.write(packets.PUBCOMP_HEAD + body[:2])
        elif kind == packets.DISCONNECT:
            raise LoadError(f"the broker disconnected a subscriber: {body.hex()}")
        elif kind != packets.PINGRESP:
            raise LoadError(f"a subscriber was sent packet type {kind}")

    def behind(self, sent: list[int]) -> int:
        """Count the messages that are still to come, given how many each publisher has sent."""
        if self._only is not None:
            return sent[self._only] - self._expected[self._only]
        return sum(sent) - sum(self._expected)
