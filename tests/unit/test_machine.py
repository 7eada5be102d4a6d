"""What the machine has, read without psutil: the same as psutil says."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from broker.base import machine


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
from broker.base import machine
kept = machine.keep_freed_memory() if sys.argv[1] == "kept" else 0
def turn():
    copies = [bytes([n]) * 20_000_000 for n in range(1, 4)]
turn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    turn()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str, **environment: str) -> tuple[int, int]:
    """Bytes that are kept, and page faults of 15 copies of 20 MB."""
    command = [sys.executable, "-c", FAULTS, how]
    env = {k: v for k, v in os.environ.items() if k not in machine.ALLOCATOR} | environment
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    kept, count = map(int, done.stdout.split())
    return kept, count


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is of glibc")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    kept, few = faults("kept")
    assert kept == machine.FREED_KEPT
    _, many = faults("as it is")
    assert few < 1_000 < many


def test_a_small_container_keeps_little_and_the_environment_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in machine.ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    calls: list[tuple[int, int]] = []

    def mallopt(name: int, size: int) -> bool:
        calls.append((name, size))
        return True

    monkeypatch.setattr(machine, "_mallopt", mallopt)
    limit = tmp_path / "memory.max"
    limit.write_text(str(256 << 20))
    assert machine.keep_freed_memory(limit) == 16 << 20
    sizes = {machine.M_MMAP_THRESHOLD: 16 << 20, machine.M_TRIM_THRESHOLD: 16 << 20}
    assert dict(calls) == sizes
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000")
    assert machine.keep_freed_memory(limit) == 0
    assert len(calls) == 2
