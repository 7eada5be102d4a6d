"""PUBLISH packets with RETAIN among those that cross a leg. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mqttree.broker.leg.packets import DROPPED, places, under
from mqttree.broker.wire.constants import PacketType
from mqttree.broker.wire.publish_header import DUP, QOS_BITS, RETAIN, packet_id_at, topic_end


class Seen(NamedTuple):
    """One PUBLISH with RETAIN."""

    topic: bytes
    packet_id: int
    """0 at QoS 0."""
    qos: int
    dup: bool


def _retains(first: int) -> bool:
    return first >> 4 == PacketType.PUBLISH and first & RETAIN != 0


def retained(packets: bytes) -> Iterator[Seen]:
    """Yield what each PUBLISH with RETAIN says. `packets`: whole ones of types that cross."""
    for begin, body, _ in places(packets):
        first = packets[begin]
        if _retains(first):
            at = topic_end(packets, body)
            qos = (first & QOS_BITS) >> 1
            packet_id = packet_id_at(packets, at) if qos else 0
            yield Seen(packets[body + 2 : at], packet_id, qos, first & DUP != 0)


def without_retain(packets: bytes) -> bytes:
    """Return packets without RETAIN. `packets`: whole ones of types that cross."""
    found = bytearray(packets)
    for begin, _, _ in places(packets):
        if _retains(packets[begin]):
            found[begin] ^= RETAIN
    return bytes(found)


def without_stored(packets: bytes) -> bytes:
    """Return packets in which each PUBLISH with RETAIN has the topic `DROPPED`: it is acknowledged,
    and no client gets it. `packets`: whole ones of types that cross."""
    return b"".join(
        under(packets[begin] ^ RETAIN, DROPPED.encode(), packets[topic_end(packets, body) : end])
        if _retains(packets[begin])
        else packets[begin:end]
        for begin, body, end in places(packets)
    )
