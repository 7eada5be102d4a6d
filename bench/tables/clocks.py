"""When everything in a set of traces happened, on one scale for each run: from what processes note
of their clocks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from mqttree.bench.tables.run import PLACE, Run
from mqttree.bench.trace.repair import FOREVER
from mqttree.bench.trace.schema import VERSION

SECOND = 1_000_000_000
Second = tuple[int, int, str, int]
"""Number of the run, second since its first event, kind and rows."""
MARKS = ("began", "ended", "clock", "subscribed")
"""Kinds of rows that say how a process's other rows are to be taken."""
_ORDER = ("scenario", "run", "host", "process", "kind", "path")


@dataclass
class Placed:
    """Runs (each one's index is its number), and times of them on the scale of `t`: of one host its
    own clock, of several ns since the epoch.

    offsets: of each run, what is added to the times of each of its hosts. windows, loads: the
    measured time of each run, and that of its whole load (all time where it is not known). zeros:
    `t` of each run's first event, None where it is not known. subscribed: runs that note any
    subscription.
    """

    runs: list[Run]
    offsets: list[dict[str, int]]
    windows: list[tuple[int, int]]
    loads: list[tuple[int, int]]
    zeros: list[int | None]
    subscribed: set[int]

    def hosts(self) -> dict[tuple[int, str], tuple[int | None, ...]]:
        """Return by (number of the run, host): that number, what is added to the host's times, both
        ends of the run's window and of its load, and its zero."""
        return {
            (number, host): (
                number,
                offset,
                *self.windows[number],
                *self.loads[number],
                self.zeros[number],
            )
            for number, mine in enumerate(self.offsets)
            for host, offset in sorted(mine.items())
        }


def placed(found: Iterable[Any], runs: list[Run]) -> Placed | None:
    """Return the times of `runs`, and name those of their processes that did not end in the runs'
    remarks; None where files had to be taken out of a run, after which all is to be asked again.

    `found` are rows of MARKS by (path, scenario, run, host, process, kind), path a URL or escaped
    like one: marks (how many), first (at), offset (of the first), rows (sum of count), version
    (largest count), best (offset with the smallest error), error.
    """
    marks = sorted(found, key=lambda row: tuple(row[name] or "" for name in _ORDER))
    if _strangers(marks, runs) or _foreign(marks, runs):
        return None
    numbers = {(run.scenario, run.run): number for number, run in enumerate(runs)}
    offsets: list[dict[str, int]] = [{} for _ in runs]
    for (number, host), offset in _clocks(marks, numbers, runs).items():
        offsets[number][host] = offset
    return Placed(
        runs,
        offsets,
        [_window(run, mine, run.window) for run, mine in zip(runs, offsets, strict=True)],
        [_window(run, mine, run.load) for run, mine in zip(runs, offsets, strict=True)],
        _zeros(marks, runs, offsets),
        {numbers[row["scenario"], row["run"]] for row in marks if row["kind"] == "subscribed"},
    )


def _zeros(
    marks: Sequence[Any], runs: Sequence[Run], offsets: Sequence[dict[str, int]]
) -> list[int | None]:
    """Return the time of each run's first event on the scale of t: when the first of its processes
    began; None where none says when."""
    numbers = {(run.scenario, run.run): number for number, run in enumerate(runs)}
    found: dict[int, int] = {}
    for row in marks:
        if row["kind"] == "began":
            number = numbers[row["scenario"], row["run"]]
            at = row["first"] + offsets[number][row["host"]]
            found[number] = min(found.get(number, at), at)
    return [found.get(number) for number in range(len(runs))]


def _window(run: Run, offsets: dict[str, int], window: tuple[int, int] | None) -> tuple[int, int]:
    """Return a run's `window` (None: always) on the scale of t; offsets: what is added to the times
    of each of its hosts.

    The coordinator's clock was read; where run.json does not say which host's that is, its wall
    time is all there is.
    """
    if window is None:
        return -FOREVER, FOREVER
    shift = 0
    if len(offsets) > 1:
        shift = offsets.get(
            str(run.about.get("host")), int(run.about.get("wall_minus_monotonic_ns") or 0)
        )
    return window[0] + shift, window[1] + shift


