"""Digests of retained messages, by which both sides of a leg are compared. Pure.

The payload counts, and of the properties those that a receiver gets as they were published. QoS
does not, as rules and brokers lower it, nor Message Expiry Interval, which runs, nor Response
Topic, which has another name on the other side.
"""

from __future__ import annotations

from hashlib import blake2b

from mqttree.broker.wire.constants import PacketType
from mqttree.broker.wire.properties import (
    Properties,
    Property,
    decode_properties,
    encode_properties,
)
from mqttree.broker.wire.varint import encode_varint

MARK = "mqttree"
"""The name of User Properties that are the legs' own."""
COUNTING = (
    Property.PAYLOAD_FORMAT_INDICATOR,
    Property.CONTENT_TYPE,
    Property.CORRELATION_DATA,
    Property.USER_PROPERTY,
)


def key_of(topic: bytes) -> int:
    """Return 64 bits that stand for the name of a `topic` here."""
    return int.from_bytes(blake2b(topic, digest_size=8).digest(), "big")


def digest_of(payload: bytes, properties: Properties | None) -> int:
    """Return 61 bits, never 0, that stand for the value of a message; 0 for an empty payload, which
    deletes. `payload`, `properties`: of it."""
    if not payload:
        return 0
    found: Properties = {}
    if properties:
        found = {p: properties[p] for p in COUNTING if p in properties}
    counting = without_marks(found)
    if counting:
        key = blake2b(encode_properties(counting), digest_size=16).digest()
        digest = blake2b(payload, digest_size=8, key=key).digest()
    else:
        digest = blake2b(payload, digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 3 or 1


def without_marks(properties: Properties | None) -> Properties | None:
    """Return the `properties` of a message without those that are the legs' own."""
    if not properties or Property.USER_PROPERTY not in properties:
        return properties
    kept = [pair for pair in properties[Property.USER_PROPERTY] if pair[0] != MARK]
    rest = {p: value for p, value in properties.items() if p != Property.USER_PROPERTY}
    return rest | {Property.USER_PROPERTY: kept} if kept else rest


def read_section(section: bytes) -> Properties | None:
    """Return the properties of a message. `section`: encoded, without their length. Raises
    WireError."""
    if not section:
        return None
    return decode_properties(encode_varint(len(section)) + section, 0, PacketType.PUBLISH)[0]
