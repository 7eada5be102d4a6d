"""PUBLISH packets with RETAIN among those that cross a leg. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mqttree.broker.leg.packets import DROPPED
from mqttree.broker.wire.publish_header import (
    DUP,
    PUBLISH,
    QOS_BITS,
    RETAIN,
    packet_id_at,
    topic_end,
)
from mqttree.broker.wire.varint import encode_varint, read_length

_TYPE = 0xF0


class Seen(NamedTuple):
    """One PUBLISH."""

    retain: bool
    dup: bool
    qos: int
    packet_id: int
    """0 at QoS 0."""
    topic: bytes
    properties: bytes
    """Encoded, without their length."""
    payload: bytes


def publishes(packets: bytes, version: int) -> Iterator[Seen]:
    """Yield what each PUBLISH says. `packets`: whole ones of types that cross; `version`: of MQTT
    (4 or 5)."""
    position = 0
    while position < len(packets):
        length, body = read_length(packets, position + 1)
        end = body + length
        first = packets[position]
        if first & _TYPE == PUBLISH:
            at = topic_end(packets, body)
            topic, packet_id, properties = packets[body + 2 : at], 0, b""
            if first & QOS_BITS:
                packet_id = packet_id_at(packets, at)
                at += 2
            if version == 5:
                size, begin = read_length(packets, at)
                at = begin + size
                properties = packets[begin:at]
            retain, dup = first & RETAIN != 0, first & DUP != 0
            qos = (first & QOS_BITS) >> 1
            yield Seen(retain, dup, qos, packet_id, topic, properties, packets[at:end])
        position = end


def without_retain(packets: bytes) -> bytes:
    """Return packets without RETAIN. `packets`: whole ones of types that cross."""
    found = bytearray(packets)
    position = 0
    while position < len(packets):
        length, body = read_length(packets, position + 1)
        if packets[position] & _TYPE == PUBLISH:
            found[position] &= 0xFF ^ RETAIN
        position = body + length
    return bytes(found)


def without_stored(packets: bytes) -> bytes:
    """Return packets in which each PUBLISH with RETAIN has the topic `DROPPED`: it is acknowledged,
    and no client gets it. `packets`: whole ones of types that cross."""
    parts = []
    position = 0
    topic = DROPPED.encode()
    while position < len(packets):
        length, body = read_length(packets, position + 1)
        end = body + length
        first = packets[position]
        if first & _TYPE == PUBLISH and first & RETAIN:
            rest = packets[topic_end(packets, body) : end]
            head = b"%c%b" % (first & (0xFF ^ RETAIN), encode_varint(2 + len(topic) + len(rest)))
            parts.append(head + len(topic).to_bytes(2, "big") + topic + rest)
        else:
            parts.append(packets[position:end])
        position = end
    return b"".join(parts)
