"""Values of retained messages, by which both sides of a leg are compared. Pure.

The payload counts, and of the properties those that a receiver gets as they were published. QoS
does not, as rules and brokers lower it, nor Message Expiry Interval, which runs, nor Response
Topic, which has another name on the other side.
"""

from __future__ import annotations

from mqttree.broker.wire.constants import PacketType
from mqttree.broker.wire.packets import Publish
from mqttree.broker.wire.properties import Properties, Property, decode_properties
from mqttree.broker.wire.varint import encode_varint

MARK = "mqttree"
"""The name of User Properties that are the legs' own."""
COUNTING = (
    Property.PAYLOAD_FORMAT_INDICATOR,
    Property.CONTENT_TYPE,
    Property.CORRELATION_DATA,
    Property.USER_PROPERTY,
)


def equal(one: Publish, other: Publish, version: int) -> bool:
    """Return whether `one` message has the value of the `other` one. `version`: of MQTT (4 or 5) in
    which both brokers are spoken to: properties cross with 5 only."""
    if one.payload != other.payload:
        return False
    return version != 5 or _counting(one) == _counting(other)


def _counting(message: Publish) -> Properties:
    found = without_marks(message.properties) or {}
    return {name: found[name] for name in COUNTING if name in found}


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
