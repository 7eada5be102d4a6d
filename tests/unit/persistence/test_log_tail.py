"""The log's tail: bytes of segments, and its index, against a model."""

from __future__ import annotations

import io
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.cluster.delivery.answers import parts_of
from mqttree.broker.cluster.delivery.replay_log import LogEntry
from mqttree.broker.cluster.events import MemberGone
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.sessions.records import EntryRecord, JournalError
from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.core.effects import TailDrop, TailRead, TailSync, TailWrite
from mqttree.broker.node import Node
from mqttree.broker.persistence.frames import Cut
from mqttree.broker.persistence.log_tail import FRAME_BYTES, LogTail
from mqttree.broker.persistence.tail_segment import (
    HEADER_SIZE,
    Away,
    Found,
    Part,
    decode_entries,
    encode_away,
    encode_entries,
    encode_header,
    read_frames,
)
from tests.kit.effort import examples
from tests.kit.journal_harness import Files
from tests.kit.link_harness import batch_entry, lone

ID = b"brokerid"
KEY, OTHER = origin_key(ID, 1), origin_key(ID, 2)
BROKERS = [b"broker-b", b"broker-c"]

PARTS = st.builds(
    Part,
    st.sampled_from(BROKERS),
    st.sampled_from((KEY, OTHER)),
    st.integers(1, 100),
    st.integers(100, 1 << 40),
    st.integers(1, 99),
)
RECORDS = st.builds(
    EntryRecord,
    st.just(True),
    st.integers(0, 1 << 40),
    st.binary(max_size=30),
)
AWAYS = st.builds(
    Away,
    st.sampled_from(BROKERS),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
    st.lists(st.binary(max_size=20), max_size=3).map(tuple),
)
FRAMES = st.one_of(
    st.lists(AWAYS, max_size=2),
    st.tuples(st.lists(PARTS, max_size=3), st.lists(RECORDS, max_size=3)),
)


def segment(frames: list[list[Away] | tuple[list[Part], list[EntryRecord]]]) -> bytes:
    """The bytes of a file with these frames."""
    data = encode_header(ID, 7)
    for frame in frames:
        if isinstance(frame, list):
            data += encode_away(frame)
        else:
            data += encode_entries(frame[0], [record.encode() for record in frame[1]])
    return data


def read(data: bytes) -> list[Found | Cut]:
    return list(read_frames(io.BytesIO(data), len(data), ID, 7))


@given(st.lists(FRAMES, max_size=4))
def test_a_segment_is_read_as_it_was_written(
    frames: list[list[Away] | tuple[list[Part], list[EntryRecord]]],
) -> None:
    data = segment(frames)
    found = read(data)
    assert len(found) == len(frames)
    for one, frame in zip(found, frames, strict=True):
        assert isinstance(one, Found)
        if isinstance(frame, list):
            assert one.away == tuple(frame)
        else:
            assert one.away is None
            assert list(one.parts) == frame[0]
            assert decode_entries(data[one.at : one.at + one.size]) == frame[1]


@given(st.lists(FRAMES, min_size=1, max_size=3), st.data())
def test_a_damaged_segment_is_read_up_to_the_damage(
    frames: list[list[Away] | tuple[list[Part], list[EntryRecord]]], data: st.DataObject
) -> None:
    """What stands before it counts; nothing that was not written is ever read."""
    whole = segment(frames)
    found = read(whole)
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        bent = whole[:at]
    else:
        bent = whole[:at] + bytes((whole[at] ^ data.draw(st.integers(1, 255)),)) + whole[at + 1 :]
    for one, before in zip(read(bent), found, strict=False):
        if isinstance(one, Cut):
            break
        assert one == before
        if isinstance(one, Found) and one.away is None:
            try:
                records = decode_entries(bent[one.at : one.at + one.size])
            except JournalError:
                continue
            assert records == decode_entries(whole[one.at : one.at + one.size])


