"""Tables of what brokers made of mixed loads, for people (Markdown) and for programs (JSON)."""

from __future__ import annotations

import datetime
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

from mqttree.bench.load.cpu import cores
from mqttree.bench.runner import run_folder
from mqttree.bench.studies.mixed import MixedTable, MixedWork, Run, Runs
from mqttree.bench.studies.targets import Target

Figure = tuple[str, Callable[[Run], float], str]
"""What it is, where it is found in a run, and the format of its value."""

_WAITED = 0.1
"""Of the time, from which on it is worth a line that a broker waited for a core."""
_RATE: Figure = ("messages/s", lambda run: run.result.rate, ",.0f")
_CPU: Figure = ("CPU us a message", lambda run: sum(run.result.microseconds), ".2f")
_MEDIAN: Figure = ("p50 ms", lambda run: run.result.latency.percentile(50), ".3f")
_HIGH: Figure = ("p99 ms", lambda run: run.result.latency.percentile(99), ".3f")


def figures(work: MixedWork) -> tuple[Figure, ...]:
    """Return what a table shows of this work."""
    return (_CPU, _MEDIAN, _HIGH) if work.paced else (_RATE, _CPU)


def medians(runs: Runs, figure: Figure) -> float | None:
    """Return the median of a figure over the runs; None without any."""
    return statistics.median(map(figure[1], runs.runs)) if runs.runs else None


def render(
    works: Sequence[MixedWork],
    targets: Sequence[Target],
    table: MixedTable,
    out: TextIO = sys.stdout,
) -> None:
    """Print the `table` of `works` and `targets` to `out`, as Markdown: medians (lowest to
    highest), and the first target's median divided by that of each other one; then what the
    variants cost beside the plain work, and what went wrong."""
    first = targets[0]
    heads = ["work", "", *(each.name for each in targets)]
    heads += [f"{first.name} / {each.name}" for each in targets[1:]]
    out.write(_row(heads) + _row(["---"] * len(heads)))
    marked = False
    for work in works:
        cells = table[work.name]
        for figure in figures(work):
            row = [work.title, figure[0]]
            for each in targets:
                text = _cell(cells[each.name], figure)
                if figure is not _CPU and _limited(cells[each.name]):
                    text += " *"
                    marked = True
                row.append(text)
            row += [_ratio(cells[first.name], cells[each.name], figure) for each in targets[1:]]
            out.write(_row(row))
    if marked:
        out.write("\n\\* The generator may have been the limit in half of the runs or more.\n")
    if line := busy_machine(works, table):
        out.write(f"\n{line}\n")
    _variants(works, targets, table, out)
    _complaints(works, targets, table, out)


def busy_machine(works: Sequence[MixedWork], table: MixedTable) -> str:
    """Return one line when brokers had to wait for a core in some runs of `works`, which makes all
    figures worse and less comparable; empty otherwise."""
    waited = [
        max(run.result.broker_waited, default=0.0)
        for work in works
        for runs in table[work.name].values()
        for run in runs.runs
    ]
    count = sum(each >= _WAITED for each in waited)
    if not count:
        return ""
    return (
        f"The machine was busy: in {count} of {len(waited)} runs a broker waited for a core for "
        f"{_WAITED:.0%} of the time or more ({max(waited):.0%} at most)."
    )


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |\n"


def _cell(runs: Runs, figure: Figure) -> str:
    if not runs.available:
        return "-"
    if not runs.runs:
        return "failed"
    values, form = [figure[1](run) for run in runs.runs], figure[2]
    middle = format(statistics.median(values), form)
    if len(values) == 1:
        return middle
    return f"{middle} ({format(min(values), form)}-{format(max(values), form)})"


def _limited(runs: Runs) -> bool:
    return 2 * sum(bool(run.result.limited) for run in runs.runs) >= max(1, len(runs.runs))


def _ratio(ours: Runs, theirs: Runs, figure: Figure) -> str:
    mine, other = medians(ours, figure), medians(theirs, figure)
    return f"{mine / other:.2f}" if mine is not None and other else "-"


def _variants(
    works: Sequence[MixedWork], targets: Sequence[Target], table: MixedTable, out: TextIO
) -> None:
    """Print what each variant costs beside the plain work, if that was measured, too."""
    rows = [
        [
            work.title,
            figure[0],
            *(
                _ratio(table[work.name][each.name], table[work.plain][each.name], figure)
                for each in targets
            ),
        ]
        for work in works
        if work.plain in table
        for figure in figures(work)
    ]
    if rows:
        heads = ["divided by the same work, plain", "", *(each.name for each in targets)]
        out.write("\n" + _row(heads) + _row(["---"] * len(heads)))
        out.write("".join(map(_row, rows)))


def _complaints(
    works: Sequence[MixedWork], targets: Sequence[Target], table: MixedTable, out: TextIO
) -> None:
    lines = []
    for work in works:
        for each in targets:
            runs = table[work.name][each.name]
            lines += [f"! {work.name}, {each.name}: {complaint}" for complaint in runs.complaints]
            for reason in dict.fromkeys(run.result.limited for run in runs.runs):
                if reason:
                    lines.append(f"* {work.name}, {each.name}: {reason}")
    if lines:
        out.write("\n" + "\n".join(lines) + "\n")


def as_json(
    works: Sequence[MixedWork], targets: Sequence[Target], table: MixedTable, options: object
) -> str:
    """Return everything that was measured, as JSON: the `table` of `works` and `targets` run by run
    and in medians, the `options` of the command line, and the machine."""
    whole = {
        "machine": machine(),
        "options": options,
        "targets": {
            each.name: {"command": each.command, "version": each.said_version()} for each in targets
        },
        "works": {
            work.name: {
                "title": work.title,
                "targets": {
                    each.name: {
                        "available": table[work.name][each.name].available,
                        "complaints": table[work.name][each.name].complaints,
                        "medians": {
                            figure[0]: medians(table[work.name][each.name], figure)
                            for figure in figures(work)
                        },
                        "runs": [run.figures() for run in table[work.name][each.name].runs],
                    }
                    for each in targets
                },
            }
            for work in works
        },
    }
    return json.dumps(whole, indent=1) + "\n"


def machine() -> dict[str, object]:
    """Return what the figures were measured on, and when."""
    return {
        **run_folder.machine(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cores": len(cores()),
        "load": os.getloadavg(),
        "nice": os.nice(0),
    }
