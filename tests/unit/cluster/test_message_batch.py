"""Batches of messages on a link, to bytes and back."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.cluster.delivery.replay_log import LogEntry, lacked_parts
from mqttree.broker.cluster.link.codec import encode_for_links, expiry_of, origin_key
from mqttree.broker.cluster.link.message_batch import OLDEST, MessageBatch, encode_batch, is_batch
from mqttree.broker.cluster.link.version_vector import OriginWindow
from mqttree.broker.core.delivery_queue import Outgoing
from mqttree.broker.core.message import Message
from mqttree.broker.wire import Publish, encode_packet
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.broker.wire.properties import Property
from tests.kit.link_harness import Neighbour, bid, lone
from tests.kit.node_harness import FakeClient, World

KEY = origin_key(b"abcdefgh", 7)

topics = st.sampled_from(["a", "a/b", "x" * 200, "\u00e4/\u4e2d"])
payloads = st.binary(max_size=200)


def packet(topic: str, payload: bytes, qos: int, version: int) -> bytes:
    return encode_packet(Publish(topic, payload, qos, packet_id=9 if qos else None), version)


@st.composite
def batches(draw: st.DrawFn) -> tuple[MessageBatch, list[tuple[str, bytes, int]]]:
    qos = draw(st.integers(0, 2))
    version = draw(st.sampled_from([4, 5]))
    one = st.tuples(topics, payloads, st.just(qos))
    wanted = draw(st.lists(one, min_size=1, max_size=8))
    packets = b"".join(packet(*each, version) for each in wanted)
    sequence = draw(st.integers(1, 1 << 40))
    return MessageBatch(KEY, sequence, packets, len(wanted), version, qos), wanted


@given(batches())
def test_an_encoded_batch_is_read_back(
    case: tuple[MessageBatch, list[tuple[str, bytes, int]]],
) -> None:
    batch, wanted = case
    data = batch.encode()
    assert is_batch(data)
    read = MessageBatch.read(data)
    for name in ("count", "key", "packets", "qos", "sequence", "version"):
        assert getattr(read, name) == getattr(batch, name)
    found = list(read.messages())
    assert [number for number, _ in found] == list(
        range(batch.sequence, batch.sequence + batch.count)
    )
    assert [(m.topic.decode(), m.payload, m.qos) for _, m in found] == wanted


@given(batches(), st.data())
def test_a_part_has_the_messages_with_these_numbers(
    case: tuple[MessageBatch, list[tuple[str, bytes, int]]], data: st.DataObject
) -> None:
    batch, _ = case
    low = data.draw(st.integers(batch.sequence, batch.sequence + batch.count - 1))
    high = data.draw(st.integers(low, batch.sequence + batch.count - 1))
    part = MessageBatch.read(batch.part(low, high).encode())
    assert [(number, m.topic, m.payload) for number, m in part.messages()] == [
        (number, m.topic, m.payload) for number, m in batch.messages() if low <= number <= high
    ]


@given(batches(), st.data())
def test_a_damaged_batch_is_refused_or_read_and_nothing_else(
    case: tuple[MessageBatch, list[tuple[str, bytes, int]]], data: st.DataObject
) -> None:
    whole = bytearray(case[0].encode())
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    damaged = bytes(whole[: data.draw(st.integers(2, len(whole)))])
    with contextlib.suppress(MalformedPacket):
        list(MessageBatch.read(damaged).messages())


@pytest.mark.parametrize(
    ("first", "qos"), [(0x31, 0), (0x38, 0), (0x32, 0), (0x30, 1), (0x36, 1), (0x34, 1), (0x3A, 1)]
)
def test_a_packet_that_no_batch_may_have_is_refused(first: int, qos: int) -> None:
    one = bytearray(packet("a", b"x", int(first & 6 > 0), 4))
    one[0] = first
    data = encode_batch(KEY, 1, bytes(one), 1, 4, qos)
    with pytest.raises(MalformedPacket):
        list(MessageBatch.read(data).messages())


def test_a_wrong_count_of_packets_is_refused() -> None:
    one = packet("a", b"x", 0, 5)
    for count in (1, 3):
        data = encode_batch(KEY, 1, 2 * one, count, 5, 0)
        with pytest.raises(MalformedPacket):
            list(MessageBatch.read(data).messages())


@given(batches(), st.sets(topics))
def test_parts_have_the_messages_that_follow_each_other_with_the_same_answer(
    case: tuple[MessageBatch, list[tuple[str, bytes, int]]], wanted: set[str]
) -> None:
    batch, sent = case
    assert [topic.decode() for topic in batch.topics()] == [topic for topic, _, _ in sent]
    parts = batch.divide(lambda topic: topic.decode() in wanted)
    answers = [answer for answer, _ in parts]
    assert all(one != other for one, other in itertools.pairwise(answers))
    found = [
        (number, m.topic.decode(), m.payload, m.qos, answer)
        for answer, part in parts
        for number, m in MessageBatch.read(part.encode()).messages()
    ]
    assert found == [
        (number, *one, one[0] in wanted) for number, one in enumerate(sent, batch.sequence)
    ]


def test_a_packet_that_only_looks_like_a_batch_is_none() -> None:
    one = encode_batch(KEY, 1, packet("a", b"x", 1, 4), 1, 4, 1)
    for first in (0x31, 0x33, 0x35, 0x36, 0x3A, 0x40):
        assert not is_batch(bytes((first,)) + one[1:])
    assert not is_batch(packet("$batch/a", b"x", 1, 4))
    assert not is_batch(b"")


# ---------------------------------------------------------------- messages that expire

EXPIRY = Property.MESSAGE_EXPIRY_INTERVAL


def expiring(seconds: int, qos: int = 1) -> bytes:
    properties = {EXPIRY: seconds, Property.CONTENT_TYPE: "t"}
    return encode_packet(
        Publish("a", b"%d" % seconds, qos, packet_id=9 if qos else None, properties=properties), 5
    )


@given(st.lists(st.integers(0, 1 << 32), max_size=4), st.integers(0, 2), st.floats(0.0, 1e6))
def test_the_age_of_a_batch_counts_for_what_expires(ages: list[int], qos: int, at: float) -> None:
    packets = expiring(30, qos) + packet("a", b"stays", qos, 5) + expiring(0xFFFFFFFF, qos)
    batch = MessageBatch(KEY, 5, packets, 3, 5, qos)
    for age in ages:
        batch = MessageBatch.read(batch.aged(age).encode())
    assert batch.age == min(OLDEST, sum(ages))
    assert is_batch(batch.encode())
    came = at - batch.age / 1000
    found = [message for _, message in batch.part(5, 7).messages(at)]
    assert [one.expires_at for one in found] == [came + 30, None, came + 0xFFFFFFFF]
    assert [one.properties for one in found] == [b"\x03\0\1t", b"", b"\x03\0\1t"]


def test_batches_of_older_clients_and_new_ones_have_no_age() -> None:
    for version in (4, 5):
        batch = MessageBatch(KEY, 1, packet("a", b"x", 1, version), 1, version, 1)
        assert MessageBatch.read(batch.encode()).age == 0
        assert len(batch.aged(7).encode()) - len(batch.encode()) == (4 if version == 5 else 0)


def test_an_age_that_is_cut_off_is_refused() -> None:
    data = MessageBatch(KEY, 1, b"", 1, 5, 1, 7).encode()
    for less in range(5):
        with pytest.raises(MalformedPacket):
            list(MessageBatch.read_body(data[: len(data) - less], 2).messages())


@pytest.mark.parametrize("qos", [1, 2])
def test_an_entry_of_the_log_says_how_old_its_batch_is(qos: int) -> None:
    batch = MessageBatch(KEY, 5, expiring(30, qos) + expiring(2, qos), 2, 5, qos, 500)
    entry = LogEntry.batch(KEY, 5, 2, batch.encode(), 100.0)
    assert entry.kept() == entry.data(100.0) == entry.data(99.0) == batch.encode()
    assert MessageBatch.read(entry.data(101.25)).age == 1750
    assert [one.expires_at for one in entry.messages()] == [129.5, 101.5]
    first, second = entry.singles()
    assert (first.expires_at, second.expires_at) == (129.5, 101.5)
    assert expiry_of(first.data(110.0)) == 20
    assert expiry_of(second.data(103.0)) == 0
    assert MessageBatch.read(entry.part(6, 6).data(102.0)).age == 2500


def test_an_entry_of_one_message_says_what_is_left() -> None:
    message = Message(b"a", b"x", 1, False, b"", 130.0, None)
    for data in (b"", encode_for_links(message, KEY, 1, 100.0)):
        entry = LogEntry(KEY, 1, data, message, 100.0)
        assert expiry_of(entry.data(100.0)) == 30
        assert expiry_of(entry.data(121.0)) == 9
        assert expiry_of(entry.kept()) == 30


# ---------------------------------------------------------------- at the broker that gets them


def world_with(version: int = 5) -> tuple[World, Neighbour, Neighbour, FakeClient]:
    """A broker with two neighbours, and a subscriber."""
    world = lone(routing="flood")
    neighbours = [Neighbour(world, number) for number in (101, 102)]
    for one in neighbours:
        one.child()
    client = world.connect("subscriber", version)
    client.subscribe("#", qos=2)
    return world, *neighbours, client


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_an_old_batch_is_delivered_without_what_has_expired(qos: int, version: int) -> None:
    world, neighbour, other, client = world_with(version)
    packets = expiring(30, qos) + expiring(2, qos) + packet("a", b"stays", qos, 5)
    data = MessageBatch(origin_key(bid(101), 2_000), 1, packets, 3, 5, qos, 9_000).encode()
    neighbour.send(data)
    found = [one for one in client.take() if isinstance(one, Publish)]
    left = {EXPIRY: 21, Property.CONTENT_TYPE: "t"} if version == 5 else None
    assert [(one.payload, one.properties) for one in found] == [(b"30", left), (b"stays", None)]
    assert world.counters.expired == 1
    assert data in bytes(other.transport.written)
    neighbour.send(data)
    assert client.take() == []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_batch_that_comes_at_once_is_delivered_as_it_came(qos: int) -> None:
    world, neighbour, _, client = world_with()
    long = {Property.USER_PROPERTY: [("k" * 70, "v" * 90)]}
    text = {Property.PAYLOAD_FORMAT_INDICATOR: 1, EXPIRY: 5}
    first = {EXPIRY: 5, Property.PAYLOAD_FORMAT_INDICATOR: 1}
    number = 9 if qos else None
    packets = b"".join(
        encode_packet(Publish("a", b"x", qos, packet_id=number, properties=properties), 5)
        for properties in (long, first, {EXPIRY: 9} | long, {EXPIRY: 0})
    )
    neighbour.send(encode_batch(origin_key(bid(101), 2_000), 1, packets, 4, 5, qos))
    found = [one for one in client.take() if isinstance(one, Publish)]
    assert [one.properties for one in found] == [long, first, {EXPIRY: 9} | long, {EXPIRY: 0}]
    if qos:
        sent = world.session("subscriber").inflight.values()
        lasting = [one.message.expires_at for one in sent if isinstance(one, Outgoing)]
        assert lasting == [world.now + 5, world.now + 9, world.now]
    late = encode_packet(Publish("a", b"x", qos, packet_id=number, properties=text), 5)
    neighbour.send(encode_batch(origin_key(bid(101), 2_000), 5, late, 1, 5, qos))
    assert not neighbour.up


def test_a_message_that_has_expired_on_the_way_is_passed_on_and_not_delivered() -> None:
    """Its number would be missing else."""
    world, neighbour, other, client = world_with()
    key = origin_key(bid(101), 2_000)
    for number, expires_at in ((1, 1.0), (2, 99.0)):
        one = Message(b"a", b"%d" % number, 1, False, b"", expires_at, None)
        neighbour.send(encode_for_links(one, key, number, 2.0))
    assert [one.payload for one in client.take() if isinstance(one, Publish)] == [b"2"]
    assert other.messages() == [b"1", b"2"]
    assert world.node.cluster.forwarder.vector[key].top == 2
    assert world.counters.expired == 1


def test_what_has_expired_is_replayed_all_the_same() -> None:
    message = Message(b"a", b"x", 1, False, b"", 130.0, None)
    entry = LogEntry(KEY, 1, b"", message, 100.0)
    assert lacked_parts(entry, OriginWindow(0, 0.0)) == [entry]
    assert expiry_of(entry.data(1e6)) == 0
