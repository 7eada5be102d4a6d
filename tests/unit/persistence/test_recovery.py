"""What a journal that was cut off in an unlucky moment leads to, and what output waits for it
(docs/decisions/0021)."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.auth.acl_file import parse_rules
from mqttree.broker.auth.authorization import Access
from mqttree.broker.base.sequence_set import LAST
from mqttree.broker.cluster.delivery.local_window import LocalWindow
from mqttree.broker.cluster.delivery.replay_log import LogEntry
from mqttree.broker.cluster.delivery.subscription_start import oldest
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.sessions.records import (
    Kind,
    SessionRecord,
    StartTime,
    encode_about,
    encode_snapshot_end,
)
from mqttree.broker.core.effects import AppendFrame, BeginSegment
from mqttree.broker.core.retained_index import place_of
from mqttree.broker.core.start_point import UNKNOWN, SubscriptionStart
from mqttree.broker.io.journal_writer import JournalWriter
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.persistence import journal, snapshot, write_ahead_log
from mqttree.broker.persistence.frames import (
    HEADER_SIZE,
    decode_header,
    encode_frame,
    encode_header,
    read_frames,
)
from mqttree.broker.persistence.journal import Journal
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Disconnect, Puback, Publish
from mqttree.broker.wire.properties import Property
from tests.kit.effort import examples
from tests.kit.journal_harness import ID, Durable, Files, picture
from tests.kit.link_harness import batch_entry
from tests.kit.node_harness import connect_packet
from tests.unit.cluster.test_batches_in_log import Piece, Told, entries_of, pieces, told
from tests.unit.persistence.test_journal import Chaos, copy_of, durable_client, lazy


def test_a_slow_connection_that_closes_gets_all_that_waits() -> None:
    world = lazy()
    publisher = world.connect("p")
    publisher.transport.capacity = 0
    publisher.publish("b", b"x", 1, 1)  # fills the transport
    publisher.publish("a/1", b"x", 1, 2)
    first, world.files.untold = world.files.untold, []
    publisher.publish("a/1", b"x", 1, 3)
    publisher.owner.shut(0x8B)
    world.settle()
    second, world.files.untold = world.files.untold, first
    world.tell()
    publisher.transport.capacity = None
    publisher.conn.writable(world.now)
    assert not publisher.transport.closing
    world.files.untold = second
    world.tell()
    assert publisher.take() == [Puback(1), Puback(2), Puback(3), Disconnect(0x8B)]
    assert publisher.transport.closing


@pytest.mark.parametrize("size", (1, 16, 38, 4096))
def test_a_file_of_zeros_counts_as_cut_off(size: int) -> None:
    """A power cut may leave the size of a new file and not what was in it."""
    assert decode_header(bytes(size), ID, 3) is False


def test_more_in_flight_than_may_wait_for_the_disk() -> None:
    """A checkpoint says it in frames that the disk can take."""
    world = Durable(
        sync=True,
        limits=Limits(
            journal_backlog_bytes=16_000,
            snapshot_step_bytes=4000,
            journal_smallest=32_000,
            snapshot_ahead=8000,
        ),
    )
    durable_client(world, "k").subscribe("a", qos=1)
    publisher = world.connect("p")
    for number in range(1, 41):
        publisher.publish("a", b"%03d" % number * 1000, 1, number)
        world.advance(0.1)
    assert publisher.take() == [Puback(number) for number in range(1, 41)]
    assert world.counters.journal_snapshots
    assert world.journal.healthy
    assert world.counters.journal_errors == 0
    world.advance(1)
    sizes = []
    world.begin_snapshot()
    while world.journal.frames.busy:
        world.files.lazy = True
        world.advance(write_ahead_log.STEP_PAUSE)
        sizes += [
            len(effect.data) for effect, _ in world.files.untold if isinstance(effect, AppendFrame)
        ]
        world.files.lazy = False
        world.tell()
    assert len(sizes) > 10
    assert max(sizes) < 10_000
    assert picture(world.again(0, copy_of(world.files))) == picture(world)


def test_one_packet_may_exceed_the_journal_backlog() -> None:
    world = lazy(sync=True, limits=Limits(journal_backlog_bytes=1000))
    world.node.federated = True
    publisher = world.connect("p")
    publisher.publish("a/1", b"x" * 9000, 1, 1)
    world.connect("other").publish("a/1", b"y", 1, 1)
    assert world.journal.healthy
    world.tell()
    assert publisher.take() == [Puback(1)]


def test_records_too_large_for_one_frame_are_split() -> None:
    world = lazy(sync=True, limits=Limits(journal_frame_bytes=2000))
    publisher = world.connect("p")
    for topic in ("a/1", "a/2", "a/3"):
        publisher.conn.receive(
            encode_packet(Publish(topic, topic.encode() * 500, 1, packet_id=1), 5), world.now
        )
    world.settle()
    assert world.counters.journal_frames_split == 1
    assert "they are written as several" in world.logged[-1]
    assert publisher.take() == []
    world.tell()
    assert len(publisher.take()) == 3
    stream = io.BytesIO(world.files.segments[1])
    stream.seek(HEADER_SIZE)
    assert [len(frame[1]) < 2000 for frame in read_frames(stream, HEADER_SIZE)][-4:] == [True] * 4
    assert picture(world.again(0, copy_of(world.files))) == picture(world)


def test_a_checkpoint_ends_whatever_is_published_meanwhile() -> None:
    """On a disk that is always behind, as clients publish as fast as they are read."""
    world = lazy(
        sync=True,
        limits=Limits(journal_backlog_bytes=64_000, journal_smallest=32_000, snapshot_ahead=8000),
    )
    publishers = [world.connect(f"p{number}") for number in range(20)]
    sizes = []
    for number in range(1, 201):
        world.now += 0.01
        world.node.tick(world.now)
        world.settle()
        for publisher in publishers:
            if publisher.transport.reading:
                publisher.publish("a/1", b"x" * 1000, 1, number)
                publisher.take()
        untold, left = world.files.untold, 8000
        while untold and left > 0:
            effect, error = untold.pop(0)
            left -= len(effect.data) if isinstance(effect, AppendFrame) else 0
            world.node.answer(effect, error, world.now)
        world.settle()
        session = world.session("l")
        while len(session.queue) > 20:
            session.queue.popleft()
        sizes.append(sum(map(len, world.files.segments.values())))
    assert world.counters.journal_snapshots > 3
    assert world.journal.healthy
    assert max(sizes) < 400_000


def test_output_for_connections_that_are_gone_is_forgotten() -> None:
    world = Durable(sync=True)
    durable_client(world, "l").subscribe("a", qos=1)
    world.files.broken = "No space left on device"
    stays = world.connect("p")
    stays.publish("a", b"x", 1, 1)
    for number in range(50):
        client = world.connect(f"c{number}")
        client.publish("a", b"x", 1, 1)
        client.publish("a", b"y", 1, 2)
        client.vanish()
        world.advance(0.1)
    assert len(world.journal.frames.gate) <= 3
    world.files.broken = ""
    world.advance(3)
    assert stays.take() == [Puback(1)]
    assert len(world.journal.frames.gate) == 0
    assert (world.journal.frames.gate._size, world.journal.frames.gate._orphaned) == (0, 0)


def test_a_new_session_counts_unwanted_messages_as_seen() -> None:
    """Else a session that came from elsewhere, with a broker that is killed then, would get it once
    more."""
    world = Durable()
    durable_client(world, "k").subscribe("a", qos=2)
    key = origin_key(b"x" * 8, 1)
    window = world.node.cluster.forwarder.vector[key] = LocalWindow(
        3, world.now, world.node.counters, Limits().max_gaps
    )
    window.top = 9  # went by
    assert key not in world.again(0, copy_of(world.files)).node.cluster.forwarder.vector
    durable_client(world, "came")
    assert world.again(0, copy_of(world.files)).node.cluster.forwarder.vector[key].top == 9


def test_a_restored_origin_has_as_many_holes_as_the_limit_says() -> None:
    world = Durable(limits=Limits(max_gaps=2))
    key = origin_key(b"x" * 8, 1)
    world.node.cluster.forwarder.vector[key] = LocalWindow(9, world.now, world.node.counters, 2)
    durable_client(world, "k")
    again = world.again(1.0).node
    window = again.cluster.forwarder.vector[key]
    window.begin = LAST  # as of an earlier incarnation of the broker
    for number in (20, 30, 40):
        assert window.accept(number, 1) == 1
    assert window.gaps == [(21, 29), (31, 39)]
    assert again.counters.gaps_forgotten == 1


def test_a_state_whose_deletion_failed_does_not_come_back() -> None:
    """A session and a retained message ended while nothing could be written; then everything was,
    but for the deletion of the older file."""
    world = Durable(sync=True)
    durable_client(world, "k").subscribe("a", qos=1)
    durable_client(world, "stays").subscribe("a", qos=1)
    publisher = world.connect("p")
    publisher.publish("$r", b"x", 1, 1, retain=True)
    publisher.publish("r", b"x", 1, 2, retain=True)
    old = bytes(world.files.segments[1])
    world.files.broken = "No space left on device"
    world.open().send(connect_packet("k", 5))  # does not want it kept
    publisher.publish("r", b"", 1, 3, retain=True)
    world.files.broken = ""
    world.advance(3)
    assert world.journal.healthy
    files = copy_of(world.files)
    assert len(files.segments) == 1
    files.segments[1] = bytearray(old)
    again = world.again(1, files)
    assert set(again.node.sessions) == {"stays"}
    assert picture(again)["retained"].keys() == picture(world)["retained"].keys()
    image = files.image()
    assert len(image.sessions) == 1


def test_messages_from_before_the_clock_was_set_back_are_in_order() -> None:
    world = Durable()
    durable_client(world, "l").subscribe("other", qos=1)
    wall = 1.7e9
    for number, ahead in enumerate((3600, 0, -50, 3600, 0)):
        world.node.set_wall(wall + ahead, world.now)
        publisher = world.connect("p")
        world.node.federated = True
        publisher.publish("a", b"%d" % number, 1, 1)
    again = world.again(1)
    entries = list(again.node.cluster.forwarder.log._entries)
    assert [entry.data(again.now)[-1:] for entry in entries] == [b"0", b"1", b"2", b"3", b"4"]
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)
    assert all(entry.at <= again.now for entry in entries)


def rules_of(listener: str) -> list[Access]:
    """What lets in only who comes in there."""
    rules = parse_rules("rules", f"listener {listener}\nallow all #\n", limits=Limits())
    return [
        Access(None, rules),
        Access(set(), None, {listener: True}),
        Access({"u"}, rules, {listener: True}),
    ]


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("known", [True, False])
def test_rules_about_a_listener_hold_after_a_restart(
    which: int, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is refused, nor taken away, by rules about another one. Older journals do not say
    where a client came in."""
    begin = Journal.begin
    access: list[Access] = []

    def begun(durability: Journal, *arguments: Any) -> None:
        if access:
            durability.node.set_access(access[0], arguments[-1])
        begin(durability, *arguments)

    monkeypatch.setattr(Journal, "begin", begun)
    encode = SessionRecord.encode
    if not known:
        monkeypatch.setattr(
            SessionRecord, "encode", lambda record: encode(record._replace(listener=None))
        )
    world = Durable(sync=True)
    client = durable_client(world, "k")
    access.append(rules_of(client.conn.listener)[which])
    client.subscribe("a", qos=1)
    client.vanish()
    world.connect("p").publish("a", b"before", 1, 1)
    again = world.again(1)
    again.connect("p").publish("a", b"after", 1, 1)
    for _ in range(2):
        assert [outgoing.message.payload for outgoing in again.session("k").queue] == [
            b"before",
            b"after",
        ]
        again.node.set_access(access[0], again.now)
        again.settle()
    nobody = rules_of("elsewhere")[which]
    again.node.set_access(nobody, again.now)
    again.settle()
    assert len(again.session("k").queue) == (0 if known else 2)
    assert len(again.again(1).session("k").queue) == (0 if known else 2)


