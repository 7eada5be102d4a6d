from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mqttree.routing.topic_filter import (
    MAX_TOPIC_BYTES,
    covers,
    is_wildcard,
    matches,
    split_shared,
    valid_topic_filter,
    valid_topic_name,
    well_formed,
)
from tests.kit.effort import examples

LEVELS = ["", "a", "b", "$s", " "]


def names() -> st.SearchStrategy[str]:
    """Few levels out of few words, so that matches are frequent."""
    return st.lists(st.sampled_from(LEVELS), min_size=1, max_size=5).map("/".join).filter(bool)


def filters() -> st.SearchStrategy[str]:
    levels = st.lists(st.sampled_from([*LEVELS, "+", "+"]), max_size=5)
    return (
        st.tuples(levels, st.sampled_from([[], ["#"]]))
        .map(lambda both: "/".join(both[0] + both[1]))
        .filter(bool)
    )


@pytest.mark.parametrize(
    ("topic", "valid"),
    [
        ("a", True),
        ("/", True),
        ("//", True),
        ("/finance", True),
        ("Accounts payable", True),
        ("$SYS/broker/uptime", True),
        ("sport/tennis/player1", True),
        ("\u00e9\u20ac\U0001f600", True),
        ("\ufeff", True),  # U+FEFF is kept, never stripped (MQTT-1.5.4-3)
        ("\x01", True),  # control characters SHOULD NOT be sent, which does not forbid them
        ("", False),
        ("a\0b", False),
        ("\ud800", False),
        ("a/+", False),
        ("a+b", False),
        ("#", False),
        ("a#", False),
    ],
)
def test_valid_topic_name(topic: str, valid: bool) -> None:
    assert valid_topic_name(topic) is valid
    if valid:
        assert valid_topic_filter(topic)


