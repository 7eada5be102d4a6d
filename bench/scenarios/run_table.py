"""What `mqttree bench run` prints: one line for each cell, over its complete runs, and all that is
not in a figure. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Record = dict[str, Any]
NOT_AVAILABLE = "not available"
"""The status of a run whose program is not there (`mqttree.bench.runner.run_folder`)."""
_PHASE_KEYS = ("seconds", "control_bytes", "data_bytes", "bytes")


def _flow(name: str) -> Callable[[Record], float | None]:
    def figure(record: Record) -> float | None:
        flows = record["summary"].get("flows", {}).values()
        values = [flow[name] for flow in flows if flow.get(name) is not None]
        if not values:
            return None
        # Of the flow with the most deliveries: a mean over flows means nothing.
        if name.startswith(("delay", "lag")):
            return float(max(flows, key=lambda flow: flow["delivered"])[name] or 0.0)
        return float(sum(values))

    return figure


def _summary(*path: str) -> Callable[[Record], float | None]:
    def figure(record: Record) -> float | None:
        value: Any = record["summary"]
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return float(value) if isinstance(value, int | float) else None

    return figure


def _of_flow(flow: str, name: str) -> Callable[[Record], float | None]:
    return _summary("flows", flow, name)


def _longest_outage(record: Record) -> float | None:
    """The longest one of any subscriber, in s."""
    found = [each.get("outage_s") for each in record["summary"].get("subscribers", {}).values()]
    return max((each for each in found if each is not None), default=None)


COLUMNS: dict[str, tuple[str, Callable[[Record], float | None], str]] = {
    "delay_mean_ms": ("delay ms", _flow("delay_mean_ms"), ".2f"),
    "delay_p50_ms": ("p50 ms", _flow("delay_p50_ms"), ".2f"),
    "delay_p99_ms": ("p99 ms", _flow("delay_p99_ms"), ".2f"),
    "delay_sent_mean_ms": ("delay from send ms", _flow("delay_sent_mean_ms"), ".2f"),
    "delay_sent_p99_ms": ("from send p99 ms", _flow("delay_sent_p99_ms"), ".2f"),
    "accepted_per_s": ("accepted/s", _flow("accepted_per_s"), ",.0f"),
    "published_per_s": ("published/s", _flow("published_per_s"), ",.0f"),
    "delivered_per_s": ("delivered/s", _flow("delivered_per_s"), ",.0f"),
    "lost": ("lost", _flow("lost"), ",.0f"),
    "duplicates": ("twice", _flow("duplicates"), ",.0f"),
    "reordered": ("reordered", _flow("reordered"), ",.0f"),
    "control_bytes": ("signalling B", _summary("links", "control_bytes"), ",.0f"),
    "data_bytes": ("data B", _summary("links", "data_bytes"), ",.0f"),
    "boot_bytes": ("boot B", _summary("boot", "control_bytes"), ",.0f"),
    "broker_cpu": ("cores/broker", _summary("broker_cpu"), ".3f"),
    "broker_rss": (
        "RSS MB/broker",
        lambda r: (v / 1e6) if (v := r["summary"].get("broker_rss")) else None,
        ",.1f",
    ),
    "generator_cpu": ("generator CPU", _summary("generator_cpu"), ".2f"),
    "convergence_s": ("convergence s", _summary("convergence_s"), ".3f"),
    "repair_s": ("repair s", _summary("repair_s"), ".3f"),
    "outage_s": ("outage s", _longest_outage, ".2f"),
    "connections": ("connections", _summary("connections"), ",.0f"),
    "connections_per_s": ("connections/s", _summary("connections_per_s"), ",.0f"),
    "bytes_per_connection": ("B/connection", _summary("bytes_per_connection"), ",.0f"),
    "lag_p99_ms": ("generator late p99 ms", _flow("lag_p99_ms"), ".2f"),
    "small_per_s": ("small/s", _of_flow("small", "delivered_per_s"), ",.1f"),
    "large_per_s": ("large/s", _of_flow("large", "delivered_per_s"), ",.2f"),
    "internal_error": ("links, beyond model", _summary("traffic", "internal_error"), "+.3%"),
    "network_late_ms": ("network late p99 ms", _summary("network", "late_ms", "p99"), ".3f"),
}
USUAL = (
    "delay_mean_ms",
    "delay_p99_ms",
    "delivered_per_s",
    "lost",
    "duplicates",
    "control_bytes",
    "data_bytes",
    "broker_cpu",
)


def _complete(record: Record) -> bool:
    return record.get("status") == "complete"


def _of(count: int, runs: int) -> str:
    """How many of so many runs, where that is not all."""
    return "" if count == runs else f" ({count}/{runs})"


def cell_text(values: Sequence[float | None], form: str, runs: int) -> str:
    """Return the mean of the `values` that are known, in the format `form`, with the standard
    deviation where there are several, and n/N where it is not of all `runs`; "-" without any
    value."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean = format(statistics.fmean(known), form)
    deviation = "" if len(known) < 2 else f" ±{format(statistics.stdev(known), form)}"
    return mean + deviation + _of(len(known), runs)


def status_text(records: Sequence[Record]) -> str:
    """The state of a cell's runs: "ok", or how many of them are what."""
    counts: dict[str, int] = {}
    for record in records:
        status = str(record.get("status"))
        counts["ok" if status == "complete" else status] = (
            counts.get("ok" if status == "complete" else status, 0) + 1
        )
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))


