"""Publications joined with deliveries: delays, losses, duplicates and order, as counts that are small enough to keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from bench.spark import subscriptions
from bench.spark.events import CHUNK, Events, small

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_KEY = ("no", "publisher", "chunk", "sequence")
_HOME = _KEY[:3]
"""What messages are spread by: everything about a message, and its neighbours, is on one machine."""


@dataclass
class Messages:
    """cells: deliveries counted by (no, flow, topic, receiver, source, target, accepted, bucket).

    n: first deliveries of messages that were published in the measured time; delay: their sum (ns); dups, disordered, early
    (delay below zero), unexpected (nobody had subscribed); arrived: deliveries within the measured time, of whatever message;
    strays: deliveries of messages whose publication is not in the trace. published: publications in the measured time, by (no,
    flow, topic, source, accepted): n, size, wait (sum of ns until accepted). expected: (no, flow, receiver, topic, accepted,
    clean): n, what should have come. spans: (no): first, last publication, rows of each kind.
    """

    cells: DataFrame
    published: DataFrame
    expected: DataFrame
    spans: dict[int, dict[str, int]]


def chunk() -> Column:
    """Return which part of its publisher's messages a message belongs to."""
    return sf.floor(sf.col("sequence") / CHUNK).cast("int").alias("chunk")


def publications(events: Events) -> DataFrame:
    """Return one row for each message: _KEY, sent, topic, source, flow, size, counted (in the measured time) and wait.

    wait: ns until it was accepted, null if it was not.
    """
    sent = events.of("published").select(
        "no",
        "publisher",
        chunk(),
        "sequence",
        sf.col("t").alias("sent"),
        "topic",
        sf.col("broker").alias("source"),
        sf.coalesce("flow", sf.lit("")).alias("flow"),
        "size",
        ((sf.col("t") >= sf.col("since")) & (sf.col("t") < sf.col("until"))).alias("counted"),
    )
    # Noted twice (a generator that repeats itself after a reconnect): the first time counts.
    again = sf.row_number().over(Window.partitionBy(*_KEY).orderBy("sent"))
    sent = sent.repartition(events.spread, *_HOME).withColumn("again", again).where("again = 1").drop("again")
    accepted = events.of("accepted").select("no", "publisher", chunk(), "sequence", sf.col("t").alias("answered"))
    accepted = accepted.repartition(events.spread, *_HOME).groupBy(*_KEY).agg(sf.min("answered").alias("answered"))
    joined = sent.join(accepted.hint("merge"), list(_KEY), "left")
    wait = sf.when(
        sf.col("answered").isNotNull(), sf.greatest(sf.col("answered") - sf.col("sent"), sf.lit(0))
    )  # greatest skips nulls
    return joined.withColumn("wait", wait).drop("answered")


def spans(events: Events) -> dict[int, dict[str, int]]:
    """Return, by run: rows of each kind of message event, first and last publication (t), highest sequence number."""
    found = events.of("published", "accepted", "delivered").groupBy("no", "kind")
    rows = found.agg(
        sf.count("*").alias("n"), sf.min("t").alias("first"), sf.max("t").alias("last"), sf.max("sequence").alias("highest")
    )
    result: dict[int, dict[str, int]] = {}
    for row in rows.collect():
        about = result.setdefault(row["no"], {})
        about[row["kind"]] = row["n"]
        about["highest"] = max(about.get("highest", 0), row["highest"])
        if row["kind"] == "published":
            about |= {"first": row["first"], "last": row["last"]}
    return result


def messages(events: Events) -> Messages:
    """Count everything about messages. What is aggregated is kept by the executors, on disk where there is no room."""
    found = spans(events)
    sent = publications(events)
    published = (
        sent.where("counted")
        .withColumn("accepted", sf.col("wait").isNotNull())
        .groupBy("no", "flow", "topic", "source", "accepted")
        .agg(sf.count("*").alias("n"), sf.sum("size").alias("size"), sf.sum("wait").alias("wait"))
        .localCheckpoint()
    )
    topics = published.select("no", "topic").distinct()
    wanted = subscriptions.merged(subscriptions.by_topic(subscriptions.intervals(events), topics)).localCheckpoint()
    regular, irregular = _regular(events, wanted, found)
    some = irregular.limit(1).count() > 0
    cells = _cells(events, sent, irregular if some else None, found).localCheckpoint()
    expected = _expected(sent, published, regular, irregular if some else None)
    return Messages(cells, published, expected, found)


def _regular(events: Events, wanted: DataFrame, found: dict[int, dict[str, int]]) -> tuple[DataFrame, DataFrame]:
    """Split subscriptions into those that hold for all of a run's publications and those of receivers without such a one."""
    rows = [(number, about["first"], about["last"]) for number, about in found.items() if "first" in about]
    edges = small(events.spark, "no int, first long, last long", rows)
    with_edges = wanted.join(sf.broadcast(edges), "no")
    always = (sf.col("since") <= sf.col("first")) & (sf.col("until") > sf.col("last"))
    regular = with_edges.where(always).drop("first", "last")
    others = with_edges.where(~always).drop("first", "last")
    # Spells do not overlap: one beside a spell that holds for all has seen no publication.
    return regular, others.join(regular.select("no", "receiver", "topic"), ["no", "receiver", "topic"], "left_anti")


def _expected(sent: DataFrame, published: DataFrame, regular: DataFrame, irregular: DataFrame | None) -> DataFrame:
    whole = published.join(regular.select("no", "receiver", "topic", "clean"), ["no", "topic"])
    found = whole.groupBy("no", "flow", "receiver", "topic", "accepted", "clean").agg(sf.sum("n").alias("n"))
    if irregular is None:
        return found
    parts = (
        sent.where("counted").withColumn("accepted", sf.col("wait").isNotNull()).join(sf.broadcast(irregular), ["no", "topic"])
    )
    parts = parts.where("sent >= since and sent < until")
    return found.unionByName(parts.groupBy("no", "flow", "receiver", "topic", "accepted", "clean").agg(sf.count("*").alias("n")))


