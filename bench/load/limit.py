"""Whether a measured rate says something about the broker, or about the generator. Pure."""

from __future__ import annotations

from collections.abc import Sequence

BUSY = 0.9
"""Of a core: who uses so much has nothing left, as far as one can tell from outside."""
KEPT_UP = 0.98
"""Of the rate that was asked for."""


def limit(
    generator: Sequence[float],
    cores: int,
    brokers: Sequence[float],
    rate: float,
    asked: float | None,
) -> str:
    """Return why the generator may have been the limit, in one line; empty where it was not.

    `generator` has the CPUs used by each of its processes (1.0: one core full), which may use so
    many `cores`; `brokers` those used by each broker; `rate` is what arrived a second, and `asked`
    what should have been sent (None: as much as possible).
    """
    why = []
    if generator and max(generator) >= BUSY:
        why.append(f"a process of the generator used {max(generator):.0%} of a core")
    if cores and sum(generator) / cores >= BUSY:
        why.append(f"the generator used {sum(generator) / cores:.0%} of its {cores} cores")
    if asked is None and brokers and max(brokers) < BUSY:
        why.append(f"the broker used {max(brokers):.0%} of a core only")
    if asked is not None and rate < asked * KEPT_UP:
        why.append(f"{rate:,.0f} of {asked:,.0f} messages a second arrived")
    return ", ".join(why)
