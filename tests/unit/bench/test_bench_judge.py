"""What papers state, and the verdicts of runs: bounds, equal draws, the generator's limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.bench.load.limit import limit_of_capacity, limit_of_delay
from mqttree.bench.report import chapters, data, judge, shown, statements
from mqttree.bench.report.data import Case
from mqttree.bench.report.derived import DERIVED
from mqttree.bench.report.judge import Check, Judgement, Statement
from mqttree.bench.report.papers import fits
from mqttree.bench.scenarios import scenario
from mqttree.bench.scenarios.measures import MEASURES

FLOOD, ORT = {"broker": "mqttree-flood"}, {"broker": "mqttree-ort"}


def case(
    cell: dict[str, Any],
    values: Sequence[float | None],
    measure: str = "delay_mean_ms",
    flow: str = "",
    name: str = "overlays-text",
) -> Case:
    """A case with a run for each value; draws are equal in all cases."""
    found = Case(name, str(cell), flow, cell, str(cell.get("broker", "")))
    found.runs = {(1, number, 0): {measure: value} for number, value in enumerate(values)}
    found.limited = dict.fromkeys(found.runs, ("", ""))
    return found


def verdict(check: Check, *cases: Case) -> Judgement:
    (found,) = judge.judge([Statement("P", "1", "text", (check,))], cases)
    return found


HALF = Check(("overlays-text",), "delay_mean_ms", ORT, (FLOOD,), most=0.5)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([4.0, 40.0], judge.HOLDS),
        ([6.0, 60.0], judge.FAILS),
        ([2.0, 80.0], judge.UNSURE),
        ([4.0], judge.UNSURE),
        ([50.0], judge.UNSURE),
        ([None, None], judge.ABSENT),
    ],
)
def test_a_ratio_of_equal_draws_decides(values: list[float | None], expected: str) -> None:
    found = verdict(HALF, case(ORT, values), case(FLOOD, [10.0, 100.0]))
    assert found.verdict == expected
    assert ("there is one run in 1 of 1 cells" in found.reason) is (len(values) == 1)


def test_a_cell_without_its_counterpart_says_so() -> None:
    found = verdict(HALF, case(ORT, [1.0]))
    assert (found.verdict, found.reason) == (
        judge.ABSENT,
        "no run with broker mqttree-flood that is otherwise equal",
    )
    assert verdict(HALF).reason == "no run is about it"
    other = case(FLOOD, [10.0])
    other.variant = "short"
    assert verdict(HALF, case(ORT, [1.0]), other).verdict == judge.ABSENT
    assert verdict(HALF, case({**ORT, "x": 1}, [1.0]), case(FLOOD, [9.0])).verdict == judge.ABSENT


def test_what_the_generator_limited_is_in_no_claim() -> None:
    own, base = case(ORT, [9.0, 9.0]), case(FLOOD, [10.0, 10.0])
    base.limited = dict.fromkeys(base.runs, ("", "late"))
    assert verdict(HALF, own, base).verdict == judge.UNTESTED
    base.limited[1, 0, 0] = base.limited[1, 1, 0] = ("busy", "")
    assert verdict(HALF, own, base).reason == "busy"
    rate = Check(("overlays-text",), "control_bytes", ORT, (FLOOD,), most=0.5)
    own, base = (
        case(factors, [value] * 2, "control_bytes")
        for factors, value in ((ORT, 9.0), (FLOOD, 10.0))
    )
    base.limited = dict.fromkeys(base.runs, ("busy", "late"))
    assert verdict(rate, own, base).verdict == judge.FAILS, "no generator limits bytes of brokers"
    # One run of three does not make a cell's figure doubtful.
    three = case(ORT, [1.0, 1.0, 1.0])
    three.limited[1, 0, 0] = ("busy", "")
    assert three.limit("delay_mean_ms") == "" and three.limit("data_bytes_per_s") == ""
    three.limited[1, 1, 0] = ("", "late")
    assert three.limit("delay_p99_ms") == "busy" and three.limit("delivered_per_s") == ""


def test_the_summary_names_what_was_not_judged_and_why_once() -> None:
    own, base = case(ORT, [9.0, 9.0]), case(FLOOD, [10.0, 10.0])
    base.limited = dict.fromkeys(base.runs, ("", "5.3 ms late"))
    absent = Statement("P", "2", "Needs <Vax>.", untested="no Vax is here")
    found = judge.judge([Statement("P", "1", "Late.", (HALF,)), absent], [own, base])
    said = chapters.summary(found, data.Results([], [own, base], [], [], []))
    assert "cannot be tested here: 1 statement</summary>P 2: Needs &lt;Vax&gt; (no Vax is" in said
    assert "generator was the limit: 1 statement</summary>P 1: Late.</details>" in said
    assert "What does not hold" not in said and "5.3 ms" not in said


def test_differences_means_of_places_and_growth() -> None:
    places = tuple({"at": place, "broker": "mosquitto"} for place in "abc")
    cells = [
        case({"at": place, "broker": "mosquitto"}, [value] * 2)
        for place, value in zip("abc", (80.0, 90.0, 100.0), strict=True)
    ]
    own = case({"at": "", "broker": "mqttree-flood"}, [120.0] * 2)
    check = Check(
        ("overlays-text",), "delay_mean_ms", {"at": "", **FLOOD}, places, "difference", most=50.0
    )
    found = verdict(check, own, *cells)
    assert found.verdict == judge.HOLDS and found.findings[0].value == pytest.approx(30.0)
    grown = Check(
        ("overlays-text",),
        "delay_mean_ms",
        {"topics": 60},
        ({"topics": 3}, {"topics": 30}),
        "growth",
        near=57 / 27,
    )
    lines = [case({"topics": topics}, [100.0 + 7 * topics] * 2) for topics in (3, 30, 60)]
    assert verdict(grown, *lines).findings[0].value == pytest.approx(57 / 27)
    assert verdict(grown, *lines).verdict == judge.HOLDS
    more = Check(("overlays-text",), "delay_mean_ms", ORT, (FLOOD,), "increase", near=0.2)
    for ours, expected in ((12.0, judge.HOLDS), (10.0, judge.FAILS), (13.0, judge.FAILS)):
        assert verdict(more, case(ORT, [ours] * 2), case(FLOOD, [10.0] * 2)).verdict == expected


def test_a_class_of_traffic_is_compared_with_itself_alone() -> None:
    check = Check(
        ("hetero",),
        "published_per_s",
        {"mix": "small+large"},
        ({"mix": "small"},),
        flow="small",
        alone=True,
        near=0.88,
    )
    cases = [
        case({"mix": "small"}, [1000.0] * 2, "published_per_s", name="hetero"),
        case({"mix": "small+large"}, [900.0] * 2, "published_per_s", name="hetero"),
        case({"mix": "small+large"}, [800.0] * 2, "published_per_s", "small", name="hetero"),
    ]
    found = verdict(check, *cases)
    assert found.verdict == judge.HOLDS
    assert found.findings[0].value == pytest.approx(0.8)


def test_a_statement_holds_when_all_of_its_checks_come_out() -> None:
    more = Check(("overlays-text",), "delay_mean_ms", ORT, ({"broker": "mqttree-srt"},), most=0.5)
    statement = Statement("P", "1", "text", (HALF, more))
    cases = [case(ORT, [4.0] * 2), case(FLOOD, [10.0] * 2)]
    assert judge.judge([statement], cases)[0].verdict == judge.UNSURE
    cases.append(case({"broker": "mqttree-srt"}, [9.0] * 2))
    assert judge.judge([statement], cases)[0].verdict == judge.HOLDS
    cases[-1] = case({"broker": "mqttree-srt"}, [5.0] * 2)
    assert judge.judge([statement], cases)[0].verdict == judge.FAILS
    untested = Statement("P", "1", "text", untested="no such broker")
    assert judge.judge([untested], cases)[0].reason == "no such broker"


@given(
    st.lists(st.floats(0.01, 1e6), min_size=1, max_size=6),
    st.floats(0.01, 1e6),
    st.floats(0.01, 1e6),
)
def test_a_verdict_follows_from_bounds_alone(values: list[float], one: float, other: float) -> None:
    least, most = sorted((one, other))
    check = Check(("overlays-text",), "delay_mean_ms", ORT, least=least, most=most)
    (finding,) = verdict(check, case(ORT, values)).findings
    assert finding.value is not None
    assert (finding.half is None) is (len(values) == 1)
    if finding.half is None:
        assert finding.holds is None, "one run decides nothing"
    elif finding.holds is True:
        assert least <= finding.value - finding.half and finding.value + finding.half <= most
    elif finding.holds is False:
        assert finding.value + finding.half < least or finding.value - finding.half > most


@pytest.mark.parametrize(
    ("used", "limited"), [(None, False), (0.5, False), (0.8, False), (0.81, True)]
)
def test_a_busy_generator_limits_rates(used: float | None, limited: bool) -> None:
    assert bool(limit_of_capacity(used)) is limited


@pytest.mark.parametrize(
    ("late", "delay", "limited"),
    [(None, 1.0, False), (1.0, None, False), (0.1, 1.0, False), (0.11, 1.0, True), (9, 0, False)],
)
def test_a_late_generator_limits_delays(
    late: float | None, delay: float | None, limited: bool
) -> None:
    assert bool(limit_of_delay(late, delay)) is limited


def test_every_statement_is_about_cells_of_a_shipped_scenario() -> None:
    known = {*MEASURES, *DERIVED, "pingreq_bytes"}
    cells = [
        (name, cell.factors, set(cell.flows))
        for name in scenario.shipped()
        for cell in scenario.load(name).cells
    ]
    for each in statements.STATEMENTS:
        assert bool(each.checks) is not bool(each.untested), each.text
        for check in each.checks:
            assert check.measure in known, each.text
            # No measure is below zero, nor is a ratio: a bound that none can break says nothing.
            signed = check.how in ("difference", "increase", "growth")
            assert check.high is not None or (check.low or 0) > 0 or signed, each.text
            mine = [
                cell
                for name, cell, flows in cells
                if name in check.scenarios
                and fits(cell, check.where)
                and (not check.flow or check.flow in flows)
            ]
            assert mine, each.text
            for changes in check.against:
                assert any(
                    fits(other, {**cell, **changes})
                    for cell in mine
                    for _, other, _ in cells
                    if other.keys() == cell.keys()
                ), (each.text, changes)


def test_the_middle_form_asks_most_statements() -> None:
    names = [name for name in scenario.shipped() if scenario.load(name).paper in statements.PAPERS]
    cells = [(name, cell.factors) for name in names for cell in scenario.load(name, "medium").cells]
    unasked = [
        each.text
        for each in statements.STATEMENTS
        if not each.untested
        and not all(
            any(name in check.scenarios and fits(cell, check.where) for name, cell in cells)
            for check in each.checks
        )
    ]
    assert unasked == []


def test_a_run_has_measures_that_are_made_of_others() -> None:
    row = {"control_bytes": 10, "data_bytes": 40}
    phases = [
        {"name": name, "seconds": seconds, "control_bytes": count}
        for name, seconds, count in (("idle", 10, 100), ("failure", 5, 75))
    ]
    about = {"summary": {"phases": phases, "network": {"late_ms": {"p99": 0.5}}}}
    found = {name: of(row, about) for name, (_, of) in DERIVED.items()}
    assert found["link_bytes"] == 50 and found["signalling_share"] == 0.25
    assert found["failure_rise"] == 1.5 and found["return_rise"] is None
    assert found["network_late_ms"] == 0.5 and found["bytes_per_connection"] is None
    assert all(of({}, {}) is None for _, of in DERIVED.values())


def test_what_limits_a_cell_is_the_generator_or_the_brokers() -> None:
    own = case({}, [1.0])
    assert own.limited_by() == ""
    own.share, own.measures["broker_cpu"] = 0.1, {"mean": 0.095}
    assert own.limited_by() == "limited by the brokers: 0.095 of 0.1 of a core each"
    own.limited = {(1, 0, 0): (limit_of_capacity(0.95), "")}
    assert own.limited_by() == "limited by the generator: it used 95% of a core"
    about = {
        "summary": {"generator_cpu": 0.9, "flows": {"": {"lag_p99_ms": 3.0, "delay_mean_ms": 9.0}}},
        "parameters": {"flows": {"": {"cpu": 0.1}}},
    }
    busy, late = data._limits(about, "")
    assert "90%" in busy and "3 ms late" in late and data._share(about) == 0.1
    assert data._limits({}, "") == ("", "") and data._share({}) == 0.0


def test_conditions_are_filled_with_parameters() -> None:
    flows: dict[str, dict[str, Any]] = {"small": {"rate": 2000.0}, "large": {"payload": 20_000_000}}
    text = "5 x {small.rate}, {large.payload}, {rate}, {large.rate}, {x.y}"
    assert shown.filled(text, flows) == "5 x 2000, 20M, 2000, -, -"
    assert shown.filled("{rate}", {}) == "-" and shown.filled("none", {}) == "none"
    assert set(shown.SHOWN) <= set(scenario.shipped())
