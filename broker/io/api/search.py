"""Searches through very many things, a piece at a time: other work of the event loop goes on in
between (docs/decisions/0056).

    running -(all was looked at)-> answered
    running -(the reader is gone)-> given up
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from mqttree.broker.io.api.routes import RequestError

Row = TypeVar("Row")

PIECE: Final = 0.001
"""s of one piece."""

PAUSE: Final = 0.002
"""s between two pieces, so that searches take a third of the processor at most."""

AT_ONCE: Final = 100
"""rows that are looked at between two looks at the clock."""


class Page(Generic[Row]):
    """The first rows in the order of their keys, behind a certain one, of all that there are."""

    __slots__ = ("_after", "_heap", "_limit", "_number", "total")

    def __init__(self, limit: int, after: str) -> None:
        """`limit`: rows at most; `after`: the key behind which the page begins, "": any."""
        self._limit = limit
        self._after = after
        # The highest key first: that of the row which leaves when there are too many.
        self._heap: list[tuple[_Reversed, int, Row]] = []
        self._number = 0
        self.total = 0
        """Rows that there are on all pages."""

    def wants(self, key: str) -> bool:
        """Count a row, and return whether it is one of the page as far as is known: only then it
        need be made, and `put`. `key`: gives its place."""
        self.total += 1
        if self._after and key <= self._after:
            return False
        return len(self._heap) <= self._limit or key < self._heap[0][0].key

    def put(self, key: str, row: Row) -> None:
        """Put a `row` into the page that it `wants`; `key`: gives its place."""
        self._number += 1
        entry = (_Reversed(key), self._number, row)
        if len(self._heap) <= self._limit:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heapreplace(self._heap, entry)

    def rows(self) -> tuple[list[Row], str | None]:
        """Return the rows in order, and the key of the last one if there are more behind it."""
        found = sorted(self._heap, key=lambda entry: (entry[0].key, entry[1]))
        more = len(found) > self._limit
        found = found[: self._limit]
        return [row for _, _, row in found], found[-1][0].key if more and found else None


class _Reversed:
    """A key that is less than another one if it is more."""

    __slots__ = ("key",)

    def __init__(self, key: str) -> None:
        self.key = key

    def __lt__(self, other: _Reversed) -> bool:
        return self.key > other.key


class Searches:
    """All searches of one admin port."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        most: int,
        *,
        piece: float = PIECE,
        pause: float = PAUSE,
    ) -> None:
        """`loop`: in which they run; `most`: searches at a time; `piece`: s of each piece; `pause`:
        s between two of them."""
        self._loop = loop
        self._piece, self._pause = piece, pause
        self._most = most
        self.running = 0
        """How many there are."""

    def begin(
        self, work: Iterator[None], done: Callable[[], None], waited: Callable[[], bool]
    ) -> None:
        """Do `work` in pieces, and call `done` at its end, unless `waited` returns False by then.
        `work` does a piece of some 100 us each time. Raises RequestError: there are too many
        searches."""
        if self.running >= self._most:
            raise RequestError(429, f"{self._most} searches are running; try again in a second")
        self.running += 1
        self._resume(work, done, waited)

    def _resume(
        self, work: Iterator[None], done: Callable[[], None], waited: Callable[[], bool]
    ) -> None:
        if not waited():
            self.running -= 1
            return
        end = time.perf_counter() + self._piece
        try:
            for _ in work:
                if time.perf_counter() >= end:
                    self._loop.call_later(self._pause, self._resume, work, done, waited)
                    return
        except BaseException:
            self.running -= 1
            raise
        self.running -= 1
        done()
