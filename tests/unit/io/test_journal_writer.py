"""The journal's files: written by a thread, read at the start; what goes wrong is said in one
line."""

from __future__ import annotations

import os
import queue
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqttree.broker.cluster.sessions.records import SessionRecord, encode_snapshot_end
from mqttree.broker.config.data_dir import DataDir
from mqttree.broker.config.yaml_file import ConfigError
from mqttree.broker.core.effects import AppendFrame, BeginSegment, DiscardSegments
from mqttree.broker.io.journal_writer import JournalWriter
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.persistence.frames import HEADER_SIZE, encode_frame, encode_header

ID = b"brokerid"
PATIENCE = 30.0


def frame(number: int) -> bytes:
    return encode_frame(
        [SessionRecord(number, 1, 5, 1.0, 1, 1, (0, 0), b"c%d" % number).encode()], 1000 + number
    )


class Writer:
    """A disk and what it says."""

    def __init__(
        self, folder: Path, *, sync: bool, limits: Limits = DEFAULTS, data: DataDir | None = None
    ) -> None:
        self.disk = JournalWriter(folder, ID, sync=sync, limits=limits, data=data)
        self.said: queue.Queue[tuple[Any, str | None]] = queue.Queue()
        self.loaded = self.disk.load()
        self.disk.start(lambda effect, error: self.said.put((effect, error)))

    def do(self, effect: AppendFrame | BeginSegment) -> str | None:
        """Have it done, and hear how it went."""
        self.disk.put(effect)
        done, error = self.said.get(timeout=PATIENCE)
        assert done is effect
        self.disk.told(effect)
        return error

    def at_once(self, number: int) -> bool:
        """Have a frame written at once, when the thread is through with what it has told."""
        with self.disk._writing:
            pass
        return self.disk.write_at_once(AppendFrame(frame(number), number))


def sessions_on_disk(folder: Path) -> list[int]:
    """The sessions of a journal, in the order of their frames."""
    return list(JournalWriter(folder, ID, sync=False, limits=DEFAULTS).load().image.sessions)


def begun(folder: Path, *, sync: bool = False, **options: Any) -> Writer:
    """A disk that has begun a segment, and whose thread waits."""
    writer = Writer(folder, sync=sync, **options)
    writer.do(BeginSegment(1))
    return writer


@pytest.mark.parametrize("sync", [False, True])
def test_frames_that_were_written_are_read(tmp_path: Path, sync: bool) -> None:
    writer = Writer(tmp_path, sync=sync)
    assert (writer.loaded.segment, writer.loaded.files) == (1, 0)
    assert writer.do(BeginSegment(1)) is None
    for number in range(1, 4):
        assert writer.do(AppendFrame(frame(number), number)) is None
    # Nothing waits in this process.
    assert sessions_on_disk(tmp_path) == [1, 2, 3]
    assert writer.do(BeginSegment(2)) is None
    assert writer.do(AppendFrame(frame(4), 4)) is None
    again = JournalWriter(tmp_path, ID, sync=sync, limits=Limits()).load()
    assert (again.segment, again.files) == (3, 2)
    assert set(again.image.sessions) == {1, 2, 3, 4}
    assert again.image.alive == 1004
    writer.disk.put(DiscardSegments(2))
    writer.disk.close()
    assert [path.name for path in (tmp_path / "journal").iterdir()] == ["00000002"]
    assert sessions_on_disk(tmp_path) == [4]


def test_frames_that_come_at_once_are_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    sync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda number: (calls.append(number), sync(number)))
    files = JournalWriter(tmp_path, ID, sync=True, limits=Limits())
    for effect in [
        BeginSegment(1),
        *(AppendFrame(frame(number), number) for number in range(1, 101)),
    ]:
        files.put(effect)
    said: list[Any] = []
    files.start(lambda effect, error: said.append((effect, error)))
    files.close()
    assert [type(effect) for effect, _ in said] == [BeginSegment, AppendFrame]
    assert said[-1][0].lsn == 100
    assert len(calls) == 1
    assert len(files.load().image.sessions) == 100


