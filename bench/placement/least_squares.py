"""Straight lines through measured points, and least squares with intervals. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mqttree.bench.tables.means import student


@dataclass(frozen=True, slots=True)
class Fit:
    """A sum of known values times coefficients that fits measured values best."""

    coefficients: tuple[float, ...]
    halves: tuple[float, ...]
    """of the 95 % intervals of the coefficients; infinite without a value to spare."""
    r2: float
    """part of the variance that is explained, from 0 to 1."""
    n: int
    """how many values were measured."""

    def value(self, known: Sequence[float]) -> float:
        """Return what the fit says for these known values."""
        return dot(self.coefficients, known)


def dot(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the sum of products. `one`, `other`: of the same length."""
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Return (value at 0, slope) of the line through points (x, y) by least squares; None if they
    have not two different x."""
    n = len(points)
    x, y = (math.fsum(each) / n for each in zip(*points, strict=True)) if n else (0.0, 0.0)
    spread = math.fsum((each - x) ** 2 for each, _ in points)
    if not spread:
        return None
    slope = math.fsum((a - x) * (b - y) for a, b in points) / spread
    return y - slope * x, slope


def least_squares(known: Sequence[Sequence[float]], measured: Sequence[float]) -> Fit:
    """Return the fit of `measured` by the columns of `known`, one line for each measured value.

    Raises ValueError when there are too few lines, or when a column is a sum of others.
    """
    n, m = len(measured), len(known[0]) if known else 0
    if n < m or not m:
        raise ValueError(f"{n} values cannot say {m} coefficients")
    # Columns of the same size, so that what is a sum of others can be told from what is small.
    scale = [max(abs(row[i]) for row in known) or 1.0 for i in range(m)]
    rows = [[row[i] / scale[i] for i in range(m)] for row in known]
    square = [[math.fsum(row[i] * row[j] for row in rows) for j in range(m)] for i in range(m)]
    right = [
        math.fsum(row[i] * value for row, value in zip(rows, measured, strict=True))
        for i in range(m)
    ]
    inverse = _inverse(square)
    found = [dot(row, right) for row in inverse]
    left = math.fsum(
        (value - dot(found, row)) ** 2 for row, value in zip(rows, measured, strict=True)
    )
    mean = math.fsum(measured) / n
    total = math.fsum((value - mean) ** 2 for value in measured)
    half = student(n - m) * math.sqrt(left / (n - m)) if n > m else math.inf
    return Fit(
        tuple(found[i] / scale[i] for i in range(m)),
        tuple(half * math.sqrt(max(0.0, inverse[i][i])) / scale[i] for i in range(m)),
        1 - left / total if total else 1.0,
        n,
    )


_SINGULAR = 1e-9


def _inverse(square: list[list[float]]) -> list[list[float]]:
    """The inverse of a symmetric matrix (Gauss and Jordan, the largest pivot of a column)."""
    m = len(square)
    work = [[*row, *(float(i == j) for j in range(m))] for i, row in enumerate(square)]
    for i in range(m):
        pivot = max(range(i, m), key=lambda j: abs(work[j][i]))
        if abs(work[pivot][i]) <= _SINGULAR:
            raise ValueError("a column is a sum of others")
        work[i], work[pivot] = work[pivot], work[i]
        work[i] = [value / work[i][i] for value in work[i]]
        for j in range(m):
            if j != i and work[j][i]:
                factor = work[j][i]
                work[j] = [a - factor * b for a, b in zip(work[j], work[i], strict=True)]
    return [row[m:] for row in work]
