"""Will messages (MQTT 3.1.2.5, 3.1.3.2, 3.14.4)."""

from __future__ import annotations

import pytest

from mqttree.broker.wire import Connack, Disconnect, Property, Publish, Will
from mqttree.broker.wire.constants import MAX_TOPIC_LEVELS
from tests.kit.node_harness import FakeClient, World, connect_packet

ALL = pytest.mark.parametrize("version", [3, 4, 5])
P = Property


def watched(**config) -> tuple[World, FakeClient]:
    world = World(**config)
    watcher = world.connect("w")
    watcher.subscribe("will/#", qos=2)
    return world, watcher


def test_a_will_is_published_with_its_properties() -> None:
    world, watcher = watched()
    properties = {
        P.WILL_DELAY_INTERVAL: 0,
        P.PAYLOAD_FORMAT_INDICATOR: 1,
        P.MESSAGE_EXPIRY_INTERVAL: 60,
        P.CONTENT_TYPE: "t",
        P.RESPONSE_TOPIC: "r",
        P.CORRELATION_DATA: b"\x01\x02",
        P.USER_PROPERTY: [("k", "v")] * 50,
    }
    for qos in (0, 1, 2):
        world.connect("a", will=Will("will/a", b"gone", qos, False, dict(properties))).vanish()
        (packet,) = watcher.take_publishes()
        del packet.properties[P.MESSAGE_EXPIRY_INTERVAL]
        expected = {
            k: v
            for k, v in properties.items()
            if k not in (P.WILL_DELAY_INTERVAL, P.MESSAGE_EXPIRY_INTERVAL)
        }
        assert (packet.topic, packet.payload, packet.qos, packet.retain) == (
            "will/a",
            b"gone",
            qos,
            False,
        )
        assert list(packet.properties.items()) == list(expected.items())
    assert world.counters.wills == 3


@pytest.mark.statement("MQTT-3.1.2-8", "3.1.1/MQTT-3.1.2-8")
@ALL
@pytest.mark.parametrize(
    "end",
    [
        "vanish",
        "keep-alive",
        "garbage",
        "protocol error",
        "take-over",
        "slow",
        "disconnect 0x04",
        "disconnect 0x81",
    ],
)
def test_wills_of_connections_that_end_otherwise(version: int, end: str) -> None:
    """MQTT-3.1.2-8 and 3.1.2.5; DISCONNECT with anything but 0x00 (MQTT-3.1.2-10, 3.14.4)."""
    world, watcher = watched()
    client = world.connect("a", version, keep_alive=10, will=Will("will/a", b"gone", 1))
    match end:
        case "vanish":
            client.vanish()
        case "keep-alive":
            world.advance(16)
        case "garbage":
            client.send(b"\x00\x00")
        case "protocol error":
            client.send(connect_packet("a", version))
        case "take-over":
            world.connect("a", version)
        case "slow":
            client.conn.abort("slow")
            world.settle()
        case _:
            if version < 5:
                return
            client.disconnect(int(end.rpartition(" ")[2], 16))
    assert client.closed
    assert watcher.payloads() == [b"gone"]


@pytest.mark.statement("MQTT-3.1.2-8", "MQTT-3.1.2-10", "MQTT-3.14.4-3", "3.1.1/MQTT-3.1.2-10")
@pytest.mark.statement("3.1.1/MQTT-3.14.4-3")
@ALL
def test_a_disconnect_discards_the_will(version: int) -> None:
    world, watcher = watched()
    client = world.connect("a", version, will=Will("will/a", b"gone"))
    client.disconnect()
    client.vanish()
    world.connect("a", version).vanish()
    assert watcher.take() == []


def test_a_will_reaches_the_clients_own_kept_session() -> None:
    world = World()
    keep = {P.SESSION_EXPIRY_INTERVAL: 100}
    client = world.connect("a", properties=keep, will=Will("will/a", b"gone", 1))
    client.subscribe("will/#", qos=1)
    client.vanish()
    assert [p.payload for p in world.connect("a", clean=False, properties=keep).inbox] == [b"gone"]


