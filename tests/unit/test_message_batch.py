"""Batches of messages on a link, to bytes and back."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.link.codec import origin_key
from broker.cluster.link.message_batch import MessageBatch, encode_batch, is_batch
from broker.wire import Publish, encode_packet
from broker.wire.errors import MalformedPacket

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
