"""When each of very many things is due, soonest first. What is not true any more is left out a
little at a time.

To look through a million entries at once, and put them in order again, takes seconds: so that is
done with MOVES of them for each new one, which is soon enough.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

Entry = tuple[int, bytes, int]
"""When (ms), of what, and what tells whether that is still so."""

MOVES = 8
"""entries that are looked at for each new one, while more than half are not true."""

FEW = 1000
"""entries that may be untrue without anything being done."""


class Deadlines:
    """Entries in order of their times. `true`: whether one still counts."""

    __slots__ = ("_heap", "_old", "_true")

    def __init__(self, true: Callable[[Entry], object]) -> None:
        self._true = true
        self._heap: list[Entry] = []
        # A heap, too, whose entries are moved to the other one if they are true.
        self._old: list[Entry] = []

    def __len__(self) -> int:
        """Return the number of entries, those that are not true any more included."""
        return len(self._heap) + len(self._old)

    def add(self, entry: Entry, living: int) -> None:
        """Put an entry in. `living`: how many are true, about."""
        heappush(self._heap, entry)
        if not self._old and len(self._heap) > 2 * living + FEW:
            self._heap, self._old = [], self._heap
        for _ in range(min(MOVES, len(self._old))):
            last = self._old.pop()  # a heap without its last entry is one
            if self._true(last):
                heappush(self._heap, last)

    def _first(self) -> list[Entry]:
        if self._old and (not self._heap or self._old[0] < self._heap[0]):
            return self._old
        return self._heap

    def first(self) -> int | None:
        """Return when the first one is due (ms), true or not; None: there is none."""
        heap = self._first()
        return heap[0][0] if heap else None

    def pop(self) -> Entry:
        """Take the first one out."""
        return heappop(self._first())
