"""Bytes to packets: strict decoders, one for each packet type.

Every decoder takes the first byte of the fixed header, the body (all bytes after the fixed header)
and the protocol version of the connection (3, 4 or 5), and raises nothing but WireError. Bodies are
``bytes``; nothing is kept of them but slices.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, TypeAlias, TypeVar

from mqttree.broker.wire.constants import BRIDGE_BIT, V5, V31, V311, WILL, PacketType
from mqttree.broker.wire.errors import MalformedPacket, ProtocolViolation, UnsupportedVersion
from mqttree.broker.wire.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqttree.broker.wire.properties import Properties, Property, decode_properties
from mqttree.broker.wire.steps import finish
from mqttree.broker.wire.strings import (
    SHARE_PREFIX,
    check_topic_name,
    read_binary,
    read_string,
    shorten,
)

_A = TypeVar("_A", bound=Puback | Pubrec | Pubrel | Pubcomp)
_Decoder: TypeAlias = Callable[[int, bytes, int], Packet]

FILTERS: Final = 1_000
"""of a SUBSCRIBE or UNSUBSCRIBE that are decoded at a time."""

_PROTOCOLS: Final = {("MQIsdp", V31), ("MQTT", V311), ("MQTT", V5)}
_BEGINNINGS: Final = {b"\0\x04MQTT\x04": ("MQTT", V311), b"\0\x04MQTT\x05": ("MQTT", V5)}
_RETURN_CODES: Final = frozenset(range(6))  # CONNACK before MQTT 5 (3.1.1, table 3.1)
_GRANTS: Final = frozenset((0, 1, 2, 0x80))  # SUBACK before MQTT 5 (MQTT-3.9.3-2 of 3.1.1)

# The Reason Codes that each packet of MQTT 5 may carry (the tables of 3.2.2.2 to 3.15.2.1).
_CONNACK_REASONS: Final = frozenset(
    (0, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F)
)
_RECEIVED_REASONS: Final = frozenset((0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
_RELEASE_REASONS: Final = frozenset((0, 0x92))
_SUBACK_REASONS: Final = frozenset((0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2))
_UNSUBACK_REASONS: Final = frozenset((0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91))
_DISCONNECT_REASONS: Final = frozenset(
    (0, 4, *range(0x80, 0x84), 0x87, 0x89, *range(0x8B, 0x91), *range(0x93, 0xA3))
)
_AUTH_REASONS: Final = frozenset((0, 0x18, 0x19))


def decode_packet(first: int, body: bytes, version: int, *, ping_payload: bool = False) -> Packet:
    """Decode any packet.

    ``first`` is the first byte of the fixed header, ``body`` all after the fixed header,
    ``version`` the connection's (3, 4, 5); CONNECT ignores it. ``ping_payload`` allows PINGREQ and
    PINGRESP to carry bytes, as links between brokers do. Raises WireError and its subclasses only.
    """
    if ping_payload and body and first in (0xC0, 0xD0):
        return Pingreq(body) if first == 0xC0 else Pingresp(body)
    return _DECODERS[first >> 4](first, body, version)


def decode_connect(first: int, body: bytes, version: int = 0) -> Connect:
    """Return the CONNECT in a packet of any version. `first`: the first byte of the packet; `body`:
    the bytes behind its Remaining Length; `version` is ignored.

    Raises UnsupportedVersion for another protocol name or version (MQTT-3.1.2-1, 3.1.2-2),
    MalformedPacket for anything else that is wrong. MQTT 3.1 does not use the low bits of the first
    byte, ignores the flags of a Will that is not there, and accepts that user name and password are
    missing in spite of their flags. Whether the client identifier is acceptable is decided by the
    broker.
    """
    known = _BEGINNINGS.get(body[:7])
    if known is not None and len(body) >= 10:
        name, version = known
        level, pos = version, 6
    else:
        name, pos = read_string(body, 0)
        if pos >= len(body):
            raise MalformedPacket("CONNECT is truncated before the protocol version")
        level = body[pos]
        version = level & ~BRIDGE_BIT
        if (name, version) not in _PROTOCOLS:
            raise UnsupportedVersion(f"protocol {shorten(name)} version {version} is not supported")
        if pos + 4 > len(body):
            raise MalformedPacket("CONNECT is truncated in its variable header")
    if version != V31:
        _no_flags(first)
    flags = body[pos + 1]
    keep_alive = body[pos + 2] << 8 | body[pos + 3]
    if flags & ~0x82:  # more than Clean Start and a user name
        _check_connect_flags(flags, version)
    pos += 4
    properties: Properties | None = None
    if version == V5:
        properties, pos = decode_properties(body, pos, PacketType.CONNECT)
    client_id, pos = read_string(body, pos)
    will: Will | None = None
    if flags & 0x04:
        will, pos = _read_will(body, pos, flags, version)
    username: str | None = None
    password: bytes | None = None
    if flags & 0x80 and not (version == V31 and pos == len(body)):
        username, pos = read_string(body, pos)
    if flags & 0x40 and not (version == V31 and pos == len(body)):
        password, pos = read_binary(body, pos)
    _at_end(body, pos)
    return Connect(
        name,
        version,
        flags & 0x02 != 0,
        keep_alive,
        client_id,
        username,
        password,
        will,
        properties,
        level >= BRIDGE_BIT,
    )


def decode_connack(first: int, body: bytes, version: int) -> Connack:
    """Return the CONNACK in a packet. `first`: the first byte of the packet; `body`: the bytes
    behind its Remaining Length; `version`: 3, 4 or 5 (3.1, 3.1.1, 5).

    Raises MalformedPacket if it is too short or reserved bits are set, ProtocolViolation for a code
    outside the version's table and for a failure with Session Present (MQTT-3.2.2-6). MQTT 3.1 has
    no Session Present: the first byte of the body is ignored.
    """
    _no_flags(first)
    if len(body) < 2:
        raise MalformedPacket("CONNACK is truncated")
    flags, code = body[0], body[1]
    pos = 2
    properties: Properties | None = None
    if version == V31:
        flags = 0
    elif flags > 1:
        raise MalformedPacket("CONNACK has reserved acknowledge flags set")
    if version == V5:
        _check_reason(code, _CONNACK_REASONS)
        properties, pos = decode_properties(body, pos, PacketType.CONNACK)
    else:
        _check_reason(code, _RETURN_CODES)
    _at_end(body, pos)
    if flags and code:
        raise ProtocolViolation("CONNACK reports a failure and Session Present")
    return Connack(flags == 1, code, properties)


def decode_publish(first: int, body: bytes, version: int) -> Publish:
    """Return the PUBLISH in a packet. `first`: the first byte of the packet; `body`: the bytes
    behind its Remaining Length; `version`: 3, 4 or 5 (3.1, 3.1.1, 5).

    Raises MalformedPacket for QoS 3 (MQTT-3.3.1-4) and DUP at QoS 0 (MQTT-3.3.1-2),
    ProtocolViolation for packet identifier 0 (MQTT-2.2.1-3), wildcards in the topic (0x90) and an
    empty topic without a Topic Alias.
    """
    qos = first >> 1 & 3
    dup = first & 0x08 != 0
    if qos == 3:
        raise MalformedPacket("PUBLISH has QoS 3")
    if dup and not qos:
        raise MalformedPacket("PUBLISH has DUP set at QoS 0")
    topic, pos = read_string(body, 0)
    packet_id: int | None = None
    if qos:
        packet_id, pos = _read_packet_id(body, pos)
    properties: Properties | None = None
    if version == V5:
        properties, pos = decode_properties(body, pos, PacketType.PUBLISH)
    if topic:
        check_topic_name(topic)
    elif properties is None or Property.TOPIC_ALIAS not in properties:
        raise ProtocolViolation("PUBLISH has neither a Topic Name nor a Topic Alias")
    return Publish(topic, body[pos:], qos, first & 1 != 0, dup, packet_id, properties)


def decode_puback(first: int, body: bytes, version: int) -> Puback:
    """Return the PUBACK in a packet. `first`: the first byte of the packet; `body`: the bytes
    behind its Remaining Length; `version`: 3, 4 or 5 (3.1, 3.1.1, 5)."""
    _no_flags(first)
    return _read_ack(Puback, PacketType.PUBACK, body, version, _RECEIVED_REASONS)


def decode_pubrec(first: int, body: bytes, version: int) -> Pubrec:
    """Return the PUBREC in a packet. `first`: the first byte of the packet; `body`: the bytes
    behind its Remaining Length; `version`: 3, 4 or 5 (3.1, 3.1.1, 5)."""
    _no_flags(first)
    return _read_ack(Pubrec, PacketType.PUBREC, body, version, _RECEIVED_REASONS)


def decode_pubrel(first: int, body: bytes, version: int) -> Pubrel:
    """Return the PUBREL in a packet. `first`: the first byte of the packet; `body`: the bytes
    behind its Remaining Length; `version`: 3, 4 or 5 (3.1, 3.1.1, 5)."""
    _flag_two(first, version)
    return _read_ack(Pubrel, PacketType.PUBREL, body, version, _RELEASE_REASONS)


def decode_pubcomp(first: int, body: bytes, version: int) -> Pubcomp:
    """Return the PUBCOMP in a packet. `first`: the first byte of the packet; `body`: the bytes
    behind its Remaining Length; `version`: 3, 4 or 5 (3.1, 3.1.1, 5)."""
    _no_flags(first)
    return _read_ack(Pubcomp, PacketType.PUBCOMP, body, version, _RELEASE_REASONS)


def decode_subscribe(first: int, body: bytes, version: int) -> Subscribe:
    """Return the SUBSCRIBE in a packet. `first`: the first byte of the packet; `body`: the bytes
    behind its Remaining Length; `version`: 3, 4 or 5 (3.1, 3.1.1, 5). Raises what
    `reading_subscribe` raises."""
    return finish(reading_subscribe(first, body, version))


def reading_subscribe(first: int, body: bytes, version: int) -> Generator[int, None, Subscribe]:
    """Decode a SUBSCRIBE, some filters at a time: a generator that yields how many, and returns the
    packet. `first`: the first byte of the packet; `body`: the bytes behind its Remaining Length;
    `version`: 3, 4 or 5 (3.1, 3.1.1, 5).

    Raises ProtocolViolation if it has no filter (MQTT-3.8.3-2), for QoS 3 or Retain Handling 3 in
    MQTT 5 and for No Local on a Shared Subscription (MQTT-3.8.3-4); MalformedPacket for reserved
    options (MQTT-3.8.3-5; MQTT-3.8.3-4 of 3.1.1). Filters are not checked here: the SUBACK refuses
    a wrong one beside good ones.
    """
    _flag_two(first, version)
    packet_id, pos = _read_packet_id(body, 0)
    properties: Properties | None = None
    if version == V5:
        properties, pos = decode_properties(body, pos, PacketType.SUBSCRIBE)
    filters: list[SubscriptionRequest] = []
    end = len(body)
    while pos < end:
        topic_filter, pos = read_string(body, pos)
        if pos >= end:
            raise MalformedPacket("SUBSCRIBE is truncated before the options of a filter")
        filters.append(_read_options(topic_filter, body[pos], version))
        pos += 1
        if not len(filters) % FILTERS:
            yield FILTERS
    if not filters:
        raise ProtocolViolation("SUBSCRIBE has no Topic Filter")
    return Subscribe(packet_id, filters, properties)


def decode_suback(first: int, body: bytes, version: int) -> Suback:
    """Return the SUBACK in a packet. `first`: the first byte of the packet; `body`: the bytes
    behind its Remaining Length; `version`: 3, 4 or 5 (3.1, 3.1.1, 5). Raises MalformedPacket if it
    has no code, ProtocolViolation for a code outside the table."""
    _no_flags(first)
    packet_id, pos = _read_packet_id(body, 0)
    properties: Properties | None = None
    if version == V5:
        properties, pos = decode_properties(body, pos, PacketType.SUBACK)
    return Suback(
        packet_id, _read_codes(body, pos, _SUBACK_REASONS if version == V5 else _GRANTS), properties
    )


def decode_unsubscribe(first: int, body: bytes, version: int) -> Unsubscribe:
    """Return the UNSUBSCRIBE in a packet. `first`: the first byte of the packet; `body`: the bytes
    behind its Remaining Length; `version`: 3, 4 or 5 (3.1, 3.1.1, 5). Raises what
    `reading_unsubscribe` raises."""
    return finish(reading_unsubscribe(first, body, version))


def reading_unsubscribe(first: int, body: bytes, version: int) -> Generator[int, None, Unsubscribe]:
    """Decode an UNSUBSCRIBE, some filters at a time: a generator that yields how many, and returns
    the packet. `first`: the first byte of the packet; `body`: the bytes behind its Remaining
    Length; `version`: 3, 4 or 5 (3.1, 3.1.1, 5). Raises ProtocolViolation if it has no filter
    (MQTT-3.10.3-2). Filters are not checked."""
    _flag_two(first, version)
    packet_id, pos = _read_packet_id(body, 0)
    properties: Properties | None = None
    if version == V5:
        properties, pos = decode_properties(body, pos, PacketType.UNSUBSCRIBE)
    filters: list[str] = []
    while pos < len(body):
        topic_filter, pos = read_string(body, pos)
        filters.append(topic_filter)
        if not len(filters) % FILTERS:
            yield FILTERS
    if not filters:
        raise ProtocolViolation("UNSUBSCRIBE has no Topic Filter")
    return Unsubscribe(packet_id, filters, properties)


def decode_unsuback(first: int, body: bytes, version: int) -> Unsuback:
    """Return the UNSUBACK in a packet. `first`: the first byte of the packet; `body`: the bytes
    behind its Remaining Length; `version`: 3, 4 or 5 (3.1, 3.1.1, 5). Only MQTT 5 has codes in
    it."""
    _no_flags(first)
    packet_id, pos = _read_packet_id(body, 0)
    if version != V5:
        _at_end(body, pos)
        return Unsuback(packet_id, [], None)
    properties, pos = decode_properties(body, pos, PacketType.UNSUBACK)
    return Unsuback(packet_id, _read_codes(body, pos, _UNSUBACK_REASONS), properties)


def decode_pingreq(first: int, body: bytes, version: int) -> Pingreq:
    """Return the PINGREQ in a packet without a payload. `first`: the first byte of the packet;
    `body`: the bytes behind its Remaining Length; `version`: 3, 4 or 5 (3.1, 3.1.1, 5)."""
    _no_flags(first)
    _at_end(body, 0)
    return Pingreq()


def decode_pingresp(first: int, body: bytes, version: int) -> Pingresp:
    """Return the PINGRESP in a packet without a payload. `first`: the first byte of the packet;
    `body`: the bytes behind its Remaining Length; `version`: 3, 4 or 5 (3.1, 3.1.1, 5)."""
    _no_flags(first)
    _at_end(body, 0)
    return Pingresp()


def decode_disconnect(first: int, body: bytes, version: int) -> Disconnect:
    """Return the DISCONNECT in a packet. `first`: the first byte of the packet; `body`: the bytes
    behind its Remaining Length; `version`: 3, 4 or 5 (3.1, 3.1.1, 5). Its reason and properties may
    be left out from the end (MQTT 5, 3.14.2)."""
    _no_flags(first)
    if version != V5:
        _at_end(body, 0)
        return Disconnect()
    return Disconnect(*_read_reason(PacketType.DISCONNECT, body, 0, _DISCONNECT_REASONS))


def decode_auth(first: int, body: bytes, version: int) -> Auth:
    """Return the AUTH in a packet. `first`: the first byte of the packet; `body`: the bytes behind
    its Remaining Length; `version`: 3, 4 or 5 (3.1, 3.1.1, 5). Raises MalformedPacket before MQTT
    5, where the type is reserved."""
    if version != V5:
        raise MalformedPacket("packet type 15 is reserved before MQTT 5")
    _no_flags(first)
    return Auth(*_read_reason(PacketType.AUTH, body, 0, _AUTH_REASONS))


def _decode_reserved(first: int, body: bytes, version: int) -> Packet:
    raise MalformedPacket("packet type 0 is reserved")


_DECODERS: Final[tuple[_Decoder, ...]] = (
    _decode_reserved,
    decode_connect,
    decode_connack,
    decode_publish,
    decode_puback,
    decode_pubrec,
    decode_pubrel,
    decode_pubcomp,
    decode_subscribe,
    decode_suback,
    decode_unsubscribe,
    decode_unsuback,
    decode_pingreq,
    decode_pingresp,
    decode_disconnect,
    decode_auth,
)


def _no_flags(first: int) -> None:
    """The low four bits of the first byte are reserved and 0 (MQTT-2.1.3-1)."""
    if first & 0x0F:
        raise MalformedPacket(f"{PacketType(first >> 4).name} has reserved flags set")


def _flag_two(first: int, version: int) -> None:
    """Flags 0010 of PUBREL, SUBSCRIBE, UNSUBSCRIBE (MQTT-2.1.3-1); in MQTT 3.1 these are QoS 1, and
    DUP may be set."""
    if first & (0x07 if version == V31 else 0x0F) != 0x02:
        raise MalformedPacket(f"{PacketType(first >> 4).name} has wrong flags")


def _at_end(body: bytes, pos: int) -> None:
    if pos != len(body):
        raise MalformedPacket(f"packet has {len(body) - pos} bytes too many")


def _check_reason(code: int, allowed: frozenset[int]) -> None:
    if code not in allowed:
        raise ProtocolViolation(f"code 0x{code:02X} is not allowed in this packet")


def _read_packet_id(body: bytes, pos: int) -> tuple[int, int]:
    end = pos + 2
    if end > len(body):
        raise MalformedPacket("packet is truncated before its packet identifier")
    packet_id = body[pos] << 8 | body[pos + 1]  # `packet_id_at`, without its call
    if not packet_id:
        raise ProtocolViolation("packet identifier is 0")
    return packet_id, end


def _read_ack(
    kind: type[_A], packet_type: int, body: bytes, version: int, reasons: frozenset[int]
) -> _A:
    packet_id, pos = _read_packet_id(body, 0)
    if len(body) == 2:
        return kind(packet_id)
    if version != V5:
        _at_end(body, pos)
    reason, properties = _read_reason(packet_type, body, pos, reasons)
    return kind(packet_id, reason, properties)


def _read_reason(
    packet_type: int, body: bytes, pos: int, reasons: frozenset[int]
) -> tuple[int, Properties | None]:
    """Reason Code and properties to the end of the packet; both may be left out, from the end (MQTT
    5, 3.4.2.1)."""
    if pos == len(body):
        return 0, None
    reason = body[pos]
    _check_reason(reason, reasons)
    pos += 1
    properties: Properties | None = None
    if pos < len(body):
        properties, pos = decode_properties(body, pos, packet_type)
        _at_end(body, pos)
    return reason, properties


def _read_codes(body: bytes, pos: int, allowed: frozenset[int]) -> list[int]:
    codes = list(body[pos:])
    if not codes:
        raise MalformedPacket("acknowledgement has no codes")
    for code in codes:
        _check_reason(code, allowed)
    return codes


def _read_options(topic_filter: str, options: int, version: int) -> SubscriptionRequest:
    qos = options & 0x03
    if version != V5:
        if options > 2:
            raise MalformedPacket("requested QoS is not 0, 1 or 2")
        return SubscriptionRequest(topic_filter, qos)
    if options & 0xC0:
        raise MalformedPacket("Subscription Options have reserved bits set")
    handling = options >> 4 & 0x03
    if qos == 3 or handling == 3:
        raise ProtocolViolation("Subscription Options have QoS 3 or Retain Handling 3")
    no_local = options & 0x04 != 0
    if no_local and topic_filter.startswith(SHARE_PREFIX):
        raise ProtocolViolation("No Local is set on a Shared Subscription")
    return SubscriptionRequest(topic_filter, qos, no_local, options & 0x08 != 0, handling)


def _check_connect_flags(flags: int, version: int) -> None:
    if flags & 0x04:
        if flags & 0x18 == 0x18:
            raise MalformedPacket("CONNECT has Will QoS 3")  # MQTT-3.1.2-12
    elif flags & 0x38 and version != V31:
        # MQTT-3.1.2-11, 3.1.2-13
        raise MalformedPacket("CONNECT has Will QoS or Will Retain without a Will")
    if flags & 0x01 and version != V31:
        raise MalformedPacket("CONNECT has its reserved flag set")  # MQTT-3.1.2-3
    if flags & 0xC0 == 0x40 and version != V5:
        # MQTT-3.1.2-22 of 3.1.1
        raise ProtocolViolation("CONNECT has a password without a user name")


def _read_will(body: bytes, pos: int, flags: int, version: int) -> tuple[Will, int]:
    properties: Properties | None = None
    if version == V5:
        properties, pos = decode_properties(body, pos, WILL)
    topic, pos = read_string(body, pos)
    check_topic_name(topic)
    payload, pos = read_binary(body, pos)
    return Will(topic, payload, flags >> 3 & 3, flags & 0x20 != 0, properties), pos
