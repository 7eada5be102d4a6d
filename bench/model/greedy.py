"""Where a client of a placement goes by the strategy of `mqttree.placement.greedy`: where rates are
whole numbers, by one sum over its topics, else by a table of costs."""

from __future__ import annotations

from collections.abc import Sequence

from mqttree.bench.model.state import NARROW_BITS, NARROW_SLOTS, NARROW_SUM, Placement, Topic
from mqttree.placement.greedy import greedy_costs, least_loaded, open_slots

Item = tuple[Topic, ...]
"""Topics of a client that stay together on one broker."""

Assignment = dict[int, list[Topic]]
"""The slots where a client is placed -> its topics there, in the order in which they were."""

INFINITE = float("inf")


def greedy(
    placement: Placement,
    topics: Sequence[Topic],
    sessions: int,
    gamma: float,
    avoid: int = 0,
    by_load: bool = True,
) -> Assignment:
    """Return where a client's topics should be; nothing is changed. Raises ValueError if no broker
    takes clients.

    `placement`: what is there; `topics`: different ones; `sessions`: how many brokers at most, at
    least 1; `gamma`: how many times its due a broker may have; `avoid`: a mask of slots that are
    not asked; `by_load`: of brokers that cost the same, the one with the least load, else the
    lowest slot.
    """
    choice = choose(placement, topics, sessions, gamma, avoid, by_load)
    if choice is None:
        items = [(topic,) for topic in topics]
        return greedy_items(placement, items, sessions, gamma, by_load, avoid)
    found: Assignment = {}
    for topic, slot in zip(choice.topics, choice.slots, strict=True):
        found.setdefault(slot, []).append(topic)
    return found


class Choice:
    """Where a client's topics should be, one by one."""

    __slots__ = ("aeo", "sessions", "slots", "topics")

    def __init__(self, aeo: list[float]) -> None:
        self.topics: list[Topic] = []
        self.slots: list[int] = []
        """of the broker of each topic."""
        self.sessions = 0
        """brokers of the client."""
        self.aeo = aeo
        """what each broker sends to subscribers then, by slot (messages/s)."""


def choose(
    placement: Placement,
    topics: Sequence[Topic],
    sessions: int,
    gamma: float,
    avoid: int = 0,
    by_load: bool = True,
) -> Choice | None:
    """Return what `greedy` does, for topics of which any may be alone; None if rates are no
    integers, or too high together, or if brokers differ in their capacity. Raises ValueError if no
    broker takes clients.

    `placement`, `topics`, `sessions`, `gamma`, `avoid`, `by_load`: as for `greedy`.
    """
    if placement.fractions or not placement.uniform:
        return None
    opened = open_slots(placement, avoid)
    if topics and not opened:
        raise ValueError("no broker takes clients")
    left = list(topics)
    hits = 0
    weight = 0.0
    for topic in left:
        hits += topic.lanes
        weight += topic.weight
    if placement.lane_bits == NARROW_BITS and weight > NARROW_SUM:
        return None
    aeo = placement.aeo.copy()
    total = sum(aeo, 0.0)
    brokers = len(placement.open)
    choice = Choice(aeo)
    placed, slots = choice.topics, choice.slots
    used = 0
    while left:
        bound = gamma * total / brokers if total else INFINITE
        chosen = _cheapest_slot(opened, aeo, _spared(placement, hits), bound, by_load)
        if chosen < 0:
            chosen = least_loaded(placement, aeo, opened)
        bit = 1 << chosen
        if not used & bit:
            used |= bit
            choice.sessions += 1
        if choice.sessions == sessions:
            going, rest = left, list[Topic]()
        else:
            going, rest = _taken(left, chosen)
        left = rest
        added = 0.0
        for topic in going:
            placed.append(topic)
            slots.append(chosen)
            hits -= topic.lanes
            added += topic.weight
        # Rates are integers here: the order of additions does not matter.
        aeo[chosen] += added
        total += added
    return choice


def _spared(placement: Placement, hits: int) -> list[int]:
    """What a client spares at each slot, of a sum of lanes."""
    if placement.lane_bits == NARROW_BITS:
        return list(hits.to_bytes(NARROW_SLOTS, "little"))
    size, lanes = placement.lane_format
    return list(lanes.unpack(hits.to_bytes(size, "little")))


def _cheapest_slot(
    slots: list[int], aeo: list[float], spared: list[int], bound: float, by_load: bool
) -> int:
    """The slot below its bound where most is spared, so what costs least; -1 if there is none."""
    most = chosen = -1
    lightest = 0.0
    for slot in slots:
        load = aeo[slot]
        if load < bound:
            part = spared[slot]
            if part > most or (part == most and by_load and load < lightest):
                most, chosen, lightest = part, slot, load
    return chosen


def _taken(topics: list[Topic], slot: int) -> tuple[list[Topic], list[Topic]]:
    """The topics that cost nothing at a slot, else those that cost least; and the others."""
    bit = 1 << slot
    going: list[Topic] = []
    rest: list[Topic] = []
    for topic in topics:
        if topic.free & bit:
            going.append(topic)
        else:
            rest.append(topic)
    return (going, rest) if going else cheapest(topics, slot)


def cheapest(topics: list[Topic], slot: int) -> tuple[list[Topic], list[Topic]]:
    """Return those of some topics that cost least at a slot, and the others. Raises ValueError if
    there are no topics.

    `topics`: some; `slot`: of a broker.
    """
    costs = [topic.cost(slot) for topic in topics]
    least = min(costs)
    pairs = list(zip(topics, costs, strict=True))
    return (
        [topic for topic, cost in pairs if cost == least],
        [topic for topic, cost in pairs if cost != least],
    )


def item_costs(placement: Placement, item: Item) -> list[float]:
    """Return the traffic between brokers that a subscriber of an item adds, by slot (messages/s).

    `placement`: what is there; `item`: topics that stay together.
    """
    slots = range(len(placement.names))
    if len(item) == 1:
        (topic,) = item
        if len(topic.publishers) > 1:
            return [topic.cost(slot) for slot in slots]
        free, weight = topic.free, topic.weight
        return [0.0 if free >> slot & 1 else weight for slot in slots]
    return [sum([topic.cost(slot) for topic in item], 0.0) for slot in slots]


def greedy_items(
    placement: Placement,
    items: Sequence[Item],
    sessions: int,
    gamma: float,
    by_load: bool = True,
    avoid: int = 0,
) -> Assignment:
    """Return the same as `greedy` for topics some of which stay together, and for any rates.

    `placement`, `sessions`, `gamma`, `by_load`, `avoid`: as for `greedy`; `items`: topics that
    stay together, no topic in two of them. Raises ValueError if no broker takes clients.
    """
    costs = [item_costs(placement, item) for item in items]
    weights = [[topic.weight for topic in item] for item in items]
    found = greedy_costs(
        placement, placement.aeo.copy(), costs, weights, sessions, gamma, by_load, avoid
    )
    return {
        slot: [topic for index in indices for topic in items[index]]
        for slot, indices in found.items()
    }
