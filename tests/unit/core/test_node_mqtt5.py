"""What of MQTT 5 depends on how a broker is set up: aliases, windows, what is not offered, reasons,
redirection, limits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.base.rate_limit import RateLimit
from mqttree.broker.config.mqtt_options import MqttOptionError, read_options
from mqttree.broker.core.client import Client
from mqttree.broker.core.effects import Authenticate, Hooks
from mqttree.broker.core.reason_string import MAX_REASON
from mqttree.broker.core.topic_alias import GROWTH, MIN_TOPIC, TopicAliases
from mqttree.broker.limits import Limits
from mqttree.broker.wire.constants import MAX_PACKET_SIZE, ReasonCode
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import (
    Connack,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from mqttree.broker.wire.properties import Properties, Property
from tests.kit.decoder import Decoder
from tests.kit.effort import examples
from tests.kit.node_harness import World, connect_packet

TOPIC = "plant/hall/machine/temperature"
ALIASES = {Property.TOPIC_ALIAS_MAXIMUM: 3}


# ------------------------------------------------------------------ topic aliases towards clients


class Reader:
    """Resolves topic aliases as a client does, and remembers them."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.known: dict[int, str] = {}
        self.by_alias = 0

    def topic(self, packet: Packet) -> str:
        assert isinstance(packet, Publish)
        alias = (packet.properties or {}).get(Property.TOPIC_ALIAS)
        if alias is None:
            assert packet.topic
            return packet.topic
        assert 1 <= alias <= self.maximum
        if packet.topic:
            self.known[alias] = packet.topic
            return packet.topic
        self.by_alias += 1
        return self.known[alias]


def test_a_topic_goes_out_once() -> None:
    world = World()
    subscriber = world.connect("s", properties=ALIASES).subscribed("#", qos=1)
    publisher = world.connect("p")
    for number in range(3):
        publisher.publish(TOPIC, b"%d" % number, 1, properties={Property.CONTENT_TYPE: "text"})
    # At QoS 0 what may go out byte for byte does; what has to be encoded again anyway takes the
    # alias.
    text = {Property.CONTENT_TYPE: "text", Property.PAYLOAD_FORMAT_INDICATOR: 1}
    publisher.publish(TOPIC, "\u0663".encode(), 0, properties=text)
    publisher.publish(TOPIC, b"4", 0, properties={Property.CONTENT_TYPE: "text"})
    first, *others = subscriber.take_publishes()
    assert first.topic == TOPIC
    assert first.properties == {Property.TOPIC_ALIAS: 1, Property.CONTENT_TYPE: "text"}
    assert [(p.topic, p.properties, p.payload) for p in others] == [
        ("", first.properties, b"1"),
        ("", first.properties, b"2"),
        ("", {**text, **first.properties}, "\u0663".encode()),
        (TOPIC, {Property.CONTENT_TYPE: "text"}, b"4"),
    ]


@pytest.mark.statement("MQTT-3.1.2-27")
@pytest.mark.parametrize(
    ("options", "config"),
    [
        ({}, {}),
        ({Property.RECEIVE_MAXIMUM: 9}, {}),
        ({Property.TOPIC_ALIAS_MAXIMUM: 0}, {}),
        (ALIASES, {"topic_aliases_out": 0}),
    ],
)
def test_no_alias_for_who_takes_none_and_when_switched_off(
    options: Properties, config: dict[str, Any]
) -> None:
    world = World(**config)
    subscriber = world.connect("s", properties=options).subscribed("#", qos=1)
    for _ in range(2):
        world.connect("p").publish(TOPIC, b"x", 1)
    assert [(p.topic, p.properties) for p in subscriber.take_publishes()] == [(TOPIC, None)] * 2
    assert world.session("s").aliases is None
    assert not world.session("s").checked


@pytest.mark.statement("MQTT-3.3.2-11")
def test_short_and_late_topics_get_no_alias() -> None:
    world = World()
    subscriber = world.connect("s", properties=ALIASES).subscribed("#", qos=1)
    publisher = world.connect("p")
    topics = ["t" * (MIN_TOPIC - 1), *(f"{TOPIC}/{n}" for n in range(5))]
    for topic in topics * 2:
        publisher.publish(topic, b"x", 1)
    packets = subscriber.take_publishes()
    reader = Reader(3)
    assert [reader.topic(p) for p in packets] == topics * 2
    assert reader.by_alias == 3


