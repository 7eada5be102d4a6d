"""Publications joined with deliveries: delays, losses, duplicates and order, as counts that are small enough to keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import Window
from pyspark.sql import functions as F

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

    n: first deliveries of messages that were published in the measured time; delay: their sum (ns); dups, disordered, early (delay
    below zero), unexpected (nobody had subscribed); arrived: deliveries within the measured time, of whatever message; strays: deliveries
    of messages whose publication is not in the trace.
    published: publications in the measured time, by (no, flow, topic, source, accepted): n, size, wait (sum of ns until accepted).
    expected: (no, flow, receiver, topic, accepted, clean): n, what should have come. spans: (no): first, last publication, rows of each kind.
    """

    cells: DataFrame
    published: DataFrame
    expected: DataFrame
    spans: dict[int, dict[str, int]]

    def forget(self) -> None:
        """Let go of what was kept."""
        self.cells.unpersist()
        self.published.unpersist()


def chunk() -> Column:
    """Return which part of its publisher's messages a message belongs to."""
    return F.floor(F.col("sequence") / CHUNK).cast("int").alias("chunk")


def publications(events: Events) -> DataFrame:
    """Return one row for each message: _KEY, sent, topic, source, flow, size, counted (in the measured time), wait (ns; null: not accepted)."""
    sent = events.of("published").select(
        "no", "publisher", chunk(), "sequence", F.col("t").alias("sent"), "topic", F.col("broker").alias("source"),
        F.coalesce("flow", F.lit("")).alias("flow"), "size", ((F.col("t") >= F.col("since")) & (F.col("t") < F.col("until"))).alias("counted"),
    )  # fmt: skip
    # Noted twice (a generator that repeats itself after a reconnect): the first time counts.
    again = F.row_number().over(Window.partitionBy(*_KEY).orderBy("sent"))
    sent = sent.repartition(events.spread, *_HOME).withColumn("again", again).where("again = 1").drop("again")
    accepted = events.of("accepted").select("no", "publisher", chunk(), "sequence", F.col("t").alias("answered"))
    accepted = accepted.repartition(events.spread, *_HOME).groupBy(*_KEY).agg(F.min("answered").alias("answered"))
    joined = sent.join(accepted.hint("merge"), list(_KEY), "left")
    wait = F.when(F.col("answered").isNotNull(), F.greatest(F.col("answered") - F.col("sent"), F.lit(0)))  # greatest skips nulls
    return joined.withColumn("wait", wait).drop("answered")


def spans(events: Events) -> dict[int, dict[str, int]]:
    """Return, by run: rows of each kind of message event, first and last publication (t), highest sequence number."""
    found = events.of("published", "accepted", "delivered").groupBy("no", "kind")
    rows = found.agg(F.count("*").alias("n"), F.min("t").alias("first"), F.max("t").alias("last"), F.max("sequence").alias("highest"))
    result: dict[int, dict[str, int]] = {}
    for row in rows.collect():
        about = result.setdefault(row["no"], {})
        about[row["kind"]] = row["n"]
        about["highest"] = max(about.get("highest", 0), row["highest"])
        if row["kind"] == "published":
            about |= {"first": row["first"], "last": row["last"]}
    return result


def messages(events: Events) -> Messages:
    """Count everything about messages; the cells are computed once and kept, on disk where there is no room."""
    found = spans(events)
    sent = publications(events)
    published = (
        sent.where("counted")
        .withColumn("accepted", F.col("wait").isNotNull())
        .groupBy("no", "flow", "topic", "source", "accepted")
        .agg(F.count("*").alias("n"), F.sum("size").alias("size"), F.sum("wait").alias("wait"))
        .persist(StorageLevel.MEMORY_AND_DISK)
    )
    topics = published.select("no", "topic").distinct()
    wanted = subscriptions.merged(subscriptions.by_topic(subscriptions.intervals(events), topics)).persist(StorageLevel.MEMORY_AND_DISK)
    regular, irregular = _regular(events, wanted, found)
    some = irregular.limit(1).count() > 0
    cells = _cells(events, sent, irregular if some else None, found).persist(StorageLevel.MEMORY_AND_DISK)
    expected = _expected(sent, published, regular, irregular if some else None)
    return Messages(cells, published, expected, found)


def _regular(events: Events, wanted: DataFrame, found: dict[int, dict[str, int]]) -> tuple[DataFrame, DataFrame]:
    """Split subscriptions into those that hold for all of a run's publications and the others."""
    rows = [(number, about["first"], about["last"]) for number, about in found.items() if "first" in about]
    edges = small(events.spark, "no int, first long, last long", rows)
    with_edges = wanted.join(F.broadcast(edges), "no")
    always = (F.col("since") <= F.col("first")) & (F.col("until") > F.col("last"))
    return with_edges.where(always).drop("first", "last"), with_edges.where(~always).drop("first", "last")


def _expected(sent: DataFrame, published: DataFrame, regular: DataFrame, irregular: DataFrame | None) -> DataFrame:
    whole = published.join(regular.select("no", "receiver", "topic", "clean"), ["no", "topic"])
    found = whole.groupBy("no", "flow", "receiver", "topic", "accepted", "clean").agg(F.sum("n").alias("n"))
    if irregular is None:
        return found
    parts = sent.where("counted").withColumn("accepted", F.col("wait").isNotNull()).join(F.broadcast(irregular), ["no", "topic"])
    parts = parts.where("sent >= since and sent < until")
    return found.unionByName(parts.groupBy("no", "flow", "receiver", "topic", "accepted", "clean").agg(F.count("*").alias("n")))


