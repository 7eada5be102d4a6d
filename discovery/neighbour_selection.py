"""Which of many members a broker links to: a chordal ring over their sorted ids
(docs/decisions/0019-neighbours.md).

Up to `full_mesh` members everybody links to everybody. Beyond, a broker wants those that are 1, 2,
4, 8, ... places away on the ring, in both directions, and whoever would otherwise be cut off. It
closes what it dialled and does not want, after a while.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from discovery.dialler import NEVER
from discovery.member_table import MemberTable

SETTLE = 0.1
"""Seconds without a new member after which the ring is looked at again: those that start together
are one change, not hundreds."""
SETTLE_AT_MOST = 0.5
"""Seconds that newcomers can put this off."""
REVIEW = 5.0
"""Seconds between two looks when nothing changes: at strays, and at links that are not wanted any
more."""
STRAY_AFTER = 10.0
"""Seconds that a member is neither linked nor in our tree before it is dialled, wherever it is on
the ring: a tree takes one or two to form, and some more with a slow network."""
MAX_STRAYS = 16
"""Strays that are dialled at a time, those that were tried least first: about as many as a broker
has neighbours."""
SURPLUS_AFTER = 30.0
"""Seconds that a link is not wanted before it is closed: longer than a restart takes, and than what
a join or a leave moves."""


def neighbours(
    own: bytes, others: Iterable[bytes], failing: Callable[[bytes], bool] = lambda _: False
) -> set[bytes]:
    """Return the ids that the broker `own` links to, of the ids `others`: those 1, 2, 4, ... places
    away on the ring, up to half of it. Beside an id in `failing`, whose dials fail, the next one
    that does not fail is chosen.

    If none fails and all brokers choose from the same members, the choice is mutual, each broker
    chooses at most 2 * log2(n) of n, and the graph is connected (by distance 1) with a diameter of
    at most log2(n).
    """
    ring = sorted({own, *others})
    size = len(ring)
    place = ring.index(own)
    chosen: set[bytes] = set()
    step = 1
    while step <= size // 2:
        for way in (1, -1):
            for distance in range(step, size):
                candidate = ring[(place + way * distance) % size]
                if candidate == own:
                    break
                if distance == step or not failing(candidate):
                    chosen.add(candidate)
                if not failing(candidate):
                    break
        step *= 2
    return chosen


class NeighbourSelection:
    """Keeps a table's choice of neighbours up to date."""

    __slots__ = ("_began", "_full_mesh", "_own", "_rng", "_surplus", "_table", "due")

    def __init__(
        self, own: bytes, table: MemberTable, full_mesh: int | None, rng: random.Random
    ) -> None:
        """`own`: this broker's id. `table`: the members. `full_mesh`: number of other members up to
        which all are chosen; None: any number. `rng`: spreads the times of changes."""
        self._own = own
        self._table = table
        self._full_mesh = full_mesh
        self._rng = rng
        self._began = -NEVER  # the first change that was not looked at yet
        self._surplus: dict[bytes, float] = {}  # linked and not wanted -> since when
        self.due = NEVER

    @property
    def crowded(self) -> bool:
        """Whether there are too many for everybody to link to everybody."""
        return self._table.chosen is not None

    def changed(self, now: float) -> None:
        """Take note that there is another member, or one less, or one that cannot be reached."""
        if self._full_mesh is None:
            return
        if (len(self._table.members) > self._full_mesh) is not self.crowded:
            self.due = now  # the first that are heard of are dialled at once
        elif self.crowded:
            if self._began == -NEVER:
                self._began = now
            self.due = min(now + SETTLE, self._began + SETTLE_AT_MOST)

    def chance(self) -> bool:
        """Whether to answer a newcomer: of many brokers some are enough, as one link makes it known
        to all."""
        return not self.crowded or self._rng.random() * len(self._table.members) < 2 * (
            self._full_mesh or 1
        )

    def review(self, now: float) -> list[bytes]:
        """Choose again and have the missing ones dialled; returns those whose links may be closed,
        if we dialled them."""
        table = self._table
        self._began = -NEVER
        if self._full_mesh is None or len(table.members) <= self._full_mesh:
            self.due = NEVER
            self._surplus.clear()
            table.choose(None, now)
            return []
        self.due = now + REVIEW * self._rng.uniform(0.8, 1.0)
        chosen = self._choice(now)
        table.choose(chosen, now)
        unwanted = [
            member.id
            for member in table.members.values()
            if member.linked and member.id not in chosen
        ]
        self._surplus = {broker: self._surplus.get(broker, now) for broker in unwanted}
        return [
            broker
            for broker, since in self._surplus.items()
            if now - since >= SURPLUS_AFTER and table.members[broker].called
        ]

    def _choice(self, now: float) -> set[bytes]:
        table = self._table
        members = table.members
        # Who was made up by a neighbour must not keep a place: whom only others speak for has none
        # once a dial failed.
        credible = [
            member.id for member in members.values() if member.known or not table.failing(member)
        ]
        if len(credible) <= (self._full_mesh or 0):
            chosen = set(credible)
        else:
            chosen = neighbours(self._own, credible, lambda broker: table.failing(members[broker]))
        former = table.chosen or ()
        strays: list[tuple[int, bool, float, bytes]] = []
        for member in members.values():
            if member.linked or member.reachable or member.id in chosen:
                continue
            if table.seeded(member) or (member.was_linked and now - member.since < STRAY_AFTER):
                chosen.add(member.id)
            elif now - member.since >= STRAY_AFTER:
                strays.append(
                    (
                        table.failures(member),
                        member.id not in former,
                        self._rng.random(),
                        member.id,
                    )
                )
        chosen.update(stray[3] for stray in sorted(strays)[:MAX_STRAYS])
        return chosen
