"""PUBLISH on a link, to bytes and back: a message with its origin and its sequence number.

The first property is a User Property "o" of 24 characters: 16 for the origin (broker id and boot
number), 8 for the sequence number (base64 without padding), so that it is legal MQTT 5 and can be
read and compared as it stands. A PUBLISH without it *continues* its predecessor on the link: the
same origin, the next sequence number. At QoS 0 such a one has no properties at all; at QoS 1 and 2
it may, but none that could be taken for an origin. A longer "o" goes on with who of shared
subscriptions gets the message (`receiver_assignment`). A retained message has a User Property "h"
of 20 characters behind it, its `Stamp`. Then come the message expiry interval, if the message
expires, and the properties that go to receivers.

All that reads or writes this format is here and in `publish_reader`, which takes what comes over a
link. `read_link_packets` takes what is in the replay log or in another broker's answer.
"""

from __future__ import annotations

import struct
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterator
from typing import Final

from mqttree.broker.core.message import LINK_ID, ORIGIN, Message, Stamp, encode_halves
from mqttree.broker.core.publish_run import PublishRun
from mqttree.broker.core.receiver_assignment import CHOSEN, ReceiverAssignment, decode_choice
from mqttree.broker.wire.constants import PacketType
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.broker.wire.properties import (
    EXPIRY,
    NOT_AS_IS,
    NOT_FORWARDED,
    Properties,
    decode_properties,
    forwardable,
    inspect_cached,
    split_expiry,
)
from mqttree.broker.wire.publish_header import (
    PACKET_IDS,
    PUBLISH,
    QOS_1,
    QOS_2,
    QOS_BITS,
    RETAIN,
    topic_end,
    topic_of,
)
from mqttree.broker.wire.varint import encode_varint, read_length
from mqttree.routing.topic_filter import valid_topic_name

MARK: Final = ORIGIN + b"\x00\x18"
"""What an origin property without a receiver assignment begins with."""
SIZE: Final = len(MARK) + 24
"""bytes of such a property."""
_split_number: Final = struct.Struct(">HI").unpack
STAMP_MARK: Final = b"\x26\x00\x01h\x00\x14"
STAMP_SIZE: Final = len(STAMP_MARK) + 20
RUNS: Final = frozenset((PUBLISH | QOS_1, PUBLISH | QOS_2))
"""First bytes of the PUBLISH packets that may continue their predecessor besides those of QoS 0."""

# ---------------------------------------------------------------- writing


def origin_key(broker_id: bytes, boot: int) -> bytes:
    """Return the 16 characters that name (8-byte id, boot number)."""
    return b2a_base64(broker_id + boot.to_bytes(4, "big"), newline=False)


def encode_origin(key: bytes, sequence: int, choice: bytes = b"") -> bytes:
    """Return the property (30 bytes, and `choice`) that names the origin `key` and the `sequence`
    number."""
    if choice:
        number = b2a_base64(sequence.to_bytes(6, "big"), newline=False)
        return ORIGIN + (24 + len(choice)).to_bytes(2, "big") + key + number + choice
    return MARK + key + b2a_base64(sequence.to_bytes(6, "big"), newline=False)


def encode_stamp(stamp: Stamp) -> bytes:
    """Return the property (26 bytes)."""
    raw = (
        stamp.time.to_bytes(8, "big")
        + stamp.expires_at_ms.to_bytes(6, "big")
        + bytes((stamp.restored,))
    )
    return STAMP_MARK + b2a_base64(raw, newline=False)


