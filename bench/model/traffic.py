"""The model of clients that connect to random brokers: how much traffic crosses between brokers
(Detti et al., "Sub-linear Scalability of MQTT Clusters", equations 1 to 7, 12 and 15).

Brokers are a full mesh; each interested broker gets one copy from the publisher's broker.
Subscribers are alike and independent of each other, each topic has one publisher, nothing is lost.
Rates are messages/s. Equations 8 to 10 are `state`, 11 is `greedy`, 13 and 14 are `figures`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence


def popularity(topics: int, alpha: float) -> list[float]:
    """Return how likely each topic is drawn (Zipf): c / j^alpha, which add up to 1.

    `topics`: how many, at least 1; `alpha`: the shape, 0 if all are alike.
    """
    weights = [j**-alpha for j in range(1, topics + 1)]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def draws(popular: Sequence[float], different: int) -> float:
    """Return how many draws bring so many different topics on average (tau of equation 1).

    `popular`: how likely each topic is drawn; `different`: how many topics, fewer than there are.
    Raises ValueError if there are not more topics.
    """
    if not 0 < different < len(popular):
        raise ValueError(f"{different} different topics are not among {len(popular)}")
    # The sum is concave and at most tau: Newton's steps from here stay below the root.
    tau = float(different)
    for _ in range(200):
        lacking = different + math.fsum(math.expm1(-each * tau) for each in popular)
        slope = math.fsum(each * math.exp(-each * tau) for each in popular)
        step = lacking / slope
        tau += step
        if abs(step) <= 1e-14 * tau:
            break
    return tau


def wanted(topics: int, each: int, alpha: float) -> list[float]:
    """Return how likely a subscriber wants each topic (equations 1 and 2).

    `topics`: how many there are; `each`: how many different ones a subscriber has; `alpha`: shape
    of their popularity. Raises ValueError if there are not more topics than `each`.
    """
    popular = popularity(topics, alpha)
    if each == 1:
        return popular
    tau = draws(popular, each)
    return [-math.expm1(-chance * tau) for chance in popular]


def level_chances(depth: int, alpha: float) -> list[float]:
    """Return how likely a subscriber chooses a node of each level, the root's first (equation 15).

    `depth`: levels of the topic tree, at least 2; `alpha`: larger, the more choose a leaf.
    """
    total = math.fsum(j**-alpha for j in range(1, depth))
    return [0.0] + [(depth - level + 1) ** -alpha / total for level in range(2, depth + 1)]


def wanted_of_tree(chances: Sequence[float], nodes: Sequence[int]) -> float:
    """Return how likely a subscriber wants a leaf of a topic tree: it subscribes to all leaves
    below one node (equation 3).

    `chances`: how likely it chooses each level; `nodes`: how many nodes the level has.
    """
    return math.fsum(chance / n for chance, n in zip(chances, nodes, strict=True))


def sent(chance: float, brokers: float, subscribers: int) -> float:
    """Return how likely a broker has a subscriber of a topic (equation 7, in closed form).

    `chance`: that a subscriber wants the topic; `brokers`: how many; `subscribers`: how many.
    """
    part = chance / brokers
    return 1.0 if part >= 1 else -math.expm1(subscribers * math.log1p(-part))


def external_out(chances: Sequence[float], rates: Sequence[float], subscribers: int) -> float:
    """Return the messages/s to subscribers (equation 5). Those of publishers are the sum of
    `rates` (equation 4).

    `chances`: that a subscriber wants each topic; `rates`: of the topics; `subscribers`: how many.
    """
    pairs = zip(chances, rates, strict=True)
    return subscribers * math.fsum(chance * rate for chance, rate in pairs)


def internal(
    chances: Sequence[float], rates: Sequence[float], subscribers: int, brokers: int
) -> float:
    """Return the messages/s between brokers (equation 6).

    `chances`: that a subscriber wants each topic; `rates`: of the topics; `subscribers`,
    `brokers`: how many.
    """
    pairs = zip(chances, rates, strict=True)
    return (brokers - 1) * math.fsum(
        sent(chance, brokers, subscribers) * rate for chance, rate in pairs
    )


def internal_on_tree(
    chances: Sequence[float],
    rates: Sequence[float],
    subscribers: int,
    sides: Sequence[int],
) -> float:
    """Return the messages/s over all links of a spanning tree of brokers, where a message takes a
    link if a broker beyond it has a subscriber.

    `chances`, `rates`, `subscribers`: as for `internal`; `sides`: for each link, how many brokers
    are on one side of it (`tree_sides`).
    """
    brokers = len(sides) + 1
    total = 0.0
    for chance, rate in zip(chances, rates, strict=True):
        for here in sides:
            there = brokers - here
            beyond = sent(chance, brokers / there, subscribers) * here
            back = sent(chance, brokers / here, subscribers) * there
            total += rate * (beyond + back) / brokers
    return total


_PARENTS: dict[str, Callable[[int], int]] = {
    "star": lambda _: 0,
    "line": lambda broker: broker - 1,
    "binary": lambda broker: (broker - 1) // 2,
}

TREES = tuple(_PARENTS)


def tree_parents(shape: str, brokers: int) -> list[int]:
    """Return for each broker of a tree the one above it, -1 for broker 0, the root. Raises KeyError
    if there is no such shape.

    `shape`: of `TREES`; `brokers`: how many.
    """
    parent = _PARENTS[shape]
    return [parent(broker) if broker else -1 for broker in range(brokers)]


def tree_sides(shape: str, brokers: int) -> list[int]:
    """Return for each link of a tree how many brokers are below it. Raises KeyError if there is no
    such shape.

    `shape`: of `TREES`; `brokers`: how many.
    """
    parents = tree_parents(shape, brokers)
    below = [1] * brokers
    for broker in range(brokers - 1, 0, -1):
        below[parents[broker]] += below[broker]
    return below[1:]


def stirling(items: int, parts: int) -> int:
    """Return in how many ways items can be in so many parts, none of them empty (Stirling numbers
    of the second kind)."""
    row = [1] + [0] * parts
    for _ in range(items):
        row = [0] + [row[n - 1] + n * row[n] for n in range(1, parts + 1)]
    return row[parts]


def decision_space(brokers: int, topics: int, sessions: int) -> int:
    """Return in how many ways a client can be placed (equation 12).

    `brokers`: how many there are; `topics`: of the client; `sessions`: connections at most.
    """
    return sum(
        math.comb(brokers, used) * stirling(topics, used) * math.factorial(used)
        for used in range(1, sessions + 1)
    )
