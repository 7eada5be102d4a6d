"""SUBSCRIBE, UNSUBSCRIBE, topic filters and shared subscriptions (MQTT-3.8 to MQTT-3.11, MQTT-4.7,
MQTT-4.8): see docs/conformance.md."""

from __future__ import annotations

import pytest

from mqttree.broker.wire import (
    Packet,
    Property,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from tests.kit.node_harness import FakeClient, World

ALL = pytest.mark.parametrize("version", [3, 4, 5])
P = Property


@pytest.mark.statement("MQTT-3.8.4-5", "MQTT-3.8.4-6", "MQTT-3.8.4-7", "MQTT-3.9.3-1")
@pytest.mark.statement("MQTT-3.9.3-2", "MQTT-3.10.4-6", "MQTT-3.11.3-1", "MQTT-3.11.3-2")
@pytest.mark.statement("3.1.1/MQTT-3.8.4-4", "3.1.1/MQTT-3.8.4-5", "3.1.1/MQTT-3.9.3-1")
@pytest.mark.statement("3.1.1/MQTT-3.9.3-2", "3.1.1/MQTT-3.10.4-6", "MQTT-3.8.4-1", "MQTT-3.8.4-2")
@pytest.mark.statement("3.1.1/MQTT-3.8.4-1", "3.1.1/MQTT-3.8.4-2", "3.1/SUBACK")
@ALL
def test_many_filters_in_one_packet_act_as_one_packet_each(version: int) -> None:
    """In their order, also one filter twice; one answer."""
    world = World()
    world.connect("r").publish("a", b"kept", retain=True)
    client = world.connect("c", version)
    requests = [
        SubscriptionRequest(f, q)
        for f, q in (("a", 2), ("b", 0), ("a", 1), ("/" * 201, 1), ("c", 2))
    ]
    client.send(Subscribe(9, requests))
    packets = client.take()
    assert packets[0] == Suback(9, [2, 0, 1, 0x8F if version == 5 else 0x80, 2])
    assert {(p.topic, p.payload, p.retain) for p in packets[1:] if isinstance(p, Publish)} == {
        ("a", b"kept", True)
    }
    assert {name: s.qos for name, s in world.session("c").subscriptions.items()} == {
        "a": 1,
        "b": 0,
        "c": 2,
    }
    client.send(Unsubscribe(10, ["b", "b", "x", "a"]))
    assert client.take() == [Unsuback(10, [0, 0x11, 0x11, 0] if version == 5 else [])]
    assert set(world.session("c").subscriptions) == {"c"}


@pytest.mark.statement("MQTT-3.8.4-4", "3.1.1/MQTT-3.8.4-3")
@ALL
def test_a_replaced_subscription_loses_nothing(version: int) -> None:
    """MQTT-3.8.4-3, -4: the retained message comes again, what was in flight and the queue stay."""
    world = World()
    publisher = world.connect("p")
    publisher.publish("t", b"kept", retain=True)
    client = world.connect(
        "c", version, properties={P.RECEIVE_MAXIMUM: 1} if version == 5 else None
    )
    assert client.subscribe("t", qos=1) == [1]
    assert client.payloads() == [b"kept"]
    got: list[bytes] = []
    for number in range(1, 6):
        publisher.publish("t", b"%d" % number, 1, packet_id=number)
        client.send(Subscribe(number, [SubscriptionRequest("t", 1 + number % 2)]))
        packets = client.take()
        assert [p.codes for p in packets if isinstance(p, Suback)] == [[1 + number % 2]]
        got += [p.payload for p in packets if isinstance(p, Publish)]
    for _ in range(10):
        client.send(*(Puback(n) for n in list(world.session("c").inflight)))
        got += client.payloads()
    assert [body for body in got if body != b"kept"] == [b"1", b"2", b"3", b"4", b"5"]
    assert got.count(b"kept") == 5
    assert len(world.session("c").subscriptions) == 1


@pytest.mark.statement("MQTT-3.10.4-2", "MQTT-3.10.4-3", "3.1.1/MQTT-3.10.4-2")
@pytest.mark.statement("3.1.1/MQTT-3.10.4-3")
@ALL
@pytest.mark.parametrize("qos", [1, 2])
def test_delivery_goes_on_after_unsubscribe(version: int, qos: int) -> None:
    """Nothing new; what was begun is completed, over a reconnection, too."""
    world = World()
    publisher = world.connect("p")
    keep = {P.SESSION_EXPIRY_INTERVAL: 100} if version == 5 else None
    client = world.connect("c", version, clean=False, properties=keep)
    client.subscribe("t", qos=2)
    publisher.publish("t", b"begun", qos)
    assert client.payloads() == [b"begun"]
    client.unsubscribe("t")
    publisher.publish("t", b"new", qos, packet_id=2)
    assert client.take() == []
    client.vanish()
    client = world.connect("c", version, clean=False, properties=keep)
    assert client.inbox == [Publish("t", b"begun", qos, dup=True, packet_id=1)]
    client.inbox = []
    if qos == 1:
        client.send(Puback(1))
    else:
        client.send(Pubrec(1))
        assert client.take() == [Pubrel(1)]
        client.send(Pubcomp(1))
    assert client.take() == []
    assert not world.session("c").inflight


@pytest.mark.statement("MQTT-3.6.1-1", "MQTT-3.8.1-1", "MQTT-3.10.1-1", "3.1.1/MQTT-3.6.1-1")
@pytest.mark.statement("3.1.1/MQTT-3.8.1-1", "3.1.1/MQTT-3.10.1-1", "3.1/other flags of these")
@ALL
@pytest.mark.parametrize(
    "first",
    [0x80, 0x81, 0x83, 0x86, 0x8F, 0xA0, 0xA1, 0xA3, 0xA6, 0xAF, 0x60, 0x61, 0x63, 0x66, 0x6F],
)
def test_wrong_reserved_flags_of_a_packet_close_the_connection(version: int, first: int) -> None:
    """Anything but 0010 closes the connection (3.1 has DUP there, too)."""
    world = World()
    client = world.connect("c", version)
    body = {0x80: b"\0\1\0\0\1t\0", 0xA0: b"\0\1\0\0\1t", 0x60: b"\0\1"}[first & 0xF0]
    if version != 5:
        body = body[:2] + body[3:]
    client.send(bytes((first, len(body))) + body)
    assert client.closed
    assert not world.session("c").subscriptions if "c" in world.node.sessions else True
    assert client.last_reason() == (0x81 if version == 5 else None)


# What the payload of a SUBSCRIBE may not be, behind its packet identifier; (versions, bytes,
# reason)
BAD_SUBSCRIBES: dict[str, tuple[tuple[int, ...], bytes, int]] = {
    "no filter": ((3, 4), b"", 0),
    "no filter in 5": ((5,), b"\0", 0x82),
    "no options": ((3, 4), b"\0\1t", 0),
    "QoS 3": ((3, 4), b"\0\1t\3", 0),
    "QoS 3 in 5": ((5,), b"\0\0\1t\3", 0x82),
    "reserved bits": ((3, 4), b"\0\1t\4", 0),
    "reserved bits in 5": ((5,), b"\0\0\1t\x40", 0x81),
    "the other reserved bit in 5": ((5,), b"\0\0\1t\x80", 0x81),
    "Retain Handling 3": ((5,), b"\0\0\1t\x30", 0x82),
    "No Local on a shared subscription": ((5,), b"\0\0\x0a$share/g/t\4", 0x82),
    "the second of two": ((5,), b"\0\0\1t\0\0\1u\x40", 0x81),
}


@pytest.mark.statement("MQTT-3.8.3-2", "MQTT-3.8.3-4", "MQTT-3.8.3-5", "3.1.1/MQTT-3.8.3-3")
@pytest.mark.statement("3.1.1/MQTT-3.8.3-4")
@pytest.mark.parametrize("what", BAD_SUBSCRIBES)
def test_a_malformed_subscribe_closes_the_connection(what: str) -> None:
    versions, payload, reason = BAD_SUBSCRIBES[what]
    for version in versions:
        world = World()
        client = world.connect("c", version)
        client.send(bytes((0x82, len(payload) + 2, 0, 1)) + payload)
        assert client.closed
        assert client.last_reason() == (reason or None)
        assert not world.node.dispatcher.trie


@pytest.mark.statement("MQTT-3.10.4-1", "MQTT-3.10.4-4", "MQTT-3.10.4-5", "3.1.1/MQTT-3.10.4-1")
@pytest.mark.statement("3.1.1/MQTT-3.10.4-5")
@ALL
def test_filters_are_compared_letter_by_letter(version: int) -> None:
    """MQTT-3.10.4-1, -4, -5: what only means the same is not unsubscribed; the answer comes all the
    same."""
    world = World()
    client = world.connect("c", version)
    client.subscribe("a/b", "a/+", "\u00e9", "$share/g/a/b")
    others = ["a/#", "A/b", "a/b/", "+/b", "e\u0301", "$share/h/a/b", "/a/b"]
    assert client.unsubscribe(*others) == ([0x11] * len(others) if version == 5 else [])
    assert set(world.session("c").subscriptions) == {"a/b", "a/+", "\u00e9", "$share/g/a/b"}


# ---------------------------------------------------------------- what is delivered


@pytest.mark.statement("MQTT-3.3.2-3", "MQTT-4.5.0-1", "MQTT-4.7.1-1", "MQTT-4.7.1-2")
@pytest.mark.statement("MQTT-4.7.2-1", "3.1.1/MQTT-3.3.2-3", "3.1.1/MQTT-4.5.0-1")
@pytest.mark.statement("3.1.1/MQTT-4.7.1-2", "3.1.1/MQTT-4.7.1-3", "3.1.1/MQTT-4.7.2-1")
@pytest.mark.statement("3.1/`$` topics, wildcards, UTF-8", "3.1.1/MQTT-3.8.3-2")
@ALL
def test_delivered_topics_match_a_filter_of_the_client(version: int) -> None:
    """Each client with a matching filter, and no other."""
    table = {
        "#": {"a", "a/b", "/a", "a//b", "a/b/c"},
        "a/#": {"a", "a/b", "a//b", "a/b/c"},
        "+": {"a"},
        "+/+": {"a/b", "/a"},
        "a/+/b": {"a//b"},
        "/+": {"/a"},
        "a/+/#": {"a/b", "a//b", "a/b/c"},
        "$SYS/#": {"$SYS/x"},
        "$SYS/+": {"$SYS/x"},
        "+/x": set(),
    }
    world = World()
    clients = {
        topic_filter: world.connect(f"c{n}", version) for n, topic_filter in enumerate(table)
    }
    for topic_filter, client in clients.items():
        client.subscribe(topic_filter, qos=1)
    publisher = world.connect("p", version)
    for number, topic in enumerate(["a", "a/b", "/a", "a//b", "a/b/c"], 1):
        publisher.publish(topic, b"x", number % 2, packet_id=number)
    world.node.publisher.publish_internal("$SYS/x", b"x", 0, False)
    world.settle()
    assert {
        topic_filter: {p.topic for p in client.take_publishes()}
        for topic_filter, client in clients.items()
    } == table


# ---------------------------------------------------------------- shared subscriptions


def shared(world: World, name: str, qos: int = 2) -> FakeClient:
    client = world.connect(name, clean=False, properties={P.SESSION_EXPIRY_INTERVAL: 100})
    if not client.connack.session_present:
        client.subscribe("$share/g/t", qos=qos)
    return client


@pytest.mark.statement("MQTT-4.8.2-4", "MQTT-4.8.2-5")
@pytest.mark.parametrize("state", ["nothing answered", "PUBREC sent"])
def test_qos_2_of_a_shared_subscription_is_completed_with_the_same_client(state: str) -> None:
    """When it comes back; no other member gets it, neither meanwhile nor when its session ends."""
    world = World()
    first = shared(world, "first")
    world.connect("p").publish("t", b"x", 2)
    assert first.payloads() == [b"x"]
    other = shared(world, "other")
    if state == "PUBREC sent":
        first.send(Pubrec(1))
        first.take()
    first.vanish()
    world.advance(50)
    assert other.take() == []
    first = shared(world, "first")
    again: Packet = (
        Pubrel(1) if state == "PUBREC sent" else Publish("t", b"x", 2, dup=True, packet_id=1)
    )
    assert first.inbox == [again]
    first.vanish()
    world.advance(101)
    assert "first" not in world.node.sessions
    assert other.take() == []
