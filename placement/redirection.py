"""Which clients with one connection are sent to another broker: when it pays, and when a broker has
too much. Pure: `now` is handed in, in seconds.

Such a client did not ask. It is sent away once, and may ignore that, so it must pay: the move saves
a tenth of the client's traffic and a message a second, and the other broker stays within its due.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from mqttree.placement.broker_table import SPARE, BrokerLoad
from mqttree.placement.case import Case, Unit, View
from mqttree.placement.controller import WORTH_PART, WORTH_RATE, Controller
from mqttree.placement.greedy import fair_slots
from mqttree.placement.question import Question, TooMuchError

AGAIN: Final = 600.0
"""s for which a client that was sent away is not sent away again, by any broker."""

MAX_ADVISED: Final = 100_000
"""clients of which it is remembered that they were; while there are more, no client is sent away. A
client identifier and a time each."""

OVER: Final = 0.1
"""How much further than `gamma` a broker's load is above its due until it is relieved: less is what
placement itself allows."""

LOOKS: Final = 3
"""looks in a row at which it has to be so, as a load may be over again by itself."""

SETTLING: Final = 120.0
"""s after a broker was relieved for which its load is not judged: loads are averages over a minute,
and show what was moved only then."""

PAYBACK: Final = 600.0
"""s within which moves have to save what they cost."""

MOVE_COST: Final = 50.0
"""messages that count as the cost of one move, besides those that wait in the session: to find the
session and to fetch it, and to tell all brokers of its filters and their end. An estimate."""


class Advice(NamedTuple):
    """Where a client would better be connected."""

    client: str
    source: str
    target: str
    """Brokers."""
    address: str
    """Where clients connect to the target."""
    saved: float
    """Messages/s between brokers."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A client that may be sent away; its question says where it is."""

    question: Question
    units: Sequence[Unit]
    alone: frozenset[str] = frozenset()
    """Filters that no other client at its broker has a part of: without the client, their topics
    are not wanted there."""
    queued: int = 0
    """Messages that wait in its session."""


class _Without:
    """What is known of the federation, without the wishes of one client at its broker."""

    def __init__(self, view: View, broker: str, topics: frozenset[str]) -> None:
        self._view = view
        self._broker = broker
        self._topics = topics
        self.brokers = view.brokers
        self.rates = view.rates
        self.rare = view.rare

    def state(self) -> None:
        """Say that each topic has to be asked for: what is kept is with this client."""

    def wanted(self, topic: str) -> Collection[str]:
        """Return the brokers with a subscriber of a topic, this client left out."""
        found = self._view.wanted(topic)
        if topic in self._topics:
            return [broker for broker in found if broker != self._broker]
        return found


