"""Retained messages (MQTT 3.3.1.3, 3.8.3.1)."""

from __future__ import annotations

import pytest

from mqttree.broker.base.counters import Counters
from mqttree.broker.core.message import Message
from mqttree.broker.core.retained_store import RetainedStore
from mqttree.broker.limits import Limits
from mqttree.broker.wire.packets import Publish, Suback, Subscribe, SubscriptionRequest
from mqttree.broker.wire.properties import Property
from tests.kit.node_harness import World

ALL = pytest.mark.parametrize("version", [3, 4, 5])
P = Property


@pytest.mark.statement("3.1.1/MQTT-3.3.1-5", "3.1.1/MQTT-3.3.1-6", "3.1.1/MQTT-3.3.1-8")
@ALL
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_new_subscription_gets_retained_messages(qos: int, granted: int, version: int) -> None:
    """MQTT-3.3.1-5, -6, -8 (3.1.1: -5 to -8): RETAIN set, the lower QoS, behind the SUBACK."""
    world = World()
    world.connect("p").publish("a/b", b"kept", qos, retain=True)
    client = world.connect("s", version)
    client.send(Subscribe(1, [SubscriptionRequest("a/+", granted)]))
    least = min(qos, granted)
    assert client.take() == [
        Suback(1, [granted]),
        Publish("a/b", b"kept", least, True, packet_id=1 if least else None),
    ]


@pytest.mark.statement("MQTT-3.3.1-9", "MQTT-3.3.1-10", "MQTT-3.3.1-11")
@pytest.mark.parametrize(
    ("handling", "first", "second"),
    [(0, [b"x"], [b"x"]), (1, [b"x"], []), (2, [], [])],
    ids=["send", "if new", "never"],
)
def test_retain_handling_decides_when_retained_messages_are_sent(
    handling: int, first: list, second: list
) -> None:
    world = World()
    world.connect("p").publish("t", b"x", retain=True)
    client = world.connect("s").subscribed("t", retain_handling=handling)
    assert client.payloads() == first
    client.subscribe("t", retain_handling=handling, qos=1)
    assert client.payloads() == second


@pytest.mark.statement("3.1.1/MQTT-3.3.1-6")
def test_several_filters_in_one_packet_bring_their_retained_messages() -> None:
    world = World()
    publisher = world.connect("p")
    for topic in ("a", "b/c", "$own"):
        publisher.publish(topic, b"x", 1, retain=True)
    world.node.publisher.publish_internal("$SYS/x", b"y", 0, True)
    client = world.connect("s")
    client.send(
        Subscribe(
            1,
            [
                SubscriptionRequest("#", 1),
                SubscriptionRequest("b/+", 0),
                SubscriptionRequest("/" * 201, 0),
            ],
            {P.SUBSCRIPTION_IDENTIFIER: [300]},
        )
    )
    suback, *packets = client.take()
    assert suback == Suback(1, [1, 0, 0x8F])
    assert sorted((p.topic, p.qos) for p in packets) == [("a", 1), ("b/c", 0), ("b/c", 1)]
    assert all(p.properties == {P.SUBSCRIPTION_IDENTIFIER: [300]} and p.retain for p in packets)
    client.subscribe("$SYS/+")
    assert client.payloads() == [b"y"]


def test_shared_subscriptions_get_no_retained_messages() -> None:
    """4.8.2; also by their inner filter."""
    world = World()
    world.connect("p").publish("t", b"x", retain=True)
    client = world.connect("s").subscribed("$share/g/t", "$share/g/#")
    assert client.take() == []


def test_a_resumed_session_gets_no_retained_messages_again() -> None:
    world = World()
    world.connect("p").publish("t", b"x", retain=True)
    world.connect("s", 4, clean=False).subscribed("t").vanish()
    assert world.connect("s", 4, clean=False).inbox == []


