"""Packets to bytes.

Encoders trust their caller: they raise ValueError for what does not fit (a string beyond 65,535
bytes, a packet identifier beyond 65,535, a packet beyond 268,435,455), and do not check what the
decoder checks.
Before MQTT 5 properties and the reasons of acknowledgements are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mqttree.broker.wire.constants import BRIDGE_BIT, V5, V31, ReasonCode
from mqttree.broker.wire.packets import (
    Ack,
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
    Unsuback,
    Unsubscribe,
)
from mqttree.broker.wire.properties import Properties, encode_properties
from mqttree.broker.wire.publish_header import (
    DUP,
    PUBACK_HEAD,
    PUBCOMP_HEAD,
    PUBLISH,
    PUBREC_HEAD,
    PUBREL_HEAD,
)
from mqttree.broker.wire.strings import encode_binary, encode_string
from mqttree.broker.wire.varint import encode_varint

_ACK_HEADS: Final = {
    Puback: PUBACK_HEAD,
    Pubrec: PUBREC_HEAD,
    Pubrel: PUBREL_HEAD,
    Pubcomp: PUBCOMP_HEAD,
}

_GRANTS: Final = bytes(min(code, 0x80) for code in range(256))
"""Codes of a SUBACK before MQTT 5, by those of MQTT 5."""

# Reason Codes of a refused CONNECT as return codes of MQTT 3.1.1 (table 3.1); all others: 3, Server
# unavailable.
_RETURN_CODES: Final[dict[int, int]] = {
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: 1,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: 2,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: 4,
    ReasonCode.BAD_AUTHENTICATION_METHOD: 4,
    ReasonCode.NOT_AUTHORIZED: 5,
    ReasonCode.BANNED: 5,
}


def encode_packet(packet: Packet, version: int) -> bytes:
    """Encode any packet for a connection of ``version`` (3, 4, 5); a CONNECT goes by its own
    version.

    Raises ValueError for what does not fit, for a PUBLISH at QoS 1 or 2 without packet identifier,
    and for AUTH before MQTT 5.
    """
    return _ENCODERS[type(packet)](packet, version)


def encode_publish(packet: Publish, version: int) -> bytes:
    """Encode a PUBLISH for a connection of ``version``.

    Raises ValueError for what does not fit and when QoS 1 or 2 has no packet identifier.
    """
    if packet.qos and not packet.packet_id:
        raise ValueError("PUBLISH at QoS 1 or 2 has no packet identifier")
    return publish_bytes(
        packet.topic.encode(),
        packet.payload,
        packet.qos,
        retain=packet.retain,
        dup=packet.dup,
        packet_id=packet.packet_id or 0,
        properties=encode_properties(packet.properties) if version == V5 else b"",
    )


def publish_bytes(
    topic: bytes,
    payload: bytes,
    qos: int = 0,
    *,
    retain: bool = False,
    dup: bool = False,
    packet_id: int = 0,
    properties: bytes = b"",
) -> bytes:
    """Return the bytes of a PUBLISH made of encoded parts.

    `topic`: UTF-8 without its length. `payload`: bytes. `qos`, `retain`, `dup`: flags of the first
    byte. `packet_id`: used at QoS 1 and 2 only. `properties`: from `encode_properties` for MQTT 5,
    where it is never empty; empty for the versions before.

    Raises ValueError for parts that do not fit into a packet.
    """
    first = PUBLISH | qos << 1 | retain | (DUP if dup else 0)
    identifier = _uint16(packet_id) if qos else b""
    length = 2 + len(topic) + len(identifier) + len(properties) + len(payload)
    return b"".join(
        (
            bytes((first,)),
            encode_varint(length),
            encode_binary(topic),
            identifier,
            properties,
            payload,
        )
    )


def return_code(reason: int) -> int:
    """CONNACK return code before MQTT 5 (0 to 5) that stands for a Reason Code; return codes pass
    unchanged."""
    if reason < 0x80:
        return reason
    return _RETURN_CODES.get(reason, 3)


def _frame(first: int, body: bytes) -> bytes:
    return bytes((first,)) + encode_varint(len(body)) + body


def _uint16(value: int) -> bytes:
    if not 0 <= value <= 0xFFFF:
        raise ValueError(f"{value} does not fit in two bytes")
    return value.to_bytes(2, "big")


def _id_and_properties(packet_id: int, properties: Properties | None, version: int) -> bytes:
    head = _uint16(packet_id)
    return head + encode_properties(properties) if version == V5 else head


def _encode_ack(packet: Ack, version: int) -> bytes:
    head = _ACK_HEADS[type(packet)]
    identifier = _uint16(packet.packet_id)
    if version != V5 or not (packet.reason or packet.properties):
        return head + identifier
    body = identifier + _reason(packet)
    return head[:1] + encode_varint(len(body)) + body


def _reason(packet: Ack | Disconnect | Auth) -> bytes:
    """Reason Code and properties, in the shortest form (MQTT 5, 3.4.2.1, 3.14.2.1, 3.15.2.1)."""
    if packet.properties:
        return bytes((packet.reason,)) + encode_properties(packet.properties)
    return bytes((packet.reason,)) if packet.reason else b""


def _encode_subscribe(packet: Subscribe, version: int) -> bytes:
    parts = [_id_and_properties(packet.packet_id, packet.properties, version)]
    for request in packet.filters:
        options = request.qos
        if version == V5:
            options |= (
                request.no_local << 2
                | request.retain_as_published << 3
                | request.retain_handling << 4
            )
        parts.append(encode_string(request.filter) + bytes((options,)))
    return _frame(0x82, b"".join(parts))


def _encode_suback(packet: Suback, version: int) -> bytes:
    # Before MQTT 5 there is one failure code, 0x80.
    codes = bytes(packet.codes) if version == V5 else bytes(packet.codes).translate(_GRANTS)
    return _frame(0x90, _id_and_properties(packet.packet_id, packet.properties, version) + codes)


def _encode_unsubscribe(packet: Unsubscribe, version: int) -> bytes:
    filters = [encode_string(topic_filter) for topic_filter in packet.filters]
    return _frame(
        0xA2, _id_and_properties(packet.packet_id, packet.properties, version) + b"".join(filters)
    )


def _encode_unsuback(packet: Unsuback, version: int) -> bytes:
    head = _id_and_properties(packet.packet_id, packet.properties, version)
    return _frame(0xB0, head + bytes(packet.codes) if version == V5 else head)


def _encode_pingreq(packet: Pingreq, version: int) -> bytes:
    return _frame(0xC0, packet.payload)


def _encode_pingresp(packet: Pingresp, version: int) -> bytes:
    return _frame(0xD0, packet.payload)


def _encode_disconnect(packet: Disconnect, version: int) -> bytes:
    return _frame(0xE0, _reason(packet) if version == V5 else b"")


def _encode_auth(packet: Auth, version: int) -> bytes:
    if version != V5:
        raise ValueError("AUTH exists in MQTT 5 only")
    return _frame(0xF0, _reason(packet))


def _encode_connack(packet: Connack, version: int) -> bytes:
    # A refusal never reports a session (MQTT-3.2.2-6), and MQTT 3.1 has no such flag.
    present = packet.session_present and packet.code == 0 and version != V31
    if version == V5:
        return _frame(0x20, bytes((present, packet.code)) + encode_properties(packet.properties))
    return bytes((0x20, 2, present, return_code(packet.code)))


def _encode_connect(packet: Connect, version: int) -> bytes:
    will = packet.will
    flags = (
        packet.clean_start << 1
        | (packet.username is not None) << 7
        | (packet.password is not None) << 6
    )
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.retain << 5
    v5 = packet.version == V5
    level = packet.version | BRIDGE_BIT if packet.bridge else packet.version
    parts = [encode_string(packet.protocol_name), bytes((level, flags)), _uint16(packet.keep_alive)]
    if v5:
        parts.append(encode_properties(packet.properties))
    parts.append(encode_string(packet.client_id))
    if will is not None:
        if v5:
            parts.append(encode_properties(will.properties))
        parts += [encode_string(will.topic), encode_binary(will.payload)]
    if packet.username is not None:
        parts.append(encode_string(packet.username))
    if packet.password is not None:
        parts.append(encode_binary(packet.password))
    return _frame(0x10, b"".join(parts))


_ENCODERS: Final[dict[type[Packet], Callable[[Any, int], bytes]]] = {
    Connect: _encode_connect,
    Connack: _encode_connack,
    Publish: encode_publish,
    Puback: _encode_ack,
    Pubrec: _encode_ack,
    Pubrel: _encode_ack,
    Pubcomp: _encode_ack,
    Subscribe: _encode_subscribe,
    Suback: _encode_suback,
    Unsubscribe: _encode_unsubscribe,
    Unsuback: _encode_unsuback,
    Pingreq: _encode_pingreq,
    Pingresp: _encode_pingresp,
    Disconnect: _encode_disconnect,
    Auth: _encode_auth,
}