class Redirections:
    """Decides which clients are sent where, for all brokers of a federation."""

    def __init__(self, controller: Controller, most: int = MAX_ADVISED) -> None:
        """`controller`: has the clients that place themselves, and the load that is about to come;
        `most`: clients of which it is remembered that they were sent away."""
        self._controller = controller
        self._most = most
        self._sent: OrderedDict[str, float] = OrderedDict()  # until when (s), the oldest first

    def __len__(self) -> int:
        """Return how many clients were sent away in the last ten minutes."""
        return len(self._sent)

    def advise(
        self,
        candidate: Candidate,
        view: View,
        now: float,
        *,
        leave: bool = False,
        later: bool = False,
    ) -> Advice | None:
        """Return where a client is to be sent, None if it stays.

        Args:
            `candidate`: the client.
            `view`: what is known of the federation.
            `now`: s.
            `leave`: its broker is about to stop, so that any other one is better.
            `later`: it is not sent away now, and asked about again at its next CONNECT.

        Raises:
            TooMuchError: too many clients were sent away lately.
            ValueError: no broker takes clients.
        """
        if not self._may_be_sent(candidate, now, leave):
            return None
        found = self._look(candidate, view, leave=leave)
        if found is None:
            return None
        case, slot, advice = found
        if not later:
            self._controller.expect(case, case.all_at(slot), now)
            self._note(candidate.question.client, now)
        return advice

    def plan(
        self,
        candidates: Iterable[Candidate],
        view: View,
        now: float,
        into: list[tuple[Advice, int]],
        over: Mapping[str, float],
    ) -> Iterator[None]:
        """Find clients that would better be elsewhere; yields before each one. `commit` or `drop`
        follows.

        Args:
            `candidates`: the clients.
            `view`: what is known of the federation.
            `now`: s.
            `into`: takes where they are to be sent, each with the messages that wait for it: those
                first that relieve a broker, and then those that save most.
            `over`: brokers that have too much, and how much (messages/s).
        """
        found: list[tuple[bool, Advice, int]] = []
        left = dict(over)
        for candidate in candidates:
            yield
            question = candidate.question
            relieves = left.get(question.at, 0.0) > 0
            try:
                if not self._may_be_sent(candidate, now, False):
                    continue
                look = self._look(candidate, view, relieve=frozenset(over) if relieves else None)
            except ValueError:
                continue
            if look is not None:
                case, slot, advice = look
                if relieves:
                    left[question.at] -= sum(case.traffic(), 0.0)
                # It counts as load there for those that follow.
                self._controller.expect(case, case.all_at(slot), now)
                found.append((relieves, advice, candidate.queued))
        found.sort(key=lambda each: (not each[0], -each[1].saved))
        into += [(advice, queued) for _, advice, queued in found]

    def commit(self, advice: Advice, now: float) -> bool:
        """Return whether a client of a plan is to be sent away now (`now`: s), and note that it
        is."""
        if advice.client in self._sent or len(self._sent) >= self._most:
            self.drop(advice)
            return False
        self._note(advice.client, now)
        return True

    def drop(self, advice: Advice) -> None:
        """Note that a client of a plan stays where it is."""
        self._controller.expect_no_more(advice.client)

    # ---------------------------------------------------------------- one client

    def _may_be_sent(self, candidate: Candidate, now: float, leave: bool) -> bool:
        self._controller.expire(now)
        while self._sent:
            client, until = next(iter(self._sent.items()))
            if until > now:
                break
            del self._sent[client]
        client = candidate.question.client
        if self._controller.places(client):
            return False
        if leave:
            return True
        if client in self._sent:
            return False
        if len(self._sent) >= self._most:
            raise TooMuchError("too many clients were sent to other brokers lately")
        return True

    def _note(self, client: str, now: float) -> None:
        self._sent.pop(client, None)
        if len(self._sent) < self._most:
            self._sent[client] = now + AGAIN

    def _look(
        self,
        candidate: Candidate,
        view: View,
        *,
        leave: bool = False,
        relieve: frozenset[str] | None = None,
    ) -> tuple[Case, int, Advice] | None:
        """Return where a client is to be sent. `relieve`: brokers that have too much, as its own
        has; None: its own has not."""
        question = candidate.question
        apart = frozenset(
            [
                topic
                for unit in candidate.units
                if candidate.alone.issuperset(unit.filters)
                for topic in unit.topics
            ]
        )
        without = _Without(view, question.at, apart) if apart else view
        case = self._controller.case(question, candidate.units, without)
        brokers, aei, aeo = case.brokers, case.aei, case.aeo
        here = brokers.slots.get(question.at)
        if here is None and not leave:
            return None  # its own address is not known, so it could not be sent back either
        avoid = brokers.mask((question.at, *question.avoid, *(relieve or ())))
        received, published = case.traffic()
        slots = fair_slots(brokers, aeo, self._controller.gamma, avoid)
        if not leave:
            bound = _bound(case, self._controller.gamma)
            slots = [s for s in slots if aeo[s] + received <= bound * brokers.capacities[s]]
        if not slots:
            return None

        def rank(slot: int) -> tuple[float, float]:
            load = (aei[slot] + aeo[slot]) / brokers.capacities[slot]
            return case.cost_at(slot), load

        slot = min(slots, key=rank)
        saved = 0.0 if here is None else case.cost_at(here) - rank(slot)[0]
        if relieve is not None:
            # No further traffic between brokers, and what cannot be counted relieves nothing.
            worth = saved >= 0 and received + published > 0
        else:
            worth = saved >= max(WORTH_RATE, WORTH_PART * (received + published))
        if not (worth or leave):
            return None
        target, address = brokers.names[slot], brokers.addresses[slot]
        advice = Advice(question.client, question.at, target, address, saved)
        return case, slot, advice


def _bound(case: Case, gamma: float) -> float:
    """Return what a broker may have to subscribers for each unit of its capacity (messages/s)."""
    brokers = case.brokers
    capacity = sum([brokers.capacities[slot] for slot in brokers.open], 0.0)
    return gamma * sum(case.aeo, 0.0) / capacity if capacity else 0.0


class Overload:
    """Which brokers have more than `gamma` + 0.1 times their due in three looks in a row."""

    def __init__(self, gamma: float) -> None:
        """`gamma`: how many times its due placement lets a broker have."""
        self._most = gamma + OVER
        self._gamma = gamma
        self._looks: dict[str, int] = {}
        self._judged: dict[str, float] = {}  # relieved brokers: when their load counts again (s)

    def look(self, loads: Sequence[BrokerLoad], now: float) -> dict[str, float]:
        """Return the brokers that are to be relieved, with how much is too much (messages/s).
        `loads`: of all brokers that can be reached; `now`: s."""
        loads = [load for load in loads if load.capacity > 0]
        capacity = sum([load.capacity for load in loads], 0.0)
        if not capacity:
            return {}
        # Where all have little to do, none has too much: as for placement itself.
        spare = SPARE * len(loads) / capacity
        total = sum([_load(load) + spare * load.capacity for load in loads], 0.0)
        looks: dict[str, int] = {}
        over: dict[str, float] = {}
        self._judged = {broker: at for broker, at in self._judged.items() if at > now}
        for load in loads:
            due = total * load.capacity / capacity
            has = _load(load) + spare * load.capacity
            if has > self._most * due and load.id not in self._judged:
                looks[load.id] = self._looks.get(load.id, 0) + 1
                if looks[load.id] >= LOOKS:
                    over[load.id] = has - self._gamma * due
        self._looks = looks
        return over

    def relieved(self, broker: str, now: float) -> None:
        """Note that clients of a `broker` are sent away at `now` (s)."""
        self._looks.pop(broker, None)
        self._judged[broker] = now + SETTLING


def _load(load: BrokerLoad) -> float:
    return load.aei + load.aeo + load.aii + load.aio


def pays(found: Sequence[tuple[Advice, int]], internal: float) -> bool:
    """Return whether moves save enough: a tenth of what is sent between brokers, and within ten
    minutes what they cost.

    `found`: the moves, each with the messages that wait in the session; `internal`: messages/s
    between brokers.
    """
    saved = sum([advice.saved for advice, _ in found], 0.0)
    cost = sum([MOVE_COST + queued for _, queued in found], 0.0)
    return saved > 0 and saved >= WORTH_PART * internal and saved * PAYBACK >= cost
