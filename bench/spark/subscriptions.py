"""Who should have got what: subscriptions as intervals of time for each topic that was published."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from bench.spark.events import FOREVER, Events, small

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SHARE = r"^\$share/([^/]+)/(.*)$"
SHARED = "$share/"


def pattern(filter: Column) -> Column:
    """Return the regular expression of a filter with wildcards."""
    escaped = F.regexp_replace(filter, r"([\\.\[\]{}()*^$|?])", r"\\$1")
    level = F.regexp_replace(escaped, r"\+", "[^/]*")
    rest = F.regexp_replace(F.regexp_replace(level, "/#$", "(/.*)?"), "^#$", ".*")
    return F.concat(F.lit("^"), F.when(filter.rlike(r"^[+#]"), F.lit(r"(?!\$)")).otherwise(F.lit("")), rest, F.lit("$"))


def intervals(events: Events) -> DataFrame:
    """Return (no, client, broker, receiver, filter, since, until, clean): from SUBACK to unsubscription.

    receiver: the client, or all members of a shared subscription as one. clean: the process that notes its deliveries told everything.
    """
    said = events.of("subscribed", "unsubscribed").select("no", "process", "kind", "client", "broker", "topic", "t")
    later = Window.partitionBy("no", "client", "topic").orderBy("t").rowsBetween(1, Window.unboundedFollowing)
    until = F.min(F.when(F.col("kind") == "unsubscribed", F.col("t"))).over(later)
    found = said.withColumn("until", F.coalesce(until, F.lit(FOREVER))).where("kind = 'subscribed'")
    broken = [(number, process) for number, run in enumerate(events.runs) for process in sorted(run.broken)]
    gone = small(events.spark, "no int, process string", broken).withColumn("dirty", F.lit(True))
    found = found.join(F.broadcast(gone), ["no", "process"], "left")
    group = F.regexp_extract("topic", _SHARE, 1)
    return found.select(
        "no", "client", "broker", F.col("t").alias("since"), "until",
        F.when(group == "", F.col("client")).otherwise(F.concat(F.lit(SHARED), group)).alias("receiver"),
        F.when(group == "", F.col("topic")).otherwise(F.regexp_extract("topic", _SHARE, 2)).alias("filter"),
        F.col("dirty").isNull().alias("clean"),
    )  # fmt: skip


def by_topic(found: DataFrame, topics: DataFrame) -> DataFrame:
    """Return the intervals with the topics (no, topic) that their filters match, one row for each."""
    wild = F.col("filter").rlike("[+#]")
    plain = found.where(~wild).withColumn("topic", F.col("filter")).join(topics, ["no", "topic"], "left_semi")
    filters = found.where(wild).select("no", "filter").distinct().withColumn("pattern", pattern(F.col("filter")))
    matched = filters.join(topics, "no").where("topic rlike pattern").drop("pattern")
    columns = [*found.columns, "topic"]
    return plain.select(columns).unionByName(found.where(wild).join(matched, ["no", "filter"]).select(columns))


def merged(matched: DataFrame) -> DataFrame:
    """Return (no, receiver, topic, since, until, clean), intervals that overlap made one."""
    mine = Window.partitionBy("no", "receiver", "topic").orderBy("since", "until")
    before = F.max("until").over(mine.rowsBetween(Window.unboundedPreceding, -1))
    opens = F.when(before.isNull() | (F.col("since") > before), 1).otherwise(0)
    island = F.sum("opens").over(mine.rowsBetween(Window.unboundedPreceding, 0))
    return (
        matched.withColumn("opens", opens)
        .withColumn("island", island)
        .groupBy("no", "receiver", "topic", "island")
        .agg(F.min("since").alias("since"), F.max("until").alias("until"), F.min("clean").alias("clean"))
        .drop("island")
    )
