"""The figures of the paper as cases: what each point of each curve is computed from. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from mqttree.bench.model import traffic
from mqttree.bench.model.state import Placement
from mqttree.bench.model.strategies import STRATEGIES
from mqttree.bench.placement import changes
from mqttree.bench.workloads import simulator, workload
from mqttree.bench.workloads.workload import Workload
from mqttree.placement.figures import Figures, overhead
from mqttree.placement.greedy import fair_slots

VARIANT_A = (1, 30, 900, 5000)
"""Nodes of the levels of the topic tree of figures 19 to 21: the paper's fan-out of 30 would have
27,000 leaves, and its 5,000 topics are this."""

MEASURES = (
    "internal",
    "h_rt",
    "h_fw",
    "jain",
    "peak",
    "sessions_each",
    "mean_scaling",
    "bottleneck_scaling",
    "space",
)
"""Numbers of a row that are averaged over seeds."""

QUICK = 10
"""The quick form has workloads that are so much smaller."""

CPU_IN_OUT = 3.0
"""CPU time of a message in as a multiple of one out: VerneMQ's, by figures 3 and 4."""


@dataclass(frozen=True)
class Case:
    """A point of a curve."""

    figure: str
    curve: str
    x: float
    brokers: int = 8
    strategy: str = "random"
    sessions: int = 4
    topics: int = 5000
    subscribers: int = 5000
    each: int = 10
    alpha: float = 1.13
    nodes: tuple[int, ...] = ()
    """of a topic tree's levels; else subscribers follow topics."""
    chances: tuple[float, ...] = ()
    """of the levels; else by equation 15."""
    subscribers_first: bool = False
    network: str = simulator.MESH

    def level_chances(self) -> Sequence[float]:
        """Return how likely each level of the tree is chosen."""
        return self.chances or traffic.level_chances(len(self.nodes), self.alpha)


CHANGES = ("churn", "moves", "failure")
"""Figures, none of the paper, of placements that change."""

SINGLE = "load, one session at first"
MOVED = "load, then 100 moves"
BEFORE, ORPHANS, EVERYBODY = "before", "only its clients placed", "all clients placed again"
REPAIRED = "then 100 moves"

OF_FIGURE_12 = ("paper", simulator.FIRST_OPTIMUM, "load", "optimum")

SOCIAL_1000: dict[str, Any] = {"topics": 1000, "subscribers": 1000}


def cases(quick: bool = False) -> list[Case]:
    """Return all points, of all figures.

    `quick`: with smaller workloads and fewer brokers, to see that everything works.
    """
    found = [
        *_model_and_simulation(),
        *_sessions(),
        *_social(),
        *_trees(),
        *_measured(),
        *_beyond(),
        *_changes(),
        *_linked_as_trees(),
    ]
    if not quick:
        return found
    return [_smaller(case) for case in found if case.brokers <= 8 and case.subscribers <= 5000]


