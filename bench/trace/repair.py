"""When a fault counts as repaired: by the table of a run and by those of the traces alike. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

STRIKES = ("kill", "pause", "cut", "partition", "half-open")
"""Faults after which a tree has to be repaired."""

FOREVER = (1 << 63) - 1
"""ns; the largest time that a table holds."""


def lasts(at: int, done: Iterable[int]) -> int:
    """Return until when (ns) what happens is put down to a fault: the next thing that is done, its
    undoing included."""
    return min((when for when in done if when > at), default=FOREVER)


def repaired(at: int, until: int, agreements: Iterable[int]) -> float | None:
    """Return the s from a fault at `at` (ns) to the first of the `agreements` on a tree before
    `until`; None: a later one repairs something else."""
    return min(((when - at) / 1e9 for when in agreements if at <= when < until), default=None)


def repairs(
    struck: Sequence[tuple[int, str, str]], agreements: Sequence[int]
) -> list[dict[str, Any]]:
    """Return kind, target and repair time (s; None: not repaired) of each fault. struck: (ns, what,
    target) in turn."""
    found = []
    for at, kind, target in struck:
        if kind in STRIKES:
            until = lasts(at, (when for when, _, _ in struck))
            found.append(
                {"kind": kind, "target": target, "seconds": repaired(at, until, agreements)}
            )
    return found


def repair(found: Sequence[dict[str, Any]]) -> tuple[float | None, str]:
    """Return (s: the mean over a run's faults, ""), or (None, why there is none): one that was not
    repaired has no time."""
    known = [each["seconds"] for each in found if each["seconds"] is not None]
    if not found:
        return None, "no faults"
    if len(known) < len(found):
        return None, f"{len(found) - len(known)} of {len(found)} faults not repaired"
    return sum(known) / len(known), ""