@pytest.mark.statement("MQTT-3.3.2-7")
def test_an_alias_ends_with_its_connection() -> None:
    """What is sent again, and what is sent first, on the next connection has its topic (MQTT 5,
    3.3.2.3.4)."""
    world = World()
    keep = {**ALIASES, Property.SESSION_EXPIRY_INTERVAL: 100}
    subscriber = world.connect("s", properties=keep).subscribed("#", qos=1)
    publisher = world.connect("p")
    for _ in range(2):
        publisher.publish(TOPIC, b"x", 1)
    assert [p.topic for p in subscriber.take_publishes()] == [TOPIC, ""]
    subscriber.vanish()
    publisher.publish(TOPIC, b"x", 1)
    again = world.connect("s", clean=False, properties=keep)
    publisher.publish(TOPIC, b"x", 1)
    packets = again.take_publishes()
    assert [(p.topic, p.dup) for p in packets] == [
        (TOPIC, True),
        (TOPIC, True),
        (TOPIC, False),
        ("", False),
    ]
    third = world.connect("s", clean=False)  # takes no aliases any more
    assert [p.topic for p in third.take_publishes()] == [TOPIC] * 4


def test_slow_readers_never_get_an_alias_that_they_do_not_know() -> None:
    world = World(limits=Limits(client_backlog_bytes=6000))
    subscriber = world.connect("s", properties=ALIASES).subscribed("#", qos=1)
    subscriber.transport.capacity = 100
    publisher = world.connect("p")
    for number in range(200):
        publisher.publish(
            f"{TOPIC}/{number % 3}",
            b"x" * 20,
            number % 2,
            properties={Property.CONTENT_TYPE: "text"},
        )
    reader = Reader(3)
    packets = subscriber.read()
    for packet in packets:
        assert reader.topic(packet).startswith(TOPIC)
    assert world.counters.dropped_slow_consumer
    assert reader.by_alias
    assert sum(isinstance(p, Publish) and p.qos == 1 for p in packets) == 100


def test_aliases_leave_the_fast_path_alone() -> None:
    """Runs of QoS 0 packets go out as they came, also to who takes aliases."""
    world = World()
    subscriber = world.connect("s", properties=ALIASES).subscribed("#")
    chunk = encode_packet(Publish(TOPIC, b"x"), 5) * 10
    world.connect("p").send(chunk)
    world.connect("p2").send(chunk)
    assert bytes(subscriber.transport.written) == chunk * 2


@pytest.mark.statement("MQTT-3.1.2-24")
@pytest.mark.parametrize("room", range(-3, GROWTH + 3))
def test_the_maximum_packet_size_holds_with_aliases(room: int) -> None:
    plain = encode_packet(Publish(TOPIC, b"x" * 40, 1, packet_id=1), 5)
    maximum = len(plain) + room
    world = World()
    subscriber = world.connect("s", properties={**ALIASES, Property.MAXIMUM_PACKET_SIZE: maximum})
    subscriber.subscribe("#", qos=1)
    for _ in range(3):
        world.connect("p").publish(TOPIC, b"x" * 40, 1)
    data = bytes(subscriber.transport.written)
    packets = subscriber.take_publishes()
    reader = Reader(3)
    assert [reader.topic(p) for p in packets] == ([TOPIC] * 3 if room >= 0 else [])
    assert all(len(encode_packet(p, 5)) <= maximum for p in packets)
    assert bool(reader.by_alias) == (room >= GROWTH)
    assert len(data) <= 3 * maximum
    assert len(world.session("s").inflight) == len(packets)


