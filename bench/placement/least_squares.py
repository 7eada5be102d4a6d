"""Straight lines through measured points, and least squares with intervals. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import StatisticsError, linear_regression

import numpy as np

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
    try:
        slope, start = linear_regression(*zip(*points, strict=True))
    except (StatisticsError, TypeError):  # or no points at all
        return None
    return start, slope


_SINGULAR = 1e-5


def least_squares(known: Sequence[Sequence[float]], measured: Sequence[float]) -> Fit:
    """Return the fit of `measured` by the columns of `known`, one line for each measured value.

    Raises ValueError when there are too few lines, or when a column is a sum of others.
    """
    n, m = len(measured), len(known[0]) if known else 0
    if n < m or not m:
        raise ValueError(f"{n} values cannot say {m} coefficients")
    rows, values = np.array(known, float), np.array(measured, float)
    # Columns of the same size, so that what is a sum of others can be told from what is small.
    scale = np.abs(rows).max(axis=0)
    scale[scale == 0] = 1.0
    rows /= scale
    found, _, rank, _ = np.linalg.lstsq(rows, values, rcond=_SINGULAR)
    if rank < m:
        raise ValueError("a column is a sum of others")
    spread = np.sqrt(np.linalg.inv(rows.T @ rows).diagonal())
    left = float(((values - rows @ found) ** 2).sum())
    total = float(((values - values.mean()) ** 2).sum())
    half = student(n - m) * math.sqrt(left / (n - m)) if n > m else math.inf
    return Fit(
        tuple((found / scale).tolist()),
        tuple((half * spread / scale).tolist()),
        1 - left / total if total else 1.0,
        n,
    )
