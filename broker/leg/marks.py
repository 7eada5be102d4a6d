"""Marks of federations in messages that leave by a leg (MQTT 5), by which one is known when it
comes back. Pure.

A mark is a User Property `mqttree` of up to eight entries, one for each federation that the message
has left, the oldest first: the id of the broker by whose leg it left, and the CRC-32 of its topic
at the foreign broker, both hexadecimal.

    5d9ac1f20e884b17.1a2b3c4d,0c1d2e3f40516273.99aabbcc

A message comes back if an entry has the id of a broker of this federation and the topic by which
the message comes in. It is dropped then, as an echo is. Marks are looked up, and nothing else: a
client that makes one up suppresses its own message. The topic is part of it as programs that answer
a message often copy its User Properties: what they publish elsewhere is a new message.

Which brokers are of this federation the link-state database says, as the name of a cluster may be
that of another one, too. A mark stays in a message that goes on through this federation, as the
next leg has to add its entry.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

from mqttree.broker.leg.packets import DROPPED, places, under
from mqttree.broker.leg.rules import MAPPED
from mqttree.broker.wire.constants import PacketType
from mqttree.broker.wire.decode import decode_publish
from mqttree.broker.wire.encode import encode_publish
from mqttree.broker.wire.properties import Property
from mqttree.broker.wire.publish_header import QOS_BITS, RETAIN, topic_end
from mqttree.broker.wire.strings import encode_string
from mqttree.broker.wire.varint import encode_varint, read_length

NAME = "mqttree"
"""Of the User Property."""
HEAD = bytes((Property.USER_PROPERTY,)) + encode_string(NAME)
"""How a mark begins in the bytes of a packet."""
FEDERATIONS = 8
"""Entries of a mark: a message that has left more federations is dropped, as it goes round."""
ENTRY = re.compile(r"([0-9a-f]{16})\.([0-9a-f]{8})")
ENTRY_SIZE = 16 + 1 + 8
"""bytes of an entry."""
PUBLISH = PacketType.PUBLISH


@dataclass(frozen=True, slots=True)
class Federation:
    """What a leg knows of its federation."""

    own_id: bytes
    """The id of this broker."""
    has: Callable[[bytes], bool]
    """Whether an id is that of a broker of this federation, this one included."""


class Marks:
    """The marks of one leg."""

    __slots__ = ("_alone", "_heads", "_id", "_ours", "_room", "came_back", "far")

    def __init__(self, federation: Federation) -> None:
        """`federation`: of this broker."""
        self.came_back = 0
        """Messages that had left this federation before, and were dropped."""
        self.far = 0
        """Messages that had left too many federations, and were dropped."""
        self._id = f"{federation.own_id.hex()}."
        # The bytes of a mark with one entry, up to its checksum.
        self._alone = HEAD + ENTRY_SIZE.to_bytes(2, "big") + self._id.encode()
        self._ours = federation.has
        self._room = 0  # bytes that a packet may have at the foreign broker
        # How packets begin, and how they do with a mark: see `_marked_head`.
        self._heads: dict[bytes, tuple[bytes, bytes]] = {}

    def begin(self, room: int) -> None:
        """Note that the leg connects. `room`: bytes that a packet may have at the foreign
        broker."""
        self._room = room
        self._heads.clear()

    # ---------------------------------------------------------------- out

    def outwards(self, packets: bytes) -> bytes:
        """Return `packets`, whole ones of types that cross under their names at the foreign broker,
        with this federation's entry in each PUBLISH. One that would be too large there stays as it
        is. Raises MalformedPacket and ProtocolViolation."""
        if HEAD in packets:
            return self._outwards_one_by_one(packets)
        parts: list[bytes] = []
        add, heads = parts.append, self._heads
        position = 0
        size = len(packets)
        while position < size:
            first, length = packets[position], packets[position + 1]
            body = position + 2
            if length > 127:
                length, body = read_length(packets, position + 1)
            end = body + length
            if first >> 4 != PUBLISH:
                add(packets[position:end])
                position = end
                continue
            at = topic_end(packets, body)
            head = packets[position:at]
            marked = heads.get(head)
            if marked is None:
                marked = self._marked_head(head, first, body - position, length)
            before, behind = marked
            properties = at if not first & QOS_BITS else at + 2
            if packets[properties] or not before:
                add(self._with_properties(packets[position:end], body - position))
            elif properties == at:
                add(before)
                add(packets[at + 1 : end])
            else:
                parts += (before, packets[at:properties], behind, packets[properties + 1 : end])
            position = end
        return b"".join(parts)

    def _marked_head(self, head: bytes, first: int, body: int, length: int) -> tuple[bytes, bytes]:
        """Return what a PUBLISH without properties begins with when it has a mark, up to its packet
        identifier, and what follows that; at QoS 0 the first has both. Nothing for one that gets no
        mark. `head`: of the packet, up to its topic; `first`: its first byte; `body`: where its
        body begins; `length`: of that (bytes)."""
        if len(self._heads) >= MAPPED:
            self._heads.clear()
        topic = head[body + 2 :]
        entry = self._mark(topic)
        marked = b"", b""
        if topic and length + len(entry) + 5 <= self._room:
            before = b"%c%b%b" % (first, encode_varint(length + len(entry)), head[body:])
            section = b"%c%b" % (len(entry), entry)
            marked = (before, section) if first & QOS_BITS else (before + section, b"")
        self._heads[head] = marked
        return marked

    def _with_properties(self, packet: bytes, body: int) -> bytes:
        """Return a PUBLISH with properties, none of them a mark, that has a mark, too. `body`:
        where its body begins."""
        at = topic_end(packet, body)
        topic = packet[body + 2 : at]
        if packet[0] & QOS_BITS:
            at += 2
        known, behind = read_length(packet, at)
        entry = self._mark(topic)
        section = encode_varint(known + len(entry)) + packet[behind : behind + known] + entry
        rest = packet[behind + known :]
        length = at - body + len(section) + len(rest)
        if length + 5 > self._room or not topic:
            return packet
        return b"%c%b%b%b%b" % (packet[0], encode_varint(length), packet[body:at], section, rest)

    def _mark(self, topic: bytes) -> bytes:
        """Return the mark of a message under `topic` that has left no other federation."""
        return self._alone + b"%08x" % crc32(topic)

    def _outwards_one_by_one(self, packets: bytes) -> bytes:
        """Do what `outwards` does, where some packets may have a mark."""
        parts = []
        for begin, body, end in places(packets):
            packet = packets[begin:end]
            if packet[0] >> 4 == PUBLISH and HEAD in packet:
                packet = self._marked_further(packet, packets[body:end])
            elif packet[0] >> 4 == PUBLISH:
                packet = self._with_properties(packet, body - begin)
            parts.append(packet)
        return b"".join(parts)

    def _marked_further(self, packet: bytes, body: bytes) -> bytes:
        """Return a PUBLISH with an entry more, or under the topic of messages that are dropped.
        `packet`: all of it; `body`: what is behind its length."""
        found = decode_publish(packet[0], body, 5)
        properties = found.properties or {}
        pairs: list[tuple[str, str]] = properties.get(Property.USER_PROPERTY, [])
        topic = body[2 : topic_end(body, 0)]
        values = ",".join(value for name, value in pairs if name == NAME)
        entries = [entry.group() for entry in ENTRY.finditer(values)]
        if self._left_before(entries, topic):
            self.came_back += 1
        elif len(entries) >= FEDERATIONS:
            self.far += 1
        else:
            entries.append(f"{self._id}{crc32(topic):08x}")
            pairs = [pair for pair in pairs if pair[0] != NAME]
            found.properties = properties | {
                Property.USER_PROPERTY: [*pairs, (NAME, ",".join(entries))]
            }
            data = encode_publish(found, 5)
            return data if len(data) <= self._room else packet
        return _dropped(packet[0], body)

    # ---------------------------------------------------------------- in

    def inwards(self, packets: bytes) -> bytes:
        """Return `packets`, whole ones of types that cross under their names at the foreign broker;
        those that have left this federation before have the topic of messages that are dropped."""
        if HEAD not in packets:
            return packets
        parts = []
        for begin, body, end in places(packets):
            packet = packets[begin:end]
            if packet[0] >> 4 == PUBLISH and HEAD in packet:
                rest = packets[body:end]
                if self._left_before(_entries_in(packet[0], rest), rest[2 : topic_end(rest, 0)]):
                    self.came_back += 1
                    packet = _dropped(packet[0], rest)
            parts.append(packet)
        return b"".join(parts)

    def _left_before(self, entries: list[str], topic: bytes) -> bool:
        """Return whether a message with these `entries` has left this federation before under the
        `topic` by which it comes."""
        checksum = f"{crc32(topic):08x}"
        return any(
            entry.endswith(checksum) and self._ours(bytes.fromhex(entry[:16])) for entry in entries
        )


def _entries_in(first: int, body: bytes) -> list[str]:
    """Return the entries of a PUBLISH. Bytes in another property that look like a mark are taken
    for one: whoever puts them there suppresses that message alone. `first`: its first byte; `body`:
    what is behind its length."""
    at = topic_end(body, 0) + (2 if first & QOS_BITS else 0)
    length, at = read_length(body, at)
    end = at + length
    found: list[str] = []
    while (at := body.find(HEAD, at, end)) >= 0:
        at += len(HEAD)
        value = body[at + 2 : min(end, at + 2 + int.from_bytes(body[at : at + 2], "big"))]
        found += (entry.group() for entry in ENTRY.finditer(value.decode("ascii", "replace")))
    return found


def _dropped(first: int, body: bytes) -> bytes:
    """Return a PUBLISH that is acknowledged as another one is, and that no client gets. `first`:
    its first byte; `body`: what is behind its length."""
    at = topic_end(body, 0)
    packet_id = body[at : at + 2] if first & QOS_BITS else b""
    return under(first & (0xFF ^ RETAIN), DROPPED.encode(), packet_id + b"\0")
