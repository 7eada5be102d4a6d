"""A hybrid logical clock: times of writes that agree with the time of day and never with each
other's order.

A time is one number: ms since the epoch, shifted left by 16 bits, and below that their fraction,
counted on for what happens at the same time. What is written comes after all that was heard of,
also where the time of day lags behind (Kulkarni and others, "Logical Physical Clocks", 2014). Pure:
`now` (s) is monotonic, handed in.
"""

from __future__ import annotations

from broker.base import limits

LOGICAL = 16
"""bits below the ms."""

END = 1 << 63
"""The first time that cannot be: ms of the year 6429."""


class HybridClock:
    """The clock of one broker."""

    __slots__ = ("_offset", "last")

    def __init__(self, now: float, wall: float) -> None:
        """`wall`: the time of day at `now` (s since the epoch)."""
        self._offset = wall - now
        self.last = 0  # the latest time that was given out or heard of

    def set_wall(self, wall: float, now: float) -> int:
        """Take the time of day anew (s since the epoch); returns by how much it is another one
        (ms)."""
        before = self.physical(now)
        self._offset = wall - now
        return self.physical(now) - before

    def physical(self, now: float) -> int:
        """Return the time of day in ms since the epoch."""
        return self._time(now) >> LOGICAL

    def _time(self, now: float) -> int:
        return max(0, int((now + self._offset) * 1000 * (1 << LOGICAL)))

    def tick(self, now: float, above: int = 0) -> int:
        """Return the time of something that happens here at `now`: after all others here and all
        heard of, and after `above`.

        `above` does not move the clock: what one topic got from a clock far ahead counts for that
        topic alone.
        """
        physical = self._time(now)
        if self.last - physical > limits.CLOCK_AHEAD * (1000 << LOGICAL):
            # our own time of day was set back by far; each topic still goes on behind what it has
            self.last = 0
        self.last = max(self.last + 1, physical)
        return min(max(self.last, above + 1), END - 1)

    def merge(self, time: int, now: float) -> bool:
        """Take note of a time that was heard of. False: it is too far ahead to be taken for a time
        of day; not taken over."""
        if (time >> LOGICAL) - self.physical(now) > limits.CLOCK_AHEAD * 1000:
            return False
        self.last = max(self.last, time)
        return True
