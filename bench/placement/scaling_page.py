"""The page of measured scaling: figures 2 to 4, 22 and 23 beside the paper's. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mqttree.bench.placement import scaling
from mqttree.bench.placement.averages import Point
from mqttree.bench.placement.least_squares import Fit
from mqttree.bench.placement.page import ONE, wrapped
from mqttree.bench.placement.scaling import MAX_ERROR, OF, YARDSTICK, Run
from mqttree.bench.tables.means import Mean

Means = Mapping[Point, Mapping[str, Mean]]

OTHER_RATE = 2000.0
"""messages/s of the other kind in figures 3 and 4."""


class Claim(NamedTuple):
    """A statement, the paper's or a target of ours, on a ratio to linear scaling."""

    statement: str
    wanted: str
    figure: str
    strategy: str
    brokers: int
    least: float
    most: float


CLAIMS = (
    Claim("Figure 22, four random brokers", ".67", "22", "random", 4, 0.62, 0.72),
    Claim("Figure 22, four brokers, greedy", ".95", "22", "paper", 4, 0.90, 9),
    Claim("Four brokers, load", "≥ .95", "22", "load", 4, 0.95, 9),
    Claim("Eight brokers, load", "≥ .85", "22", "load", 8, 0.85, 9),
    Claim("Figure 2, four random brokers", "about half", "2", "random", 4, 0.4, 0.65),
)
"""What can be judged by one number."""

WAYS = {
    "ratio_mean": "S/M",
    "core_mean": "at a whole core",
    "beside_mean": "beside islands",
}
"""By what a statement is judged, always by the mean broker;"""

FITS = {
    "ratio_mean": "fitted_ratio_mean",
    "core_mean": "fitted_core_mean",
    "beside_mean": "fitted_mean",
}
"""and what the fitted costs say of each. Beside islands both have the costs of as many brokers;
beside a lone broker it has its own."""

NEAR = 0.08
"""How far a measured ratio at random brokers may be from the fitted one."""


def page(
    found: Means, fits: Mapping[int, Fit], runs: Sequence[Run], share: float, command: str
) -> Iterator[str]:
    """Return the lines of the page.

    `found`: the means of `scaling.rows`; `fits`: the costs; `runs`: all of them; `share`: of a
    core, at which capacities were compared; `command`: what made the runs.
    """
    yield "# What several brokers do beside one, measured"
    yield ""
    yield f"    {command}"
    yield ""
    yield from _about(runs, share)
    yield "## What the paper says, what was wanted, and what was found"
    yield ""
    yield f"| statement | wanted | {' | '.join(f'{way} | met' for way in WAYS.values())} |"
    yield "|---" * (2 + 2 * len(WAYS)) + "|"
    yield from _claims(found, runs)
    for figure, title in (
        ("22", "Figure 22: 1,000 topics, 100 clients with ten each"),
        ("2", "Figure 2: 1,000 topics with a publisher and a client each"),
    ):
        yield ""
        yield f"## {title}"
        yield ""
        yield from _scaling_table(found, figure)
    yield ""
    yield from _costs(fits, runs)
    yield ""
    yield from _resources(found)
    yield ""
    yield from _traffic(runs)
    yield ""
    yield from _yardstick(runs)