def bucket(nanoseconds: Column) -> Column:
    """Return bench.load.histogram.bucket of a column (ns): values are off by less than 1/256 of themselves."""
    value = sf.greatest(nanoseconds, sf.lit(0))
    # log2 of a double may be off by one beside a power of two
    near = sf.floor(sf.log2(sf.greatest(value, sf.lit(1)).cast("double"))).cast("int")
    above = sf.call_function("shiftright", value, near + 1) > 0
    below = sf.call_function("shiftright", value, near) == 0
    length = near + 1 + sf.when(above, 1).otherwise(0) - sf.when(below, 1).otherwise(0)
    shift = sf.greatest(length - 8, sf.lit(0))
    return (sf.call_function("shiftright", value, shift) + sf.call_function("shiftleft", shift.cast("long"), sf.lit(7))).cast(
        "int"
    )


def receivers(events: Events) -> DataFrame | None:
    """Return (no, client, receiver) of clients whose subscriptions are all shared ones of one group; None if there are none."""
    found = subscriptions.intervals(events).groupBy("no", "client").agg(sf.collect_set("receiver").alias("all"))
    found = (
        found.where(sf.size("all") == 1).select("no", "client", sf.col("all")[0].alias("receiver")).where("receiver <> client")
    )
    return found if found.limit(1).count() else None


def _cells(events: Events, sent: DataFrame, irregular: DataFrame | None, found: dict[int, dict[str, int]]) -> DataFrame:
    came = events.of("delivered").select(
        "no",
        "publisher",
        chunk(),
        "sequence",
        sf.col("t").alias("came"),
        "client",
        sf.col("broker").alias("target"),
        sf.col("topic").alias("named"),
        ((sf.col("t") >= sf.col("since")) & (sf.col("t") < sf.col("until"))).alias("within"),
    )
    groups = receivers(events)
    if groups is not None:
        came = came.join(sf.broadcast(groups), ["no", "client"], "left").withColumn("receiver", sf.coalesce("receiver", "client"))
    else:
        came = came.withColumn("receiver", sf.col("client"))
    later = _later_chunks(came, max((about["highest"] for about in found.values()), default=0))
    came = came.repartition(events.spread, *_HOME)
    both = came.join(sent.hint("merge"), list(_KEY), "left").withColumn("topic", sf.coalesce("topic", "named")).drop("named")
    # From the newest message to the oldest, each one's first delivery first: it is late if a newer one has come before.
    mine = Window.partitionBy(*_HOME, "receiver", "topic").orderBy(sf.col("sequence").desc(), "came")
    both = both.withColumn("newer", sf.min("came").over(mine.rowsBetween(Window.unboundedPreceding, -1)))
    both = both.withColumn("again", sf.coalesce(sf.lag("sequence").over(mine) == sf.col("sequence"), sf.lit(False)))
    if later is not None:
        both = both.join(sf.broadcast(later), [*_HOME, "receiver", "topic"], "left")
        both = both.withColumn("newer", sf.least("newer", "later"))
    known, counted = sf.col("sent").isNotNull(), sf.coalesce("counted", sf.lit(False))
    first = counted & ~sf.col("again")
    asked = sf.lit(True)
    if irregular is not None:
        spells = irregular.groupBy("no", "receiver", "topic").agg(sf.collect_list(sf.struct("since", "until")).alias("spells"))
        both = both.join(sf.broadcast(spells), ["no", "receiver", "topic"], "left")
        inside = sf.exists("spells", lambda spell: (sf.col("sent") >= spell["since"]) & (sf.col("sent") < spell["until"]))
        asked = sf.coalesce(inside, sf.lit(True))
    delay = sf.col("came") - sf.col("sent")
    shared = sf.col("receiver").startswith(subscriptions.SHARED)
    both = both.withColumn("accepted", sf.col("wait").isNotNull()).withColumn("bucket", sf.when(first, bucket(delay)))

    def number(condition: Column) -> Column:
        return sf.sum(sf.when(condition, 1).otherwise(0))

    return both.groupBy("no", "flow", "topic", "receiver", "source", "target", "accepted", "bucket").agg(
        number(first).alias("n"),
        number(first & asked).alias("asked"),
        sf.sum(sf.when(first, sf.greatest(delay, sf.lit(0))).otherwise(0)).alias("delay"),
        sf.max(sf.when(first, sf.greatest(delay, sf.lit(0)))).alias("longest"),
        number(counted & sf.col("again")).alias("dups"),
        number(first & ~shared & (sf.col("came") > sf.col("newer"))).alias("disordered"),
        number(first & (delay < 0)).alias("early"),
        number(sf.col("within")).alias("arrived"),
        sf.sum(sf.when(sf.col("within"), sf.coalesce("size", sf.lit(0))).otherwise(0)).alias("size"),
        number(~known).alias("strays"),
    )


def _later_chunks(came: DataFrame, highest: int) -> DataFrame | None:
    """Return (_HOME, receiver, topic, later): when the first message of a later chunk came; None if there is one chunk only."""
    if highest < CHUNK:
        return None
    firsts = came.groupBy(*_HOME, "receiver", sf.col("named").alias("topic")).agg(sf.min("came").alias("first"))
    after = Window.partitionBy("no", "publisher", "receiver", "topic").orderBy(sf.col("chunk").desc())
    return firsts.withColumn("later", sf.min("first").over(after.rowsBetween(Window.unboundedPreceding, -1))).drop("first")
