"""Measured scaling: workloads of scenarios, fits, capacities, the page."""

from __future__ import annotations

import itertools
import os
import random
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.bench.cli import main
from mqttree.bench.lab.priority import kept_awake
from mqttree.bench.lab.yardstick import yardstick
from mqttree.bench.load.cpu import cores
from mqttree.bench.placement import averages, scaling, scaling_page
from mqttree.bench.placement.least_squares import dot, least_squares, line
from mqttree.bench.placement.scaling_command import MEASURES
from mqttree.bench.runner import run_folder, traffic
from mqttree.bench.runner.book import Book
from mqttree.bench.runner.run import Job, in_turn
from mqttree.bench.scenarios import scenario
from mqttree.bench.scenarios.scenario import Cell, Parameters
from mqttree.bench.scenarios.workload import clients, placed
from mqttree.bench.workloads import simulator, trees
from mqttree.bench.workloads.named import NAMES, named
from mqttree.bench.workloads.workload_file import WorkloadError
from tests.kit.placement import load
from tests.unit.bench.test_bench_scenario import read

COSTS = (0.004, 0.0005, 30e-6, 12e-6, 20e-6, 8e-6)
"""Of an idle broker, a link, a message in, out, in over a link, out over a link."""


def test_a_line_goes_through_its_points() -> None:
    assert line([(1, 3), (2, 5), (4, 9)]) == pytest.approx((1, 2))
    assert line([(2, 5), (2, 6)]) is None and line([]) is None


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=5), st.integers(0, 1000))
def test_least_squares_find_what_made_the_values(wanted: list[float], seed: int) -> None:
    drawn = random.Random(seed)
    known = [[drawn.uniform(-1, 1) for _ in wanted] for _ in range(30)]
    fit = least_squares(known, [dot(wanted, row) for row in known])
    assert fit.coefficients == pytest.approx(wanted, abs=1e-6)
    assert fit.r2 == pytest.approx(1) and fit.n == 30


def test_nineteen_of_twenty_intervals_have_the_true_value() -> None:
    drawn = random.Random(1)
    hits = 0
    for _ in range(400):
        known = [(1.0, drawn.random()) for _ in range(12)]
        fit = least_squares(known, [3 + 2 * x + drawn.gauss(0, 0.3) for _, x in known])
        hits += abs(fit.coefficients[1] - 2) <= fit.halves[1]
    assert 0.92 <= hits / 400 <= 0.98


@pytest.mark.parametrize(
    ("known", "measured"), [([(1, 1)], [1]), ([(1, 2), (2, 4), (3, 6)], [1, 2, 3]), ([], [])]
)
def test_coefficients_that_cannot_be_told_apart_are_refused(
    known: list[Any], measured: list[float]
) -> None:
    with pytest.raises(ValueError, match=r"cannot say|a sum of others"):
        least_squares(known, measured)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("brokers", [2, 4, 8])
def test_named_workloads_have_a_publisher_a_topic(name: str, brokers: int) -> None:
    work = named(name, 1)
    assert set(work.publishers_on(brokers, 1)) == set(work.rates)
    assert {topic for client in work.clients for topic in client} <= set(work.rates)
    assert sum(map(len, work.clients)) in (1000, 100)


def test_the_named_draw_is_that_of_the_known_results() -> None:
    known = load("social-100")["by_brokers"]
    for brokers, strategy, key in ((4, "random", "random"), (8, "load", "greedy_ties_by_load")):
        found = simulator.place(named("social-100", 1), brokers, strategy).row()
        assert found["Ai"] == known[str(brokers)][key]["Ai"]


@pytest.mark.parametrize("brokers", [2, 4, 8])
def test_nothing_crosses_between_islands_and_none_has_more(brokers: int) -> None:
    row = simulator.place(named("islands", 5), brokers, "random", 7).row()
    assert row["Ai"] == 0 and row["jain"] == 1


def test_across_sends_all_over_one_link() -> None:
    row = simulator.place(named("across", 1), 2, "random", 3).row()
    assert row["aio"] == [1000, 0] and row["aeo"] == [0, 1000]


