"""Who should have got what: subscriptions as intervals of time for each topic that was published."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from bench.repair import FOREVER
from bench.spark.events import Events, small

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SHARE = r"^\$share/([^/]+)/(.*)$"
SHARED = "$share/"


def pattern(filter: Column) -> Column:
    """Return the regular expression of a filter with wildcards."""
    escaped = sf.regexp_replace(filter, r"([\\.\[\]{}()*^$|?])", r"\\$1")
    level = sf.regexp_replace(escaped, r"\+", "[^/]*")
    rest = sf.regexp_replace(sf.regexp_replace(level, "/#$", "(/.*)?"), "^#$", ".*")
    return sf.concat(sf.lit("^"), sf.when(filter.rlike(r"^[+#]"), sf.lit(r"(?!\$)")).otherwise(sf.lit("")), rest, sf.lit("$"))


def intervals(events: Events) -> DataFrame:
    """Return (no, client, broker, receiver, filter, since, until, clean): from SUBACK to unsubscription.

    receiver: the client, or all members of a shared subscription as one. clean: the process that notes its deliveries told
    everything.
    """
    said = events.of("subscribed", "unsubscribed").select("no", "process", "kind", "client", "broker", "topic", "t")
    later = Window.partitionBy("no", "client", "topic").orderBy("t").rowsBetween(1, Window.unboundedFollowing)
    until = sf.min(sf.when(sf.col("kind") == "unsubscribed", sf.col("t"))).over(later)
    found = said.withColumn("until", sf.coalesce(until, sf.lit(FOREVER))).where("kind = 'subscribed'")
    broken = [(number, process) for number, run in enumerate(events.runs) for process in sorted(run.broken)]
    gone = small(events.spark, "no int, process string", broken).withColumn("dirty", sf.lit(True))
    found = found.join(sf.broadcast(gone), ["no", "process"], "left")
    group = sf.regexp_extract("topic", _SHARE, 1)
    return found.select(
        "no", "client", "broker", sf.col("t").alias("since"), "until",
        sf.when(group == "", sf.col("client")).otherwise(sf.concat(sf.lit(SHARED), group)).alias("receiver"),
        sf.when(group == "", sf.col("topic")).otherwise(sf.regexp_extract("topic", _SHARE, 2)).alias("filter"),
        sf.col("dirty").isNull().alias("clean"),
    )  # fmt: skip


def by_topic(found: DataFrame, topics: DataFrame) -> DataFrame:
    """Return the intervals with the topics (no, topic) that their filters match, one row for each."""
    wild = sf.col("filter").rlike("[+#]")
    plain = found.where(~wild).withColumn("topic", sf.col("filter")).join(topics, ["no", "topic"], "left_semi")
    filters = found.where(wild).select("no", "filter").distinct().withColumn("pattern", pattern(sf.col("filter")))
    matched = filters.join(topics, "no").where("topic rlike pattern").drop("pattern")
    columns = [*found.columns, "topic"]
    return plain.select(columns).unionByName(found.where(wild).join(matched, ["no", "filter"]).select(columns))


def merged(matched: DataFrame) -> DataFrame:
    """Return (no, receiver, topic, since, until, clean), intervals that overlap made one."""
    mine = Window.partitionBy("no", "receiver", "topic").orderBy("since", "until")
    before = sf.max("until").over(mine.rowsBetween(Window.unboundedPreceding, -1))
    opens = sf.when(before.isNull() | (sf.col("since") > before), 1).otherwise(0)
    island = sf.sum("opens").over(mine.rowsBetween(Window.unboundedPreceding, 0))
    return (
        matched.withColumn("opens", opens)
        .withColumn("island", island)
        .groupBy("no", "receiver", "topic", "island")
        .agg(sf.min("since").alias("since"), sf.max("until").alias("until"), sf.min("clean").alias("clean"))
        .drop("island")
    )
