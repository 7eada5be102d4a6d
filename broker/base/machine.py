"""What the machine gives this process: memory, and open files."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

import psutil

from broker.base import limits

CGROUP = Path("/sys/fs/cgroup/memory.max")
"""The limit of a container's memory (cgroup version 2)."""

SHARE = 0.6
"""Part of the memory that the broker may keep for clients by default: the process takes up to half
as much again, and a machine runs other programs, too."""


def default_memory_limit(cgroup: Path = CGROUP) -> int:
    """Return the bytes that a broker may keep unless it is told."""
    total = int(psutil.virtual_memory().total)
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(cgroup.read_text()))  # "max": none
    return int(total * SHARE)


def raise_file_limit() -> None:
    """Allow as many open files as the system lets us: each connection is one."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def files_for_clients() -> int:
    """Return how many files clients may have open: all but those that are kept for links, the admin
    port and the journal."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 30
    return soft - min(limits.FILES_KEPT, soft // 5)
