"""The page with the paper's figures: what it says, what the model says, and what was simulated.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from mqttree.bench.placement.averages import Point
from mqttree.bench.placement.claims import CLAIMS
from mqttree.bench.placement.grid import Case, model
from mqttree.bench.tables.means import Mean

Means = Mapping[Point, Mapping[str, Mean]]


class Figure(NamedTuple):
    """One table of the page."""

    key: str
    title: str
    x: str
    measures: tuple[str, ...]
    remark: str = ""


FIGURES = (
    Figure(
        "7",
        "Figure 7: traffic between brokers, 1,000 topics, 1,000 subscribers with ten each",
        "brokers",
        ("internal",),
    ),
    Figure(
        "8",
        "Figure 8: the same for a topic tree of 1,000 leaves",
        "brokers",
        ("internal",),
        "A subscriber wants all below a node: level 2 with .03, 3 with .3, a leaf with .67.",
    ),
    Figure(
        "10",
        "Figure 10: one connection a client, one topic or 40",
        "brokers",
        ("internal",),
    ),
    Figure(
        "11",
        "Figure 11: in how many ways a client can be placed, eight brokers",
        "sessions",
        ("space",),
        "Model: equation 12. Simulated: with the brokers that are below their bound when a client "
        "comes.",
    ),
    Figure(
        "12",
        "Figure 12: greedy beside the best for each arrival, five topics, eight brokers",
        "sessions",
        ("internal",),
        "The paper's strategy and *optimum, first* take the first of brokers that cost the same. "
        "That makes more than the difference between greedy and the optimum. What is best for each "
        "client that comes need not be best for all of them.",
    ),
    Figure("12b", "Figure 12, by brokers: four sessions", "brokers", ("internal",)),
    Figure(
        "13",
        "Figure 13: overheads by brokers, 5,000 topics, 5,000 subscribers with ten each",
        "brokers",
        ("h_rt", "h_fw", "internal"),
    ),
    Figure("14", "Figure 14: by subscribers, eight brokers", "subscribers", ("h_rt", "h_fw")),
    Figure("15", "Figure 15: by topics of a subscriber", "topics each", ("h_rt", "h_fw")),
    Figure("16", "Figure 16: by sessions", "sessions", ("h_rt", "h_fw", "sessions_each")),
    Figure("17", "Figure 17: by the shape of popularity", "alpha", ("h_rt", "h_fw")),
    Figure("18", "Figure 18: fairness, the workload of figure 13", "brokers", ("jain", "peak")),
    Figure(
        "19",
        "Figure 19: a topic tree, by brokers",
        "brokers",
        ("h_rt", "h_fw"),
        "Levels of 1, 30, 900 and 5,000 nodes: the paper's fan-out of 30 would have 27,000 leaves.",
    ),
    Figure("20", "Figure 20: the topic tree, by sessions", "sessions", ("h_rt", "h_fw")),
    Figure("21", "Figure 21: the topic tree, by its shape", "alpha", ("h_rt", "h_fw")),
    Figure(
        "22",
        "Figures 22 and 23: ratio to linear scaling, 1,000 topics, 100 subscribers with ten each",
        "brokers",
        ("mean_scaling", "bottleneck_scaling", "internal"),
        "Computed from traffic, with a message in that costs three times one out. The paper "
        "measured .67 (random) and .95 (its greedy) with four brokers, and says alpha 1.13. The "
        "data that its authors published have .68.",
    ),
    Figure(
        "first",
        "Beyond the paper: subscribers before publishers, the workload of figure 13",
        "brokers",
        ("internal", "h_rt", "jain"),
        "Subscribers join others that want the same. A publisher then goes to the least loaded "
        "broker that has a subscriber of its topic.",
    ),
    Figure(
        "churn",
        "Beyond the paper: clients that go, and others that come",
        "times replaced",
        ("internal", "peak"),
        "1,000 topics, 1,000 subscribers with ten each, eight brokers. Clients go at random, and "
        "each is followed by another one with other topics. All others stay where they are.",
    ),
    Figure(
        "moves",
        "Beyond the paper: moves of single subscriptions, the same workload",
        "moves at most",
        ("internal", "peak"),
        "The moves that `bench/placement/rebalancing.py` finds when all clients are there. Clients "
        "may have four sessions.",
    ),
    Figure(
        "failure",
        "Beyond the paper: one of eight brokers fails, the same workload",
        "brokers at first",
        ("internal", "jain"),
        "Its publishers and clients go elsewhere, and all others stay where they are.",
    ),
    *(
        Figure(
            f"tree-{shape}",
            f"Beyond the paper: brokers that are linked as a {title}, the same workload",
            "brokers",
            ("internal", "bottleneck_scaling"),
            "Messages follow the links, as with `--routing interest`, and what passes through a "
            "broker counts. *hops* knows the links: it places a client where the hops to what its "
            "topics reach already are fewest. All others take the brokers for a full mesh.",
        )
        for shape, title in (("star", "star"), ("line", "line"), ("binary", "binary tree"))
    ),
)

NAMES = {
    "internal": "Messages/s between brokers",
    "h_rt": "Routing overhead",
    "h_fw": "Forwarding overhead",
    "jain": "Jain's index",
    "peak": "Largest load as a multiple of the mean",
    "sessions_each": "Sessions of a client",
    "mean_scaling": "Ratio to linear scaling, by the mean load",
    "bottleneck_scaling": "Ratio to linear scaling, by the busiest broker",
    "space": "Ways to place a client",
}

SAME = {"18": "13"}
"""Figures that show other measures of another one's runs."""


