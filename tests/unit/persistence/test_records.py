"""The journal as bytes: whatever is cut off or damaged, what stands before it counts
(docs/decisions/0021)."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.cluster.link.message_batch import encode_batch
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.sessions.image import Image
from mqttree.broker.cluster.sessions.recorded_session import AS_PUBLISHED
from mqttree.broker.cluster.sessions.records import (
    CLEAN,
    LOCAL,
    NEW,
    EntryRecord,
    GotAsRecord,
    JournalError,
    Kind,
    RetainedRecord,
    SessionRecord,
    Standby,
    StartTime,
    decode_got_run,
    decode_number,
    decode_sent,
    decode_snapshot_end,
    encode_about,
    encode_got,
    encode_got_run,
    encode_origin,
    encode_record,
    encode_sent,
    encode_snapshot_end,
    encode_standbys,
    read_records,
)
from mqttree.broker.persistence.frames import (
    HEADER_SIZE,
    VERSION,
    Cut,
    decode_header,
    encode_frame,
    encode_frames,
    encode_header,
    frame_within,
    read_frames,
)
from mqttree.broker.persistence.will_record import decode_will, encode_will
from mqttree.broker.wire.packets import Will
from mqttree.broker.wire.properties import Property
from tests.kit.effort import examples
from tests.kit.heads import recorded_messages

ID = b"abcdefgh"
U16, U32, U48, U64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 32, 48, 64))
QOS = st.integers(0, 2)
TEXT = st.binary(max_size=40)


def body_of(record: bytes, kind: int) -> bytes:
    """The body of one encoded record."""
    found = list(read_records(record))
    assert [k for k, _ in found] == [kind]
    return found[0][1]


@given(
    U32,
    st.sampled_from((0, NEW, CLEAN, NEW | CLEAN)),
    st.integers(3, 5),
    st.floats(0),
    st.tuples(U64, U64),
    st.tuples(U64, U64),
    st.tuples(TEXT, TEXT),
    st.tuples(*3 * [st.none() | TEXT]),
)
def test_an_encoded_session_record_decodes_to_the_same(
    n: int,
    flags: int,
    version: int,
    expiry: float,
    times: tuple[int, int],
    ages: tuple[int, int],
    texts: tuple[bytes, bytes],
    optional: tuple[bytes | None, bytes | None, bytes | None],
) -> None:
    record = SessionRecord(n, flags, version, expiry, *times, ages, *texts, *optional)
    assert SessionRecord.decode(body_of(record.encode(), 3)) == record


@given(U32, U16, U48, QOS, st.booleans(), TEXT, TEXT)
def test_a_session_survives_its_records(
    n: int,
    packet_id: int,
    number: int,
    qos: int,
    retain: bool,
    ids: bytes,
    shared: bytes,
) -> None:
    got = GotAsRecord(7, number, n, packet_id, qos, retain, ids, shared)
    assert GotAsRecord.decode(body_of(got.encode(), 8)) == got
    began = StartTime(float(packet_id), -float(number), (b"k" * 16,) * qos)
    assert StartTime.decode(began.encode()) == began
    assert decode_number(body_of(encode_about(Kind.END, n), 4)) == (n, b"")
    assert decode_number(body_of(encode_about(Kind.OWED, n, ids), 24)) == (n, ids)
    run = 7, number, 3, n, packet_id
    assert decode_got_run(body_of(encode_got_run(*run), 9)) == run
    sent = n, packet_id, 3, 7, number
    assert decode_sent(body_of(encode_sent(*sent), 10)) == sent


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
    entry = EntryRecord(bool(qos), expires_at_ms, load)
    assert EntryRecord.decode(body_of(entry.encode(), 2)) == entry
    assert body_of(encode_record(Kind.SEEN, load), 15) == load
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
    encode_frame(
        [encode_about(Kind.END, n), encode_about(Kind.UNSUBSCRIBED, n, b"x" * (3 * n))], 1000 + n
    )
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
@given(st.lists(st.tuples(st.integers(1, 13), st.binary(max_size=60)), max_size=8))
def test_any_bodies_are_survived(records: list[tuple[int, bytes]]) -> None:
    """A checksum keeps the disk's faults out; a fault of ours must not keep a broker from
    starting."""
    frame = b"".join(bytes((kind,)) + len(body).to_bytes(4, "big") + body for kind, body in records)
    Image().take(5, frame)


# ---------------------------------------------------------------- messages of sessions

KEY = origin_key(b"kikkkkkk", 1)
PACKETS = bytes.fromhex("320c 0003 612f62 1234 68656c6c6f 320d 0003 612f63 1235 776f726c6421")
BATCH = encode_batch(KEY, 5, PACKETS, 2, 4, 1)


def session(number: int, client: bytes = b"c") -> bytes:
    """The record of a session without anything in it."""
    return SessionRecord(number, 1, 4, 60.0, 5, 0, (0, 0), client).encode()


def test_the_bytes_of_records_of_messages() -> None:
    items = [1 << 16 | 2, 1 << 48 | 1 << 16 | 3, 1 << 48 | 9 << 16]
    records = [
        encode_origin(1, KEY),
        EntryRecord(True, 0x018C12345678, BATCH).encode(),
        encode_got(1, 5, items),
        encode_sent(9, 4, 1, 1, 6),
        encode_about(Kind.ACKNOWLEDGED, 1, b"\x40\2\0\2\x40\2\0\3"),
    ]
    assert b"".join(records) == bytes.fromhex(
        # Origin 1.
        "01 00000012 0001 61326c72613274726132734141414142"
        # Form, time, and the batch.
        "02 00000052 01 018c12345678"
        "3249 0006 246261746368 0001 1e 26 0001 6f 0018 61326c72613274726132734141414142"
        "4141414141414146 04 0002"
        "320c 0003 612f62 1234 68656c6c6f 320d 0003 612f63 1235 776f726c6421"
        # Origin and number of the first message; place, session, packet identifier.
        "07 00000020 0001 000000000005 0000 00000001 0002  0001 00000001 0003  0001 00000009 0000"
        # Session, packet identifier, messages; origin and number of the first one.
        "0a 00000010 00000009 0004 0001 0001 000000000006"
        # Session, PUBACK packets.
        "0b 0000000c 00000001 4002 0002 4002 0003"
    )


def test_what_sessions_have_is_found_by_name() -> None:
    image = Image()
    items = [1 << 16 | 2, 1 << 48 | 1 << 16 | 3, 1 << 48 | 0xFFFFFFFF << 16]
    entry = EntryRecord(False, 1000, BATCH)
    records = [session(1), session(0xFFFFFFFF), encode_origin(7, KEY), entry.encode()]
    image.take(1, b"".join([*records, encode_got(7, 5, items)]))
    assert image.last_session == 0xFFFFFFFF
    assert image.sessions[1].last == 3
    first, second = (KEY, 5), (KEY, 6)
    # The same as one file instead of several.
    again = Image()
    again.take(1, b"".join(image.records()))
    for found in (image, again):
        assert found.sessions[1].inflight == {
            2: (first, AS_PUBLISHED, False, b"", b""),
            3: (second, AS_PUBLISHED, False, b"", b""),
        }
        assert list(found.sessions[0xFFFFFFFF].queue) == [(second, AS_PUBLISHED, False, b"", b"")]
        assert found.entries == [entry]
        messages = recorded_messages(found, 0.0, 1000)
        message = messages.get(second)
        assert message is not None
        assert (message.topic, message.payload) == (b"a/c", b"world!")
        assert messages.get(second) is message
        assert not found.skipped
        assert messages.get((KEY, 7)) is None
        assert found.skipped == 1


def test_entries_that_nobody_needs_are_not_written_again() -> None:
    """But for what other brokers may lack."""
    image = Image()
    for logged in (True, False):
        image.take(1, EntryRecord(logged, 1, BATCH).encode())
    assert [record[0] for record in image.records()] == [Kind.ENTRY, Kind.SEEN]


def test_the_last_record_of_standbys_counts_and_is_written_again() -> None:
    image = Image()
    former, now = Standby(b"standby1", 1, 2), Standby(b"standby2", 3, 4)
    image.take(1, encode_standbys([former]))
    image.take(1, encode_standbys([former, now]))
    assert image.standbys == [former, now]
    assert encode_standbys([former, now]) in list(image.records())
    image.take(1, encode_standbys([]))
    assert image.standbys == []


def test_messages_without_a_name_have_numbers_of_the_journal() -> None:
    """A broker that starts again goes on behind them, also if no session has them any more."""
    image = Image()
    entry = EntryRecord(False, 1, encode_batch(LOCAL, 7, PACKETS, 2, 4, 1))
    got = encode_got(0, 7, [1 << 48 | 1 << 16 | 2])
    image.take(1, b"".join([session(1), entry.encode(), got]))
    assert image.local == 8
    assert image.names() == {(b"", 8)}
    assert [batch.sequence for _, batch in image.batches()] == [7]


def test_an_index_is_that_of_its_segment() -> None:
    image = Image()
    image.take(1, session(1) + encode_origin(1, KEY))
    image.begin()
    image.take(2, encode_got(1, 5, [1 << 16 | 2]))
    assert image.skipped == 1
    assert not image.sessions[1].inflight


def test_a_snapshot_takes_the_place_of_older_entries() -> None:
    image = Image()
    image.take(1, EntryRecord(True, 1, BATCH).encode())
    image.begin()
    image.take(2, EntryRecord(False, 2, BATCH).encode() + encode_snapshot_end(2, 9))
    assert image.entries == [EntryRecord(False, 2, BATCH)]


def test_a_record_of_a_message_that_is_cut_off_anywhere_is_skipped() -> None:
    for kind, body in (
        (Kind.ENTRY, EntryRecord(True, 1, b"").encode()[5:]),
        (Kind.GOT, encode_got(0, 5, [1 << 16 | 2])[5:]),
        (Kind.GOT_AS, GotAsRecord(0, 5, 1, 2, 1, True, b"", b"").encode()[5:]),
        (Kind.GOT_RUN, encode_got_run(0, 5, 3, 1, 2)[5:]),
        (Kind.SENT, encode_sent(1, 2, 1, 0, 5)[5:]),
    ):
        for size in range(len(body)):
            image = Image()
            image.take(1, session(1))
            image.take(2, bytes((kind,)) + size.to_bytes(4, "big") + body[:size])
            found = image.sessions[1]
            assert not (found.inflight or found.queue or image.entries), (kind, size)
            assert image.skipped == 1 or (kind, size) == (Kind.GOT, 8)


def test_an_entry_that_is_no_batch_is_passed_over() -> None:
    for at in range(len(BATCH)):
        for bit in (0x01, 0x80, 0xFF):
            bent = bytearray(BATCH)
            bent[at] ^= bit
            image = Image()
            image.take(1, EntryRecord(False, 1, bytes(bent)).encode())
            recorded_messages(image, 0.0, 0).get((KEY, 5))
            assert image.skipped <= 2


def test_the_order_of_records_decides() -> None:
    image = Image()
    records = [
        encode_about(Kind.END, 9),
        encode_got(0, 7, [1 << 16]),  # to a session that is not known yet
        session(1),
        encode_got(0, 7, [1 << 16, 1 << 48 | 1 << 16]),
        encode_sent(1, 4, 1, 0, 8),  # the first had expired
    ]
    image.take(1, b"".join(records))
    assert image.sessions[1].inflight == {4: ((b"", 8), AS_PUBLISHED, False, b"", b"")}
    assert not image.sessions[1].queue
    image.take(2, session(1))
    assert not image.sessions[1].inflight  # recorded again
    assert image.alive == 2


def test_records_of_a_frame_that_is_split_count_in_their_order() -> None:
    """An identifier that was acknowledged may be in use again in the same turn."""
    records = [
        encode_got(0, 5, [1 << 16 | 2]),
        encode_about(Kind.ACKNOWLEDGED, 1, b"\x40\2\0\2"),
        encode_origin(1, KEY),
        EntryRecord(True, 1, BATCH).encode(),
        encode_got(1, 5, [1 << 16 | 2, 1 << 48 | 1 << 16 | 3]),
    ]
    image = Image()
    image.take(1, session(1))
    for frame in read_frames(io.BytesIO(encode_frames(records, 2, 40)), 0):
        assert not isinstance(frame, Cut)
        image.take(*frame)
    assert image.names() == {(KEY, 5), (KEY, 6)}


@pytest.mark.parametrize("kind", [Kind.ENTRY, Kind.ABSORBED])
def test_a_frame_that_begins_with_any_record_is_found_behind_damage(kind: int) -> None:
    body = EntryRecord(True, 1, BATCH).encode()[1:]
    frame = encode_frame([bytes((kind,)) + body], 1_700_000_000_000)
    assert frame_within(b"damage" + frame)


def test_the_session_of_a_client_is_its_last_one() -> None:
    image = Image()
    image.take(1, session(1) + session(2) + session(3, b"other"))
    assert image.session_of(b"c") is image.sessions[2]
    image.take(2, encode_about(Kind.END, 1))
    assert image.session_of(b"c") is image.sessions[2]
    image.take(3, encode_about(Kind.END, 2))
    assert image.session_of(b"c") is None
