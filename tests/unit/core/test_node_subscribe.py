"""SUBSCRIBE, UNSUBSCRIBE, topic filters, overlapping and shared subscriptions (MQTT 3.8 to 3.11,
4.7, 4.8): see docs/conformance.md."""

from __future__ import annotations

import pytest

from mqttree.broker.wire.constants import MAX_TOPIC_LEVELS, ReasonCode
from mqttree.broker.wire.packets import (
    Disconnect,
    Packet,
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
from tests.kit.node_harness import FakeClient, World

ALL = pytest.mark.parametrize("version", [3, 4, 5])
P = Property

BAD_FILTERS = [
    "",
    "a#",
    "#/a",
    "a/#/b",
    "+a",
    "a/b+/c",
    "##",
    "$share/",
    "$share/g",
    "$share/g/",
    "$share//a",
    "$share/+/a",
]


def ids(packet: Publish) -> list[int]:
    return (packet.properties or {}).get(P.SUBSCRIPTION_IDENTIFIER, [])


@pytest.mark.statement("MQTT-4.7.1-1", "MQTT-4.7.1-2", "MQTT-4.7.3-1", "MQTT-4.8.2-1")
@pytest.mark.statement("MQTT-4.8.2-2", "3.1.1/MQTT-4.7.1-2", "3.1.1/MQTT-4.7.1-3")
@pytest.mark.statement("3.1.1/MQTT-4.7.3-1", "choice/an ill-formed filter among others")
@ALL
@pytest.mark.parametrize("topic_filter", BAD_FILTERS)
@pytest.mark.parametrize("kind", ["SUBSCRIBE", "UNSUBSCRIBE"])
def test_an_ill_formed_filter_closes_the_connection(
    version: int, topic_filter: str, kind: str
) -> None:
    """MQTT-4.7.1-1, -2, MQTT-4.7.3-1, MQTT-4.8.2-1, -2, MQTT-4.13.1-1; nothing of the packet
    counts. Before MQTT 5 `$share` is a name as any other: such a filter is well formed, and
    refused."""
    world = World()
    client = world.connect("a", version)
    client.send(
        Subscribe(1, [SubscriptionRequest("good", 0), SubscriptionRequest(topic_filter, 0)])
        if kind == "SUBSCRIBE"
        else Unsubscribe(1, ["good", topic_filter])
    )
    if version < 5 and topic_filter.startswith("$share"):
        code = Suback(1, [0, 0x80]) if kind == "SUBSCRIBE" else Unsuback(1, [])
        assert client.take() == [code]
        return
    assert client.closed
    assert client.take() == ([Disconnect(ReasonCode.MALFORMED_PACKET)] if version == 5 else [])
    assert not world.node.dispatcher.trie
    assert world.counters.malformed == 1


@pytest.mark.statement("choice/a filter with more than 200 slashes")
@ALL
def test_a_filter_with_too_many_levels_is_refused_not_closed(version: int) -> None:
    """0x8F: well formed, and not accepted. Mosquitto's limit: 200 slashes pass, 201 do not."""
    world = World()
    client = world.connect("a", version)
    assert client.subscribe("/" * 200, "/" * 201) == [0, 0x8F if version == 5 else 0x80]
    assert client.unsubscribe("/" * 201) == ([0x8F] if version == 5 else [])
    assert not client.closed


@pytest.mark.statement("MQTT-4.7.3-3", "3.1.1/MQTT-4.7.3-3")
@ALL
def test_the_longest_filter_is_granted(version: int) -> None:
    client = World().connect("a", version)
    assert client.subscribe("/".join("+" * MAX_TOPIC_LEVELS), "x" * 65535) == [0, 0]


@pytest.mark.statement("MQTT-3.10.4-2")
def test_unsubscribe_takes_effect_on_a_cached_route() -> None:
    client = World().connect("a").subscribed("t")
    client.publish("t", b"1")
    client.unsubscribe("t")
    client.publish("t", b"2")
    client.subscribe("+")
    client.publish("t", b"3")
    assert client.payloads() == [b"1", b"3"]


@pytest.mark.statement("MQTT-3.8.4-3")
@ALL
def test_a_second_subscription_with_the_same_filter_replaces_the_first(version: int) -> None:
    world = World()
    client = world.connect("a", version).subscribed("t", qos=2)
    assert client.subscribe("t", qos=0) == [0]
    client.publish("t", b"x", 0)
    client.publish("t", b"y", 1)
    assert [(p.payload, p.qos) for p in client.take() if isinstance(p, Publish)] == [
        (b"x", 0),
        (b"y", 0),
    ]
    assert len(world.session("a").subscriptions) == 1


@pytest.mark.statement("MQTT-3.3.4-2", "3.1.1/MQTT-3.3.5-1")
@ALL
def test_overlapping_subscriptions_deliver_once_at_the_highest_qos(version: int) -> None:
    world = World()
    client, publisher = world.connect("a", version), world.connect("p", version)
    client.subscribe("t/#", qos=0)
    client.subscribe("t/+", qos=2)
    client.subscribe("t/u", qos=1)
    for qos in (0, 1, 2):
        publisher.publish("t/u", b"x", qos)
        assert [p.qos for p in client.take_publishes()] == [qos]


@pytest.mark.statement("MQTT-3.3.4-3", "MQTT-3.3.4-4", "MQTT-3.3.4-5")
@pytest.mark.statement("choice/overlapping subscriptions")
def test_a_message_has_the_identifiers_of_all_overlapping_subscriptions() -> None:
    world = World()
    client, publisher = world.connect("a"), world.connect("p")
    client.subscribe("t/#", properties={P.SUBSCRIPTION_IDENTIFIER: [268_435_455]})
    client.subscribe("t/+", qos=1, properties={P.SUBSCRIPTION_IDENTIFIER: [1]})
    client.subscribe("t/u", qos=2)
    for qos in (0, 1, 2):
        publisher.publish("t/u", b"x", qos, properties={P.USER_PROPERTY: [("a", "b")]})
        (packet,) = client.take_publishes()
        assert sorted(ids(packet)) == [1, 268_435_455]
        assert packet.properties[P.USER_PROPERTY] == [("a", "b")]
    publisher.publish("t/u/v", b"x")
    assert [ids(p) for p in client.take_publishes()] == [[268_435_455]]
    client.subscribe("t/+", properties={P.SUBSCRIPTION_IDENTIFIER: [2]})
    client.subscribe("t/#")
    publisher.publish("t/u", b"x")
    assert [ids(p) for p in client.take_publishes()] == [[2]]


def test_an_identifier_holds_for_every_filter_of_its_packet() -> None:
    client = World().connect("a").subscribed("a", "b", properties={P.SUBSCRIPTION_IDENTIFIER: [5]})
    client.publish("a")
    client.publish("b")
    assert [ids(p) for p in client.take_publishes()] == [[5], [5]]


# ---------------------------------------------------------------- options


@pytest.mark.statement("MQTT-3.8.3-3")
@pytest.mark.parametrize("qos", [0, 1])
def test_no_local_keeps_a_clients_own_messages_from_it(qos: int) -> None:
    """A subscription without it still gets them, with its own QoS and identifier."""
    world = World()
    client, other = world.connect("a"), world.connect("b")
    client.subscribe("t", qos=1, no_local=True, properties={P.SUBSCRIPTION_IDENTIFIER: [1]})
    client.publish("t", b"own", qos)
    other.publish("t", b"other", qos)
    client.publish("t", b"own again", qos, packet_id=2)
    assert [p.payload for p in client.take() if isinstance(p, Publish)] == [b"other"]
    client.subscribe("+", qos=0, properties={P.SUBSCRIPTION_IDENTIFIER: [2]})
    client.publish("t", b"own", qos, packet_id=3)
    other.publish("t", b"other", qos, packet_id=4)
    got = [(p.payload, p.qos, sorted(ids(p))) for p in client.take() if isinstance(p, Publish)]
    assert got == [(b"own", 0, [2]), (b"other", qos, [1, 2])]


@pytest.mark.statement("MQTT-3.8.3-3")
def test_no_local_survives_reconnection() -> None:
    """MQTT-3.8.3-3 goes by the client identifier, not by the connection."""
    world = World()
    keep = {P.SESSION_EXPIRY_INTERVAL: 100}
    client = world.connect("a", properties=keep).subscribed("t", no_local=True)
    client = world.connect("a", clean=False, properties=keep)
    client.publish("t")
    assert client.take() == []


@pytest.mark.statement("MQTT-3.3.1-12", "MQTT-3.3.1-13")
def test_retain_as_published_keeps_the_retain_flag() -> None:
    """MQTT-3.8.3 (Retain As Published), MQTT-3.3.1-12, -13; also with an overlapping subscription
    without it."""
    world = World()
    plain, keeps, both = (world.connect(n) for n in ("plain", "keeps", "both"))
    plain.subscribe("t", qos=1)
    keeps.subscribe("t", qos=1, retain_as_published=True)
    both.subscribe("t", qos=1)
    both.subscribe("+", qos=1, retain_as_published=True)
    publisher = world.connect("p")
    for qos in (0, 1):
        publisher.publish("t", b"r", qos, retain=True)
        publisher.publish("t", b"n", qos, retain=False, packet_id=2)
    assert [p.retain for p in plain.take_publishes()] == [False] * 4
    assert [p.retain for p in keeps.take_publishes()] == [True, False] * 2
    assert [p.retain for p in both.take_publishes()] == [True, False] * 2


# ---------------------------------------------------------------- shared subscriptions


def members(
    world: World, count: int, topic_filter: str = "$share/g/t", qos: int = 2, **options
) -> list[FakeClient]:
    clients = [world.connect(f"m{n}", **options) for n in range(count)]
    for client in clients:
        client.subscribe(topic_filter, qos=qos)
    return clients


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member_in_turn(qos: int) -> None:
    """MQTT-4.8.2-3, and beside the ordinary subscriptions (4.8.2)."""
    world = World()
    shared = members(world, 3)
    plain = world.connect("plain").subscribed("t", qos=2)
    publisher = world.connect("p")
    for number in range(1, 31):
        publisher.publish("t", b"%d" % number, qos, packet_id=number)
    assert plain.payloads() == [b"%d" % n for n in range(1, 31)]
    got = [client.payloads() for client in shared]
    if qos == 0:
        assert [len(g) for g in got] == [10, 10, 10]
    assert sorted(int(body) for g in got for body in g) == list(range(1, 31))
    assert all(g == sorted(g, key=int) for g in got)


def test_groups_are_separate_and_names_count() -> None:
    world = World()
    a, b, c = (world.connect(n) for n in "abc")
    a.subscribe("$share/g/t/+")
    b.subscribe("$share/h/t/+")
    c.subscribe("$share/g/t/#")
    for number in range(6):
        c.publish("t/x", b"%d" % number)
    for client in (a, b, c):
        assert len(client.payloads()) == 6


@pytest.mark.statement("MQTT-3.3.4-5", "MQTT-4.8.2-3")
def test_shared_qos_is_that_of_the_member() -> None:
    world = World()
    low, high = world.connect("low"), world.connect("high")
    low.subscribe("$share/g/t", qos=0, properties={P.SUBSCRIPTION_IDENTIFIER: [1]})
    high.subscribe("$share/g/t", qos=1, properties={P.SUBSCRIPTION_IDENTIFIER: [2]})
    publisher = world.connect("p")
    for number in range(1, 5):
        publisher.publish("t", b"x", 2, packet_id=number)
    assert [(p.qos, ids(p)) for p in low.take_publishes()] == [(0, [1])] * 2
    assert [(p.qos, ids(p)) for p in high.take_publishes()] == [(1, [2])] * 2


def test_members_that_are_away_or_behind_are_passed_over() -> None:
    world = World()
    keep = {P.SESSION_EXPIRY_INTERVAL: 100, P.RECEIVE_MAXIMUM: 1}
    away, behind, ready = members(world, 3, qos=1, properties=keep)
    publisher = world.connect("p")
    away.vanish()
    behind.subscribe("full", qos=1)
    publisher.publish("full", b"x", 1)
    publisher.publish("full", b"x", 1, packet_id=2)
    for number in range(3, 9):
        publisher.publish("t", b"%d" % number, 1, packet_id=number)
        ready.send(Puback(number - 2))
    assert len(ready.take_publishes()) == 6
    ready.vanish()
    behind.vanish()
    publisher.publish("t", b"late", 1, packet_id=20)
    # One of them waits for "full".
    assert sum(len(world.session(f"m{n}").queue) for n in range(3)) == 2


@pytest.mark.statement("MQTT-4.8.2-5")
@pytest.mark.statement("choice/shared subscription, member leaves with messages at QoS 1")
@pytest.mark.parametrize("leave", ["disconnect", "vanish", "expiry", "clean start"])
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_of_a_member_that_leaves_go_to_another(qos: int, leave: str) -> None:
    """4.8.2: what waited, and what was not acknowledged at QoS 1, goes to another; not what was
    sent at QoS 2 (MQTT-4.8.2-5)."""
    world = World()
    options = {P.RECEIVE_MAXIMUM: 2}
    if leave in ("expiry", "clean start"):
        options[P.SESSION_EXPIRY_INTERVAL] = 100
    (leaver,) = members(world, 1, properties=options)
    publisher = world.connect("p")
    for number in range(1, 6):
        publisher.publish("t", b"%d" % number, qos, packet_id=number)
    assert leaver.payloads() == [b"1", b"2"]
    leaver.send(Puback(1) if qos == 1 else Pubrec(1))
    other = world.connect("other").subscribed("$share/g/t", qos=2)
    if leave == "disconnect":
        leaver.disconnect()
    else:
        leaver.vanish()
        assert leave == "vanish" or other.take() == []
        if leave == "expiry":
            world.advance(101)
        elif leave == "clean start":
            world.connect("m0")
    # At QoS 1 the third was sent when the first was acknowledged.
    expected = [b"2", b"3", b"4", b"5"] if qos == 1 else [b"3", b"4", b"5"]
    assert [(p.payload, p.qos, p.dup) for p in other.take_publishes()] == [
        (body, qos, False) for body in expected
    ]


def test_messages_of_the_last_member_end_with_it() -> None:
    world = World()
    (client,) = members(world, 1)
    world.connect("p").publish("t", b"x", 1)
    client.disconnect()
    (client,) = members(world, 1)
    assert client.take() == []
    assert len(world.node.dispatcher.shared) == 1


def test_expired_messages_are_not_passed_on() -> None:
    world = World()
    (leaver,) = members(world, 1)
    world.connect("p").publish("t", b"x", 1, properties={P.MESSAGE_EXPIRY_INTERVAL: 5})
    world.advance(6)
    other = world.connect("other").subscribed("$share/g/t", qos=1)
    leaver.disconnect()
    assert other.take() == []


@pytest.mark.statement("MQTT-4.8.2-6")
def test_a_negative_acknowledgement_passes_no_message_on() -> None:
    world = World()
    first, second = members(world, 2)
    world.connect("p").publish("t", b"x", 1)
    got = first if first.take_publishes() else second
    got.send(Puback(1, 0x83))
    got.disconnect()
    assert first.take() == second.take() == []


def test_a_member_that_unsubscribes_gets_no_more_messages() -> None:
    world = World()
    first, second = members(world, 2)
    assert first.unsubscribe("$share/g/t", "t") == [0, 0x11]
    publisher = world.connect("p")
    for number in (1, 2, 3):
        publisher.publish("t", b"x", 1, packet_id=number)
    assert first.take() == []
    assert len(second.take_publishes()) == 3
    assert second.unsubscribe("$share/g/t") == [0]
    assert not world.node.dispatcher.shared


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
    client = world.connect("c", version, clean=False, properties=keep).subscribed("t", qos=2)
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
    client = world.connect("c", version).subscribed("a/b", "a/+", "\u00e9", "$share/g/a/b")
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