# ---------------------------------------------------------------- delay


def delayed(world: World, delay: int, expiry: int, clean: bool = True) -> FakeClient:
    return world.connect(
        "a",
        clean=clean,
        properties={P.SESSION_EXPIRY_INTERVAL: expiry},
        will=Will("will/a", b"gone", 1, False, {P.WILL_DELAY_INTERVAL: delay}),
    )


@pytest.mark.statement("MQTT-3.1.2-8")
@pytest.mark.parametrize(
    ("delay", "expiry", "due"), [(5, 100, 5), (100, 5, 5), (5, 0xFFFFFFFF, 5), (5, 5, 5), (5, 0, 0)]
)
def test_a_will_is_sent_after_its_delay(delay: int, expiry: int, due: int) -> None:
    """After the delay or when the session ends, whichever is first."""
    world, watcher = watched()
    delayed(world, delay, expiry).vanish()
    if due:
        world.advance(due - 0.1)
        assert watcher.take() == []
    world.advance(0.2)
    assert watcher.payloads() == [b"gone"]
    world.advance(1000)
    assert watcher.take() == []
    assert world.counters.wills == 1


@pytest.mark.statement("MQTT-3.1.2-8", "MQTT-3.1.3-9")
@pytest.mark.parametrize("take_over", [False, True])
def test_a_client_that_is_back_in_time(take_over: bool) -> None:
    world, watcher = watched()
    client = delayed(world, 5, 100)
    if not take_over:
        client.vanish()
        world.advance(3)
    client = world.connect("a", clean=False, properties={P.SESSION_EXPIRY_INTERVAL: 100})
    world.advance(10)
    client.vanish()
    world.advance(1000)
    assert watcher.take() == []


def test_each_absence_has_its_own_delay() -> None:
    world, watcher = watched()
    for _ in range(3):
        delayed(world, 5, 100, clean=False).vanish()
        world.advance(3)
    assert watcher.take() == []
    world.advance(3)
    assert watcher.payloads() == [b"gone"]


def test_disconnect_with_will_waits_for_the_delay_too() -> None:
    world, watcher = watched()
    delayed(world, 5, 100).disconnect(0x04)
    world.advance(4)
    assert watcher.take() == []
    world.advance(2)
    assert watcher.payloads() == [b"gone"]


# ---------------------------------------------------------------- wills that cannot be


@pytest.mark.statement("MQTT-3.2.2-12")
@pytest.mark.parametrize(
    ("will", "code"), [(Will("will/a", b"x", 2), 0x9B), (Will("/" * MAX_TOPIC_LEVELS, b"x"), 0x90)]
)
def test_a_will_beyond_the_maximum_qos_or_topic_levels_is_refused(will: Will, code: int) -> None:
    world, _ = watched(max_qos=1)
    for version in (4, 5):
        client = world.open(version)
        client.send(connect_packet("a", version, will=will))
        assert client.take() == [Connack(False, code if version == 5 else 3)]


def test_no_will_of_a_connection_that_was_refused() -> None:
    world = World(allow_anonymous=False)
    client = world.open()
    client.send(connect_packet("a", will=Will("will/a", b"x")))
    assert client.closed
    assert world.counters.wills == 0


def test_wills_of_many_at_once_reach_each_other() -> None:
    """A will that is sent while connections are being closed for reading too slowly."""
    world = World()
    clients = [world.connect(f"c{n}", will=Will(f"will/{n}", b"gone")) for n in range(20)]
    for client in clients:
        client.subscribe("will/+")
    for client in clients[:19]:
        client.conn.receive(b"\x00\x00", world.now)
    world.settle()
    assert all(c.closed for c in clients[:19])
    assert len(clients[19].take_publishes()) == 19
    assert [type(p) for p in clients[0].take()] == [Disconnect]
    assert {type(p) for p in clients[18].take()} == {Publish, Disconnect}
