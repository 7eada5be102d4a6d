"""CONNECT, keep-alive, take-over, DISCONNECT (MQTT 3.1, 3.1.4, 3.14)."""

from __future__ import annotations

import pytest

from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.core.connection import CLOSE_TIMEOUT_S
from mqttree.broker.wire import (
    Connack,
    Disconnect,
    Pingreq,
    Pingresp,
    Property,
    Puback,
    Publish,
    ReasonCode,
    Subscribe,
    SubscriptionRequest,
    Will,
    encode_packet,
)
from tests.kit.node_harness import World, connect_packet

ALL = pytest.mark.parametrize("version", [3, 4, 5])


@pytest.mark.statement("MQTT-3.1.4-5", "MQTT-3.12.4-1", "3.1.1/MQTT-3.1.4-4", "3.1.1/MQTT-3.12.4-1")
@ALL
def test_a_client_may_connect_ping_and_disconnect(version: int) -> None:
    world = World()
    client = world.connect("a", version)
    assert client.connack.code == 0
    assert not client.connack.session_present
    client.send(Pingreq())
    assert client.take() == [Pingresp()]
    client.disconnect()
    assert client.closed
    assert client.take() == []
    assert world.counters.connects == 1
    assert not world.node.connections


@pytest.mark.statement("MQTT-3.2.2-9")
def test_connack_announces_limits() -> None:
    world = World(max_qos=1, max_packet_size=1000, max_keep_alive=60, session_expiry_max=100)
    client = world.connect("a", properties={Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF})
    assert client.connack.properties == {
        Property.TOPIC_ALIAS_MAXIMUM: NodeConfig().topic_alias_maximum,
        Property.MAXIMUM_QOS: 1,
        Property.RECEIVE_MAXIMUM: NodeConfig().receive_maximum,
        Property.MAXIMUM_PACKET_SIZE: 1000,
        Property.SERVER_KEEP_ALIVE: 60,
        Property.SESSION_EXPIRY_INTERVAL: 100,
    }
    assert client.owner.keep_alive == 90


@pytest.mark.statement("MQTT-3.1.3-6", "MQTT-3.1.3-7", "MQTT-3.2.2-16")
def test_a_client_without_id_is_given_one() -> None:
    world = World()
    first, second = world.connect(""), world.connect("", clean=False)
    names = [c.connack.properties[Property.ASSIGNED_CLIENT_IDENTIFIER] for c in (first, second)]
    assert names[0] != names[1]
    assert set(names) == set(world.node.sessions)
    assert Property.ASSIGNED_CLIENT_IDENTIFIER not in world.connect("named").connack.properties


@pytest.mark.statement("MQTT-3.1.3-8", "3.1.1/MQTT-3.1.3-6", "3.1.1/MQTT-3.1.3-7")
@pytest.mark.statement("3.1.1/MQTT-3.1.3-8", "3.1.1/MQTT-3.1.3-9", "3.1.1/MQTT-3.2.2-4")
@pytest.mark.statement("3.1/client identifier")
@pytest.mark.parametrize(
    ("version", "clean", "code"), [(3, True, 2), (3, False, 2), (4, True, 0), (4, False, 2)]
)
def test_clients_before_mqtt_5_need_a_client_id_or_a_clean_session(
    version: int, clean: bool, code: int
) -> None:
    """3.1 asks for 1 to 23 characters."""
    world = World()
    client = world.open(version)
    client.send(connect_packet("", version, clean=clean))
    assert client.take() == [Connack(False, code)]
    assert client.closed == (code != 0)
    assert world.counters.connects_refused == (code != 0)


@pytest.mark.statement("MQTT-3.1.2-4", "MQTT-3.1.2-5", "MQTT-3.1.2-6", "MQTT-3.1.3-2")
@pytest.mark.statement("MQTT-3.1.4-4", "MQTT-3.2.2-2", "MQTT-3.2.2-3", "3.1.1/MQTT-3.1.2-4")
@pytest.mark.statement("3.1.1/MQTT-3.1.2-6", "3.1.1/MQTT-3.1.3-2", "3.1.1/MQTT-3.1.4-3")
@pytest.mark.statement("3.1.1/MQTT-3.2.2-1", "3.1.1/MQTT-3.2.2-2", "3.1.1/MQTT-3.2.2-3")
@pytest.mark.parametrize(
    ("first", "second", "present"),
    [
        ((4, False, None), (4, False, None), True),
        ((4, False, None), (4, True, None), False),
        ((4, True, None), (4, False, None), False),
        ((5, True, 100), (5, False, 100), True),
        ((5, True, None), (5, False, 100), False),
        ((5, False, 100), (5, True, 100), False),
        ((4, False, None), (5, False, 0), True),
        ((5, False, 0xFFFFFFFF), (4, False, None), True),
    ],
)
@pytest.mark.parametrize("takeover", [False, True])
def test_session_present_says_whether_there_was_a_session(
    first: tuple, second: tuple, present: bool, takeover: bool
) -> None:
    """A session that ends with its connection is not there for the next one."""
    world = World()

    def connect(version: int, clean: bool, expiry: int | None):
        properties = None if expiry is None else {Property.SESSION_EXPIRY_INTERVAL: expiry}
        return world.connect("a", version, clean=clean, properties=properties)

    old = connect(*first)
    old.subscribe("t", qos=1)
    if not takeover:
        old.disconnect()
    new = connect(*second)
    assert new.connack.session_present is present
    assert ("t" in world.session("a").subscriptions) is present
    assert old.closed
    assert world.counters.taken_over == takeover


