"""amqtt's plugin manager as the node's driver uses it: which questions and events plugins want, in
amqtt's form."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from amqtt.adapters import BufferReader
from amqtt.contexts import Action
from amqtt.events import BrokerEvents, Events, MQTTEvents
from amqtt.mqtt import packet_class
from amqtt.mqtt.packet import MQTTFixedHeader
from amqtt.plugins.authentication import AnonymousAuthPlugin, FileAuthPlugin
from amqtt.plugins.logging_amqtt import EventLoggerPlugin, PacketLoggerPlugin
from amqtt.plugins.manager import PluginManager
from amqtt.plugins.sys import broker as sys_topics
from amqtt.session import Session as Account

from mqttree.broker.compat.views import SysContext, incoming, kept_for, retained
from mqttree.broker.core.client import Client, disconnect
from mqttree.broker.core.effects import (
    Authenticate,
    AuthorizePublish,
    AuthorizeReceive,
    AuthorizeSubscribe,
    Event,
    Hooks,
)
from mqttree.broker.core.message import Message
from mqttree.broker.core.session import Session
from mqttree.broker.core.subscribe import acceptable
from mqttree.broker.wire.constants import MAX_TOPIC_LEVELS, ReasonCode
from mqttree.broker.wire.varint import encode_varint, read_length
from mqttree.routing.topic_filter import split_shared

if TYPE_CHECKING:
    from mqttree.broker.compat.ports import PluginBroker
    from mqttree.broker.node import Node

log = logging.getLogger("mqttree")

PACKET_EVENTS = frozenset(str(event) for event in MQTTEvents)
CLIENT_EVENTS = frozenset(
    {str(BrokerEvents.CLIENT_CONNECTED), str(BrokerEvents.CLIENT_DISCONNECTED)}
)
NODE_EVENTS = CLIENT_EVENTS | {
    str(BrokerEvents.CLIENT_SUBSCRIBED),
    str(BrokerEvents.CLIENT_UNSUBSCRIBED),
    str(BrokerEvents.RETAINED_MESSAGE),
    str(BrokerEvents.MESSAGE_RECEIVED),
    str(BrokerEvents.MESSAGE_BROADCAST),
}
"""Events of the node; the others are about the broker's start and end."""

MADE_UP = "a-user-that-nobody-knows"


class Callback:
    """A plugin's method `call` for `event`: calls under way are counted in `plugins`, and an
    exception is logged there and ends here."""

    __slots__ = ("_call", "_plugins", "_what", "owner")

    def __init__(self, call: Callable[..., Awaitable[Any]], event: str, plugins: Plugins) -> None:
        inner = call.func if isinstance(call, partial) else call
        self.owner = getattr(inner, "__self__", None)
        self._call = call
        self._what = f"{type(self.owner).__name__}.on_{event}"
        self._plugins = plugins

    async def __call__(self, **arguments: Any) -> Any:
        """Call the method."""
        try:
            return await self._call(**arguments)
        except Exception as error:
            self._plugins.failed(self._what, error)
            return None
        finally:
            self._plugins.call_ended()


def _answer(plugin: Any, username: str | None) -> object:
    """Ask an authentication plugin that never waits."""
    account = Account()
    account.username = username
    question = plugin.authenticate(session=account)
    try:
        question.send(None)
    except StopIteration as answered:
        return answered.value
    question.close()
    return "unknown"


