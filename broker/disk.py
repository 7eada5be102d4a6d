"""The journal's files: read at the start, written by one thread (docs/decisions/0021). It decides nothing.

    DIR/journal/00000001    a generation; deleted when everything in it has been said again in a later one

Nothing waits for the disk but the thread: it takes all that has come since it last looked, writes that in one piece, with `sync`
waits until it is on the disk, and says so. Without `sync` it says so when the kernel has it, which outlives the process, and has
it put on the disk once a second, by another thread.
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

from broker.configfile import ConfigError
from broker.effects import Append, Begin, Discard
from broker.journal import HEADER_SIZE, Cut, JournalError, decode_header, encode_header, read_frames
from broker.recovery import Image

FLUSH = 1.0
"""s between two times that what was written is put on the disk, without `sync`."""

PIECE = 4 * 1024 * 1024
"""bytes written by one system call."""

Told = Callable[[Append | Begin, str | None], None]


@dataclass(slots=True)
class Loaded:
    """What was there at the start."""

    image: Image = field(default_factory=Image)
    generation: int = 1
    """The first that is not there."""
    files: int = 0
    size: int = 0
    """bytes of all of them."""
    cuts: list[str] = field(default_factory=list)
    """One line for each file whose end could not be read."""


class Disk:
    """The files of one journal."""

    def __init__(self, folder: Path, broker_id: bytes, *, sync: bool) -> None:
        """`folder`: the broker's data directory, which is locked. Raises ConfigError: it cannot be written to."""
        self.folder = folder / "journal"
        self.sync = sync
        self._id = broker_id
        self._file = -1
        self._path = self.folder
        self._at = 0  # bytes in the file that are whole frames
        self._error = ""  # the file cannot be written any more
        self._dirty = False  # something is not on the disk yet
        self._flushed = 0.0
        self._work: list[Append | Begin | Discard] = []
        self._wake = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._flusher: threading.Thread | None = None
        self._tell: Told = lambda effect, error: None
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            probe = self.folder / ".probe"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise ConfigError(f"data directory {self.folder}: {error.strerror or error}") from None

    # ---------------------------------------------------------------- reading

    def load(self) -> Loaded:
        """Read what is there. Raises ConfigError, one line, for what cannot be used at all."""
        loaded = Loaded()
        for generation, path in self._files():
            loaded.generation = generation + 1
            loaded.files += 1
            try:
                self._load(path, generation, loaded)
            except JournalError as error:
                raise ConfigError(f"{path} {error}") from None
            except OSError as error:
                raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
        return loaded

    def _files(self) -> list[tuple[int, Path]]:
        try:
            names = sorted(path for path in self.folder.iterdir() if re.fullmatch(r"[0-9]{8,}", path.name))
        except OSError as error:
            raise ConfigError(f"cannot read {self.folder}: {error.strerror or error}") from None
        return sorted((int(path.name), path) for path in names)

    def _load(self, path: Path, generation: int, loaded: Loaded) -> None:
        with path.open("r+b", buffering=1024 * 1024) as stream:
            size = path.stat().st_size
            loaded.size += size
            at = HEADER_SIZE
            if not decode_header(stream.read(HEADER_SIZE), self._id, generation):
                if size:
                    loaded.cuts.append(f"{path}: its beginning is cut off or damaged; nothing in it counts ({size} bytes)")
                    stream.truncate(0)
                return
            for frame in read_frames(stream, at):
                if isinstance(frame, Cut):
                    rest = f"the {size - frame.at} bytes from there do not count"
                    loaded.cuts.append(f"{path}: what begins at byte {frame.at} {frame.why}; {rest}")
                    stream.truncate(frame.at)
                    return
                loaded.image.take(*frame)

    # ---------------------------------------------------------------- writing

    def start(self, tell: Told) -> None:
        """Begin to write. `tell` is called in the thread: the effect that is done, and every one before it; or its error."""
        self._tell = tell
        if self._thread is not None:
            return
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def put(self, effect: Append | Begin | Discard) -> None:
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
                while not self._work and not self._closing:
                    if not self._wake.wait(FLUSH if self._dirty else None):
                        break
                work, self._work = self._work, []
                closing = self._closing
            self._carry_out(work)
            if closing and (self._dirty or self._flusher is not None):
                self._put_on_disk(None)
            elif self._dirty and time.monotonic() >= self._flushed + FLUSH:
                self._flush_beside()
            if closing and not self._work:
                self._close_file()
                return

    def _carry_out(self, work: list[Append | Begin | Discard]) -> None:
        frames: list[Append] = []
        for effect in work:
            if isinstance(effect, Append):
                frames.append(effect)
                continue
            self._write(frames)
            frames = []
            if isinstance(effect, Begin):
                self._begin(effect)
            else:
                self._discard(effect)
        self._write(frames)

    def _write(self, frames: list[Append]) -> None:
        if not frames:
            return
        last = frames[-1]
        if not self._error:
            data = memoryview(b"".join([frame.data for frame in frames]))
            at = self._at
            try:
                while data:
                    written = os.pwrite(self._file, data[:PIECE], at)
                    data = data[written:]
                    at += written
            except OSError as error:
                self._failed(error)
            else:
                self._at = at
                self._dirty = True
                if self.sync:
                    self._put_on_disk(last)
                    return
        self._tell(last, self._error or None)

    def _flush_beside(self) -> None:
        """Without `sync`: have what was written put on the disk by a thread beside this one, as that may take long and nobody is
        to wait for it."""
        if self._flusher is not None and self._flusher.is_alive():
            return
        self._dirty = False
        self._flushed = time.monotonic()
        self._flusher = threading.Thread(target=self._flush, args=(os.dup(self._file), self._path), name="flush", daemon=True)
        self._flusher.start()

    def _flush(self, number: int, path: Path) -> None:
        try:
            os.fdatasync(number)
        except OSError as error:
            if self._path == path:
                self._error = error.strerror or str(error)
        finally:
            os.close(number)

    def _put_on_disk(self, last: Append | None) -> None:
        """Wait for the disk, and say so. An error here says that anything written since the last time may be lost."""
        if self._flusher is not None:
            self._flusher.join()
        try:
            os.fdatasync(self._file)
        except OSError as error:
            self._failed(error)
        self._dirty = False
        self._flushed = time.monotonic()
        if last is not None:
            self._tell(last, self._error or None)

    def _failed(self, error: OSError) -> None:
        self._error = error.strerror or str(error)
        with contextlib.suppress(OSError):  # half a frame would be cut off at the next start, with a line about it
            os.ftruncate(self._file, self._at)

    def _begin(self, effect: Begin) -> None:
        path = self.folder / f"{effect.generation:08d}"
        self._close_file()
        head = encode_header(self._id, effect.generation)
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            if os.pwrite(self._file, head, 0) != len(head):
                raise OSError(28, "No space left on device")
            os.fsync(self._file)
            self._sync_folder()
        except OSError as error:
            self._error = error.strerror or str(error)
            self._close_file()
            with contextlib.suppress(OSError):
                path.unlink()
        else:
            self._path, self._at, self._error = path, len(head), ""
        self._tell(effect, self._error or None)

    def _discard(self, effect: Discard) -> None:
        """Delete old generations, once what replaces them is on the disk. One that cannot be deleted is read at the next start,
        and changes nothing."""
        if self._dirty or self._flusher is not None:
            self._put_on_disk(None)
        if self._error:
            return
        with contextlib.suppress(OSError, ConfigError):
            for generation, path in self._files():
                if generation < effect.generation:
                    path.unlink()

    def _close_file(self) -> None:
        """Close the file; what is in it is put on the disk first."""
        if self._file >= 0:
            if self._dirty:
                with contextlib.suppress(OSError):
                    os.fdatasync(self._file)
                self._dirty = False
            os.close(self._file)
            self._file = -1

    def _sync_folder(self) -> None:
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