@pytest.mark.parametrize("what", ["write", "fdatasync"])
def test_after_an_error_nothing_is_written_until_a_generation_begins(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = begun(tmp_path, sync=True)
    assert writer.do(AppendFrame(frame(1), 1)) is None

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, what, full)
        assert writer.do(AppendFrame(frame(2), 2)) == "No space left on device"
        if what == "write":
            assert writer.do(BeginSegment(2, full_snapshot=True)) == "No space left on device"
            assert not (tmp_path / "journal" / "00000002").exists()
    assert writer.do(AppendFrame(frame(3), 3)) == "No space left on device"
    # This checkpoint did not know of it yet.
    assert writer.do(BeginSegment(3)) == "No space left on device"
    assert writer.do(AppendFrame(frame(4), 4)) == "No space left on device"
    assert writer.do(BeginSegment(4, full_snapshot=True)) is None
    assert writer.do(AppendFrame(frame(5), 5)) is None
    found = set(sessions_on_disk(tmp_path))
    # What may be on the disk, or not, was promised to no client.
    assert found == ({1} if what == "write" else {1, 2})
    assert writer.do(AppendFrame(encode_frame([encode_snapshot_end(4, 0)], 1000), 6)) is None
    writer.disk.close()
    assert sessions_on_disk(tmp_path) == [5]


def test_a_partial_write_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = begun(tmp_path)
    write = os.write
    calls: list[int] = []

    def half(number: int, data: memoryview) -> int:
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return write(number, data[: len(data) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        assert writer.do(AppendFrame(frame(1), 1)) == "No space left on device"
    writer.disk.close()
    again = JournalWriter(tmp_path, ID, sync=False, limits=Limits()).load()
    assert not again.cuts
    assert not again.image.sessions


def broken(*_: object) -> int:
    raise OSError(24, "Too many open files")


def test_without_room_for_a_thread_the_journal_flushes_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: queue.Queue[int] = queue.Queue()
    sync = os.fdatasync

    def seen(number: int) -> None:
        sync(number)
        flushed.put(number)

    monkeypatch.setattr(os, "fdatasync", seen)
    writer = begun(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", broken)
        assert writer.do(AppendFrame(frame(1), 1)) is None
        flushed.get(timeout=PATIENCE)
    with monkeypatch.context() as patch:
        patch.setattr(
            threading.Thread,
            "start",
            lambda self: (_ for _ in ()).throw(RuntimeError("can't start new thread")),
        )
        assert writer.do(AppendFrame(frame(2), 2)) is None
        flushed.get(timeout=PATIENCE)
    assert writer.do(AppendFrame(frame(3), 3)) is None
    writer.disk.close()
    assert sessions_on_disk(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("what nobody expects")])
@pytest.mark.parametrize("what", ["write", "fdatasync"])
def test_no_error_ends_the_writers_thread(
    tmp_path: Path, what: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = begun(tmp_path, sync=True)

    def fails(*_: object) -> int:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, what, fails)
        assert writer.do(AppendFrame(frame(1), 1)) == (str(error) or "MemoryError")
    assert writer.do(BeginSegment(2, full_snapshot=True)) is None
    assert writer.do(AppendFrame(frame(2), 2)) is None
    assert writer.do(AppendFrame(encode_frame([encode_snapshot_end(2, 0)], 1000), 3)) is None
    writer.disk.close()
    assert 2 in sessions_on_disk(tmp_path)


def moved(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("lose", [shutil.rmtree, moved])
def test_a_file_that_nobody_would_find_again_is_reported(
    tmp_path: Path, sync: bool, lose: Callable[[Path], None]
) -> None:
    """Also if nothing more is written."""
    writer = begun(tmp_path, sync=sync, limits=Limits(journal_flush_s=0.001))
    last = AppendFrame(frame(1), 1)
    assert writer.do(last) is None
    lose(tmp_path / "journal")
    why = f"{tmp_path}/journal/00000001 is gone"
    assert writer.said.get(timeout=PATIENCE) == (last, why)
    assert writer.do(AppendFrame(frame(2), 2)) == why
    assert writer.do(BeginSegment(2, full_snapshot=True)) is None
    assert writer.do(AppendFrame(frame(3), 3)) is None
    writer.disk.close()
    assert [path.name for path in (tmp_path / "journal").iterdir()] == ["00000002"]


@pytest.mark.parametrize("name", ["broker-id", "broker-key", "boot", "lock"])
def test_who_the_broker_is_is_written_again_with_the_journal(tmp_path: Path, name: str) -> None:
    data = DataDir(tmp_path)
    own = data.identity(1.0, random.Random(1))
    writer = begun(tmp_path, limits=Limits(journal_flush_s=0.001), data=data)
    (tmp_path / name).unlink()
    _, why = writer.said.get(timeout=PATIENCE)
    assert why == f"{tmp_path}/{name} is gone"
    assert writer.do(BeginSegment(2, full_snapshot=True)) is None
    with pytest.raises(ConfigError, match="in use by another broker"):
        DataDir(tmp_path)
    writer.disk.close()
    data.close()
    assert DataDir(tmp_path).identity(1.0, random.Random(2)).id == own.id


def test_the_files_of_another_broker_are_not_replaced(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    data.identity(1.0, random.Random(1))
    writer = begun(tmp_path, limits=Limits(journal_flush_s=0.001), data=data)
    shutil.rmtree(tmp_path)
    other = DataDir(tmp_path)
    its_id = other.identity(1.0, random.Random(2)).id
    assert writer.said.get(timeout=PATIENCE)[1] is not None
    taken = f"data directory {tmp_path} is in use by another broker (process {os.getpid()})"
    assert writer.do(BeginSegment(2, full_snapshot=True)) == taken
    other.close()
    why = f"{tmp_path}/broker-key is another broker's"
    assert writer.do(BeginSegment(3, full_snapshot=True)) == why
    writer.disk.close()
    assert DataDir(tmp_path).identity(1.0, random.Random(3)).id == its_id


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: os.truncate(path, 20)])
def test_an_older_segment_that_the_next_start_needs_is_missed(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    first = begun(tmp_path)
    first.do(AppendFrame(frame(1), 1))
    first.disk.close()
    writer = Writer(tmp_path, sync=False, limits=Limits(journal_flush_s=0.001))
    writer.do(BeginSegment(2))
    lose(tmp_path / "journal" / "00000001")
    why = f"{tmp_path}/journal/00000001 is gone or has lost its end"
    assert writer.said.get(timeout=PATIENCE)[1] == why
    # The new one makes up for it.
    assert writer.do(BeginSegment(3, full_snapshot=True)) is None
    assert writer.do(AppendFrame(frame(2), 2)) is None
    writer.disk.close()
    assert writer.said.empty()


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda file: shutil.rmtree(file.parent), "/journal/00000001 is gone"),
        (lambda file: os.truncate(file, 0), "bytes instead of"),
    ],
)
def test_with_sync_no_frame_of_a_file_without_a_name_or_cut_off_is_durable(
    tmp_path: Path, harm: Callable[[Path], None], why: str
) -> None:
    writer = begun(tmp_path, sync=True, limits=Limits(journal_flush_s=PATIENCE))
    harm(tmp_path / "journal" / "00000001")
    assert why in str(writer.do(AppendFrame(frame(1), 1)))
    writer.disk.close()


