"""One line for each run, one for each case over its repetitions: what there is is averaged, what
there is not is named."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mqttree.bench.load.limit import LATE
from mqttree.bench.scenarios.measures import MEASURES
from mqttree.bench.tables.means import mean
from mqttree.bench.tables.run import Run

COUNTS = (
    "published",
    "accepted",
    "expected",
    "delivered",
    "unexpected",
    "unmatched",
    "early",
    "faults",
    "brokers",
)
OF_A_FLOW = frozenset(MEASURES[:16])
"""Measures that a single flow has, too."""
MAX_WORDS = 4
"""Parameters in a name, at most."""


@dataclass
class Line:
    """One run (flow "": all of it). missing: measure -> why there is no figure."""

    run: Run
    flow: str
    values: dict[str, float | int | None] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    window_s: float | None = None
    brokers: list[str] = field(default_factory=list)
    """Those that ran."""

    def put(self, name: str, value: float | int | None, otherwise: str, by: str = "") -> None:
        """Set the measure `name` to `value`; where that is None, note why, `otherwise`. `by` is who
        would have noted the value (of run.ROLES), if that may be why."""
        self.values[name] = value
        if value is None:
            self.missing[name] = (by and self.run.silence(by)) or otherwise

    def without_late_delays(self) -> None:
        """Drop the delays of a run whose generator was late itself, with the reason: they say as
        much about the generator as about the brokers (`mqttree.bench.load.limit`)."""
        flows = (self.run.about.get("summary") or {}).get("flows") or {}
        mine = [flows[self.flow]] if self.flow in flows else list(flows.values())
        for flow in mine:
            late = flow.get("lag_p99_ms")
            delay = flow.get("delay_sent_p99_ms", flow.get("delay_p99_ms"))
            if late and delay and late >= delay * LATE:
                why = f"limited by the generator: {late:.2f} ms late itself (p99)"
                for name in self.values:
                    if name.startswith("delay_"):
                        self.values[name] = None
                        self.missing[name] = why
                return

    @property
    def status(self) -> str:
        """Whether the run counts, in a word: "complete", or what it was instead."""
        said = str(self.run.about.get("status", "unknown"))
        if said == "complete" and self.run.unfair:
            return "sampled by publisher"
        return "trace incomplete" if said in ("complete", "unknown") and self.run.broken else said


def case(run: Run) -> str:
    """Return what repetitions of one measurement have in common, as text; of a run without run.json
    nothing is known of that."""
    if not run.about:
        return f"run={run.run}"
    cell = run.about.get("cell") or {}
    words = [f"{key}={value}" for key, value in sorted(cell.items())]
    broker = run.about.get("broker")
    if broker and "broker" not in cell:
        words.insert(0, f"broker={broker}")
    if form(run) != "full":
        words.append(form(run))
    return ",".join(words)


def form(run: Run) -> str:
    """Return in which form of its scenario a run was made: full, medium or short."""
    return str(run.about.get("form") or "full")


def fingerprint(run: Run) -> str:
    """Return what is the same for equal parameters, and empty where that is not known."""
    return str(run.about.get("fingerprint") or "")


def name_cases(runs: Iterable[Run]) -> None:
    """Set each run's case and variant: runs of equal factors that are no repetitions of each other
    get their own names.

    Those are runs in another form, lab, on another machine or of another commit than others of
    their scenario, and of other parameters than others of their factors.
    """
    scenarios: dict[str, list[Run]] = {}
    for run in runs:
        scenarios.setdefault(run.scenario, []).append(run)
    for members in scenarios.values():
        groups: dict[tuple[str, str, str], dict[str, list[Run]]] = {}
        for run, (form, place) in zip(members, _settings(members), strict=True):
            groups.setdefault((case(run), form, place), {}).setdefault(fingerprint(run), []).append(
                run
            )
        for (common, form, place), alike in groups.items():
            for words, same in zip(_apart(alike), alike.values(), strict=True):
                for run in same:
                    # `common` has the form already.
                    run.case = ",".join(filter(None, (common, place, words)))
                    run.variant = (
                        ",".join(filter(None, (form, place, words))) if run.about else common
                    )


def _settings(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return of each run of a scenario its form ("" for the full one), and its lab, machine and
    commit; empty what all have in common.

    What a run does not say (one that failed before there was a lab) it shares with the others, if
    those agree.
    """
    found = [_setting(run) if run.about else {} for run in runs]
    values: dict[str, list[str]] = {}
    for each in found:
        for name, value in each.items():
            if value not in values.setdefault(name, []):
                values[name].append(value)
    result = []
    for run, each in zip(runs, found, strict=True):
        differ = sorted(name for name, known in values.items() if len(known) > 1 and name != "form")
        words = [f"{name}={each.get(name, 'unknown')}" for name in differ]
        mine = each.get("form", "full") if len(values.get("form", ())) > 1 else "full"
        result.append(("" if mine == "full" else mine, ",".join(words) if run.about else ""))
    return result


