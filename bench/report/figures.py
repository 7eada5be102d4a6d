"""From cases to the diagrams of a scenario, in the papers' form. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.report.data import Case, Results, Row
from bench.report.papers import CLAIMS
from bench.report.plot import Plot, Point, Reference, Series, legend
from bench.scenarios.measures import current_name

NAMES = {
    "published_per_s": "published, messages/s",
    "accepted_per_s": "acknowledged, messages/s",
    "delivered_per_s": "delivered, messages/s",
    "delivered_bytes_per_s": "delivered, bytes/s",
    "delay_mean_ms": "mean delay, ms",
    "delay_p50_ms": "median delay, ms",
    "delay_p90_ms": "p90 delay, ms",
    "delay_p99_ms": "p99 delay, ms",
    "delay_p999_ms": "p99.9 delay, ms",
    "delay_max_ms": "longest delay, ms",
    "accept_mean_ms": "mean time to acknowledgement, ms",
    "lost": "lost deliveries",
    "lost_accepted": "lost though acknowledged",
    "unknown": "unknown deliveries",
    "duplicates": "duplicates",
    "reordered": "out of order",
    "control_bytes": "signalling on links, bytes",
    "data_bytes": "messages on links, bytes",
    "control_bytes_per_s": "signalling, bytes/s",
    "data_bytes_per_s": "messages on links, bytes/s",
    "control_bytes_run": "signalling, boot included, bytes",
    "broker_cpu": "CPU of a broker, cores",
    "broker_rss": "memory of a broker, bytes",
    "generator_cpu": "CPU of the generator, cores",
    "convergence_s": "convergence, s",
    "repair_s": "repair of the tree, s",
    "repair_service_s": "until all were served again, s",
    "stretch": "stretch (hops / shortest)",
    "jain": "Jain's index of brokers' loads",
}
DEFAULT_Y = ("delay_mean_ms", "delivered_per_s")


def order(values: Sequence[Any]) -> list[Any]:
    """Return distinct values, numbers by size and before words."""
    numbers = sorted({value for value in values if isinstance(value, int | float)})
    return [
        *numbers,
        *dict.fromkeys(value for value in values if not isinstance(value, int | float)),
    ]


def plots(scenario: str, results: Results) -> list[str]:
    """Return the diagrams of a scenario as HTML: one for each measure and panel, then their
    legend."""
    cases = [case for case in results.cases if case.scenario == scenario]
    figure: Row = next(
        (about["figure"] for about in results.of(scenario) if about.get("figure")), {}
    )
    asked = map(current_name, figure.get("y") or DEFAULT_Y)
    wanted = [name for name in asked if name in NAMES]
    factors = list(dict.fromkeys(key for case in cases for key in case.cell))
    x = (
        str(figure.get("x"))
        if figure.get("x") in factors
        else next((key for key in factors if key != "broker"), "broker")
    )
    panel = (
        figure.get("panel") if figure.get("panel") in factors and figure.get("panel") != x else None
    )
    by_flow = any(case.flow for case in cases)
    cases = [case for case in cases if bool(case.flow) == by_flow or not _has_flows(case, cases)]
    names = list(dict.fromkeys(_series(case, x, panel) for case in cases))
    found = []
    for measure in wanted:
        for value in order([case.cell.get(panel) for case in cases]) if panel else [None]:
            mine = [case for case in cases if panel is None or case.cell.get(panel) == value]
            title = NAMES[measure] + (f" - {panel} {value}" if panel else "")
            found.append(_plot(title, x, measure, mine, names, panel).svg())
    return [
        f'<div class="plots">{"".join(found)}</div>',
        legend([(name, number) for number, name in enumerate(names)]),
    ]


def _has_flows(case: Case, cases: Sequence[Case]) -> bool:
    return any(
        other.flow and (other.name, other.variant) == (case.name, case.variant) for other in cases
    )


def _series(case: Case, x: str, panel: str | None) -> str:
    words = [case.broker] if case.broker and x != "broker" else []
    words += [
        f"{key} {value}"
        for key, value in case.cell.items()
        if key not in (x, panel, "broker") and value != ""
    ]
    words += [word for word in (case.variant, case.flow) if word]
    return ", ".join(words) or "all"


def _plot(
    title: str, x: str, measure: str, cases: Sequence[Case], names: Sequence[str], panel: str | None
) -> Plot:
    categories = order([case.cell.get(x) for case in cases])
    unlimited = x == "rate" and 0 in categories  # which is no number on the axis of rates
    numeric = (
        len(categories) > 1
        and all(isinstance(value, int | float) for value in categories)
        and not unlimited
    )
    names_of_x = [
        "as fast as it goes" if unlimited and value == 0 else str(value) for value in categories
    ]
    series = []
    for number, name in enumerate(names):
        points = []
        for case in cases:
            mean = case.mean(measure)
            if mean is None or _series(case, x, panel) != name:
                continue
            row = case.measures[measure]
            text = (
                f" ({row['n']} runs"
                + (f", {row['without']} without: {row['why']}" if row["without"] else "")
                + ")"
            )
            points.append(Point(categories.index(case.cell.get(x)), mean, case.half(measure), text))
        if points:
            series.append(Series(name, number, points))
    scenario = cases[0].scenario if cases else ""
    lines = {
        claim.value: Reference(claim.value, f"paper: {claim.value:g}")
        for claim in CLAIMS
        if claim.per is None
        and claim.value
        and claim.measure == measure
        and scenario.startswith(claim.scenarios)
    }
    return Plot(
        title,
        x,
        NAMES[measure].rsplit(", ", 1)[-1],
        names_of_x,
        series,
        list(lines.values()),
        numeric,
    )


def traffic(scenario: str, results: Results) -> list[str]:
    """Return bytes on links over time, one diagram for the first complete run of each broker (the
    form of MQTT-ST's fig. 2)."""
    found: list[str] = []
    seen: set[str] = set()
    for run in results.runs:
        about = next((each for each in results.of(scenario) if each.get("run") == run["run"]), {})
        if (
            run["scenario"] != scenario
            or run["flow"]
            or run["broker"] in seen
            or run["status"] != "complete"
        ):
            continue
        if not about.get("parameters", {}).get("phases"):
            continue
        rows = [
            row
            for row in results.timeline
            if (row["scenario"], row["run"]) == (scenario, run["run"])
            and row["what"] in ("control_bytes_link", "data_bytes_link")
        ]
        seconds = sorted({row["second"] for row in rows})
        if not seconds:
            continue
        seen.add(run["broker"])
        span = list(range(seconds[0], seconds[-1] + 1))
        series = [
            Series(
                name,
                number,
                [
                    Point(row["second"] - span[0], row["value"])
                    for row in rows
                    if row["what"] == what
                ],
            )
            for number, (name, what) in enumerate(
                (("signalling", "control_bytes_link"), ("messages", "data_bytes_link"))
            )
        ]
        step = max(len(span) // 8, 1)
        names = [str(second) if not (second - span[0]) % step else "" for second in span]
        found.append(
            Plot(
                f"traffic between brokers - {run['broker']}",
                "s since the start",
                "bytes in a second",
                names,
                series,
            ).svg()
        )
    return (
        [f'<div class="plots">{"".join(found)}</div>', legend([("signalling", 0), ("messages", 1)])]
        if found
        else []
    )
