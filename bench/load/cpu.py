"""CPU time of processes with all their threads and descendants, and cores to run on."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from mqttree.bench.load.outcome import LoadError

_PR_SET_TIMERSLACK = 29


class CpuMeter:
    """The CPU time of a process and of all that it had started when this was made."""

    def __init__(self, pid: int) -> None:
        """Look at the process `pid` from now on. Raises LoadError when it is gone."""
        try:
            children = psutil.Process(pid).children(recursive=True)
        except psutil.Error as error:
            raise LoadError(f"process {pid} is gone: {error}") from error
        self._pids = [pid, *(child.pid for child in children)]

    def read(self) -> float:
        """Return the CPU time used so far (s), of threads that have ended, too. Raises LoadError
        when one of the processes is gone."""
        try:
            return sum(map(process_time, self._pids))
        except OSError as error:
            raise LoadError(f"a measured process is gone: {error}") from error

    def waited(self) -> float:
        """Return for how long (s) threads that are there could have run, and others had their
        core; 0.0 where the kernel does not say."""
        total = 0
        for pid in self._pids:
            for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                # A thread may end meanwhile.
                with contextlib.suppress(OSError, IndexError, ValueError):
                    total += int(task.read_text().split()[1])
        return total / 1e9


def process_time(pid: int) -> float:
    """Return the CPU time (s) that all threads of the process `pid` have used, by its own CPU clock
    (clock_getcpuclockid(3)): in ns, and unlike the tables in /proc as of now. Raises OSError when
    it is gone."""
    return time.clock_gettime(~pid << 3 | 2)


def cores() -> list[int]:
    """Return the cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


@contextlib.contextmanager
def on_cores(chosen: Iterable[int]) -> Iterator[None]:
    """Run on these cores only, and whatever is started within, too; on none of them: as before."""
    wanted = set(chosen)
    before = os.sched_getaffinity(0)
    if wanted:
        os.sched_setaffinity(0, wanted)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def share_out(available: list[int], brokers: int, pin: bool) -> tuple[list[int], list[int]]:
    """Return (a core for each broker, cores for the generator) when `brokers` of them and the
    generator share the cores `available`. Both lists are empty without `pin`, and where there is no
    core left for the generator."""
    if not pin or len(available) <= brokers:
        return [], []
    return available[:brokers], available[brokers:]


def time_finely() -> None:
    """Have the sleeps of the calling thread end in time: Linux rounds them up by 50 us."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
