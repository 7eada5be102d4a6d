"""The placement of one client that comes with the least traffic: exact, by looking at each set of
brokers.

Of a set of brokers that a client uses, each of its topics goes to the one where it costs least. So
a set says everything, and there are few: 162 for 8 brokers and 4 connections, where there are 60
million assignments of ten topics (equation 12). What is best for each client that comes need not
be best for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from mqttree.bench.model.greedy import Assignment, Item, item_costs
from mqttree.bench.model.state import Placement, Topic
from mqttree.placement.greedy import fair_slots

MAX_SETS = 200_000
"""More are not looked at."""


def cheapest_set(
    costs: Sequence[Sequence[float]], candidates: Sequence[int], size: int
) -> tuple[float, tuple[int, ...]]:
    """Return the least cost and the slots that have it: the fewest, then those that come first in
    `candidates`. Raises ValueError if there are no candidates, or too many sets.

    `costs`: for each item its cost at each slot (messages/s); `candidates`: slots; `size`: how many
    of them may be used.
    """
    if not candidates:
        raise ValueError("no broker takes clients")
    columns = {slot: [row[slot] for row in costs] for slot in candidates}
    # Sets that begin alike share what their items cost so far.
    sets: list[tuple[tuple[int, ...], int, list[float]]] = [
        ((slot,), at, columns[slot]) for at, slot in enumerate(candidates)
    ]
    best: tuple[float, tuple[int, ...]] | None = None
    for step in range(min(size, len(candidates))):
        for slots, _, items in sets:
            cost = sum(items, 0.0)
            if best is None or cost < best[0]:
                best = (cost, slots)
        if best is None or not best[0] or step + 1 == min(size, len(candidates)):
            break
        if len(sets) * len(candidates) > MAX_SETS:
            raise ValueError(f"{len(candidates)} brokers have too many sets of {size}")
        sets = [
            (
                (*slots, candidates[next_at]),
                next_at,
                list(map(min, items, columns[candidates[next_at]])),
            )
            for slots, at, items in sets
            for next_at in range(at + 1, len(candidates))
        ]
    assert best is not None
    return best


def optimum(
    placement: Placement,
    topics: Sequence[Topic],
    sessions: int,
    gamma: float,
    avoid: int = 0,
    by_load: bool = True,
) -> Assignment:
    """Return where a client adds the least traffic; nothing is changed. Which brokers are below
    their bound is asked once. Raises ValueError if no broker takes clients, or if there are too
    many sets of brokers.

    `placement`, `topics`, `sessions`, `gamma`, `avoid`, `by_load`: as for `greedy`.
    """
    items: list[Item] = [(topic,) for topic in topics]
    costs = [item_costs(placement, item) for item in items]
    return assign(placement, items, costs, sessions, gamma, avoid, by_load)


def assign(
    placement: Placement,
    items: Sequence[Item],
    costs: Sequence[Sequence[float]],
    sessions: int,
    gamma: float,
    avoid: int = 0,
    by_load: bool = True,
) -> Assignment:
    """Return where a client costs least; nothing is changed. Raises ValueError as `optimum` does.

    `placement`, `sessions`, `gamma`, `avoid`, `by_load`: as for `greedy`; `items`: topics that
    stay together; `costs`: of each item what it costs at each slot (messages/s).
    """
    loads = placement.aeo.copy()
    capacities = placement.capacities

    def rank(slot: int) -> float:
        return loads[slot] / capacities[slot] if by_load else slot

    fair = sorted(fair_slots(placement, loads, gamma, avoid), key=rank)
    _, used = cheapest_set(costs, fair, sessions)
    found: Assignment = {}
    for item, row in zip(items, costs, strict=True):
        slot = min(used, key=lambda slot: (row[slot], rank(slot)))
        found.setdefault(slot, []).extend(item)
        loads[slot] += sum([topic.weight for topic in item], 0.0)
    return found
