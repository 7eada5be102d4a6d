"""The admin port, HTTP for operators and their programs: /healthz, /readyz, /metrics, /api/v1
(`mqttree.broker.io.api`) and the dashboard.

A small server of its own: bodies for questions about placement alone, every size, time and number
bounded (RFC 9112). Who may ask, `AdminAccess` decides; without a token, /api/v1 is for the
broker's own machine only. Pages of other origins are refused, and so are pages whose name
was made to resolve to this machine (DNS rebinding: the Host field), for reading too.
"""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
import json
import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from mqttree.broker.base.address import is_loopback
from mqttree.broker.cluster.state_view import federation_state
from mqttree.broker.io.admin_access import AdminAccess
from mqttree.broker.io.http_request import HeadReader, HttpRequest, has_bare_line_feed
from mqttree.broker.io.prometheus import metrics
from mqttree.broker.io.readiness import Readiness
from mqttree.broker.wire.strings import shorten

if TYPE_CHECKING:
    from mqttree.broker.cluster.directory.questions import Then
    from mqttree.broker.io.api.routes import Route
    from mqttree.broker.io.api.service import Api
    from mqttree.broker.io.limits import IoLimits
    from mqttree.broker.node import Node

MAX_HEADER = 8 * 1024
"""bytes of one request; a browser's with all its cookies fits. More: 431."""
MAX_BODY = 1024 * 1024
"""bytes of a body: ten thousand filters of 100 are still read, and refused with what is wrong."""
SEARCH_TIMEOUT = 300.0
"""s for an answer of /api/v1: a search on a busy machine takes a minute. It ends with who asked."""
DASHBOARD = "/dashboard/"
API_MODULES = (
    "routes",
    "schemas",
    "openapi",
    "search",
    "federation",
    "delivery_tree",
    "clients",
    "topics",
)
"""Modules of `mqttree.broker.io.api` that are imported one by one, before the rest."""
API_AFTER, API_PAUSE = 3.0, 0.05
"""s until they are imported, and between two of them: the history of a broker begins then, and its
start is over."""
BACKLOG = 64
"""connections that the kernel completes before they are accepted."""

_REASONS = {
    200: "OK",
    202: "Accepted",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    411: "Length Required",
    413: "Content Too Large",
    421: "Misdirected Request",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}
OPEN = frozenset(("/healthz", "/readyz"))
"""Paths that need no token: what checks health seldom can keep a secret. Without it they say yes or
no and nothing else."""

JSON = "application/json"

