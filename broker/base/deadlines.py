"""Deadlines of very many things, soonest first.

Entries that no longer count are removed a few at a time: to search a million entries and order them
again in one go would take seconds. MOVES entries are looked at for each new one, which is fast
enough.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

Entry = tuple[int, bytes, int]
"""Time (ms), the item, and a value that tells whether the entry still counts."""

MOVES = 8
"""entries that are looked at for each new one, while more than half do not count any more."""

MIN_OUTDATED = 1000
"""entries that may have stopped counting before any is looked for."""


class Deadlines:
    """Entries in the order of their times. `true`: returns whether an entry still counts."""

    __slots__ = ("_heap", "_old", "_true")

    def __init__(self, true: Callable[[Entry], object]) -> None:
        self._true = true
        self._heap: list[Entry] = []
        # Also a heap: its entries are moved to the other one if they still count.
        self._old: list[Entry] = []

    def __len__(self) -> int:
        """Return the number of entries, those that no longer count included."""
        return len(self._heap) + len(self._old)

    def add(self, entry: Entry, living: int) -> None:
        """Add an entry. `living`: about how many still count."""
        heappush(self._heap, entry)
        if not self._old and len(self._heap) > 2 * living + MIN_OUTDATED:
            self._heap, self._old = [], self._heap
        for _ in range(min(MOVES, len(self._old))):
            # A heap without its last entry is a heap.
            last = self._old.pop()
            if self._true(last):
                heappush(self._heap, last)

    def _first(self) -> list[Entry]:
        if self._old and (not self._heap or self._old[0] < self._heap[0]):
            return self._old
        return self._heap

    def first(self) -> int | None:
        """Return the time of the first entry (ms), whether it counts or not; None: there is
        none."""
        heap = self._first()
        return heap[0][0] if heap else None

    def pop(self) -> Entry:
        """Remove and return the first entry."""
        return heappop(self._first())
