"""The resources of the machine: memory, and open files."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup/memory.max")
"""The limit of a container's memory (cgroup version 2)."""

SHARE = 0.6
"""Part of the machine's memory that the broker may keep for clients by default. The process takes
up to half as much again, and other programs run, too."""

FILES_KEPT = 256
"""open files that clients may not take, so that links, the admin port and the journal have theirs;
a fifth of all where there are few."""


def default_memory_limit(cgroup: Path = CGROUP) -> int:
    """Return the default of the bytes that a broker may keep for clients."""
    total = int(psutil.virtual_memory().total)
    with contextlib.suppress(OSError, ValueError):
        # "max" means no limit.
        total = min(total, int(cgroup.read_text()))
    return int(total * SHARE)


def raise_file_limit() -> None:
    """Raise the limit of open files as far as the system allows: each connection is one."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def files_for_clients() -> int:
    """Return how many files clients may have open: all but those that are kept for links, the admin
    port and the journal."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 30
    return soft - min(FILES_KEPT, soft // 5)
