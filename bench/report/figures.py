"""From cases to the diagrams of a scenario, in the papers' form. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mqttree.bench.report.data import Case, Results, Row
from mqttree.bench.report.derived import DERIVED
from mqttree.bench.report.papers import CLAIMS, fits
from mqttree.bench.report.plot import Mark, Plot, Point, Reference, Series, legend
from mqttree.bench.tables.means import mean

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
    "delay_sent_mean_ms": "mean delay from the send, ms",
    "delay_sent_p99_ms": "p99 delay from the send, ms",
    "accept_mean_ms": "mean time to acknowledgement, ms",
    "lost": "lost, deliveries",
    "lost_accepted": "lost though acknowledged, deliveries",
    "unknown": "not known, deliveries",
    "duplicates": "duplicates, deliveries",
    "reordered": "out of order, deliveries",
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
    "stretch": "stretch (hops / shortest), ratio",
    "jain": "Jain's index of brokers' loads, 0 to 1",
    **{name: called for name, (called, _) in DERIVED.items()},
}
X_NAMES = {
    "topics": "topics",
    "subscribers": "subscribers",
    "publishers": "publishers",
    "connections": "connections",
    "payload": "payload, bytes",
    "locality": "locality, %",
    "cpu": "the broker's share of a core",
    "rate": "messages a second of each publisher",
    "qos": "QoS",
    "broker": "broker",
    "fault": "fault",
    "client_delay": "delay of clients, ms",
    "delay_ms": "delay of a link, ms",
    "loss": "loss of a link, share of packets",
    "rate_mbit": "rate of a link, Mbit/s",
}
"""How a factor is called below an axis; others by their own names."""
STACKED = ("control_bytes", "data_bytes")
DEFAULT_Y = ("delay_mean_ms", "delivered_per_s")


def order(values: Sequence[Any]) -> list[Any]:
    """Return distinct values, numbers by size and before words."""
    numbers = sorted({value for value in values if isinstance(value, int | float)})
    return [
        *numbers,
        *dict.fromkeys(value for value in values if not isinstance(value, int | float)),
    ]


@dataclass(frozen=True)
class Layout:
    """How a scenario's figure is laid out: what its cases are, by what its x axis and its diagrams
    (`panel`) differ, the measures on its y axes, and the names of its series in the order of their
    colours."""

    cases: list[Case]
    x: str
    panel: str | None
    measures: list[str]
    names: list[str]


def layout(scenario: str, results: Results) -> Layout:
    """Return the layout of the figure of a `scenario`, of whose runs `results` are."""
    cases = [case for case in results.cases if case.scenario == scenario]
    figure: Row = next(
        (about["figure"] for about in results.of(scenario) if about.get("figure")), {}
    )
    wanted = [name for name in figure.get("y") or DEFAULT_Y if name in NAMES]
    if figure.get("average"):
        cases = averaged(cases, str(figure["average"]))
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
    names = list(dict.fromkeys(series_name(case, x, panel) for case in cases))
    return Layout(cases, x, panel, wanted, names)


def plots(scenario: str, results: Results) -> list[str]:
    """Return the diagrams of a scenario as HTML: one for each measure and panel, then their
    legend."""
    shape = layout(scenario, results)
    cases, x, panel = shape.cases, shape.x, shape.panel
    wanted, names = shape.measures, shape.names
    stacks = set(STACKED) <= set(wanted)
    found = []
    for measure in wanted:
        if stacks and measure == STACKED[1]:
            continue
        stacked = stacks and measure == STACKED[0]
        for value in order([case.cell.get(panel) for case in cases]) if panel else [None]:
            mine = [case for case in cases if panel is None or case.cell.get(panel) == value]
            title = "traffic on links, bytes" if stacked else NAMES[measure]
            title += f" - {panel} {value}" if panel else ""
            plot = _stacked(title, x, mine, names, panel) if stacked else None
            found.append((plot or _plot(title, x, measure, mine, names, panel)).svg())
    notes = ["Full: signalling. Pale, on it: messages."] if stacks else []
    limited = [case for case in cases if any(case.limit(measure) for measure in wanted)]
    if limited:
        notes.append(
            f"Hollow: limited by the generator, and in no claim ({len(limited)} of {len(cases)})."
        )
    return [
        f'<div class="plots">{"".join(found)}</div>',
        legend([(name, number) for number, name in enumerate(names)]),
        *(f'<p class="why">{note}</p>' for note in notes),
    ]


def averaged(cases: Sequence[Case], factor: str) -> list[Case]:
    """Return the cases with those of each value of a factor put together: the mean over its values,
    draw by draw; where it says nothing ("") a case stays as it is."""
    groups: dict[tuple[Any, ...], list[Case]] = {}
    for case in cases:
        rest = tuple(sorted((key, str(value)) for key, value in case.cell.items() if key != factor))
        groups.setdefault((case.cell.get(factor) == "", rest, case.variant, case.flow), []).append(
            case
        )
    result = []
    for (single, *_), members in groups.items():
        first = members[0]
        cell = {key: value for key, value in first.cell.items() if key != factor}
        kind = first.broker if single else f"one {first.broker}, mean over {factor}"
        made = Case(first.scenario, first.name, first.flow, cell | {"broker": kind}, kind)
        made.variant, made.share = first.variant, first.share
        made.runs = {
            draw: {
                name: sum(values) / len(values)
                for name in NAMES
                if len(
                    values := [v for each in members if (v := each.value(draw, name)) is not None]
                )
                == len(members)
            }
            for draw in first.runs
        }
        made.limited = {draw: limit for each in members for draw, limit in each.limited.items()}
        for name in NAMES:
            values = [v for draw in made.runs if (v := made.value(draw, name)) is not None]
            if (found := mean(values)) is not None:
                made.measures[name] = {"mean": found.mean, "half": found.half, "n": found.n}
                made.measures[name] |= {"without": 0, "why": "", "runs": found.n}
        result.append(made)
    return result


def ratios(scenario: str, results: Results) -> list[str]:
    """Return how much each class of traffic gets in a mix, divided by what it gets alone (Hetero's
    fig. 2 to 4), as diagrams: coming in and going out, one for each class."""
    figure: Row = next(
        (about["figure"] for about in results.of(scenario) if about.get("figure")), {}
    )
    factor, x = str(figure.get("ratio") or ""), str(figure.get("x"))
    cases = [case for case in results.cases if case.scenario == scenario and factor in case.cell]
    flows = list(dict.fromkeys(case.flow for case in cases if case.flow))
    if not factor or not flows:
        return []
    places = order([case.cell.get(x) for case in cases])
    found: list[str] = []
    legends: dict[str, int] = {}
    for flow in flows:
        series: dict[str, Series] = {}
        for case in cases:
            if case.flow != flow:
                continue
            alone = [
                each
                for each in cases
                if each.variant == case.variant
                and not each.flow
                and fits(each.cell, {**case.cell, factor: flow})
            ]
            for measure, way in (
                ("published_per_s", "coming in"),
                ("delivered_per_s", "going out"),
            ):
                values = [
                    above / below
                    for draw in case.runs
                    if alone
                    and (above := case.value(draw, measure)) is not None
                    and (below := alone[0].value(draw, measure))
                ]
                if (middle := mean(values)) is None:
                    continue
                name = f"{case.broker}, {way}"
                number = legends.setdefault(name, len(legends))
                hollow = bool(case.limit(measure) or alone[0].limit(measure))
                point = Point(
                    places.index(case.cell.get(x)), middle.mean, middle.half, hollow=hollow
                )
                series.setdefault(name, Series(name, number)).points.append(point)
        plot = Plot(
            f"{flow} messages in the mix / alone",
            X_NAMES.get(x, x),
            "ratio",
            [str(place) for place in places],
            list(series.values()),
            [Reference(1.0, "as alone")],
        )
        found.append(plot.svg())
    return [f'<div class="plots">{"".join(found)}</div>', legend(list(legends.items()))]


def _has_flows(case: Case, cases: Sequence[Case]) -> bool:
    return any(
        other.flow and (other.name, other.variant) == (case.name, case.variant) for other in cases
    )


def series_name(case: Case, x: str, panel: str | None) -> str:
    """Return the name of the series that a `case` is in: by what it differs from others at its
    place of the axis of `x` and in its diagram (`panel`)."""
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
            if case.mean(measure) is None or series_name(case, x, panel) != name:
                continue
            points.append(_point(case, categories.index(case.cell.get(x)), measure))
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
        X_NAMES.get(x, x),
        NAMES[measure].rsplit(", ", 1)[-1],
        names_of_x,
        series,
        list(lines.values()),
        numeric,
    )


def _point(case: Case, place: int, measure: str, base: float = 0.0) -> Point:
    """Return a case's measure at a place of the x axis, on top of a `base`."""
    row = case.measures[measure]
    limit = case.limit(measure)
    text = (
        f" ({row['n']} runs"
        + (f", {row['without']} without: {row['why']}" if row["without"] else "")
        + (f"; {limit}" if limit else "")
        + ")"
    )
    return Point(place, row["mean"], row["half"], text, base, bool(limit))


