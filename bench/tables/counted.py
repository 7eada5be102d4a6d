"""What is counted of the rows of all runs: what tables are made of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mqttree.bench.tables.clocks import Second

if TYPE_CHECKING:
    from mqttree.bench.tables.delays import Histograms
    from mqttree.bench.tables.faults import Repairs
    from mqttree.bench.tables.run import Run
    from mqttree.bench.tables.traffic import Network

MESSAGES = ("published", "accepted", "delivered")
DAY = 86_400 * 1_000_000_000
"""ns; a longer delay is a clock that was not set."""

Spans = dict[int, dict[str, int]]
"""Of each run: rows of each kind of MESSAGES, first and last publication and last delivery (t),
highest sequence number, and by how much the latest message was late, where that is known."""
CAME = (
    "n",
    "timed",
    "delay",
    "delay_sent",
    "duplicates",
    "reordered",
    "early",
    "arrived",
    "unmatched",
    "size",
)
SENT = ("n", "accepted", "rated", "rated_accepted", "wait")
MISSING = ("expected", "lost", "lost_accepted", "unknown", "unexpected")


@dataclass
class Counts:
    """What the rows of all runs were counted as: it is small.

    spans, seconds: rows of each run, and of each of its seconds. came: deliveries by (no, flow,
    source, target): CAME and longest. sent: publications by (no, flow, source): SENT. missing: by
    (no, flow): MISSING. histograms, sent_histograms: of delays, from when messages were due and
    from when they were sent (empty where both are the same). network: what links carried and
    processes used. repaired: trees, faults and repairs.
    """

    spans: Spans
    seconds: list[Second]
    came: list[Any]
    sent: list[Any]
    missing: list[Any]
    histograms: Histograms
    sent_histograms: Histograms
    network: Network
    repaired: Repairs


def sampled(runs: Sequence[Run]) -> list[tuple[int, int]]:
    """Return the numbers of those of the `runs` that have a part of their messages in the trace,
    with what counts are to be multiplied by; a remark says so."""
    factors = [(number, run.every) for number, run in enumerate(runs) if run.every > 1]
    for number, factor in factors:
        text = f"1 of {factor:,} messages is in the trace: counts are {factor:,} times what it has"
        if runs[number].unfair:
            text = f"more than 1 of {factor:,} messages is in the trace: counts are too high"
        runs[number].remarks.append(text)
    return factors


def spans_and_seconds(rows: Iterable[Any]) -> tuple[Spans, list[Second]]:
    """Return what `rows` of MESSAGES, counted by (no, kind, second), say of each run and of each of
    its seconds: n, first and last (t), highest (sequence) and late."""
    result: dict[int, dict[str, int]] = {}
    seconds = []
    for row in rows:
        number, kind = row["no"], row["kind"]
        about = result.setdefault(number, {})
        about[kind] = about.get(kind, 0) + row["n"]
        about["highest"] = max(about.get("highest", 0), row["highest"])
        if row["late"] is not None:
            about["late"] = max(about.get("late", 0), row["late"])
        if kind == "published":
            about["first"] = min(about.get("first", row["first"]), row["first"])
            about["last"] = max(about.get("last", row["last"]), row["last"])
        elif kind == "delivered":
            about["came"] = max(about.get("came", row["last"]), row["last"])
        if row["second"] is not None:
            seconds.append((number, row["second"], kind, row["n"]))
    return result, seconds


def perhaps_far(spans: Spans) -> bool:
    """Return whether a delivery may have come more than a DAY after its publication."""
    return any(
        about.get("came", 0) - about.get("first", about.get("came", 0)) > DAY
        for about in spans.values()
    )


def note_far(runs: Sequence[Run], rows: Iterable[Any]) -> None:
    """Say of which `runs` a clock was not set; `rows` have by `no` how many deliveries were
    `far`."""
    for row in rows:
        text = (
            f"{row['far']:,} deliveries more than a day after their publication (clocks), "
            "taken as 0 ms"
        )
        runs[row["no"]].remarks.append(text)
