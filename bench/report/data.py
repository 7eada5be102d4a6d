"""The tables of a set of runs, as the pipeline left them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, Any]
Draw = tuple[int | None, int, int]
"""Seed, repetition, and how many runs of those were before it: what is equal in two cases has the
same network and places."""


class ReportError(ValueError):
    """There is nothing to report on; one line."""


@dataclass
class Case:
    """One cell of a scenario: its factors, its broker, and for each measure the row of the table of
    cases."""

    scenario: str
    name: str
    flow: str
    cell: dict[str, Any]
    broker: str
    measures: dict[str, Row] = field(default_factory=dict)
    runs: dict[Draw, Row] = field(default_factory=dict)
    """The row of the table of runs of each that is complete."""
    variant: str = ""
    """What tells it from cases of the same cell: parameters, or a folder."""
    fingerprint: str = ""
    """Of all parameters and the topology: equal in runs of the same cell of the same file."""

    def mean(self, measure: str) -> float | None:
        """Return a measure's mean, None where there is none."""
        found = self.measures.get(measure)
        return found["mean"] if found else None

    def half(self, measure: str) -> float | None:
        """Return half of the mean's 95 % interval, None for a single run."""
        found = self.measures.get(measure)
        return found["half"] if found else None


@dataclass
class Results:
    """Everything that a page shows. about: the run.json of every run."""

    runs: list[Row]
    cases: list[Case]
    faults: list[Row]
    timeline: list[Row]
    about: list[Row]

    def scenarios(self) -> list[str]:
        """Return the scenarios' names in the order of their runs."""
        return list(dict.fromkeys(row["scenario"] for row in self.runs))

    def of(self, scenario: str) -> list[Row]:
        """Return what the run.json of a scenario's runs say."""
        return [about for about in self.about if about.get("scenario") == scenario]


def tables_of(folder: Path) -> Path:
    """Return where the tables of a folder are."""
    return folder / "tables"


def outdated(folder: Path) -> bool:
    """Whether the tables are missing, or older than what they are made of, or contain runs that are
    gone.

    Where all runs are gone the tables are all there is, and no others can be made.
    """
    about = tables_of(folder) / "about.json"
    if not about.exists():
        return True
    made = about.stat().st_mtime
    if any(path.stat().st_mtime > made for path in folder.rglob("run.json")):
        return True
    try:
        found = json.loads(about.with_name("sources.json").read_text(encoding="utf-8"))
        there = [(about.parent / place).exists() for place in found if ":" not in place]
    except (OSError, ValueError, TypeError):  # of an older version
        return False
    return any(there) and not all(there)


def read(folder: Path) -> Results:
    """Return the tables of a folder. Raises ReportError when they cannot be read; a ValueError in
    one of them becomes one."""
    place = tables_of(folder)
    try:
        tables = {
            name: _rows(place / f"{name}.parquet")
            for name in ("runs", "cases", "faults", "timeline")
        }
        about = json.loads((place / "about.json").read_text(encoding="utf-8"))
        if not (isinstance(about, list) and all(isinstance(each, dict) for each in about)):
            raise ValueError("about.json is no list of runs")
        cases = _cases(tables["cases"], tables["runs"])
        for name in ("faults", "timeline"):  # which older tables have by the name of the run alone
            _complete(tables[name], tables["runs"])
    except (OSError, ValueError, TypeError, pa.ArrowException) as error:
        text = str(error).splitlines()[0]
        raise ReportError(
            f"the tables in {place} cannot be read: {text}; --fresh makes them again"
        ) from error
    except KeyError as error:
        raise ReportError(
            f"the tables in {place} are of another version (no {error}); --fresh makes them again"
        ) from error
    return Results(tables["runs"], cases, tables["faults"], tables["timeline"], about)


def _cases(rows: Iterable[Row], runs: Iterable[Row]) -> list[Case]:
    """Return the cases with all their measures and runs. Raises KeyError for a column that is not
    there."""

    def key(row: Row) -> tuple[str, str, str, str]:
        return row["scenario"], row["case"], row["flow"] or "", row["fingerprint"] or ""

    cases: dict[tuple[str, str, str, str], Case] = {}
    for row in rows:
        found = cases.get(key(row))
        if found is None:
            scenario, name, flow, fingerprint = key(row)
            cell, variant = json.loads(row["cell"] or "{}"), row["variant"] or ""
            found = cases[key(row)] = Case(
                scenario,
                name,
                flow,
                cell,
                row["broker"] or "",
                variant=variant,
                fingerprint=fingerprint,
            )
        found.measures[row["measure"]] = row
    for row in runs:
        found = cases.get(key(row))
        if found is not None and row["status"] == "complete" and row["repetition"] is not None:
            which = 0
            while (row["seed"], row["repetition"], which) in found.runs:
                which += 1
            found.runs[row["seed"], row["repetition"], which] = row
    return list(cases.values())


def _complete(rows: Iterable[Row], runs: Iterable[Row]) -> None:
    """Fill in the scenario of rows that have none."""
    scenarios = {row["run"]: row["scenario"] for row in runs}
    for row in rows:
        row.setdefault("scenario", scenarios.get(row["run"], ""))


def _rows(path: Path) -> list[Row]:
    rows: list[Row] = pq.read_table(path).to_pylist()
    return rows
