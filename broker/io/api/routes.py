"""Every route of `/api/v1`, as data: dispatched by `service`, documented by `openapi`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote

PREFIX: Final = "/api/v1"

MAX_ROWS: Final = 1000
"""rows of one page."""

ROWS: Final = 100
"""rows of one page unless the request says otherwise."""

MAX_TEXT: Final = 65_535
"""characters of a parameter: a topic has no more."""


class Parameter(NamedTuple):
    """A parameter of the query."""

    name: str
    text: str
    """What it means."""
    default: str | int | None = ""
    """None: the handler has one of its own."""
    most: int = 0
    """Of a number, the highest one."""
    choices: tuple[str, ...] = ()


class Route(NamedTuple):
    """One method of one path. `{name}` stands for a part of the path."""

    method: str
    path: str
    handler: str
    """Name of a method of `service.Api`."""
    summary: str
    schema: str
    """Name of what a good answer looks like, in `schemas`."""
    parameters: tuple[Parameter, ...] = ()
    body: bool = False
    """Whether a request has one: a JSON object."""
    status: int = 200
    """Of a good answer."""


class RequestError(Exception):
    """A request that cannot be answered; the text is one line."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


LIMIT: Final = Parameter("limit", "rows at most", ROWS, MAX_ROWS)
AFTER: Final = Parameter("after", "only rows behind this one: `next` of the page before")
SEARCH: Final = Parameter("search", "only those that contain this text, whatever its case")
FILTER: Final = Parameter("filter", "only topics that this topic filter matches", "#")
BROKER: Final = Parameter("broker", "only those of the broker with this id")
AT: Final = Parameter("at", "id of the broker that answers (this one)")
AT_EACH: Final = Parameter("at", "id of the broker that answers (this one); all: each of them")
AT_HOLDER: Final = Parameter("at", "id of the broker that answers (the one that has the client)")
STATE: Final = Parameter("state", "only those", "all", choices=("all", "connected", "disconnected"))

ROUTES: Final = (
    Route("GET", "/openapi.json", "openapi", "This document", "Document"),
    Route(
        "GET", "/federation", "federation", "The federation as this broker sees it", "Federation"
    ),
    Route(
        "GET",
        "/placement",
        "placement",
        "All brokers with their traffic, as the one that decides about placement knows them",
        "Placement",
    ),
    Route("POST", "/placement", "place", "Where a client should connect", "Placed", body=True),
    Route("POST", "/placement/plan", "plan", "Moves of clients that pay", "Plan", body=True),
    Route("GET", "/placement/{client}", "placed", "What a client was told", "Placed"),
    Route(
        "DELETE", "/placement/{client}", "forget_placed", "Forgets what it was told", "Forgotten"
    ),
    Route(
        "GET",
        "/summary",
        "summary",
        "Rates and counts of a broker, once a second",
        "Summary",
        (AT_EACH,),
    ),
    Route("GET", "/topology", "topology", "All brokers and links of the federation", "Topology"),
    Route("GET", "/brokers", "brokers", "All brokers of the federation", "Brokers"),
    Route("GET", "/links", "links", "All links of the federation", "Links", (AT,)),
    Route(
        "GET",
        "/tree",
        "tree",
        "The links that messages of one broker take to the brokers that want them",
        "DeliveryTree",
        (
            Parameter("origin", "id of the broker where they are published (this one)"),
            Parameter("topic", "of the messages (any, which all brokers want)"),
        ),
    ),
    Route("GET", "/alarms", "alarms", "What needs attention", "Alarms", (AT_EACH,)),
    Route(
        "GET", "/alarms/history", "past_alarms", "Alarms that are over", "PastAlarms", (AT_EACH,)
    ),
    Route(
        "DELETE",
        "/alarms/{alarm}",
        "dismiss",
        "Dismisses the alarm of a broker that is gone, at all brokers",
        "Done",
    ),
    Route("GET", "/history", "history", "The last hour of a broker", "History", (AT,)),
    Route("GET", "/changes", "changes", "The last changes of the topology", "Changes"),
    Route(
        "GET",
        "/clients",
        "clients",
        "Clients with a session at any broker, as these brokers answer",
        "ClientPage",
        (SEARCH, STATE, BROKER, LIMIT, AFTER),
    ),
    Route("GET", "/clients/{client}", "client", "One client", "Client", (AT_HOLDER,)),
    Route(
        "DELETE",
        "/clients/{client}",
        "end_session",
        "Disconnects a client and ends its session",
        "Done",
        (AT_HOLDER,),
    ),
    Route(
        "POST",
        "/clients/{client}/disconnect",
        "disconnect",
        "Disconnects a client; its session stays",
        "Done",
        (AT_HOLDER,),
    ),
    Route(
        "GET",
        "/clients/{client}/subscriptions",
        "subscriptions_of",
        "Subscriptions of one client",
        "SubscriptionPage",
        (AT_HOLDER, SEARCH, LIMIT, AFTER),
    ),
    Route(
        "GET",
        "/subscriptions",
        "subscriptions",
        "Subscriptions of the clients of a broker",
        "SubscriptionPage",
        (AT, SEARCH, LIMIT, AFTER),
    ),
    Route(
        "GET",
        "/groups",
        "groups",
        "Shared subscriptions with members at a broker",
        "GroupPage",
        (AT, SEARCH, LIMIT, AFTER),
    ),
    Route(
        "GET",
        "/topics",
        "topics",
        "The topics that clients of a broker publish to most",
        "TopicPage",
        (AT, FILTER, SEARCH, LIMIT),
    ),
    Route(
        "GET",
        "/retained",
        "retained",
        "Retained messages",
        "RetainedPage",
        (FILTER, SEARCH, LIMIT, AFTER),
    ),
    Route(
        "GET",
        "/retained/{topic}",
        "retained_message",
        "The retained message of one topic (its slashes as %2F, or as they are)",
        "RetainedMessage",
    ),
    Route(
        "GET",
        "/routes",
        "routing_table",
        "Which broker wants messages of which filters, and through which link they go",
        "RoutePage",
        (SEARCH, BROKER, LIMIT, AFTER),
    ),
    Route(
        "GET",
        "/traffic",
        "traffic",
        "Messages a second of this broker, and its topics with the highest rates",
        "Traffic",
        (Parameter("top", "topics at most", MAX_ROWS, MAX_ROWS),),
    ),
    Route("GET", "/listeners", "listeners", "Where clients connect", "Listeners", (AT_EACH,)),
    Route("GET", "/legs", "legs", "The legs of a broker", "Legs", (AT_EACH,)),
    Route("GET", "/legs/{leg}", "leg", "One leg of this broker", "Leg"),
    Route(
        "POST",
        "/drain",
        "drain",
        "Begins a drain of a broker; a second request ends it",
        "Draining",
        (
            AT,
            Parameter("rate", "clients a second that are disconnected", None),
            Parameter("to", "HOST:PORT where they are to go (the other brokers in turn)", None),
            Parameter("within", "s until the broker stops, whatever is left", None),
        ),
        status=202,
    ),
    Route(
        "POST",
        "/reload",
        "reload",
        "Begins to read the files again, as SIGHUP does; the log says the rest",
        "Done",
        status=202,
    ),
    Route("GET", "/events", "events", "Changes as they come: server-sent events", "Events"),
)


