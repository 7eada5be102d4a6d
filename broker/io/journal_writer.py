"""The journal's files: read at the start, written by one thread (docs/decisions/0021). It decides
nothing.

    DIR/journal/00000001            a generation; deleted when everything in it has been said again
                                    in a later one
    DIR/journal/00000001.damaged    the same, kept for whoever can mend it, as what stands behind
                                    the damage is not read

Nothing waits for the disk but the thread: it takes all that has come since it last looked, writes
that in one piece, with `sync` waits until it is on the disk, and says so. Without `sync` it says so
when the kernel has it, which outlives the process, and has it put on the disk once a second, by
another thread. Only the begin of a generation waits for the disk in both: were it there after a
power cut, and not the end of the one before it, what is read would have a gap.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from broker.base import limits
from broker.config.yaml_file import ConfigError
from broker.core.effects import AppendFrame, BeginSegment, DiscardSegments
from broker.io.tail_writer import TailWriter
from broker.persistence.records import (
    HEADER_SIZE,
    Cut,
    JournalError,
    decode_header,
    encode_frame,
    encode_header,
    encode_snapshot_end,
    frame_within,
    is_full_snapshot,
    read_frames,
)
from broker.persistence.recovery import Image
from broker.persistence.write_ahead_log import MANY_SEGMENTS, MIN_SIZE

FLUSH = 1.0
"""s between two times that what was written is put on the disk, without `sync`."""

PIECE = 4 * 1024 * 1024
"""bytes written by one system call."""

PART = ".part"
"""A generation that is being written before the broker begins; it has no name yet."""

LOOK = 16 * 1024 * 1024
"""bytes behind a place that cannot be read in which whole frames are looked for; if there are more,
there are."""

TOO_LARGE = 4
"""times what a checkpoint takes with which a journal is made one before the broker begins; 3 are
usual at the end of one."""

Told = Callable[[AppendFrame | BeginSegment, str | None], None]


@dataclass(slots=True)
class Loaded:
    """What was there at the start."""

    image: Image = field(default_factory=Image)
    segment: int = 1
    """The first that is not there."""
    files: int = 0
    size: int = 0
    """bytes of all of them."""
    cuts: list[str] = field(default_factory=list)
    """One line for each file whose end could not be read."""


class JournalWriter:
    """The files of one journal."""

    def __init__(self, folder: Path, broker_id: bytes, *, sync: bool) -> None:
        """`folder`: the broker's data directory, which is locked. `broker_id`: stands in each file.
        `sync`: report frames when they are on the disk, not when the kernel has them. Raises
        ConfigError: the folder cannot be written to."""
        self.folder = folder / "journal"
        self.sync = sync
        self._id = broker_id
        self._file = -1
        self._path = self.folder
        self._at = 0  # bytes in the file that are whole frames
        self._error = ""  # the file cannot be written any more
        self._dirty = False  # something is not on the disk yet
        self._flushed = 0.0
        self._work: list[AppendFrame | BeginSegment | DiscardSegments] = []
        self._wake = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._flusher: threading.Thread | None = None
        self._tell: Told = lambda effect, error: None
        self._last: AppendFrame | BeginSegment | None = None  # of what was written
        # A file that the flusher could not put on the disk, and why.
        self._lost: tuple[Path, str] | None = None
        self._spent = 0  # generations before this one go with the next flush
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            # A journal that has no name on the disk is lost with all that was promised.
            _sync_folder(folder)
            probe = self.folder / ".probe"
            probe.write_bytes(b"")
            probe.unlink()
            (self.folder / PART).unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"data directory {self.folder}: {error.strerror or error}") from None
        self.tail = TailWriter(folder, broker_id)

    # ---------------------------------------------------------------- reading

    def load(self) -> Loaded:
        """Read what is there. Raises ConfigError, one line, for what cannot be used at all."""
        loaded = Loaded()
        for segment, path in self._files():
            loaded.segment = segment + 1
            loaded.files += 1
            try:
                self._load(path, segment, loaded)
            except JournalError as error:
                raise ConfigError(f"{path} {error}") from None
            except OSError as error:
                raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
        if loaded.files >= 2 * MANY_SEGMENTS or loaded.size > TOO_LARGE * max(
            MIN_SIZE, loaded.image.size
        ):
            with contextlib.suppress(OSError):  # then it is as it was
                self._compact(loaded)
        return loaded

    def _compact(self, loaded: Loaded) -> None:
        """Write all that is there into one file before anybody is served: no checkpoint has been
        completed for so long that the broker seems to die before it can. Raises OSError."""
        image, segment = loaded.image, loaded.segment
        path, part = self.folder / f"{segment:08d}", self.folder / PART
        size = 0
        try:
            with part.open("wb") as stream:
                stream.write(encode_header(self._id, segment))
                for records in image.records(PIECE):
                    size += stream.write(encode_frame(records, image.alive))
                stream.write(encode_frame([encode_snapshot_end(segment, size)], image.alive))
                stream.flush()
                os.fsync(stream.fileno())
            part.rename(path)
        finally:
            part.unlink(missing_ok=True)
        loaded.segment, loaded.files, loaded.size, image.size = (
            segment + 1,
            1,
            path.stat().st_size,
            size,
        )
        _sync_folder(self.folder)
        self._delete(lambda number: number < segment)

    def _files(self) -> list[tuple[int, Path]]:
        try:
            names = sorted(
                path for path in self.folder.iterdir() if re.fullmatch(r"[0-9]{8,}", path.name)
            )
        except OSError as error:
            raise ConfigError(f"cannot read {self.folder}: {error.strerror or error}") from None
        return sorted((int(path.name), path) for path in names)

    def _load(self, path: Path, segment: int, loaded: Loaded) -> None:
        with path.open("r+b", buffering=1024 * 1024) as stream:
            size = path.stat().st_size
            loaded.size += size
            at = HEADER_SIZE
            head = stream.read(HEADER_SIZE)
            sound = decode_header(head, self._id, segment)
            loaded.image.begin(full_snapshot=sound and is_full_snapshot(head))
            if not sound:
                if size:
                    what = (
                        f"{path}: its beginning is cut off or damaged; "
                        f"all its {size} bytes are ignored"
                    )
                    loaded.cuts.append(what + self._cut(stream, path, 0))
                return
            for frame in read_frames(stream, at):
                if isinstance(frame, Cut):
                    rest = f"the {size - frame.at} bytes from there on are ignored"
                    what = f"{path}: the frame at byte {frame.at} {frame.why}; {rest}"
                    loaded.cuts.append(what + self._cut(stream, path, frame.at))
                    return
                loaded.image.take(*frame)

    def _cut(self, stream: BinaryIO, path: Path, at: int) -> str:
        """Cut off an end that was torn. What has whole frames behind it is damaged: the file is
        left alone, and gets a second name, under which it outlives the next checkpoint. Returns
        what to say of it. Raises OSError."""
        stream.seek(at)
        rest = stream.read(LOOK + 1)
        if len(rest) <= LOOK and not frame_within(rest):
            stream.truncate(at)
            return ""
        aside = path.with_name(path.name + ".damaged")
        if not aside.exists():
            if len(list(self.folder.glob("*.damaged"))) >= limits.JOURNAL_DAMAGED:
                return (
                    f"; there are {limits.JOURNAL_DAMAGED} damaged files already, "
                    "so it will be deleted"
                )
            try:
                os.link(path, aside)
            except OSError as error:
                return f"; it cannot be kept ({error.strerror or error}) and will be deleted"
        return f"; it is kept as {aside.name}"

    # ---------------------------------------------------------------- writing

    def start(self, tell: Told) -> None:
        """Begin to write. `tell` is called in the thread: the effect that is done, and every one
        before it; or its error."""
        self._tell = tell
        if self._thread is not None:
            return
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def put(self, effect: AppendFrame | BeginSegment | DiscardSegments) -> None:
        """Have an effect carried out; in their order."""
        with self._wake:
            self._work.append(effect)
            self._wake.notify()

    def close(self) -> None:
        """Write what is left, put it on the disk, and end. Blocks."""
        if self._thread is not None:
            with self._wake:
                self._closing = True
                self._wake.notify()
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._work or self._closing or self._lost):
                    if not self._wake.wait(FLUSH if self._dirty or self._spent else None):
                        break
                work, self._work = self._work, []
                closing = self._closing
            try:
                self._carry_out(work)
                self._take_lost(tell=True)  # the next flush would not hear of it
                if closing and (self._dirty or self._flusher is not None or self._spent):
                    self._put_on_disk(None)
                elif (self._dirty or self._spent) and time.monotonic() >= self._flushed + FLUSH:
                    self._flush_beside()
            except Exception as error:
                # Whatever it is: a thread that ends takes every acknowledgement with it.
                self._failed(error)
                told = [effect for effect in work if not isinstance(effect, DiscardSegments)]
                for effect in told or ([] if self._last is None else [self._last]):
                    self._tell(effect, self._error)
            if closing and not self._work:
                self._close_file()
                return

    def _carry_out(self, work: list[AppendFrame | BeginSegment | DiscardSegments]) -> None:
        frames: list[AppendFrame] = []
        for effect in work:
            if isinstance(effect, AppendFrame):
                frames.append(effect)
                continue
            self._write(frames)
            frames = []
            if isinstance(effect, BeginSegment):
                self._begin(effect)
            else:
                self._discard(effect)
        self._write(frames)

    def _write(self, frames: list[AppendFrame]) -> None:
        if not frames:
            return
        last = frames[-1]
        if not self._error:
            at = self._at
            try:
                data = memoryview(
                    frames[0].data
                    if len(frames) == 1
                    else b"".join([frame.data for frame in frames])
                )
                while data:
                    written = os.pwrite(self._file, data[:PIECE], at)
                    data = data[written:]
                    at += written
            except (OSError, MemoryError) as error:
                self._failed(error)
            else:
                self._at = at
                self._dirty = True
                self._last = last
                if self.sync:
                    self._put_on_disk(last)
                    return
        self._tell(last, self._error or None)

    def _flush_beside(self) -> None:
        """Without `sync`: have what was written put on the disk by a thread beside this one, as
        that may take long and nobody is to wait for it. When there is no room for a thread or a
        file number, this one does it."""
        if self._flusher is not None and self._flusher.is_alive():
            return
        number = -1
        try:
            number = os.dup(self._file)
            flusher = threading.Thread(
                target=self._flush,
                args=(number, self._path, self._spent),
                name="flush",
                daemon=True,
            )
            flusher.start()
        except (OSError, RuntimeError):
            if number >= 0:
                os.close(number)
            self._put_on_disk(None)
        else:
            self._flusher = flusher
            self._dirty = False
            self._spent = 0
            self._flushed = time.monotonic()

    def _flush(self, number: int, path: Path, spent: int) -> None:
        try:
            os.fdatasync(number)
            if spent:
                self._delete(lambda segment: segment < spent)
        except OSError as error:
            with self._wake:
                self._lost = (path, error.strerror or str(error))
                self._wake.notify()
        finally:
            os.close(number)

    def _take_lost(self, *, tell: bool) -> None:
        """Take the flusher's word that what was written before may be lost. `tell`: at once, as
        nothing else may be written."""
        with self._wake:
            lost, self._lost = self._lost, None
        if lost is None or lost[0] != self._path or self._error:
            return  # what is in an older file is being said again
        self._error, self._spent = lost[1], 0
        if tell and self._last is not None:
            self._tell(self._last, self._error)

    def _put_on_disk(self, last: AppendFrame | None) -> None:
        """Wait for the disk, and say so. An error here says that anything written since the last
        time may be lost."""
        if self._flusher is not None:
            self._flusher.join()
            self._flusher = None
            self._take_lost(tell=last is None)  # its error is not told again to us
        dirty, self._dirty = self._dirty, False
        self._flushed = time.monotonic()
        try:
            if dirty:
                os.fdatasync(self._file)
        except OSError as error:
            self._failed(error)
            if last is None and self._last is not None:
                self._tell(self._last, self._error)
        if last is not None:
            self._tell(last, self._error or None)
        if self._spent and not self._error:
            spent, self._spent = self._spent, 0
            self._delete(lambda segment: segment < spent)

    def _failed(self, error: Exception) -> None:
        self._spent = 0
        self._error = (
            (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        )
        # Half a frame would be cut off at the next start, with a line about it.
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, self._at)

    def _begin(self, effect: BeginSegment) -> None:
        """Go on in a new file, or, if there is none, in the old one. After an error nothing goes on
        that does not begin anew: what was lost would be missing between the files."""
        if self._dirty or self._flusher is not None:
            self._put_on_disk(None)
        error = "" if effect.full_snapshot else self._error
        if not error:
            error = self._open(effect)
        self._tell(effect, error or None)

    def _open(self, effect: BeginSegment) -> str:
        """Begin a file; returns why it could not be. The old one is closed only then: it may well
        be all right."""
        path, number = self.folder / f"{effect.segment:08d}", -1
        head = encode_header(self._id, effect.segment, full_snapshot=effect.full_snapshot)
        try:
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            if os.pwrite(number, head, 0) != len(head):
                raise OSError(28, "No space left on device")
            os.fsync(number)
            _sync_folder(self.folder)
        except OSError as error:
            why = error.strerror or str(error)
            if self._file < 0:
                self._error = why
            if number >= 0:
                with contextlib.suppress(OSError):
                    os.close(number)
                with contextlib.suppress(OSError):
                    path.unlink()
            return why
        self._close_file()
        self._file, self._path, self._at, self._error, self._last = (
            number,
            path,
            len(head),
            "",
            effect,
        )
        return ""

    def _discard(self, effect: DiscardSegments) -> None:
        """Delete old generations, once what replaces them is on the disk; one that failed at once.
        One that cannot be deleted is read at the next start, and changes nothing."""
        if effect.incomplete:
            self._delete(lambda number: number == effect.segment)
        elif not self._error:
            self._spent = effect.segment  # with the next flush, as nobody is to wait for it
            if self.sync:
                self._put_on_disk(None)

    def _delete(self, those: Callable[[int], bool]) -> None:
        with contextlib.suppress(OSError, ConfigError):
            for segment, path in self._files():
                if those(segment):
                    path.unlink()
            _sync_folder(self.folder)

    def _close_file(self) -> None:
        """Close the file; what is in it is put on the disk first."""
        if self._file >= 0:
            number, self._file = self._file, -1
            with contextlib.suppress(OSError):
                if self._dirty:
                    os.fdatasync(number)
            self._dirty = False
            with contextlib.suppress(OSError):
                os.close(number)


def _sync_folder(path: Path) -> None:
    """Put the names in a folder on the disk. Raises OSError."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
