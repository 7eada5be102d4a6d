"""Messages on links, in the replay log and in answers of other brokers: batches of one origin, one
header and the packets as their publishers sent them.

On the wire a batch is a PUBLISH (MQTT 5) to the topic `$batch`, which says what it is. Its
only property is a User Property "o" of 24 characters, so that it is legal MQTT 5 and can be read as
it stands: 16 for the origin (broker id and boot number), 8 for the sequence number of the first
message (base64 without padding). The others have the numbers that follow. Its payload is the
protocol version of the packets (one byte: 5, or 4 for both 3.x), how many there are (two bytes),
and the PUBLISH packets behind each other, without DUP and Topic Alias, all with the first byte of
the batch itself. At QoS 1 and 2 their packet identifiers are those of their publishers, and mean
nothing here.

A Message Expiry Interval is the first property of its packet, and says what was left when the
packet came to its publisher's broker. A broker that replays a batch of MQTT 5 says how long ago
that was: the version has another bit then (`_AGED`), and the age is ahead of the packets (four
bytes, ms).

Two kinds of messages are alone in their batch. With RETAIN, the message's `Stamp` is ahead of the
packet. One for members of shared subscriptions has its `ReceiverAssignment` there, with its length
in front, and the version has the bit `_ASSIGNED`.
"""

from __future__ import annotations

import struct
from binascii import b2a_base64
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from mqttree.broker.base.sequence_set import Ranges
from mqttree.broker.cluster.link.origin_keys import decode_sequence
from mqttree.broker.core.message import Message, Stamp
from mqttree.broker.core.receiver_assignment import ReceiverAssignment, decode_choice
from mqttree.broker.wire.constants import PacketType
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.broker.wire.properties import (
    NOT_FORWARDED,
    decode_properties,
    forwardable,
    split_expiry,
)
from mqttree.broker.wire.publish_header import (
    LOW,
    PACKET_IDS,
    PUBLISH,
    QOS_1,
    QOS_2,
    RETAIN,
    topic_end,
)
from mqttree.broker.wire.strings import is_own_name
from mqttree.broker.wire.varint import encode_varint, read_length
from mqttree.routing.topic_filter import valid_topic_name

A = TypeVar("A")

TOPIC: Final = b"$batch"
"""Topic name of a batch."""

MAX_BATCH_PACKETS: Final = 1024
"""messages of one batch: who holds publishers back, or replays a log, must not overshoot by more,
and a broker that reads one does nothing else meanwhile."""

MAX_BYTES: Final = 65_536
"""bytes of the packets of one batch with more than one message: a copy costs little."""

_TOPIC_FIELD: Final = PACKET_IDS[len(TOPIC)] + TOPIC
_MARK: Final = b"\x26\x00\x01o\x00\x18"
_SIZE: Final = len(_MARK) + 24
"""bytes of the origin property."""
_MARKED: Final = bytes((_SIZE,)) + _MARK
"""The length of the properties, and the beginning of the only one."""
_PACKET_ID: Final = b"\0\1"
"""The packet identifier of every batch at QoS 1 and 2. It means nothing: no packet is acknowledged
by itself."""

_HEAD: Final = 3
"""bytes of the payload ahead of the packets, and of the age."""
_AGED: Final = 0x80
"""Bit of the version: the age of the batch is ahead of the packets."""
_AGE: Final = 4
"""bytes of it."""
_ASSIGNED: Final = 0x40
"""Bit of the version: a receiver assignment is ahead of the packet."""
_STAMP: Final = struct.Struct(">Q6s?")
OLDEST: Final = 0xFFFFFFFF
"""ms; the age of a batch that is still older."""
_AHEAD: Final = {
    PUBLISH | qos | retain: len(_TOPIC_FIELD) + (2 if qos else 0) + 1 + _SIZE
    for qos in (0, QOS_1, QOS_2)
    for retain in (0, RETAIN)
}
"""Bytes between the length of a batch and its payload, by its first byte."""
_BEGINS: Final = {
    first: (
        bytes((first,)),
        _TOPIC_FIELD + (_PACKET_ID if first > PUBLISH | RETAIN else b"") + _MARKED,
    )
    for first in _AHEAD
}
"""By its first byte, this byte, and what is between the length of a batch and the origin."""
_VERSIONS: Final = {
    flags | version: bytes((flags | version,))
    for flags in (0, _AGED, _ASSIGNED, _AGED | _ASSIGNED)
    for version in (4, 5)
}
_LAYOUT: Final = struct.Struct(f">{len(_MARKED)}s16s8sBH")
"""Of what is behind topic and packet identifier of a batch: the length of the properties with the
beginning of the origin property, origin, sequence number, version, number of packets."""
_LAYOUT_SIZE: Final = len(_MARKED) + 16 + 8 + _HEAD
_unpack: Final = _LAYOUT.unpack_from


