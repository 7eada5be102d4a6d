"""One question where a client should connect, and the part of the federation that it concerns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from placement.broker_table import BrokerLoad, BrokerTable, KnownTopic
from placement.greedy import fair_slots, greedy_costs
from placement.pending_load import Pending, PendingLoad
from placement.question import Answer, PlacedSession, Question


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Filters of a client that stay in one session, and the known topics that they match."""

    filters: tuple[str, ...]
    topics: tuple[str, ...]


class View(Protocol):
    """What is known of the federation."""

    def brokers(self) -> Sequence[BrokerLoad]:
        """Return all brokers that can be reached."""

    def rates(self, topic: str) -> Mapping[str, float]:
        """Return how often a topic is published to (messages/s), by broker; another object when
        that has changed."""

    def wanted(self, topic: str) -> Collection[str]:
        """Return the brokers with a subscriber of a topic; another object when that has
        changed."""

    def rare(self) -> float:
        """Return the mean rate (messages/s) of topics whose rates are not known."""

    def state(self) -> object | None:
        """Return what stands for all rates and subscribers: the same object as long as none of them
        has changed, so that nobody need ask; None: ask for each topic."""


class Move(NamedTuple):
    """Filters and topics of a client that would better be in a session at another broker."""

    client: str
    session: str
    """The client identifier of the session that has them."""
    source: str
    target: str
    """Brokers."""
    names: list[str]
    saved: float
    """Messages a second; the moves of a client share what they save together."""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "client": self.client,
            "session": self.session,
            "from": self.source,
            "to": self.target,
            "topics": self.names,
            "saving_per_s": round(self.saved, 3),
        }


@dataclass(slots=True)
class Plan:
    """Where the parts of a client go: slots of a placement."""

    units: dict[Unit, int] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    """Topics that it publishes."""

    def used(self) -> list[int]:
        """Return the slots, each once."""
        return list(dict.fromkeys([*self.units.values(), *self.topics.values()]))