def test_a_file_of_unequal_rates_is_no_workload_of_a_scenario(tmp_path: Path) -> None:
    file = tmp_path / "w.json"
    file.write_text('{"clients": [[0, 1]], "rates": [1, 2]}')
    with pytest.raises(WorkloadError, match="different rates"):
        named(str(file), 1)
    file.write_text('{"clients": []}')
    with pytest.raises(WorkloadError, match="no topic"):
        named(str(file), 1)
    with pytest.raises(WorkloadError, match="No such file"):
        named(str(tmp_path / "none.json"), 1)


def cell(text: str) -> Cell:
    return read(f"topology: local\n{text}").cells[0]


def test_clients_of_a_workload_are_where_its_strategy_places_them() -> None:
    here = cell("parameters: {workload: social-100, strategy: load, brokers: 4, rate: 2}")
    brokers = ["b0", "b1", "b2", "b3"]
    specs = clients(here, brokers, (), 1)
    subscribers = [spec for spec in specs if spec.number < 0]
    publishers = [spec for spec in specs if spec.number >= 0]
    row = placed(here.main, 4, 1).row()
    assert len(subscribers) == row["sessions"] and len(publishers) == 1000
    assert [sum(spec.broker == name for spec in publishers) for name in brokers] == row["aei"]
    at = {spec.topics[0]: spec.broker for spec in publishers}
    wanted = {(topic, spec.broker) for spec in subscribers for topic in spec.topics}
    crossing = sum(at[topic] != broker for topic, broker in wanted)
    assert crossing == row["Ai"], "one copy for each other broker that wants the topic"
    assert all(0 <= spec.start < 0.5 for spec in publishers)


