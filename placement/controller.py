"""The controller: answers where clients should connect, and remembers what it has answered.

It reads no clock (`now` is handed in, in seconds) and knows brokers and topics by a `View`. Nothing
of delivery depends on it: a wrong answer costs traffic between brokers, and no message.

* An answer counts as load at once. It is *pending* for `PENDING` seconds; by then its filters are
  among those that the brokers tell each other.
* An answer is valid for `TTL` seconds. A client that asks again gets the same answer, with a new
  time, unless its filters, or the brokers, have changed, or another placement saves much more.
* What is in the answer stays where it is when a client adds filters, or a broker is gone: only what
  has no place is placed.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from placement.clients import GAMMA
from placement.greedy import fair_slots, greedy_items, item_costs
from placement.question import Answer, PlacedSession, Question, TooMuchError
from placement.state import Placement, Topic

TTL: Final = 300.0
"""s for which an answer is valid."""

PENDING: Final = 30.0
"""s after which the filters of an answer are expected to be known from the brokers."""

MOST_CLIENTS: Final = 100_000
"""clients whose answers are remembered; further ones get none. 2 KB each, with ten filters."""

MOST_MEMORY: Final = 128 * 1024 * 1024
"""bytes that all answers take, about; further clients get none."""

NAME_MEMORY: Final = 200
"""bytes of a filter or topic in an answer, besides its name, which is there once."""

MOST_ENTRIES: Final = 1_000_000
"""topics of all pending answers; of more, the oldest answers are not pending any more."""

SPARE: Final = 1000.0
"""messages/s to subscribers that count as load of every broker, for its capacity: where all have
little to do, none has too much."""

WORTH_PART: Final = 0.1
WORTH_RATE: Final = 1.0
"""A client is moved only if that saves this part of its traffic between brokers, and so many
messages/s."""


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Filters of a client that stay in one session, and the known topics that they match."""

    filters: tuple[str, ...]
    topics: tuple[str, ...]


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


class View(Protocol):
    """What is known of the federation."""

    def brokers(self) -> Sequence[BrokerLoad]:
        """Return all brokers that can be reached."""

    def rates(self, topic: str) -> Mapping[str, float]:
        """Return how often a topic is published to (messages/s), by broker."""

    def wanted(self, topic: str) -> Collection[str]:
        """Return the brokers with a subscriber of a topic."""

    def rare(self) -> float:
        """Return the mean rate (messages/s) of topics whose rates are not known."""


class _Pending(NamedTuple):
    """Load of an answer that the brokers do not show yet. Rates in messages/s."""

    until: float
    subscribed: tuple[tuple[str, str, float], ...]
    """Topic, broker where it is about to be subscribed, rate."""
    published: tuple[tuple[str, float], ...]
    """Broker, rate that is about to be published there."""


class PendingLoad:
    """All pending answers together."""

    def __init__(self, most: int, entries: int) -> None:
        """`most`: answers, `entries`: topics in all of them; of more the oldest go."""
        self._most = most
        self._most_entries = entries
        self._clients: dict[str, _Pending] = {}  # the oldest first
        self._entries = 0
        self._topics: dict[str, dict[str, int]] = {}
        self.aei: dict[str, float] = {}
        """Messages/s that are about to come in from publishers, by broker."""
        self.aeo: dict[str, float] = {}
        """The same out to subscribers."""

    def __len__(self) -> int:
        return len(self._clients)

    def brokers(self, topic: str) -> Collection[str]:
        """Return the brokers where a topic is about to be subscribed."""
        return self._topics.get(topic, ())

    def pop(self, client: str) -> _Pending | None:
        """Take the answer of a client out and return it, None if there is none."""
        found = self._clients.pop(client, None)
        if found is not None:
            self._count(found, -1)
        return found

    def add(self, client: str, load: _Pending) -> None:
        """Add the answer of a `client` that has none here; `load`: what it adds."""
        self._clients[client] = load
        self._count(load, 1)
        while len(self._clients) > self._most or self._entries > self._most_entries:
            self.pop(next(iter(self._clients)))

    def expire(self, now: float) -> None:
        """Drop answers whose time is up at `now` (s)."""
        while self._clients:
            client, load = next(iter(self._clients.items()))
            if load.until > now:
                return
            self.pop(client)

    def _count(self, load: _Pending, sign: int) -> None:
        self._entries += sign * len(load.subscribed)
        for topic, broker, rate in load.subscribed:
            self.aeo[broker] = self.aeo.get(broker, 0.0) + sign * rate
            there = self._topics.setdefault(topic, {})
            there[broker] = there.get(broker, 0) + sign
            if not there[broker]:
                del there[broker]
                if not there:
                    del self._topics[topic]
        for broker, rate in load.published:
            self.aei[broker] = self.aei.get(broker, 0.0) + sign * rate
        if not self._clients:
            # Sums of floats end near 0, not at it.
            self.aei.clear()
            self.aeo.clear()


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
class _Told:
    """What a client was told."""

    question: Question
    answer: Answer
    until: float


