"""An application message on its way through the broker, encoded once per (version, QoS)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mqttree.broker.wire.packets import Will
from mqttree.broker.wire.properties import Property, encode_properties, lifetime, split_expiry
from mqttree.broker.wire.publish_header import DUP, PACKET_IDS, PUBLISH, topic_end
from mqttree.broker.wire.varint import encode_varint, read_length

if TYPE_CHECKING:
    from mqttree.broker.core.receiver_assignment import ReceiverAssignment


Name = tuple[bytes, int]
"""The name of a message: the origin that numbered it, and its sequence number there (see
`broker/cluster/delivery/origins.py`). It keeps its name at all brokers and in all sessions. It is
b"", 0 for a message that no broker numbered: one of the broker's own, or a copy of a retained one
that a new subscription gets."""


class Stamp(NamedTuple):
    """When a retained message was published, by the hybrid clock of its origin, and when it expires
    (`retained_sync`)."""

    time: int
    expires_at_ms: int
    """ms since the epoch; 0: never. Of a deletion: when it was published."""
    restored: bool = False
    """It comes because stores were compared, not because it was published just now."""


class Message:
    """One message. `properties` is the encoded MQTT 5 property section *without* its length, as it
    goes to receivers: no topic alias, no subscription identifier, no message expiry (that one is
    made again from `expires_at`, s)."""

    __slots__ = (
        "cache",
        "choice",
        "expires_at",
        "origin",
        "payload",
        "properties",
        "qos",
        "retain",
        "sender",
        "sequence",
        "stamp",
        "topic",
    )

    choice: ReceiverAssignment
    """Of messages from a link that say who of a shared subscription gets them, and of those that
    were given back; not set on all others."""

    stamp: Stamp
    """Of retained messages alone, from when they are published or come from a link; not set on all
    others."""

    # the hot path makes one of these per QoS 1 or 2 message: positional, no defaults to fill in
    def __init__(
        self,
        topic: bytes,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: bytes,
        expires_at: float | None,
        sender: object,
    ) -> None:
        """`topic`: UTF-8; `payload`: the application message; `qos`, `retain`: as published;
        `properties`: encoded, those that are forwarded, without their length; `expires_at`: s,
        monotonic, None: never; `sender`: the session that published it, None if it is not of a
        client here."""
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.expires_at = expires_at
        self.sender = sender
        self.cache: dict[int, tuple[bytes, bytes]] | None = None
        self.origin = b""
        # In the journal a message without a name has a number, too.
        self.sequence = 0

    @property
    def name(self) -> Name | None:
        """Its name; None: it has none."""
        return (self.origin, self.sequence) if self.origin else None

    def named(self, origin: bytes, sequence: int) -> Message:
        """Give it the name (`origin`, `sequence`), and return it."""
        self.origin, self.sequence = origin, sequence
        return self

    def halves(self, version: int, qos: int, retain: bool) -> tuple[bytes, bytes]:
        """Return the PUBLISH for MQTT `version`, `qos` and the flag `retain` as (bytes before the
        packet identifier, bytes behind it). It is encoded once for each. Only for a message that
        does not expire; see `packet`."""
        key = version << 3 | qos << 1 | retain
        cache = self.cache
        if cache is None:
            cache = self.cache = {}
        elif (found := cache.get(key)) is not None:
            return found
        halves = cache[key] = encode_halves(
            self.topic, self.payload, version, qos, retain, self.properties if version == 5 else b""
        )
        return halves

    def packet(
        self,
        version: int,
        qos: int,
        retain: bool,
        packet_id: int,
        *,
        now: float = 0.0,
        dup: bool = False,
        subscription_ids: bytes = b"",
    ) -> bytes:
        """Return the PUBLISH for one receiver.

        `version`: of MQTT; `qos`, `retain`, `dup`: of its header; `packet_id`: 0 at QoS 0; `now`:
        s, for the rest of its Message Expiry Interval; `subscription_ids`: encoded properties of
        the receiver's subscriptions (MQTT-3.3.4-3).
        """
        if version != 5 or (self.expires_at is None and not subscription_ids):
            head, tail = self.halves(version, qos, retain)
        else:
            properties = subscription_ids + self.properties
            if self.expires_at is not None:
                # MQTT-3.3.2-6: the remaining time; 0 is "for ever" to some receivers.
                left = max(1, min(0xFFFFFFFF, round(self.expires_at - now)))
                properties = b"\x02" + left.to_bytes(4, "big") + properties
            head, tail = encode_halves(self.topic, self.payload, version, qos, retain, properties)
        if dup:
            head = bytes((head[0] | DUP,)) + head[1:]
        return head + PACKET_IDS[packet_id] + tail if qos else head + tail

    def as_retained(self) -> Message:
        """Return the message with RETAIN and without its sender: as it is kept for later
        subscribers."""
        return Message(
            self.topic, self.payload, self.qos, True, self.properties, self.expires_at, None
        )

    def expired(self, now: float) -> bool:
        """Tell whether the message must not be delivered any more (MQTT-3.3.2-5)."""
        return self.expires_at is not None and now >= self.expires_at


def encode_halves(
    topic: bytes, payload: bytes, version: int, qos: int, retain: bool, properties: bytes
) -> tuple[bytes, bytes]:
    """Return a PUBLISH as (bytes before the packet identifier, bytes behind it) (MQTT-3.3).

    `topic`: UTF-8; `payload`: the application message; `version`: of MQTT; `qos`, `retain`: of its
    header; `properties`: encoded, without their length.
    """
    if version == 5:
        tail = (
            encode_varint(len(properties)) + properties + payload
            if properties
            else b"\x00" + payload
        )
    else:
        tail = payload
    length = 2 + len(topic) + len(tail) + (2 if qos else 0)
    if length < 128:
        head = bytes((PUBLISH | qos << 1 | retain, length)) + PACKET_IDS[len(topic)] + topic
    else:
        head = (
            bytes((PUBLISH | qos << 1 | retain,))
            + encode_varint(length)
            + PACKET_IDS[len(topic)]
            + topic
        )
    return head, tail


def message_of(will: Will, now: float, sender: object) -> Message:
    """Return the message of a `will` that is due. `now`: s; `sender`: the session whose will it
    is."""
    properties = dict(will.properties or {})
    properties.pop(Property.WILL_DELAY_INTERVAL, None)
    expiry = properties.pop(Property.MESSAGE_EXPIRY_INTERVAL, None)
    encoded = encode_properties(properties)
    encoded = encoded[read_length(encoded, 0)[1] :]
    expires_at = None if expiry is None else now + lifetime(expiry)
    return Message(
        will.topic.encode(), will.payload, will.qos, will.retain, encoded, expires_at, sender
    )


def message_in(packet: bytes, version: int, now: float) -> Message:
    """Return the message of a `packet`, a PUBLISH of MQTT `version` without RETAIN that came at
    `now` (s)."""
    body = read_length(packet, 1)[1]
    start = topic_end(packet, body)
    qos = packet[0] >> 1 & 3
    section = payload = start + 2 if qos else start
    if version == 5:
        size, section = read_length(packet, section)
        payload = section + size
    expires_at, properties = split_expiry(packet[section:payload], now)
    topic = packet[body + 2 : start]
    return Message(topic, packet[payload:], qos, False, properties, expires_at, None)


def size_of(message: Message) -> int:
    """Return what a kept message counts for (bytes)."""
    return len(message.payload) + len(message.topic) + len(message.properties)