def test_a_session_of_several_topics_gets_the_messages_of_each_once() -> None:
    here = cell("parameters: {workload: pairs, brokers: 2}")
    specs = clients(here, ["b0", "b1"], (), 1)
    kept = Book(specs, {"": 0})
    assert set(kept.fanout.values()) == {1}
    social = clients(cell("parameters: {workload: social-100, brokers: 2}"), ["b0", "b1"], (), 1)
    assert sum(Book(social, {"": 0}).fanout.values()) == 1000


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("parameters: {workload: nowhere}", "parameters.workload: nowhere: No such file"),
        ("parameters: {strategy: worst}", "strategy must be one of random, "),
        ("parameters: {workload: pairs, publish_at: b0}", "a workload says itself who "),
        (
            "parameters: {workload: pairs}\nflows: {a: {}, b: {}}",
            "flows: a workload can only be a load's one flow",
        ),
    ],
)
def test_a_workload_that_cannot_be_is_one_line(text: str, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        cell(text)


def test_what_brokers_carried_is_the_difference_of_their_counters() -> None:
    counted = {"published": 5, "delivered": 7, "received_link": 1, "forwarded": 2}
    before = traffic.Mark(10.0, {"b0": counted}, {"b0": 1.0})
    later = {name: value + 10 for name, value in counted.items()}
    after = traffic.Mark(30.0, {"b0": later}, {"b0": 9.0})
    found = traffic.carried(before, after, {"b0": 2.0}, 4.0)
    assert found == {"b0": {"aei": 10, "aeo": 10, "aii": 10, "aio": 10, "cpu": 0.25}}


@pytest.mark.parametrize(
    ("parents", "into", "out"),
    [
        ([-1, 0, 0], [1, 2, 1], [3, 0, 1]),
        ([-1, 0, 1], [0, 2, 1], [1, 1, 1]),
        ([1, -1, 1], [0, 2, 1], [1, 1, 1]),
    ],
)
def test_a_message_crosses_each_link_of_its_way_on_the_tree_once(
    parents: list[int], into: list[int], out: list[int]
) -> None:
    wanted = {0: {0, 1, 2}, 1: {1}, 2: {1}, 3: set()}
    assert trees.carried(parents, {0: 0, 1: 1, 2: 2, 3: 0}, wanted) == (into, out)


def test_on_a_star_around_the_publishers_a_tree_is_the_full_mesh() -> None:
    found = placed(Parameters(workload="across", strategy="random"), 2, 1)
    assert traffic.modelled(found, ["b0", "b1"], [-1, 0]) == traffic.modelled(found, ["b0", "b1"])


@pytest.mark.parametrize("parents", [[1, 0], [-1, -1]])
def test_what_is_no_tree_is_refused(parents: list[int]) -> None:
    with pytest.raises(ValueError, match=r"circle|one tree"):
        trees.carried(parents, {0: 0}, {0: [1]})


def test_cores_of_brokers_are_kept_awake_by_what_all_else_goes_ahead_of() -> None:
    own, core = psutil.Process(), cores()[:1]
    before = {child.pid for child in own.children()}
    with kept_awake(core):
        (spinning,) = [child for child in own.children() if child.pid not in before]
        for _ in range(1000):
            if os.sched_getscheduler(spinning.pid) == os.SCHED_IDLE:
                break
            time.sleep(0.01)
        else:
            pytest.fail("it is not behind all else")
    assert not spinning.is_running()


def test_counted_traffic_is_set_beside_the_models() -> None:
    here = Parameters(workload="across", strategy="random")
    model = traffic.modelled(placed(here, 2, 1), ["b0", "b1"])
    counted = {name: {k: 3 * v for k, v in each.items()} for name, each in model.items()}
    counted["b1"]["aii"] += 6
    found = traffic.summary(counted, model, 3.0)
    assert found["rounds"] == 3 and found["internal_model"] == 3000
    assert found["internal_error"] == pytest.approx(0.002)
    other = traffic.summary(counted, model, 3.0, tree_changed=True)
    assert other == found | {"internal_error": None, "tree_changed": True}


@lru_cache
def model_of(workload: str, strategy: str, brokers: int) -> dict[str, dict[str, float]]:
    flow = Parameters(workload=workload, strategy=strategy)
    return traffic.modelled(placed(flow, brokers, 1), [f"b{number}" for number in range(brokers)])


def record(scenario_name: str, workload: str, strategy: str, brokers: int, **more: Any) -> Any:
    """A run.json of brokers whose loads are made by `COSTS`."""
    rate, repetition = more.get("rate", 1.0), more.get("repetition", 1)
    model = model_of(workload, strategy, brokers)
    seconds = 10.0
    carried: dict[str, dict[str, float]] = {}
    for name, each in model.items():
        carried[name] = {kind: value * rate * seconds for kind, value in each.items()}
        per_s = [value * rate for value in each.values()]
        for key, traffic_per_s in (("cpu", per_s), ("idle", (0, 0, 0, 0))):
            load = dot(COSTS, (1, brokers - 1, *traffic_per_s))
            carried[name][key] = load * more.get("by", 1)
    return {
        "schema": run_folder.SCHEMA,
        "scenario": scenario_name,
        "status": "complete",
        "repetition": repetition,
        "routing": "topic",
        "parameters": {"flows": {"": {"workload": workload, "strategy": strategy, "rate": rate}}},
        "summary": {
            "traffic": traffic.summary(carried, model, seconds),
            "flows": {"": {"delay_mean_ms": 1.5, "lost": 0}},
            "generator_cpu": 0.4,
            "broker_rss": 5e7,
            "sessions": 100,
            "connect_ms": 0.5,
        },
    }


def records() -> list[Any]:
    found = []
    for repetition, (brokers, strategy), rate in itertools.product(
        (1, 2),
        [(1, "random"), *itertools.product((2, 4, 8), ("random", "paper", "load"))],
        (0.5, 1.0),
    ):
        more = {"rate": rate * brokers, "repetition": repetition, "by": 1 + 0.01 * repetition}
        found.append(record("scaling-social", "social-100", strategy, brokers, **more))
        if strategy == "random" and brokers > 1:
            found.append(record("scaling-costs", "islands", "random", brokers, **more))
    for name, brokers in (("fan-in", 1), ("fan-out", 1), ("across", 2)):
        for rate in (0.5, 1.0):
            found.append(record("scaling-costs", name, "random", brokers, rate=rate, by=1.01))
    return found


@pytest.mark.parametrize("of", scaling.OF)
def test_the_capacity_is_where_the_load_reaches_the_share(of: str) -> None:
    same = [
        scaling.runs([record("scaling-social", "social-100", "random", 4, rate=rate)])[0]
        for rate in (1.0, 2.0)
    ]
    share = 0.1
    rate = scaling.capacity(same, share, of)
    assert rate is not None
    there = scaling.runs([record("scaling-social", "social-100", "random", 4, rate=rate / 1000)])[0]
    assert there.load(of) == pytest.approx(share)
    assert scaling.capacity(same[:1], share, of) == pytest.approx(rate)
    assert scaling.capacity([], share, of) is None


def test_ratios_of_equal_costs_are_those_of_the_model() -> None:
    (here,) = scaling.runs([record("scaling-social", "social-100", "random", 4)])
    row = simulator.place(named("social-100", 1), 4, "random").row()
    assert scaling.counted_ratio(here, "mean") == pytest.approx(2000 / (2000 + 2 * row["Ai"]))
    assert scaling.counted_ratio(here, "busiest") == pytest.approx(
        scaling.counted_ratio(here, "mean") / row["peak"], rel=1e-5
    )


def test_ratios_are_of_one_round_and_do_not_depend_on_how_fast_it_was() -> None:
    found = scaling.runs(records())
    rows = scaling.rows(found, scaling.all_costs(found), scaling.SHARE)
    for key in {(row["curve"], row["x"]) for row in rows if row["figure"] == "22"}:
        ratios = [
            row["ratio_mean"]
            for row in rows
            if row["figure"] == "22" and (row["curve"], row["x"]) == key
        ]
        assert len(ratios) == 2 and ratios[0] == pytest.approx(ratios[1], rel=0.02)
    (islands,) = {
        round(row["ratio_mean"], 1)
        for row in rows
        if (row["figure"], row["curve"], row["x"]) == ("22", "islands", 2.0)
    }
    assert islands == 1.0


def test_loads_are_normalized_by_how_fast_the_machine_was() -> None:
    made = [
        record("scaling-social", "social-100", strategy, 4, rate=1.0, by=slower)
        for strategy, slower in (("random", 1.0), ("load", 1.2), ("paper", 1.1))
    ]
    without = scaling.runs(made)
    assert scaling.normalized(without) == without
    for each, slower in zip(made, (1.0, 1.2, 1.1), strict=True):
        each["summary"]["traffic"]["yardstick_us"] = 50 * slower
    one = record("scaling-social", "social-100", "random", 1, rate=1.0)
    one["summary"]["traffic"]["yardstick_us"] = 30.0
    found = scaling.normalized(scaling.runs([*made, one]))
    assert found[0].loads == pytest.approx([load * 1.1 for load in without[0].loads])
    for each, slower, before in zip(found, (1.0, 1.2, 1.1, 1.0), without, strict=False):
        assert each.loads == pytest.approx([load * 1.1 / slower for load in before.loads])
        assert each.idle == pytest.approx([load * 1.1 / slower for load in before.idle])
    assert found[3].loads == scaling.runs([one])[0].loads, "others are no yardstick for it"


def test_the_yardstick_counts_what_work_costs() -> None:
    own, core = psutil.Process(), cores()[0]
    before = own.children()
    with yardstick(core) as found:
        for _ in range(1000):
            times, cost = found.read()
            if times >= 3:
                break
            time.sleep(0.01)
        else:
            pytest.fail("it does not work")
    assert 0 < cost / times < 0.1
    assert own.children() == before, "it has ended"


def test_costs_of_each_number_of_brokers_are_found_again() -> None:
    fits = scaling.all_costs(scaling.runs(each for each in records() if each["repetition"] == 1))
    assert list(fits) == [0, 1, 2, 4, 8]
    for brokers in (2, 4, 8):
        idle = COSTS[0] + (brokers - 1) * COSTS[1]
        assert fits[brokers].coefficients[0] == pytest.approx(idle * 1.01, rel=0.02)
        assert fits[brokers].coefficients[2:] == pytest.approx(
            [c * 1.01 for c in COSTS[2:]], rel=0.05
        )
    assert fits[1].coefficients[4:] == (0, 0)


def of_many(strategy: str) -> list[dict[str, Any]]:
    """The rows of figure 22 with several brokers whose clients a strategy placed."""
    found = scaling.runs(records())
    rows = scaling.rows(found, scaling.all_costs(found), scaling.SHARE)
    return [
        row for row in rows if (row["figure"], row["curve"]) == ("22", strategy) and row["x"] > 1
    ]


@pytest.mark.parametrize("strategy", ["random", "load"])
def test_beside_islands_is_what_the_costs_say(strategy: str) -> None:
    for row in of_many(strategy):
        assert row["beside_mean"] == pytest.approx(row["fitted_mean"], abs=0.03)


@pytest.mark.parametrize("strategy", ["random", "paper", "load"])
def test_ratios_are_what_the_costs_of_all_and_of_a_lone_broker_say(strategy: str) -> None:
    for row in of_many(strategy):
        assert row["ratio_mean"] == pytest.approx(row["fitted_ratio_mean"], abs=0.03)
        assert row["core_mean"] == pytest.approx(row["fitted_core_mean"], abs=0.03)


def test_saturation_is_where_a_lone_broker_has_a_core_to_do() -> None:
    fit = scaling.costs(scaling.runs(records()))
    rate = scaling.saturation(fit, "aei", 2000)
    assert fit.value((1, 0, rate, 2000, 0, 0)) == pytest.approx(1)


def test_the_page_has_each_figure_and_judges_statements() -> None:
    found = scaling.runs(records())
    fits = scaling.all_costs(found)
    rows = [dict.fromkeys(MEASURES) | row for row in scaling.rows(found, fits, 0.05)]
    means = averages.means_of(rows, MEASURES)
    text = list(scaling_page.page(means, fits, found, 0.05, "a command"))
    page = "\n".join(text)
    for title in ("Figure 22:", "Figure 2:", "Figures 3 and 4:", "Figure 23:"):
        assert f"## {title}" in page
    assert "| 4 random brokers: near the fit | within 0.08 | 0." in page
    assert "is the model's within 0.5%" in page
    assert "There are no runs of it." in page, "of figure 2"
    assert all(len(line) <= 100 or line.startswith("|") for line in text)


def test_runs_that_failed_and_others_are_passed_over() -> None:
    failed = {**record("scaling-social", "pairs", "load", 2), "status": "failed"}
    other = {"status": "complete", "summary": {"flows": {}}}
    assert scaling.runs([failed, other]) == []


def test_a_folder_without_runs_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["placement", "scaling", str(tmp_path), "--read"]) == 2
    assert "no complete run of scaling-costs, " in capsys.readouterr().err


def test_runs_are_read_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, each in enumerate(records()):
        run_folder.write(tmp_path / each["scenario"] / f"cell{number}" / "r1", each)
    assert main(["placement", "scaling", str(tmp_path), "--read"]) == 0
    assert "# What several brokers do beside one, measured" in capsys.readouterr().out


def test_rounds_take_all_cells_in_turn_there_and_back() -> None:
    loaded = scenario.load("scaling-pairs")
    cells = loaded.cells[:3]
    jobs = [Job(loaded, each, repetition, Path("x")) for each in cells for repetition in (1, 2, 3)]
    order = [(job.repetition, cells.index(job.cell)) for job in in_turn(jobs)]
    assert order == [(1, 0), (1, 1), (1, 2), (2, 2), (2, 1), (2, 0), (3, 0), (3, 1), (3, 2)]
