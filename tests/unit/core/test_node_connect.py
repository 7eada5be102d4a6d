"""CONNECT, CONNACK, keep-alive, take-over, DISCONNECT, wills (MQTT 3.1, 3.2, 3.14, 4.1, 4.13): see
docs/conformance.md."""

from __future__ import annotations

import string
from collections.abc import Callable

import pytest

from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.core.connection import CLOSE_TIMEOUT_S
from mqttree.broker.wire.constants import MAX_TOPIC_LEVELS, ReasonCode
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import (
    Connack,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
)
from mqttree.broker.wire.properties import Property
from tests.kit.node_harness import FakeClient, World, connect_packet

ALL = pytest.mark.parametrize("version", [3, 4, 5])


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
    client = world.open(version).sent(connect_packet("", version, clean=clean))
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

    old = connect(*first).subscribed("t", qos=1)
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
    client, sender = world.connect("a").subscribed("t"), world.connect("s")
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
    client = world.open().sent(first)
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
    client = world.open(version).sent(connect_packet("a", version), Publish("t", b"x"))
    assert client.take() == [Connack(False, code)]
    assert client.closed
    assert world.counters.published == 0


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
    client = world.open().sent(b"\x10\xff\xff\xff\x7f")
    assert client.closed


# ---------------------------------------------------------------- keep-alive


@pytest.mark.statement("MQTT-3.1.2-20", "MQTT-3.1.2-22", "3.1.1/MQTT-3.1.2-23")
@pytest.mark.statement("3.1.1/MQTT-3.1.2-24")
@ALL
def test_keep_alive(version: int) -> None:
    """Closed after one and a half times Keep Alive, the will is sent."""
    world = World()
    watcher = world.connect("w").subscribed("will")
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


P = Property
V4 = b"\x00\x04MQTT\x04"
V5 = b"\x00\x04MQTT\x05"


def frame(body: bytes) -> bytes:
    return b"\x10" + bytes((len(body),)) + body


# ---------------------------------------------------------------- CONNECT as bytes


@pytest.mark.statement("MQTT-3.1.2-1", "3.1.1/MQTT-3.1.2-1", "3.1/name")
@pytest.mark.parametrize(
    "name", [b"", b"MQT", b"mqtt", b"MQTTT", b"MQIsdp", b"\xef\xbb\xbfMQTT", b"AMQP"]
)
def test_other_protocol_names_are_refused(name: bytes) -> None:
    """Refused and closed; no session comes of it. MQIsdp belongs to version 3 only."""
    world = World()
    client = world.open(4)
    client.send(frame(len(name).to_bytes(2, "big") + name + b"\x04\x02\x00\x00\x00\x01c"))
    assert client.closed
    assert client.take() == [Connack(False, 1)]
    assert not world.node.sessions


@pytest.mark.statement("MQTT-3.1.3-2", "MQTT-3.1.3-5", "3.1.1/MQTT-3.1.3-2", "3.1.1/MQTT-3.1.3-5")
@pytest.mark.statement("3.1/client identifier")
@ALL
@pytest.mark.parametrize("length", [1, 2, 22, 23, 24, 200])
def test_client_identifiers_that_must_be_allowed(version: int, length: int) -> None:
    """Digits and letters, 1 to 23 of them; more are allowed, too."""
    world = World()
    letters = string.digits + string.ascii_letters
    for start in range(0, len(letters), 23):
        client_id = (letters[start:] + letters * 4)[:length]
        assert world.connect(client_id, version).connack.code == 0
        assert client_id in world.node.sessions


# What the flags promise and the payload does not keep, and the other way round; behind the Keep
# Alive of CONNECT.
# (flags, payload of 3.1.1, payload of 5)
BROKEN_PAYLOADS = {
    "user name flag, no user name": (0x82, b"\0\1c", b"\0\0\1c"),
    "user name, no flag": (0x02, b"\0\1c\0\1u", b"\0\0\1c\0\1u"),
    "password flag, no password": (0xC2, b"\0\1c\0\1u", b"\0\0\1c\0\1u"),
    "password, no flag": (0x82, b"\0\1c\0\1u\0\1p", b"\0\0\1c\0\1u\0\1p"),
    "will flag, no will": (0x06, b"\0\1c", b"\0\0\1c"),
    "will flag, no will payload": (0x06, b"\0\1c\0\1w", b"\0\0\1c\0\0\1w"),
    "will, no flag": (0x02, b"\0\1c\0\1w\0\1x", b"\0\0\1c\0\0\1w\0\1x"),
    "will QoS, no will": (0x0A, b"\0\1c", b"\0\0\1c"),
    "will QoS 3": (0x1E, b"\0\1c\0\1w\0\1x", b"\0\0\1c\0\0\1w\0\1x"),
    "will retain, no will": (0x22, b"\0\1c", b"\0\0\1c"),
    "reserved flag": (0x03, b"\0\1c", b"\0\0\1c"),
    "no client identifier": (0x02, b"", b"\0"),
}


