"""PUBLISHED as bytes: PUBLISH packets as a client sent them, one behind the other, and the sessions
that have them in flight. Pure.

    body     u64 number of the first message, u8 MQTT version, u16 messages, u32 bytes of packets,
             u32 deliveries, name of the first message (16 bytes origin, u64), packets, deliveries
    delivery u16 place of its packet, u32 session, u16 packet identifier

Numbers and names of the messages are consecutive. The packet identifiers in the packets are those
of the publisher. A delivery is at the QoS of its packet, without RETAIN and Subscription
Identifiers.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

from mqttree.broker.core.message import Name
from mqttree.broker.persistence.records import Kind, MessageRecord, nth_name, read_name
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.broker.wire.publish_header import PUBLISH, QOS_1, QOS_2, topic_end
from mqttree.broker.wire.varint import read_length

_HEAD = struct.Struct(">QBHII16sQ")
# With the record's head.
_WHOLE = struct.Struct(">BIQBHII16sQ")
_DELIVERY = struct.Struct(">HIH")
_FIRST = frozenset((PUBLISH | QOS_1, PUBLISH | QOS_2))


def encode_published(
    number: int, version: int, count: int, packets: bytes, deliveries: Sequence[int], name: Name
) -> bytes:
    """Return PUBLISHED as bytes: the record's head and its body.

    `number`, `name`: of the first message; `version`: of MQTT, 5, or 4 for both 3.x; `count`: how
    many packets there are in `packets`, which have one first byte; `deliveries`: for each session
    that has one of them in flight its place << 48 | session << 16 | packet identifier.
    """
    size = _HEAD.size + len(packets) + 8 * len(deliveries)
    sizes = len(packets), len(deliveries)
    head = _WHOLE.pack(Kind.PUBLISHED, size, number, version, count, *sizes, name[0], name[1])
    return b"%b%b%b" % (head, packets, struct.pack(f">{len(deliveries)}Q", *deliveries))


class PublishedRecord:
    """Messages with consecutive numbers, `count` of them from `number` on, at `qos`."""

    __slots__ = ("_five", "_packets", "_places", "name", "number", "qos")

    def __init__(self, number: int, version: int, packets: bytes, name: Name) -> None:
        """`number`, `name`: of the first message; `version`: of MQTT; `packets`: as they came.
        Raises struct.error: they are not whole PUBLISH packets at QoS 1 or 2 of one kind."""
        self.number = number
        self.name = name
        self.qos = packets[0] >> 1 & 3 if packets else 0
        self._five = version == 5
        self._packets = packets
        # Where each packet begins; 4 bytes for each, as a journal may have very many.
        self._places = array("I")
        position = 0
        try:
            while position < len(packets):
                self._places.append(position)
                position = self._parts(position)[-1]
        except (IndexError, MalformedPacket):
            position = -1
        if position != len(packets) or (packets and packets[0] not in _FIRST):
            raise struct.error("PUBLISHED has a packet that is damaged")

    @property
    def count(self) -> int:
        """How many messages there are."""
        return len(self._places)

    def _parts(self, position: int) -> tuple[int, int, int, int, int]:
        """Return where topic, packet identifier, properties and payload of the packet at `position`
        begin, and where it ends. Raises IndexError or MalformedPacket: it is damaged."""
        packets = self._packets
        length, body = read_length(packets, position + 1)
        end = body + length
        if body < 0 or end > len(packets) or packets[position] != packets[0]:
            raise IndexError
        behind = topic_end(packets, body)
        payload = properties = behind + 2
        if self._five:
            size, properties = read_length(packets, behind + 2)
            payload = properties + size
        if properties < 0 or payload > end:
            raise IndexError
        return body + 2, behind, properties, payload, end

    def message(self, number: int) -> MessageRecord:
        """Return the message with a number."""
        parts = self._parts(self._places[number - self.number])
        topic, behind, properties, payload, end = parts
        data = self._packets
        texts = data[topic:behind], data[properties:payload], data[payload:end]
        name = nth_name(self.name, number - self.number)
        return MessageRecord(number, self.qos, False, 0, *texts, name)


def decode_published(body: bytes) -> tuple[PublishedRecord, list[tuple[int, int, int]]]:
    """Return the messages of the body of PUBLISHED, and who has them in flight: place of the
    message, session, packet identifier. Raises struct.error: its parts do not fit together."""
    number, version, count, size, deliveries, *name = _HEAD.unpack_from(body)
    end = _HEAD.size + size
    if len(body) != end + _DELIVERY.size * deliveries:
        raise struct.error("PUBLISHED has another size than its head says")
    record = PublishedRecord(number, version, body[_HEAD.size : end], read_name(*name))
    found = list(_DELIVERY.iter_unpack(body[end:]))
    if record.count != count or any(place >= count for place, _, _ in found):
        raise struct.error("PUBLISHED has other packets than its head says")
    return record, found
