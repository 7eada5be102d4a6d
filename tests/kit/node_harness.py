"""One node on a virtual clock, and clients that speak to it in packets over transports that only
remember."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar

from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.core.client import Client
from mqttree.broker.core.connection import Connection
from mqttree.broker.core.effects import Effect, Hooks
from mqttree.broker.core.session import Session
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.node import Node
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqttree.broker.wire.properties import Properties, Property
from mqttree.broker.wire.varint import read_length
from tests.kit.decoder import Decoder

P = TypeVar("P")


class FakeTransport:
    """Remembers what was written. With `capacity` (bytes) it says "enough" beyond that, until
    `read` makes room."""

    def __init__(self) -> None:
        self.conn: Connection | None = None
        self.written = bytearray()
        self.capacity: int | None = None
        self.closing = False
        self.aborted = False
        self.reading = True
        self.writes = 0
        self.early: list[bytes] = []

    def write(self, data: bytes) -> None:
        assert not self.aborted
        assert data
        self.writes += 1
        self.written += data
        if (
            self.capacity is not None
            and len(self.written) > self.capacity
            and self.conn is not None
        ):
            self.conn.pause()

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def unread(self) -> bool:
        """`early`: what the kernel holds, piece by piece; one a call."""
        if self.reading and self.early and self.conn is not None:
            self.conn.receive(self.early.pop(0), self.conn.node.now)
        return bool(self.early)

    def unsent(self) -> int:
        return len(self.written)


class World:
    """The node, the time, the clients. Every step ends with everything flushed."""

    def __init__(
        self, *, hooks: Hooks | None = None, limits: Limits = DEFAULTS, **config: Any
    ) -> None:
        self.now = 1000.0
        self.lines: list[tuple[str, str]] = []
        lone: dict[str, Any] = {"discovery": "off", "routing": "flood"}
        self.node = Node(
            NodeConfig(**(lone | config)),
            self.now,
            1.7e9,
            random.Random(1),
            limits=limits,
            hooks=hooks,
            log=self._log,
        )
        # It has been there for a while.
        self.node.cluster.barrier._begins_until = self.node.cluster.barrier._admits_until = 0.0
        self.effects: list[Effect] = []
        self.peers: list[FakeClient] = []

    def _log(self, level: str, text: str) -> None:
        self.lines.append((level, text))

    @property
    def logged(self) -> list[str]:
        """All lines, without their levels."""
        return [text for _, text in self.lines]

    @property
    def counters(self) -> Any:
        return self.node.counters

    def settle(self, source: Connection | None = None) -> None:
        """Flush, collect effects, and let closed transports say so, until nothing is left.

        `source`: the connection that was read.
        """
        while True:
            self.node.output.flush(source)
            self.effects += self.node.take_effects()
            gone = [
                p
                for p in self.peers
                if (p.transport.closing or p.transport.aborted) and not p.conn.closed
            ]
            for peer in gone:
                if peer.transport.aborted or not peer.conn.backlog:
                    self.node.connection_lost(peer.conn, "closed", self.now)
            if not self.node.dirty and all(not p.conn.closed for p in gone):
                due = self.node.next_deadline()
                assert due is None or self.node.deadline.at <= due, "a driver would call too late"
                return

    def advance(self, seconds: float) -> None:
        """Let the time pass, with every deadline met."""
        end = self.now + seconds
        for _ in range(100_000):
            due = self.node.next_deadline()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.node.tick(self.now)
            self.settle()
        else:
            raise AssertionError("the node never comes to rest")
        self.now = end
        self.node.tick(end)
        # As if it had been busy.
        self.node.memory.worked(seconds)
        self.settle()

    def most(self, seconds: float, count: Callable[[], int]) -> int:
        """Let the time pass; the most that `count` grew in one turn of the loop."""
        end, most = self.now + seconds, 0
        while self.now < end:
            before = count()
            due = self.node.next_deadline()
            self.now = end if due is None else min(end, max(self.now, due))
            self.node.tick(self.now)
            self.settle()
            most = max(most, count() - before)
        return most

    def open(self, version: int = 5, listener: str = "tcp") -> FakeClient:
        """A connection on which nothing was said yet. `listener`: where it came in."""
        return FakeClient(self, version, listener)

    def connect(self, client_id: str = "c", version: int = 5, **options: Any) -> FakeClient:
        """A client whose CONNECT was accepted; its CONNACK is in `connack`."""
        client = self.open(version).sent(connect_packet(client_id, version, **options))
        packets = client.take()
        assert packets, (client.closed, self.logged[-1:])
        assert isinstance(packets[0], Connack)
        client.connack = packets[0]
        client.inbox = packets[1:]
        return client

    def answer(self, kind: type[Effect], result: Any) -> int:
        """Answer every effect of a kind that waits; `result` may be a function of the effect.
        Returns how many."""
        waiting = [e for e in self.effects if isinstance(e, kind)]
        for effect in waiting:
            self.effects.remove(effect)
            self.node.answer(effect, result(effect) if callable(result) else result, self.now)
            client = getattr(effect, "client", None)
            self.settle(getattr(effect, "source", None) if client is None else client.conn)
        return len(waiting)

    def session(self, client_id: str) -> Session:
        return self.node.sessions[client_id]


class FakeClient:
    """One connection as its client sees it. `inbox`: packets that came and were not looked at."""

    def __init__(self, world: World, version: int, listener: str = "tcp") -> None:
        self.world = world
        self.version = version
        self.transport = FakeTransport()
        self.conn = world.node.connection_registry.made(
            f"peer:{len(world.peers)}", listener, self.transport, world.now
        )
        self.transport.conn = self.conn
        self.decoder = Decoder(version)
        self.inbox: list[Packet] = []
        self.said: list[str] = []  # Reason Strings
        self.connack = Connack(False, 0)
        world.peers.append(self)

    # ---------------------------------------------------------------- out

    def send(self, *packets: Packet | bytes) -> None:
        """Send packets (or bytes) in one chunk."""
        self.chunks(
            [
                b"".join(
                    p if isinstance(p, bytes) else encode_packet(p, self.version) for p in packets
                )
            ]
        )

    def sent(self, *packets: Packet | bytes) -> Self:
        """Send as `send` does; returns the client."""
        self.send(*packets)
        return self

    def chunks(self, chunks: Iterable[bytes]) -> None:
        """Send bytes cut as given."""
        for chunk in chunks:
            self.conn.receive(chunk, self.world.now)
            self.world.settle(self.conn)

    def subscribe(
        self, *filters: str | SubscriptionRequest, qos: int = 0, **options: Any
    ) -> list[int]:
        """Subscribe and return the codes; other packets that came before or after the SUBACK stay
        in `inbox`."""
        properties = options.pop("properties", None)
        requests = [
            f if isinstance(f, SubscriptionRequest) else SubscriptionRequest(f, qos, **options)
            for f in filters
        ]
        self.send(Subscribe(7, requests, properties))
        return self._answer(Suback).codes

    def subscribed(self, *filters: str | SubscriptionRequest, **options: Any) -> Self:
        """Subscribe as `subscribe` does; returns the client."""
        self.subscribe(*filters, **options)
        return self

    def unsubscribe(self, *filters: str) -> list[int]:
        self.send(Unsubscribe(8, list(filters)))
        return self._answer(Unsuback).codes

    def publish(
        self,
        topic: str,
        payload: bytes = b"x",
        qos: int = 0,
        packet_id: int | None = None,
        **options: Any,
    ) -> None:
        if qos and packet_id is None:
            packet_id = 1
        self.send(Publish(topic, payload, qos, packet_id=packet_id, **options))

    def disconnect(self, reason: int = 0, properties: Properties | None = None) -> None:
        self.send(Disconnect(reason, properties))

    def vanish(self) -> None:
        """The connection breaks."""
        self.world.node.connection_lost(self.conn, "reset", self.world.now)
        self.world.settle()

    # ---------------------------------------------------------------- in

    def take(self) -> list[Packet]:
        """Everything that came since the last look."""
        data = bytes(self.transport.written)
        self.transport.written.clear()
        packets = self.inbox + [self._heard(packet) for packet in self.decoder.receive(data)]
        self.inbox = []
        return packets

    def sizes(self) -> list[int]:
        """How many bytes each packet has that came and was not looked at, whatever `take` then
        leaves out of it."""
        data, found = bytes(self.transport.written), []
        while data:
            length, body = read_length(data, 1)
            found.append(body + length)
            data = data[body + length :]
        return found

    def _heard(self, packet: Packet) -> Packet:
        """Keep Reason Strings separate: they are for people, and tests compare packets."""
        properties: Properties | None = getattr(packet, "properties", None)
        if properties is not None and Property.REASON_STRING in properties:
            self.said.append(properties.pop(Property.REASON_STRING))
            if not properties and not isinstance(packet, Pingreq | Pingresp):
                packet.properties = None
        return packet

    def take_publishes(self) -> list[Publish]:
        """Everything that came, all of it messages."""
        packets = self.take()
        assert all(isinstance(p, Publish) for p in packets), packets
        return [p for p in packets if isinstance(p, Publish)]

    def payloads(self) -> list[bytes]:
        return [p.payload for p in self.take_publishes()]

    def read(self) -> list[Packet]:
        """A reader that had not read does so: everything in the transport, and what the node then
        sends."""
        packets: list[Packet] = []
        while self.transport.written:
            packets += self.take()
            if not self.conn.closed:
                self.conn.writable(self.world.now)
                self.world.settle()
        return packets

    def _answer(self, kind: type[P]) -> P:
        packets = self.take()
        answers = [p for p in packets if isinstance(p, kind)]
        assert len(answers) == 1, packets
        self.inbox = [p for p in packets if p is not answers[0]]
        return answers[0]

    @property
    def closed(self) -> bool:
        return self.conn.closed

    @property
    def owner(self) -> Client:
        assert isinstance(self.conn.owner, Client)
        return self.conn.owner

    def last_reason(self) -> int | None:
        """Why the broker closed: the reason of the last DISCONNECT or CONNACK."""
        packets = self.take()
        for packet in reversed(packets):
            if isinstance(packet, Disconnect):
                return packet.reason
            if isinstance(packet, Connack):
                return packet.code
        return None


def connect_packet(
    client_id: str = "c",
    version: int = 5,
    *,
    clean: bool = True,
    keep_alive: int = 0,
    will: Will | None = None,
    username: str | None = None,
    password: bytes | None = None,
    properties: Properties | None = None,
) -> Connect:
    """A CONNECT with the protocol name of its version."""
    name = "MQIsdp" if version == 3 else "MQTT"
    return Connect(
        name, version, clean, keep_alive, client_id, username, password, will, properties
    )


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """Cut bytes at places (taken modulo the length); no piece is empty."""
    at = sorted({place % len(data) for place in places} - {0}) if data else []
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]