_SINGLE: Final = _TOPIC_FIELD + _MARKED
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
    retain: bool = False,
) -> bytes:
    """Return a batch.

    `key`, `sequence`: the origin, and the number of the first message; `packets`: `count` PUBLISH
    packets of MQTT `version`, all of this `qos`, with RETAIN or without (`retain`).
    """
    first = PUBLISH | qos << 1 | retain
    begin, topic = _BEGINS[first]
    number = b2a_base64(sequence.to_bytes(6, "big"), newline=False)
    length = _AHEAD[first] + _HEAD + len(packets)
    # One byte or two, as most have, are found without a call.
    if length < 128:
        size = LOW[length : length + 1]
    elif length < 16_384:
        size = PACKET_IDS[(length & 0x7F | 0x80) << 8 | length >> 7]
    else:
        size = encode_varint(length)
    parts = (begin, size, topic, key, number, _VERSIONS[version], PACKET_IDS[count], packets)
    return b"".join(parts)


def encode_message(
    message: Message,
    key: bytes,
    sequence: int,
    now: float,
    choice: ReceiverAssignment | None = None,
) -> bytes:
    """Return a `message` as a batch of one: number `sequence` of the origin `key`. `now` (s) gives
    the time that it has left; `choice`: its receiver assignment."""
    qos, retain = message.qos, message.retain
    packet = message.packet(5, qos, retain, 1, now=now)
    # Of its last half second, and of one that has expired, the packet says that a second is left.
    left = None if message.expires_at is None else message.expires_at - now
    age = 0 if left is None or left > 0.5 else round(min(2.0, 1 - left) * 1000)
    stamp = message.stamp if retain else None
    return MessageBatch(key, sequence, packet, 1, 5, qos, age, stamp, choice).encode()


def read_batches(data: bytes) -> Iterator[MessageBatch]:
    """Read batches behind each other, as answers of other brokers have them.

    Raises:
        MalformedPacket: not batches, or truncated. Their packets are not looked at.
    """
    position = 0
    while position < len(data):
        length, body = read_length(data, position + 1)
        if body < 0 or body + length > len(data):
            raise MalformedPacket("messages of another broker are truncated")
        yield MessageBatch.read(data[position : body + length])
        position = body + length


def read_messages(data: bytes, at: float) -> Iterator[tuple[MessageBatch, int, Message]]:
    """Read the messages of batches behind each other: batch, sequence number, message. `at`: s,
    from when on they expire.

    Raises:
        MalformedPacket, ProtocolViolation: not such messages.
    """
    for batch in read_batches(data):
        for number, message in batch.messages(at):
            if is_own_name(message.topic) or not is_topic_name(message.topic):
                raise MalformedPacket(
                    "messages of another broker have no topic name that may cross"
                )
            check_properties(message.properties)
            yield batch, number, message


def is_topic_name(topic: bytes) -> bool:
    """Whether `topic` is a topic name, in UTF-8 and without wildcards."""
    try:
        return valid_topic_name(topic.decode())
    except UnicodeDecodeError:
        return False


def check_properties(properties: bytes) -> None:
    """Refuse the properties of a message (without length and expiry) that a broker may not pass on.

    Raises:
        MalformedPacket, ProtocolViolation: they are unsound, or end at a broker.
    """
    if properties and not forwardable(properties):
        section = encode_varint(len(properties)) + properties
        found = decode_properties(section, 0, PacketType.PUBLISH)[0]
        if found is not None and not found.keys().isdisjoint(NOT_FORWARDED):
            raise MalformedPacket("batch on a link with properties that it may not have")