@pytest.mark.parametrize(
    ("filter_", "valid"),
    [
        ("#", True),
        ("+", True),
        ("/", True),
        ("/+", True),
        ("+/+", True),
        ("+/#", True),
        ("+/tennis/#", True),
        ("sport/+/player1", True),
        ("sport/tennis/#", True),
        ("$SYS/#", True),
        ("+/monitor/Clients", True),
        ("//#", True),
        ("", False),
        ("sport+", False),
        ("+sport", False),
        ("sport/+a/b", False),
        ("++", False),
        ("+#", False),
        ("#+", False),
        ("##", False),
        ("#/", False),
        ("sport/tennis#", False),
        ("sport/tennis/#/ranking", False),
        ("#/#", False),
        ("a/\0", False),
        ("\udfff/#", False),
        ("$share/group/a", True),
        ("$share/group/#", True),
        ("$share/group/+/a", True),
        ("$share/group//", True),
        # The inner filter is an ordinary one, whatever its letters.
        ("$share/group/$share/x", True),
        ("$share", True),  # not the prefix: an ordinary filter
        ("$SHARE/group", True),
        ("$shared/x", True),
        ("$share/", False),
        ("$share/group", False),
        ("$share/group/", False),
        ("$share//a", False),
        ("$share/#", False),
        ("$share/+/a", False),
        ("$share/g+/a", False),
        ("$share/g#/a", False),
        ("$share/group/a#", False),
        ("$share/group/#/a", False),
    ],
)
def test_valid_topic_filter(filter_: str, valid: bool) -> None:
    assert valid_topic_filter(filter_) is valid


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("a" * MAX_TOPIC_BYTES, True),
        ("/" * MAX_TOPIC_BYTES, True),
        ("a" * (MAX_TOPIC_BYTES + 1), False),
        ("\u20ac" * (MAX_TOPIC_BYTES // 3), True),
        ("\u20ac" * (MAX_TOPIC_BYTES // 3) + "a", False),
        ("\U0001f600" * (MAX_TOPIC_BYTES // 4 + 1), False),
    ],
)
def test_length_is_counted_in_bytes(text: str, valid: bool) -> None:
    assert valid_topic_name(text) is valid
    assert valid_topic_filter(text) is valid


@given(st.text(alphabet="a/+#$\0\ud800", max_size=8))
def test_validity_by_definition(text: str) -> None:
    encodable = bool(text) and "\0" not in text and "\ud800" not in text
    levels = text.split("/")
    placed = (
        all(level in ("+", "#") or not set(level) & {"+", "#"} for level in levels)
        and "#" not in levels[:-1]
    )
    assert well_formed(text) is placed
    assert valid_topic_name(text) is (encodable and not is_wildcard(text))
    assert valid_topic_filter(text) is (encodable and placed)  # too short for $share/


@pytest.mark.parametrize(
    ("filter_", "result"),
    [
        ("a/b", (None, "a/b")),
        ("#", (None, "#")),
        ("$SYS/#", (None, "$SYS/#")),
        ("$share", (None, "$share")),
        ("$shares/g/a", (None, "$shares/g/a")),
        ("$share/g/a", ("g", "a")),
        ("$share/g//a", ("g", "/a")),
        ("$share/consumer1/sport/tennis/+", ("consumer1", "sport/tennis/+")),
        ("$share/g/$share/h/#", ("g", "$share/h/#")),
    ],
)
def test_split_shared(filter_: str, result: tuple[str | None, str]) -> None:
    assert split_shared(filter_) == result


@pytest.mark.parametrize(
    "filter_", ["$share/", "$share/g", "$share/g/", "$share//a", "$share/+/a", "$share/#/a"]
)
def test_split_shared_malformed(filter_: str) -> None:
    with pytest.raises(ValueError, match="malformed shared"):
        split_shared(filter_)


@given(st.text(alphabet="g/+#", max_size=6).map(lambda tail: "$share/" + tail))
def test_valid_filters_always_split(filter_: str) -> None:
    if valid_topic_filter(filter_):
        group, inner = split_shared(filter_)
        assert filter_ == f"$share/{group}/{inner}"
        assert well_formed(inner)


def test_is_wildcard() -> None:
    assert is_wildcard("a/+/b") and is_wildcard("#") and is_wildcard("a/#")
    assert not is_wildcard("a/b") and not is_wildcard("$SYS/x")


# Sections 4.7.1.2, 4.7.1.3, 4.7.2 and 4.7.3 of the specification, each sentence with an example,
# and the edges.
@pytest.mark.parametrize(
    ("filter_", "topic", "result"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/tennis/player1/#", "sport/tennis/player10", False),
        ("sport/tennis/player1/#", "sport/tennis", False),
        ("sport/#", "sport", True),
        ("#", "sport", True),
        ("#", "/", True),
        ("#", "a/b/c", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player2", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+", "sport", True),
        ("+", "sport/tennis", False),
        ("+/tennis/#", "sport/tennis", True),
        ("+/tennis/#", "sport/tennis/x", True),
        ("sport/+/player1", "sport/tennis/player1", True),
        ("sport/+/player1", "sport/player1", False),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/monitor", False),
        ("+", "$SYS", False),
        ("+/#", "$SYS", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/monitor/Clients", True),
        ("$SYS/#", "$SYS", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("a/+", "a/$b", True),
        ("a/#", "a/$b", True),
        ("ACCOUNTS", "Accounts", False),
        ("Accounts payable", "Accounts payable", True),
        ("/finance", "finance", False),
        ("finance", "finance", True),
        ("a/b", "a/b/", False),
        ("a/b/", "a/b", False),
        ("/", "/", True),
        ("/#", "/", True),
        ("/#", "a", False),
        ("//#", "/", True),
        ("+/+/+", "//", True),
        ("a//b", "a//b", True),
        ("a/+/b", "a//b", True),
        ("a/+/#", "a", False),
        ("a/+/#", "a/", True),
        ("\u00e9", "e\u0301", False),  # no normalisation (MQTT-4.7.3-4)
    ],
)
def test_matches(filter_: str, topic: str, result: bool) -> None:
    assert matches(filter_, topic) is result


@given(names())
def test_a_topic_matches_itself_and_its_ancestors_multi(topic: str) -> None:
    assert matches(topic, topic)
    levels = topic.split("/")
    for depth in range(1, len(levels) + 1):
        assert matches("/".join([*levels[:depth], "#"]), topic)
    assert matches("#", topic) is not topic.startswith("$")


@pytest.mark.parametrize(
    ("a", "b", "result"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("+", "a", True),
        ("a", "+", False),
        ("#", "+/a/#", True),
        ("+/#", "#", True),
        ("+/+/#", "#", False),
        ("/+/#", "/#", True),
        ("/+/+/#", "/#", False),
        ("a/#", "a", True),
        ("a/#", "a/#", True),
        ("a/+/#", "a/#", False),
        ("a/#", "a/+/#", True),
        ("a/+", "a/#", False),
        ("#", "$SYS/#", False),
        ("+/a", "$SYS/a", False),
        ("$SYS/#", "$SYS/+/x", True),
        ("a/#", "a/$x", True),
    ],
)
def test_covers(a: str, b: str, result: bool) -> None:
    assert covers(a, b) is result


@settings(max_examples=examples(200), deadline=None)
@given(filters(), filters(), names())
def test_covers_is_sound(a: str, b: str, topic: str) -> None:
    assert covers(a, a)
    if covers(a, b) and matches(b, topic):
        assert matches(a, topic)


@settings(max_examples=examples(200), deadline=None)
@given(filters(), filters())
@example("/+/#", "/#")
@example("+/#", "#")
def test_covers_is_complete(a: str, b: str) -> None:
    """Put a word that occurs nowhere for each wildcard of b: a covers b just if it matches all of
    what comes out."""
    stem = ["new" if level == "+" else level for level in b.split("/")]
    if stem[-1] == "#":
        stem.pop()
        tails = [["new"] * count for count in range(8)]
    else:
        tails = [[]]
    topics = [topic for tail in tails if (topic := "/".join(stem + tail))]
    assert all(matches(b, topic) for topic in topics)
    assert covers(a, b) is all(matches(a, topic) for topic in topics)
