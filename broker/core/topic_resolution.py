"""PUBLISH packets of a client whose topic is a Topic Alias (MQTT 5, 3.3.2.3.4), or whose Message
Expiry Interval is not the first property: as packets that receivers may get as they are.

An alias belongs to one connection and is never forwarded (MQTT-3.3.2-12); the fast path sends what
it got. So such a packet is written once with its topic, and takes the fast path then,
whatever its QoS and its receivers are.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from mqttree.broker.wire.properties import EXPIRY, UNSOUND, inspect_section, property_end
from mqttree.broker.wire.publish_header import (
    PACKET_IDS,
    PUBLISH,
    QOS_1,
    QOS_2,
    QOS_BITS,
    packet_size,
    topic_end,
)
from mqttree.broker.wire.varint import encode_varint

if TYPE_CHECKING:
    from mqttree.broker.core.client import Client

TAKEN: Final = frozenset((PUBLISH, PUBLISH | QOS_1, PUBLISH | QOS_2))
"""First bytes of the packets that are taken: no RETAIN, no DUP."""

MAX_RESOLVED_BYTES: Final = 65_536
"""bytes from which on no more packets are taken: a topic may be much longer than its alias."""

_ALIAS: Final = b"\x23"


class ResolvedPackets:
    """Packets that follow each other in a chunk: `packets`, whose topics are written out."""

    __slots__ = ("_behind", "_ends", "packets")

    def __init__(self, packets: bytes, ends: list[int], behind: list[int]) -> None:
        """`ends`: where in `packets` each one ends; `behind`: where in the chunk."""
        self.packets = packets
        self._ends = ends
        self._behind = behind

    def position(self, used: int) -> int:
        """Return up to where in the chunk packets are handled if `used` bytes of `packets` are,
        at least one packet."""
        return self._behind[bisect_left(self._ends, used)]


def resolve(client: Client, data: bytes, position: int) -> ResolvedPackets | None:
    """Return the packets from `position` on in `data`, as far as the aliases of the `client` say
    what their topics are; None: there is nothing to change in the first one, or it is not sound.
    Aliases that they bring are noted."""
    largest = client.conn.max_packet_size
    parts: list[bytes] = []
    ends: list[int] = []
    behind: list[int] = []
    total, size = 0, len(data)
    while total < MAX_RESOLVED_BYTES and position + 4 < size and data[position] in TAKEN:
        body, at, begin, payload, end = _places(data, position, size)
        if not payload or end - position > largest:
            break
        start = at - 2 if data[position] & QOS_BITS else at
        topic, section = data[body + 2 : start], data[begin:payload]
        alias, kept = _kept_cached(section) if begin == at + 1 else _kept(section)
        if alias < 0 or (not parts and not alias and kept == section):
            break
        if alias:
            topic = _named(client, topic, alias, alone=not parts)
        if not topic:
            break
        count = encode_varint(len(kept))
        packet = b"".join(
            (
                data[position : position + 1],
                encode_varint(2 + len(topic) + at - start + len(count) + len(kept) + end - payload),
                PACKET_IDS[len(topic)],
                topic,
                data[start:at],
                count,
                kept,
                data[payload:end],
            )
        )
        if len(packet) > largest:
            break
        parts.append(packet)
        total += len(packet)
        position = end
        ends.append(total)
        behind.append(position)
    return ResolvedPackets(b"".join(parts), ends, behind) if parts else None


def _places(data: bytes, position: int, size: int) -> tuple[int, int, int, int, int]:
    """Return where the packet at `position` begins behind its length, where the length of its
    properties stands, where these begin, and end, and where the packet ends. The fourth is 0 if the
    packet is not all there in `size` bytes of `data`, or is not sound."""
    body = position + 2
    end = body + data[position + 1]
    if data[body - 1] > 127:
        end = position + packet_size(data[position : position + 5])
        while body < size and data[body - 1] > 127:
            body += 1
    if end > size or end < body + 3:
        return body, 0, 0, 0, end
    at = topic_end(data, body) + (2 if data[position] & QOS_BITS else 0)
    if at >= end:
        return body, at, 0, 0, end
    count, begin = data[at], at + 1
    if count > 127 and begin < end:
        count += (data[begin] << 7) - 128
        begin += 1
        if not 127 < count < 1 << 14:
            # With more bytes than needed (MQTT-1.5.5-1), or with a third one.
            return body, at, begin, 0, end
    payload = begin + count
    return body, at, begin, payload if payload <= end else 0, end


def _named(client: Client, topic: bytes, alias: int, *, alone: bool) -> bytes:
    """Return what topic a packet has that brings an `alias`, and a `topic` perhaps; b"" if that is
    not known. `alone`: no other packet is ahead of it."""
    aliases = client.aliases
    known = aliases.get(alias)
    if not topic or topic == known:
        return known or b""
    # What is ahead is perhaps handled later, with the topic that the alias stands for.
    if alias > client.node.config.topic_alias_maximum or (known is not None and not alone):
        return b""
    client.aliases_memory += len(topic) - len(known or b"")
    aliases[alias] = topic
    return topic


def _kept(section: bytes) -> tuple[int, bytes]:
    """Return the Topic Alias of a property section (given without its length), 0: there is none,
    -1: the section is not sound; and what receivers get of the section. It is in the order in which
    it came, but for an expiry: that is first."""
    if inspect_section(section) == UNSOUND:
        return -1, b""
    alias, expiry = 0, b""
    parts: list[bytes] = []
    at = 0
    while at < len(section):
        end = property_end(section, at)
        identifier = section[at : at + 1]
        if identifier == _ALIAS:
            alias = int.from_bytes(section[at + 1 : end], "big")
        elif identifier == EXPIRY:
            expiry = section[at:end]
        else:
            parts.append(section[at:end])
        at = end
    return alias, expiry + b"".join(parts)


_kept_cached: Final = lru_cache(maxsize=4096)(_kept)
"""`_kept` for short sections (up to 127 bytes), which publishers repeat."""