def _about(runs: Sequence[Run], share: float) -> Iterator[str]:
    rounds = len({run.repetition for run in runs})
    yield from wrapped(
        "Detti et al., *Sub-linear Scalability of MQTT Clusters in Topic-based Publish-subscribe "
        f"Applications*, with brokers of mqttree on one machine: {len(runs)} runs in {rounds} "
        "rounds. ± is half of the 95 % interval over rounds."
    )
    yield ""
    yield from wrapped(
        "The paper raises the rate until the mean delay is 2 ms (figure 2) or 10 ms (figure 22). "
        "Several brokers on two cores have no such limit of their own. Here it is CPU time: R(M) "
        f"is the rate at which brokers use {share:g} of a core each, the mean broker or the "
        "busiest one, on a line through the loads without publications and at two rates; the "
        f"highest load of a broker in these runs is {max(max(run.loads) for run in runs):.3f}. "
        "S(M) = R(M) / R(1), and the ratio to linear scaling is S(M) / M."
    )
    yield ""
    yield "* *measured*: by the CPU clocks of the brokers;"
    yield "* *at a whole core*: on the same lines, extrapolated to where brokers are saturated;"
    yield "* *beside islands*: R(M) / R of M brokers on this machine that have nothing in common;"
    yield "* *fitted S/M*: by the model's traffic and the costs below, each R by those of its M;"
    yield "* *fitted beside islands*: by these, beside the same without links, idle brokers aside;"
    yield "* *counted*: by that traffic, if all messages cost the same."
    yield ""
    yield from wrapped(
        "On one machine a broker that sends to another one pays for what TCP does at the receiver, "
        "too; brokers share caches, and wait for each other, so that several messages are there "
        "when a broker's turn comes. *Islands* show what that does: 2, 4 or 8 brokers, each with "
        "its own part of topics and clients, so that no message crosses a link. Publishers send at "
        "even intervals, each from a moment of its own, where the paper's send by a Poisson "
        "process. Routing is by topic, in a full mesh, so that a message crosses one link to each "
        "broker that wants it, as the model says. With `--routing interest` messages follow the "
        "tree, and brokers also carry what passes through."
    )
    yield ""
    yield from _normalized(runs)


def _normalized(runs: Sequence[Run]) -> Iterator[str]:
    seen = [run.figures[YARDSTICK] for run in runs if YARDSTICK in run.figures]
    if not seen:
        return
    yield from wrapped(
        "A virtual machine is not always as fast. In each run a yardstick does the same small work "
        "200 times a second on the brokers' core, a message through a connection and a look at "
        f"some objects: that took {min(seen):.0f} to {max(seen):.0f} us of CPU time. Loads are "
        "divided by it, relative to its mean in all runs of as many brokers at the same rate, so "
        "they say nothing of how fast the machine was at the time, and all of what more brokers do "
        "to its caches. The means by strategy are at the end."
    )
    yield ""


def _met(found: Mean | None, met: bool) -> str:
    """Return whether a mean is what was wanted; one run decides nothing."""
    if found is None:
        return "-"
    return ONE if found.half is None else "yes" if met else "no"


def _claims(found: Means, runs: Sequence[Run]) -> Iterator[str]:
    for claim in CLAIMS:
        cells = []
        for measure in WAYS:
            each = _mean(found, claim.figure, claim.strategy, claim.brokers, measure)
            met = each is not None and claim.least <= each.mean <= claim.most
            cells += [_text(each, ".3f"), _met(each, met)]
        yield f"| {claim.statement} | {claim.wanted} | {' | '.join(cells)} |"
    for brokers in sorted({run.brokers for run in runs if run.brokers > 1}):
        cells = []
        for measure in WAYS:
            fitted = _mean(found, "22", "random", brokers, FITS[measure])
            each = _mean(found, "22", "random", brokers, measure)
            if each is None or fitted is None:
                cells += ["-", "-"]
                continue
            apart = abs(each.mean - fitted.mean)
            cells += [f"{apart:.3f} apart", _met(each, apart <= NEAR)]
        yield f"| {brokers} random brokers: near the fit | within {NEAR} | {' | '.join(cells)} |"
    errors = [abs(run.internal_error) for run in runs if run.internal_error is not None]
    yield ""
    if errors:
        exact = sum(error <= MAX_ERROR for error in errors)
        yield from wrapped(
            f"In {exact} of {len(errors)} runs the traffic that brokers counted between each other "
            f"is the model's within {MAX_ERROR:.1%}; at most it is {max(errors):.3%} apart."
        )


_NAMES = {"mean": "by the mean broker", "busiest": "by the busiest broker"}


