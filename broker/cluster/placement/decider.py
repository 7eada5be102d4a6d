"""Decides where clients connect, while this broker is the root of the tree; its states are a table
(`decider_states`).

It asks all brokers how often topics are published to: from the first question on every ten seconds,
until no question has come for ten minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from mqttree.broker.base.rate_limit import Budget
from mqttree.broker.base.state_table import look_up
from mqttree.broker.cluster.directory.questions import BUSY, Answer, Then
from mqttree.broker.cluster.placement.decider_states import TRANSITIONS, Action, Input, State
from mqttree.broker.cluster.placement.placement_messages import (
    ADVISE,
    ASK_RATES,
    FORGET,
    PLACE,
    PLAN,
    STATUS,
    TOLD,
    Rates,
)
from mqttree.broker.cluster.placement.topic_knowledge import TopicKnowledge
from mqttree.broker.wire.strings import is_own
from mqttree.placement.case import Move, Unit
from mqttree.placement.controller import Controller
from mqttree.placement.figures import Figures
from mqttree.placement.question import MAX_FILTERS, Question, TooMuchError, read_question
from mqttree.placement.redirection import Candidate, Redirections
from mqttree.routing.filter_units import filter_units
from mqttree.routing.topic_filter import (
    is_wildcard,
    split_shared,
    valid_topic_filter,
    valid_topic_name,
)

if TYPE_CHECKING:
    from mqttree.broker.base.timers import Timer
    from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
    from mqttree.broker.cluster.placement.ports import PlacingBroker
    from mqttree.routing.link_state import LinkStateDatabase

PERIOD_S: Final = 10.0
"""s between two rounds of questions for rates."""

GATHER_WAIT: Final = 0.5
"""s for which a question waits for the first rates at most."""

QUIET_S: Final = 600.0
"""s without a question after which rates are not asked for any more."""

MAX_WAITING: Final = 1000
"""questions that wait for the first rates; more are refused as too many."""

MAX_PLANNED: Final = 1000
"""clients that one plan looks at."""

MAX_MOVES: Final = 10_000
"""moves that a plan may have."""

PLAN_WORK: Final = 500
"""steps of work for each client of a plan."""

QUESTION_WORK: Final = 150
TOPIC_WORK: Final = 10
"""Steps of work, of about a microsecond, for a question, and for each of its filters and topics."""

PLACE_WORK: Final = 40
PLAIN_WORK: Final = 5
"""The same for a question where to connect, as most are, and for each of its filters that was named
lately and has no wildcard (measured, compiled, without HTTP; Python takes up to twice as long)."""

WORK: Final = 500_000.0
"""steps for questions a second, half of a processor; further questions are refused as too many."""

MAX_PLAIN: Final = 10_000
LONGEST_PLAIN: Final = 256
"""filters without wildcards that are known to be right, and their characters."""

ELSEWHERE: Final[Answer] = (503, {"error": "another broker decides; ask again"})


class Decider:
    """Answers questions about placement."""

    def __init__(
        self,
        host: PlacingBroker,
        database: LinkStateDatabase,
        bus: UnicastBus,
        knowledge: TopicKnowledge,
    ) -> None:
        """`host`: this broker; `database`: which brokers can be reached; `bus`: carries
        questions for rates; `knowledge`: takes the answers."""
        self._host = host
        self._database = database
        self._bus = bus
        self.knowledge = knowledge
        self.controller: Controller = Controller()
        self.redirections: Redirections = Redirections(self.controller)
        """Sends clients that have not asked to other brokers."""
        self._state = State.IDLE
        self._budget = Budget(WORK, WORK, host.now)
        self._plain: dict[str, Unit] = {}  # filters without wildcards that are right
        self._waiting: list[tuple[int, Any, Then]] = []
        self._asked: set[bytes] = set()  # brokers whose rates are waited for
        self._asked_at = 0.0  # the last question (s)
        self._gathered_at = 0.0  # the last rates (s)
        self._timer: Timer | None = None

    @property
    def state(self) -> State:
        """What it does."""
        return self._state

    @property
    def ready(self) -> bool:
        """Whether a question is answered at once."""
        return self._state is State.READY

    # ---------------------------------------------------------------- inputs

    def ask(self, operation: int, body: Any, then: Then) -> None:
        """Answer a question, now or soon.

        `operation`: what is asked for; `body`: as JSON has it; `then`: takes the answer.
        """
        self._asked_at = self._host.now
        action = self._step(Input.ASKED)
        if action is Action.ANSWER:
            self._answer(operation, body, then)
        elif len(self._waiting) >= MAX_WAITING:
            then(BUSY)
        else:
            self._waiting.append((operation, body, then))
        if action is Action.GATHER:
            self._gather()
            self._host.timers.schedule(self._host.now + GATHER_WAIT, lambda _: self._gathered())
            if not self._asked:
                self._gathered()

    def rates_came(self, broker_id: bytes, rates: Rates, rest: float, topics: int) -> None:
        """Take the `rates` of the topics of the broker `broker_id`, and rate (`rest`) and number
        (`topics`) of all its others; messages/s."""
        if self._state is State.IDLE:
            return  # they were not asked for
        self.knowledge.take(broker_id.hex(), rates, rest, topics)
        self._host.turns.work += len(rates)
        self._gathered_at = self._host.now
        self._asked.discard(broker_id)
        if not self._asked:
            self._gathered()

    def broker_gone(self, broker_id: bytes) -> None:
        """Note that a broker cannot be reached any more."""
        self._asked.discard(broker_id)
        if self._state is not State.IDLE:
            self.knowledge.take(broker_id.hex(), {}, 0.0, 0)
            if not self._asked:
                self._gathered()

    def deposed(self) -> None:
        """Note that another broker is the root."""
        if self._step(Input.DEPOSED) is Action.REFUSE:
            self._forget()
            self.controller = Controller()
            self.redirections = Redirections(self.controller)
            waiting, self._waiting = self._waiting, []
            for _, _, then in waiting:
                then(ELSEWHERE)

    # ---------------------------------------------------------------- rates

    def _step(self, given: Input) -> Action:
        action, self._state = look_up(TRANSITIONS, self._state, given, "the decider")
        return action

    def _gather(self) -> None:
        """Ask all brokers for rates, and look at those here."""
        host = self._host
        listings = self._database.reachable()
        self.knowledge.keep({host.config.id.hex(), *[listing.id.hex() for listing in listings]})
        self._asked = {
            listing.id for listing in listings if self._bus.send(listing.id, ASK_RATES, b"")
        }
        if host.traffic is not None:
            top, others, rest = host.traffic.topics()
            own = {topic.decode(): rate for topic, rate in top}
            self.knowledge.take(host.config.id.hex(), own, rest, others)
            host.turns.work += len(own)
        self._gathered_at = host.now
        if self._timer is not None:
            host.timers.cancel(self._timer)
        self._timer = host.timers.schedule(host.now + PERIOD_S, self._due)

    def _due(self, now: float) -> None:
        self._timer = None
        quiet = now - self._asked_at > QUIET_S
        action = self._step(Input.QUIET if quiet else Input.DUE)
        if action is Action.FORGET:
            self._forget()
        elif action is Action.ASK_AGAIN:
            self.controller.expire(now)
            self._gather()

    def _gathered(self) -> None:
        if self._step(Input.GATHERED) is Action.ANSWER_ALL:
            waiting, self._waiting = self._waiting, []
            for operation, body, then in waiting:
                self._answer(operation, body, then)

    def _forget(self) -> None:
        self.knowledge.keep(())
        self._asked.clear()
        if self._timer is not None:
            self._host.timers.cancel(self._timer)
            self._timer = None

    # ---------------------------------------------------------------- answers

    def _answer(self, operation: int, body: Any, then: Then) -> None:
        self._budget.earn(self._host.now)
        if self._budget.left <= 0:
            then(BUSY)
        elif operation == PLAN:
            self._plan(body, then)
        else:
            self._budget.left -= PLACE_WORK if operation == PLACE else QUESTION_WORK
            then(self._simple_answer(operation, body))

    def _simple_answer(self, operation: int, body: Any) -> Answer:
        try:
            if operation == PLACE:
                return self._place(read_question(body))
            if operation == TOLD:
                return self._told(_client(body))
            if operation == FORGET:
                return self._forget_client(_client(body))
            if operation == STATUS:
                return 200, self._status()
            if operation == ADVISE:
                return self._advise(body)
        except TooMuchError as error:
            return 429, {"error": str(error)}
        except ValueError as error:
            return 400, {"error": str(error)}
        return 400, {"error": "unknown operation"}

    def _place(self, question: Question) -> Answer:
        known = self._plain_units(question)
        if known is None:
            check_names(question)
        if question.avoid:
            self._check_avoided(question.avoid)
        units = self.units(question) if known is None else known
        try:
            answer = self.controller.place(question, units, self.knowledge, self._host.now)
        except TooMuchError:
            raise
        except ValueError as error:  # no broker takes clients
            return 503, {"error": str(error)}
        return 200, answer.as_dict()

    def _check_avoided(self, avoid: frozenset[str]) -> None:
        known = {load.id for load in self.knowledge.brokers()}
        unknown = sorted(avoid - known)
        if unknown and not all(_is_id(broker) for broker in unknown):
            raise ValueError(f"avoid: {unknown[0][:64]!r} is no broker id")

    def _advise(self, body: Any) -> Answer:
        candidate = self.candidate(body)
        try:
            advice = self.redirections.advise(
                candidate,
                self.knowledge,
                self._host.now,
                leave=body.get("leave") is True,
                later=body.get("later") is True,
            )
        except TooMuchError:
            raise
        except ValueError as error:  # no broker takes clients
            return 503, {"error": str(error)}
        if advice is None:
            return 200, {}
        return 200, {
            "broker": advice.target,
            "address": advice.address,
            "saving_per_s": round(advice.saved, 3),
        }

    def candidate(self, body: Any) -> Candidate:
        """Return a client that may be sent to another broker, and that its broker has described
        (`client_interest.question_of`). Raises ValueError with one line."""
        if not isinstance(body, dict):
            raise ValueError("a client is a JSON object")
        own = {"alone", "queued", "leave", "later"}
        question = read_question({key: value for key, value in body.items() if key not in own})
        check_names(question)
        alone, queued = body.get("alone", []), body.get("queued", 0)
        if (
            not isinstance(alone, list)
            or len(alone) > MAX_FILTERS
            or not all(isinstance(name, str) for name in alone)
        ):
            raise ValueError("alone: not a list of filters")
        if type(queued) is not int or queued < 0:
            raise ValueError("queued: not a number of messages")
        return Candidate(question, self.units(question), frozenset(alone), queued)

    def _plain_units(self, question: Question) -> list[Unit] | None:
        """Return the filters of a question that are all known to be right and without wildcards,
        each by itself; None for other questions."""
        if question.publish:
            return None
        plain = self._plain
        found = [plain[name] for name in question.subscribe if name in plain]
        if len(found) < len(question.subscribe):
            return None
        self._count_work(PLACE_WORK, PLAIN_WORK * len(found))
        return found

    def units(self, question: Question) -> list[Unit]:
        """Return the filters of a question, which are right; those together that may match a common
        topic."""
        looks = 0
        if any(is_wildcard(name) or name.startswith("$share/") for name in question.subscribe):
            found, looks = self._units(question.subscribe)
        else:
            # Each is the one topic that it spells.
            found = [self._unit_of(name) for name in question.subscribe]
        count = len(found) + sum([len(unit.topics) for unit in found]) + len(question.publish)
        self._count_work(QUESTION_WORK, TOPIC_WORK * count + looks)
        return found

    def _count_work(self, question: int, topics: int) -> None:
        """Count the steps that a question takes in this turn: those for its `topics` are still to
        be paid, those of the `question` itself have been."""
        self._host.turns.work += question + topics
        self._budget.left -= topics

    def _unit_of(self, name: str) -> Unit:
        unit = self._plain.get(name)
        if unit is None:
            unit = Unit((name,), (name,))
            if len(name) <= LONGEST_PLAIN:
                if len(self._plain) >= MAX_PLAIN:
                    self._plain.clear()
                self._plain[name] = unit
        return unit

    def _units(self, filters: Sequence[str]) -> tuple[list[Unit], int]:
        shared = [split_shared(name) for name in filters]
        plain = [inner for group, inner in shared if group is None]
        known = dict(zip(plain, self.knowledge.topics(plain), strict=True))
        found = []
        groups, looks = filter_units(plain)
        for together in groups:
            topics = dict.fromkeys([topic for name in together for topic in known[name]])
            # The topics that filters without wildcards spell are looked at whether known or not.
            topics |= dict.fromkeys([name for name in together if valid_topic_name(name)])
            found.append(Unit(tuple(together), tuple(topics)))
        if len(plain) < len(filters):
            # A group gets each message once, wherever its members are: no reason to be anywhere.
            there = set(plain)
            found += [Unit((name,), ()) for name in filters if name not in there]
        return found, looks

    def _told(self, client: str) -> Answer:
        answer = self.controller.told(client, self._host.now)
        if answer is None:
            return 404, {"error": "this client was told nothing that is still valid"}
        return 200, answer.as_dict()

    def _forget_client(self, client: str) -> Answer:
        if not self.controller.forget(client):
            return 404, {"error": "this client was told nothing"}
        return 200, {"forgotten": client}

    def _status(self) -> dict[str, Any]:
        loads = self.knowledge.brokers()
        figures = Figures(
            tuple([load.id for load in loads]),
            tuple([load.aei for load in loads]),
            tuple([load.aeo for load in loads]),
            tuple([load.aii for load in loads]),
            tuple([load.aio for load in loads]),
            sum([load.aio for load in loads]),
        )
        return {
            "controller": self._host.config.id.hex(),
            "brokers": [
                {
                    "id": load.id,
                    "address": load.address,
                    "capacity": round(load.capacity, 3),
                    "drained": load.drained,
                    "published_per_s": round(load.aei, 3),
                    "delivered_per_s": round(load.aeo, 3),
                    "link_in_per_s": round(load.aii, 3),
                    "link_out_per_s": round(load.aio, 3),
                }
                for load in loads
            ],
            "peak": round(figures.peak, 4),
            "jain": round(figures.jain, 4),
            "routing_overhead": round(figures.routing_overhead, 4),
            "forwarding_overhead": round(figures.forwarding_overhead, 4),
            "scaling": round(figures.scaling(), 4),
            "clients": len(self.controller),
            "pending": self.controller.pending,
            "moves": self.controller.moves,
            "redirected": len(self.redirections),
            "topics": len(self.knowledge),
            "rates_age_s": round(self._host.now - self._gathered_at, 1)
            if self._gathered_at
            else None,
        }

    def _plan(self, body: Any, then: Then) -> None:
        """Find moves that pay, some clients in each turn."""
        try:
            moves, apply = read_plan(body)
        except ValueError as error:
            then((400, {"error": str(error)}))
            return
        self._host.turns.go(self._planning(moves, apply, then), lambda: False)

    def _planning(self, moves: int, apply: bool, then: Then) -> Iterator[int]:
        found: list[Move] = []
        controller = self.controller
        questions = self._with_units(controller.clients()[:MAX_PLANNED])
        now = self._host.now
        for _ in controller.plan(questions, self.knowledge, now, moves, found, apply=apply):
            yield PLAN_WORK
        then((200, {"moves": [move.as_dict() for move in found], "applied": apply}))

    def _with_units(self, questions: list[Question]) -> Iterator[tuple[Question, list[Unit]]]:
        for question in questions:
            yield question, self.units(question)


def read_plan(body: Any) -> tuple[int, bool]:
    """Return how many moves a plan may have, and whether it is to be applied. Raises ValueError
    with one line."""
    if not isinstance(body, dict) or body.keys() - {"moves", "apply"}:
        raise ValueError("a plan is a JSON object with moves and apply")
    moves, apply = body.get("moves", 100), body.get("apply", False)
    if type(moves) is not int or not 1 <= moves <= MAX_MOVES:
        raise ValueError(f"moves: not a whole number from 1 to {MAX_MOVES}")
    if not isinstance(apply, bool):
        raise ValueError("apply: neither true nor false")
    return moves, apply


def check_names(question: Question) -> None:
    """Refuse a question with a filter or a topic name that is none. Raises ValueError with one
    line."""
    for name in question.subscribe:
        if not valid_topic_filter(name):
            raise ValueError(f"subscribe: {name[:64]!r} is no topic filter")
    for name in question.publish:
        if not valid_topic_name(name) or is_own(name):
            raise ValueError(f"publish: {name[:64]!r} is no topic that a client may publish to")


def _client(body: Any) -> str:
    client = body.get("client") if isinstance(body, dict) else None
    if not isinstance(client, str) or not client:
        raise ValueError("client: not a client identifier")
    return client


def _is_id(text: str) -> bool:
    return len(text) == 16 and all(letter in "0123456789abcdef" for letter in text)
