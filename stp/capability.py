"""A broker's capability C = alpha*L + beta*M (Overlays 4.2.1, eq. 1; the "R" of MQTT-ST's text is
M), damped so that the root does not change with each measurement."""

from __future__ import annotations

import math

from mqttree.broker.base import machine

_FALLBACK_GHZ = 1.0
_MAX_CAPABILITY = 100_000_000.0

BAND = 0.25
"""part of the capability by which a measurement has to differ to count."""
LOOKS = 3
"""measurements in a row that have to differ: a burst of a minute does not count, and brokers of
about equal capability keep their order."""


def capability(
    cpu_ghz: float, cores: int, memory_gib: float, *, alpha: float = 1.0, beta: float = 1.0
) -> float:
    """Return C = `alpha` * L + `beta` * M, rounded to 0.1. L is `cpu_ghz` (clock in GHz) times
    `cores`, M is `memory_gib` (GiB).

    Raises ValueError if the result is no number or negative.
    """
    value = alpha * cpu_ghz * cores + beta * memory_gib
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"capability {value!r} is not usable (alpha={alpha!r}, beta={beta!r})")
    return round(min(value, _MAX_CAPABILITY), 1)


def measure(*, alpha: float = 1.0, beta: float = 1.0) -> float:
    """Return this machine's capability: its cores at their highest clock, and the available memory
    in whole GiB from 4 on, so that equal machines tie (then the lower address wins). An unknown
    clock (virtual machines, some boards) counts as 1 GHz."""
    memory_gib = machine.available_memory() / 2**30
    return capability(
        _clock_ghz(), machine.processors(), _coarse(memory_gib), alpha=alpha, beta=beta
    )


class Damped:
    """A capability that follows its measurements slowly."""

    def __init__(self, value: float) -> None:
        self.value = value
        # Measurements in a row that were higher, or (below 0) lower.
        self._off = 0

    def take(self, measured: float) -> bool:
        """Take a measurement. Returns whether `value` has changed to it."""
        if abs(measured - self.value) <= BAND * self.value:
            self._off = 0
            return False
        higher = measured > self.value
        self._off = max(self._off, 0) + 1 if higher else min(self._off, 0) - 1
        if abs(self._off) < LOOKS:
            return False
        self.value, self._off = measured, 0
        return True


def _coarse(gib: float) -> float:
    return float(round(gib)) if gib >= 4 else round(gib, 1)


def _clock_ghz() -> float:
    """Return the highest clock of the CPU in GHz; the current one changes with the load, and the
    root must not."""
    mhz = machine.clock_mhz()
    return mhz / 1000 if mhz > 0 else _FALLBACK_GHZ
