"""The same loads against several brokers in turn (A B A B ...), and a table of medians and their
ratios.

Machines drift, so two programs are only comparable when measured alternately in one run, and only
ratios of medians are worth quoting.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from mqttree.bench.load import (
    LatencyResult,
    LoadError,
    LoadResult,
    LoadSpec,
    run_connections,
    run_latency,
    run_throughput,
)
from mqttree.bench.studies.targets import Running, Target, running

_IDLE_CONNECTIONS = 1000


@dataclass(frozen=True, slots=True)
class Work:
    """A load with a name. kind: throughput (messages/s), latency (ms at a fixed rate) or
    connections (per second)."""

    name: str
    title: str
    spec: LoadSpec
    kind: str = "throughput"


def _mesh(publishers: int, subscribers: int, window: int) -> LoadSpec:
    return LoadSpec(pattern="mesh", publishers=publishers, subscribers=subscribers, window=window)


# The windows suit the slowest: all of one subscriber's publishers together, or all QoS 2
# handshakes, must not pile up.
WORKS: dict[str, Work] = {
    work.name: work
    for work in (
        Work("qos0", "QoS 0, 10 to 10", LoadSpec()),
        Work("fanout", "QoS 0, 1 to 50", _mesh(1, 50, 1000)),
        Work("fanin", "QoS 0, 100 to 1", _mesh(100, 1, 200)),
        Work("mesh", "QoS 0, 10 to 10, all to all", _mesh(10, 10, 100)),
        Work("topics", "QoS 0, 10 to 10, 50 topics each", LoadSpec(topics=50)),
        Work("qos1", "QoS 1, 10 to 10", LoadSpec(qos=1)),
        Work("qos2", "QoS 2, 10 to 10", LoadSpec(qos=2, window=100)),
        Work("v5", "MQTT 5, QoS 0, 10 to 10", LoadSpec(version=5)),
        Work("v5qos1", "MQTT 5, QoS 1, 10 to 10", LoadSpec(version=5, qos=1)),
        Work(
            "properties", "MQTT 5, QoS 0, 4 user properties", LoadSpec(version=5, user_properties=4)
        ),
        Work(
            "v5qos1properties",
            "MQTT 5, QoS 1, 4 user properties",
            LoadSpec(version=5, qos=1, user_properties=4),
        ),
        Work("wildcards", "QoS 0, 10 to 10, 10,000 wildcard filters", LoadSpec(filters=10_000)),
        Work("large", "QoS 0, 16 KiB, 10 to 10", LoadSpec(payload=16_384, window=100)),
        Work("latency", "p50/p99 ms at 1,000/s", LoadSpec(rate=1000.0), "latency"),
        Work("latency20k", "p50/p99 ms at 20,000/s", LoadSpec(rate=20_000.0), "latency"),
        Work("connections", "connections/s, bytes each", LoadSpec(), "connections"),
    )
}
DEFAULT_WORKS = ("qos0", "fanout", "fanin", "qos1", "qos2", "latency20k")


@dataclass(slots=True)
class Cell:
    """Everything measured for one work and one target. primary: what is compared; higher is better
    but for latency."""

    primary: list[float] = field(default_factory=list)
    secondary: list[float] = field(default_factory=list)
    broker_cpu: list[float] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


Table = dict[str, dict[str, Cell]]


def compare(
    works: Sequence[Work],
    targets: Sequence[Target],
    rounds: int,
    seconds: float,
    say: Callable[[str], None] = lambda _: None,
) -> Table:
    """Return what each of the `targets` does with each of the `works`, measured `rounds` times in
    turn for so many `seconds` each; `say` gets each figure as it comes.

    A target that fails a work is noted in its cell and tried again in the next round.
    """
    table: Table = {work.name: {target.name: Cell() for target in targets} for work in works}
    for work in works:
        for turn in range(rounds):
            for target in targets:
                cell = table[work.name][target.name]
                try:
                    with running(target) as broker:
                        line = _measure(work, broker, seconds, cell)
                except LoadError as error:
                    cell.complaints.append(str(error))
                    line = f"failed: {error}"
                say(f"{work.name} {turn + 1}/{rounds} {target.name}: {line}")
    return table


def _measure(work: Work, broker: Running, seconds: float, cell: Cell) -> str:
    """Run one work once, put the figures into the cell and return a line about them."""
    spec = dataclasses.replace(
        work.spec, port=broker.port, pid=broker.pid, seconds=seconds, warmup=min(1.0, seconds / 4)
    )
    if work.kind == "connections":
        result = run_connections(spec, _IDLE_CONNECTIONS)
        cell.primary.append(result.rate)
        cell.secondary.append(result.bytes_each or 0.0)
        return f"{result.rate:,.0f}/s, {result.bytes_each or 0:,.0f} bytes each"
    if work.kind == "latency":
        latency = run_latency(spec)
        points = latency.percentiles()
        cell.primary.append(points["p50"])
        cell.secondary.append(points["p99"])
        _prove(latency, cell)
        figures = " ".join(f"{name} {value:.3f}" for name, value in points.items())
        return (
            f"{figures} ms; sender's lag p99 {latency.lag.percentile(99):.3f} ms; {latency.proof()}"
        )
    load = run_throughput(spec)
    cell.primary.append(load.rate)
    cell.broker_cpu.append(load.broker_cpu or 0.0)
    _prove(load, cell)
    return (
        f"{load.rate:,.0f}/s; broker {load.broker_cpu or 0:.0%}, "
        f"generator {load.generator_cpu:.0%}; {load.proof()}"
    )


def _prove(result: LoadResult | LatencyResult, cell: Cell) -> None:
    if not result.complete:
        cell.complaints.append(result.proof())


def ratio(work: Work, ours: Cell, theirs: Cell) -> float | None:
    """Return how many times better `ours` is than `theirs` in this `work`, by medians; None where
    one of them has no figure."""
    if not ours.primary or not theirs.primary:
        return None
    mine, other = statistics.median(ours.primary), statistics.median(theirs.primary)
    if work.kind == "latency":
        mine, other = other, mine
    return mine / other if other else None


def render(
    works: Sequence[Work], targets: Sequence[Target], table: Table, out: TextIO = sys.stdout
) -> None:
    """Print the `table` of `works` and `targets` to `out`: each one's median (lowest to highest)
    and the first target's ratio to each of the others."""
    first = targets[0]
    header = [
        "work",
        *(target.name for target in targets),
        *(f"{first.name}/{target.name}" for target in targets[1:]),
    ]
    rows = [header]
    for work in works:
        cells = table[work.name]
        row = [work.title, *(_figure(work, cells[target.name]) for target in targets)]
        for target in targets[1:]:
            value = ratio(work, cells[first.name], cells[target.name])
            row.append("-" if value is None else f"{value:.2f}x")
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    for number, row in enumerate(rows):
        out.write(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
            + "\n"
        )
        if not number:
            out.write("  ".join("-" * width for width in widths) + "\n")
    for work in works:
        for target in targets:
            for complaint in table[work.name][target.name].complaints:
                out.write(f"! {work.name}, {target.name}: {complaint}\n")


def _figure(work: Work, cell: Cell) -> str:
    if not cell.primary:
        return "failed"
    middle, low, high = statistics.median(cell.primary), min(cell.primary), max(cell.primary)
    if work.kind == "latency":
        return f"{middle:.2f} / {statistics.median(cell.secondary):.2f}"
    text = f"{middle:,.0f} ({low:,.0f}-{high:,.0f})"
    if work.kind == "connections":
        text += f", {statistics.median(cell.secondary):,.0f} B"
    return text
