"""Retained messages between a node and neighbours that send what a test says: comparing, bounds,
lies."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mqttree.broker.auth.acl_file import parse_rules
from mqttree.broker.auth.authorization import Access
from mqttree.broker.base.hybrid_clock import LOGICAL
from mqttree.broker.base.sequence_set import LAST
from mqttree.broker.cluster.link.control_records import DIGEST, FETCH, LIST, ORIGINS, PARTS
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.link.version_vector import OriginWindow, encode_vector
from mqttree.broker.cluster.retained_comparison import (
    MAX_STEPS_UNDER_WAY,
    MISSED_S,
    REFUSED_PAUSE_S,
    STEP_INTERVAL_S,
    STEP_MESSAGES,
    decode_list,
    decode_parts,
)
from mqttree.broker.core.message import Message, Stamp
from mqttree.broker.core.retained_index import place_of
from mqttree.broker.core.retained_store import TOMBSTONE_AGE_S
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.wire.decode import decode_packet
from mqttree.broker.wire.packets import Publish, Subscribe, SubscriptionRequest
from mqttree.broker.wire.properties import Property, encode_properties
from tests.kit.link_harness import (
    FAR,
    OWN,
    Neighbour,
    bid,
    let_through,
    lone,
    message,
    ping,
    unharmed,
)
from tests.kit.node_harness import World

KEY = origin_key(FAR, 1)
NOW = 1_700_000_000_000  # ms, at the start of a World


def restored(
    topic: bytes, payload: bytes, at: int = 0, *, sequence: int = 1, key: bytes = KEY, **more: Any
) -> bytes:
    """A retained message that a comparison brings, written at NOW + `at` ms."""
    expires_at_ms = more.pop("expires_at_ms", 0 if payload else NOW + at)
    stamp = Stamp(NOW + at << LOGICAL, expires_at_ms, more.pop("restored", True))
    return message(topic, payload, key=key, sequence=sequence, stamp=stamp, **more)


def part(*sections: tuple[bytes, dict[int, int]], full: bool = False) -> bytes:
    found = b""
    for prefix, digests in sections:
        there = sum(1 << index for index in digests)
        found += bytes((len(prefix) | 0x80 * full,)) + prefix + there.to_bytes(32, "big")
        found += b"".join(digests[index].to_bytes(8, "big") for index in sorted(digests))
    return found


def entry(topic: bytes, at: int = 0, *, dead: bool = False, key: bytes = KEY) -> bytes:
    expires_at_ms = (NOW + at if dead else 0).to_bytes(6, "big")
    return (
        place_of(topic)
        + (NOW + at << LOGICAL).to_bytes(8, "big")
        + key
        + expires_at_ms
        + bytes((dead,))
    )


def leaf(topic: bytes, *entries: bytes, full: bool = False) -> bytes:
    return (
        bytes((2 | 0x80 * full,))
        + place_of(topic)[:2]
        + len(entries).to_bytes(2, "big")
        + b"".join(entries)
    )


def steps(world: World, number: int = 1) -> None:
    world.advance(STEP_INTERVAL_S * number)


def pair(**config: Any) -> tuple[World, Neighbour]:
    world = lone(link_timeout=10_000.0, **config)
    neighbour = Neighbour(world, 1).child()
    let_through(neighbour)
    steps(world)
    neighbour.take()
    return world, neighbour


def publishes(neighbour: Neighbour) -> list[Publish]:
    found = [decode_packet(first, body, 5) for first, body in neighbour.take() if first >> 4 == 3]
    return [packet for packet in found if isinstance(packet, Publish)]


# ---------------------------------------------------------------- the stamp


def test_only_retained_messages_have_a_stamp_and_clients_never_see_it() -> None:
    world, neighbour = pair()
    client = world.connect("c").subscribed("#", qos=1)
    for retain in (False, True):
        properties: Any = {Property.USER_PROPERTY: [("h", "mine")], Property.CONTENT_TYPE: "text"}
        client.send(Publish("t", b"x", 1, retain, False, 1, properties))
        (batch,) = neighbour.batches()
        assert (batch.stamp is not None) == retain
        got = [packet for packet in client.take() if isinstance(packet, Publish)]
        assert [packet.properties for packet in got] == [properties]
    section = encode_properties(properties)[1:]
    neighbour.send(restored(b"u", b"y", restored=False, properties=section))
    assert [packet.properties for packet in client.take_publishes()] == [properties]
    client.send(Subscribe(1, [SubscriptionRequest("+", 1)]))
    kept = [packet for packet in client.take() if isinstance(packet, Publish)]
    assert {packet.topic: packet.properties for packet in kept} == {
        "t": properties,
        "u": properties,
    }


def test_the_last_write_wins_in_any_order() -> None:
    world, neighbour = pair()
    client = world.connect("c").subscribed("#", qos=1)
    stream = [
        restored(b"t", b"2", 20, sequence=1, restored=False),
        restored(b"t", b"1", 10, sequence=2, restored=False),
    ]
    neighbour.send(*stream)
    assert client.payloads() == [b"2", b"1"]  # what is published is delivered, as it comes
    kept = world.node.retained.get("t")
    assert kept is not None
    assert kept.payload == b"2"
    client.publish("t", b"3", 1, retain=True)  # the clock has gone on to what it heard of
    neighbour.send(restored(b"t", b"", 15, sequence=3, restored=False))
    kept = world.node.retained.get("t")
    assert kept is not None
    assert kept.payload == b"3"


@pytest.mark.parametrize("first", (0x31, 0x33, 0x35))
def test_a_message_without_a_stamp_is_garbage(first: int) -> None:
    world, neighbour = pair()
    neighbour.send(message(b"t", b"x", first=first))
    assert not neighbour.up
    assert world.counters.link_garbage == 1
    assert world.node.retained.digests.get(place_of(b"t")) is None
    unharmed(world)


def test_a_clock_that_is_far_ahead() -> None:
    world, neighbour = pair()
    year = 365 * 86_400_000
    neighbour.send(restored(b"t", b"future", year, restored=False))
    assert world.counters.retained_clock_ahead == 1
    client = world.connect("c")
    client.publish("t", b"now", 1, retain=True)
    client.publish("u", b"now", 1, retain=True)
    times = [world.node.retained.digests.get(place_of(topic)) for topic in (b"t", b"u")]
    assert [
        version is not None and version.time >> LOGICAL > NOW + year - 1 for version in times
    ] == [
        True,
        False,
    ]
    kept = world.node.retained.get("t")
    assert kept is not None
    assert kept.payload == b"now"


# ---------------------------------------------------------------- restored messages


def test_a_restored_message_is_kept_delivered_once_and_passed_on() -> None:
    world, neighbour = pair()
    other = Neighbour(world, 2).child()
    client = world.connect("c").subscribed("#", qos=1)
    key = origin_key(FAR, 2_000)
    let_through(neighbour, key)
    neighbour.send(restored(b"t", b"x", 5, sequence=7, key=key))
    assert [(p.payload, p.retain) for p in client.take_publishes()] == [(b"x", False)]
    assert other.messages() == [b"x"]
    neighbour.send(restored(b"t", b"x", 5, sequence=7, key=key))  # again
    # The stream brings it, too.
    neighbour.send(restored(b"t", b"x", 5, sequence=7, key=key, restored=False))
    other.send(restored(b"t", b"x", 5, sequence=7, key=key))
    assert client.payloads() == other.messages() == []
    assert neighbour.messages() == []
    assert world.counters.retained_restored == 1


def test_a_leg_gets_what_is_restored_with_retain_and_deletions_too() -> None:
    world, neighbour = pair()
    leg, other = world.connect("leg:n"), world.connect("c")
    leg.subscribe("#", qos=1, retain_as_published=True)
    other.subscribe("#", qos=1)
    let_through(neighbour, origin_key(FAR, 2_000))
    neighbour.send(restored(b"t", b"x", 5, sequence=7, key=origin_key(FAR, 2_000)))
    neighbour.send(restored(b"t", b"", 900, sequence=8, key=origin_key(FAR, 2_000)))
    assert [(p.payload, p.retain) for p in leg.take_publishes()] == [(b"x", True), (b"", True)]
    assert [(p.payload, p.retain) for p in other.take_publishes()] == [(b"x", False), (b"", False)]


@pytest.mark.parametrize("sequence", [0, 7])
def test_restored_deletions_are_delivered_and_expiries_are_not(sequence: int) -> None:
    world, neighbour = pair()
    client = world.connect("c")
    for topic in ("gone", "expired"):
        client.publish(topic, b"x", 1, retain=True)
    client.subscribe("#", qos=1)
    client.take()
    world.advance(1.0)
    # A deletion is delivered where there was something to delete; an expiry is not.
    neighbour.send(
        restored(b"gone", b"", 900, sequence=sequence),
        restored(b"never", b"", 900, sequence=sequence),
    )
    neighbour.send(restored(b"expired", b"", 900, sequence=sequence, expires_at_ms=NOW + 950))
    assert [(p.topic, p.payload) for p in client.take_publishes()] == [("gone", b"")]
    assert len(world.node.retained) == 0
    assert world.node.retained.tombstones == 3


def test_a_restored_message_has_its_remaining_time() -> None:
    world, neighbour = pair()
    neighbour.send(
        restored(
            b"t", b"x", 5, properties=b"\x02" + (30).to_bytes(4, "big"), expires_at_ms=NOW + 30_000
        )
    )
    world.advance(10.0)
    other = Neighbour(world, 0).child()
    other.send(ping((FETCH, b"\x0c" + place_of(b"t"))))
    steps(world)
    (sent,) = publishes(other)
    assert sent.properties is not None
    assert 19 <= sent.properties[Property.MESSAGE_EXPIRY_INTERVAL] <= 20
    world.advance(21.0)
    assert len(world.node.retained) == 0
    other.send(ping((FETCH, b"\x0c" + place_of(b"t"))))
    steps(world)
    assert [packet.payload for packet in publishes(other)] == [b""]


def test_topics_that_begin_with_dollar_stay() -> None:
    world, neighbour = pair()
    node = world.node
    before = node.retained.digests.whole
    node.publisher.publish(Message(b"$SYS/broker/x", b"1", 0, True, b"", None, None), None)
    assert neighbour.messages() == []
    for again in (True, False):
        neighbour.send(restored(b"$SYS/broker/y", b"2", restored=again))
        assert not neighbour.up
        assert node.retained.topics() == ["$SYS/broker/x"]
        assert node.retained.digests.whole == before
        neighbour = Neighbour(world, 1, boot=2 + again).child()


def test_rules_hold_for_what_is_restored() -> None:
    world, neighbour = pair()
    client = world.connect("c").subscribed("#", qos=1)
    world.node.set_access(
        Access(
            rules=parse_rules("rules", "deny subscribe secret/#\nallow all #\n", limits=Limits())
        ),
        world.now,
    )
    neighbour.send(restored(b"secret/t", b"x"), restored(b"open/t", b"y", sequence=2))
    assert client.payloads() == [b"y"]
    assert len(world.node.retained) == 2


# ---------------------------------------------------------------- comparing


def test_equal_stores_cost_one_record() -> None:
    world, neighbour = pair()
    neighbour.send(ping((DIGEST, world.node.retained.digests.whole.to_bytes(8, "big"))))
    steps(world, 5)
    assert not [kind for kind, _ in neighbour.control() if kind in (DIGEST, PARTS, LIST, FETCH)]
    world.advance(DEFAULTS.retained_check_s)
    assert len([kind for kind, _ in neighbour.control() if kind == DIGEST]) == 1


def test_the_lower_id_begins() -> None:
    world, neighbour = pair()  # the neighbour's is lower than "mmmmmmmm"
    world.connect("c").publish("t", b"x", 1, retain=True)
    neighbour.take()
    neighbour.send(ping((DIGEST, b"\0" * 8)))
    steps(world)
    assert neighbour.records(DIGEST) == [world.node.retained.digests.whole.to_bytes(8, "big")]
    world = lone(id=b"\0" * 7 + b"\1")
    neighbour = Neighbour(world, 2).child()
    world.connect("c").publish("t", b"x", 1, retain=True)
    neighbour.take()
    neighbour.send(ping((DIGEST, b"\0" * 8)))
    steps(world)
    (body,) = neighbour.records(PARTS)
    ((full, prefix, digests),) = decode_parts(body)
    place = place_of(b"t")
    assert (full, prefix, digests) == (False, b"", {place[0]: world.node.retained.digests.whole})


def test_parts_and_leaves_that_differ() -> None:
    world, neighbour = pair()
    world.connect("c").publish("t", b"x", 1, retain=True)
    neighbour.take()
    place = place_of(b"t")
    missing = (place[0] + 1) % 256
    neighbour.send(ping((PARTS, part((b"", {place[0]: 1, missing: 2})))))
    steps(world)
    records = dict(neighbour.control())
    ((_, prefix, digests),) = decode_parts(records[PARTS])
    assert (prefix, digests) == (place[:1], {place[1]: world.node.retained.digests.whole})
    assert records[FETCH] == bytes((1, missing))
    neighbour.send(ping((PARTS, part((place[:1], {place[1]: 3})))))
    steps(world)
    ((_, prefix, versions),) = decode_list(neighbour.records(LIST)[0])
    assert prefix == place[:2]
    assert list(versions) == [place]
    for absent in (part((b"", {})), part((place[:1], {}))):
        neighbour.send(ping((PARTS, absent)))
        steps(world)
        assert neighbour.messages() == [b"x"]
        neighbour.send(ping((PARTS, part((b"", {}), full=True))))
        steps(world)
        assert neighbour.messages() == []


def test_a_list_leads_to_fetches_of_what_is_newer_there() -> None:
    world, neighbour = pair()
    world.connect("c").publish("t", b"x", 1, retain=True)
    neighbour.take()
    for entries, full, sent, asked in (
        ((), False, [b"x"], []),
        ((), True, [], []),
        ((entry(b"t", -5),), True, [b"x"], []),
        ((entry(b"t", 10_000),), False, [], [b"\x0c" + place_of(b"t")]),
        ((entry(b"t", 10_000, dead=True),), False, [], [b"\x0c" + place_of(b"t")]),
    ):
        neighbour.send(ping((LIST, leaf(b"t", *entries, full=full))))
        steps(world)
        got = neighbour.take()
        packets = [decode_packet(first, body, 5) for first, body in got if first >> 4 == 3]
        assert [packet.payload for packet in packets if isinstance(packet, Publish)] == sent
        assert [
            body[12:] for first, body in got if first == 0xC0 and body[8:9] == bytes((FETCH,))
        ] == asked
    age = int(TOMBSTONE_AGE_S * 1000)
    neighbour.send(ping((LIST, leaf(b"u", entry(b"u", -age, dead=True)))))
    steps(world)
    assert neighbour.records(FETCH) == []  # forgotten by everybody


def test_a_full_store_fetches_nothing() -> None:
    world, neighbour = pair(limits=Limits(max_retained=1))
    neighbour.send(restored(b"a", b"x"), restored(b"b", b"x", sequence=2))
    assert world.counters.retained_refused == 1
    neighbour.send(
        ping((LIST, leaf(b"c", entry(b"c")))), ping((PARTS, part((b"", {place_of(b"c")[0]: 1}))))
    )
    steps(world)
    assert neighbour.records(FETCH) == []
    neighbour.send(ping((PARTS, part((b"", {place_of(b"a")[0]: 1})))))
    steps(world)
    assert [full for full, _, _ in decode_parts(neighbour.records(PARTS)[0])] == [True]
    world.advance(REFUSED_PAUSE_S)
    neighbour.take()
    neighbour.send(ping((LIST, leaf(b"c", entry(b"c")))))
    steps(world)
    assert neighbour.records(FETCH) == [b"\x0c" + place_of(b"c")]


def test_an_update_that_does_not_fit_takes_the_place_of_the_old_one() -> None:
    world, neighbour = pair(max_retained_bytes=10)
    reader, writer = world.connect("r").subscribed("t", qos=1), world.connect("w")
    writer.publish("t", b"old", retain=True)
    writer.publish("t", bytes(100), retain=True)
    writer.publish("t", bytes(101), retain=True)
    assert reader.payloads() == [b"old", bytes(100), bytes(101)]
    assert [p.payload for p in publishes(neighbour)] == [b"old", bytes(100), bytes(101)]
    late = world.connect("late").subscribed("t", qos=1)
    assert late.payloads() == []
    assert [
        text for level, text in world.lines if level == "warning" and "not retained" in text
    ] == [
        "message of 100 bytes for topic 't' is not retained, "
        "and the retained message that the topic had is deleted: "
        "10 bytes of retained messages (max_retained_bytes) reached"
    ]
    assert world.counters.retained_refused == 2


def test_a_restored_update_that_does_not_fit() -> None:
    """It is for subscribers and other brokers all the same; it is asked for again when there may be
    room."""
    world, neighbour = pair(max_retained_bytes=10)
    other = Neighbour(world, 2).child()
    client = world.connect("c").subscribed("t", qos=1)
    neighbour.send(restored(b"t", b"old", 1), restored(b"t", bytes(100), 5, sequence=2))
    assert client.payloads() == other.messages() == [b"old", bytes(100)]
    assert world.node.retained.get("t") is None
    neighbour.take()
    listed = ping((LIST, leaf(b"t", entry(b"t", 5))))
    neighbour.send(listed)
    steps(world)
    assert neighbour.records(FETCH) == []
    world.advance(REFUSED_PAUSE_S)
    neighbour.take()
    neighbour.send(listed)
    steps(world)
    assert neighbour.records(FETCH) == [b"\x0c" + place_of(b"t")]
    neighbour.send(restored(b"t", bytes(100), 5, sequence=2))
    assert client.payloads() == other.messages() == []
    neighbour.send(ping((LIST, leaf(b"t", entry(b"t", 1)))))
    steps(world)
    # A broker that has the old one gets the deletion.
    assert [(p.payload, p.topic) for p in publishes(neighbour)] == [(b"", "t")]


def test_the_last_write_is_not_sent_to_who_has_no_room_for_it() -> None:
    world, neighbour = pair()
    neighbour.send(restored(b"t", b"new", 5))
    for full in (True, False):
        neighbour.take()
        neighbour.send(ping((LIST, leaf(b"t", entry(b"t", 1, dead=True), full=full))))
        steps(world)
        assert [p.payload for p in publishes(neighbour)] == ([] if full else [b"new"])


def test_a_broker_that_retains_nothing_takes_no_part() -> None:
    world, neighbour = pair(retain_available=False)
    client = world.connect("c").subscribed("#")
    neighbour.send(restored(b"t", b"x"), restored(b"t", b"y", sequence=2, restored=False))
    neighbour.send(ping((DIGEST, b"\1" * 8), (PARTS, part((b"", {1: 1}))), (FETCH, b"\1\0")))
    world.advance(DEFAULTS.retained_check_s + 1.0)
    assert client.payloads() == [b"y"]
    assert not [kind for kind, _ in neighbour.control() if kind in (DIGEST, PARTS, LIST, FETCH)]
    assert len(world.node.retained) == 0


# ---------------------------------------------------------------- bounds


def fill(world: World, count: int) -> None:
    for number in range(count):
        world.node.publisher.publish(
            Message(b"fill/%d" % number, b"x", 0, True, b"", None, None), None
        )
    world.settle()


def test_work_is_done_in_steps() -> None:
    world, neighbour = pair()
    fill(world, 3 * STEP_MESSAGES)
    neighbour.take()
    neighbour.send(ping((PARTS, part((b"", {})))))
    for number in range(3):
        world.advance(STEP_INTERVAL_S if number else 0.0)
        assert len(neighbour.messages()) == STEP_MESSAGES
    world.advance(1.0)
    assert neighbour.messages() == []


def test_repeated_fetches_of_everything_are_bounded() -> None:
    world, neighbour = pair()
    fill(world, 1_000)
    neighbour.take()
    sent = world.counters.retained_sent
    for _ in range(100):
        if neighbour.up:
            neighbour.send(
                ping((PARTS, part((b"", {}))), (FETCH, b"".join(bytes((1, n)) for n in range(256))))
            )
        world.advance(0.2)
        neighbour.take()
    assert world.counters.retained_sent - sent < 4_000
    assert world.counters.retained_dropped
    unharmed(world)


def test_a_leaf_with_too_many_topics_is_sent_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DEFAULTS.retained_listed * 43 < 65_536
    world, neighbour = pair(limits=Limits(retained_listed=3))
    place = place_of(b"fill/0")
    monkeypatch.setattr(
        "mqttree.broker.core.retained_store.place_of", lambda topic: place[:2] + place_of(topic)[2:]
    )
    monkeypatch.setattr(
        "mqttree.broker.cluster.retained_sync.place_of",
        lambda topic: place[:2] + place_of(topic)[2:],
    )
    fill(world, 5)
    neighbour.take()
    neighbour.send(ping((PARTS, part((place[:1], {place[1]: 1})))))
    steps(world)
    assert neighbour.messages() == [b"x"] * 5


BAD = {
    "PARTS truncated": (PARTS, b"\0" * 32),
    "PARTS without digests": (PARTS, b"\0" + b"\xff" * 32),
    "PARTS of a leaf": (PARTS, b"\2ab" + b"\0" * 32),
    "PARTS of nothing": (PARTS, b"\x7f"),
    "LIST truncated": (LIST, leaf(b"t", entry(b"t"))[:-1]),
    "LIST of a part": (LIST, b"\1a\0\0\0"),
    "LIST header": (LIST, b"\2a"),
    "LIST of the same leaf": (LIST, leaf(b"t") + leaf(b"t")),
    "LIST with a stranger": (LIST, leaf(b"t", entry(b"u"))),
    "LIST with a time": (LIST, leaf(b"t", place_of(b"t") + b"\xff" * 31)),
    "LIST too large": (LIST, leaf(b"t", *[entry(b"t")] * 1600)),
    "FETCH truncated": (FETCH, b"\x0cabc"),
    "FETCH of everything": (FETCH, b"\0"),
    "FETCH of three": (FETCH, b"\3abc"),
}


@pytest.mark.parametrize("name", BAD)
def test_garbage_costs_the_link(name: str) -> None:
    world, neighbour = pair()
    neighbour.send(ping(BAD[name]))
    assert not neighbour.up
    assert world.counters.link_garbage == 1
    unharmed(world)


@pytest.mark.parametrize(
    "bad",
    [
        restored(b"t/#", b"x"),
        restored(b"t", b"x", key=b"!" * 16),
        restored(b"t", b"x", sequence=LAST),
        message(b"t", b"x", stamp=Stamp((1 << 64) - 1, 0)),
        restored(b"t", b"x", properties=b"\x0b\x01"),
    ],
)
def test_bad_messages_cost_the_link(bad: bytes) -> None:
    world, neighbour = pair()
    neighbour.send(bad)
    assert not neighbour.up
    assert len(world.node.retained) == 0
    unharmed(world)


def test_a_restored_message_of_our_own_is_kept_and_not_delivered() -> None:
    """It is kept if it wins, as by a broker that got it back; no subscriber here gets it, and the
    numbers stay ours."""
    world, neighbour = pair()
    client = world.connect("c").subscribed("#", qos=1)
    neighbour.send(restored(b"t", b"x", 5, key=origin_key(OWN, 1_000), sequence=9_999))
    assert client.payloads() == []
    client.publish("u", b"y", 1)
    assert world.node.cluster.forwarder.own.top < 100


def test_nothing_is_said_before_the_link_is_live() -> None:
    world = lone()
    neighbour = Neighbour(world, 1)
    world.connect("c").publish("t", b"x", 1, retain=True)
    neighbour.send(
        ping(
            (DIGEST, b"\0" * 8),
            (PARTS, part((b"", {}))),
            (LIST, leaf(b"t")),
            (FETCH, b"\x0c" + place_of(b"t")),
        )
    )
    steps(world, 3)
    got = neighbour.take()
    assert not [body for first, body in got if first >> 4 == 3]
    assert bid(1) in world.node.cluster.links


@pytest.mark.parametrize("met", [False, True])
def test_messages_that_are_in_no_log_any_more(met: bool) -> None:
    """They are delivered, unless they were, and leave nothing behind that is kept for logs."""
    world, neighbour = pair()
    client = world.connect("c").subscribed("#", qos=1)
    key = origin_key(FAR, 2_000)
    if met:
        let_through(neighbour, key)
        neighbour.send(restored(b"a", b"1", -5_000_000, sequence=5, key=key, restored=False))
        assert client.payloads() == [b"1"]
    kept = len(world.node.cluster.forwarder.log)
    neighbour.send(
        restored(b"b", b"2", -5_000_000, sequence=4, key=key),
        restored(b"c", b"3", -5_000_000, sequence=6, key=key),
    )
    assert client.payloads() == [b"2", b"3"]
    assert len(world.node.cluster.forwarder.log) == kept
    assert (key in world.node.cluster.forwarder.vector) is met
    world.node.retained.clear()
    neighbour.send(restored(b"a", b"1", -5_000_000, sequence=5, key=key))
    assert client.payloads() == ([] if met else [b"1"])


# ---------------------------------------------------------------- very many


def joined(count: int, **config: Any) -> tuple[World, Neighbour, bytes]:
    """A broker that meets an origin which has published so many retained messages already."""
    world, neighbour = pair(**config)
    key = origin_key(bid(1), 1)
    neighbour.send(ping((ORIGINS, encode_vector({key: OriginWindow(count, 0.0)}))))
    return world, neighbour, key


def test_what_a_broker_that_joins_is_brought_leaves_no_trace_but_in_the_store() -> None:
    world, neighbour, key = joined(5_000)
    relay = world.node.cluster.forwarder
    before = (relay.vector[key].gaps[:], relay.vector[key].history[:], relay.vector[key].top)
    order = list(range(1, 5_001))
    random.Random(1).shuffle(order)
    for begin in range(0, 5_000, 100):
        neighbour.send(
            *(restored(b"t/%d" % n, b"x", sequence=n, key=key) for n in order[begin : begin + 100])
        )
    assert len(world.node.retained) == world.counters.retained_restored == 5_000
    assert (relay.vector[key].gaps, relay.vector[key].history, relay.vector[key].top) == before
    assert len(relay.log) == len(world.node.dispatcher.routes) == 0


def test_a_restored_message_is_delivered_once_though_a_link_brings_it_too() -> None:
    world, neighbour, key = joined(10)
    client = world.connect("c").subscribed("#", qos=1)
    neighbour.send(restored(b"t", b"x", sequence=7, key=key))
    assert client.payloads() == [b"x"]
    neighbour.send(restored(b"t", b"x", sequence=7, key=key, restored=False))
    assert client.payloads() == []


def test_no_more_is_on_its_way_than_the_neighbour_has_answered_for() -> None:
    world, neighbour = pair()
    for number in range(2_000):
        world.node.cluster.retained_sync.written(
            Message(b"t/%d" % number, b"x", 1, True, b"", None, None), None
        )
    neighbour.send(ping((PARTS, part((b"", {})))))  # it has nothing
    got, neighbour.answers = 0, False
    for _ in range(30):
        steps(world, 20)
        came = neighbour.take()
        sent = sum(first >> 4 == 3 for first, _ in came)
        assert sent <= MAX_STEPS_UNDER_WAY * STEP_MESSAGES
        got += sent
        if got == 2_000:
            break
        assert sent
        steps(world, 20)
        # No more comes, whatever time passes.
        assert not [first for first, _ in neighbour.take() if first >> 4 == 3]
        marks = [body[4:8] for first, body in came if first == 0xC0 and body[4] & 0x80]
        neighbour.send(*(b"\xd0\x04" + number for number in marks))
    assert got == 2_000


def test_a_comparison_waits_for_a_neighbour_that_brings_the_same() -> None:
    world, neighbour = pair()
    other = Neighbour(world, 2).child()
    steps(world)
    other.take()
    other.send(restored(b"u", b"y"))  # it compares with us as well
    assert neighbour.messages() == [b"y"]
    neighbour.send(*(restored(b"t/%d" % n, b"x", sequence=n) for n in range(1, 50)))
    assert other.messages() == []
    world.advance(2 * MISSED_S)
    assert other.records(DIGEST)[-1] == world.node.retained.digests.whole.to_bytes(8, "big")


def test_what_neighbours_have_not_acknowledged_is_not_pushed_out_of_the_log() -> None:
    """What a comparison brings is logged, too, and nobody can be held for it: while publishers
    wait for room in the log it is not taken, and the next comparison brings it again."""
    limits = Limits(
        log_bytes=100_000, hold_log_bytes=20_000, log_kept_bytes=400_000, mark_bytes=1_000
    )
    world, one = pair(limits=limits)
    other = Neighbour(world, 2).child()
    one.answers = other.answers = False
    client, log, store = world.connect("c"), world.node.cluster.forwarder.log, world.node.retained
    while client.transport.reading:
        client.send(Publish("t", bytes(1_000), 1, packet_id=1))
    brought = [restored(b"r/%d" % n, bytes(1_000), sequence=1 + n) for n in range(500)]
    one.send(*brought)
    assert log.begin == 0
    assert log.size < 125_000
    assert len(store) == 0
    assert world.node.counters.retained_dropped == len(brought)
    # What is in no log is taken all the same.
    one.send(restored(b"old", b"x", -7_200_000, sequence=1_000))
    assert len(store) == 1
    one.answers = other.answers = True
    while client.conn.held:
        one.take()
        other.take()
    one.send(*brought[:10])
    assert len(store) == 11
