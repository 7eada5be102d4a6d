"""From folders of runs to a folder of tables, each as Parquet and as CSV."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from bench.scenarios.measures import MEASURES
from bench.spark import network, source
from bench.spark.events import Events, load, small
from bench.spark.lines import delays, lines
from bench.spark.messages import messages
from bench.spark.repairs import Fault
from bench.spark.session import cause
from bench.spark.summary import COUNTS, Line, cases, name_cases, row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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


MAX_DAMAGED = 20
"""Files that are found to be damaged one after the other; more of them are a broken disk."""


@dataclass
class Tables:
    """What came of it. runs and cases are here as rows, too: they are small."""

    lines: list[Line]
    runs: list[dict[str, Any]]
    cases: list[dict[str, Any]]
    frames: dict[str, DataFrame]


def compute(spark: SparkSession, folders: Sequence[str]) -> Tables:
    """Read all runs below the folders and aggregate them; raises source.SourceError.

    A file whose end is whole and whose middle is not shows only when it is read: it is then left
    out, and named.
    """
    runs = source.read(folders, spark)
    for _ in range(MAX_DAMAGED):
        try:
            return aggregate(spark, copy.deepcopy(runs))
        except (PySparkException, Py4JError) as error:
            found = source.UNREADABLE.search(str(error))
            if found is None or not source.damaged(runs, found[1]):
                raise
    return aggregate(spark, runs)


def aggregate(spark: SparkSession, runs: list[source.Run]) -> Tables:
    """Aggregate runs that were read; their remarks get more."""
    events = load(spark, runs)
    found = messages(events)
    went = network.traffic(events)
    links = network.links(went).localCheckpoint()
    used = network.resources(events).localCheckpoint()
    table, faults = lines(events, found, links, used)
    name_cases(runs)
    rows, averages = [row(line) for line in table], cases(table)
    keys = [(number, run.scenario, run.run) for number, run in enumerate(runs)]
    names = small(spark, "no int, scenario string, run string", keys)

    def named(frame: DataFrame) -> DataFrame:
        return names.join(frame, "no").drop("no")

    frames = {
        "runs": _rows(spark, RUNS, rows),
        "cases": _rows(spark, CASES, averages),
        "faults": _rows(spark, FAULTS, [_fault(events, fault) for fault in faults]),
        "delays": named(delays(found.cells).withColumn("ms", _upper())),
        "links": named(links),
        "packets": named(network.packets(events)),
        "resources": named(used),
        "timeline": named(network.timeline(events, went)),
    }
    return Tables(table, rows, averages, frames)


def _upper() -> Any:
    """Return bench.load.histogram.upper of the column bucket, in ms."""
    place, half = sf.col("bucket"), 128
    shift = sf.floor((place - half) / half).cast("int")
    wide = (
        sf.call_function("shiftleft", (place - shift * half).cast("long"), shift)
        + sf.call_function("shiftleft", sf.lit(1).cast("long"), shift)
        - 1
    )
    return sf.when(place < 2 * half, place.cast("long")).otherwise(wide) / 1e6


def _rows(spark: SparkSession, ddl: str, rows: list[dict[str, Any]]) -> DataFrame:
    names = [word.split(" ", 1)[0] for word in ddl.split(", ")]
    return small(spark, ddl, [[each[name] for name in names] for each in rows])


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


def _files(spark: SparkSession, folder: str) -> tuple[Any, Any]:
    """Return Hadoop's file system of a folder, and its class of paths."""
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path
    return path(folder).getFileSystem(context._jsc.hadoopConfiguration()), path


def prepare(spark: SparkSession, folder: str) -> None:
    """Make the folder of the tables; raises ValueError, in one line, if it cannot be."""
    place = source.url(folder)
    try:
        files, path = _files(spark, place)
        made = files.mkdirs(path(place))
    except Py4JJavaError as error:
        raise ValueError(f"no tables can be written to {folder}: {cause(error)}") from error
    if not made:
        raise ValueError(f"no tables can be written to {folder}: it cannot be made")


def write(spark: SparkSession, tables: Tables, folder: str) -> list[str]:
    """Write every one of the `tables` as NAME.parquet (a folder, as `spark` writes it) and NAME.csv
    (one file) into `folder`; return their names.

    about.json has what is known of each run, sources.json where each is, beside or below the
    folder.
    """
    place = source.url(folder)
    files, path = _files(spark, place)
    for name, frame in tables.frames.items():
        once = frame.coalesce(1).localCheckpoint()
        once.write.mode("overwrite").parquet(f"{place}/{name}.parquet")
        once.write.mode("overwrite").option("header", True).option("escape", '"').csv(
            f"{place}/.{name}.csv"
        )
        part = files.globStatus(path(f"{place}/.{name}.csv/part-*"))[0].getPath()
        target = path(f"{place}/{name}.csv")
        files.delete(target, False)
        files.rename(part, target)
        files.delete(path(f"{place}/.{name}.csv"), True)
        files.delete(path(f"{place}/..{name}.csv.crc"), False)
    whole = [line.run for line in tables.lines if not line.flow]
    for name, found in (
        ("sources", [_beside(run.place, folder) for run in whole]),
        ("about", [run.about for run in whole]),
    ):
        stream = files.create(path(f"{place}/{name}.json"), True)
        try:
            stream.write(json.dumps(found).encode())
        finally:
            stream.close()
    return sorted(tables.frames)


def _beside(place: str, folder: str) -> str:
    """Return a path as seen from a folder, so that both may be moved; a URL as it is."""
    if "://" in folder or not place.startswith("/"):
        return place
    return os.path.relpath(place, Path(folder).resolve())
