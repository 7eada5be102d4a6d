"""Bridges of other brokers: CONNECT with the top bit of the protocol level is a client whose
subscriptions have No Local and Retain As Published, and a ring of bridges is opened."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.core.bridge import (
    BRIDGE_READS,
    DIGITS,
    FIRST_PROBE_INTERVAL_S,
    MAX_PROBE_INTERVAL_S,
    TOPIC,
)
from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.packets import (
    Connack,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    SubscriptionRequest,
)
from mqttree.broker.wire.properties import Property
from tests.kit.node_harness import FakeClient, World, connect_packet

GOLDEN = {
    # What Mosquitto 2.0.11 sends (the first two of them): a session that is kept, keep-alive 60 s,
    # and a will that says that the bridge is down.
    0x83: b"\x10\x3e\x00\x06MQIsdp\x83\x2c\x00\x3c\x00\x07host.up"
    b"\x00\x24$SYS/broker/connection/host.up/state\x00\x010",
    0x84: b"\x10\x3c\x00\x04MQTT\x84\x2c\x00\x3c\x00\x07host.up"
    b"\x00\x24$SYS/broker/connection/host.up/state\x00\x010",
    0x85: b"\x10\x14\x00\x04MQTT\x85\x02\x00\x3c\x00\x00\x07host.up",
}
"""CONNECT packets of bridges, by protocol level."""
STATE = b"\x33\x29\x00\x24$SYS/broker/connection/host.up/state\x00\x011"
SUBSCRIBE = b"\x82\x06\x00\x02\x00\x01#\x02"
"""What Mosquitto sends behind CONNACK: a retained message that the bridge is up, and its filter."""

OLD = pytest.mark.parametrize("level", [0x83, 0x84])


def bridge(
    world: World, client_id: str = "host.up", version: int = 4, *filters: str, **options: bool
) -> FakeClient:
    """A bridge that is connected and has subscribed at QoS 2."""
    client = world.open(version)
    connect = connect_packet(client_id, version, **options)
    connect.bridge = True
    client.send(connect)
    (client.connack,) = client.take()  # type: ignore[assignment]
    if filters:
        client.subscribe(*filters, qos=2)
    return client


# ---------------------------------------------------------------- CONNECT and subscriptions


@pytest.mark.parametrize("level", GOLDEN)
def test_a_bridge_is_a_client(level: int) -> None:
    world = World()
    client = world.open(level & 0x7F).sent(GOLDEN[level])
    (connack,) = client.take()
    assert isinstance(connack, Connack)
    assert connack.code == 0
    assert "host.up" in world.node.sessions
    assert world.counters.connects == 1
    assert world.counters.malformed == world.counters.links_refused == 0
    assert not world.logged


@OLD
def test_mosquittos_first_packets_are_answered(level: int) -> None:
    """The topic of its state begins with `$`: it is acknowledged, and stays there."""
    world = World()
    other = world.connect("other", 4).subscribed("#", "$SYS/#", qos=2)
    client = world.open(level & 0x7F).sent(GOLDEN[level])
    client.take()
    client.send(STATE + SUBSCRIBE)
    assert client.take() == [Puback(1), Suback(2, [2])]
    client.vanish()
    assert other.take() == []
    assert {level for level, _ in world.lines} == {"debug"}


@OLD
def test_subscriptions_of_a_bridge_have_no_local_and_retain_as_published(level: int) -> None:
    world = World()
    version = level & 0x7F
    client, other = bridge(world, "b", version, "#"), world.connect("other", 4)
    other.subscribe("#", qos=2)
    other.send(
        Publish("t", b"0"),
        Publish("t", b"1", 1, retain=True, packet_id=1),
        Publish("t", b"2", 2, retain=True, packet_id=2),
    )
    assert client.take_publishes() == [
        Publish("t", b"0"),
        Publish("t", b"1", 1, True, packet_id=1),
        Publish("t", b"2", 2, True, packet_id=2),
    ]
    client.send(Puback(1), Pubrec(2), Pubcomp(2))
    client.take()
    client.send(Publish("t", b"mine"), Publish("t", b"mine", 2, packet_id=1), Pubrel(1))
    assert client.take() == [Pubrec(1), Pubcomp(1)]
    got = [packet for packet in other.take() if isinstance(packet, Publish)]
    assert [packet.payload for packet in got[-2:]] == [b"mine", b"mine"]


def test_a_session_of_a_bridge_keeps_its_options_while_it_is_away() -> None:
    world = World()
    bridge(world, "b", 4, "#", clean=False).vanish()
    world.connect("other", 4).send(Publish("t", b"x", 1, retain=True, packet_id=1))
    client = world.open(4)
    connect = connect_packet("b", 4, clean=False)
    connect.bridge = True
    client.send(connect)
    assert client.take() == [Connack(True, 0), Publish("t", b"x", 1, True, packet_id=1)]


def test_a_shared_subscription_of_a_bridge_has_no_no_local() -> None:
    """MQTT-3.8.3-4."""
    world = World()
    client = bridge(world, "b", 4, "$share/g/t")
    client.publish("t")
    assert client.payloads() == [b"x"]


def test_a_bridge_with_mqtt_5_says_its_options_itself() -> None:
    world = World()
    client = bridge(world, "b", 5).subscribed("echo", SubscriptionRequest("quiet", 2, True, True))
    client.publish("quiet")
    client.publish("echo", retain=True)
    assert client.take_publishes() == [Publish("echo", b"x")]


def test_a_client_without_the_bit_has_no_such_options() -> None:
    client = World().connect("c", 4).subscribed("#")
    client.publish("t", retain=True)
    assert client.take_publishes() == [Publish("t", b"x")]


# ---------------------------------------------------------------- bad input


@given(st.sampled_from(sorted(GOLDEN)), st.integers(0, 70), st.binary(max_size=8))
def test_a_connect_with_garbage_in_it_is_answered_or_closed(
    level: int, at: int, garbage: bytes
) -> None:
    """The harness raises what the node does not catch."""
    world = World()
    client = world.open(level & 0x7F)
    data = GOLDEN[level]
    client.transport.written.clear()
    client.conn.receive(data[:at] + garbage + data[at + len(garbage) :], world.now)
    world.settle(client.conn)
    assert len(world.node.sessions) <= 1


@pytest.mark.parametrize(
    "said",
    [
        [("protocol", "3")],
        [("boot", "1"), ("address", "10.0.0.1:1883")],
        [("protocol", "3"), ("boot", "1"), ("address", "10.0.0.1:1883")],
    ],
    ids=["protocol", "boot", "half"],
)
def test_half_of_a_links_properties_are_a_broken_link(said: list[tuple[str, str]]) -> None:
    world = World()
    client = world.open(5)
    connect = connect_packet("00" * 8, 5, properties={Property.USER_PROPERTY: said})
    connect.bridge = True
    client.send(connect)
    assert client.last_reason() in (ReasonCode.MALFORMED_PACKET, ReasonCode.NOT_AUTHORIZED)
    assert client.closed
    assert not world.node.sessions
    assert world.counters.malformed + world.counters.links_refused == 1


def test_a_bridge_with_other_user_properties_is_a_client() -> None:
    world = World()
    client = world.open(5)
    said = [("cluster", "theirs"), ("name", "b")]
    connect = connect_packet("b", 5, properties={Property.USER_PROPERTY: said})
    connect.bridge = True
    client.send(connect)
    assert not client.closed
    assert "b" in world.node.sessions


@pytest.mark.statement("MQTT-3.1.2-2", "3.1.1/MQTT-3.1.2-2")
@pytest.mark.parametrize(
    "beginning", [b"\x00\x06MQIsdp\x84", b"\x00\x04MQTT\x83", b"\x00\x04MQTT\x86"]
)
def test_a_level_that_does_not_go_with_the_name_is_refused(beginning: bytes) -> None:
    world = World()
    client = world.open(4)
    body = beginning + b"\x02\x00\x3c\x00\x01b"
    client.send(b"\x10" + bytes((len(body),)) + body)
    assert client.take() == [Connack(False, 1)]
    assert client.closed


# ---------------------------------------------------------------- rings


def busy(client: FakeClient, messages: int = BRIDGE_READS) -> list[Publish]:
    """Have a bridge send a lot; returns what it got meanwhile."""
    got = []
    for _ in range(messages):
        client.publish("busy")
        got += client.take_publishes()
    return got


def probes(packets: list[Publish]) -> list[Publish]:
    """Those that are probes."""
    return [packet for packet in packets if packet.topic.encode().startswith(TOPIC)]


def two(world: World) -> tuple[FakeClient, FakeClient]:
    """Two bridges that have been connected for a while."""
    pair = bridge(world, "older", 4, "#"), bridge(world, "younger", 4, "#")
    world.advance(FIRST_PROBE_INTERVAL_S)
    return pair


def test_a_busy_bridge_is_probed_and_intervals_double() -> None:
    world = World()
    older, younger = two(world)
    (probe,) = probes(busy(older))
    assert len(probe.topic) == len(TOPIC) + DIGITS
    assert (probe.payload, probe.qos, probe.retain) == (b"", 0, False)
    assert not probes(younger.take_publishes())
    gaps = []
    for _ in range(12):
        began = world.now
        while not probes(busy(older, 1)):
            world.advance(0.5)
        gaps.append(world.now - began)
    assert gaps == sorted(gaps)
    assert gaps[-1] >= MAX_PROBE_INTERVAL_S


def test_no_lone_bridge_is_probed_and_none_that_does_not_want_it() -> None:
    world = World()
    alone = bridge(world, "alone", 4, "#")
    world.advance(FIRST_PROBE_INTERVAL_S)
    assert not busy(alone)
    narrow = bridge(world, "narrow", 4, "a/#")
    world.advance(FIRST_PROBE_INTERVAL_S)
    assert not probes(busy(narrow))


def test_the_younger_bridge_of_a_ring_is_closed_and_refused_while_the_older_is_connected() -> None:
    world = World()
    older, younger = two(world)
    (probe,) = probes(busy(older))
    younger.send(probe)
    assert younger.closed
    assert not older.closed
    assert "younger" not in world.node.sessions
    assert not probes(older.take_publishes())
    assert world.counters.bridge_loops == 1
    (line,) = (text for level, text in world.lines if level == "warning")
    assert "older" in line
    assert "younger" in line
    again = bridge(world, "younger", 4)
    assert again.connack == Connack(False, 3)
    assert again.closed
    assert len([level for level, _ in world.lines if level == "warning"]) == 1
    older.vanish()
    assert bridge(world, "younger", 4).connack.code == 0


def test_the_older_bridge_stays_also_if_the_probe_comes_by_it() -> None:
    world = World()
    older, younger = two(world)
    (probe,) = probes(busy(younger))
    older.send(Publish("t", b"ahead"), probe, Publish("t", b"behind"))
    assert younger.closed
    assert not older.closed
    assert world.counters.bridge_loops == 1


def test_a_message_that_only_looks_like_a_probe_closes_nobody() -> None:
    world = World()
    older, younger = two(world)
    (probe,) = probes(busy(older))
    younger.publish(TOPIC.decode() + "0" * DIGITS)
    younger.publish(TOPIC.decode())
    younger.publish("t", TOPIC)
    older.send(probe)  # back by the same bridge: a broker without No Local
    world.connect("other", 4).send(probe)
    assert not younger.closed
    assert not older.closed
    assert world.counters.bridge_loops == 0


def test_an_old_probe_and_one_of_a_bridge_that_is_gone_close_nobody() -> None:
    world = World()
    older, younger = two(world)
    (first,) = probes(busy(older))
    world.advance(FIRST_PROBE_INTERVAL_S)
    (second,) = probes(busy(older))
    younger.send(first)
    assert not younger.closed
    older.vanish()
    younger.send(second)
    assert not younger.closed