ONE = "not decided: one run"
"""What is said of a statement that would be judged by one run."""


def page(cases: Sequence[Case], found: Means, seeds: int, quick: bool) -> Iterator[str]:
    """Return the lines of the page.

    `cases`: what was simulated; `found`: the means of each point; `seeds`: how many draws of each;
    `quick`: whether the workloads were smaller than those of the paper.
    """
    yield "# Where clients connect: the paper's figures, computed"
    yield ""
    yield "    mqttree bench placement figures" + (" --quick" if quick else "")
    yield ""
    yield from _about(seeds, quick)
    yield "## What the paper says, and what was found"
    yield ""
    yield "| figure | statement | paper | found | met |"
    yield "|---|---|---|---|---|"
    met = 0
    for claim in CLAIMS:
        value, holds = claim.judge(found)
        met += holds is True and seeds > 1
        word = "-" if holds is None else ONE if seeds == 1 else "yes" if holds else "no"
        yield f"| {claim.figure} | {claim.statement} | {claim.paper} | {value} | {word} |"
    yield ""
    yield f"{met} of {len(CLAIMS)} statements are met."
    for figure in FIGURES:
        yield ""
        yield from _table(figure, cases, found)


def _about(seeds: int, quick: bool) -> Iterator[str]:
    if quick:
        yield "**Quick form**: workloads are a tenth of the paper's, so its numbers are not met."
        yield ""
    yield from wrapped(
        "Detti et al., *Sub-linear Scalability of MQTT Clusters in Topic-based Publish-subscribe "
        f"Applications*. All is computed, no broker runs. Means of {seeds} draws, ± half of the "
        "95 % interval. Each topic has one message a second, and gamma is 1.1. Strategies:"
    )
    yield ""
    yield "* *random*: each client connects to a random broker;"
    yield "* *best*: one connection, to the broker where it costs least;"
    yield "* *paper*: the authors' greedy strategy, four connections if nothing else is said;"
    yield "* *load*: the same, and of brokers that cost the same, the one with the least load;"
    yield "* *optimum*: the least traffic for each client that comes."
    yield ""
    yield "[The guide to placement](../guides/placement.md) says what the words mean."
    yield ""


def _table(figure: Figure, cases: Iterable[Case], found: Means) -> Iterator[str]:
    """One figure: a table for each measure, a line for each x, a column for each curve."""
    key = SAME.get(figure.key, figure.key)
    mine = [case for case in cases if case.figure == key]
    curves = list(dict.fromkeys(case.curve for case in mine))
    yield f"## {figure.title}"
    yield ""
    if figure.remark:
        yield from wrapped(figure.remark)
        yield ""
    for number, measure in enumerate(figure.measures):
        if number:
            yield ""
        columns: list[tuple[str, bool]] = []
        for curve in curves:
            if any(measure in model(case) for case in mine if case.curve == curve):
                columns.append((curve, True))
            columns.append((curve, False))
        heads = [f"{curve}{', model' if by_model else ''}" for curve, by_model in columns]
        yield f"{NAMES[measure]}:"
        yield ""
        yield f"| {figure.x} | {' | '.join(heads)} |"
        yield "|---" * (len(columns) + 1) + "|"
        for x in sorted({case.x for case in mine}):
            cells = []
            for curve, by_model in columns:
                case = next((c for c in mine if c.curve == curve and c.x == x), None)
                cells.append("-" if case is None else _cell(case, measure, by_model, found))
            yield f"| {x:g} | {' | '.join(cells)} |"


def _cell(case: Case, measure: str, by_model: bool, found: Means) -> str:
    if by_model:
        value = model(case).get(measure)
        return "-" if value is None else figure_text(value, value, measure)
    each = found.get((case.figure, case.curve, float(case.x)), {}).get(measure)
    if each is None:
        return "-"
    half = "" if each.half is None else f" ± {figure_text(each.half, each.mean, measure)}"
    return figure_text(each.mean, each.mean, measure) + half


def figure_text(value: float, of: float, measure: str) -> str:
    """Return a number with as many places as are of use.

    `value`: the number; `of`: the number whose places it gets; `measure`: what it is.
    """
    size = abs(of)
    if size >= 1e6:
        return f"{value:.2e}"
    if measure in ("internal", "space"):
        return f"{value:,.0f}" if size >= 100 or not size else f"{value:.1f}"
    return f"{value:.3f}"


WIDTH = 100
"""characters of a line at most."""


def wrapped(text: str) -> Iterator[str]:
    """Return lines of a text that are no longer than `WIDTH`."""
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > WIDTH:
            yield line
            line = word
        else:
            line = f"{line} {word}".strip()
    yield line
