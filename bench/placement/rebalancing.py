"""Moves of subscriptions that pay: those that end the traffic of a topic to a broker, and those
that relieve a broker that has too much.

A broker that has few subscribers of a topic, and not its publisher, gets all of the topic for them.
When they go where the topic is anyway, that traffic ends. So pairs of a topic and a broker are
looked at in the order of what a move saves, with a heap whose entries are checked when they come
up: what was moved before may have changed them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from mqttree.bench.model.clients import Clients
from mqttree.bench.model.state import Placement, Topic, bits
from mqttree.placement.question import SESSIONS

LOOKED_AT = 8
"""Pairs of a topic and a broker that are looked at, for each move that may be made."""


ROUNDS = 3
"""Times that all pairs are looked at: what was moved makes further moves possible."""


MIN_SAVING = 1e-6
"""Messages/s that a move saves at least: less is a sum of floats that is not exact."""


@dataclass(frozen=True, slots=True)
class Move:
    """A subscription that goes to another broker."""

    client: str
    topic: str
    source: str
    target: str
    saving: float
    """messages/s between brokers that it saves by itself, its share if several moves save
    together; 0 if it only relieves its broker."""


def plan(clients: Clients, moves: int, sessions: int = SESSIONS) -> list[Move]:
    """Return moves that pay, the best first; nothing is changed.

    `clients`: who is where; `moves`: how many at most; `sessions`: connections of a client at most.
    """
    made: list[Move] = []
    try:
        for _ in range(ROUNDS):
            before = len(made)
            for move in _saving(clients, moves - before, sessions):
                made.append(move)
            if len(made) in (before, moves):
                break
        for move in _relieving(clients, moves - len(made), sessions):
            made.append(move)
    finally:
        # Moves are made while they are found: each counts for those behind it.
        for move in reversed(made):
            clients.move(move.client, move.topic, move.source)
    return made


def apply(clients: Clients, moves: list[Move]) -> None:
    """Make moves. Raises KeyError if a client or a broker is not there any more.

    `clients`: who is where; `moves`: what `plan` returned.
    """
    for move in moves:
        clients.move(move.client, move.topic, move.target)


def _bounds(placement: Placement, gamma: float) -> dict[int, float]:
    """The load that each open slot may have (messages/s)."""
    total = sum(placement.aeo, 0.0)
    capacities = placement.capacities
    due = gamma * total / (sum([capacities[slot] for slot in placement.open], 0.0) or 1.0)
    return {slot: due * capacities[slot] for slot in placement.open}


def _saving(clients: Clients, moves: int, sessions: int) -> Iterator[Move]:
    """Make moves that end traffic between brokers."""
    placement = clients.placement
    bounds = _bounds(placement, clients.gamma)
    pairs = _worth(placement, moves)
    holders = clients.holders({(topic, slot) for _, topic, slot in pairs})
    count_of = placement.count
    heap = [
        (-worth, topic.name, slot, count_of(topic, slot), topic) for worth, topic, slot in pairs
    ]
    heapq.heapify(heap)
    left = moves
    again: dict[str, None] = {}  # clients whose topic has no place elsewhere
    while heap and left:
        _, _, slot, count, topic = heapq.heappop(heap)
        there = holders.get((topic, slot), [])
        # Other moves have brought a subscription here, or not all of them are of known clients.
        if count_of(topic, slot) != count or len(there) != count or count > left:
            continue
        targets = _targets(clients, topic, slot, there, sessions, bounds)
        if targets is None:
            if count == 1:
                again[there[0]] = None
            continue
        saved = topic.inflow(slot) / count
        for client, target in zip(there, targets, strict=True):
            yield _moved(clients, client, topic, (slot, target), saved)
            left -= 1
    yield from _placing_again(clients, list(again), sessions, left)


def _placing_again(
    clients: Clients, candidates: list[str], sessions: int, moves: int
) -> Iterator[Move]:
    """Place clients again, those first whose moves save most each. What one saves may be less when
    its turn comes, and hardly ever more: it is looked at again then (lazy greedy)."""
    left = moves
    heap = [(0.0, client) for client in candidates] if left else []
    fresh = dict.fromkeys(candidates, False)
    while heap and left:
        _, client = heapq.heappop(heap)
        made = _placed_again(clients, client, sessions, left)
        if not made:
            continue
        now = -made[0].saving
        if fresh[client] and (not heap or now <= heap[0][0] + MIN_SAVING):
            yield from made
            left -= len(made)
            continue
        for move in reversed(made):
            clients.move(client, move.topic, move.source)
        # The first look of each puts it behind those that were not looked at yet.
        fresh[client] = True
        heapq.heappush(heap, (now, client))


def _placed_again(clients: Clients, client: str, sessions: int, moves: int) -> list[Move]:
    """Place a client again as if it came now; return its moves, none if nothing is saved."""
    placement = clients.placement
    before, internal = clients.sessions_of(client), placement.internal
    at = {topic: broker for broker, topics in before for topic in topics}
    clients.leave(client)
    there = clients.join(client, at, sessions)
    moved = [(topic, broker) for broker, topics in there for topic in topics if broker != at[topic]]
    saved = internal - placement.internal
    if len(moved) > moves or saved <= MIN_SAVING * len(moved):
        clients.leave(client)
        clients.attach(client, before)
        return []
    return [Move(client, topic, at[topic], broker, saved / len(moved)) for topic, broker in moved]


def _worth(placement: Placement, moves: int) -> list[tuple[float, Topic, int]]:
    """What a move saves at the best pairs of a topic and a slot (messages/s)."""
    best = heapq.nlargest(moves * LOOKED_AT, _pairs(placement, moves))
    return [(worth, placement.topics[name], slot) for worth, name, slot in best]


def _pairs(placement: Placement, moves: int) -> Iterator[tuple[float, str, int]]:
    """What a move saves, and the topic and slot, where so many moves can end the traffic."""
    for topic in placement.topics.values():
        for slot in bits(topic.present):
            count = placement.count(topic, slot)
            inflow = topic.inflow(slot)
            if inflow and count <= moves:
                yield inflow / count, topic.name, slot


def _targets(
    clients: Clients,
    topic: Topic,
    source: int,
    holders: list[str],
    sessions: int,
    bounds: dict[int, float],
) -> list[int] | None:
    """A slot for each client, where the topic is anyway; None if there is not one for each."""
    placement = clients.placement
    coming = dict.fromkeys(placement.open, 0.0)
    found = []
    for client in holders:
        used = clients.slots_of(client, without=topic)
        may = [
            slot
            for slot in placement.open
            if slot != source
            and topic.free >> slot & 1
            and (slot in used or len(used) < sessions)
            and placement.aeo[slot] + coming[slot] + topic.weight <= bounds[slot]
        ]
        if not may:
            return None
        # A session that is there already costs no connection.
        chosen = min(
            may,
            key=lambda slot: (slot not in used, placement.aeo[slot] + coming[slot]),
        )
        coming[chosen] += topic.weight
        found.append(chosen)
    return found


def _relieving(clients: Clients, moves: int, sessions: int) -> Iterator[Move]:
    """Make moves away from brokers that have more than they may, without further traffic."""
    placement = clients.placement
    bounds = _bounds(placement, clients.gamma)
    left = moves
    for source in [slot for slot in placement.open if placement.aeo[slot] > bounds[slot]]:
        broker = str(placement.names[source])
        for client in sorted(clients.at(broker)):
            if left <= 0 or placement.aeo[source] <= bounds[source]:
                break
            for name in dict(clients.sessions_of(client))[broker]:
                topic = placement.topics[name]
                targets = _targets(clients, topic, source, [client], sessions, bounds)
                if targets is None or not topic.weight or left <= 0:
                    continue
                yield _moved(clients, client, topic, (source, targets[0]), 0.0)
                left -= 1


def _moved(
    clients: Clients, client: str, topic: Topic, path: tuple[int, int], saved: float
) -> Move:
    """Make one move."""
    names = clients.placement.names
    source, target = str(names[path[0]]), str(names[path[1]])
    clients.move(client, topic.name, target)
    return Move(client, topic.name, source, target, saved)
