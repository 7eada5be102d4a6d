"""Packets that cross a leg: cut out of what came in pieces, and PUBLISH under another name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mqttree.broker.leg.rules import Rules
from mqttree.broker.wire.constants import MAX_PACKET_SIZE, PacketType, ReasonCode
from mqttree.broker.wire.decode import decode_publish
from mqttree.broker.wire.encode import encode_publish
from mqttree.broker.wire.errors import MalformedPacket, WireError
from mqttree.broker.wire.packets import Suback
from mqttree.broker.wire.properties import Property
from mqttree.broker.wire.publish_header import PUBCOMP, PUBREC, QOS_BITS, RETAIN, topic_end
from mqttree.broker.wire.strings import encode_string
from mqttree.broker.wire.varint import encode_varint, read_length

CROSSING = range(3, 8)
"""Packet types that cross: PUBLISH and its acknowledgements."""
DROPPED = "$mqttree/leg/dropped"
"""The topic of a message that does not cross. This broker acknowledges what comes in under it, and
no client gets it; what would go out under it the leg answers (`left_out`)."""
MAX_QOS = 2
_DROPPED = encode_string(DROPPED)
REFUSING = (PacketType.PUBACK, PacketType.PUBREC)
"""Packet types that refuse a message, or accept it."""


class PacketCutter:
    """Cuts what comes from one side into packets, and counts them."""

    __slots__ = (
        "_limit",
        "_rest",
        "_skipped",
        "answered",
        "messages",
        "refused",
        "retained",
        "too_large",
        "unmatched",
    )

    def __init__(self, limit: int = MAX_PACKET_SIZE) -> None:
        """`limit`: bytes of the largest PUBLISH that crosses."""
        self._limit = limit
        self._rest = b""
        self._skipped = 0  # bytes that are still to come of a PUBLISH that is too large
        self.too_large = 0
        """PUBLISH packets beyond the limit: they cross under the topic `DROPPED`, and empty."""
        self.messages = 0
        """PUBLISH packets that came, repeated ones included."""
        self.refused = 0
        """PUBLISH packets that this side has refused (PUBACK or PUBREC with a Reason Code of 128 or
        more, MQTT 5)."""
        self.answered = 0
        """PUBLISH packets that this side has answered by PUBACK or PUBREC."""
        self.unmatched = 0
        """Those of them for which it has no subscriber, as far as it says so (MQTT 5)."""
        self.retained = False
        """Whether a PUBLISH among the packets that were yielded last has RETAIN."""

    def clear(self) -> None:
        """Forget a packet of which only a part has come."""
        self._rest, self._skipped = b"", 0

    def take(self, data: bytes) -> Iterator[bytes]:
        """Yield packets: one of a type that does not cross, or as many as follow each other of
        those that do. What is left waits for more `data`.

        Raises:
            MalformedPacket: no packet can be found in it.
        """
        if self._rest:
            data = self._rest + data
            self._rest = b""
        elif self._skipped:
            data, self._skipped = data[self._skipped :], max(0, self._skipped - len(data))
        begin = position = bits = 0
        size = len(data)
        while position + 2 <= size:
            length, body = read_length(data, position + 1)
            if body < 0:
                break
            end = body + length
            first = data[position]
            kind = first >> 4
            if length < 2 and kind in CROSSING:
                raise MalformedPacket(f"{PacketType(kind).name} is truncated")
            if end - position > self._limit and kind == PacketType.PUBLISH:
                if (stand_in := self._stand_in(first, data, body)) is None:
                    break
                if begin < position:
                    self.retained, bits = bits & RETAIN != 0, 0
                    yield data[begin:position]
                self.retained = False
                self._skipped = max(0, end - size)
                yield stand_in
                begin = position = min(end, size)
                continue
            if end > size:
                break
            if kind == PacketType.PUBLISH:
                self.messages += 1
                bits |= first
            elif kind in REFUSING:
                self._count_answer(data[body + 2] if length > 2 else 0)
            elif kind not in CROSSING:
                if begin < position:
                    self.retained, bits = bits & RETAIN != 0, 0
                    yield data[begin:position]
                self.retained = False
                yield data[position:end]
                begin = end
            position = end
        # Set ahead of the last `yield`, as whoever takes that may not ask for more.
        self._rest = data[position:]
        if begin < position:
            self.retained = bits & RETAIN != 0
            yield data[begin:position]

    def _count_answer(self, code: int) -> None:
        self.answered += 1
        self.refused += code >= ReasonCode.UNSPECIFIED_ERROR
        self.unmatched += code == ReasonCode.NO_MATCHING_SUBSCRIBERS

    def _stand_in(self, first: int, data: bytes, body: int) -> bytes | None:
        """Return what crosses in place of a PUBLISH that is too large, None while its beginning has
        not come. `first`: its first byte; `data`: what has come; `body`: where in it its body
        begins."""
        at = topic_end(data, body) if body + 2 <= len(data) else len(data)
        behind = at + 2 if first & QOS_BITS else at
        if behind > len(data):
            return None
        self.messages += 1
        self.too_large += 1
        # The last byte says that there are no properties; in MQTT 3.1.1 it is the payload.
        return under(first & (0xFF ^ RETAIN), DROPPED.encode(), data[at:behind] + b"\0")


def places(packets: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield where each packet begins, where its body does, and where it ends. `packets`: whole
    ones."""
    begin = 0
    while begin < len(packets):
        length, body = read_length(packets, begin + 1)
        end = body + length
        yield begin, body, end
        begin = end


