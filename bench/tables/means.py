"""Small exact statistics: means with confidence intervals, Jain's index, hops."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Student's t for a two-sided interval of 95 %, by degrees of freedom from 1, ten to a line.
# fmt: off
_T95 = (
    12.706, 4.303,  3.182,  2.776,  2.571,  2.447,  2.365,  2.306,  2.262,  2.228,
    2.201,  2.179,  2.160,  2.145,  2.131,  2.120,  2.110,  2.101,  2.093,  2.086,
    2.080,  2.074,  2.069,  2.064,  2.060,  2.056,  2.052,  2.048,  2.045,  2.042,
)
# fmt: on
_Z95 = 1.959964


def student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t; ValueError below one degree of freedom."""
    if freedom < 1:
        raise ValueError("an interval needs two values")
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    z = _Z95
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean of n values; half: half of its 95 % confidence interval, None for a single value."""

    n: int
    mean: float
    half: float | None
    deviation: float | None
    least: float
    most: float


def mean(values: Sequence[float]) -> Mean | None:
    """Return the mean of values, None of none."""
    n = len(values)
    if not n:
        return None
    middle = math.fsum(values) / n
    if n == 1:
        return Mean(1, middle, None, None, middle, middle)
    deviation = math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (n - 1))
    return Mean(
        n, middle, student(n - 1) * deviation / math.sqrt(n), deviation, min(values), max(values)
    )


def jain(loads: Iterable[float]) -> float | None:
    """Return Jain's index of fairness (Scaling, eq. 14): 1 for equal loads, 1/n if one has all;
    None without any load."""
    found = list(loads)
    squares = math.fsum(load * load for load in found)
    return math.fsum(found) ** 2 / (len(found) * squares) if squares else None


def hops(edges: Iterable[tuple[str, str]], start: str) -> dict[str, int]:
    """Return how many edges each node that can be reached is away from start."""
    near: dict[str, set[str]] = {}
    for a, b in edges:
        near.setdefault(a, set()).add(b)
        near.setdefault(b, set()).add(a)
    found = {start: 0}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        for other in near.get(node, ()):
            if other not in found:
                found[other] = found[node] + 1
                waiting.append(other)
    return found


def stretch(
    carried: Mapping[tuple[str, str], int],
    tree: Iterable[tuple[str, str]],
    links: Iterable[tuple[str, str]],
) -> tuple[float | None, int]:
    """Return hops on the tree divided by hops on shortest paths, over all deliveries to other
    brokers, and the deliveries without a path.

    `carried`: (publisher's broker, subscriber's broker) -> deliveries. `tree` and `links` are pairs
    of neighbours.
    """
    tree, links = list(tree), list(links)
    went = least = pathless = 0
    for (source, target), count in carried.items():
        if source == target:
            continue
        on_tree, shortest = hops(tree, source).get(target), hops(links, source).get(target)
        if on_tree is None or not shortest:
            pathless += count
            continue
        went += on_tree * count
        least += shortest * count
    return (went / least if least else None), pathless
