"""What links carried, what processes used, and how both went over time: from samples, which are few."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from bench.spark.events import Events

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SECOND = 1_000_000_000
COUNTED = {"link_bytes_control": "control", "link_bytes_data": "data"}
"""Brokers' own counters of what they sent on all links -> class of bytes."""


def rises(name: str, over: tuple[str, ...]) -> Column:
    """Return how much a counter rose since the sample before; one that fell began again at zero, as the first one did."""
    before = F.coalesce(F.lag(name).over(Window.partitionBy(*over).orderBy("t")), F.lit(0))
    return F.when(F.col(name) >= before, F.col(name) - before).otherwise(F.col(name))


def traffic(events: Events) -> DataFrame:
    """Return (no, t, within, source, target, class, how, packets, bytes): what was sent between two samples, or a single packet.

    class: control, data, wire (IP, all together). how: link (counted on the wire), tap (packet by packet), broker (its own counters, all
    its links together, target null). A sample is `within` the measured time if it was taken in it.
    """
    within = ((F.col("t") >= F.col("since")) & (F.col("t") < F.col("until"))).alias("within")
    link = events.of("link")
    parts = []
    for name, kind in (("size", "wire"), ("control_bytes", "control"), ("data_bytes", "data")):
        packets = rises("count", ("no", "broker", "peer")) if kind == "wire" else F.lit(None).cast("long")
        parts.append(
            link.where(F.col(name).isNotNull()).select(
                "no", "t", within, F.col("broker").alias("source"), F.col("peer").alias("target"), F.lit(kind).alias("class"),
                F.lit("link").alias("how"), packets.alias("packets"), rises(name, ("no", "broker", "peer")).alias("bytes"),
            )
        )  # fmt: skip
    counted = events.of("counted").where(F.col("name").isin(*COUNTED))
    kinds = F.create_map(*(F.lit(word) for pair in COUNTED.items() for word in pair))
    parts.append(
        counted.select(
            "no", "t", within, F.col("broker").alias("source"), F.lit(None).cast("string").alias("target"), kinds[F.col("name")].alias("class"),
            F.lit("broker").alias("how"), F.lit(None).cast("long").alias("packets"), rises("count", ("no", "broker", "name")).alias("bytes"),
        )
    )  # fmt: skip
    tapped = events.of("forwarded", "control")
    parts.append(
        tapped.select(
            "no", "t", within, F.col("broker").alias("source"), F.col("peer").alias("target"),
            F.when(F.col("kind") == "control", "control").otherwise("data").alias("class"), F.lit("tap").alias("how"),
            F.lit(1).cast("long").alias("packets"), F.col("size").alias("bytes"),
        )
    )  # fmt: skip
    result = parts[0]
    for part in parts[1:]:
        result = result.unionByName(part)
    return result


def links(found: DataFrame) -> DataFrame:
    """Return (no, source, target, class, how): packets and bytes, in all and in the measured time."""
    inside = F.when(F.col("within"), F.col("bytes")).otherwise(0)
    return found.groupBy("no", "source", "target", "class", "how").agg(
        F.sum("packets").alias("packets"), F.sum("bytes").alias("bytes"), F.sum(inside).alias("bytes_measured")
    )


def packets(events: Events) -> DataFrame:
    """Return (no, source, target, packet): how many packets of each type a tap saw on each link, and their bytes."""
    kind = F.when(F.col("kind") == "control", F.col("name")).otherwise("publish").alias("packet")
    tapped = events.of("forwarded", "control").select("no", F.col("broker").alias("source"), F.col("peer").alias("target"), kind, "size")
    return tapped.groupBy("no", "source", "target", "packet").agg(F.count("*").alias("packets"), F.sum("size").alias("bytes"))


def resources(events: Events) -> DataFrame:
    """Return (no, process, role): CPUs used on average and at most between two samples, resident bytes, in the measured time."""
    over = Window.partitionBy("no", "process").orderBy("t")
    rows = events.of("resources").select("no", "t", "since", "until", F.col("broker").alias("process"), F.col("name").alias("role"), "cpu_s", "rss")
    rows = rows.withColumn("cpu_before", F.lag("cpu_s").over(over)).withColumn("t_before", F.lag("t").over(over))
    rows = rows.where("t >= since and t < until")
    # A process that was started anew counts from zero: what it had used before is in no sample, and that step in no average.
    step = (F.col("t_before") >= F.col("since")) & (F.col("cpu_s") >= F.col("cpu_before")) & (F.col("t") > F.col("t_before"))
    used, time = F.when(step, F.col("cpu_s") - F.col("cpu_before")), F.when(step, (F.col("t") - F.col("t_before")) / SECOND)
    return rows.groupBy("no", "process", "role").agg(
        (F.sum(used) / F.sum(time)).alias("cpu"), F.max(used / time).alias("cpu_most"),
        F.avg("rss").alias("rss"), F.max("rss").alias("rss_most"), F.count("*").alias("samples"),
    )  # fmt: skip


def timeline(events: Events, found: DataFrame) -> DataFrame:
    """Return (no, second, what): how much of each there was in each second since the run's first event."""
    first = events.rows.where(F.col("kind") == "began").groupBy("no").agg(F.min("t").alias("zero"))
    seconds = F.floor((F.col("t") - F.col("zero")) / SECOND).cast("int").alias("second")
    counts = events.of("published", "accepted", "delivered").join(F.broadcast(first), "no")
    counts = counts.groupBy("no", seconds, F.col("kind").alias("what")).agg(F.count("*").cast("double").alias("value"))
    sums = found.where("how <> 'tap'").join(F.broadcast(first), "no")
    sums = sums.groupBy("no", seconds, F.concat(F.col("class"), F.lit("_bytes_"), F.col("how")).alias("what"))
    return counts.unionByName(sums.agg(F.sum("bytes").cast("double").alias("value")))