def _scaling_table(found: Means, figure: str) -> Iterator[str]:
    points = [(curve, x) for key, curve, x in found if key == figure]
    if not points:
        yield "There are no runs of it."
        return
    strategies = [
        each
        for each in ("random", "paper", "load", scaling.ISLANDS)
        if any(each == curve for curve, _ in points)
    ]
    for number, of in enumerate(OF):
        if number:
            yield ""
        yield f"{_NAMES[of].capitalize()}:"
        yield ""
        heads = ("R, publications/s", "S", *_COLUMNS.values())
        yield f"| brokers | strategy | {' | '.join(heads)} |"
        yield "|---" * (len(heads) + 2) + "|"
        for x in sorted({x for _, x in points}):
            for strategy in strategies:
                if x == 1 and strategy != strategies[0]:
                    continue
                values = found.get((figure, strategy, x), {})
                rate, ratio = values.get(f"rate_{of}"), values.get(f"ratio_{of}")
                cells = [_text(rate, ",.0f"), _text(ratio, ".2f", x)]
                cells += [_text(values.get(f"{kind}_{of}"), ".3f") for kind in _COLUMNS]
                name = strategy if x > 1 else "any"
                yield f"| {x:g} | {name} | {' | '.join(cells)} |"


_COLUMNS = {
    "ratio": "S/M measured",
    "core": "at a whole core",
    "beside": "beside islands",
    "fitted_ratio": "fitted S/M",
    "fitted": "fitted beside islands",
    "counted": "counted",
}


def _costs(fits: Mapping[int, Fit], runs: Sequence[Run]) -> Iterator[str]:
    yield "## Figures 3 and 4: what messages cost"
    yield ""
    yield from wrapped(
        f"Least squares over {fits[0].n} loads of brokers: load = idle + a link x links + in x Aei "
        "+ out x Aeo + link in x Aii + link out x Aio. Of runs with the same number of brokers "
        "*idle* has the links, too. With more brokers on a core, each finds its caches warm, so "
        "costs are fitted by their number."
    )
    yield ""
    heads = ["all runs" if not brokers else f"{brokers} brokers" for brokers in fits]
    yield f"| cost | {' | '.join(heads)} |".replace("| 1 brokers |", "| one broker |")
    yield "|---" * (1 + len(heads)) + "|"
    for number, name in enumerate(scaling.COSTS):
        by, unit, form = (1e3, "ms/s", ".2f") if number < scaling.IN else (1e6, "us", ".1f")
        cells = []
        for fit in fits.values():
            value, half = fit.coefficients[number] * by, fit.halves[number] * by
            cells.append(f"{value:{form}} ± {half:{form}}" if half else "-")
        yield f"| {name}, {unit} | {' | '.join(cells)} |"
    yield f"| R² | {' | '.join(f'{fit.r2:.4f}' for fit in fits.values())} |"
    yield ""
    yield from _saturation(fits.get(1, fits[0]))
    yield ""
    yield "| workload | messages/s in | messages/s out | load | fitted |"
    yield "|---|---|---|---|---|"
    alone = [run for run in runs if run.brokers == 1]
    for run in sorted(alone, key=lambda each: (each.workload, each.rate, each.repetition)):
        fit = fits.get(1, fits[0])
        (traffic,), (load,) = run.traffic, run.loads
        value = fit.value(scaling.known(traffic, 1))
        yield (
            f"| {run.workload} | {traffic[0]:,.0f} | {traffic[1]:,.0f} | {load:.4f} | {value:.4f} |"
        )


def _saturation(fit: Fit) -> Iterator[str]:
    """What figures 3 and 4 say, and what the costs of a lone broker do."""
    into, out = fit.coefficients[2], fit.coefficients[3]
    if out > 0:
        yield from wrapped(
            f"A message in costs {into / out:.2f} times one out; VerneMQ's figures 3 and 4 say 3 "
            "by their captions, 1.5 by their footnotes."
        )
    if min(into, out) <= 0:
        return
    yield ""
    yield from wrapped(
        "Figure 3: VerneMQ's delay rises steeply from 6,000 messages/s in, with 2,000/s out. By "
        "these costs one of our brokers has a whole core to do with "
        f"{scaling.saturation(fit, 'aei', OTHER_RATE):,.0f}/s in. Figure 4: VerneMQ's delay rises "
        "from 14,000/s out, with 2,000/s in; ours has a core to do with "
        f"{scaling.saturation(fit, 'aeo', OTHER_RATE):,.0f}/s out. Both are extrapolated from the "
        "loads of these runs; with more to do, a broker takes several messages at a time, and "
        "each costs less."
    )


