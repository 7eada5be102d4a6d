"""The brokers that can take the client of a question, by slots: small numbers that are bits of
masks and indices of lists. A table serves all questions until what is known of brokers changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

SPARE: Final = 1000.0
"""messages/s to subscribers that count as load of every broker, for its capacity: where all have
little to do, none has too much."""


MAX_KNOWN: Final = 10_000
LONGEST_KNOWN: Final = 256
"""topics of which is kept what is known of them, and characters of their names: some 10 MB."""


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


class KnownTopic:
    """What is known of one topic that a question names, and of what it follows."""

    __slots__ = (
        "active",
        "costs",
        "published",
        "rare",
        "rates",
        "state",
        "waiting",
        "wanted",
        "weight",
        "weights",
    )

    def __init__(
        self,
        rates: Mapping[str, float],
        wanted: Collection[str],
        waiting: Collection[str],
        rare: float,
    ) -> None:
        """`rates`: how often it is published to (messages/s), by broker; `wanted`: brokers with a
        subscriber; `waiting`: those that are about to have one; `rare`: the rate of topics whose
        rates are not known."""
        self.rates = rates
        self.wanted = wanted
        self.waiting = waiting
        self.rare = rare
        self.state: object | None = None
        """Stands for the rates and subscribers of all topics when it was asked for."""
        self.active = 0
        """Slots with a subscriber, as a mask."""
        self.costs: list[float] = []
        """Traffic between brokers that a further subscriber adds, by slot (messages/s); shared."""
        self.published = False
        """Whether it is published anywhere."""
        self.weight = 0.0
        """Messages/s that a subscriber gets."""
        self.weights: list[float] = []
        """The same, as the weights of an item of one topic; shared."""


class BrokerTable:
    """Brokers with an address; their order, which decides ties, is that in which they came."""

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
        self._free = [0.0] * len(taking)
        self._known: dict[str, KnownTopic] = {}

    def aei(self, pending: Mapping[str, float]) -> list[float]:
        """Return what publishers send to each broker (messages/s). `pending`: what is about to
        come, by id."""
        return [aei + pending.get(name, 0.0) for name, aei, _, _ in self._loads]

    def aeo(self, pending: Mapping[str, float]) -> list[float]:
        """Return what each broker sends to subscribers, with `SPARE` (messages/s). `pending`: what
        is about to go out, by id."""
        return [aeo + pending.get(name, 0.0) + spare for name, _, aeo, spare in self._loads]

    def known(self, name: str, state: object, waiting: Collection[str]) -> KnownTopic | None:
        """Return what is known of a topic if that is nothing else by now, None if it may be.

        `name`: its name; `state`: of all topics, as they are now; `waiting`: as for `KnownTopic`.
        """
        found = self._known.get(name)
        if found is not None and found.state is state and found.waiting is waiting:
            return found
        return None

    def topic(
        self,
        name: str,
        rates: Mapping[str, float],
        wanted: Collection[str],
        waiting: Collection[str],
        rare: float,
    ) -> KnownTopic:
        """Return what is known of a topic, by slots, as a `Placement` with all brokers has it. It
        is kept until one of these is another object: many questions name the same topics.

        `name`: its name; `rates`, `wanted`, `waiting`, `rare`: as for `KnownTopic`.
        """
        found = self._known.get(name)
        if (
            found is not None
            and found.rates is rates
            and found.wanted is wanted
            and found.waiting is waiting
            and found.rare == rare
        ):
            return found
        found = KnownTopic(rates, wanted, waiting, rare)
        self._describe(found)
        found.weights = [found.weight]
        if len(name) <= LONGEST_KNOWN:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[name] = found
        return found

    def _describe(self, topic: KnownTopic) -> None:
        """Find out what follows from where a topic is published and wanted."""
        slots = self.slots
        there = [slots[broker] for broker in topic.wanted if broker in slots]
        there += [slots[broker] for broker in topic.waiting if broker in slots]
        for slot in there:
            topic.active |= 1 << slot
        weight = 0.0
        here = []
        for broker, rate in topic.rates.items():
            if rate > 0 and broker in slots:
                here.append((slots[broker], rate))
                weight += rate
        if not here:
            topic.costs = self._free
            topic.weight = 0.0 if topic.rates else topic.rare
            return
        costs = [weight] * len(self._free)
        for slot, rate in here:
            costs[slot] = weight - rate
        for slot in there:
            costs[slot] = 0.0
        topic.costs, topic.published, topic.weight = costs, True, weight

    def mask(self, brokers: Sequence[str] | frozenset[str]) -> int:
        """Return the slots of those of some `brokers` (ids) that are here, as a mask."""
        found = 0
        for broker in brokers:
            slot = self.slots.get(broker)
            if slot is not None:
                found |= 1 << slot
        return found
