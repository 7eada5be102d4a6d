"""From folders of runs to a folder of tables, each as Parquet and as CSV."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from bench.spark import network, source
from bench.spark.events import Events, load, small
from bench.spark.lines import delays, lines
from bench.spark.messages import messages
from bench.spark.repairs import Fault
from bench.spark.summary import COUNTS, MEASURES, Line, cases, row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUNS = (
    "scenario string, case string, run string, repetition int, broker string, cell string, flow string, status string, "
    "window_s double, "
    + ", ".join(f"{name} long" for name in COUNTS) + ", " + ", ".join(f"{name} double" for name in MEASURES)
    + ", missing string, remarks string"
)  # fmt: skip
CASES = (
    "scenario string, case string, broker string, flow string, measure string, runs int, n int, without int, why string, "
    "mean double, half double, deviation double, least double, most double, cell string"
)
FAULTS = (
    "run string, kind string, target string, at long, tree_s double, service_s double, pairs long, unserved long, state string"
)


MAX_DAMAGED = 20
"""Files that are found to be damaged one after the other; more of them are a broken disk."""
UNREADABLE = re.compile(r"while reading file (\S+?)\.?\s")
"""How Spark says which file it was."""


@dataclass
class Tables:
    """What came of it. runs and cases are here as rows, too: they are small."""

    lines: list[Line]
    runs: list[dict[str, Any]]
    cases: list[dict[str, Any]]
    frames: dict[str, DataFrame]


def compute(spark: SparkSession, folders: Sequence[str]) -> Tables:
    """Read all runs below the folders and aggregate them; raises source.SourceError.

    A file whose end is whole and whose middle is not shows only when it is read: it is then left out, and named.
    """
    runs = source.read(folders, spark)
    for _ in range(MAX_DAMAGED):
        try:
            return aggregate(spark, copy.deepcopy(runs))
        except (PySparkException, Py4JError) as error:
            found = UNREADABLE.search(str(error))
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
    rows, averages = [row(line) for line in table], cases(table)
    names = small(spark, "no int, run string", [(number, run.run) for number, run in enumerate(runs)])

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
        "run": events.runs[fault.no].run, "kind": fault.kind, "target": fault.target, "at": fault.at, "tree_s": fault.tree_s,
        "service_s": fault.service_s, "pairs": fault.pairs, "unserved": fault.unserved, "state": fault.state,
    }  # fmt: skip


def write(spark: SparkSession, tables: Tables, folder: str) -> list[str]:
    """Write every table as NAME.parquet (a folder, as Spark does) and NAME.csv (one file) into a folder; return their names."""
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path
    files = path(folder).getFileSystem(context._jsc.hadoopConfiguration())
    for name, frame in tables.frames.items():
        once = frame.coalesce(1).localCheckpoint()
        once.write.mode("overwrite").parquet(f"{folder}/{name}.parquet")
        once.write.mode("overwrite").option("header", True).option("escape", '"').csv(f"{folder}/.{name}.csv")
        part = files.globStatus(path(f"{folder}/.{name}.csv/part-*"))[0].getPath()
        target = path(f"{folder}/{name}.csv")
        files.delete(target, False)
        files.rename(part, target)
        files.delete(path(f"{folder}/.{name}.csv"), True)
        files.delete(path(f"{folder}/..{name}.csv.crc"), False)
    about = json.dumps([line.run.about for line in tables.lines if not line.flow])
    stream = files.create(path(f"{folder}/about.json"), True)
    try:
        stream.write(about.encode())
    finally:
        stream.close()
    return sorted(tables.frames)
