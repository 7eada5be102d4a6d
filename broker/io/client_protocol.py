"""MQTT 5 as a client speaks it at a foreign broker: bytes come in and go out, and nothing is known
of sockets or clocks.

A session lasts as long as its connection: what is not acknowledged when that ends is lost, and
counted.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from mqttree.broker.base.record import Record
from mqttree.broker.wire import (
    V5,
    Connack,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Property,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
    WireError,
    encode_packet,
)

__all__ = ["ClientError", "ClientOptions", "ClientProtocol", "Received"]

RECEIVE_MAXIMUM = 1_000
"""QoS 2 messages (and QoS 1) that the broker may send before the first is completed."""

MAX_WAITING = 1_000
"""messages that wait because the broker has not acknowledged as many as it takes at once; further
ones are dropped."""

NO_RETAINED = 2
"""Retain Handling: retained messages are not sent when a filter is subscribed to. They are old, and
would be taken for new ones at each reconnect."""


class ClientError(Exception):
    """The connection has to be closed; one line says why."""


class ClientOptions(Record):
    """As whom a client connects, and what it wants."""

    client_id: str
    user: str | None = None
    password: bytes | None = None
    filters: tuple[str, ...] = ()
    """Topic filters to subscribe to, with No Local: own messages do not come back."""
    qos: int = 2
    """QoS of subscriptions and publications."""
    keep_alive: int = 30
    """s; a broker that does not answer for so long is lost."""


class Received(NamedTuple):
    """A message from the broker."""

    topic: str
    payload: bytes


class ClientProtocol:
    """One connection. Bytes to be sent are in `out`; whoever sends them clears it."""

    def __init__(self, options: ClientOptions) -> None:
        """`options`: as whom to connect. `out` has the CONNECT already."""
        self.options = options
        self.connected = False
        """The broker has taken the CONNECT, and the subscriptions if there are any."""
        self.dropped = 0
        """Messages that were not sent, or refused by the broker."""
        self.refused_filters: list[str] = []
        self.keep_alive = options.keep_alive
        self.out = bytearray()
        self._decoder = Decoder(V5)
        self._accepted = False
        self._qos = options.qos
        self._window = 65_535
        self._max_packet = 0
        self._unanswered_ping = False
        self._last_id = 0
        self._unacknowledged: set[int] = set()
        self._waiting: deque[Publish] = deque()
        self._incoming: set[int] = set()
        self._send(
            Connect(
                "MQTT",
                V5,
                True,
                options.keep_alive,
                options.client_id,
                options.user,
                options.password,
                properties={Property.RECEIVE_MAXIMUM: RECEIVE_MAXIMUM},
            )
        )

    @property
    def unfinished(self) -> int:
        """How many messages the broker has not acknowledged: they are lost with the connection."""
        return len(self._unacknowledged) + len(self._waiting)

    def receive(self, data: bytes) -> list[Received]:
        """Return the messages that the next bytes complete; answers to them are in `out`.

        Raises:
            ClientError: the broker refuses this client, ends the connection, or breaks the rules.
        """
        try:
            packets = self._decoder.receive(data)
        except WireError as error:
            raise ClientError(f"not MQTT 5: {error.message}") from None
        found: list[Received] = []
        for packet in packets:
            self._take(packet, found)
        return found

    def publish(self, topic: str, payload: bytes) -> bool:
        """Return whether the message is sent, or waits for its turn; else it is dropped, and
        counted."""
        packet = Publish(topic, payload, self._qos)
        if not self.connected or len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
            return False
        # The broker would close the connection: 5 bytes are the fixed header, 5 more the lengths.
        size = len(topic.encode()) + len(payload) + 10
        if self._max_packet and size > self._max_packet:
            self.dropped += 1
            return False
        if self._qos and len(self._unacknowledged) >= self._window:
            self._waiting.append(packet)
        else:
            self._send_publish(packet)
        return True

    def ping(self) -> None:
        """Ask the broker for a sign of life.

        Raises:
            ClientError: it has not answered the last time.
        """
        if self._unanswered_ping:
            raise ClientError("it does not answer")
        self._unanswered_ping = True
        self._send(Pingreq())

    def disconnect(self) -> None:
        """Say goodbye."""
        self._send(Disconnect())

    def _send(self, packet: Packet) -> None:
        self.out += encode_packet(packet, V5)

    def _send_publish(self, packet: Publish) -> None:
        if packet.qos:
            packet.packet_id = self._next_id()
            self._unacknowledged.add(packet.packet_id)
        self._send(packet)

    def _next_id(self) -> int:
        while True:
            self._last_id = self._last_id % 65_535 + 1
            if self._last_id not in self._unacknowledged:
                return self._last_id

    def _take(self, packet: Packet, found: list[Received]) -> None:
        if isinstance(packet, Connack):
            self._take_connack(packet)
        elif not self._accepted:
            raise ClientError(f"it sends {type(packet).__name__} before CONNACK")
        elif isinstance(packet, Publish):
            self._take_publish(packet, found)
        elif isinstance(packet, Pubrel):
            self._incoming.discard(packet.packet_id)
            self._send(Pubcomp(packet.packet_id))
        elif isinstance(packet, Puback | Pubrec | Pubcomp):
            self._take_ack(packet)
        elif isinstance(packet, Suback):
            self._take_suback(packet)
        elif isinstance(packet, Pingresp):
            self._unanswered_ping = False
        elif isinstance(packet, Disconnect):
            raise ClientError(f"it disconnects: {_describe(packet.reason)}")
        else:
            raise ClientError(f"it sends {type(packet).__name__}")

    def _take_connack(self, packet: Connack) -> None:
        if self._accepted:
            raise ClientError("it sends a second CONNACK")
        if packet.code:
            raise ClientError(f"it refuses: {_describe(packet.code)}")
        self._accepted = True
        given = packet.properties or {}
        self._window = given.get(Property.RECEIVE_MAXIMUM, 65_535)
        self._max_packet = given.get(Property.MAXIMUM_PACKET_SIZE, 0)
        self._qos = min(self._qos, given.get(Property.MAXIMUM_QOS, 2))
        self.keep_alive = given.get(Property.SERVER_KEEP_ALIVE, self.keep_alive)
        if not self.options.filters:
            self.connected = True
            return
        requests = [
            SubscriptionRequest(each, self._qos, no_local=True, retain_handling=NO_RETAINED)
            for each in self.options.filters
        ]
        self._send(Subscribe(self._next_id(), requests))

    def _take_suback(self, packet: Suback) -> None:
        if self.connected or len(packet.codes) != len(self.options.filters):
            raise ClientError("it sends a SUBACK for other filters")
        both = zip(self.options.filters, packet.codes, strict=True)
        self.refused_filters = [each for each, code in both if code >= 0x80]
        self.connected = True

    def _take_publish(self, packet: Publish, found: list[Received]) -> None:
        if not packet.topic:
            raise ClientError("it sends a topic alias, which was not allowed")
        if packet.packet_id is None:
            found.append(Received(packet.topic, packet.payload))
        elif packet.qos == 1:
            found.append(Received(packet.topic, packet.payload))
            self._send(Puback(packet.packet_id))
        else:
            if packet.packet_id not in self._incoming:
                if len(self._incoming) >= RECEIVE_MAXIMUM:
                    raise ClientError(f"it sends more than {RECEIVE_MAXIMUM} messages at once")
                self._incoming.add(packet.packet_id)
                found.append(Received(packet.topic, packet.payload))
            self._send(Pubrec(packet.packet_id))

    def _take_ack(self, packet: Puback | Pubrec | Pubcomp) -> None:
        known = packet.packet_id in self._unacknowledged
        if isinstance(packet, Pubrec) and packet.reason < 0x80:
            reason = 0 if known else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
            self._send(Pubrel(packet.packet_id, reason))
            return
        if not known:
            return
        self._unacknowledged.discard(packet.packet_id)
        if not isinstance(packet, Pubcomp) and packet.reason >= 0x80:
            self.dropped += 1
        if self._waiting:
            self._send_publish(self._waiting.popleft())


def _describe(code: int) -> str:
    """Return what a Reason Code says, in words."""
    try:
        return ReasonCode(code).name.lower().replace("_", " ")
    except ValueError:
        return f"reason {code:#04x}"
