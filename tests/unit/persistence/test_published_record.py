"""PUBLISHED: packets as they came are one record, and each of them is found again."""

from __future__ import annotations

import io
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.core.message import NO_NAME
from mqttree.broker.persistence.image import Image
from mqttree.broker.persistence.published_record import decode_published, encode_published
from mqttree.broker.persistence.records import (
    Cut,
    MessageRecord,
    OutgoingRecord,
    SessionRecord,
    encode_acknowledged,
    encode_frame,
    encode_frames,
    frame_within,
    read_frames,
    read_records,
)
from mqttree.broker.wire import Property, Publish, encode_packet
from mqttree.broker.wire.properties import encode_properties
from mqttree.broker.wire.varint import read_length

KEY = origin_key(b"kikkkkkk", 1)

TOPICS = st.text("abc/é", min_size=1, max_size=12)
MESSAGES = st.lists(
    st.tuples(TOPICS, st.binary(max_size=300), st.integers(0, 12)), min_size=1, max_size=6
)


def body_of(record: bytes) -> bytes:
    """The body of one encoded PUBLISHED."""
    found = read_records(record)
    assert [kind for kind, _ in found] == [21]
    return found[0][1]


def properties_of(pairs: int) -> dict[int, Any]:
    return {Property.USER_PROPERTY: [(f"key-{n}", "value") for n in range(pairs)]}


@given(MESSAGES, st.sampled_from((1, 2)), st.sampled_from((4, 5)), st.integers(1, (1 << 63)))
def test_each_message_of_a_record_is_found_again(
    messages: list[tuple[str, bytes, int]], qos: int, version: int, number: int
) -> None:
    packets, expected = b"", []
    for place, (topic, payload, pairs) in enumerate(messages):
        properties = properties_of(pairs) if version == 5 and pairs else None
        packet = Publish(topic, payload, qos, False, False, 9 + place, properties)
        packets += encode_packet(packet, version)
        section = encode_properties(properties) if properties else b"\0"
        section = section[read_length(section, 0)[1] :]
        expected.append((topic.encode(), section if version == 5 else b"", payload))
    deliveries = [place << 48 | (5 + place) << 16 | 65_535 for place in range(len(messages))]
    name = KEY, 3
    record = encode_published(number, version, len(messages), packets, deliveries, name)
    found, sent = decode_published(body_of(record))
    assert sent == [(place, 5 + place, 65_535) for place in range(len(messages))]
    assert found.count == len(messages)
    assert (found.number, found.qos) == (number, qos)
    for place, texts in enumerate(expected):
        one = MessageRecord(number + place, qos, False, 0, *texts, (KEY, 3 + place))
        assert found.message(number + place) == one


def example(version: int) -> bytes:
    """The body of a record of three messages for two sessions."""
    named = properties_of(2) if version == 5 else None
    packets = b"".join(
        encode_packet(Publish(topic, payload, 1, False, False, 7, properties), version)
        for topic, payload, properties in (
            ("a/b", b"hello", None),
            ("a/c", b"x" * 130, named),
            ("é", b"", None),
        )
    )
    deliveries = [1 << 16 | 2, 1 << 48 | 1 << 16 | 3, 2 << 48 | 0xFFFFFFFF << 16 | 1]
    return body_of(encode_published(7, version, 3, packets, deliveries, NO_NAME))


def applied(body: bytes) -> Image:
    """What a journal with two sessions and one such record says."""
    image = Image()
    sessions = [SessionRecord(n, 1, 4, 60.0, 5, 0, b"%d" % n, b"", b"") for n in (1, 0xFFFFFFFF)]
    image.take(1, b"".join(session.encode() for session in sessions))
    image.take(2, struct.pack(">BI", 21, len(body)) + body)
    return image


@pytest.mark.parametrize("version", [4, 5])
def test_messages_of_a_record_are_in_flight(version: int) -> None:
    image = applied(example(version))
    assert image.sessions[1].inflight == {2: (7, 1, False, b"", b""), 3: (8, 1, False, b"", b"")}
    assert image.sessions[1].last == 3
    assert image.sessions[0xFFFFFFFF].inflight == {1: (9, 1, False, b"", b"")}
    assert image.numbers == [9, 0xFFFFFFFF]
    found = image.message(8)
    assert found is not None
    assert (found.topic, found.payload) == (b"a/c", b"x" * 130)
    assert not image.skipped
    # The same, as one file instead of several.
    again = Image()
    for records in image.records(1 << 20):
        again.take(3, b"".join(records))
    assert again.sessions[1].inflight == image.sessions[1].inflight
    assert again.message(9) == image.message(9)


@pytest.mark.parametrize("version", [4, 5])
def test_a_record_cut_off_anywhere_is_skipped(version: int) -> None:
    body = example(version)
    for size in range(len(body)):
        with pytest.raises(struct.error):
            decode_published(body[:size])
        image = applied(body[:size])
        assert image.skipped == 1
        assert not image.messages
        assert not any(session.inflight for session in image.sessions.values())


@pytest.mark.parametrize("version", [4, 5])
def test_a_record_with_any_wrong_byte_is_read_or_skipped(version: int) -> None:
    body = example(version)
    for at in range(len(body)):
        for bit in (0x01, 0x80, 0xFF):
            bent = bytearray(body)
            bent[at] ^= bit
            image = applied(bytes(bent))
            if image.skipped:
                assert not image.messages
            else:
                assert all(image.message(number) is not None for number in image.messages)


def test_the_bytes_of_a_record() -> None:
    packets = bytes.fromhex("320c 0003 612f62 1234 68656c6c6f 320d 0003 612f63 1235 776f726c6421")
    deliveries = [1 << 16 | 2, 1 << 48 | 1 << 16 | 3, 1 << 48 | 9 << 16 | 65_535]
    record = encode_published(7, 4, 2, packets, deliveries, (KEY, 5))
    assert record == bytes.fromhex(
        # Kind, size; number, version, messages, bytes of packets, deliveries.
        "15 00000060 0000000000000007 04 0002 0000001d 00000003"
        # The name of the first one.
        "61326c72613274726132734141414142 0000000000000005"
        # As they came.
        "320c 0003 612f62 1234 68656c6c6f 320d 0003 612f63 1235 776f726c6421"
        # Place, session, packet identifier.
        "0000 00000001 0002  0001 00000001 0003  0001 00000009 ffff"
    )
    assert decode_published(record[5:])[1] == [(0, 1, 2), (1, 1, 3), (1, 9, 65_535)]


def test_records_of_a_frame_that_is_split_count_in_their_order() -> None:
    """An identifier that was acknowledged may be in use again in the same turn."""
    body = example(4)
    published = struct.pack(">BI", 21, len(body)) + body
    records = [
        MessageRecord(5, 1, False, 0, b"t", b"", b"").encode(),
        OutgoingRecord(1, 2, 5, 1, False, b"", b"").encode(),
        encode_acknowledged(1, b"\x40\x02\0\2"),
        published,
    ]
    image = Image()
    image.take(1, SessionRecord(1, 1, 4, 60.0, 5, 0, b"c", b"", b"").encode())
    stream = io.BytesIO(encode_frames(records, 2, 40))
    for frame in read_frames(stream, 0):
        assert not isinstance(frame, Cut)
        image.take(*frame)
    assert set(image.sessions[1].inflight) == {2, 3}


def test_a_frame_that_begins_with_the_record_is_found_behind_damage() -> None:
    body = example(5)
    frame = encode_frame([struct.pack(">BI", 21, len(body)) + body], 1_700_000_000_000)
    assert frame_within(b"damage" + frame)