Answer = tuple[int, str, str]
"""Status, content type, text."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on `host` and `port`. It is opened before anything is started
    that would have to be undone. Raises OSError."""
    # For a text Python would load its tables of international names first (1 ms).
    name = host.encode() if host.isascii() else host
    family, kind, protocol, _, address = socket.getaddrinfo(
        name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


class Admin:
    """The admin port of one node."""

    def __init__(
        self,
        node: Node,
        version: str = "",
        listeners: Callable[[], list[dict[str, Any]]] = list,
        drain: Callable[[Mapping[str, str]], dict[str, Any]] | None = None,
        hosts: Iterable[str] = (),
        wait_for: int = 1,
        *,
        legs: Callable[[], list[dict[str, Any]]] = list,
        reload: Callable[[], None] | None = None,
        wake: Callable[[], None] = lambda: None,
        access: AdminAccess | None = None,
        limits: IoLimits,
    ) -> None:
        """`node`: the broker. `version`: of the program. `listeners`: returns the state of
        each listener. `drain`: drains the broker by the parameters of a request and
        returns the progress, or raises ValueError with one line (None: 404). `hosts`: names under
        which the port answers, beside addresses and names without a dot. `wait_for`: how many
        brokers, this one included, must have been seen before `/readyz` says yes. `legs`: returns
        the state of each leg. `reload`: begins to read the files again, as SIGHUP does (None: 404).
        `wake`: has sent what the node wants to send. `access`: who may ask (None: everybody).
        `limits`: of its connections."""
        self.node, self.limits = node, limits
        self.access = AdminAccess() if access is None else access
        self.counters, self._log_limit = node.counters, node.log_limit
        self.readiness = Readiness(node, wait_for)
        self._drain = drain
        self._legs = legs
        self._reload = reload
        self._listeners = listeners
        node.cluster.admin_questions.serve = self._serve
        self.version = version
        self.hosts = frozenset(host.lower() for host in hosts)
        # In order of their last use.
        self.connections: dict[AdminProtocol, None] = {}
        self.loop = asyncio.get_running_loop()
        self._started = self.loop.time()
        self._server: asyncio.Server | None = None
        self._wake = wake
        self._api: Api | None = None
        self._loading: asyncio.TimerHandle | None = None

    async def start(self, listener: socket.socket) -> None:
        """Answer all connections of `listener` (see `listen`)."""
        self._server = await self.loop.create_server(
            lambda: AdminProtocol(self), sock=listener, ssl=self.access.context
        )

        self._loading = self.loop.call_later(API_AFTER, self._load, list(API_MODULES))

    def _load(self, names: list[str]) -> None:
        """Import the modules of the interface, one now and the others soon."""
        if not names:
            _ = self.api
            return
        importlib.import_module(f"mqttree.broker.io.api.{names.pop(0)}")
        self._loading = self.loop.call_later(API_PAUSE, self._load, names)

    @property
    def api(self) -> Api:
        """The interface `/api/v1`."""
        if self._api is None:
            from mqttree.broker.io.api.service import Api

            self._api = Api(
                self.node,
                self.loop,
                version=self.version,
                began=self._started,
                state=self.state,
                legs=self._legs,
                listeners=self._listeners,
                drain=self._drain,
                reload=self._reload,
                wake=self._wake,
            )
        return self._api

    def _serve(self, question: bytes, then: Then) -> None:
        self.api.serve(question, then)

    def end_events(self, transport: asyncio.Transport) -> None:
        """Note that a connection is closed, which may have read events."""
        if self._api is not None:
            self._api.stream.remove(transport)

    async def close(self) -> None:
        """Stop listening and end every connection."""
        if self._loading is not None:
            self._loading.cancel()
        if self._api is not None:
            self._api.close()
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            connection.transport.abort()

    def probe(self, path: str) -> Answer:
        """Return the answer to a GET of `path`, one of OPEN, for whoever has no token."""
        if path == "/readyz" and self.readiness.reasons():
            return 503, "text/plain", "not ready\n"
        return 200, "text/plain", "ready\n" if path == "/readyz" else "ok\n"

    def answer(self, path: str) -> Answer:
        """Return the answer to a GET of `path`."""
        match path:
            case "/healthz":
                lines = [f"leg {leg['name']}: {leg_health(leg)}\n" for leg in self._legs()]
                return 200, "text/plain", "".join(["ok\n", *lines])
            case "/readyz":
                reasons = self.readiness.reasons()
                return 503 if reasons else 200, "text/plain", ("; ".join(reasons) or "ready") + "\n"
            case "/metrics":
                return (
                    200,
                    "text/plain; version=0.0.4",
                    metrics(
                        self.node,
                        self.version,
                        {each["name"]: each["connections"] for each in self._listeners()},
                        self.loop.time() - self._started,
                        self._legs(),
                    ),
                )
            case _:
                return 404, "text/plain", "not found\n"

    def state(self) -> dict[str, Any]:
        """Return the federation as this broker sees it, and the state of the broker."""
        node = self.node
        cluster = node.cluster
        membership = cluster.membership
        now = self.loop.time()
        members = [
            {
                "id": broker_id.hex(),
                # Without multicast no broker announces its name.
                "name": cluster.directory.name_of(broker_id) or membership.name_of(broker_id),
                "boot": boot,
                "addresses": [str(address) for address in addresses],
                "alive": alive,
            }
            for broker_id, boot, addresses, alive in membership.members(now)
        ]
        return federation_state(cluster) | {
            "version": self.version,
            "uptime_s": round(now - self._started, 3),
            "ready": not self.readiness.reasons(),
            "connections": node.clients.connected,
            # Of clients, of links, and those whose first packet has not come yet.
            "open_connections": len(node.connections),
            "sessions": len(node.sessions),
            "subscriptions": node.dispatcher.subscriptions,
            "retained": len(node.retained),
            "members": sorted(members, key=lambda member: str(member["id"])),
            "legs": self._legs(),
        }

    def make_room(self) -> None:
        """End one connection when there are too many: the oldest of the host that has most of them,
        an idle one first. So a host that opens many silent connections ends its own, and health
        checks are answered."""
        if len(self.connections) < self.limits.admin_connections:
            return
        most, _ = Counter(connection.host for connection in self.connections).most_common(1)[0]
        theirs = [connection for connection in self.connections if connection.host == most]
        victim = next((connection for connection in theirs if connection.idle), theirs[0])
        del self.connections[victim]
        victim.transport.abort()

    def refuse_token(self, token: bool, peer: str) -> None:
        """Count and log a request without a `token`, or with a wrong one."""
        self.counters.admin_unauthorized += 1
        self._log_limit.line(
            "warning",
            "admin: token",
            peer,
            f"admin: {peer} sent {'a wrong' if token else 'no'} token; refused",
        )

    def refuse_host(self, name: str, peer: str) -> None:
        """Count and log a request under a name that is not this broker's."""
        self.counters.admin_misdirected += 1
        self._log_limit.line(
            "warning",
            "admin: foreign Host",
            peer,
            f"admin: {peer} asked for {shorten(name)}, which is no name of this broker; refused",
        )


class AdminProtocol(asyncio.Protocol):
    """One HTTP connection: requests one after another, answered at once."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._limits = admin.limits
        self._buffer = b""
        self._heads = HeadReader()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._due = 0.0  # when the peer, or an answer, is too late (s): not before `_timer_at`
        self._closing = False
        self._paused = False
        self._name: str | None = None  # under which it has asked last, a known one
        self._local: bool | None = None  # whether both ends are on one machine, None: not looked
        self._asking = False  # an answer is on its way
        # Bytes of a body that is on its way, and what takes it.
        self._expected: tuple[int, Callable[[bytes], None]] | None = None
        self.host = ""

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""
        busy = self._paused or self._asking or self._expected is not None
        return not self._buffer and not busy

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the peer's address, and close an older connection if there are too many; then wait
        for a request, for `admin_header_timeout_s` s at most."""
        # uvloop has classes of its own.
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.host = str(peer[0]) if peer else ""
        self._admin.make_room()
        self._admin.connections[self] = None
        self._arm(self._limits.admin_header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection and its timer, however it ended."""
        self._admin.connections.pop(self, None)
        self._admin.end_events(self.transport)
        self._disarm()

    def data_received(self, data: bytes) -> None:
        """Take bytes; answer every request that is complete."""
        if self._closing:
            return
        if not self._buffer and not self._asking:
            self._arm(self._limits.admin_header_timeout_s)
        self._buffer += data
        if self._asking and len(self._buffer) > MAX_HEADER:
            # It is read when the answer is out.
            self.transport.pause_reading()
        self._serve()

    def pause_writing(self) -> None:
        """Read and answer no more: the peer does not read its answers."""
        self._paused = True
        self.transport.pause_reading()
        self._arm(self._limits.admin_header_timeout_s)

    def resume_writing(self) -> None:
        """Read and answer requests again: the peer has taken its answers."""
        self._paused = False
        if not self._closing:
            self.transport.resume_reading()
            self._serve()

    def _serve(self) -> None:
        while not self._closing and not self._paused and not self._asking:
            if self._expected is not None:
                size, take = self._expected
                if len(self._buffer) < size:
                    return
                body, self._buffer = self._buffer[:size], self._buffer[size:]
                self._expected = None
                take(body)
                continue
            # RFC 9112 2.2: empty lines before a request are skipped.
            self._buffer = self._buffer.lstrip(b"\r\n")
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            # The end of such a head may never be found.
            if has_bare_line_feed(head[:MAX_HEADER]):
                self._refuse(400, f"{_REASONS[400].lower()}\n")
            elif len(head) > MAX_HEADER:
                self._refuse(431, "request header is too large\n")
            elif not found:
                if not self._buffer:
                    self._arm(self._limits.admin_idle_timeout_s)
                return
            else:
                self._buffer = rest
                self._request(head)

    def _request(self, head: bytes) -> None:
        connections = self._admin.connections
        connections.pop(self, None)
        connections[self] = None
        request = self._heads.read(head)
        if isinstance(request, int):
            self._refuse(request, f"{_REASONS[request].lower()}\n")
        elif not self._known(request.host):
            self._admin.refuse_host(request.host, self.host)
            self._refuse(421, "this broker does not answer under this name; see admin-hosts\n")
        elif not self._admin.access.same_origin(request.origin, request.authority):
            self._refuse(403, "not allowed from a web page of another origin\n")
        elif request.method == "GET" and (
            request.path == "/" or request.path.startswith(DASHBOARD)
        ):
            self._dashboard(request)
        elif not self._admin.access.admits(request.authorization):
            self._without_token(request)
        elif request.path == "/api" or request.path.startswith("/api/"):
            self._api(request)
        elif request.method != "GET":
            self._refuse(405, "GET only\n", "Allow: GET\r\n")
        else:
            status, kind, text = self._admin.answer(request.path)
            self._send(status, kind, text, not request.keep)

    def _known(self, host: str) -> bool:
        """Return whether the port answers under a name; most requests have the last one's."""
        if host != self._name:
            if not known_host(host, self._admin.hosts):
                return False
            self._name = host
        return True

    def _dashboard(self, request: HttpRequest) -> None:
        """Send a file of the dashboard, which needs no token."""
        from mqttree.broker.io import dashboard

        if request.path not in dashboard.FILES:
            self._send(404, "text/plain", "not found\n", not request.keep)
            return
        kind, text = dashboard.read_file(request.path)
        self._send(200, kind, text, not request.keep, dashboard.HEADERS)

    def _without_token(self, request: HttpRequest) -> None:
        if request.method == "GET" and request.path in OPEN:
            status, kind, text = self._admin.probe(request.path)
            self._send(status, kind, text, not request.keep)
            return
        self._admin.refuse_token(bool(request.authorization), self.host)
        self._refuse(401, "needs the token of admin-token-file\n", "WWW-Authenticate: Bearer\r\n")

    def _may_ask(self) -> bool:
        """Return whether the peer may use /api/v1: it has proved that it may, or is on the broker's
        own machine."""
        if self._admin.access.secured:
            return True
        if self._local is None:
            here = self.transport.get_extra_info("sockname")
            there = self.transport.get_extra_info("peername")
            self._local = bool(here and there) and same_machine(here[0], there[0])
        return self._local

    def _api(self, request: HttpRequest) -> None:
        """Answer a request under /api, whose body may be on its way."""
        from mqttree.broker.io.api.routes import RequestError, find

        if not self._may_ask():
            self._refuse(403, "allowed from the broker's own machine only\n")
            return
        try:
            route, names = find(request.method, request.path)
        except RequestError as error:
            self._refuse(error.status, json.dumps({"error": str(error)}) + "\n", kind=JSON)
            return
        if request.body and not route.body:
            self._refuse(400, "no request to this path has a body\n")
        elif request.size < 0:
            self._refuse(411, "the length of the body has to be said ahead of it\n")
        elif request.size > MAX_BODY:
            self._refuse(413, f"a body has {MAX_BODY} bytes at most\n")
        elif request.size:
            self._expected = request.size, partial(self._ask, request, route, names)
            self._arm(self._limits.admin_header_timeout_s)
        elif route.handler == "events":
            self._read_events()
        else:
            self._ask(request, route, names, b"")

    def _ask(
        self, request: HttpRequest, route: Route, names: Mapping[str, str], body: bytes
    ) -> None:
        """Have a request answered, now or within SEARCH_TIMEOUT s."""
        self._asking = True
        self._arm(SEARCH_TIMEOUT)
        later = False

        def then(status: int, content: dict[str, Any]) -> None:
            self._asking = False
            if self.transport.is_closing():
                return
            self._send(status, JSON, json.dumps(content) + "\n", not request.keep)
            self.transport.resume_reading()
            if later and not self._closing:
                self._serve()

        self._admin.api.ask(
            route, names, request.query, body, then, lambda: not self.transport.is_closing()
        )
        later = True

    def _read_events(self) -> None:
        """Send events from now on, and nothing else."""
        from mqttree.broker.io.api.routes import RequestError

        try:
            first = self._admin.api.events()
        except RequestError as error:
            body = json.dumps({"error": str(error)}) + "\n"
            self._send(error.status, JSON, body, True, "Retry-After: 30\r\n")
            return
        self._asking = True  # what comes is not read
        self._disarm()
        self._admin.api.stream.add(self.transport, first)

    def _refuse(self, status: int, text: str, headers: str = "", kind: str = "text/plain") -> None:
        """Answer with an error and close: where the next request begins is unknown."""
        self._admin.counters.admin_refused += 1
        self._buffer = b""
        self._send(status, kind, text, True, headers, refused=True)

    def _send(
        self,
        status: int,
        kind: str,
        text: str,
        last: bool,
        headers: str = "",
        *,
        refused: bool = False,
    ) -> None:
        body = text.encode()
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\n"
            f"Content-Type: {kind}; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
            f"Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n{headers}"
            f"Connection: {'close' if last else 'keep-alive'}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        if last:
            self._closing = True
            if refused and self.transport.can_write_eof():
                # The peer may still be sending. To close now would reset the connection, and the
                # answer with it (RFC 9112 9.6): what comes is thrown away until the peer closes.
                self.transport.write_eof()
            else:
                self.transport.close()
            # A peer that does not read the rest must not hold the connection for ever.
            self._arm(self._limits.admin_header_timeout_s)

    def _arm(self, seconds: float) -> None:
        """Wait for `seconds` from now on at most. A timer that ends too early is not moved at each
        request: it looks how much time is left when it ends."""
        loop = self._admin.loop
        self._due = due = loop.time() + seconds
        if self._timer is not None:
            if self._timer_at <= due:
                return
            self._timer.cancel()
        self._timer_at = due
        self._timer = loop.call_at(due, self._timed_out)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _timed_out(self) -> None:
        self._timer = None
        # Timers may come early by the resolution of the clock.
        left = self._due - self._timer_at
        if left > 0:
            self._timer_at = self._due
            self._timer = self._admin.loop.call_at(self._due, self._timed_out)
        elif self._closing or self._paused or self._asking:
            self.transport.abort()
        elif self._buffer or self._expected is not None:
            self._refuse(408, "request was not complete in time\n")
        else:
            self._closing = True
            self.transport.close()


def leg_health(leg: Mapping[str, Any]) -> str:
    """Return the state of a `leg` in one line: why it is not up, and which filters are refused."""
    parts = [str(leg["state"])]
    if leg["state"] != "up" and leg["last_error"]:
        parts.append(str(leg["last_error"]))
    if filters := leg["refused_filters"]:
        parts.append(f"refused filters: {', '.join(map(shorten, filters))}")
    if others := leg["same_broker"]:
        parts.append(f"leg_loops: leads to the same broker as leg {', '.join(others)}")
    return "; ".join(parts)


def same_machine(here: str, there: str) -> bool:
    """Whether a connection between two addresses does not leave this machine."""
    return is_loopback(there) or here == there


def known_host(name: str, hosts: Collection[str]) -> bool:
    """Whether a request under this name may be answered: addresses, and names that no stranger's
    DNS server can answer for."""
    if "." not in name and ":" not in name:
        # localhost, or the name of a container or machine.
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in hosts
    return True
