"""From folders of runs to a folder of tables, each as Parquet and as CSV."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from bench.scenarios.measures import MEASURES
from bench.spark import network, source, store
from bench.spark.delays import rows as histogram_rows
from bench.spark.events import Events, load
from bench.spark.lines import counts, lines
from bench.spark.messages import messages
from bench.spark.pack import Packed, packing
from bench.spark.repairs import Fault, convergence_and_faults
from bench.spark.session import Beside, forget, local
from bench.spark.summary import COUNTS, Line, cases, name_cases, row
from bench.spark.trace_files import unreadable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

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


def compute(
    spark: SparkSession,
    folders: Sequence[str],
    runs: list[source.Run] | None = None,
    tell: Callable[[str], None] = silent,
    packed: Callable[[], Packed | None] | None = None,
) -> Tables:
    """Read all runs below the `folders` with `spark` and aggregate them. Raises source.SourceError.

    `runs` are what `source.read` found there, if that is known already, and `packed` what
    `pack.packing` yields of them, where that has begun; `tell` hears of each stage.
    A file whose end is whole and whose middle is not shows only when it is read: all are then
    looked at, those that are damaged are left out, and named.
    """
    if runs is None:
        tell("looking for runs")
        runs = source.read(folders, spark)
    files = [file for run in runs for file in run.files]
    try:
        return aggregate(spark, copy.deepcopy(runs), tell, packed)
    except (PySparkException, Py4JError):
        tell(f"a file cannot be read: trying each of {len(files):,}")
        forget(spark)
        bad = unreadable(spark, [file for file in files if source.there(file, spark)])
        bad += [file for file in files if not source.there(file, spark)]
        if not bad:
            raise
    for file in bad:
        source.damaged(runs, file)
    return aggregate(spark, runs, tell)


def aggregate(
    spark: SparkSession,
    runs: list[source.Run],
    tell: Callable[[str], None] = silent,
    packed: Callable[[], Packed | None] | None = None,
) -> Tables:
    """Aggregate `runs` that were read, with `spark`; their remarks get more. `tell` hears of each
    stage, `packed` is as in `compute`."""
    files, rows = sum(len(run.files) for run in runs), sum(sum(run.rows.values()) for run in runs)
    tell(f"reading {len(runs):,} runs, {files:,} files, {rows:,} rows")
    if packed is not None:
        return _aggregate(spark, load(spark, runs, packed()), tell)
    with packing(runs if local(spark) else []) as begun:
        return _aggregate(spark, load(spark, runs, begun()), tell)


def _aggregate(spark: SparkSession, events: Events, tell: Callable[[str], None]) -> Tables:
    runs = events.runs
    tell("joining messages with their deliveries")
    with Beside(spark, events.few) as beside:
        went = beside.begin(network.read, events)
        repaired = beside.begin(convergence_and_faults, events)
        found = messages(events)
        tell("delays, losses and repairs")
        counted = counts(found, went.result(), repaired.result())
    timeline = network.timeline(events, went.result(), found.seconds)
    table = lines(events, found, counted)
    forget(spark)
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
            "faults": _rows(FAULTS, [_fault(events, fault) for fault in counted.repaired.faults]),
            "delays": named(DELAYS, histogram_rows(counted.histograms)),
            "links": named(LINKS, counted.links),
            "packets": named(PACKETS, went.result().packets),
            "resources": named(RESOURCES, counted.used),
            "timeline": named(TIMELINE, timeline),
        },
    )


def _rows(ddl: str, rows: list[dict[str, Any]]) -> pa.Table:
    names = [word.split(" ", 1)[0] for word in ddl.split(", ")]
    return store.table(ddl, [[each[name] for name in names] for each in rows])


def _fault(events: Events, fault: Fault) -> dict[str, Any]:
    return {
        "scenario": events.runs[fault.no].scenario,
        "run": events.runs[fault.no].run,
        "kind": fault.kind,
        "target": fault.target,
        "at": fault.at,
        "tree_s": fault.tree_s,
        "service_s": fault.service_s,
        "pairs": fault.pairs,
        "unserved": fault.unserved,
        "state": fault.state,
    }


def write(place: store.Store, tables: Tables, folder: str) -> list[str]:
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
