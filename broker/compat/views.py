"""What amqtt's plugins see of the node: its sessions, subscriptions and retained messages as live
mappings.

Nothing is copied and nothing is made before somebody looks; amqtt's `Session` objects least of all,
which cost more than a connection does. Writing through the mappings writes to the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from amqtt.broker import BrokerContext, RetainedApplicationMessage
from amqtt.session import IncomingApplicationMessage
from amqtt.session import Session as Account

from broker.cluster.link.admission import split_peer
from broker.core.client import Client
from broker.core.connection import Connection
from broker.core.message import Message
from broker.core.session import NEVER, Session
from broker.core.session_owner import owner_of
from broker.wire.constants import ReasonCode
from broker.wire.packets import Connect

if TYPE_CHECKING:
    from broker.compat.broker import Broker


class Accounts:
    """amqtt's `Session` of each of our sessions, made when the first plugin wants it."""

    def __init__(self, keep_alive_delay: int) -> None:
        """`keep_alive_delay`: s, amqtt's timeout_disconnect_delay."""
        self.keep_alive_delay = keep_alive_delay
        self.anonymous = False  # what the session of a client is that no plugin was asked about
        # By the identity of a CONNECT that plugins are asked about.
        self._connecting: dict[int, Account] = {}

    def of(self, session: Session) -> Account:
        """Return the account of a session."""
        account = session.account
        if account is None:
            account = session.account = Account()
            account.client_id = session.client_id
            account.username = session.username
            account.clean_session = session.clean
            account.is_anonymous = self.anonymous
            conn = session.conn
            if conn is not None and isinstance(conn.owner, Client):
                self._describe(account, conn, conn.owner.connect)
                account.transitions.connect()
            else:
                account.transitions.disconnect()
        return account

    def connecting(self, conn: Connection, connect: Connect) -> Account:
        """Return the account of a client that plugins are asked about; it becomes its session's if
        they let it in."""
        account = self._connecting[id(connect)] = Account()
        self._describe(account, conn, connect)
        return account

    def answered(self, connect: Connect) -> None:
        """Forget the account of a client that was not let in, or had gone."""
        self._connecting.pop(id(connect), None)

    def connected(self, client: Client) -> None:
        """Give a client's session the account that plugins were asked about; what was kept with an
        older one stays."""
        session = client.session
        new = self._connecting.pop(id(client.connect), None)
        old = session.account
        if new is None:
            if not isinstance(old, Account):
                return
            self._describe(old, client.conn, client.connect)
        elif not isinstance(old, Account):
            session.account = old = new
            old.client_id = session.client_id
        else:  # plugins hold on to the object, so it stays and learns
            self._describe(old, client.conn, client.connect)
            old.is_anonymous = new.is_anonymous
            old.attributes.update(new.attributes)
        if not old.transitions.is_connected():
            old.transitions.connect()

    def gone(self, session: Session) -> None:
        """Note that a session's connection ended."""
        account = session.account
        if isinstance(account, Account) and account.transitions.is_connected():
            account.transitions.disconnect()

    def _describe(self, account: Account, conn: Connection, connect: Connect) -> None:
        account.remote_address, account.remote_port = split_peer(conn.peer)
        account.ssl_object = conn.secure
        account.client_id = connect.client_id
        account.clean_session = connect.clean_start
        account.keep_alive = connect.keep_alive + (
            self.keep_alive_delay if connect.keep_alive else 0
        )
        account.username = connect.username
        # bytes that are no text stay different from each other, and make a plugin fail rather than
        # match
        password = connect.password
        account.password = None if password is None else password.decode(errors="surrogateescape")
        will = connect.will
        account.will_flag = will is not None
        account.will_topic = will.topic if will is not None else None
        account.will_message = will.payload if will is not None else None
        account.will_qos = will.qos if will is not None else None
        account.will_retain = will.retain if will is not None else None


