"""Properties of MQTT 5 packets (2.2.2) as plain dicts.

Keys are Property Identifiers, values int, str or bytes after the property's type. Two may be
repeated and are lists: USER_PROPERTY is a list of (name, value) in order, SUBSCRIPTION_IDENTIFIER a
list of int (of one in a SUBSCRIBE). No properties at all is None, never an empty dict.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, TypeAlias

from broker.wire.constants import WILL, PacketType, ReasonCode
from broker.wire.errors import MalformedPacket, ProtocolViolation, WireError
from broker.wire.strings import (
    check_topic_name,
    encode_binary,
    encode_string,
    read_binary,
    read_string,
)
from broker.wire.varint import decode_varint, encode_varint

Properties: TypeAlias = dict[int, Any]


class Property(IntEnum):
    """Property Identifiers (MQTT 5, table 2-4)."""

    PAYLOAD_FORMAT_INDICATOR = 0x01
    MESSAGE_EXPIRY_INTERVAL = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_IDENTIFIER = 0x0B
    SESSION_EXPIRY_INTERVAL = 0x11
    ASSIGNED_CLIENT_IDENTIFIER = 0x12
    SERVER_KEEP_ALIVE = 0x13
    AUTHENTICATION_METHOD = 0x15
    AUTHENTICATION_DATA = 0x16
    REQUEST_PROBLEM_INFORMATION = 0x17
    WILL_DELAY_INTERVAL = 0x18
    REQUEST_RESPONSE_INFORMATION = 0x19
    RESPONSE_INFORMATION = 0x1A
    SERVER_REFERENCE = 0x1C
    REASON_STRING = 0x1F
    RECEIVE_MAXIMUM = 0x21
    TOPIC_ALIAS_MAXIMUM = 0x22
    TOPIC_ALIAS = 0x23
    MAXIMUM_QOS = 0x24
    RETAIN_AVAILABLE = 0x25
    USER_PROPERTY = 0x26
    MAXIMUM_PACKET_SIZE = 0x27
    WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28
    SUBSCRIPTION_IDENTIFIER_AVAILABLE = 0x29
    SHARED_SUBSCRIPTION_AVAILABLE = 0x2A


class Kind(IntEnum):
    """Data types of properties; up to FOUR_BYTES the value is also the width in bytes."""

    BYTE = 1
    TWO_BYTES = 2
    FOUR_BYTES = 4
    VARINT = 5
    STRING = 6
    BINARY = 7
    PAIR = 8


_T = PacketType
_MESSAGE: Final = (_T.PUBLISH, WILL)
_CONNECT: Final = (_T.CONNECT,)
_CONNACK: Final = (_T.CONNACK,)
_BOTH: Final = (_T.CONNECT, _T.CONNACK)
_EXPLAINED: Final = (
    *(_T.CONNACK, _T.PUBACK, _T.PUBREC, _T.PUBREL, _T.PUBCOMP),
    *(_T.SUBACK, _T.UNSUBACK, _T.DISCONNECT, _T.AUTH),
)
_ANY: Final = (*(t for t in _T if t not in (_T.PINGREQ, _T.PINGRESP)), WILL)

TABLE: Final[dict[int, tuple[Kind, tuple[int, ...]]]] = {
    Property.PAYLOAD_FORMAT_INDICATOR: (Kind.BYTE, _MESSAGE),
    Property.MESSAGE_EXPIRY_INTERVAL: (Kind.FOUR_BYTES, _MESSAGE),
    Property.CONTENT_TYPE: (Kind.STRING, _MESSAGE),
    Property.RESPONSE_TOPIC: (Kind.STRING, _MESSAGE),
    Property.CORRELATION_DATA: (Kind.BINARY, _MESSAGE),
    Property.SUBSCRIPTION_IDENTIFIER: (Kind.VARINT, (_T.PUBLISH, _T.SUBSCRIBE)),
    Property.SESSION_EXPIRY_INTERVAL: (Kind.FOUR_BYTES, (*_BOTH, _T.DISCONNECT)),
    Property.ASSIGNED_CLIENT_IDENTIFIER: (Kind.STRING, _CONNACK),
    Property.SERVER_KEEP_ALIVE: (Kind.TWO_BYTES, _CONNACK),
    Property.AUTHENTICATION_METHOD: (Kind.STRING, (*_BOTH, _T.AUTH)),
    Property.AUTHENTICATION_DATA: (Kind.BINARY, (*_BOTH, _T.AUTH)),
    Property.REQUEST_PROBLEM_INFORMATION: (Kind.BYTE, _CONNECT),
    Property.WILL_DELAY_INTERVAL: (Kind.FOUR_BYTES, (WILL,)),
    Property.REQUEST_RESPONSE_INFORMATION: (Kind.BYTE, _CONNECT),
    Property.RESPONSE_INFORMATION: (Kind.STRING, _CONNACK),
    Property.SERVER_REFERENCE: (Kind.STRING, (_T.CONNACK, _T.DISCONNECT)),
    Property.REASON_STRING: (Kind.STRING, _EXPLAINED),
    Property.RECEIVE_MAXIMUM: (Kind.TWO_BYTES, _BOTH),
    Property.TOPIC_ALIAS_MAXIMUM: (Kind.TWO_BYTES, _BOTH),
    Property.TOPIC_ALIAS: (Kind.TWO_BYTES, (_T.PUBLISH,)),
    Property.MAXIMUM_QOS: (Kind.BYTE, _CONNACK),
    Property.RETAIN_AVAILABLE: (Kind.BYTE, _CONNACK),
    Property.USER_PROPERTY: (Kind.PAIR, _ANY),
    Property.MAXIMUM_PACKET_SIZE: (Kind.FOUR_BYTES, _BOTH),
    Property.WILDCARD_SUBSCRIPTION_AVAILABLE: (Kind.BYTE, _CONNACK),
    Property.SUBSCRIPTION_IDENTIFIER_AVAILABLE: (Kind.BYTE, _CONNACK),
    Property.SHARED_SUBSCRIPTION_AVAILABLE: (Kind.BYTE, _CONNACK),
}
"""Property Identifier -> (data type, packet types that may carry it): MQTT 5, table 2-4."""

# Values that are a Protocol Error when zero, with the Reason Code to answer.
_NOT_ZERO: Final[dict[int, ReasonCode]] = {
    Property.RECEIVE_MAXIMUM: ReasonCode.PROTOCOL_ERROR,  # 3.1.2.11.3
    Property.MAXIMUM_PACKET_SIZE: ReasonCode.PROTOCOL_ERROR,  # 3.1.2.11.4
    Property.SUBSCRIPTION_IDENTIFIER: ReasonCode.PROTOCOL_ERROR,  # 3.8.2.1.2
    Property.TOPIC_ALIAS: ReasonCode.TOPIC_ALIAS_INVALID,  # MQTT-3.3.2-8
}

# Plain integers: comparing with members of an enumeration costs more than reading a property.
_USER_PROPERTY: Final = int(Property.USER_PROPERTY)
_SUBSCRIPTION_IDENTIFIER: Final = int(Property.SUBSCRIPTION_IDENTIFIER)
_AUTHENTICATION_METHOD: Final = int(Property.AUTHENTICATION_METHOD)
_AUTHENTICATION_DATA: Final = int(Property.AUTHENTICATION_DATA)


MAX_REPEATED: Final = 20_000
"""User Properties, or Subscription Identifiers, of one packet: there is room for millions, and each
takes a microsecond."""

ASCII_AT_ONCE: Final = 5 * MAX_REPEATED
"""bytes of properties that are looked through quickly: no more than MAX_REPEATED of them."""


def decode_properties(data: bytes, pos: int, packet_type: int) -> tuple[Properties | None, int]:
    """Return the properties at `pos` of `data`, where their Property Length stands (None if there
    are none), and the position behind them.

    `packet_type`: a PacketType, or WILL.

    Raises MalformedPacket (0x81) for an unknown identifier, one that this packet may not carry
    (2.2.2.2), an ill-formed string or a truncated value; ProtocolViolation for a repeated property
    (0x82), a value out of range (0x82; 0x94 for Topic Alias 0; 0x90 for a Response Topic that is no
    Topic Name), Authentication Data without a method (0x82) and more than MAX_REPEATED of one kind
    (0x95).
    """
    if pos >= len(data):
        raise MalformedPacket("Property Length is missing")
    if data[pos] == 0:
        return None, pos + 1
    length, pos = decode_varint(data, pos)
    end = pos + length
    if end > len(data):
        raise MalformedPacket("Property Length exceeds the packet")
    # So that no value is read across the end of the properties.
    area = data[:end] if end < len(data) else data
    bit = 1 << packet_type
    found: Properties = {}
    while pos < end:
        ident = area[pos]
        known = _DECODING.get(ident)
        if known is None or not known[0] & bit:
            # Identifiers are Variable Byte Integers; all defined ones fit in one byte.
            raise MalformedPacket(f"property 0x{ident:02X} is not allowed in this packet")
        value, pos = known[1](area, pos + 1)
        if ident == _USER_PROPERTY:
            values = found.setdefault(ident, [])
            values.append(value)
            if len(values) > MAX_REPEATED:
                raise ProtocolViolation(
                    "more User Properties than one packet may have", ReasonCode.PACKET_TOO_LARGE
                )
            continue
        if ident in found and (
            ident != _SUBSCRIPTION_IDENTIFIER or packet_type == PacketType.SUBSCRIBE
        ):
            raise ProtocolViolation(f"property {Property(ident).name} is included more than once")
        if known[2] is not None:
            known[2](ident, value)
        if ident == _SUBSCRIPTION_IDENTIFIER:
            values = found.setdefault(ident, [])
            values.append(value)
            if len(values) > MAX_REPEATED:
                raise ProtocolViolation(
                    "more Subscription Identifiers than one packet may have",
                    ReasonCode.PACKET_TOO_LARGE,
                )
        else:
            found[ident] = value
    if _AUTHENTICATION_DATA in found and _AUTHENTICATION_METHOD not in found:
        raise ProtocolViolation("Authentication Data without an Authentication Method")
    return found, end


def encode_properties(properties: Properties | None) -> bytes:
    """Properties with their length in front; a single zero byte for None or an empty dict.

    Raises ValueError for an unknown identifier or a value that does not fit its type. Whether the
    packet may carry the property is the caller's business.
    """
    if not properties:
        return b"\x00"
    parts: list[bytes] = []
    for ident, value in properties.items():
        known = _ENCODING.get(ident)
        if known is None:
            raise ValueError(f"{ident!r} is not a Property Identifier")
        prefix, write = known
        if ident in (_USER_PROPERTY, _SUBSCRIPTION_IDENTIFIER):
            parts.extend(prefix + write(item) for item in value)
        else:
            parts.append(prefix + write(value))
    body = b"".join(parts)
    return encode_varint(len(body)) + body


def _check_flag(ident: int, value: int) -> None:
    """Every Byte property of table 2-4 is 0 or 1, Maximum QoS included."""
    if value > 1:
        raise ProtocolViolation(f"{Property(ident).name} is {value}, not 0 or 1")


def _check_positive(ident: int, value: int) -> None:
    if not value:
        raise ProtocolViolation(f"{Property(ident).name} is 0", _NOT_ZERO[ident])


def _check_response_topic(ident: int, value: str) -> None:
    check_topic_name(value)  # MQTT-3.3.2-14


def _check_of(ident: int, kind: Kind) -> Callable[[int, Any], None] | None:
    if kind is Kind.BYTE:
        return _check_flag
    if ident in _NOT_ZERO:
        return _check_positive
    return _check_response_topic if ident == Property.RESPONSE_TOPIC else None


def _read_int(data: bytes, pos: int, width: int) -> tuple[int, int]:
    end = pos + width
    if end > len(data):
        raise MalformedPacket("property is truncated")
    return int.from_bytes(data[pos:end], "big"), end


def _read_pair(data: bytes, pos: int) -> tuple[tuple[str, str], int]:
    name, pos = read_string(data, pos)
    value, pos = read_string(data, pos)
    return (name, value), pos


def _write_int(value: int, width: int) -> bytes:
    if not 0 <= value < 1 << 8 * width:
        raise ValueError(f"{value} does not fit in {width} bytes")
    return int(value).to_bytes(width, "big")


_READERS: Final[dict[Kind, Callable[[bytes, int], tuple[Any, int]]]] = {
    Kind.BYTE: lambda data, pos: _read_int(data, pos, 1),
    Kind.TWO_BYTES: lambda data, pos: _read_int(data, pos, 2),
    Kind.FOUR_BYTES: lambda data, pos: _read_int(data, pos, 4),
    Kind.VARINT: decode_varint,
    Kind.STRING: read_string,
    Kind.BINARY: read_binary,
    Kind.PAIR: _read_pair,
}

_WRITERS: Final[dict[Kind, Callable[[Any], bytes]]] = {
    Kind.BYTE: lambda value: _write_int(value, 1),
    Kind.TWO_BYTES: lambda value: _write_int(value, 2),
    Kind.FOUR_BYTES: lambda value: _write_int(value, 4),
    Kind.VARINT: encode_varint,
    Kind.STRING: encode_string,
    Kind.BINARY: encode_binary,
    Kind.PAIR: lambda pair: encode_string(pair[0]) + encode_string(pair[1]),
}

# What the loops above need of the table: (a bit for each packet type that may carry it, reader,
# check of the value) ...
_DECODING: Final = {
    int(ident): (sum(1 << t for t in types), _READERS[kind], _check_of(ident, kind))
    for ident, (kind, types) in TABLE.items()
}
# ... and (identifier as it is sent, writer).
_ENCODING = {int(ident): (bytes((ident,)), _WRITERS[kind]) for ident, (kind, _) in TABLE.items()}


NOT_FORWARDED: Final = frozenset(
    (Property.TOPIC_ALIAS, Property.SUBSCRIPTION_IDENTIFIER, Property.MESSAGE_EXPIRY_INTERVAL)
)
"""Properties that must not reach receivers as they came: they are of one connection, or change on
the way. On a link they would break the connections of clients; an expiry comes first there, and
once."""


def forwardable(section: bytes) -> bool:
    """Whether a PUBLISH's property section (without its length) is sound and goes to receivers as
    it is.

    So do Content Type, Response Topic, Correlation Data and User Properties (MQTT-3.3.2-17 to -20),
    and a Payload Format Indicator that promises nothing; not what is of one connection (Topic
    Alias) or changes on the way (Message Expiry Interval).
    """
    return _only_user_properties(section) or _forwardable(section)


@lru_cache(maxsize=4096)
def forwardable_cached(section: bytes) -> bool:
    """Return what `forwardable` says of a short section (up to 127 bytes). Answers are kept, as
    publishers repeat such sections."""
    return forwardable(section)


def _only_user_properties(section: bytes) -> bool:
    """Say yes quickly to the common case: User Properties in ASCII. No means nothing."""
    at, end = 0, len(section)
    if end > ASCII_AT_ONCE or not section.isascii():
        return False
    while at + 5 <= end and section[at] == 0x26:
        name = at + 3
        value = name + (section[at + 1] << 8 | section[at + 2]) + 2
        if value > end:
            return False
        at = value + (section[value - 2] << 8 | section[value - 1])
        if at > end or section.find(0, name, value - 2) >= 0 or section.find(0, value, at) >= 0:
            return False
    return at == end


def _forwardable(section: bytes) -> bool:
    try:
        found, _ = decode_properties(encode_varint(len(section)) + section, 0, PacketType.PUBLISH)
    except WireError:
        return False
    if not found:
        return True
    return found.keys() <= _FORWARDED and not found.get(Property.PAYLOAD_FORMAT_INDICATOR)


_FORWARDED: Final = {
    Property.PAYLOAD_FORMAT_INDICATOR,
    Property.CONTENT_TYPE,
    Property.RESPONSE_TOPIC,
    Property.CORRELATION_DATA,
    Property.USER_PROPERTY,
}
