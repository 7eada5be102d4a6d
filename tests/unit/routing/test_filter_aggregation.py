"""Aggregation of filters: what is announced matches all that is wanted, always, and in the end no
more than is needed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.routing.filter_aggregation import SPELLINGS, FilterAggregation
from mqttree.routing.topic_filter import covers, matches, valid_topic_filter, valid_topic_name
from tests.kit.core import steps
from tests.kit.effort import examples

WORDS = ["", "a", "$s"]
FILTERS = [
    filter_
    for depth in (1, 2, 3)
    for levels in itertools.product([*WORDS, "+", "#"], repeat=depth)
    if valid_topic_filter(filter_ := "/".join(levels))
]
TOPICS = [
    topic
    for depth in (1, 2, 3, 4)
    for levels in itertools.product(["", "a", "$s", "z"], repeat=depth)
    if valid_topic_name(topic := "/".join(levels))
]
MATCHED = {
    filter_: frozenset(topic for topic in TOPICS if matches(filter_, topic)) for filter_ in FILTERS
}
ALL = 1_000_000
"""steps of work; more than there ever are."""


class Announced:
    """What the others know, as the work of a cover tells them."""

    def __init__(self) -> None:
        self.cover = FilterAggregation()
        self.known: set[str] = set()

    def work(self, steps: int = ALL) -> tuple[list[str], list[str]]:
        """Go on, and check that nothing is announced twice or in vain."""
        announced, withdrawn = self.cover.work(steps)
        assert len(set(announced)) == len(announced)
        assert not self.known & set(announced)
        assert self.known >= set(withdrawn)
        assert not set(announced) & set(withdrawn)
        self.known = self.known | set(announced) - set(withdrawn)
        self.known -= set(withdrawn)
        return announced, withdrawn

    def change(self, wanted: str) -> tuple[list[str], list[str]]:
        """Put a filter in (a), or take it out (-a), and do all the work; sorted."""
        if wanted.startswith("-"):
            self.cover.remove(wanted[1:])
        else:
            self.cover.add(wanted)
        announced, withdrawn = self.work()
        return sorted(announced), sorted(withdrawn)


def maximal(wanted: Iterable[str]) -> set[str]:
    """The filters that no other one covers, the slow way."""
    usual = {SPELLINGS.get(f, f) for f in wanted}
    return {f for f in usual if not any(covers(other, f) for other in usual if other != f)}


@pytest.mark.parametrize(
    "story",
    [
        # (filter, or -filter when it is unsubscribed; what is announced; what is withdrawn)
        # two spellings of one filter
        [("+/#", "#", ""), ("#", "", ""), ("-+/#", "", ""), ("-#", "", "#")],
        [("#", "#", ""), ("-+/#", "", ""), ("-#", "", "#")],
        [("a/b", "a/b", ""), ("a/+/#", "a/+/#", "a/b"), ("a", "a", ""), ("a/#", "a/#", "a a/+/#")],
        [
            ("1/2/3/4/5/6/7/8/9/a", "1/2/3/4/5/6/7/8/9/a", ""),
            ("1/2/3/4/5/6/7/8/x/+", "1/2/3/4/5/6/7/8/x/+", ""),
            ("1/2/3/4/5/6/7/8/9/+", "1/2/3/4/5/6/7/8/9/+", "1/2/3/4/5/6/7/8/9/a"),
        ],
    ],
)
def test_only_filters_that_no_other_one_covers_are_announced(
    story: list[tuple[str, str, str]],
) -> None:
    announced = Announced()
    for wanted, new, gone in story:
        assert announced.change(wanted) == (new.split(), gone.split()), wanted
    assert not announced.cover.busy


changes = st.lists(
    st.tuples(st.booleans(), st.sampled_from(FILTERS), st.sampled_from([0, 1, 2, 3, ALL])),
    max_size=40,
)


@settings(max_examples=examples(300), deadline=None)
@given(changes)
def test_every_wanted_topic_is_covered_at_every_moment(story: list[tuple[bool, str, int]]) -> None:
    """With as little work between changes as may be; once it is done, what is announced is what no
    other filter covers."""
    announced = Announced()
    wanted: set[str] = set()
    for add, topic_filter, pieces in story:
        if add:
            announced.cover.add(topic_filter)
            wanted.add(topic_filter)
        else:
            announced.cover.remove(topic_filter)
            wanted.discard(topic_filter)
        announced.work(pieces)
        known = frozenset[str]().union(*(MATCHED[f] for f in announced.known))
        assert known >= frozenset[str]().union(*(MATCHED[f] for f in wanted))
        assert announced.cover.busy or announced.known == maximal(wanted)
    announced.work()
    assert announced.known == maximal(wanted)
    assert len(announced.cover) == len({SPELLINGS.get(f, f) for f in wanted})
    assert all(SPELLINGS.get(f, f) in announced.cover for f in wanted)
    for topic_filter in wanted:
        announced.cover.remove(topic_filter)
    announced.work()
    assert not announced.known
    assert not any(
        getattr(announced.cover, name)
        for name in ("_maximal", "_leaving", "_over", "_under", "_wild", "_changes")
    )
    assert not any(announced.cover._at)


def changed(cover: FilterAggregation, story: Iterable[tuple[bool, str]]) -> None:
    """Add (True) or remove filters, and do their work."""
    for add, topic_filter in story:
        if add:
            cover.add(topic_filter)
        else:
            cover.remove(topic_filter)
        cover.work(ALL)


@pytest.mark.parametrize(
    "shape",
    ["site/{0}/+/temp", "site/+/kind{0}", "+/{0}/#", "site/{0}", "site/+/{0}/#", "site/{1}/+/{2}"],
)
def test_a_filter_costs_the_same_among_many(shape: str) -> None:
    """A hundred more come and go among 500 of the same shape, and among ten times as many: the same
    lines run."""
    costs = []
    for size in (500, 5000):
        cover = FilterAggregation()
        for number in range(size):
            cover.add(shape.format(number, number // 30, number % 30))
            cover.work(ALL)
        more = [shape.format(number, number, "x") for number in range(size, size + 100)]
        story = [(add, f) for add in (True, False) for f in more]
        costs.append(steps(lambda cover=cover, story=story: changed(cover, story)))
    assert costs[1] < 1.2 * costs[0]


def test_a_filter_that_covers_all_is_handled_in_pieces() -> None:
    """Whatever the order, no piece does more than it is asked to; and what was announced before is
    so again."""
    announced = Announced()
    wanted = [f"site/{number}/+/temp" for number in range(2000)] + [
        f"site/{number}" for number in range(2000)
    ]
    random.Random(7).shuffle(wanted)
    for topic_filter in wanted:
        announced.cover.add(topic_filter)
    announced.work()
    assert announced.known == set(wanted)
    announced.cover.add("site/#")
    pieces = []
    while announced.cover.busy:
        pieces.append(announced.work(100))
    assert pieces[0][0] == ["site/#"]
    assert max(len(gone) for _, gone in pieces) == 100
    assert announced.known == {"site/#"}
    announced.cover.remove("site/#")
    while announced.cover.busy:
        new, gone = announced.work(100)
        assert len(new) <= 100
        assert not gone or announced.known == set(wanted)
    assert announced.known == set(wanted)
