"""Messages at QoS 1 that a foreign broker sends again after a reconnect, although this broker has
acknowledged them: the acknowledgement was lost with the connection. Pure.

Nothing is computed while messages cross: what came and what was acknowledged is kept as it is, and
looked through when the connection is lost.
"""

from __future__ import annotations

from collections import deque

from mqttree.broker.leg.packets import DROPPED, places
from mqttree.broker.wire.constants import PacketType
from mqttree.broker.wire.decode import decode_publish
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.errors import WireError
from mqttree.broker.wire.packets import Publish
from mqttree.broker.wire.properties import Property
from mqttree.broker.wire.publish_header import topic_end

MAX_BYTES = 1024 * 1024
"""bytes of packets that are kept: some thousand messages, more than may be under way. Those before
them may come twice, as QoS 1 allows."""
DUP, QOS_1, QOS = 0x08, 0x02, 0x06


class Repeats:
    """The last messages at QoS 1 of one leg, and which of them are acknowledged."""

    __slots__ = ("_acknowledged", "_kept", "_size", "dropped")

    def __init__(self) -> None:
        self.dropped = 0
        """Messages that did not come in again."""
        self._kept: deque[tuple[bool, bytes]] = deque()  # whether they went out, in their order
        self._size = 0
        self._acknowledged: dict[int, int] = {}  # packet identifier -> hash

    def passed(self, packets: bytes, *, out: bool) -> None:
        """Note what came from the foreign broker, or went there (`out`). `packets`: whole ones of
        types that cross."""
        self._kept.append((out, packets))
        self._size += len(packets)
        while self._size > MAX_BYTES:
            self._size -= len(self._kept.popleft()[1])

    def clear(self) -> None:
        """Forget all, as the foreign broker has another session."""
        self._kept.clear()
        self._acknowledged.clear()
        self._size = 0

    def on_lost(self) -> None:
        """Note that the connection is lost: what was acknowledged may come again."""
        found, acknowledged = dict(self._acknowledged), set(self._acknowledged)
        for out, packets in self._kept:
            for begin, body, end in places(packets):
                first = packets[begin]
                kind = first >> 4
                if out and kind == PacketType.PUBACK:
                    acknowledged.add(int.from_bytes(packets[body : body + 2], "big"))
                elif not out and kind == PacketType.PUBLISH and first & QOS == QOS_1:
                    number = _packet_id(packets, body)
                    found[number] = hash(packets[body:end])
                    acknowledged.discard(number)
        self.clear()
        self._acknowledged = {number: found[number] for number in acknowledged & found.keys()}

    def without(self, packets: bytes, version: int) -> bytes:
        """Return packets of the foreign broker in which those that it repeats have a topic under
        which no client gets them. `packets`: whole ones of types that cross; `version`: of MQTT."""
        if not self._acknowledged:
            return packets
        parts = []
        for begin, body, end in places(packets):
            first, part = packets[begin], packets[begin:end]
            if first >> 4 == PacketType.PUBLISH and first & QOS == QOS_1:
                number = _packet_id(packets, body)
                known = self._acknowledged.pop(number, None)
                again = first & DUP and known == hash(packets[body:end])
                # One that gives its topic an alias is needed for that.
                if again and not (version == 5 and _has_alias(first, packets[body:end])):
                    self.dropped += 1
                    part = encode_packet(Publish(DROPPED, b"", 1, packet_id=number), version)
            parts.append(part)
        return b"".join(parts)


def _packet_id(packets: bytes, body: int) -> int:
    at = topic_end(packets, body)
    return int.from_bytes(packets[at : at + 2], "big")


def _has_alias(first: int, body: bytes) -> bool:
    """Return whether a PUBLISH has a Topic Alias, or is not as it should be: this broker refuses
    it again. `first`: its first byte; `body`: what is behind its length."""
    try:
        return Property.TOPIC_ALIAS in (decode_publish(first, body, 5).properties or {})
    except WireError:
        return True
