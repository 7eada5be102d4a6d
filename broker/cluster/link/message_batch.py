"""Many messages of one origin on a link, of any topics: one header, and the packets as their
publishers sent them.

On the wire it is a PUBLISH (MQTT 5) to the topic `$batch`, which no client can publish to. Its
first property is the origin property of `codec`, with the number of the first message; the others
have the numbers that follow. Its payload is the protocol version of the packets (one byte: 5, or 4
for both 3.x), how many there are (two bytes), and the PUBLISH packets behind each other, without
RETAIN, DUP and Topic Alias, all of the QoS of the batch itself. At QoS 1 and 2 their packet
identifiers are those of their publishers, and mean nothing here.

A Message Expiry Interval is the first property of its packet, and says what was left when the
packet came to its publisher's broker. Who replays a batch of MQTT 5 says how long ago that was: the
version has another bit then (`_AGED`), and the age is ahead of the packets (four bytes, ms).
"""

from __future__ import annotations

import struct
from binascii import b2a_base64
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from mqttree.broker.base.sequence_set import Ranges
from mqttree.broker.cluster.link.codec import MARK, SIZE, decode_sequence
from mqttree.broker.core.message import LINK_ID, Message
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.broker.wire.properties import split_expiry
from mqttree.broker.wire.publish_header import PACKET_IDS, PUBLISH, QOS_1, QOS_2, topic_end
from mqttree.broker.wire.varint import encode_varint, read_length

A = TypeVar("A")

TOPIC: Final = b"$batch"
"""Topic name of a batch."""

MAX_BATCH_PACKETS: Final = 1024
"""messages of one batch: who holds publishers back, or replays a log, must not overshoot by more,
and a broker that reads one does nothing else meanwhile."""

LARGEST: Final = 65_536
"""bytes of the packets of one batch with more than one message: a copy costs little."""

TOPIC_FIELD: Final = PACKET_IDS[len(TOPIC)] + TOPIC
"""The same with its length, as a PUBLISH has it."""

_HEAD: Final = 3
"""bytes of the payload ahead of the packets, and of the age."""
_AGED: Final = 0x80
"""Bit of the version: the age of the batch is ahead of the packets."""
_AGE: Final = 4
"""bytes of it."""
OLDEST: Final = 0xFFFFFFFF
"""ms; the age of a batch that is still older."""
_AHEAD: Final = {
    PUBLISH: len(TOPIC_FIELD) + 1 + SIZE,
    PUBLISH | QOS_1: len(TOPIC_FIELD) + 2 + 1 + SIZE,
    PUBLISH | QOS_2: len(TOPIC_FIELD) + 2 + 1 + SIZE,
}
"""Bytes between the length of a batch and its payload, by its first byte."""

_MARKED: Final = bytes((SIZE,)) + MARK
_BEGINS: Final = tuple(
    (bytes((PUBLISH | qos << 1,)), TOPIC_FIELD + (LINK_ID if qos else b"") + _MARKED)
    for qos in range(3)
)
"""By QoS, the first byte of a batch, and what is between its length and the origin."""
_VERSIONS: Final = {version: bytes((version,)) for version in (4, 5, 5 | _AGED)}
_LAYOUT: Final = struct.Struct(f">{len(_MARKED)}s16s8sBH")
"""Of what is behind topic and packet identifier of a batch: the length of the properties with the
beginning of the origin property, origin, sequence number, version, number of packets."""
_LAYOUT_SIZE: Final = len(_MARKED) + 16 + 8 + _HEAD
_unpack: Final = _LAYOUT.unpack_from


_SINGLE: Final = TOPIC_FIELD + _MARKED
"""What is behind the length of a batch at QoS 0."""
_SINGLE_KEY: Final = len(_SINGLE)
_SINGLE_NUMBER: Final = _SINGLE_KEY + 16
_SINGLE_VERSION: Final = _SINGLE_NUMBER + 8
SINGLE: Final = _SINGLE_VERSION + _HEAD
"""bytes between the length of a batch at QoS 0 and its packets, if it has no age."""

Single = tuple[bytes, int, int]
"""Of a batch of one QoS 0 message: its origin, its number, and the version of its packet."""