def _smaller(case: Case) -> Case:
    nodes = tuple(max(1, n // QUICK) if level else 1 for level, n in enumerate(case.nodes))
    return replace(
        case,
        topics=case.topics // QUICK,
        subscribers=case.subscribers // QUICK,
        each=min(case.each, 10),
        nodes=nodes,
    )


def _model_and_simulation() -> Iterator[Case]:
    for brokers in (1, 2, 4, 6, 8, 12, 16, 20):
        yield Case("7", "random", brokers, brokers, **SOCIAL_1000)
        tree: dict[str, Any] = {"nodes": (1, 10, 100, 1000), "chances": (0, 0.03, 0.3, 0.67)}
        yield Case("8", "random", brokers, brokers, subscribers=1000, topics=1000, **tree)
    for each in (1, 40):
        for brokers in (2, 4, 8, 16):
            for strategy in ("random", "best"):
                curve = f"{strategy}, {each} topic{'s' * (each > 1)}"
                yield Case("10", curve, brokers, brokers, strategy, 1, each=each, **SOCIAL_1000)


def _sessions() -> Iterator[Case]:
    for each in (5, 10):
        for sessions in range(1, 9):
            options: dict[str, Any] = {"each": each, **SOCIAL_1000}
            yield Case("11", f"{each} topics", sessions, 8, "paper", sessions, **options)
    for sessions in range(1, 9):
        for strategy in OF_FIGURE_12:
            yield Case("12", strategy, sessions, 8, strategy, sessions, each=5, **SOCIAL_1000)
    for brokers in (2, 4, 6, 8, 10, 12):
        for strategy in OF_FIGURE_12:
            yield Case("12b", strategy, brokers, brokers, strategy, each=5, **SOCIAL_1000)


def _social() -> Iterator[Case]:
    for strategy in ("random", "paper", "load"):
        for brokers in (2, 4, 8, 12, 16, 20):
            yield Case("13", strategy, brokers, brokers, strategy)
        for subscribers in (500, 1000, 2000, 5000, 10_000):
            yield Case("14", strategy, subscribers, 8, strategy, subscribers=subscribers)
        for each in (1, 2, 5, 10, 20, 40):
            yield Case("15", strategy, each, 8, strategy, each=each)
        for sessions in range(1, 9):
            yield Case("16", strategy, sessions, 8, strategy, sessions)
        for alpha in (0.0, 0.5, 0.9, 1.13, 1.5, 2.0):
            yield Case("17", strategy, alpha, 8, strategy, alpha=alpha)


def _trees() -> Iterator[Case]:
    tree: dict[str, Any] = {"nodes": VARIANT_A, "alpha": 1.5}
    for strategy in ("random", "paper", "load"):
        for brokers in (2, 4, 8, 20):
            yield Case("19", strategy, brokers, brokers, strategy, **tree)
        for sessions in (1, 2, 4, 6, 8):
            yield Case("20", strategy, sessions, 8, strategy, sessions, **tree)
        for alpha in (0.5, 1.5, 3.0):
            yield Case("21", strategy, alpha, 8, strategy, nodes=VARIANT_A, alpha=alpha)


def _measured() -> Iterator[Case]:
    for alpha in (0.68, 1.13):
        for strategy in ("random", "paper", "load"):
            for brokers in (2, 3, 4, 6, 8):
                options: dict[str, Any] = {"topics": 1000, "subscribers": 100, "alpha": alpha}
                yield Case("22", f"{strategy}, {alpha}", brokers, brokers, strategy, **options)


def _changes() -> Iterator[Case]:
    for strategy in ("paper", "load"):
        for times in (0, 1, 3):
            yield Case("churn", strategy, times, 8, strategy, **SOCIAL_1000)
    for times in (0, 1, 3):
        yield Case("churn", MOVED, times, 8, "load", **SOCIAL_1000)
    for moves in (0, 100, 200, 500, 1000, 2000):
        yield Case("moves", SINGLE, moves, 8, "load", **SOCIAL_1000)
        yield Case("moves", "paper", moves, 8, "paper", **SOCIAL_1000)
        yield Case("moves", "load", moves, 8, "load", **SOCIAL_1000)
    for curve in (BEFORE, ORPHANS, REPAIRED, EVERYBODY):
        yield Case("failure", curve, 8, 8, "load", **SOCIAL_1000)


def _beyond() -> Iterator[Case]:
    for brokers in (8, 16):
        for first in (False, True):
            curve = "subscribers first" if first else "publishers first"
            yield Case("first", curve, brokers, brokers, "load", subscribers_first=first)


def _linked_as_trees() -> Iterator[Case]:
    for shape in traffic.TREES:
        for strategy in ("random", "paper", "load", simulator.HOPS):
            for brokers in (2, 4, 8, 12):
                options: dict[str, Any] = {"network": shape, **SOCIAL_1000}
                yield Case(f"tree-{shape}", strategy, brokers, brokers, strategy, **options)


@lru_cache(maxsize=32)
def _work(
    kind: tuple[Any, ...], chances: tuple[float, ...], subscribers: int, seed: int
) -> Workload:
    if chances:
        return workload.topic_tree(chances, kind, subscribers, seed)
    topics, each, alpha = kind
    return workload.social(topics, subscribers, each, alpha, seed)


def work_of(case: Case, seed: int) -> Workload:
    """Return what a case places.

    `case`: the point; `seed`: of what is drawn.
    """
    if case.nodes:
        return _work(case.nodes, tuple(case.level_chances()), case.subscribers, seed)
    return _work((case.topics, case.each, case.alpha), (), case.subscribers, seed)


def run(case: Case, seed: int) -> dict[str, Any]:
    """Return a case's row: what was found with one seed.

    `case`: the point; `seed`: of what is drawn.
    """
    if case.figure in CHANGES:
        return _row(case, seed, *changed(case, seed))
    work = work_of(case, seed)
    first = case.subscribers_first
    placed = simulator.place(
        work,
        case.brokers,
        case.strategy,
        seed,
        case.sessions,
        subscribers_first=first,
        network=case.network,
    )
    space = None
    if case.figure == "11":
        space = decision_space(work, case, seed)
    return _row(case, seed, placed.figures, placed.sessions, space)


def _row(
    case: Case, seed: int, figures: Figures, sessions: int, space: float | None = None
) -> dict[str, Any]:
    return {
        "figure": case.figure,
        "curve": case.curve,
        "x": float(case.x),
        "seed": seed,
        **_numbers(figures),
        "sessions_each": sessions / case.subscribers,
        "space": space,
    }


def changed(case: Case, seed: int) -> tuple[Figures, int]:
    """Return the traffic and the sessions of all clients after changes.

    `case`: of `CHANGES`; `seed`: of what is drawn.
    """
    work = work_of(case, seed)
    sessions = 1 if case.curve == SINGLE else case.sessions
    clients = changes.joined(work, case.brokers, case.strategy, sessions, seed)
    if case.figure == "churn":
        drawn = random.Random(f"coming {seed}")
        draw = workload.popular_topics(case.topics, case.alpha, drawn)
        times = int(case.x)
        changes.replace(clients, lambda: draw(case.each), times, sessions, seed)
        if case.curve == MOVED:
            changes.move(clients, 100, sessions)
    elif case.figure == "moves":
        changes.move(clients, int(case.x), case.sessions)
    elif case.curve != BEFORE:
        changes.fail(clients, work, sessions, everybody=case.curve == EVERYBODY)
        if case.curve == REPAIRED:
            changes.move(clients, 100, sessions)
    return clients.placement.figures(), clients.sessions


def _numbers(figures: Figures) -> dict[str, float]:
    return {
        "internal": float(figures.internal),
        "h_rt": figures.routing_overhead,
        "h_fw": figures.forwarding_overhead,
        "jain": figures.jain,
        "peak": figures.peak,
        "mean_scaling": figures.scaling(CPU_IN_OUT),
        "bottleneck_scaling": figures.bottleneck_scaling(CPU_IN_OUT),
    }


def decision_space(work: Workload, case: Case, seed: int) -> float:
    """Return in how many ways a client could be placed, counting only brokers below their bound:
    the mean over all that arrive (equation 12).

    `work`: what is placed; `case`: how; `seed`: of what is drawn.
    """
    placement = simulator.publish(work, case.brokers, seed)
    strategy = STRATEGIES[case.strategy]
    total = 0
    for topics in work.clients:
        fair = len(fair_slots(placement, placement.aeo, work.gamma))
        total += traffic.decision_space(fair, len(topics), min(case.sessions, fair))
        _put(placement, strategy, topics, case.sessions, work.gamma)
    return total / len(work.clients)


def _put(
    placement: Placement, strategy: Any, names: Sequence[int], sessions: int, gamma: float
) -> None:
    topics = placement.known([str(name) for name in names])
    for slot, there in strategy(placement, topics, sessions, gamma).items():
        placement.place_all(there, slot)


def model(case: Case) -> dict[str, float]:
    """Return what the model says of a case at random brokers; of figure 11 what equation 12 says.
    Nothing of others."""
    if case.figure == "11":
        return {"space": traffic.decision_space(case.brokers, case.each, case.sessions)}
    if case.strategy != "random":
        return {}
    if case.nodes:
        chance = traffic.wanted_of_tree(case.level_chances(), case.nodes)
        chances = [chance] * case.nodes[-1]
    else:
        chances = _wanted(case.topics, case.each, case.alpha)
    rates = [1.0] * len(chances)
    out = traffic.external_out(chances, rates, case.subscribers)
    if case.network == simulator.MESH:
        inside = traffic.internal(chances, rates, case.subscribers, case.brokers)
    else:
        sides = traffic.tree_sides(case.network, case.brokers)
        inside = traffic.internal_on_tree(chances, rates, case.subscribers, sides)
    return {
        "internal": inside,
        "h_rt": overhead(inside, len(rates)),
        "h_fw": overhead(inside, out),
    }


@lru_cache(maxsize=64)
def _wanted(topics: int, each: int, alpha: float) -> list[float]:
    return traffic.wanted(topics, each, alpha)
