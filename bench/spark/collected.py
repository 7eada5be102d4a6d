"""The counts of all runs, collected from Spark by few queries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from mqttree.bench.spark.messages import Messages
from mqttree.bench.tables.counted import CAME, MISSING, SENT, Counts
from mqttree.bench.tables.delays import Histograms, histograms
from mqttree.bench.tables.faults import Repairs
from mqttree.bench.tables.traffic import Network

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def counts(found: Messages, network: Network, repaired: Repairs) -> Counts:
    """Return what Spark counted of all runs: `found` is what became of each message, `network`
    what links carried and processes used, `repaired` what came of faults."""
    came = found.grouped.where("of = 'receiver' or timed > 0")
    came = came.groupBy("of", "no", "flow", "source", "target", "bucket", "sent_bucket").agg(
        *(sf.sum(name).alias(name) for name in CAME), sf.max("longest").alias("longest")
    )
    by: dict[str, list[Any]] = {"receiver": [], "bucket": [], "sent_bucket": []}
    for row in came.collect():
        by[row["of"]].append(row)
    accepted = sf.col("accepted")
    published = found.published.withColumns(
        {
            "rated_accepted": sf.when(accepted, sf.col("rated")).otherwise(0),
            "accepted": sf.when(accepted, sf.col("n")).otherwise(0),
        }
    )
    sent = published.groupBy("no", "flow", "source").agg(
        *(sf.sum(name).alias(name) for name in SENT)
    )
    missing = losses(found).groupBy("no", "flow")
    return Counts(
        found.spans,
        found.seconds,
        by["receiver"],
        sent.collect(),
        missing.agg(*(sf.sum(name).alias(name) for name in MISSING)).collect(),
        _histograms(by["bucket"], "bucket"),
        _histograms(by["sent_bucket"], "sent_bucket"),
        network,
        repaired,
    )


def _histograms(rows: Iterable[Any], name: str) -> Histograms:
    return histograms((row["no"], row["flow"], row[name], row["timed"]) for row in rows)


def losses(found: Messages) -> DataFrame:
    """Return (no, flow, ...): what should have come, what of it did not, and what came unasked.

    What a process that did not end may not have recorded is unknown, not lost.
    """
    keys = ["no", "flow", "receiver", "topic", "accepted"]
    got = (
        found.cells.where("flow is not null")
        .groupBy(*keys)
        .agg(sf.sum("asked").alias("asked"), sf.sum("n").alias("n"))
    )
    wanted = found.expected.groupBy(*keys).agg(
        sf.sum("n").alias("expected"), sf.min("clean").alias("clean")
    )
    both = wanted.join(got, keys, "full_outer")
    zero = sf.lit(0).cast("long")
    lacking = sf.greatest(sf.coalesce("expected", zero) - sf.coalesce("asked", zero), zero)
    clean = sf.coalesce("clean", sf.lit(True))
    return both.select(
        "no",
        "flow",
        sf.coalesce("expected", zero).alias("expected"),
        sf.when(clean, lacking).otherwise(zero).alias("lost"),
        sf.when(clean & sf.col("accepted"), lacking).otherwise(zero).alias("lost_accepted"),
        sf.when(~clean, lacking).otherwise(zero).alias("unknown"),
        sf.when(sf.col("expected").isNull(), sf.coalesce("n", zero))
        .otherwise(sf.coalesce("n", zero) - sf.coalesce("asked", zero))
        .alias("unexpected"),
    )