def test_a_retained_message_in_its_last_moments_has_a_second_left() -> None:
    """0 would be for ever at a bridged Mosquitto."""
    world = World()
    client = world.connect("c")
    client.publish("t", b"x", retain=True, properties={P.MESSAGE_EXPIRY_INTERVAL: 2})
    for wait, left in ((1.4, 1), (0.3, 1), (0.29, 1), (0.02, None)):
        world.advance(wait)
        client.subscribe("t")
        found = [p.properties for p in client.take_publishes()]
        assert found == ([] if left is None else [{P.MESSAGE_EXPIRY_INTERVAL: left}])


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_interval_of_0_reaches_subscribers_as_a_second(qos: int) -> None:
    world = World()
    client = world.connect("c").subscribed("t", qos=2)
    for number in (1, 2):
        properties = {P.MESSAGE_EXPIRY_INTERVAL: 0}
        client.publish("t", b"x", qos, packet_id=number, properties=properties)
    found = [p.properties for p in client.take() if isinstance(p, Publish)]
    assert found == [{P.MESSAGE_EXPIRY_INTERVAL: 1}] * 2


def test_retained_messages_expire() -> None:
    """MQTT-3.3.2-5, -6."""
    world = World()
    world.connect("p").publish(
        "t", b"x", retain=True, properties={P.MESSAGE_EXPIRY_INTERVAL: 10, P.CONTENT_TYPE: "c"}
    )
    world.advance(4)
    client = world.connect("s").subscribed("t")
    assert [p.properties for p in client.take_publishes()] == [
        {P.MESSAGE_EXPIRY_INTERVAL: 6, P.CONTENT_TYPE: "c"}
    ]
    world.advance(6)
    client.subscribe("t")
    assert client.take() == []
    assert len(world.node.retained) == 0
    assert world.counters.expired == 1


def test_a_retained_message_too_large_for_the_subscriber_is_left_out() -> None:
    world = World()
    publisher = world.connect("p")
    publisher.publish("t/1", b"x" * 100, retain=True)
    publisher.publish("t/2", b"x", 1, retain=True)
    client = world.connect("s", properties={P.MAXIMUM_PACKET_SIZE: 50}).subscribed("t/+", qos=1)
    assert client.payloads() == [b"x"]
    assert world.counters.dropped_too_large == 1


# ---------------------------------------------------------------- limits


def message(payload: bytes, topic: bytes = b"t") -> Message:
    return Message(topic, payload, 0, True, b"", None, None)


def test_the_number_of_retained_messages_is_bounded() -> None:
    counters = Counters()
    store = RetainedStore(counters, limits=Limits(max_retained=2))
    assert store.store("a", message(b"1"))
    assert store.store("b", message(b"1"))
    assert not store.store("c", message(b"1"))
    assert store.store("a", message(b"2"))
    assert store.store("b", message(b""))
    assert store.store("c", message(b"1"))
    assert counters.retained_refused == 1
    assert sorted(store.topics()) == ["a", "c"]


def test_the_bytes_of_retained_messages_are_bounded() -> None:
    counters = Counters()
    store = RetainedStore(counters, limits=Limits(max_retained_bytes=100))
    assert store.store("t", message(b"x" * 90))
    assert not store.store("u", message(b"x" * 10))
    assert store.store("t", message(b"x" * 50))
    assert store.store("u", message(b"x" * 40))
    assert not store.store("t", message(b"x" * 60))
    assert store.get("t").payload == b"x" * 50
    assert store.store("t", message(b""))
    assert store.store("u", message(b"x" * 99))
    store.clear()
    assert len(store) == 0
    assert store.store("t", message(b"x" * 99))
    assert counters.retained_refused == 2


def test_a_refused_message_is_still_delivered() -> None:
    world = World(limits=Limits(max_retained=0))
    client = world.connect("s").subscribed("t", qos=1)
    client.publish("t", b"x", 1, retain=True)
    assert [p.payload for p in client.take() if isinstance(p, Publish)] == [b"x"]
    assert world.counters.retained_refused == 1