@given(st.binary(max_size=200))
def test_bytes_that_are_no_segment_are_refused(data: bytes) -> None:
    read(data)
    read(encode_header(ID, 7) + data)
    with pytest.raises(JournalError):
        decode_entries(data)


class Bench:
    """A tail on a disk in memory, and who is away."""

    def __init__(self, limit: int, files: Files | None = None, at: float = 1000.0) -> None:
        self.node = Node(
            NodeConfig(id=ID, log_tail=limit, discovery="off", routing="flood"),
            at,
            1.7e9,
            random.Random(1),
            log=lambda level, text: None,
        )
        self.files = files or Files()
        self.lost: list[Part] = []
        self.away = [Away(broker, 5, 5, (b"#",)) for broker in BROKERS]
        self.tail = LogTail(self.node, self.node.cluster.clock, self.lost.append, lambda: self.away)
        self.was_away = self.tail.begin(self.files.tail())
        self.read: list[LogEntry] | None = []

    def work(self) -> None:
        """Let the disk do what it was asked for."""
        while effects := [
            e
            for e in self.node.take_effects()
            if isinstance(e, TailWrite | TailRead | TailSync | TailDrop)
        ]:
            for effect in effects:
                self.files.carry_out(effect)
            told, self.files.untold = self.files.untold, []
            for done, error in told:
                self.node.now += 0.001
                if isinstance(done, TailWrite):
                    assert not isinstance(error, bytes)
                    self.tail.written(done, error, self.node.now)
                elif isinstance(done, TailRead):
                    self.tail.was_read(done, error, self.node.now)

    def entry(self, number: int, size: int, count: int = 1) -> LogEntry:
        if count > 1:
            messages = [(b"ab"[n % 2 : n % 2 + 1], bytes(size // count)) for n in range(count)]
            return batch_entry(KEY, number, messages, at=self.node.now)
        return batch_entry(KEY, number, [(b"a", bytes(size))], at=self.node.now)

    def numbers(self, broker: bytes, lacks: list[tuple[int, int]]) -> list[int]:
        """What a broker gets that lacks these, asking on and on."""
        found: list[int] = []
        while lacks and (frame := self.tail.first(broker, KEY, lacks)) is not None:
            last = frame.parts[broker, KEY].last
            self.tail.read(frame, self._take)
            self.work()
            for entry in parts_of(self.read or (), KEY, lacks):
                for number, one in entry.messages():
                    assert not one.payload.strip(b"\0")
                    found.append(number)
            lacks = [(max(low, last + 1), high) for low, high in lacks if high > last]
        return found

    def _take(self, entries: list[LogEntry] | None) -> None:
        self.read = entries


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"),
            st.sampled_from([*([b] for b in BROKERS), BROKERS]),
            st.sampled_from((10, 100_000, 400_000)),
            st.sampled_from((1, 1, 5)),
        ),
        st.tuples(st.just("flush")),
        st.tuples(st.just("work")),
        st.tuples(st.just("full")),
        st.tuples(st.just("room")),
        st.tuples(st.just("again")),
    ),
    max_size=30,
)


