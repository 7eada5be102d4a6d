"""Tables of the command line: texts of strangers, cells, numbers."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.log_format import printable
from mqttree.broker.cli.operator_commands import _count, _seconds
from mqttree.broker.cli.table import cut, duration, rate, size, table, width
from mqttree.broker.cli.top import HEAD, SORTS, Look, draw, sorted_brokers
from mqttree.broker.cli.views import broker_named
from mqttree.broker.config.yaml_file import ConfigError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\u202etxt.exe", "\\u202etxt.exe"),
        ("\u009b2J", "\\x9b2J"),
        ("line\nline", "line\\nline"),
        ("\udc80", "\\udc80"),
        ("\u00e9\u6f22", "\u00e9\u6f22"),
        ("\x7f\b\t\r", "\\x7f\\x08\\t\\r"),
        ("\u2066\u2028\ufeff", "\\u2066\\u2028\\ufeff"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_a_printable_text_has_printable_letters_only(text: str) -> None:
    assert printable(text).isprintable()


@given(st.text(), st.integers(3, 40))
def test_a_cut_text_takes_no_more_cells_than_it_may(text: str, cells: int) -> None:
    shown = printable(text)
    assert width(cut(shown, cells)) <= cells
    assert cut(shown, cells) == shown or cut(shown, cells).endswith("...")


@given(
    st.lists(
        st.tuples(st.text(max_size=80), st.integers(0, 10**9), st.none() | st.text(max_size=5)),
        max_size=5,
    )
)
def test_columns_of_a_table_begin_below_their_words(rows: list[tuple[Any, ...]]) -> None:
    lines = table(("NAME", "NUMBER", "OTHER"), rows)
    assert len(lines) == 1 + len(rows)
    at = lines[0].index("OTHER")
    for line, row in zip(lines[1:], rows, strict=True):
        assert line.isprintable()
        number = f"{row[1]:,}"
        # Cells and letters differ where a letter is wide or has no width.
        if line.isascii():
            assert line[:at].rstrip().endswith(number)


def test_numbers_stand_at_the_right_and_nothing_is_empty() -> None:
    lines = table(("N", "RATE", "TREE"), [[5, 0.05, True], [12345, None, False]])
    assert lines == ["     N   RATE  TREE", "     5  0.050  yes", "12,345         no"]


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (rate(0.0), "0.0"),
        (rate(0.0123), "0.012"),
        (rate(99.94), "99.9"),
        (rate(123456.7), "123,457"),
        (size(0), "0 B"),
        (size(1536), "1.5 KiB"),
        (size(5 * 2**40), "5120.0 GiB"),
        (duration(59.9), "59 s"),
        (duration(3661), "1 h 1 min"),
        (duration(90061), "1 d 1 h"),
    ],
)
def test_numbers_have_as_many_digits_as_matter(made: str, text: str) -> None:
    assert made == text


def test_a_broker_is_found_by_its_name_or_its_id() -> None:
    names = {"aa": "one", "bb": "two", "cc": "two"}
    assert broker_named(names, "one") == broker_named(names, "aa") == "aa"
    assert broker_named(names, "cc") == "cc"
    with pytest.raises(ConfigError, match="2 brokers have the name 'two'"):
        broker_named(names, "two")
    with pytest.raises(ConfigError, match="no broker has"):
        broker_named(names, "three")


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", "1_0", "9" * 12, ""])
def test_a_count_is_a_positive_whole_number(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        _count(text)


@pytest.mark.parametrize("text", ["0", "nan", "inf", "x", "3601", ""])
def test_an_interval_is_a_tenth_of_a_second_to_an_hour(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        _seconds(text)


def broker(name: str, **more: Any) -> dict[str, Any]:
    row = {"id": f"id-{name}", "name": name, "address": "a:1", "here": name == "b0", "root": False}
    row |= {"alive": True, "reachable": True, "draining": False, "clients": 1, "sessions": 1}
    rates = ("published_per_s", "delivered_per_s", "link_in_per_s", "link_out_per_s")
    return row | dict.fromkeys(rates, 0.5) | more


SUMMARY = {"brokers": 2, "links_up": 1, "uptime_s": 61.0, "clients": 3, "sessions": 4}
SUMMARY |= {"subscriptions": 5, "retained": 6, "cpu": 0.25, "memory_bytes": 2048}
SUMMARY |= {"queued_bytes": 0, "dropped_per_s": 0.0}


def seen(*brokers: dict[str, Any], topic: str = "t") -> Look:
    topics = {"topics": [{"topic": topic, "per_s": 2.0, "receivers": 1}]}
    alarms = [{"level": "error", "text": "the journal is not written"}]
    return Look(SUMMARY, {"cluster": "c", "brokers": list(brokers)}, topics, alarms)


def test_top_draws_brokers_topics_and_alarms_within_the_terminal() -> None:
    look = seen(
        broker("b0", root=True), broker("b1", reachable=False, clients=None), topic="\x1b[2J" * 50
    )
    lines = draw(look, "name", 40, 70, old="no broker answers")
    assert all(line.isprintable() and width(line) <= 70 for line in lines)
    text = "\n".join(lines)
    assert "old: no broker answers" in text
    assert "error: the journal is not written" in text
    assert "not reachable" in text
    assert "\\x1b[2J" in text
    assert len(draw(look, "name", 4, 70)) == 4
    assert len(HEAD) == 8


def test_top_says_one_broker_of_one() -> None:
    look = seen(broker("b0"))._replace(summary=SUMMARY | {"brokers": 1, "clients": 1234})
    first, second = draw(look, "name", 40, 200)[:2]
    assert "  1 broker  1 link here  " in first
    assert second.startswith("here: 1,234 clients  4 sessions  5 subscriptions  6 retained  ")


@pytest.mark.parametrize("sort", sorted(set(SORTS) - {"name"}))
def test_top_sorts_brokers_by_the_highest_number_first(sort: str) -> None:
    low, high, none = broker("b0"), broker("b1"), broker("b2")
    low[SORTS[sort]], high[SORTS[sort]], none[SORTS[sort]] = 1, 7, None
    found = sorted_brokers({"brokers": [low, none, high]}, sort)
    assert [row["name"] for row in found] == ["b1", "b0", "b2"]
