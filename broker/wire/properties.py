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

from mqttree.broker.wire.constants import WILL, PacketType, ReasonCode
from mqttree.broker.wire.errors import MalformedPacket, ProtocolViolation, WireError
from mqttree.broker.wire.strings import (
    check_topic_name,
    encode_binary,
    encode_string,
    read_binary,
    read_string,
)
from mqttree.broker.wire.varint import decode_varint, encode_varint

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


MAX_REPEATED: Final = 32_768
"""User Properties, or Subscription Identifiers, of one packet, as many as public test suites send:
there is room for millions, and each takes a microsecond. A packet with more is refused with
0x97."""

MAX_INSPECTED: Final = 5 * MAX_REPEATED
"""bytes of properties that `inspect_section` looks through: no more than MAX_REPEATED of them."""


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
                    "more User Properties than one packet may have", ReasonCode.QUOTA_EXCEEDED
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
                    ReasonCode.QUOTA_EXCEEDED,
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


def encode_identifier(identifier: int) -> bytes:
    """Encode a Subscription Identifier property (MQTT-3.3.2.3.8)."""
    return b"\x0b" + encode_varint(identifier)


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
    if len(section) <= MAX_INSPECTED:
        return not inspect_section(section) & NOT_AS_IS
    try:
        found, _ = decode_properties(encode_varint(len(section)) + section, 0, PacketType.PUBLISH)
    except WireError:
        return False
    return found is None or (
        found.keys().isdisjoint(NOT_FORWARDED) and not found.get(Property.PAYLOAD_FORMAT_INDICATOR)
    )


PROMISES_TEXT: Final = 1
"""Bit of `inspect_section`: a Payload Format Indicator says that the payload is UTF-8."""

EXPIRES: Final = 1 << Property.MESSAGE_EXPIRY_INTERVAL
"""Bit of `inspect_section`: there is a Message Expiry Interval."""

ALIASED: Final = 1 << Property.TOPIC_ALIAS
"""Bit of `inspect_section`: there is a Topic Alias."""

CHANGES: Final = EXPIRES | ALIASED
"""Bits of `inspect_section`: receivers do not get the section as it came."""

NOT_AS_IS: Final = PROMISES_TEXT | CHANGES
"""Bits of `inspect_section`: the section is not `forwardable`."""

EXPIRY: Final = b"\x02"
"""The identifier of the Message Expiry Interval (MQTT-3.3.2.3.3). This broker puts it first: a
section that begins with it goes as it came to receivers that get the message in the same turn."""

EXPIRY_SIZE: Final = 5
"""bytes of a Message Expiry Interval with its identifier."""


INSTANT_S: Final = 0.1
"""s; how long a message with a Message Expiry Interval of 0 lasts: it reaches subscribers that are
connected, at other brokers, too, and is queued for no others."""


def lifetime(interval: int) -> float:
    """Return for how long (s) a message with a Message Expiry Interval (s) lasts."""
    return float(interval) if interval else INSTANT_S


def split_expiry(section: bytes, now: float) -> tuple[float | None, bytes]:
    """Split the Message Expiry Interval off the front of a property section: when (s) a message
    from `now` (s) expires, None: never; and the rest."""
    if section[:1] == EXPIRY and len(section) >= EXPIRY_SIZE:
        interval = int.from_bytes(section[1:EXPIRY_SIZE], "big")
        return now + lifetime(interval), section[EXPIRY_SIZE:]
    return None, section


UNSOUND: Final = -1
"""What `inspect_section` says of sections that are not sound, or not looked through here. It has
all bits."""


def inspect_section(section: bytes) -> int:
    """Look through a PUBLISH's property section (without its length) in one pass that makes no
    objects. Returns a bit for each Property Identifier that is in it (1 << identifier), and
    PROMISES_TEXT; UNSOUND for whatever `decode_properties` refuses, for a Subscription Identifier,
    which clients may not send, and for more than MAX_INSPECTED bytes.
    """
    at, end, seen = 0, len(section), 0
    ascii_only = section.isascii()
    # Whatever is not sound ends the loop before the end.
    while at < end <= MAX_INSPECTED:
        identifier = section[at]
        start = at + 3  # of a string, behind its length of two bytes
        if identifier == _USER_PROPERTY:
            if start > end:
                break
            name = start + (section[at + 1] << 8 | section[at + 2])
            value = name + 2
            if value > end:
                break
            behind = value + (section[name] << 8 | section[name + 1])
            if behind > end:
                break
            if ascii_only:
                if section.find(0, start, name) >= 0 or section.find(0, value, behind) >= 0:
                    break
            elif not (_is_string(section[start:name]) and _is_string(section[value:behind])):
                break
            seen |= _REPEATED
            at = behind
            continue
        bit = 1 << identifier
        # Not for a PUBLISH, or twice.
        if seen & bit or not bit & _FROM_CLIENTS:
            break
        seen |= bit
        if width := _WIDTHS[identifier]:
            behind = at + 1 + width
            bits = _inspect_number(identifier, section[at + 1 : behind], width)
            if bits < 0:
                break
            seen |= bits
        else:
            if start > end:
                break
            behind = start + (section[at + 1] << 8 | section[at + 2])
            if behind > end or not _inspect_string(identifier, section[start:behind]):
                break
        at = behind
    return seen if at == end else UNSOUND


