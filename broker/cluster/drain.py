"""Draining: a broker is stopped without any client missing a message (`mqttree drain`;
docs/decisions/0017).

    CLIENTS   new clients are sent to other brokers, connected ones are disconnected, at a set rate
    SESSIONS  sessions that outlive their connection go on at the standby, or are fetched by the
              brokers to which their clients connect; without a standby those that stay end, or are
              kept in the journal
    TREE      the neighbours choose other paths: this broker becomes a leaf, and still forwards
    LINKS     the neighbours tell their version vectors, until they lack nothing, and those whose
              standby this broker is have another one
    DONE      the driver stops the broker as at any stop

An entry in the directory tells other brokers of the drain, so that they send no clients here. It
ends early when its time is up, or when it is commanded once more.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from mqttree.broker.base.address import is_loopback, is_wildcard, parse_address
from mqttree.broker.base.record import Record
from mqttree.broker.cluster.directory.link_state_directory import CLIENTS_AT, DRAINING
from mqttree.broker.cluster.link.control_records import ASK_SEEN
from mqttree.broker.core.client import Client
from mqttree.broker.core.serving_broker import ServingBroker
from mqttree.broker.wire.constants import ReasonCode

if TYPE_CHECKING:
    from mqttree.broker.cluster.cluster import Cluster
    from mqttree.broker.cluster.delivery.replay import LogWalk
    from mqttree.broker.cluster.link.link import Link
    from mqttree.broker.cluster.link.version_vector import Vector
    from mqttree.broker.config.node_config import NodeConfig
    from mqttree.broker.core.client_registry import ClientRegistry
    from mqttree.broker.core.session import Session

DRAIN_TIMEOUT_S = 30.0
"""s; for a drain to come to its end, as long as containers and services are usually given to
stop."""

MIN_DISCONNECTS_PER_SECOND = 100.0
"""clients that are disconnected a second, at least: others take ten times as many without being
noticed."""

SESSIONS_GRACE_S = 5.0
"""s from when the last client was disconnected until sessions that no broker has fetched end:
most clients come back within two. So long others have, too, to find another standby."""

TREE_TIMEOUT_S = 4.0
"""s for the neighbours to turn to others: with another way at hand they take two hellos.
Longer: there is none."""

ASK_INTERVAL_S = 0.2
"""s between two questions to a neighbour what has been there."""

STEP_S = 0.05
"""s between two steps."""
REPLAY = 4
"""answers in a row of a neighbour that lacks messages, after which they are sent again: those that
are under way arrive within one or two answers."""
SLICE = 1000
"""sessions that end in one step: some 10 ms."""


_WITH_PORT = re.compile(r"(^[^:]+|\]):[0-9]+$")


class DrainOptions(Record):
    """The options of a drain."""

    rate: float | None = None
    """Clients disconnected a second; None: so many that all are gone in half of the time."""
    to: str = ""
    """The broker to which they are sent; "": to the other brokers, in turn."""
    within: float | None = None
    """s until the end, even if something is left; None: `DRAIN_TIMEOUT_S`, and longer if the
    rate requires it."""


def read_drain(values: Mapping[str, str]) -> DrainOptions:
    """Return the options from `rate`, `to` and `within`, each of which may be missing.

    Raises:
        ValueError: one is unknown or invalid; its text is one line for the user.
    """
    unknown = values.keys() - {"rate", "to", "within"}
    if unknown:
        raise ValueError(f"{min(unknown)[:32]!r} is not one of rate, to, within")
    to = ""
    if "to" in values:
        address = parse_address(values["to"])
        if not _WITH_PORT.search(values["to"]):
            raise ValueError(f"to: {values['to'][:64]!r} is no HOST:PORT")
        if is_wildcard(address.host):
            raise ValueError(f"to: {values['to']!r} is no address that a client could connect to")
        to = str(address)
    return DrainOptions(
        _number(values, "rate", 0.01, 1e6), to, _number(values, "within", 0.0, 86_400.0)
    )


def check_elsewhere(options: DrainOptions, config: NodeConfig) -> None:
    """Refuse to send clients to the broker that they are to leave.

    Raises:
        ValueError: `to` is this broker.
    """
    if options.to:
        address = parse_address(options.to)
        here = address.host == config.host or (
            is_loopback(address.host) and is_loopback(config.host)
        )
        if here and address.port == config.port:
            raise ValueError(f"to: {options.to} is this broker itself")


def _number(values: Mapping[str, str], name: str, low: float, high: float) -> float | None:
    text = values.get(name)
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not low <= number <= high:
        raise ValueError(f"{name}: {text[:32]!r} is not a number from {low:g} to {high:g}")
    return number


def counted(number: int, name: str) -> str:
    """Return "1 client", "2,000 clients"."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


class Standbys(Protocol):
    """What a drain asks of standbys: this broker's, and itself."""

    @property
    def unprotected(self) -> bool:
        """Whether sessions would end, or wait in the journal, if this broker stopped now."""

    def is_standby(self) -> bool:
        """Whether this broker is the standby of another one, or has sessions of one that is
        gone."""


