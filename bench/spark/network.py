"""What links carried, what processes used, and how both went over time: from samples, which are
few."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from mqttree.bench.spark.events import Events
from mqttree.bench.tables.clocks import SECOND
from mqttree.bench.tables.traffic import COUNTED, Network, network

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def rises(name: str, over: tuple[str, ...]) -> Column:
    """Return how much a counter rose since the sample before; one that fell began again at zero, as
    the first one did."""
    before = sf.coalesce(sf.lag(name).over(Window.partitionBy(*over).orderBy("t")), sf.lit(0))
    return sf.when(sf.col(name) >= before, sf.col(name) - before).otherwise(sf.col(name))


def read(events: Events) -> Network:
    """Return what Spark counts of the links and processes of all runs."""
    return network(taps(events).collect(), counters(events).collect(), resources(events).collect())


def _within() -> Column:
    """Return whether a row is of the measured time."""
    return (sf.col("t") >= sf.col("since")) & (sf.col("t") < sf.col("until"))


def taps(events: Events) -> DataFrame:
    """Return (no, source, target, class, packet, packets, bytes, bytes_measured): how many packets
    of each type a tap saw on each link, their bytes, and those in the measured time."""
    control = sf.col("kind") == "control"
    rows = events.of("forwarded", "control").select(
        "no",
        sf.col("broker").alias("source"),
        sf.col("peer").alias("target"),
        sf.when(control, "control").otherwise("data").alias("class"),
        sf.when(control, sf.col("name")).otherwise("publish").alias("packet"),
        "size",
        sf.when(_within(), sf.col("size")).otherwise(0).alias("inside"),
    )
    return rows.groupBy("no", "source", "target", "class", "packet").agg(
        sf.count("*").alias("packets"),
        sf.sum("size").alias("bytes"),
        sf.sum("inside").alias("bytes_measured"),
    )


def counters(events: Events) -> DataFrame:
    """Return what samples of counters say was sent, as sums by two sets of columns, and a part of a
    third one: (no, source, target, class, how), (no, second, class, how), and of the wire (no,
    second, source, class, how).

    of: which of these. class, how: as in Link. packets, bytes, bytes_measured. second: since the
    run's first event.
    """
    kinds = sf.create_map(*(sf.lit(word) for pair in COUNTED.items() for word in pair))
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
    own = sf.array(counter(kinds[sf.col("name")], "broker", none, sf.col("count")))
    rows = events.of("link", "counted").where(
        (sf.col("kind") == "link") | sf.col("name").isin(*COUNTED)
    )
    rows = rows.select(
        "no",
        "t",
        _within().alias("within"),
        sf.col("broker").alias("source"),
        sf.col("peer").alias("target"),
        "since",
        sf.floor((sf.col("t") - sf.col("zero")) / SECOND).cast("int").alias("second"),
        sf.inline(sf.when(sf.col("kind") == "link", link).otherwise(own)),
    ).where("size is not null")
    return _risen(rows)


def _risen(rows: DataFrame) -> DataFrame:
    """Return what `counters` does of the samples (`rows`) of all counters."""
    series = ("no", "source", "target", "class", "how")
    # What rose since a sample before the measured time is not of it, or not all of it; a link that
    # is new counts from zero.
    before = sf.lag("t").over(Window.partitionBy(*series).orderBy("t"))
    opening = sf.min(sf.when(sf.col("within"), sf.col("t"))).over(Window.partitionBy("no", "how"))
    whole = sf.col("within") & sf.when(before.isNull(), sf.col("t") > opening).otherwise(
        before >= sf.col("since")
    )
    rows = rows.withColumn("packets", rises("count", series)).withColumn(
        "bytes", rises("size", series)
    )
    rows = rows.withColumn("inside", sf.when(whole, sf.col("bytes")))
    by_second = ("no", "second", "class", "how")
    of = (
        sf.when(sf.grouping("target") == 0, "link")
        .when(sf.grouping("source") == 0, "sent")
        .otherwise("second")
    )
    found = rows.groupingSets([series, by_second, (*by_second, "source")], *series, "second").agg(
        of.alias("of"),
        sf.sum("packets").alias("packets"),
        sf.sum("bytes").alias("bytes"),
        sf.sum("inside").alias("bytes_measured"),
    )
    return found.where("of <> 'sent' or (class = 'wire' and how = 'link')")


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
