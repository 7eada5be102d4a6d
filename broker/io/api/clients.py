"""Clients and their subscriptions: found, looked at, disconnected."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from mqttree.broker.cluster.directory.link_state_directory import CLIENT, NAME
from mqttree.broker.core.client import Client, disconnect
from mqttree.broker.core.session import NEVER
from mqttree.broker.core.session_owner import GONE, decode_entry
from mqttree.broker.io.api.routes import RequestError
from mqttree.broker.io.api.search import AT_ONCE, Page
from mqttree.broker.wire.constants import ReasonCode

if TYPE_CHECKING:
    from mqttree.broker.cluster.directory.questions import Answer
    from mqttree.broker.core.session import Session, Subscription
    from mqttree.broker.node import Node
    from mqttree.routing.listing import Listing

VERSIONS = {3: "3.1", 4: "3.1.1", 5: "5"}

UNKNOWN: Final[dict[str, Any]] = {
    "connected": None,
    "user": None,
    "address": None,
    "listener": None,
    "mqtt": None,
    "keep_alive_s": None,
    "clean_start": None,
    "expiry_s": None,
    "subscriptions": None,
    "queued": None,
    "queued_bytes": None,
    "in_flight": None,
    "dropped": None,
}
"""What only the broker of a client knows of it."""

ROWS_OF_ONE: Final = 250
"""rows that another broker is asked for at a time: some 100 KB."""

MAX_KNOWN: Final = 2000
"""rows of other brokers that are remembered, some 2 MB: what pages have shown lately. Of clients
beyond these a broker that does not answer leaves the names only."""

BETWEEN = "\0"
"""Between a client identifier, or a filter, and what follows in the key of a row: neither has it
(MQTT-1.5.4-2)."""


def describe(session: Session, broker: str) -> dict[str, Any]:
    """Return the client of a `session` of the broker with the id `broker`, this one."""
    conn = session.conn
    owner = conn.owner if conn is not None else None
    connect = owner.connect if isinstance(owner, Client) else None
    return {
        "id": session.client_id,
        "broker": broker,
        "here": True,
        "stale": False,
        "connected": conn is not None,
        "user": session.username,
        "address": conn.peer if conn is not None else None,
        "listener": conn.listener if conn is not None else session.listener,
        "mqtt": VERSIONS.get(session.version),
        "keep_alive_s": connect.keep_alive if connect is not None else None,
        "clean_start": session.expiry == 0,
        "expiry_s": -1 if session.expiry == NEVER else session.expiry,
        "subscriptions": len(session.subscriptions),
        "queued": len(session.queue),
        "queued_bytes": session.queued_bytes,
        "in_flight": len(session.inflight),
        "dropped": session.dropped_full + session.dropped_large,
    }


class LastKnown:
    """What other brokers said last of their clients."""

    def __init__(self) -> None:
        self._rows: OrderedDict[tuple[str, str], dict[str, Any]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rows)

    def keep(self, row: dict[str, Any]) -> None:
        """Remember the row of a client; of too many, the oldest is forgotten."""
        key = row["broker"], row["id"]
        self._rows[key] = row
        self._rows.move_to_end(key)
        if len(self._rows) > MAX_KNOWN:
            self._rows.popitem(last=False)

    def row(self, broker: str, client_id: str) -> dict[str, Any]:
        """Return the row of a client whose broker does not answer; `broker`: its id."""
        known = self._rows.get((broker, client_id), UNKNOWN)
        return {**known, "id": client_id, "broker": broker, "here": False, "stale": True}


class Answered:
    """What other brokers have answered when they were asked for their clients."""

    def __init__(self, answers: Mapping[bytes, Answer], last_known: LastKnown) -> None:
        """`answers`: by id of the broker; `last_known`: remembers them, and has what was known of
        the clients of those that do not answer."""
        self.rows: list[dict[str, Any]] = []
        self.more = 0
        """Further clients that they have."""
        self.silent: set[str] = set()
        """Ids of the brokers that did not answer, or with something else."""
        self.names: dict[str, str] = {}
        """Names of brokers that do not answer, by id, as far as they are known."""
        self.last_known = last_known
        self._end: str | None = None
        for broker, (status, content) in answers.items():
            if status != 200 or not self._take(broker.hex(), content):
                self.silent.add(broker.hex())

    def _take(self, broker: str, content: Mapping[str, Any]) -> bool:
        rows, total, end = content.get("clients"), content.get("total"), content.get("next")
        if not (isinstance(rows, list) and type(total) is int and isinstance(end, str | None)):
            return False
        read = [_read_row(broker, row) for row in rows[:ROWS_OF_ONE]]
        self.rows += read
        self.more += max(0, total - len(read))
        for row in read:
            self.last_known.keep(row)
        if end is not None:
            self._end = end if self._end is None else min(self._end, end)
        return True

    def cut(
        self, rows: list[dict[str, Any]], following: str | None
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Return the rows of a page as far as all brokers have named theirs, and the key of the
        last one if there are more. `rows`, `following`: of the page."""
        end = self._end
        if end is None:
            return rows, following
        kept = [row for row in rows if _key(row) <= end]
        return kept, end if len(kept) < len(rows) or following is None else following


def _read_row(broker: str, row: object) -> dict[str, Any]:
    """Return what another broker says of a client, without unknown fields."""
    said = row if isinstance(row, dict) else {}
    found = {
        name: value if isinstance(value := said.get(name), str | int | float) else None
        for name in UNKNOWN
    }
    return {**found, "id": str(said.get("id")), "broker": broker, "here": False, "stale": False}


