"""Filters of a client that can match a common topic belong together."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from mqttree.routing.filter_units import COUNTED, MAX_LOOKS, filter_units
from mqttree.routing.topic_filter import matches, overlaps, valid_topic_filter

LEVELS = ("a", "b", "$c", "+", "#", "")
NAMES = [
    "/".join(levels)
    for depth in range(1, 5)
    for levels in product(("a", "b", "$c", ""), repeat=depth)
    if any(levels) or depth > 1
]
FILTERS = (
    st.lists(st.sampled_from(LEVELS), min_size=1, max_size=3)
    .map("/".join)
    .filter(valid_topic_filter)
)


@given(FILTERS, FILTERS)
def test_filters_overlap_exactly_if_a_topic_matches_both(one: str, other: str) -> None:
    common = any(matches(one, name) and matches(other, name) for name in NAMES)
    assert overlaps(one, other) is overlaps(other, one) is common


@given(st.lists(FILTERS, unique=True, max_size=12))
def test_filters_of_two_units_never_overlap_and_those_of_one_are_connected(
    filters: list[str],
) -> None:
    units, _ = filter_units(filters)
    assert sorted(name for unit in units for name in unit) == sorted(filters)
    for number, unit in enumerate(units):
        for other in units[number + 1 :]:
            assert not any(overlaps(a, b) for a, b in product(unit, other))
        reached, left = [unit[0]], set(unit[1:])
        while reached:
            found = {name for name in left if overlaps(reached[-1], name)}
            reached = [*reached[:-1], *found]
            left -= found
        assert not left


def test_alike_filters_take_work_by_their_number_and_not_by_their_pairs() -> None:
    filters = [f"+/{number}/x" for number in range(1000)]
    units, looks = filter_units(filters)
    assert units == [[name] for name in filters]
    assert looks <= 10 * len(filters)


def test_very_many_that_overlap_take_bounded_work_and_are_one_group() -> None:
    filters = [f"+/{number}/+" for number in range(500)] + [
        f"{number}/+/x" for number in range(500)
    ]
    units, looks = filter_units(filters)
    assert units == [filters]
    assert looks <= MAX_LOOKS + 1


def test_very_long_filters_are_one_group_before_they_are_noted() -> None:
    filters = [f"{number}/+{'/a' * 198}" for number in range(1000)]
    units, looks = filter_units(filters)
    assert units == [filters]
    assert looks == 1000 * 200 // COUNTED, "who asks pays for what was counted"
    few = filters[:100]
    assert filter_units(few)[0] == [[name] for name in few]


def test_many_filters_with_different_beginnings_stay_apart() -> None:
    filters = [f"site/{number}/#" for number in range(1000)]
    assert len(filter_units(filters)[0]) == 1000