def encode_link_publish(
    topic: bytes,
    payload: bytes,
    qos: int,
    retain: bool,
    properties: bytes,
    expiry: int | None,
    key: bytes,
    sequence: int,
    stamp: Stamp | None = None,
    choice: bytes = b"",
) -> bytes:
    """Return a PUBLISH for links, made once for all of them: the bytes stay the same on every hop.

    `topic`, `payload`, `qos`, `retain`: of the message; `properties`: those that go to receivers,
    encoded, without their length; `expiry`: s left, or None; `key`, `sequence`: its origin, and its
    number there; `stamp`: of a retained message; `choice`: its receiver assignment,
    encoded.
    """
    section = encode_origin(key, sequence, choice)
    if stamp is not None:
        section += encode_stamp(stamp)
    if expiry is not None:
        section += b"\x02" + expiry.to_bytes(4, "big")
    section += properties
    middle = LINK_ID if qos else b""
    middle += encode_varint(len(section)) + section
    length = 2 + len(topic) + len(middle) + len(payload)
    return b"".join(
        (
            bytes((PUBLISH | qos << 1 | retain,)),
            encode_varint(length),
            PACKET_IDS[len(topic)],
            topic,
            middle,
            payload,
        )
    )


def encode_for_links(
    message: Message, key: bytes, sequence: int, now: float, choice: bytes = b""
) -> bytes:
    """Return a `message` as a PUBLISH for links: number `sequence` of the origin `key`. `now` (s)
    gives the time that it has left; `choice` as in `encode_link_publish`."""
    return encode_link_publish(
        message.topic,
        message.payload,
        message.qos,
        message.retain,
        message.properties,
        seconds_to_expiry(message, now),
        key,
        sequence,
        message.stamp if message.retain else None,
        choice,
    )


def seconds_to_expiry(message: Message, now: float) -> int | None:
    """Return the s that a message has left at `now`, as its expiry interval (MQTT-3.3.2-6); None:
    it does not expire."""
    return (
        None
        if message.expires_at is None
        else max(0, min(0xFFFFFFFF, round(message.expires_at - now)))
    )


def explicit(packet: bytes, key: bytes, sequence: int) -> bytes:
    """Return `packet`, a PUBLISH (MQTT 5) that continues another one, as one that names itself its
    origin `key` and its `sequence` number."""
    length, body = read_length(packet, 1)
    start = topic_end(packet, body) + (2 if packet[0] & QOS_BITS else 0)
    size, properties = read_length(packet, start)
    section = encode_origin(key, sequence)
    middle = encode_varint(len(section) + size) + section
    length += len(middle) - (properties - start)
    return b"".join(
        (packet[:1], encode_varint(length), packet[body:start], middle, packet[properties:])
    )


def encode_run_for_links(batch: PublishRun, key: bytes, sequence: int) -> bytes:
    """Return the packets of a run, `batch` (of MQTT 5), for links: the first one names the origin
    `key` and its number, `sequence`; the others, `batch.size` bytes each, continue it."""
    size, start = batch.size, batch.start
    packets = bytearray(batch.data)
    packets[start::size] = LINK_ID[:1] * batch.count
    packets[start + 1 :: size] = LINK_ID[1:] * batch.count
    payload = batch.data[batch.payload : size]
    packets[:size] = encode_link_publish(
        batch.topic, payload, batch.qos, False, batch.properties, None, key, sequence
    )
    return bytes(packets)


def with_expiry(packet: bytes, seconds: int) -> bytes:
    """Return a PUBLISH for links that says an expiry interval, with another one (s)."""
    at = _behind_stamp(packet)
    return packet[: at + 1] + seconds.to_bytes(4, "big") + packet[at + 5 :]


# ---------------------------------------------------------------- reading


def split_key(key: bytes) -> tuple[bytes, int]:
    """Return (id, boot) of an origin's 16 characters.

    Raises:
        MalformedPacket: not base64.
    """
    try:
        raw = a2b_base64(key)
    except Base64Error:
        raise MalformedPacket("origin is not base64") from None
    if len(raw) != 12:
        raise MalformedPacket("origin has the wrong length")
    return raw[:8], int.from_bytes(raw[8:], "big")


def decode_sequence(text: bytes) -> int:
    """Return the sequence number of its 8 characters.

    Raises:
        MalformedPacket: not base64.
    """
    try:
        raw = a2b_base64(text)
    except Base64Error:
        raise MalformedPacket("sequence is not base64") from None
    if len(raw) != 6:
        raise MalformedPacket("sequence has the wrong length")
    high: int
    low: int
    high, low = _split_number(raw)
    return high << 32 | low