def find(method: str, path: str) -> tuple[Route, dict[str, str]]:
    """Return the route of a request, and the parts of its path by name. `method`, `path`: of the
    request. Raises RequestError."""
    allowed: list[str] = []
    for route in ROUTES:
        names = _match(route.path, path.removeprefix(PREFIX))
        if names is None:
            continue
        if route.method == method:
            return route, names
        allowed.append(route.method)
    if allowed:
        raise RequestError(405, f"{', '.join(allowed)} only")
    raise RequestError(404, f"not found; {PREFIX}/openapi.json has all paths")


def _match(pattern: str, path: str) -> dict[str, str] | None:
    """Return the parts of a path by name, None if it is not of this pattern. A topic, the last
    part, may have slashes."""
    wanted, found = pattern.split("/"), path.split("/")
    if wanted[-1] == "{topic}":
        found = [*found[: len(wanted) - 1], "/".join(found[len(wanted) - 1 :])]
    if len(wanted) != len(found):
        return None
    names: dict[str, str] = {}
    for part, text in zip(wanted, found, strict=True):
        if part.startswith("{") and text:
            names[part[1:-1]] = unquote(text)
        elif part != text:
            return None
    return names


def read_query(route: Route, query: str) -> dict[str, str | int | None]:
    """Return the parameters of a request by name, with the defaults of those that are not there.
    `route`: of the request; `query`: as it came. Raises RequestError."""
    try:
        given = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=20))
    except ValueError:
        raise RequestError(400, "too many parameters") from None
    known: Mapping[str, Parameter] = {each.name: each for each in route.parameters}
    for name in given:
        if name not in known:
            few = ", ".join(known) or "none"
            raise RequestError(400, f"{name[:40]!r} is no parameter here (there are: {few})")
    return {name: _value(each, given.get(name)) for name, each in known.items()}


def _value(parameter: Parameter, text: str | None) -> str | int | None:
    if text is None:
        return parameter.default
    if parameter.most:
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else 0
        if not 1 <= number <= parameter.most:
            raise RequestError(400, f"{parameter.name} is a number from 1 to {parameter.most}")
        return number
    if parameter.choices and text not in parameter.choices:
        raise RequestError(400, f"{parameter.name} is one of {', '.join(parameter.choices)}")
    if len(text) > MAX_TEXT:
        raise RequestError(400, f"{parameter.name} is too long")
    return text
