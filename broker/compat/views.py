"""What amqtt's plugins see of the node: its sessions, subscriptions and retained messages as live
mappings.

Nothing is copied, and nothing is made before a plugin looks; least of all amqtt's `Session`
objects, which cost more than a connection does. Writing through the mappings writes to the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from amqtt.broker import BrokerContext, RetainedApplicationMessage
from amqtt.session import IncomingApplicationMessage
from amqtt.session import Session as Account

from mqttree.broker.core.client import disconnect
from mqttree.broker.core.message import Message
from mqttree.broker.core.session import NEVER, Session
from mqttree.broker.core.session_owner import owner_of
from mqttree.broker.wire.constants import ReasonCode

if TYPE_CHECKING:
    from mqttree.broker.compat.ports import PluginBroker


class Sessions(MutableMapping[str, tuple[Account, Any]]):
    """client id -> (session, handler)."""

    def __init__(self, broker: PluginBroker) -> None:
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
            session.permissions = node.access_control.permissions(session.username, client_id, "")
            session.expire_after(0xFFFFFFFF)
            if session.expiry != NEVER:
                away = session
                session.expiry_timer = node.timers.schedule(
                    node.now + session.expiry, lambda now: node.end_session(away, None)
                )
                self._broker.driver.wake()
        session.account = value[0]

    def __delitem__(self, client_id: str) -> None:
        node = self._broker.node
        session = node.sessions[client_id]
        disconnect(session, ReasonCode.ADMINISTRATIVE_ACTION)
        node.end_session(session, None)
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
    """Filter -> [(amqtt's session, QoS)]. A filter without subscribers gives an empty list, as
    amqtt's mapping does for one that had some."""

    def __init__(self, broker: PluginBroker) -> None:
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
        """Return the filter's subscribers, or `default` if there are none."""
        found = self[topic_filter]
        return found if found else default

    def __repr__(self) -> str:
        return f"Subscriptions({list(self)})"


class RetainedMessages(MutableMapping[str, RetainedApplicationMessage]):
    """Retained messages by topic, as amqtt's plugins read, set and delete them. A topic without
    one, or whose message has expired, raises KeyError."""

    def __init__(self, broker: PluginBroker) -> None:
        self._broker = broker

    def __getitem__(self, topic: str) -> RetainedApplicationMessage:
        message = self._broker.node.retained_message(topic)
        if message is None or message.expired(self._broker.node.now):
            raise KeyError(topic)
        return retained(self._broker, message)

    def __setitem__(self, topic: str, value: RetainedApplicationMessage) -> None:
        node = self._broker.node
        message = Message(
            topic.encode(), bytes(value.data or b""), value.qos or 0, True, b"", None, None
        )
        node.put_retained(message)

    def __delitem__(self, topic: str) -> None:
        if self._broker.node.retained_message(topic) is None:
            raise KeyError(topic)
        self._broker.node.put_retained(Message(topic.encode(), b"", 0, True, b"", None, None))

    def __iter__(self) -> Iterator[str]:
        return iter(self._broker.node.retained_topics())

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

    def __init__(self, broker: PluginBroker, original: BrokerContext) -> None:
        super().__init__(broker)
        self.__dict__.update(original.__dict__)

    @property
    def sessions(self) -> Iterator[Total]:
        """One item that stands for all sessions together: the plugin only adds them up."""
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


def kept_for(broker: PluginBroker, message: Message, qos: int) -> RetainedApplicationMessage:
    """Return amqtt's form of `message`, which waits at `qos` for a client that is not connected;
    `broker` knows its publisher."""
    sender = message.sender
    source = broker.accounts.of(sender) if isinstance(sender, Session) else None
    return RetainedApplicationMessage(source, message.topic.decode(), message.payload, qos)


def retained(broker: PluginBroker, message: Message) -> RetainedApplicationMessage:
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
