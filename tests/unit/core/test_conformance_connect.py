"""CONNECT, CONNACK, DISCONNECT, wills, sessions (MQTT-3.1, MQTT-3.2, MQTT-3.14, MQTT-4.1,
MQTT-4.13): see docs/conformance.md."""

from __future__ import annotations

import string

import pytest

from mqttree.broker.wire import (
    Connack,
    Disconnect,
    Pingreq,
    Pingresp,
    Property,
    Publish,
    ReasonCode,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
)
from tests.kit.node_harness import World, connect_packet

ALL = pytest.mark.parametrize("version", [3, 4, 5])
P = Property
V4 = b"\x00\x04MQTT\x04"
V5 = b"\x00\x04MQTT\x05"


def frame(body: bytes) -> bytes:
    return b"\x10" + bytes((len(body),)) + body


# ---------------------------------------------------------------- CONNECT


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
        client = world.open(version)
        client.send(frame(data))
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
    client = world.open()
    client.send(frame(data))
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
    watcher = world.connect("w")
    watcher.subscribe("#", qos=1)
    world.node.config.allow_anonymous = refused != "anonymous"
    will = {
        "will above the Maximum QoS": Will("t", b"w", 2),
        "bad will topic": Will("t/#", b"w"),
    }.get(refused)
    client = world.open(version)
    client.send(
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
    client = world.connect("c", version, clean=False, properties=keep)
    client.subscribe("t", qos=1)
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
        client = world.open()
        client.send(connect_packet("", properties={P.MAXIMUM_PACKET_SIZE: maximum}))
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
        )
        client.subscribe("t", qos=1)
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
    client = world.connect("c", version)
    client.subscribe("t")
    assert client.payloads() == [b"kept"]


@pytest.mark.statement("MQTT-3.1.3-10")
def test_a_will_keeps_the_order_of_its_user_properties() -> None:
    pairs = [("b", "2"), ("a", "1"), ("b", "1"), ("", ""), ("a", "1")]
    world = World()
    watcher = world.connect("w")
    watcher.subscribe("will")
    world.connect("c", will=Will("will", b"", properties={P.USER_PROPERTY: list(pairs)})).vanish()
    (packet,) = watcher.take_publishes()
    assert packet.properties == {P.USER_PROPERTY: pairs}


@pytest.mark.statement("MQTT-3.1.2-7", "MQTT-3.1.2-10", "MQTT-3.1.2-14", "MQTT-3.1.2-15")
@pytest.mark.statement("3.1.1/MQTT-3.1.2-8", "3.1.1/MQTT-3.1.2-10", "3.1.1/MQTT-3.1.2-16")
@pytest.mark.statement("3.1.1/MQTT-3.1.2-17")
@pytest.mark.parametrize("retain", [False, True])
@ALL
def test_a_will_is_published_once(version: int, retain: bool) -> None:
    """MQTT-3.1.2-7, -8, -10, -14, -15: stored with the session, removed once it was published."""
    world = World()
    watcher = world.connect("w")
    watcher.subscribe("will", qos=2, retain_as_published=True)
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
    late = world.connect("late")
    late.subscribe("will")
    assert late.payloads() == ([b"x"] if retain else [])


@pytest.mark.statement("3.1.1/MQTT-3.1.2-12")
@ALL
def test_no_will_without_the_will_flag(version: int) -> None:
    world = World()
    watcher = world.connect("w")
    watcher.subscribe("#")
    world.connect("c", version).vanish()
    assert watcher.take() == []
    assert world.counters.wills == 0


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
    client = world.connect("c", keep_alive=10, properties=keep)
    client.subscribe("t")
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
@ALL
def test_disconnect_of_the_client_closes_the_connection(version: int) -> None:
    """MQTT-3.14.4-1, -2 are the client's; the broker closes from its side and looks at nothing
    behind it."""
    world = World()
    client, other = world.connect("c", version), world.connect("o", version)
    other.subscribe("#")
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
    client = world.open(3)
    client.send(b"\x10\x11\x00\x06MQIsdp\x03\xc0\x00\x0a\x00\x03old")
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
