"""Retained messages and brokers that come later or were away, as real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.kit.brokers import Cluster
from tests.kit.clients import Client, clients
from tests.kit.waiting import until

Make = Callable[..., Client]


@pytest.fixture
def make() -> Iterator[Make]:
    with clients() as maker:
        yield maker


def test_a_broker_that_joins_later_has_all_retained_messages(tmp_path: Path, make: Make) -> None:
    with Cluster(tmp_path) as cluster:
        first = cluster.add().up()
        publisher = make(first.port)
        properties = Properties(PacketTypes.PUBLISH)
        properties.ContentType = "text"
        properties.UserProperty = [("h", "mine"), ("o", "mine, too")]
        properties.MessageExpiryInterval = 600
        publisher.done(
            publisher.publish("late/plain", b"1", 1, retain=True),
            publisher.publish("late/deleted", b"2", 1, retain=True),
            publisher.publish("late/whole", b"3", 2, retain=True, properties=properties),
            publisher.publish("late/zero", b"4", 0, retain=True),
        )
        publisher.done(publisher.publish("late/deleted", b"", 1, retain=True))
        second = cluster.add().up()
        # It may be there before the messages are, and then gets them as they come.
        early = make(second.port)
        early.subscribe("late/#", 2)
        cluster.agree()
        early.got(3)
        until(
            lambda: (
                second.view()["counters"]["received_link"] or second.counter("retained_restored")
            ),
            "what was missing",
        )
        late = make(second.port)
        late.subscribe("late/#", 2)
        late.got(3)
        assert {(m.topic, m.payload, m.qos, m.retain) for m in late.messages} == {
            ("late/plain", b"1", 1, True),
            ("late/whole", b"3", 2, True),
            ("late/zero", b"4", 0, True),
        }
        (whole,) = (m for m in late.messages if m.topic == "late/whole")
        assert whole.properties.ContentType == "text"
        assert whole.properties.UserProperty == [("h", "mine"), ("o", "mine, too")]
        assert 0 < whole.properties.MessageExpiryInterval <= 600
        assert {m.payload for m in early.messages} >= {b"1", b"3", b"4"}


def test_a_broker_that_starts_again_gets_its_retained_messages_back(
    tmp_path: Path, make: Make
) -> None:
    with Cluster(tmp_path) as cluster:
        one, other = cluster.add(), cluster.add()
        cluster.agree()
        witness = make(other.port)
        witness.subscribe("back/#", 1)
        publisher = make(one.port)
        publisher.done(
            *(publisher.publish(f"back/{n}", b"%d" % n, 1, retain=True) for n in range(50))
        )
        witness.got(50)
        one.kill()
        witness.publish("back/0", b"", 1, retain=True)
        witness.publish("back/1", b"newer", 1, retain=True)
        witness.got(52)
        one.start()
        cluster.agree()
        late = make(one.port)
        late.subscribe("back/#", 1)
        late.got(49)
        assert {m.payload for m in late.messages} == {b"newer", *(b"%d" % n for n in range(2, 50))}
