"""The brokers that can take the client of a question, by slots: small numbers that are bits of
masks and indices of lists. A table serves all questions until what is known of brokers changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

SPARE: Final = 1000.0
"""messages/s to subscribers that count as load of every broker, for its capacity: where all have
little to do, none has too much."""


class BrokerLoad(NamedTuple):
    """A broker that can be reached, and its traffic in messages/s."""

    id: str
    address: str
    """Where clients connect, "": it takes none."""
    capacity: float
    drained: bool
    aei: float
    aeo: float
    aii: float
    aio: float


class BrokerTable:
    """Brokers with an address; their order, which decides ties, is that in which they came."""

    __slots__ = ("_loads", "addresses", "capacities", "loads", "names", "open", "slots", "uniform")

    def __init__(self, loads: Sequence[BrokerLoad]) -> None:
        """`loads`: all brokers that can be reached."""
        self.loads = loads
        taking = [load for load in loads if load.address]
        self.names = [load.id for load in taking]
        self.slots = {name: slot for slot, name in enumerate(self.names)}
        """Id of a broker -> its slot."""
        self.addresses = [load.address for load in taking]
        self.capacities = [load.capacity if load.capacity > 0 else 1.0 for load in taking]
        self.open = [slot for slot, load in enumerate(taking) if not load.drained]
        """Slots of brokers that take clients now."""
        self.uniform = len({self.capacities[slot] for slot in self.open}) <= 1
        """Whether all of these have the same capacity."""
        mean = sum(self.capacities) / max(1, len(self.capacities))
        self._loads = [
            (load.id, load.aei, load.aeo, SPARE * capacity / mean)
            for load, capacity in zip(taking, self.capacities, strict=True)
        ]

    def aei(self, pending: Mapping[str, float]) -> list[float]:
        """Return what publishers send to each broker (messages/s). `pending`: what is about to
        come, by id."""
        return [aei + pending.get(name, 0.0) for name, aei, _, _ in self._loads]

    def aeo(self, pending: Mapping[str, float]) -> list[float]:
        """Return what each broker sends to subscribers, with `SPARE` (messages/s). `pending`: what
        is about to go out, by id."""
        return [aeo + pending.get(name, 0.0) + spare for name, _, aeo, spare in self._loads]

    def mask(self, brokers: Sequence[str] | frozenset[str]) -> int:
        """Return the slots of those of some `brokers` (ids) that are here, as a mask."""
        found = 0
        for broker in brokers:
            slot = self.slots.get(broker)
            if slot is not None:
                found |= 1 << slot
        return found