@pytest.mark.statement("MQTT-3.1.2-26")
@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 4), st.integers(0, 2), st.booleans(), st.integers(0, 300), st.booleans()
        ),
        min_size=1,
        max_size=40,
    ),
    st.integers(0, 5),
)
def test_a_client_resolves_every_alias_to_the_topic(
    packets: list[tuple[int, int, bool, int, bool]], maximum: int
) -> None:
    aliases = TopicAliases(maximum)
    reader = Reader(maximum)
    for topic, qos, retain, size, described in packets:
        properties: Properties | None = (
            {Property.CONTENT_TYPE: "c" * (size % 130)} if described else None
        )
        name = "x" * topic * 6
        plain = Publish(
            name, b"p" * size, qos, retain, packet_id=7 if qos else None, properties=properties
        )
        encoded = encode_packet(plain, 5)
        sent = aliases.apply(encoded, MAX_PACKET_SIZE)
        (found,) = Decoder(5).receive(sent)
        assert reader.topic(found) == name
        assert isinstance(found, Publish)
        rest = {k: v for k, v in (found.properties or {}).items() if k != Property.TOPIC_ALIAS}
        assert (found.payload, found.qos, found.retain, found.packet_id) == (
            plain.payload,
            qos,
            retain,
            plain.packet_id,
        )
        assert rest == (properties or {})
        assert len(sent) <= len(encoded) + GROWTH


# ------------------------------------------------------------------ Receive Maximum towards us


def test_many_exchanges_at_once_are_closed_at_the_receive_maximum() -> None:
    """In one chunk; a client before MQTT 5 was told of none."""
    for version, taken in ((5, 1_024), (4, 2_000)):
        world = World()
        world.connect("s").subscribe("#")
        client = world.connect("c", version)
        client.send(*(Publish(f"t/{n % 7}", b"x", 2, packet_id=n) for n in range(1, 2_001)))
        world.advance(0.1)
        assert sum(isinstance(packet, Pubrec) for packet in client.take()) == taken
        assert client.closed == (version == 5)


@pytest.mark.statement("MQTT-3.3.4-7")
@pytest.mark.parametrize("known", [True, False])
def test_receive_maximum_exceeded_closes_the_client(known: bool) -> None:
    """On the fast path and off it; QoS 1 is acknowledged at once and never counts."""
    world = World(receive_maximum=2)
    if known:
        world.connect("s").subscribe("t")
    client = world.connect()
    for packet_id in (1, 2):
        client.publish("t", b"x", 1, 9)
        client.publish("t", b"x", 2, packet_id)
        client.publish("t", b"x", 2, packet_id, dup=True)
    assert [type(p) for p in client.take()] == [Puback, Pubrec, Pubrec] * 2
    client.publish("t", b"x", 2, 3)
    assert client.last_reason() == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
    assert client.closed


def test_a_full_window_counts_for_qos_1_as_well() -> None:
    world = World(receive_maximum=2)
    client = world.connect()
    client.publish("t", b"x", 1, 9)
    client.publish("t", b"x", 1, 9)
    client.publish("t", b"x", 2, 1)
    client.publish("t", b"x", 2, 2)
    client.take()
    client.publish("t", b"x", 1, 3)
    assert client.last_reason() == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


@pytest.mark.parametrize("one_chunk", [True, False])
def test_completed_messages_make_room(one_chunk: bool) -> None:
    world = World(receive_maximum=2)
    client = world.connect()
    packets: list[Packet] = [
        Publish("t", b"x", 2, packet_id=1),
        Publish("t", b"x", 2, packet_id=2),
        Pubrel(1),
    ]
    for number in range(3, 30):
        packets += [
            Publish("t", b"x", 2, packet_id=number),
            Pubrel(number - 1),
            Publish("t", b"x", 1, packet_id=100),
        ]
    if one_chunk:
        client.send(*packets)
    else:
        for packet in packets:
            client.send(packet)
    assert not client.closed
    assert world.counters.published == 29 + 27
    assert sum(isinstance(p, Pubcomp) for p in client.take()) == 28


@pytest.mark.statement("MQTT-4.9.0-1")
def test_the_receive_window_ends_with_its_connection() -> None:
    """MQTT 5, 4.9: it is not kept; what the last connection has left does not take its room."""
    world = World(receive_maximum=2)
    keep = {Property.SESSION_EXPIRY_INTERVAL: 100}
    client = world.connect(properties=keep)
    client.publish("t", b"x", 2, 1)
    client.publish("t", b"x", 2, 2)
    client.vanish()
    client = world.connect(clean=False, properties=keep)
    client.publish("t", b"x", 2, 3)
    client.publish("t", b"x", 2, 1, dup=True)  # repeated: counts from now on
    assert not client.closed
    client.publish("t", b"x", 2, 4)
    assert client.last_reason() == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
    client = world.connect(clean=False, properties=keep)
    client.send(*(Pubrel(n) for n in (1, 2, 3)))
    assert [type(p) for p in client.take()] == [Pubcomp] * 3