def test_repeated_checkpoints_change_nothing_and_fill_no_disk(tmp_path: Path) -> None:
    """A broker that dies again and again before its checkpoint is complete does not fill the
    disk."""
    rng = random.Random(7)
    world = Durable(limits=Limits(journal_smallest=4000, snapshot_step_bytes=1000))
    chaos = Chaos(world, rng)
    for number in range(300):
        chaos.step()
        if number % 50 == 0:
            world.advance(0.5)
    durable_client(world, "l").subscribe("#", qos=2)
    client = world.connect("p")
    for number in range(1, 21):
        client.publish("a", bytes(1000), 1, number)
    world.advance(3)
    start = sum(map(len, world.files.image().records()))
    folder = tmp_path / "journal"
    compacted = 0
    for _ in range(20):
        before = picture(world)
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        for segment, data in world.files.segments.items():
            (folder / f"{segment:08d}").write_bytes(data)
        loaded = JournalWriter(tmp_path, ID, sync=True, limits=Limits()).load()
        compacted += loaded.files == 1
        files = Files()
        files.segments = {int(path.name): bytearray(path.read_bytes()) for path in folder.iterdir()}
        assert max(files.segments) == loaded.segment - 1
        assert sum(map(len, files.segments.values())) == loaded.size < 6 * start
        again = Durable(files=copy_of(files), at=world.now)
        assert picture(again) == before
        world = Durable(files=files, at=world.now, limits=world.limits)
        world.advance(0.02)
    assert compacted > 1


