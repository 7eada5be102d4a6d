"""What a benchmark does while it runs: Structured Streaming over the trace files that become
complete."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from bench.spark import network
from bench.spark.events import literal, read
from bench.spark.render import figure
from bench.spark.source import FILES, UNREADABLE, same, store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HEAD = (
    "run",
    "to_s",
    "published/s",
    "accepted/s",
    "delivered/s",
    "delay_ms",
    "p99_ms",
    "joined",
    "control_B",
    "data_B",
    "cpu",
    "faults",
    "notes",
)


def watch(
    spark: SparkSession,
    folder: str,
    every: float,
    seconds: float | None = None,
    once: bool = False,
    show: Callable[[str], None] = lambda line: print(line, flush=True),
) -> int:
    """Print what is new below a `folder`, every `every` s: until Ctrl-C, for `seconds`, or with
    `once` until all is read. `spark` reads the traces, `show` takes each line. Returns the exit
    code.

    A file that cannot be read is named and left out. Raises source.SourceError when there is no
    such folder.
    """
    store(folder, spark)
    # Of the files only their names come from the stream: a batch that read them would end it at the
    # first damaged one.
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    files = (
        spark.readStream.format("binaryFile")
        .schema("path string, modificationTime timestamp, length long, content binary")
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", FILES)
        .option("maxFilesPerTrigger", 500)
        .load(literal(folder))
        .select("path")
    )
    zero: dict[tuple[str, str], int] = {}
    # Raised outside of the stream, which would print all of Java's stack.
    failures: list[PySparkException | Py4JError] = []
    show("  ".join(HEAD))

    def look(batch: DataFrame, number: int) -> None:
        paths = [str(row["path"]) for row in batch.collect()]
        while paths:
            try:
                for line in lines(read(batch.sparkSession, paths), zero):
                    show(line)
                return
            except (PySparkException, Py4JError) as error:
                found = UNREADABLE.search(str(error))
                bad = next((path for path in paths if found and same(path, found[1])), None)
                if bad is None:
                    failures.append(error)
                    return
                show(f"{bad.removeprefix('file:')} is damaged and left out")
                paths.remove(bad)

    stream = files.writeStream.foreachBatch(look).queryName("live")
    # Spark takes no fraction of a millisecond.
    pace = f"{max(round(every * 1000), 1)} milliseconds"
    query = (
        stream.trigger(availableNow=True) if once else stream.trigger(processingTime=pace)
    ).start()
    end = time.monotonic() + seconds if seconds is not None else float("inf")
    try:
        while not query.awaitTermination(1):
            if failures or time.monotonic() >= end:
                break
    finally:
        query.stop()
    if failures:
        raise failures[0]
    return 0


def lines(batch: DataFrame, zero: dict[tuple[str, str], int]) -> list[str]:
    """Return a line for each run in a batch of new rows; zero: each run's and host's first time,
    kept from call to call.

    The delay is that of deliveries whose publication is in the same batch and of the same clock, as
    those of several hosts are not compared here; `joined` says how many of all deliveries that are.
    """
    batch = batch.where("kind <> 'clock'").persist()  # whose host is the one that it is about
    key = ["run", "host", "publisher", "sequence"]

    def count(kind: str) -> Column:
        return sf.sum(sf.when(sf.col("kind") == kind, 1).otherwise(0)).alias(kind)

    times = sf.col("kind").isin("published", "accepted", "delivered")
    sums = batch.groupBy("run", "host").agg(
        *(count(kind) for kind in ("published", "accepted", "delivered", "note")),
        sf.sum(
            sf.when((sf.col("kind") == "fault") & (sf.col("name") != "start"), 1).otherwise(0)
        ).alias("fault"),
        sf.min("at").alias("first"),
        sf.min(sf.when(times, sf.col("at"))).alias("since"),
        sf.max(sf.when(times, sf.col("at"))).alias("until"),
        sf.max("at").alias("last"),
        sf.sum(sf.when(sf.col("kind") == "control", sf.col("size"))).alias("control"),
        sf.sum(sf.when(sf.col("kind") == "forwarded", sf.col("size"))).alias("data"),
    )
    sent = batch.where("kind = 'published'").select(*key, sf.col("at").alias("sent"))
    came = batch.where("kind = 'delivered'").select(*key, "at")
    delay = (
        came.join(sent, key).select("run", (sf.col("at") - sf.col("sent")).alias("ns"))
    ).groupBy("run")
    delays = delay.agg(
        sf.count("*").alias("joined"),
        sf.avg("ns").alias("mean"),
        sf.percentile_approx("ns", 0.99).alias("p99"),
    )
    steps = (
        network.steps(batch, "at", "run")
        .where("role = 'broker' and used is not null")
        .groupBy("run", "process")
    )
    step = steps.agg(
        (sf.sum("used") / sf.sum(sf.col("at") - sf.col("t_before")) * 1e9).alias("cpu")
    )
    cpu = step.groupBy("run").agg(sf.avg("cpu").alias("cpu"))
    try:
        found = sums.join(delays, "run", "left").join(cpu, "run", "left").collect()
    finally:
        batch.unpersist()
    runs: dict[str, list[Any]] = {}
    for row in sorted(found, key=lambda row: (row["run"], row["host"])):
        runs.setdefault(row["run"], []).append(row)
    return [_line(run, rows, zero) for run, rows in runs.items()]


def _line(run: str, rows: Sequence[Any], zero: dict[tuple[str, str], int]) -> str:
    """Return a run's line; rows: one for each of its hosts, whose times are those of a clock of its
    own."""
    first = rows[0]
    now = max(row["last"] - zero.setdefault((run, row["host"]), row["first"]) for row in rows) / 1e9
    span = (
        max((row["until"] - row["since"] for row in rows if row["until"] is not None), default=0)
        / 1e9
    )

    def count(name: str) -> int | None:
        known = [row[name] for row in rows if row[name] is not None]
        return sum(known) if known else None

    rates = [
        figure((count(kind) or 0) / span) if span else "-"
        for kind in ("published", "accepted", "delivered")
    ]
    joined = f"{first['joined'] / (count('delivered') or 1):.0%}" if first["joined"] else "-"
    delays = [
        figure(first[name] / 1e6) if first[name] is not None else "-" for name in ("mean", "p99")
    ]
    rest = [
        figure(count("control")),
        figure(count("data")),
        figure(first["cpu"]),
        str(count("fault")),
        str(count("note")),
    ]
    return "  ".join([run, f"{now:.1f}", *rates, *delays, joined, *rest])
