"""A placement of everything that is better than what single arrivals have led to: many small
changes, drawn at random, of which those are kept that save traffic (simulated annealing). For
comparison: whoever uses it would have to move most clients.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WARM = 0.35
"""The first temperature, as a part of the mean rate: at first about every 17th change that costs
one mean topic is kept."""

COLD = 0.02


@dataclass
class Problem:
    """Topics, brokers and clients are numbers from 0."""

    brokers: int
    rates: Sequence[float]
    """messages/s of each topic."""
    publishers: list[int]
    """the broker of each topic's publisher."""
    clients: list[dict[int, int]]
    """for each client topic -> broker."""
    sessions: int
    gamma: float

    def internal(self) -> float:
        """Return the traffic between brokers (messages/s)."""
        wanted: list[set[int]] = [set() for _ in self.rates]
        for client in self.clients:
            for topic, broker in client.items():
                wanted[topic].add(broker)
        return sum(
            rate * len(wanted[topic] - {self.publishers[topic]})
            for topic, rate in enumerate(self.rates)
        )

    def loads(self) -> list[float]:
        """Return what each broker sends to subscribers (messages/s)."""
        found = [0.0] * self.brokers
        for client in self.clients:
            for topic, broker in client.items():
                found[broker] += self.rates[topic]
        return found


class LocalSearch:
    """Changes a problem's placement step by step, within the brokers' bounds."""

    def __init__(self, problem: Problem, drawn: random.Random, publishers: bool = False) -> None:
        """Begin with what is placed.

        `problem`: it is changed; `drawn`: where changes are drawn from; `publishers`: whether
        publishers move, too.
        """
        self.problem = problem
        self.drawn = drawn
        self.moves_publishers = publishers
        self._begin()

    def _begin(self) -> None:
        """Count what is where."""
        problem = self.problem
        self.counts = [[0] * problem.brokers for _ in problem.rates]
        # For each client how many topics it has at each broker.
        self.uses = [[0] * problem.brokers for _ in problem.clients]
        self.loads = problem.loads()
        self.bound = problem.gamma * sum(self.loads) / problem.brokers
        self.pairs = []
        for number, client in enumerate(problem.clients):
            for topic, broker in client.items():
                self.counts[topic][broker] += 1
                self.uses[number][broker] += 1
                self.pairs.append((number, topic))
        self.publishing = [topic for topic, row in enumerate(self.counts) if any(row)]
        self.internal = problem.internal()

    def run(self, proposals: int) -> float:
        """Look at so many changes; return the traffic between brokers (messages/s), which is never
        more than before."""
        before = self.internal
        kept = self._copy()
        rates = self.problem.rates
        mean = sum(rates) / len(rates) if rates else 0
        drawn = self.drawn.random
        for step in range(proposals if self.pairs else 0):
            # Cools down evenly on a logarithmic scale.
            heat = mean * WARM * (COLD / WARM) ** (step / proposals)
            if self.moves_publishers and drawn() < 0.1:
                self._publisher(heat)
            elif drawn() < 0.05:
                self._session(heat)
            else:
                self._topic(heat)
        if self.internal > before:
            self.problem.clients[:], self.problem.publishers[:] = kept
            self._begin()
        return self.internal

    def _copy(self) -> tuple[list[dict[int, int]], list[int]]:
        return [dict(client) for client in self.problem.clients], list(self.problem.publishers)

    def _keeps(self, more: float, heat: float) -> bool:
        return more <= 0 or (heat > 0 and self.drawn.random() < math.exp(-more / heat))

    def _topic(self, heat: float) -> None:
        """Look at one subscription at another broker."""
        number, topic = self.pairs[int(self.drawn.random() * len(self.pairs))]
        client = self.problem.clients[number]
        source = client[topic]
        target = int(self.drawn.random() * self.problem.brokers)
        uses = self.uses[number]
        if target == source:
            return
        if not uses[target]:
            used = sum(map(bool, uses)) - (uses[source] == 1)
            if used >= self.problem.sessions:
                return
        rate = self.problem.rates[topic]
        if self.loads[target] + rate > self.bound:
            return
        more = self._difference(topic, source, target)
        if self._keeps(more, heat):
            self._put(number, topic, target)
            self.internal += more

    def _session(self, heat: float) -> None:
        """Look at all topics of a client at one broker, at another one."""
        number, topic = self.pairs[int(self.drawn.random() * len(self.pairs))]
        client = self.problem.clients[number]
        source = client[topic]
        target = int(self.drawn.random() * self.problem.brokers)
        if target == source:
            return
        topics = [each for each, broker in client.items() if broker == source]
        rates = self.problem.rates
        if self.loads[target] + sum(rates[each] for each in topics) > self.bound:
            return
        more = sum(self._difference(each, source, target) for each in topics)
        if self._keeps(more, heat):
            for each in topics:
                self._put(number, each, target)
            self.internal += more

    def _publisher(self, heat: float) -> None:
        """Look at a topic's publisher at another broker."""
        topic = self.publishing[int(self.drawn.random() * len(self.publishing))]
        source = self.problem.publishers[topic]
        target = int(self.drawn.random() * self.problem.brokers)
        if target == source:
            return
        row, rate = self.counts[topic], self.problem.rates[topic]
        more = rate * (bool(row[source]) - bool(row[target]))
        if self._keeps(more, heat):
            self.problem.publishers[topic] = target
            self.internal += more

    def _difference(self, topic: int, source: int, target: int) -> float:
        """The traffic that a subscription brings when it moves (messages/s)."""
        row, publisher = self.counts[topic], self.problem.publishers[topic]
        rate = self.problem.rates[topic]
        more = 0.0
        if row[source] == 1 and publisher != source:
            more -= rate
        if not row[target] and publisher != target:
            more += rate
        return more

    def _put(self, number: int, topic: int, target: int) -> None:
        client = self.problem.clients[number]
        source = client[topic]
        client[topic] = target
        rate = self.problem.rates[topic]
        self.counts[topic][source] -= 1
        self.counts[topic][target] += 1
        self.uses[number][source] -= 1
        self.uses[number][target] += 1
        self.loads[source] -= rate
        self.loads[target] += rate


def problem_of(
    clients: Sequence[Mapping[int, Sequence[int]]],
    publishers: Sequence[int],
    rates: Sequence[float],
    brokers: int,
    sessions: int,
    gamma: float,
) -> Problem:
    """Return a placement as a problem.

    `clients`: for each client broker -> topics; `publishers`: the broker of each topic's publisher;
    `rates`: messages/s of each topic; `brokers`, `sessions`: how many; `gamma`: how many times its
    due a broker may have.
    """
    placed = [
        {topic: broker for broker, topics in client.items() for topic in topics}
        for client in clients
    ]
    return Problem(brokers, rates, list(publishers), placed, sessions, gamma)
