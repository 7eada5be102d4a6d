"""One question where a client should connect, and the part of the federation that it concerns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from mqttree.placement.broker_table import BrokerLoad, BrokerTable, KnownTopic
from mqttree.placement.greedy import fair_slots, greedy_costs
from mqttree.placement.pending_load import Pending, PendingLoad
from mqttree.placement.question import Answer, PlacedSession, Question


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
        has changed, so that it need not be asked for; None: ask for each topic."""


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


NOWHERE: Final = -1
"""The slot of what has no place yet."""


class Plan:
    """Where the parts of a client go: slots of brokers, or `NOWHERE`."""

    __slots__ = ("topics", "units")

    def __init__(self, units: list[int], topics: list[int]) -> None:
        """`units`: the slot of each unit, `topics`: of each topic that it publishes; both in the
        order of the question."""
        self.units = units
        self.topics = topics

    def used(self) -> list[int]:
        """Return the slots, each once."""
        found: list[int] = []
        for slot in self.units:
            if slot not in found and slot != NOWHERE:
                found.append(slot)
        for slot in self.topics:
            if slot not in found and slot != NOWHERE:
                found.append(slot)
        return found


class Case:
    """One question, and the part of the federation that it concerns."""

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
        self._known: list[list[KnownTopic]] = []
        self._costs: list[list[float]] = []
        for unit in units:
            found = [
                _topic(name, view, brokers, pending.brokers(name), rare, state)
                for name in unit.topics
            ]
            self._known.append(found)
            self._costs.append(found[0].costs if len(found) == 1 else self._sums(found))
        self._published = [
            _topic(name, view, brokers, pending.brokers(name), rare, state)
            for name in question.publish
        ]
        # Of a topic that it publishes, the unit that has it, too.
        self._unit_of: dict[str, int] = {}
        if question.publish:
            self._unit_of = {
                name: index for index, unit in enumerate(units) for name in unit.topics
            }

    def _sums(self, topics: list[KnownTopic]) -> list[float]:
        """Return what a subscriber of several topics, or of none, costs by slot."""
        sums = [0.0] * len(self.brokers.names)
        for topic in topics:
            costs = topic.costs
            for slot in range(len(sums)):
                sums[slot] += costs[slot]
        return sums

    # ---------------------------------------------------------------- plans

    def best(self) -> tuple[Plan, float, float]:
        """Return the best plan, its traffic between brokers, and the least traffic with one
        connection (both messages/s). Raises ValueError: no broker takes clients."""
        one, single = self._single()
        if not single:
            # Further connections have nothing to save.
            return one, single, single
        plan = self.all_at(NOWHERE)
        if self._units:
            found = greedy_costs(
                self.brokers,
                self.aeo.copy(),
                self._costs,
                [
                    known[0].weights if len(known) == 1 else [topic.weight for topic in known]
                    for known in self._known
                ],
                self.question.sessions,
                self._gamma,
                avoid=self.avoid,
            )
            for slot, indices in found.items():
                for index in indices:
                    plan.units[index] = slot
        if self._published:
            plan = self.complete(plan)
        cost = self.cost(plan)
        # Further connections have to save something.
        return (plan, cost, single) if cost < single else (one, single, single)

    def _single(self) -> tuple[Plan, float]:
        """Return the best plan with one connection, and its traffic."""
        aei, aeo, capacities = self.aei, self.aeo, self.brokers.capacities
        here = self.brokers.slots.get(self.question.at, NOWHERE)
        chosen = NOWHERE
        least = lightest = 0.0
        for slot in fair_slots(self.brokers, aeo, self._gamma, self.avoid):
            load = (aei[slot] + aeo[slot]) / capacities[slot]
            cost = self.cost_at(slot)
            better = chosen == NOWHERE or cost < least
            if cost == least and not better and chosen != here:
                better = slot == here or load < lightest
            if better:
                chosen, least, lightest = slot, cost, load
        return self.all_at(chosen), least

    def all_at(self, slot: int) -> Plan:
        """Return the plan with one connection, to the broker with this `slot`; `NOWHERE`: nothing
        has a place."""
        return Plan([slot] * len(self._units), [slot] * len(self._published))

    def cost_at(self, slot: int) -> float:
        """Return the traffic between brokers of one connection, to the broker with this `slot`
        (messages/s)."""
        if self._published:
            return self.cost(self.all_at(slot))
        found = 0.0
        for costs in self._costs:
            found += costs[slot]
        return found

    def plan_before(self, answer: Answer) -> Plan | None:
        """Return what is left of the plan of an earlier `answer`, None if that is nothing."""
        brokers = self.brokers
        plan = self.all_at(NOWHERE)
        for session in answer.sessions:
            slot = brokers.slots.get(session.broker)
            if slot is None or slot not in brokers.open or self.avoid >> slot & 1:
                continue
            there = frozenset(session.subscribe)
            for index, unit in enumerate(self._units):
                if there.issuperset(unit.filters):
                    plan.units[index] = slot
            published = frozenset(session.publish)
            for index, topic in enumerate(self.question.publish):
                if topic in published:
                    plan.topics[index] = slot
        used = plan.used()
        return plan if used and len(used) <= self.question.sessions else None

    def complete(self, plan: Plan) -> Plan:
        """Return a plan with all that has no place in `plan`, which stays as it is. Raises
        ValueError: no broker takes clients."""
        plan = Plan(plan.units.copy(), plan.topics.copy())
        used = dict.fromkeys(plan.used())
        for index, slot in enumerate(plan.units):
            if slot == NOWHERE:
                slot = self._cheapest(used, self._costs[index], self.aeo)
                plan.units[index] = slot
                used[slot] = None
        for index, slot in enumerate(plan.topics):
            if slot == NOWHERE:
                costs = [
                    self._publish_cost(index, each, plan) for each in range(len(self.brokers.names))
                ]
                slot = self._cheapest(used, costs, self.aei)
                plan.topics[index] = slot
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

    def _publish_cost(self, index: int, slot: int, plan: Plan) -> float:
        """Return the traffic between brokers that a publisher of the topic with this `index` makes
        at a `slot`."""
        topic = self._published[index]
        active = topic.active
        unit = self._unit_of.get(self.question.publish[index], NOWHERE)
        if unit != NOWHERE and plan.units[unit] != NOWHERE:
            active |= 1 << plan.units[unit]
        return topic.weight * (active & ~(1 << slot)).bit_count()

    def cost(self, plan: Plan) -> float:
        """Return the traffic between brokers that a plan makes (messages/s)."""
        found = 0.0
        costs = self._costs
        for index, slot in enumerate(plan.units):
            if slot != NOWHERE:
                found += costs[index][slot]
        for index, slot in enumerate(plan.topics):
            if slot != NOWHERE:
                found += self._publish_cost(index, slot, plan)
        return found

    def traffic(self) -> tuple[float, float]:
        """Return how much the client gets, and how much it publishes (messages/s)."""
        received = published = 0.0
        for topics in self._known:
            for topic in topics:
                received += topic.weight
        for topic in self._published:
            published += topic.weight
        return received, published

    # ---------------------------------------------------------------- answers

    def sessions(self, plan: Plan, before: Answer | None) -> tuple[PlacedSession, ...]:
        """Return the connections of a plan. Those of an earlier answer (`before`) keep their client
        identifiers, as sessions belong to these."""
        brokers = self.brokers
        client = self.question.client
        slots = plan.used()
        if not slots:  # it neither subscribes nor publishes
            slots = [self._cheapest((), [0.0] * len(brokers.names), self.aeo)]
        subscribe: dict[int, list[str]] = {slot: [] for slot in slots}
        publish: dict[int, list[str]] = {slot: [] for slot in slots}
        parts = dict.fromkeys(slots, 0)
        for unit, slot in zip(self._units, plan.units, strict=True):
            subscribe[slot].extend(unit.filters)
            parts[slot] += 1
        for name, slot in zip(self.question.publish, plan.topics, strict=True):
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
        parts = [
            ("s", name, slot)
            for unit, slot in zip(self._units, plan.units, strict=True)
            for name in unit.filters
        ]
        for name, slot in zip(self.question.publish, plan.topics, strict=True):
            parts.append(("p", name, slot))
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
        names = self.brokers.names
        topics: list[str] = []
        brokers: list[str] = []
        rates: list[float] = []
        for index, slot in enumerate(plan.units):
            topics.extend(self._units[index].topics)
            for topic in self._known[index]:
                brokers.append(names[slot])
                rates.append(topic.weight)
        published = [
            (names[slot], topic.weight)
            for topic, slot in zip(self._published, plan.topics, strict=True)
            if not topic.published
        ]
        return Pending(until, tuple(topics), tuple(brokers), tuple(rates), tuple(published))


def _topic(
    name: str,
    view: View,
    brokers: BrokerTable,
    waiting: Collection[str],
    rare: float,
    state: object | None,
) -> KnownTopic:
    """Return what is known of a topic. `name`: its name; `view`: of the federation; `brokers`:
    those that take clients; `waiting`: where it is about to be subscribed; `rare`: the rate of
    topics of which none is known; `state`: of the `view`."""
    # Most questions name topics that others have named a moment ago.
    found = None if state is None else brokers.known(name, state, waiting)
    if found is None:
        found = brokers.topic(name, view.rates(name), view.wanted(name), waiting, rare)
        found.state = state
    return found
