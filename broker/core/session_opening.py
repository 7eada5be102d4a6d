"""The session of a client that is let in: its older one, or a new one, with what CONNECT says
(MQTT-3.1.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mqttree.broker.core.memory_limit import will_memory
from mqttree.broker.core.serving_broker import ServingBroker
from mqttree.broker.core.session import NEVER, Session, SessionHost
from mqttree.broker.core.topic_alias import TopicAliases
from mqttree.broker.wire.constants import MAX_PACKET_SIZE
from mqttree.broker.wire.properties import Properties, Property

if TYPE_CHECKING:
    from mqttree.broker.core.access_control import AccessControl
    from mqttree.broker.core.client_registry import ClientRegistry
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.wire.packets import Connect


class OpeningHost(ServingBroker, SessionHost, Protocol):
    """What opening a session asks of its broker."""

    @property
    def access_control(self) -> AccessControl:
        """Says what clients may do."""

    @property
    def clients(self) -> ClientRegistry:
        """The clients that are connected."""


def open_session(
    node: OpeningHost,
    conn: Connection,
    connect: Connect,
    owner: str | None,
    stamp: int,
    answer: Properties,
) -> tuple[Session, bool]:
    """Return the session of a client that is let in, and whether it was there before. An older
    connection of the client is closed, and Clean Start ends the session that it had.

    `node`: this broker; `conn`, `connect`: the client's connection and its CONNECT; `owner`: its
    user; `stamp`: when the connection began (hybrid clock); `answer`: properties of its CONNACK, to
    which the expiry is added that it gets if that is not the one that it asked for.
    """
    client_id = connect.client_id
    old = node.sessions.get(client_id)
    if old is not None and old.conn is not None:
        node.clients.take_over(old)
        # It is gone when it was to end with its connection.
        old = node.sessions.get(client_id)
    if old is not None and connect.clean_start:
        node.end_session(old, conn)
        old = None
    session = old if old is not None else Session(node, client_id)
    session.will = None  # a delayed one of the last connection is not sent (MQTT-3.1.3-9)
    session.stop_timers()
    node.sessions[client_id] = session
    session.former_stamp, session.stamp, session.successor = session.stamp, stamp, 0
    if old is None:
        session.created = stamp
        session.floor = node.cluster.tombstones.floor(client_id, owner)
    if connect.clean_start:
        session.floor = stamp
    session.owner = owner
    _configure(node, session, connect, conn.listener, answer)
    return session, old is not None


def _configure(
    node: OpeningHost, session: Session, connect: Connect, listener: str, answer: Properties
) -> None:
    """Give a session what its client's CONNECT says."""
    properties = connect.properties
    maximum = MAX_PACKET_SIZE
    aliases = 0
    if properties:
        maximum = properties.get(Property.MAXIMUM_PACKET_SIZE, maximum)
        aliases = min(
            properties.get(Property.TOPIC_ALIAS_MAXIMUM, 0), node.config.topic_aliases_out
        )
    changed = session.version != connect.version or session.maximum_packet_size != maximum
    session.version = connect.version
    session.clean = connect.clean_start
    session.username = connect.username
    if node.access is not None or session.permissions is not None:
        permissions = node.access_control.permissions(connect.username, connect.client_id, listener)
        changed = changed or permissions is None or not permissions.same(session.permissions)
        session.permissions = permissions
        node.access_control.revoke(session)
    session.will = connect.will
    session.will_memory = will_memory(connect.will)
    session.maximum_packet_size = maximum
    session.limited = maximum < MAX_PACKET_SIZE
    session.aliases = TopicAliases(aliases) if aliases else None
    session.checked = session.limited or session.aliases is not None
    most = node.config.max_inflight_messages
    if connect.version == 5:
        properties = properties or {}
        asked = properties.get(Property.SESSION_EXPIRY_INTERVAL, 0)
        session.expire_after(asked)
        if session.expiry not in (NEVER, asked):
            answer[Property.SESSION_EXPIRY_INTERVAL] = int(session.expiry)
        session.open_window(min(properties.get(Property.RECEIVE_MAXIMUM, 65535), most))
    else:
        session.expire_after(0 if connect.clean_start else 0xFFFFFFFF)
        session.open_window(min(node.limits.max_inflight, most))
    if changed:
        node.dispatcher.session_changed(session)