def _strangers(marks: Sequence[Any], runs: Sequence[Run]) -> bool:
    """Leave the processes out whose rows are of another run than their folder says, with a remark;
    whether there were any."""
    some = False
    places = {(PLACE.search(unquote(row["path"])), row["scenario"], row["run"]) for row in marks}
    found = {
        (
            (place[1], place[2]),
            place[3],
            f"run {run}" if run != place[2] else f"scenario {scenario}",
        )
        for place, scenario, run in places
        if place and (place[1], place[2]) != (scenario, run)
    }
    for run in runs:
        for home, process, other in sorted(found, key=str):
            mine = [
                file
                for file in run.files
                if (place := PLACE.search(file))
                and place[3] == process
                and home == (run.scenario, run.run)
            ]
            if mine:
                some = True
                _leave_out(
                    run, process, f"its rows are of {other}, not of its folder's, and are left out"
                )
    return some


def _foreign(marks: Sequence[Any], runs: Sequence[Run]) -> bool:
    """Leave the processes out that say themselves that they wrote another version, with a remark;
    whether there were any. (What is not known to have a version is of the first one.)"""
    versions = {
        (row["scenario"], row["run"], row["process"]): row["version"]
        for row in marks
        if row["kind"] == "began" and row["version"] not in (None, VERSION)
    }
    some = False
    for run in runs:
        for process in sorted(run.rows):
            if version := versions.get((run.scenario, run.run, process)):
                some = True
                _leave_out(run, process, f"has schema {version}, not {VERSION}, and is left out")
    return some


def _leave_out(run: Run, process: str, why: str) -> None:
    """Take the files of a process out of a run."""
    run.files = [
        file for file in run.files if not (place := PLACE.search(file)) or place[3] != process
    ]
    run.rows.pop(process, None)
    run.broken.add(process)
    run.remarks.append(f"{process}: {why}")


def _clocks(
    marks: Sequence[Any], numbers: dict[tuple[str, str], int], runs: list[Run]
) -> dict[tuple[int, str], int]:
    """Return what is to be added to each run's and host's times; note processes that did not end or
    rows that are gone."""
    walls: dict[tuple[int, str], tuple[int, int]] = {}
    measured: dict[tuple[int, str], tuple[int, int]] = {}
    began: dict[tuple[int, str], int] = {}
    ended: dict[tuple[int, str], tuple[int, int]] = {}
    for row in marks:
        number = numbers[row["scenario"], row["run"]]
        key = (number, row["host"])
        if row["kind"] == "began":
            walls[key] = min(walls.get(key, (FOREVER, 0)), (row["first"], row["offset"]))
            began[number, row["process"]] = began.get((number, row["process"]), 0) + row["marks"]
        elif row["kind"] == "clock":
            measured[key] = min(measured.get(key, (FOREVER, 0)), (row["error"], row["best"]))
        elif row["kind"] == "ended":
            ends, written = ended.get((number, row["process"]), (0, 0))
            ended[number, row["process"]] = (ends + row["marks"], written + row["rows"])
    _processes(runs, began, ended)
    result = {}
    for number, run in enumerate(runs):
        hosts = sorted({key[1] for key in (*walls, *measured) if key[0] == number})
        if len(hosts) == 1:
            result[number, hosts[0]] = 0
            continue
        for host in hosts:
            key = (number, host)
            result[key] = measured[key][1] if key in measured else walls[key][1]
        unknown = [host for host in hosts if (number, host) not in measured]
        if unknown:
            run.remarks.append(
                f"{len(hosts)} clocks, compared by wall time where not measured: "
                f"{', '.join(unknown)}"
            )
        elif hosts:
            run.remarks.append(
                f"{len(hosts)} clocks, known to "
                f"{max(measured[number, host][0] for host in hosts) / 1000:.0f} us"
            )
    return result


def _processes(
    runs: list[Run],
    began: dict[tuple[int, str], int],
    ended: dict[tuple[int, str], tuple[int, int]],
) -> None:
    """Find the processes whose traces are not whole."""
    for number, run in enumerate(runs):
        for process, rows in sorted(run.rows.items()):
            ends, written = ended.get((number, process), (0, 0))
            if ends < began.get((number, process), 1):
                if process not in run.broken:
                    run.remarks.append(
                        f"{process}: its trace does not end; the process was ended while it ran"
                    )
                run.broken.add(process)
            elif rows != written and process not in run.broken:
                run.broken.add(process)
                run.remarks.append(
                    f"{process}: {rows:,} of its {written:,} rows are there; a file is missing"
                )
