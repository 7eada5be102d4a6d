"""Takes questions about where clients should connect, at any broker. The root of the tree answers
them; the other brokers pass them on to it, and wait for the answer for two seconds.

A client asks by MQTT: it publishes a question to `$mqttree/placement`, with a Response Topic that
it subscribes to. The answer goes to that client alone, wherever else its Response Topic is
subscribed to.

What answers is loaded at the first question, or when another broker is there: a broker that
no client asks does not need it, and starts without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mqttree.broker.base.rate_limit import RateLimits
from mqttree.broker.cluster.directory.questions import SILENT, Answer, Questions, Then
from mqttree.broker.cluster.events import RouteChanged, TopologyChanged
from mqttree.broker.cluster.placement.placement_messages import (
    ASK_CLIENTS,
    ASK_RATES,
    CLIENTS,
    PLACE,
    PLACEMENT_ANSWER,
    PLACEMENT_QUESTION,
    RATES,
    REDIRECT,
    decode_clients,
    decode_question,
    decode_rates,
    decode_redirect,
    encode_clients,
    encode_question,
    encode_rates,
)
from mqttree.broker.cluster.placement.redirector import Redirector
from mqttree.broker.cluster.placement.traffic_entry import Counts, TrafficEntry
from mqttree.broker.core.responses import Response, respond
from mqttree.broker.wire.constants import ReasonCode

if TYPE_CHECKING:
    from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
    from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
    from mqttree.broker.cluster.placement.decider import Decider
    from mqttree.broker.cluster.placement.ports import PlacingBroker
    from mqttree.broker.cluster.placement.rebalancer import Rebalancer
    from mqttree.broker.cluster.ports import Alarm
    from mqttree.broker.cluster.strategy.routing_strategy import WantedTopics
    from mqttree.broker.core.message import Message
    from mqttree.broker.core.session import Session
    from mqttree.stp.tree import Tree

PER_CLIENT: Final = 10.0
"""questions a second of one client."""

MAX_LIMITED: Final = 10_000
"""clients whose questions of the last seconds are counted; of more, the oldest are forgotten."""

CLIENT_WORK: Final = 50
"""steps of work for each client that the root is told of."""

STAY: Final[Answer] = (503, {"error": "the broker that decides does not answer; stay"})


class PlacementService:
    """Answers, or has answered, where clients should connect."""

    def __init__(
        self,
        host: PlacingBroker,
        *,
        tree: Tree,
        directory: LinkStateDirectory,
        bus: UnicastBus,
        strategy: WantedTopics,
        alarm: Alarm,
    ) -> None:
        """`host`: this broker; `tree`: whose root decides; `directory`: what brokers post; `bus`:
        carries questions; `strategy`: which brokers want which topics; `alarm`: has questions sent
        at once."""
        self._host = host
        self._tree = tree
        self._database = directory.database
        self._bus = bus
        self._strategy = strategy
        self._alarm = alarm
        self._decider: Decider | None = None  # no question here yet
        self.redirector: Redirector = Redirector(host, self._ask_about)
        self._rebalancer: Rebalancer | None = None  # no round was due here
        self._reached: set[bytes] = set()  # the other brokers
        self._entry = TrafficEntry(directory)
        self._questions = Questions(host, bus, alarm, PLACEMENT_QUESTION, PLACEMENT_ANSWER)
        self._questions.serve = self._serve
        self._limits: RateLimits = RateLimits(PER_CLIENT, MAX_LIMITED)
        bus.receive(ASK_RATES, self._rates_asked)
        bus.receive(RATES, self._rates_received)
        bus.receive(ASK_CLIENTS, self._clients_asked)
        bus.receive(CLIENTS, self._clients_received)
        bus.receive(REDIRECT, self._redirect_received)
        if host.traffic is not None:
            host.traffic.on_read.append(self._read)
            self._entry.update(host.traffic.sums, tree.capability)

    @property
    def decider(self) -> Decider:
        """Answers questions while this broker is the root."""
        decider = self._decider
        if decider is None:
            from mqttree.broker.cluster.placement.decider import Decider
            from mqttree.broker.cluster.placement.topic_knowledge import TopicKnowledge

            knowledge = TopicKnowledge(self._host, self._tree, self._database, self._strategy)
            self._decider = decider = Decider(self._host, self._database, self._bus, knowledge)
        return decider

    @property
    def rebalancer(self) -> Rebalancer:
        """Moves clients while this broker is the root."""
        rebalancer = self._rebalancer
        if rebalancer is None:
            from mqttree.broker.cluster.placement.rebalancer import Rebalancer

            self._rebalancer = rebalancer = Rebalancer(
                self._host,
                decider=self.decider,
                database=self._database,
                bus=self._bus,
                redirector=self.redirector,
            )
        return rebalancer

    # ---------------------------------------------------------------- questions

    def ask(self, operation: int, body: Any, then: Then, client: str = "") -> None:
        """Have a question answered.

        `operation`: one of `placement_messages`; `body`: as JSON has it; `then`: takes the answer,
        now or within some seconds; `client`: whose questions are limited, "": no limit.
        """
        self._host.counters.placement_questions += 1
        if client and not self._limits.take(client, self._host.now):
            self._host.counters.placement_refused += 1
            then((429, {"error": f"more than {PER_CLIENT:g} questions a second"}))
            return
        root = self._tree.root.id
        if root == self._host.config.id:
            # What is answered at once leaves nothing to be sent to other brokers.
            at_once = operation == PLACE and self.decider.ready
            self.decider.ask(operation, body, then)
            if not at_once:
                self._alarm.hurry(self._host.now)
            return
        self._deposed()

        def answered(answer: Answer) -> None:
            if answer == SILENT:
                self._host.counters.placement_unanswered += 1
                answer = STAY
            then(answer)

        self._questions.ask(root, encode_question(operation, body), answered)

    def _ask_about(self, operation: int, body: Any, then: Then) -> None:
        """Have a question about a client of this broker answered that it has not asked itself."""
        self.ask(operation, {**body, "at": self._host.config.id.hex()}, then)

    # ---------------------------------------------------------------- by MQTT

    def request(self, session: Session, message: Message, properties: dict[int, Any]) -> int:
        """Take a question that a client has published (`message`), and return the Reason Code of
        its acknowledgement. The answer goes to `session` alone. `properties`: of the PUBLISH."""
        response = Response.of(session, properties)
        if response is None:
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR

        def then(answer: Answer) -> None:
            respond(response, *answer)

        from mqttree.broker.cluster.placement.client_question import read_client_question

        found = read_client_question(session, message.payload, self._host.config.id)
        if not isinstance(found, dict):
            self._host.counters.placement_refused += 1
            then(found.answer)
            return found.code
        if not self._limits.take(session.client_id, self._host.now):
            self._host.counters.placement_refused += 1
            then((429, {"error": f"more than {PER_CLIENT:g} questions a second"}))
            return ReasonCode.QUOTA_EXCEEDED
        self.ask(PLACE, found, then)
        return ReasonCode.SUCCESS

    # ---------------------------------------------------------------- other brokers

    def _serve(self, question: bytes, then: Then) -> None:
        operation, body = decode_question(question)
        if self._tree.root.id == self._host.config.id:
            self.decider.ask(operation, body, then)
        else:
            # It is asked again when the tree has settled.
            self._deposed()
            then((503, {"error": "this broker is not the root; ask again"}))

    def _rates_asked(self, sender: bytes, data: bytes, now: float) -> None:
        traffic = self._host.traffic
        if traffic is None:
            self._bus.send(sender, RATES, encode_rates((), 0.0, 0))
            return
        top, others, rest = traffic.topics()
        self._host.turns.work += len(top)
        self._bus.send(sender, RATES, encode_rates(top, rest, others))

    def _rates_received(self, sender: bytes, data: bytes, now: float) -> None:
        rates, rest, topics = decode_rates(data)
        if self._decider is not None:
            self._decider.rates_came(sender, rates, rest, topics)

    def _clients_asked(self, sender: bytes, data: bytes, now: float) -> None:
        clients = self.redirector.candidates()
        self._host.turns.work += CLIENT_WORK * len(clients)
        self._bus.send(sender, CLIENTS, encode_clients(self._host.clients.connected, clients))

    def _clients_received(self, sender: bytes, data: bytes, now: float) -> None:
        connected, clients = decode_clients(data)
        if self._rebalancer is not None:
            self._rebalancer.clients_came(sender, connected, clients)

    def _redirect_received(self, sender: bytes, data: bytes, now: float) -> None:
        client, address = decode_redirect(data)
        if sender == self._tree.root.id:
            self.redirector.chosen(client, address)

    def topology_changed(self, event: TopologyChanged) -> None:
        """Note that the tree has changed."""
        self.redirector.unsettled()
        self._stop_moves()

    def route_changed(self, event: RouteChanged) -> None:
        """Note that the path to a broker has changed, or that there is none."""
        if event.via is not None:
            if event.broker_id not in self._reached:
                self._reached.add(event.broker_id)
                self.redirector.unsettled()
            return
        self._reached.discard(event.broker_id)
        self.redirector.unsettled()
        self._stop_moves()
        if self._decider is not None:
            self._decider.broker_gone(event.broker_id)
        self._questions.broker_gone(event.broker_id)

    def _deposed(self) -> None:
        """Note that another broker decides."""
        if self._decider is not None:
            self._decider.deposed()

    def _stop_moves(self) -> None:
        if self._rebalancer is not None:
            self._rebalancer.stop()

    def _read(self, now: float) -> None:
        """Post the traffic of this broker; see whether it still decides."""
        traffic = self._host.traffic
        if traffic is not None:
            self._entry.update(traffic.sums, self._tree.capability)
            self._entry.count(Counts(self._host.clients.connected, len(self._host.sessions)))
        if self._tree.root.id != self._host.config.id:
            self._deposed()
            self._stop_moves()
        elif self.redirector.enabled and self._reached:
            self.rebalancer.look(now)
