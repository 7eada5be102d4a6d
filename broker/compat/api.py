"""The methods that amqtt's plugins, their context and amqtt's users call on a broker, carried out
by our node."""

from __future__ import annotations

from amqtt.adapters import ReaderAdapter, WriterAdapter
from amqtt.broker import Broker as AmqttBroker
from amqtt.contexts import Action
from amqtt.errors import BrokerError
from amqtt.session import Session as Account

from mqttree.broker.compat.hooks import HookedNode
from mqttree.broker.compat.plugins import Handler
from mqttree.broker.core.message import Message
from mqttree.broker.core.session import Subscription
from mqttree.broker.io.driver import Driver
from mqttree.broker.io.websocket import AdapterTransport
from mqttree.routing.topic_filter import split_shared, valid_topic_filter

REFUSED = 0x80
"""SUBACK's failure code (MQTT 3.1.1, 3.9.3)."""


class BrokerApi(AmqttBroker):  # type: ignore[misc]
    """The methods of amqtt's broker that are called while it runs; `broker.Broker` has the rest."""

    node: HookedNode
    driver: Driver

    async def internal_message_broadcast(
        self, topic: str, data: bytes, qos: int | None = None
    ) -> None:
        """Publish `data` to `topic` for a plugin, at `qos`. Without `qos` each subscriber gets it
        at the QoS of its subscription ($SYS topics: at 0)."""
        if qos is None:
            qos = 0 if topic.startswith("$") else 2
        self.node.now = self.driver.time()
        self.node.publisher.publish_internal(topic, bytes(data), qos, False)
        self.driver.wake()

    async def retain_message(
        self,
        source_session: Account | None,
        topic_name: str | None,
        data: bytes | bytearray | None,
        qos: int | None = None,
    ) -> None:
        """Keep a retained message; without `data`, delete the one that the topic has.

        `source_session`: amqtt's session of the publisher, None for the broker. `topic_name`: None
        does nothing. `qos`: None means 0.

        Other brokers keep the message too, unless its topic begins with `$`: to them it comes as
        any message with RETAIN.
        """
        if topic_name is None or (not data and topic_name not in self.retained_messages):
            return
        node = self.node
        sender = node.sessions.get(source_session.client_id) if source_session is not None else None
        node.now = self.driver.time()
        message = Message(
            topic_name.encode(), bytes(data or b""), qos or 0, True, b"", None, sender
        )
        node.forward_retained(message)
        self.driver.wake()

    async def add_subscription(self, subscription: tuple[str, int], session: Account) -> int:
        """Subscribe for a client. `subscription`: filter and QoS. `session`: amqtt's session of
        the client. Returns the granted QoS, or 0x80 if plugins, rules or the filter's form
        forbid it."""
        topic_filter, qos = subscription
        own = self.node.sessions.get(session.client_id or "")
        if own is None or not valid_topic_filter(topic_filter):
            return REFUSED
        group, inner = split_shared(topic_filter)
        if not own.may_subscribe(inner):
            return REFUSED
        if not await self._topic_filtering(session, inner, Action.SUBSCRIBE):
            return REFUSED
        qos = min(qos, self.node.config.max_qos)
        self.node.subscribe(Subscription(own, topic_filter, qos), group, inner)
        return qos

    def create_offline_session(self, client_id: str) -> tuple[Handler, Account]:
        """Return a handler and amqtt's session for a client that is not connected. It becomes a
        session of the broker when it is put into `sessions`."""
        session = Account()
        session.client_id = client_id
        session.transitions.disconnect()
        return self.handler(client_id), session

    def handler(self, client_id: str) -> Handler:
        """Return what acts on one session where amqtt has a protocol handler."""
        return Handler(self, client_id)

    async def _cleanup_session(self, client_id: str) -> None:
        """End a session and its connection."""
        self.sessions.pop(client_id, None)

    async def _delete_session(self, client_id: str) -> None:
        """End a session and its connection."""
        self.sessions.pop(client_id, None)

    async def _broadcast_message(
        self,
        session: Account | None,
        topic: str | None,
        data: bytes | bytearray | None,
        force_qos: int | None = None,
    ) -> None:
        if topic is not None:
            await self.internal_message_broadcast(topic, bytes(data or b""), force_qos)

    async def _client_connected(
        self, listener_name: str, reader: ReaderAdapter, writer: WriterAdapter
    ) -> None:
        """Serve a connection that another program accepted (an external listener), until it ends.
        Raises BrokerError: the listener does not exist."""
        server = self._servers.get(listener_name)
        if server is None:
            raise BrokerError(f"Invalid listener name '{listener_name}'")
        remote = writer.get_peer_info()
        if remote is None:
            await writer.close()
            return
        host, port = remote
        transport = AdapterTransport(self.driver, listener_name, reader, writer)
        await transport.run(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}", writer.get_ssl_info()
        )
