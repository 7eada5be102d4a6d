"""How long federations took to agree on a tree, and to serve all clients again after a fault."""

from __future__ import annotations

from pyspark.sql import functions as sf

from mqttree.bench.spark import subscriptions
from mqttree.bench.spark.events import Events, small
from mqttree.bench.spark.messages import _KEY, chunk
from mqttree.bench.spark.session import kept
from mqttree.bench.tables.faults import SERVED, Fault, Repairs, repairs, serve


def convergence_and_faults(events: Events) -> Repairs:
    """Return how long it took all federations to agree first, and after each fault. `events` are
    the traces."""
    marks = (
        events.of("fault", "agreed", "role")
        .where("kind <> 'role' or (name not like 'state:%' and t < until)")
        .select("no", "t", "kind", "name", "broker", "peer")
        .collect()
    )
    found = repairs(marks)
    _serve(events, [fault for fault in found.faults if fault.kind in SERVED])
    return found


def _serve(events: Events, faults: list[Fault]) -> None:
    """Fill in from messages when all clients were served again."""
    if not faults:
        return
    spark, events = events.spark, events.only(fault.no for fault in faults)
    spells = small(
        spark,
        "no int, fault int, starts long, ends long",
        [(f.no, index, f.at, f.ends) for index, f in enumerate(faults)],
    )
    downs = small(
        spark,
        "fault int, broker string",
        [(index, broker) for index, f in enumerate(faults) for broker in sorted(f.down)],
    )
    sent = events.of("published").select(
        "no",
        "publisher",
        chunk(),
        "sequence",
        sf.col("t").alias("sent"),
        "topic",
        sf.col("broker").alias("source"),
    )
    sent = sent.join(sf.broadcast(spells), "no").where("sent >= starts and sent < ends")
    alive = sent.join(
        sf.broadcast(downs.withColumnRenamed("broker", "source")), ["fault", "source"], "left_anti"
    )
    if events.few:
        alive = kept(alive.repartition(events.spread, *_KEY[:3]))
    topics = alive.select("no", "topic").distinct()
    wanted = subscriptions.by_topic(subscriptions.intervals(events), topics)
    wanted = wanted.where(~sf.col("receiver").startswith(subscriptions.SHARED))
    talkers = alive.groupBy("no", "fault", "starts", "ends", "publisher", "topic").agg(
        sf.max("sent").alias("last")
    )
    pairs = talkers.join(wanted, ["no", "topic"]).where("since <= starts and until > last")
    pairs = (
        pairs.join(sf.broadcast(downs), ["fault", "broker"], "left_anti")
        .select("fault", "publisher", "client")
        .distinct()
    )
    came = events.of("delivered").select(
        "no", "publisher", chunk(), "sequence", sf.col("t").alias("came"), "client"
    )
    came = came.repartition(events.spread, *_KEY[:3])
    served = came.join(alive.repartition(events.spread, *_KEY[:3]).hint("merge"), list(_KEY))
    # What comes after it was undone, the undoing may have repaired: as with trees, it is put down
    # to no fault.
    served = (
        served.where("came < ends")
        .groupBy("fault", "publisher", "client")
        .agg(sf.min("came").alias("came"))
    )
    found = pairs.join(served, ["fault", "publisher", "client"], "left").groupBy("fault")
    counted = found.agg(
        sf.count("*").alias("pairs"), sf.count("came").alias("served"), sf.max("came").alias("last")
    )
    serve(faults, counted.collect())