def renamed(
    packets: bytes, version: int, name: Callable[[str], str | None], response: Callable[[str], str]
) -> bytes:
    """Return packets of types that cross, with other topics. A PUBLISH that is not as it should be
    stays as it is: the side that gets it refuses it.

    `packets`: whole ones; `version`: of MQTT (4 or 5); `name`: the topic on the other side, None if
    there is none: then the message gets the topic `DROPPED`; `response`: the same for Response
    Topics.
    """
    return b"".join(
        _renamed(packets[begin], packets[body:end], version, name, response)
        if packets[begin] >> 4 == PacketType.PUBLISH
        else packets[begin:end]
        for begin, body, end in places(packets)
    )


def _renamed(
    first: int,
    body: bytes,
    version: int,
    name: Callable[[str], str | None],
    response: Callable[[str], str],
) -> bytes:
    try:
        packet = decode_publish(first, body, version)
    except WireError:
        return b"%c%b%b" % (first, encode_varint(len(body)), body)
    properties = packet.properties
    if properties and Property.RESPONSE_TOPIC in properties:
        packet.properties = properties | {
            Property.RESPONSE_TOPIC: response(properties[Property.RESPONSE_TOPIC])
        }
    elif packet.topic:
        # What was dropped before has no other name, and needs none.
        other = None if packet.topic == DROPPED else name(packet.topic)
        topic = (other or DROPPED).encode()
        first &= 0xFF if other else 0xFF ^ RETAIN
        rest = body[topic_end(body, 0) :]
        return under(first, topic, rest)
    if packet.topic:
        other = None if packet.topic == DROPPED else name(packet.topic)
        packet.topic, packet.retain = other or DROPPED, packet.retain and other is not None
    return encode_publish(packet, version)


