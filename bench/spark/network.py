"""What links carried, what processes used, and how both went over time: from samples, which are
few."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from bench.spark.events import SECOND, Events, small
from bench.trace.repair import FOREVER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Second = tuple[int, int, str, int]
"""Number of the run, second, kind and rows."""
Row = tuple[int, int, str, float]
COUNTED = {"link_bytes_control": "control", "link_bytes_data": "data"}
"""Brokers' own counters of what they sent on all links -> class of bytes."""


def rises(name: str, over: tuple[str, ...]) -> Column:
    """Return how much a counter rose since the sample before; one that fell began again at zero, as
    the first one did."""
    before = sf.coalesce(sf.lag(name).over(Window.partitionBy(*over).orderBy("t")), sf.lit(0))
    return sf.when(sf.col(name) >= before, sf.col(name) - before).otherwise(sf.col(name))


def traffic(events: Events) -> DataFrame:
    """Return (no, t, within, source, target, class, how, packets, bytes): what was sent between two
    samples, or a single packet.

    class: control, data, wire (IP, all together).
    how: link (counted on the wire), tap (packet by packet), broker (its own counters, all its links
        together, target null).
    within: in the measured time, from its first sample to its last one.
    """
    within = ((sf.col("t") >= sf.col("since")) & (sf.col("t") < sf.col("until"))).alias("within")
    place: list[Column | str] = [
        "no",
        "t",
        within,
        sf.col("broker").alias("source"),
        sf.col("peer").alias("target"),
    ]
    none = sf.lit(None).cast("long")

    def counter(kind: Column, how: str, count: Column, size: Column) -> Column:
        return sf.struct(
            kind.alias("class"), sf.lit(how).alias("how"), count.alias("count"), size.alias("size")
        )

    link = sf.array(
        counter(sf.lit("wire"), "link", sf.col("count"), sf.col("size")),
        counter(sf.lit("control"), "link", none, sf.col("control_bytes")),
        counter(sf.lit("data"), "link", none, sf.col("data_bytes")),
    )
    kinds = sf.create_map(*(sf.lit(word) for pair in COUNTED.items() for word in pair))
    own = sf.array(counter(kinds[sf.col("name")], "broker", none, sf.col("count")))
    counters = events.of("link", "counted").where(
        (sf.col("kind") == "link") | sf.col("name").isin(*COUNTED)
    )
    counters = counters.select(
        *place, "since", sf.inline(sf.when(sf.col("kind") == "link", link).otherwise(own))
    ).where("size is not null")
    series = ("no", "source", "target", "class", "how")
    # What rose since a sample before the measured time is not of it, or not all of it; a link that
    # is new counts from zero.
    before = sf.lag("t").over(Window.partitionBy(*series).orderBy("t"))
    opening = sf.min(sf.when(sf.col("within"), sf.col("t"))).over(Window.partitionBy("no", "how"))
    whole = sf.col("within") & sf.when(before.isNull(), sf.col("t") > opening).otherwise(
        before >= sf.col("since")
    )
    counters = counters.withColumn("packets", rises("count", series)).withColumn(
        "bytes", rises("size", series)
    )
    counters = counters.withColumn("within", whole).drop("since", "count", "size")
    tapped = events.of("forwarded", "control").select(
        *place,
        sf.when(sf.col("kind") == "control", "control").otherwise("data").alias("class"),
        sf.lit("tap").alias("how"),
        sf.lit(1).cast("long").alias("packets"),
        sf.col("size").alias("bytes"),
    )
    result: DataFrame = counters.unionByName(tapped)
    return result


def links(found: DataFrame) -> DataFrame:
    """Return (no, source, target, class, how): packets and bytes, in all and in the measured
    time."""
    inside = sf.when(sf.col("within"), sf.col("bytes")).otherwise(0)
    return found.groupBy("no", "source", "target", "class", "how").agg(
        sf.sum("packets").alias("packets"),
        sf.sum("bytes").alias("bytes"),
        sf.sum(inside).alias("bytes_measured"),
    )


def packets(events: Events) -> DataFrame:
    """Return (no, source, target, packet): how many packets of each type a tap saw on each link,
    and their bytes."""
    kind = sf.when(sf.col("kind") == "control", sf.col("name")).otherwise("publish").alias("packet")
    tapped = events.of("forwarded", "control").select(
        "no", sf.col("broker").alias("source"), sf.col("peer").alias("target"), kind, "size"
    )
    return tapped.groupBy("no", "source", "target", "packet").agg(
        sf.count("*").alias("packets"), sf.sum("size").alias("bytes")
    )