@pytest.mark.statement("MQTT-3.1.2-3", "MQTT-3.1.2-9", "MQTT-3.1.2-11", "MQTT-3.1.2-12")
@pytest.mark.statement("MQTT-3.1.2-13", "MQTT-3.1.2-16", "MQTT-3.1.2-17", "MQTT-3.1.2-18")
@pytest.mark.statement("MQTT-3.1.2-19", "MQTT-3.1.3-1", "MQTT-3.1.3-3", "MQTT-3.1.4-1")
@pytest.mark.statement("3.1.1/MQTT-3.1.2-3", "3.1.1/MQTT-3.1.2-9", "3.1.1/MQTT-3.1.2-11")
@pytest.mark.statement("3.1.1/MQTT-3.1.2-13", "3.1.1/MQTT-3.1.2-14", "3.1.1/MQTT-3.1.2-15")
@pytest.mark.statement("3.1.1/MQTT-3.1.2-18", "3.1.1/MQTT-3.1.2-19", "3.1.1/MQTT-3.1.2-20")
@pytest.mark.statement("3.1.1/MQTT-3.1.2-21", "3.1.1/MQTT-3.1.3-1", "3.1.1/MQTT-3.1.3-3")
@pytest.mark.statement("3.1.1/MQTT-3.1.4-1", "3.1.1/MQTT-3.2.2-6")
@pytest.mark.parametrize("what", BROKEN_PAYLOADS)
def test_flags_and_payload_of_connect_agree(what: str) -> None:
    """Before MQTT 5 without a CONNACK."""
    flags, old, new = BROKEN_PAYLOADS[what]
    for version, data in (
        (4, V4 + bytes((flags,)) + b"\0\0" + old),
        (5, V5 + bytes((flags,)) + b"\0\0" + new),
    ):
        world = World()
        client = world.open(version).sent(frame(data))
        assert client.closed
        packets = client.take()
        assert [(type(p), p.code) for p in packets] == (
            [] if version == 4 else [(Connack, ReasonCode.MALFORMED_PACKET)]
        )
        assert not world.node.sessions


@pytest.mark.statement("MQTT-3.1.4-1", "MQTT-3.2.2-6", "MQTT-3.2.2-7", "MQTT-3.2.2-8")
@pytest.mark.statement("MQTT-3.14.0-1", "MQTT-4.13.2-1", "choice/malformed CONNECT of MQTT 5")
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (V5 + b"\x02\0\0\x03\x21\0\0\0\1c", ReasonCode.PROTOCOL_ERROR),
        (V5 + b"\x02\0\0\x05\x27\0\0\0\0\0\1c", ReasonCode.PROTOCOL_ERROR),
        (V5 + b"\x02\0\0\x02\x01\0\0\1c", ReasonCode.MALFORMED_PACKET),
        (V5 + b"\x06\0\0\0\0\1c\0\0\1#\0\0", ReasonCode.TOPIC_NAME_INVALID),
        (V5 + b"\x02\0\0\0\0\1\xff", ReasonCode.MALFORMED_PACKET),
    ],
)
def test_a_bad_mqtt_5_connect_is_answered_with_its_reason(data: bytes, reason: int) -> None:
    """MQTT-3.1.4-1, MQTT-3.2.2-6 to -8, MQTT-4.13.2-1: CONNACK, never DISCONNECT (MQTT-3.14.0-1),
    then the end."""
    world = World()
    client = world.open().sent(frame(data))
    (packet,) = client.take()
    assert isinstance(packet, Connack)
    assert (packet.session_present, packet.code) == (False, reason)
    assert client.closed


