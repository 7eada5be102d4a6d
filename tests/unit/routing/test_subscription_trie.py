from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from mqttree.routing.subscription_trie import (
    LONGEST_PREFIX,
    MAX_ALIKE,
    PREFIXES,
    SubscriptionTrie,
    TopicTrie,
)
from mqttree.routing.topic_filter import (
    MAX_TOPIC_BYTES,
    matches,
    valid_topic_filter,
    valid_topic_name,
)
from tests.kit.core import steps
from tests.kit.effort import examples

WORDS = ["", "a", "b", "$s"]
TOPICS = [
    topic
    for depth in (1, 2, 3)
    for levels in itertools.product(WORDS, repeat=depth)
    if valid_topic_name(topic := "/".join(levels))
]
FILTERS = [
    filter_
    for depth in (1, 2, 3)
    for levels in itertools.product([*WORDS, "+", "#"], repeat=depth)
    if valid_topic_filter(filter_ := "/".join(levels))
]

some_topics = st.sampled_from(TOPICS)
some_filters = st.sampled_from(FILTERS)


def nodes(root: Any) -> Iterator[Any]:
    """All nodes of either trie."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, str):  # a topic that stands alone
            continue
        stack.extend((node.children or {}).values())
        if getattr(node, "plus", None) is not None:
            stack.append(node.plus)


def filled(filters: list[str]) -> SubscriptionTrie[str]:
    trie: SubscriptionTrie[str] = SubscriptionTrie()
    for filter_ in filters:
        assert trie.insert(filter_, "key", filter_)
    return trie


def stored(topics: list[str]) -> TopicTrie[str]:
    trie: TopicTrie[str] = TopicTrie()
    for topic in topics:
        trie.set(topic, topic.upper())
    return trie


# Subscriptions


def test_every_small_filter_against_every_small_topic() -> None:
    trie = filled(FILTERS)
    for topic in TOPICS:
        assert sorted(trie.match(topic)) == sorted(f for f in FILTERS if matches(f, topic)), topic
    for filter_ in FILTERS:
        alone = filled([filter_])
        assert [t for t in TOPICS if alone.match(t)] == [
            t for t in TOPICS if matches(filter_, t)
        ], filter_


@pytest.mark.parametrize(
    "filters", list(itertools.combinations(["a/+", "a/#", "+/+", "+/b", "a/b"], 3))
)
def test_topics_of_the_same_first_levels_find_what_a_new_trie_finds(filters: list[str]) -> None:
    trie = filled(list(filters))
    for topic in (*TOPICS, *reversed(TOPICS)):
        assert trie.match(topic) == filled(list(filters)).match(topic), topic


def test_what_is_noted_of_first_levels_is_forgotten_with_every_change() -> None:
    trie = filled(["a/+"])
    assert trie.match("a/x") == trie.match("a/y") == ["a/+"]
    trie.insert("a/x", "key", "exact")
    assert trie.match("a/x") == ["exact", "a/+"]
    trie.insert("a/+", "other", "second")
    assert trie.match("a/y") == ["a/+", "second"]
    trie.match("a/y").clear()
    assert trie.match("a/y") == ["a/+", "second"]
    trie.remove("a/+", "key")
    assert trie.match("a/y") == ["second"]
    trie.remove("a/+", "other")
    assert trie.match("a/y") == []


def test_few_first_levels_are_noted_and_no_long_ones() -> None:
    trie = filled(["+/+"])
    for number in range(3 * PREFIXES):
        assert trie.match(f"{number}/x") == ["+/+"]
    assert 0 < len(trie._alike) <= PREFIXES
    trie = filled(["+/+"])
    trie.match("a" * (LONGEST_PREFIX + 1) + "/x")
    assert not trie._alike
    for key in range(MAX_ALIKE + 1):
        trie.insert("+/+", key, "more")
    trie.match("a/x")
    assert not trie._alike


@pytest.mark.parametrize("filter_", ["a", "+/b", "a/#", "a/#/b", "a+", "+#", "", "/" * 9])
def test_missing_is_no_error(filter_: str) -> None:
    trie = filled(["a/b/c", "a/+/c", "a/b/#"])
    assert trie.remove(filter_, "key") is False
    assert trie.remove("a/b/c", "other") is False
    assert trie.remove("a/b/#", "other") is False
    assert trie.get(filter_, "key") is None
    assert len(trie) == 3


@pytest.mark.parametrize("filter_", ["a+", "a/+b", "#/a", "a/#/b", "##", "a#", "+#"])
def test_malformed_filter_changes_nothing(filter_: str) -> None:
    trie: SubscriptionTrie[int] = SubscriptionTrie()
    with pytest.raises(ValueError, match="malformed"):
        trie.insert(filter_, "key", 1)
    assert (len(trie), list(trie.filters())) == (0, [])
    assert trie._root.is_empty()


def test_values_of_a_filter_come_in_order_of_arrival() -> None:
    for filter_ in ("a", "+", "#"):
        trie: SubscriptionTrie[int] = SubscriptionTrie()
        for key in (3, 1, 2):
            trie.insert(filter_, key, key * 10)
        trie.insert(filter_, 3, 99)  # replaced in its place
        assert trie.match("a") == [99, 10, 20]
        trie.remove(filter_, 3)
        trie.insert(filter_, 3, 30)
        assert trie.match("a") == [10, 20, 30]


def test_none_is_a_value_and_equal_keys_are_one() -> None:
    trie: SubscriptionTrie[None] = SubscriptionTrie()
    assert trie.insert("a", 1, None)
    assert not trie.insert("a", 1.0, None)
    assert trie.match("a") == [None]
    assert trie.remove("a", True) is True


def test_the_lists_returned_are_the_callers() -> None:
    trie = filled(["a"])
    trie.match("a").clear()
    assert trie.match("a") == ["a"]


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.text(alphabet="ab/+#$ \u00e9", min_size=1).filter(valid_topic_filter), unique=True),
    st.text(alphabet="ab/$ \u00e9", min_size=1),
)
def test_match_is_the_definition_for_any_text(filters: list[str], topic: str) -> None:
    assert sorted(filled(filters).match(topic)) == sorted(f for f in filters if matches(f, topic))


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(some_filters, unique=True), st.randoms(use_true_random=False))
def test_removal_leaves_no_node_behind(filters: list[str], rng: random.Random) -> None:
    trie = filled(filters)
    rng.shuffle(filters)
    while filters:
        assert trie.remove(filters.pop(), "key")
        alike = filled(filters)
        assert sum(1 for _ in nodes(trie._root)) == sum(1 for _ in nodes(alike._root))
    assert trie._root.is_empty() and trie._root.children is None


class SubscriptionMachine(RuleBasedStateMachine):
    """Any sequence of changes against a dict of dicts."""

    used = Bundle("used")

    def __init__(self) -> None:
        super().__init__()
        self.trie: SubscriptionTrie[int] = SubscriptionTrie()
        self.model: dict[str, dict[int, int]] = {}

    @rule(target=used, filter_=some_filters, key=st.integers(0, 3), value=st.integers(0, 9))
    def insert(self, filter_: str, key: int, value: int) -> tuple[str, int]:
        assert self.trie.insert(filter_, key, value) is (filter_ not in self.model)
        self.model.setdefault(filter_, {})[key] = value
        return filter_, key

    @rule(pair=used)
    def remove_used(self, pair: tuple[str, int]) -> None:
        self.remove(*pair)

    @rule(filter_=some_filters, key=st.integers(0, 3))
    def remove_any(self, filter_: str, key: int) -> None:
        self.remove(filter_, key)

    def remove(self, filter_: str, key: int) -> None:
        holders = self.model.get(filter_, {})
        there = holders.pop(key, None) is not None
        last = there and not holders
        if last:
            del self.model[filter_]
        assert self.trie.remove(filter_, key) is last

    @precondition(lambda self: self.model)
    @rule(topic=some_topics)
    def match(self, topic: str) -> None:
        expected = [
            v for f, holders in self.model.items() if matches(f, topic) for v in holders.values()
        ]
        found = self.trie.match(topic)
        assert sorted(found) == sorted(expected)
        # What was noted of the first levels gives the same, in the same order.
        assert self.trie.match(topic) == found

    @rule(filter_=some_filters, key=st.integers(0, 3))
    def get(self, filter_: str, key: int) -> None:
        assert self.trie.get(filter_, key) == self.model.get(filter_, {}).get(key)
        assert (filter_ in self.trie) is (filter_ in self.model)

    @invariant()
    def counts(self) -> None:
        assert len(self.trie) == sum(map(len, self.model.values()))
        assert sorted(self.trie.filters()) == sorted(self.model)
        assert self.trie._root.is_empty() is not any(map(self.trie._wild.__contains__, self.model))


SubscriptionMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
TestSubscriptionMachine = SubscriptionMachine.TestCase


# Subscriptions that mean harm


@pytest.mark.parametrize("last", ["+", "#", ""])
def test_the_deepest_filter_matches(last: str) -> None:
    depth = MAX_TOPIC_BYTES // 2
    filter_ = "+/" * depth + last
    trie = filled([filter_])
    assert trie.match("/" * depth) == [filter_]
    assert trie.match("/" * MAX_TOPIC_BYTES) == ([filter_] if last == "#" else [])
    assert trie.match("/" * (depth - 2)) == []
    assert trie.remove(filter_, "key")
    assert trie._root.is_empty()


def test_the_deepest_literal_levels_match() -> None:
    filter_ = "/" * (MAX_TOPIC_BYTES - 1) + "#"
    trie = filled([filter_, "/" * MAX_TOPIC_BYTES])
    assert len(trie.match("/" * MAX_TOPIC_BYTES)) == 2
    del trie  # a chain of 65,535 nodes is freed without recursion


def test_cost_is_linear_in_depth() -> None:
    def cost(depth: int) -> int:
        trie = filled(["+/" * depth + "x", "/" * depth + "+", "+/" * depth + "#"])
        return steps(lambda: trie.match("/" * depth + "y"))

    assert cost(4000) < 2.2 * cost(2000)


def test_deep_topics_cost_no_more_than_the_filters_are_deep() -> None:
    trie = filled(["a/+/b", "+/+", "a/b/c/+"])
    assert steps(lambda: trie.match("/" * MAX_TOPIC_BYTES)) == steps(lambda: trie.match("////"))


def test_cost_of_wildcard_chains_is_bounded_by_the_nodes() -> None:
    """Filters +/+/.../x of every depth are 2**depth paths to a matcher that retries, and few nodes
    to this one."""
    filters = ["+/" * depth + tail for depth in range(200) for tail in ("a/x", "#", "+/x")]
    trie = filled(filters)
    visited = sum(1 for _ in nodes(trie._root))
    for topic in ("a/" * 200 + "y", "a/" * 400, "/" * 201):
        assert steps(lambda topic=topic: trie.match(topic)) < 40 * visited
        assert sorted(trie.match(topic)) == sorted(f for f in filters if matches(f, topic))


def test_cost_does_not_depend_on_other_peoples_filters() -> None:
    def cost(width: int) -> int:
        trie = filled(
            [f"device/{n}/+" for n in range(width)] + [f"device/{n}/state" for n in range(width)]
        )
        assert trie.match("device/7/state") == ["device/7/state", "device/7/+"]
        return steps(lambda: trie.match("device/7/state"))

    assert cost(20_000) == cost(20)


def test_cost_of_change_does_not_depend_on_the_number_of_subscribers() -> None:
    def cost(width: int) -> int:
        trie: SubscriptionTrie[int] = SubscriptionTrie()
        for key in range(width):
            trie.insert("a/#", key, key)
        return steps(
            lambda: (trie.insert("a/#", -1, 0), trie.insert("a/+", 0, 0), trie.remove("a/#", 0))
        )

    assert cost(20_000) == cost(20)


# Topics


def test_every_small_topic_against_every_small_filter() -> None:
    trie = stored(TOPICS)
    for filter_ in FILTERS:
        found = trie.match(filter_)
        assert sorted(found) == sorted((t, t.upper()) for t in TOPICS if matches(filter_, t)), (
            filter_
        )
        assert found == trie.match(filter_)


def test_set_get_pop() -> None:
    trie: TopicTrie[int | None] = TopicTrie()
    trie.set("a/b", 1)
    trie.set("a", 2)
    trie.set("a/b", None)
    assert (len(trie), trie.get("a"), trie.get("a/b"), trie.get("b")) == (2, 2, None, None)
    assert "a/b" in trie and "a/b/c" not in trie
    assert trie.match("a/b") == [("a/b", None)]
    assert sorted(trie.items()) == [("a", 2), ("a/b", None)]
    assert trie.pop("a/b/c") is None
    assert trie.pop("") is None
    assert trie.pop("a") == 2
    assert trie.pop("a") is None
    assert trie.match("#") == [("a/b", None)]
    assert trie.pop("a/b") is None
    assert (len(trie), trie.match("#"), trie._root.children) == (0, [], None)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(some_topics, st.none() | st.integers(0, 9))), st.lists(some_filters))
def test_the_table_of_topics_behaves_like_a_dict(
    changes: list[tuple[str, int | None]], filters: list[str]
) -> None:
    trie: TopicTrie[int] = TopicTrie()
    model: dict[str, int] = {}
    for topic, value in changes:  # None clears, as an empty retained payload does
        if value is None:
            assert trie.pop(topic) == model.pop(topic, None)
        else:
            trie.set(topic, value)
            model[topic] = value
    assert len(trie) == len(model)
    assert dict(trie.items()) == model
    for filter_ in filters:
        assert sorted(trie.match(filter_)) == sorted(
            (t, v) for t, v in model.items() if matches(filter_, t)
        )
    assert sum(1 for _ in nodes(trie._root)) == sum(1 for _ in nodes(stored(list(model))._root))


def test_the_deepest_topic_is_found() -> None:
    topic = "/" * MAX_TOPIC_BYTES
    trie = stored([topic, "a"])
    for filter_ in ("#", "/#", "/" * 32_000 + "#", "+/" * 32_000 + "#"):
        assert (topic, topic) in trie.match(filter_)
    assert trie.match("+/" * 32_000 + "+") == []
    assert trie.pop(topic) == topic
    assert [t for t, _ in trie.match("#")] == ["a"]
    assert sum(1 for _ in nodes(trie._root)) == 2


def test_topic_cost_is_that_of_the_branch() -> None:
    def cost(width: int, filter_: str) -> int:
        trie = stored([f"device/{n}/{part}" for n in range(width) for part in ("state", "error")])
        assert len(trie.match(filter_)) > 0
        return steps(lambda: trie.match(filter_))

    for filter_ in ("device/7/+", "device/7/#", "+/7/state", "device/7/state"):
        assert cost(20_000, filter_) == cost(5000, filter_)  # in parts
        assert cost(4000, filter_) == cost(20, filter_) >= cost(5000, filter_) - 1
    assert cost(4000, "device/+/state") < 2.2 * cost(2000, "device/+/state")
    assert cost(4000, "#") < 2.2 * cost(2000, "#")


def test_topic_cost_of_wildcard_chains_is_bounded_by_the_nodes() -> None:
    trie = stored(["a/" * depth + "a" for depth in range(300)])
    visited = sum(1 for _ in nodes(trie._root))
    for filter_ in ("+/" * 250 + "#", "+/" * 600 + "x", "+/" * 100 + "+"):
        assert steps(lambda filter_=filter_: trie.match(filter_)) < 40 * visited
