"""The tables that are made of what was counted, and how they are written."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqttree.bench.scenarios.measures import MEASURES
from mqttree.bench.spark import source, store
from mqttree.bench.spark.clocks import Placed
from mqttree.bench.spark.counted import Counts
from mqttree.bench.spark.delays import rows as histogram_rows
from mqttree.bench.spark.faults import Fault
from mqttree.bench.spark.lines import lines
from mqttree.bench.spark.summary import COUNTS, Line, cases, name_cases, row
from mqttree.bench.spark.traffic import timeline

if TYPE_CHECKING:
    import pyarrow as pa

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


def silent(_stage: str) -> None:
    """Take the name of a stage, and say nothing."""


def without_damaged(
    runs: list[source.Run],
    aggregate: Callable[[list[source.Run]], Tables],
    unreadable: Callable[[list[str]], list[str]],
    failures: tuple[type[Exception], ...],
    tell: Callable[[str], None],
) -> Tables:
    """Return what `aggregate` makes of `runs`. Where that is one of its `failures`, all files are
    looked at by `unreadable`, which returns those that are damaged: these are left out, and named,
    and all is done once more. `tell` hears of it."""
    files = [file for run in runs for file in run.files]
    try:
        return aggregate(copy.deepcopy(runs))
    except failures:
        tell(f"a file cannot be read: trying each of {len(files):,}")
        bad = unreadable(files)
        if not bad:
            raise
    for file in bad:
        source.damaged(runs, file)
    return aggregate(runs)


def assemble(placed: Placed, counted: Counts) -> Tables:
    """Return the tables of the runs that are `placed`, of what was `counted`; the runs' remarks get
    more."""
    runs, network = placed.runs, counted.network
    seconds = timeline(placed, network, counted.seconds)
    table = lines(placed, counted)
    name_cases(runs)
    averages, whole = cases(table), [row(line) for line in table]

    def named(ddl: str, rows: Iterable[Sequence[Any]]) -> pa.Table:
        return store.table(ddl, [(runs[no].scenario, runs[no].run, *rest) for no, *rest in rows])

    return Tables(
        table,
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
    return store.table(ddl, [[each[name] for name in names] for each in rows])


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


def write(place: store.Folder, tables: Tables, folder: str) -> list[str]:
    """Write every one of the `tables` as NAME.parquet and NAME.csv to a `place`, which is `folder`;
    return their names. Raises ValueError in one line where that cannot be.

    about.json has what is known of each run, sources.json where each is, beside or below the
    folder.
    """
    for name, found in tables.tables.items():
        place.put(f"{name}.parquet", store.as_parquet(found))
        place.put(f"{name}.csv", store.as_csv(found))
    whole = [line.run for line in tables.lines if not line.flow]
    place.put("sources.json", json.dumps([_beside(run.place, folder) for run in whole]).encode())
    # The last one: it is what says how old all are.
    place.put("about.json", json.dumps([run.about for run in whole]).encode())
    return sorted(tables.tables)


def _beside(place: str, folder: str) -> str:
    """Return a path as seen from a folder, so that both may be moved; a URL as it is."""
    if "://" in folder or not place.startswith("/"):
        return place
    return os.path.relpath(place, Path(folder).resolve())
