"""Places a workload: all publishers first, then one client after the other. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import Any

from mqttree.bench.model.clients import Clients, Session
from mqttree.bench.model.optimum import optimum
from mqttree.bench.model.state import Placement
from mqttree.bench.model.strategies import STRATEGIES, Strategy, publisher_slot, random_attach
from mqttree.bench.model.traffic import TREES, tree_parents
from mqttree.bench.workloads.tree_network import TreeNetwork, by_hops
from mqttree.bench.workloads.workload import Workload
from mqttree.placement.figures import Figures

NAMES = ("random", *STRATEGIES)

FIRST_OPTIMUM = "optimum, first"
"""The optimum with ties as the paper's strategy has them: the first broker. For comparison."""

GIVEN = "given"
"""The placement that a file has."""

HOPS = "hops"
"""The strategy that knows the tree on which brokers are."""

MESH = "mesh"
NETWORKS = (MESH, *TREES)
"""How brokers are linked: each with all others, or as a tree with broker 0 at its top."""


@dataclass
class Placed:
    """What became of a workload."""

    figures: Figures
    sessions: int
    clients: list[list[Session]]
    published: dict[int, int]
    """topic -> broker of its publisher; empty where publishers came last."""

    def wanted(self) -> dict[int, set[int]]:
        """Return the brokers with subscribers of each topic."""
        found: dict[int, set[int]] = {}
        for sessions in self.clients:
            for broker, topics in sessions:
                for topic in topics:
                    found.setdefault(int(topic), set()).add(int(broker))
        return found

    def row(self) -> dict[str, Any]:
        """Return the figures as files of known results have them."""
        figures = self.figures
        return {
            "Ai": number(figures.internal),
            "h_rt": round(figures.routing_overhead, 6),
            "h_fw": round(figures.forwarding_overhead, 6),
            "jain": round(figures.jain, 6),
            "peak": round(figures.peak, 6),
            "sessions": self.sessions,
            "aei": list(map(number, figures.aei)),
            "aeo": list(map(number, figures.aeo)),
            "aii": list(map(number, figures.aii)),
            "aio": list(map(number, figures.aio)),
        }

    def placement(self) -> list[dict[str, list[int]]]:
        """Return the brokers of each client and its topics there, in order."""
        return [
            {
                broker: sorted(map(int, topics))
                for broker, topics in sorted(sessions, key=lambda each: int(each[0]))
            }
            for sessions in self.clients
        ]


def number(value: float) -> float:
    """Return a sum of rates to six places, a whole number as such."""
    return int(value) if value == int(value) else round(value, 6)


def publish(work: Workload, brokers: int, seed: int) -> Placement:
    """Return a placement of brokers "0", "1", ... with the publishers of a workload.

    `work`: the workload; `brokers`: how many; `seed`: of what is drawn.
    """
    placement = Placement()
    for slot in range(brokers):
        placement.add_broker(str(slot))
    for topic, slot in work.publishers_on(brokers, seed).items():
        placement.publish(str(topic), str(slot), work.rates[topic])
    return placement


def expect(work: Workload, brokers: int) -> Placement:
    """Return a placement of brokers "0", "1", ... that knows what topics will carry.

    `work`: the workload; `brokers`: how many.
    """
    placement = Placement(affinity=True)
    for slot in range(brokers):
        placement.add_broker(str(slot))
    for topic, rate in work.rates.items():
        placement.expect(str(topic), rate)
    return placement


def _publish_last(placement: Placement, work: Workload) -> None:
    for topic, rate in work.rates.items():
        slot = publisher_slot(placement, placement.known([str(topic)]), rate)
        placement.publish(str(topic), str(slot), rate)


def place(
    work: Workload,
    brokers: int,
    strategy: str,
    seed: int = 1,
    sessions: int | None = None,
    gamma: float | None = None,
    subscribers_first: bool = False,
    network: str = MESH,
) -> Placed:
    """Return what becomes of a workload. Raises ValueError if a file has no placement that is
    asked for, if there are too many sets of brokers for `optimum` or `HOPS`, or if the latter has
    no tree.

    `work`: the workload; `brokers`: how many, from 1; `strategy`: of `NAMES`, `GIVEN`, `HOPS` or
    `FIRST_OPTIMUM`; `seed`: of what is drawn; `sessions`, `gamma`: instead of the workload's;
    `subscribers_first`: publishers come last, each to the best broker for it; `network`: of
    `NETWORKS`, only `HOPS` knows it.
    """
    tree = None if network == MESH else TreeNetwork(tree_parents(network, brokers))
    placement = expect(work, brokers) if subscribers_first else publish(work, brokers, seed)
    chosen = _chosen(strategy, seed, tree)
    clients = Clients(placement, work.gamma if gamma is None else gamma, chosen)
    most = work.sessions if sessions is None else sessions
    found = []
    given = _given(work, brokers, strategy, seed)
    for index, topics in enumerate(work.clients):
        name = f"c{index}"
        if given is not None:
            clients.attach(name, given[index])
            found.append(given[index])
        else:
            found.append(clients.join(name, map(str, topics), most))
    if subscribers_first:
        _publish_last(placement, work)
    at = {} if subscribers_first else work.publishers_on(brokers, seed)
    figures = tree.figures(placement) if tree else placement.figures()
    return Placed(figures, clients.sessions, found, at)


def _chosen(strategy: str, seed: int, tree: TreeNetwork | None) -> Strategy:
    """The strategy with a name; random attach where clients are put without one."""
    if strategy == HOPS:
        if tree is None:
            raise ValueError(f"the strategy {HOPS} needs a tree of brokers")
        return by_hops(tree)
    if strategy == FIRST_OPTIMUM:
        return partial(optimum, by_load=False)
    return STRATEGIES.get(strategy) or random_attach(random.Random(f"attach {seed}"))


def _given(work: Workload, brokers: int, strategy: str, seed: int) -> list[list[Session]] | None:
    """Where clients are, if that is known beforehand."""
    if strategy == "random":
        slots = work.attached_on(brokers, seed)
        pairs = zip(slots, work.clients, strict=True)
        return [[(str(slot), tuple(map(str, topics)))] for slot, topics in pairs]
    if strategy != GIVEN:
        return None
    if brokers not in work.given:
        raise ValueError(f"the file has no placement on {brokers} brokers")
    return [
        [(str(slot), tuple(map(str, topics))) for slot, topics in client.items()]
        for client in work.given[brokers]
    ]