def _key(row: Mapping[str, Any]) -> str:
    """Return the place of a row."""
    return f"{row['id']}{BETWEEN}{row['broker']}"


def search(
    node: Node, page: Page[dict[str, Any]], found: Answered, values: Mapping[str, Any]
) -> Iterator[None]:
    """Offer clients to a page, some hundred at a time.

    `node`: this broker; `page`: takes them; `found`: what other brokers have answered; `values`
    of the request: `search`, that the client identifier, user or address contains; `state`: all,
    connected or disconnected; `broker`: id of the broker, "": of all.
    """
    own = node.config.id.hex()
    wanted, state, broker = values["search"].casefold(), values["state"], values["broker"]
    if broker in ("", own):
        sessions = node.sessions
        for number, client_id in enumerate(list(sessions), 1):
            session = sessions.get(client_id)
            if (
                session is not None
                and (state == "all" or (session.conn is not None) == (state == "connected"))
                and (not wanted or _contains(session, wanted))
            ):
                key = client_id + BETWEEN + own
                if page.wants(key):
                    page.put(key, describe(session, own))
            if not number % AT_ONCE:
                yield
    for number, row in enumerate(found.rows, 1):
        if page.wants(_key(row)):
            page.put(_key(row), row)
        if not number % AT_ONCE:
            yield
    page.total += found.more
    for listing in list(node.cluster.database.listings.values()):
        silent = listing.via is None or listing.id.hex() in found.silent
        if silent and broker in ("", listing.id.hex()):
            found.silent.add(listing.id.hex())
            # A broker that was drained is not a member any more.
            if name := listing.entries.get(NAME):
                found.names[listing.id.hex()] = name.decode(errors="replace")
            yield from _last_known(node, listing, page, found.last_known, (wanted, state))


def _contains(session: Session, wanted: str) -> bool:
    conn = session.conn
    return (
        wanted in session.client_id.casefold()
        or wanted in (session.username or "").casefold()
        or (conn is not None and wanted in conn.peer)
    )


def _last_known(
    node: Node,
    listing: Listing,
    page: Page[dict[str, Any]],
    last_known: LastKnown,
    wanted: tuple[str, str],
) -> Iterator[None]:
    """Offer the clients of a broker that does not answer: those that it has posted in its `listing`
    and that have not come to another broker since. `wanted`: text, and state."""
    text, state = wanted
    broker = listing.id.hex()
    for number, key in enumerate(list(listing.entries), 1):
        entry = decode_entry(listing.entries.get(key)) if key[:1] == CLIENT else None
        if entry is not None and not entry.flags & GONE:
            client_id = key[1:].decode(errors="replace")
            row = last_known.row(broker, client_id)
            shown = state == "all" or row["connected"] is (state == "connected")
            shown = shown and text in client_id.casefold()
            # It may have come to another broker since.
            if shown and holder(node, client_id) in ("", broker) and page.wants(_key(row)):
                page.put(_key(row), row)
        if not number % AT_ONCE:
            yield


def holder(node: Node, client_id: str) -> str:
    """Return the id of the broker that has the session of a client, "" if none that can be reached
    has. If several have one, it is the one to which the client came last."""
    if client_id in node.sessions:
        return node.config.id.hex()
    key, newest, found = CLIENT + client_id.encode(), -1, ""
    for listing in node.cluster.database.reachable():
        entry = decode_entry(listing.entries.get(key))
        if entry is not None and not entry.flags & GONE and entry.stamp > newest:
            newest, found = entry.stamp, listing.id.hex()
    return found


def session_of(node: Node, client_id: str) -> Session:
    """Return the session of a client here. Raises RequestError."""
    session = node.sessions.get(client_id)
    if session is None:
        raise RequestError(404, "no such client")
    return session


def disconnect_client(node: Node, client_id: str) -> None:
    """Disconnect a client (MQTT 5: 0x98, administrative action). Raises RequestError."""
    if not disconnect(session_of(node, client_id), ReasonCode.ADMINISTRATIVE_ACTION):
        raise RequestError(409, "this client is not connected")


def end_session(node: Node, client_id: str) -> None:
    """Disconnect a client and end its session, with its subscriptions and its queued messages.
    Raises RequestError."""
    session = session_of(node, client_id)
    disconnect(session, ReasonCode.ADMINISTRATIVE_ACTION)
    # A session without expiry ends with its connection.
    if node.sessions.get(client_id) is session:
        node.end_session(session, None)


def subscriptions(sessions: list[Session], page: Page[dict[str, Any]], text: str) -> Iterator[None]:
    """Offer the subscriptions of `sessions` to a `page`, some hundred at a time; `text`: that
    filter or client identifier contains."""
    wanted, number = text.casefold(), 0
    for session in sessions:
        client = session.client_id
        here = not wanted or wanted in client.casefold()
        for subscription in list(session.subscriptions.values()):
            number += 1
            if here or wanted in subscription.filter.casefold():
                key = client + BETWEEN + subscription.filter
                if page.wants(key):
                    page.put(key, _row(client, subscription))
            if not number % AT_ONCE:
                yield
        number += 1
        if not number % AT_ONCE:
            yield


def _row(client: str, subscription: Subscription) -> dict[str, Any]:
    return {
        "client": client,
        "filter": subscription.filter,
        "qos": subscription.qos,
        "no_local": subscription.no_local,
        "retain_as_published": subscription.retain_as_published,
        "identifier": subscription.identifier,
    }
