"""The node as amqtt's broker drives it: the few places where amqtt observes the node. None is on
the path of a message."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from amqtt.session import Session as Account

from mqttree.broker.compat.accounts import Accounts
from mqttree.broker.core.client import Client
from mqttree.broker.core.connection import Connection
from mqttree.broker.core.delivery_queue import Outgoing
from mqttree.broker.core.effects import Event
from mqttree.broker.core.message import Message
from mqttree.broker.core.retained_store import RetainedStore
from mqttree.broker.core.session import Session, Subscription
from mqttree.broker.io.broker_service import ServedNode
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.strings import shorten
from mqttree.routing.sharded import ShardedDict

log = logging.getLogger("amqtt.broker")


class Sources:
    """Topic -> id of the client that published its retained message. Entries of expired messages
    are deleted a part at a time."""

    __slots__ = ("_clients", "_parts")

    def __init__(self) -> None:
        self._clients: ShardedDict[str] = ShardedDict()
        # The parts that are still to be looked at.
        self._parts: Iterator[list[tuple[str, str]]] = iter(())

    def get(self, topic: str) -> str | None:
        """Return the id of the client, None if it is unknown."""
        return self._clients.get(topic)

    def forget(self, topic: str) -> None:
        """Delete the entry of a topic."""
        self._clients.pop(topic)

    def note(self, topic: str, client_id: str, retained: RetainedStore) -> None:
        """Note that the message of `topic` in the store `retained` is of the client `client_id`."""
        self._clients[topic] = client_id
        part = next(self._parts, None)
        for old, _ in part or ():
            if retained.get(old) is None:
                self._clients.pop(old)
        if part is None and len(self._clients) > 2 * len(retained) + 1024:
            self._parts = self._clients.parts()


class HookedNode(ServedNode):
    """The node, and the state that amqtt keeps beside it."""

    accounts: Accounts
    sources: Sources
    """The publishers of retained messages."""

    def client_connected(self, client: Client, now: float) -> None:
        """Handle a connected client, and tell amqtt's session and plugins."""
        if client.keep_alive:
            client.keep_alive += self.accounts.keep_alive_delay
        self.accounts.connected(client)
        if self.hooks.packets:
            connect = encode_packet(client.connect, client.version)
            self.effects.append(Event("mqtt_packet_received", {"client": client, "data": connect}))
        super().client_connected(client, now)
        session = client.session
        account = session.account
        if isinstance(account, Account):
            deliver_kept(session, account)

    def client_disconnected(self, client: Client) -> None:
        """Handle the end of a client's connection, and tell amqtt's session."""
        super().client_disconnected(client)
        session = client.session
        if session.conn is None:
            self.accounts.on_disconnected(session)

    def end_session(self, session: Session, source: Connection | None) -> None:
        """End a session. The log line is amqtt's."""
        super().end_session(session, source)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("Expired 1 sessions: %s", shorten(session.client_id))

    def subscribe(self, subscription: Subscription, group: str | None, inner: str) -> None:
        """Subscribe a session as a plugin asks.

        `subscription`: of that session. `group`: the name of its shared subscription, None for
        an ordinary one. `inner`: the filter without `$share/<group>/`.
        """
        self.dispatcher.subscribe(subscription, group, inner)

    def retained_message(self, topic: str) -> Message | None:
        """Return the retained message of a topic, expired or not; None if it has none."""
        return self.retained.get(topic)

    def retained_topics(self) -> Iterable[str]:
        """Return the topics that have a retained message."""
        return self.retained.topics()

    def put_retained(self, message: Message) -> None:
        """Set a topic's retained message on all brokers, without delivering it; an empty one
        deletes it."""
        self.cluster.retained_sync.put(message)

    def forward_retained(self, message: Message) -> None:
        """Set a topic's retained message here, and send it to other brokers as any message with
        RETAIN; an empty one deletes it."""
        self.cluster.retained_sync.written(message, None)
        self.cluster.forwarder.forward(message, None)

    def retain(self, message: Message) -> None:
        """Store a retained message, and record its publisher."""
        topic = message.topic.decode()
        sender = message.sender
        if message.payload and isinstance(sender, Session):
            self.sources.note(topic, sender.client_id, self.retained)
        else:
            self.sources.forget(topic)
        super().retain(message)


def deliver_kept(session: Session, account: Account) -> None:
    """Deliver messages that plugins put into amqtt's queue for a session while its client was not
    connected."""
    while not account.retained_messages.empty():
        kept = account.retained_messages.get_nowait()
        qos = kept.qos or 0
        message = Message(kept.topic.encode(), bytes(kept.data or b""), qos, True, b"", None, None)
        if session.conn is None:
            # The plugin that queued it knows of it.
            session.queue_offline(Outgoing(message, qos, True, b""), None, tell=False)
        else:
            session.deliver(message, qos, True, b"", None)
