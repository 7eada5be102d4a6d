"""How much one peer has done in a turn of the event loop: filters that overlap, new topics,
thousands of filters in a packet."""

from __future__ import annotations

import itertools

import pytest

from mqttree.broker.base.turns import PAUSE
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.core.message import Message
from mqttree.broker.core.retained_feed import SEARCH_STEPS_PER_TURN
from mqttree.broker.core.subscribe import MAX_WILDCARD_FORMS, PIECES
from mqttree.broker.core.wildcard_forms import form_of
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.wire.decode import FILTERS
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import (
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from mqttree.broker.wire.properties import Property
from mqttree.broker.wire.varint import encode_varint
from mqttree.routing.topic_filter import matches
from tests.kit.link_harness import FAR, Neighbour, batch_entry, let_through, lone, message
from tests.kit.node_harness import FakeClient, World, connect_packet

QUOTA, QOS = 0x97, 1
OVERLAPPING = [
    "/".join(levels) for levels in itertools.product(*((word, "+") for word in "abcdefghij"))
]
"""A thousand filters that all match one topic."""


def subscribe(client: FakeClient, filters: list[str], qos: int = 0) -> list[int]:
    """In one packet, however many turns that takes."""
    client.send(Subscribe(7, [SubscriptionRequest(filter_, qos) for filter_ in filters]))
    client.world.advance(0.1)
    (codes,) = [packet.codes for packet in client.take() if isinstance(packet, Suback)]
    return codes


def fill(world: World, count: int) -> None:
    for number in range(count):
        world.node.cluster.retained_sync.written(
            Message(b"r/%d" % number, b"%d" % number, 1, True, b"", None, None), None
        )


# ---------------------------------------------------------------- forms


def test_filters_of_one_form_match_one_topic_at_most_once() -> None:
    filters = [
        "a/+/c",
        "b/+/c",
        "a/+/#",
        "+/+/c",
        "a/b",
        "a/c",
        "$share/g/a",
        "$share/g/b",
        "$share/h/a",
        "$share/g/+",
        "#",
        "+",
    ]
    for one, other in itertools.combinations(filters, 2):
        if form_of(one) == form_of(other) is not None:
            assert not any(
                matches(one, topic) and matches(other, topic)
                for topic in ("a", "b", "a/b", "a/x/c", "b/x/c")
            )
    assert [
        form_of(f) for f in ("a/b", "a/+/c", "x/+/y", "$share/g/t", "$share/g/+/t", "$share/h/x/+")
    ] == [None, "/+/", "/+/", "g/", "g//+/", "h///+"]


def test_filters_of_one_client_that_overlap_are_bounded() -> None:
    world = lone()
    client = world.connect("attacker")
    codes = subscribe(client, OVERLAPPING)
    assert codes.count(QUOTA) == len(OVERLAPPING) - MAX_WILDCARD_FORMS - 1  # one has no wildcard
    assert world.counters.subscriptions_refused == codes.count(QUOTA)
    trie = world.node.dispatcher.trie
    before = trie.steps
    assert len(trie.match("a/b/c/d/e/f/g/h/i/j")) == MAX_WILDCARD_FORMS + 1
    assert trie.steps - before < 12 * MAX_WILDCARD_FORMS
    # Those that it has stay good, and it may have any number that differ in words.
    assert subscribe(client, [OVERLAPPING[1]]) == [0]
    assert set(subscribe(client, [f"device/{n}" for n in range(3_000)])) == {0}
    granted = next(
        form for form, code in zip(OVERLAPPING, codes, strict=True) if code == 0 and "+" in form
    )
    other = "/".join(level if level == "+" else level + "x" for level in granted.split("/"))
    assert subscribe(client, [other]) == [0]
    # A form is free again when none of its filters is left.
    client.unsubscribe(granted, other)
    assert subscribe(client, ["+/some/other"]) == [0]
    assert subscribe(client, ["+/+/other"]) == [QUOTA]


def test_a_client_may_have_very_many_filters_of_one_form() -> None:
    world = lone()
    client = world.connect("gateway")
    filters = [f"device/{n}/+" for n in range(4_000)]
    assert set(subscribe(client, filters, qos=1)) == {1}
    world.connect("other").publish("device/3999/state", b"x")
    assert client.payloads() == [b"x"]


def test_shared_subscriptions_of_one_client_are_bounded() -> None:
    world = lone()
    client = world.connect("attacker")
    codes = subscribe(client, [f"$share/g{n}/t" for n in range(2 * MAX_WILDCARD_FORMS)])
    assert codes == [0] * MAX_WILDCARD_FORMS + [QUOTA] * MAX_WILDCARD_FORMS
    world.connect("other").publish("t", b"x")
    assert client.payloads() == [b"x"] * MAX_WILDCARD_FORMS
    assert subscribe(client, [f"$share/g1/t{n}" for n in range(500)]) == [0] * 500  # one form


# ---------------------------------------------------------------- turns


def attacked(count: int) -> tuple[World, FakeClient, Neighbour, list[bytes]]:
    """A client with as many filters as it may have that match `count` new topics, and these as they
    come over a link."""
    world = lone(link_timeout=2.0)
    neighbour = Neighbour(world, 1).child()
    let_through(neighbour, origin_key(FAR, 2_000))
    client = world.connect("attacker")
    subscribe(client, OVERLAPPING)
    topics = ["/".join([*"abcdefghi", f"j{n}"]) for n in range(count)]
    packets = [
        message(t.encode(), b"%d" % n, key=origin_key(FAR, 2_000), sequence=n + 1)
        for n, t in enumerate(topics)
    ]
    return world, client, neighbour, packets


def test_a_link_that_brings_much_rests_and_loses_nothing() -> None:
    world, client, neighbour, packets = attacked(500)
    other = world.connect("other")
    neighbour.send(b"".join(packets))
    handled = world.counters.received_link
    assert 0 < handled < 100
    assert world.counters.turns_cut == 1
    assert not neighbour.transport.reading
    other.send(Pingreq())
    assert other.take() == [Pingresp()]
    # Much else was to be done: that nothing was read is no silence of the neighbour.
    world.now += 3.0
    world.advance(0.1)
    assert neighbour.up
    assert neighbour.transport.reading
    assert client.payloads() == [b"%d" % n for n in range(500)]
    assert world.counters.turns_cut > 5


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_link_with_many_small_messages_rests(qos: int) -> None:
    world = lone(routing="flood", limits=Limits(turn_work=200))
    neighbour = Neighbour(world, 1).child()
    let_through(neighbour, origin_key(FAR, 2_000))
    client = world.connect("client", 4).subscribed("+", qos=qos)
    key = origin_key(FAR, 2_000)
    batches = [
        batch_entry(
            key, first, [(b"%d" % (n % 7), b"%d" % n) for n in range(first, first + 50)], qos=qos
        ).data(0.0)
        for first in range(1, 1001, 50)
    ]
    neighbour.send(b"".join(batches))
    assert world.counters.received_link < 300
    assert world.counters.turns_cut == 1
    world.advance(0.1)
    assert neighbour.transport.reading
    assert client.payloads() == [b"%d" % n for n in range(1, 1001)]


def test_large_requests_of_many_clients_take_a_turn_each() -> None:
    """Two hundred clients that each sent 40,000 filters kept everybody waiting for seven
    seconds."""
    world = World()
    clients = [world.connect(f"c{number}") for number in range(20)]
    packets = [
        encode_packet(
            Subscribe(7, [SubscriptionRequest(f"{n}/{'x' * 90}", 0) for n in range(1_200)]), 5
        )
    ]
    packets.append(encode_packet(Unsubscribe(8, [f"{n}/{'x' * 90}" for n in range(1_200)]), 5))
    for packet, answer in zip(packets, (Suback, Unsuback), strict=True):
        before = world.counters.packets_single
        for client in clients:  # all of it is there as a turn begins
            client.conn.receive(packet, world.now)
        assert world.counters.packets_single == before + 1
        world.settle()
        world.advance(2.0)
        assert world.counters.packets_single == before + len(clients)
        assert all(isinstance(client.take()[-1], answer) for client in clients)


def test_a_publisher_of_new_topics_rests() -> None:
    world = World()
    publisher, other = world.connect("p"), world.connect("o").subscribed("#")
    other.take()
    publisher.send(*(Publish(f"t/{n}", b"%d" % n) for n in range(6_000)), Pingreq())
    got = other.payloads()
    assert 0 < len(got) < 3_000
    assert publisher.take() == []
    other.send(Pingreq())
    assert other.take() == [Pingresp()]
    world.advance(0.1)
    assert got + other.payloads() == [b"%d" % n for n in range(6_000)]
    assert publisher.take() == [Pingresp()]


def test_resting_clients_take_turns() -> None:
    world = World()
    clients = [world.connect(f"c{n}") for n in range(3)]
    for number, client in enumerate(clients):
        client.send(*(Publish(f"{number}/{n}", b"") for n in range(4_000)), Pingreq())
    first = world.counters.published
    world.advance(0.1)
    assert first < 9_000
    assert world.counters.published == 12_000
    assert all(client.take() == [Pingresp()] for client in clients)


def test_a_client_that_goes_while_it_rests() -> None:
    world = World()
    client = world.connect("c")
    client.send(*(Publish(f"t/{n}", b"") for n in range(6_000)))
    assert world.counters.published < 6_000
    client.vanish()
    world.advance(0.1)
    assert not world.node.connections
    assert not world.node.flow_control.unheld


# ---------------------------------------------------------------- very many filters


def test_each_piece_has_a_turn_of_its_own() -> None:
    world = World()
    client = world.connect("c")
    client.send(
        Subscribe(
            1, [SubscriptionRequest(f"a/{n}", 1) for n in range(4 * DEFAULTS.filters_at_once)]
        )
    )
    for turn in range(1, 4):
        assert len(world.session("c").subscriptions) == turn * DEFAULTS.filters_at_once
        world.now += 0.01
        world.node.tick(world.now)
        world.settle()
    assert client.take() == [Suback(1, [1] * 4 * DEFAULTS.filters_at_once)]


def test_packets_with_very_many_filters_take_several_turns() -> None:
    world = World()
    client, other = world.connect("c", properties=None), world.connect("o")
    filters = [f"a/{n}" for n in range(5 * DEFAULTS.filters_at_once)]
    client.send(Subscribe(1, [SubscriptionRequest(f, 1) for f in filters]), Pingreq())
    assert len(world.session("c").subscriptions) == DEFAULTS.filters_at_once
    assert client.take() == []
    other.publish("a/1", b"early")
    assert client.payloads() == [b"early"]
    world.advance(0.1)
    assert client.take() == [Suback(1, [1] * len(filters)), Pingresp()]
    client.send(Unsubscribe(2, filters), Pingreq())
    assert len(world.session("c").subscriptions) == 4 * DEFAULTS.filters_at_once
    world.advance(0.1)
    assert client.take() == [Unsuback(2, [0] * len(filters)), Pingresp()]
    assert len(world.node.dispatcher.trie) == 0


def test_packets_with_more_filters_than_a_turn_can_decode() -> None:
    world = World()
    filters = [f"building/{n:08}/sensor/state" for n in range(45_000)]
    for packet in (
        Subscribe(1, [SubscriptionRequest(f, 0) for f in filters]),
        Unsubscribe(1, filters),
    ):
        client = world.connect("c")
        client.send(packet)
        assert client.closed
        assert client.last_reason() == 0x97
    assert set(subscribe(world.connect("c"), filters[:10_000])) == {0}


@pytest.mark.parametrize("kind", [Subscribe, Unsubscribe])
def test_a_client_that_goes_in_between(kind: type[Subscribe | Unsubscribe]) -> None:
    world = World()
    client = world.connect("c")
    filters = [f"a/{n}" for n in range(5 * DEFAULTS.filters_at_once)]
    client.send(Subscribe(1, [SubscriptionRequest(f, 1) for f in filters]))
    if kind is Unsubscribe:
        world.advance(0.1)
        client.send(Unsubscribe(2, filters))
    client.vanish()
    world.advance(0.1)
    assert not world.node.connections
    assert not world.node.sessions
    assert len(world.node.dispatcher.trie) == 0


def test_a_session_ends_in_several_turns_and_gets_nothing_meanwhile() -> None:
    world = World()
    client, other = world.connect("c"), world.connect("o")
    filters = [f"a/{n}" for n in range(3 * DEFAULTS.filters_at_once)] + ["$share/g/s"]
    subscribe(client, filters)
    old = world.session("c")
    client.vanish()
    assert len(world.node.dispatcher.trie) == 2 * DEFAULTS.filters_at_once
    again = world.connect("c").subscribed(filters[0], filters[-2], "$share/g/s")
    for topic in (filters[0], filters[-2], filters[-3], "s"):
        other.publish(topic, topic.encode())
    assert again.payloads() == [filters[0].encode(), filters[-2].encode(), b"s"]
    world.advance(0.1)
    assert not old.subscriptions
    assert not old.queue
    assert len(world.node.dispatcher.trie) == 2
    other.publish(filters[-2], b"still")
    other.publish("s", b"still")
    assert again.payloads() == [b"still", b"still"]


# ---------------------------------------------------------------- retained messages


def test_retained_messages_of_a_subscription_come_in_several_turns() -> None:
    world = World()
    fill(world, 3_000)
    client, other = world.connect("c"), world.connect("o")
    client.send(Subscribe(1, [SubscriptionRequest("#", 0)]))
    packets = client.take()
    assert isinstance(packets[0], Suback)
    assert 0 < len(packets) < SEARCH_STEPS_PER_TURN
    other.publish("r/0", b"new", retain=True)
    world.advance(0.1)
    packets += client.take()
    found = [
        (packet.topic, packet.payload)
        for packet in packets
        if isinstance(packet, Publish) and packet.retain
    ]
    assert len(found) == 3_000
    assert {(f"r/{n}", b"%d" % n) for n in range(1, 3_000)} <= set(found)
    assert len(world.node.feeds) == 0


def test_retained_messages_wait_for_a_slow_client() -> None:
    world = World()
    fill(world, 20_000)
    client = world.connect("c")
    client.send(Subscribe(1, [SubscriptionRequest("r/+", 1)]))
    world.advance(5.0)
    got: list[Publish] = []
    for _ in range(100):
        came = [packet for packet in client.take() if isinstance(packet, Publish)]
        assert len(world.session("c").queue) <= DEFAULTS.hold_queued
        got += came
        client.send(*(b"\x40\x02" + (packet.packet_id or 0).to_bytes(2, "big") for packet in came))
        world.advance(0.2)
    assert sorted(int(packet.payload) for packet in got) == list(range(20_000))
    assert world.counters.dropped_queue_full == 0


def test_a_search_that_finds_nothing_is_bounded_too() -> None:
    world = World()
    fill(world, 5_000)
    client, other = world.connect("c"), world.connect("o")
    client.send(Subscribe(1, [SubscriptionRequest(f"+/+/{n}", 1) for n in range(50)]))
    assert len(world.node.feeds) == 1
    client.take()
    other.send(Pingreq())
    assert other.take() == [Pingresp()]
    client.unsubscribe(*(f"+/+/{n}" for n in range(50)))
    world.advance(0.1)
    assert len(world.node.feeds) == 0
    client.subscribe("r/7")
    assert [packet.payload for packet in client.take() if isinstance(packet, Publish)] == [b"7"]


def test_a_session_that_ends_gets_no_more_retained_messages() -> None:
    world = World()
    fill(world, 5_000)
    client = world.connect("c")
    client.send(Subscribe(1, [SubscriptionRequest("#", 0)]))
    client.vanish()
    world.advance(0.1)
    assert len(world.node.feeds) == 0


# ---------------------------------------------------------------- very many filters in one packet

WORDS = [chr(ord("a") + number % 26) for number in range(3 * PIECES * FILTERS)]
"""Filters of one character."""


def kinds(client: FakeClient) -> list[type]:
    return [type(packet) for packet in client.take()]


@pytest.mark.parametrize("version", [4, 5])
def test_a_packet_of_very_many_filters_is_decoded_in_several_turns(version: int) -> None:
    world = World()
    client, other = world.connect("c", version=version), world.connect("o")
    requests = [SubscriptionRequest(word, number % 3) for number, word in enumerate(WORDS)]
    client.send(Subscribe(7, requests), Publish("z", b"behind"))
    assert client.conn.waiting
    assert not world.session("c").subscriptions
    other.publish("z", b"before", 0)
    other.send(Pingreq())
    assert kinds(other) == [Pingresp]
    world.advance(1.0)
    suback, behind = client.take()
    assert isinstance(suback, Suback)
    assert suback.codes == [request.qos for request in requests]
    assert isinstance(behind, Publish)
    assert behind.payload == b"behind"
    assert set(world.session("c").subscriptions) == set(WORDS)
    client.send(Unsubscribe(8, WORDS), Pingreq())
    assert kinds(client) == []
    world.advance(1.0)
    assert kinds(client) == [Unsuback, Pingresp]
    assert not world.session("c").subscriptions


@pytest.mark.parametrize(
    "bad",
    [b"\0\1#\3", b"\0\3a/#", b"\0\4a#/b\0", b"\0\1"],
    ids=["QoS 3", "short", "wrong", "no options"],
)
@pytest.mark.parametrize("version", [4, 5])
def test_the_last_of_very_many_filters_is_bad(bad: bytes, version: int) -> None:
    """It is noticed late, and no filter before it is subscribed to."""
    world = World()
    client = world.connect("c", version=version)
    body = (
        b"\0\7"
        + b"\0" * (version == 5)
        + b"".join(b"\0\1" + word.encode() + b"\0" for word in WORDS)
        + bad
    )
    client.send(b"\x82" + encode_varint(len(body)) + body, Pingreq())
    assert not client.closed
    world.advance(1.0)
    assert client.closed
    assert "c" not in world.node.sessions
    assert world.counters.malformed + world.counters.protocol_errors == 1
    assert Pingresp not in kinds(client)


@pytest.mark.parametrize("how", ["vanish", "again", "clean"])
@pytest.mark.parametrize("turns", [0, 1, 3])
def test_a_client_that_goes_while_its_filters_are_decoded(how: str, turns: int) -> None:
    """It came before it went: a session that is kept has the filters; a new one of the same client
    has none of them."""
    world = World()
    expiry = {Property.SESSION_EXPIRY_INTERVAL: 1000}
    client = world.connect("c", clean=False, properties=expiry)
    client.send(Subscribe(7, [SubscriptionRequest(word, 1) for word in WORDS]))
    for _ in range(turns):
        world.now += PAUSE
        world.node.tick(world.now)
        world.settle()
    if how == "vanish":
        client.vanish()
    else:
        world.open().send(connect_packet("c", clean=how == "clean", properties=expiry))
    world.advance(2.0)
    session = world.session("c")
    assert set(session.subscriptions) == (set() if how == "clean" else set(WORDS))
    assert (session.conn is None) is (how == "vanish")
    assert len(world.node.connections) == (how != "vanish")