class Case:
    """One question, and the part of the federation that it concerns."""

    __slots__ = (
        "_costs",
        "_gamma",
        "_topics",
        "_unit_of",
        "_units",
        "_weights",
        "aei",
        "aeo",
        "avoid",
        "brokers",
        "question",
    )

    def __init__(
        self,
        question: Question,
        units: Sequence[Unit],
        view: View,
        brokers: BrokerTable,
        pending: PendingLoad,
        gamma: float,
    ) -> None:
        """`question`: what is asked; `units`: its filters, those together that may match a common
        topic; `view`: what is known of the federation; `brokers`: those that `view` has; `pending`:
        what it does not show yet; `gamma`: how many times its due a broker may have of what goes
        out to subscribers."""
        self.question = question
        self.brokers = brokers
        self._units = units
        self._gamma = gamma
        self.avoid = brokers.mask(question.avoid) if question.avoid else 0
        """Slots of brokers that the client cannot reach, as a mask."""
        # What the brokers count, and not what follows from the few topics that are here.
        self.aei = brokers.aei(pending.aei)
        """Messages/s from publishers, by slot."""
        self.aeo = brokers.aeo(pending.aeo)
        """Messages/s to subscribers, by slot."""
        rare, state = view.rare(), view.state()
        self._topics: dict[str, KnownTopic] = {}
        self._weights: list[list[float]] = []
        self._costs: dict[Unit, list[float]] = {}
        for unit in units:
            found = [self._topic(name, view, pending, rare, state) for name in unit.topics]
            if len(found) == 1:
                self._weights.append(found[0].weights)
                self._costs[unit] = found[0].costs
            else:
                self._add_unit(unit, found)
        self._unit_of: dict[str, Unit] = {}
        if question.publish:
            self._unit_of = {name: unit for unit in units for name in unit.topics}
            for name in question.publish:
                self._topic(name, view, pending, rare, state)

    def _topic(
        self, name: str, view: View, pending: PendingLoad, rare: float, state: object | None
    ) -> KnownTopic:
        """Return what is known of a topic, and note it."""
        found = self._topics.get(name)
        if found is None:
            waiting = pending.brokers(name)
            # Most questions name topics that others have named a moment ago.
            found = None if state is None else self.brokers.known(name, state, waiting)
            if found is None:
                rates, wanted = view.rates(name), view.wanted(name)
                found = self.brokers.topic(name, rates, wanted, waiting, rare)
                found.state = state
            self._topics[name] = found
        return found

    def _add_unit(self, unit: Unit, topics: Sequence[KnownTopic]) -> None:
        """Note what a unit costs that has not exactly one topic."""
        self._weights.append([topic.weight for topic in topics])
        # Without known topics it carries nothing.
        self._costs[unit] = [0.0] * len(self.brokers.names)
        if topics:
            columns = zip(*[topic.costs for topic in topics], strict=True)
            self._costs[unit] = [sum(column, 0.0) for column in columns]

    # ---------------------------------------------------------------- plans

    def best(self) -> tuple[Plan, float, float]:
        """Return the best plan, its traffic between brokers, and the least traffic with one
        connection (both messages/s). Raises ValueError: no broker takes clients."""
        one, single = self._single()
        if not single:
            # Further connections have nothing to save.
            return one, single, single
        plan = Plan()
        if self._units:
            found = greedy_costs(
                self.brokers,
                self.aeo.copy(),
                list(self._costs.values()),
                self._weights,
                self.question.sessions,
                self._gamma,
                avoid=self.avoid,
            )
            units = self._units
            where = {index: slot for slot, indices in found.items() for index in indices}
            plan.units = {unit: where[index] for index, unit in enumerate(units)}
        if self.question.publish:
            plan = self.complete(plan)
        cost = self.cost(plan)
        # Further connections have to save something.
        return (plan, cost, single) if cost < single else (one, single, single)

    def _single(self) -> tuple[Plan, float]:
        """Return the best plan with one connection, and its traffic."""
        aei, aeo, capacities = self.aei, self.aeo, self.brokers.capacities
        fair = fair_slots(self.brokers, aeo, self._gamma, self.avoid)
        here = self.brokers.slots.get(self.question.at)
        publishes = bool(self.question.publish)
        columns = zip(*self._costs.values(), strict=True)
        received = [sum(column, 0.0) for column in columns]

        def rank(slot: int) -> tuple[float, bool, float]:
            load = (aei[slot] + aeo[slot]) / capacities[slot]
            cost = received[slot] if received else 0.0
            if publishes:
                cost = self.cost(self.all_at(slot))
            return cost, slot != here, load

        slot = min(fair, key=rank)
        plan = self.all_at(slot)
        return plan, self.cost(plan)

    def all_at(self, slot: int) -> Plan:
        """Return the plan with one connection, to the broker with this `slot`."""
        return Plan(dict.fromkeys(self._units, slot), dict.fromkeys(self.question.publish, slot))

    def plan_before(self, answer: Answer) -> Plan | None:
        """Return what is left of the plan of an earlier `answer`, None if that is nothing."""
        brokers = self.brokers
        plan = Plan()
        for session in answer.sessions:
            slot = brokers.slots.get(session.broker)
            if slot is None or slot not in brokers.open or self.avoid >> slot & 1:
                continue
            there = frozenset(session.subscribe)
            for unit in self._units:
                if there.issuperset(unit.filters):
                    plan.units[unit] = slot
            published = frozenset(session.publish)
            for topic in self.question.publish:
                if topic in published:
                    plan.topics[topic] = slot
        used = plan.used()
        return plan if used and len(used) <= self.question.sessions else None

    def complete(self, plan: Plan) -> Plan:
        """Return a plan with all that has no place in `plan`, which stays as it is. Raises
        ValueError: no broker takes clients."""
        plan = Plan(dict(plan.units), dict(plan.topics))
        used = dict.fromkeys(plan.used())
        for unit in self._units:
            if unit not in plan.units:
                slot = self._cheapest(used, self._costs[unit], self.aeo)
                plan.units[unit] = slot
                used[slot] = None
        for topic in self.question.publish:
            if topic not in plan.topics:
                costs = self._publish_costs(topic, plan)
                slot = self._cheapest(used, costs, self.aei)
                plan.topics[topic] = slot
                used[slot] = None
        return plan

    def _cheapest(
        self, used: Collection[int], costs: Sequence[float], loads: Sequence[float]
    ) -> int:
        """Return the slot with the least of `costs`; of equal ones one that is `used`, where the
        client is, or with the least of `loads`."""
        capacities = self.brokers.capacities
        here = self.brokers.slots.get(self.question.at)
        slots = used
        if len(used) < self.question.sessions:
            fair = fair_slots(self.brokers, self.aeo, self._gamma, self.avoid)
            slots = dict.fromkeys([*used, *fair])

        def rank(slot: int) -> tuple[float, bool, bool, float]:
            load = loads[slot] / capacities[slot]
            return costs[slot], slot not in used, slot != here, load

        return min(slots, key=rank)

    def _publish_costs(self, name: str, plan: Plan) -> list[float]:
        """Return the traffic between brokers that a publisher of a topic makes, by slot."""
        topic = self._topics[name]
        rate = topic.weight
        active = topic.active
        unit = self._unit_of.get(name)
        if unit is not None and unit in plan.units:
            active |= 1 << plan.units[unit]
        slots = range(len(self.brokers.names))
        return [rate * (active & ~(1 << slot)).bit_count() for slot in slots]

    def cost(self, plan: Plan) -> float:
        """Return the traffic between brokers that a plan makes (messages/s)."""
        costs = [self._costs[unit][slot] for unit, slot in plan.units.items()]
        costs += [self._publish_costs(topic, plan)[slot] for topic, slot in plan.topics.items()]
        return sum(costs, 0.0)

    def traffic(self) -> tuple[float, float]:
        """Return how much the client gets, and how much it publishes (messages/s)."""
        topics = self._topics
        received = [topics[name].weight for unit in self._units for name in unit.topics]
        published = [topics[name].weight for name in self.question.publish]
        return sum(received, 0.0), sum(published, 0.0)

    # ---------------------------------------------------------------- answers

    def sessions(self, plan: Plan, before: Answer | None) -> tuple[PlacedSession, ...]:
        """Return the connections of a plan. Those of an earlier answer (`before`) keep their client
        identifiers, as sessions belong to these."""
        brokers = self.brokers
        client = self.question.client
        slots = plan.used()
        if not slots:  # it neither subscribes nor publishes
            slots = [self._cheapest((), [0.0] * len(brokers.names), self.aeo)]
        if len(slots) == 1 and before is None:
            filters = [name for unit in plan.units for name in unit.filters]
            return (self._session(slots[0], client, filters, list(plan.topics)),)
        subscribe: dict[int, list[str]] = {slot: [] for slot in slots}
        publish: dict[int, list[str]] = {slot: [] for slot in slots}
        parts = dict.fromkeys(slots, 0)
        for unit, slot in plan.units.items():
            subscribe[slot] += unit.filters
            parts[slot] += 1
        for name, slot in plan.topics.items():
            publish[slot].append(name)
        if before is None:
            return self._new_sessions(slots, parts, subscribe, publish)
        ids = {each.broker: each.client_id for each in before.sessions}
        taken = {slot: ids.get(brokers.names[slot], "") for slot in slots}
        here = brokers.slots.get(self.question.at)

        def rank(slot: int) -> tuple[bool, bool, int]:
            return taken[slot] != client, slot != here, -parts[slot]

        slots.sort(key=rank)
        # The first connection has the identifier of the client, and its will.
        if taken[slots[0]] != client:
            taken[slots[0]] = client
        free = (f"{client}~{number}" for number in range(2, 2 + 2 * len(slots)))
        known = set(taken.values())
        names = (name for name in free if name not in known)
        return tuple(
            [
                self._session(slot, taken[slot] or next(names), subscribe[slot], publish[slot])
                for slot in slots
            ]
        )

    def _new_sessions(
        self,
        slots: list[int],
        parts: Mapping[int, int],
        subscribe: Mapping[int, list[str]],
        publish: Mapping[int, list[str]],
    ) -> tuple[PlacedSession, ...]:
        """Return the connections of a client that has none yet: the first one is where it is, or
        has most of its parts."""
        client = self.question.client
        here = self.brokers.slots.get(self.question.at, -1)
        slots.sort(key=lambda slot: (slot != here, -parts[slot]))
        ids = [client, *[f"{client}~{number}" for number in range(2, len(slots) + 1)]]
        return tuple(
            [
                self._session(slot, name, subscribe[slot], publish[slot])
                for slot, name in zip(slots, ids, strict=True)
            ]
        )

    def _session(
        self, slot: int, client: str, subscribe: list[str], publish: list[str]
    ) -> PlacedSession:
        name, address = self.brokers.names[slot], self.brokers.addresses[slot]
        return PlacedSession(name, address, client, tuple(subscribe), tuple(publish))

    def moves(self, before: Answer, plan: Plan, saved: float) -> list[Move]:
        """Return what moves from an earlier answer (`before`) to a `plan`, which saves so many
        messages/s (`saved`)."""
        at = {
            (kind, name): session
            for session in before.sessions
            for kind, names in (("s", session.subscribe), ("p", session.publish))
            for name in names
        }
        parts = [("s", name, slot) for unit, slot in plan.units.items() for name in unit.filters]
        parts += [("p", name, slot) for name, slot in plan.topics.items()]
        found: dict[tuple[str, str], Move] = {}
        for kind, name, slot in parts:
            session, target = at.get((kind, name)), self.brokers.names[slot]
            if session is None or session.broker == target:
                continue
            move = found.setdefault(
                (session.client_id, target),
                Move(self.question.client, session.client_id, session.broker, target, [], 0.0),
            )
            move.names.append(name)
        return [move._replace(saved=saved / len(found)) for move in found.values()]

    def pending(self, plan: Plan, until: float) -> Pending:
        """Return the load of a plan, which counts until `until` (s)."""
        topics, names = self._topics, self.brokers.names
        subscribed = [(name, slot) for unit, slot in plan.units.items() for name in unit.topics]
        published = [
            (names[slot], topics[name].weight)
            for name, slot in plan.topics.items()
            if not topics[name].published
        ]
        return Pending(
            until,
            tuple([name for name, _ in subscribed]),
            tuple([names[slot] for _, slot in subscribed]),
            tuple([topics[name].weight for name, _ in subscribed]),
            tuple(published),
        )
