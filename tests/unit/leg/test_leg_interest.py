"""What foreign clients want: filters in common with rules, and what a leg subscribes to here."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.state_table import ImpossibleInputError
from mqttree.broker.leg.beacons import HOLD, Beacons
from mqttree.broker.leg.foreign_filters import WantedFilters, intersection, to_local, wanted_topics
from mqttree.broker.leg.interest import LINGER, POLL, Interest
from mqttree.broker.leg.interest_states import TRANSITIONS, Action, Input, State, transition
from mqttree.broker.leg.rules import Rules, parse_rule
from mqttree.routing.topic_filter import matches, valid_topic_filter
from tests.kit.state_tables import check_table

LEVELS = st.sampled_from(["a", "b", "", "$x", "+"])
FILTERS = (
    st.tuples(st.lists(LEVELS, max_size=4), st.booleans())
    .map(lambda drawn: "/".join([*drawn[0], *(["#"] if drawn[1] or not drawn[0] else [])]))
    .filter(valid_topic_filter)
)
TOPICS = (
    st.lists(st.sampled_from(["a", "b", "", "$x", "c"]), min_size=1, max_size=5)
    .map("/".join)
    .filter(bool)
)


def rules(*lines: str) -> Rules:
    return Rules([parse_rule(line) for line in lines])


# ---------------------------------------------------------------- filters


@given(FILTERS, FILTERS, TOPICS)
def test_an_intersection_matches_what_both_filters_match(one: str, other: str, topic: str) -> None:
    found = intersection(one, other)
    assert found is None or valid_topic_filter(found)
    both = matches(one, topic) and matches(other, topic)
    assert (found is not None and matches(found, topic)) == both


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ("#", "a/b", "a/b"),
        ("a/#", "+/b/#", "a/b/#"),
        ("a/#", "a", "a"),
        ("a/#", "+", "a"),
        ("+/+", "a/#", "a/+"),
        ("a/+", "a/b/c", None),
        ("#", "$SYS/a", None),
        ("$SYS/+", "$SYS/a", "$SYS/a"),
    ],
)
def test_intersections(one: str, other: str, found: str | None) -> None:
    assert intersection(one, other) == intersection(other, one) == found


@given(FILTERS, TOPICS, st.sampled_from(["", "x/", "x/y", "x"]), st.sampled_from(["", "z/", "z"]))
def test_a_message_that_crosses_and_is_wanted_there_is_subscribed_to_here(
    foreign: str, topic: str, local: str, remote: str
) -> None:
    rule = parse_rule(f'+/# out 1 "{local}/" "{remote}/"' if local else "+/# out 1")
    there = rule.to_remote(topic)
    found = to_local(rule, foreign)
    if there is not None and matches(foreign, there):
        assert found is not None
        assert matches(found, topic)


@pytest.mark.parametrize(
    ("topic_filter", "topics"),
    [
        ("a/+", "a/+"),
        ("$share/g/a/#", "a/#"),
        ("$queue/a", "a"),
        ("$exclusive/a/b", "a/b"),
        ("$SYS/#", None),
        ("$share/g/$SYS/#", None),
    ],
)
def test_what_a_subscription_there_wants(topic_filter: str, topics: str | None) -> None:
    assert wanted_topics(topic_filter) == topics


@pytest.mark.parametrize("bad", ["", "a/#/b", "a+", "$share/g", "$share/g/"])
def test_what_is_no_filter_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="is no topic filter"):
        wanted_topics(bad)


@given(
    st.lists(st.tuples(st.booleans(), FILTERS), max_size=12),
    st.lists(TOPICS, max_size=8),
)
def test_subscriptions_here_match_exactly_what_is_wanted_of_the_rules(
    steps: list[tuple[bool, str]], topics: list[str]
) -> None:
    known = rules("a/# out 1", "+/b/# out 2")
    wanted = WantedFilters(known.outward_rules)
    kept: set[str] = set()
    for added, topic_filter in steps:
        if topic_filter.startswith("$"):
            continue
        if added:
            wanted.add(topic_filter)
            kept.add(topic_filter)
        else:
            wanted.remove(topic_filter)
            kept.discard(topic_filter)
        found = wanted.subscriptions()
        for topic in topics:
            crosses = any(rule.to_remote(topic) is not None for rule in known.outward_rules)
            is_wanted = crosses and any(matches(each, topic) for each in kept)
            assert any(matches(each, topic) for each in found) == is_wanted
    assert wanted.size == sum(len(f) for f in wanted.foreign())


def test_filters_that_another_one_covers_are_left_out_and_come_back() -> None:
    wanted = WantedFilters(rules("# out 1").outward_rules)
    for topic_filter in ("a/b", "a/c", "a/#", "b"):
        wanted.add(topic_filter)
    assert wanted.subscriptions() == {"a/#": 1, "b": 1}
    wanted.remove("a/#")
    assert wanted.subscriptions() == {"a/b": 1, "a/c": 1, "b": 1}


def test_names_are_mapped_back_and_a_group_is_taken_whole() -> None:
    known = rules('# out 1 "here/" "there/"', "$share/g/jobs/# out 2", "c both 0", "d in")
    wanted = WantedFilters(known.outward_rules)
    assert not wanted.add("d")
    assert wanted.add("there/a/+")
    assert wanted.add("jobs/1")
    assert wanted.add("+")
    assert wanted.subscriptions() == {"here/a/+": 1, "here": 1, "$share/g/jobs/#": 2, "c": 0}
    wanted.remove("jobs/1")
    assert "$share/g/jobs/#" in wanted.subscriptions(), "+ matches jobs"
    wanted.remove("+")
    assert wanted.subscriptions() == {"here/a/+": 1}


# ---------------------------------------------------------------- states


def test_the_table_is_whole() -> None:
    check_table(TRANSITIONS, Action, [State.UNKNOWN])


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("given_", list(Input))
def test_every_pair_is_in_the_table_or_impossible(state: State, given_: Input) -> None:
    if (state, given_) in TRANSITIONS:
        assert transition(state, given_) == TRANSITIONS[state, given_]
    else:
        with pytest.raises(ImpossibleInputError):
            transition(state, given_)


def known(*filters: str, now: float = 0.0) -> Interest:
    interest = Interest(rules("# out 1"))
    assert interest.subscriptions() == {"#": 1}
    interest.answered(filters, now)
    return interest


def test_the_first_answer_narrows_at_once_and_questions_go_on() -> None:
    interest = known("a", "b/#", "a")
    assert interest.subscriptions() == {"a": 1, "b/#": 1}
    assert interest.take_lines() == [
        ("info", "foreign clients want 2 filters of what rules let out")
    ]
    assert interest.next_deadline() == POLL
    assert not interest.asks(POLL - 0.1)
    assert interest.asks(POLL)
    assert not interest.asks(POLL), "one question at a time"
    interest.begin(3.0)
    interest.answered(["a"], 7.0)
    assert interest.asks(7.0 + POLL)


def test_what_is_not_wanted_any_more_is_kept_for_a_while() -> None:
    interest = known("a", "b")
    interest.answered(["b", "c"], 5.0)
    interest.answered(["b"], 10.0)
    assert interest.subscriptions() == {"a": 1, "b": 1, "c": 1}
    interest.tick(5.0 + LINGER - 0.1)
    assert "a" in interest.subscriptions()
    interest.tick(5.0 + LINGER)
    assert interest.subscriptions() == {"b": 1, "c": 1}
    interest.answered(["b", "c"], 9.0 + LINGER)
    interest.tick(100.0)
    assert interest.subscriptions() == {"b": 1, "c": 1}, "c is wanted again"
    interest.answered([], 101.0)
    interest.answered(["b"], 102.0)
    interest.tick(200.0)
    assert interest.subscriptions() == {"b": 1}


def test_a_failure_sends_all_at_once_and_an_answer_narrows_after_a_while() -> None:
    interest = known("a")
    interest.take_lines()
    for now in (5.0, 10.0):
        interest.failed("connection refused", now)
        assert interest.subscriptions() == {"#": 1}
    ((level, line),) = interest.take_lines()
    assert level == "warning"
    assert "all is sent" in line
    assert "connection refused" in line
    assert (interest.state, interest.failures) == (State.FAILED, 2)
    assert interest.last_error == "connection refused"
    interest.answered(["b"], 15.0)
    assert interest.subscriptions() == {"#": 1}
    assert interest.last_error == ""
    interest.tick(15.0 + LINGER)
    assert interest.subscriptions() == {"b": 1}


def test_an_answer_with_what_is_no_filter_is_a_failure() -> None:
    interest = known("a", "b/#/c")
    assert interest.state is State.FAILED
    assert "'b/#/c' is no topic filter" in interest.take_lines()[0][1]


@pytest.mark.parametrize("limit", ["max_filters", "max_size"])
def test_with_too_many_filters_all_is_sent(limit: str) -> None:
    interest = Interest(rules("# out 1"), **{limit: 3})
    interest.answered(["a", "b", "c"], 0.0)
    assert interest.state is State.KNOWN
    interest.answered(["a", "b", "c", "d"], 5.0)
    assert (interest.state, interest.failures) == (State.CROWDED, 1)
    assert interest.subscriptions() == {"#": 1}
    assert interest.filters == 0
    interest.answered(["a", "b", "c", "d"], 10.0)
    assert len(interest.take_lines()) == 2
    interest.answered(["a"], 15.0)
    interest.tick(15.0 + LINGER)
    assert interest.subscriptions() == {"a": 1}


def test_filters_that_no_rule_lets_out_do_not_count() -> None:
    interest = Interest(rules("a/# out"), max_filters=1)
    interest.answered([*map(str, range(100)), "a/+"], 0.0)
    assert interest.subscriptions() == {"a/+": 0}


# ---------------------------------------------------------------- beacons


def test_a_beacon_counts_for_three_intervals() -> None:
    beacons = Beacons()
    assert beacons.filters(0.0) is None
    beacons.begin(0.0)
    assert beacons.takes(b"federator/beacon/a/b", 5.0)
    assert beacons.takes(b"federator/beacon/c", 10.0)
    assert beacons.takes(b"federator/beacon/", 10.0), "of no topic"
    assert not beacons.takes(b"federated/c", 10.0)
    assert beacons.filters(HOLD - 0.1) is None, "clients may not have said it yet"
    assert beacons.filters(HOLD) == ["a/b", "federated/a/b", "c", "federated/c"]
    assert beacons.filters(5.0 + HOLD) == ["c", "federated/c"]
    beacons.begin(100.0)
    assert beacons.filters(100.0 + HOLD - 0.1) is None


def test_beacons_are_bounded() -> None:
    beacons = Beacons(most=2)
    beacons.begin(0.0)
    for number in range(10):
        beacons.takes(b"federator/beacon/%d" % number, 1.0)
    assert len(beacons.filters(HOLD) or ()) == 6
