"""Topic aliases towards a client (MQTT 5, 3.3.2.3.4): a topic goes out once with a number, then as
the number alone."""

from __future__ import annotations

from mqttree.broker.wire.publish_header import PACKET_IDS, topic_end
from mqttree.broker.wire.varint import encode_varint, read_length

MIN_TOPIC = 8
"""bytes; shorter topics are sent as they are: the alias takes three."""

GROWTH = 5
"""bytes by which an alias can make the packet larger that introduces it: itself, and a byte more of
two lengths."""


class TopicAliases:
    """The aliases of one connection. They are gone with it, and what is repeated on the next one
    carries its topic again.

    Only QoS 1 and 2 packets introduce an alias: QoS 0 packets are dropped when a client reads too
    slowly, and one that refers to an alias that never arrived would be an error. Those that
    introduce nothing use what there is. When the client's numbers are used up, the topics that came
    first keep them.
    """

    __slots__ = ("_known", "maximum", "memory")

    def __init__(self, maximum: int) -> None:
        """`maximum`: aliases to use at most, not more than the client's Topic Alias Maximum
        (MQTT-3.1.2-26)."""
        self.maximum = maximum
        self.memory = 0  # bytes of the topics
        self._known: dict[bytes, int] = {}

    def apply(self, packet: bytes, limit: int) -> bytes:
        """Return an MQTT 5 PUBLISH without alias as it is to be sent; not larger than `limit`
        (bytes) unless it was before."""
        body = read_length(packet, 1)[1]
        behind = topic_end(packet, body)
        topic = packet[body + 2 : behind]
        if len(topic) < MIN_TOPIC:
            return packet
        qos = packet[0] >> 1 & 3
        alias = self._known.get(topic)
        new = alias is None
        if alias is None:
            if not qos or len(self._known) >= self.maximum or len(packet) + GROWTH > limit:
                return packet
            alias = len(self._known) + 1
        properties = behind + (2 if qos else 0)
        size, start = read_length(packet, properties)
        rest = b"".join(
            (
                b"%b%b" % (PACKET_IDS[len(topic)], topic) if new else b"\0\0",
                packet[behind:properties],
                encode_varint(size + 3),
                b"\x23",
                PACKET_IDS[alias],
                packet[start:],
            )
        )
        if new:
            self._known[topic] = alias
            self.memory += len(topic)
        return packet[:1] + encode_varint(len(rest)) + rest
