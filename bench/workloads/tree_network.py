"""Brokers on a spanning tree, where a message passes through those that lie between the publisher's
broker and the subscribers'. What passes through is load, too, and a broker that it passes may have
subscribers for nothing. So what a subscriber adds is its topic's rate times the *hops* from its
broker to the nearest one that has the topic. A full mesh is the case where each hop is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mqttree.bench.model.greedy import Assignment
from mqttree.bench.model.optimum import assign
from mqttree.bench.model.state import Placement, Topic, bits
from mqttree.bench.model.strategies import Strategy
from mqttree.placement.figures import Figures


class TreeNetwork:
    """The links between brokers. Broker n of the tree is the one with slot n."""

    def __init__(self, parents: Sequence[int]) -> None:
        """Find all ways. Raises ValueError for a circle, and for brokers that are not on one tree.

        `parents`: of each broker the one above it, -1 of the root.
        """
        brokers = range(len(parents))
        above = [_to_root(parents, broker) for broker in brokers]
        ways = [[_way(above[source], above[target]) for target in brokers] for source in brokers]
        self.passed: list[list[int]] = [[_mask(way) for way in row] for row in ways]
        """source -> target -> mask of the brokers on the way, with both."""
        self.onward: list[list[int]] = [[way[min(1, len(way) - 1)] for way in row] for row in ways]
        """source -> target -> the next broker on the way."""

    def __len__(self) -> int:
        """Return how many brokers there are."""
        return len(self.passed)

    def reached(self, source: int, wanted: int) -> int:
        """Return the mask of the brokers that have a message, with the one where it is published.

        `source`: that one's slot; `wanted`: mask of the slots with subscribers.
        """
        found = 1 << source
        ways = self.passed[source]
        for slot in bits(wanted):
            found |= ways[slot]
        return found

    def costs(self, topic: Topic) -> list[float]:
        """Return the traffic between brokers that a subscriber of a topic adds, by slot
        (messages/s)."""
        found = [0.0] * len(self.passed)
        wanted = topic.present
        for source, rate in topic.publishers.items():
            missing = ~self.reached(source, wanted)
            for slot, way in enumerate(self.passed[source]):
                found[slot] += rate * (way & missing).bit_count()
        return found

    def carried(
        self, publishers: Mapping[int, float], wanted: int, aii: list[float], aio: list[float]
    ) -> None:
        """Add what brokers get from others, and send to them, of one topic.

        `publishers`: messages/s by slot; `wanted`: mask of the slots with subscribers; `aii`,
        `aio`: messages/s by slot, what is added to.
        """
        for source, rate in publishers.items():
            for slot in bits(self.reached(source, wanted) & ~(1 << source)):
                aii[slot] += rate
                aio[self.onward[slot][source]] += rate

    def figures(self, placement: Placement) -> Figures:
        """Return the traffic of a placement, also what passes through. Raises ValueError if its
        brokers are not those of the tree."""
        slots = sorted(placement.slots.values())
        if slots != list(range(len(self))):
            raise ValueError(f"the tree has {len(self)} brokers, the placement others")
        aii, aio = [0.0] * len(self), [0.0] * len(self)
        for topic in placement.topics.values():
            self.carried(topic.publishers, topic.present, aii, aio)
        mesh = placement.figures()
        return Figures(mesh.brokers, mesh.aei, mesh.aeo, tuple(aii), tuple(aio), sum(aii))


def by_hops(network: TreeNetwork) -> Strategy:
    """Return the strategy that places each client where the hops of its topics, times their rates,
    are fewest: of all sets of brokers, as `optimum` does for a full mesh; of equal ones those with
    the least load.

    `network`: how brokers are linked.
    """

    def hops(
        placement: Placement, topics: Sequence[Topic], sessions: int, gamma: float, avoid: int = 0
    ) -> Assignment:
        items = [(topic,) for topic in topics]
        costs = [network.costs(topic) for topic in topics]
        return assign(placement, items, costs, sessions, gamma, avoid)

    return hops


def _to_root(parents: Sequence[int], broker: int) -> list[int]:
    path = [broker]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
        if len(path) > len(parents):
            raise ValueError("the parents of brokers are a circle")
    return path


def _way(source: Sequence[int], target: Sequence[int]) -> list[int]:
    """The brokers from the first one of one path to the root to the first of another."""
    meeting = next((broker for broker in source if broker in target), None)
    if meeting is None:
        raise ValueError("the brokers are not on one tree")
    up = source[: source.index(meeting) + 1]
    down = target[: target.index(meeting)]
    return [*up, *reversed(down)]


def _mask(slots: Sequence[int]) -> int:
    found = 0
    for slot in slots:
        found |= 1 << slot
    return found
