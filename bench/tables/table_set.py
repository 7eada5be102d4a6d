"""The tables that are made of what was counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from mqttree.bench.scenarios.measures import MEASURES
from mqttree.bench.tables.clocks import Placed
from mqttree.bench.tables.counted import Counts
from mqttree.bench.tables.delays import rows as histogram_rows
from mqttree.bench.tables.faults import Fault
from mqttree.bench.tables.lines import lines
from mqttree.bench.tables.summary import COUNTS, Line, cases, name_cases, row
from mqttree.bench.tables.traffic import timeline

TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
}
"""Types of columns, in Spark's words."""
RUNS = (
    "scenario string, case string, fingerprint string, run string, repetition int, seed long, "
    "broker string, cell string, flow string, status string, window_s double, "
    + ", ".join(f"{name} long" for name in COUNTS)
    + ", "
    + ", ".join(f"{name} double" for name in MEASURES)
    + ", missing string, remarks string"
)
CASES = (
    "scenario string, case string, fingerprint string, variant string, broker string, flow string, "
    "measure string, runs int, n int, without int, why string, mean double, half double, "
    "deviation double, least double, most double, cell string"
)
FAULTS = (
    "scenario string, run string, kind string, target string, at long, tree_s double, "
    "service_s double, pairs long, unserved long, state string"
)
DELAYS = (
    "scenario string, run string, flow string, bucket int, n long, below long, all long, ms double"
)
LINKS = (
    "scenario string, run string, source string, target string, class string, how string, "
    "packets long, bytes long, bytes_measured long"
)
PACKETS = (
    "scenario string, run string, source string, target string, packet string, packets long, "
    "bytes long"
)
RESOURCES = (
    "scenario string, run string, process string, role string, cpu double, cpu_most double, "
    "rss double, rss_most long, samples long"
)
TIMELINE = "scenario string, run string, second int, what string, value double"


@dataclass
class Tables:
    """What came of it: rows of the tables of runs and cases, and all tables by their names."""

    lines: list[Line]
    runs: list[dict[str, Any]]
    cases: list[dict[str, Any]]
    tables: dict[str, pa.Table]


def table(ddl: str, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Return a table of `rows` with the columns that `ddl` declares ("name type, ...")."""
    words = [word.split(" ", 1) for word in ddl.split(", ")]
    columns = list(zip(*rows, strict=True)) or [()] * len(words)
    arrays = [
        pa.array([_typed(value, kind) for value in column], TYPES[kind])
        for column, (_, kind) in zip(columns, words, strict=True)
    ]
    return pa.table(arrays, names=[name for name, _ in words])


def _typed(value: Any, kind: str) -> Any:
    return float(value) if kind == "double" and value is not None else value


def assemble(placed: Placed, counted: Counts) -> Tables:
    """Return the tables of the runs that are `placed`, of what was `counted`; the runs' remarks get
    more."""
    runs, network = placed.runs, counted.network
    seconds = timeline(placed, network, counted.seconds)
    every = lines(placed, counted)
    name_cases(runs)
    averages, whole = cases(every), [row(line) for line in every]

    def named(ddl: str, rows: Iterable[Sequence[Any]]) -> pa.Table:
        return table(ddl, [(runs[no].scenario, runs[no].run, *rest) for no, *rest in rows])

    return Tables(
        every,
        whole,
        averages,
        {
            "runs": _rows(RUNS, whole),
            "cases": _rows(CASES, averages),
            "faults": _rows(FAULTS, [_fault(placed, fault) for fault in counted.repaired.faults]),
            "delays": named(DELAYS, histogram_rows(counted.histograms)),
            "links": named(LINKS, network.links),
            "packets": named(PACKETS, network.packets),
            "resources": named(RESOURCES, network.used),
            "timeline": named(TIMELINE, seconds),
        },
    )


def _rows(ddl: str, rows: list[dict[str, Any]]) -> pa.Table:
    names = [word.split(" ", 1)[0] for word in ddl.split(", ")]
    return table(ddl, [[each[name] for name in names] for each in rows])


def _fault(placed: Placed, fault: Fault) -> dict[str, Any]:
    return {
        "scenario": placed.runs[fault.no].scenario,
        "run": placed.runs[fault.no].run,
        "kind": fault.kind,
        "target": fault.target,
        "at": fault.at,
        "tree_s": fault.tree_s,
        "service_s": fault.service_s,
        "pairs": fault.pairs,
        "unserved": fault.unserved,
        "state": fault.state,
    }
