"""$SYS: Mosquitto's names, what they say, when it is published, and the averages."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.core.sys_topics import AVERAGES, LOADS, Load, SysTopics
from mqttree.broker.limits import Limits
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Pingreq, Puback, Pubcomp, Publish, Pubrec, Pubrel
from mqttree.broker.wire.properties import Property
from tests.kit.node_harness import World

# Read off Mosquitto 2.0.11 with mosquitto_sub, all of it; and what only its manual page has:
# clients/maximum, messages/inflight.
NAMES = {
    "version",
    "uptime",
    "clients/total",
    "clients/maximum",
    "clients/connected",
    "clients/active",
    "clients/disconnected",
    "clients/inactive",
    "clients/expired",
    "messages/received",
    "messages/sent",
    "messages/stored",
    "messages/inflight",
    "publish/messages/received",
    "publish/messages/sent",
    "publish/messages/dropped",
    "bytes/received",
    "bytes/sent",
    "publish/bytes/received",
    "publish/bytes/sent",
    "shared_subscriptions/count",
    "subscriptions/count",
    "retained messages/count",
    "store/messages/count",
    "store/messages/bytes",
    "heap/current",
    "heap/maximum",
    *(
        f"load/{what}/{window}"
        for what in (
            "messages/received",
            "messages/sent",
            "publish/received",
            "publish/sent",
            "publish/dropped",
            "bytes/received",
            "bytes/sent",
            "connections",
            "sockets",
        )
        for window in ("1min", "5min", "15min")
    ),
}


class Told:
    """A node's statistics on its virtual clock."""

    def __init__(self) -> None:
        self.world = World()
        self.memory = 1000
        self.topics = SysTopics(self.world.node, "mqttree version 1", lambda: self.memory)
        self.topics.start(self.world.now)

    def value(self, name: str) -> str:
        message = self.world.node.retained.get(f"$SYS/broker/{name}")
        assert message is not None
        return message.payload.decode()


@pytest.fixture
def told() -> Told:
    return Told()


def test_the_names_are_mosquittos(told: Told) -> None:
    found = {topic.removeprefix("$SYS/broker/") for topic in told.world.node.retained.topics()}
    assert found == NAMES
    assert set(told.topics.values(0.0)) == NAMES


def test_clients_that_are_sent_elsewhere_have_topics_where_that_is_switched_on() -> None:
    world = World(redirect_clients=True)
    world.counters.redirected = 3
    topics = SysTopics(world.node, "mqttree version 1", lambda: 1000)
    found = topics.values(0.0)
    names = {"sent", "ignored", "forgone", "topics_invalid"}
    assert found.keys() - NAMES == {f"redirection/{name}" for name in names}
    assert found["redirection/sent"] == "3"
    assert found["redirection/ignored"] == "0"


def test_sys_topics_have_the_values_of_the_counters(told: Told) -> None:
    world = told.world
    client = world.connect("c").subscribed("a/+")
    for number in range(3):
        client.publish("a/b", b"%d" % number)
    client.publish("a/b", b"one", 1, packet_id=7)
    client.publish("a/k", b"kept", retain=True)
    told.memory = 500
    world.advance(10.0)
    assert told.value("uptime") == "10 seconds"
    assert told.value("version") == "mqttree version 1"
    assert (
        told.value("clients/connected")
        == told.value("clients/active")
        == told.value("clients/total")
        == "1"
    )
    assert told.value("clients/disconnected") == told.value("clients/inactive") == "0"
    assert told.value("publish/messages/received") == "5"
    assert told.value("publish/messages/sent") == "5"
    assert told.value("messages/received") == "7"  # CONNECT, SUBSCRIBE, 5 PUBLISH
    assert told.value("messages/sent") == "8"  # CONNACK, SUBACK, PUBACK, 5 PUBLISH
    assert told.value("subscriptions/count") == "1"
    assert told.value("retained messages/count") == str(len(NAMES) + 1)
    assert told.value("heap/current") == "500"
    assert told.value("heap/maximum") == "1000"
    assert float(told.value("load/publish/received/1min")) == pytest.approx(
        30 * (1 - math.exp(-1 / 6)), abs=0.01
    )
    assert float(told.value("load/connections/15min")) == pytest.approx(
        6 * (1 - math.exp(-1 / 90)), abs=0.01
    )
    client.disconnect()
    world.advance(10.0)
    assert told.value("clients/connected") == "0"
    assert told.value("clients/maximum") == "1"


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_packets_are_counted_on_every_path(version: int, qos: int, told: Told) -> None:
    """Each packet is counted once, whether a run took it or not."""
    world = told.world
    client = world.connect("c", version=version)
    before = world.counters.packets_received, world.counters.packets_sent
    assert before == (1, 1)
    for number in range(1, 5):  # the first finds no route and goes the long way
        client.publish("t", b"x", qos, packet_id=number if qos else None)
        if qos == 2:
            client.send(Pubrel(number))
    each = (1, 1, 2)[qos], (0, 1, 2)[qos]
    assert world.counters.packets_received - before[0] == 4 * each[0]
    assert world.counters.packets_sent - before[1] == 4 * each[1]
    assert world.counters.publish_received == 4
    assert world.counters.as_dict()["packets_received"] == world.counters.packets_received
    assert "published_runs" not in world.counters.as_dict()


