"""The tables of Spohn's paper beside ours: what is derived from delays, what is counted, and what
is left out."""

from __future__ import annotations

from typing import Any

from mqttree.bench.report import page
from mqttree.bench.report.data import Results
from mqttree.bench.scenarios.federator_tables import FAR, FAULTS, GRID, NEAR, Table, tables


def run(setup: str, far: float, near: float, **more: Any) -> dict[str, Any]:
    subscribers = {
        name: {"delay_mean_ms": mean, "delay_sd_ms": 3.0, "lost": 0, "outage_s": 0.0}
        for name, mean in ((FAR, far), (NEAR, near))
    }
    return {
        "status": "complete",
        "scenario": GRID,
        "cell": {"messages": 500, "client_delay": 5.0, "qos": 0, "setup": setup},
        "summary": {"subscribers": subscribers, **more},
    }


def line(table: Table, begins: str) -> dict[str, str]:
    (found,) = [each for each in table.lines if each[0] == begins]
    return dict(zip(table.headings, found, strict=True))


COUNTED = {
    "rounds": {"core_ann": {"16": 4}, "memb_ann": {"7": 4}},
    "publications": {"10": 499, "9": 1},
}
RUNS = [
    run("federators", 30.5, 15.2, federators=COUNTED, convergence_s=0.04, companion_cpu=0.02),
    run("federators", 31.5, 15.8, federators=COUNTED, convergence_s=0.06, companion_cpu=0.02),
    run("federators-lowest", 31.0, 36.0, federators=COUNTED),
    run("one-at-b2", 30.0, 30.1),
    run("one-at-b7", 15.0, 15.2),
]


def test_delays_are_set_beside_those_of_the_paper() -> None:
    federated, central, _ = tables(RUNS)
    assert [each[0] for each in federated.lines[:2]] == ["paper", "paper"]
    assert federated.lines[0][4:] == ["34.64 ± 3.21", "18.65 ± 3.20", "5.33", "13.32", "0.54"]
    ours = line(federated, "federators")
    assert (ours["node 2 ms"], ours["node 7 ms"]) == ("31.00 ± 3.00", "15.50 ± 3.00")
    assert (ours["ms a hop"], ours["constant ms"], ours["node 7 / node 2"]) == (
        "5.17",
        "10.33",
        "0.50",
    )
    assert line(federated, "federators-lowest")["ms a hop"] == "-", "node 7 is five hops away"
    assert central.lines[0][-4:] == ["7.88", "8.06", "1.00", "1.00"]
    one = line(central, "ours")
    assert (one["ms a hop"], one["constant ms"]) == ("5.00", "10.00")
    assert (one["B - A at 2"], one["B - A at 7"]) == ("0.10", "0.20")
    assert (one["federated / A at 2"], one["federated / A at 7"]) == ("1.03", "1.03")


def test_messages_are_counted_over_all_runs() -> None:
    counts = tables(RUNS)[2]
    found = line(counts, "federators")
    assert found["announcements a round"] == "16 (8 times)"
    assert found["memberships a round"] == "7 (8 times)"
    assert found["messages a publication"] == "10.00 (9 to 10, 1000 times)"
    assert found["convergence s"] == "0.050"


def test_a_run_that_is_not_complete_is_in_no_table() -> None:
    assert tables([{**RUNS[0], "status": "failed"}]) == []
    alone = tables([RUNS[3]])
    assert [table.title.split(":")[0] for table in alone] == ["Federator, table 3"]
    assert line(alone[0], "ours")["at 7: A ms"] == "-"


def fault(lost: int, outage: float) -> dict[str, Any]:
    subscribers = {
        f"s-sub-{number}": {"lost": lost + number, "outage_s": outage} for number in range(3)
    }
    flow = {"expected": 900, "lost": 3 * lost, "duplicates": 0, "reordered": 1, "unaccepted": 2}
    return {
        "status": "complete",
        "scenario": FAULTS,
        "cell": {"fault": "core-federator", "redundancy": 2},
        "summary": {"subscribers": subscribers, "flows": {"": flow}, "convergence_s": 0.1},
    }


def test_faults_are_told_for_each_subscriber() -> None:
    (table,) = tables([fault(300, 32.0), fault(320, 34.0)])
    (words,) = table.lines
    assert words[:4] == ["federators", "core-federator", "2", "2"]
    assert words[4:9] == ["900", "930", "0", "1", "2"]
    assert words[9:] == ["310, 33.0", "311, 33.0", "312, 33.0", "0.100"]


def test_a_run_of_another_version_has_no_figure_where_it_lacks_one() -> None:
    old = fault(300, 32.0)
    del old["summary"]["subscribers"]["s-sub-0"]["lost"]
    old["summary"]["subscribers"]["s-sub-1"] = None
    (table,) = tables([old])
    assert table.lines[0][9:12] == ["-", "-", "302, 32.0"]


def test_the_page_has_the_tables() -> None:
    text = page.page(Results([], [], [], [], RUNS), "again")
    assert "<h3>Federator, table 2: delay of a publication at node 6, federated</h3>" in text
    assert "<td class=n>34.64 ± 3.21</td>" in text and "the paper does not say what its ±" in text
