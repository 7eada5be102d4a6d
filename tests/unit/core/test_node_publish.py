"""PUBLISH both ways: QoS 0, 1 and 2, acknowledgements, topic names, aliases, properties, flow
control (MQTT 3.3 to 3.7, 4.3 to 4.6, 4.9): see docs/conformance.md."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.limits import Limits
from mqttree.broker.wire.constants import MAX_TOPIC_LEVELS, ReasonCode
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import (
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
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
from mqttree.broker.wire.properties import Property
from tests.kit.node_harness import FakeClient, World, cut

ALL = pytest.mark.parametrize("version", [3, 4, 5])
P = Property


def pair(version: int = 5, qos: int = 2, **options) -> tuple[World, FakeClient, FakeClient]:
    """A world with a publisher, and a subscriber of "#"."""
    world = World(**options)
    publisher, subscriber = world.connect("p", version), world.connect("s", version)
    subscriber.subscribe("#", qos=qos)
    return world, publisher, subscriber


def packet_ids(packets: list[Publish]) -> list[int | None]:
    return [p.packet_id for p in packets]


@pytest.mark.statement("MQTT-2.2.1-5", "MQTT-3.3.4-1", "MQTT-3.8.4-8", "3.1.1/MQTT-3.3.4-1")
@pytest.mark.statement("3.1.1/MQTT-3.8.4-6")
@pytest.mark.parametrize("to", [3, 4, 5])
@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_is_delivered_at_the_lower_qos_and_acknowledged(
    qos: int, granted: int, version: int, to: int
) -> None:
    """min(published, granted); the same on the way without and with a cached route."""
    world = World()
    publisher, subscriber = world.connect("p", version), world.connect("s", to)
    assert subscriber.subscribe("t", qos=granted) == [granted]
    for number in (1, 2, 3):
        publisher.publish("t", b"x%d" % number, qos, packet_id=number)
        assert publisher.take() == {0: [], 1: [Puback(number)], 2: [Pubrec(number)]}[qos]
        if qos == 2:
            publisher.send(Pubrel(number))
            assert publisher.take() == [Pubcomp(number)]
        least = min(qos, granted)
        assert subscriber.take() == [
            Publish("t", b"x%d" % number, least, packet_id=number if least else None)
        ]
    assert world.counters.published == 3
    assert world.counters.delivered == 3


@pytest.mark.statement("MQTT-3.7.2-1", "MQTT-4.3.3-11")
@ALL
def test_a_repeated_or_unknown_pubrel_is_answered(version: int) -> None:
    """MQTT 5 says 0x92 (3.7.2.1)."""
    _, publisher, _ = pair(version)
    publisher.publish("t", b"1", 2)
    publisher.send(Pubrel(1), Pubrel(1), Pubrel(77))
    reason = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if version == 5 else 0
    assert publisher.take() == [Pubrec(1), Pubcomp(1), Pubcomp(1, reason), Pubcomp(77, reason)]


@pytest.mark.statement("MQTT-3.6.2-1", "MQTT-4.3.3-4", "3.1.1/MQTT-2.3.1-6", "3.1.1/MQTT-4.3.3-1")
@ALL
def test_a_qos_2_delivery_is_completed_step_by_step(version: int) -> None:
    world, publisher, subscriber = pair(version)
    publisher.publish("t", b"1", 2)
    assert packet_ids(subscriber.take_publishes()) == [1]
    subscriber.send(Pubrec(1))
    assert subscriber.take() == [Pubrel(1)]
    subscriber.send(Pubrec(1))
    assert subscriber.take() == [Pubrel(1)]
    subscriber.send(Pubcomp(1))
    assert not world.session("s").inflight
    subscriber.send(Pubcomp(1))
    assert subscriber.take() == []
    subscriber.send(Pubrec(1))
    assert subscriber.take() == [
        Pubrel(1, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if version == 5 else 0)
    ]


@pytest.mark.statement("MQTT-4.3.3-4", "MQTT-4.4.0-2")
def test_negative_acknowledgements_end_the_exchange() -> None:
    """After PUBREC from 0x80 on there is no PUBREL and the identifier is free."""
    world, publisher, subscriber = pair()
    publisher.publish("t", b"1", 2)
    publisher.publish("t", b"2", 1, packet_id=2)
    subscriber.take()
    subscriber.send(
        Pubrec(1, ReasonCode.QUOTA_EXCEEDED), Puback(2, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
    )
    assert subscriber.take() == []
    assert not world.session("s").inflight
    subscriber.send(Pubrec(1, ReasonCode.QUOTA_EXCEEDED))
    assert subscriber.take() == []
    assert not subscriber.closed


@pytest.mark.statement("MQTT-4.3.2-3", "MQTT-4.3.3-3")
@pytest.mark.statement("choice/acknowledgement of a packet identifier that is not in use")
@pytest.mark.parametrize(
    ("qos", "answer"),
    [
        *((1, answer) for answer in (Pubrec(1), Pubcomp(1), Pubrec(1, 0x80))),
        *((2, answer) for answer in (Puback(1), Pubcomp(1), Puback(1, 0x10))),
    ],
)
def test_a_wrong_acknowledgement_is_refused(qos: int, answer: Packet) -> None:
    _, publisher, subscriber = pair()
    publisher.publish("t", b"1", qos)
    subscriber.send(answer)
    assert subscriber.last_reason() == ReasonCode.PROTOCOL_ERROR


@pytest.mark.statement("choice/acknowledgement of a packet identifier that is not in use")
@ALL
def test_acknowledgements_of_nothing_are_ignored(version: int) -> None:
    _, _, subscriber = pair(version)
    subscriber.send(Puback(5), Pubcomp(6), Puback(7), Pingreq())
    assert subscriber.take() == [Pingresp()]


def test_sixty_five_thousand_unacknowledged_qos_2_publishes() -> None:
    world, publisher, subscriber = pair(qos=0, receive_maximum=65_535)
    packets = [encode_packet(Publish("t", b"", 2, packet_id=n), 5) for n in range(1, 65536)]
    publisher.chunks([b"".join(packets)])
    world.advance(0.1)
    assert publisher.take() == [Pubrec(n) for n in range(1, 65536)]
    assert len(subscriber.payloads()) == 65535
    publisher.chunks([b"".join(packets)])
    world.advance(0.1)  # not in one turn
    assert len(publisher.take()) == 65535
    assert subscriber.payloads() == []
    assert world.counters.published == 65535


# ---------------------------------------------------------------- topic names


@pytest.mark.statement("MQTT-3.3.2-1", "MQTT-3.3.2-2", "MQTT-4.7.0-1", "MQTT-4.7.3-1")
@pytest.mark.statement("3.1.1/MQTT-3.3.2-1", "3.1.1/MQTT-3.3.2-2", "3.1.1/MQTT-4.7.1-1")
@pytest.mark.statement("3.1.1/MQTT-4.7.3-1")
@ALL
@pytest.mark.parametrize("topic", [b"", b"a/+", b"#", b"a/#/b", b"a\0b", b"\xff", b"\xed\xa0\x80"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_bad_topic_name_closes_its_publisher_alone(version: int, topic: bytes, qos: int) -> None:
    """MQTT-3.3.2-1, -2, MQTT-1.5.4-1, -2: only the one who said it is closed."""
    world, publisher, subscriber = pair(version)
    body = (
        len(topic).to_bytes(2, "big")
        + topic
        + (b"\0\1" if qos else b"")
        + (b"\0" if version == 5 else b"")
        + b"xy"
    )
    publisher.send(bytes((0x30 | qos << 1, len(body))) + body)
    assert publisher.closed
    assert subscriber.take() == []
    assert world.counters.published == 0


@ALL
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_topic_with_too_many_levels_is_refused(version: int, qos: int) -> None:
    world, publisher, subscriber = pair(version)
    publisher.publish("/".join("a" * MAX_TOPIC_LEVELS), b"fits", qos)
    assert not publisher.closed
    publisher.take()
    publisher.publish("/".join("a" * (MAX_TOPIC_LEVELS + 1)), b"x", qos, packet_id=2)
    assert publisher.closed
    assert publisher.last_reason() == (ReasonCode.TOPIC_NAME_INVALID if version == 5 else None)
    assert subscriber.payloads() == [b"fits"]
    assert world.counters.protocol_errors == 1


@pytest.mark.statement("MQTT-3.4.2-1", "MQTT-3.5.2-1", "3.1.1/MQTT-3.3.5-2")
@pytest.mark.statement("choice/topics that begin with `$`")
@ALL
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_dollar_topics_are_the_brokers_own(version: int, qos: int) -> None:
    """MQTT-4.7.2-1: refused and counted each time, also once the broker itself has published
    there."""
    world, publisher, _ = pair(version)
    watcher = world.connect("w").subscribed("$SYS/#", "$mqttree/+")
    for number in range(1, 4):
        world.node.publisher.publish_internal("$SYS/uptime", b"%d" % number, 0, True)
        world.settle()
        publisher.publish("$SYS/uptime", b"no", qos, packet_id=number)
        publisher.publish("$mqttree/y", b"no", qos, packet_id=number + 10)
        if qos == 2:
            publisher.send(Pubrel(number), Pubrel(number + 10))
    assert watcher.payloads() == [b"1", b"2", b"3"]
    assert world.counters.publish_refused == 6
    reasons = {
        getattr(p, "reason", None) for p in publisher.take() if isinstance(p, Puback | Pubrec)
    }
    assert reasons == (set() if qos == 0 else {ReasonCode.NOT_AUTHORIZED if version == 5 else 0})
    assert not publisher.closed
    # A client before MQTT 5 cannot see it.
    assert [level for level, line in world.lines if "may not publish to" in line].count("info") == 1


@pytest.mark.statement("choice/topics that begin with `$`")
@ALL
def test_other_topics_that_begin_with_dollar_are_the_clients(version: int) -> None:
    """No wildcard at the first level matches them (MQTT-4.7.2-1), retained ones included."""
    world, publisher, _ = pair(version)
    filters = ("$aws/#", "$thing/+/up", "$share/g/$oc/#")
    watcher = world.connect("w", version)
    watcher.subscribe(*(filters if version == 5 else filters[:2]), qos=1)
    everything = world.connect("e", version)
    for number, topic in enumerate(("$aws/x", "$aws/x", "$thing/1/up", "$oc/a"), 1):
        publisher.publish(topic, topic.encode(), 1, packet_id=number, retain=number == 3)
    assert watcher.payloads() == [b"$aws/x"] * 2 + [b"$thing/1/up"] + [b"$oc/a"] * (version == 5)
    everything.subscribe("#", "+/+/+")
    assert everything.payloads() == []
    everything.subscribe("$thing/#")
    assert everything.payloads() == [b"$thing/1/up"]


def test_very_long_topics_and_very_many_do_not_stay_in_the_cache() -> None:
    world, publisher, subscriber = pair(qos=1, limits=Limits(route_cache=10))
    for number in range(25):
        publisher.publish(f"t/{number}", b"%d" % number)
        publisher.publish("x" * 60_000, b"%d" % number)
    assert len(world.node.dispatcher.routes) <= 10
    assert subscriber.payloads() == [b"%d" % n for n in range(25) for _ in (1, 2)]


def test_routes_to_very_many_receivers_do_not_stay_in_the_cache() -> None:
    world = World(limits=Limits(route_cache_deliveries=10))
    clients = [world.connect(f"c{n}") for n in range(4)]
    for client in clients:
        client.subscribe("+")
    for number in range(20):
        clients[number % 4].unsubscribe("+")  # so that no two routes are the same
        clients[number % 4].subscribe("+")
        clients[0].publish(f"{number}")
        kept = set(world.node.dispatcher.routes.values())
        assert sum(len(route.deliveries) for route in kept) <= 16
    for client in clients:
        assert len(client.take()) == 20


# ---------------------------------------------------------------- properties


@pytest.mark.statement("MQTT-3.3.2-4", "MQTT-3.3.2-15", "MQTT-3.3.2-16", "MQTT-3.3.2-17")
@pytest.mark.statement("MQTT-3.3.2-18", "MQTT-3.3.2-20")
def test_properties_travel_unaltered() -> None:
    properties = {
        P.PAYLOAD_FORMAT_INDICATOR: 1,
        P.CONTENT_TYPE: "text/plain",
        P.RESPONSE_TOPIC: "answer/here",
        P.CORRELATION_DATA: b"\x00\xff",
        P.USER_PROPERTY: [("b", "2"), ("a", "1"), ("b", "2")],
    }
    for qos in (0, 1, 2):
        _, publisher, subscriber = pair()
        old = subscriber.world.connect("old", 4).subscribed("t", qos=2)
        publisher.publish("t", b"x", qos, properties=dict(properties))
        (packet,) = subscriber.take_publishes()
        assert packet.properties == properties
        (packet,) = old.take_publishes()
        assert (packet.payload, packet.properties) == (b"x", None)


@pytest.mark.statement("MQTT-3.3.2-6")
def test_message_expiry_tells_the_remaining_time() -> None:
    """MQTT-3.3.2-5, -6."""
    world = World()
    publisher = world.connect("p")
    keep = {P.SESSION_EXPIRY_INTERVAL: 1000}
    subscriber = world.connect("s", clean=False, properties=keep).subscribed("t", qos=1)
    publisher.publish("t", b"now", 0, properties={P.MESSAGE_EXPIRY_INTERVAL: 30})
    assert subscriber.take() == [Publish("t", b"now", properties={P.MESSAGE_EXPIRY_INTERVAL: 30})]
    subscriber.vanish()
    for seconds in (10, 30, 0xFFFFFFFF):
        publisher.publish("t", b"%d" % seconds, 1, properties={P.MESSAGE_EXPIRY_INTERVAL: seconds})
    publisher.publish("t", b"never", 1)
    world.advance(12)
    subscriber = world.connect("s", clean=False, properties=keep)
    left = [
        (p.payload, (p.properties or {}).get(P.MESSAGE_EXPIRY_INTERVAL)) for p in subscriber.inbox
    ]
    assert left == [(b"30", 18), (b"%d" % 0xFFFFFFFF, 0xFFFFFFFF - 12), (b"never", None)]
    assert world.counters.expired == 1


@pytest.mark.statement("MQTT-3.3.4-6")
def test_a_publish_with_a_subscription_identifier_is_refused() -> None:
    _, publisher, _ = pair()
    publisher.publish("t", properties={P.SUBSCRIPTION_IDENTIFIER: [1]})
    assert publisher.last_reason() == ReasonCode.PROTOCOL_ERROR


# ---------------------------------------------------------------- topic aliases


def test_a_topic_alias_stands_for_its_topic() -> None:
    """MQTT-3.3.2-7 to -12: the alias is replaced, and not passed on."""
    _, publisher, subscriber = pair()
    alias = {P.TOPIC_ALIAS: 3}
    publisher.publish("t", b"1", properties=dict(alias))
    publisher.publish("", b"2", properties=dict(alias))
    publisher.publish("u", b"3", 1, properties=dict(alias))
    publisher.publish("", b"4", 2, packet_id=2, properties={**alias, P.CONTENT_TYPE: "c"})
    assert [(p.topic, p.payload, p.properties) for p in subscriber.take_publishes()] == [
        *(
            ("t", b"1", None),
            ("t", b"2", None),
            ("u", b"3", None),
            ("u", b"4", {P.CONTENT_TYPE: "c"}),
        )
    ]


@pytest.mark.statement("MQTT-3.2.2-17", "MQTT-3.3.2-8", "MQTT-3.3.2-9")
@pytest.mark.parametrize(
    ("alias", "reason"),
    [
        (9, 0x82),
        (0, 0x94),
        (NodeConfig().topic_alias_maximum + 1, 0x94),
        (65535, 0x94),
        (NodeConfig().topic_alias_maximum, 0x82),
    ],
)
def test_a_bad_topic_alias_closes_its_publisher(alias: int, reason: int) -> None:
    _, publisher, _ = pair()
    publisher.publish("", b"x", properties={P.TOPIC_ALIAS: alias})
    assert publisher.last_reason() == reason


@pytest.mark.statement("MQTT-3.3.2-7")
def test_aliases_end_with_their_connection() -> None:
    world = World()
    keep = {P.SESSION_EXPIRY_INTERVAL: 100}
    world.connect("a", properties=keep).publish("t", properties={P.TOPIC_ALIAS: 1})
    client = world.connect("a", clean=False, properties=keep)
    client.publish("", properties={P.TOPIC_ALIAS: 1})
    assert client.last_reason() == ReasonCode.PROTOCOL_ERROR


# ---------------------------------------------------------------- flow control


@pytest.mark.statement("MQTT-3.1.2-25")
def test_a_message_too_large_for_its_receiver_is_not_sent() -> None:
    """MQTT-3.1.2-24, -25: not sent, as if it had been; the session goes on."""
    world = World()
    publisher = world.connect("p")
    subscriber = world.connect("s", properties={P.MAXIMUM_PACKET_SIZE: 30}).subscribed("t", qos=2)
    for qos in (0, 1, 2):
        publisher.publish("t", b"x" * 30, qos, packet_id=qos)
        publisher.publish("t", b"%d" % qos, qos, packet_id=qos + 10)
    assert subscriber.payloads() == [b"0", b"1", b"2"]
    assert world.counters.dropped_too_large == 3
    subscriber.publish("u", b"x" * 100)  # its own limit says nothing about what it sends
    assert not subscriber.closed


@pytest.mark.statement("MQTT-3.2.2-15")
def test_a_packet_above_the_brokers_maximum_size_is_refused() -> None:
    """A packet beyond what CONNACK announced is refused by its header, before its body has come."""
    _, publisher, _ = pair(max_packet_size=1000)
    publisher.send(b"\x30\xff\xff\x03\x00\x01t")
    assert publisher.last_reason() == ReasonCode.PACKET_TOO_LARGE


@pytest.mark.statement("MQTT-3.2.2-10", "MQTT-3.2.2-11", "MQTT-3.8.4-7")
def test_a_publish_above_the_maximum_qos_is_refused() -> None:
    """MQTT-3.2.2-9 to -11."""
    world = World(max_qos=1)
    publisher, subscriber = world.connect("p"), world.connect("s")
    assert subscriber.subscribe("t", qos=2) == [1]
    publisher.publish("t", b"x", 1)
    assert subscriber.payloads() == [b"x"]
    publisher.publish("t", b"x", 2, packet_id=2)
    assert publisher.last_reason() == ReasonCode.QOS_NOT_SUPPORTED
    assert subscriber.take() == []


@pytest.mark.statement("MQTT-4.6.0-5", "MQTT-4.6.0-6", "3.1.1/MQTT-4.6.0-5", "3.1.1/MQTT-4.6.0-6")
@pytest.mark.parametrize("sender", [3, 4, 5])
@pytest.mark.parametrize("receiver", [3, 4, 5])
@given(
    messages=st.lists(
        st.tuples(
            st.sampled_from(["a", "b/c", "é", "$d"]), st.binary(max_size=200), st.integers(0, 2)
        )
    ),
    places=st.lists(st.integers(0, 5000), max_size=8),
)
def test_messages_between_versions_arrive_whole_and_in_order(
    sender: int, receiver: int, messages: list, places: list[int]
) -> None:
    """Order per publisher over all topics and QoS of an always ready subscriber; every byte as it
    was."""
    world = World()
    publisher, subscriber = world.connect("p", sender), world.connect("s", receiver)
    subscriber.subscribe("#", qos=2)
    packets = [
        Publish(t, body, qos, packet_id=n + 1 if qos else None)
        for n, (t, body, qos) in enumerate(messages)
    ]
    publisher.chunks(cut(b"".join(encode_packet(p, sender) for p in packets), places))
    got = [(p.topic, p.payload, p.qos) for p in subscriber.take_publishes()]
    assert got == [m for m in messages if m[0] != "$d"]
    assert not publisher.closed
    assert not any(isinstance(p, Disconnect) for p in publisher.take())


@pytest.mark.statement("MQTT-2.2.1-3", "MQTT-4.3.3-10", "3.1.1/MQTT-2.3.1-2")
@ALL
@pytest.mark.parametrize("count", [1, 2, 40])
def test_a_packet_identifier_in_use_is_counted_and_named(version: int, count: int) -> None:
    """Mosquitto 2.0 gives identifiers that are not released to new messages once it has none left.
    Nothing can be done, as each looks like a repetition; but it is seen."""
    world, publisher, subscriber = pair(version)
    ids = range(1, count + 1)

    def sent(payload: bytes, *, dup: bool) -> None:
        packets = [Publish("t", payload, 2, dup=dup, packet_id=number) for number in ids]
        publisher.chunks([b"".join(encode_packet(packet, version) for packet in packets)])
        assert publisher.take() == [Pubrec(number) for number in ids]

    sent(b"first", dup=False)
    sent(b"first", dup=True)
    assert world.node.counters.packet_ids_reused == 0
    sent(b"other", dup=False)
    assert {p.payload for p in subscriber.take_publishes()} == {b"first"}
    assert world.node.counters.packet_ids_reused == count
    (line,) = [
        text for level, text in world.lines if "is not released" in text and level != "debug"
    ]
    assert "client 'p'" in line


@pytest.mark.parametrize("version", [4, 5])
def test_a_repetition_without_dup_on_a_new_connection_is_no_use_of_an_identifier(
    version: int,
) -> None:
    world = World()
    expiry = {"properties": {P.SESSION_EXPIRY_INTERVAL: 60}} if version == 5 else {}
    client = world.connect("p", version, clean=False, **expiry)
    client.publish("t", b"x", 2, packet_id=7)
    client.vanish()
    client = world.connect("p", version, clean=False, **expiry)
    client.publish("t", b"x", 2, packet_id=7)
    assert client.take() == [Pubrec(7)]
    assert world.node.counters.packet_ids_reused == 0


def stay(world: World, version: int = 5, **properties: int) -> FakeClient:
    """The client "s" with a session that stays."""
    options = {P.SESSION_EXPIRY_INTERVAL: 1000} | {
        P[name.upper()]: value for name, value in properties.items()
    }
    return world.connect("s", version, clean=False, properties=options if version == 5 else None)


# ---------------------------------------------------------------- delivery


@pytest.mark.statement("MQTT-4.3.2-3", "MQTT-4.3.3-3", "MQTT-4.3.3-5", "MQTT-4.4.0-1")
@pytest.mark.statement("MQTT-4.5.0-2", "3.1.1/MQTT-4.3.2-1", "3.1.1/MQTT-4.5.0-2", "3.1/repetition")
@ALL
def test_nothing_is_sent_again_on_one_connection(version: int) -> None:
    """MQTT-4.4.0-1: only a reconnection repeats, however long an acknowledgement takes;
    MQTT-4.3.2-3, MQTT-4.3.3-3, -5."""
    world = World()
    publisher, subscriber = world.connect("p", version), stay(world, version).subscribed("t", qos=2)
    for number, qos in ((1, 1), (2, 2), (3, 2)):
        publisher.publish("t", b"%d" % number, qos, packet_id=number)
    assert [p.packet_id for p in subscriber.take_publishes()] == [1, 2, 3]
    subscriber.send(Pubrec(3))
    assert subscriber.take() == [Pubrel(3)]
    world.advance(100_000)
    assert subscriber.take() == []
    assert list(world.session("s").inflight) == [1, 2, 3]
    subscriber.vanish()
    again = stay(world, version).inbox
    assert [(p.packet_id, p.dup) if isinstance(p, Publish) else p for p in again] == [
        (1, True),
        (2, True),
        Pubrel(3),
    ]


@pytest.mark.statement("MQTT-4.3.2-5", "MQTT-4.3.3-12", "3.1.1/MQTT-4.3.2-2", "3.1.1/MQTT-4.3.3-2")
@ALL
@pytest.mark.parametrize("dup", [False, True])
def test_an_acknowledged_identifier_is_a_new_message(version: int, dup: bool) -> None:
    """MQTT-4.3.2-5, MQTT-4.3.3-12: after PUBACK or PUBCOMP, whatever DUP says (MQTT-4.3.2-2,
    4.3.3-2 of 3.1.1)."""
    world = World()
    publisher, subscriber = world.connect("p", version), world.connect("s", version).subscribed("t")
    for number in (1, 2):
        publisher.publish("t", b"one %d" % number, 1, packet_id=7, dup=dup)
        assert publisher.take() == [Puback(7)]
        publisher.publish("t", b"two %d" % number, 2, packet_id=7, dup=dup)
        publisher.send(Pubrel(7))
        assert publisher.take() == [Pubrec(7), Pubcomp(7)]
    assert subscriber.payloads() == [b"one 1", b"two 1", b"one 2", b"two 2"]


@pytest.mark.statement("MQTT-3.3.1-2", "MQTT-3.3.1-3", "MQTT-4.3.1-1", "3.1.1/MQTT-3.3.1-2")
@pytest.mark.statement("3.1.1/MQTT-3.3.1-3", "3.1.1/MQTT-4.3.1-1")
@ALL
@pytest.mark.parametrize("dup", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_dup_and_qos_are_right_on_the_wire(version: int, qos: int, dup: bool) -> None:
    """DUP at QoS 0 is malformed; otherwise it says nothing of what subscribers get."""
    world = World()
    publisher, subscriber = world.connect("p", version), world.connect("s", version)
    subscriber.subscribe("t", qos=2)
    publisher.publish("t", b"x", qos, dup=dup)
    assert publisher.closed is (dup and qos == 0)
    expected = [] if publisher.closed else [Publish("t", b"x", qos, packet_id=1 if qos else None)]
    assert subscriber.take() == expected


@pytest.mark.statement("MQTT-4.3.3-7")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_was_sent_does_not_expire(qos: int) -> None:
    """It is repeated, with the least Message Expiry Interval that there is, and its exchange goes
    on."""
    world = World()
    publisher, subscriber = world.connect("p"), stay(world).subscribed("t", qos=2)
    publisher.publish("t", b"x", qos, properties={P.MESSAGE_EXPIRY_INTERVAL: 5})
    subscriber.take()
    subscriber.vanish()
    world.advance(60)
    subscriber = stay(world)
    assert subscriber.inbox == [
        Publish("t", b"x", qos, dup=True, packet_id=1, properties={P.MESSAGE_EXPIRY_INTERVAL: 1})
    ]
    subscriber.inbox = []
    subscriber.send(Puback(1) if qos == 1 else Pubrec(1))
    assert subscriber.take() == ([] if qos == 1 else [Pubrel(1)])


@pytest.mark.statement("MQTT-4.3.3-13")
def test_the_exchange_with_the_publisher_does_not_expire() -> None:
    world = World()
    publisher = world.connect("p")
    publisher.publish("t", b"x", 2, properties={P.MESSAGE_EXPIRY_INTERVAL: 1})
    assert publisher.take() == [Pubrec(1)]
    world.advance(60)
    publisher.publish("t", b"x", 2, dup=True, properties={P.MESSAGE_EXPIRY_INTERVAL: 1})
    publisher.send(Pubrel(1))
    assert publisher.take() == [Pubrec(1), Pubcomp(1)]


@pytest.mark.statement("MQTT-3.3.2-5")
def test_expired_messages_are_not_sent() -> None:
    """Neither from the queue of a client that is away, nor behind a full window, nor retained."""
    world = World()
    publisher, busy = world.connect("p"), world.connect("b", properties={P.RECEIVE_MAXIMUM: 1})
    away = stay(world)
    for client in (away, busy):
        client.subscribe("t", qos=1)
    away.vanish()
    busy.subscribe("first", qos=1)
    publisher.publish("first", b"first", 1)
    publisher.publish(
        "t", b"short", 1, packet_id=2, properties={P.MESSAGE_EXPIRY_INTERVAL: 5}, retain=True
    )
    publisher.publish(
        "t/long", b"long", 1, packet_id=3, properties={P.MESSAGE_EXPIRY_INTERVAL: 50}, retain=True
    )
    publisher.publish("t", b"without", 1, packet_id=4)
    world.advance(10)
    assert busy.payloads() == [b"first"]
    busy.send(Puback(1))
    assert busy.payloads() == [b"without"]
    assert [p.payload for p in stay(world).inbox if isinstance(p, Publish)] == [b"without"]
    late = world.connect("l").subscribed("t/#", qos=1)
    (packet,) = late.take_publishes()
    assert (packet.payload, packet.properties) == (b"long", {P.MESSAGE_EXPIRY_INTERVAL: 40})


@pytest.mark.statement("MQTT-4.6.0-2", "MQTT-4.6.0-3", "MQTT-4.6.0-4", "3.1.1/MQTT-4.6.0-2")
@pytest.mark.statement("3.1.1/MQTT-4.6.0-3", "3.1.1/MQTT-4.6.0-4")
@ALL
def test_acknowledgements_come_in_the_order_of_messages(version: int) -> None:
    """MQTT-4.6.0-2 to -4 bind clients; the broker answers in the order of what it answers, too."""
    world = World()
    publisher, subscriber = world.connect("p", version), world.connect("s", version)
    subscriber.subscribe("t", qos=2)
    order = [9, 3, 7, 1]
    publisher.send(*(Publish("t", b"%d" % n, 1 + n % 2, packet_id=n) for n in [*order, 2, 4]))
    assert [p.packet_id for p in publisher.take()] == [*order, 2, 4]
    publisher.send(*(Pubrel(n) for n in reversed(order)))
    assert [p.packet_id for p in publisher.take()] == [1, 7, 3, 9]
    got = subscriber.take_publishes()
    assert [p.payload for p in got] == [b"%d" % n for n in [*order, 2, 4]]
    twos = [p.packet_id for p in got if p.qos == 2]
    subscriber.send(*(Pubrec(n) for n in reversed(twos)))
    assert subscriber.take() == [Pubrel(n) for n in reversed(twos)]


# ---------------------------------------------------------------- topic aliases


@pytest.mark.statement("MQTT-3.3.2-12")
def test_every_topic_alias_that_was_granted_is_taken() -> None:
    """MQTT-3.3.2-12, MQTT-3.2.2-17: 1 to the Topic Alias Maximum of CONNACK, each its own, at each
    QoS."""
    world = World()
    publisher, subscriber = world.connect("p"), world.connect("s").subscribed("#", qos=2)
    maximum = publisher.connack.properties[P.TOPIC_ALIAS_MAXIMUM]
    assert maximum == NodeConfig().topic_alias_maximum
    for number in range(1, maximum + 1):
        publisher.publish(f"t/{number}", b"named", 0, properties={P.TOPIC_ALIAS: number})
    for number in range(1, maximum + 1):
        publisher.publish(
            "", b"short", number % 3, packet_id=number, properties={P.TOPIC_ALIAS: number}
        )
    got = subscriber.take_publishes()
    assert [p.topic for p in got] == [f"t/{n}" for n in range(1, maximum + 1)] * 2
    # None was granted to us [MQTT-3.1.2-27].
    assert not any(P.TOPIC_ALIAS in (p.properties or {}) for p in got)


# ---------------------------------------------------------------- flow control


def acknowledge(packet: Publish) -> Packet:
    assert packet.packet_id is not None
    return Puback(packet.packet_id) if packet.qos == 1 else Pubrec(packet.packet_id, 0x80)


@pytest.mark.statement("MQTT-3.3.4-9", "MQTT-4.9.0-1", "MQTT-4.9.0-2")
@pytest.mark.parametrize("maximum", [1, 2, 10, 65535])
@pytest.mark.parametrize("qos", [1, 2])
def test_the_send_window_is_the_clients_receive_maximum(maximum: int, qos: int) -> None:
    """All of it and not one more; the first waits for nothing."""
    world = World()
    publisher = world.connect("p")
    subscriber = world.connect("s", properties={P.RECEIVE_MAXIMUM: maximum}).subscribed("t", qos=2)
    count = 40
    for number in range(1, count + 1):
        publisher.publish("t", b"%d" % number, qos, packet_id=number)
    seen: list[bytes] = []
    while packets := subscriber.take_publishes():
        assert len(packets) == min(maximum, count - len(seen))
        seen += [p.payload for p in packets]
        subscriber.send(*map(acknowledge, packets))
    assert seen == [b"%d" % n for n in range(1, count + 1)]


# what the client sends while nothing more may be sent to it at QoS 1 and 2 -> what it gets
UNHELD: dict[str, tuple[Packet, Callable[[], list[Packet]]]] = {
    "PINGREQ": (Pingreq(), lambda: [Pingresp()]),
    "SUBSCRIBE": (Subscribe(5, [SubscriptionRequest("u", 1)]), lambda: [Suback(5, [1])]),
    "UNSUBSCRIBE": (Unsubscribe(6, ["nothing"]), lambda: [Unsuback(6, [0x11])]),
    "PUBLISH at QoS 0": (Publish("t", b"0"), lambda: [Publish("t", b"0")]),
    "PUBLISH at QoS 1": (Publish("v", b"1", 1, packet_id=1), lambda: [Puback(1)]),
    "PUBLISH at QoS 2": (Publish("v", b"2", 2, packet_id=2), lambda: [Pubrec(2)]),
    "PUBREL": (Pubrel(9), lambda: [Pubcomp(9)]),
    "PUBREC": (Pubrec(1), lambda: [Pubrel(1)]),
}


@pytest.mark.statement("MQTT-3.3.4-10", "MQTT-4.9.0-3")
@pytest.mark.parametrize("name", UNHELD)
def test_a_full_window_holds_only_publish(name: str) -> None:
    packet, answer = UNHELD[name]
    world = World()
    client = world.connect("c", properties={P.RECEIVE_MAXIMUM: 1}).subscribed("t", qos=2)
    client.publish("w", b"open", 2, packet_id=9)
    publisher = world.connect("p")
    publisher.publish("t", b"in flight", 2, packet_id=1)
    publisher.publish("t", b"waits", 2, packet_id=2)
    assert [p.payload for p in client.take() if isinstance(p, Publish)] == [b"in flight"]
    client.send(packet)
    assert client.take() == answer()


# ---------------------------------------------------------------- retained messages


@pytest.mark.statement("MQTT-3.3.1-5", "MQTT-3.3.1-6", "MQTT-3.3.1-7", "MQTT-3.3.1-8")
@pytest.mark.statement("3.1.1/MQTT-3.3.1-5", "3.1.1/MQTT-3.3.1-7", "3.1.1/MQTT-3.3.1-10")
@pytest.mark.statement("3.1.1/MQTT-3.3.1-9", "3.1.1/MQTT-3.3.1-11", "3.1.1/MQTT-3.3.1-12")
@ALL
def test_retain_stores_replaces_and_deletes_messages(version: int) -> None:
    """Set, replaced, kept, removed, nothing stored."""
    steps = [
        ("kept without RETAIN", b"no", False, []),
        ("stored", b"1", True, [b"1"]),
        ("not replaced", b"2", False, [b"1"]),
        ("replaced", b"3", True, [b"3"]),
        ("an empty one without RETAIN", b"", False, [b"3"]),
        ("removed", b"", True, []),
        ("removed again", b"", True, []),
    ]
    for qos in (0, 1, 2):
        world = World()
        publisher, watcher = world.connect("p", version), world.connect("w", version)
        watcher.subscribe("t")
        for number, (name, payload, retain, stored) in enumerate(steps, 1):
            publisher.publish("t", payload, qos, packet_id=number, retain=retain)
            got = [(p.payload, p.retain) for p in watcher.take_publishes()]
            assert got == [(payload, False)], name
            late = world.connect("late", version).subscribed("t", qos=qos)
            assert [(p.payload, p.retain, p.qos) for p in late.take_publishes()] == [
                (body, True, qos) for body in stored
            ], name
