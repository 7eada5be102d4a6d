"""What a benchmark does while it runs: Structured Streaming over the trace files that become complete."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from bench.spark.events import DDL
from bench.spark.render import figure

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
    """Print what is new below a folder every `every` s: until Ctrl-C, for `seconds`, or (once) until all is read."""
    if "://" not in folder and not Path(folder).is_dir():
        raise ValueError(f"{folder} is not a folder")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    rows = (
        spark.readStream.schema(DDL)
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", "*.parquet")
        .option("maxFilesPerTrigger", 500)
        .parquet(folder)
    )
    zero: dict[str, int] = {}
    show("  ".join(HEAD))

    def look(batch: DataFrame, number: int) -> None:
        for line in lines(batch, zero):
            show(line)

    stream = rows.writeStream.foreachBatch(look).queryName("live")
    query = (stream.trigger(availableNow=True) if once else stream.trigger(processingTime=f"{every} seconds")).start()
    end = time.monotonic() + seconds if seconds is not None else float("inf")
    try:
        while not query.awaitTermination(1):
            if time.monotonic() >= end:
                break
    finally:
        query.stop()
    return 0


def lines(batch: DataFrame, zero: dict[str, int]) -> list[str]:
    """Return a line for each run in a batch of new rows; zero: the first time seen of each run, kept from call to call.

    The delay is that of deliveries whose publication is in the same batch; `joined` says how many of them that are.
    """
    batch = batch.persist()
    key = ["run", "publisher", "sequence"]

    def count(kind: str) -> Column:
        return sf.sum(sf.when(sf.col("kind") == kind, 1).otherwise(0)).alias(kind)

    times = sf.col("kind").isin("published", "accepted", "delivered")
    sums = batch.groupBy("run").agg(
        *(count(kind) for kind in ("published", "accepted", "delivered", "note")),
        sf.sum(sf.when((sf.col("kind") == "fault") & (sf.col("name") != "start"), 1).otherwise(0)).alias("fault"),
        sf.min("at").alias("first"),
        sf.min(sf.when(times, sf.col("at"))).alias("since"),
        sf.max(sf.when(times, sf.col("at"))).alias("until"),
        sf.max("at").alias("last"),
        sf.sum(sf.when(sf.col("kind") == "control", sf.col("size"))).alias("control"),
        sf.sum(sf.when(sf.col("kind") == "forwarded", sf.col("size"))).alias("data"),
    )
    sent = batch.where("kind = 'published'").select(*key, sf.col("at").alias("sent"))
    came = batch.where("kind = 'delivered'").select(*key, "at")
    delay = (came.join(sent, key).select("run", (sf.col("at") - sf.col("sent")).alias("ns"))).groupBy("run")
    delays = delay.agg(sf.count("*").alias("joined"), sf.avg("ns").alias("mean"), sf.percentile_approx("ns", 0.99).alias("p99"))
    steps = batch.where("kind = 'resources' and name = 'broker'").groupBy("run", "broker")
    step = steps.agg(sf.min("at").alias("a"), sf.max("at").alias("b"), (sf.max("cpu_s") - sf.min("cpu_s")).alias("used"))
    cpu = step.where("b > a").groupBy("run").agg(sf.avg(sf.col("used") / (sf.col("b") - sf.col("a")) * 1e9).alias("cpu"))
    found = sums.join(delays, "run", "left").join(cpu, "run", "left").orderBy("run").collect()
    batch.unpersist()
    return [_line(row, zero) for row in found]


def _line(row: Any, zero: dict[str, int]) -> str:
    start = zero.setdefault(row["run"], row["first"])
    span = (row["until"] - row["since"]) / 1e9 if row["until"] else 0.0
    rates = [figure(row[kind] / span) if span else "-" for kind in ("published", "accepted", "delivered")]
    joined = f"{row['joined'] / row['delivered']:.0%}" if row["joined"] else "-"
    delays = [figure(row[name] / 1e6) if row[name] is not None else "-" for name in ("mean", "p99")]
    rest = [figure(row["control"]), figure(row["data"]), figure(row["cpu"]), str(row["fault"]), str(row["note"])]
    return "  ".join([row["run"], f"{(row['last'] - start) / 1e9:.1f}", *rates, *delays, joined, *rest])
