"""The node as amqtt's broker drives it: a few places where amqtt's ways look in. None is on the
path of a message."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from amqtt.session import Session as Account

from broker.compat.accounts import Accounts
from broker.core.client import Client
from broker.core.connection import Connection
from broker.core.effects import Event
from broker.core.message import Message
from broker.core.retained_store import RetainedStore
from broker.core.session import Outgoing, Session
from broker.node import Node
from broker.wire.encode import encode_packet
from broker.wire.strings import shorten
from routing.sharded import ShardedDict

log = logging.getLogger("amqtt.broker")


class Sources:
    """topic -> id of the client whose retained message it has. Of messages that expired it is
    forgotten a part at a time."""

    __slots__ = ("_clients", "_parts")

    def __init__(self) -> None:
        self._clients: ShardedDict[str] = ShardedDict()
        self._parts: Iterator[list[tuple[str, str]]] = iter(())  # that are still to be looked at

    def get(self, topic: str) -> str | None:
        """Return whose it is, as far as that is known."""
        return self._clients.get(topic)

    def forget(self, topic: str) -> None:
        """It is nobody's any more."""
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


class HookedNode(Node):
    """The node, and what amqtt keeps beside it."""

    accounts: Accounts
    sources: Sources
    """Whose retained messages are here."""
    on_empty: Callable[[], None] | None = None
    """Called when the last connection is gone."""

    def client_came(self, client: Client, now: float) -> None:
        """A client is connected."""
        if client.keep_alive:
            client.keep_alive += self.accounts.keep_alive_delay
        self.accounts.connected(client)
        if self.hooks.packets:
            connect = encode_packet(client.connect, client.version)
            self.effects.append(Event("mqtt_packet_received", {"client": client, "data": connect}))
        super().client_came(client, now)
        account = client.session.account
        if isinstance(account, Account):
            deliver_kept(client.session, account)

    def client_gone(self, client: Client) -> None:
        """A client's connection ended."""
        super().client_gone(client)
        if client.session.conn is None:
            self.accounts.gone(client.session)

    def end_session(self, session: Session, source: Connection | None = None) -> None:
        """Forget a session. The line is amqtt's."""
        super().end_session(session, source)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("Expired 1 sessions: %s", shorten(session.client_id))

    def retain(self, message: Message) -> None:
        """Keep a retained message, and whose it was."""
        topic = message.topic.decode()
        sender = message.sender
        if message.payload and isinstance(sender, Session):
            self.sources.note(topic, sender.client_id, self.retained)
        else:
            self.sources.forget(topic)
        super().retain(message)

    def connection_lost(self, conn: Connection, reason: str, now: float) -> None:
        """Note at `now` (s) that the connection `conn` is closed, for a `reason` (text)."""
        super().connection_lost(conn, reason, now)
        if self.on_empty is not None and not self.connections:
            self.on_empty()


class ShowingNode(HookedNode):
    """The same for plugins that want to see every packet: what goes out is shown when it goes."""

    on_packets: Callable[[Client, bytes], None]
    """Called with whole packets that go to a client."""

    def _compose_output(self) -> None:
        super()._compose_output()
        self.flush = self._show_and_flush

    def _show_and_flush(self, source: Connection | None = None) -> None:
        """Hand every outbox to its transport, and show what is in those of clients."""
        shown: set[int] = set()
        for outlet in self.dirty:
            conn = outlet.conn
            if (
                conn is not None
                and isinstance(conn.owner, Client)
                and outlet.outbox
                and id(outlet.outbox) not in shown
            ):
                shown.add(id(outlet.outbox))
                self.on_packets(conn.owner, b"".join(outlet.outbox))
        self.output.flush(source)


def deliver_kept(session: Session, account: Account) -> None:
    """Deliver what plugins put into amqtt's queue of messages for a session that was away."""
    while not account.retained_messages.empty():
        kept = account.retained_messages.get_nowait()
        qos = kept.qos or 0
        message = Message(kept.topic.encode(), bytes(kept.data or b""), qos, True, b"", None, None)
        if session.conn is None:
            # Who brought it back knows it.
            session.put_by(Outgoing(message, qos, True, b""), None, tell=False)
        else:
            session.deliver(message, qos, True, b"", None)
