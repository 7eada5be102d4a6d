"""The journal as bytes: whatever is cut off or damaged, what stands before it counts
(docs/decisions/0021)."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.core.message import NO_NAME
from mqttree.broker.persistence.image import Image
from mqttree.broker.persistence.records import (
    HEADER_SIZE,
    VERSION,
    Cut,
    JournalError,
    LoggedRecord,
    MessageRecord,
    OutgoingRecord,
    RetainedRecord,
    RunRecord,
    SessionRecord,
    StartTimeRecord,
    SubscribedRecord,
    decode_dequeued,
    decode_header,
    decode_number,
    decode_sent_run,
    decode_snapshot_end,
    encode_acknowledged,
    encode_dequeued,
    encode_end,
    encode_frame,
    encode_header,
    encode_incoming,
    encode_seen,
    encode_sent_run,
    encode_snapshot_end,
    encode_unsubscribed,
    read_frames,
    read_records,
)
from mqttree.broker.persistence.will_record import decode_will, encode_will
from mqttree.broker.wire import Property, Will
from tests.kit.effort import examples

ID = b"abcdefgh"
U16, U32, U48, U64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 32, 48, 64))
QOS = st.integers(0, 2)
TEXT = st.binary(max_size=40)


def body_of(record: bytes, kind: int) -> bytes:
    """The body of one encoded record."""
    found = list(read_records(record))
    assert [k for k, _ in found] == [kind]
    return found[0][1]


@given(U64, QOS, st.booleans(), U64, TEXT, TEXT, TEXT)
def test_an_encoded_message_record_decodes_to_the_same(
    number: int,
    qos: int,
    retain: bool,
    expires: int,
    topic: bytes,
    properties: bytes,
    payload: bytes,
) -> None:
    name = (b"k" * 16, number >> 1) if number > 1 else NO_NAME
    record = MessageRecord(number, qos, retain, expires, topic, properties, payload, name)
    assert MessageRecord.decode(body_of(record.encode(), 1)) == record


@given(
    U32,
    QOS,
    TEXT,
    TEXT,
    st.binary(min_size=1, max_size=5),
    st.binary(min_size=1, max_size=5),
    st.integers(1, 9),
)
def test_an_encoded_run_record_decodes_to_the_same(
    number: int, qos: int, topic: bytes, properties: bytes, head: bytes, payload: bytes, count: int
) -> None:
    run = RunRecord(
        number,
        qos,
        len(head + payload),
        len(head),
        topic,
        properties,
        (head + payload) * count,
        (b"k" * 16, 7),
    )
    found = RunRecord.decode(body_of(run.encode(), 2))
    assert found == run
    assert found.messages == count
    for index in range(count):
        assert found.message(number + index) == MessageRecord(
            number + index, qos, False, 0, topic, properties, payload, (b"k" * 16, 7 + index)
        )


@given(
    U32,
    st.integers(0, 15),
    st.integers(3, 5),
    st.floats(0),
    st.tuples(U64, U64),
    st.tuples(TEXT, TEXT, TEXT),
    st.none() | TEXT,
    st.none() | TEXT,
    st.tuples(U64, U64),
)
def test_an_encoded_session_record_decodes_to_the_same(
    n: int,
    flags: int,
    version: int,
    expiry: float,
    times: tuple[int, int],
    texts: tuple[bytes, bytes, bytes],
    at: bytes | None,
    owner: bytes | None,
    ages: tuple[int, int],
) -> None:
    record = SessionRecord(n, flags, version, expiry, *times, *texts, at, owner, ages)
    assert SessionRecord.decode(body_of(record.encode(), 3)) == record


@given(U32, st.integers(0, 15), U32, TEXT, U16, U64, QOS, st.booleans(), TEXT, TEXT)
def test_a_session_survives_its_records(
    n: int,
    options: int,
    ident: int,
    topic_filter: bytes,
    packet_id: int,
    number: int,
    qos: int,
    retain: bool,
    ids: bytes,
    shared: bytes,
) -> None:
    subscribed = SubscribedRecord(n, options, ident, topic_filter)
    assert SubscribedRecord.decode(body_of(subscribed.encode(), 5)) == subscribed
    outgoing = OutgoingRecord(n, packet_id, number, qos, retain, ids, shared)
    assert OutgoingRecord.decode(body_of(outgoing.encode(), 8 if packet_id else 7)) == outgoing
    began = StartTimeRecord(n, float(packet_id), -float(number), (b"k" * 16,) * qos)
    assert StartTimeRecord.decode(body_of(began.encode(), 19)) == began
    assert decode_number(body_of(encode_end(n), 4)) == (n, b"")
    assert decode_number(body_of(encode_unsubscribed(n, topic_filter), 6)) == (n, topic_filter)
    assert decode_number(body_of(encode_acknowledged(n, ids), 11)) == (n, ids)
    assert decode_number(body_of(encode_incoming(n, ids), 12)) == (n, ids)
    assert decode_sent_run(body_of(encode_sent_run(n, packet_id, 3, number, qos), 9)) == (
        n,
        packet_id,
        3,
        number,
        qos,
    )
    assert decode_dequeued(body_of(encode_dequeued(n, packet_id, 3, number), 10)) == (
        n,
        packet_id,
        3,
        number,
    )


@given(U64, U48, U64, U48, QOS, st.binary(min_size=16, max_size=16), TEXT, TEXT, TEXT)
def test_all_other_encoded_records_decode_to_the_same(
    time: int,
    expires_at_ms: int,
    expires: int,
    sequence: int,
    qos: int,
    key: bytes,
    topic: bytes,
    p: bytes,
    load: bytes,
) -> None:
    retained = RetainedRecord(time, expires_at_ms, expires, sequence, qos, key, topic, p, load)
    assert RetainedRecord.decode(body_of(retained.encode(), 13)) == retained
    assert RetainedRecord.topic_of(body_of(retained.encode(), 13)) == topic
    logged = LoggedRecord(key, sequence, 7, time, load)
    assert LoggedRecord.decode(body_of(logged.encode(), 14)) == logged
    assert body_of(encode_seen(load), 15) == load
    assert decode_snapshot_end(body_of(encode_snapshot_end(sequence, time), 16)) == (sequence, time)


@pytest.mark.parametrize(
    "will",
    [
        None,
        Will("a/b", b"\0payload", 1, True, None),
        Will(
            "a",
            b"",
            2,
            False,
            {Property.WILL_DELAY_INTERVAL: 5, Property.USER_PROPERTY: [("a", "b"), ("a", "c")]},
        ),
    ],
)
def test_an_encoded_will_record_decodes_to_the_same(will: Will | None) -> None:
    assert decode_will(encode_will(will)) == will


# ---------------------------------------------------------------- files


def file_of(*frames: bytes) -> bytes:
    return encode_header(ID, 1) + b"".join(frames)


def frames_in(data: bytes) -> tuple[list[tuple[int, bytes]], Cut | None]:
    """What counts of a file, and where it ends before its end."""
    stream = io.BytesIO(data)
    if not decode_header(stream.read(HEADER_SIZE), ID, 1):
        return [], Cut(0, "header")
    found: list[tuple[int, bytes]] = []
    for frame in read_frames(stream, HEADER_SIZE):
        if isinstance(frame, Cut):
            return found, frame
        found.append(frame)
    return found, None


FRAMES = [
    encode_frame([encode_end(n), encode_unsubscribed(n, b"x" * (3 * n))], 1000 + n)
    for n in range(6)
]
STARTS = [HEADER_SIZE + sum(map(len, FRAMES[:n])) for n in range(7)]


def test_a_file_cut_anywhere_is_read_up_to_the_cut() -> None:
    whole = file_of(*FRAMES)
    everything = frames_in(whole)[0]
    assert len(everything) == len(FRAMES)
    for size in range(len(whole) + 1):
        found, cut = frames_in(whole[:size])
        count = sum(start <= size for start in STARTS[1:])
        assert found == everything[:count]
        if size < HEADER_SIZE:
            assert cut == Cut(0, "header")
        else:
            assert cut == (None if size in STARTS else Cut(STARTS[count], "is cut off"))


def test_a_file_damaged_anywhere_is_read_up_to_the_damage() -> None:
    whole = file_of(*FRAMES)
    everything = frames_in(whole)[0]
    for at in range(len(whole)):
        bent = bytearray(whole)
        bent[at] ^= 0x41
        if at < 16:
            with pytest.raises(JournalError, match="is not a journal of mqttree"):
                frames_in(bytes(bent))
            continue
        found, cut = frames_in(bytes(bent))
        hit = 0 if at < HEADER_SIZE else sum(start <= at for start in STARTS[1:])
        assert found == everything[:hit]
        assert cut is not None


@settings(max_examples=examples(200))
@given(st.binary(max_size=200), st.integers(0, 2000))
def test_garbage_behind_frames(garbage: bytes, cut: int) -> None:
    """Also what a file system leaves behind: zeros, or something else."""
    data = file_of(*FRAMES)[: HEADER_SIZE + cut]
    found, _ = frames_in(data + garbage)
    assert found[: len(frames_in(data)[0])] == frames_in(data)[0]
    assert frames_in(file_of(*FRAMES) + b"\0" * len(garbage))[0] == frames_in(file_of(*FRAMES))[0]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"SQLite format 3\0" + b"\0" * 100, "is not a journal of mqttree"),
        (
            encode_header(b"another!", 1),
            f"is of broker {b'another!'.hex()}, and this one is {ID.hex()}",
        ),
        (encode_header(ID, 2), "is segment 2: it was renamed"),
    ],
)
def test_a_file_of_another_broker_or_program_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(JournalError, match=why):
        decode_header(data, ID, 1)


@pytest.mark.parametrize(
    ("version", "other"), [(VERSION - 1, "an older"), (VERSION + 1, "a newer")]
)
def test_a_file_of_another_release_is_refused(version: int, other: str) -> None:
    data = encode_header(ID, 1, version=version)
    text = f"has version {version}, and this release reads {VERSION}: it was written by {other} one"
    with pytest.raises(JournalError, match=text):
        decode_header(data, ID, 1)


@pytest.mark.parametrize("data", [b"", b"mqttree jou", encode_header(ID, 1)[:-1]])
def test_a_file_that_was_just_begun(data: bytes) -> None:
    assert decode_header(data, ID, 1) is False


@pytest.mark.parametrize("frame", [b"\1", b"\1\0\0\0\5abc", b"\1\xff\xff\xff\xff"])
def test_records_that_contradict_each_other_are_refused(frame: bytes) -> None:
    with pytest.raises(JournalError):
        list(read_records(frame))
    image = Image()
    with pytest.raises(JournalError):
        image.take(1, frame)


def test_an_unknown_record_is_not_passed_over() -> None:
    with pytest.raises(JournalError, match="of the kind 99"):
        Image().take(1, b"\x63\0\0\0\0")


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(st.integers(1, 16), st.binary(max_size=60)), max_size=8))
def test_any_bodies_are_survived(records: list[tuple[int, bytes]]) -> None:
    """A checksum keeps the disk's faults out; a fault of ours must not keep a broker from
    starting."""
    frame = b"".join(bytes((kind,)) + len(body).to_bytes(4, "big") + body for kind, body in records)
    Image().take(5, frame)


def test_the_order_of_records_decides() -> None:
    image = Image()
    head = SessionRecord(1, 1, 4, 60.0, 5, 0, b"c", b"", b"")
    message = MessageRecord(7, 1, False, 0, b"t", b"", b"p")
    records = [
        encode_end(9),
        OutgoingRecord(1, 0, 7, 1, False, b"", b"").encode(),  # of a session that is not known yet
        head.encode(),
        message.encode(),
        OutgoingRecord(1, 0, 7, 1, False, b"", b"").encode(),
        OutgoingRecord(1, 0, 8, 1, False, b"", b"").encode(),
        encode_dequeued(1, 4, 1, 8),  # the first had expired
    ]
    image.take(1, b"".join(records))
    assert image.sessions[1].inflight == {4: (8, 1, False, b"", b"")}
    assert not image.sessions[1].queue
    image.take(2, head.encode())
    assert not image.sessions[1].inflight  # recorded again
    assert image.alive == 2