def _resources(found: Means) -> Iterator[str]:
    yield "## Figure 23: what brokers use at the same rate"
    yield ""
    points = sorted((x, curve) for key, curve, x in found if key == scaling.RESOURCES_FIGURE)
    if not points:
        yield "There are no runs of it."
        return
    yield from wrapped(
        "At the higher one of the two rates. The paper has four brokers, 35 messages/s of each of "
        "1,000 publishers: greedy has less CPU load and traffic than random, 20 MB more memory on "
        "500, and takes 3.5 ms to connect a session."
    )
    yield ""
    yield (
        "| brokers | strategy | load of a broker | messages/s between brokers | RSS MB a broker | "
        "mean delay ms | subscribers' sessions | ms to connect a client |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    forms = (".4f", ",.0f", ",.1f", ".2f", ",.0f", ".2f")
    for x, curve in points:
        if x == 1 and curve != "random":
            continue
        cells = [
            _text(_mean(found, scaling.RESOURCES_FIGURE, curve, x, name), form)
            for name, form in zip(scaling.RESOURCES, forms, strict=True)
        ]
        yield f"| {x:g} | {curve if x > 1 else 'any'} | {' | '.join(cells)} |"


def _traffic(runs: Sequence[Run]) -> Iterator[str]:
    yield "## Traffic between brokers, counted and by the model"
    yield ""
    yield from wrapped(
        "With routing by interest the model is that of the spanning tree which the brokers had; if "
        "it changed in a run, no difference is told of that."
    )
    yield ""
    yield (
        "| workload | brokers | strategy | routing | runs | messages between brokers for one of "
        "each topic | largest difference | generator's CPU at most |"
    )
    yield "|---" * 8 + "|"
    for cell in dict.fromkeys(run.cell for run in runs if run.brokers > 1):
        mine = [run for run in runs if run.cell == cell]
        errors = [run.internal_error for run in mine if run.internal_error is not None]
        worst = f"{max(errors, key=abs):+.3%}" if errors else "-"
        generator = max(run.figures.get("generator_cpu", 0.0) for run in mine)
        workload, strategy, brokers, routing = cell
        yield (
            f"| {workload} | {brokers} | {strategy} | {routing} | {len(mine)} | "
            f"{sum(each[2] for each in mine[0].model):,.0f} | {worst} | "
            f"{generator:.2f} |"
        )


def _yardstick(runs: Sequence[Run]) -> Iterator[str]:
    yield "## What the yardstick took"
    yield ""
    cells: dict[tuple[int, str], list[float]] = {}
    for run in runs:
        if YARDSTICK in run.figures:
            strategy = run.workload if run.workload == scaling.ISLANDS else run.strategy
            key = run.brokers, strategy if run.brokers > 1 else "any"
            cells.setdefault(key, []).append(run.figures[YARDSTICK])
    if not cells:
        yield "These runs had none, so their loads are as measured."
        return
    yield "| brokers | strategy | runs | mean us | least | most |"
    yield "|---|---|---|---|---|---|"
    for (brokers, strategy), seen in sorted(cells.items()):
        mean = sum(seen) / len(seen)
        yield (
            f"| {brokers} | {strategy} | {len(seen)} | {mean:.1f} | {min(seen):.1f} | "
            f"{max(seen):.1f} |"
        )


def _mean(found: Means, figure: str, strategy: str, x: float, measure: str) -> Mean | None:
    return found.get((figure, strategy, float(x)), {}).get(measure)


def _text(each: Mean | None, form: str, by: float = 1) -> str:
    """A mean, and half of its interval if there is one; both times `by`."""
    if each is None:
        return "-"
    if not each.half:
        return format(each.mean * by, form)
    return f"{format(each.mean * by, form)} ± {format(each.half * by, form)}"
