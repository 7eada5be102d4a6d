"""A timer wheel: deadlines of very many items, most of which never come due, such as
keep-alives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

GRAIN = 0.25
"""s by which a deadline may be late. All deadlines within it share one timer."""


class TimerWheel(Generic[T]):
    """Items by their deadline. An entry takes one place in a dict; a timer for each item would take
    six objects."""

    __slots__ = ("_buckets", "_check", "_full", "_schedule")

    def __init__(
        self,
        schedule: Callable[[float, Callable[[float], None]], object],
        check: Callable[[T, float], None],
        full: Callable[[], bool] = lambda: False,
    ) -> None:
        """`schedule`: calls its second argument with the time at the time of its first (s).
        `check`: takes an item and the time, and does what is due, or adds the item again for a
        later time. `full`: returns whether the rest of what is due has to wait for the next turn of
        the loop."""
        self._schedule = schedule
        self._check = check
        self._full = full
        self._buckets: dict[int, dict[T, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, item: T, when: float) -> int:
        """Check an item at `when` (s, not now) or a little later. Returns the value that `discard`
        takes."""
        key = math.ceil(when / GRAIN)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = {}
            self._schedule(key * GRAIN, lambda now: self._fire(key, now))
        bucket[item] = None
        return key

    def discard(self, key: int, item: T) -> None:
        """Do not check an item any more; harmless after its check."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.pop(item, None)

    def _fire(self, key: int, now: float) -> None:
        bucket = self._buckets[key]
        while bucket:
            item, _ = bucket.popitem()
            self._check(item, now)
            if bucket and self._full():
                self._schedule(now, lambda at: self._fire(key, at))
                return
        del self._buckets[key]
