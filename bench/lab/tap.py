"""Reads the traffic between brokers: it puts TCP segments in order and finds the MQTT packets.
Pure.

The same measure for every kind of broker: a PUBLISH of an application is data, everything else is
signalling, also a PUBLISH whose topic begins with $. The packets in a batch of mqttree's links
(docs/reference/link-protocol.md) count one by one. What federators publish at each other's brokers
is told apart by its topic: announcements are signalling, routed publications are data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from mqttree.bench.load.packets import header

BATCH = b"$batch"
"""The topic of a batch."""
MAX_HELD = 4096
"""Segments out of order that are kept for one direction; beyond that it is given up and counted."""
MAX_HEAD = 70_000
"""bytes of a packet that are looked at: a topic and properties fit, a payload need not."""
KINDS = {
    1: "connect",
    2: "ack",
    3: "publish",
    4: "ack",
    5: "ack",
    6: "ack",
    7: "ack",
    8: "subscribe",
    9: "ack",
    10: "subscribe",
    11: "ack",
    12: "pingreq",
    13: "pingresp",
    14: "other",
    15: "other",
}
FEDERATORS = b"federator/"
ANNOUNCED = {b"core_ann": "core_ann", b"memb_ann": "memb_ann", b"beacon": "beacon"}
"""Second level of the topics of federators' signalling -> how it is called in traces."""
ROUTED = "routing"
"""How a publication on its way between federators is called."""
DATA = frozenset(("publish", ROUTED))
"""Kinds of packets that are data; all others are signalling."""
_ROUTING_HEAD = 20
"""bytes before the payload in a routed publication: origin, number, sender, length of the payload
(`mqttree.bench.federator.codec`)."""


class Seen(NamedTuple):
    """One MQTT packet on a link. size: all its bytes; publisher and sequence: of a generator's
    message, or which core announces or is answered, and its number; else -1."""

    kind: str
    size: int
    publisher: int = -1
    sequence: int = -1


OnSeen = Callable[[str, str, Seen], None]
"""(from host, to host, what)"""


class Talk:
    """What both directions of a connection share: the MQTT version."""

    __slots__ = ("version",)

    def __init__(self) -> None:
        self.version = 4


