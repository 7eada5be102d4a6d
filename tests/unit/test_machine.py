"""What the machine has, read without psutil: the same as psutil says."""

from __future__ import annotations

import os
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
