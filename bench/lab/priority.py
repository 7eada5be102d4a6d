"""Whom other work on the machine waits for, where that is allowed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from mqttree.bench.lab.child import child

PRIORITY = -10
"""A nice value: some nine times the share of other work."""


def prefer(pid: int) -> None:
    """Let other work wait for the process `pid`, which has a session of its own: where the kernel
    groups tasks by session (sched_autogroup), nice values count within a session only."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, PRIORITY)
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(PRIORITY))


def have_a_larger_share() -> None:
    """Give the calling process some nine times the share of others, where that is allowed."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, min(PRIORITY, os.getpriority(os.PRIO_PROCESS, 0)))


def be_woken_in_time() -> None:
    """Make the calling thread, and all that it starts, run ahead of everything that has no
    real-time priority, brokers among it; where that is not allowed, with a larger share than
    theirs."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        have_a_larger_share()


@contextlib.contextmanager
def woken_in_time() -> Iterator[None]:
    """Let the calling thread run ahead of everything that has no real-time priority, where that is
    allowed, and as before afterwards."""
    before, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, before, parameters)


@contextlib.contextmanager
def kept_awake(cores: Iterable[int]) -> Iterator[None]:
    """Have something to do on each of these `cores` that everything else goes ahead of
    (SCHED_IDLE): a core that sleeps between two messages slows down, and what the next one costs
    depends on for how long it slept. To wake one that sleeps also costs more, at the sender."""
    with contextlib.ExitStack() as spinning:
        for core in cores:
            spinning.enter_context(child(partial(_spin, core)))
        yield


def _spin(core: int, wanted: Callable[[], bool]) -> None:
    """Do nothing on a `core` while it is `wanted`."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.sched_setaffinity(0, {core})
    while wanted():
        for _ in range(1_000_000):
            pass
