"""When the will of a session is published, and when it is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mqttree.broker.core.session import Session
from mqttree.broker.wire.packets import Will
from mqttree.broker.wire.properties import Property
from tests.kit.node_harness import World


class Listening(World):
    """A broker with a client that gets what is published."""

    def __init__(self) -> None:
        super().__init__()
        self.client = self.connect("listener")
        self.client.subscribe("#")


class Recorder:
    """Counts how often a session is recorded once more."""

    def __init__(self) -> None:
        self.recorded = 0

    def record_attributes(self) -> None:
        self.recorded += 1


def session(world: World, topic: str = "gone", *, delay: int = 0, expiry: float = 0.0) -> Session:
    """A session whose client is gone, with a will."""
    found = Session(world.node, "c")
    found.will = Will(
        topic, b"x", 0, False, {Property.WILL_DELAY_INTERVAL: delay} if delay else None
    )
    found.expiry = expiry
    recorder: Any = Recorder()
    found.recorder = recorder
    return found


@pytest.mark.parametrize(
    ("delay", "expiry", "due"),
    [(0, 0.0, 0.0), (0, 60.0, 0.0), (5, 0.0, 0.0), (5, 60.0, 5.0), (90, 60.0, 60.0)],
)
def test_a_delay_lasts_no_longer_than_the_session(delay: int, expiry: float, due: float) -> None:
    world = Listening()
    world.node.wills.connection_ended(session(world, delay=delay, expiry=expiry))
    if due:
        world.advance(due - 0.1)
        assert world.client.take_publishes() == []
        world.advance(0.2)
    world.settle()
    assert [packet.topic for packet in world.client.take_publishes()] == ["gone"]


def test_a_will_is_sent_once() -> None:
    world = Listening()
    one, wills = session(world), world.node.wills
    wills.send(one)
    wills.send(one)
    wills.connection_ended(one)
    world.settle()
    assert world.counters.wills == len(world.client.take_publishes()) == 1
    recorder: Any = one.recorder
    assert recorder.recorded == 1


@pytest.mark.parametrize("topic", ["$SYS/mine", "secret"])
def test_a_will_that_may_not_be_published_is_dropped(topic: str) -> None:
    world = Listening()
    one = session(world, topic)
    permissions: Any = SimpleNamespace(may_publish=lambda topic: topic != "secret")
    one.permissions = permissions
    world.node.wills.send(one)
    world.settle()
    assert world.client.take_publishes() == []
    assert world.counters.publish_refused == 1
    assert one.will is None
