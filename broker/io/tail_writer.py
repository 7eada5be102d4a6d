"""The files of the log tail, written and read by a thread of their own (docs/decisions/0031). It
decides nothing.

    DIR/tail/00000001           a segment (`tail_segment`); deleted when no broker needs it

Effects are carried out in their order. Nothing waits for them: neither the event loop nor
acknowledgements that wait for the journal.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

from mqttree.broker.config.data_dir import check_file
from mqttree.broker.config.yaml_file import ConfigError
from mqttree.broker.core.effects import TailDrop, TailRead, TailSync, TailWrite
from mqttree.broker.persistence.frames import Cut
from mqttree.broker.persistence.log_tail import TailLoaded
from mqttree.broker.persistence.tail_segment import read_frames

TailEffect = TailWrite | TailRead | TailSync | TailDrop
"""The effects about the tail."""

TailCallback = Callable[[TailEffect, object], None]
"""Takes an effect that was carried out, and the answer."""


class TailWriter:
    """The segments in one data directory."""

    def __init__(self, folder: Path, broker_id: bytes) -> None:
        """`folder`: the broker's data directory, which is locked. `broker_id`: stands in each file.
        Raises ConfigError: the folder cannot be written to."""
        self.folder = folder / "tail"
        self._id = broker_id
        # Segment -> file that is open for writing.
        self._files: dict[int, int] = {}
        # Segments with bytes that are not on the disk yet.
        self._dirty: set[int] = set()
        # The names of all files are on the disk.
        self._named = True
        self._work: list[TailEffect] = []
        self._wake = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._tell: TailCallback = lambda effect, answer: None
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"data directory {self.folder}: {error.strerror or error}") from None

    def load(self) -> TailLoaded:
        """Read what is there, without the messages. What cannot be read does not count, and a line
        says so."""
        loaded = TailLoaded()
        names = (path for path in self.folder.iterdir() if re.fullmatch(r"[0-9]{8,}", path.name))
        for path in sorted(names, key=lambda path: int(path.name)):
            frames = []
            try:
                size = path.stat().st_size
                with path.open("rb") as stream:
                    for found in read_frames(stream, size, self._id, int(path.name)):
                        if isinstance(found, Cut):
                            what = f"{path}: the frame at byte {found.at} {found.why}"
                            loaded.cuts.append(
                                f"{what}; the {size - found.at} bytes from there on are ignored"
                            )
                        else:
                            frames.append(found)
            except OSError as error:
                loaded.cuts.append(
                    f"{path}: cannot be read ({error.strerror or error}); it does not count"
                )
                size = 0
            loaded.segments.append((int(path.name), size, frames))
        return loaded

    # ---------------------------------------------------------------- the thread

    def start(self, tell: TailCallback) -> None:
        """Begin to work. `tell` is called in the thread."""
        self._tell = tell

    def put(self, effect: TailEffect) -> None:
        """Have an effect carried out; in their order."""
        with self._wake:
            self._work.append(effect)
            self._wake.notify()
            # No broker was away until now.
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name="tail", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Do what is left, put it on the disk, and end. Blocks."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._work or self._closing):
                    self._wake.wait()
                work, self._work = self._work, []
                closing = self._closing
            for effect in work:
                answer: object
                try:
                    answer = self._do(effect)
                # Whatever the error is, the node waits for an answer.
                except Exception as error:
                    answer = (
                        (isinstance(error, OSError) and error.strerror)
                        or str(error)
                        or type(error).__name__
                    )
                if not isinstance(effect, TailDrop):
                    self._tell(effect, answer)
            if closing and not self._work:
                with contextlib.suppress(OSError):
                    self._sync()
                for number in self._files.values():
                    with contextlib.suppress(OSError):
                        os.close(number)
                self._files.clear()
                return

    def _do(self, effect: TailEffect) -> object:
        match effect:
            case TailWrite(segment, offset, data):
                self._write(segment, offset, data)
            case TailRead(segment, offset, size):
                return self._read(segment, offset, size)
            case TailSync():
                self._sync()
            case TailDrop(segment):
                self._drop(segment)
        return None

    def _path(self, segment: int) -> Path:
        return self.folder / f"{segment:08d}"

    def _write(self, segment: int, offset: int, data: bytes) -> None:
        number = self._files.get(segment)
        if number is not None:
            check_file(number, self._path(segment), offset)
        else:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if offset == 0 else 0)
            number = os.open(self._path(segment), flags, 0o600)
            self._sync_others()
            self._files[segment] = number
            self._named = False
        view = memoryview(data)
        self._dirty.add(segment)
        while view:
            written = os.pwrite(number, view, offset)
            view = view[written:]
            offset += written

    def _sync_others(self) -> None:
        """Sync and close the segments before a new one, which are not written any more."""
        self._sync()
        for number in self._files.values():
            os.close(number)
        self._files.clear()

    def _read(self, segment: int, offset: int, size: int) -> bytes | None:
        try:
            number = os.open(self._path(segment), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            parts = []
            while size > 0 and (part := os.pread(number, size, offset)):
                parts.append(part)
                offset += len(part)
                size -= len(part)
            return b"".join(parts)
        finally:
            os.close(number)

    def _sync(self) -> None:
        for segment in list(self._dirty):
            self._dirty.discard(segment)
            if segment in self._files:
                os.fdatasync(self._files[segment])
        if not self._named:
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
                self._named = True
            finally:
                os.close(folder)

    def _drop(self, segment: int) -> None:
        number = self._files.pop(segment, None)
        self._dirty.discard(segment)
        if number is not None:
            os.close(number)
        self._path(segment).unlink(missing_ok=True)
