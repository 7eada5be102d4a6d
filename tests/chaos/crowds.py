"""The processes of a measurement: each obeys; those of the crowd together compare what was
acknowledged with what came."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from tests.chaos import crowd
from tests.chaos.judge import Disorder, Range
from tests.chaos.plan import Plan

PATIENCE = 360.0
"""s until a process that does not answer is broken."""


class Helper:
    """A process that obeys."""

    def __init__(self, run: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        own, end = context.Pipe()
        self.orders: Connection = own
        self.process = context.Process(target=run, args=(*arguments, end), daemon=True)
        self.process.start()
        end.close()

    def answer(self) -> Any:
        if not self.orders.poll(PATIENCE):
            raise RuntimeError("a process of the measurement does not answer")
        return self.orders.recv()

    def __call__(self, *order: Any) -> Any:
        return self.ask(order)

    def ask(self, order: Any) -> Any:
        """Send one order as it is, and return the answer."""
        self.orders.send(order)
        return self.answer()

    def end(self) -> None:
        self.orders.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()


@dataclass(slots=True)
class Found:
    """What one comparison found."""

    broken: list[str] = field(default_factory=list)
    disorder: list[Disorder] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    alone: int = 0
    """Messages that a broker alone had that lost its data."""


class Crowds:
    """All processes of the crowd."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        sent = multiprocessing.get_context("spawn").RawArray("Q", len(plan.speakers))
        self.helpers = [Helper(crowd.run, plan, index, sent) for index in range(plan.processes)]

    def __call__(self, *order: Any) -> list[Any]:
        """The same order for all, at the same time."""
        for helper in self.helpers:
            helper.orders.send(order)
        return [helper.answer() for helper in self.helpers]

    def check(self) -> Found:
        """Everything that was sent before this is acknowledged and where it has to be, or is
        reported."""
        marks: dict[int, int] = {}
        voids: dict[int, list[Range]] = {}
        doubts: dict[int, Range] = {}
        for told in self("mark"):
            marks |= told["marks"]
            voids |= told["voids"]
            doubts |= told["doubts"]
        found = Found()
        excused = self._wait(found, marks, voids, doubts)
        for told in self("tell", marks, excused):
            found.broken += told["broken"]
            found.disorder += told["disorder"]
            late = max(found.counts[crowd.LATE], told["counts"].pop(crowd.LATE, 0))
            found.counts.update(told["counts"])
            found.counts[crowd.LATE] = late
        return found

    def _wait(
        self,
        found: Found,
        marks: dict[int, int],
        voids: dict[int, list[Range]],
        doubts: dict[int, Range],
    ) -> dict[int, list[Range]]:
        """Wait until everything has come; returns the messages that no subscriber is owed."""
        end = time.monotonic() + crowd.PATIENCE
        where = {
            number: (self.plan.speakers[number].broker, before)
            for number, (_, before) in doubts.items()
        }
        while True:
            excused = {number: list(ranges) for number, ranges in voids.items()}
            found.alone = 0
            reached = self("reach", where) if doubts else []
            for number, (first, behind) in doubts.items():
                begin = max(first, *(each[number] for each in reached))
                if begin < behind:
                    excused.setdefault(number, []).append((begin, behind))
                    found.alone += behind - begin
            found.missing = [line for lines in self("lacks", marks, excused) for line in lines]
            if not found.missing or time.monotonic() > end:
                return excused
            time.sleep(0.2)

    def end(self) -> None:
        """Leave nothing behind."""
        for helper in self.helpers:
            helper.end()


def spin(orders: Connection) -> None:
    """Use a processor until the other end closes."""
    while not orders.poll():
        sum(range(10_000))