@given(st.data())
def test_bytes_of_publish_packets_are_what_is_left(data: st.DataObject) -> None:
    """They are not measured, everything else is; whatever the versions, QoS, sizes and paths."""
    world = World()
    versions = data.draw(st.lists(st.sampled_from([4, 5]), min_size=2, max_size=3))
    clients = [
        world.connect(f"c{number}", version=version) for number, version in enumerate(versions)
    ]
    for client in clients:
        client.subscribe(
            data.draw(st.sampled_from(["t", "+", "t/#", "$share/g/t"])),
            qos=data.draw(st.sampled_from([0, 1, 2])),
        )
        client.take()
    came = went = 0
    for number in range(1, data.draw(st.integers(1, 6))):
        client = data.draw(st.sampled_from(clients))
        qos = data.draw(st.sampled_from([0, 0, 1, 2]))
        properties = (
            data.draw(st.sampled_from([None, {Property.CONTENT_TYPE: "x"}]))
            if client.version == 5
            else None
        )
        payload = bytes(data.draw(st.sampled_from([0, 1, 130, 20_000])))
        publish = Publish(
            "t", payload, qos, data.draw(st.booleans()), False, number if qos else None, properties
        )
        packet = encode_packet(publish, client.version)
        came += len(packet)
        client.send(packet, *([Pubrel(number)] if qos == 2 else []), Pingreq())
        for other in clients:
            for found in other.take():
                if isinstance(found, Publish):
                    went += len(encode_packet(found, other.version))
                    if found.qos:
                        other.send(
                            Puback(found.packet_id or 0)
                            if found.qos == 1
                            else Pubrec(found.packet_id or 0)
                        )
                elif isinstance(found, Pubrel):
                    other.send(Pubcomp(found.packet_id))
    assert world.counters.publish_bytes_received == came
    assert world.counters.publish_bytes_sent == went


def test_shared_subscriptions_are_counted_separately(told: Told) -> None:
    def counts() -> tuple[str, str]:
        found = told.topics.values(0.0)
        return found["subscriptions/count"], found["shared_subscriptions/count"]

    one, two = told.world.connect("1"), told.world.connect("2", 4, clean=False)
    one.subscribe("t", "$share/g/t", "$share/h/t")
    two.subscribe("$share/g/t", "u/+")
    one.subscribe("$share/g/t", "t")  # again
    assert counts() == ("2", "3")
    two.unsubscribe("$share/g/t", "$share/x/t")
    assert counts() == ("2", "2")
    two.subscribe("$share/g/t")
    two.disconnect()
    assert counts() == ("2", "3")  # that of a session counts while it lasts
    one.disconnect()
    assert counts() == ("1", "1")


def test_only_what_changed_is_published_and_at_qos_0(told: Told) -> None:
    world = told.world
    watcher = world.connect("w").subscribed("$SYS/#", qos=2)
    first = [p for p in watcher.take() if isinstance(p, Publish)]
    assert {p.topic.removeprefix("$SYS/broker/") for p in first} == NAMES
    assert all(p.retain and p.qos == 0 for p in first)
    world.advance(10.0)
    watcher.take()
    world.advance(10.0)
    changed = [p for p in watcher.take() if isinstance(p, Publish)]
    names = {p.topic.removeprefix("$SYS/broker/") for p in changed}
    assert "uptime" in names and "version" not in names and "clients/total" not in names
    assert not any(p.retain or p.qos for p in changed)


def test_no_other_client_sees_them(told: Told) -> None:
    world = told.world
    watcher = world.connect("w").subscribed("#", "+/broker/uptime")
    watcher.take()
    published = world.counters.published
    world.advance(60.0)
    assert not watcher.take()
    assert world.counters.published == published  # and they are not counted


def test_averages_approach_the_rate() -> None:
    load = Load()
    for tick in range(1, 1000):
        load.update(tick * 50, 10.0)
    assert all(average == pytest.approx(300.0, rel=1e-4) for average in load.averages.values())
    for _ in range(6):
        load.update(999 * 50, 10.0)
    assert load.averages["1min"] == pytest.approx(300 / math.e, rel=0.01)
    assert load.averages["15min"] > load.averages["5min"] > load.averages["1min"]
    assert set(load.averages) == set(AVERAGES)


def test_many_sessions_are_not_asked(told: Told) -> None:
    world = told.world
    world.connect("away", 4, clean=False).subscribed("q", qos=1).disconnect()
    other = world.connect("here").subscribed("q", qos=1)
    other.publish("q", b"wait", 1, packet_id=1)
    assert told.topics.values(world.now)["messages/inflight"] == "1"
    for packet in other.take():
        if isinstance(packet, Publish):
            other.send(Puback(packet.packet_id or 0))
    assert told.topics.values(world.now)["messages/inflight"] == "0"
    assert told.topics.values(world.now)["messages/stored"] == str(len(NAMES) + 1)
    world.node.limits = Limits(sys_sessions=1)
    assert told.topics.values(world.now)["messages/stored"] == str(len(NAMES))


def test_every_load_is_a_sum_of_counters() -> None:
    world: Any = World()
    assert all(isinstance(count(world.counters), int) for count in LOADS.values())
