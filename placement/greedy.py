"""Where a client that comes is placed, broker by broker: each time the one where most of what is
left costs nothing further.

This is algorithm 1 of the paper as the placements that its authors published show it
(docs/decisions/0048 has where its text differs). A broker takes part while its share of what goes
out to subscribers is below `gamma` times its due.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

GAMMA: Final = 1.1
"""How many times its due a broker may have of what goes out to subscribers."""


class Brokers(Protocol):
    """Brokers by slots."""

    @property
    def capacities(self) -> Sequence[float]:
        """What each broker should have of the load, compared with the others."""

    @property
    def open(self) -> list[int]:
        """Those that take clients, in order."""

    @property
    def uniform(self) -> bool:
        """Whether all of these have the same capacity."""


def fair_slots(placement: Brokers, aeo: list[float], gamma: float, avoid: int = 0) -> list[int]:
    """Return the slots that may take a client; the one with the least load where none is below
    its bound. Raises ValueError if there is no broker to choose from.

    `placement`: the brokers; `aeo`: their loads by slot (messages/s to subscribers); `gamma`: how
    many times its due a broker may have; `avoid`: a mask of slots that are not asked.
    """
    # The order of operations is that of the published placements.
    total = sum(aeo, 0.0)
    opened = open_slots(placement, avoid)
    if total == 0 and opened:
        return opened
    if placement.uniform:
        bound = gamma * total / max(len(placement.open), 1)
        found = [slot for slot in opened if aeo[slot] < bound]
    else:
        capacities = placement.capacities
        due = gamma * total / sum([capacities[slot] for slot in placement.open], 0.0)
        found = [slot for slot in opened if aeo[slot] < due * capacities[slot]]
    return found or [least_loaded(placement, aeo, opened)]


def open_slots(placement: Brokers, avoid: int = 0) -> list[int]:
    """Return the slots that take clients, in order; the placement's own list if none is avoided.

    `placement`: the brokers; `avoid`: a mask of slots that are left out.
    """
    opened = placement.open
    return [slot for slot in opened if not avoid >> slot & 1] if avoid else opened


def least_loaded(placement: Brokers, aeo: list[float], slots: list[int]) -> int:
    """Return which slot has the least load for its capacity, the lowest of equal ones. Raises
    ValueError if there are none.

    `placement`: the brokers; `aeo`: their loads by slot (messages/s); `slots`: those to look at.
    """
    if not slots:
        raise ValueError("no broker takes clients")
    capacities = placement.capacities
    return min(slots, key=lambda slot: aeo[slot] / capacities[slot])


def greedy_costs(
    brokers: Brokers,
    aeo: list[float],
    costs: list[list[float]],
    weights: list[list[float]],
    sessions: int,
    gamma: float,
    by_load: bool = True,
    avoid: int = 0,
) -> dict[int, list[int]]:
    """Return the slots where a client is placed -> the indices of its items there, in order.

    Args:
        `brokers`: those that take clients.
        `aeo`: their loads by slot (messages/s to subscribers); what is placed is added.
        `costs`: of each item the traffic between brokers that it adds, by slot (messages/s).
        `weights`: of each item the rates of its topics (messages/s).
        `sessions`: how many brokers at most, at least 1.
        `gamma`: how many times its due a broker may have.
        `by_load`: of brokers that cost the same, the one with the least load, else the lowest slot.
        `avoid`: a mask of slots that are not asked.

    Raises:
        ValueError: no broker takes clients.
    """
    left = list(range(len(costs)))
    used: dict[int, list[int]] = {}
    while left:
        fair = fair_slots(brokers, aeo, gamma, avoid)
        chosen = -1
        least = 0.0
        equal: list[int] = []
        for slot in fair:
            cost = 0.0
            for index in left:
                cost += costs[index][slot]
            if chosen < 0 or cost < least:
                chosen, least = slot, cost
                equal = [slot]
            elif cost == least:
                equal.append(slot)
        if by_load and len(equal) > 1:
            chosen = least_loaded(brokers, aeo, equal)
        taken = used.setdefault(chosen, [])
        if len(used) == sessions:
            taken += left
            break
        cheapest = min([costs[index][chosen] for index in left])
        rest: list[int] = []
        load = aeo[chosen]
        for index in left:
            if costs[index][chosen] == cheapest:
                taken.append(index)
                for weight in weights[index]:
                    load += weight
            else:
                rest.append(index)
        aeo[chosen] = load
        left = rest
    return used
