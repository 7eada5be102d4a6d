"""Deadlines of many: none early, none more than a grain late, none for who left."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.base.timer_wheel import GRAIN, TimerWheel
from tests.kit.effort import examples


class Clock:
    """Calls what is scheduled when its time comes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = 0

    def schedule(self, when: float, call: Callable[[float], None]) -> None:
        self._number += 1
        heappush(self.timers, (when, self._number, call))

    def advance(self, to: float) -> None:
        while self.timers and self.timers[0][0] <= to:
            when, _, call = heappop(self.timers)
            self.now = max(self.now, when)
            call(self.now)
        self.now = to


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.floats(0.1, 50), st.booleans()), max_size=60))
def test_no_deadline_is_early_or_late_by_more_than_a_grain(
    wanted: list[tuple[float, bool]],
) -> None:
    clock = Clock()
    checked: dict[int, float] = {}
    wheel: TimerWheel[int] = TimerWheel(clock.schedule, checked.__setitem__)
    for item, (when, leaves) in enumerate(wanted):
        key = wheel.add(item, when)
        if leaves:
            wheel.discard(key, item)
            wheel.discard(key, item)
    clock.advance(100.0)
    assert checked.keys() == {item for item, (_, leaves) in enumerate(wanted) if not leaves}
    assert all(wanted[item][0] <= now <= wanted[item][0] + GRAIN for item, now in checked.items())
    assert len(wheel) == 0 and not clock.timers


def test_a_check_may_add_or_remove_items() -> None:
    clock = Clock()
    seen: list[tuple[str, float]] = []

    def check(item: str, now: float) -> None:
        seen.append((item, now))
        if item == "again" and now < 3:
            wheel.add("again", now + 1)
        if item == "first":
            wheel.discard(keys["second"], "second")

    wheel: TimerWheel[str] = TimerWheel(clock.schedule, check)
    keys = {item: wheel.add(item, 1.0) for item in ("second", "first", "again")}
    clock.advance(10.0)
    assert [item for item, _ in seen] == ["again", "first", "again", "again"]
    assert seen[-1] == ("again", 3.0)


def test_many_share_a_timer() -> None:
    clock = Clock()
    wheel: TimerWheel[int] = TimerWheel(clock.schedule, lambda item, now: None)
    for number in range(10_000):
        wheel.discard(wheel.add(number, 60.0 + number / 10_000), number)
    assert len(clock.timers) <= 1 / GRAIN + 1
    assert len(wheel) == 0