def test_a_refused_message_takes_no_room() -> None:
    world = World(receive_maximum=1)
    client = world.connect()
    for packet_id in range(1, 10):
        client.publish("$SYS/x", b"x", 2, packet_id)
    assert [p.reason for p in client.take() if isinstance(p, Pubrec)] == [
        ReasonCode.NOT_AUTHORIZED
    ] * 9


# ------------------------------------------------------------------ why


NOT_TOLD = {Property.REQUEST_PROBLEM_INFORMATION: 0}


DEEP = "/" * 201  # slashes are one too many


def test_reason_strings_say_why() -> None:
    client = World().connect()
    client.publish("$SYS/x", b"x", 1)
    client.publish("$SYS/x", b"x", 2, 2)
    client.subscribe("a", DEEP, "$share/g" + DEEP)
    client.send(Subscribe(7, []))
    client.take()
    assert client.said[:3] == [
        "not authorized to publish to this topic",
        "not authorized to publish to this topic",
        f"{DEEP}: topic filter invalid; $share/g{DEEP}: topic filter invalid",
    ]
    assert len(client.said) == 4  # and the DISCONNECT's


@pytest.mark.statement("MQTT-3.1.2-29")
def test_request_problem_information_0_is_heeded() -> None:
    """Nothing but PUBLISH, CONNACK and DISCONNECT explains itself."""
    client = World().connect(properties=NOT_TOLD)
    client.publish("$SYS/x", b"x", 1)
    client.publish("$SYS/x", b"x", 2, 2)
    client.subscribe(DEEP)
    client.take()
    assert not client.said
    client.send(b"\xf1\x00")
    client.take()
    assert len(client.said) == 1


@pytest.mark.statement("MQTT-3.1.2-29")
def test_messages_keep_user_properties_without_problem_information() -> None:
    world = World()
    client = world.connect(properties=NOT_TOLD).subscribed("t")
    mine = {Property.USER_PROPERTY: [("b", "1"), ("a", "2"), ("b", "0")]}
    world.connect("p").publish("t", b"x", properties=mine)
    assert [p.properties for p in client.take_publishes()] == [mine]


def test_a_reason_is_cut_to_a_line() -> None:
    client = World().connect().subscribed(*(f"{'ä' * 50}{DEEP}" for _ in range(50)))
    assert len(client.said[0].encode()) <= MAX_REASON


# ------------------------------------------------------------------ what clients ask for


@pytest.mark.statement("MQTT-3.1.2-28")
def test_response_information_is_given_to_who_asks() -> None:
    world = World(response_information="answers/%c")
    for asked in (None, 0, 1):
        options = {} if asked is None else {Property.REQUEST_RESPONSE_INFORMATION: asked}
        found = (world.connect("me", properties=options).connack.properties or {}).get(
            Property.RESPONSE_INFORMATION
        )
        assert found == ("answers/me" if asked else None)
    plain = (
        World().connect(properties={Property.REQUEST_RESPONSE_INFORMATION: 1}).connack.properties
        or {}
    )
    assert Property.RESPONSE_INFORMATION not in plain


def test_connack_says_what_is_not_offered() -> None:
    world = World(
        retain_available=False,
        wildcard_subscriptions=False,
        shared_subscriptions=False,
        subscription_identifiers=False,
        topic_alias_maximum=0,
        receive_maximum=65_535,
    )
    assert world.connect().connack.properties == {
        Property.RETAIN_AVAILABLE: 0,
        Property.WILDCARD_SUBSCRIPTION_AVAILABLE: 0,
        Property.SHARED_SUBSCRIPTION_AVAILABLE: 0,
        Property.SUBSCRIPTION_IDENTIFIER_AVAILABLE: 0,
    }


ALIAS = Property.TOPIC_ALIAS


def subscribe(topic_filter: str, *identifiers: int) -> Subscribe:
    properties = {Property.SUBSCRIPTION_IDENTIFIER: list(identifiers)} if identifiers else None
    return Subscribe(1, [SubscriptionRequest(topic_filter, 0)], properties)