def rows(records: Iterable[Record], show: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """(headings, lines) of one scenario's runs; figures are of complete runs only, and say of how
    many where that is not all."""
    names = [name for name in (show or USUAL) if name in COLUMNS]
    groups: dict[tuple[tuple[str, str], ...], list[Record]] = {}
    for record in records:
        groups.setdefault(
            tuple((key, str(value)) for key, value in record["cell"].items()), []
        ).append(record)
    factors = list(dict.fromkeys(key for cell in groups for key, _ in cell))
    lines = []
    for cell, own in groups.items():
        values = dict(cell)
        line = [values.get(factor, "") for factor in factors]
        for name in names:
            _, figure, form = COLUMNS[name]
            line.append(
                cell_text([figure(record) for record in own if _complete(record)], form, len(own))
            )
        lines.append([*line, str(len(own)), status_text(own)])
    return [*factors, *(COLUMNS[name][0] for name in names), "runs", "state"], lines


def text(title: str, headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table: `title` above it, `headings` of the columns, and its `lines`."""
    title += (
        "; ± is a standard deviation" if any("±" in word for row in lines for word in row) else ""
    )
    widths = [
        max(len(row[column]) for row in [headings, *lines]) for column in range(len(headings))
    ]

    def line(row: Sequence[str]) -> str:
        return (
            "| "
            + " | ".join(word.ljust(width) for word, width in zip(row, widths, strict=True))
            + " |"
        )

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join(["", title, "", line(headings), rule, *map(line, lines)])


def phases(records: Iterable[Record]) -> list[str]:
    """Bytes by phase of runs that have phases, the mean over complete runs, as a table's lines."""
    groups: dict[str, dict[str, list[Record]]] = {}
    runs: dict[str, int] = {}
    for record in records:
        cell = ", ".join(f"{key}={value}" for key, value in record["cell"].items())
        runs[cell] = runs.get(cell, 0) + 1
        for phase in record["summary"].get("phases", []) if _complete(record) else []:
            groups.setdefault(cell, {}).setdefault(phase["name"], []).append(phase)
    lines = []
    for cell, own in groups.items():
        table = [
            [
                f"{name}{_of(len(each), runs[cell])}",
                *(f"{statistics.fmean(p[key] for p in each):,.1f}" for key in _PHASE_KEYS),
            ]
            for name, each in own.items()
        ]
        lines.append(
            text(
                f"bytes by phase: {cell}",
                ["phase", "seconds", "signalling B", "data B", "IP B"],
                table,
            )
        )
    return lines


def ratios(records: Iterable[Record]) -> list[str]:
    """Each flow's rate in the mix over its rate alone (Hetero's figure), means of complete runs, as
    a table; [] without a mix."""
    rates: dict[str, dict[tuple[str, str], list[float]]] = {}
    runs: dict[tuple[str, str], int] = {}
    for record in records:
        mix = str(record["cell"].get("mix", ""))
        rest = ", ".join(f"{key}={value}" for key, value in record["cell"].items() if key != "mix")
        runs[rest, mix] = runs.get((rest, mix), 0) + 1
        for flow, figures in (
            record["summary"].get("flows", {}).items() if _complete(record) else ()
        ):
            if mix and figures.get("delivered_per_s") is not None:
                rates.setdefault(rest, {}).setdefault((mix, flow), []).append(
                    figures["delivered_per_s"]
                )
    table = []
    for rest, own in rates.items():
        for (mix, flow), values in own.items():
            single = own.get((flow, flow), [0.0])
            alone, mixed = statistics.fmean(single), statistics.fmean(values)
            if mix != flow and alone:
                apart = f"{alone:,.1f}{_of(len(single), runs.get((rest, flow), 0))}"
                table.append(
                    [
                        rest,
                        mix,
                        flow,
                        apart,
                        f"{mixed:,.1f}{_of(len(values), runs[rest, mix])}",
                        f"{mixed / alone:.2f}",
                    ]
                )
    headings = ["cell", "mix", "flow", "alone/s", "in the mix/s", "ratio"]
    return [text("throughput in the mix against alone", headings, table)] if table else []


def _name(record: Record) -> str:
    cell = ",".join(f"{key}={value}" for key, value in record["cell"].items())
    return f"{record['scenario']} {cell} r{record['repetition']}"


def failures(records: Iterable[Record]) -> list[str]:
    """One line for everything that did not go as it should, and for each broker that is not there
    and why."""
    lines = []
    absent: dict[tuple[str, str, str], int] = {}
    for record in records:
        if record["status"] == NOT_AVAILABLE:
            why = "; ".join(record.get("failures", [])) or "no reason known"
            key = (record["scenario"], str(record["broker"]), why)
            absent[key] = absent.get(key, 0) + 1
        elif not _complete(record):
            reasons = "; ".join(record.get("failures", [])) or "no reason known"
            lines.append(f"{_name(record)}: {record['status']}: {reasons}")
        lines += [f"{_name(record)}: {finding}" for finding in record.get("findings", [])]
    return lines + [
        f"{scenario}: {broker} is not available ({count} runs): {why}"
        for (scenario, broker, why), count in absent.items()
    ]


def remarks(records: Iterable[Record], show: Sequence[str]) -> list[str]:
    """One line for each complete run that says less than it seems to: a figure it lacks, messages
    that were never published."""
    shown = [name for name in (show or USUAL) if name in COLUMNS]
    lines = []
    for record in records:
        if not _complete(record):
            continue
        summary = record["summary"]
        words = [
            f"no {COLUMNS[name][0]}: {why}"
            for name, why in summary.get("missing", {}).items()
            if name in shown
        ]
        if skipped := summary.get("skipped"):
            words.append(
                f"{skipped:,} messages were not published, as their publishers were not connected"
            )
        if interruptions := summary.get("interruptions"):
            words.append(f"{interruptions:,} connections of clients were lost")
        words += summary.get("lacking", [])
        if words:
            lines.append(f"{_name(record)}: {'; '.join(words)}")
    return lines
