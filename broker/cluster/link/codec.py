"""PUBLISH on a link: a message with its origin (broker id, boot) and its sequence number.

On a link the first property of a PUBLISH is a User Property "o" of 24 characters: 16 for id and
boot, 8 for the sequence (base64 without padding), so that it is legal MQTT 5 and can be read and
compared as it stands. A PUBLISH without it continues its predecessor on the link: same origin, next
sequence. At QoS 0 such a one has no properties at all; at QoS 1 and 2 it may, but none that could
be taken for an origin. A longer "o" goes on with who of shared subscriptions gets the message
(`receiver_assignment`). Retained messages have a User Property "h" of 20 characters behind it,
their `Stamp`.
"""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from typing import TYPE_CHECKING

from broker.core.message import LINK_ID, ORIGIN, Message, Stamp
from broker.wire.errors import MalformedPacket
from broker.wire.publish_header import PACKET_IDS, PUBLISH, QOS_BITS, topic_end
from broker.wire.varint import encode_varint, read_length

if TYPE_CHECKING:
    from broker.core.publish_run import PublishRun

MARK = ORIGIN + b"\x00\x18"
SIZE = len(MARK) + 24
STAMP_MARK = b"\x26\x00\x01h\x00\x14"
STAMP_SIZE = len(STAMP_MARK) + 20


def origin_key(broker_id: bytes, boot: int) -> bytes:
    """Return the 16 characters that name (8-byte id, boot number)."""
    return b2a_base64(broker_id + boot.to_bytes(4, "big"), newline=False)


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


def encode_origin(key: bytes, sequence: int, choice: bytes = b"") -> bytes:
    """Return the property (30 bytes, and `choice`) that names the origin `key` and the `sequence`
    number."""
    if choice:
        number = b2a_base64(sequence.to_bytes(6, "big"), newline=False)
        return ORIGIN + (24 + len(choice)).to_bytes(2, "big") + key + number + choice
    return MARK + key + b2a_base64(sequence.to_bytes(6, "big"), newline=False)


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
    return int.from_bytes(raw, "big")


def encode_stamp(stamp: Stamp) -> bytes:
    """Return the property (26 bytes)."""
    raw = stamp.time.to_bytes(8, "big") + stamp.death.to_bytes(6, "big") + bytes((stamp.restored,))
    return STAMP_MARK + b2a_base64(raw, newline=False)


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
        raise MalformedPacket("stamp has the wrong length, or a time that cannot be")
    return Stamp(
        int.from_bytes(raw[:8], "big"), int.from_bytes(raw[8:14], "big"), bool(raw[14] & 1)
    )


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
    number there; `stamp`: of a retained message; `choice`: who of shared subscriptions gets it,
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
        remaining(message, now),
        key,
        sequence,
        message.stamp if message.retain else None,
        choice,
    )


def remaining(message: Message, now: float) -> int | None:
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
