"""How delays are distributed: the share of deliveries that took so long at most (CDF), over all
runs of a cell. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from mqttree.bench.report.data import Case, Results
from mqttree.bench.report.figures import X_NAMES, Layout, layout, series_name
from mqttree.bench.report.plot import Plot, Point, Series, legend

SHARES = (*(number / 50 for number in range(1, 50)), 0.99, 0.995, 0.999, 1.0)
"""Of the deliveries, at which a curve has its points."""
MIN_MS = 1e-3
"""The least delay on an axis: it is logarithmic."""


def pooled(case: Case, results: Results) -> Counter[float]:
    """Return the delays (upper edges of buckets, ms) of a case's runs with how many deliveries each
    has; of `results`. Runs whose delays do not count are left out."""
    found: Counter[float] = Counter()
    for run in case.runs.values():
        if run.get("delay_mean_ms") is None:
            continue
        for n, ms in results.delays.get((case.scenario, run.get("run", ""), case.flow), ()):
            found[ms] += n
    return found


def curve(counts: Mapping[float, int]) -> list[tuple[float, float]]:
    """Return (ms, share) for SHARES: so long at most that share of the deliveries took. `counts`
    are deliveries by their delay (ms)."""
    whole, below = sum(counts.values()), 0
    wanted = list(SHARES)
    found: list[tuple[float, float]] = []
    for ms in sorted(counts):
        below += counts[ms]
        while wanted and below >= max(math.ceil(whole * wanted[0]), 1):
            found.append((max(ms, MIN_MS), wanted.pop(0)))
    return found


def plots(scenario: str, results: Results) -> list[str]:
    """Return the distributions of a scenario whose figure is about delays as HTML, one diagram for
    each place of the figure's x axis, folded; nothing where no run's delays are known."""
    shape = layout(scenario, results)
    if not any(name.startswith("delay") for name in shape.measures):
        return []
    groups: dict[str, list[tuple[Case, list[tuple[float, float]]]]] = {}
    for case in shape.cases:
        if points := curve(pooled(case, results)):
            groups.setdefault(_place(case, shape), []).append((case, points))
    if not groups:
        return []
    edges = [ms for members in groups.values() for _, points in members for ms, _ in points]
    low, high = math.floor(math.log10(min(edges))), math.ceil(math.log10(max(edges)))
    decades = [f"{10.0**power:g}" for power in range(low, max(high, low + 1) + 1)]
    found, used = [], set()
    for title, members in groups.items():
        series = []
        for case, points in members:
            name = series_name(case, shape.x, shape.panel)
            hollow = bool(case.limit("delay_mean_ms"))
            places = [Point(math.log10(ms) - low, share, hollow=hollow) for ms, share in points]
            series.append(Series(name, shape.names.index(name), places))
            used.add(name)
        plot = Plot(title, "delay at most, ms", "share of deliveries", decades, series, dots=False)
        found.append(plot.svg())
    return [
        "<details><summary>how delays are distributed (CDF)</summary>",
        f'<div class="plots">{"".join(found)}</div>',
        legend([(name, place) for place, name in enumerate(shape.names) if name in used]),
        '<p class="why">All runs of a cell together. Dashed: limited by the generator.</p>',
        "</details>",
    ]


def _place(case: Case, shape: Layout) -> str:
    """Return which diagram a case is in, as its title."""
    words = [
        f"{X_NAMES.get(key, key)} {case.cell[key]}"
        for key in (shape.panel, shape.x)
        if key is not None and key != "broker" and case.cell.get(key, "") != ""
    ]
    return "; ".join(words) or "all cells"
