"""Sets of sequence numbers against Python's own sets, and what a window costs however many pieces
it is in."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.base.sequence_set import (
    LAST,
    MAX_SKIPS,
    Ranges,
    find,
    intersect,
    merge,
    subtract,
    within,
)
from mqttree.broker.cluster.delivery.local_window import LocalWindow
from mqttree.broker.limits import Limits
from tests.kit.core import steps
from tests.kit.effort import examples

NUMBERS = st.sets(st.integers(1, 40), max_size=25)


def ranges(numbers: set[int]) -> Ranges:
    return merge([(n, n) for n in numbers])


def members(found: Ranges) -> set[int]:
    return {n for low, high in found for n in range(low, high + 1)}


@given(NUMBERS, st.integers(1, 42), st.integers(1, 6))
def test_the_first_range_with_any_of_some_numbers_is_found(
    numbers: set[int], first: int, count: int
) -> None:
    pairs = ranges(numbers)
    wanted = set(range(first, first + count))
    with_some = [index for index, pair in enumerate(pairs) if members([pair]) & wanted]
    assert find(pairs, first, first + count - 1) == (with_some[0] if with_some else -1)


@given(NUMBERS, NUMBERS)
def test_ranges_behave_like_sets(some: set[int], others: set[int]) -> None:
    assert members(intersect(ranges(some), ranges(others))) == some & others
    assert members(subtract(ranges(some), ranges(others))) == some - others
    assert members(merge(ranges(some) + ranges(others))) == some | others


@given(NUMBERS, st.integers(1, 42), st.integers(1, 6))
def test_a_part_of_ranges_is_found(numbers: set[int], first: int, count: int) -> None:
    pair = first, first + count - 1
    assert within(ranges(numbers), *pair) == intersect(ranges(numbers), [pair])


@settings(max_examples=examples(200), deadline=None)
@given(
    NUMBERS,
    NUMBERS,
    st.lists(st.tuples(st.integers(1, 44), st.integers(1, 4)), max_size=30),
    st.booleans(),
)
def test_a_window_behaves_like_a_set_of_numbers(
    gaps: set[int], history: set[int], came: list[tuple[int, int]], earlier: bool
) -> None:
    """What it takes, and what is left of what it misses and what it does not; `earlier`: of an
    earlier incarnation of the broker."""
    window = LocalWindow(40, 0.0, None, Limits().max_gaps)
    window.begin = LAST if earlier else 0
    missed, unmissed = set(gaps), history - gaps
    window.gaps, window.history = ranges(missed), ranges(unmissed)
    for first, count in came:
        numbers = set(range(first, first + count))
        top = window.top
        new = window.accept(first, count)
        if new == count and first <= top:
            assert numbers <= missed or numbers <= unmissed
        elif new == count:
            (missed if earlier else unmissed).update(range(top + 1, first))
        elif new == 0:
            assert not numbers & (missed | unmissed)
        else:
            assert numbers & (missed | unmissed) or first + count - 1 > top
        if new == count:
            missed -= numbers
            unmissed -= numbers
        assert (members(window.gaps), members(window.history)) == (missed, unmissed)


def test_the_cost_of_a_number_does_not_depend_on_the_gaps() -> None:
    """A broker that joins gets retained messages in the order of hashes."""

    def cost(many: int) -> int:
        window = LocalWindow(10 * many, 0.0, None, Limits().max_gaps)
        window.history = [(1, 10 * many)]
        order = list(range(2, 10 * many, 2))
        random.Random(1).shuffle(order)
        for number in order[:many]:
            assert window.accept(number, 1) == 1 or len(window.history) >= MAX_SKIPS // 2
        assert len(window.history) <= MAX_SKIPS
        return max(
            steps(lambda number=number: window.accept(number, 1))
            for number in order[many : many + 50]
        )

    assert cost(3_000) <= 1.5 * cost(100)
