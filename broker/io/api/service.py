"""Answers requests under `/api/v1`: each route of `routes` has a method here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mqttree.broker.cluster.directory.questions import Answer
from mqttree.broker.cluster.placement.placement_messages import FORGET, PLACE, PLAN, STATUS, TOLD
from mqttree.broker.io.api import clients, federation, openapi, topics
from mqttree.broker.io.api.delivery_tree import delivery_tree
from mqttree.broker.io.api.event_stream import EventStream, encode
from mqttree.broker.io.api.monitor import Monitor
from mqttree.broker.io.api.other_brokers import ALL, OtherBrokers, Values
from mqttree.broker.io.api.routes import (
    AT_EACH,
    AT_HOLDER,
    PREFIX,
    RequestError,
    Route,
    find,
    read_query,
)
from mqttree.broker.io.api.search import Page, Searches

if TYPE_CHECKING:
    from mqttree.broker.core.session import Session
    from mqttree.broker.node import Node

MAX_EVENT_READERS = 32
"""connections of the admin port that read events; one more is refused with 503 (a dashboard
then asks every few seconds instead), so that requests find room."""

MAX_SEARCHES = 4
"""searches of the admin port at a time, through clients or topics; more are refused with 429.
Each takes a third of the processor at most."""

CLIENTS, _ = find("GET", f"{PREFIX}/clients")

Then = Callable[[int, dict[str, Any]], None]
"""Takes the status and the content of an answer, now or later."""

EMBEDDED = "this broker is part of another program, which does that"


class Asker(NamedTuple):
    """A request that waits for its answer."""

    then: Then
    waits: Callable[[], bool]
    """Whether it still does."""


class Api:
    """The interface of one admin port."""

    def __init__(
        self,
        node: Node,
        loop: asyncio.AbstractEventLoop,
        *,
        version: str,
        began: float,
        state: Callable[[], dict[str, Any]],
        legs: Callable[[], list[dict[str, Any]]],
        listeners: Callable[[], list[dict[str, Any]]],
        drain: Callable[[Mapping[str, str]], dict[str, Any]] | None,
        reload: Callable[[], None] | None,
        wake: Callable[[], None],
    ) -> None:
        """`node`: the broker; `loop`: in which it runs; `version`: of the program; `began`: when
        the broker did (s); `state`: returns the answer to `/federation`; `legs`: returns the state
        of each leg; `listeners`: of each listener; `drain`, `reload`: as for `Admin`; `wake`: has
        sent what the node wants to send."""
        self._node = node
        self._loop = loop
        self._version = version
        self._state = state
        self._legs = legs
        self._listeners = listeners
        self._drain = drain
        self._reload = reload
        self._wake = wake
        self._others = OtherBrokers(self._node, loop.time, wake, self._answer)
        self._last_known = clients.LastKnown()
        self.stream = EventStream(node.counters, MAX_EVENT_READERS)
        self.searches = Searches(loop, MAX_SEARCHES)
        self.monitor = Monitor(self._node, loop, began=began, legs=legs, tell=self.stream.tell)
        self.monitor.watched = lambda: bool(self.stream.readers)

    def close(self) -> None:
        """Look at the broker no more."""
        self.monitor.close()

    def ask(
        self,
        route: Route,
        names: Mapping[str, str],
        query: str,
        body: bytes,
        then: Then,
        waits: Callable[[], bool],
    ) -> None:
        """Have a request answered.

        `route`, `names`: what `find` says of it; `query`, `body`: of the request; `then`: takes the
        answer, now or within some seconds; `waits`: returns whether anybody still wants it.
        """
        try:
            values: Values = {**read_query(route, query), **names}
            if route.body:
                values["body"] = _read_body(body)
            at = self._broker_of(route, values)
            asker = Asker(then, waits)
            if at == ALL:
                self._others.ask_all(route, values, lambda answer: then(*answer))
            elif at:
                self._others.ask(self._others.find(at), route, values, lambda a: then(*a))
            else:
                getattr(self, route.handler)(values, asker)
        except RequestError as error:
            then(error.status, {"error": str(error)})

    def serve(self, question: bytes, then: Callable[[Answer], None]) -> None:
        """Answer a request that another broker sends. `question`: method, path and query; `then`:
        takes the answer. Raises MalformedPacket."""
        self._others.serve(question, then)

    def _answer(self, route: Route, values: Values, then: Callable[[Answer], None]) -> None:
        """Answer a request as this broker alone does."""
        asker = Asker(lambda status, content: then((status, content)), lambda: True)
        try:
            if route.handler == "clients":
                values = {**values, "broker": self._node.config.id.hex()}
            getattr(self, route.handler)(values, asker)
        except RequestError as error:
            then((error.status, {"error": str(error)}))

    def _broker_of(self, route: Route, values: Values) -> str:
        """Take out of the `values` of a request which other broker is to answer: its id, ALL, or
        "" for this one. Raises RequestError: it cannot be ALL."""
        at = str(values.pop("at", ""))
        if at == ALL and AT_EACH not in route.parameters:
            raise RequestError(400, "at is the id of one broker here")
        if not at and AT_HOLDER in route.parameters:
            at = clients.holder(self._node, values["client"])
        return "" if at == self._node.config.id.hex() else at

    def events(self) -> bytes:
        """Return what a new reader of events gets at once. Raises RequestError: there are too
        many."""
        if self.stream.full:
            raise RequestError(503, f"{len(self.stream.readers)} readers are connected already")
        now = self._loop.time()
        return encode("summary", self.monitor.summary()) + encode(
            "topology", federation.topology(self._node, now, self.monitor.link_rates)
        )

    # ---------------------------------------------------------------- answered at once

    def openapi(self, values: Values, asker: Asker) -> None:
        """Answer with the OpenAPI document."""
        asker.then(200, openapi.document(self._version))

    def federation(self, values: Values, asker: Asker) -> None:
        """Answer with the view of this broker."""
        asker.then(200, self._state())

    def summary(self, values: Values, asker: Asker) -> None:
        """Answer with rates and counts."""
        asker.then(200, self.monitor.summary())

    def topology(self, values: Values, asker: Asker) -> None:
        """Answer with all brokers and links."""
        now = self._loop.time()
        asker.then(200, federation.topology(self._node, now, self.monitor.link_rates))

    def brokers(self, values: Values, asker: Asker) -> None:
        """Answer with all brokers."""
        asker.then(200, {"brokers": federation.brokers(self._node, self._loop.time())})

    def links(self, values: Values, asker: Asker) -> None:
        """Answer with all links."""
        asker.then(200, {"links": federation.links(self._node, self.monitor.link_rates)})

    def tree(self, values: Values, asker: Asker) -> None:
        """Answer with the links that messages of one broker take."""
        asker.then(200, delivery_tree(self._node, values["origin"], values["topic"]))

    def alarms(self, values: Values, asker: Asker) -> None:
        """Answer with what needs attention."""
        asker.then(200, {"alarms": self.monitor.alarms()})

    def past_alarms(self, values: Values, asker: Asker) -> None:
        """Answer with alarms that are over."""
        asker.then(200, {"alarms": list(self.monitor.alarm_history.past)})

    def history(self, values: Values, asker: Asker) -> None:
        """Answer with the last hour."""
        asker.then(200, self.monitor.history())

    def changes(self, values: Values, asker: Asker) -> None:
        """Answer with the last changes of the topology."""
        asker.then(200, {"changes": list(self.monitor.changes)})

    def listeners(self, values: Values, asker: Asker) -> None:
        """Answer with the listeners."""
        asker.then(200, {"listeners": self._listeners()})

    def legs(self, values: Values, asker: Asker) -> None:
        """Answer with the state of each leg."""
        asker.then(200, {"legs": self._legs()})

    def leg(self, values: Values, asker: Asker) -> None:
        """Answer with the state of one leg. Raises RequestError."""
        for leg in self._legs():
            if leg["name"] == values["leg"]:
                asker.then(200, leg)
                return
        raise RequestError(404, "no such leg")

    def traffic(self, values: Values, asker: Asker) -> None:
        """Answer with the traffic of this broker."""
        asker.then(200, topics.traffic(self._node, values["top"], self.monitor.cpu))

    def topics(self, values: Values, asker: Asker) -> None:
        """Answer with the topics that are published to most."""
        asker.then(
            200,
            topics.top_topics(self._node, values["filter"], values["search"], values["limit"]),
        )

    def retained_message(self, values: Values, asker: Asker) -> None:
        """Answer with one retained message."""
        asker.then(
            200, topics.retained_message(self._node.retained, values["topic"], self._loop.time())
        )

    def client(self, values: Values, asker: Asker) -> None:
        """Answer with one client of this broker."""
        session = clients.session_of(self._node, values["client"])
        asker.then(200, clients.describe(session, self._node.config.id.hex()))

    # ---------------------------------------------------------------- what changes something

    def disconnect(self, values: Values, asker: Asker) -> None:
        """Disconnect a client."""
        self._node.now = self._loop.time()
        clients.disconnect_client(self._node, values["client"])
        self._wake()
        asker.then(200, {"done": True})

    def end_session(self, values: Values, asker: Asker) -> None:
        """Disconnect a client and end its session."""
        self._node.now = self._loop.time()
        clients.end_session(self._node, values["client"])
        self._wake()
        asker.then(200, {"done": True})

    def dismiss(self, values: Values, asker: Asker) -> None:
        """Dismiss the alarm of a broker that is gone. Raises RequestError."""
        self._node.now = self._loop.time()
        for each in self._node.cluster.gone_brokers.alarms():
            if each["id"] == values["alarm"]:
                self._node.cluster.gone_brokers.dismiss(bytes.fromhex(each["id"]))
                self._wake()
                asker.then(200, {"done": True})
                return
        raise RequestError(404, "no alarm can be dismissed under this id")

    def drain(self, values: Values, asker: Asker) -> None:
        """Begin a drain, or end it. Raises RequestError."""
        if self._drain is None:
            raise RequestError(404, EMBEDDED)
        try:
            asker.then(202, self._drain({name: v for name, v in values.items() if v is not None}))
        except ValueError as error:
            raise RequestError(400, str(error)) from None

    def reload(self, values: Values, asker: Asker) -> None:
        """Begin to read the files again. Raises RequestError."""
        if self._reload is None:
            raise RequestError(404, EMBEDDED)
        self._reload()
        asker.then(202, {"done": True})

    # ------------------------------------------- answered by the broker that decides on placement

    def placement(self, values: Values, asker: Asker) -> None:
        """Answer with all brokers and their traffic."""
        self._ask_placement(STATUS, {}, asker)

    def place(self, values: Values, asker: Asker) -> None:
        """Answer where a client should connect."""
        question = values["body"]
        client = question.get("client", "") if isinstance(question, dict) else ""
        self._ask_placement(PLACE, question, asker, client if isinstance(client, str) else "")

    def plan(self, values: Values, asker: Asker) -> None:
        """Answer with moves of clients that pay."""
        self._ask_placement(PLAN, values["body"], asker)

    def placed(self, values: Values, asker: Asker) -> None:
        """Answer with what a client was told."""
        self._ask_placement(TOLD, values, asker)

    def forget_placed(self, values: Values, asker: Asker) -> None:
        """Forget what a client was told."""
        self._ask_placement(FORGET, values, asker)

    def _ask_placement(self, operation: int, value: Any, asker: Asker, client: str = "") -> None:
        self._node.now = self._loop.time()
        self._node.cluster.placement.ask(
            operation, value, lambda answer: asker.then(*answer), client
        )
        self._wake()

    # ---------------------------------------------------------------- searches

    def _search(
        self,
        name: str,
        values: Values,
        asker: Asker,
        work: Callable[[Page[dict[str, Any]]], Iterator[None]],
    ) -> None:
        """Answer with a page of what a search finds; `name`: of its rows; `values`, `asker`: of the
        request; `work`: puts rows into a page, some at a time."""
        page: Page[dict[str, Any]] = Page(values["limit"], values["after"])

        def done() -> None:
            rows, following = page.rows()
            asker.then(200, {name: rows, "total": page.total, "next": following})

        self.searches.begin(work(page), done, asker.waits)

    def clients(self, values: Values, asker: Asker) -> None:
        """Answer with clients of all brokers, which are asked first."""
        asked = [
            listing.id
            for listing in self._node.cluster.database.reachable()
            if values["broker"] in ("", listing.id.hex())
        ]
        question = {**values, "limit": min(values["limit"], clients.ROWS_OF_ONE)}

        def answered(answers: dict[bytes, Answer]) -> None:
            try:
                self._merge_clients(answers, values, asker)
            except RequestError as error:
                asker.then(error.status, {"error": str(error)})

        self._others.ask_each(asked, CLIENTS, question, answered)

    def _merge_clients(self, answers: dict[bytes, Answer], values: Values, asker: Asker) -> None:
        """Answer with the clients here and those that other brokers have named: `answers` by id;
        `values`, `asker`: of the request. Raises RequestError."""
        page: Page[dict[str, Any]] = Page(values["limit"], values["after"])
        found = clients.Answered(answers, self._last_known)
        work = clients.search(self._node, page, found, values)

        def done() -> None:
            rows, following = found.cut(*page.rows())
            asker.then(
                200,
                {
                    "clients": rows,
                    "total": page.total,
                    "next": following,
                    "silent": sorted(found.silent),
                    "names": found.names,
                },
            )

        self.searches.begin(work, done, asker.waits)

    def subscriptions_of(self, values: Values, asker: Asker) -> None:
        """Answer with the subscriptions of one client."""
        self._subscriptions([clients.session_of(self._node, values["client"])], values, asker)

    def subscriptions(self, values: Values, asker: Asker) -> None:
        """Answer with the subscriptions of all clients here."""
        self._subscriptions(list(self._node.sessions.values()), values, asker)

    def _subscriptions(self, sessions: list[Session], values: Values, asker: Asker) -> None:
        self._search(
            "subscriptions",
            values,
            asker,
            lambda page: clients.subscriptions(sessions, page, values["search"]),
        )

    def groups(self, values: Values, asker: Asker) -> None:
        """Answer with shared subscriptions."""
        self._search(
            "groups",
            values,
            asker,
            lambda page: topics.groups(self._node.cluster.sharing.groups, page, values["search"]),
        )

    def retained(self, values: Values, asker: Asker) -> None:
        """Answer with retained messages."""
        now = self._loop.time()
        self._search(
            "retained",
            values,
            asker,
            lambda page: topics.retained(self._node, page, values["filter"], values["search"], now),
        )

    def routing_table(self, values: Values, asker: Asker) -> None:
        """Answer with the filters that other brokers want."""
        self._search(
            "routes",
            values,
            asker,
            lambda page: topics.routing_table(
                self._node.cluster.database, page, values["search"], values["broker"]
            ),
        )


def _read_body(body: bytes) -> Any:
    """Return the value of a body. Raises RequestError."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError(400, "the body is not JSON") from None
