"""A broker's capability C = alpha*L + beta*M (Overlays 4.2.1, eq. 1; the "R" of MQTT-ST's text is M)."""

from __future__ import annotations

import math

import psutil

__all__ = ["capability", "measure"]

_FALLBACK_GHZ = 1.0
_MAX_CAPABILITY = 100_000_000.0


def capability(cpu_ghz: float, cores: int, memory_gib: float, *, alpha: float = 1.0, beta: float = 1.0) -> float:
    """C = alpha*L + beta*M with L = clock in GHz times cores and M = memory in GiB, rounded to 0.1.

    The rounding makes equal machines tie in spite of a few kilobytes that their kernels keep; the lower address wins.
    Raises ValueError when the result is no number or negative.
    """
    value = alpha * cpu_ghz * cores + beta * memory_gib
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"capability {value!r} is not usable (alpha={alpha!r}, beta={beta!r})")
    return round(min(value, _MAX_CAPABILITY), 1)


def measure(*, alpha: float = 1.0, beta: float = 1.0) -> float:
    """This machine's capability. An unknown clock (virtual machines, some ARM boards) counts as 1 GHz."""
    memory_gib = psutil.virtual_memory().total / 2**30
    return capability(_clock_ghz(), psutil.cpu_count() or 1, memory_gib, alpha=alpha, beta=beta)


def _clock_ghz() -> float:
    """Highest clock of the CPU in GHz; the current one changes with the load, and a root must not."""
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError, RuntimeError, AttributeError, ValueError):
        return _FALLBACK_GHZ
    if frequency is None:
        return _FALLBACK_GHZ
    mhz = frequency.max or frequency.current
    return mhz / 1000 if mhz and mhz > 0 else _FALLBACK_GHZ