@dataclass(slots=True)
class Plan:
    """Where the parts of a client go: slots of a placement."""

    units: dict[Unit, int] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    """Topics that it publishes."""

    def used(self) -> list[int]:
        """Return the slots, each once."""
        return list(dict.fromkeys([*self.units.values(), *self.topics.values()]))


class Controller:
    """Places clients. One broker of a federation asks it."""

    def __init__(
        self,
        most: int = MOST_CLIENTS,
        gamma: float = GAMMA,
        *,
        memory: int = MOST_MEMORY,
        entries: int = MOST_ENTRIES,
    ) -> None:
        """`most`: clients that are remembered; `gamma`: how many times its due a broker may have of
        what goes out to subscribers; `memory`: bytes of all answers; `entries`: topics of all
        answers that are pending."""
        self._most = most
        self._most_memory = memory
        self._gamma = gamma
        self._told: dict[str, _Told] = {}
        self._ends: list[tuple[float, str]] = []  # a heap: when answers may end
        self._pending = PendingLoad(most, entries)
        self._version = 0
        self.memory = 0
        """Bytes that all answers take, about."""
        self.moves = 0
        """parts of clients that were placed at another broker than before."""

    def __len__(self) -> int:
        """Return how many clients are remembered."""
        return len(self._told)

    @property
    def pending(self) -> int:
        """How many answers the brokers do not show yet."""
        return len(self._pending)

    # ---------------------------------------------------------------- one question

    @property
    def gamma(self) -> float:
        """How many times its due a broker may have of what goes out to subscribers."""
        return self._gamma

    def case(self, question: Question, units: Sequence[Unit], view: View) -> Case:
        """Return a question together with what is known that concerns it.

        `question`: what is asked; `units`: its filters, those together that may match a common
        topic; `view`: what is known of the federation.
        """
        return Case(question, units, view, self._pending, self._gamma)

    def expect(self, case: Case, plan: Plan, now: float) -> None:
        """Count a `plan` for the client of a `case` as load, from `now` (s) on, until the brokers
        show it."""
        self._pending.pop(case.question.client)
        self._pending.add(case.question.client, case.pending(plan, now + PENDING))

    def expect_no_more(self, client: str) -> None:
        """Count no plan for a `client` as load any more."""
        self._pending.pop(client)

    def places(self, client: str) -> bool:
        """Return whether a client identifier is one of those that were told where to connect:
        `MultiClient` places itself."""
        base, tilde, number = client.rpartition("~")
        return client in self._told or (bool(tilde) and number.isdecimal() and base in self._told)

    # ---------------------------------------------------------------- questions

    def place(self, question: Question, units: Sequence[Unit], view: View, now: float) -> Answer:
        """Return where a client should connect.

        Args:
            `question`: what it asks.
            `units`: its filters, those together that may match a common topic.
            `view`: what is known of the federation.
            `now`: s.

        Raises:
            TooMuchError: too many clients are remembered.
            ValueError: no broker takes clients.
        """
        self.expire(now)
        told = self._told.get(question.client)
        if told is None and (len(self._told) >= self._most or self.memory > self._most_memory):
            raise TooMuchError("too many clients are placed")
        waiting = self._pending.pop(question.client)
        try:
            case = Case(question, units, view, self._pending, self._gamma)
            plan, cost, single = case.best()
        except ValueError:
            if waiting is not None:
                self._pending.add(question.client, waiting)
            raise
        before = None if told is None else case.plan_before(told.answer)
        if before is not None:
            kept = case.complete(before)
            saved = case.cost(kept) - cost
            if saved < max(WORTH_RATE, WORTH_PART * case.cost(kept)):
                plan, cost = kept, case.cost(kept)
        return self._tell(case, plan, (cost, single), waiting, now)

    def _tell(
        self,
        case: Case,
        plan: Plan,
        costs: tuple[float, float],
        waiting: _Pending | None,
        now: float,
    ) -> Answer:
        """Return a plan as an answer, and remember it. `costs`: its traffic between brokers, and
        the least with one connection; `waiting`: what of an earlier answer does not show yet."""
        question = case.question
        told = self._told.get(question.client)
        sessions = case.sessions(plan, None if told is None else told.answer)
        if told is not None:
            self.moves += _moved(told.answer.sessions, sessions)
        if told is None or sessions != told.answer.sessions or question.version > self._version:
            self._version = max(self._version, question.version) + 1
            version = self._version
            waiting = case.pending(plan, now + PENDING)
        else:
            version = told.answer.version
        if waiting is not None:
            self._pending.add(question.client, waiting)
        answer = Answer(version, TTL, sessions, *costs)
        self._remember(question, answer, now)
        return answer

    def plan(
        self,
        questions: Iterable[tuple[Question, Sequence[Unit]]],
        view: View,
        now: float,
        most: int,
        into: list[Move],
        *,
        apply: bool = False,
    ) -> Iterator[None]:
        """Find moves of clients that pay, those that save most first; yields after each client.

        Args:
            `questions`: of clients that are remembered, with their filters.
            `view`: what is known of the federation.
            `now`: s.
            `most`: moves.
            `into`: takes the moves at the end.
            `apply`: whether the clients are told to move when they ask again.
        """
        self.expire(now)
        found: list[_Better] = []
        for question, units in questions:
            told = self._told.get(question.client)
            if told is None:
                continue
            better = self._better(question, units, view, told)
            if better is not None:
                found.append(better)
            yield
        found.sort(key=lambda each: -each.saved)
        for better in found:
            client = better.case.question.client
            if len(into) + len(better.moves) <= most and client in self._told:
                into += better.moves
                if apply:
                    waiting = self._pending.pop(client)
                    self._tell(better.case, better.plan, better.costs, waiting, now)

    def _better(
        self, question: Question, units: Sequence[Unit], view: View, told: _Told
    ) -> _Better | None:
        """Return a plan for a client that saves enough to move it, None if there is none."""
        waiting = self._pending.pop(question.client)
        try:
            case = Case(question, units, view, self._pending, self._gamma)
            plan, cost, single = case.best()
            before = case.plan_before(told.answer)
            if before is None:
                return None
            kept = case.complete(before)
            saved = case.cost(kept) - cost
            if saved < max(WORTH_RATE, WORTH_PART * case.cost(kept)):
                return None
            moves = case.moves(told.answer, plan, saved)
            return _Better(saved, case, plan, (cost, single), moves)
        except ValueError:  # no broker takes clients
            return None
        finally:
            if waiting is not None:
                self._pending.add(question.client, waiting)

    def told(self, client: str, now: float) -> Answer | None:
        """Return what a `client` was told, None if that is nothing that is still valid at `now`
        (s)."""
        told = self._told.get(client)
        if told is None or told.until <= now:
            return None
        answer = told.answer
        return Answer(
            answer.version,
            told.until - now,
            answer.sessions,
            answer.internal,
            answer.internal_single,
        )

    def forget(self, client: str) -> bool:
        """Forget what a `client` was told. Returns whether it was told anything."""
        self._pending.pop(client)
        return self._drop(client)

    def _drop(self, client: str) -> bool:
        told = self._told.pop(client, None)
        if told is None:
            return False
        self.memory -= _memory(told.question)
        return True

    def clients(self) -> list[Question]:
        """Return the questions of all clients that are remembered."""
        return [told.question for told in self._told.values()]

    def expire(self, now: float) -> None:
        """Forget what has ended at `now` (s)."""
        self._pending.expire(now)
        while self._ends and self._ends[0][0] <= now:
            _, client = heapq.heappop(self._ends)
            told = self._told.get(client)
            if told is None:
                continue
            if told.until <= now:
                self._drop(client)
            else:  # it has asked again
                heapq.heappush(self._ends, (told.until, client))

    def _remember(self, question: Question, answer: Answer, now: float) -> None:
        if question.client not in self._told:
            heapq.heappush(self._ends, (now + TTL, question.client))
            # Clients that come and are forgotten leave their times behind.
            if len(self._ends) > 2 * self._most:
                self._ends = [(told.until, name) for name, told in self._told.items()]
                heapq.heapify(self._ends)
        self._drop(question.client)
        self._told[question.client] = _Told(question, answer, now + TTL)
        self.memory += _memory(question)