def choice_of(data: bytes) -> ReceiverAssignment | None:
    """Return the receiver assignment of a batch (`data`), None when there is none."""
    version = data[read_length(data, 1)[1] + _AHEAD[data[0]]]
    return MessageBatch.read(data).choice if version & _ASSIGNED else None


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
    were right `age` ms ago. A retained message has a `stamp`, one for members of shared
    subscriptions a `choice`; both are alone in their batch."""

    __slots__ = (
        "age",
        "choice",
        "count",
        "key",
        "packets",
        "qos",
        "sequence",
        "stamp",
        "version",
    )

    def __init__(
        self,
        key: bytes,
        sequence: int,
        packets: bytes,
        count: int,
        version: int,
        qos: int,
        age: int = 0,
        stamp: Stamp | None = None,
        choice: ReceiverAssignment | None = None,
    ) -> None:
        """`key`, `sequence`: the origin, and the number of the first of `count` messages;
        `packets`: of MQTT `version`, all of this `qos`; `age`: ms since their expiry intervals were
        right, 0 for packets of 3.x, which have none; `stamp`: of a retained message; `choice`: its
        receiver assignment."""
        self.key = key
        self.sequence = sequence
        self.packets = packets
        self.count = count
        self.version = version
        self.qos = qos
        self.age = age
        self.stamp = stamp
        self.choice = choice

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
        if mark != _MARKED or not data.startswith(_TOPIC_FIELD, body):
            raise MalformedPacket("PUBLISH on a link that is not a batch, or without its origin")
        age = 0
        if version & _AGED:
            version, payload = version - _AGED, payload + _AGE
            age = int.from_bytes(data[payload - _AGE : payload], "big")
        qos, sequence = first >> 1 & 3, decode_sequence(number)
        alone = version & _ASSIGNED or first & RETAIN
        if (
            not 4 <= version & ~_ASSIGNED <= 5
            or not 1 <= count <= (1 if alone else MAX_BATCH_PACKETS)
            or (age and version == 4)
        ):
            raise MalformedPacket("batch on a link with an unknown version, or too many messages")
        batch = MessageBatch(key, sequence, data[payload:], count, version, qos, age)
        if alone:
            batch._read_alone(first)
        return batch

    def _read_alone(self, first: int) -> None:
        """Take stamp and receiver assignment off the front of the packets; `first`: the first byte
        of the batch. Raises MalformedPacket: they cannot be read."""
        packets, at = self.packets, 0
        if first & RETAIN:
            at = _STAMP.size
            if len(packets) < at or packets[0] & 0x80:
                raise MalformedPacket("stamp is truncated, or has a time out of range")
            time, expires, restored = _STAMP.unpack_from(packets)
            self.stamp = Stamp(time, int.from_bytes(expires, "big"), restored)
        if self.version & _ASSIGNED:
            self.version -= _ASSIGNED
            end = at + 2 + int.from_bytes(packets[at : at + 2], "big")
            self.choice = decode_choice(packets[at + 2 : end]).of(self.key, self.sequence)
            at = end
        self.packets = packets[at:]

    def encode(self) -> bytes:
        """Return its bytes on a link."""
        version, packets = self.version, self.packets
        if self.choice is not None:
            text = self.choice.encode()
            packets = len(text).to_bytes(2, "big") + text + packets
            version |= _ASSIGNED
        if (stamp := self.stamp) is not None:
            expires = stamp.expires_at_ms.to_bytes(6, "big")
            packets = _STAMP.pack(stamp.time, expires, stamp.restored) + packets
        if self.age:
            packets = self.age.to_bytes(_AGE, "big") + packets
            version |= _AGED
        return encode_batch(
            self.key, self.sequence, packets, self.count, version, self.qos, stamp is not None
        )

    def parts(self, ranges: Ranges, known: list[int] | None = None) -> list[MessageBatch]:
        """Return the messages with the numbers in each of these `ranges`, which are all its own.
        `known`: what `ends` has returned.

        Raises:
            MalformedPacket: a packet is truncated.
        """
        first = self.sequence
        if ranges == [(first, first + self.count - 1)]:
            return [self]
        ends = known or self.ends()
        return [
            self._some(low, high - low + 1, ends[low - first], ends[high + 1 - first])
            for low, high in ranges
        ]

    def ends(self) -> list[int]:
        """Return 0, and where each packet ends. Raises MalformedPacket: one is truncated."""
        return [0, *(end for _, end in self._bounds())]

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
            self.key,
            self.sequence,
            self.packets,
            self.count,
            self.version,
            self.qos,
            age,
            self.stamp,
            self.choice,
        )

    def messages(self, at: float = 0.0) -> Iterator[tuple[int, Message]]:
        """Yield each message with its number. `at`: when the batch came (s), from when on its
        messages expire.

        Raises:
            MalformedPacket: a packet is truncated, or no PUBLISH that a batch may have.
        """
        data, position, number, qos = self.packets, 0, self.sequence, self.qos
        stamp = self.stamp
        retain = stamp is not None
        expected = PUBLISH | qos << 1 | retain
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
            message = Message(topic, content, qos, retain, properties, expires_at, None)
            if stamp is not None:
                message.stamp = stamp
            if number and (qos or retain):
                message.named(self.key, number)
            yield number, message
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
