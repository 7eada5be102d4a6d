"""From folders of runs to tables, by DuckDB."""

from __future__ import annotations

from collections.abc import Callable

import duckdb

from mqttree.bench.duckdb import messages, network, repairs
from mqttree.bench.duckdb.events import load
from mqttree.bench.duckdb.files import unreadable
from mqttree.bench.duckdb.session import Bounds, Database, database
from mqttree.bench.spark.counted import Counts, sampled
from mqttree.bench.spark.delays import histograms
from mqttree.bench.spark.source import Run
from mqttree.bench.spark.table_set import Tables, assemble, silent, without_damaged


def compute(
    runs: list[Run], tell: Callable[[str], None] = silent, bounds: Bounds | None = None
) -> Tables:
    """Aggregate `runs`, which `source.read` has found in folders of this machine, within these
    `bounds`; their remarks get more. `tell` hears of each stage.

    Damaged files are left out, and named.
    """
    kept = bounds or Bounds()
    with database(kept.memory) as opened:
        return without_damaged(
            runs,
            lambda given: aggregate(opened, given, kept, tell),
            lambda files: unreadable(opened, files),
            (duckdb.Error, OSError),
            tell,
        )


def aggregate(
    opened: Database, runs: list[Run], bounds: Bounds, tell: Callable[[str], None]
) -> Tables:
    """Aggregate `runs` in the database that is `opened`, within these `bounds`; their remarks get
    more. `tell` hears of each stage."""
    files, rows = sum(len(run.files) for run in runs), sum(sum(run.rows.values()) for run in runs)
    tell(f"reading {len(runs):,} runs, {files:,} files, {rows:,} rows")
    events = load(opened, runs)
    repaired = repairs.read(events)
    went = network.read(events)
    sampled(runs)
    messages.prepare(events)
    found = messages.Messages()
    batches = events.batches(bounds.batch)
    for at, batch in enumerate(batches, 1):
        part = f" (part {at} of {len(batches)})" if len(batches) > 1 else ""
        tell(f"joining messages with their deliveries{part}")
        messages.read(events, batch)
        messages.count(events, found, bounds.unsure)
        here = set(batch)
        if faults := [fault for fault in repaired.faults if fault.no in here]:
            repairs.served(opened, faults)
    counted = Counts(
        found.spans,
        found.seconds,
        found.came,
        found.sent,
        found.missing,
        histograms(found.buckets),
        histograms(found.sent_buckets),
        went,
        repaired,
    )
    return assemble(events, counted)
