"""Which durable sessions have got which messages, until that becomes one record of the journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MOST_PLACES: Final = 1 << 16
"""numbers that one record covers."""

Record = Callable[[bytes, int, list[int]], None]
"""Records who got messages: origin, lowest number, items."""


class Receipts:
    """Who got messages of one origin since the last record about sessions.

    Whoever gives a message to durable sessions asks for its `place`, and adds for each of them
    place | number of the session << 16 | packet identifier (0: it is queued) to `items`."""

    __slots__ = ("_noted", "_record", "first", "items", "number", "origin")

    def __init__(self, record: Record) -> None:
        """`record`: called with what has been added."""
        self._record = record
        self.items: list[int] = []
        self.origin = b""
        self.first = 0
        """The lowest number of these messages; places count from it."""
        self.number = 0
        """The highest one."""
        # Of other origins in this turn, the highest one.
        self._noted: dict[bytes, int] = {}

    def place(self, origin: bytes, number: int) -> int:
        """Return the place of a message, by its name, as an item has it."""
        place = number - self.first
        if not self.items or origin != self.origin or not 0 <= place < MOST_PLACES:
            if self.items:
                self.flush()
            if origin != self.origin:
                if self.number:
                    self._noted[self.origin] = self.number
                self.origin, self.number = origin, self._noted.get(origin, 0)
            self.first, place = number, 0
            self.number = max(self.number, number)
        elif number > self.number:
            self.number = number
        return place << 48

    def reaches(self, origin: bytes, number: int) -> bool:
        """Whether in this turn a message of an origin with this number or a higher one was given
        to a durable session."""
        if origin == self.origin:
            return self.number >= number
        return self._noted.get(origin, 0) >= number

    def flush(self) -> None:
        """Have what was added recorded: another record of a session follows, or the turn ends."""
        if self.items:
            items, self.items = self.items, []
            self._record(self.origin, self.first, items)

    def seal(self) -> None:
        """End this turn."""
        self.number = 0
        if self._noted:
            self._noted.clear()
        self.flush()