class Plugins:
    """The loaded plugins of one broker."""

    def __init__(self, broker: PluginBroker, manager: PluginManager) -> None:
        """`manager` may be a stand-in (a test's mock): then every hook is called."""
        self._broker = broker
        self.manager = manager
        self.under_way = 0
        self._held = False
        self._last: tuple[Message, Any] | None = None
        self._genuine = isinstance(manager, PluginManager)
        if self._genuine:
            self._adopt()

    def _adopt(self) -> None:
        """Remove amqtt's own $SYS plugin from the events (it is fed from the counters), and guard
        the methods of all plugins."""
        for plugin in self.manager.plugins:
            if type(plugin) is sys_topics.BrokerSysPlugin:
                feed_sys(plugin, self._broker)
        callbacks = self.manager._event_plugin_callbacks
        for event in list(callbacks):
            guarded = [Callback(call, str(event), self) for call in callbacks[event]]
            if event in PACKET_EVENTS or event in CLIENT_EVENTS:
                guarded = [
                    call for call in guarded if type(call.owner) is not sys_topics.BrokerSysPlugin
                ]
            callbacks[event] = guarded

    @property
    def has_sys(self) -> bool:
        """Whether amqtt's $SYS plugin is loaded."""
        return self._genuine and any(
            isinstance(plugin, sys_topics.BrokerSysPlugin) for plugin in self.manager.plugins
        )

    def hooks(self) -> Hooks:
        """Return what the node has to ask and tell; the present levels of loggers count."""
        if not self._genuine:
            return Hooks(authenticate=True, topics=False, packets=False, events=NODE_EVENTS)
        wanted = {
            str(event)
            for event, calls in self.manager._event_plugin_callbacks.items()
            if any(_wants(call.owner, str(event)) for call in calls)
        }
        return Hooks(
            authenticate=not self.anonymous,
            verifies=self.admits(MADE_UP) is not True,
            topics=bool(self.manager._topic_plugins) and self.manager.is_topic_filtering_enabled(),
            packets=bool(wanted & PACKET_EVENTS),
            events=frozenset(wanted & NODE_EVENTS),
        )

    @property
    def anonymous(self) -> bool:
        """Whether every client is accepted without a question: amqtt's anonymous plugin alone, and
        allowing it."""
        if not self._genuine:
            return False
        plugins = self.manager._auth_plugins
        return (
            len(plugins) == 1
            and type(plugins[0]) is AnonymousAuthPlugin
            and _answer(plugins[0], None) is True
        )

    def admits(self, username: str | None = None) -> bool | None:
        """Return whether the plugins accept a client named `username` without a password; None:
        that is not known before they are asked.

        amqtt's own plugins are asked about a made-up client. Other plugins are not asked: asking
        may have effects.
        """
        if not self._genuine:
            return None
        answers = [
            _answer(plugin, username)
            if type(plugin) in (AnonymousAuthPlugin, FileAuthPlugin)
            else "unknown"
            for plugin in self.manager._auth_plugins
        ]
        answers = [answer for answer in answers if answer is not None]
        if not answers or not all(answers):  # all that answer must agree, and one must answer
            return False
        return None if "unknown" in answers else True

    # ---------------------------------------------------------------- questions

    async def may_connect(self, effect: Authenticate) -> bool:
        """Ask the authentication plugins: all that answer must agree, and one must answer."""
        broker = self._broker
        conn = effect.client.conn
        account = broker.accounts.connecting(conn, effect.connect)
        async with answer_in_time(broker.limits.plugin_timeout_s):
            return bool(
                await broker._authenticate(account, broker.listeners_config.get(conn.listener))
            )

    async def may_publish(self, effect: AuthorizePublish) -> bool:
        """Return whether all topic plugins let the client publish the message of `effect`; a plugin
        that raises has refused it."""
        return await self._permits(
            effect.client.session, effect.message.topic.decode(), Action.PUBLISH
        )

    async def may_subscribe(self, effect: AuthorizeSubscribe) -> list[bool]:
        """Ask the topic plugins for each filter; of a shared subscription, for the filter in it."""
        session, levels = effect.client.session, MAX_TOPIC_LEVELS
        wanted = [request.filter for request in effect.packet.filters]
        return [
            acceptable(topic_filter, levels)
            and await self._permits(session, split_shared(topic_filter)[1], Action.SUBSCRIBE)
            for topic_filter in wanted
        ]

    async def may_receive(self, effect: AuthorizeReceive) -> set[Session]:
        """Ask the topic plugins for each receiver; an error counts against its own receiver
        only."""
        topic = effect.message.topic.decode()
        asked = [self._permits(session, topic, Action.RECEIVE) for session in effect.receivers]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, Exception):
                self.failed("topic_filtering", answer)
        return {
            session
            for session, answer in zip(effect.receivers, answers, strict=True)
            if answer is True
        }

    async def _permits(self, session: Session, topic: str, action: Action) -> bool:
        broker = self._broker
        async with answer_in_time(broker.limits.plugin_timeout_s):
            return bool(await broker._topic_filtering(broker.accounts.of(session), topic, action))

    # ---------------------------------------------------------------- events

    def tell(self, events: list[Event]) -> None:
        """Begin to tell the plugins, in order."""
        self._broker.spawn(self._fire(events))

    def call_ended(self) -> None:
        """Count a call off; the clients that waited for it may go on."""
        self.under_way = max(0, self.under_way - 1)
        if self._held and self.under_way <= self._broker.limits.plugin_calls // 2:
            self._held = False
            self._broker.node.flow_control.release(self)
            self._broker.driver.wake()

    def failed(self, what: str, error: BaseException) -> None:
        """Count and log what a plugin raised."""
        self._broker.node.counters.plugin_errors += 1
        text = " ".join(str(error).split())
        log.error(
            "plugin failed in %s: %s%s", what, type(error).__name__, f": {text}" if text else ""
        )

    async def _fire(self, events: list[Event]) -> None:
        """Schedule the plugins' methods; comes back before they have ended."""
        for event in events:
            try:
                if event.name in PACKET_EVENTS:
                    await self._fire_packets(event)
                else:
                    await self._fire_event(BrokerEvents(event.name), self._arguments(event))
            except Exception as error:
                self.failed(event.name, error)
            if (
                self.under_way >= self._broker.limits.plugin_calls
                and (client := event.arguments.get("client")) is not None
            ):
                self._held = True
                self._broker.node.flow_control.hold(client.conn, self)

    async def _fire_event(self, event: Events, arguments: dict[str, Any]) -> None:
        if self._genuine:
            self.under_way += len(self.manager._event_plugin_callbacks.get(event, ()))
        await self.manager.fire_event(event, **arguments)

    def _arguments(self, event: Event) -> dict[str, Any]:
        given = event.arguments
        if event.name == BrokerEvents.RETAINED_MESSAGE:
            session: Session | None = given.get("session")
            if session is None:
                return {
                    "client_id": None,
                    "retained_message": retained(self._broker, given["message"]),
                }
            # For sessions that are away and get it later.
            kept = kept_for(self._broker, given["message"], given["qos"])
            return {"client_id": session.client_id, "retained_message": kept}
        client: Client = given["client"]
        session = client.session
        arguments: dict[str, Any] = {"client_id": session.client_id}
        if event.name in CLIENT_EVENTS:
            arguments["client_session"] = self._broker.accounts.of(session)
        elif "message" in given:
            arguments["message"] = self._incoming(given["message"], given.get("packet_id"))
        else:
            arguments["topic"] = given["topic"]
            if "qos" in given:
                arguments["qos"] = given["qos"]
        return arguments

    def _incoming(self, message: Message, packet_id: int | None) -> Any:
        """Return the same object for both events of one message, as amqtt does."""
        if self._last is None or self._last[0] is not message:
            self._last = (message, incoming(message, packet_id))
        return self._last[1]

    async def _fire_packets(self, event: Event) -> None:
        client: Client = event.arguments["client"]
        if client.version == 5:  # amqtt's codecs read 3.1 and 3.1.1
            return
        for packet in split_packets(_bytes(event.arguments)):
            decoded = await decode_packet(packet)
            if decoded is not None:
                account = self._broker.accounts.of(client.session)
                await self._fire_event(
                    MQTTEvents(event.name), {"packet": decoded, "session": account}
                )


