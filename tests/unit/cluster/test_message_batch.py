"""Batches of messages on a link, to bytes and back."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.cluster.delivery.replay_log import LogEntry, lacked_parts
from mqttree.broker.cluster.link.message_batch import (
    OLDEST,
    MessageBatch,
    choice_of,
    encode_batch,
    encode_message,
    read_messages,
)
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.link.version_vector import OriginWindow
from mqttree.broker.core.delivery_queue import Outgoing
from mqttree.broker.core.message import Message, Stamp
from mqttree.broker.core.receiver_assignment import ReceiverAssignment
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.errors import MalformedPacket, WireError
from mqttree.broker.wire.packets import Publish
from mqttree.broker.wire.properties import Property
from mqttree.broker.wire.varint import encode_varint, read_length
from mqttree.routing.group_selection import GROUP_ID_SIZE
from tests.kit.link_harness import Neighbour, bid, entry_of, let_through, lone
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
    read = MessageBatch.read(batch.encode())
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
    part = MessageBatch.read(batch.parts([(low, high)])[0].encode())
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
    others = [bytes((first,)) + one[1:] for first in (0x31, 0x33, 0x35, 0x36, 0x3A, 0x40)]
    for other in (*others, one.replace(b"$batch", b"$botch"), packet("$batch/a", b"x", 1, 4)):
        with pytest.raises(MalformedPacket):
            list(MessageBatch.read(other).messages())


# ------------------------------------------------------------- messages that are alone in a batch


@st.composite
def lonely(draw: st.DrawFn) -> tuple[Message, ReceiverAssignment | None]:
    """A message, retained or not, and who of shared subscriptions gets it."""
    message = Message(
        draw(st.sampled_from((b"t", b"a/b"))),
        draw(st.binary(max_size=5)),
        draw(st.integers(0, 2)),
        draw(st.booleans()),
        draw(st.sampled_from((b"", b"\x26\0\1a\0\2bc", b"\x01\1", b"\x03\0\1x"))),
        draw(st.none() | st.integers(1, 1000).map(lambda left: 100.0 + left)),
        None,
    )
    if message.retain:
        times = st.integers(0, 1 << 60), st.integers(0, 1 << 47), st.booleans()
        message.stamp = Stamp(*map(draw, times))
    entries = [(b"12345678" + bytes(4), bytes(GROUP_ID_SIZE))]
    return message, draw(st.none() | st.just(entries).map(ReceiverAssignment))


def told(message: Message, choice: ReceiverAssignment | None) -> tuple[object, ...]:
    stamp = message.stamp if message.retain else None
    names = ("topic", "payload", "qos", "retain", "properties", "expires_at")
    return *(getattr(message, name) for name in names), stamp, choice and choice.encode()


@given(st.lists(lonely(), min_size=1, max_size=5), st.integers(1, 1 << 40), st.integers(0, 9))
def test_messages_of_all_kinds_are_read_back(
    written: list[tuple[Message, ReceiverAssignment | None]], first: int, age: int
) -> None:
    data = b""
    for sequence, (message, choice) in enumerate(written, first):
        batch = MessageBatch.read(encode_message(message, KEY, sequence, 100.0, choice))
        data += batch.aged(1000 * age).encode()
        found = choice_of(batch.encode())
        assert (found and (found.encode(), found.key, found.sequence)) == (
            choice and (choice.encode(), KEY, sequence)
        )
    read = list(read_messages(data, 100.0 + age))
    assert [(batch.key, number) for batch, number, _ in read] == [
        (KEY, number) for number in range(first, first + len(written))
    ]
    assert [told(message, batch.choice) for batch, _, message in read] == [
        told(*one) for one in written
    ]


@given(lonely(), st.data())
def test_a_truncated_message_is_refused(
    written: tuple[Message, ReceiverAssignment | None], data: st.DataObject
) -> None:
    whole = encode_message(written[0], KEY, 1, 100.0, written[1])
    body = read_length(whole, 1)[1]
    short = whole[body : data.draw(st.integers(body, len(whole) - len(written[0].payload) - 1))]
    with pytest.raises(WireError):
        list(read_messages(whole[:1] + encode_varint(len(short)) + short, 100.0))


@pytest.mark.parametrize("topic", [b"", b"a/+", b"\xff", b"$SYS/x"])
def test_messages_of_another_broker_have_a_topic_that_crosses(topic: bytes) -> None:
    data = encode_message(Message(topic, b"x", 1, False, b"", None, None), KEY, 1, 0.0)
    with pytest.raises(MalformedPacket):
        list(read_messages(data, 0.0))


def test_a_retained_message_is_alone_in_its_batch() -> None:
    one = Message(b"a", b"x", 1, True, b"", None, None)
    packets = 2 * one.packet(5, 1, True, 1)
    with pytest.raises(MalformedPacket):
        MessageBatch.read(MessageBatch(KEY, 1, packets, 2, 5, 1, 0, Stamp(1, 0)).encode())


# ---------------------------------------------------------------- messages that expire


@pytest.mark.parametrize("left", [0.001, 0.3, 0.5, 0.0, -3.0, -1e9])
def test_the_last_half_second_of_a_message_crosses_a_link_as_it_is(left: float) -> None:
    message = Message(b"a", b"x", 1, False, b"", 100.0 + left, None)
    [(_, _, found)] = read_messages(encode_message(message, KEY, 1, 100.0), 100.0)
    assert found.expires_at == pytest.approx(max(99.0, 100.0 + left), abs=0.001)


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
    came = at - batch.age / 1000
    found = [message for _, message in batch.parts([(5, 7)])[0].messages(at)]
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
    entry = LogEntry(KEY, 5, 2, batch.encode(), 100.0)
    assert entry.kept() == entry.data(100.0) == entry.data(99.0) == batch.encode()
    assert MessageBatch.read(entry.data(101.25)).age == 1750
    assert [one.expires_at for _, one in entry.messages()] == [129.5, 101.5]
    (part,) = entry.parts([(6, 6)])
    assert MessageBatch.read(part.data(102.0)).age == 2500


# ---------------------------------------------------------------- at the broker that gets them


def world_with(version: int = 5) -> tuple[World, Neighbour, Neighbour, FakeClient]:
    """A broker with two neighbours, and a subscriber."""
    world = lone(routing="flood")
    neighbours = [Neighbour(world, number) for number in (101, 102)]
    for one in neighbours:
        one.child()
    let_through(neighbours[0], origin_key(bid(101), 2_000))
    client = world.connect("subscriber", version).subscribed("#", qos=2)
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
        for properties in (long, first, {EXPIRY: 9} | long, {EXPIRY: 1})
    )
    neighbour.send(encode_batch(origin_key(bid(101), 2_000), 1, packets, 4, 5, qos))
    found = [one for one in client.take() if isinstance(one, Publish)]
    assert [one.properties for one in found] == [long, first, {EXPIRY: 9} | long, {EXPIRY: 1}]
    if qos:
        sent = world.session("subscriber").inflight.values()
        lasting = [one.message.expires_at for one in sent if isinstance(one, Outgoing)]
        assert lasting == [world.now + 5, world.now + 9, world.now + 1]
    late = encode_packet(Publish("a", b"x", qos, packet_id=number, properties=text), 5)
    neighbour.send(encode_batch(origin_key(bid(101), 2_000), 5, 2 * late, 2, 5, qos))
    assert not neighbour.up


def test_a_message_that_has_expired_on_the_way_is_passed_on_and_not_delivered() -> None:
    """Its number would be missing else."""
    world, neighbour, other, client = world_with()
    key = origin_key(bid(101), 2_000)
    for number, expires_at in ((1, 1.0), (2, 99.0)):
        one = Message(b"a", b"%d" % number, 1, False, b"", expires_at, None)
        neighbour.send(encode_message(one, key, number, 2.0))
    assert [one.payload for one in client.take() if isinstance(one, Publish)] == [b"2"]
    assert other.messages() == [b"1", b"2"]
    assert world.node.cluster.forwarder.vector[key].top == 2
    assert world.counters.expired == 1


def test_what_has_expired_is_replayed_all_the_same() -> None:
    entry = entry_of(KEY, 1, Message(b"a", b"x", 1, False, b"", 130.0, None), 100.0)
    assert lacked_parts(entry, OriginWindow(0, 0.0)) == [entry]
    ((_, _, message),) = read_messages(entry.data(1e6), 1e6)
    assert message.expires_at == 130.0
