"""The choice of neighbours among many members: a chordal ring over their sorted ids
(docs/decisions/0019-neighbours.md).

Up to `full_mesh` members, every broker links to every other. Beyond, a broker wants those that are
1, 2, 4, 8, ... places away on the ring, in both directions, and members that would otherwise be cut
off. After a while it closes links that it dialled and does not want.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from mqttree.discovery.dialler import NEVER
from mqttree.discovery.member_table import MemberTable

SETTLE = 0.1
"""Seconds without a new member after which neighbours are chosen again: brokers that start together
are one change, not hundreds."""
SETTLE_AT_MOST = 0.5
"""Seconds by which newcomers can delay this."""
REVIEW = 5.0
"""Seconds between two reviews when nothing changes: of members that are cut off, and of links that
are not wanted any more."""
STRAY_AFTER = 10.0
"""Seconds that a member is neither linked nor in the tree before it is dialled, wherever it is on
the ring: a tree takes one or two to form, and more in a slow network."""
MAX_STRAYS = 16
"""Members outside the tree that are dialled at a time, least recently tried first: about as many as
a broker has neighbours."""
SURPLUS_AFTER = 30.0
"""Seconds that a link is not wanted before it is closed: longer than a restart takes, and than a
join or leave changes the ring."""


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

    def __init__(
        self, own: bytes, table: MemberTable, full_mesh: int | None, rng: random.Random
    ) -> None:
        """`own`: this broker's id. `table`: the members. `full_mesh`: number of other members up to
        which all are chosen; None: any number. `rng`: spreads the times of changes."""
        self._own = own
        self._table = table
        self._full_mesh = full_mesh
        self._rng = rng
        # The first change that was not handled yet.
        self._began = -NEVER
        # Linked and not wanted -> since when.
        self._surplus: dict[bytes, float] = {}
        self.due = NEVER

    @property
    def crowded(self) -> bool:
        """Whether there are too many members for every broker to link to every other."""
        return self._table.chosen is not None

    def changed(self, now: float) -> None:
        """Note that there is a member more or less, or one that cannot be reached."""
        if self._full_mesh is None:
            return
        if (len(self._table.members) > self._full_mesh) is not self.crowded:
            # The first members are dialled at once.
            self.due = now
        elif self.crowded:
            if self._began == -NEVER:
                self._began = now
            self.due = min(now + SETTLE, self._began + SETTLE_AT_MOST)

    def chance(self) -> bool:
        """Return whether to answer a newcomer: of many brokers some are enough, as one link makes
        it known to all."""
        return not self.crowded or self._rng.random() * len(self._table.members) < 2 * (
            self._full_mesh or 1
        )

    def review(self, now: float) -> list[bytes]:
        """Choose again and have missing neighbours dialled. Returns those whose links may be
        closed, if this broker dialled them."""
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
        # A made-up member must not keep a place: a member known from gossip only has none once a
        # dial failed.
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
