"""Publications joined with deliveries: delays, losses, duplicates and order, as counts that are
small enough to keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from mqttree.bench.spark import subscriptions
from mqttree.bench.spark.events import CHUNK, Events, small
from mqttree.bench.spark.session import kept
from mqttree.bench.tables.clocks import SECOND, Second
from mqttree.bench.tables.counted import (
    DAY,
    MESSAGES,
    Spans,
    note_far,
    perhaps_far,
    sampled,
    spans_and_seconds,
)
from mqttree.bench.trace.repair import FOREVER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_KEY = ("no", "publisher", "chunk", "sequence")
_HOME = _KEY[:3]
"""What messages are spread by: everything about a message, and its neighbours, is on one
machine."""
_CELL = ("no", "flow", "topic", "receiver", "source", "target", "accepted")
"""What deliveries are counted by."""
_COUNTS = (
    "n",
    "asked",
    "unsure",
    "timed",
    "duplicates",
    "reordered",
    "early",
    "far",
    "arrived",
    "size",
    "unmatched",
)
FANOUT = 4
"""Deliveries of a message from which on fewer neighbours stay together, so that a task has no more
rows."""
COPIED = 100_000
"""Rows of a table of which every executor gets a copy, at most; a larger one is spread by what it
is joined on."""


@dataclass
class Messages:
    """grouped: deliveries counted by (no, flow, topic, receiver, source, target, accepted), which
    are the `cells`, and by (no, flow, bucket) and (no, flow, sent_bucket): buckets of timed ones'
    delays from when messages were due, and from when they were handed to the socket, the latter
    where a trace says when they were due. `of` says which: receiver, bucket, sent_bucket. Buckets
    are not among what cells are counted by: where receivers are many, there would be as many cells
    as deliveries.

    n: first deliveries of messages that were published in the load, ramps included.
    asked: those of them that had subscribers.
    unsure: those so shortly before or after an interruption that they need not have come.
    timed: those of n whose message was published in the measured time, without ramps.
    delay, delay_sent: sums over timed (ns, early and far ones as 0), from when messages were due,
        and from when they were handed to the socket.
    duplicates, reordered, early (delay below zero), far (above a DAY).
    arrived: deliveries within the measured time, of whatever message.
    unmatched: deliveries of messages whose publication is not in the trace.

    published: publications in the load, by (no, flow, topic, source, accepted): n; of those in the
        measured time rated, and wait (sum of ns until accepted).
    expected: (no, flow, receiver, topic, accepted, clean): n, what should have come, and what came
        of what is unsure.
    spans: (no): first, last publication, rows of each kind.
    seconds: (no, second since the run's first event, kind, n): rows of each kind.

    All but spans and seconds count what is in the trace as often as it stands for (every).
    """

    grouped: DataFrame
    published: DataFrame
    expected: DataFrame
    spans: Spans
    seconds: list[Second]

    @property
    def cells(self) -> DataFrame:
        """Deliveries counted by who got them."""
        return cells_of(self.grouped)


def chunk(sizes: Mapping[int, int] | None = None) -> Column:
    """Return which part of its publisher's messages a message belongs to; sizes: of runs whose
    parts are not of CHUNK."""
    bits = sf.lit(CHUNK.bit_length() - 1)
    for size in sorted(set((sizes or {}).values())):
        mine = [number for number, each in (sizes or {}).items() if each == size]
        bits = sf.when(sf.col("no").isin(mine), size.bit_length() - 1).otherwise(bits)
    return sf.call_function("shiftright", sf.col("sequence"), bits).alias("chunk")


def sizes(found: Mapping[int, Mapping[str, int]]) -> dict[int, int]:
    """Return the chunks of runs whose messages are delivered to many, in messages: a power of two;
    found: spans."""
    result = {}
    for number, about in found.items():
        sent, came, size = about.get("published", 0), about.get("delivered", 0), CHUNK
        while size > 1 and sent and size * came > CHUNK * FANOUT * sent:
            size //= 2
        if size < CHUNK:
            result[number] = size
    return result


def publications(events: Events, sizes: Mapping[int, int]) -> DataFrame:
    """Return one row for each message: _KEY, sent, late, topic, source, flow, size, counted (in
    the load), timed (in the measured time) and wait.

    late: ns by which `sent` is later than it was due. wait: ns until it was accepted, null if it
    was not.
    """
    sent = events.of("published").select(
        "no",
        "publisher",
        chunk(sizes),
        "sequence",
        sf.col("t").alias("sent"),
        "topic",
        sf.col("broker").alias("source"),
        sf.coalesce("flow", sf.lit("")).alias("flow"),
        "size",
        sf.coalesce("late", sf.lit(0).cast("long")).alias("late"),
        ((sf.col("t") >= sf.col("load_since")) & (sf.col("t") < sf.col("load_until"))).alias(
            "counted"
        ),
        ((sf.col("t") >= sf.col("since")) & (sf.col("t") < sf.col("until"))).alias("timed"),
    )
    # Noted twice (a generator that repeats itself after a reconnect): the first time counts.
    again = sf.row_number().over(Window.partitionBy(*_KEY).orderBy("sent"))
    sent = (
        sent.repartition(events.spread, *_HOME)
        .withColumn("again", again)
        .where("again = 1")
        .drop("again")
    )
    accepted = events.of("accepted").select(
        "no", "publisher", chunk(sizes), "sequence", sf.col("t").alias("answered")
    )
    accepted = (
        accepted.repartition(events.spread, *_HOME)
        .groupBy(*_KEY)
        .agg(sf.min("answered").alias("answered"))
    )
    joined = sent.join(accepted.hint("merge"), list(_KEY), "left")
    # `greatest` skips nulls.
    wait = sf.when(
        sf.col("answered").isNotNull(), sf.greatest(sf.col("answered") - sf.col("sent"), sf.lit(0))
    )
    return joined.withColumn("wait", wait).drop("answered")


def spans(events: Events) -> tuple[Spans, list[Second]]:
    """Return `Messages.spans` and `Messages.seconds`, of one look at all rows about messages."""
    second = sf.floor((sf.col("t") - sf.col("zero")) / SECOND).cast("int").alias("second")
    rows = events.of(*MESSAGES).groupBy("no", "kind", second)
    found = rows.agg(
        sf.count("*").alias("n"),
        sf.min("t").alias("first"),
        sf.max("t").alias("last"),
        sf.max("sequence").alias("highest"),
        sf.max("late").alias("late"),
    )
    return spans_and_seconds(found.collect())


def messages(events: Events) -> Messages:
    """Count everything about messages. What is aggregated is kept by the executors, on disk where
    there is no room."""
    found, seconds = spans(events)
    parts = sizes(found)
    sent = publications(events, parts)
    if events.few:
        sent = kept(sent)
    factors = sampled(events.runs)
    published = (
        sent.where("counted")
        .withColumn("accepted", sf.col("wait").isNotNull())
        .groupBy("no", "flow", "topic", "source", "accepted")
        .agg(
            sf.count("*").alias("n"),
            sf.sum(sf.col("timed").cast("int")).alias("rated"),
            sf.sum(sf.when(sf.col("timed"), sf.col("wait")).cast("double")).alias("wait"),
        )
    )
    published = kept(published)
    topics = published.select("no", "topic").distinct()
    matched = kept(subscriptions.by_topic(subscriptions.intervals(events), topics))
    groups, several, ended = _kinds(matched)
    wanted = subscriptions.merged(matched)
    if several is not None:
        wanted = wanted.join(
            several.withColumn("several", sf.lit(True)), ["no", "receiver", "topic"], "left"
        )
        wanted = wanted.withColumn("clean", sf.col("clean") & sf.col("several").isNull()).drop(
            "several"
        )
    wanted = kept(wanted)
    regular, irregular = _regular(
        events, wanted, subscriptions.gaps(matched) if ended else None, found
    )
    irregular = kept(irregular)
    rows = irregular.count()
    spells = irregular.groupBy("no", "receiver", "topic").agg(
        sf.collect_list(sf.struct("since", "until")).alias("spells"), sf.first("gaps").alias("gaps")
    )
    grouped = _grouped(events, sent, groups, _few(spells, rows) if rows else None, found, parts)
    if several is not None:
        # Whether one came twice, or each of two groups had its own, nothing tells.
        grouped = grouped.join(
            several.withColumn("several", sf.lit(True)), ["no", "receiver", "topic"], "left"
        )
        grouped = grouped.withColumn(
            "duplicates", sf.when(sf.col("several").isNull(), sf.col("duplicates")).otherwise(0)
        ).drop("several")
    expected = _expected(sent, published, regular, _few(irregular, rows) if rows else None)
    if ended:
        unsure = cells_of(grouped).where("unsure > 0")
        unsure = unsure.groupBy("no", "flow", "receiver", "topic", "accepted").agg(
            sf.sum("unsure").alias("n")
        )
        expected = expected.unionByName(unsure.withColumn("clean", sf.lit(True)))
    _far(events, cells_of(grouped), found)
    if factors:
        grouped, published, expected = (
            _times(events, frame, factors) for frame in (grouped, published, expected)
        )
    return Messages(grouped, published, expected, found, seconds)


def cells_of(grouped: DataFrame) -> DataFrame:
    """Return the `Messages.cells` of what deliveries were grouped by."""
    return grouped.where("of = 'receiver'").drop("bucket", "sent_bucket", "of")


def _few(frame: DataFrame, rows: int) -> DataFrame:
    """Return a frame of so many rows, to be copied to every executor where they are few."""
    return sf.broadcast(frame) if rows <= COPIED else frame


def _kinds(matched: DataFrame) -> tuple[DataFrame | None, DataFrame | None, bool]:
    """Return what there is besides plain subscriptions that do not end.

    Whose messages clients with shared ones may get (subscriptions.receivers); the receivers (no,
    receiver, topic) that have a client in common with another shared subscription to the same
    topic; and whether any subscription ended.
    """
    shared = sf.max(sf.col("receiver").startswith(subscriptions.SHARED))
    some = matched.agg(shared.alias("shared"), sf.min("until").alias("until")).collect()[0]
    groups = several = None
    if some["shared"]:
        groups = kept(subscriptions.receivers(matched))
        many = kept(
            groups.where("groups > 1")
            .select("no", sf.explode("all").alias("receiver"), "topic")
            .distinct()
        )
        several = many if many.limit(1).count() else None
    return groups, several, some["until"] is not None and some["until"] < FOREVER


def _far(events: Events, cells: DataFrame, found: Spans) -> None:
    """Say of which runs a clock was not set."""
    if perhaps_far(found):
        by_run = cells.groupBy("no").agg(sf.sum("far").alias("far")).where("far > 0")
        note_far(events.runs, by_run.collect())


def _times(events: Events, frame: DataFrame, factors: list[tuple[int, int]]) -> DataFrame:
    """Return counts and sums of runs with a part of their messages in the trace as those of all of
    them."""
    keys = {
        "no",
        "flow",
        "topic",
        "receiver",
        "source",
        "target",
        "accepted",
        "bucket",
        "sent_bucket",
        "of",
        "clean",
        "longest",
    }
    frame = frame.join(
        sf.broadcast(small(events.spark, "no int, every long", factors)), "no", "left"
    )
    scaled = [
        name if name in keys else (sf.col(name) * sf.coalesce("every", sf.lit(1))).alias(name)
        for name in frame.columns
        if name != "every"
    ]
    return frame.select(*scaled)


def _regular(
    events: Events, wanted: DataFrame, gaps: DataFrame | None, found: dict[int, dict[str, int]]
) -> tuple[DataFrame, DataFrame]:
    """Split subscriptions into those that hold for all of a run's publications and those of
    receivers without such a one.

    The latter have gaps: when what was published need not have come, None for never.
    """
    rows = [
        (number, about["first"], about["last"])
        for number, about in found.items()
        if "first" in about
    ]
    edges = small(events.spark, "no int, first long, last long", rows)
    with_edges = wanted.join(sf.broadcast(edges), "no")
    always = (sf.col("since") <= sf.col("first")) & (sf.col("until") > sf.col("last"))
    if gaps is None:
        with_edges = with_edges.withColumn(
            "gaps", sf.lit(None).cast("array<struct<lost:bigint,back:bigint>>")
        )
    else:
        with_edges = with_edges.join(gaps, ["no", "receiver", "topic"], "left")
        touched = sf.exists(
            "gaps", lambda gap: (gap["lost"] <= sf.col("last")) & (gap["back"] >= sf.col("first"))
        )
        always &= ~sf.coalesce(touched, sf.lit(False))
    regular = with_edges.where(always).drop("first", "last", "gaps")
    others = with_edges.where(~always).drop("first", "last")
    # Spells do not overlap: one beside a spell that holds for all has seen no publication.
    return regular, others.join(
        regular.select("no", "receiver", "topic"), ["no", "receiver", "topic"], "left_anti"
    )


def _within(gaps: Column, sent: Column) -> Column:
    """Return whether something was sent in one of these gaps, which may be None."""
    return sf.coalesce(
        sf.exists(gaps, lambda gap: (sent >= gap["lost"]) & (sent <= gap["back"])), sf.lit(False)
    )


def _expected(
    sent: DataFrame, published: DataFrame, regular: DataFrame, irregular: DataFrame | None
) -> DataFrame:
    whole = published.join(regular.select("no", "receiver", "topic", "clean"), ["no", "topic"])
    found = whole.groupBy("no", "flow", "receiver", "topic", "accepted", "clean").agg(
        sf.sum("n").alias("n")
    )
    if irregular is None:
        return found
    parts = (
        sent.where("counted")
        .withColumn("accepted", sf.col("wait").isNotNull())
        .join(irregular, ["no", "topic"])
    )
    parts = parts.where("sent >= since and sent < until").where(
        ~_within(sf.col("gaps"), sf.col("sent"))
    )
    return found.unionByName(
        parts.groupBy("no", "flow", "receiver", "topic", "accepted", "clean").agg(
            sf.count("*").alias("n")
        )
    )


def bucket(nanoseconds: Column) -> Column:
    """Return mqttree.bench.load.histogram.bucket of a column (ns): values are off by less than
    1/256 of themselves."""
    value = sf.greatest(nanoseconds, sf.lit(0))
    # log2 of a double may be off by one beside a power of two
    near = sf.floor(sf.log2(sf.greatest(value, sf.lit(1)).cast("double"))).cast("int")
    above = sf.call_function("shiftright", value, near + 1) > 0
    below = sf.call_function("shiftright", value, near) == 0
    length = near + 1 + sf.when(above, 1).otherwise(0) - sf.when(below, 1).otherwise(0)
    shift = sf.greatest(length - 8, sf.lit(0))
    return (
        sf.call_function("shiftright", value, shift)
        + sf.call_function("shiftleft", shift.cast("long"), sf.lit(7))
    ).cast("int")


def _deliveries(
    events: Events,
    sent: DataFrame,
    groups: DataFrame | None,
    found: Mapping[int, Mapping[str, int]],
    parts: Mapping[int, int],
) -> DataFrame:
    """Each delivery with its message, whether it came again, and when a newer one came."""
    came = events.of("delivered").select(
        "no",
        "publisher",
        chunk(parts),
        "sequence",
        sf.col("t").alias("came"),
        "client",
        sf.col("broker").alias("target"),
        sf.col("topic").alias("named"),
        ((sf.col("t") >= sf.col("since")) & (sf.col("t") < sf.col("until"))).alias("within"),
    )
    came = _to_whom(events, came, groups)
    many = any(
        about.get("highest", 0) >= parts.get(number, CHUNK) for number, about in found.items()
    )
    later = _later_chunks(events, came) if many else None
    came = came.repartition(events.spread, *_HOME)
    both = (
        came.join(sent.hint("merge"), list(_KEY), "left")
        .withColumn("topic", sf.coalesce("topic", "named"))
        .drop("named")
    )
    # From the newest message to the oldest, each one's first delivery first: it is late if a newer
    # one has come before.
    mine = Window.partitionBy(*_HOME, "receiver", "topic").orderBy(
        sf.col("sequence").desc(), "came"
    )
    both = both.withColumn(
        "newer", sf.min("came").over(mine.rowsBetween(Window.unboundedPreceding, -1))
    )
    both = both.withColumn(
        "again", sf.coalesce(sf.lag("sequence").over(mine) == sf.col("sequence"), sf.lit(False))
    )
    if later is not None:
        both = both.join(later, [*_HOME, "receiver", "topic"], "left")
        both = both.withColumn("newer", sf.least("newer", "later"))
    return both


def _grouped(
    events: Events,
    sent: DataFrame,
    groups: DataFrame | None,
    spells: DataFrame | None,
    found: Mapping[int, Mapping[str, int]],
    parts: Mapping[int, int],
) -> DataFrame:
    """Return `Messages.grouped`: one look at all deliveries."""
    both = _deliveries(events, sent, groups, found, parts)
    known, counted = sf.col("sent").isNotNull(), sf.coalesce("counted", sf.lit(False))
    first = counted & ~sf.col("again")
    asked, unsure = sf.lit(True), sf.lit(False)
    if spells is not None:
        both = both.join(spells, ["no", "receiver", "topic"], "left")
        inside = sf.exists(
            "spells",
            lambda spell: (sf.col("sent") >= spell["since"]) & (sf.col("sent") < spell["until"]),
        )
        asked, unsure = sf.coalesce(inside, sf.lit(True)), _within(sf.col("gaps"), sf.col("sent"))
    delay = sf.col("came") - sf.col("sent")
    far = delay > DAY
    after = sf.when(far, 0).otherwise(sf.greatest(delay, sf.lit(0)))
    taken = sf.when(far, 0).otherwise(sf.greatest(delay + sf.col("late"), sf.lit(0)))
    timed = first & sf.col("timed")
    shared = sf.col("receiver").startswith(subscriptions.SHARED)
    known_late = any(about.get("late") for about in found.values())
    buckets = {"bucket": taken, "sent_bucket": after} if known_late else {"bucket": taken}

    def number(condition: Column) -> Column:
        return sf.when(condition, 1.0).otherwise(0.0)

    both = both.withColumn("accepted", sf.col("wait").isNotNull()).select(
        *_CELL,
        *(sf.when(timed, bucket(value)).alias(name) for name, value in buckets.items()),
        number(first).alias("n"),
        number(first & asked).alias("asked"),
        number(first & asked & unsure).alias("unsure"),
        number(timed).alias("timed"),
        sf.when(timed, taken).otherwise(0).cast("double").alias("delay"),
        sf.when(timed, after).otherwise(0).cast("double").alias("delay_sent"),
        sf.when(timed, taken).alias("longest"),
        number(counted & sf.col("again")).alias("duplicates"),
        number(first & ~shared & (sf.col("came") > sf.col("newer"))).alias("reordered"),
        number(first & (delay < 0)).alias("early"),
        number(first & far).alias("far"),
        number(sf.col("within")).alias("arrived"),
        sf.when(sf.col("within"), sf.coalesce("size", sf.lit(0)))
        .otherwise(0)
        .cast("double")
        .alias("size"),
        number(~known).alias("unmatched"),
    )
    return _sums(both, tuple(buckets))


def _sum(name: str) -> Column:
    """Return the sum of a column of whole numbers that are doubles, as a whole number: exact below
    2^53. To add longs costs several times as much, as each sum is looked at for overflow."""
    return sf.sum(name).cast("long").alias(name)


def _sums(both: DataFrame, buckets: tuple[str, ...]) -> DataFrame:
    """Return what `_grouped` does: sums over deliveries (`both`) by receiver and the like, and, in
    the same pass, how many were timed by each of the columns `buckets`."""
    sums = [
        *(_sum(name) for name in _COUNTS),
        sf.sum("delay").alias("delay"),
        sf.sum("delay_sent").alias("delay_sent"),
        sf.max("longest").alias("longest"),
    ]
    sets = [_CELL, *(("no", "flow", name) for name in buckets)]
    # Which of the sets a row is of: that of the one column of these that it is grouped by.
    of = sf.coalesce(
        *(sf.when(sf.grouping(name) == 0, sf.lit(name)) for name in ("receiver", *buckets))
    )
    grouped = both.groupingSets(sets, *_CELL, *buckets).agg(of.alias("of"), *sums)
    if "sent_bucket" not in buckets:
        grouped = grouped.withColumn("sent_bucket", sf.lit(None).cast("int"))
    return kept(grouped)


def _to_whom(events: Events, came: DataFrame, groups: DataFrame | None) -> DataFrame:
    """Add the receiver: the client, or a shared subscription of it to the topic; groups:
    subscriptions.receivers.

    Of a message that a client has to get for several of them it gets a copy for each, in whatever
    order.
    """
    if groups is None:
        return came.withColumn("receiver", sf.col("client"))
    about = groups.agg(sf.count("*").alias("rows"), sf.max(sf.size("all")).alias("most")).collect()[
        0
    ]
    found = came.join(
        _few(groups.withColumnRenamed("topic", "named"), about["rows"]),
        ["no", "client", "named"],
        "left",
    )
    which = sf.col("all")[0]
    if about["most"] > 1:
        copy = sf.row_number().over(Window.partitionBy(*_KEY, "client").orderBy("came"))
        found = found.repartition(events.spread, *_HOME).withColumn("copy", copy)
        which = sf.element_at("all", sf.least("copy", sf.size("all")))
    return found.withColumn("receiver", sf.coalesce(which, "client")).drop("all", "groups", "copy")


def _later_chunks(events: Events, came: DataFrame) -> DataFrame:
    """Return (_HOME, receiver, topic, later): when the first message of a later chunk came; where
    the messages are."""
    firsts = came.groupBy(*_HOME, "receiver", sf.col("named").alias("topic")).agg(
        sf.min("came").alias("first")
    )
    after = Window.partitionBy("no", "publisher", "receiver", "topic").orderBy(
        sf.col("chunk").desc()
    )
    later = firsts.withColumn(
        "later", sf.min("first").over(after.rowsBetween(Window.unboundedPreceding, -1))
    ).drop("first")
    return later.repartition(events.spread, *_HOME).hint("merge")
