"""What the machine has, read without psutil: the same as psutil says."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from mqttree.broker.base import machine
from mqttree.broker.io.freed_memory import QUIET, FreedMemory


def test_memory_and_processors_as_psutil_has_them(tmp_path: Path) -> None:
    assert machine.total_memory() == psutil.virtual_memory().total
    assert machine.processors() == psutil.cpu_count()
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:  100 kB\nMemAvailable:   50 kB\nBuffers: 1 kB\n")
    assert machine.available_memory(file) == 50 * 1024


def test_without_the_file_psutil_says_what_is_available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Memory:
        available = 77

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    assert machine.available_memory(tmp_path / "missing") == 77


def test_the_memory_of_this_process_is_as_psutil_has_it() -> None:
    found = psutil.Process().memory_info().rss
    assert found / 2 < machine.resident_memory() < found * 2


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's files")
def test_the_processors_clock_is_as_psutil_has_it(tmp_path: Path) -> None:
    found = psutil.cpu_freq()
    # The highest clock does not change; where only the present one is known, it may.
    if found is not None and found.max:
        assert machine.clock_mhz() == pytest.approx(found.max)
    elif found is not None and found.current:
        assert machine.clock_mhz() > 0
    file = tmp_path / "cpuinfo"
    file.write_text("processor : 0\ncpu MHz\t\t: 2000.0\nprocessor : 1\ncpu MHz\t\t: 3000.0\n")
    assert machine._present_mhz(file) == 2500.0
    assert machine._present_mhz(tmp_path / "missing") == 0.0


def test_most_open_files_are_left_for_clients() -> None:
    assert 0 < machine.files_for_clients() <= os.sysconf("SC_OPEN_MAX")


FAULTS = """
import resource, sys
from mqttree.broker.base import machine
kept = machine.keep_freed_memory() if sys.argv[1] == "kept" else 0
def turn():
    copies = [bytes([n]) * 20_000_000 for n in range(1, 4)]
turn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    turn()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
most = machine.resident_memory()
if kept:
    machine.give_freed_memory_back()
print(kept, faults, most - machine.resident_memory())
"""


def faults(how: str, **environment: str) -> tuple[int, int, int]:
    """Bytes that are kept, page faults of 15 copies of 20 MB, bytes that are given back then."""
    command = [sys.executable, "-c", FAULTS, how]
    env = {k: v for k, v in os.environ.items() if k not in machine.ALLOCATOR} | environment
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    kept, count, back = map(int, done.stdout.split())
    return kept, count, back


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is of glibc")
def test_freed_memory_is_used_again_without_page_faults_and_given_back() -> None:
    kept, few, back = faults("kept")
    assert kept == machine.FREED_KEPT
    assert back > 50_000_000
    _, many, _ = faults("as it is")
    assert few < 1_000 < many


def test_a_small_container_keeps_little_and_the_environment_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in machine.ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    calls: list[tuple[str, int, int]] = []

    def libc(function: str, name: int, size: int) -> bool:
        calls.append((function, name, size))
        return True

    monkeypatch.setattr(machine, "_libc", libc)
    limit = tmp_path / "memory.max"
    limit.write_text(str(256 << 20))
    assert machine.keep_freed_memory(limit) == 16 << 20
    assert calls == [
        ("mallopt", machine.M_MMAP_THRESHOLD, 16 << 20),
        ("mallopt", machine.M_TRIM_THRESHOLD, 16 << 20),
    ]
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000")
    assert machine.keep_freed_memory(limit) == 0
    assert len(calls) == 2


class Loop:
    """A loop whose time is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None]) -> None:
        self.due.append((when, call))

    def call_later(self, delay: float, call: Callable[[], None]) -> None:
        self.call_at(self.now + delay, call)

    def turn(self, now: float) -> None:
        self.now = now
        due, self.due = self.due, []
        for when, call in due:
            if when <= now:
                call()
            else:
                self.due.append((when, call))


def test_freed_memory_is_kept_until_no_large_message_has_come_for_some_time() -> None:
    loop, done = Loop(), list[str]()

    def keep() -> int:
        done.append("keep")
        return 1

    freed = FreedMemory(cast(Any, loop), keep, lambda: done.append("give back"))
    loop.turn(200.0)
    assert done == []
    freed.large_message()
    loop.turn(205.0)
    freed.large_message()
    loop.turn(200.0 + QUIET)
    assert done == ["keep"]
    loop.turn(205.0 + QUIET)
    assert done == ["keep", "give back"] and not loop.due
    freed.large_message()
    assert done == ["keep", "give back", "keep"]


def test_nothing_is_given_back_where_nothing_can_be_kept() -> None:
    loop = Loop()
    asked: list[int] = []

    def keep() -> int:
        asked.append(0)
        return 0

    freed = FreedMemory(cast(Any, loop), keep)
    freed.large_message()
    freed.large_message()
    assert asked == [0] and not loop.due