class Sessions(MutableMapping[str, tuple[Account, Any]]):
    """client id -> (session, handler)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def __getitem__(self, client_id: str) -> tuple[Account, Any]:
        session = self._broker.node.sessions[client_id]
        return self._broker.accounts.of(session), self._broker.handler(client_id)

    def __setitem__(self, client_id: str, value: tuple[Account, Any]) -> None:
        node = self._broker.node
        session = node.sessions.get(client_id)
        if session is None:
            session = node.sessions[client_id] = Session(node, client_id)
            session.clean = False
            session.username = value[0].username
            session.owner = owner_of(node, session.username, "", proven=False)
            session.permissions = node.permissions(session.username, client_id, "")
            session.expire_after(0xFFFFFFFF)
            if session.expiry != NEVER:
                away = session
                session.expiry_timer = node.schedule(
                    node.now + session.expiry, lambda now: node.end_session(away)
                )
                self._broker.driver.wake()
        session.account = value[0]

    def __delitem__(self, client_id: str) -> None:
        node = self._broker.node
        session = node.sessions[client_id]
        node.current = None  # what its end brings about holds nobody who was read before
        if session.conn is not None and isinstance(session.conn.owner, Client):
            session.conn.owner.shut(ReasonCode.ADMINISTRATIVE_ACTION)
        node.end_session(session)
        self._broker.driver.wake()

    def __contains__(self, client_id: object) -> bool:
        return client_id in self._broker.node.sessions

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._broker.node.sessions))

    def __len__(self) -> int:
        return len(self._broker.node.sessions)

    def __repr__(self) -> str:
        return f"Sessions({list(self)})"


class Subscriptions(Mapping[str, list[tuple[Account, int]]]):
    """filter -> [(session, QoS)]. A filter that nobody has gives an empty list, as amqtt's does
    once it was had."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def __getitem__(self, topic_filter: str) -> list[tuple[Account, int]]:
        account = self._broker.accounts.of
        return [
            (account(session), subscription.qos)
            for session in list(self._broker.node.sessions.values())
            if (subscription := session.subscriptions.get(topic_filter)) is not None
        ]

    def __contains__(self, topic_filter: object) -> bool:
        return any(
            topic_filter in session.subscriptions for session in self._broker.node.sessions.values()
        )

    def __iter__(self) -> Iterator[str]:
        return iter(
            dict.fromkeys(
                f for session in self._broker.node.sessions.values() for f in session.subscriptions
            )
        )

    def __len__(self) -> int:
        return len(
            {f for session in self._broker.node.sessions.values() for f in session.subscriptions}
        )

    def get(self, topic_filter: str, default: Any = None) -> Any:
        """Return the filter's subscribers, or `default` when nobody has it."""
        found = self[topic_filter]
        return found if found else default

    def __repr__(self) -> str:
        return f"Subscriptions({list(self)})"


class RetainedMessages(MutableMapping[str, RetainedApplicationMessage]):
    """topic -> retained message."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def __getitem__(self, topic: str) -> RetainedApplicationMessage:
        message = self._broker.node.retained.get(topic)
        if message is None or message.expired(self._broker.node.now):
            raise KeyError(topic)
        return retained(self._broker, message)

    def __setitem__(self, topic: str, value: RetainedApplicationMessage) -> None:
        node = self._broker.node
        message = Message(
            topic.encode(), bytes(value.data or b""), value.qos or 0, True, b"", None, None
        )
        node.cluster.retained_sync.put(message)

    def __delitem__(self, topic: str) -> None:
        if self._broker.node.retained.get(topic) is None:
            raise KeyError(topic)
        self._broker.node.cluster.retained_sync.put(
            Message(topic.encode(), b"", 0, True, b"", None, None)
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._broker.node.retained.topics())

    def __len__(self) -> int:
        retained = self._broker.node.retained
        return len(retained) + retained.own

    def clear(self) -> None:
        """Forget everything, on all brokers."""
        for topic in self:
            del self[topic]

    def __repr__(self) -> str:
        return f"RetainedMessages({list(self)})"


class Total:
    """All sessions in one, as far as amqtt's $SYS topics add them up."""

    def __init__(self, sessions: list[Session]) -> None:
        self.inflight_in_count = sum(len(s.incoming) for s in sessions)
        self.inflight_out_count = sum(len(s.inflight) for s in sessions)
        self.retained_messages_count = sum(len(s.queue) + len(s.missed or ()) for s in sessions)


class SysContext(BrokerContext):  # type: ignore[misc]
    """The context of amqtt's $SYS plugin: sums instead of one object per session."""

    def __init__(self, broker: Broker, original: BrokerContext) -> None:
        super().__init__(broker)
        self.__dict__.update(original.__dict__)

    @property
    def sessions(self) -> Iterator[Total]:
        """All sessions, as one."""
        yield Total(list(self._broker_instance.node.sessions.values()))

    @property
    def subscriptions(self) -> dict[str, range]:
        """All subscriptions, under one filter."""
        return {
            "#": range(
                sum(len(s.subscriptions) for s in self._broker_instance.node.sessions.values())
            )
        }


def incoming(message: Message, packet_id: int | None) -> IncomingApplicationMessage:
    """Make amqtt's form of a message that a client published."""
    found = IncomingApplicationMessage(
        packet_id or None, message.topic.decode(), message.qos, message.payload, message.retain
    )
    found.publish_packet = found.build_publish_packet()
    return found


def kept_for(broker: Broker, message: Message, qos: int) -> RetainedApplicationMessage:
    """Make amqtt's form of a message that waits for a client that is away."""
    sender = message.sender
    source = broker.accounts.of(sender) if isinstance(sender, Session) else None
    return RetainedApplicationMessage(source, message.topic.decode(), message.payload, qos)


def retained(broker: Broker, message: Message) -> RetainedApplicationMessage:
    """Make amqtt's form of a retained message."""
    node = broker.node
    topic = message.topic.decode()
    source: Account | None = None
    client_id = node.sources.get(topic)
    if client_id is not None:
        session = node.sessions.get(client_id)
        if session is not None:
            source = broker.accounts.of(session)
        else:  # gone meanwhile: as much as is known
            source = Account()
            source.client_id = client_id
    return RetainedApplicationMessage(source, topic, message.payload, message.qos)