@pytest.mark.statement("MQTT-3.2.2-11", "MQTT-3.2.2-14", "MQTT-3.2.2-15", "MQTT-3.2.2-17")
@pytest.mark.statement("MQTT-3.2.2-18")
@pytest.mark.parametrize(
    ("config", "packet", "code"),
    [
        ({"retain_available": False}, Publish("t", b"x", retain=True), 0x9A),
        ({"retain_available": False}, Publish("t", b"x", 1, True, packet_id=1), 0x9A),
        ({"wildcard_subscriptions": False}, subscribe("a/+"), 0xA2),
        ({"wildcard_subscriptions": False}, subscribe("#"), 0xA2),
        ({"wildcard_subscriptions": False}, subscribe("$share/g/a/#"), 0xA2),
        ({"shared_subscriptions": False}, subscribe("$share/g/a"), 0x9E),
        ({"subscription_identifiers": False}, subscribe("a", 1), 0xA1),
        ({"topic_alias_maximum": 0}, Publish("t", b"x", properties={ALIAS: 1}), 0x94),
        ({"topic_alias_maximum": 5}, Publish("t", b"x", properties={ALIAS: 6}), 0x94),
        ({"max_qos": 1}, Publish("t", b"x", 2, packet_id=1), 0x9B),
        ({"max_packet_size": 100}, Publish("t", b"x" * 100), 0x95),
    ],
)
def test_a_feature_that_is_not_offered_disconnects_its_user(
    config: dict[str, Any], packet: Packet, code: int
) -> None:
    """MQTT-3.2.2-11, -14; 3.2.2.3.11 to .13; MQTT-3.3.2-9; MQTT-3.2.2-15."""
    world = World(**config)
    client = world.connect()
    client.send(Subscribe(9, [SubscriptionRequest("fine", 0)]), packet)
    assert client.last_reason() == code
    assert client.closed
    assert not world.counters.published
    # By default all of it is offered, but for an alias beyond the maximum.
    World().connect().send(packet)


@pytest.mark.parametrize("version", [3, 4])
def test_before_mqtt_5_no_client_gets_a_reason(version: int) -> None:
    world = World(retain_available=False, wildcard_subscriptions=False, shared_subscriptions=False)
    client = world.connect("c", version)
    assert client.subscribe("t", "a/+", "$share/g/t") == [0, 0x80, 0x80]
    client.publish("t", b"x", retain=True)
    assert client.payloads() == [b"x"]
    assert len(world.node.retained) == 0
    assert world.connect("w", version, will=Will("t", b"x", retain=True)).connack.code == 0


@pytest.mark.statement("MQTT-3.2.2-13")
def test_a_retained_will_where_nothing_is_retained() -> None:
    client = World(retain_available=False).open()
    client.send(connect_packet(will=Will("t", b"x", retain=True)))
    assert client.last_reason() == ReasonCode.RETAIN_NOT_SUPPORTED


# ------------------------------------------------------------------ payload format


TEXT: Properties = {Property.PAYLOAD_FORMAT_INDICATOR: 1}


