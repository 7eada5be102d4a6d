"""Who should have got what: subscriptions as intervals of time for each topic that was
published."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from mqttree.bench.runner.book import UNSURE_NS
from mqttree.bench.spark.events import Events, small
from mqttree.bench.trace.repair import FOREVER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SHARE = r"^\$share/[^/]+/(.*)$"
_LITERAL = r"^((?:[^/+#]*/)*)"
"""The levels of a filter before its first wildcard, each with its slash."""
SHARED = "$share/"
UNSURE = UNSURE_NS
"""ns; as mqttree.bench.runner.book has it."""


def pattern(filter: Column) -> Column:
    """Return the regular expression of a filter with wildcards."""
    escaped = sf.regexp_replace(filter, r"([\\.\[\]{}()*^$|?])", r"\\$1")
    level = sf.regexp_replace(escaped, r"\+", "[^/]*")
    rest = sf.regexp_replace(sf.regexp_replace(level, "/#$", "(/.*)?"), "^#$", ".*")
    return sf.concat(
        sf.lit("^"),
        sf.when(filter.rlike(r"^[+#]"), sf.lit(r"(?!\$)")).otherwise(sf.lit("")),
        rest,
        sf.lit("$"),
    )


def intervals(events: Events) -> DataFrame:
    """Return (no, client, broker, receiver, filter, since, until, clean): from SUBACK to
    unsubscription.

    receiver: the client, or a shared subscription ($share/GROUP/FILTER), all of whose members are
    one. A client that another broker takes over has two that overlap. clean: the process that notes
    its deliveries recorded everything.
    """
    said = events.of("subscribed", "unsubscribed").select(
        "no", "process", "kind", "client", "broker", "topic", "t"
    )
    later = (
        Window.partitionBy("no", "client", "broker", "topic")
        .orderBy("t")
        .rowsBetween(1, Window.unboundedFollowing)
    )
    until = sf.min(sf.when(sf.col("kind") == "unsubscribed", sf.col("t"))).over(later)
    found = said.withColumn("until", sf.coalesce(until, sf.lit(FOREVER))).where(
        "kind = 'subscribed'"
    )
    broken = [
        (number, process)
        for number, run in enumerate(events.runs)
        for process in sorted(run.broken)
    ]
    gone = small(events.spark, "no int, process string", broken).withColumn("dirty", sf.lit(True))
    found = found.join(sf.broadcast(gone), ["no", "process"], "left")
    share = sf.col("topic").rlike(_SHARE)
    return found.select(
        "no",
        "client",
        "broker",
        sf.col("t").alias("since"),
        "until",
        sf.when(share, sf.col("topic")).otherwise(sf.col("client")).alias("receiver"),
        sf.when(share, sf.regexp_extract("topic", _SHARE, 1))
        .otherwise(sf.col("topic"))
        .alias("filter"),
        sf.col("dirty").isNull().alias("clean"),
    )


def by_topic(found: DataFrame, topics: DataFrame) -> DataFrame:
    """Return the intervals with the topics (no, topic) that their filters match, one row for each.

    A filter with wildcards is only tried on topics that begin as it does.
    """
    wild = sf.col("filter").rlike("[+#]")
    plain = (
        found.where(~wild)
        .withColumn("topic", sf.col("filter"))
        .join(topics, ["no", "topic"], "left_semi")
    )
    filters = (
        found.where(wild)
        .select("no", "filter")
        .distinct()
        .withColumn("pattern", pattern(sf.col("filter")))
    )
    filters = filters.withColumn("start", sf.regexp_extract("filter", _LITERAL, 1))
    matched = (
        filters.join(_starts(topics), ["no", "start"])
        .where("topic rlike pattern")
        .drop("pattern", "start")
    )
    columns = [*found.columns, "topic"]
    return plain.select(columns).unionByName(
        found.where(wild).join(matched, ["no", "filter"]).select(columns)
    )


def _starts(topics: DataFrame) -> DataFrame:
    """Return (no, topic, start): with which levels topics begin; "" for none, "a/" and "a/b/" for
    a/b."""
    levels = sf.split("topic", "/")
    counts = sf.sequence(sf.lit(0), sf.size(levels))
    starts = sf.transform(
        counts,
        lambda n: sf.when(n == 0, "").otherwise(
            sf.concat(sf.array_join(sf.slice(levels, sf.lit(1), n), "/"), sf.lit("/"))
        ),
    )
    return topics.select("no", "topic", sf.explode(starts).alias("start"))


def merged(matched: DataFrame, *of: str) -> DataFrame:
    """Return (no, receiver, topic, of, since, until, clean), intervals that overlap made one."""
    keys = ("no", "receiver", "topic", *of)
    mine = Window.partitionBy(*keys).orderBy("since", "until")
    before = sf.max("until").over(mine.rowsBetween(Window.unboundedPreceding, -1))
    opens = sf.when(before.isNull() | (sf.col("since") > before), 1).otherwise(0)
    island = sf.sum("opens").over(mine.rowsBetween(Window.unboundedPreceding, 0))
    return (
        matched.withColumn("opens", opens)
        .withColumn("island", island)
        .groupBy(*keys, "island")
        .agg(
            sf.min("since").alias("since"),
            sf.max("until").alias("until"),
            sf.min("clean").alias("clean"),
        )
        .drop("island")
    )


def gaps(matched: DataFrame) -> DataFrame:
    """Return (no, receiver, topic, gaps): when what was published need not have come, as (lost,
    back) with UNSURE around.

    As in mqttree.bench.runner.book: of a shared subscription the interruptions of each of its
    members, and one that does not end goes on.
    """
    found = merged(matched, "client")
    back = sf.lead("since").over(
        Window.partitionBy("no", "receiver", "topic", "client").orderBy("since")
    )
    found = found.withColumn("back", sf.coalesce(back, sf.lit(FOREVER - UNSURE)) + UNSURE).where(
        sf.col("until") < FOREVER
    )
    gap = sf.struct((sf.col("until") - UNSURE).alias("lost"), "back")
    return found.groupBy("no", "receiver", "topic").agg(sf.collect_list(gap).alias("gaps"))


def receivers(matched: DataFrame) -> DataFrame:
    """Return (no, client, topic, all, groups): of whom clients with shared subscriptions may get a
    topic's messages for.

    all: the client itself first, if it has a subscription of its own; groups: how many of them are
    shared ones.
    """
    shared = sf.col("receiver").startswith(SHARED)
    # Not a set of structs: beyond 128 groups Spark takes equal ones of it for different ones.
    once = matched.select("no", "client", "topic", "receiver").distinct()
    found = once.groupBy("no", "client", "topic").agg(
        sf.sort_array(sf.collect_list(sf.struct(shared, "receiver"))).alias("all")
    )
    found = found.withColumn("all", sf.transform("all", lambda each: each["receiver"]))
    groups = sf.size(sf.filter("all", lambda each: each.startswith(SHARED)))
    return found.withColumn("groups", groups).where("groups > 0")
