"""Versions of the link protocol: which one a link has, and what is made of a newer one's words on a
link of version 1."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.link.codec import (
    LINK_ID,
    STAMP_MARK,
    encode_for_links,
    encode_link_publish,
    origin_key,
)
from broker.cluster.link.control_records import DIGEST, DIRECTORY, ROUTED
from broker.cluster.link.receiver_assignment import ReceiverAssignment
from broker.cluster.link.versions import NEWEST, OldOutbox, common, for_version_1, named
from broker.core.message import Message, Stamp, encode_halves
from broker.core.publish_run import PublishRun
from broker.wire import Publish, encode_packet
from broker.wire.decode import decode_packet
from broker.wire.properties import Property
from tests.unit.link_harness import FAR, Neighbour, bid, bridge, lone, message, unharmed, warnings

KEY = origin_key(FAR, 7)


@pytest.mark.parametrize(
    ("ours", "theirs", "version"),
    [
        ((1, 2), (1, 2), 2),
        ((1, 2), (1, 1), 1),
        ((1, 1), (1, 2), 1),
        ((1, 2), (2, 3), 2),
        ((1, 2), (1, 99), 2),
        ((2, 2), (1, 1), 0),
        ((1, 2), (3, 4), 0),
        ((1, 2), (3, 3), 0),
        ((3, 5), (1, 4), 4),
        ((1, 2), (0, 0), 0),
    ],
)
def test_common(ours: tuple[int, int], theirs: tuple[int, int], version: int) -> None:
    assert common(ours, theirs) == common(theirs, ours) == version


def test_named() -> None:
    assert named((1, 1)) == "1"
    assert named((1, 3)) == "1 to 3"


# ------------------------------------------------------------------ the handshake


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ({"protocol": "2"}, 2),
        ({"protocol": "2", "oldest": "1"}, 2),
        ({"protocol": "1", "oldest": "1"}, 1),
        ({"protocol": "1"}, 1),
        ({"protocol": "3", "oldest": "2"}, 2),
        ({"protocol": "99", "oldest": "1"}, 2),
    ],
)
def test_a_link_has_the_newest_that_both_speak(said: dict[str, str], version: int) -> None:
    world = lone()
    neighbour = Neighbour(world, 1, **said)
    assert neighbour.link().version == version
    unharmed(world)


@pytest.mark.parametrize(
    "said", [{"protocol": "3"}, {"protocol": "4", "oldest": "3"}, {"protocol": "0"}]
)
def test_one_that_has_none_of_ours_is_refused_in_one_line(said: dict[str, str]) -> None:
    world = lone()
    for _ in range(5):
        fake = Neighbour(world, 1, link=False)
        fake.send(encode_packet(bridge(1, **said), 5))
        assert fake.conn.closed
    assert world.counters.links_refused == 5
    assert len(warnings(world)) == 1
    assert "speaks link protocol" in warnings(world)[0] and "not 1 to 2" in warnings(world)[0]
    unharmed(world)


@pytest.mark.parametrize(
    "said",
    [
        {"protocol": "two"},
        {"protocol": "2", "oldest": "x"},
        {"protocol": "-1"},
        {"protocol": "1", "oldest": "2"},
        {"protocol": "65536"},
        {"protocol": "9" * 5000},
    ],
)
def test_versions_that_cannot_be(said: dict[str, str]) -> None:
    world = lone()
    fake = Neighbour(world, 1, link=False)
    fake.send(encode_packet(bridge(1, **said), 5))
    assert fake.conn.closed and not world.node.federation.handshakes
    unharmed(world)


def test_what_we_say() -> None:
    for routing, oldest in (("flood", "1"), ("interest", "2")):
        world = lone(routing=routing)
        fake = Neighbour(world, 1, link=False)
        fake.send(encode_packet(bridge(1, routing=routing), 5))
        said = dict(_connect_of(fake).properties[Property.USER_PROPERTY])
        assert (said["protocol"], said["oldest"]) == (str(NEWEST), oldest)


def _connect_of(fake: Neighbour) -> Any:
    return next(decode_packet(first, body, 5) for first, body in fake.take() if first == 0x10)


# ------------------------------------------------------------------ what version 1 has no words for

payloads = st.lists(st.binary(min_size=3, max_size=3), min_size=1, max_size=5)


@given(
    payloads,
    st.sampled_from((1, 2)),
    st.sampled_from((b"", b"\x26\0\1a\0\1b")),
    st.integers(1, 2**40),
)
def test_runs_come_apart(bodies: list[bytes], qos: int, properties: bytes, sequence: int) -> None:
    ones = [LINK_ID.join(encode_halves(b"t/x", body, 5, qos, False, properties)) for body in bodies]
    start = ones[0].index(b"t/x") + 3
    batch = PublishRun(
        b"t/x", qos, properties, 5, b"".join(ones), start, len(ones[0]) - 3, len(ones[0])
    )
    alone = [
        encode_link_publish(b"t/x", x, qos, False, properties, None, KEY, n)
        for n, x in enumerate(bodies, sequence)
    ]
    assert for_version_1(batch.for_links(KEY, sequence)) == b"".join(alone)


@pytest.mark.parametrize("expiry", (None, 60))
@pytest.mark.parametrize("properties", (b"", b"\x26\0\1a\0\1b"))
def test_a_stamp_is_taken_off(expiry: int | None, properties: bytes) -> None:
    stamped = encode_link_publish(
        b"t", b"x" * 200, 1, True, properties, expiry, KEY, 5, Stamp(77 << 16, 0)
    )
    assert STAMP_MARK in stamped
    assert for_version_1(stamped) == encode_link_publish(
        b"t", b"x" * 200, 1, True, properties, expiry, KEY, 5
    )


def test_what_a_comparison_brings_is_left_out() -> None:
    restored = encode_link_publish(b"t", b"x", 1, True, b"", None, KEY, 5, Stamp(77 << 16, 0, True))
    assert for_version_1(restored) == b""
    outbox = OldOutbox()
    outbox.append(restored)
    assert outbox == []
    for packet in (b"\xc0\x00", b"\xd0\x00", b"\xe0\x00"):
        outbox.append(packet)
    assert outbox == [b"\xc0\x00", b"\xd0\x00", b"\xe0\x00"]


def test_runs_at_qos_0_stay_as_they_are() -> None:
    one = encode_halves(b"t", b"1", 5, 0, False, b"")[0] + b"\x001"
    run = encode_link_publish(b"t", b"0", 0, False, b"", None, KEY, 5) + one * 3
    outbox = OldOutbox()
    outbox.append(run)
    assert outbox == [run]


@pytest.mark.parametrize("qos", (0, 1))
def test_who_is_to_have_it_is_not_said(qos: int) -> None:
    choice = ReceiverAssignment([(b"b" * 8, bytes(8))])
    shared = Message(b"t", b"x", qos, False, b"", None, None)
    named_one = encode_link_publish(
        b"t", b"x", qos, False, b"", None, KEY, 5, None, choice.encode()
    )
    outbox = OldOutbox()
    outbox.append(named_one)
    assert outbox == [encode_for_links(shared, KEY, 5, 0.0)]
    alone = ReceiverAssignment([(b"b" * 8, bytes(8))], passed=True, visited=(b"c" * 8,))
    outbox.append(
        encode_link_publish(b"t", b"x", qos, False, b"", None, KEY, 6, None, alone.encode())
    )
    assert len(outbox) == 1


# ------------------------------------------------------------------ a neighbour of version 1


def test_a_neighbour_of_version_1_gets_no_newer_words() -> None:
    world = lone()
    old, new = Neighbour(world, 1, protocol="1"), Neighbour(world, 2)
    for neighbour in (old, new):
        neighbour.child()
    client = world.connect("c", 5)
    for number in range(1, 6):
        client.publish("t", b"x", 1, number)
    client.send(b"".join(encode_packet_of("run", number) for number in range(10, 20)))
    client.publish("kept", b"y", 1, 30, retain=True)
    world.node.federation.listings.post(b"s" + b"news", b"1")
    world.advance(70.0)  # a comparison of retained messages is due
    packets = [(first, body) for first, body in old.take() if first >> 4 == 3]
    assert len(packets) == 16
    assert all(body.count(b"\x26\0\1o\0\x18") == 1 for _, body in packets)
    assert not any(STAMP_MARK in body for _, body in packets)
    world.advance(1.0)
    kinds = {kind for kind, _ in old.control()}
    assert kinds.isdisjoint((DIRECTORY, ROUTED, DIGEST))
    assert {kind for kind, _ in new.control()} & {DIRECTORY, DIGEST}


def encode_packet_of(topic: str, packet_id: int) -> bytes:
    return encode_packet(Publish(topic, b"same", 1, packet_id=packet_id), 5)


@pytest.mark.parametrize("what", ("run", "stamp"))
def test_newer_words_of_a_neighbour_of_version_1_are_garbage(what: str) -> None:
    world = lone()
    old = Neighbour(world, 1, protocol="1")
    old.child()
    if what == "stamp":
        old.send(encode_link_publish(b"t", b"x", 1, True, b"", None, KEY, 5, Stamp(77 << 16, 0)))
    else:
        old.send(
            message(sequence=1, key=KEY), LINK_ID.join(encode_halves(b"t", b"x", 5, 1, False, b""))
        )
    assert not old.up
    assert world.counters.link_garbage == 1
    unharmed(world)


def test_a_retained_message_of_version_1_is_stamped_for_those_behind_us() -> None:
    world = lone()
    old, new = Neighbour(world, 1, protocol="1"), Neighbour(world, 2)
    for neighbour in (old, new):
        neighbour.child()
    sent = message(b"kept", b"x", first=0x33, sequence=1, key=origin_key(bid(1), 2_000))
    old.send(sent)
    packets = [body for first, body in new.take() if first == 0x33]
    assert len(packets) == 1 and STAMP_MARK in packets[0]
    assert not [body for first, body in old.take() if first >> 4 == 3]
