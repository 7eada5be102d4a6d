"""What is placed where, and the traffic that follows (equations 8 to 10 in their general form).

A broker that has a subscriber of a topic gets every message of it that is published elsewhere. All
sums are kept up with each change, at the cost of the topics that it names.

A broker has a *slot*, a small number: it is the bit in masks and the index in lists. Slots of
brokers that went are given again. The brokers' order, which decides ties, is that of their slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final

from mqttree.placement.figures import Figures

MAX_BROKERS: Final = 256
"""so that a slot is one byte."""

EVERYWHERE: Final = -1
"""The mask of all slots, also of those that no broker has yet."""

ROW: Final = 8
"""Counts that a topic has room for at first; twice as many when there are more brokers."""

LANE_BITS: Final = 64
"""bits of a broker in `Topic.lanes`, in general;"""

NARROW_BITS: Final = 8
NARROW_SLOTS: Final = 8
NARROW_RATE: Final = 7
"""as long as there are so few brokers, and no topic has a higher rate, lanes have so few bits that
all of them are one word of the machine, if a client's topics have low rates together."""

NARROW_SUM: Final = (1 << NARROW_BITS) - 1
"""messages/s that all topics of a client may have together for that."""

LANE_RATE: Final = 1 << 40
"""A rate from here on has no lanes; 16 million topics of a client can be added up."""


class Topic:
    """A topic: who publishes it where, and how many subscribe to it where."""

    __slots__ = (
        "expected",
        "free",
        "lanes",
        "looked_up",
        "name",
        "present",
        "publishers",
        "row",
        "weight",
    )

    def __init__(self, name: str) -> None:
        # First what each client that comes looks at: compiled, it is in one line of the cache.
        # Which look-up of `Placement.known` has found it last.
        self.looked_up = 0
        # What a subscriber spares, so many bits for each slot; -1 if rates are no integers.
        self.lanes = 0
        # Messages/s that each of its subscribers gets.
        self.weight = 0.0
        # Slots where a further subscriber adds no traffic between brokers.
        self.free = EVERYWHERE
        # Where `Placement.counts` has its subscriptions by slot; -1 if none is counted.
        self.row = -1
        # Slots with a subscription that is counted.
        self.present = 0
        # Messages/s while it has no publisher, if that is known beforehand.
        self.expected = 0.0
        self.name = name
        # Slot -> messages/s that are published there; 0 for a publisher that is silent.
        self.publishers: dict[int, float] = {}

    def cost(self, slot: int) -> float:
        """Return the traffic between brokers that a subscriber at a slot adds (messages/s)."""
        if self.free >> slot & 1:
            return 0.0
        return self.weight - self.publishers.get(slot, 0.0)

    def inflow(self, slot: int) -> float:
        """Return the messages/s that are published at other brokers than a slot's."""
        found = 0.0
        for at, rate in self.publishers.items():
            if at != slot:
                found += rate
        return found


