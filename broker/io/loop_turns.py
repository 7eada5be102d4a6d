"""Turns of the event loop around a `Node`: flush, effects, deadline; no decisions."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from mqttree.broker.base.timers import NEVER, Deadline
from mqttree.broker.base.turns import Turns
from mqttree.broker.cluster.sessions.handover import TAKEOVER_SILENCE_S

if TYPE_CHECKING:
    from mqttree.broker.base.counters import Counters
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.io.freed_memory import FreedMemory
    from mqttree.broker.node import Node
    from mqttree.broker.persistence.limits import PersistenceLimits

MAX_READ_S = 0.005
"""s; a read whose handling took longer is the connection's last in this turn of the event loop:
a burst of many small messages from one publisher must not keep the others, links and timers
waiting."""

COLLECT_INTERVAL_S = 0.1
"""s between two times that the garbage collector looks through new objects; some ms. By
itself it comes when 30,000 objects more were made than went; where messages in the log, and
routes, make room for as many new ones that is not before it has 300,000 to look through: 170
ms."""


CHORES_PERIOD = 0.02
"""s between two times that chores are done, if there are turns: as often as memory is counted at
most."""

LATE_S = 0.1
"""s by which a timer is late if the process was stopped."""

WENT_ON = 1.0
"""s after a stop of the process in which new connections may have waited in the kernel during
it."""


class LoopTurns:
    """What is done in each turn of the loop `loop` for `node`, whatever its connections are.
    `on_effects` is called when the node has effects."""

    def __init__(
        self, node: Node, loop: asyncio.AbstractEventLoop, on_effects: Callable[[], None]
    ) -> None:
        self.node = node
        self.limits: PersistenceLimits = node.limits
        self.counters: Counters = node.counters
        self.turns: Turns = node.turns
        self.loop = loop
        # The clock of both loops in ns: uvloop rounds its time to ms, too coarse for round trips.
        self.time: Callable[[], float] = time.monotonic
        self._on_effects = on_effects
        self.flushing = False
        """Whether a flush is planned for the end of this turn of the loop."""
        self._deadline: Deadline = node.deadline
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self.stopped = False
        # When a stop of the process was last noticed (s).
        self._went_on = -WENT_ON
        self.frame_first = False
        """Whether a turn's frame of the journal is handed out ahead of its output: none of that has
        to be held back if the frame is written at once."""
        self.collect_at = NEVER
        """When the garbage collector is due (s); never in a process that is not only a broker."""
        self.freed_memory: FreedMemory | None = None
        """What is kept of freed memory; None in a process that is not only a broker."""
        self.chores_at = 0.0
        """When `chores` are due (s)."""
        # The CPU time of this thread when chores were done last (s).
        self._worked = time.thread_time()

    def went_on(self, now: float) -> bool:
        """Return whether this process was stopped until a moment before `now` (s), for so long that
        clients may have gone elsewhere."""
        if now > self._timer_at + TAKEOVER_SILENCE_S:
            self._went_on = now
        return now < self._went_on + WENT_ON

    def resumed(self, now: float) -> None:
        """Tell the node if its timer is late at `now` (s), as this process was stopped: ahead of
        what has come meanwhile."""
        if now > self._timer_at + LATE_S:
            self.node.on_resumed(now)

    def chores(self, now: float) -> None:
        """Do what is to be done now and then while there are turns: tell the node how long it has
        worked, keep memory for large messages, and run the garbage collector over new objects (it
        ignores those from before the start). `now`: s."""
        self.chores_at = now + CHORES_PERIOD
        worked = time.thread_time()
        self.node.memory.worked(worked - self._worked)
        self._worked = worked
        if self.node.large_message:
            self.node.large_message = False
            if self.freed_memory is not None:
                self.freed_memory.large_message()
        if now >= self.collect_at:
            self.collect_at = now + COLLECT_INTERVAL_S
            gc.collect(1)

    def wake(self, source: Connection | None = None) -> None:
        """Plan a flush for the end of this turn of the loop, however many connections were read in
        it.

        While a subscriber or link is behind, flush at once too, so that the publisher that was just
        read is the one that is paused.
        """
        if self.node.paused:
            self.node.output.flush(source)
        if not self.flushing:
            self.flushing = True
            self.loop.call_soon(self.run)

    def look(self, now: float) -> None:
        """Look for connections that were closed, which is due before anything is sent; `now`: s."""

    def run(self) -> None:
        """End a turn that may not have looked for connections that were closed."""
        now = self.time()
        self.look(now)
        self.end_turn()
        if now >= self.chores_at:
            self.chores(now)

    def end_turn(self) -> None:
        """Flush, hand out effects, arm the timer."""
        self.flushing = False
        node = self.node
        if self.frame_first:
            node.output.end_frame()
            if node.effects:
                self._on_effects()
        node.output.flush()
        if node.effects:
            self._on_effects()
            if node.dirty:
                node.output.flush()
                if node.effects:
                    self.wake()
        self.turns.work = 0
        if self._deadline.at < self._timer_at and not self.stopped:
            self._arm()

    def _arm(self) -> None:
        """Have the node called at its deadline."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._deadline.at
        # uvloop rounds to ms, possibly down.
        self._timer = self.loop.call_at(self._timer_at + 0.0005, self._tick)

    def _tick(self) -> None:
        began = self.time()
        self.went_on(began)
        self._timer = None
        self._timer_at = NEVER
        self.node.tick(began)
        self.run()
        self.turns.took(self.time() - began)

    def stop(self) -> None:
        """End the ticks of the node."""
        self.stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._timer_at = NEVER