def _setting(run: Run) -> dict[str, str]:
    """Return what else than parameters a run was made with, as text. Of memory GB: a kernel keeps
    some kB more or less."""
    about = run.about
    machine = {
        f"machine.{name}": str(value) for name, value in (about.get("machine") or {}).items()
    }
    if (memory := machine.get("machine.ram", "").removesuffix(" kB")).isdigit():
        machine["machine.ram"] = f"{int(memory) / 1e6:.0f} GB"
    found = {"form": form(run)}
    if "lab" in about:
        found["lab"] = about["lab"]
    found |= machine
    if "commit" in about:
        found["commit"] = (about["commit"][:12] or "none") + (
            " with changes" if about.get("dirty") else ""
        )
    return found


def _apart(alike: Mapping[str, Sequence[Run]]) -> list[str]:
    """Return what distinguishes groups of runs, by fingerprint: parameters that differ, else
    folders, else the fingerprint."""
    if len(alike) == 1:
        return [""]
    first = [members[0] for members in alike.values()]
    for words in (_parameters(first), _folders(first)):
        if len(set(words)) == len(words):
            return words
    return [f"parameters {mark or 'unknown'}" for mark in alike]


def _parameters(runs: Sequence[Run]) -> list[str]:
    """Return the parameters of each run that are not the same in all; nothing if they are too many
    to be a name."""
    flat = []
    for run in runs:
        parameters = dict(run.about.get("parameters") or {})
        flows = parameters.get("flows")
        if isinstance(flows, Mapping) and len(flows) == 1:
            parameters["flows"] = next(iter(flows.values()))
        topology = {"topology": (run.about.get("topology") or {}).get("name")}
        flat.append(dict(_flat("", parameters | topology)))
    keys = sorted({key for each in flat for key in each})
    differ = [key for key in keys if len({each.get(key) for each in flat}) > 1]
    if len(differ) > MAX_WORDS:
        return [""] * len(runs)
    return [
        ",".join(f"{key}={each[key]}" for key in differ if key in each)
        or "none of these parameters"
        for each in flat
    ]


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the single values in mappings and lists with their names: "rate", "small.rate",
    "faults.0.at"."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(f"{name}.{key}" if name and name != "flows" else str(key), each)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _flat(f"{name}.{number}", each)
    else:
        yield name, f"{value:g}" if isinstance(value, float) else str(value)


def _folders(runs: Sequence[Run]) -> list[str]:
    """Return the parts of the runs' paths, from where they differ, that distinguish them."""
    parts = [run.place.split("/")[:-1] for run in runs]
    length = max(map(len, parts))
    first = next(
        (place for place in range(length) if len({tuple(each[: place + 1]) for each in parts}) > 1),
        length,
    )
    for last in range(first + 1, length + 1):
        words = ["/".join(each[first:last]) for each in parts]
        if len(set(words)) == len(words) and all(words):
            return words
    return [""] * len(runs)


def row(line: Line) -> dict[str, Any]:
    """Return a line of the table of runs."""
    about = line.run.about
    found: dict[str, Any] = {
        "scenario": line.run.scenario,
        "case": line.run.case,
        "fingerprint": fingerprint(line.run),
        "run": line.run.run,
        "repetition": about.get("repetition"),
        "seed": about.get("seed"),
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

    A run that did not end, or whose trace is not whole, is in no average; `without` counts it, and
    `why` says so, as well as runs that have no such figure. A run without run.json is a case of its
    own, as nothing says what it would repeat.
    """
    groups: dict[tuple[str, ...], list[Line]] = {}
    for line in lines:
        groups.setdefault(
            (line.run.scenario, line.run.case, line.flow, fingerprint(line.run)), []
        ).append(line)
    result = []
    for (scenario, name, flow, same), members in groups.items():
        for measure in MEASURES:
            if flow and measure not in OF_A_FLOW:
                continue
            values, reasons = _values(members, measure)
            found = mean(values)
            result.append(
                {
                    "scenario": scenario,
                    "case": name,
                    "fingerprint": same,
                    "variant": members[0].run.variant,
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
        if (line.status != "complete" and line.run.about) or line.run.broken:
            reasons.append("status unknown" if line.status == "unknown" else line.status)
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
    return ", ".join(
        reason if count == 1 else f"{count} x {reason}" for reason, count in counts.items()
    )


def brokers(run: Run, started: Collection[str] = ()) -> list[str]:
    """Return the brokers that ran: those that run.json says, else those of its topology (that the
    trace says were started)."""
    topology = (run.about.get("topology") or {}).get("brokers") or []
    if isinstance(topology, Mapping):
        found = sorted(topology)
    else:
        found = [
            str(each.get("name", each)) if isinstance(each, Mapping) else str(each)
            for each in topology
        ]
    on = run.about.get("on") or started
    return [name for name in found if name in on] or found


def physical(run: Run, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of brokers that have a link in a run's topology; between all of them if it
    names none."""
    found = (run.about.get("topology") or {}).get("links") or []
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
