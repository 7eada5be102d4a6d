"""Two nodes with a cluster secret, and an attacker on the wire between them who may read, alter,
drop and insert bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mqttree.broker.cluster.link.link import Link
from mqttree.broker.core.connection import Connection
from mqttree.broker.core.effects import Dial
from tests.kit.node_harness import FakeTransport, World

SECRET = b"the key of the cluster, 32 bytes"
ONE, TWO = b"\0" * 7 + b"\1", b"\0" * 7 + b"\2"

Tamper = Callable[[str, bytes], bytes]
"""Takes the direction (">" from who dialled) and what was written; returns what arrives."""


def node(number: int, secret: bytes | None = SECRET, **config: Any) -> World:
    values: dict[str, Any] = {
        "id": number.to_bytes(8, "big"),
        "boot": 1_000,
        "host": f"10.0.0.{number}",
        "secret": secret,
    }
    world = World(**(values | {"discovery": "static"} | config))
    world.node.rng.seed(number)
    return world


class Wire:
    """One connection between two nodes, which the first one dialled."""

    def __init__(self, one: World, two: World, tamper: Tamper | None = None) -> None:
        self.worlds = (one, two)
        self.tamper = tamper or (lambda direction, data: data)
        self.seen: dict[str, bytearray] = {">": bytearray(), "<": bytearray()}
        self.transports = (FakeTransport(), FakeTransport())
        host, port = two.node.config.host, two.node.config.port
        peers = (f"{host}:{port}", f"{one.node.config.host}:40000")
        self.conns: tuple[Connection, Connection] = (
            one.node.connection_registry.made(
                peers[0], "link", self.transports[0], one.now, Dial(host, port)
            ),
            two.node.connection_registry.made(peers[1], "tcp", self.transports[1], two.now),
        )
        for transport, conn in zip(self.transports, self.conns, strict=True):
            transport.conn = conn
        self.pump()

    def pump(self) -> None:
        """Carry what was written to the other end until nothing is."""
        for _ in range(200):
            for world in self.worlds:
                world.settle()
            for direction, end, far in ((">", 0, 1), ("<", 1, 0)):
                data = bytes(self.transports[end].written)
                self.transports[end].written.clear()
                if data:
                    self.seen[direction] += data
                    self.inject(far, self.tamper(direction, data))
            for end in (0, 1):
                conn = self.conns[end]
                done = self.transports[end].closing or self.transports[end].aborted
                if (
                    (done or self.conns[1 - end].closed)
                    and not conn.closed
                    and not self.transports[end].written
                ):
                    self.worlds[end].node.connection_lost(conn, "closed", self.worlds[end].now)
            if not any(transport.written for transport in self.transports):
                return
        raise AssertionError("they never come to rest")

    def inject(self, end: int, data: bytes) -> None:
        """Have bytes arrive at an end."""
        if data and not self.conns[end].closed:
            self.conns[end].receive(data, self.worlds[end].now)
            self.worlds[end].settle()

    def advance(self, seconds: float) -> None:
        for _ in range(max(1, round(seconds / 0.05))):
            for world in self.worlds:
                world.advance(0.05)
            self.pump()

    def link(self, end: int) -> Link | None:
        """The link at an end, if it is up."""
        for link in self.worlds[end].node.cluster.links.values():
            if link.conn is self.conns[end] and link.up:
                return link
        return None

    @property
    def up(self) -> tuple[bool, bool]:
        return self.link(0) is not None, self.link(1) is not None

    def agreed(self) -> Wire:
        """Let both be in one tree, with messages passing."""
        for _ in range(100):
            self.advance(0.1)
            if all(link is not None and link.live for link in (self.link(0), self.link(1))):
                return self
        raise AssertionError([world.logged[-3:] for world in self.worlds])
