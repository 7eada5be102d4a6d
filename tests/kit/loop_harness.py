"""What drivers and protocols ask of an event loop and a transport, on a clock that is moved by
hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any


class Timer:
    """A call at a time (s)."""

    def __init__(self, when: float, call: Callable[[], Any]) -> None:
        self.when = when
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        """Do not call."""
        self.cancelled = True


class Loop:
    """An event loop that stands still between `turn`s; every look at the clock takes `cost` s."""

    def __init__(self) -> None:
        self.now = 100.0
        self.cost = 0.0
        self.ready: deque[Callable[[], Any]] = deque()
        self.timers: list[Timer] = []

    @property
    def armed(self) -> list[Timer]:
        """The timers that are not cancelled."""
        return [timer for timer in self.timers if not timer.cancelled]

    def time(self) -> float:
        """The time (s)."""
        self.now += self.cost
        return self.now

    def call_soon(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Call in the next turn."""
        self.ready.append(lambda: call(*arguments))

    def call_later(self, delay: float, call: Callable[..., Any], *arguments: Any) -> Timer:
        """Call after so many seconds."""
        self.timers.append(Timer(self.now + delay, lambda: call(*arguments)))
        return self.timers[-1]

    def call_at(self, when: float, call: Callable[[], Any]) -> Timer:
        """Call at this time."""
        return self.call_later(when - self.now, call)

    def turn(self) -> None:
        """Make the calls that are for the next turn."""
        for _ in range(len(self.ready)):
            self.ready.popleft()()

    def run(self, seconds: float = 0.0) -> None:
        """Let time pass, with a turn after each timer."""
        end = self.now + seconds
        self.turn()
        while due := [timer for timer in self.armed if timer.when <= end]:
            timer = min(due, key=lambda each: each.when)
            self.timers.remove(timer)
            self.now = max(self.now, timer.when)
            timer.call()
            self.turn()
        self.now = end


class Socket:
    """An asyncio transport of which reading and what was written matter."""

    def __init__(self) -> None:
        self.reading = True
        self.written = b""

    def get_extra_info(self, name: str) -> Any:
        """Return the other end's address."""
        return ("10.0.0.1", 1234) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        """Nothing is buffered."""

    def write(self, data: bytes) -> None:
        """Write."""
        self.written += data

    def pause_reading(self) -> None:
        """Read no more."""
        self.reading = False

    def resume_reading(self) -> None:
        """Read on."""
        self.reading = True

    def unsent(self) -> int:
        """Return what waits: nothing."""
        return 0
