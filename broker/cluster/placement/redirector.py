"""Sends clients of this broker to other ones (MQTT 5, 4.11) where they cost less, once in a while.
Who goes where is decided at the root (`decider`, `rebalancer`); what happens to each client here is
a table (`redirect_states`).

Only clients that can do what they are told are sent away: of MQTT 5, with an identifier of their
own. A connected one goes only if it loses nothing: its session outlives the connection, and its
will does not come at once. Others go at their next CONNECT.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from mqttree.broker.base.address import parse_address
from mqttree.broker.cluster.directory.questions import Answer
from mqttree.broker.cluster.placement.client_interest import (
    question_of,
    said_interest,
    session_interest,
)
from mqttree.broker.cluster.placement.placement_messages import ADVISE, MAX_CLIENTS
from mqttree.broker.cluster.placement.redirect_states import Action, Input, State
from mqttree.broker.cluster.placement.redirect_table import LASTING, Interest, RedirectTable
from mqttree.broker.core.client import Client
from mqttree.broker.core.session_owner import LEG_LISTENER
from mqttree.broker.wire.properties import Property
from mqttree.broker.wire.strings import shorten

if TYPE_CHECKING:
    from mqttree.broker.base.timers import Timer
    from mqttree.broker.cluster.placement.ports import PlacingBroker
    from mqttree.broker.core.ports import Newcomer
    from mqttree.broker.core.session import Session
    from mqttree.broker.wire.packets import Connect

CONNECT_WAIT: Final = 0.5
"""s for which a CONNECT waits for the answer where its client should be: a root that answers does
so in one round trip."""

LOOKED_AT: Final = 10
LOOK_PACE: Final = 0.1
"""clients that are asked about at a time, and s between two times: a hundred a second, which the
root answers beside all else."""

OUTLIVES_S: Final = 30.0
"""s that a session outlives its connection at least, and that its will waits, for its client to be
sent away while connected: a client that follows is back in a second or two."""

SAME_HOST_S: Final = 600.0
"""s for which a CONNECT from the same host with the same topics counts as that of a client that was
sent away, whatever its identifier: some make up a new one each time."""

SCANNED: Final = 1000
"""sessions that are looked at for clients that the root may move."""

ACKNOWLEDGED: Final = 1.0
LOOK_AGAIN_S: Final = 0.02
"""s for which a client that is to leave may take to acknowledge what it was sent, and s between two
looks. What is not acknowledged comes again, with DUP, where it goes."""

Ask = Callable[[int, Any, Callable[[Answer], None]], None]
"""Has the root answer a question."""


class Redirector:
    """The clients of one broker that may be sent to others."""

    def __init__(self, host: PlacingBroker, ask: Ask) -> None:
        """`host`: this broker; `ask`: has the root answer."""
        self._host = host
        self._ask = ask
        self.enabled = host.config.redirect_clients
        """Whether clients are sent away at all."""
        self.table: RedirectTable = RedirectTable(host.limits.redirected_clients)
        self._looks: deque[tuple[float, str, int]] = deque()  # when (s), client, number
        self._timer: Timer | None = None
        self._quiet = host.now + host.limits.redirect_quiet_s  # until when (s)
        # Host and topics -> until when (s), see SAME_HOST_S.
        self._hosts: OrderedDict[bytes, float] = OrderedDict()
        self._leaving: set[str] = set()
        self._cursor = 0

    def unsettled(self) -> None:
        """Note that brokers have come or gone: no client is sent away for a minute."""
        self._quiet = self._host.now + self._host.limits.redirect_quiet_s

    @property
    def quiet(self) -> bool:
        """Whether no client is sent away, as brokers have just come or gone."""
        return self._host.now < self._quiet

    def report(self) -> dict[str, Any]:
        """Return what `/api/v1/federation` says of redirection."""
        counters = self._host.counters
        return {
            "enabled": self.enabled,
            "quiet": self.enabled and self.quiet,
            "remembered": len(self.table),
            "waiting": self.table.waiting,
            "sent": counters.redirected,
            "ignored": counters.redirects_ignored,
            "forgone": counters.redirects_forgone,
            "topics_invalid": counters.redirect_topics_invalid,
            "rebalanced": counters.rebalanced,
        }

    # ---------------------------------------------------------------- at CONNECT

    def connecting(self, newcomer: Newcomer, connect: Connect, assigned: bool, now: float) -> bool:
        """Return whether an authenticated client waits for the answer where it should be;
        `Newcomer.on_placement` follows. What it says about its topics and is invalid is logged.

        Args:
            `newcomer`: the client.
            `connect`: its CONNECT.
            `assigned`: its client identifier was made up here, so that it cannot be recognised.
            `now`: s.
        """
        conn = newcomer.conn
        if connect.version != 5 or connect.bridge or assigned or conn.listener == LEG_LISTENER:
            return False
        client = connect.client_id
        state = self.table.state(client, now)
        if state not in LASTING and not self.table.takes(client, now):
            self._host.counters.redirects_forgone += 1
            return False
        said = self._said(newcomer, connect)
        if self.quiet and state not in (State.SENT, State.KEPT):
            if state is not State.KNOWN:
                self._let_in(client, Input.CONNECT, said, now)
            return False
        session = self._host.sessions.get(client)
        interest = said or (
            session_interest(session) if session is not None else self.table.interest(client)
        )
        if state is State.KNOWN and not interest:
            return False
        # A client with these topics may have been sent away from the same host lately.
        known = bool(interest) and not (said and self._hosts.get(_key(newcomer, said), 0.0) > now)
        if not self._let_in(client, Input.CONNECT_KNOWN if known else Input.CONNECT, said, now):
            return False
        self._ask_first(newcomer, interest, session, now)
        return True

    def _said(self, newcomer: Newcomer, connect: Connect) -> Interest:
        conn = newcomer.conn
        permissions = self._host.access_control.permissions(
            newcomer.owner, connect.client_id, conn.listener
        )
        try:
            return said_interest(connect, permissions)
        except (ValueError, PermissionError) as error:
            self._host.counters.redirect_topics_invalid += 1
            text = f"client {shorten(connect.client_id)} at {conn.peer}: {error}; ignored"
            self._host.log_limit.line("warning", "mqttree-topics", conn.peer, text)
            return Interest()

    def _let_in(self, client: str, given: Input, said: Interest, now: float) -> bool:
        """Take the CONNECT of a client; return whether it waits."""
        action = self.table.step(client, given, now)
        if action is Action.ASK:
            return True
        if action is Action.KEEP:
            self._host.counters.redirects_ignored += 1
        elif action is Action.LOOK:
            self.table.remember(client, Interest((), said.publish))
            due = max(now + self._host.limits.redirect_settle_s, self._quiet)
            self._looks.append((due, client, self.table.begin(client)))
            self._plan_looks(due)
        return False

    def _ask_first(
        self, newcomer: Newcomer, interest: Interest, session: Session | None, now: float
    ) -> None:
        host = self._host
        conn = newcomer.conn
        connect = newcomer.connect
        assert connect is not None
        client = connect.client_id
        number = self.table.begin(client)
        conn.wait()
        answered = False

        def go_on(at: float, where: str) -> None:
            nonlocal answered
            if answered:
                return
            answered = True
            host.now = at
            host.timers.cancel(late)
            if self.table.awaits(client, number):
                if conn.closed or conn.closing or conn.ended:
                    where = ""
                    self.table.step(client, Input.GONE, at)
                elif where and not self.quiet and self._note_host(newcomer, interest, at):
                    self.table.step(client, Input.PAYS, at)
                else:
                    where = ""
                    self.table.step(client, Input.STAY, at)
            else:
                where = ""
            newcomer.on_placement(where, at)

        late = host.timers.schedule(now + CONNECT_WAIT, lambda at: go_on(at, ""))

        def then(answer: Answer) -> None:
            where = address_in(answer)
            # Its packets are being read now, if the answer is known at once.
            host.timers.schedule(host.now, lambda at: go_on(at, where))

        self._ask(ADVISE, question_of(client, interest, host.dispatcher, session), then)

    def _note_host(self, newcomer: Newcomer, interest: Interest, now: float) -> bool:
        """Note from where a client is sent away. Returns False if there is no room."""
        hosts = self._hosts
        while hosts:
            key, until = next(iter(hosts.items()))
            if until > now:
                break
            del hosts[key]
        if len(hosts) >= self._host.limits.redirected_clients:
            self._host.counters.redirects_forgone += 1
            return False
        key = _key(newcomer, interest)
        hosts.pop(key, None)
        hosts[key] = now + SAME_HOST_S
        return True

    # ---------------------------------------------------------------- while connected

    def _plan_looks(self, at: float) -> None:
        if self._timer is None:
            self._timer = self._host.timers.schedule(at, self._look)

    def _look(self, now: float) -> None:
        """Ask about clients whose subscriptions have had time to come."""
        self._host.now = now
        self._timer = None
        looks = self._looks
        count = 0
        while looks and count < LOOKED_AT and looks[0][0] <= now and not self.quiet:
            _, client, number = looks.popleft()
            if self.table.awaits(client, number):
                count += 1
                self._ask_about(client, now)
        if looks:
            self._plan_looks(max(now + LOOK_PACE, looks[0][0], self._quiet))

    def _connected(self, client: str) -> Client | None:
        """Return the connection of a client that may be sent away."""
        session = self._host.sessions.get(client)
        conn = None if session is None else session.conn
        owner = None if conn is None else conn.owner
        if not isinstance(owner, Client) or owner.version != 5 or owner.bridge:
            return None
        return owner

    def _ask_about(self, client: str, now: float) -> None:
        table = self.table
        owner = self._connected(client)
        if owner is None:
            table.step(client, Input.GONE, now)
            return
        session = owner.session
        interest = session_interest(session, table.interest(client).publish)
        table.step(client, Input.SETTLED, now)
        if not interest:
            table.step(client, Input.STAY, now)
            return
        number = table.begin(client)

        def then(answer: Answer) -> None:
            self._on_answer(client, number, interest, address_in(answer))

        question = question_of(client, interest, self._host.dispatcher, session)
        self._ask(ADVISE, {**question, "later": not loses_nothing(session)}, then)

    def _on_answer(
        self, client: str, number: int, interest: Interest, where: str, until: float = 0.0
    ) -> None:
        table, now = self.table, self._host.now
        if not table.awaits(client, number):
            return
        owner = self._connected(client)
        if owner is None:
            table.step(client, Input.GONE, now)
        elif not where or self.quiet:
            table.step(client, Input.STAY, now)
        elif not loses_nothing(owner.session):
            table.step(client, Input.LATER, now)
            table.remember(client, interest)
        elif not self._waits(
            owner, until, lambda end: self._on_answer(client, number, interest, where, end)
        ):
            table.step(client, Input.PAYS, now)
            self._host.clients.redirect(owner, where, False)

    def _waits(self, owner: Client, until: float, again: Callable[[float], None]) -> bool:
        """Return whether a client has yet to acknowledge what it was sent, and may until `until`
        (s; 0: for `ACKNOWLEDGED` from now on). If so, `again` is called with that a moment later,
        to look whether it is still right that it goes."""
        now = self._host.now
        until = until or now + ACKNOWLEDGED
        if now >= until or not owner.session.inflight:
            return False

        def look(at: float) -> None:
            self._host.now = at
            again(until)

        self._host.timers.schedule(now + LOOK_AGAIN_S, look)
        return True

    # ---------------------------------------------------------------- as the root wants it

    def candidates(self) -> list[dict[str, Any]]:
        """Return clients that the root may move, as it is asked about them: each time others."""
        if not self.enabled or self.quiet or self._host.drain is not None:
            return []
        sessions = self._host.sessions
        if self._cursor >= len(sessions):
            self._cursor = 0
        found: list[dict[str, Any]] = []
        for client in list(islice(sessions, self._cursor, self._cursor + SCANNED)):
            self._cursor += 1
            if self.table.state(client, self._host.now) is not State.NEW:
                continue
            owner = self._connected(client)
            if owner is None or not loses_nothing(owner.session):
                continue
            interest = session_interest(owner.session)
            if not interest:
                continue
            question = question_of(client, interest, self._host.dispatcher, owner.session)
            found.append({**question, "at": self._host.config.id.hex()})
            if len(found) >= MAX_CLIENTS:
                break
        return found

    def chosen(self, client: str, where: str, until: float = 0.0) -> None:
        """Send a `client` to the broker `where` ("HOST:PORT"), as the root has chosen it, if that
        is still right; `until`: as for `_waits`."""
        now = self._host.now
        owner = self._connected(client)
        where = address_in((200, {"address": where}))
        if (
            not self.enabled
            or self.quiet
            or not where
            or owner is None
            or not loses_nothing(owner.session)
            or self._waits(owner, until, lambda end: self.chosen(client, where, end))
        ):
            return
        if not self.table.takes(client, now):
            self._host.counters.redirects_forgone += 1
        elif self.table.step(client, Input.CHOSEN, now) is Action.DISCONNECT:
            self._host.clients.redirect(owner, where, False)

    # ---------------------------------------------------------------- when this broker drains

    @property
    def leaving(self) -> int:
        """How many clients wait for the answer where they should go."""
        return len(self._leaving)

    def is_leaving(self, client: str) -> bool:
        """Return whether a client waits for the answer where it should go."""
        return client in self._leaving

    def send_away(self, owner: Client, otherwise: str) -> None:
        """Send a client (`owner`) of this broker, which drains, to where it should be, or to
        `otherwise` ("HOST:PORT") if that is not known."""
        host = self._host
        session = owner.session
        client = session.client_id
        interest = session_interest(session)
        if not self.enabled or owner.version != 5 or not interest:
            host.clients.redirect(owner, otherwise, False)
            return
        self._leaving.add(client)

        def then(answer: Answer) -> None:
            self._leaving.discard(client)
            if session.conn is owner.conn:
                host.clients.redirect(owner, address_in(answer) or otherwise, False)

        question = question_of(client, interest, host.dispatcher, session)
        self._ask(ADVISE, {**question, "leave": True}, then)


def loses_nothing(session: Session) -> bool:
    """Return whether a client may be sent away while it is connected: its `session` outlives the
    connection, and its will waits."""
    will = session.will
    delay = 0xFFFFFFFF
    if will is not None:
        delay = (will.properties or {}).get(Property.WILL_DELAY_INTERVAL, 0)
    return min(session.expiry, delay) >= OUTLIVES_S


def address_in(answer: Answer) -> str:
    """Return the address in an answer of the root ("HOST:PORT"), "" if there is none."""
    status, body = answer
    where = body.get("address") if status == 200 and isinstance(body, dict) else None
    if not isinstance(where, str) or not where:
        return ""
    try:
        return str(parse_address(where))
    except ValueError:
        return ""


def _key(newcomer: Newcomer, interest: Interest) -> bytes:
    conn = newcomer.conn
    host = conn.peer.rpartition(":")[0]
    names = "\0".join((host, *interest.subscribe, "", *interest.publish))
    return hashlib.blake2b(names.encode(), digest_size=16).digest()
