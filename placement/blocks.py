"""Many clients at once, as at a start from nothing: placed in *blocks*, whose clients do not see
each other's load.

Which brokers are below their bound, and their order by load, are found when a block begins. It ends
when a broker has got its *room*, a part of the mean load, so that blocks grow with the load; as
long as that is less than what one client has, clients are placed one by one. What a topic costs
where is known as of each client: it decides how much traffic crosses between brokers, and is cheap
to keep up. All else is the greedy strategy with ties by load.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from placement.clients import Clients
from placement.greedy import cheapest, fair_slots
from placement.state import NARROW_BITS, NARROW_SUM, Placement, Topic

ROOM: Final = 0.003
"""What a broker may get in one block, as a part of the mean load."""


class Blocks:
    """Places clients in blocks; any client can be placed otherwise in between."""

    def __init__(self, clients: Clients, room: float = ROOM) -> None:
        """Begin with who is there.

        `clients`: who is placed, and where further ones are counted; `room`: what a broker may get
        in one block, as a part of the mean load.
        """
        self.clients = clients
        self.room = room
        self.blocks = 0
        """how many there were."""
        self._room = 0.0
        self._order: list[int] = []
        self._limits: list[float] = []

    def join_all(self, clients: Iterable[tuple[str, Iterable[str]]], sessions: int) -> None:
        """Place clients, as `Clients.join_all` does. Those whose rates have no lanes, or are high,
        are placed one by one. Raises ValueError if no broker takes clients.

        `clients`: ids, each with what the client subscribes to; `sessions`: connections of each at
        most.
        """
        there = self.clients
        placement = there.placement
        full = True
        for client, topics in clients:
            if client in there:
                there.leave(client)
            found = placement.known(topics)
            weight, hits = 0.0, 0
            for topic in found:
                weight += topic.weight
                hits += topic.lanes
            plain = (
                placement.lane_bits == NARROW_BITS and not placement.fractions and placement.uniform
            )
            if full:
                try:
                    self._begin(placement)
                except ValueError:
                    placement.forget(found)
                    raise
            if not plain or weight > min(self._room, NARROW_SUM):
                there.join_known(client, found, sessions)
                full = True
            else:
                full = self._place(client, found, hits, sessions)

    def _begin(self, placement: Placement) -> None:
        """Begin a block."""
        self.blocks += 1
        aeo = placement.aeo
        fair = fair_slots(placement, aeo, self.clients.gamma)
        self._order = sorted(fair, key=aeo.__getitem__)
        self._room = self.room * sum(aeo) / len(placement.open)
        self._limits = [load + self._room for load in aeo]

    def _place(self, client: str, left: list[Topic], hits: int, sessions: int) -> bool:
        """Place one client; return whether a broker has its room.

        `left`: its topics, of which none is left then; `hits`: the sum of their lanes.
        """
        placement = self.clients.placement
        aeo = placement.aeo
        full = False
        used = count = 0
        placed: list[Topic] = []
        slots: list[int] = []
        while left:
            most = chosen = -1
            for slot in self._order:
                part = hits >> slot * NARROW_BITS & NARROW_SUM
                if part > most:
                    most, chosen = part, slot
            if not used >> chosen & 1:
                used |= 1 << chosen
                count += 1
            weight, lanes = placement.take(left, chosen, count == sessions, placed)
            if len(placed) == len(slots):
                # None is free there, so all cost something.
                left, rest = cheapest(left, chosen)
                weight, lanes = placement.take(left, chosen, True, placed)
                left = rest
            hits -= lanes
            slots += [chosen] * (len(placed) - len(slots))
            load = aeo[chosen] + weight
            aeo[chosen] = load
            full = full or load > self._limits[chosen]
        self.clients.settled(client, tuple(placed), bytes(slots), count)
        return full
