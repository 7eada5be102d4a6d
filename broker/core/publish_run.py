"""A run of QoS 1 or 2 PUBLISH packets of one topic, size and property section: handled as one piece
of bytes.

All packets of a run are equal up to their packet identifier and between it and the payload, so that
numbering them again for a receiver is two strided copies, whatever their number.
"""

from __future__ import annotations

from typing import Final

from mqttree.broker.core.message import Message
from mqttree.broker.wire.publish_header import HIGH, LOW, PACKET_IDS, PUBLISH
from mqttree.broker.wire.varint import encode_varint

MAX_RUN_PACKETS: Final = 1024
"""packets of one batch at most: flow control and replays must not overshoot by more."""

LARGEST: Final = 4096
"""bytes of a packet; with larger ones the copies cost more than what is saved for each packet."""


class PublishRun:
    """Packets of a PUBLISH run; `data` is `count` packets of `size` bytes each, of MQTT `version`
    5, or 4 for both 3.x."""

    __slots__ = (
        "_forms",
        "_messages",
        "_sender",
        "count",
        "data",
        "origin",
        "payload",
        "properties",
        "qos",
        "sequence",
        "size",
        "start",
        "topic",
        "version",
    )

    def __init__(
        self,
        topic: bytes,
        qos: int,
        properties: bytes,
        version: int,
        data: bytes,
        start: int,
        payload: int,
        size: int,
        sender: object = None,
    ) -> None:
        """`topic`: UTF-8; `qos`: 1 or 2; `properties`: encoded, without their length; `version`: of
        MQTT; `data`: the packets, `size` bytes each; `start`, `payload`: where in a packet its
        identifier and its payload begin; `sender`: the session that published them."""
        self.topic = topic
        self.qos = qos
        self.properties = properties
        self.version = version
        self.data = data
        self.start = start
        self.payload = payload
        self.size = size
        self.count = len(data) // size
        self.origin = b""  # name of the first message, as of `Message`
        self.sequence = 0
        self._forms: dict[int, PublishRun] | None = None
        self._messages: list[Message] | None = None
        self._sender = sender

    def form(self, version: int, qos: int) -> PublishRun:
        """Return the packets as receivers with this version and QoS get them, made once. At QoS 0
        there is nothing to number."""
        five = version == 5
        if qos == self.qos and five == (self.version == 5):
            return self
        forms = self._forms
        if forms is None:
            forms = self._forms = {}
        elif (found := forms.get(five << 2 | qos)) is not None:
            return found
        section = encode_varint(len(self.properties)) + self.properties if five else b""
        topic = self.topic
        length = 2 + len(topic) + (2 if qos else 0) + len(section) + self.size - self.payload
        head = bytes((PUBLISH | qos << 1,)) + encode_varint(length) + PACKET_IDS[len(topic)] + topic
        start = len(head)
        head += (b"\0\0" if qos else b"") + section
        data, size = self.data, self.size
        whole = head + head.join(
            [data[at + self.payload : at + size] for at in range(0, len(data), size)]
        )
        size = len(whole) // self.count
        form = PublishRun(
            topic,
            qos,
            self.properties,
            5 if five else 4,
            whole,
            start,
            len(head),
            size,
            self._sender,
        )
        form.origin, form.sequence = self.origin, self.sequence
        forms[five << 2 | qos] = form
        return form

    def part(self, low: int, high: int) -> PublishRun:
        """Return the packets from number `low` to before `high`, counted from 0."""
        data = self.data[low * self.size : high * self.size]
        part = PublishRun(
            self.topic,
            self.qos,
            self.properties,
            self.version,
            data,
            self.start,
            self.payload,
            self.size,
            self._sender,
        )
        part.origin, part.sequence = self.origin, self.sequence + low
        return part

    def numbered(self, first: int) -> bytes:
        """Return the packets with the identifiers `first`, `first` + 1, ..."""
        packets = bytearray(self.data)
        packets[self.start :: self.size] = HIGH[first : first + self.count]
        packets[self.start + 1 :: self.size] = LOW[first : first + self.count]
        return bytes(packets)

    def messages(self) -> list[Message]:
        """Return the packets one by one, for receivers that need more than bytes; made once."""
        found = self._messages
        if found is None:
            data, size, start, payload = self.data, self.size, self.start, self.payload
            topic, qos, properties, sender = self.topic, self.qos, self.properties, self._sender
            head = data[:start]
            cached = self.version << 3 | qos << 1
            found = self._messages = []
            for at in range(0, len(data), size):
                message = Message(
                    topic, data[at + payload : at + size], qos, False, properties, None, sender
                )
                # A receiver of the same version gets the very bytes but for the packet identifier.
                message.cache = {cached: (head, data[at + start + 2 : at + size])}
                message.named(self.origin, self.sequence + len(found))
                found.append(message)
        return found
