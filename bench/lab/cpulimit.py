"""A share of a core for a process: by cgroup, else by the program cpulimit, else by stopping and
continuing it in turn."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from mqttree.bench.lab.owner import CGROUPS, MARK, PREFIX, delete_cgroup, owner

PERIOD_US = 20_000
"""of the scheduler; short, so that a small share is no long pause."""
MIN_US = 1_000
"""to be used in a period; the kernel takes no less,"""
LONGEST_US = 1_000_000
"""and no longer period."""
STEP = 0.005
"""s between two looks at what a process has used, where it is stopped and continued."""


def quota(share: float) -> tuple[int, int]:
    """(us to be used, us of the period) for a share of a core; shares below 0.001 are 0.001."""
    period = min(LONGEST_US, max(PERIOD_US, round(MIN_US / share)))
    return max(MIN_US, round(share * period)), period


class CpuLimit:
    """A limit on one process, by the best way that this machine has; `way` says which."""

    def __init__(
        self, name: str, pid: int, share: float, *, cgroups: Iterable[Path] = CGROUPS
    ) -> None:
        """Limit the process `pid` to the part `share` of one core (above 0). The `name` has to be
        unique within this process; `cgroups`: folders in which cgroups may be mounted."""
        self._cgroups = cgroups
        self._pid, self._share = pid, share
        self._group: Path | None = None
        self._program: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.way = self._by_cgroup(name) or self._by_program() or self._by_turns()

    def _by_cgroup(self, name: str) -> str:
        for root in self._cgroups:
            group = root / f"{PREFIX}{owner()}-{name}"
            used, period = quota(self._share)
            try:
                group.mkdir()
                # Without that file it is an ordinary folder, in which cgroups are mounted.
                if not (group / "cgroup.procs").exists():
                    delete_cgroup(group)
                    continue
                if (group / "cpu.max").exists():
                    (group / "cpu.max").write_text(f"{used} {period}")
                else:
                    (group / "cpu.cfs_period_us").write_text(str(period))
                    (group / "cpu.cfs_quota_us").write_text(str(used))
                (group / "cgroup.procs").write_text(str(self._pid))
            except OSError:
                delete_cgroup(group)
                continue
            self._group = group
            return "cgroup"
        return ""

    def _by_program(self) -> str:
        program = shutil.which("cpulimit")
        if program is None or self._share < 0.01:  # it counts in hundredths
            return ""
        words = [program, "-p", str(self._pid), "-l", str(max(1, round(self._share * 100))), "-z"]
        environment = os.environ | {MARK: owner()}
        with contextlib.suppress(OSError):
            self._program = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
            return "cpulimit"
        return ""

    def _by_turns(self) -> str:
        self._thread = threading.Thread(target=self._turn, daemon=True)
        self._thread.start()
        return "SIGSTOP and SIGCONT in turn"

    def _turn(self) -> None:
        clock = ~self._pid << 3 | 2  # the process's own CPU clock (clock_getcpuclockid(3))
        allowed_from, used_from, stopped = time.monotonic(), 0.0, False
        with contextlib.suppress(OSError):
            used_from = time.clock_gettime(clock)
            while not self._over.wait(STEP):
                left = (time.monotonic() - allowed_from) * self._share - (
                    time.clock_gettime(clock) - used_from
                )
                if left > STEP * 4:  # what was not used is not saved up
                    used_from -= left - STEP * 4
                if stopped is not (left < 0):
                    stopped = left < 0
                    os.kill(self._pid, signal.SIGSTOP if stopped else signal.SIGCONT)
            if stopped:
                os.kill(self._pid, signal.SIGCONT)

    def close(self) -> None:
        """Lift it; a cgroup goes once its process has ended."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._program is not None:
            self._program.kill()
            self._program.wait()
        if self._group is not None:
            with contextlib.suppress(OSError):
                (self._group.parent / "cgroup.procs").write_text(str(self._pid))
            delete_cgroup(self._group)
