"""Strings, fixed headers and packet identifiers as a client meets them (MQTT-1.5, MQTT-2,
MQTT-4.7.3): docs/conformance.md."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import pytest

from mqttree.broker.wire.packets import Pingreq, Publish, Subscribe, SubscriptionRequest
from mqttree.broker.wire.varint import encode_varint
from tests.kit.node_harness import World

ALL = pytest.mark.parametrize("version", [3, 4, 5])


def frame(first: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes((first,)) + encode_varint(len(body)) + body


def string(raw: bytes) -> bytes:
    return len(raw).to_bytes(2, "big") + raw


def properties(version: int, *parts: bytes) -> bytes:
    return encode_varint(len(b"".join(parts))) + b"".join(parts) if version == 5 else b""


def connect(version: int, flags: int, *fields: bytes) -> bytes:
    name = b"MQIsdp" if version == 3 else b"MQTT"
    return frame(0x10, string(name), bytes((version, flags)), b"\0\0", properties(version), *fields)


def publish(version: int, topic: bytes, *parts: bytes) -> bytes:
    return frame(0x30, string(topic), properties(version, *parts), b"payload")


# Where a string stands -> a packet with `raw` there, and the versions that have it.
STRINGS: dict[str, tuple[tuple[int, ...], Callable[[int, bytes], bytes]]] = {
    "client identifier": ((3, 4, 5), lambda v, raw: connect(v, 0x02, string(raw))),
    "will topic": (
        (3, 4, 5),
        lambda v, raw: connect(v, 0x06, string(b"c"), properties(v), string(raw), string(b"w")),
    ),
    "user name": ((3, 4, 5), lambda v, raw: connect(v, 0x82, string(b"c"), string(raw))),
    "topic name": ((3, 4, 5), lambda v, raw: publish(v, b"t" + raw)),
    "topic filter to subscribe": (
        (3, 4, 5),
        lambda v, raw: frame(0x82, b"\0\1", properties(v), string(b"t" + raw), b"\0"),
    ),
    "topic filter to unsubscribe": (
        (3, 4, 5),
        lambda v, raw: frame(0xA2, b"\0\1", properties(v), string(b"t" + raw)),
    ),
    "response topic": ((5,), lambda v, raw: publish(v, b"t", b"\x08" + string(b"r" + raw))),
    "content type": ((5,), lambda v, raw: publish(v, b"t", b"\x03" + string(raw))),
    "user property name": (
        (5,),
        lambda v, raw: publish(v, b"t", b"\x26" + string(raw) + string(b"v")),
    ),
    "user property value": (
        (5,),
        lambda v, raw: publish(v, b"t", b"\x26" + string(b"n") + string(raw)),
    ),
    "reason string": (
        (5,),
        lambda v, raw: frame(0xE0, b"\0", properties(v, b"\x1f" + string(raw))),
    ),
}
ILL_FORMED = {
    "U+0000": b"a\0b",
    "surrogate": b"\xed\xa0\x80",
    "surrogate pair": b"\xed\xa0\x81\xed\xb0\x80",
    "overlong": b"\xc0\x80",
    "cut off": b"\xe2\x82",
    "beyond U+10FFFF": b"\xf4\x90\x80\x80",
    "not UTF-8": b"\xff",
}


@pytest.mark.statement("MQTT-1.5.4-1", "MQTT-1.5.4-2", "MQTT-1.5.7-1", "MQTT-3.1.3-4")
@pytest.mark.statement("MQTT-3.1.3-11", "MQTT-3.1.3-12", "MQTT-3.3.2-13", "MQTT-3.3.2-19")
@pytest.mark.statement("MQTT-3.8.3-1", "MQTT-3.10.3-1", "MQTT-4.7.3-2", "3.1.1/MQTT-1.5.3-1")
@pytest.mark.statement("3.1.1/MQTT-1.5.3-2", "3.1.1/MQTT-3.1.3-4", "3.1.1/MQTT-3.1.3-10")
@pytest.mark.statement("3.1.1/MQTT-3.1.3-11", "3.1.1/MQTT-3.8.3-1", "3.1.1/MQTT-3.10.3-1")
@pytest.mark.statement("3.1.1/MQTT-4.7.3-2", "3.1/`$` topics, wildcards, UTF-8")
@pytest.mark.parametrize("where", STRINGS)
@pytest.mark.parametrize("text", ILL_FORMED.values(), ids=ILL_FORMED)
def test_ill_formed_strings_close_the_connection(where: str, text: bytes) -> None:
    """No other client notices."""
    versions, packet = STRINGS[where]
    for version in versions:
        world = World()
        watcher = world.connect("w").subscribed("#", qos=2)
        data = packet(version, text)
        client = world.open(version) if data[0] == 0x10 else world.connect("c", version)
        client.send(data, Pingreq())
        assert client.closed, version
        assert b"\xd0\x00" not in bytes(client.transport.written)
        watcher.send(Pingreq())
        assert [type(p).__name__ for p in watcher.take()] == ["Pingresp"]


@pytest.mark.statement("choice/noncharacters and control characters in strings")
@pytest.mark.parametrize("where", STRINGS)
def test_any_well_formed_string_is_taken(where: str) -> None:
    """The same packets with letters of every length, noncharacters and control characters, which
    are discouraged only."""
    versions, packet = STRINGS[where]
    for version in versions:
        world = World()
        data = packet(version, "a\u00e9\u20ac\U0001f332\ufffe\x01\x7f".encode())
        client = world.open(version) if data[0] == 0x10 else world.connect("c", version)
        client.send(data)
        assert client.closed is (data[0] == 0xE0), version
        assert not world.counters.malformed


@pytest.mark.statement("MQTT-1.5.4-3", "3.1.1/MQTT-1.5.3-3")
@ALL
def test_a_byte_order_mark_is_kept_as_a_character(version: int) -> None:
    world = World()
    publisher, with_mark, without = (
        world.connect(name, version) for name in ("p", "with", "without")
    )
    with_mark.subscribe("\ufeffa", qos=1)
    without.subscribe("a", qos=1)
    for qos in (0, 1):
        publisher.publish("\ufeffa", b"\xef\xbb\xbfx", qos)
        (packet,) = with_mark.take_publishes()
        assert (packet.topic, packet.payload) == ("\ufeffa", b"\xef\xbb\xbfx")
    assert without.take() == []


@pytest.mark.statement("MQTT-4.7.3-4", "3.1.1/MQTT-4.7.3-4")
@ALL
def test_names_are_not_normalised(version: int) -> None:
    """Letters that look alike, case, blanks and empty levels are different names."""
    world = World()
    names = [
        "caf\u00e9",
        unicodedata.normalize("NFD", "caf\u00e9"),
        "CAF\u00c9",
        "caf\u00e9 ",
        "caf\u00e9/",
        "/caf\u00e9",
        "\uff41",
        "a",
        "a//b",
        "a/b",
    ]
    clients = {name: world.connect(f"c{number}", version) for number, name in enumerate(names)}
    for name, client in clients.items():
        client.subscribe(name, qos=1)
    publisher = world.connect("p", version)
    for number, name in enumerate(names, 1):
        publisher.publish(name, name.encode(), number % 2, packet_id=number)
    for name, client in clients.items():
        assert [(p.topic, p.payload) for p in client.take_publishes()] == [(name, name.encode())]


# version, what the client sends behind its CONNECT -> what it gets, to the byte
ANSWERS = [
    (4, b"\xc0\x00", b"\xd0\x00"),
    (5, b"\xc0\x00", b"\xd0\x00"),
    (4, b"\x82\x06\x12\x34\x00\x01s\x01", b"\x90\x03\x12\x34\x01"),
    (5, b"\x82\x07\x12\x34\x00\x00\x01s\x01", b"\x90\x04\x12\x34\x00\x01"),
    (4, b"\xa2\x05\x12\x34\x00\x01n", b"\xb0\x02\x12\x34"),
    (5, b"\xa2\x06\x12\x34\x00\x00\x01n", b"\xb0\x04\x12\x34\x00\x11"),
    (4, b"\x32\x06\x00\x01u\xff\xffx", b"\x40\x02\xff\xff"),
    (5, b"\x32\x07\x00\x01u\xff\xff\x00x", b"\x40\x02\xff\xff"),
    (
        4,
        b"\x34\x06\x00\x01u\x00\x09x" + b"\x62\x02\x00\x09",
        b"\x50\x02\x00\x09" + b"\x70\x02\x00\x09",
    ),
    (
        5,
        b"\x34\x07\x00\x01u\x00\x09\x00x" + b"\x62\x02\x00\x09",
        b"\x50\x02\x00\x09" + b"\x70\x02\x00\x09",
    ),
    (4, b"\x30\x04\x00\x01tx", b"\x30\x04\x00\x01tx"),
    (5, b"\x30\x05\x00\x01t\x00x", b"\x30\x05\x00\x01t\x00x"),
    (4, b"\x31\x04\x00\x01tx", b"\x30\x04\x00\x01tx"),
    (5, b"\x31\x05\x00\x01t\x00x", b"\x30\x05\x00\x01t\x00x"),
]


@pytest.mark.statement("MQTT-2.1.3-1", "MQTT-2.2.1-2", "MQTT-2.2.1-5", "MQTT-2.2.1-6")
@pytest.mark.statement("MQTT-2.2.2-1", "MQTT-3.3.2-1", "MQTT-3.8.4-2", "MQTT-3.10.4-5")
@pytest.mark.statement("MQTT-4.3.2-4", "MQTT-4.3.3-8", "MQTT-4.3.3-11", "3.1.1/MQTT-2.2.2-1")
@pytest.mark.statement("3.1.1/MQTT-2.3.1-5", "3.1.1/MQTT-2.3.1-6", "3.1.1/MQTT-2.3.1-7")
@pytest.mark.statement("3.1.1/MQTT-3.3.2-1", "3.1.1/MQTT-3.8.4-2", "3.1.1/MQTT-3.10.4-4")
@pytest.mark.parametrize(("version", "sent", "received"), ANSWERS)
def test_answers_are_exact_to_the_byte(version: int, sent: bytes, received: bytes) -> None:
    """Reserved bits, packet identifiers, and a zero for no properties.

    The client has subscribed to "t" at QoS 0."""
    client = World().connect("c", version)
    client.send(Subscribe(1, [SubscriptionRequest("t", 0)]))
    client.transport.written.clear()
    client.send(sent)
    assert bytes(client.transport.written) == received


@pytest.mark.statement("MQTT-2.2.1-4", "MQTT-4.3.2-1", "MQTT-4.3.2-2", "MQTT-4.3.3-1")
@pytest.mark.statement("MQTT-4.3.3-2", "3.1.1/MQTT-2.3.1-4", "3.1.1/MQTT-4.3.2-1")
@pytest.mark.statement("3.1.1/MQTT-4.3.3-1")
@ALL
@pytest.mark.parametrize("qos", [1, 2])
def test_the_brokers_packet_identifiers_are_never_zero_or_in_use(version: int, qos: int) -> None:
    """Never zero, never one in use, DUP 0."""
    world = World()
    publisher, subscriber = world.connect("p", version), world.connect("s", version)
    subscriber.subscribe("t", qos=2)
    world.session("s").next_packet_id = 65_500
    packets: list[Publish] = []
    for number in range(1, 101):
        publisher.publish("t", b"%d" % number, qos, packet_id=number)
        packets += subscriber.take_publishes()
    used = [p.packet_id for p in packets]
    assert len(set(used)) == 100
    assert None not in used
    assert 0 not in used
    assert {65_535, 1} <= set(used)
    assert all(p.qos == qos and not p.dup for p in packets)
    assert set(world.session("s").inflight) == set(used)