@asynccontextmanager
async def answer_in_time(longest: float) -> AsyncIterator[None]:
    """Give plugins `longest` (s) to answer.

    Raises:
        TimeoutError: they did not.
    """
    try:
        async with asyncio.timeout(longest):
            yield
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"no answer within {longest:g} s") from error


def _bytes(arguments: dict[str, Any]) -> bytes:
    """Return the packets that an event shows: as bytes, or as a first byte and what is behind the
    length."""
    data: bytes | None = arguments.get("data")
    if data is None:
        body: bytes = arguments["body"]
        data = bytes((arguments["first"],)) + encode_varint(len(body)) + body
    return data


def _wants(owner: Any, event: str) -> bool:
    """Whether a plugin does something on an event. amqtt's loggers answer to all of them, and
    mostly do nothing."""
    if type(owner) is EventLoggerPlugin:
        level = logging.INFO if event in CLIENT_EVENTS else logging.DEBUG
        return bool(owner.context.logger.isEnabledFor(level))
    if type(owner) is PacketLoggerPlugin:
        return bool(owner.context.logger.isEnabledFor(logging.DEBUG))
    return True


def split_packets(data: bytes) -> Iterator[bytes]:
    """Split whole packets that stand one behind the other."""
    position = 0
    while position + 2 <= len(data):
        length, body = read_length(data, position + 1)
        if body < 0:
            return
        yield data[position : body + length]
        position = body + length