@pytest.mark.statement("MQTT-3.1.4-6", "MQTT-3.2.0-2", "MQTT-3.2.2-7", "3.1.1/MQTT-3.1.4-5")
@pytest.mark.statement("3.1.1/MQTT-3.2.2-5")
@ALL
@pytest.mark.parametrize("refused", ["anonymous", "will above the Maximum QoS", "bad will topic"])
def test_nothing_behind_a_refused_connect_is_processed(version: int, refused: str) -> None:
    """MQTT-3.1.4-6; MQTT-3.1.4-5 of 3.1.1. One CONNACK at most, and the connection is closed
    (MQTT-3.1.4-2)."""
    world = World(allow_anonymous=True, max_qos=1)
    watcher = world.connect("w").subscribed("#", qos=1)
    world.node.config.allow_anonymous = refused != "anonymous"
    will = {
        "will above the Maximum QoS": Will("t", b"w", 2),
        "bad will topic": Will("t/#", b"w"),
    }.get(refused, Will("t", b"w"))
    client = world.open(version).sent(
        connect_packet("c", version, will=will),
        Publish("t", b"no", 1, packet_id=1),
        Subscribe(1, [SubscriptionRequest("#", 0)]),
        connect_packet("d", version),
        Disconnect(),
    )
    packets = client.take()
    assert len(packets) <= 1
    assert all(isinstance(p, Connack) and p.code for p in packets)
    assert client.closed
    assert watcher.take() == []
    assert set(world.node.sessions) == {"w"}


@pytest.mark.statement("MQTT-3.1.4-5", "MQTT-3.2.0-1", "MQTT-3.2.0-2", "MQTT-3.2.2-1")
@pytest.mark.statement("3.1.1/MQTT-3.1.4-4", "3.1.1/MQTT-3.2.0-1")
@ALL
def test_connack_comes_first_and_once(version: int) -> None:
    """MQTT-3.2.0-1, -2, MQTT-3.2.2-1, -2, MQTT-3.1.4-5; reserved bits are zero."""
    world = World()
    keep = {P.SESSION_EXPIRY_INTERVAL: 100} if version == 5 else None
    client = world.connect("c", version, clean=False, properties=keep).subscribed("t", qos=1)
    client.vanish()
    world.connect("p").publish("t", b"waits", 1)
    for clean, present in ((False, version > 3), (True, False)):
        client = world.open(version)
        client.send(connect_packet("c", version, clean=clean, properties=keep))
        assert bytes(client.transport.written[:1]) == b"\x20"
        assert client.transport.written[2] == int(present)
        assert client.transport.written[3] == 0
        client.send(
            Pingreq(), Subscribe(1, [SubscriptionRequest("u", 0)]), Unsubscribe(2, ["u"]), Pingreq()
        )
        names = [type(p).__name__ for p in client.take()]
        assert names.count("Connack") == 1
        assert names[0] == "Connack"


# ---------------------------------------------------------------- keep-alive and limits


@pytest.mark.statement("MQTT-3.1.2-21", "MQTT-3.2.2-21")
@pytest.mark.parametrize("asked", [0, 100])
def test_the_servers_keep_alive_replaces_the_clients(asked: int) -> None:
    """A client that goes by its own longer one is closed."""
    world = World(max_keep_alive=10)
    client = world.connect("c", keep_alive=asked)
    assert client.connack.properties[P.SERVER_KEEP_ALIVE] == 10
    world.advance(14)
    assert not client.closed
    world.advance(2)
    assert client.last_reason() == ReasonCode.KEEP_ALIVE_TIMEOUT


@pytest.mark.statement("MQTT-3.2.2-22")
def test_without_a_server_keep_alive_the_clients_applies() -> None:
    world = World(max_keep_alive=10)
    client = world.connect("c", keep_alive=4)
    assert P.SERVER_KEEP_ALIVE not in client.connack.properties
    world.advance(5)
    assert not client.closed
    world.advance(2)
    assert client.closed


@pytest.mark.statement("MQTT-3.1.2-24")
@pytest.mark.statement("choice/answer larger than the client's Maximum Packet Size")
def test_no_packet_exceeds_the_maximum_packet_size_of_the_client() -> None:
    """Whatever the client does; what cannot be answered ends the connection with 0x95 or without a
    word."""
    for maximum in range(1, 60):
        world = World()
        client = world.open().sent(connect_packet("", properties={P.MAXIMUM_PACKET_SIZE: maximum}))
        filters = [SubscriptionRequest(f"f/{n}", 1) for n in range(40)]
        client.send(Subscribe(1, filters[:3]), Publish("f/1", b"x" * 20, 1, packet_id=1), Pingreq())
        client.send(
            Publish("f/1", b"y", 2, packet_id=1),
            Unsubscribe(2, ["f/1", "g"]),
            Subscribe(3, filters),
        )
        client.send(b"\x00\x00")
        assert client.closed
        sizes = client.sizes()
        assert all(size <= maximum for size in sizes), (maximum, sizes, client.take())
        assert bool(sizes) == (maximum >= 5)


