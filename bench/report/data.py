"""The tables of a set of runs, as the pipeline left them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mqttree.bench.load.limit import limit_of_capacity, limit_of_delay
from mqttree.bench.report.derived import DERIVED
from mqttree.bench.tables.means import mean

Row = dict[str, Any]
Draw = tuple[int | None, int, int]
"""Seed, repetition, and how many runs of those were before it: what is equal in two cases has the
same network and places."""


SATURATED = 0.9
"""Of its share of a core: a broker that uses so much has nothing left."""


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

    share: float = 0.0
    """Of a core, that each broker had; 0: no limit."""
    limited: dict[Draw, tuple[str, str]] = field(default_factory=dict)
    """Of each run, why the generator limited its rates, and its delays; empty where it did not."""

    def value(self, draw: Draw, measure: str) -> float | None:
        """Return a measure of one run; None where there is none."""
        found = self.runs.get(draw, {}).get(measure)
        return float(found) if found is not None else None

    def limit(self, measure: str) -> str:
        """Return why a measure says as much about the generator as about brokers, in one line:
        what is so of half of the runs or more. Empty where it does not, and for measures that no
        generator limits."""
        rate = measure.endswith("_per_s") and not measure.startswith(("control", "data"))
        delay = measure.startswith(("delay", "accept_mean"))
        if not rate and not delay:
            return ""
        found = [
            busy or (late if delay else "")
            for draw, (busy, late) in self.limited.items()
            if draw in self.runs
        ]
        said = [each for each in found if each]
        return said[0] if said and 2 * len(said) >= len(found) else ""

    def limited_by(self) -> str:
        """Return what limits the rates of the cell: the generator, the brokers, or nothing that is
        known, in one line."""
        if why := self.limit("delivered_per_s"):
            return why
        used = self.mean("broker_cpu")
        if self.share and used is not None and used >= SATURATED * self.share:
            return f"limited by the brokers: {used:.2g} of {self.share:g} of a core each"
        return self.limit("delay_mean_ms")

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
    packets: list[Row] = field(default_factory=list)
    delays: dict[tuple[str, str, str], list[tuple[int, float]]] = field(default_factory=dict)
    """(scenario, run, flow) -> (deliveries, upper edge in ms) of each bucket of its delays."""

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
            for name in ("runs", "cases", "faults", "timeline", "packets")
        }
        about = json.loads((place / "about.json").read_text(encoding="utf-8"))
        if not (isinstance(about, list) and all(isinstance(each, dict) for each in about)):
            raise ValueError("about.json is no list of runs")
        cases = _cases(tables["cases"], tables["runs"], about)
        delays = _delays(place / "delays.parquet")
        _pingreqs(cases, tables["packets"])
    except (OSError, ValueError, TypeError, pa.ArrowException) as error:
        text = str(error).splitlines()[0]
        raise ReportError(
            f"the tables in {place} cannot be read: {text}; --fresh makes them again"
        ) from error
    except KeyError as error:
        raise ReportError(
            f"the tables in {place} are of another version (no {error}); --fresh makes them again"
        ) from error
    return Results(
        tables["runs"],
        cases,
        tables["faults"],
        tables["timeline"],
        about,
        tables["packets"],
        delays,
    )


def _cases(rows: Iterable[Row], runs: Iterable[Row], about: Iterable[Row] = ()) -> list[Case]:
    """Return the cases with all their measures and runs, and with what run.json (`about`) adds to
    these. Raises KeyError for a column that is not there."""
    said = {(each.get("scenario"), each.get("run")): each for each in about}

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
            draw = (row["seed"], row["repetition"], which)
            own = said.get((row["scenario"], row["run"]), {})
            more = {name: of(row, own) for name, (_, of) in DERIVED.items()}
            found.runs[draw] = row | more
            found.limited[draw] = _limits(own, found.flow)
            found.share = found.share or _share(own)
    for case in cases.values():
        for name in DERIVED:
            _put(case, name)
    return list(cases.values())


def _put(case: Case, name: str) -> None:
    """Set the average of a measure that only runs have; none where no run has it."""
    values = [value for draw in case.runs if (value := case.value(draw, name)) is not None]
    found = mean(values)
    if found is not None:
        case.measures[name] = {
            "measure": name,
            "mean": found.mean,
            "half": found.half,
            "n": found.n,
            "runs": len(case.runs),
            "without": len(case.runs) - found.n,
            "why": "" if found.n == len(case.runs) else "no figure",
            "least": found.least,
            "most": found.most,
        }


def _share(about: Row) -> float:
    """Return the share of a core that each broker of a run had; 0: no limit."""
    flows = (about.get("parameters") or {}).get("flows") or {}
    for flow in flows.values() if isinstance(flows, dict) else ():
        if isinstance(flow, dict) and isinstance(flow.get("cpu"), int | float):
            return float(flow["cpu"])
    return 0.0


def _pingreqs(cases: Iterable[Case], packets: Iterable[Row]) -> None:
    """Set the mean length of each run's PINGREQs between brokers, as `pingreq_bytes`."""
    sums: dict[tuple[str, str], list[int]] = {}
    for row in packets:
        if str(row["packet"]).lower() == "pingreq":
            found = sums.setdefault((row["scenario"], row["run"]), [0, 0])
            found[0] += row["bytes"]
            found[1] += row["packets"]
    for case in cases:
        for run in case.runs.values():
            size, count = sums.get((run["scenario"], run["run"]), (0, 0))
            run["pingreq_bytes"] = size / count if count else None


def _limits(about: Row, flow: str) -> tuple[str, str]:
    """Return why the generator limited a run's rates, and the delays of a flow ("": of any)."""
    summary = about.get("summary") or {}
    flows = summary.get("flows") or {}
    late = ""
    for each in [flows[flow]] if flow in flows else flows.values():
        delay = each.get("delay_sent_mean_ms", each.get("delay_mean_ms"))
        late = late or limit_of_delay(each.get("lag_p99_ms"), delay)
    used = summary.get("generators") or [summary.get("generator_cpu")]
    return limit_of_capacity(max(used, key=lambda each: each or 0.0)), late


def _delays(path: Path) -> dict[tuple[str, str, str], list[tuple[int, float]]]:
    """Return the histograms of delays."""
    columns = pq.read_table(path).to_pydict()
    found: dict[tuple[str, str, str], list[tuple[int, float]]] = {}
    keys = zip(columns["scenario"], columns["run"], columns["flow"], strict=True)
    for (scenario, run, flow), n, ms in zip(keys, columns["n"], columns["ms"], strict=True):
        found.setdefault((scenario, run, flow or ""), []).append((n, ms))
    return found


def _rows(path: Path) -> list[Row]:
    rows: list[Row] = pq.read_table(path).to_pylist()
    return rows