def test_a_durable_file_has_its_name_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync
    monkeypatch.setattr(
        os,
        "fsync",
        lambda number: (synced.append(os.readlink(f"/proc/self/fd/{number}")), sync(number)),
    )
    writer = Writer(tmp_path, sync=True)
    assert synced == [str(tmp_path)]
    writer.do(BeginSegment(1))
    writer.do(BeginSegment(2))
    del synced[:]
    writer.disk.put(DiscardSegments(2))
    writer.disk.close()
    assert synced == [str(tmp_path / "journal")]


def test_an_incomplete_generation_is_deleted(tmp_path: Path) -> None:
    writer = Writer(tmp_path, sync=True)
    for segment in (1, 2):
        writer.do(BeginSegment(segment))
        writer.do(AppendFrame(frame(segment), segment))
    writer.disk.put(DiscardSegments(2, incomplete=True))
    writer.do(BeginSegment(3))
    writer.disk.close()
    assert sorted(path.name for path in (tmp_path / "journal").iterdir()) == [
        "00000001",
        "00000003",
    ]


@pytest.mark.parametrize("sync", [False, True])
def test_a_sound_segment_goes_on_when_no_other_one_can_be_begun(
    tmp_path: Path, sync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = begun(tmp_path, sync=sync)
    assert writer.do(AppendFrame(frame(1), 1)) is None
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", broken)
        assert writer.do(BeginSegment(2)) == "Too many open files"
    assert writer.do(AppendFrame(frame(2), 2)) is None
    assert writer.do(BeginSegment(3)) is None
    assert writer.do(AppendFrame(frame(3), 3)) is None
    writer.disk.close()
    assert [path.name for path in sorted((tmp_path / "journal").iterdir())] == [
        "00000001",
        "00000003",
    ]
    assert sessions_on_disk(tmp_path) == [1, 2, 3]


class Slow:
    """fdatasync of a disk that is busy: `entered` when it is called, and it ends when `go` says
    so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.go = threading.Event(), threading.Event()
        self.sync = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", self)

    def __call__(self, number: int) -> None:
        self.entered.set()
        assert self.go.wait(PATIENCE)
        self.sync(number)


def test_a_file_does_not_begin_before_the_end_of_the_last_one_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut would leave a gap between them."""
    slow = Slow(monkeypatch)
    writer = begun(tmp_path)
    assert writer.do(AppendFrame(frame(1), 1)) is None
    assert slow.entered.wait(PATIENCE)
    writer.disk.put(BeginSegment(2))
    with pytest.raises(queue.Empty):
        writer.said.get(timeout=0.05)
    assert not (tmp_path / "journal" / "00000002").exists()
    slow.go.set()
    assert writer.said.get(timeout=PATIENCE)[1] is None
    writer.disk.close()


def test_no_segment_begins_behind_an_end_that_may_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = begun(tmp_path, limits=Limits(journal_flush_s=1e9))
    last = AppendFrame(frame(1), 1)
    assert writer.do(last) is None
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        begin = BeginSegment(2)
        writer.disk.put(begin)
        assert writer.said.get(timeout=PATIENCE) == (last, "Too many open files")
        assert writer.said.get(timeout=PATIENCE) == (begin, "Too many open files")
    assert not (tmp_path / "journal" / "00000002").exists()
    writer.disk.close()


def test_no_output_waits_for_the_end_of_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it replaces is deleted when it is on the disk, beside what is written."""
    writer = Writer(tmp_path, sync=False, limits=Limits(journal_flush_s=0.001))
    for segment in (1, 2):
        writer.do(BeginSegment(segment))
        assert writer.do(AppendFrame(frame(segment), segment)) is None
    slow = Slow(monkeypatch)
    writer.disk.put(DiscardSegments(2))
    assert slow.entered.wait(PATIENCE)
    assert writer.do(AppendFrame(frame(3), 3)) is None
    assert (tmp_path / "journal" / "00000001").exists()
    slow.go.set()
    writer.disk.close()
    assert [path.name for path in (tmp_path / "journal").iterdir()] == ["00000002"]


def test_a_segment_that_was_not_flushed_replaces_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, sync=False, limits=Limits(journal_flush_s=0.001))
    for segment in (1, 2):
        writer.do(BeginSegment(segment))
        last = AppendFrame(frame(segment), segment)
        assert writer.do(last) is None
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        writer.disk.put(DiscardSegments(2))
        assert writer.said.get(timeout=PATIENCE) == (last, "Too many open files")
    writer.disk.close()
    assert len(list((tmp_path / "journal").iterdir())) == 2


# ---------------------------------------------------------------- frames written at once


def test_a_small_frame_is_with_the_kernel_at_once(tmp_path: Path) -> None:
    writer = begun(tmp_path, limits=Limits(journal_flush_s=1e9))
    for number in (3, 1, 2):
        assert writer.at_once(number)
    assert sessions_on_disk(tmp_path) == [3, 1, 2]
    assert writer.said.empty()
    writer.disk.close()


def test_no_frame_overtakes_another_one(tmp_path: Path) -> None:
    """Not even one that is written and whose answer has not been heard."""
    writer = Writer(tmp_path, sync=False, limits=Limits(journal_flush_s=1e9))
    begin = BeginSegment(1)
    writer.disk.put(begin)
    assert not writer.at_once(1)
    assert writer.said.get(timeout=PATIENCE) == (begin, None)
    assert not writer.at_once(1)
    writer.disk.told(begin)
    writer.disk.close()
    assert not sessions_on_disk(tmp_path)


@pytest.mark.parametrize(("sync", "most"), [(True, 1000), (False, 10)])
def test_frames_that_are_large_or_are_to_be_on_the_disk_are_left_to_the_thread(
    tmp_path: Path, sync: bool, most: int
) -> None:
    writer = begun(tmp_path, sync=sync, limits=Limits(journal_at_once_bytes=most))
    assert not writer.at_once(1)
    assert writer.do(AppendFrame(frame(1), 1)) is None
    writer.disk.close()
    assert sessions_on_disk(tmp_path) == [1]


def test_while_data_are_put_on_the_disk_nothing_is_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may let a write wait for that."""
    writer = begun(tmp_path, limits=Limits(journal_flush_s=0.001))
    slow = Slow(monkeypatch)
    assert writer.at_once(1)
    assert slow.entered.wait(PATIENCE)
    assert not writer.at_once(2)
    assert writer.do(AppendFrame(frame(2), 2)) is None
    slow.go.set()
    writer.disk.close()
    assert sessions_on_disk(tmp_path) == [1, 2]


def test_after_a_slow_write_the_thread_writes(tmp_path: Path) -> None:
    limits = Limits(journal_flush_s=1e9, journal_slow_write_s=0.0, journal_slow_write_pauses=1e12)
    writer = begun(tmp_path, limits=limits)
    assert writer.at_once(1)
    assert not writer.at_once(2)
    assert writer.do(AppendFrame(frame(2), 2)) is None
    writer.disk.close()
    assert sessions_on_disk(tmp_path) == [1, 2]


@pytest.mark.parametrize("written", [0, 10])
def test_what_cannot_be_written_at_once_fails_in_the_thread(
    tmp_path: Path, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = begun(tmp_path)
    write = os.write

    def half(number: int, data: bytes) -> int:
        if len(data) > written:
            return write(number, data[:written]) if written else broken()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        assert not writer.at_once(1)
    assert writer.do(AppendFrame(frame(1), 1)) is None
    assert sessions_on_disk(tmp_path) == [1]
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", broken)
        assert not writer.at_once(2)
        assert writer.do(AppendFrame(frame(2), 2)) == "Too many open files"
    assert not writer.at_once(3)
    assert writer.do(BeginSegment(2, full_snapshot=True)) is None
    assert writer.at_once(4)
    writer.disk.close()


def test_a_flush_that_fails_is_reported_for_a_frame_that_was_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = begun(tmp_path, limits=Limits(journal_flush_s=0.001))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        assert writer.at_once(1)
        last, error = writer.said.get(timeout=PATIENCE)
        assert (last.lsn, error) == (1, "Too many open files")
    assert not writer.at_once(2)
    writer.disk.close()


def test_after_the_end_nothing_is_written_at_once(tmp_path: Path) -> None:
    writer = begun(tmp_path)
    writer.disk.close()
    assert not writer.at_once(1)
    assert not sessions_on_disk(tmp_path)


@pytest.mark.parametrize("rest", [0, 60])
def test_a_file_that_was_cut_off_is_noticed_though_more_is_written(
    tmp_path: Path, rest: int
) -> None:
    writer = begun(tmp_path, limits=Limits(journal_flush_s=0.5))
    assert writer.at_once(1)
    path = tmp_path / "journal" / "00000001"
    os.truncate(path, rest)
    assert writer.do(AppendFrame(frame(2), 2)) is None
    last, why = writer.said.get(timeout=PATIENCE)
    size = HEADER_SIZE + len(frame(1)) + len(frame(2))
    assert (last.lsn, why) == (2, f"{path} has {rest + len(frame(2))} bytes instead of {size}")
    # What is read of it does not suffer from what follows.
    assert path.stat().st_size == rest + len(frame(2))
    assert writer.do(BeginSegment(2, full_snapshot=True)) is None
    writer.disk.close()


# ---------------------------------------------------------------- reading


def test_an_unreadable_end_is_cut_off_once(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    good = encode_header(ID, 1) + frame(1)
    (folder / "00000001").write_bytes(good + frame(2)[:-1])
    (folder / "00000002").write_bytes(encode_header(ID, 2)[:-3])
    (folder / "00000003").write_bytes(
        encode_header(ID, 3) + frame(3) + frame(4)[:20] + b"?" + frame(4)[21:] + frame(5)
    )
    (folder / "00000004").write_bytes(b"")
    (folder / "notes.txt").write_text("not ours")
    loaded = JournalWriter(tmp_path, ID, sync=False, limits=Limits()).load()
    assert set(loaded.image.sessions) == {1, 3}
    assert (loaded.segment, loaded.files) == (5, 4)
    first, second, third = loaded.cuts
    rest = len(frame(2)) - 1
    assert first == (
        f"{folder / '00000001'}: the frame at byte {len(good)} is cut off; "
        f"the {rest} bytes from there on are ignored"
    )
    assert second == (
        f"{folder / '00000002'}: its beginning is cut off or damaged; all its 35 bytes are ignored"
    )
    assert "is damaged" in third
    assert third.endswith("; it is kept as 00000003.damaged")  # something stands behind it
    again = JournalWriter(tmp_path, ID, sync=False, limits=Limits()).load()
    assert again.cuts == [third]
    assert set(again.image.sessions) == {1, 3}


@pytest.mark.parametrize("at", [17, 20, 30, 37, 42, 100])
def test_a_damaged_file_is_not_destroyed(tmp_path: Path, at: int) -> None:
    """One bit, in the header or in a frame, whatever it means."""
    folder = tmp_path / "journal"
    folder.mkdir()
    data = bytearray(encode_header(ID, 1) + b"".join(frame(n) for n in range(1, 101)))
    data[at] ^= 1
    path = folder / "00000001"
    path.write_bytes(data)
    writer = Writer(tmp_path, sync=True)
    assert len(writer.loaded.cuts) == 1
    assert len(writer.loaded.image.sessions) <= 2
    writer.do(BeginSegment(2))
    writer.disk.put(DiscardSegments(2))
    writer.disk.close()
    assert not path.exists()
    assert (folder / "00000001.damaged").read_bytes() == data
    loaded = JournalWriter(tmp_path, ID, sync=True, limits=Limits()).load()
    assert (loaded.files, loaded.cuts) == (1, [])


def test_only_some_damaged_files_are_put_aside(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    for segment in range(1, 8):
        (folder / f"{segment:08d}").write_bytes(
            encode_header(ID, segment) + frame(1)[:-1] + b"?" + frame(2)
        )
    cuts = JournalWriter(tmp_path, ID, sync=True, limits=Limits()).load().cuts
    assert len(list(folder.glob("*.damaged"))) == 4
    assert [
        line.endswith("there are 4 damaged files already, so it will be deleted") for line in cuts
    ] == [False] * 4 + [True] * 3


@pytest.mark.parametrize(
    "torn", [b"", b"\0" * 5000, frame(3)[:-1], frame(3)[:3], frame(3)[:-9] + bytes(9)]
)
def test_an_end_that_was_torn_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    (tmp_path / "journal").mkdir()
    path = tmp_path / "journal" / "00000001"
    good = encode_header(ID, 1) + frame(1) + frame(2)
    path.write_bytes(good + torn)
    assert len(JournalWriter(tmp_path, ID, sync=True, limits=Limits()).load().cuts) == bool(torn)
    assert path.read_bytes() == good
    assert [path.name for path in path.parent.iterdir()] == ["00000001"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"something else altogether", "is not a journal of mqttree"),
        (encode_header(b"another!", 1), "is of broker"),
        (encode_header(ID, 7), "is segment 7: it was renamed"),
        (
            encode_header(ID, 1) + encode_frame([b"\x63\0\0\0\0"], 1),
            "a record of the kind 99, which this release does not know",
        ),
        (encode_header(ID, 1) + encode_frame([b"\1"], 1), "holds a record that is cut off"),
        (None, "Is a directory"),
    ],
)
def test_a_journal_that_cannot_be_used_is_named(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    path = tmp_path / "journal" / "00000001"
    if content is None:
        path.mkdir(parents=True)
    else:
        path.parent.mkdir()
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        JournalWriter(tmp_path, ID, sync=False, limits=Limits()).load()
    assert why in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("a file")
    with pytest.raises(ConfigError, match="File exists"):
        JournalWriter(tmp_path, ID, sync=False, limits=Limits())