async def decode_packet(data: bytes) -> Any:
    """Decode one packet of MQTT 3.1 or 3.1.1 by amqtt's codecs; None for what they cannot read."""
    reader = BufferReader(data)
    try:
        header = await MQTTFixedHeader.from_stream(reader)
        return await packet_class(header).from_stream(reader, fixed_header=header)
    except Exception:
        return None


class Handler:
    """Acts on the session of one client where amqtt has a protocol handler."""

    __slots__ = ("_broker", "client_id")

    def __init__(self, broker: PluginBroker, client_id: str) -> None:
        self._broker = broker
        self.client_id = client_id

    @property
    def session(self) -> Account | None:
        """The session that is handled."""
        return self._broker.sessions.get(self.client_id, (None, None))[0]

    async def stop(self) -> None:
        """Disconnect the client, if it is connected; return at once."""
        session = self._broker.node.sessions.get(self.client_id)
        if session is not None and disconnect(session, ReasonCode.ADMINISTRATIVE_ACTION):
            self._broker.driver.wake()

    async def handle_connection_closed(self) -> None:
        """Disconnect the client, as `stop` does: amqtt calls it when a connection has ended."""
        await self.stop()

    async def mqtt_publish(
        self,
        topic: str,
        data: bytes | bytearray,
        qos: int,
        retain: bool,
        ack_timeout: int | None = None,
    ) -> None:
        """Send a message to this client alone. `topic`, `data`, `qos`, `retain`: of the message;
        `ack_timeout` (amqtt's) is ignored: the broker waits as the specification says."""
        session = self._broker.node.sessions.get(self.client_id)
        if session is not None:
            message = Message(topic.encode(), bytes(data), qos, retain, b"", None, None)
            session.deliver(message, qos, retain, b"", None)
            self._broker.driver.wake()


# -------------------------------------------------------------------- $SYS


class Process:
    """What the $SYS plugin asks of psutil, without the walk through all memory maps that
    `memory_full_info` is."""

    def __init__(self, process: Any) -> None:
        self._process = process

    def cpu_percent(self, interval: float | None = None) -> float:
        """Return the CPU use since the last call, in percent of one core."""
        return float(self._process.cpu_percent(interval=interval or None))

    def memory_full_info(self) -> Any:
        """Return what has `rss` (bytes)."""
        return self._process.memory_info()


def feed_sys(plugin: Any, broker: PluginBroker) -> None:
    """Feed amqtt's $SYS plugin from the node's counters, so that it need not see every packet."""
    publish_topics = plugin.broadcast_dollar_sys_topics

    def broadcast() -> None:
        plugin._stats.update(sys_stats(broker.node))
        publish_topics()

    plugin.broadcast_dollar_sys_topics = broadcast
    plugin.context = SysContext(broker, plugin.context)
    plugin._current_process = Process(plugin._current_process)


def sys_stats(node: Node) -> dict[str, int]:
    """Return the node's counters under the names of amqtt's statistics. Messages are packets of any
    type."""
    counters = node.counters
    connected = sum(1 for session in node.sessions.values() if session.conn is not None)
    return {
        sys_topics.STAT_BYTES_RECEIVED: counters.bytes_received,
        sys_topics.STAT_BYTES_SENT: counters.bytes_sent,
        sys_topics.STAT_MSG_RECEIVED: counters.packets_received,
        sys_topics.STAT_MSG_SENT: counters.packets_sent,
        sys_topics.STAT_PUBLISH_RECEIVED: counters.publish_received,
        sys_topics.STAT_PUBLISH_SENT: counters.delivered,
        sys_topics.STAT_CLIENTS_CONNECTED: connected,
        sys_topics.STAT_CLIENTS_DISCONNECTED: max(0, counters.connects - connected),
    }
