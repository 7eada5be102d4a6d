"""Takes questions about where clients should connect, at any broker. The root of the tree answers
them; the other brokers pass them on to it, and wait for the answer for two seconds.

A client asks by MQTT: it publishes a question to `$mqttree/placement`, with a Response Topic that
it subscribes to. The answer goes to that client alone, wherever else its Response Topic is
subscribed to.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from broker.base.rate_limit import RateLimits
from broker.cluster.events import RouteChanged, TopologyChanged
from broker.cluster.placement.decider import BUSY, Answer, Decider, check_names
from broker.cluster.placement.decider_states import State
from broker.cluster.placement.placement_messages import (
    ANSWER,
    ASK_CLIENTS,
    ASK_RATES,
    CLIENTS,
    PLACE,
    QUESTION,
    RATES,
    REDIRECT,
    encode_answer,
    encode_clients,
    encode_question,
    encode_rates,
    read_answer,
    read_clients,
    read_question,
    read_rates,
    read_redirect,
)
from broker.cluster.placement.rebalancer import Rebalancer
from broker.cluster.placement.redirector import Redirector
from broker.cluster.placement.topic_knowledge import TopicKnowledge
from broker.cluster.placement.traffic_entry import Counts, TrafficEntry
from broker.core.message import Message
from broker.core.responses import Response, respond
from broker.wire.constants import ReasonCode
from placement import question as questions
from placement.question import TooMuchError
from routing.topic_filter import split_shared

if TYPE_CHECKING:
    from broker.base.timers import Timer
    from broker.cluster.placement.ports import PlacingBroker
    from broker.cluster.ports import Alarm, Reporting
    from broker.cluster.strategy.directory import Directory
    from broker.cluster.strategy.routing_strategy import RoutingStrategy
    from broker.core.session import Session
    from stp.tree import Tree

WAIT: Final = 2.0
"""s for the answer of another broker."""

MOST_OPEN: Final = 10_000
"""questions that wait for another broker."""

PER_CLIENT: Final = 10.0
"""questions a second of one client."""

MOST_LIMITED: Final = 10_000
"""clients whose questions of the last seconds are counted; of more, the oldest are forgotten."""

MOST_QUESTION: Final = 256 * 1024
"""bytes of a question; a thousand filters of 250."""

CLIENT_WORK: Final = 50
"""steps of work for each client that the root is told of."""

Then = Callable[[Answer], None]
"""Takes an answer: status as in HTTP, and what JSON can say."""

SILENT: Final[Answer] = (503, {"error": "the broker that decides does not answer; stay"})


class PlacementService:
    """Answers, or has answered, where clients should connect."""

    __slots__ = (
        "_alarm",
        "_directory",
        "_entry",
        "_host",
        "_limits",
        "_number",
        "_open",
        "_reached",
        "_rebalancer",
        "_report",
        "_tree",
        "decider",
        "redirector",
    )

    def __init__(
        self,
        host: PlacingBroker,
        *,
        tree: Tree,
        directory: Directory,
        strategy: RoutingStrategy,
        report: Reporting,
        alarm: Alarm,
    ) -> None:
        """`host`: this broker; `tree`: whose root decides; `directory`: carries questions;
        `strategy`: which brokers want which topics; `report`: counts; `alarm`: has questions sent
        at once."""
        self._host = host
        self._tree = tree
        self._directory = directory
        self._report = report
        self._alarm = alarm
        self.decider: Decider = Decider(
            host, directory, TopicKnowledge(host, tree, directory, strategy)
        )
        self.redirector: Redirector = Redirector(host, self._ask_about, report)
        self._rebalancer = Rebalancer(
            host,
            decider=self.decider,
            directory=directory,
            redirector=self.redirector,
            report=report,
        )
        self._reached: set[bytes] = set()  # the other brokers
        self._entry = TrafficEntry(directory)
        self._number = 0
        self._open: dict[int, tuple[bytes, Then, Timer]] = {}  # who was asked, what is done then
        self._limits: RateLimits = RateLimits(PER_CLIENT, MOST_LIMITED)
        directory.receive(QUESTION, self._question_received)
        directory.receive(ANSWER, self._answer_received)
        directory.receive(ASK_RATES, self._rates_asked)
        directory.receive(RATES, self._rates_received)
        directory.receive(ASK_CLIENTS, self._clients_asked)
        directory.receive(CLIENTS, self._clients_received)
        directory.receive(REDIRECT, self._redirect_received)
        if host.traffic is not None:
            host.traffic.on_read.append(self._read)
            self._entry.update(host.traffic.sums, tree.capability)

    # ---------------------------------------------------------------- questions

    def ask(self, operation: int, body: Any, then: Then, client: str = "") -> None:
        """Have a question answered.

        `operation`: one of `placement_messages`; `body`: as JSON has it; `then`: takes the answer,
        now or within some seconds; `client`: whose questions are limited, "": nobody's.
        """
        self._ask(operation, body, then, client)

    def _ask_about(self, operation: int, body: Any, then: Then) -> None:
        """Have a question about a client of this broker answered that it has not asked itself."""
        self._ask(operation, {**body, "at": self._host.config.id.hex()}, then, "")

    def _ask(self, operation: int, body: Any, then: Then, client: str) -> None:
        self._report.count("placement_questions")
        if client and not self._limits.take(client, self._host.now):
            self._report.count("placement_refused")
            then((429, {"error": f"more than {PER_CLIENT:g} questions a second"}))
            return
        root = self._tree.root.id
        if root == self._host.config.id:
            # What is answered at once leaves nothing to be sent to other brokers.
            at_once = operation == PLACE and self.decider.state is State.READY
            self.decider.ask(operation, body, then)
            if not at_once:
                self._alarm.hurry(self._host.now)
            return
        self.decider.deposed()
        if len(self._open) >= MOST_OPEN:
            then(BUSY)
            return
        self._number = number = self._number % 0xFFFFFFFF + 1
        timer = self._host.schedule(self._host.now + WAIT, lambda now: self._late(number))
        self._open[number] = (root, then, timer)
        if not self._directory.send(root, QUESTION, encode_question(number, operation, body)):
            self._late(number)
        self._alarm.hurry(self._host.now)

    def _late(self, number: int) -> None:
        self._close(number, SILENT)

    def _close(self, number: int, answer: Answer) -> None:
        found = self._open.pop(number, None)
        if found is not None:
            if answer is SILENT:
                self._report.count("placement_unanswered")
            _, then, timer = found
            self._host.cancel(timer)
            then(answer)

    # ---------------------------------------------------------------- by MQTT

    def request(self, session: Session, message: Message, properties: dict[int, Any]) -> int:
        """Take a question that a client has published (`message`), and return the Reason Code of
        its acknowledgement. The answer goes to `session` alone. `properties`: of the PUBLISH."""
        response = Response.of(session, properties)
        if response is None:
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR

        def then(answer: Answer) -> None:
            respond(response, *answer)

        try:
            body = self._read_request(session, message.payload)
        except TooMuchError as error:
            self._report.count("placement_refused")
            then((429, {"error": str(error)}))
            return ReasonCode.QUOTA_EXCEEDED
        except ValueError as error:
            self._report.count("placement_refused")
            then((400, {"error": str(error)}))
            return ReasonCode.SUCCESS
        except PermissionError as error:
            self._report.count("placement_refused")
            then((403, {"error": str(error)}))
            return ReasonCode.NOT_AUTHORIZED
        if not self._limits.take(session.client_id, self._host.now):
            self._report.count("placement_refused")
            then((429, {"error": f"more than {PER_CLIENT:g} questions a second"}))
            return ReasonCode.QUOTA_EXCEEDED
        self.ask(PLACE, body, then)
        return ReasonCode.SUCCESS

    def _read_request(self, session: Session, payload: bytes) -> dict[str, Any]:
        """Return the question of a client, with its identifier and the broker where it is.

        Raises:
            TooMuchError, ValueError: it is none, or beyond a limit.
            PermissionError: it is about another client, or about what the client may not do.
        """
        if len(payload) > MOST_QUESTION:
            raise TooMuchError(f"a question of more than {MOST_QUESTION} bytes")
        try:
            value = json.loads(payload)
        except (ValueError, RecursionError):
            raise ValueError("a question is a JSON object") from None
        question = questions.read_question(value, session.client_id, self._host.config.id.hex())
        check_names(question)
        if question.client != session.client_id:
            raise PermissionError("a client may ask about itself only")
        for name in question.subscribe:
            if not session.may_subscribe(split_shared(name)[1]):
                raise PermissionError(f"subscribe: {name[:64]!r} is not allowed")
        for name in question.publish:
            if not session.may_publish(name):
                raise PermissionError(f"publish: {name[:64]!r} is not allowed")
        return {**value, "client": question.client, "at": question.at}

    # ---------------------------------------------------------------- other brokers

    def _question_received(self, sender: bytes, data: bytes, now: float) -> None:
        number, operation, body = read_question(data)

        def then(answer: Answer) -> None:
            self._directory.send(sender, ANSWER, encode_answer(number, *answer))

        if self._tree.root.id == self._host.config.id:
            self.decider.ask(operation, body, then)
        else:
            # It is asked again when the tree has settled.
            self.decider.deposed()
            then((503, {"error": "this broker is not the root; ask again"}))

    def _answer_received(self, sender: bytes, data: bytes, now: float) -> None:
        number, status, body = read_answer(data)
        found = self._open.get(number)
        if found is not None and found[0] == sender:
            self._close(number, (status, body))

    def _rates_asked(self, sender: bytes, data: bytes, now: float) -> None:
        traffic = self._host.traffic
        if traffic is None:
            self._directory.send(sender, RATES, encode_rates((), 0.0, 0))
            return
        top, others, rest = traffic.topics()
        self._host.turns.work += len(top)
        self._directory.send(sender, RATES, encode_rates(top, rest, others))

    def _rates_received(self, sender: bytes, data: bytes, now: float) -> None:
        rates, rest, topics = read_rates(data)
        self.decider.rates_came(sender, rates, rest, topics)

    def _clients_asked(self, sender: bytes, data: bytes, now: float) -> None:
        clients = self.redirector.candidates()
        self._host.turns.work += CLIENT_WORK * len(clients)
        self._directory.send(sender, CLIENTS, encode_clients(self._host.connected, clients))

    def _clients_received(self, sender: bytes, data: bytes, now: float) -> None:
        connected, clients = read_clients(data)
        self._rebalancer.clients_came(sender, connected, clients)

    def _redirect_received(self, sender: bytes, data: bytes, now: float) -> None:
        client, address = read_redirect(data)
        if sender == self._tree.root.id:
            self.redirector.chosen(client, address)

    def topology_changed(self, event: TopologyChanged) -> None:
        """Note that the tree has changed."""
        self.redirector.unsettled()
        self._rebalancer.stop()

    def route_changed(self, event: RouteChanged) -> None:
        """Note that the path to a broker has changed, or that there is none."""
        if event.via is not None:
            if event.broker_id not in self._reached:
                self._reached.add(event.broker_id)
                self.redirector.unsettled()
            return
        self._reached.discard(event.broker_id)
        self.redirector.unsettled()
        self._rebalancer.stop()
        self.decider.broker_gone(event.broker_id)
        waiting = [number for number, (asked, _, _) in self._open.items()]
        for number in waiting:
            if number in self._open and self._open[number][0] == event.broker_id:
                self._close(number, SILENT)

    def _read(self, now: float) -> None:
        """Post the traffic of this broker; see whether it still decides."""
        traffic = self._host.traffic
        if traffic is not None:
            self._entry.update(traffic.sums, self._tree.capability)
            self._entry.count(Counts(self._host.connected, len(self._host.sessions)))
        if self._tree.root.id != self._host.config.id:
            self.decider.deposed()
            self._rebalancer.stop()
        else:
            self._rebalancer.look(now)
