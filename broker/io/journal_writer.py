"""The segments of the journal: read at the start, written by one thread (docs/decisions/0021). It
decides nothing.

    DIR/journal/00000001            a segment; deleted when a snapshot in a later one is complete
    DIR/journal/00000001.damaged    the same, kept for repair, as frames behind the damage are not
                                    read

Only the thread waits for the disk: it writes all frames that have come since the last write in one
piece, with `sync` waits until they are on the disk, and reports them. Without `sync` it reports
frames when the kernel has them, which survives the process, and another thread puts them on the
disk once a second. Only the beginning of a segment waits for the disk in both modes: if after a
power cut it were there and the end of the segment before it were not, recovery would read a journal
with a gap.

It looks once a second whether the next start would find all that it needs: the segments and, beside
them, who the broker is; with `sync` before each report whether the file still has its name and its
size. What was removed, renamed or cut off counts as a failed write, and the next segment makes all
of it again. Bytes are appended, whatever the file's size is: at a place of their own they would
hide that those before them were cut off.

Without `sync` the event loop writes small frames itself (`write_at_once`) while the thread has
nothing to do and nothing is being put on the disk: a copy into the kernel's memory takes a few us,
and handing it to a thread and back many times as long.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import BinaryIO

from mqttree.broker.cluster.sessions.image import Image
from mqttree.broker.cluster.sessions.records import JournalError, encode_snapshot_end
from mqttree.broker.config.data_dir import DataDir, check_file
from mqttree.broker.config.yaml_file import ConfigError
from mqttree.broker.core.effects import AppendFrame, BeginSegment, DiscardSegments
from mqttree.broker.io.limits import IoLimits
from mqttree.broker.io.tail_writer import TailWriter
from mqttree.broker.persistence.frames import (
    HEADER_SIZE,
    Cut,
    decode_header,
    encode_frame,
    encode_header,
    frame_within,
    frames_of,
    is_full_snapshot,
    read_frames,
)
from mqttree.broker.persistence.write_ahead_log import MANY_SEGMENTS

WRITE_BYTES = 4 * 1024 * 1024
"""bytes written by one system call."""

PART = ".part"
"""Name of a segment that is being written before the broker starts."""

MAX_SEARCHED_BYTES = 16 * 1024 * 1024
"""bytes behind an unreadable place in which complete frames are searched; if more follow, the file
counts as damaged."""

TOO_LARGE = 4
"""times the size of a snapshot: a larger journal is compacted before the broker starts; 3 are usual
at the end of a snapshot."""

WriteCallback = Callable[[AppendFrame | BeginSegment, str | None], None]
"""Takes an effect that was carried out, and why it failed (None: it did not)."""


@dataclass(slots=True, eq=False, repr=False)
class Loaded:
    """What was read at the start."""

    image: Image = field(default_factory=Image)
    segment: int = 1
    """The number of the next segment."""
    files: int = 0
    size: int = 0
    """bytes of all of them."""
    cuts: list[str] = field(default_factory=list)
    """One line for each file whose end could not be read."""


class JournalWriter:
    """The segments of one journal."""

    def __init__(
        self,
        folder: Path,
        broker_id: bytes,
        *,
        sync: bool,
        limits: IoLimits,
        data: DataDir | None = None,
    ) -> None:
        """`folder`: the broker's data directory, which is locked. `broker_id`: stands in each file.
        `sync`: report frames when they are on the disk, not when the kernel has them. `limits`: of
        the files. `data`: the broker's identity, in `folder`; None: not checked. Raises
        ConfigError: the folder cannot be written to."""
        self._data = data
        self.folder = folder / "journal"
        self.sync = sync
        self._limits = limits
        self._id = broker_id
        self._file = -1
        self._path = self.folder
        # Bytes of complete frames in the file.
        self._at = 0
        # Why the file cannot be written any more.
        self._error = ""
        # Bytes are not on the disk yet.
        self._dirty = False
        self._flushed = 0.0
        # None: there is something to look at besides.
        self._work: SimpleQueue[AppendFrame | BeginSegment | DiscardSegments | None] = SimpleQueue()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._flusher: threading.Thread | None = None
        self._tell: WriteCallback = lambda effect, error: None
        # The last effect that was carried out.
        self._last: AppendFrame | BeginSegment | None = None
        # A file that the flusher could not put on the disk, and why.
        self._lost: tuple[Path, str] | None = None
        self._losing = threading.Lock()
        # Whoever has it may write, and change what is said of the file.
        self._writing = threading.Lock()
        # The last effect that the event loop has had no answer to; it alone reads and sets it.
        self._awaited: AppendFrame | BeginSegment | None = None
        # The second thread puts something on the disk.
        self._flushing = False
        # The event loop writes nothing before (s): the kernel has let it wait.
        self._at_once_after = 0.0
        # When all files were last found under their names (s).
        self._found_at = 0.0
        # The segments before the file that the next start needs, and their bytes.
        self._older: dict[Path, int] = {}
        # Segments before this one are deleted with the next flush.
        self._spent = 0
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            # Without its name on the disk, the journal is lost after a power cut.
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
        """Read all segments. Raises ConfigError with one line for a journal that cannot be used at
        all."""
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
            self._limits.journal_smallest, loaded.image.size
        ):
            # If this fails, the files are as before.
            with contextlib.suppress(OSError):
                self._compact(loaded)
        for _, path in self._files():
            with contextlib.suppress(OSError):
                self._older[path] = path.stat().st_size
        return loaded

    def _compact(self, loaded: Loaded) -> None:
        """Write the whole state into one segment before clients are served. So much data means that
        no snapshot has been completed for a long time: the broker seems to be killed before it can.
        Raises OSError."""
        image, segment = loaded.image, loaded.segment
        path, part = self.folder / f"{segment:08d}", self.folder / PART
        size = 0
        try:
            with part.open("wb") as stream:
                stream.write(encode_header(self._id, segment))
                for frame in frames_of(image.records(), image.alive, WRITE_BYTES):
                    size += stream.write(frame)
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
        """Cut off an end that a crash tore. A file with complete frames behind the cut is damaged:
        it is left as it is, and gets a second name under which it outlives the next snapshot.
        Returns the rest of the log line. Raises OSError."""
        stream.seek(at)
        rest = stream.read(MAX_SEARCHED_BYTES + 1)
        if len(rest) <= MAX_SEARCHED_BYTES and not frame_within(rest):
            stream.truncate(at)
            return ""
        aside = path.with_name(path.name + ".damaged")
        if not aside.exists():
            if len(list(self.folder.glob("*.damaged"))) >= self._limits.journal_damaged:
                return (
                    f"; there are {self._limits.journal_damaged} damaged files already, "
                    "so it will be deleted"
                )
            try:
                os.link(path, aside)
            except OSError as error:
                return f"; it cannot be kept ({error.strerror or error}) and will be deleted"
        return f"; it is kept as {aside.name}"

    # ---------------------------------------------------------------- writing

    def start(self, tell: WriteCallback) -> None:
        """Start the thread that writes. It calls `tell` with an effect that was carried out, which
        stands for all before it, and with its error."""
        self._tell = tell
        if self._thread is not None:
            return
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def put(self, effect: AppendFrame | BeginSegment | DiscardSegments) -> None:
        """Have an effect carried out by the thread, in the order of these calls."""
        if not isinstance(effect, DiscardSegments):
            self._awaited = effect
        self._work.put(effect)

    def told(self, effect: AppendFrame | BeginSegment) -> None:
        """Note that who calls `put` has the answer to an effect."""
        if effect is self._awaited:
            self._awaited = None

    def write_at_once(self, frame: AppendFrame) -> bool:
        """Write a small frame in the calling thread, which is the one that calls `put` and `told`.
        Returns False if nothing has changed, and `put` is to take the frame: something is ahead of
        it, or the disk is busy or cannot be written."""
        data = frame.data
        if (
            self._awaited is not None
            or self._flushing
            or self.sync
            or len(data) > self._limits.journal_at_once_bytes
            or not self._writing.acquire(blocking=False)
        ):
            return False
        try:
            began = time.monotonic()
            if self._error or self._file < 0 or began < self._at_once_after:
                return False
            # The thread writes the frame to the same place if this goes wrong, and says why.
            if os.write(self._file, data) < len(data):
                self._take_back()
                return False
            self._at += len(data)
            self._last = frame
            if not self._dirty:
                # The thread is to have it put on the disk.
                self._dirty = True
                self._work.put(None)
            ended = time.monotonic()
            if (took := ended - began) > self._limits.journal_slow_write_s:
                self._at_once_after = ended + self._limits.journal_slow_write_pauses * took
        except OSError:
            return False
        finally:
            self._writing.release()
        return True

    def close(self) -> None:
        """Write the remaining frames, put them on the disk, and end the thread. Blocks."""
        if self._thread is not None:
            self._closing = True
            self._work.put(None)
            self._thread.join()
            self._thread = None

    def _next(self) -> list[AppendFrame | BeginSegment | DiscardSegments]:
        """Wait for something to do, and return all that has come; nothing if it is time to flush
        or to look for the file, or if the flusher or `close` has something to say."""
        work = []
        with contextlib.suppress(Empty):
            work.append(self._work.get(timeout=self._limits.journal_flush_s))
            for _ in range(self._work.qsize()):
                work.append(self._work.get_nowait())
        return [effect for effect in work if effect is not None]

    def _run(self) -> None:
        while True:
            work = self._next()
            closing = self._closing
            if not (work or closing or self._lost or self._flush_due or self._name_due):
                continue
            with self._writing:
                self._resume(work, closing)
                if closing and self._work.empty():
                    self._close_file()
                    return

    @property
    def _flush_due(self) -> bool:
        return (self._dirty or self._spent > 0) and (
            time.monotonic() >= self._flushed + self._limits.journal_flush_s
        )

    @property
    def _name_due(self) -> bool:
        return (
            self._file >= 0
            and not self._error
            and time.monotonic() >= self._found_at + self._limits.journal_flush_s
        )

    def _check_names(self) -> None:
        """Check that the next start would find all that it needs. Raises OSError or ConfigError."""
        self._found_at = time.monotonic()
        check_file(self._file, self._path, self._at)
        for path, size in list(self._older.items()):
            # The flusher may have deleted it meanwhile.
            if _size(path) != size and path in self._older:
                raise OSError(errno.ENOENT, f"{path} is gone or has lost its end")
        if self._data is not None:
            self._data.check()

    def _resume(
        self, work: list[AppendFrame | BeginSegment | DiscardSegments], closing: bool
    ) -> None:
        """Do what has come (`work`), and what else is due; `closing`: put all on the disk."""
        try:
            self._carry_out(work)
            # The next flush would not report it.
            self._take_lost(tell=True)
            if closing and (self._dirty or self._flusher is not None or self._spent):
                self._put_on_disk(None)
            elif self._flush_due:
                self._flush_beside()
            if self._name_due:
                self._check_names()
        except Exception as error:
            # Whatever the error is: without this thread no acknowledgement would go out.
            self._failed(error)
            told = [effect for effect in work if not isinstance(effect, DiscardSegments)]
            for effect in told or ([] if self._last is None else [self._last]):
                self._tell(effect, self._error)

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
                    written = os.write(self._file, data[:WRITE_BYTES])
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
        """Without `sync`: have written frames put on the disk by a second thread, as that may take
        long and nothing should wait for it. If no thread or file number is left, this thread does
        it."""
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
            self._flushing = True
            flusher.start()
        except (OSError, RuntimeError):
            self._flushing = False
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
            with self._losing:
                self._lost = (path, error.strerror or str(error))
            self._work.put(None)
        finally:
            os.close(number)
            self._flushing = False

    def _take_lost(self, *, tell: bool) -> None:
        """Handle an error of the second thread: frames that were written may be lost. `tell`:
        report that at once, because there may be no further frames."""
        with self._losing:
            lost, self._lost = self._lost, None
        if lost is None or lost[0] != self._path or self._error:
            # A snapshot repeats the records of an older file.
            return
        self._error, self._spent = lost[1], 0
        if tell and self._last is not None:
            self._tell(self._last, self._error)

    def _put_on_disk(self, last: AppendFrame | None) -> None:
        """Wait for the disk, and report it. An error means that all frames written since the last
        time may be lost."""
        if self._flusher is not None:
            self._flusher.join()
            self._flusher = None
            # Its error is reported once only.
            self._take_lost(tell=last is None)
        dirty, self._dirty = self._dirty, False
        self._flushed = time.monotonic()
        try:
            if dirty:
                os.fdatasync(self._file)
                check_file(self._file, self._path, self._at)
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
        self._error = _text(error)
        # Half a frame would be cut off at the next start, with a log line.
        with contextlib.suppress(OSError):
            self._take_back()

    def _take_back(self) -> None:
        """Cut off what is behind the last complete frame. Raises OSError."""
        if os.fstat(self._file).st_size > self._at:
            os.ftruncate(self._file, self._at)

    def _begin(self, effect: BeginSegment) -> None:
        """Go on in a new file, or in the old one if there is none. After an error only a segment
        with a full snapshot can begin: lost frames would be missing between the files."""
        if self._dirty or self._flusher is not None:
            self._put_on_disk(None)
        error = "" if effect.full_snapshot else self._error
        if not error:
            error = self._open(effect)
        self._tell(effect, error or None)

    def _open(self, effect: BeginSegment) -> str:
        """Begin a file. Returns why it could not begin, or an empty text. The old file is closed
        only then, as it may be in order."""
        path, number = self.folder / f"{effect.segment:08d}", -1
        head = encode_header(self._id, effect.segment, full_snapshot=effect.full_snapshot)
        try:
            if self._data is not None and effect.full_snapshot:
                self._data.restore()
            self.folder.mkdir(mode=0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            number = os.open(path, flags, 0o600)
            if os.write(number, head) != len(head):
                raise OSError(28, "No space left on device")
            os.fsync(number)
            _sync_folder(self.folder)
        except (OSError, ConfigError) as error:
            why = _text(error)
            if self._file < 0:
                self._error = why
            if number >= 0:
                with contextlib.suppress(OSError):
                    os.close(number)
                with contextlib.suppress(OSError):
                    path.unlink()
            return why
        if effect.full_snapshot:
            self._older.clear()
        elif self._file >= 0:
            self._older[self._path] = self._at
        self._close_file()
        self._found_at = time.monotonic()
        self._file, self._path, self._at, self._error, self._last = (
            number,
            path,
            len(head),
            "",
            effect,
        )
        return ""

    def _discard(self, effect: DiscardSegments) -> None:
        """Delete old segments, once the snapshot that replaces them is on the disk; an incomplete
        one at once. A segment that cannot be deleted is read at the next start, and changes
        nothing."""
        if effect.incomplete:
            self._delete(lambda number: number == effect.segment)
        elif not self._error:
            # With the next flush, so that nothing waits for it.
            self._spent = effect.segment
            if self.sync:
                self._put_on_disk(None)

    def _delete(self, those: Callable[[int], bool]) -> None:
        with contextlib.suppress(OSError, ConfigError):
            for segment, path in self._files():
                if those(segment):
                    self._older.pop(path, None)
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


def _text(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def _size(path: Path) -> int:
    """Return the bytes of a file; -1: there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _sync_folder(path: Path) -> None:
    """Put the names in a folder on the disk. Raises OSError."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