def decode_stamp(properties: bytes) -> Stamp | None:
    """Return the stamp that a property section begins with; None when it does not.

    Raises:
        MalformedPacket: not base64, or a time that cannot be.
    """
    if not properties.startswith(STAMP_MARK):
        return None
    try:
        raw = a2b_base64(properties[len(STAMP_MARK) : STAMP_SIZE])
    except Base64Error:
        raise MalformedPacket("stamp is not base64") from None
    if len(raw) != 15 or raw[0] & 0x80:
        raise MalformedPacket("stamp has the wrong length, or a time out of range")
    return Stamp(
        int.from_bytes(raw[:8], "big"), int.from_bytes(raw[8:14], "big"), bool(raw[14] & 1)
    )


def _properties_at(packet: bytes) -> tuple[int, int]:
    """Return how long the property section of a PUBLISH is (bytes), and where it begins."""
    body = read_length(packet, 1)[1]
    return read_length(packet, topic_end(packet, body) + (2 if packet[0] & QOS_BITS else 0))


def payload_at(packet: bytes) -> int:
    """Return where the payload of a PUBLISH for links begins."""
    size, at = _properties_at(packet)
    return at + size


def origin_end(packet: bytes, at: int) -> int:
    """Return where the origin property ends that begins at `at`."""
    return at + SIZE - 24 + (packet[at + 4] << 8 | packet[at + 5])


def choice_of(packet: bytes) -> ReceiverAssignment | None:
    """Return the receiver assignment of a PUBLISH for links, None when there is none."""
    at = _properties_at(packet)[1]
    if not packet.startswith(ORIGIN, at):
        return None
    end = origin_end(packet, at)
    return decode_choice(packet[at + SIZE : end]) if end > at + SIZE else None


def _behind_stamp(packet: bytes) -> int:
    """Return where the property section of a PUBLISH for links goes on after its origin and its
    stamp."""
    at = _properties_at(packet)[1]
    if packet.startswith(ORIGIN, at):
        at = origin_end(packet, at)
    return at + STAMP_SIZE if packet.startswith(STAMP_MARK, at) else at


def expiry_of(packet: bytes) -> int | None:
    """Return the expiry interval (s) that a PUBLISH for links says, None when it says none."""
    at = _behind_stamp(packet)
    return int.from_bytes(packet[at + 1 : at + 5], "big") if packet[at : at + 1] == EXPIRY else None


def _decoded(properties: bytes) -> Properties | None:
    """Decode a property section without its length. Raises MalformedPacket."""
    return decode_properties(encode_varint(len(properties)) + properties, 0, PacketType.PUBLISH)[0]


def split_stamp(properties: bytes) -> tuple[Stamp, bytes]:
    """Split its stamp off the front of the properties of a retained message. Raises
    MalformedPacket."""
    stamp = decode_stamp(properties)
    if stamp is None:
        raise MalformedPacket("retained PUBLISH on a link without its stamp")
    return stamp, properties[STAMP_SIZE:]


def forwardable_whole(properties: bytes) -> bool:
    """Return whether properties are sound and go to receivers as they are."""
    # Publishers often repeat short ones.
    if len(properties) < 128:
        return not inspect_cached(properties) & NOT_AS_IS
    return forwardable(properties)


def sound_properties(properties: bytes, now: float) -> tuple[float | None, bytes]:
    """Return when (s) a message expires that came over a link at `now` (s), None: never; and its
    properties without that. Raises MalformedPacket: a broker may not pass them on."""
    expires_at, properties = split_expiry(properties, now)
    if forwardable_whole(properties):
        return expires_at, properties
    found = _decoded(properties)
    if found is not None and not found.keys().isdisjoint(NOT_FORWARDED):
        raise MalformedPacket("PUBLISH on a link with a property that brokers do not forward")
    return expires_at, properties


