"""What Java keeps of the classes that it has loaded, for the next session: without it half of the
CPU time of a session's start is Java reading and checking the same fifteen thousand classes again.

It is Java's own archive (JEP 350), which it looks at and leaves aside where it is of another Java
or of other libraries.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOM = 1 << 30
"""Bytes that must be free where it is put, some times as many as it has."""
PATIENCE = 120.0
"""s for Java to write it."""
QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""Options of Java, which would say of each class that is not in it why."""


def place(java: str) -> Path:
    """Return where the archive of this `java` and this PySpark is: below XDG_CACHE_HOME, or
    ~/.cache."""
    import pyspark

    home = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(home) if home.startswith("/") else Path("~/.cache").expanduser()
    real = Path(java).resolve()
    about = f"{real} {real.stat().st_mtime_ns} {pyspark.__file__} {pyspark.__version__}"
    mark = hashlib.sha256(about.encode()).hexdigest()[:16]
    return folder / "mqttree" / f"spark-{mark}.jsa"


def reading(java: str) -> str:
    """Return the options by which a `java` reads its archive, if there is one."""
    with suppress(OSError):
        if (file := place(java)).is_file():
            return f"-XX:SharedArchiveFile={file} {QUIET}"
    return ""


class Archive:
    """An archive that a session will leave behind."""

    def __init__(self, file: Path) -> None:
        self._file, self._part = file, file.with_name(f".{file.name}.part")

    @property
    def options(self) -> str:
        """By which Java writes it when it ends."""
        return f"-XX:ArchiveClassesAtExit={self._part} {QUIET}"

    def keep(self, spark: SparkSession) -> None:
        """End the Java of a session that was stopped (`spark`), and keep what it writes, in place
        of older ones."""
        process = _java_of(spark)
        if process is None or process.stdin is None:
            return
        process.stdin.close()  # which it takes as its end
        if process.wait(PATIENCE) == 0 and self._part.is_file():
            for old in self._file.parent.glob("spark-*.jsa"):
                old.unlink()
            os.replace(self._part, self._file)
        self._part.unlink(missing_ok=True)

    def drop(self, spark: SparkSession) -> None:
        """End the Java of a session (`spark`) that failed, before it writes anything."""
        process = _java_of(spark)
        if process is not None:
            process.kill()
            process.wait(PATIENCE)
        self._part.unlink(missing_ok=True)


def _java_of(spark: SparkSession) -> subprocess.Popen[bytes] | None:
    """Return the process that PySpark has started for a session."""
    found: Any = getattr(spark.sparkContext, "_gateway", None)
    return getattr(found, "proc", None)


@contextmanager
def writing(java: str) -> Iterator[Archive | None]:
    """Yield the archive that a session with this `java` can make; None where there is one already,
    where another session makes it, or where it has no room."""
    with ExitStack() as stack:
        yield _free(java, stack)


def _free(java: str, stack: ExitStack) -> Archive | None:
    try:
        file = place(java)
        if file.exists():
            return None
        file.parent.mkdir(parents=True, exist_ok=True)
        lock: IO[str] = stack.enter_context(file.with_name("spark.lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = os.statvfs(file.parent)
    except OSError:
        return None
    return Archive(file) if free.f_bavail * free.f_frsize >= ROOM else None
