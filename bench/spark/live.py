"""What a benchmark does while it runs: Structured Streaming over the trace files that become
complete.

Time has two meanings here. Windows are of the events' own time, by the clock of their host. The
watermark is of the time at which files became complete: clocks of hosts, and of runs one after the
other, are not comparable, and that is the one time that all rows have.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from mqttree.bench.spark.live_view import Count, Key, LiveView
from mqttree.bench.spark.messages import bucket
from mqttree.bench.spark.source import FILES, store
from mqttree.bench.spark.trace_files import DDL, LENIENT, bare, literal, unreadable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LATE_S = 15
"""s that a file may become complete after others, and its rows still count: three times as long as
a process waits until it completes one."""
PART_S = 10
"""s of files' completion whose counts are one state: Spark forgets it when the watermark has
passed."""
MAX_FILES = 500
"""Files that are read in one micro-batch, the oldest first."""
_SECOND = 1_000_000_000


@dataclass
class Watch:
    """What the streams have said. Their callbacks come from other threads."""

    view: LiveView
    lock: threading.Lock = field(default_factory=threading.Lock)
    damaged: list[str] = field(default_factory=list)
    failure: Exception | None = None


def files(
    spark: SparkSession, folder: str, kind: str, schema: str, most: int = MAX_FILES
) -> DataFrame:
    """Return a stream, made by `spark`, of what is below the `folder` in complete trace files, by a
    source of this `kind` with its `schema`, with at most so many files (`most`) in a batch."""
    reader = (
        spark.readStream.format(kind)
        .schema(schema)
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", FILES)
        .option("maxFilesPerTrigger", most)
        .option(LENIENT, "true")
    )
    return reader.load(literal(folder))


def rows(spark: SparkSession, folder: str, window_s: float, most: int = MAX_FILES) -> DataFrame:
    """Return a stream of all rows below a `folder`, made by `spark`, of so many files at `most` in
    a batch, with the number of the `window` (of `window_s` seconds) that each is in by its host's
    clock, and when its file was `complete`, which has the watermark."""
    number = sf.floor(sf.col("at") / sf.lit(int(window_s * _SECOND))).cast("long")
    found = files(spark, folder, "parquet", DDL, most).select(
        "*",
        number.alias("window"),
        sf.col("_metadata.file_modification_time").alias("complete"),
    )
    return found.withWatermark("complete", f"{LATE_S} seconds")


def counts(found: DataFrame) -> DataFrame:
    """Return the rows of a stream counted by live_view.Key: a windowed aggregation."""
    starts = (sf.col("kind") == "fault") & sf.col("name").isin("start", "restart")
    what = sf.when(starts, sf.col("name")).otherwise(sf.col("kind")).alias("what")
    of_one = sf.col("kind").isin("resources", "fault")
    # Of a clock, the host is the one that it is about.
    wanted = found.where("kind <> 'clock' and (kind <> 'resources' or name = 'broker')")
    keyed = wanted.select(
        "run",
        "host",
        "window",
        sf.window("complete", f"{PART_S} seconds").alias("part"),
        what,
        sf.coalesce(sf.when(of_one, sf.col("broker")), sf.lit("")).alias("who"),
        "size",
        "at",
        "cpu_s",
    )
    return keyed.groupBy("part", "run", "host", "window", "what", "who").agg(
        sf.count("*").alias("n"),
        sf.sum(sf.coalesce("size", sf.lit(0))).alias("size"),
        sf.min("at").alias("first"),
        sf.max("at").alias("last"),
        sf.min("cpu_s").alias("cpu_first"),
        sf.max("cpu_s").alias("cpu_last"),
    )


def delays(came: DataFrame, sent: DataFrame) -> DataFrame:
    """Return (run, host, window, bucket) of each delivery whose publication the same host's clock
    saw: a join of two streams. Its state is that of LATE_S seconds."""
    key = ("run", "host", "publisher", "sequence")
    sent = sent.where("kind = 'published'").select(
        *(sf.col(name).alias(f"sent_{name}") for name in key),
        sf.col("at").alias("sent"),
        sf.col("complete").alias("sent_complete"),
    )
    came = came.where("kind = 'delivered'").select(*key, "at", "window", "complete")
    near = (
        f"complete >= sent_complete - interval {LATE_S} seconds and "
        f"complete <= sent_complete + interval {LATE_S} seconds"
    )
    same = " and ".join(f"{name} = sent_{name}" for name in key)
    joined = came.join(sent, sf.expr(f"{same} and {near}"))
    return joined.select("run", "host", "window", bucket(sf.col("at") - sf.col("sent")).alias("b"))


def start(
    spark: SparkSession,
    folder: str,
    window_s: float,
    watch: Watch,
    trigger: dict[str, Any],
    most: int = MAX_FILES,
) -> list[StreamingQuery]:
    """Start the streams: counts, delays, and which files are damaged. `folder` has the traces,
    which `spark` reads in batches of so many files at `most`; `window_s` is the length of a window,
    `watch` takes what they say, `trigger` is that of Spark."""

    def counted(batch: DataFrame, _number: int) -> None:
        found = [
            (
                Key(
                    row["run"],
                    row["host"],
                    row["window"],
                    int(row["part"]["start"].timestamp()),
                    row["what"],
                    row["who"],
                ),
                Count(*(row[name] for name in Count._fields)),
            )
            for row in batch.collect()
        ]
        with watch.lock:
            watch.view.counted(found, time.monotonic())

    def delayed(batch: DataFrame, _number: int) -> None:
        found = batch.groupBy("run", "host", "window", "b").count().collect()
        with watch.lock:
            watch.view.delayed((tuple(row) for row in found), time.monotonic())

    def named(batch: DataFrame, _number: int) -> None:
        bad = unreadable(batch.sparkSession, [str(row["path"]) for row in batch.collect()])
        with watch.lock:
            watch.damaged += map(bare, bad)

    sources = [rows(spark, folder, window_s, most) for _ in range(3)]
    names = files(spark, folder, "binaryFile", _BINARY, most).select("path")
    streams: tuple[tuple[str, DataFrame, str, Callable[[DataFrame, int], None]], ...] = (
        ("counts", counts(sources[0]), "update", counted),
        ("delays", delays(sources[1], sources[2]), "append", delayed),
        ("files", names, "append", named),
    )
    return [
        frame.writeStream.queryName(name)
        .outputMode(mode)
        .foreachBatch(take)
        .trigger(**trigger)
        .start()
        for name, frame, mode, take in streams
    ]


_BINARY = "path string, modificationTime timestamp, length long, content binary"


def watch(
    spark: SparkSession,
    folder: str,
    every: float,
    refresh: Callable[[Watch, bool], None],
    *,
    window_s: float = 5.0,
    seconds: float | None = None,
    once: bool = False,
    most: int = MAX_FILES,
) -> int:
    """Show what is in the traces below a `folder` until Ctrl-C, for `seconds`, or with `once` until
    all is read. Returns the exit code.

    `spark` reads the traces every `every` s, so many files at `most` in a batch, in windows of
    `window_s` s. `refresh` is called with
    what is known, about once a second (with `once` not yet), and with True at the end. A file that
    cannot be read is named and left out. Raises source.SourceError when there is no such folder,
    and what Spark raises when a stream fails.
    """
    store(folder, spark)
    for name, value in _OPTIONS.items():
        spark.conf.set(name, value)
    # Spark takes no fraction of a millisecond.
    pace = f"{max(round(every * 1000), 1)} milliseconds"
    trigger: dict[str, Any] = {"availableNow": True} if once else {"processingTime": pace}
    state = Watch(LiveView(window_s))
    queries = start(spark, folder, window_s, state, trigger, most)
    end = time.monotonic() + seconds if seconds is not None else float("inf")
    try:
        while any(query.isActive for query in queries):
            _wait(queries)
            if time.monotonic() >= end:
                break
            if not once:
                with state.lock:
                    refresh(state, False)
    except KeyboardInterrupt:
        with state.lock:
            refresh(state, True)
        raise
    finally:
        cut = once and any(query.isActive for query in queries)
        for query in queries:
            query.stop()
    for query in queries:
        if (failure := query.exception()) is not None:
            raise failure
    with state.lock:
        refresh(state, True)
    if cut:
        print(f"{seconds:g} s are over; not all files were read", file=sys.stderr)
    return 0


def _wait(queries: list[StreamingQuery]) -> None:
    """Wait a second, or until one of those that run ends. What ended it is raised later, once all
    are stopped."""
    active = next((query for query in queries if query.isActive), None)
    if active is None:
        return
    try:
        active.awaitTermination(1)
    except (PySparkException, Py4JError):
        return


_OPTIONS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
"""Few tasks: a batch is small. No batches without files: what they would forget is forgotten by the
next one."""
