"""What becomes of a placement when clients come and go, when moves are made, when a broker fails.
Pure."""

from __future__ import annotations

import random
from collections.abc import Callable

from mqttree.bench.model.clients import Clients
from mqttree.bench.model.strategies import STRATEGIES, publisher_slot
from mqttree.bench.placement.rebalancing import apply, plan
from mqttree.bench.workloads import simulator
from mqttree.bench.workloads.workload import Workload

FAILED = "3"
"""The broker that fails."""


def joined(work: Workload, brokers: int, strategy: str, sessions: int, seed: int) -> Clients:
    """Return all clients of a workload, placed.

    `work`: the workload; `brokers`: how many; `strategy`: of `STRATEGIES`; `sessions`: connections
    of a client at most; `seed`: of what is drawn.
    """
    placement = simulator.publish(work, brokers, seed)
    clients = Clients(placement, work.gamma, STRATEGIES[strategy])
    for number, topics in enumerate(work.clients):
        clients.join(f"c{number}", map(str, topics), sessions)
    return clients


def replace(
    clients: Clients, draw: Callable[[], list[int]], times: int, sessions: int, seed: int
) -> None:
    """Let clients go, each followed by one with other topics.

    `clients`: who is there; `draw`: returns the topics of a client that comes; `times`: how often
    each is replaced, on average; `sessions`: connections of a client at most; `seed`: of what is
    drawn.
    """
    drawn = random.Random(f"leaving {seed}")
    count = len(clients)
    for _ in range(times * count):
        client = f"c{drawn.randrange(count)}"
        clients.leave(client)
        clients.join(client, map(str, draw()), sessions)


def move(clients: Clients, moves: int, sessions: int) -> int:
    """Make moves that pay; return how many.

    `clients`: who is there; `moves`: how many at most; `sessions`: connections of a client at most.
    """
    planned = plan(clients, moves, sessions)
    apply(clients, planned)
    return len(planned)


def fail(clients: Clients, work: Workload, sessions: int, everybody: bool) -> None:
    """Let a broker fail, with its publishers; publishers and clients without a broker are placed
    again, publishers where they make the least traffic.

    `clients`: who is there; `work`: what they want; `sessions`: connections of a client at most;
    `everybody`: whether all clients are placed again, for comparison.
    """
    placement = clients.placement
    lost = [
        name
        for name, topic in placement.topics.items()
        if placement.slots[FAILED] in topic.publishers
    ]
    orphans = clients.fail(FAILED)
    for name in lost:
        rate = work.rates[int(name)]
        slot = publisher_slot(placement, placement.known([name]), rate)
        placement.publish(name, str(placement.names[slot]), rate)
    if everybody:
        names = [f"c{number}" for number in range(len(work.clients))]
        for client in names:
            clients.leave(client)
    else:
        names = list(orphans)
    for client in names:
        if everybody:
            clients.join(client, map(str, work.clients[int(client[1:])]), sessions)
        else:
            clients.add(client, orphans[client], sessions)
