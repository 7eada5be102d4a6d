"""What brokers carry for each other where messages follow a tree, as with the routing modes
`interest` and `flood`: also what passes through. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence


def carried(
    parents: Sequence[int], published: Mapping[int, int], wanted: Mapping[int, Iterable[int]]
) -> tuple[list[int], list[int]]:
    """Return the messages that each broker gets from others, and sends to them, for one message of
    each topic.

    `parents`: of each broker on the tree, -1 of its root; `published`: topic -> broker of its
    publisher; `wanted`: topic -> brokers with subscribers. Raises ValueError for a circle.
    """
    paths = [_to_root(parents, broker) for broker in range(len(parents))]
    into, out = [0] * len(parents), [0] * len(parents)
    for topic, source in published.items():
        crossed: set[tuple[int, int]] = set()
        for target in wanted.get(topic, ()):
            crossed |= _between(paths[source], paths[target])
        for sender, receiver in crossed:
            out[sender] += 1
            into[receiver] += 1
    return into, out


def _to_root(parents: Sequence[int], broker: int) -> list[int]:
    path = [broker]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
        if len(path) > len(parents):
            raise ValueError("the parents of brokers are a circle")
    return path


def _between(source: Sequence[int], target: Sequence[int]) -> set[tuple[int, int]]:
    """The steps from the first broker of one path to the root to the first of another."""
    meeting = next((broker for broker in source if broker in target), None)
    if meeting is None:
        raise ValueError("the brokers are not on one tree")
    up = source[: source.index(meeting) + 1]
    down = target[: target.index(meeting) + 1][::-1]
    way = [*up, *down[1:]]
    return set(itertools.pairwise(way))
