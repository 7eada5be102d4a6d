"""Results of runs that nobody made: of all shipped scenarios, for tests of the page."""

from __future__ import annotations

from typing import Any

from mqttree.bench.report import data
from mqttree.bench.report.data import Results
from mqttree.bench.scenarios import scenario
from mqttree.bench.scenarios.measures import MEASURES
from mqttree.bench.tables import summary
from mqttree.bench.tables.run import Run


def made_up(form: str = "short", repetitions: int = 2) -> Results:
    """Return results with two runs of each cell of every shipped scenario in a `form`, with figures
    that follow from their places; `repetitions` of each."""
    lines, about, timeline = [], [], []
    for name in scenario.shipped():
        loaded = scenario.load(name, form)
        for place, cell in enumerate(loaded.cells):
            for repetition in range(1, repetitions + 1):
                said = _about(loaded, cell, repetition, f"{name}-{place}-{repetition}", form)
                about.append(said)
                run = Run(said["run"], name, said, f"/x/{said['run']}/run.json")
                flows = list(cell.flows) if len(cell.flows) > 1 else []
                for flow in ("", *flows):
                    values = {
                        measure: float((place + 1) * (number + 1) * (1 + 0.1 * repetition))
                        for number, measure in enumerate(MEASURES)
                    }
                    lines.append(summary.Line(run, flow, dict(values)))
                if cell.phases:
                    timeline += _timeline(name, said["run"])
    summary.name_cases([line.run for line in lines if not line.flow])
    rows = [summary.row(line) for line in lines]
    cases = data._cases(summary.cases(lines), rows, about)
    delays = {
        (row["scenario"], row["run"], row["flow"] or ""): [
            (number, (row["delay_mean_ms"] or 1.0) * number / 5) for number in range(1, 10)
        ]
        for row in rows
    }
    return Results(rows, cases, [], timeline, about, delays=delays)


def _about(loaded: Any, cell: Any, repetition: int, run: str, form: str) -> dict[str, Any]:
    counts: tuple[str, ...] = (
        "published",
        "expected",
        "delivered",
        "lost",
        "unsure",
        "duplicates",
        "reordered",
    )
    counts += ("unaccepted", "accepted")
    flows = {
        flow: {"lag_p99_ms": 0.1, "delay_mean_ms": 10.0, **dict.fromkeys(counts, 100)}
        for flow in cell.flows
    }
    phases = [
        {"name": called, "seconds": 5.0, "control_bytes": 100 * number + 100}
        for number, called in enumerate(["boot", *(name for _, name in cell.phases)])
    ]
    return {
        "run": run,
        "scenario": loaded.name,
        "title": loaded.title,
        "paper": loaded.paper,
        "cell": cell.factors,
        "broker": cell.main.broker,
        "repetition": repetition,
        "seed": 1000 + repetition,
        "form": form,
        "status": "complete",
        "began": 1.7e9,
        "lab": "namespaces",
        "commit": "c" * 40,
        "command": ["mqttree", "bench", "run", "papers"],
        "machine": {"cpu": "a processor of some name", "cores": 2, "kernel": "6.1"},
        "figure": loaded.figure,
        "fingerprint": cell.fingerprint(),
        "parameters": cell.as_dict(),
        "summary": {
            "generator_cpu": 0.95 if repetition and "rate" in cell.factors else 0.3,
            "root": "b0",
            "flows": flows,
            **({"phases": phases} if cell.phases else {}),
        },
    }


def _timeline(name: str, run: str) -> list[dict[str, Any]]:
    rows = [
        {"scenario": name, "run": run, "second": second, "what": what, "value": value}
        for second in range(20)
        for what, value in (
            ("sent:b0", 900.0 + second),
            ("sent:b1", 300.0),
            ("sent:b2", 250.0),
            ("control_bytes_link", 700.0),
            ("data_bytes_link", 50.0),
        )
    ]
    return [
        *rows,
        {"scenario": name, "run": run, "second": 3, "what": "load_begins", "value": 3.4},
    ]