@settings(max_examples=examples(150))
@given(STEPS, st.sampled_from((3_000_000, 1 << 30)))
def test_each_message_of_the_tail_is_there_or_counted_as_lost(
    steps: list[tuple[object, ...]], limit: int
) -> None:
    """In order, once; and what is lost is counted to the message. What a crash takes that was not
    written is the journal's."""
    bench = Bench(limit)
    due: dict[bytes, list[int]] = {broker: [] for broker in BROKERS}
    refused: dict[bytes, int] = dict.fromkeys(BROKERS, 0)
    number = 1
    for step in steps:
        if step[0] == "add":
            brokers, size, count = step[1:]
            assert isinstance(brokers, list) and isinstance(size, int) and isinstance(count, int)
            taken = bench.tail.add(bench.entry(number, size, count), brokers, None)
            for broker in brokers:
                due[broker] += range(number, number + count)
                refused[broker] += 0 if taken else count
            number += count
        elif step[0] == "flush":
            bench.tail.flush()
        elif step[0] == "work":
            bench.work()
        elif step[0] == "full":
            bench.files.broken = "No space left on device"
        elif step[0] == "room":
            bench.files.broken = ""
            bench.node.now += 2.0
        elif not bench.files.broken:
            bench.tail.flush()
            bench.work()
            lost = bench.lost
            bench = Bench(limit, bench.files, bench.node.now)
            bench.lost = lost
            bench.tail._lost = lost.append
    bench.files.broken = ""
    bench.node.now += 2.0
    bench.tail.flush()
    bench.work()
    assert bench.tail.size == sum(map(len, bench.files.tail_segments.values()))
    assert bench.tail.size <= limit + FRAME_BYTES + 400_200
    for broker in BROKERS:
        found = bench.numbers(broker, [(1, 1 << 40)])
        assert found == sorted(set(found))
        # A frame has what others want, too.
        found = [number for number in found if number in due[broker]]
        lost = sum(part.messages for part in bench.lost if part.broker == broker)
        assert len(found) + lost + refused[broker] == len(due[broker])


def test_segments_go_when_no_absent_member_needs_them() -> None:
    bench = Bench(1 << 30)
    for number in range(1, 61):
        bench.tail.add(bench.entry(number, 400_000), BROKERS, None)
    bench.work()
    assert len(bench.files.tail_segments) == 2
    bench.away.pop()
    bench.tail.ended(BROKERS[1])
    assert bench.numbers(BROKERS[0], [(5, 20)]) == list(range(5, 21))
    assert bench.numbers(BROKERS[1], [(5, 20)]) == []
    bench.away.pop()
    bench.tail.ended(BROKERS[0])
    bench.work()
    assert not bench.files.tail_segments
    assert not bench.lost
    assert bench.tail.size == 0


def test_absent_members_are_known_after_a_start() -> None:
    bench = Bench(1 << 30)
    bench.tail.changed()
    bench.tail.flush()
    bench.work()
    again = Bench(1 << 30, bench.files)
    assert again.was_away == tuple(bench.away)
    assert Bench(0, bench.files).was_away == ()


def test_a_broker_that_was_back_for_a_moment_lacks_messages_since_it_went_first() -> None:
    """A start puts what came since then into the log again."""
    world = lone(log_tail=0)
    absent, broker = world.node.absent_members, BROKERS[0]
    absent.member_gone(MemberGone(broker, ()))
    went = world.now
    world.advance(60.0)
    absent.absent[broker].back = world.now
    world.advance(0.5)
    absent.member_gone(MemberGone(broker, ()))
    assert absent.absent[broker].since == world.now
    assert absent.earliest() == went


def test_a_frame_that_cannot_be_read_is_lost_for_all_and_the_next_one_comes() -> None:
    bench = Bench(1 << 30)
    for number in range(1, 4):
        bench.tail.add(bench.entry(number, 400_000), BROKERS, None)
    bench.work()
    data = next(iter(bench.files.tail_segments.values()))
    data[500_000] ^= 1
    assert bench.numbers(BROKERS[0], [(1, 9)]) == [1, 3]
    assert [(part.broker, part.first, part.last, part.messages) for part in bench.lost] == [
        (b, 2, 2, 1) for b in BROKERS
    ]
    assert bench.node.counters.log_tail_damaged == 1


def test_a_segment_that_is_gone_is_lost_as_a_whole_at_once() -> None:
    bench = Bench(1 << 30)
    for number in range(1, 61):
        bench.tail.add(bench.entry(number, 400_000), BROKERS, None)
    bench.work()
    first = min(bench.files.tail_segments)
    del bench.files.tail_segments[first]
    found = bench.numbers(BROKERS[0], [(1, 1), (50, 99)])
    assert found == list(range(50, 61))
    count = bench.tail.begins(BROKERS[0], KEY) - 1
    assert 30 < count < 50
    for broker in BROKERS:
        assert sum(part.messages for part in bench.lost if part.broker == broker) == count
    assert bench.tail.size == sum(map(len, bench.files.tail_segments.values()))


