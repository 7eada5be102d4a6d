"""Turns of the event loop: who was read for long does not keep the others waiting."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.timers import Timer
from mqttree.broker.config.listener_model import Listeners
from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.core.memory_limit import MemoryLimit
from mqttree.broker.io.broker_service import BrokerService
from mqttree.broker.io.driver import Driver
from mqttree.broker.io.loop_turns import MAX_READ_S
from mqttree.broker.io.stream_protocol import StreamProtocol
from mqttree.broker.limits import DEFAULTS
from mqttree.broker.node import Node
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Puback, Publish, Pubrec
from tests.kit.journal_harness import Durable
from tests.kit.loop_harness import Loop, Socket
from tests.kit.node_harness import connect_packet


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
    scene.loop.cost = MAX_READ_S * 1.1
    busy.data_received(BURST)
    assert not socket.reading
    assert scene.node.counters.published == 1000, "what was read is handled"
    scene.loop.cost = 0.0
    other.data_received(b"\xc0\x00")
    assert quiet.reading
    scene.loop.turn()
    assert socket.reading, "and read on in the next turn"
    assert quiet.written.endswith(b"\xd0\x00")


def test_a_client_that_is_held_during_a_turn_is_not_read() -> None:
    scene = Scene()
    (busy, socket), _ = scene.clients
    assert busy.conn is not None
    scene.loop.cost = MAX_READ_S * 1.1
    busy.data_received(BURST)
    busy.conn.hold()
    scene.loop.turn()
    assert not socket.reading
    busy.conn.unhold()
    assert socket.reading


def test_a_client_that_is_gone_during_a_turn_is_not_read() -> None:
    scene = Scene()
    (busy, socket), _ = scene.clients
    scene.loop.cost = MAX_READ_S * 1.1
    busy.data_received(BURST)
    busy.connection_lost(None)
    scene.loop.turn()
    assert not socket.reading


# ---------------------------------------------------------------- deadlines


class Asked(Node):
    """A node that counts how often it is asked for its deadline."""

    asked = 0

    def next_deadline(self) -> float | None:
        self.asked += 1
        return super().next_deadline()


class Ticking:
    """A driver of a node that nobody talks to."""

    def __init__(self, **config: Any) -> None:
        self.loop = Loop()
        config = {"discovery": "off"} | config
        self.node = Asked(NodeConfig(**config), self.loop.now, 1.7e9, random.Random(1))
        self.driver = Driver(self.node, cast(asyncio.AbstractEventLoop, self.loop), lambda: None)
        self.driver.time = self.loop.time

    def check(self) -> None:
        """One timer at most is armed, and none too late."""
        due = self.node.next_deadline()
        armed = [timer.when for timer in self.loop.armed]
        assert len(armed) <= 1
        if due is not None:
            assert self.node.deadline.at <= due
            assert armed
            assert armed[0] <= due + 0.001


PLANS = st.lists(
    st.one_of(
        st.tuples(st.just("schedule"), st.floats(-1.0, 20.0)),
        st.tuples(st.just("cancel"), st.integers(0, 5)),
        st.tuples(st.just("hurry"), st.floats(-1.0, 20.0)),
        st.tuples(st.just("pass"), st.floats(0.0, 8.0)),
    ),
    max_size=30,
)


@given(PLANS, st.sampled_from(("off", "static")))
def test_a_timer_is_never_armed_later_than_the_deadline(
    plans: list[tuple[str, float]], discovery: str
) -> None:
    scene = Ticking(discovery=discovery)
    node, loop = scene.node, scene.loop
    made: list[tuple[float, Timer]] = []
    fired: dict[float, float] = {}
    for what, value in plans:
        if what == "schedule":
            when = loop.now + value

            def fire(now: float, due: float = max(when, loop.now)) -> None:
                fired[due] = now

            made.append((max(when, loop.now), node.timers.schedule(when, fire)))
        elif what == "cancel" and made:
            node.timers.cancel(made.pop(int(value) % len(made))[1])
        elif what == "hurry":
            node.cluster.hurry(loop.now + value)
        elif what == "pass":
            loop.run(value)
        scene.driver.wake()
        loop.turn()
        scene.check()
    loop.run(30.0)
    assert {due for due, _ in made} <= fired.keys()
    assert all(due <= now <= due + 0.01 for due, now in fired.items())


def test_a_turn_that_plans_nothing_asks_nobody_for_the_deadline() -> None:
    scene = Ticking()
    scene.driver.wake()
    scene.loop.turn()
    armed, asked = scene.loop.timers[:], scene.node.asked
    for _ in range(3):
        scene.driver.wake()
        scene.loop.turn()
    assert scene.loop.timers == armed
    assert scene.node.asked == asked


def test_nothing_is_armed_after_the_end() -> None:
    scene = Ticking(discovery="static")
    scene.driver.wake()
    scene.loop.turn()
    assert scene.loop.armed
    scene.driver.stop()
    scene.node.timers.schedule(scene.loop.now, lambda now: None)
    scene.driver.wake()
    scene.loop.turn()
    assert not scene.loop.armed


def test_the_node_is_told_of_work_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Ticking(memory_limit=80 << 20)
    told: list[float] = []
    monkeypatch.setattr(MemoryLimit, "worked", lambda memory, seconds: told.append(seconds))
    for _ in range(1000):
        scene.loop.now += 0.001
        scene.driver.wake()
        scene.loop.turn()
    assert 45 <= len(told) <= 51
    assert all(seconds >= 0.0 for seconds in told)
    assert sum(told) > 0.0


class Recorded:
    """A broker with a journal whose frames are written at once, a durable subscriber, and a
    publisher."""

    def __init__(self, qos: int) -> None:
        self.world, self.loop = Durable(), Loop()
        self.receiver = self.world.connect("k", 4, clean=False).subscribed("t", qos=qos)
        self.publisher = self.world.connect("p", 4)
        # What had gone out each time that effects were handed out.
        self.out: list[int] = []
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.driver = Driver(self.world.node, loop, self.write)
        self.driver.frame_first = True
        self.driver.time = lambda: self.world.now

    def write(self) -> None:
        clients = self.publisher, self.receiver
        self.out.append(sum(len(client.transport.written) for client in clients))
        for effect in self.world.node.take_effects():
            self.world.files.carry_out(cast(Any, effect))
            self.world.node.answer(effect, None, self.world.now)
        self.world.files.untold.clear()

    def publish(self, packet: Publish) -> None:
        self.publisher.conn.receive(encode_packet(packet, 4), self.world.now)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_frame_that_is_written_at_once_comes_before_output_and_holds_none_back(qos: int) -> None:
    scene = Recorded(qos)
    scene.publish(Publish("t", b"x", qos, packet_id=1))
    scene.driver.run()
    assert scene.out == [0]
    assert not len(scene.world.journal.frames.gate)
    assert scene.publisher.take() == [Puback(1) if qos == 1 else Pubrec(1)]
    assert scene.receiver.payloads() == [b"x"]
    back = scene.world.again().connect("k", 4, clean=False)
    assert back.payloads() == [b"x"]


def test_a_frame_of_the_last_flush_of_a_turn_is_written_in_the_next_one() -> None:
    scene = Recorded(1)
    write = scene.write

    def more() -> None:
        write()
        if len(scene.out) == 1:
            scene.publish(Publish("t", b"y", 1, packet_id=2))

    scene.driver._on_effects = more
    scene.publish(Publish("t", b"x", 1, packet_id=1))
    scene.driver.end_turn()
    while scene.loop.ready:
        scene.loop.turn()
    assert scene.publisher.take() == [Puback(1), Puback(2)]
    assert scene.receiver.payloads() == [b"x", b"y"]


def test_the_clock_of_a_broker_does_not_depend_on_when_its_turn_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stamps of two brokers of one machine would differ by as much: of two connections of a client
    the older one would stay."""
    loop = asyncio.new_event_loop()
    monkeypatch.setattr(loop, "time", lambda: 0.0)
    service = BrokerService(loop, Listeners({}), settings=None, limits=DEFAULTS)
    began = time.monotonic()
    service._make_node()
    assert began <= service.node.now <= time.monotonic()
    loop.close()
