"""What M brokers can do beside one, by the CPU time that runs of placed workloads took. Pure.

A broker's **load** is its CPU time in s a second. The **capacity** R of M brokers is the rate of
publications at which their load is a given share of a core: that of the busiest one, or the mean.
It is read from a line through the loads of runs, at several rates and before anybody publishes.
S = R(M) / R(1), and S / M is the ratio to linear scaling. Loads are compared at the same share, as
a message costs less when others come with it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from mqttree.bench.placement.least_squares import Fit, dot, least_squares, line

KINDS = ("aei", "aeo", "aii", "aio")
COSTS = ("idle", "a link", "in", "out", "link in", "link out")
"""What is fitted: the load of an idle broker, of each of its links, and s for a message of each
kind."""

FULL_MESH = "topic"
"""The routing mode whose messages cross one link each; others are beside it."""

LINK, IN = 1, 2
"""Places in `COSTS`: of a link, and of the first kind of message."""

OF: dict[str, Callable[[Iterable[float]], float]] = {"mean": statistics.fmean, "busiest": max}
"""Which load counts."""

SHARE = 0.1
"""The share of a core at which loads are compared, as eight brokers and what feeds them have two
cores."""

CORE = 1.0
"""The share at which a broker, which has one thread, is saturated; far beyond the runs."""

YARDSTICK = "yardstick_us"
"""The figure that says how fast the machine was (`mqttree.bench.lab.yardstick`)."""

MAX_ERROR = 0.005
"""Part by which counted traffic between brokers may differ from the model's."""

