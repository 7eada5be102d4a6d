"""One line for each run, one for each case over its repetitions: what there is is averaged, what there is not is named."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.spark.means import mean
from bench.spark.source import Run

MEASURES = (
    "published_per_s",
    "accepted_per_s",
    "delivered_per_s",
    "delivered_bytes_per_s",
    "delay_mean_ms",
    "delay_p50_ms",
    "delay_p90_ms",
    "delay_p99_ms",
    "delay_p999_ms",
    "delay_max_ms",
    "accept_mean_ms",
    "lost",
    "lost_accepted",
    "unknown",
    "duplicates",
    "disordered",
    "control_bytes",
    "data_bytes",
    "control_bytes_per_s",
    "data_bytes_per_s",
    "control_bytes_run",
    "broker_cpu",
    "broker_rss",
    "generator_cpu",
    "convergence_s",
    "repair_s",
    "repair_service_s",
    "stretch",
    "jain",
)
"""What is averaged over repetitions, in the order of the columns."""
COUNTS = ("published", "accepted", "expected", "delivered", "unexpected", "strays", "early", "faults", "brokers")
OF_A_FLOW = frozenset(MEASURES[:16])
"""Measures that a single flow has, too."""


@dataclass
class Line:
    """One run (flow "": all of it). missing: measure -> why there is no figure."""

    run: Run
    flow: str
    values: dict[str, float | int | None] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    window_s: float | None = None

    def put(self, name: str, value: float | int | None, otherwise: str) -> None:
        """Set a measure, or say why there is none."""
        self.values[name] = value
        if value is None:
            self.missing[name] = otherwise

    @property
    def status(self) -> str:
        """Whether the run counts, in a word: "complete", or what it was instead."""
        said = str(self.run.about.get("status", "unknown"))
        return "trace incomplete" if said in ("complete", "unknown") and self.run.broken else said


def case(run: Run) -> str:
    """Return what repetitions of one measurement have in common, as text."""
    cell = run.about.get("cell") or {}
    words = [f"{key}={value}" for key, value in sorted(cell.items())]
    broker = run.about.get("broker")
    if broker and "broker" not in cell:
        words.insert(0, f"broker={broker}")
    if run.about.get("short"):
        words.append("short")
    return ",".join(words)


def row(line: Line) -> dict[str, Any]:
    """Return a line of the table of runs."""
    about = line.run.about
    found: dict[str, Any] = {
        "scenario": line.run.scenario,
        "case": case(line.run),
        "run": line.run.run,
        "repetition": about.get("repetition"),
        "broker": about.get("broker"),
        "cell": json.dumps(about.get("cell") or {}, sort_keys=True),
        "flow": line.flow,
        "status": line.status,
        "window_s": line.window_s,
    }
    found |= {name: line.values.get(name) for name in (*COUNTS, *MEASURES)}
    found["missing"] = "; ".join(f"{name}: {why}" for name, why in line.missing.items())
    found["remarks"] = "; ".join(line.run.remarks)
    return found


def cases(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """Return the averages of each measure over the repetitions of each case.

    A run that did not end, or whose trace is not whole, is in no average; `without` counts it, and `why` says so, as well as runs
    that have no such figure.
    """
    groups: dict[tuple[str, ...], list[Line]] = {}
    for line in lines:
        same = str(line.run.about.get("fingerprint", ""))  # runs of other parameters are no repetitions
        groups.setdefault((line.run.scenario, case(line.run), line.flow, same), []).append(line)
    result = []
    for (scenario, name, flow, _), members in groups.items():
        for measure in MEASURES:
            if flow and measure not in OF_A_FLOW:
                continue
            values, reasons = _values(members, measure)
            found = mean(values)
            result.append(
                {
                    "scenario": scenario,
                    "case": name,
                    "broker": members[0].run.about.get("broker"),
                    "flow": flow,
                    "measure": measure,
                    "runs": len(members),
                    "n": len(values),
                    "without": len(members) - len(values),
                    "why": _why(reasons),
                    "mean": found.mean if found else None,
                    "half": found.half if found else None,
                    "deviation": found.deviation if found else None,
                    "least": found.least if found else None,
                    "most": found.most if found else None,
                    "cell": json.dumps(members[0].run.about.get("cell") or {}, sort_keys=True),
                }
            )
    return result


def _values(members: Sequence[Line], measure: str) -> tuple[list[float], list[str]]:
    values, reasons = [], []
    for line in members:
        value = line.values.get(measure)
        if line.status not in ("complete", "unknown"):
            reasons.append(line.status)
        elif value is None:
            reasons.append(line.missing.get(measure, "no figure"))
        else:
            values.append(float(value))
    return values, reasons


def _why(reasons: Sequence[str]) -> str:
    """Return reasons with how often each was, "2 x no faults"."""
    counts: dict[str, int] = {}
    for reason in reasons:
        counts[reason] = counts.get(reason, 0) + 1
    return ", ".join(reason if count == 1 else f"{count} x {reason}" for reason, count in counts.items())


def brokers(run: Run) -> list[str]:
    """Return the brokers of a run's topology."""
    found = (run.about.get("topology") or {}).get("brokers") or []
    if isinstance(found, Mapping):
        return sorted(found)
    return [str(each.get("name", each)) if isinstance(each, Mapping) else str(each) for each in found]


def physical(run: Run) -> list[tuple[str, str]]:
    """Return the pairs of brokers that have a link in a run's topology; between all of them if it names none."""
    found = (run.about.get("topology") or {}).get("links") or []
    names = brokers(run)
    pairs = []
    for link in found:
        if isinstance(link, Mapping) and "a" in link and "b" in link:
            pairs.append((str(link["a"]), str(link["b"])))
        elif isinstance(link, Sequence) and len(link) >= 2 and not isinstance(link, str):
            pairs.append((str(link[0]), str(link[1])))
    pairs = [pair for pair in pairs if not names or set(pair) <= set(names)]
    if pairs:
        return pairs
    return [(a, b) for index, a in enumerate(names) for b in names[index + 1 :]]