def test_the_number_of_a_retained_message_comes_back() -> None:
    """By it other brokers know copies of it."""
    world = Durable()
    publisher = world.connect("p")
    world.node.federated = True
    publisher.publish("r", b"kept" * 100, 1, 1, retain=True)
    version = world.node.retained.digests.get(place_of(b"r"))
    assert version is not None
    assert version.sequence == 1
    found = world.again(1).node.retained.digests.get(place_of(b"r"))
    assert found is not None
    assert found.sequence == 1
    # The message is there twice: for the topic, and for other brokers.
    assert world.counters.journal_bytes < 1000


# ---------------------------------------------------------------- what was not written in between


def test_a_rebuilt_state_counts_when_it_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record about a session that is not said again yet goes on from what could not be written:
    it would change another one."""
    world = Durable(sync=True)
    listener = durable_client(
        world,
        "k",
        properties={Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF, Property.RECEIVE_MAXIMUM: 2},
    ).subscribed("t", qos=1)
    publisher = world.connect("p")
    for number in range(1, 6):
        publisher.publish("t", b"%d" % number, 1, number)
    assert len(publisher.take()) == 5
    world.files.broken = "No space left on device"
    listener.send(Puback(1))
    listener.send(Puback(2))
    world.files.broken = ""
    with monkeypatch.context() as patch:
        patch.setattr(snapshot.Snapshot, "go_on", lambda self: False)  # there is much to be said
        world.advance(1.5)
        assert world.rebuilding
        listener.send(Puback(3))
        assert listener.payloads() == [b"1", b"2", b"3", b"4", b"5"]
        again = world.again(1, copy_of(world.files))
    session = again.session("k")
    there: list[Any] = [*session.inflight.values(), *session.queue]
    assert [outgoing.message.payload for outgoing in there] == [b"1", b"2", b"3", b"4", b"5"]
    world.advance(1)
    assert world.journal.healthy
    assert picture(world.again(0, copy_of(world.files))) == picture(world)


def test_an_incomplete_snapshot_does_not_replace_older_files() -> None:
    def about(*names: bytes, full_snapshot: bool = False, whole: bool = False) -> bytes:
        records = [
            SessionRecord(number, 1, 5, 9.0, 1, 1, (0, 0), b"%d" % number).encode()
            for number in map(int, names)
        ]
        records += [encode_snapshot_end(2, 0)] if whole else []
        return encode_header(ID, 2, full_snapshot=full_snapshot) + b"".join(
            encode_frame([record], 7) for record in records
        )

    for full_snapshot, whole, found in (
        (False, False, {1, 2}),
        (True, False, {1}),
        (True, True, {2}),
        (False, True, {2}),
    ):
        files = Files()
        files.segments = {
            1: bytearray(encode_header(ID, 1)),
            2: bytearray(about(b"2", full_snapshot=full_snapshot, whole=whole)),
        }
        assert set(files.image().sessions) == {2}  # there is nothing else
        files.segments[1] += about(b"1")[HEADER_SIZE:]
        image = files.image()
        assert set(image.sessions) == found
        assert image.alive == 7
        files.segments[3] = bytearray(encode_header(ID, 3)) + about(b"3")[HEADER_SIZE:]
        assert set(files.image().sessions) == found | {3}


@pytest.mark.parametrize("sync", [False, True])
def test_a_checkpoint_does_not_end_a_failure(sync: bool) -> None:
    """What made it due could not be written, and then there was room for the file that it began."""
    world = Durable(sync=sync, limits=Limits(journal_smallest=1500))
    ends = durable_client(world, "ends")
    for client in (ends, durable_client(world, "stays")):
        client.subscribe("t", qos=1)
    publisher = world.connect("p")
    world.files.lazy = True
    world.files.broken = "No space left on device"
    for number in range(1, 100):
        publisher.publish("t", bytes(300), 1, number)
        if world.journal.frames.snapshot is not None:
            break
    untold, world.files.untold = world.files.untold, []
    world.files.broken = ""
    begin = next(effect for effect, _ in untold if isinstance(effect, BeginSegment))
    for effect, error in untold:
        if effect is begin:
            ends.send(Disconnect(0, {Property.SESSION_EXPIRY_INTERVAL: 0}))
            error = None  # as it seems to the driver
            world.files.segments[begin.segment] = bytearray(encode_header(ID, begin.segment))
        world.node.answer(effect, error, world.now)
    assert not world.journal.frames.writes
    world.files.lazy = False
    world.settle()
    world.advance(3)
    assert world.journal.healthy
    again = world.again(1)
    assert {name for name, session in again.node.sessions.items() if session.expiry} == {"stays"}


def test_a_checkpoint_that_cannot_begin_is_put_off() -> None:
    """No file number, say: what is written is all right."""
    world = Durable(sync=True, limits=Limits(journal_smallest=3000))
    durable_client(world, "l").subscribe("t", qos=1)
    publisher = world.connect("p")
    world.files.crowded = "Too many open files"
    for number in range(1, 31):
        publisher.publish("t", bytes(300), 1, number)
        world.advance(0.05)
    assert publisher.take() == [Puback(number) for number in range(1, 31)]
    assert world.journal.healthy
    assert not world.journal.frames.busy
    assert list(world.files.segments) == [1]
    told = [line for line in world.logged if "journal" in line]
    assert (
        told[0] == "no new segment of the journal can begin (Too many open files): "
        "it continues in segment 1"
    )
    assert 1 < len(told) < 6
    assert picture(world.again(0, copy_of(world.files))) == picture(world)
    world.files.crowded = ""
    for number in range(31, 61):
        publisher.publish("t", bytes(300), 1, number)
        world.advance(0.05)
    assert min(world.files.segments) > 1
    assert picture(world.again(0, copy_of(world.files))) == picture(world)


def test_no_step_of_a_checkpoint_is_long() -> None:
    """Whatever there is much of: other brokers' messages in the log, leaves with nothing in
    them."""
    world = Durable()
    publisher = world.connect("p")
    for number in range(900):
        publisher.publish(f"r/{number}", b"x", 1, number + 1, retain=True)
    relay = world.node.cluster.forwarder
    key = origin_key(b"x" * 8, 1)
    for number in range(1, 8001):
        relay.log.append(batch_entry(key, number, [(b"t", b"x")], at=world.now), None)
    steps = 0
    said = snapshot.Snapshot(world.journal.frames, world.journal.everything(), DEFAULTS)
    while not said.step():
        steps += 1
    assert (2 * 900 + 8000 / journal.PASSED) / DEFAULTS.snapshot_step_items - 1 <= steps <= 12
    image = world.files.image()
    assert len(image.retained) == 900


def opened(key: bytes) -> tuple[Durable, SubscriptionStart]:
    """A session that began when a broker could not be asked."""
    world = Durable()
    client = durable_client(world, "k").subscribed("a", qos=1)
    session = client.owner.session
    start = session.subscriptions["a"].start = SubscriptionStart(
        world.now - 2.0, {key: 5}, {key}, (0, 0, 0)
    )
    session.recorder.record_starts()
    world.settle()
    return world, start


def began(world: Durable) -> SubscriptionStart:
    found = oldest(world.node.sessions["k"])
    assert found is not None
    return found


@pytest.mark.parametrize("whole", [False, True])
def test_an_open_subscription_start_is_open_after_a_restart(whole: bool) -> None:
    """`whole`: a checkpoint has said it once more."""
    key = origin_key(b"x" * 8, 1)
    world, start = opened(key)
    if whole:
        world.begin_snapshot()
        world.advance(1.0)
    world = world.again(0.5)
    assert (began(world).tops, began(world).open, began(world).began) == (
        {key: 5},
        {key},
        start.began,
    )
    world.node.cluster.subscription_starts.raised(key, [began(world)], 9)
    world.settle()
    world = world.again(0.5)
    assert (began(world).tops, began(world).open) == ({key: 9}, set())


@pytest.mark.parametrize("whole", [False, True])
def test_what_a_session_had_at_other_brokers_is_known_after_a_restart(whole: bool) -> None:
    """A broker is killed while messages are still on their way to it that the session had at its
    former broker. `whole`: a snapshot has recorded it once more."""
    key = origin_key(b"x" * 8, 1)
    world = Durable()
    client = durable_client(world, "k").subscribed("a", qos=2)
    world.node.cluster.evaluated.add(client.owner.session, {key: [(19, 19), (24, 26)]})
    world.settle()
    if whole:
        world.begin_snapshot()
        world.advance(1.0)
    world = world.again(0.5)
    had = world.node.cluster.evaluated.elsewhere(world.node.sessions["k"])
    assert had == {key: [(19, 19), (24, 26)]}


@pytest.mark.parametrize("set_by", [3.0, 60.0, -60.0, float("nan")])
def test_another_clock_says_nothing_of_when_a_session_began(set_by: float) -> None:
    """The machine was started in between, or slept: ours began to count again, and the time of day
    went on."""
    key = origin_key(b"x" * 8, 1)
    world, start = opened(key)
    number = next(iter(world.journal.sessions.recorders))
    offset = world.journal.frames.wall() / 1000 - world.now
    time = StartTime(start.began, offset + set_by, (key,)).encode()
    world.journal.frames.record(encode_about(Kind.START_TIME, number, time))
    world.settle()
    found = began(world.again(0.5))
    known = set_by == 3.0
    assert (found.began, found.open) == (
        start.began if known else UNKNOWN,
        {key} if known else set(),
    )
    assert found.tops == {key: 5}


def test_a_journal_that_does_not_say_when_sessions_began() -> None:
    key = origin_key(b"x" * 8, 1)
    world, start = opened(key)
    start.began = UNKNOWN
    next(iter(world.journal.sessions.recorders.values())).record_starts()
    world.settle()
    found = began(world.again(0.5))
    assert (found.tops, found.open, found.began) == ({key: 5}, set(), UNKNOWN)


def test_a_batch_is_in_the_log_again() -> None:
    """Once, though a snapshot records it again; and one that is no batch is left out."""
    world = Durable()
    durable_client(world, "l").subscribe("other", qos=1)
    relay = world.node.cluster.forwarder
    key, messages = relay.key, [(topic, b"x") for topic in (b"a", b"b", b"a", b"c/d")]
    for first in (1, 5, 9):
        entry = batch_entry(key, first, messages, qos=2, at=world.now)
        relay.own.top += 4
        relay.log.append(entry, None)
        world.journal.logged(entry, None)
    damaged = batch_entry(key, 13, messages).data(0.0)[:-1]
    world.journal.logged(LogEntry(key, 13, 4, damaged, world.now), None)
    wildcard = batch_entry(key, 18, [(b"a", b"x")] * 2).data(0.0).replace(b"\0\1a", b"\0\1+")
    world.journal.logged(LogEntry(key, 18, 2, wildcard, world.now), None)
    world.begin_snapshot()
    world.advance(1)
    for files in (copy_of(world.files), world.files):
        again = world.again(0.5, files)
        entries = [e for e in again.node.cluster.forwarder.log._entries if e.key == key]
        assert [(e.sequence, e.count, e.qos) for e in entries] == [
            (first, 4, 2) for first in (1, 5, 9)
        ]
        assert [m.topic for e in entries for _, m in e.messages()] == 3 * [t for t, _ in messages]
        assert again.node.cluster.origins.vector[key].top == 12


@settings(max_examples=examples(50), deadline=None)
@given(pieces, st.integers(0, 9), st.integers(0, 9), st.integers(0, 2_000))
def test_killed_at_any_moment_the_log_has_what_was_recorded(
    said: list[Piece], checkpoint: int, death: int, torn: int
) -> None:
    """Each message once, in order, up to where the journal's last write was torn off: single ones
    and batches, also while a snapshot records them again."""
    world = Durable(limits=Limits(snapshot_step_items=1))
    durable_client(world, "l").subscribe("other", qos=1)
    relay = world.node.cluster.forwarder
    recorded: list[list[Told]] = [[]]
    for number, (_, together, skipped, qos, version, topics, later) in enumerate(said):
        if number > death:
            break
        if number == checkpoint:
            world.begin_snapshot()
        segment = max(world.files.segments)
        before = len(world.files.segments[segment])
        first = relay.own.top + skipped + 1
        for entry in entries_of(together, relay.key, first, topics, qos, version, world.now):
            relay.own.top = entry.sequence + entry.count - 1
            relay.log.append(entry, None)
            world.journal.logged(entry, None)
            recorded.append([*recorded[-1], *told([entry])])
        world.advance(0.01 + later / 20)
    files = copy_of(world.files)
    if said and max(files.segments) == segment:
        data = files.segments[segment]
        del data[max(before, len(data) - torn) :]
    again = world.again(1.0, files)
    found = [e for e in again.node.cluster.forwarder.log._entries if e.key == relay.key]
    # A turn of the loop is recorded whole or not at all.
    assert told(found) in recorded
    if not torn:
        assert told(found) == recorded[-1]