class Stream:
    """One direction of a connection, in order."""

    __slots__ = ("_data", "_on_packet", "_skip", "_talk", "broken")

    def __init__(self, talk: Talk, on_packet: Callable[[Seen], None]) -> None:
        self._talk, self._on_packet = talk, on_packet
        self._data = bytearray()
        self._skip = 0
        self.broken = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes; a stream that is no MQTT is given up."""
        if self.broken:
            return
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        buffer = self._data
        buffer += data
        pos, end = 0, len(buffer)
        while pos < end:
            try:
                head = header(buffer, pos, end)
            except ValueError:
                self.broken = True
                buffer.clear()
                return
            if head is None:
                break
            body, stop = head
            if stop > end and end - body < min(stop - body, MAX_HEAD):
                break
            for seen in self._look(pos, body, min(stop, end), stop - pos):
                self._on_packet(seen)
            if stop > end:
                self._skip, stop = stop - end, end
            pos = stop
        del buffer[:pos]

    def _look(self, pos: int, body: int, end: int, size: int) -> Iterator[Seen]:
        buffer = self._data
        at = body + 2 + len(BATCH)
        if buffer[pos] >> 4 == 3 and buffer[body + 2 : at] == BATCH:
            at += 2 if buffer[pos] & 6 else 0
            at += 1 + buffer[at]  # its only property
            yield from self._batch(pos, at, end, size)
        else:
            yield self._one(pos, body, end, size, self._talk.version)

    def _batch(self, pos: int, payload: int, end: int, size: int) -> Iterator[Seen]:
        """Yield the packets of a batch: what is ahead of the first one counts as its bytes."""
        version, at, counted = self._data[payload], payload + 3, pos
        while at < end:
            head = header(self._data, at, end)
            if head is None:
                return
            body, stop = head
            begin = at - counted
            one = self._one(at, body, min(stop, end), stop - at, version)
            yield one._replace(size=begin + one.size)
            at = counted = stop

    def _one(self, pos: int, body: int, end: int, size: int, version: int) -> Seen:
        buffer = self._data
        kind = buffer[pos] >> 4
        if kind == 1 and end >= body + 7:
            at = body + 2 + int.from_bytes(buffer[body : body + 2], "big")
            self._talk.version = buffer[at] & 0x7F if at < end else 4
        if kind != 3:
            return Seen(KINDS.get(kind, "other"), size)
        length = int.from_bytes(buffer[body : body + 2], "big")
        name = bytes(buffer[body + 2 : body + 2 + length])
        if name[:1] == b"$":
            return Seen("other", size)
        at = body + 2 + length + (2 if buffer[pos] & 6 else 0)
        if version == 5:
            width = shift = 0
            while at < end:
                byte = buffer[at]
                width |= (byte & 0x7F) << shift
                at, shift = at + 1, shift + 7
                if byte < 0x80 or shift > 21:
                    break
            at += width
        kind_of_data = "publish"
        if name.startswith(FEDERATORS):
            word = name.split(b"/", 2)[1]
            if (announced := ANNOUNCED.get(word)) is not None:
                return _announcement(announced, size, bytes(buffer[at : min(at + 8, end)]))
            if word == b"routing":
                kind_of_data, at = ROUTED, at + _ROUTING_HEAD
        if at + 8 > end:
            return Seen(kind_of_data, size)
        number = int.from_bytes(buffer[at : at + 8], "big")
        return Seen(kind_of_data, size, number >> 48, number & 0xFFFF_FFFF_FFFF)


def _announcement(kind: str, size: int, payload: bytes) -> Seen:
    """Return what a federator announces: the core and its number are the first two numbers of the
    payload."""
    if len(payload) < 8:
        return Seen(kind, size)
    return Seen(
        kind, size, int.from_bytes(payload[:4], "little"), int.from_bytes(payload[4:], "little")
    )


class Flow:
    """One direction of a TCP connection: segments in, bytes in order out."""

    __slots__ = ("_held", "_next", "stream")

    def __init__(self, stream: Stream, first: int) -> None:
        self.stream = stream
        self._next = first
        self._held: dict[int, bytes] = {}

    def segment(self, number: int, data: bytes) -> None:
        """Take a segment; what was there before is not counted again."""
        behind = (number - self._next) & 0xFFFF_FFFF
        if behind >= 0x8000_0000:  # (partly) repeated
            data = data[0x1_0000_0000 - behind :]
        elif behind:
            if len(self._held) < MAX_HELD:
                self._held.setdefault(number, data)
            else:
                self.stream.broken = True
            return
        while data:
            self._next = (self._next + len(data)) & 0xFFFF_FFFF
            self.stream.feed(data)
            data = self._following()

    def _following(self) -> bytes:
        """What was held and goes on where we are."""
        if not self._held or self._next in self._held:
            return self._held.pop(self._next, b"")
        for number in [
            n
            for n in self._held
            if ((n - self._next) & 0xFFFF_FFFF) >= 0x8000_0000 or n == self._next
        ]:
            data = self._held.pop(number)[(self._next - number) & 0xFFFF_FFFF :]
            if data:
                return data
        return b""


class Tap:
    """All connections between brokers, from their IP packets."""

    def __init__(self, on_seen: OnSeen, ports: frozenset[int]) -> None:
        """`on_seen` is called for every MQTT packet; `ports`: where brokers listen."""
        self._on_seen = on_seen
        self._ports = ports
        self._flows: dict[bytes, Flow] = {}
        self._talks: dict[bytes, Talk] = {}
        self.broken = 0

    def packet(self, source: str, target: str, data: bytes) -> None:
        """Take one IPv4 packet, `data`, from the host `source` to `target`. What is not TCP with
        one of the ports is passed over."""
        if len(data) < 40 or data[9] != 6:
            return
        start = (data[0] & 15) * 4
        ports = data[start : start + 4]
        if (
            int.from_bytes(ports[:2], "big") not in self._ports
            and int.from_bytes(ports[2:], "big") not in self._ports
        ):
            return
        key = data[12:20] + ports
        flags = data[start + 13]
        number = int.from_bytes(data[start + 4 : start + 8], "big")
        if flags & 2:  # SYN
            back = data[16:20] + data[12:16] + ports[2:] + ports[:2]
            talk = self._talks.get(back) if flags & 16 else None
            talk = self._talks[key] = talk or Talk()
            stream = Stream(talk, lambda seen: self._on_seen(source, target, seen))
            self._flows[key] = Flow(stream, (number + 1) & 0xFFFF_FFFF)
            return
        flow = self._flows.get(key)
        if flow is None:
            return
        payload = data[start + (data[start + 12] >> 4) * 4 : int.from_bytes(data[2:4], "big")]
        if payload:
            flow.segment(number, payload)
        if flow.stream.broken:
            self.broken += 1
        if flags & 4 or flow.stream.broken:  # RST
            self._flows.pop(key, None)
            self._talks.pop(key, None)