@pytest.mark.statement("MQTT-3.1.4-3", "3.1.1/MQTT-3.1.4-2")
@ALL
def test_a_newer_connection_takes_the_session_over(version: int) -> None:
    """The connection that was first hears 0x8E."""
    world = World()
    old = world.connect("a", version)
    new = world.connect("a", version)
    assert old.take() == ([Disconnect(ReasonCode.SESSION_TAKEN_OVER)] if version == 5 else [])
    assert old.closed
    assert not new.closed
    assert world.session("a").conn is new.conn
    assert world.counters.taken_over == 1


def test_queued_output_is_sent_on_the_old_connection_before_a_takeover() -> None:
    world = World()
    old = world.connect("a", 5, clean=False, properties={Property.SESSION_EXPIRY_INTERVAL: 9})
    old.subscribe("t")
    sender, new = world.connect("s"), world.open()
    node = world.node
    sender.conn.receive(encode_packet(Publish("t", b"1"), 5), world.now)
    new.conn.receive(encode_packet(connect_packet("a", clean=False), 5), world.now)
    sender.conn.receive(encode_packet(Publish("t", b"2"), 5), world.now)
    world.settle()
    assert old.take() == [Publish("t", b"1"), Disconnect(ReasonCode.SESSION_TAKEN_OVER)]
    assert [type(p) for p in new.take()] == [Connack, Publish]
    assert node.counters.delivered == 2


def test_a_protocol_error_closes_a_client_that_waits_for_its_flush() -> None:
    """The connection is closed although its session, not itself, was listed to be flushed."""
    world = World()
    client, sender = world.connect("a"), world.connect("s")
    client.subscribe("t")
    sender.conn.receive(encode_packet(Publish("t", b"1"), 5), world.now)
    client.conn.receive(b"\x00\x00", world.now)
    world.settle()
    assert client.closed
    assert client.take() == [Publish("t", b"1"), Disconnect(ReasonCode.MALFORMED_PACKET)]


@pytest.mark.statement("MQTT-3.1.0-1", "3.1.1/MQTT-3.1.0-1")
@pytest.mark.parametrize(
    "first",
    [
        b"\xc0\x00",
        b"\x30\x04\x00\x01ax",
        b"\x00\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xe0\x00",
        b"\xff",
    ],
)
def test_a_first_packet_other_than_connect_closes_the_connection(first: bytes) -> None:
    world = World()
    client = world.open()
    client.send(first)
    assert client.closed
    assert client.take() == []
    assert world.counters.malformed == 1


@pytest.mark.statement("MQTT-3.1.0-2", "3.1.1/MQTT-3.1.0-2")
@ALL
def test_a_second_connect_closes_the_connection(version: int) -> None:
    world = World()
    client = world.connect("a", version)
    client.send(connect_packet("b", version))
    assert client.closed
    assert client.last_reason() == (ReasonCode.PROTOCOL_ERROR if version == 5 else None)
    assert world.counters.protocol_errors == 1
    assert "b" not in world.node.sessions


@pytest.mark.statement("MQTT-3.1.0-2")
def test_a_second_connect_of_an_unknown_version_is_a_protocol_error() -> None:
    client = World().connect()
    client.send(b"\x10\x0c\x00\x04MQTT\x09\x02\x00\x00\x00\x00")
    assert client.last_reason() == ReasonCode.PROTOCOL_ERROR


@pytest.mark.statement("MQTT-3.1.4-2", "MQTT-3.2.2-8", "3.1.1/MQTT-3.2.2-5")
@pytest.mark.parametrize(("version", "code"), [(3, 5), (4, 5), (5, 0x87)])
def test_anonymous_clients_refused(version: int, code: int) -> None:
    world = World(allow_anonymous=False)
    client = world.open(version)
    client.send(connect_packet("a", version), Publish("t", b"x"))
    assert client.take() == [Connack(False, code)]
    assert client.closed
    assert world.counters.published == 0


@ALL
def test_packets_may_come_byte_by_byte(version: int) -> None:
    world = World()
    client = world.open(version)
    packets = [
        connect_packet("a", version),
        Subscribe(1, [SubscriptionRequest("t", 1)]),
        Publish("t", b"x" * 200),
    ]
    data = b"".join(encode_packet(p, version) for p in packets)
    client.chunks(data[i : i + 1] for i in range(len(data)))
    assert [type(p).__name__ for p in client.take()] == ["Connack", "Suback", "Publish"]