def test_what_is_older_than_the_tail_and_not_in_it_is_kept_in_its_order() -> None:
    """A start has it in the journal, though a segment of the tail is gone."""
    bench = Bench(1 << 30)
    for number in (4, 5, 6, 9):
        bench.tail.add(bench.entry(number, 400_000), BROKERS, None)
    bench.work()
    bench = Bench(1 << 30, bench.files)
    for number in range(1, 12):
        bench.tail.add(bench.entry(number, 1_000), BROKERS, None)
    bench.tail.flush()
    bench.work()
    for _ in range(2):
        for broker in BROKERS:
            assert bench.numbers(broker, [(1, 99)]) == list(range(1, 12))
            assert bench.numbers(broker, [(2, 2), (8, 10)]) == [2, 8, 9, 10]
            assert bench.tail.begins(broker, KEY) == 1
        assert bench.tail.last(KEY) == 11
        bench = Bench(1 << 30, bench.files)
    assert not bench.lost
    # Each is there once.
    assert (
        sum(
            len(decode_entries(bytes(data[found.at : found.at + found.size])))
            for number, data in bench.files.tail_segments.items()
            for found in read_frames(io.BytesIO(data), len(data), ID, number)
            if isinstance(found, Found) and found.away is None
        )
        == 11
    )


def test_what_is_written_to_a_segment_that_is_gone_is_counted_once() -> None:
    bench = Bench(1 << 30)
    bench.tail.add(bench.entry(1, 400_000), BROKERS, None)
    bench.work()
    bench.files.tail_segments.clear()
    frame = bench.tail.first(BROKERS[0], KEY, [(1, 1)])
    assert frame is not None
    bench.tail.read(frame, bench._take)
    bench.tail.add(bench.entry(2, 400_000), BROKERS, None)
    bench.work()
    assert bench.read is None
    assert sorted((p.broker, p.first, p.last) for p in bench.lost) == [
        (broker, number, number) for broker in BROKERS for number in (1, 2)
    ]
    bench.node.now += 2.0
    bench.tail.add(bench.entry(3, 400_000), BROKERS, None)
    bench.work()
    assert bench.numbers(BROKERS[0], [(1, 9)]) == [3]


def test_batches_are_read_as_they_were_and_damaged_ones_are_lost() -> None:
    bench = Bench(1 << 30)
    batch = bench.entry(5, 100, 4)
    data = batch.data(0.0)
    bench.tail.add(batch, BROKERS, None)
    bench.tail.flush()
    bench.work()
    frame = bench.tail.first(BROKERS[0], KEY, [(7, 7)])
    assert frame is not None
    bench.tail.read(frame, bench._take)
    bench.work()
    assert bench.read is not None
    (found,) = bench.read
    assert (found.key, found.sequence, found.count, found.data(0.0)) == (KEY, 5, 4, data)
    assert abs(found.at - batch.at) < 0.1
    # Whole by its checksum, and yet no batch.
    other = LogEntry(KEY, 9, 4, data[:-1], bench.node.now)
    bench.tail.add(other, BROKERS, None)
    bench.tail.flush()
    bench.work()
    assert bench.numbers(BROKERS[0], [(1, 99)]) == [5, 6, 7, 8]
    assert [(part.first, part.last, part.messages) for part in bench.lost] == [(9, 12, 4)] * 2


def test_a_segment_of_another_version_is_not_read() -> None:
    (cut,) = read(encode_header(ID, 7, 2) + segment([[Away(b"broker-b", 5, 4, ())]])[HEADER_SIZE:])
    assert isinstance(cut, Cut)
