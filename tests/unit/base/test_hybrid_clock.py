"""The hybrid clock: order of what is heard of, closeness to the time of day."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.hybrid_clock import END, LOGICAL, MAX_CLOCK_AHEAD_S, HybridClock

WALL = 1.7e9
MS = int(WALL * 1000)


def test_the_hybrid_clock_follows_the_time_of_day() -> None:
    clock = HybridClock(50.0, WALL)
    assert clock.tick(50.0) == MS << LOGICAL
    assert clock.tick(50.0) == (MS << LOGICAL) + 1
    assert clock.tick(51.5) == MS + 1500 << LOGICAL
    clock.set_wall(WALL + 100, 51.5)
    assert clock.tick(51.5) == MS + 100_000 << LOGICAL


def test_a_tick_comes_after_every_stamp_that_was_heard() -> None:
    clock = HybridClock(0.0, WALL)
    heard = MS + 5_000 << LOGICAL
    assert clock.merge(heard, 0.0)
    assert clock.tick(0.0) == heard + 1
    assert clock.merge(heard - 7, 0.0)
    assert clock.tick(0.0) == heard + 2
    assert clock.tick(5.001) >> LOGICAL == MS + 5_001


def test_a_clock_far_ahead_is_not_followed() -> None:
    clock = HybridClock(0.0, WALL)
    ahead = MS + int(MAX_CLOCK_AHEAD_S * 1000)
    assert not clock.merge(ahead + 1 << LOGICAL, 0.0)
    assert clock.tick(0.0) >> LOGICAL == MS
    assert clock.tick(0.0, ahead + 1 << LOGICAL) == (ahead + 1 << LOGICAL) + 1  # one topic's time
    assert clock.tick(0.0) >> LOGICAL == MS
    assert clock.merge(ahead << LOGICAL, 0.0)
    assert clock.tick(0.0) >> LOGICAL == ahead


def test_a_time_of_day_that_was_wrong_is_left_behind() -> None:
    clock = HybridClock(0.0, WALL + 1e6)
    wrong = clock.tick(0.0)
    clock.set_wall(WALL, 1.0)
    assert clock.tick(1.0) >> LOGICAL == MS
    assert clock.tick(1.0, wrong) == wrong + 1


def test_the_clock_ends_at_the_last_stamp() -> None:
    clock = HybridClock(0.0, WALL)
    assert clock.tick(0.0, END - 1) == END - 1
    assert HybridClock(0.0, -5.0).physical(1.0) == 0


@given(st.lists(st.tuples(st.floats(-200, 200), st.integers(MS - 10**7, MS + 10**7)), max_size=30))
def test_ticks_always_grow(steps: list[tuple[float, int]]) -> None:
    """While the time of day is set by less than `MAX_CLOCK_AHEAD_S` at a time, as against what was
    given out."""
    clock = HybridClock(0.0, WALL)
    last = 0
    for now, (shift, heard) in enumerate(steps):
        clock.set_wall(WALL + shift / 2, now)
        clock.merge(heard << LOGICAL, now)
        if (clock.last >> LOGICAL) - clock.physical(now) <= MAX_CLOCK_AHEAD_S * 1000:
            time = clock.tick(now)
            assert time > last
            last = time


def test_stamps_within_a_millisecond_keep_the_order_between_brokers() -> None:
    """A client that goes to another broker within a millisecond has the newer connection there."""
    one, other = HybridClock(0.0, MS / 1000), HybridClock(0.0, MS / 1000)
    assert one.tick(0.0002) < other.tick(0.0004) < one.tick(0.0006)
