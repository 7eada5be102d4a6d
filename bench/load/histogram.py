"""Latency histogram with a bounded relative error, cheap to fill and to merge between processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

_SUB_BITS = 8  # 256 steps an octave: values are off by less than 1/256 of themselves


def bucket(value: int) -> int:
    """Return the index of the bucket of a value (ns, not negative)."""
    shift = value.bit_length() - _SUB_BITS
    if shift <= 0:
        return value
    return (shift << (_SUB_BITS - 1)) + (value >> shift)


def upper(index: int) -> int:
    """Return the largest value (ns) that falls into a bucket."""
    half = 1 << (_SUB_BITS - 1)
    if index < 2 * half:
        return index
    shift = (index - half) // half
    return ((index - (shift * half)) << shift) + (1 << shift) - 1


@dataclass(slots=True)
class Histogram:
    """Counts of nanosecond values in log-linear buckets; the exact maximum is kept beside them."""

    counts: dict[int, int] = field(default_factory=dict)
    maximum: int = 0
    total: int = 0

    def add(self, value: int) -> None:
        """Count one value (ns); a negative one counts as 0."""
        value = max(value, 0)
        index = bucket(value)
        self.counts[index] = self.counts.get(index, 0) + 1
        self.total += 1
        self.maximum = max(self.maximum, value)

    def merge(self, others: Iterable[Histogram]) -> None:
        """Add the counts of others to this one."""
        for other in others:
            for index, count in other.counts.items():
                self.counts[index] = self.counts.get(index, 0) + count
            self.total += other.total
            self.maximum = max(self.maximum, other.maximum)

    def percentile(self, percent: float) -> float:
        """Return the value (ms) that `percent` of all do not exceed; 0.0 while empty."""
        need = max(1, -(-int(self.total * percent * 1000) // 100_000))
        seen = 0
        for index in sorted(self.counts):
            seen += self.counts[index]
            if seen >= need:
                return min(upper(index), self.maximum) / 1e6
        return 0.0
