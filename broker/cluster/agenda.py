"""When the cluster is to be called, and what it carries out then."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqttree.broker.base.timers import Deadline

TIMER_DELAY = 0.1
"""s; a timer that is later than this says that this broker did not run meanwhile: a turn of the
loop takes less."""

MAX_ROUNDS = 16
"""rounds of decisions in one call: each can only lead to a few more, and the rest follows at the
next tick."""

Step = Callable[[float], object]
"""Carries out something at a time (s); returns whether that may lead to more."""


class Agenda:
    """The plans of one broker's cluster."""

    def __init__(self, driver: Deadline, hello: float, late: float, now: float) -> None:
        """`driver`: when it is to call next; `hello`: s, after which there is something to do in
        any case; `late`: s after a time in which this broker did not run, in which it may handle
        what is older than that; `now`: s."""
        self._driver = driver
        self._hello = hello
        self._late = late
        self.due = now
        """s; whoever makes it earlier tells the driver."""
        self._planned = now  # the same, without `hurry`
        self._ran = now  # s; this broker was running then
        # s; it stopped after this, and ran again so long ago that it handles nothing older any more
        self._stopped, self._late_until = now, 0.0
        self._active: Callable[[], bool] = lambda: True
        self._steps: tuple[Step, ...] = ()
        self._ends: tuple[Step, ...] = ()
        self._deadlines: tuple[Callable[[float], float | None], ...] = ()
        self._suspended: tuple[Callable[[float, float], None], ...] = ()

    def connect(
        self,
        active: Callable[[], bool],
        *,
        steps: tuple[Step, ...],
        ends: tuple[Step, ...],
        deadlines: tuple[Callable[[float], float | None], ...],
        suspended: tuple[Callable[[float, float], None], ...],
    ) -> None:
        """Take what is to be called. `active`: returns whether there are other brokers, or may be;
        `steps`: again and again, until none leads to more; `ends`: once, behind them; `deadlines`:
        each returns when it is due (s), at a time; `suspended`: when this broker did not run for so
        long (s), at a time."""
        self._active = active
        self._steps = steps
        self._ends = ends
        self._deadlines = deadlines
        self._suspended = suspended

    def next_deadline(self) -> float | None:
        """When `Cluster.tick` is due (s); None: never."""
        return self.due if self._active() else None

    def awake(self, now: float) -> None:
        """Note that this broker runs. If it was stopped or starved, the silence of others proves
        nothing, as they could not be heard. To be called ahead of all that judges silence. The
        planned time of a timer is compared, as its due time may have been hurried."""
        if now - self._planned > TIMER_DELAY:
            stood = now - self._ran
            if stood > TIMER_DELAY:
                self._stopped, self._late_until = self._ran, now + self._late
            for call in self._suspended:
                call(stood, now)
        self._ran = now

    def reads_late(self, now: float) -> None:
        """Note that what has come while this broker did not run is read from `now` (s) on."""
        self._late_until = now + self._late

    def stopped(self, now: float) -> float | None:
        """Return when (s) this broker stopped, if it did not run for a while and what it handles at
        `now` (s) may have been sent before that; else None."""
        if not self._active():
            return None
        self.awake(now)
        return self._stopped if now < self._late_until else None

    def hurry(self, at: float) -> None:
        """Have `Cluster.tick` called at `at` (s), or as soon as it can be. A time that has passed
        is fine: only planned times show that the process was stopped."""
        self.due = min(self.due, at)
        self.plan()

    def plan(self) -> None:
        """Have the driver call when something is due."""
        due = self.next_deadline()
        if due is not None:
            self._driver.by(due)

    def settle(self, now: float) -> None:
        """Carry out what discovery and the tree decided, until neither decides more."""
        self.awake(now)
        for _ in range(MAX_ROUNDS):
            busy = False
            for step in self._steps:
                busy |= bool(step(now))
            if not busy:
                break
        for end in self._ends:
            end(now)
        due = now + self._hello
        for deadline in self._deadlines:
            at = deadline(now)
            if at is not None and at < due:
                due = at
        self.due = self._planned = max(now + 0.001, due)
        self.plan()