class Placement:
    """The brokers, the topics, and the traffic of both.

    Rates are messages/s. Give integers (in any unit) where you can: sums are exact then, and
    placing is faster.
    """

    def __init__(self, affinity: bool = False) -> None:
        """Make a placement without brokers.

        `affinity`: a subscriber of a topic without a publisher belongs to its other
        subscribers (for subscribers that come before publishers).
        """
        self.affinity = affinity
        self.topics: dict[str, Topic] = {}
        self.slots: dict[str, int] = {}
        self.names: list[str | None] = []
        self.capacities: list[float] = []
        # Slots that take clients, in order.
        self.open: list[int] = []
        self.uniform = True
        """whether all brokers that take clients have the same capacity."""
        self.fractions = 0
        """topics without lanes."""
        self.counts: list[int] = []
        """subscriptions by topic (`Topic.row`) and slot."""
        self._width = ROW
        """numbers of a row."""
        self._rows: list[int] = []
        """rows that no topic has any more."""
        self.lane_bits = NARROW_BITS
        """bits of a broker in `Topic.lanes`."""
        self.lane_format = _lane_format(0)
        """bytes of `Topic.lanes` with `LANE_BITS`, and how they are read."""
        self.aei: list[float] = []
        self.aeo: list[float] = []
        self.aii: list[float] = []
        self.aio: list[float] = []
        self.internal = 0.0
        self._look_ups = 0
        self._drained: set[int] = set()
        self._subscribed: list[set[Topic]] = []
        self._published: list[set[Topic]] = []

    # Brokers.

    def add_broker(self, broker: str, capacity: float = 1.0) -> int:
        """Add a broker without clients; return its slot. Raises ValueError if it is there already,
        or if there are too many.

        `capacity`: the part of the load that it should have, compared with the others; above 0.
        """
        if not 0 < capacity < float("inf"):
            raise ValueError(f"{capacity} is no capacity of a broker")
        if broker in self.slots:
            raise ValueError(f"broker {broker} is there already")
        slot = self.names.index(None) if None in self.names else len(self.names)
        if slot == MAX_BROKERS:
            raise ValueError(f"there are more than {MAX_BROKERS} brokers")
        if slot == len(self.names):
            self.names.append(None)
            self.capacities.append(0.0)
            for kind in (self.aei, self.aeo, self.aii, self.aio):
                kind.append(0.0)
            self._subscribed.append(set())
            self._published.append(set())
            self.lane_format = _lane_format(len(self.names))
            if slot >= NARROW_SLOTS:
                self._widen()
            if slot >= self._width:
                self._longer_rows()
        self.slots[broker] = slot
        self.names[slot] = broker
        self.capacities[slot] = capacity
        self._reopen()
        return slot

    def fail(self, broker: str) -> None:
        """Remove a broker and all that is subscribed and published there. Raises KeyError if it is
        not there."""
        slot = self.slots[broker]
        for topic in list(self._published[slot]):
            self._drop_publisher(topic, slot)
        for topic in list(self._subscribed[slot]):
            topic.present &= ~(1 << slot)
            if topic.row >= 0:
                self.counts[topic.row + slot] = 0
                self._release_row(topic)
            self._deactivate(topic, slot)
            self._refresh(topic)
            self._forget(topic)
        # Sums of floats end near 0, not at it.
        for kind in (self.aei, self.aeo, self.aii, self.aio):
            kind[slot] = 0.0
        del self.slots[broker]
        self.names[slot] = None
        self._drained.discard(slot)
        self._reopen()

    def drain(self, broker: str, drained: bool = True) -> None:
        """Let a broker get no further client, or let it get some again. Raises KeyError if it is
        not there.

        `drained`: whether it gets none.
        """
        slot = self.slots[broker]
        (self._drained.add if drained else self._drained.discard)(slot)
        self._reopen()

    def _reopen(self) -> None:
        self.open = sorted(slot for slot in self.slots.values() if slot not in self._drained)
        self.uniform = len({self.capacities[slot] for slot in self.open}) <= 1

    # Topics.

    def topic(self, name: str) -> Topic:
        """Return a topic, which is made if it is not there."""
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = Topic(name)
        return found

    def known(self, names: Iterable[str]) -> list[Topic]:
        """Return the topics with these names, each once, in the same order; those that are not
        there are made."""
        there = self.topics
        self._look_ups = this = self._look_ups + 1
        found: list[Topic] = []
        for name in names:
            topic = there.get(name)
            if topic is None:
                topic = self.topic(name)
            if topic.looked_up != this:
                topic.looked_up = this
                found.append(topic)
        return found

    def forget(self, topics: Iterable[Topic]) -> None:
        """Drop those topics without publishers, subscribers and expectations."""
        for topic in topics:
            self._forget(topic)

    def expect(self, topic: str, rate: float) -> None:
        """Note what a topic will carry when it is published; counts as its rate until then.

        `topic`: its name; `rate`: messages/s, 0 to take it back.
        """
        found = self.topic(topic)
        before = found.weight
        found.expected = rate
        self._refresh(found)
        self._reload(found, before)
        self._forget(found)

    def publish(self, topic: str, broker: str, rate: float) -> None:
        """Set the rate at which a topic is published at a broker. Raises KeyError if the broker is
        not there, ValueError if the rate is below 0.

        `topic`: its name; `broker`: an id; `rate`: messages/s of all publishers there together, 0
        if they are silent.
        """
        if not 0 <= rate < float("inf"):
            raise ValueError(f"{rate} is no rate of a topic")
        slot = self.slots[broker]
        found = self.topic(topic)
        self._published[slot].add(found)
        self._set_rate(found, slot, rate)

    def subscribe(self, topic: str, broker: str, n: int = 1) -> None:
        """Add subscriptions to a topic at a broker. Raises KeyError if the broker is not there,
        ValueError if n is below 1.

        `topic`: its name; `broker`: an id; `n`: how many.
        """
        if n < 1:
            raise ValueError(f"{n} subscriptions cannot be added")
        self.place(self.topic(topic), self.slots[broker], n)

    def unsubscribe(self, topic: str, broker: str, n: int = 1) -> None:
        """Remove subscriptions to a topic at a broker. Raises KeyError if the broker is not there,
        ValueError if there are fewer than n.

        `topic`: its name; `broker`: an id; `n`: how many.
        """
        slot = self.slots[broker]
        found = self.topics.get(topic)
        if n < 1 or found is None or self.count(found, slot) < n:
            raise ValueError(f"{topic} has no {n} subscriptions at {broker}")
        self.displace(found, slot, n)

    # What strategies use: topics and slots themselves.

    def place(self, topic: Topic, slot: int, n: int = 1) -> None:
        """Add subscriptions.

        `topic`: one of this placement; `slot`: of its broker; `n`: how many.
        """
        if topic.present >> slot & 1:
            self.counts[topic.row + slot] += n
        else:
            self._first(topic, slot, n)
        self.aeo[slot] += topic.weight * n

    def place_all(self, topics: list[Topic], slot: int) -> None:
        """Add one subscription to each of some topics.

        `topics`: of this placement; `slot`: of their broker.
        """
        bit = 1 << slot
        load = self.aeo[slot]
        counts = self.counts
        for topic in topics:
            if topic.present & bit:
                counts[topic.row + slot] += 1
            else:
                self._first(topic, slot, 1)
            load += topic.weight
        self.aeo[slot] = load

    def place_each(self, topics: list[Topic], slots: list[int], aeo: list[float]) -> None:
        """Add one subscription to each of some topics.

        `topics`: of this placement; `slots`: of the broker of each; `aeo`: what each broker sends
        to subscribers with these (messages/s).
        """
        counts = self.counts
        for index, topic in enumerate(topics):
            slot = slots[index]
            if topic.present >> slot & 1:
                counts[topic.row + slot] += 1
            else:
                self._first(topic, slot, 1)
        self.aeo = aeo

    def _first(self, topic: Topic, slot: int, n: int) -> None:
        """Add the first n subscriptions of a topic at a broker."""
        if topic.row < 0:
            topic.row = self._new_row()
        self.counts[topic.row + slot] = n
        self._activate(topic, slot)
        topic.present |= 1 << slot
        self._subscriber_comes(topic, slot)

    def displace(self, topic: Topic, slot: int, n: int = 1) -> None:
        """Remove subscriptions that there are.

        `topic`: one of this placement; `slot`: of its broker; `n`: how many.
        """
        self.counts[topic.row + slot] -= n
        self.aeo[slot] -= topic.weight * n
        if not self.counts[topic.row + slot]:
            self._last(topic, slot)

    def displace_all(self, topics: tuple[Topic, ...], slots: bytes) -> None:
        """Remove one subscription of each of some topics.

        `topics`: of this placement; `slots`: of the broker of each of them.
        """
        aeo, counts = self.aeo, self.counts
        for topic, slot in zip(topics, slots, strict=True):
            at = topic.row + slot
            left = counts[at] - 1
            counts[at] = left
            aeo[slot] -= topic.weight
            if not left:
                self._last(topic, slot)

    def _last(self, topic: Topic, slot: int) -> None:
        """Note that a topic has no subscriptions at a broker any more."""
        topic.present &= ~(1 << slot)
        self._release_row(topic)
        self._deactivate(topic, slot)
        self._subscriber_goes(topic, slot)
        self._forget(topic)

    def count(self, topic: Topic, slot: int) -> int:
        """Return how many subscriptions of a topic are counted at a broker.

        `topic`: one of this placement; `slot`: of the broker.
        """
        return self.counts[topic.row + slot] if topic.row >= 0 else 0

    def _new_row(self) -> int:
        """Return where there is room for the counts of a topic, all 0."""
        if self._rows:
            return self._rows.pop()
        row = len(self.counts)
        self.counts += [0] * self._width
        return row

    def _release_row(self, topic: Topic) -> None:
        """Give the row of a topic to others if nothing is counted there any more."""
        if not topic.present:
            self._rows.append(topic.row)
            topic.row = -1

    def _longer_rows(self) -> None:
        """Make room for twice as many brokers."""
        before, width = self.counts, self._width
        self.counts, self._width = [], 2 * width
        self._rows.clear()
        for topic in self.topics.values():
            if topic.row >= 0:
                row = self._new_row()
                self.counts[row : row + width] = before[topic.row : topic.row + width]
                topic.row = row

    def figures(self) -> Figures:
        """Return the traffic, with the brokers in the order of their slots."""
        slots = sorted(self.slots.values())
        aei, aeo, aii, aio = (
            tuple(kind[slot] for slot in slots) for kind in (self.aei, self.aeo, self.aii, self.aio)
        )
        names = tuple(self._name(slot) for slot in slots)
        return Figures(names, aei, aeo, aii, aio, self.internal)

    # What changes with a topic.

    def _name(self, slot: int) -> str:
        name = self.names[slot]
        assert name is not None
        return name

    def _activate(self, topic: Topic, slot: int) -> None:
        """A broker without a subscriber of a topic gets one."""
        self._subscribed[slot].add(topic)
        for at, rate in topic.publishers.items():
            if at != slot:
                self.aio[at] += rate
                self.aii[slot] += rate
                self.internal += rate

    def _deactivate(self, topic: Topic, slot: int) -> None:
        """A broker loses its last subscriber of a topic."""
        self._subscribed[slot].discard(topic)
        for at, rate in topic.publishers.items():
            if at != slot:
                self.aio[at] -= rate
                self.aii[slot] -= rate
                self.internal -= rate

    def _set_rate(self, topic: Topic, slot: int, rate: float) -> None:
        """Change the rate of a topic at a broker, and all that follows from it."""
        more = rate - topic.publishers.get(slot, 0.0)
        topic.publishers[slot] = rate
        self.aei[slot] += more
        receivers = topic.present & ~(1 << slot)
        for at in bits(receivers):
            self.aii[at] += more
        crossing = more * receivers.bit_count()
        self.aio[slot] += crossing
        self.internal += crossing
        before = topic.weight
        self._refresh(topic)
        self._reload(topic, before)

    def _drop_publisher(self, topic: Topic, slot: int) -> None:
        """Forget the publishers of a topic at a broker."""
        self._set_rate(topic, slot, 0.0)
        del topic.publishers[slot]
        self._published[slot].discard(topic)
        before = topic.weight
        self._refresh(topic)
        self._reload(topic, before)
        self._forget(topic)

    def _reload(self, topic: Topic, before: float) -> None:
        """A topic's subscribers get it at another rate than before."""
        more = topic.weight - before
        if more:
            for slot in bits(topic.present):
                self.aeo[slot] += more * self.counts[topic.row + slot]

    def _refresh(self, topic: Topic) -> None:
        """Find again what a subscriber costs where."""
        publishers = topic.publishers
        active = topic.present
        topic.weight = weight = sum(publishers.values()) if publishers else topic.expected
        if publishers:
            free = active if weight else EVERYWHERE
            for slot in publishers:
                if not topic.inflow(slot):
                    free |= 1 << slot
        else:
            free = active if self.affinity and active and weight else EVERYWHERE
        topic.free = free
        self.fractions -= topic.lanes < 0
        topic.lanes = self._lanes(topic)
        self.fractions += topic.lanes < 0

    def _subscriber_comes(self, topic: Topic, slot: int) -> None:
        """The same as `_refresh` where nothing but a subscriber at a slot has come."""
        if not topic.publishers or not topic.weight:
            if self.affinity:
                self._refresh(topic)
        elif not topic.free >> slot & 1:
            topic.free |= 1 << slot
            if topic.lanes >= 0:
                topic.lanes += _crossing(topic, slot) << slot * self.lane_bits

    def _subscriber_goes(self, topic: Topic, slot: int) -> None:
        """The same as `_refresh` where nothing but the last subscriber at a slot has gone."""
        if not topic.publishers or not topic.weight:
            if self.affinity:
                self._refresh(topic)
        elif topic.inflow(slot):
            topic.free &= ~(1 << slot)
            if topic.lanes >= 0:
                topic.lanes -= _crossing(topic, slot) << slot * self.lane_bits

    def _lanes(self, topic: Topic) -> int:
        weight = topic.weight
        if topic.free == EVERYWHERE or not weight:
            return 0
        whole = int(weight)
        if whole != weight or weight >= LANE_RATE:
            return -1
        if whole > NARROW_RATE:
            self._widen()
        width = self.lane_bits
        lanes = 0
        for slot in bits(topic.free):
            lanes |= whole << slot * width
        if len(topic.publishers) > 1:
            for slot, rate in topic.publishers.items():
                if int(rate) != rate:
                    return -1
                if not topic.free >> slot & 1:
                    lanes |= int(rate) << slot * width
        return lanes

    def _widen(self) -> None:
        """Give all lanes as many bits as any placement needs."""
        if self.lane_bits == LANE_BITS:
            return
        self.lane_bits = LANE_BITS
        for topic in self.topics.values():
            if topic.lanes > 0:
                topic.lanes = self._lanes(topic)

    def _forget(self, topic: Topic) -> None:
        """Drop a topic of which nothing is left."""
        if not (topic.present or topic.publishers or topic.expected):
            self.topics.pop(topic.name, None)


def _crossing(topic: Topic, slot: int) -> int:
    """Return what is published of a topic elsewhere than at a slot, where rates are integers."""
    return int(topic.weight) - int(topic.publishers.get(slot, 0.0))


def _lane_format(slots: int) -> tuple[int, Struct]:
    lanes = Struct(f"<{slots}Q")
    return lanes.size, lanes


def bits(mask: int) -> Iterator[int]:
    """Return the slots of a mask, lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