def read_single(data: bytes, body: int) -> Single | None:
    """Return what a batch at QoS 0 of one message says, whose packet is from `body` + SINGLE on;
    None: it is another one, which `MessageBatch` reads, or refuses.

    `data`: the batch, at QoS 0; `body`: where it begins behind its length.

    Raises:
        MalformedPacket: its number is not base64.
    """
    version_at = body + _SINGLE_VERSION
    if (
        len(data) < body + SINGLE
        or data[version_at + 1]
        or data[version_at + 2] != 1
        or not 4 <= data[version_at] <= 5
        or data[body : body + _SINGLE_KEY] != _SINGLE
    ):
        return None
    number = data[body + _SINGLE_NUMBER : version_at]
    key = data[body + _SINGLE_KEY : body + _SINGLE_NUMBER]
    return key, decode_sequence(number), data[version_at]


def encode_batch(
    key: bytes,
    sequence: int,
    packets: bytes,
    count: int,
    version: int,
    qos: int,
    age: int = 0,
) -> bytes:
    """Return a batch.

    `key`, `sequence`: the origin, and the number of the first message; `packets`: `count` PUBLISH
    packets of MQTT `version`, all of this `qos`; `age`: ms since their expiry intervals were right,
    0 for packets of 3.x, which have none.
    """
    if age:
        packets = age.to_bytes(_AGE, "big") + packets
        version |= _AGED
    first, topic = _BEGINS[qos]
    number = b2a_base64(sequence.to_bytes(6, "big"), newline=False)
    length = _AHEAD[first[0]] + _HEAD + len(packets)
    return b"".join(
        (
            first,
            encode_varint(length),
            topic,
            key,
            number,
            _VERSIONS[version],
            PACKET_IDS[count],
            packets,
        )
    )


def is_batch(data: bytes) -> bool:
    """Whether a PUBLISH of a link (`data`) is a batch."""
    body = read_length(data, 1)[1]
    return data.startswith(TOPIC_FIELD, body) and data[0] in _AHEAD


def age_batch(data: bytes, more: int) -> bytes:
    """Return a batch (`data`) as it is `more` ms later; as it is, if nothing in it expires.

    Raises MalformedPacket: it is none.
    """
    batch = MessageBatch.read(data)
    aged = batch.aged(more)
    return data if aged is batch else aged.encode()