Traffic = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a placed workload."""

    scenario: str
    workload: str
    strategy: str
    brokers: int
    repetition: int
    rate: float
    """publications a second of all publishers, as counted,"""
    asked: float
    """and as asked for."""
    routing: str
    traffic: tuple[Traffic, ...]
    """of each broker, messages/s by `KINDS`, as it has counted them,"""
    model: tuple[Traffic, ...]
    """and as the model says, for one message of each topic."""
    loads: tuple[float, ...]
    idle: tuple[float, ...]
    """their loads just before, without publishers."""
    internal_error: float | None
    """(counted - model) / model of the traffic between brokers; None if there is none."""
    figures: Mapping[str, float]
    """delay_ms, rss_mb (the mean broker's), generator_cpu, lost, sessions, connect_ms (for each
    client), yardstick_us."""

    @property
    def cell(self) -> tuple[str, str, int, str]:
        """What it is a repetition of, at any rate."""
        return self.workload, self.strategy, self.brokers, self.routing

    def load(self, of: str) -> float:
        """The load that counts (`OF`)."""
        return OF[of](self.loads)


def runs(records: Iterable[Mapping[str, Any]]) -> list[Run]:
    """Return the complete runs of placed workloads among records (run.json)."""
    return [_run(each) for each in records if each.get("status") == "complete" and _has(each)]


def _has(record: Mapping[str, Any]) -> bool:
    return bool(record["summary"].get("traffic"))


def _run(record: Mapping[str, Any]) -> Run:
    summary = record["summary"]
    traffic = summary["traffic"]
    (flow,) = record["parameters"]["flows"].values()
    (delivered,) = summary["flows"].values()
    seconds = traffic["seconds"]
    names = sorted(traffic["brokers"])

    def four(each: Mapping[str, float], by: float) -> Traffic:
        return each["aei"] / by, each["aeo"] / by, each["aii"] / by, each["aio"] / by

    figures = {
        "delay_ms": delivered.get("delay_mean_ms"),
        "lost": delivered.get("lost"),
        "rss_mb": (summary.get("broker_rss") or 0) / 1e6 or None,
        "generator_cpu": summary.get("generator_cpu"),
        "sessions": summary.get("sessions"),
        "connect_ms": summary.get("connect_ms"),
        YARDSTICK: traffic.get(YARDSTICK),
    }
    return Run(
        record["scenario"],
        flow["workload"],
        flow["strategy"],
        len(names),
        record["repetition"],
        sum(each["aei"] for each in traffic["brokers"].values()) / seconds,
        flow["rate"] * sum(each["aei"] for each in traffic["model"].values()),
        record["routing"],
        tuple(four(traffic["brokers"][name], seconds) for name in names),
        tuple(four(traffic["model"][name], 1) for name in names),
        tuple(traffic["brokers"][name]["cpu"] for name in names),
        tuple(traffic["brokers"][name]["idle"] for name in names),
        traffic["internal_error"],
        {name: float(value) for name, value in figures.items() if value is not None},
    )


def normalized(found: Sequence[Run]) -> list[Run]:
    """Return the runs with the loads that there had been if the machine had always been as fast.

    A machine that others share is slower at one time than at another; loads and the yardstick that
    was read with them show it alike. So loads are divided by the yardstick, relative to its mean in
    all runs of as many brokers at the same rate: whatever their strategy and workload, but not of
    fewer or more, as it shows what brokers do to the caches of a core, too. Runs without a
    yardstick are left as they are.
    """
    groups: dict[tuple[int, float], list[float]] = {}
    for run in found:
        if YARDSTICK in run.figures:
            groups.setdefault((run.brokers, run.asked), []).append(run.figures[YARDSTICK])

    def one(run: Run) -> Run:
        if YARDSTICK not in run.figures:
            return run
        by = statistics.fmean(groups[run.brokers, run.asked]) / run.figures[YARDSTICK]
        loads, idle = (tuple(load * by for load in each) for each in (run.loads, run.idle))
        return replace(run, loads=loads, idle=idle)

    return [one(run) for run in found]


def known(traffic: Traffic, brokers: int) -> tuple[float, ...]:
    """Return what a broker's load is fitted by, in the order of `COSTS`.

    `traffic`: of the broker; `brokers`: how many there are, all linked to each other.
    """
    return 1.0, float(brokers - 1), *traffic


def costs(found: Sequence[Run]) -> Fit:
    """Return the costs (`COSTS`) that explain the loads of all brokers of all runs best; 0 where
    these runs have nothing of it, and for links where all brokers have as many. Raises ValueError
    if they cannot tell costs apart."""
    rows = [known(traffic, run.brokers) for run in found for traffic in run.traffic]
    loads = [load for run in found for load in run.loads]
    rows += [known((0, 0, 0, 0), run.brokers) for run in found for _ in run.idle]
    loads += [load for run in found for load in run.idle]
    columns = [
        column
        for column in range(len(COSTS))
        if any(row[column] for row in rows)
        and not (column == LINK and len({row[column] for row in rows}) == 1)
    ]
    fit = least_squares([[row[column] for column in columns] for row in rows], loads)
    coefficients, halves = [0.0] * len(COSTS), [0.0] * len(COSTS)
    for place, column in enumerate(columns):
        coefficients[column], halves[column] = fit.coefficients[place], fit.halves[place]
    return replace(fit, coefficients=tuple(coefficients), halves=tuple(halves))


def all_costs(found: Sequence[Run]) -> dict[int, Fit]:
    """Return the costs by the number of brokers, of those with which they can be told apart; 0: of
    all runs together. Raises ValueError if not even these can tell them apart.

    What a message costs depends on how warm the caches are, so on what else runs on the core.
    """
    fits = {0: costs(found)}
    for brokers in sorted({run.brokers for run in found}):
        with suppress(ValueError):
            fits[brokers] = costs([run for run in found if run.brokers == brokers])
    return fits


def capacity(found: Sequence[Run], share: float, of: str) -> float | None:
    """Return the publications a second at which the load is `share`; None if the runs, all of one
    cell, cost nothing.

    `found`: the runs; `share`: of a core; `of`: which load counts (`OF`).
    """
    points = [(run.rate, run.load(of)) for run in found]
    through = line(points + [(0.0, OF[of](run.idle)) for run in found])
    if through is None or through[1] <= 0:
        return None
    return (share - through[0]) / through[1]


def fitted_ratio(run: Run, fit: Fit, of: str) -> float | None:
    """Return the ratio to linear scaling by fitted costs and the model's traffic, all but what an
    idle broker needs; None if they say nothing.

    `run`: any of the cell; `fit`: what `costs` returned; `of`: which load counts (`OF`).
    """
    own = statistics.fmean(
        dot(fit.coefficients[IN:], (aei, aeo, 0, 0)) for aei, aeo, _, _ in run.model
    )
    all_of_it = OF[of](dot(fit.coefficients[IN:], traffic) for traffic in run.model)
    return own / all_of_it if all_of_it > 0 else None


def fitted_capacity(
    found: Sequence[Run], fits: Mapping[int, Fit], share: float, of: str
) -> float | None:
    """Return the publications a second at which the load is `share` by fitted costs, those of an
    idle broker too, and the model's traffic; None without runs, or if the costs say nothing.

    `found`, `share`, `of`: as of `capacity`; `fits`: what `all_costs` returned.
    """
    if not found:
        return None
    run = found[0]
    fit = _fit_of(fits, run.brokers)
    for_one = OF[of](dot(fit.coefficients[IN:], traffic) for traffic in run.model)
    if for_one <= 0:
        return None
    rounds = (share - fit.value(known((0, 0, 0, 0), run.brokers))) / for_one
    return rounds * sum(aei for aei, _, _, _ in run.model)


def _fit_of(fits: Mapping[int, Fit], brokers: int) -> Fit:
    return fits.get(brokers, fits[0])


def counted_ratio(run: Run, of: str) -> float:
    """Return the ratio to linear scaling if every message, in or out, from or to whomever, cost the
    same. `run`: any of the cell; `of`: which load counts."""
    needed = sum(traffic[0] + traffic[1] for traffic in run.model) / run.brokers
    return needed / OF[of](sum(traffic) for traffic in run.model)


def saturation(fit: Fit, kind: str, other: float) -> float:
    """Return the messages/s in (`kind` aei) or out (aeo) at which a lone broker has a whole core to
    do, by the fitted costs. `fit`: what `costs` returned; `other`: messages/s of the other kind."""
    place = KINDS.index(kind)
    besides = [0.0, 0.0, 0.0, 0.0]
    besides[1 - place] = other
    rest = fit.value((1.0, 0.0, *besides))
    return (1 - rest) / fit.coefficients[IN + place]


MEASURES = (
    "rate_mean",
    "rate_busiest",
    "ratio_mean",
    "ratio_busiest",
    "fitted_mean",
    "fitted_busiest",
    "fitted_ratio_mean",
    "fitted_ratio_busiest",
    "fitted_core_mean",
    "fitted_core_busiest",
    "counted_mean",
    "counted_busiest",
    "beside_mean",
    "beside_busiest",
    "core_mean",
    "core_busiest",
    "internal_error",
    "generator_cpu",
)
"""Numbers of a row of figures 2 and 22, for each cell and repetition."""

RESOURCES = ("load", "internal_per_s", "rss_mb", "delay_ms", "sessions", "connect_ms")
"""Numbers of a row of figure 23, for each cell and repetition, at the highest rate."""

FIGURES = {"pairs": "2", "social": "22", "social-100": "22"}
"""Workloads -> the figure that they are for."""
ISLANDS = "islands"
"""The workload of brokers that share the machine, but no message."""
RESOURCES_FIGURE = "23"


def rows(found: Sequence[Run], fits: Mapping[int, Fit], share: float) -> list[dict[str, Any]]:
    """Return rows with `figure`, `curve` (the strategy), `x` (brokers), `seed` (the repetition),
    and `MEASURES` or `RESOURCES`.

    `found`: all runs; `fits`: what `all_costs` returned; `share`: of a core, at which capacities
    are compared.
    """
    result = []
    for repetition in sorted({run.repetition for run in found}):
        same = [run for run in found if run.repetition == repetition and run.routing == FULL_MESH]
        islands = [run for run in same if run.workload == ISLANDS]
        for workload, figure in FIGURES.items():
            mine = [run for run in same if run.workload == workload]
            alone = [run for run in mine if run.brokers == 1]
            curves = dict.fromkeys(run.strategy for run in mine)
            for curve in [*curves, ISLANDS] if figure == "22" and mine else curves:
                for brokers in sorted({run.brokers for run in mine}):
                    # A lone broker is the same whatever the strategy.
                    cell = alone
                    if brokers > 1:
                        cell = _of(islands if curve == ISLANDS else mine, curve, brokers)
                    if not cell:
                        continue
                    key = {"curve": curve, "x": float(brokers), "seed": repetition}
                    # Pairs that are placed well have nothing in common either.
                    beside = _of(
                        *((islands, ISLANDS) if figure == "22" else (mine, "load")), brokers
                    )
                    row = _scaling_row(cell, alone, beside, fits, share)
                    result.append({"figure": figure, **key, **row})
                    if figure == "22":
                        result.append({"figure": RESOURCES_FIGURE, **key, **_resources_row(cell)})
    return result


def _of(found: Iterable[Run], strategy: str, brokers: int) -> list[Run]:
    return [
        run for run in found if strategy in (run.strategy, run.workload) and run.brokers == brokers
    ]


def _scaling_row(
    cell: Sequence[Run],
    alone: Sequence[Run],
    islands: Sequence[Run],
    fits: Mapping[int, Fit],
    share: float,
) -> dict[str, float | None]:
    """The `MEASURES` of a cell beside those of a lone broker, and of as many that share the machine
    only (`islands`)."""
    brokers = cell[0].brokers
    row: dict[str, float | None] = {}
    for of in OF:
        for name, at in (("ratio", share), ("core", CORE)):
            each, one = capacity(cell, at, of), capacity(alone, at, of)
            row[f"{name}_{of}"] = _ratio(each, one, brokers)
            each, one = (fitted_capacity(runs, fits, at, of) for runs in (cell, alone))
            row[f"fitted_{name}_{of}"] = _ratio(each, one, brokers)
        row[f"rate_{of}"] = rate = capacity(cell, share, of)
        row[f"beside_{of}"] = _ratio(rate, capacity(islands, share, of))
        row[f"fitted_{of}"] = fitted_ratio(cell[0], _fit_of(fits, brokers), of)
        row[f"counted_{of}"] = counted_ratio(cell[0], of)
    errors = [abs(run.internal_error) for run in cell if run.internal_error is not None]
    row["internal_error"] = max(errors, default=None)
    row["generator_cpu"] = max(run.figures.get("generator_cpu", 0.0) for run in cell)
    return row


def _ratio(rate: float | None, other: float | None, times: int = 1) -> float | None:
    """A rate beside so many times the other one, if both are known."""
    return rate / other / times if rate and other else None


def _resources_row(cell: Sequence[Run]) -> dict[str, float | None]:
    """The `RESOURCES` of the run with the highest rate."""
    run = max(cell, key=lambda each: each.rate)
    internal = sum(traffic[2] for traffic in run.traffic)
    return {
        "load": run.load("mean"),
        "internal_per_s": internal,
        **{name: run.figures.get(name) for name in RESOURCES[2:]},
    }
