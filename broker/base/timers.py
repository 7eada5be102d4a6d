"""The timers of one broker: calls at a later time (docs/decisions/0032)."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Protocol

Call = Callable[[float], None]
"""Called with now (s)."""

NEVER = math.inf
"""s; later than all times."""

MANY_CANCELLED = 1000
"""cancelled timers that may be in the heap; more are removed as soon as they are half of it."""


class Timer:
    """A scheduled call; `Timers.cancel` cancels it."""

    __slots__ = ("call",)

    def __init__(self, call: Call) -> None:
        self.call: Call | None = call


class Deadline:
    """When the driver is to call next, noted by whoever plans something: the driver need not ask
    all of them after each turn."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = NEVER
        """s; never later than the true deadline. It may be earlier, as it is not moved back when a
        plan is dropped: the call does nothing then."""

    def by(self, when: float) -> None:
        """Have the driver call at `when` (s) at the latest."""
        self.at = min(self.at, when)


class Timers:
    """The timers of one broker, the earliest first."""

    __slots__ = ("_cancelled", "_deadline", "_heap", "_numbers")

    def __init__(self, deadline: Deadline | None = None) -> None:
        """`deadline`: is told of each new timer; None: it is not asked for."""
        self._deadline = deadline if deadline is not None else Deadline()
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = count()
        self._cancelled = 0

    def __len__(self) -> int:
        """The number of timers in the heap, cancelled ones included."""
        return len(self._heap)

    def schedule(self, when: float, call: Call) -> Timer:
        """Call `call(now)` once, at `when` (s) or a little later."""
        timer = Timer(call)
        heappush(self._heap, (when, next(self._numbers), timer))
        self._deadline.by(when)
        return timer

    def cancel(self, timer: Timer) -> None:
        """Do not call. What the timer refers to is free at once, its place in the heap soon:
        clients that come and go, each with a timer in a day, must not fill the memory."""
        if timer.call is not None:
            timer.call = None
            self._cancelled += 1
            if self._cancelled > MANY_CANCELLED and 2 * self._cancelled > len(self._heap):
                self._heap[:] = [entry for entry in self._heap if entry[2].call is not None]
                heapify(self._heap)
                self._cancelled = 0

    def fire(self, now: float, full: Callable[[], bool]) -> None:
        """Make the calls that are due at `now` (s), as many as fit into one turn: `full` is asked
        after each, and the others stay due."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            call = heappop(heap)[2].call
            if call is None:
                self._cancelled -= 1
            else:
                call(now)
                if full():
                    return

    def next_deadline(self) -> float | None:
        """When `fire` is due (s), None when never."""
        return self._heap[0][0] if self._heap else None


class TimedBroker(Protocol):
    """What a module with timers asks of its broker."""

    now: float
    """The time of this turn (s, monotonic). A function that a timer calls sets it first."""

    @property
    def timers(self) -> Timers:
        """Calls at a later time."""
