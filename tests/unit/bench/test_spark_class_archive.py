"""The archive of classes that a session leaves for the next one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from mqttree.bench.spark import class_archive

pytestmark = pytest.mark.interop

JAVA = sys.executable
"""Any program: what matters is where it is, and how old."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "mqttree"


def session(program: str) -> Any:
    """A session whose Java is a Python `program`, which reads until its input ends."""
    command = [sys.executable, "-c", program]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=process)))


def part_of(archive: class_archive.Archive) -> str:
    """The file that Java is told to write."""
    return archive.options.split()[0].removeprefix("-XX:ArchiveClassesAtExit=")


def test_the_first_session_writes_an_archive_and_the_next_one_reads_it(cache: Path) -> None:
    assert class_archive.reading(JAVA) == ""
    cache.mkdir()
    (cache / "spark-old.jsa").write_bytes(b"of another Java")
    with class_archive.writing(JAVA) as archive:
        assert archive is not None
        program = f"import sys; sys.stdin.read(); open({part_of(archive)!r}, 'w').write('classes')"
        archive.keep(session(program))
    (file,) = cache.glob("*.jsa")
    assert (file, file.read_text()) == (class_archive.place(JAVA), "classes")
    assert class_archive.reading(JAVA).startswith(f"-XX:SharedArchiveFile={file} ")
    with class_archive.writing(JAVA) as archive:
        assert archive is None


def test_two_sessions_do_not_write_the_same_archive() -> None:
    with class_archive.writing(JAVA) as first, class_archive.writing(JAVA) as second:
        assert (first is None, second is None) == (False, True)


def test_a_session_that_failed_leaves_no_archive(cache: Path) -> None:
    with class_archive.writing(JAVA) as archive:
        assert archive is not None
        Path(part_of(archive)).write_bytes(b"half of it")
        found = session("import sys; sys.stdin.read()")
        archive.drop(found)
    assert found.sparkContext._gateway.proc.returncode is not None
    assert [path.name for path in cache.iterdir()] == ["spark.lock"]


def test_java_that_fails_leaves_no_archive(cache: Path) -> None:
    with class_archive.writing(JAVA) as archive:
        assert archive is not None
        Path(part_of(archive)).write_bytes(b"half of it")
        archive.keep(session("import sys; sys.stdin.read(); sys.exit(1)"))
    assert [path.name for path in cache.iterdir()] == ["spark.lock"]


def test_nothing_is_written_where_there_is_no_room_or_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    full = SimpleNamespace(f_bavail=1, f_frsize=4096)
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda _path: full)
        with class_archive.writing(JAVA) as archive:
            assert archive is None
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with class_archive.writing(JAVA) as archive:
        assert archive is None
    assert class_archive.reading(JAVA) == ""


def test_a_java_that_changed_has_another_archive(tmp_path: Path) -> None:
    program = tmp_path / "java"
    program.write_text("")
    before = class_archive.place(str(program))
    os.utime(program, ns=(1, 1))
    assert class_archive.place(str(program)) != before
