"""A hybrid logical clock: times of writes that follow the time of day and always keep their order.

A time is one number: ms since the epoch, shifted left by 16 bits, and below that a counter for
events in the same millisecond. An event here is later than all events that this broker has heard
of, even where its time of day lags behind (Kulkarni and others, "Logical Physical Clocks", 2014).
Pure: `now` (s) is monotonic, and passed in.
"""

from __future__ import annotations

MAX_CLOCK_AHEAD_S = 300.0
"""s; times of a neighbour that are further ahead of our time of day decide about their topics,
but our clock stays [retained_clock_ahead]. Clocks that are not set drift by less in a
year."""

LOGICAL = 16
"""bits below the ms."""

END = 1 << 63
"""The first time that is impossible: ms of the year 6429."""


class HybridClock:
    """The clock of one broker."""

    def __init__(self, now: float, wall: float) -> None:
        """Make one that has heard of no time.

        `now`: s, monotonic; `wall`: the time of day at `now` (s since the epoch); `limits`: how far
        another one may be ahead.
        """
        self._ahead = MAX_CLOCK_AHEAD_S * 1000  # ms
        self._offset = wall - now
        # The latest time that was given out or heard of.
        self.last = 0

    def set_wall(self, wall: float, now: float) -> int:
        """Set the time of day (s since the epoch). Returns by how many ms it differs from the
        expected one."""
        before = self.physical(now)
        self._offset = wall - now
        return self.physical(now) - before

    def physical(self, now: float) -> int:
        """Return the time of day in ms since the epoch."""
        return max(0, int((now + self._offset) * 1000))

    def _time(self, now: float) -> int:
        return max(0, int((now + self._offset) * 1000 * (1 << LOGICAL)))

    def tick(self, now: float, above: int = 0) -> int:
        """Return the time of an event here at `now` (s): later than all others here and all heard
        of, and than `above`. `above` does not move the clock: if one topic got a time from a clock
        far ahead, that counts for the topic alone."""
        physical = self._time(now)
        if self.last - physical > self._ahead * (1 << LOGICAL):
            # This broker's time of day was set back by far. Each topic still continues from its own
            # last time.
            self.last = 0
        self.last = max(self.last + 1, physical)
        return min(max(self.last, above + 1), END - 1)

    def at(self, when: float, above: int = 0) -> int:
        """Return the time of an event here that counts as of `when` (s), which may be long ago, and
        is later than `above`."""
        return min(max(self._time(when), above) + 1, END - 1)

    def merge(self, time: int, now: float) -> bool:
        """Take a time of another broker. Returns False if it is too far ahead to be a time of day;
        then it is ignored."""
        if (time >> LOGICAL) - self.physical(now) > self._ahead:
            return False
        self.last = max(self.last, time)
        return True
