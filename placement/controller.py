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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from mqttree.placement.broker_table import BrokerTable
from mqttree.placement.case import Case, Move, Plan, Unit, View
from mqttree.placement.greedy import GAMMA
from mqttree.placement.pending_load import Pending, PendingLoad
from mqttree.placement.question import Answer, PlacedSession, Question, TooMuchError

TTL: Final = 300.0
"""s for which an answer is valid."""

PENDING: Final = 30.0
"""s after which the filters of an answer are expected to be known from the brokers."""

MAX_CLIENTS: Final = 100_000
"""clients whose answers are remembered; further ones get none. 2 KB each, with ten filters."""

MAX_MEMORY: Final = 128 * 1024 * 1024
"""bytes that all answers take, about; further clients get none."""

NAME_MEMORY: Final = 200
"""bytes of a filter or topic in an answer, besides its name, which is there once."""

MAX_ENTRIES: Final = 1_000_000
"""topics of all pending answers; of more, the oldest answers are not pending any more."""

WORTH_PART: Final = 0.1
WORTH_RATE: Final = 1.0
"""A client is moved only if that saves this part of its traffic between brokers, and so many
messages/s."""


@dataclass(slots=True)
class _Told:
    """What a client was told."""

    question: Question
    answer: Answer
    until: float


class Controller:
    """Places clients. One broker of a federation asks it."""

    def __init__(
        self,
        most: int = MAX_CLIENTS,
        gamma: float = GAMMA,
        *,
        memory: int = MAX_MEMORY,
        entries: int = MAX_ENTRIES,
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
        self._brokers = BrokerTable(())
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
        loads = view.brokers()
        # The same object as long as nothing new is known.
        if loads is not self._brokers.loads:
            self._brokers = BrokerTable(loads)
        return Case(question, units, view, self._brokers, self._pending, self._gamma)

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
            case = self.case(question, units, view)
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
        waiting: Pending | None,
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
            case = self.case(question, units, view)
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


def _memory(question: Question) -> int:
    """Return how many bytes a question and its answer take, about."""
    subscribe, publish = question.subscribe, question.publish
    names = 1 + len(subscribe) + len(publish)
    letters = len(question.client) + sum(map(len, subscribe)) + sum(map(len, publish))
    return NAME_MEMORY * names + letters


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
