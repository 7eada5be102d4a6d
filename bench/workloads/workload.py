"""Workloads: who wants which topics, who publishes them where. Drawn ones are those of Detti et
al.; the same seed draws the same. Pure."""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mqttree.bench.model.traffic import popularity
from mqttree.placement.greedy import GAMMA
from mqttree.placement.question import SESSIONS


@dataclass
class Workload:
    """Topics are numbers, brokers are numbers from 0."""

    clients: list[list[int]]
    """the topics of each client, in the order of arrival."""
    rates: dict[int, float]
    """messages/s of each topic."""
    publishers: dict[int, dict[int, int]] = field(default_factory=dict)
    """number of brokers -> topic -> broker of its publisher."""
    attached: dict[int, list[int]] = field(default_factory=dict)
    """number of brokers -> broker of each client, with random attach."""
    given: dict[int, list[dict[int, list[int]]]] = field(default_factory=dict)
    """number of brokers -> for each client broker -> topics, as a file has placed it."""
    gamma: float = GAMMA
    sessions: int = SESSIONS

    def publishers_on(self, brokers: int, seed: int) -> dict[int, int]:
        """Return the broker of each topic's publisher: what is known, else drawn.

        `brokers`: how many there are; `seed`: of what is drawn.
        """
        known = self.publishers.get(brokers)
        if known is not None:
            return known
        drawn = random.Random(f"publishers {brokers} {seed}")
        return {topic: drawn.randrange(brokers) for topic in sorted(self.rates)}

    def attached_on(self, brokers: int, seed: int) -> list[int]:
        """Return the broker of each client with random attach: what is known, else drawn.

        `brokers`: how many there are; `seed`: of what is drawn.
        """
        known = self.attached.get(brokers)
        if known is not None:
            return known
        drawn = random.Random(f"attached {brokers} {seed}")
        return [drawn.randrange(brokers) for _ in self.clients]


def equal_rates(topics: int) -> dict[int, float]:
    """Return one message a second for each topic."""
    return dict.fromkeys(range(topics), 1)


def popular_topics(topics: int, alpha: float, drawn: random.Random) -> Callable[[int], list[int]]:
    """Return what draws so many different topics, the popular ones more often (Zipf).

    `topics`: how many there are; `alpha`: shape of their popularity; `drawn`: where they are drawn
    from.
    """
    sums = list(itertools.accumulate(j**-alpha for j in range(1, topics + 1)))
    total = sums[-1]

    def draw(different: int) -> list[int]:
        found: set[int] = set()
        while len(found) < different:
            found.add(bisect.bisect(sums, drawn.random() * total, hi=topics - 1))
        return sorted(found)

    return draw


def social(topics: int, subscribers: int, each: int, alpha: float, seed: int) -> Workload:
    """Return subscribers that each follow some topics, popular ones more often.

    `topics`, `subscribers`: how many; `each`: topics of a subscriber; `alpha`: shape of their
    popularity, 0 if all are alike; `seed`: of what is drawn. Raises ValueError if there are not
    more topics than `each`.
    """
    if not 0 < each < topics:
        raise ValueError(f"a subscriber cannot have {each} of {topics} topics")
    draw = popular_topics(topics, alpha, random.Random(f"clients {seed}"))
    return Workload([draw(each) for _ in range(subscribers)], equal_rates(topics))


def follower_graph(users: int, each: int, seed: int) -> Workload:
    """Return users that follow each other: each who comes follows some of those who are there, with
    a chance that grows with their followers (preferential attachment; Barabasi and Albert, 1999).
    How many follow one has a power law. Each user is a client, and a topic that its followers want.

    `users`: how many; `each`: whom one follows; `seed`: of what is drawn. Raises ValueError if
    there are not more users than `each`.
    """
    if not 0 < each < users:
        raise ValueError(f"a user cannot follow {each} of {users} users")
    drawn = random.Random(f"graph {seed}")
    # Each user once, and once more for each follower: so one is drawn as often as is due.
    tickets = list(range(each + 1))
    clients = [sorted(set(range(each + 1)) - {user}) for user in range(each + 1)]
    for topics in clients:
        tickets += topics
    for user in range(each + 1, users):
        found: set[int] = set()
        while len(found) < each:
            found.add(drawn.choice(tickets))
        clients.append(sorted(found))
        tickets += [*clients[-1], user]
    return Workload(clients, equal_rates(users))


def topic_tree(
    chances: Sequence[float], nodes: Sequence[int], subscribers: int, seed: int
) -> Workload:
    """Return subscribers that each want all leaves below one node of a topic tree.

    `chances`: how likely a subscriber chooses each level, the root's first; `nodes`: how many
    nodes the level has, of the last one the topics; `subscribers`: how many; `seed`: of what is
    drawn.
    """
    drawn = random.Random(f"clients {seed}")
    leaves = nodes[-1]
    clients = []
    for _ in range(subscribers):
        level = drawn.choices(range(len(nodes)), weights=chances)[0]
        node, n = drawn.randrange(nodes[level]), nodes[level]
        # The leaves of a level's nodes follow each other.
        clients.append(list(range(-(-node * leaves // n), -(-(node + 1) * leaves // n))))
    return Workload(clients, equal_rates(leaves))


RATES = ("equal", "lognormal", "zipf")


def drawn_rates(kind: str, topics: int, shape: float, seed: int) -> list[float]:
    """Return the rate of each topic, one message/s on average, to six places.

    `kind`: of `RATES`; `topics`: how many; `shape`: of lognormal ones the deviation as a multiple
    of the mean, of Zipf ones alpha; `seed`: of what is drawn. Raises ValueError if there is no such
    kind.
    """
    drawn = random.Random(f"rates {seed}")
    if kind == "equal":
        return [1] * topics
    if kind == "lognormal":
        sigma = math.sqrt(math.log1p(shape * shape))
        return [round(drawn.lognormvariate(-sigma * sigma / 2, sigma), 6) for _ in range(topics)]
    if kind == "zipf":
        # Topics that are wanted by many need not be those with high rates.
        rates = [round(chance * topics, 6) for chance in popularity(topics, shape)]
        drawn.shuffle(rates)
        return rates
    raise ValueError(f"there are no {kind} rates")
