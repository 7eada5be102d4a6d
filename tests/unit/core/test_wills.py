"""When the will of a session is published, and when it is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mqttree.broker.base.counters import Counters
from mqttree.broker.base.timers import Timers
from mqttree.broker.core.message import Message
from mqttree.broker.core.session import Session
from mqttree.broker.core.wills import Wills
from mqttree.broker.wire.packets import Will
from mqttree.broker.wire.properties import Property
from tests.kit.node_harness import World


class Publisher:
    """A broker that only remembers what is published."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers = Timers()
        self.counters = Counters()
        self.published: list[Message] = []

    def publish(self, message: Message, source: object) -> None:
        assert source is None
        self.published.append(message)


class Recorder:
    """Counts how often a session is recorded once more."""

    def __init__(self) -> None:
        self.recorded = 0

    def record_attributes(self) -> None:
        self.recorded += 1


def session(topic: str = "gone", *, delay: int = 0, expiry: float = 0.0) -> Session:
    """A session whose client is gone, with a will."""
    found = Session(World().node, "c")
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
    broker = Publisher()
    Wills(broker).connection_ended(session(delay=delay, expiry=expiry))
    assert len(broker.published) == (due == 0.0)
    assert broker.timers.next_deadline() == (100.0 + due if due else None)
    broker.timers.fire(100.0 + due, lambda: False)
    assert [message.topic for message in broker.published] == [b"gone"]


def test_a_will_is_sent_once() -> None:
    broker, one = Publisher(), session()
    wills = Wills(broker)
    wills.send(one)
    wills.send(one)
    wills.connection_ended(one)
    assert broker.counters.wills == len(broker.published) == 1
    recorder: Any = one.recorder
    assert recorder.recorded == 1


@pytest.mark.parametrize("topic", ["$SYS/mine", "secret"])
def test_a_will_that_may_not_be_published_is_dropped(topic: str) -> None:
    broker, one = Publisher(), session(topic)
    permissions: Any = SimpleNamespace(may_publish=lambda topic: topic != "secret")
    one.permissions = permissions
    Wills(broker).send(one)
    assert broker.published == []
    assert broker.counters.publish_refused == 1
    assert one.will is None