class Case:
    """One question, and the part of the federation that it concerns."""

    def __init__(
        self,
        question: Question,
        units: Sequence[Unit],
        view: View,
        pending: PendingLoad,
        gamma: float,
    ) -> None:
        """`question`: what is asked; `units`: its filters, those together that may match a common
        topic; `view`: what is known of the federation; `pending`: what it does not show yet;
        `gamma`: how many times its due a broker may have of what goes out to subscribers."""
        self.question = question
        self._units = units
        self._gamma = gamma
        self.state = state = Placement()
        self._loads = [load for load in view.brokers() if load.address]
        state.add_brokers(
            [(load.id, load.capacity if load.capacity > 0 else 1.0) for load in self._loads]
        )
        for load in self._loads:
            if load.drained:
                state.drain(load.id)
        self._avoid = 0
        for broker in question.avoid:
            if broker in state.slots:
                self._avoid |= 1 << state.slots[broker]
        names = dict.fromkeys(topic for unit in units for topic in unit.topics)
        rare = view.rare()
        for name in dict.fromkeys([*names, *question.publish]):
            wanted = (*view.wanted(name), *pending.brokers(name))
            state.describe(name, view.rates(name), rare, wanted)
        mean = sum(state.capacities) / max(1, len(state.capacities))
        for load in self._loads:
            slot = state.slots[load.id]
            # What the brokers count, and not what follows from the few topics that are here.
            state.aei[slot] = load.aei + pending.aei.get(load.id, 0.0)
            spare = SPARE * state.capacities[slot] / mean
            state.aeo[slot] = load.aeo + pending.aeo.get(load.id, 0.0) + spare
        self._items = {unit: self._item(unit) for unit in units}
        self._costs = {unit: item_costs(state, item) for unit, item in self._items.items()}
        self._unit_of = {name: unit for unit in units for name in unit.topics}

    def _item(self, unit: Unit) -> tuple[Topic, ...]:
        # One without known topics has a topic of its own, which carries nothing.
        names = unit.topics or (f"{unit.filters[0]}\0",)
        return tuple([self.state.topic(name) for name in names])

    # ---------------------------------------------------------------- plans

    def best(self) -> tuple[Plan, float, float]:
        """Return the best plan, its traffic between brokers, and the least traffic with one
        connection (both messages/s). Raises ValueError: no broker takes clients."""
        state = self.state
        plan = Plan()
        if self._units:
            items = list(self._items.values())
            sessions = self.question.sessions
            found = greedy_items(state, items, sessions, self._gamma, avoid=self._avoid)
            slots = {topic.name: slot for slot, topics in found.items() for topic in topics}
            plan.units = {unit: slots[item[0].name] for unit, item in self._items.items()}
        plan = self.complete(plan)
        cost = self.cost(plan)
        one, single = self._single()
        # Further connections have to save something.
        return (plan, cost, single) if cost < single else (one, single, single)

    def _single(self) -> tuple[Plan, float]:
        """Return the best plan with one connection, and its traffic."""
        state = self.state
        fair = fair_slots(state, state.aeo, self._gamma, self._avoid)
        here = state.slots.get(self.question.at)
        publishes = bool(self.question.publish)
        received = [sum(column) for column in zip(*self._costs.values(), strict=True)]

        def rank(slot: int) -> tuple[float, bool, float]:
            load = (state.aei[slot] + state.aeo[slot]) / state.capacities[slot]
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
        state = self.state
        plan = Plan()
        for session in answer.sessions:
            slot = state.slots.get(session.broker)
            if slot is None or slot not in state.open or self._avoid >> slot & 1:
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
                slot = self._cheapest(used, self._costs[unit], self.state.aeo)
                plan.units[unit] = slot
                used[slot] = None
        for topic in self.question.publish:
            if topic not in plan.topics:
                costs = self._publish_costs(topic, plan)
                slot = self._cheapest(used, costs, self.state.aei)
                plan.topics[topic] = slot
                used[slot] = None
        return plan

    def _cheapest(
        self, used: Collection[int], costs: Sequence[float], loads: Sequence[float]
    ) -> int:
        """Return the slot with the least of `costs`; of equal ones one that is `used`, where the
        client is, or with the least of `loads`."""
        state = self.state
        here = state.slots.get(self.question.at)
        slots = used
        if len(used) < self.question.sessions:
            fair = fair_slots(state, state.aeo, self._gamma, self._avoid)
            slots = dict.fromkeys([*used, *fair])

        def rank(slot: int) -> tuple[float, bool, bool, float]:
            load = loads[slot] / state.capacities[slot]
            return costs[slot], slot not in used, slot != here, load

        return min(slots, key=rank)

    def _publish_costs(self, name: str, plan: Plan) -> list[float]:
        """Return the traffic between brokers that a publisher of a topic makes, by slot."""
        topic = self.state.topic(name)
        rate = topic.weight
        active = topic.active()
        unit = self._unit_of.get(name)
        if unit is not None and unit in plan.units:
            active |= 1 << plan.units[unit]
        slots = range(len(self.state.names))
        return [rate * (active & ~(1 << slot)).bit_count() for slot in slots]

    def cost(self, plan: Plan) -> float:
        """Return the traffic between brokers that a plan makes (messages/s)."""
        costs = [self._costs[unit][slot] for unit, slot in plan.units.items()]
        costs += [self._publish_costs(topic, plan)[slot] for topic, slot in plan.topics.items()]
        return sum(costs, 0.0)

    def address(self, slot: int) -> str:
        """Return where clients connect to the broker with this `slot`."""
        return next(load.address for load in self._loads if load.id == self.state.names[slot])

    def traffic(self) -> tuple[float, float]:
        """Return how much the client gets, and how much it publishes (messages/s)."""
        topic = self.state.topic
        received = [topic(name).weight for unit in self._units for name in unit.topics]
        published = [topic(name).weight for name in self.question.publish]
        return sum(received, 0.0), sum(published, 0.0)

    # ---------------------------------------------------------------- answers

    def sessions(self, plan: Plan, before: Answer | None) -> tuple[PlacedSession, ...]:
        """Return the connections of a plan. Those of an earlier answer (`before`) keep their client
        identifiers, as sessions belong to these."""
        state = self.state
        client = self.question.client
        slots = plan.used()
        if not slots:  # it neither subscribes nor publishes
            slots = [self._cheapest((), [0.0] * len(state.names), state.aeo)]
        ids = {} if before is None else {each.broker: each.client_id for each in before.sessions}
        taken = {slot: ids.get(str(state.names[slot]), "") for slot in slots}
        here = state.slots.get(self.question.at)

        def rank(slot: int) -> tuple[bool, bool, int]:
            parts = list(plan.units.values()).count(slot)
            return taken[slot] != client, slot != here, -parts

        slots = sorted(slots, key=rank)
        # The first connection has the identifier of the client, and its will.
        if taken[slots[0]] != client:
            taken[slots[0]] = client
        free = (f"{client}~{number}" for number in range(2, 2 + 2 * len(slots)))
        known = set(taken.values())
        names = iter([name for name in free if name not in known])
        addresses = {load.id: load.address for load in self._loads}
        found = []
        for slot in slots:
            broker = str(state.names[slot])
            subscribe = [
                name for unit, at in plan.units.items() if at == slot for name in unit.filters
            ]
            publish = [name for name, at in plan.topics.items() if at == slot]
            name = taken[slot] or next(names)
            found.append(
                PlacedSession(broker, addresses[broker], name, tuple(subscribe), tuple(publish))
            )
        return tuple(found)

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
            session, target = at.get((kind, name)), str(self.state.names[slot])
            if session is None or session.broker == target:
                continue
            move = found.setdefault(
                (session.client_id, target),
                Move(self.question.client, session.client_id, session.broker, target, [], 0.0),
            )
            move.names.append(name)
        return [move._replace(saved=saved / len(found)) for move in found.values()]

    def pending(self, plan: Plan, until: float) -> _Pending:
        """Return the load of a plan, which counts until `until` (s)."""
        topic, names = self.state.topic, self.state.names
        subscribed = [
            (name, str(names[slot]), topic(name).weight)
            for unit, slot in plan.units.items()
            for name in unit.topics
        ]
        published = [
            (str(names[slot]), topic(name).weight)
            for name, slot in plan.topics.items()
            if not topic(name).publishers
        ]
        return _Pending(until, tuple(subscribed), tuple(published))


def _memory(question: Question) -> int:
    """Return how many bytes a question and its answer take, about."""
    names = (question.client, *question.subscribe, *question.publish)
    return sum([NAME_MEMORY + len(name) for name in names])


def _moved(before: Iterable[PlacedSession], after: Iterable[PlacedSession]) -> int:
    """Return how many filters and topics are at another broker than before."""
    old = {
        (kind, name): session.broker
        for session in before
        for kind, names in (("s", session.subscribe), ("p", session.publish))
        for name in names
    }
    return sum(
        old.get((kind, name), session.broker) != session.broker
        for session in after
        for kind, names in (("s", session.subscribe), ("p", session.publish))
        for name in names
    )


class _Better(NamedTuple):
    """A plan that would move a client, and what it saves (messages/s)."""

    saved: float
    case: Case
    plan: Plan
    costs: tuple[float, float]
    """Its traffic between brokers, and the least with one connection."""
    moves: list[Move]
