"""The ways to place a client that comes, by name."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from mqttree.bench.model.greedy import Assignment, greedy
from mqttree.bench.model.optimum import optimum
from mqttree.bench.model.state import Placement, Topic
from mqttree.placement.greedy import open_slots

Strategy = Callable[[Placement, Sequence[Topic], int, float, int], Assignment]
"""(what is there, the client's topics, connections at most, gamma, mask of slots that are not
asked) -> where they go. What is there does not change. Raises ValueError if no broker takes
clients."""


def best_matching(
    placement: Placement, topics: Sequence[Topic], sessions: int, gamma: float, avoid: int = 0
) -> Assignment:
    """Return the one broker where a client costs least, the lowest of equal ones (equation 11).

    `placement`, `topics`, `gamma`, `avoid`: as for `greedy`; `sessions`: one is
    taken, whatever it is.
    """
    return greedy(placement, topics, 1, gamma, by_load=False, avoid=avoid)


def paper(
    placement: Placement, topics: Sequence[Topic], sessions: int, gamma: float, avoid: int = 0
) -> Assignment:
    """Return where the paper's greedy strategy places a client; equal brokers by their order.

    `placement`, `topics`, `sessions`, `gamma`, `avoid`: as for `greedy`.
    """
    return greedy(placement, topics, sessions, gamma, by_load=False, avoid=avoid)


load: Strategy = greedy
"""Greedy; of brokers that cost the same, the one with the least load."""


def random_attach(drawn: random.Random) -> Strategy:
    """Return a strategy that connects each client to one broker at random.

    `drawn`: where the brokers are drawn from.
    """

    def attach(
        placement: Placement, topics: Sequence[Topic], sessions: int, gamma: float, avoid: int = 0
    ) -> Assignment:
        opened = open_slots(placement, avoid)
        if not opened:
            raise ValueError("no broker takes clients")
        return {drawn.choice(opened): list(topics)}

    return attach


STRATEGIES: dict[str, Strategy] = {
    "best": best_matching,
    "paper": paper,
    "load": load,
    "optimum": optimum,
}
"""All but random attach, which needs what it draws from."""


def publisher_slot(
    placement: Placement, topics: Sequence[Topic], rate: float, avoid: int = 0
) -> int:
    """Return the slot where a publisher adds the least traffic between brokers (equation 10,
    corrected), of equal ones that with the least load. Raises ValueError if no broker takes
    clients.

    `placement`: what is there; `topics`: what it publishes; `rate`: messages/s of each; `avoid`: a
    mask of slots that are not asked.
    """
    opened = open_slots(placement, avoid)
    if not opened:
        raise ValueError("no broker takes clients")
    receivers = [topic.present for topic in topics]

    def cost(slot: int) -> tuple[float, float]:
        crossing = rate * sum((mask & ~(1 << slot)).bit_count() for mask in receivers)
        return crossing, placement.aei[slot] / placement.capacities[slot]

    return min(opened, key=cost)