def _stacked(
    title: str, x: str, cases: Sequence[Case], names: Sequence[str], panel: str | None
) -> Plot:
    """Return signalling with messages on top of it, as in fig. 7 of Overlays; the other arguments
    are those of `_plot`."""
    categories = order([case.cell.get(x) for case in cases])
    below, above = STACKED
    series = []
    for number, name in enumerate(names):
        own = [case for case in cases if series_name(case, x, panel) == name]
        lower, upper = Series(name, number, slot=number), Series(name, number, slot=number)
        upper.name, upper.light = f"{name}, messages", True
        for case in own:
            place, base = categories.index(case.cell.get(x)), case.mean(below)
            if base is not None and case.mean(above) is not None:
                lower.points.append(_point(case, place, below))
                upper.points.append(_point(case, place, above, base))
        series += [each for each in (upper, lower) if each.points]
    return Plot(
        title,
        X_NAMES.get(x, x),
        "bytes",
        [str(value) for value in categories],
        series,
        joined=False,
    )


def _over_time(
    scenario: str,
    results: Results,
    draw: Callable[[list[Row], Row, str], Plot | None],
    *what: str,
) -> list[str]:
    """Return what `draw` makes of the rows over time that begin with `what`, of the first complete
    run with phases of each kind of broker."""
    found: dict[str, str] = {}
    for run in results.runs:
        about = next((each for each in results.of(scenario) if each.get("run") == run["run"]), {})
        if run["scenario"] != scenario or run["flow"] or run["broker"] in found:
            continue
        if run["status"] != "complete" or not (about.get("parameters") or {}).get("phases"):
            continue
        rows = [
            row
            for row in results.timeline
            if (row["scenario"], row["run"]) == (scenario, run["run"])
            and row["what"].startswith(what)
        ]
        if plot := draw(rows, about, run["broker"]):
            found[run["broker"]] = plot.svg()
    return list(found.values())


