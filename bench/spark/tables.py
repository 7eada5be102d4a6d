"""From folders of runs to tables, by Spark."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from mqttree.bench.spark import network, source
from mqttree.bench.spark.collected import counts
from mqttree.bench.spark.events import Events, load
from mqttree.bench.spark.messages import messages
from mqttree.bench.spark.pack import Packed, packing
from mqttree.bench.spark.repairs import convergence_and_faults
from mqttree.bench.spark.session import Beside, forget, local
from mqttree.bench.spark.trace_files import unreadable
from mqttree.bench.tables.run import Run
from mqttree.bench.tables.table_set import Tables, assemble

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def silent(_stage: str) -> None:
    """Take the name of a stage, and say nothing."""


def compute(
    spark: SparkSession,
    folders: Sequence[str],
    runs: list[Run] | None = None,
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
        there = [file for file in files if source.there(file, spark)]
        bad = unreadable(spark, there) + [file for file in files if file not in set(there)]
        if not bad:
            raise
    for file in bad:
        source.damaged(runs, file)
    return aggregate(spark, runs, tell)


def aggregate(
    spark: SparkSession,
    runs: list[Run],
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
    tell("joining messages with their deliveries")
    with Beside(spark, events.few) as beside:
        went = beside.begin(network.read, events)
        repaired = beside.begin(convergence_and_faults, events)
        found = messages(events)
        tell("delays, losses and repairs")
        counted = counts(found, went.result(), repaired.result())
    forget(spark)
    return assemble(events, counted)