class DrainedBroker(ServingBroker, Protocol):
    """What a drain asks of the broker that is to be stopped."""

    drain: Drain | None
    """The one that is under way."""

    @property
    def cluster(self) -> Cluster:
        """The other brokers, which take what is here."""

    @property
    def images(self) -> Standbys:
        """The standbys of both sides."""

    @property
    def clients(self) -> ClientRegistry:
        """The clients that are connected."""


class Drain:
    """One drain of a node; it begins when this is made."""

    def __init__(
        self,
        node: DrainedBroker,
        options: DrainOptions,
        now: float,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """`node`: this broker; `options`: of the drain; `now`: s; `done`: called when the broker
        can be stopped."""
        self._node = node
        self._cluster = node.cluster
        self.state = "clients"
        self._done = done
        self._began = now
        self._since = now  # in this state
        self._turned = 0  # clients disconnected
        self._turn = 0
        # Sessions that ended with the broker, and the messages in their queues.
        self._ended = 0
        self._lost = 0
        self._clients: deque[Session] = deque()
        self._to = options.to
        here = node.clients.connected
        within = options.within
        if within is None:
            within = DRAIN_TIMEOUT_S
            if options.rate is not None:
                within = max(within, here / options.rate + DRAIN_TIMEOUT_S / 2)
        self.rate = options.rate or max(MIN_DISCONNECTS_PER_SECOND, here / max(1.0, within / 2))
        self.until = now + within
        self._confirmed: set[Link] = set()  # neighbours that lack nothing
        self._asked: dict[Link, float] = {}  # when (s)
        self._looking: dict[Link, LogWalk] = {}  # for messages that neighbours lack
        self._lacking: dict[Link, int] = {}  # how often a neighbour has said that it lacks some
        node.drain = self
        self._cluster.resync.watcher = self
        plan = f"{counted(here, 'client')} to disconnect, {self.rate:g} a second"
        node.log("info", f"draining: {plan}; this broker stops in {within:g} s at most")
        self._cluster.directory.post(DRAINING, b"1")
        node.timers.schedule(now, self._step)
        node.timers.schedule(self.until, lambda now: self.hurry(now, "time is up"))

    def as_dict(self) -> dict[str, Any]:
        """Return what /api/v1/federation says of it."""
        node = self._node
        return {
            "state": self.state,
            "clients_left": node.clients.connected,
            "sessions_left": self._leaving() if self.state in ("clients", "sessions") else 0,
            "journal_left": self._fetchable() if self.state in ("clients", "sessions") else 0,
            "links_left": len(self._unconfirmed()),
            "seconds_left": round(max(0.0, self.until - node.now), 1),
        }

    # ---------------------------------------------------------------- other brokers for clients

    def targets(self) -> list[str]:
        """Return the addresses of brokers that take clients."""
        if self._to:
            return [self._to]
        found = []
        for listing in self._cluster.database.reachable():
            text = listing.entries.get(CLIENTS_AT)
            if text and DRAINING not in listing.entries:
                try:
                    found.append(str(parse_address(text.decode())))
                except ValueError:  # UnicodeDecodeError is one
                    continue
        return found

    def reference(self) -> str:
        """Return the address to which the next client is sent, "" if no other broker takes
        clients."""
        return self._next(self.targets())

    def _next(self, targets: list[str]) -> str:
        self._turn += 1
        return targets[self._turn % len(targets)] if targets else ""

    # ---------------------------------------------------------------- step by step

    def _step(self, now: float) -> None:
        if self.state == "done":
            return
        step = {
            "clients": self._send_clients,
            "sessions": self._wait_for_sessions,
            "tree": self._leave_tree,
        }
        step.get(self.state, self._confirm)(now)
        if self.state != "done":
            self._node.timers.schedule(now + STEP_S, self._step)

    def _enter(self, state: str, now: float) -> None:
        self.state = state
        self._since = now

    def _send_clients(self, now: float) -> None:
        node = self._node
        redirector = self._cluster.placement.redirector
        if not self._clients and node.clients.connected > redirector.leaving:
            self._clients.extend(
                session for session in node.sessions.values() if session.conn is not None
            )
        due = (now - self._began) * self.rate + 1 - self._turned
        targets = self.targets() if due >= 1 and self._clients else []
        while due >= 1 and self._clients:
            conn = self._clients.popleft().conn
            client = None if conn is None else conn.owner
            if not isinstance(client, Client) or redirector.is_leaving(client.session.client_id):
                continue
            self._turned += 1
            due -= 1
            if targets:
                self._send_away(client, self._next(targets))
            else:
                client.shut(ReasonCode.SERVER_SHUTTING_DOWN)
        if not node.clients.connected:
            self._enter("sessions", now)

    def _send_away(self, client: Client, where: str) -> None:
        """Send a client to where it costs least; to the broker `where` if that is wished, or none
        knows better."""
        if self._to:
            self._node.clients.redirect(client, where, False)
        else:
            self._cluster.placement.redirector.send_away(client, where)

    def _leaving(self) -> int:
        return sum(session.recorder is None for session in self._node.sessions.values())

    def _fetchable(self) -> int:
        """Count the sessions that the journal keeps and that other brokers may fetch before this
        one goes."""
        return sum(
            1
            for session in self._node.sessions.values()
            if session.recorder is not None and session.expiry
        )

    def _wait_for_sessions(self, now: float) -> None:
        """Let other brokers fetch the sessions of clients that connect there (`takeover`), if no
        standby has them; end those that no broker has fetched in time."""
        node = self._node
        waiting = node.images.unprotected
        if waiting and now < self._since + SESSIONS_GRACE_S and self._cluster.database.reachable():
            return
        # A journal keeps the others.
        rest = [session for session in node.sessions.values() if session.recorder is None]
        for session in rest[:SLICE]:
            self._ended += 1
            self._lost += len(session.queue) + len(session.inflight)
            # Its will is due, and other members of its groups get their messages.
            node.end_session(session, None)
        if len(rest) <= SLICE:
            self._enter("tree", now)
            self._cluster.tree.retire(now)
            self._cluster.strategy.retire()
            self._cluster.hurry(now)

    def _leave_tree(self, now: float) -> None:
        """Wait until no messages of other brokers pass through here, or no other path exists for
        them."""
        since = now - self._since
        if since >= TREE_TIMEOUT_S or (
            since >= self._cluster.config.hello and self._cluster.tree.is_leaf
        ):
            self._enter("links", now)
            self._confirm(now)

    def _unconfirmed(self) -> list[Link]:
        """Return the links that messages take and whose neighbour may lack some."""
        ours = self._cluster.strategy.everywhere(self._cluster.forwarder.key)
        links = self._cluster.links.values()
        return [
            link
            for link in links
            if (link.forwarding or link in ours) and link not in self._confirmed
        ]

    def _confirm(self, now: float) -> None:
        """Ask the neighbours in the tree for their version vectors, behind all messages that they
        are sent."""
        links = self._cluster.links
        unconfirmed = self._unconfirmed()
        linked = not links or any(link.forwarding for link in links.values())
        if linked and not unconfirmed and not self._is_standby(now):
            self._finish(now, "")
        for link in unconfirmed:
            if not link.conn.backlog and self._asked.get(link, -math.inf) + ASK_INTERVAL_S <= now:
                self._asked[link] = now
                self._cluster.low_watermarks.send(link)
                link.send_behind(ASK_SEEN, b"")

    def _is_standby(self, now: float) -> bool:
        """Whether brokers are to find another standby that have one here. Of two, neither can."""
        others = len(self._cluster.database.reachable()) > 1
        return others and now < self._since + SESSIONS_GRACE_S and self._node.images.is_standby()

    def seen(self, link: Link, seen: Vector, now: float) -> None:
        """Take the version vector `seen` of the neighbour at the end of `link`, before `Resync`
        does; `now`: s."""
        if self.state != "links" or link not in self._asked:
            return
        forwarder = self._cluster.forwarder
        if forwarder.own.top and forwarder.key not in seen:
            return
        if link not in self._looking:
            walk = self._cluster.walks.walk(
                link,
                seen,
                lambda _, at: self._lacks(link),
                lambda at: self._has_all(link),
                once=True,
            )
            self._looking[link] = walk
            walk.begin(now)

    def _has_all(self, link: Link) -> None:
        """Note that a neighbour lacks nothing of the log, unless it was found to lack something in
        this turn."""
        if self._looking.pop(link, None) is not None:
            self._confirmed.add(link)

    def _lacks(self, link: Link) -> None:
        """Note that a neighbour lacks messages."""
        self._looking.pop(link).stop()
        self._lacking[link] = self._lacking.get(link, 0) + 1
        if self._lacking[link] % REPLAY == 0 and link.live:
            # As after an overflow: `Resync` sends what is missing, and lets the link in again.
            self._cluster.forwarder.leave(link)

    # ---------------------------------------------------------------- the end

    def hurry(self, now: float, why: str) -> None:
        """End the drain in whatever state it is."""
        if self.state != "done":
            self._finish(now, why)

    def _finish(self, now: float, why: str) -> None:
        node = self._node
        left = []
        if why:
            counts = {"client": node.clients.connected, "session": self._leaving()}
            left = [counted(number, name) for name, number in counts.items() if number]
            if unconfirmed := len(self._unconfirmed()):
                left.append(f"{counted(unconfirmed, 'neighbour')} that may lack messages")
        self._enter("done", now)
        ended = f"{counted(self._ended, 'session')} with {counted(self._lost, 'message')}"
        lost = f", of which {ended} ended here" if self._ended else ""
        if on_disk := sum(session.recorder is not None for session in node.sessions.values()):
            lost += f"; {counted(on_disk, 'session')} in the journal"
        text = (
            f"drained in {now - self._began:.1f} s: "
            f"{counted(self._turned, 'client')} sent away{lost}"
        )
        if why:
            text = f"{text}; {why}, left are {', '.join(left) or 'none'}"
        node.log("warning" if left or self._lost else "info", text)
        self._done()