def property_end(section: bytes, at: int) -> int:
    """Return where the property ends that begins at `at` in a PUBLISH's property section (without
    its length), of which `inspect_section` says that it is sound."""
    identifier = section[at]
    if width := _WIDTHS[identifier]:
        return at + 1 + width
    behind = at + 3 + (section[at + 1] << 8 | section[at + 2])
    if identifier == _USER_PROPERTY:
        behind += 2 + (section[behind] << 8 | section[behind + 1])
    return behind


def _inspect_number(identifier: int, value: bytes, width: int) -> int:
    """Return UNSOUND for a value of not `width` bytes, and for one that the property `identifier`
    may not have; PROMISES_TEXT if it does; CHANGES for an expiry of 0, as receivers get at least 1;
    else 0."""
    if len(value) < width or (identifier == _TOPIC_ALIAS and not any(value)):
        return UNSOUND
    if identifier == _PAYLOAD_FORMAT_INDICATOR:
        return value[0] if value[0] <= 1 else UNSOUND
    return CHANGES if identifier == EXPIRY[0] and not any(value) else 0


def _inspect_string(identifier: int, value: bytes) -> bool:
    """Whether the property `identifier` may have this `value`."""
    if identifier == _CORRELATION_DATA:
        return True
    if identifier == _RESPONSE_TOPIC and (not value or b"+" in value or b"#" in value):
        return False
    return _is_string(value)


inspect_cached: Final = lru_cache(maxsize=4096)(inspect_section)
"""`inspect_section` for short sections (up to 127 bytes). Answers are kept, as publishers repeat
such sections."""


_inspect_long: Final = lru_cache(maxsize=512)(inspect_section)
"""`inspect_section` for sections of 128 to `_LONG` bytes."""

_LONG: Final = 1023
"""bytes; the answers for longer sections are not kept, as they would take much memory."""


def inspect_alone(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Inspect a property section that is longer than 127 bytes, begins with a Message Expiry
    Interval, or says that its payload is text.

    `data`: holds the PUBLISH; `at`: where in it the length of the section begins; `end`: where the
    packet ends.

    Returns the section's size and the position behind it, if receivers get all of it as it came
    when they get it in the same turn, and the payload is ASCII if it is to be text. Else the
    position is behind `end`: it takes the path for everything else.
    """
    size, start = data[at], at + 1
    if size > 127 and start < end:
        size += (data[start] << 7) - 128
        start += 1
        # With more bytes than needed (MQTT-1.5.5-1), or with a third one.
        if not 127 < size < 1 << 14:
            return 0, end + 1
    behind = start + size
    if behind <= end:
        section = data[start:behind]
        if size < 128:
            seen = inspect_cached(section)
        else:
            seen = _inspect_long(section) if size <= _LONG else inspect_section(section)
        changes = seen & CHANGES
        if (not changes or (changes == EXPIRES and section[:1] == EXPIRY)) and (
            not seen & PROMISES_TEXT or data[behind:end].isascii()
        ):
            return size, behind
    return 0, end + 1


def inspect_first(data: bytes, at: int, end: int) -> tuple[int, int, bool]:
    """Inspect the property section of a PUBLISH that others like it may follow.

    `data`, `at`, `end`: as of `inspect_alone`. Returns what that does, and whether the section was
    looked at alone, so that nothing is known of packets behind this one with the same section.
    """
    size, start = data[at], at + 1
    if size < 128:
        seen = inspect_cached(data[start : start + size]) & NOT_AS_IS
        if not seen or (seen == EXPIRES and data.startswith(EXPIRY, start)):
            return size, start + size, False
    size, start = inspect_alone(data, at, end)
    return size, start, True


def _is_string(text: bytes) -> bool:
    """Whether bytes are a UTF-8 Encoded String (MQTT-1.5.4-1, 1.5.4-2)."""
    if 0 in text:
        return False
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            return False
    return True


_PAYLOAD_FORMAT_INDICATOR: Final = int(Property.PAYLOAD_FORMAT_INDICATOR)
_RESPONSE_TOPIC: Final = int(Property.RESPONSE_TOPIC)
_CORRELATION_DATA: Final = int(Property.CORRELATION_DATA)
_TOPIC_ALIAS: Final = int(Property.TOPIC_ALIAS)

# Bytes of the values, by Property Identifier; 0: as many as the two bytes before them say.
_WIDTHS: Final = tuple(
    int(TABLE[ident][0]) if ident in TABLE and TABLE[ident][0] <= Kind.FOUR_BYTES else 0
    for ident in range(max(TABLE) + 1)
)
_REPEATED: Final = 1 << _USER_PROPERTY
# A bit for each Property Identifier that a client's PUBLISH may have once.
_FROM_CLIENTS: Final = sum(
    1 << ident
    for ident, (_, types) in TABLE.items()
    if PacketType.PUBLISH in types
    and ident not in (Property.SUBSCRIPTION_IDENTIFIER, Property.USER_PROPERTY)
)
