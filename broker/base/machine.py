"""The resources of the machine: processors, memory, and open files.

On Linux they are read from its files: to load psutil, which other systems need, takes 10 ms.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from glob import glob
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CPUINFO = Path("/proc/cpuinfo")
STATM = Path("/proc/self/statm")
"""What Linux reports of memory, of processors, and of this process."""

CGROUP = Path("/sys/fs/cgroup/memory.max")
"""The limit of a container's memory (cgroup version 2)."""

SHARE = 0.5
"""Part of the memory, the machine's or the container's, that the broker may keep for clients by
default. The process takes up to twice as much (docs/sizing.md)."""

FREED_KEPT, BLOCK_KEPT = 64 << 20, 32 << 20
"""Bytes of freed memory that the C library keeps while large messages come, and of the largest
block among them; of a small machine or container a sixteenth of its memory. A message of 20 MB is
copied a few times on its way. If each copy was memory that the system has to clear first, that was
half of the message's CPU."""
FREED_AT_REST, BLOCK_AT_REST = 2 << 20, 1 << 20
"""The same while no large messages come: what glibc comes to by itself if it frees 1 MiB."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""
ALLOCATOR = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Environment variables by which users say it themselves."""

FILES_KEPT = 256
"""open files that clients may not take, so that links, the admin port and the journal have theirs;
a fifth of all where there are few."""


def default_memory_limit(cgroup: Path = CGROUP) -> int:
    """Return the default of the bytes that a broker may keep for clients."""
    return int(_memory(cgroup) * SHARE)


def keep_freed_memory(cgroup: Path = CGROUP) -> int:
    """Have the C library keep freed memory for the next message (mallopt). Return how many bytes at
    most; 0 if it cannot, or if the environment says what it keeps."""
    if any(name in os.environ for name in ALLOCATOR):
        return 0
    kept = min(FREED_KEPT, _memory(cgroup) // 16)
    return kept if _keep_freed(kept, min(BLOCK_KEPT, kept)) else 0


def give_freed_memory_back() -> None:
    """Give the system back what `keep_freed_memory` has the C library keep, and have it keep as
    little as before."""
    _keep_freed(FREED_AT_REST, BLOCK_AT_REST)
    _libc("malloc_trim", 0)


def _keep_freed(freed: int, block: int) -> bool:
    wanted = ((M_MMAP_THRESHOLD, block), (M_TRIM_THRESHOLD, freed))
    return all(_libc("mallopt", *each) for each in wanted)


def _libc(function: str, *values: int) -> bool:
    """Call a function of glibc's allocator; return whether that was done."""
    import ctypes  # takes some ms, so it is not loaded at the start

    try:
        return bool(getattr(ctypes.CDLL(None), function)(*values))
    except (AttributeError, OSError):  # another C library
        return False


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


def _memory(cgroup: Path) -> int:
    """Return the bytes of memory that there are for this process."""
    total = total_memory()
    with contextlib.suppress(OSError, ValueError):
        # "max" means no limit.
        total = min(total, int(cgroup.read_text()))
    return total


def total_memory() -> int:
    """Return the machine's memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def available_memory(meminfo: Path = MEMINFO) -> int:
    """Return the bytes that programs can have before the machine swaps."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        _, _, behind = meminfo.read_text().partition("MemAvailable:")
        return int(behind.split()[0]) * 1024
    import psutil

    return int(psutil.virtual_memory().available)


def processors() -> int:
    """Return how many processors are online."""
    return os.cpu_count() or 1


def clock_mhz() -> float:
    """Return the highest clock of the processors in MHz, their mean if they differ; the present one
    where the highest is unknown; 0 if nothing is known."""
    if sys.platform == "linux":
        highest = [_number(Path(name, "scaling_max_freq")) / 1000 for name in _cpu_folders()]
        if any(highest):
            return sum(highest) / len(highest)
        return _present_mhz()
    else:
        return _psutil_mhz()


def _psutil_mhz() -> float:
    import psutil

    try:
        found = psutil.cpu_freq()
        # Where nothing is known it is None, which has no clock either.
        return float(found.max or found.current or 0.0)
    except (OSError, NotImplementedError, RuntimeError, AttributeError, ValueError):
        return 0.0


def resident_memory() -> int:
    """Return the bytes of memory that this process has."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import psutil

    return int(psutil.Process().memory_info().rss)


def _cpu_folders() -> list[str]:
    """Return where Linux tells the clocks of processors, if it does."""
    return glob("/sys/devices/system/cpu/cpufreq/policy[0-9]*") or glob(
        "/sys/devices/system/cpu/cpu[0-9]*/cpufreq"
    )


def _number(file: Path) -> int:
    """Return the number in a file, 0 if there is none."""
    with contextlib.suppress(OSError, ValueError):
        return int(file.read_text())
    return 0


def _present_mhz(cpuinfo: Path = CPUINFO) -> float:
    """Return the mean of the present clocks in MHz, 0 if they are unknown."""
    clocks = []
    with contextlib.suppress(OSError, ValueError):
        for line in cpuinfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip().lower() == "cpu mhz":
                clocks.append(float(value))
    return sum(clocks) / len(clocks) if clocks else 0.0
