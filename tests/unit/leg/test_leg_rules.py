"""Rules of a leg: which topics cross, and under which names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.leg.rules import Direction, Rule, RuleError, Rules, covering, parse_rule
from mqttree.routing.topic_filter import covers, matches, valid_topic_name

# (line, topic there, topic here): what comes in. None: it does not.
INWARDS = [
    ("# in", "a/b", "a/b"),
    ("# both 2", "a/b", "a/b"),
    ("# out", "a/b", None),
    ("#", "a/b", None),
    ("# in 0 here/ there/", "there/a", "here/a"),
    ("# in 0 here/ there/", "elsewhere/a", None),
    ("# in 0 here/ there/", "there", "here"),
    ('# in 0 "" there/', "there/a", "a"),
    ('# in 0 "" there/', "there", None),
    ('# in 0 here/ ""', "a", "here/a"),
    ('"" in 1 a/b c', "c", "a/b"),
    ("sensors/+/t in 0 x/ y/", "y/sensors/1/t", "x/sensors/1/t"),
    ("sensors/+/t in 0 x/ y/", "y/sensors/1/u", None),
    ("# in 0 theirs/ $SYS/", "$SYS/broker/load", "theirs/broker/load"),
    ("/# in 0 a b", "b", "a"),
    ("/# in 0 a b", "b/c", "a/c"),
    ("# in", "$SYS/x", None),
]

# (line, topic here, topic there): what goes out.
OUTWARDS = [
    ("#", "a/b", "a/b"),
    ("# in", "a/b", None),
    ("# both 0 here/ there/", "here/a", "there/a"),
    ("# both 0 here/ there/", "there/a", None),
    ("# out 0 $SYS/ ours/", "$SYS/broker/uptime", "ours/broker/uptime"),
    ("$share/g/t/# out", "t/1", "t/1"),
]

REFUSED = [
    ("", "is not FILTER"),
    ("a b c d e f", "is not FILTER"),
    ("a out 0 local/", "is not FILTER"),
    ('a "out', "No closing quotation"),
    ("a through", "none of in, out and both"),
    ("a in 3", "none of 0, 1 and 2"),
    ("a#", "no topic filter"),
    ("a/#/b", "no topic filter"),
    ("# out 0 a b/", "no topic filter"),
    ('"" out', "no topic filter"),
    ("# out 0 a/+/ b/", "no part of a topic"),
    ("$share/g/a in", "has no No Local"),
    ("$share/g/a both", "has no No Local"),
    ("$share/g", "lacks"),
    ("$share/+/a", "lacks"),
    ("# out 0 $share/g/ x/", "no topic filter"),
    ("$SYS/# out", "no client may publish it there"),
    ("$SYS/# in", "no client may publish it here"),
    ("# both 0 a/ $SYS/", "no client may publish it there"),
]


@pytest.mark.parametrize(("line", "there", "here"), INWARDS)
def test_what_comes_in(line: str, there: str, here: str | None) -> None:
    assert Rules([parse_rule(line)]).to_local(there) == here


@pytest.mark.parametrize(("line", "here", "there"), OUTWARDS)
def test_what_goes_out(line: str, here: str, there: str | None) -> None:
    assert Rules([parse_rule(line)]).to_remote(here) == there


@pytest.mark.parametrize(("line", "why"), REFUSED)
def test_what_is_refused(line: str, why: str) -> None:
    with pytest.raises(RuleError, match=why.replace("(", r"\(")) as caught:
        parse_rule(line)
    assert "\n" not in str(caught.value)


def test_a_line_has_mosquittos_defaults() -> None:
    rule = parse_rule("a/#")
    assert (rule.direction, rule.qos, rule.local, rule.remote) == (Direction.OUT, 0, "a/#", "a/#")


def test_the_first_rule_that_matches_counts() -> None:
    rules = Rules([parse_rule('a/# in 1 x/ ""'), parse_rule('# in 0 y/ ""')])
    assert rules.to_local("a/1") == "x/a/1"
    assert rules.to_local("b/1") == "y/b/1"
    assert rules.mapped
    assert rules.incoming == [("#", 1)]
    assert rules.outgoing == []


def test_a_name_that_would_be_invalid_crosses_nothing() -> None:
    rules = Rules([parse_rule(f'# both 0 "" {"p" * 65_000}/')])
    assert rules.to_remote("a" * 1000) is None
    assert rules.to_remote("a" * 500) == "p" * 65_000 + "/" + "a" * 500
    assert Rules([parse_rule('# in 0 "" x/')]).to_local("x/$SYS/a") is None


def test_a_group_is_subscribed_to_here_alone() -> None:
    rules = Rules([parse_rule("$share/g/a/# out 1 x/ y/"), parse_rule("b in 2")])
    assert rules.outgoing == [("$share/g/x/a/#", 1)]
    assert rules.incoming == [("b", 2)]


def test_responses_find_their_way_back() -> None:
    """A client there asks, and a client here answers to the topic that it is told; and the other
    way round."""
    rules = Rules([parse_rule("# both 1 here/ there/")])
    assert rules.response_to_local("there/reply") == "here/reply"
    assert rules.to_remote("here/reply") == "there/reply"
    assert rules.response_to_remote("here/reply") == "there/reply"
    assert rules.response_to_local("unmapped") == "unmapped"
    assert Rules([parse_rule("# in 1 here/ there/")]).response_to_local("there/a") == "there/a"


# ---------------------------------------------------------------- properties

LEVELS = st.lists(st.sampled_from(["a", "b", "", "cc"]), min_size=1, max_size=4)
TOPICS = LEVELS.map("/".join).filter(valid_topic_name)
PREFIXES = st.one_of(st.just(""), TOPICS.map(lambda topic: topic + "/"))
FILTERS = st.tuples(
    st.lists(st.sampled_from(["a", "b", "+", "cc"]), min_size=1, max_size=3), st.booleans()
).map(lambda made: "/".join([*made[0], "#"] if made[1] else made[0]))


NAMES = st.sampled_from(["a", "b", "cc"])


@st.composite
def filters_and_topics(draw: st.DrawFn) -> tuple[str, str]:
    """A filter and a topic that it matches, which is not empty."""
    topic = draw(st.lists(NAMES, min_size=1, max_size=4))
    pattern = [draw(st.sampled_from([level, "+"])) for level in topic]
    cut = draw(st.integers(0, len(pattern)))
    return "/".join(pattern if cut == len(pattern) else [*pattern[:cut], "#"]), "/".join(topic)


@given(filters_and_topics(), PREFIXES, PREFIXES)
def test_a_topic_that_crosses_both_ways_comes_back_as_it_was(
    pair: tuple[str, str], local: str, remote: str
) -> None:
    pattern, topic = pair
    rules = Rules([Rule(pattern, Direction.BOTH, 2, local, remote)])
    here = rules.to_local(remote + topic)
    assert here == local + topic
    assert rules.to_remote(here) == remote + topic
    assert rules.response_to_local(remote + topic) == here
    assert rules.response_to_remote(here) == remote + topic


@given(st.lists(st.tuples(FILTERS, st.integers(0, 2)), max_size=6), TOPICS)
def test_covers_match_what_the_rules_match(wanted: list[tuple[str, int]], topic: str) -> None:
    kept = covering(wanted)
    assert any(matches(f, topic) for f, _ in kept) == any(matches(f, topic) for f, _ in wanted)
    for one, _ in kept:
        assert not [other for other, _ in kept if other != one and covers(other, one)]
    for topic_filter, qos in wanted:
        assert max(q for f, q in kept if covers(f, topic_filter)) >= qos


@given(st.text(max_size=40))
def test_any_line_is_a_rule_or_is_refused(line: str) -> None:
    try:
        rule = parse_rule(line)
    except RuleError:
        return
    assert rule.local
    assert rule.remote