def run_of(one: bytes, more: bytes, payload: int, properties: bytes) -> PublishRun:
    """Return a run of packets that continue each other: `one`, and `more` like it behind it;
    `payload`: where in each the payload begins; `properties`: of each, without their length."""
    size = len(properties)
    start = payload - size - (1 if size < 128 else len(encode_varint(size))) - 2
    return PublishRun(
        topic_of(one), one[0] >> 1 & 3, properties, 5, one + more, start, payload, len(one)
    )


def read_run(data: bytes, count: int, step: int) -> PublishRun:
    """Return a run of `count` packets as the replay log keeps it in `data`: the first one names its
    origin, the others, `step` bytes each, continue it.

    Raises:
        MalformedPacket, ProtocolViolation: not such packets.
    """
    end = len(data) - (count - 1) * step
    _, _, message, _, _ = next(read_link_packets(data[:end], 0.0))
    one = LINK_ID.join(
        encode_halves(message.topic, message.payload, 5, message.qos, False, message.properties)
    )
    return run_of(one, data[end:], len(one) - len(message.payload), message.properties)


def read_link_messages(data: bytes, at: float) -> Iterator[tuple[bytes, int, Message]]:
    """Read PUBLISH packets as links carry them: (origin, sequence number, message), but for those
    that are for one group of subscribers alone. `at`: s, from when on they expire.

    Raises:
        MalformedPacket, ProtocolViolation: not such packets.
    """
    for key, sequence, message, _, alone in read_link_packets(data, at):
        if not alone:
            yield key, sequence, message


def is_topic_name(topic: bytes) -> bool:
    """Whether `topic` is a topic name, in UTF-8 and without wildcards."""
    try:
        return valid_topic_name(topic.decode())
    except UnicodeDecodeError:
        return False


def read_link_packets(
    data: bytes, at: float
) -> Iterator[tuple[bytes, int, Message, ReceiverAssignment | None, bool]]:
    """Read PUBLISH packets as links carry them: origin, sequence number, message, receiver
    assignment, whether only assigned members get it. `at`: s, from when on they expire.

    Raises:
        MalformedPacket, ProtocolViolation: not such packets.
    """
    position, key, sequence = 0, b"", 0
    while position < len(data):
        length, body = read_length(data, position + 1)
        end = body + length
        if body < 0 or end > len(data) or length < 3 or data[position] >> 4 != PacketType.PUBLISH:
            raise MalformedPacket("messages of another broker are truncated")
        first = data[position]
        start = topic_end(data, body)
        topic = data[body + 2 : start]
        size, properties = read_length(data, start + (2 if first & QOS_BITS else 0))
        payload = properties + size
        if properties < 0 or payload > end or first & QOS_BITS == QOS_BITS:
            raise MalformedPacket("messages of another broker are truncated")
        section = data[properties:payload]
        sequence += 1
        alone = False
        choice: ReceiverAssignment | None = None
        stamp: Stamp | None = None
        if section.startswith(ORIGIN) and size >= SIZE:
            # It is for a shared subscription.
            alone = section[4:6] != MARK[4:6] and section[SIZE : SIZE + 1] != CHOSEN
            key, sequence = section[SIZE - 24 : SIZE - 8], decode_sequence(section[SIZE - 8 : SIZE])
            behind = origin_end(section, 0)
            choice = (
                decode_choice(section[SIZE:behind]).of(key, sequence) if behind > SIZE else None
            )
            section = section[behind:]
        if section.startswith(STAMP_MARK):
            stamp = decode_stamp(section)
            section = section[STAMP_SIZE:]
        expires_at, section = split_expiry(section, at)
        _decoded(section)
        if not is_topic_name(topic):
            raise MalformedPacket("messages of another broker have no topic name")
        message = Message(
            topic,
            data[payload:end],
            first >> 1 & 3,
            bool(first & RETAIN),
            section,
            expires_at,
            None,
        )
        if stamp is not None:
            message.stamp = stamp
        yield key, sequence, message, choice, alone
        position = end