@pytest.mark.parametrize("payload", [b"", "grün\0".encode(), b"\xf4\x8f\xbf\xbf"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_utf8_payloads_pass_with_their_format_indicator(payload: bytes, qos: int) -> None:
    world = World()
    subscriber = world.connect("s").subscribed("t", qos=2)
    described = {**TEXT, Property.CONTENT_TYPE: "text/plain"}
    world.connect("p").publish("t", payload, qos, properties=described)
    (found,) = subscriber.take_publishes()
    assert (found.payload, found.properties) == (payload, described)


@pytest.mark.parametrize(
    "payload", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xc3"]
)
def test_a_payload_that_is_no_utf8_is_refused(payload: bytes) -> None:
    world = World()
    subscriber = world.connect("s").subscribed("#", qos=2)
    client = world.connect("p")
    client.publish("t", payload, 1, properties=TEXT)
    client.publish("t", payload, 2, 2, properties=TEXT)
    assert client.take() == [
        Puback(1, ReasonCode.PAYLOAD_FORMAT_INVALID),
        Pubrec(2, ReasonCode.PAYLOAD_FORMAT_INVALID),
    ]
    client.publish("t", payload, properties={Property.PAYLOAD_FORMAT_INDICATOR: 0})
    assert subscriber.payloads() == [payload]
    client.publish("t", payload, properties=TEXT)
    assert client.last_reason() == ReasonCode.PAYLOAD_FORMAT_INVALID
    assert subscriber.payloads() == []
    assert world.counters.publish_refused == 2
    assert not world.session("s").inflight


def test_a_will_that_is_no_utf8_is_refused() -> None:
    client = World().open().sent(connect_packet(will=Will("t", b"\xff", properties=TEXT)))
    assert client.last_reason() == ReasonCode.PAYLOAD_FORMAT_INVALID
    assert (
        World(check_payload_format=False)
        .connect(will=Will("t", b"\xff", properties=TEXT))
        .connack.code
        == 0
    )


def test_the_check_can_be_switched_off() -> None:
    world = World(check_payload_format=False)
    subscriber = world.connect("s").subscribed("t")
    world.connect("p").publish("t", b"\xff", properties=TEXT)
    assert subscriber.payloads() == [b"\xff"]


# ------------------------------------------------------------------ shared subscriptions, expiry


def test_a_shared_subscription_has_an_identifier() -> None:
    world = World()
    member = world.connect("m")
    member.subscribe("$share/g/t", qos=1, properties={Property.SUBSCRIPTION_IDENTIFIER: [300]})
    member.subscribe("t", qos=1, properties={Property.SUBSCRIPTION_IDENTIFIER: [5]})
    for qos in (0, 1):
        world.connect("p").publish("t", b"x", qos)
        found = [
            (p.properties or {}).get(Property.SUBSCRIPTION_IDENTIFIER)
            for p in member.take_publishes()
        ]
        assert sorted(map(str, found)) == ["[300]", "[5]"]


# ------------------------------------------------------------------ redirection


@pytest.mark.parametrize(("permanent", "code"), [(False, 0x9C), (True, 0x9D)])
def test_all_clients_are_redirected_if_so_configured(permanent: bool, code: int) -> None:
    world = World(server_reference="other.example:1883", redirect_permanent=permanent)
    client = world.open().sent(connect_packet())
    assert client.take() == [
        Connack(False, code, {Property.SERVER_REFERENCE: "other.example:1883"})
    ]
    old = world.open(4).sent(connect_packet("old", 4))
    assert old.take() == [Connack(False, 3)]
    assert client.closed
    assert old.closed
    assert world.counters.redirected == 2


@pytest.mark.parametrize(("permanent", "code"), [(False, 0x9C), (True, 0x9D)])
def test_one_client_is_redirected(permanent: bool, code: int) -> None:
    world = World()
    client, old = world.connect("c"), world.connect("old", 4)
    for one in (client, old):
        world.node.clients.redirect(one.owner, "other.example:1883", permanent)
        world.settle()
    assert client.take() == [Disconnect(code, {Property.SERVER_REFERENCE: "other.example:1883"})]
    assert old.take() == []
    assert client.closed
    assert old.closed
    assert world.node.clients.connected == 0


def test_a_reference_that_does_not_fit_is_left_out() -> None:
    small: Properties = {Property.MAXIMUM_PACKET_SIZE: 20}
    world = World(server_reference="a-long-name.example:1883")
    client = world.open().sent(connect_packet(properties=small))
    assert client.take() == [Connack(False, 0x9C)]
    world = World()
    client = world.connect(properties=small)
    world.node.clients.redirect(client.owner, "a-long-name.example:1883", True)
    world.settle()
    assert client.take() == [Disconnect(0x9D)]


# ------------------------------------------------------------------ how many


@pytest.mark.parametrize(("version", "code"), [(5, 0x97), (4, 3)])
def test_connections_are_counted(version: int, code: int) -> None:
    world = World(max_connections=2)
    first, second = world.connect("1"), world.connect("2")
    third = world.open(version).sent(connect_packet("3", version))
    assert third.last_reason() == code
    assert third.closed
    assert world.connect("2").connack.code == 0  # takes over
    assert second.closed
    first.vanish()
    assert world.connect("4").connack.code == 0
    assert world.node.clients.connected == 2


def test_connections_are_counted_again_after_authentication() -> None:
    world = World(max_connections=1, hooks=Hooks(authenticate=True))
    clients = [world.open() for _ in range(3)]
    for number, client in enumerate(clients):
        client.send(connect_packet(str(number)))
    world.answer(Authenticate, True)
    assert [client.last_reason() for client in clients] == [0, 0x97, 0x97]
    assert world.node.clients.connected == 1


def test_the_count_is_right_whatever_becomes_of_clients() -> None:
    world = World()
    tiny = world.open()
    # It takes no packet as large as its CONNACK.
    tiny.send(connect_packet("tiny", properties={Property.MAXIMUM_PACKET_SIZE: 6}))
    clients = [
        world.connect(str(n % 5), properties={Property.SESSION_EXPIRY_INTERVAL: n % 2})
        for n in range(20)
    ]
    clients[15].disconnect()
    clients[16].vanish()
    clients[17].send(b"\xf1\x00")
    assert world.node.clients.connected == 2
    assert world.node.clients.connected == sum(
        isinstance(c.owner, Client) for c in world.node.connections
    )
    world.node.stop(world.now)
    world.settle()
    assert world.node.clients.connected == 0


@pytest.mark.parametrize(("version", "code"), [(5, 0x9F), (4, 3)])
def test_connections_beyond_the_rate_are_refused(version: int, code: int) -> None:
    world = World(connection_rate=3.0)
    assert [world.connect(str(n)).connack.code for n in range(3)] == [0, 0, 0]
    client = world.open(version).sent(connect_packet("x", version))
    assert client.last_reason() == code
    assert client.closed
    world.advance(0.5)
    assert world.connect("y").connack.code == 0


@settings(max_examples=examples(100), deadline=None)
@given(st.floats(0.1, 50), st.lists(st.floats(0, 3), max_size=60))
def test_a_rate_limit_lets_no_more_through(per_second: float, waits: list[float]) -> None:
    rate = RateLimit(per_second, 0.0)
    now = 0.0
    taken = []
    for wait in waits:
        now += wait
        if rate.take(now):
            taken.append(now)
    for first, start in enumerate(taken):
        for last in range(first, len(taken)):
            allowed = max(1.0, per_second) + (taken[last] - start) * per_second
            assert last - first + 1 <= allowed + 1e-6


# ------------------------------------------------------------------ the section of the file


def test_every_option_is_read() -> None:
    section = {
        "max-keep-alive": 60,
        "max_packet_size": 1000,
        "max_inflight": 5,
        "receive_maximum": 6,
        "topic_alias_maximum": 0,
        "topic_aliases_out": 7,
        "retain_available": False,
        "wildcard_subscriptions": False,
        "shared_subscriptions": False,
        "subscription_identifiers": False,
        "check_payload_format": False,
        "response_information": "r/%c",
        "server_reference": "other:1883",
        "redirect": "permanent",
        "max_connections": 8,
        "connection_rate": 9.5,
    }
    found = read_options(section)
    assert len(found) == len(section)
    config = World(**found).node.config
    assert (config.max_inflight_messages, config.redirect_permanent, config.connection_rate) == (
        5,
        True,
        9.5,
    )


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("max_keep_alives", 1, "unknown key"),
        ("max_keep_alive", "1", "expected a whole number, not the text '1'"),
        ("max_keep_alive", True, "expected a whole number, not yes or no"),
        ("max_keep_alive", 65_536, "65536 is not between 0 and 65535 s"),
        ("receive_maximum", 0, "0 is not between 1 and 65535"),
        ("retain_available", 1, "expected true or false, not the number 1"),
        ("response_information", "", "the text is empty"),
        ("response_information", "a\0", "the text has control characters"),
        ("response_information", "ä" * 501, "longer than 1000 bytes"),
        ("server_reference", 7, "expected a text, not the number 7"),
        ("redirect", "later", "'later' is not one of permanent, temporary"),
        ("redirect", "permanent", "there is no server_reference"),
        ("connection_rate", float("nan"), "expected a number"),
        ("connection_rate", -1, "-1 is not between"),
        ("connection_rate", None, "expected a number, not nothing"),
    ],
)
def test_faults_name_the_key(key: str, value: object, message: str) -> None:
    with pytest.raises(MqttOptionError, match=message) as caught:
        read_options({key: value})
    assert caught.value.key == key
