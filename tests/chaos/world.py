"""Network and brokers as they are: who can reach whom, and how long two brokers were split. No
clock: it is told the time.

What is promised of order ends with splits of five seconds; whether there was one is for the world
to say, not for the brokers.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, pairwise
from typing import Any

from mqttree.bench.lab.agreement import agreed

Pair = frozenset[int]
SHAPES = ("mesh", "line", "ring", "star")


def cables(shape: str, count: int) -> set[Pair]:
    """Return which brokers are next to each other."""
    names = range(count)
    if shape == "mesh":
        return {frozenset(pair) for pair in combinations(names, 2)}
    if shape == "star":
        return {frozenset((0, other)) for other in names if other}
    row = {frozenset(pair) for pair in pairwise(names)}
    return row | {frozenset((0, count - 1))} if shape == "ring" else row


class World:
    """Cables and brokers; some of them do not work at the moment."""

    def __init__(self, shape: str, count: int) -> None:
        self.count = count
        self.shape = cables(shape, count)
        self.cut: dict[Pair, int] = {}  # how many faults have cut it
        self.down: dict[int, int] = {}
        self._since: dict[Pair, float] = {}  # pairs that are split
        self._longest: dict[Pair, float] = {}

    def set(
        self, now: float, *, down: Iterable[int] = (), cut: Iterable[Pair] = (), by: int
    ) -> None:
        """Let brokers or cables fail (`by` 1), or work again (-1)."""
        for broker in down:
            self.down[broker] = self.down.get(broker, 0) + by
        for cable in cut:
            self.cut[cable] = self.cut.get(cable, 0) + by
        self.look(now)

    def _parts(self, without: int | None = None) -> dict[int, int]:
        """Return which part each broker that runs, but for one, is in, by its first broker."""
        part: dict[int, int] = {}
        runs = [b for b in range(self.count) if self.down.get(b, 0) <= 0 and b != without]
        for start in runs:
            if start not in part:
                part[start], found = start, [start]
                while found:
                    one = found.pop()
                    for other in runs:
                        cable = frozenset((one, other))
                        works = cable in self.shape and self.cut.get(cable, 0) <= 0
                        if works and other not in part:
                            part[other] = start
                            found.append(other)
        return part

    def joined_without(self, broker: int) -> bool:
        """Return whether all others that run reach each other when a `broker` is down."""
        return len(set(self._parts(broker).values())) == 1

    def look(self, now: float) -> None:
        """Note which brokers are split."""
        part = self._parts()
        for one, other in combinations(range(self.count), 2):
            pair = frozenset((one, other))
            if one in part and part.get(other) == part[one]:
                if (since := self._since.pop(pair, None)) is not None:
                    self._longest[pair] = max(self._longest.get(pair, 0.0), now - since)
            else:
                self._since.setdefault(pair, now)

    def apart(self, one: int, other: int, now: float) -> float:
        """Return the longest time in s that these were split since `forget`."""
        pair = frozenset((one, other))
        return max(self._longest.get(pair, 0.0), now - self._since.get(pair, now))

    def forget(self) -> None:
        """All was compared: what comes from here on has no excuse in what has been."""
        self._longest.clear()

    def whole(self, states: list[dict[str, Any] | None], order: list[int]) -> bool:
        """Whether these brokers (`order` says which each is) agree on one tree, over links between
        all neighbours."""
        known = [state for state in states if state is not None]
        if len(known) < len(states) or any(
            len(state["members"]) < len(order) - 1 for state in known
        ):
            return False
        ids = {index: state["id"] for index, state in zip(order, known, strict=True)}
        near = {
            ids[one]: {ids[other] for other in order if frozenset((one, other)) in self.shape}
            for one in order
        }
        return agreed(states, near)
