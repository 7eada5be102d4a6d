"""What links carried, what processes used, and how both went over time: put together from sums.
Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from mqttree.bench.tables.clocks import SECOND, Placed, Second
from mqttree.bench.trace.repair import FOREVER

COUNTED = {"link_bytes_control": "control", "link_bytes_data": "data"}
"""Brokers' own counters that become tables: what they sent on all links -> class of bytes."""
Row = tuple[int, int, str, float]


class Link(NamedTuple):
    """What one broker sent to another.

    kind: control, data, wire (IP, all together).
    how: link (counted on the wire), tap (packet by packet), broker (its own counters, all its links
        together, target None).
    measured: of the bytes those in the measured time, from its first sample to its last one; None
        without two of them.
    """

    no: int
    source: str | None
    target: str | None
    kind: str | None
    how: str
    packets: int | None
    bytes: int | None
    measured: int | None


class Used(NamedTuple):
    """What a process used in the measured time: CPUs on average and at most between two samples,
    resident bytes on average and at most, and how many samples say so."""

    no: int
    process: str | None
    role: str | None
    cpu: float | None
    cpu_most: float | None
    rss: float | None
    rss_most: int | None
    samples: int


class Network(NamedTuple):
    """What links carried, by (no, source, target, packet) how many packets of each type a tap saw
    and their bytes, what processes used, and bytes of counters by (no, second, what)."""

    links: list[Link]
    packets: list[tuple[Any, ...]]
    used: list[Used]
    seconds: list[Row]


def network(
    tapped: Sequence[Sequence[Any]], counters: Iterable[Any], used: Iterable[Sequence[Any]]
) -> Network:
    """Return what rows say of the links and processes of all runs.

    `tapped` are (no, source, target, class, packet, packets, bytes, bytes_measured). `counters` are
    sums of what samples say was sent: `of` is "link" (by no, source, target, class, how), "second"
    (by no, second, class, how) or "sent" (of the wire, by no, second, source). `used` have
    the columns of Used.
    """
    links, seconds = _of_counters(counters)
    links += [
        Link(no, source, target, kind, "tap", *sums)
        for (no, source, target, kind), sums in _totals(tapped, 4, 3).items()
    ]
    packets = _totals(
        [
            (no, source, target, packet, count, size)
            for no, source, target, _, packet, count, size, _ in tapped
        ],
        4,
        2,
    )
    return Network(
        sorted(links, key=_order),
        sorted(((*key, *sums) for key, sums in packets.items()), key=_order),
        sorted((Used(*row) for row in used), key=_order),
        seconds,
    )


def _order(row: Iterable[Any]) -> tuple[tuple[bool, Any], ...]:
    """Return what rows are sorted by; None comes first."""
    return tuple((each is not None, each) for each in row)


def _totals(rows: Iterable[Any], key: int, values: int) -> dict[tuple[Any, ...], list[int | None]]:
    """Return sums of the last `values` columns of `rows`, by their first `key` ones; what is known
    of none is None."""
    found: dict[tuple[Any, ...], list[int | None]] = {}
    for row in rows:
        into = found.setdefault(tuple(row[:key]), [None] * values)
        for at, value in enumerate(row[len(row) - values :]):
            if value is not None:
                into[at] = (into[at] or 0) + value
    return found


def _of_counters(rows: Iterable[Any]) -> tuple[list[Link], list[Row]]:
    """Return the links and the seconds that rows of `counters` are about."""
    links: list[Link] = []
    seconds: list[Row] = []
    for row in rows:
        if row["of"] == "link":
            links.append(
                Link(
                    row["no"],
                    row["source"],
                    row["target"],
                    row["class"],
                    row["how"],
                    row["packets"],
                    row["bytes"],
                    row["bytes_measured"],
                )
            )
        elif row["second"] is not None:  # of a run whose first event is known
            name = f"{row['class']}_bytes_{row['how']}"
            what = f"sent:{row['source']}" if row["of"] == "sent" else name
            seconds.append((row["no"], row["second"], what, float(row["bytes"])))
    return links, seconds


def timeline(placed: Placed, network: Network, seconds: Iterable[Second]) -> list[Row]:
    """Return (no, second, what, value): how much of each there was in each second since the run's
    first event; sent:BROKER is what it sent on all links (IP bytes), and load_begins says how many
    seconds after that event the load began.

    `placed` are the runs, `network` is what links carried, `seconds` are those of `Counts`.
    """
    rows = [(no, at, kind, float(n)) for no, at, kind, n in seconds] + network.seconds
    # A run whose measured time is not known has none that could be told from its first event.
    for number, (at, _) in enumerate(placed.windows):
        zero = placed.zeros[number]
        if at > -FOREVER and zero is not None:
            after = (at - zero) / SECOND
            rows.append((number, math.floor(after), "load_begins", after))
    return sorted(rows)
