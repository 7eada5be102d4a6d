"""How fast clients are placed, and in how much memory."""

from __future__ import annotations

import gc
import random
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from mqttree.bench.model.clients import Clients
from mqttree.bench.model.state import Placement
from mqttree.bench.workloads.workload import popular_topics

BLOCK = 10_000
"""clients that are drawn before they are placed."""

SINGLE = 10_000
"""clients that join and leave one by one when all are there."""


Block = list[tuple[str, list[str]]]
"""Clients, each with its topics."""


@dataclass(frozen=True)
class Speed:
    """What was measured."""

    clients: int
    seconds: float
    """CPU time to place all clients, without what draws them."""
    looked_up: float
    """CPU time before that to look up the numbers of topics; 0 if clients are placed by names."""
    join_p99: float
    leave_p99: float
    """us of CPU time of a single client."""
    memory: int
    """bytes of the process at most, with one block of drawn clients."""
    internal: float
    """messages/s between brokers."""
    jain: float
    sessions: int


def measure(
    clients: int,
    topics: int,
    brokers: int,
    each: int,
    alpha: float,
    sessions: int,
    seed: int,
    blocks: bool = False,
) -> Speed:
    """Return how fast clients are placed on brokers with all publishers.

    `clients`, `topics`, `brokers`: how many; `each`: topics of a client; `alpha`: shape of their
    popularity; `sessions`: connections of a client at most; `seed`: of what is drawn; `blocks`:
    whether clients are placed in blocks.
    """
    placement = Placement()
    drawn = random.Random(seed)
    for slot in range(brokers):
        placement.add_broker(f"b{slot}")
    names = [f"t{topic}" for topic in range(topics)]
    for name in names:
        placement.publish(name, f"b{drawn.randrange(brokers)}", 1)
    there = Clients(placement)
    arriving = _drawn(clients, names, each, popular_topics(topics, alpha, drawn))
    # Clients that are placed stay: looking for garbage among them finds nothing.
    collecting = gc.isenabled()
    gc.disable()
    try:
        place = _in_blocks if blocks else _one_by_one
        spent, looked_up, block = place(there, arriving, sessions)
        figures, count = placement.figures(), there.sessions
        joins, leaves = _single(there, block, sessions)
    finally:
        if collecting:
            gc.enable()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Speed(
        clients, spent, looked_up, joins, leaves, memory, figures.internal, figures.jain, count
    )


def _one_by_one(
    there: Clients, arriving: Iterable[Block], sessions: int
) -> tuple[float, float, Block]:
    """Place clients exactly; return the CPU time for it, 0, and the last ones."""
    spent, block = 0.0, Block()
    for block in arriving:
        began = time.process_time()
        there.join_all(block, sessions)
        spent += time.process_time() - began
    return spent, 0.0, block


def _in_blocks(
    there: Clients, arriving: Iterable[Block], sessions: int
) -> tuple[float, float, Block]:
    """Place clients at once; return the CPU time for it, that to look up their topics, and the last
    ones. Raises ValueError if there is no numpy."""
    try:
        from mqttree.bench.placement import blocks
    except ModuleNotFoundError as error:
        raise ValueError(f"{error.name} is not installed: pip install 'mqttree[bench]'") from None
    numbering = blocks.Numbering()
    ids: list[str] = []
    looked_up, block = 0.0, Block()
    for block in arriving:
        ids += [client for client, _ in block]
        wanted = [topics for _, topics in block]
        began = time.process_time()
        numbering.add(wanted)
        looked_up += time.process_time() - began
    began = time.process_time()
    names, whole = numbering.names, numbering.wanted()
    middle = time.process_time()
    blocks.place(there.placement, names, whole, sessions, there.gamma).settle(there, ids)
    return time.process_time() - middle, looked_up + middle - began, block


def _drawn(
    clients: int, names: list[str], each: int, draw: Callable[[int], list[int]]
) -> Iterator[Block]:
    for first in range(0, clients, BLOCK):
        yield [
            (f"c{number}", [names[topic] for topic in draw(each)])
            for number in range(first, min(first + BLOCK, clients))
        ]


def _single(there: Clients, block: Block, sessions: int) -> tuple[float, float]:
    """The 99th percentiles of joins and leaves, in us of CPU time: what else runs on the machine
    would be most of them otherwise."""
    joins, leaves = [], []
    for client, topics in block[:SINGLE]:
        began = time.thread_time()
        there.leave(client)
        middle = time.thread_time()
        there.join(client, topics, sessions)
        joins.append(time.thread_time() - middle)
        leaves.append(middle - began)
    return _p99(joins), _p99(leaves)


def _p99(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) * 99 // 100] * 1e6
