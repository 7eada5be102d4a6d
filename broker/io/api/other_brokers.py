"""Requests that other brokers of the federation answer, each as its own admin port would.

A broker is asked by a message to it alone (`mqttree.broker.cluster.directory.questions`), which
takes no port and no token of that broker: whoever is in the federation may take its clients anyway.
A broker does what it is asked to do itself, and asks no other broker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from mqttree.broker.cluster.directory.questions import SILENT, Answer, Then, read_json
from mqttree.broker.io.api.routes import PREFIX, RequestError, Route, find, read_query
from mqttree.broker.wire.errors import MalformedPacket

if TYPE_CHECKING:
    from mqttree.broker.node import Node

ALL: Final = "all"
"""The value of `at` that stands for every broker."""

Values = dict[str, Any]
"""Parts of the path, parameters and the body of a request, by name."""


class OtherBrokers:
    """The other brokers, as far as they answer requests."""

    def __init__(
        self, node: Node, now: Callable[[], float], wake: Callable[[], None], own: Local
    ) -> None:
        """`node`: this broker; `now`: returns the time (s); `wake`: has sent what the node
        wants to send; `own`: answers a request here."""
        self._node = node
        self._now = now
        self._wake = wake
        self._own = own

    def find(self, broker: str) -> bytes:
        """Return the id of the broker that `broker` names. Raises RequestError."""
        for listing in self._node.cluster.database.reachable():
            if listing.id.hex() == broker:
                return listing.id
        raise RequestError(404, "no such broker, or it cannot be reached")

    def ask(self, broker: bytes, route: Route, values: Mapping[str, Any], then: Then) -> None:
        """Have a request answered by another broker.

        `broker`: its id; `route`, `values`: of the request, its parameters and parts of its path by
        name; `then`: takes the answer, SILENT if there is none within two seconds.
        """
        path, query = route.path, dict(values)
        for part in [name for name in values if f"{{{name}}}" in path]:
            path = path.replace(f"{{{part}}}", quote(str(query.pop(part)), safe=""))
        query[_whose(route)] = broker.hex()
        fields = urlencode({name: value for name, value in query.items() if value is not None})

        def answered(answer: Answer) -> None:
            then(answer if isinstance(answer[1], dict) else SILENT)

        self._node.now = self._now()
        self._node.cluster.admin_questions.ask(
            broker, json.dumps([route.method, path, fields]).encode(), answered
        )
        self._wake()

    def ask_each(
        self,
        brokers: Iterable[bytes],
        route: Route,
        values: Mapping[str, Any],
        then: Callable[[dict[bytes, Answer]], None],
    ) -> None:
        """Have a request answered by each of these brokers, and call `then` with all answers by
        id. `brokers`, `route`, `values`: as for `ask`."""
        found: dict[bytes, Answer] = {}
        every = list(brokers)

        def answered(broker: bytes, answer: Answer) -> None:
            found[broker] = answer
            if len(found) == len(every):
                then(found)

        if not every:
            then(found)
        for broker in every:
            self.ask(broker, route, values, partial(answered, broker))

    def ask_all(self, route: Route, values: Values, then: Then) -> None:
        """Have a request answered by this broker and every other one that can be reached, and call
        `then` with one answer that has all. `route`, `values`: as for `ask`."""
        own = self._node.config.id
        here: list[Answer] = []
        self._own(route, values, here.append)

        def answered(found: dict[bytes, Answer]) -> None:
            every = {own: here[0] if here else SILENT, **found}
            rows = [
                {"broker": broker.hex(), "status": status, "answer": content}
                for broker, (status, content) in sorted(every.items())
            ]
            then((200, {"brokers": rows}))

        others = [listing.id for listing in self._node.cluster.database.reachable()]
        self.ask_each(others, route, values, answered)

    def serve(self, question: bytes, then: Then) -> None:
        """Answer a request that another broker sends. `question`: method, path and query; `then`:
        takes the answer. Raises MalformedPacket."""
        value = read_json(question)
        if not (isinstance(value, list) and len(value) == 3 and all(_is_text(v) for v in value)):
            raise MalformedPacket("request of another broker is none")
        method, path, query = value
        try:
            route, names = find(method, PREFIX + path)
            values: Values = {**read_query(route, query), **names}
        except RequestError as error:
            then((error.status, {"error": str(error)}))
            return
        if values.pop(_whose(route), "") == self._node.config.id.hex():
            self._own(route, values, then)
        else:
            then((403, {"error": "this request is for the broker's own admin port"}))


Local = Callable[[Route, Values, Then], None]
"""Answers a request here: route, values, and what takes the answer."""


def _whose(route: Route) -> str:
    """Return the parameter of a `route` that says which broker answers, "": no other one does."""
    names = [each.name for each in route.parameters]
    return "at" if "at" in names else "broker" if route.handler == "clients" else ""


def _is_text(value: object) -> bool:
    return isinstance(value, str)
