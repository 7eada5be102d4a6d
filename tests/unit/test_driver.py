"""Turns of the event loop: who was read for long does not keep the others waiting."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from broker.base.limits import DEFAULTS
from broker.config.node_config import NodeConfig
from broker.io.driver import Driver, StreamProtocol
from broker.node import Node
from broker.wire import encode_packet
from broker.wire.packets import Publish
from tests.unit.node_harness import connect_packet


class Loop:
    """Callbacks in turns, as an event loop has them; every look at the clock takes `cost` s."""

    def __init__(self) -> None:
        self.ready: deque[Callable[[], None]] = deque()
        self.now = 100.0
        self.cost = 0.0

    def call_soon(self, call: Callable[[], None]) -> None:
        self.ready.append(call)

    def call_at(self, when: float, call: Callable[[], None]) -> Any:
        return self

    def cancel(self) -> None: ...

    def time(self) -> float:
        self.now += self.cost
        return self.now

    def turn(self) -> None:
        for _ in range(len(self.ready)):
            self.ready.popleft()()


class Socket:
    """An asyncio transport of whom only reading matters."""

    def __init__(self) -> None:
        self.reading = True
        self.written = b""

    def get_extra_info(self, name: str) -> Any:
        return ("10.0.0.1", 1234) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None: ...

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def unsent(self) -> int:
        return 0


class Scene:
    def __init__(self) -> None:
        self.loop = Loop()
        self.node = Node(NodeConfig(discovery="off"), self.loop.now, 1.7e9, random.Random(1))
        self.driver = Driver(self.node, cast(asyncio.AbstractEventLoop, self.loop), lambda: None)
        self.driver.time = self.loop.time
        self.clients = [self.client(name) for name in ("busy", "other")]
        for _ in range(3):
            self.loop.turn()

    def client(self, name: str) -> tuple[StreamProtocol, Socket]:
        protocol, socket = StreamProtocol(self.driver, "tcp"), Socket()
        protocol.connection_made(cast(asyncio.Transport, socket))
        protocol.data_received(encode_packet(connect_packet(name), 5))
        return protocol, socket


BURST = b"".join(encode_packet(Publish(f"t/{n % 100}", b"x" * (n % 7)), 5) for n in range(1000))


def test_a_read_that_took_long_is_the_last_of_its_turn() -> None:
    scene = Scene()
    (busy, socket), (other, quiet) = scene.clients
    scene.loop.cost = DEFAULTS.turn_time * 1.1
    busy.data_received(BURST)
    assert not socket.reading
    assert scene.node.counters.published == 1000, "what was read is handled"
    scene.loop.cost = 0.0
    other.data_received(b"\xc0\x00")
    assert quiet.reading
    scene.loop.turn()
    assert socket.reading, "and read on in the next turn"
    assert quiet.written.endswith(b"\xd0\x00")


def test_a_read_that_took_no_time_changes_nothing() -> None:
    scene = Scene()
    (busy, socket), _ = scene.clients
    scene.loop.cost = DEFAULTS.turn_time * 0.4
    for _ in range(100):  # 100,000 messages
        busy.data_received(BURST)
        assert socket.reading
    assert scene.node.counters.published == 100_000


def test_a_client_that_is_held_during_a_turn_is_not_read() -> None:
    scene = Scene()
    (busy, socket), _ = scene.clients
    assert busy.conn is not None
    scene.loop.cost = DEFAULTS.turn_time * 1.1
    busy.data_received(BURST)
    busy.conn.hold()
    scene.loop.turn()
    assert not socket.reading
    busy.conn.unhold()
    assert socket.reading


def test_a_client_that_is_gone_during_a_turn_is_not_read() -> None:
    scene = Scene()
    (busy, socket), _ = scene.clients
    scene.loop.cost = DEFAULTS.turn_time * 1.1
    busy.data_received(BURST)
    busy.connection_lost(None)
    scene.loop.turn()
    assert not socket.reading