def test_a_connection_without_connect_is_closed_in_time() -> None:
    """A half-open connection is closed, also when it trickles."""
    world = World(connect_timeout=10.0)
    silent, slow = world.open(), world.open()
    data = encode_packet(connect_packet("a" * 60), 5)
    for index in range(50):
        if not slow.closed:
            slow.chunks([data[index : index + 1]])
        world.advance(0.3)
    assert silent.closed
    assert slow.closed
    assert world.counters.connect_timeout == 2
    assert not world.node.connections


def test_a_connect_that_is_too_large_is_refused_by_its_header() -> None:
    world = World()
    client = world.open()
    client.send(b"\x10\xff\xff\xff\x7f")
    assert client.closed


# ---------------------------------------------------------------- keep-alive


@pytest.mark.statement("MQTT-3.1.2-20", "MQTT-3.1.2-22", "3.1.1/MQTT-3.1.2-23")
@pytest.mark.statement("3.1.1/MQTT-3.1.2-24")
@ALL
def test_keep_alive(version: int) -> None:
    """Closed after one and a half times Keep Alive, the will is sent."""
    world = World()
    watcher = world.connect("w")
    watcher.subscribe("will")
    client = world.connect("a", version, keep_alive=10, will=Will("will", b"gone"))
    world.advance(9)
    client.send(Pingreq())
    client.take()
    world.advance(14.9)
    assert not client.closed
    world.advance(0.2)
    assert client.closed
    assert client.last_reason() == (ReasonCode.KEEP_ALIVE_TIMEOUT if version == 5 else None)
    assert watcher.payloads() == [b"gone"]
    assert world.counters.keep_alive_timeout == 1


def test_a_client_with_keep_alive_0_may_be_silent() -> None:
    world = World()
    client = world.connect("a", keep_alive=0)
    world.advance(1e6)
    assert not client.closed


def test_a_client_that_is_not_read_is_not_silent() -> None:
    world = World()
    client = world.connect("a", keep_alive=1)
    client.conn.hold()
    world.advance(10)
    assert not client.closed
    client.conn.unhold()
    world.advance(3)
    assert client.closed


def test_timers_of_clients_that_left_are_forgotten() -> None:
    world = World()
    for index in range(3000):
        client = world.connect(
            "a", clean=False, keep_alive=65535, properties={Property.SESSION_EXPIRY_INTERVAL: 86400}
        )
        client.publish("t")
        client.vanish()
        if index % 500 == 0:
            world.advance(11)  # the deadlines of CONNECT and of closing are short
    world.advance(11)
    assert len(world.node.timers) < 2500


# ---------------------------------------------------------------- DISCONNECT


@pytest.mark.parametrize(
    ("longest", "asked", "lives"), [(100, 10, 10), (100, 0, 0), (10, 2**32 - 1, 10)]
)
def test_disconnect_changes_the_session_expiry(longest: int, asked: int, lives: int) -> None:
    """It cannot exceed the longest one."""
    world = World(session_expiry_max=longest)
    client = world.connect("a", properties={Property.SESSION_EXPIRY_INTERVAL: 5})
    client.disconnect(properties={Property.SESSION_EXPIRY_INTERVAL: asked})
    world.advance(lives - 0.5 if lives else 0)
    assert ("a" in world.node.sessions) == bool(lives)
    world.advance(1)
    assert "a" not in world.node.sessions


def test_disconnect_cannot_make_a_session_of_none() -> None:
    """MQTT-3.14.2-2."""
    world = World()
    client = world.connect("a")
    client.disconnect(properties={Property.SESSION_EXPIRY_INTERVAL: 5})
    assert client.last_reason() == ReasonCode.PROTOCOL_ERROR
    assert "a" not in world.node.sessions


def test_a_peer_that_does_not_read_its_last_packets_is_cut_off() -> None:
    world = World()
    client = world.connect("a")
    client.transport.capacity = 0
    client.send(Pingreq(), Pingreq(), b"\x00\x00")  # the first write says "enough"
    client.send(Pingreq())
    assert client.conn.closing or client.closed
    slow = world.connect("b")
    slow.conn.pause()
    slow.send(b"\x00\x00")
    assert not slow.closed
    world.advance(CLOSE_TIMEOUT_S + 1)
    assert slow.closed
    assert not world.node.connections


def test_answers_come_in_the_order_of_their_packets() -> None:
    client = World().connect("a")
    messages = [Publish("t", b"1", 1, packet_id=n) for n in (9, 3, 5)]
    client.send(Pingreq(), *messages, Pingreq())
    assert client.take() == [Pingresp(), Puback(9), Puback(3), Puback(5), Pingresp()]