# ---------------------------------------------------------------- sessions and wills


@pytest.mark.statement("MQTT-4.1.0-1", "3.1.1/MQTT-4.1.0-2")
@ALL
def test_no_session_ends_while_its_client_is_connected(version: int) -> None:
    """Also one that is to end with its connection (Session Expiry Interval 0 or small)."""
    world = World()
    for expiry in (0, 5):
        client = world.connect(
            "c", version, properties={P.SESSION_EXPIRY_INTERVAL: expiry} if version == 5 else None
        ).subscribed("t", qos=1)
        world.advance(1000)
        client.publish("t", b"x", 1)
        assert [p.payload for p in client.take() if isinstance(p, Publish)] == [b"x"]


@pytest.mark.statement("3.1.1/MQTT-3.1.2-6", "3.1.1/MQTT-3.1.2-7")
@ALL
def test_retained_messages_outlive_the_session(version: int) -> None:
    """Retained messages are not part of the session."""
    world = World()
    client = world.connect("c", version)
    client.publish("t", b"kept", 1, retain=True)
    client.disconnect()
    assert "c" not in world.node.sessions
    client = world.connect("c", version).subscribed("t")
    assert client.payloads() == [b"kept"]


@pytest.mark.statement("MQTT-3.1.2-7", "MQTT-3.1.2-10", "MQTT-3.1.2-14", "MQTT-3.1.2-15")
@pytest.mark.statement("3.1.1/MQTT-3.1.2-8", "3.1.1/MQTT-3.1.2-10", "3.1.1/MQTT-3.1.2-16")
@pytest.mark.statement("3.1.1/MQTT-3.1.2-17")
@pytest.mark.parametrize("retain", [False, True])
@ALL
def test_a_will_is_published_once(version: int, retain: bool) -> None:
    """MQTT-3.1.2-7, -8, -10, -14, -15: stored with the session, removed once it was published."""
    world = World()
    watcher = world.connect("w").subscribed("will", qos=2, retain_as_published=True)
    properties = {P.SESSION_EXPIRY_INTERVAL: 100} if version == 5 else None
    client = world.connect(
        "c", version, clean=False, will=Will("will", b"x", 1, retain), properties=properties
    )
    assert watcher.take() == []
    client.vanish()
    (packet,) = watcher.take_publishes()
    assert packet.retain is retain
    world.connect("c", version, clean=False, properties=properties).vanish()
    world.connect("c", version)
    world.advance(200)
    assert watcher.take() == []
    late = world.connect("late").subscribed("will")
    assert late.payloads() == ([b"x"] if retain else [])


# ---------------------------------------------------------------- DISCONNECT


@pytest.mark.statement("MQTT-3.14.2-1", "MQTT-3.14.2-2", "MQTT-3.14.4-1", "MQTT-3.14.4-2")
@pytest.mark.statement("MQTT-4.13.1-1", "MQTT-4.13.2-1")
@pytest.mark.parametrize(
    "end", ["garbage", "second CONNECT", "take-over", "keep-alive", "QoS", "alias"]
)
def test_a_disconnect_of_the_broker_is_the_last_packet(end: str) -> None:
    """A code of the table, no Session Expiry Interval."""
    world = World(max_qos=1)
    keep = {P.SESSION_EXPIRY_INTERVAL: 50}
    client = world.connect("c", keep_alive=10, properties=keep).subscribed("t")
    match end:
        case "garbage":
            client.send(b"\x00\x00", Pingreq())
        case "second CONNECT":
            client.send(connect_packet("c"), Pingreq())
        case "take-over":
            world.connect("c", clean=False, properties=keep)
        case "keep-alive":
            world.advance(20)
        case "QoS":
            client.send(Publish("t", b"x", 2, packet_id=1), Pingreq())
        case "alias":
            client.send(Publish("", b"x", properties={P.TOPIC_ALIAS: 1}), Pingreq())
    world.connect("p").publish("t", b"late")
    (packet,) = client.take()
    assert isinstance(packet, Disconnect)
    assert packet.reason >= 0x80
    assert P.SESSION_EXPIRY_INTERVAL not in (packet.properties or {})
    assert client.closed