def messages(packets: bytes, version: int) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield topic, payload and QoS of each PUBLISH. `packets`: whole ones of types that cross;
    `version`: of MQTT (4 or 5)."""
    for begin, body, end in places(packets):
        if packets[begin] >> 4 == PacketType.PUBLISH:
            topic, payload = _topic_and_payload(packets, begin, body, end, version)
            yield topic, payload, (packets[begin] & QOS_BITS) >> 1


def without(
    packets: bytes, version: int, stops: Callable[[bytes, bytes], bool]
) -> tuple[bytes, int]:
    """Return packets in which some PUBLISH have the topic `DROPPED`, so that they are acknowledged
    and no client gets them, and how many these are.

    `packets`: whole ones of types that cross; `version`: of MQTT (4 or 5); `stops`: says of a topic
    and a payload whether they are some of them. Messages without a topic (with an alias) are not.
    """
    parts = []
    dropped = 0
    for begin, body, end in places(packets):
        part = packets[begin:end]
        if packets[begin] >> 4 == PacketType.PUBLISH:
            topic, payload = _topic_and_payload(packets, begin, body, end, version)
            if topic and stops(topic, payload):
                dropped += 1
                first = packets[begin] & (0xFF ^ RETAIN)
                part = under(first, DROPPED.encode(), packets[body + 2 + len(topic) : end])
        parts.append(part)
    return b"".join(parts), dropped


def _topic_and_payload(
    packets: bytes, position: int, body: int, end: int, version: int
) -> tuple[bytes, bytes]:
    begin = topic_end(packets, body)
    topic = packets[body + 2 : begin]
    if packets[position] & QOS_BITS:
        begin += 2
    if version == 5:
        length, begin = read_length(packets, begin)
        begin += length
    return topic, packets[begin:end]


def under(first: int, topic: bytes, rest: bytes) -> bytes:
    """Return a PUBLISH under another `topic`. `first`: its first byte; `rest`: what stands behind
    the topic."""
    length = encode_varint(2 + len(topic) + len(rest))
    return b"%c%b%b%b%b" % (first, length, len(topic).to_bytes(2, "big"), topic, rest)


def inwards(packets: bytes, version: int, rules: Rules) -> bytes:
    """Return what the foreign broker sent under the names that `rules` say for here. `packets`:
    whole ones of types that cross; `version`: of MQTT."""
    if not rules.mapped:
        return packets
    return renamed(packets, version, rules.to_local, rules.response_to_local)


def outwards(packets: bytes, version: int, rules: Rules) -> bytes:
    """Return what this broker sent under the names that `rules` say for the foreign one. `packets`:
    whole ones of types that cross; `version`: of MQTT."""
    if not rules.mapped:
        return packets
    return renamed(packets, version, rules.to_remote, rules.response_to_remote)


def without_pubcomp(packets: bytes, packet_ids: set[int]) -> bytes:
    """Return packets without the PUBCOMP of some messages. `packets`: whole ones of types that
    cross; `packet_ids`: of these messages; those that were found are taken out of it."""
    kept = []
    for begin, body, end in places(packets):
        packet_id = int.from_bytes(packets[body : body + 2], "big")
        if packets[begin] == PUBCOMP and packet_id in packet_ids:
            packet_ids.discard(packet_id)
        else:
            kept.append(packets[begin:end])
    return b"".join(kept)


def messages_with_ids(packets: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield packet identifier (2 bytes) and topic of each PUBLISH at QoS 1 and 2. `packets`: whole
    ones of types that cross."""
    for begin, body, _ in places(packets):
        if packets[begin] >> 4 == PacketType.PUBLISH and packets[begin] & QOS_BITS:
            at = topic_end(packets, body)
            yield packets[at : at + 2], packets[body + 2 : at]


def left_out(packets: bytes) -> tuple[bytes, bytes]:
    """Return packets without the messages that do not cross, and what this broker gets in place of
    the foreign one's answers to these. `packets`: whole ones of types that cross."""
    kept, answers = [], []
    for begin, body, end in places(packets):
        first, at = packets[begin], body + len(_DROPPED)
        if first >> 4 != PacketType.PUBLISH or packets[body:at] != _DROPPED:
            kept.append(packets[begin:end])
        elif first & QOS_BITS:
            answers.append(refusal(packets[at : at + 2]))
    return b"".join(kept), b"".join(answers)


def refusal(packet_id: bytes) -> bytes:
    """Return a PUBREC by which this broker drops a message of a leg in flight, whatever its QoS and
    the version of MQTT (`LegPackets`). `packet_id`: of the message (2 bytes)."""
    return b"%c\3%b%c" % (PUBREC, packet_id, ReasonCode.UNSPECIFIED_ERROR)


def read_suback(body: bytes, version: int) -> Suback:
    """Return the SUBACK of a foreign broker. `body`: what is behind its length; `version`: of MQTT.
    Brokers have codes of their own: each that is not a QoS refuses its filter."""
    codes = 2
    if version == 5:
        length, at = read_length(body, 2)
        codes = len(body) if at < 0 else at + length
    granted = [code if code <= MAX_QOS else max(code, 0x80) for code in body[codes:]]
    return Suback(int.from_bytes(body[:2], "big"), granted)