class MessageBatch:
    """A batch that was read: `count` messages from number `sequence` of the origin `key` on;
    `packets`: PUBLISH packets of MQTT `version`, all of this `qos`, with the expiry intervals that
    were right `age` ms ago."""

    __slots__ = ("age", "count", "key", "packets", "qos", "sequence", "version")

    def __init__(
        self,
        key: bytes,
        sequence: int,
        packets: bytes,
        count: int,
        version: int,
        qos: int,
        age: int = 0,
    ) -> None:
        """All as of `encode_batch`."""
        self.key = key
        self.sequence = sequence
        self.packets = packets
        self.count = count
        self.version = version
        self.qos = qos
        self.age = age

    @staticmethod
    def read(data: bytes) -> MessageBatch:
        """Return what is in a batch.

        Raises:
            MalformedPacket: it is none, or is truncated. Its packets are not looked at.
        """
        length, body = read_length(data, 1)
        if body < 0 or body + length != len(data):
            raise MalformedPacket("batch on a link is truncated")
        return MessageBatch.read_body(data, body)

    @staticmethod
    def read_body(data: bytes, body: int) -> MessageBatch:
        """Return what is in a batch (`data`) that is as long as it says; `body`: where it begins
        behind its length.

        Raises:
            MalformedPacket: it is none, or is truncated. Its packets are not looked at.
        """
        first = data[0]
        ahead = _AHEAD.get(first)
        if ahead is None or (payload := body + ahead + _HEAD) > len(data):
            raise MalformedPacket("batch on a link is truncated")
        mark: bytes
        key: bytes
        number: bytes
        version: int
        count: int
        mark, key, number, version, count = _unpack(data, payload - _LAYOUT_SIZE)
        if mark != _MARKED:
            raise MalformedPacket("batch on a link without its origin")
        age = 0
        if version == 5 | _AGED:
            version, payload = 5, payload + _AGE
            age = int.from_bytes(data[payload - _AGE : payload], "big")
        if not 4 <= version <= 5 or not 1 <= count <= MAX_BATCH_PACKETS:
            raise MalformedPacket("batch on a link with an unknown version, or too many messages")
        qos = first >> 1 & 3
        sequence = decode_sequence(number)
        return MessageBatch(key, sequence, data[payload:], count, version, qos, age)

    def encode(self) -> bytes:
        """Return its bytes on a link."""
        return encode_batch(
            self.key, self.sequence, self.packets, self.count, self.version, self.qos, self.age
        )

    def part(self, low: int, high: int) -> MessageBatch:
        """Return the messages numbered `low` to `high` (inclusive).

        Raises:
            MalformedPacket: a packet is truncated.
        """
        return self.parts([(low, high)])[0]

    def parts(self, ranges: Ranges) -> list[MessageBatch]:
        """Return the messages with the numbers in each of these `ranges`, which are all its own.

        Raises:
            MalformedPacket: a packet is truncated.
        """
        ends = [0, *(end for _, end in self._bounds())]
        first = self.sequence
        return [
            self._some(low, high - low + 1, ends[low - first], ends[high + 1 - first])
            for low, high in ranges
        ]

    def _some(self, first: int, count: int, begin: int, end: int) -> MessageBatch:
        """Return the `count` messages from number `first` on, whose packets are the bytes from
        `begin` to `end`."""
        packets = self.packets[begin:end]
        return MessageBatch(self.key, first, packets, count, self.version, self.qos, self.age)

    def _bounds(self) -> Iterator[tuple[int, int]]:
        """Yield where each packet begins behind its length, and where it ends. Raises
        MalformedPacket: one is truncated, or there are more or fewer than `count`."""
        data, position, left, size = self.packets, 0, self.count, len(self.packets)
        while position < size:
            length = data[position + 1] if position + 1 < size else 128
            body = position + 2
            if length >= 128:
                length, body = read_length(data, position + 1)
            end = body + length
            if body < 0 or end > size or length < 3 or not left:
                raise MalformedPacket("batch on a link whose messages are truncated")
            left -= 1
            yield body, end
            position = end
        if left:
            raise MalformedPacket("batch on a link with fewer messages than it says")

    def aged(self, more: int) -> MessageBatch:
        """Return the batch as it is `more` ms later: this one, if nothing in it expires, as its
        packets are of MQTT 3.x."""
        if self.version != 5:
            return self
        age = min(OLDEST, self.age + more)
        return MessageBatch(
            self.key, self.sequence, self.packets, self.count, self.version, self.qos, age
        )

    def messages(self, at: float = 0.0) -> Iterator[tuple[int, Message]]:
        """Yield each message with its number. `at`: when the batch came (s), from when on its
        messages expire.

        Raises:
            MalformedPacket: a packet is truncated, or no PUBLISH that a batch may have.
        """
        data, position, number, qos = self.packets, 0, self.sequence, self.qos
        expected = PUBLISH | qos << 1
        begin = at - self.age / 1000
        for body, end in self._bounds():
            start = topic_end(data, body)
            payload = start + (2 if qos else 0)
            properties = b""
            if data[position] != expected:
                raise MalformedPacket("batch on a link with a packet that it may not have")
            if self.version == 5:
                size, payload = read_length(data, payload)
                if payload < 0:
                    raise MalformedPacket("batch on a link whose messages are truncated")
                properties = data[payload : payload + size]
                payload += size
            if payload > end:
                raise MalformedPacket("batch on a link whose messages are truncated")
            topic, content = data[body + 2 : start], data[payload:end]
            expires_at, properties = split_expiry(properties, begin)
            yield number, Message(topic, content, qos, False, properties, expires_at, None)
            position, number = end, number + 1

    def topics(self) -> Iterator[bytes]:
        """Yield the topic name of each message.

        Raises:
            MalformedPacket: a packet is truncated.
        """
        data = self.packets
        for body, _ in self._bounds():
            yield data[body + 2 : topic_end(data, body)]

    def divide(self, ask: Callable[[bytes], A]) -> list[tuple[A, MessageBatch]]:
        """Return parts of messages that follow each other and for whose topics `ask` answers the
        same, each with that answer.

        Raises:
            MalformedPacket: a packet is truncated.
        """
        data, position, number = self.packets, 0, self.sequence
        begins: list[tuple[A, int, int]] = []
        for body, end in self._bounds():
            answer = ask(data[body + 2 : topic_end(data, body)])
            if not begins or begins[-1][0] != answer:
                begins.append((answer, number, position))
            position, number = end, number + 1
        if len(begins) == 1:
            return [(begins[0][0], self)]
        found: list[tuple[A, MessageBatch]] = []
        ends = [*((first, begin) for _, first, begin in begins[1:]), (number, position)]
        for (answer, first, begin), (behind, end) in zip(begins, ends, strict=True):
            found.append((answer, self._some(first, behind - first, begin, end)))
        return found