@pytest.mark.statement("MQTT-3.14.4-1", "3.1.1/MQTT-3.14.4-1", "3.1.1/MQTT-3.14.4-2")
@pytest.mark.statement("MQTT-3.12.4-1", "3.1.1/MQTT-3.12.4-1")
@ALL
def test_disconnect_of_the_client_closes_the_connection(version: int) -> None:
    """MQTT-3.14.4-1, -2 are the client's; the broker closes from its side and looks at nothing
    behind it."""
    world = World()
    client, other = world.connect("c", version), world.connect("o", version).subscribed("#")
    client.send(Disconnect(), Publish("t", b"x"), Pingreq())
    assert client.closed
    assert client.take() == []
    other.send(Pingreq())
    assert other.take() == [Pingresp()]


# ---------------------------------------------------------------- MQTT 3.1


@pytest.mark.statement("3.1/name", "3.1/user name, password", "3.1/DUP", "3.1/Session Present")
def test_mqtt_3_1_clients_are_served_as_its_text_says() -> None:
    """MQTT V3.1, 3.1 and 3.2: its name, no Session Present, DUP on packets that are sent again,
    fields that may be missing."""
    world = World()
    client = world.open(3).sent(b"\x10\x11\x00\x06MQIsdp\x03\xc0\x00\x0a\x00\x03old")
    assert bytes(client.transport.written) == b"\x20\x02\x00\x00"
    client.transport.written.clear()
    client.send(
        b"\x8a\x06\x00\x01\x00\x01t\x02",
        b"\x34\x06\x00\x01t\x00\x05x",
        b"\x6a\x02\x00\x05",
        b"\xaa\x05\x00\x02\x00\x01t",
    )
    assert sorted(type(p).__name__ for p in client.take()) == [
        "Pubcomp",
        "Publish",
        "Pubrec",
        "Suback",
        "Unsuback",
    ]
    client.vanish()
    client = world.connect("old", 3, clean=False)
    assert not client.connack.session_present
    assert [p.payload for p in client.inbox if isinstance(p, Publish)] == [b"x"]


# ---------------------------------------------------------------- wills


def watched(**config) -> tuple[World, FakeClient]:
    world = World(**config)
    watcher = world.connect("w").subscribed("will/#", qos=2)
    return world, watcher


@pytest.mark.statement("MQTT-3.1.3-10")
def test_a_will_is_published_with_its_properties() -> None:
    world, watcher = watched()
    properties = {
        P.WILL_DELAY_INTERVAL: 0,
        P.PAYLOAD_FORMAT_INDICATOR: 1,
        P.MESSAGE_EXPIRY_INTERVAL: 60,
        P.CONTENT_TYPE: "t",
        P.RESPONSE_TOPIC: "r",
        P.CORRELATION_DATA: b"\x01\x02",
        P.USER_PROPERTY: [("b", "2"), ("a", "1"), ("b", "1"), ("", ""), ("a", "1")] * 10,
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
@pytest.mark.statement("3.1.1/MQTT-3.14.4-3", "3.1.1/MQTT-3.1.2-12")
@ALL
def test_a_disconnect_discards_the_will(version: int) -> None:
    """The next connection, without the will flag, has none."""
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
@pytest.mark.parametrize("end", [FakeClient.vanish, lambda client: client.disconnect(0x04)])
def test_a_will_is_sent_after_its_delay(
    end: Callable[[FakeClient], None], delay: int, expiry: int, due: int
) -> None:
    """After the delay or when the session ends, whichever is first."""
    world, watcher = watched()
    end(delayed(world, delay, expiry))
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


# ---------------------------------------------------------------- wills that cannot be


@pytest.mark.statement("MQTT-3.2.2-12")
@pytest.mark.parametrize(
    ("will", "code"), [(Will("will/a", b"x", 2), 0x9B), (Will("/" * MAX_TOPIC_LEVELS, b"x"), 0x90)]
)
def test_a_will_beyond_the_maximum_qos_or_topic_levels_is_refused(will: Will, code: int) -> None:
    world, _ = watched(max_qos=1)
    for version in (4, 5):
        client = world.open(version).sent(connect_packet("a", version, will=will))
        assert client.take() == [Connack(False, code if version == 5 else 3)]


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
