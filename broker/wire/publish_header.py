"""The layout of a PUBLISH and of its acknowledgements, for code that works on packets as they
stand, without an object for each (MQTT 5, 2.1 and 3.3 to 3.7):

    PUBLISH          first byte, remaining length (1 to 4 bytes), body
    its body         length of the topic (2 bytes), topic, packet identifier (2 bytes, QoS 1 and 2
                     only), property section (MQTT 5 only), payload
    an acknowledgement without reason code: first byte, 2, packet identifier (2 bytes)

Three loops take every message and have `topic_end` and lengths of two bytes written out, as a call
costs there: `ClientPackets.packets`, `qos_fast_path` and `IncomingBatches`.
"""

from __future__ import annotations

import struct
from typing import Final

from mqttree.broker.wire.constants import PacketType

PUBLISH: Final = PacketType.PUBLISH << 4
"""First byte of a PUBLISH at QoS 0, without RETAIN."""
QOS_1: Final = 0x02
QOS_2: Final = 0x04
QOS_BITS: Final = 0x06
"""Flags in the first byte of a PUBLISH; both bits of QoS are never set."""
RETAIN: Final = 0x01
DUP: Final = 0x08

PUBACK: Final = PacketType.PUBACK << 4
PUBREC: Final = PacketType.PUBREC << 4
PUBREL: Final = PacketType.PUBREL << 4 | 0x02
PUBCOMP: Final = PacketType.PUBCOMP << 4
"""First bytes."""

PUBACK_HEAD: Final = bytes((PUBACK, 2))
PUBREC_HEAD: Final = bytes((PUBREC, 2))
PUBREL_HEAD: Final = bytes((PUBREL, 2))
PUBCOMP_HEAD: Final = bytes((PUBCOMP, 2))
"""What is before the packet identifier of an acknowledgement without reason code."""

HIGH: Final = b"".join(bytes((n,)) * 256 for n in range(256))
LOW: Final = bytes(range(256)) * 256
"""The first and the second byte of all packet identifiers, one after the other. Tables are made
without a step for each entry: that would take 13 ms at each start."""


def _pairs() -> bytes:
    """Return all packet identifiers, one after the other."""
    found = bytearray(2 * len(HIGH))
    found[::2], found[1::2] = HIGH, LOW
    return bytes(found)


PACKET_IDS: Final[list[bytes]] = list(struct.Struct("2s" * len(HIGH)).unpack(_pairs()))
"""The two bytes of every packet identifier, and of every length of a string; indexing is cheaper
than encoding."""


def topic_end(data: bytes, body: int) -> int:
    """Return where the topic of a PUBLISH ends whose body begins at `body`: its packet identifier
    begins there (QoS 1 and 2), or what follows. The topic itself begins at `body` + 2."""
    return body + 2 + (data[body] << 8 | data[body + 1])


def topic_of(packet: bytes) -> bytes:
    """Return the topic bytes of a PUBLISH packet."""
    at = 2
    while packet[at - 1] >= 0x80:
        at += 1
    return packet[at + 2 : at + 2 + (packet[at] << 8 | packet[at + 1])]


def packet_id_at(data: bytes, at: int) -> int:
    """Return the packet identifier whose two bytes begin at `at`."""
    return data[at] << 8 | data[at + 1]


def packet_size(data: bytes) -> int:
    """Return the whole size (bytes) of the packet that begins `data`, 0 when its length field is
    not there yet."""
    value = 0
    for index in range(1, min(5, len(data))):
        byte = data[index]
        value |= (byte & 0x7F) << (7 * (index - 1))
        if byte < 0x80:
            return value + index + 1
    return 0


def run_end(data: bytes, position: int, start: int, end: int) -> int:
    """Return where the run of packets ends that have the same size and the same first bytes as the
    packet at `position` in `data`. That packet ends at `end`, and the bytes that all share end at
    `start`."""
    prefix = data[position:start]
    packet = end - position
    last = len(data) - packet
    startswith = data.startswith
    while end <= last and startswith(prefix, end):
        end += packet
    return end