def steps(rows: DataFrame, at: str, run: str, *more: str) -> DataFrame:
    """Return (run, at, process, role, cpu_s, rss, t_before, used): samples of resources, with what
    was used (s of CPU) since the one before, and when that was.

    Null for a first sample, and for one of a process that was restarted meanwhile: it counts from
    zero, and what the process before it used after its last sample is in none. `rows` are the
    samples; `at` and `run` are the columns with the time and the run, `more` others to be kept.
    """
    starts = (sf.col("kind") == "fault") & sf.col("name").isin("start", "restart")
    rows = rows.where((sf.col("kind") == "resources") | starts).select(
        run,
        at,
        *more,
        "kind",
        starts.alias("starts"),
        sf.col("broker").alias("process"),
        sf.col("name").alias("role"),
        "cpu_s",
        "rss",
    )
    over = Window.partitionBy(run, "process").orderBy(at).rowsBetween(Window.unboundedPreceding, 0)
    rows = rows.withColumn("life", sf.sum(sf.col("starts").cast("int")).over(over)).where(
        "kind = 'resources'"
    )
    over = Window.partitionBy(run, "process", "life").orderBy(at)
    before, used = sf.lag(at).over(over), sf.col("cpu_s") - sf.lag("cpu_s").over(over)
    step = (sf.col(at) > before) & (used >= 0)
    rows = rows.withColumn("t_before", sf.when(step, before)).withColumn(
        "used", sf.when(step, used)
    )
    return rows.drop("kind", "starts", "life")


def resources(events: Events) -> DataFrame:
    """Return (no, process, role): CPUs used on average and at most between two samples, resident
    bytes, in the measured time."""
    rows = steps(events.of("resources", "fault"), "t", "no", "since", "until").where(
        "t >= since and t < until"
    )
    step = sf.col("t_before") >= sf.col("since")
    used, time = (
        sf.when(step, sf.col("used")),
        sf.when(step, (sf.col("t") - sf.col("t_before")) / SECOND),
    )
    return rows.groupBy("no", "process", "role").agg(
        (sf.sum(used) / sf.sum(time)).alias("cpu"),
        sf.max(used / time).alias("cpu_most"),
        sf.avg("rss").alias("rss"),
        sf.max("rss").alias("rss_most"),
        sf.count("*").alias("samples"),
    )


def timeline(events: Events, found: DataFrame, seconds: Iterable[Second]) -> list[Row]:
    """Return (no, second, what, value): how much of each there was in each second since the run's
    first event; sent:BROKER is what it sent on all links (IP bytes), and load_begins says how many
    seconds after that event the load began.

    `found` is what `traffic` returned of `events`, `seconds` are Messages.seconds.
    """
    since = {number: zero for number, zero in enumerate(events.zeros) if zero is not None}
    zeros = small(events.spark, "no int, zero long", since.items())
    second = sf.floor((sf.col("t") - sf.col("zero")) / SECOND).cast("int").alias("second")
    sums = found.where("how <> 'tap'").join(sf.broadcast(zeros), "no")
    what = sf.concat(sf.col("class"), sf.lit("_bytes_"), sf.col("how"))
    wire = (sf.col("class") == "wire") & (sf.col("how") == "link")
    # Of the wire each broker's own beside the sum of all.
    both = sf.when(wire, sf.array(what, sf.concat(sf.lit("sent:"), "source")))
    sums = sums.select(
        "no", second, sf.explode(both.otherwise(sf.array(what))).alias("what"), "bytes"
    )
    bytes = sums.groupBy("no", "second", "what").agg(sf.sum("bytes").cast("double").alias("value"))
    rows = [(no, at, kind, float(n)) for no, at, kind, n in seconds]
    rows += [(row["no"], row["second"], row["what"], row["value"]) for row in bytes.collect()]
    # A run whose measured time is not known has none that could be told from its first event.
    for number, (at, _) in enumerate(events.windows):
        if at > -FOREVER and number in since:
            after = (at - since[number]) / SECOND
            rows.append((number, math.floor(after), "load_begins", after))
    return sorted(rows)
