"""The tables of a set of runs, as the pipeline left them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, Any]


class ReportError(ValueError):
    """There is nothing to report on; one line."""


@dataclass
class Case:
    """One cell of a scenario: its factors, its broker, and for each measure the row of the table of cases."""

    scenario: str
    name: str
    flow: str
    cell: dict[str, Any]
    broker: str
    measures: dict[str, Row] = field(default_factory=dict)
    runs: dict[int, Row] = field(default_factory=dict)
    """Repetition -> its row of the table of runs, of those that are complete."""

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
    delays: list[Row]
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
    """Whether the tables are missing or older than what they are made of."""
    about = tables_of(folder) / "about.json"
    if not about.exists():
        return True
    made = about.stat().st_mtime
    return any(path.stat().st_mtime > made for path in folder.rglob("run.json"))


def read(folder: Path) -> Results:
    """Return the tables of a folder; raises ReportError when they cannot be read."""
    place = tables_of(folder)
    try:
        tables = {name: _rows(place / f"{name}.parquet") for name in ("runs", "cases", "faults", "timeline", "delays")}
        about = json.loads((place / "about.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ReportError(f"the tables in {place} cannot be read: {str(error).splitlines()[0]}") from error
    cases: dict[tuple[str, str, str], Case] = {}
    for row in tables["cases"]:
        key = (row["scenario"], row["case"], row["flow"] or "")
        found = cases.get(key)
        if found is None:
            found = cases[key] = Case(key[0], key[1], key[2], json.loads(row["cell"] or "{}"), row["broker"] or "")
        found.measures[row["measure"]] = row
    for row in tables["runs"]:
        found = cases.get((row["scenario"], row["case"], row["flow"] or ""))
        if found is not None and row["status"] in ("complete", "unknown") and row["repetition"] is not None:
            found.runs[row["repetition"]] = row
    return Results(tables["runs"], list(cases.values()), tables["faults"], tables["timeline"], tables["delays"], about)


def _rows(path: Path) -> list[Row]:
    rows: list[Row] = pq.read_table(path).to_pylist()
    return rows