def bucket(nanoseconds: Column) -> Column:
    """Return bench.load.histogram.bucket of a column (ns): values are off by less than 1/256 of themselves."""
    value = F.greatest(nanoseconds, F.lit(0))
    # log2 of a double may be off by one beside a power of two
    near = F.floor(F.log2(F.greatest(value, F.lit(1)).cast("double"))).cast("int")
    above = F.call_function("shiftright", value, near + 1) > 0
    below = F.call_function("shiftright", value, near) == 0
    length = near + 1 + F.when(above, 1).otherwise(0) - F.when(below, 1).otherwise(0)
    shift = F.greatest(length - 8, F.lit(0))
    return (F.call_function("shiftright", value, shift) + F.call_function("shiftleft", shift.cast("long"), F.lit(7))).cast("int")


def receivers(events: Events) -> DataFrame | None:
    """Return (no, client, receiver) of clients whose subscriptions are all shared ones of one group; None if there are none."""
    found = subscriptions.intervals(events).groupBy("no", "client").agg(F.collect_set("receiver").alias("all"))
    found = found.where(F.size("all") == 1).select("no", "client", F.col("all")[0].alias("receiver")).where("receiver <> client")
    return found if found.limit(1).count() else None


def _cells(events: Events, sent: DataFrame, irregular: DataFrame | None, found: dict[int, dict[str, int]]) -> DataFrame:
    came = events.of("delivered").select(
        "no", "publisher", chunk(), "sequence", F.col("t").alias("came"), "client", F.col("broker").alias("target"),
        F.col("topic").alias("named"), ((F.col("t") >= F.col("since")) & (F.col("t") < F.col("until"))).alias("within"),
    )  # fmt: skip
    groups = receivers(events)
    if groups is not None:
        came = came.join(F.broadcast(groups), ["no", "client"], "left").withColumn("receiver", F.coalesce("receiver", "client"))
    else:
        came = came.withColumn("receiver", F.col("client"))
    later = _later_chunks(came, max((about["highest"] for about in found.values()), default=0))
    came = came.repartition(events.spread, *_HOME)
    both = came.join(sent.hint("merge"), list(_KEY), "left").withColumn("topic", F.coalesce("topic", "named")).drop("named")
    # From the newest message to the oldest, each one's first delivery first: it is late if a newer one has come before.
    mine = Window.partitionBy(*_HOME, "receiver", "topic").orderBy(F.col("sequence").desc(), "came")
    both = both.withColumn("newer", F.min("came").over(mine.rowsBetween(Window.unboundedPreceding, -1)))
    both = both.withColumn("again", F.coalesce(F.lag("sequence").over(mine) == F.col("sequence"), F.lit(False)))
    if later is not None:
        both = both.join(F.broadcast(later), [*_HOME, "receiver", "topic"], "left")
        both = both.withColumn("newer", F.least("newer", "later"))
    known, counted = F.col("sent").isNotNull(), F.coalesce("counted", F.lit(False))
    first = counted & ~F.col("again")
    asked = F.lit(True)
    if irregular is not None:
        spells = irregular.groupBy("no", "receiver", "topic").agg(F.collect_list(F.struct("since", "until")).alias("spells"))
        both = both.join(F.broadcast(spells), ["no", "receiver", "topic"], "left")
        inside = F.exists("spells", lambda spell: (F.col("sent") >= spell["since"]) & (F.col("sent") < spell["until"]))
        asked = F.coalesce(inside, F.lit(True))
    delay = F.col("came") - F.col("sent")
    shared = F.col("receiver").startswith(subscriptions.SHARED)
    both = both.withColumn("accepted", F.col("wait").isNotNull()).withColumn("bucket", F.when(first, bucket(delay)))
    number = lambda condition: F.sum(F.when(condition, 1).otherwise(0))  # noqa: E731
    return both.groupBy("no", "flow", "topic", "receiver", "source", "target", "accepted", "bucket").agg(
        number(first).alias("n"),
        number(first & asked).alias("asked"),
        F.sum(F.when(first, F.greatest(delay, F.lit(0))).otherwise(0)).alias("delay"),
        F.max(F.when(first, F.greatest(delay, F.lit(0)))).alias("longest"),
        number(counted & F.col("again")).alias("dups"),
        number(first & ~shared & (F.col("came") > F.col("newer"))).alias("disordered"),
        number(first & (delay < 0)).alias("early"),
        number(F.col("within")).alias("arrived"),
        F.sum(F.when(F.col("within"), F.coalesce("size", F.lit(0))).otherwise(0)).alias("size"),
        number(~known).alias("strays"),
    )


def _later_chunks(came: DataFrame, highest: int) -> DataFrame | None:
    """Return (_HOME, receiver, topic, later): when the first message of a later chunk came; None if there is one chunk only."""
    if highest < CHUNK:
        return None
    firsts = came.groupBy(*_HOME, "receiver", F.col("named").alias("topic")).agg(F.min("came").alias("first"))
    after = Window.partitionBy("no", "publisher", "receiver", "topic").orderBy(F.col("chunk").desc())
    return firsts.withColumn("later", F.min("first").over(after.rowsBetween(Window.unboundedPreceding, -1))).drop("first")