def by_broker(scenario: str, results: Results) -> list[str]:
    """Return what each broker sent over time with what happened meanwhile, one diagram for the
    first complete run of each kind of broker (MQTT-ST's fig. 2); the root is red."""
    found = _over_time(scenario, results, _sent, "sent:", "load_begins")
    brokers = sorted(
        {str(row["what"]) for row in results.timeline if row["what"].startswith("sent:")}
    )
    names = [(name.removeprefix("sent:"), _colour(place)) for place, name in enumerate(brokers)]
    parts = [f'<div class="plots">{"".join(found)}</div>', legend([("the root", 1), *names])]
    return parts if found else []


def _colour(place: int) -> int:
    """Return the colour of a broker by its place in the order of names: not red, the root's."""
    return (0, 2, 3, 4, 5)[place % 5]


def _sent(rows: Sequence[Row], about: Row, kind: str) -> Plot | None:
    sent = [row for row in rows if row["what"].startswith("sent:")]
    begins = next((row["value"] for row in rows if row["what"] == "load_begins"), None)
    if not sent:
        return None
    first, last = min(row["second"] for row in sent), max(row["second"] for row in sent)
    root = (about.get("summary") or {}).get("root")
    series = []
    for number, broker in enumerate(sorted({row["what"] for row in sent})):
        name = broker.removeprefix("sent:")
        colour = 1 if name == root else _colour(number)
        points = [Point(r["second"] - first, r["value"]) for r in sent if r["what"] == broker]
        series.append(Series(name + (" (root)" if name == root else ""), colour, points))
    marks = [Mark(0, "start")]
    if begins is not None:
        phases = about["parameters"]["phases"]
        ends = {str(name): float(until) for until, name in phases}
        since = 0.0
        for name, until in sorted(ends.items(), key=lambda each: each[1]):
            marks.append(Mark(begins - first + since, name))
            since = until
    return Plot(
        f"sent by each broker - {kind}",
        "s since the start",
        "bytes in a second",
        _seconds(first, last),
        series,
        marks=marks,
    )


def traffic(scenario: str, results: Results) -> list[str]:
    """Return bytes on links over time, one diagram for the first complete run of each broker, of
    signalling and of messages."""
    found = _over_time(scenario, results, _carried, "control_bytes_link", "data_bytes_link")
    parts = [f'<div class="plots">{"".join(found)}</div>']
    parts.append(legend([("signalling", 0), ("messages", 1)]))
    return parts if found else []


def _carried(rows: Sequence[Row], _about: Row, kind: str) -> Plot | None:
    if not rows:
        return None
    first, last = min(row["second"] for row in rows), max(row["second"] for row in rows)
    series = []
    for number, name in enumerate(("signalling", "messages")):
        what = ("control_bytes_link", "data_bytes_link")[number]
        points = [Point(r["second"] - first, r["value"]) for r in rows if r["what"] == what]
        series.append(Series(name, number, points))
    return Plot(
        f"traffic between brokers - {kind}",
        "s since the start",
        "bytes in a second",
        _seconds(first, last),
        series,
    )


def _seconds(first: int, last: int) -> list[str]:
    """Return the names of the seconds on an axis, of which each eighth or so has one."""
    step = max((last - first + 1) // 8, 1)
    return [str(s) if not (s - first) % step else "" for s in range(first, last + 1)]
