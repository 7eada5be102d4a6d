"""Clients and their subscriptions: found, looked at, disconnected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mqttree.broker.cluster.directory.link_state_directory import CLIENT
from mqttree.broker.core.client import Client, disconnect
from mqttree.broker.core.session import NEVER
from mqttree.broker.core.session_owner import GONE, decode_entry
from mqttree.broker.io.api.routes import RequestError
from mqttree.broker.io.api.search import AT_ONCE, Page
from mqttree.broker.wire.constants import ReasonCode

if TYPE_CHECKING:
    from mqttree.broker.core.session import Session, Subscription
    from mqttree.broker.io.api.parts import Parts
    from mqttree.broker.node import Node

VERSIONS = {3: "3.1", 4: "3.1.1", 5: "5"}

ELSEWHERE: dict[str, Any] = {
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
"""What is not known of a client of another broker."""

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


def search(
    parts: Parts, page: Page[dict[str, Any]], text: str, state: str, broker: str
) -> Iterator[None]:
    """Offer clients to a page, some hundred at a time.

    `parts`: of this broker; `page`: takes them; `text`: that the client identifier, user or address
    contains; `state`: all, connected or disconnected (then of this broker only); `broker`: id of
    the broker, "": of all.
    """
    node, database = parts.node, parts.database
    own, wanted = node.config.id.hex(), text.casefold()
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
    if state == "all":
        for listing in database.reachable():
            if broker in ("", listing.id.hex()):
                yield from _elsewhere(listing.id.hex(), listing.entries, page, wanted)


def _contains(session: Session, wanted: str) -> bool:
    conn = session.conn
    return (
        wanted in session.client_id.casefold()
        or wanted in (session.username or "").casefold()
        or (conn is not None and wanted in conn.peer)
    )


def _elsewhere(
    broker: str, entries: dict[bytes, bytes], page: Page[dict[str, Any]], wanted: str
) -> Iterator[None]:
    """Offer the clients of another broker: its id, and what it has posted."""
    for number, key in enumerate(list(entries), 1):
        if key[:1] == CLIENT:
            entry = decode_entry(entries.get(key))
            client_id = key[1:].decode(errors="replace")
            if entry is not None and not entry.flags & GONE and wanted in client_id.casefold():
                place = client_id + BETWEEN + broker
                if page.wants(place):
                    row = {"id": client_id, "broker": broker, "here": False, **ELSEWHERE}
                    page.put(place, row)
        if not number % AT_ONCE:
            yield


def session_of(node: Node, client_id: str) -> Session:
    """Return the session of a client here. Raises RequestError."""
    session = node.sessions.get(client_id)
    if session is None:
        raise RequestError(404, "no such client at this broker")
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
