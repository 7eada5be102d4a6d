"""Every private seam of amqtt that the server leans on: a new minor version that moves one fails
here, by name."""

from __future__ import annotations

import inspect
from importlib.metadata import version
from typing import Any

import amqtt.broker
import pytest
from amqtt.adapters import (
    BufferReader,
    ReaderAdapter,
    StreamReaderAdapter,
    StreamWriterAdapter,
    WriterAdapter,
)
from amqtt.contexts import (
    Action,
    BrokerConfig,
    ListenerConfig,
    ListenerType,
    default_broker_plugins,
)
from amqtt.errors import BrokerError
from amqtt.events import BrokerEvents, MQTTEvents
from amqtt.mqtt import packet_class
from amqtt.mqtt.packet import MQTTFixedHeader
from amqtt.mqtt.publish import PublishPacket
from amqtt.plugins.authentication import AnonymousAuthPlugin
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from amqtt.plugins.logging_amqtt import EventLoggerPlugin, PacketLoggerPlugin
from amqtt.plugins.manager import PluginManager
from amqtt.plugins.sys import broker as sys_topics
from amqtt.session import ApplicationMessage, IncomingApplicationMessage, Session
from websockets.protocol import Protocol
from websockets.server import ServerProtocol


def parameters(function: Any) -> list[str]:
    """Names of a function's parameters, self left out."""
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


def config(**plugins: dict[str, Any]) -> BrokerConfig:
    """A configuration that opens nothing, with plugins of amqtt by their class names."""
    paths = {
        "AnonymousAuthPlugin": "amqtt.plugins.authentication.AnonymousAuthPlugin",
        "BrokerSysPlugin": "amqtt.plugins.sys.broker.BrokerSysPlugin",
        "EventLoggerPlugin": "amqtt.plugins.logging_amqtt.EventLoggerPlugin",
        "PacketLoggerPlugin": "amqtt.plugins.logging_amqtt.PacketLoggerPlugin",
        "TopicTabooPlugin": "amqtt.plugins.topic_checking.TopicTabooPlugin",
    }
    return BrokerConfig(plugins={paths[name]: options for name, options in plugins.items()})


def test_amqtt_has_the_minor_version_that_was_checked() -> None:
    assert version("amqtt").split(".")[:2] == ["0", "12"]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (amqtt.broker.Broker.__init__, ["config", "loop", "plugin_namespace"]),
        (amqtt.broker.Broker.start, []),
        (amqtt.broker.Broker.shutdown, []),
        (amqtt.broker.Broker.external_connected, ["reader", "writer", "listener_name"]),
        (amqtt.broker.Broker._client_connected, ["listener_name", "reader", "writer"]),
        (amqtt.broker.Broker._start_listeners, []),
        (amqtt.broker.Broker._create_ssl_context, ["listener"]),
        (amqtt.broker.Broker._split_bindaddr_port, ["port_str", "default_port"]),
        (amqtt.broker.Broker._authenticate, ["session", "_"]),
        (amqtt.broker.Broker._topic_filtering, ["session", "topic", "action"]),
        (amqtt.broker.Broker._broadcast_message, ["session", "topic", "data", "force_qos"]),
        (amqtt.broker.Broker._cleanup_session, ["client_id"]),
        (amqtt.broker.Broker._delete_session, ["client_id"]),
        (amqtt.broker.Broker.internal_message_broadcast, ["topic", "data", "qos"]),
        (amqtt.broker.Broker.retain_message, ["source_session", "topic_name", "data", "qos"]),
        (amqtt.broker.Broker.add_subscription, ["subscription", "session"]),
        (amqtt.broker.Broker.create_offline_session, ["client_id"]),
        (amqtt.broker.Server.__init__, ["listener_name", "server_instance", "max_connections"]),
        (amqtt.broker.Server.close_instance, []),
        (amqtt.broker.ExternalServer.__init__, []),
        (amqtt.broker.BrokerContext.__init__, ["broker"]),
        (
            amqtt.broker.RetainedApplicationMessage.__init__,
            ["source_session", "topic", "data", "qos"],
        ),
        (PluginManager.__init__, ["namespace", "context", "loop"]),
        (PluginManager.fire_event, ["event_name", "wait", "method_kwargs"]),
        (PluginManager.map_plugin_auth, ["session"]),
        (PluginManager.map_plugin_topic, ["session", "topic", "action"]),
        (PluginManager.is_topic_filtering_enabled, []),
        (PluginManager.wait_fired_events, []),
        (PluginManager.close, []),
        (BaseAuthPlugin.authenticate, ["session"]),
        (BaseTopicPlugin.topic_filtering, ["session", "topic", "action"]),
        (ApplicationMessage.__init__, ["packet_id", "topic", "qos", "data", "retain"]),
        (IncomingApplicationMessage.__init__, ["packet_id", "topic", "qos", "data", "retain"]),
        (ApplicationMessage.build_publish_packet, ["dup"]),
        (sys_topics.BrokerSysPlugin.broadcast_dollar_sys_topics, []),
        (ReaderAdapter.read, ["n"]),
        (WriterAdapter.write, ["data"]),
        (WriterAdapter.drain, []),
        (WriterAdapter.get_peer_info, []),
        (WriterAdapter.get_ssl_info, []),
        (WriterAdapter.close, []),
        (packet_class, ["fixed_header"]),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_amqtts_functions_have_the_expected_parameters(function: Any, expected: list[str]) -> None:
    assert parameters(function) == expected


async def test_amqtts_broker_keeps_sessions_and_messages_in_these_tables() -> None:
    broker = amqtt.broker.Broker(config(AnonymousAuthPlugin={}))
    assert broker._sessions == {}
    assert broker._subscriptions == {}
    assert broker._retained_messages == {}
    assert broker._servers == {}
    assert broker.sessions is broker._sessions
    assert broker.subscriptions is broker._subscriptions
    assert broker.retained_messages is broker._retained_messages
    assert broker.listeners_config is broker.config.listeners
    assert isinstance(broker.plugins_manager, PluginManager)
    assert broker._loop.is_running()
    await broker.plugins_manager.close()


async def test_amqtts_broker_has_these_states() -> None:
    states = amqtt.broker.Broker(config(AnonymousAuthPlugin={})).transitions
    assert states.state == "new"
    for trigger, state in (
        ("start", "starting"),
        ("starting_success", "started"),
        ("shutdown", "stopping"),
        ("stopping_success", "stopped"),
        ("start", "starting"),
        ("starting_fail", "not_started"),
    ):
        getattr(states, trigger)()
        assert states.state == state
    assert not states.is_started()


async def test_the_context_looks_at_the_broker() -> None:
    broker = amqtt.broker.Broker(config(AnonymousAuthPlugin={}))
    context = amqtt.broker.BrokerContext(broker)
    assert context._broker_instance is broker
    assert context.subscriptions is broker.subscriptions
    assert context.retained_messages is broker.retained_messages
    assert list(context.sessions) == []
    assert context.get_session("nobody") is None
    await context.add_subscription("away", None, None)
    assert list(broker._sessions) == ["away"]
    assert parameters(context.broadcast_message) == ["topic", "data", "qos"]
    assert parameters(context.retain_message) == ["topic_name", "data", "qos"]
    assert parameters(context.add_subscription) == ["client_id", "topic", "qos"]


async def test_the_plugin_manager_keeps_plugins_by_kind() -> None:
    manager = amqtt.broker.Broker(
        config(AnonymousAuthPlugin={}, TopicTabooPlugin={}, EventLoggerPlugin={})
    ).plugins_manager
    assert [type(plugin).__name__ for plugin in manager.plugins] == [
        "AnonymousAuthPlugin",
        "TopicTabooPlugin",
        "EventLoggerPlugin",
    ]
    assert [type(plugin) for plugin in manager._auth_plugins] == [AnonymousAuthPlugin]
    assert [type(plugin).__name__ for plugin in manager._topic_plugins] == ["TopicTabooPlugin"]
    assert manager.is_topic_filtering_enabled() is True
    assert manager._fired_events == []
    assert set(manager._event_plugin_callbacks) == {*BrokerEvents, *MQTTEvents}
    (call,) = manager._event_plugin_callbacks["broker_client_connected"]
    # EventLoggerPlugin answers every name with a partial.
    assert call.func.__self__ is manager.plugins[2]


async def test_the_plugin_manager_calls_what_stands_in_its_table() -> None:
    manager = amqtt.broker.Broker(config(AnonymousAuthPlugin={})).plugins_manager
    told: list[dict[str, Any]] = []

    class Callback:
        async def __call__(self, **arguments: Any) -> None:
            told.append(arguments)

    manager._event_plugin_callbacks[BrokerEvents.CLIENT_CONNECTED] = [Callback()]
    await manager.fire_event(BrokerEvents.CLIENT_CONNECTED, client_id="c")
    assert told == []  # scheduled, in order, and not waited for
    assert len(manager._fired_events) == 1
    await manager.wait_fired_events()
    assert told == [{"client_id": "c"}]
    assert manager._fired_events == []


async def test_a_plugin_owns_its_callbacks() -> None:
    manager = amqtt.broker.Broker(config(BrokerSysPlugin={}, PacketLoggerPlugin={})).plugins_manager
    owners = [call.__self__ for call in manager._event_plugin_callbacks[MQTTEvents.PACKET_SENT]]
    assert [type(owner) for owner in owners] == [sys_topics.BrokerSysPlugin, PacketLoggerPlugin]
    assert owners[1].context.logger.name == "amqtt.broker.plugins.PacketLoggerPlugin"


@pytest.mark.parametrize("allow", [True, False])
async def test_the_anonymous_plugin_knows_what_it_allows(allow: bool) -> None:
    manager = amqtt.broker.Broker(
        config(AnonymousAuthPlugin={"allow_anonymous": allow})
    ).plugins_manager
    assert manager._auth_plugins[0]._allow_anonymous is allow


async def test_the_sys_plugin_counts_in_one_table() -> None:
    plugin = amqtt.broker.Broker(config(BrokerSysPlugin={})).plugins_manager.plugins[0]
    assert plugin._stats == {}
    assert callable(plugin._current_process.memory_full_info)
    assert callable(plugin._current_process.cpu_percent)
    assert isinstance(plugin.context, amqtt.broker.BrokerContext)
    await plugin.on_broker_pre_start()
    counted = {getattr(sys_topics, name) for name in vars(sys_topics) if name.startswith("STAT_")}
    assert counted - set(plugin._stats) == {sys_topics.STAT_START_TIME}
    assert {
        sys_topics.STAT_BYTES_RECEIVED,
        sys_topics.STAT_BYTES_SENT,
        sys_topics.STAT_MSG_RECEIVED,
        sys_topics.STAT_MSG_SENT,
        sys_topics.STAT_PUBLISH_RECEIVED,
        sys_topics.STAT_PUBLISH_SENT,
        sys_topics.STAT_CLIENTS_CONNECTED,
        sys_topics.STAT_CLIENTS_DISCONNECTED,
    } <= counted


def test_amqtt_has_these_default_plugins() -> None:
    assert {path.rpartition(".")[2] for path in default_broker_plugins()} == {
        EventLoggerPlugin.__name__,
        PacketLoggerPlugin.__name__,
        AnonymousAuthPlugin.__name__,
        sys_topics.BrokerSysPlugin.__name__,
    }
    assert BrokerConfig().plugins == default_broker_plugins() == BrokerConfig.from_dict({}).plugins


def test_amqtts_configuration_has_these_defaults() -> None:
    read = BrokerConfig.from_dict({"listeners": {"default": {"type": "ws", "bind": "1884"}}})
    assert read.timeout_disconnect_delay == 0
    assert read.session_expiry_interval is None
    listener = read.listeners["default"]
    assert (listener.type, listener.bind, listener.max_connections, listener.ssl) == (
        ListenerType.WS,
        "1884",
        0,
        False,
    )
    assert (listener.cafile, listener.capath, listener.certfile, listener.keyfile) == (
        None,
        None,
        None,
        None,
    )
    assert "bind" in listener
    assert "bind" not in ListenerConfig(bind=None)
    assert set(ListenerType) == {ListenerType.TCP, ListenerType.WS, ListenerType.EXTERNAL}
    assert amqtt.broker.DEFAULT_PORTS == {"tcp": 1883, "ws": 8883}


@pytest.mark.parametrize(
    ("bind", "expected"),
    [
        ("", (None, 99)),
        ("1884", (None, 1884)),
        (":1884", (None, 1884)),
        ("0.0.0.0:1884", ("0.0.0.0", 1884)),
        ("localhost", ("localhost", 99)),
        ("[::1]:1884", ("[::1]", 1884)),
        ("[::]", ("[::]", 99)),
    ],
)
def test_amqtt_reads_a_bind_value_like_this(bind: str, expected: tuple[str | None, int]) -> None:
    assert amqtt.broker.Broker._split_bindaddr_port(bind, 99) == expected


def test_amqtts_events_and_actions_have_these_names() -> None:
    assert {str(event) for event in BrokerEvents} == {
        "broker_pre_start",
        "broker_post_start",
        "broker_pre_shutdown",
        "broker_post_shutdown",
        "broker_client_connected",
        "broker_client_disconnected",
        "broker_client_subscribed",
        "broker_client_unsubscribed",
        "broker_retained_message",
        "broker_message_received",
        "broker_message_broadcast",
    }
    assert {str(event) for event in MQTTEvents} == {"mqtt_packet_sent", "mqtt_packet_received"}
    assert {str(action) for action in Action} == {"subscribe", "publish", "receive"}


def test_a_session_has_what_plugins_look_at() -> None:
    session = Session()
    names = {
        "remote_address",
        "remote_port",
        "client_id",
        "clean_session",
        "keep_alive",
        "username",
        "password",
        "ssl_object",
    }
    names |= {"will_flag", "will_message", "will_qos", "will_retain", "will_topic"}
    assert names | {"attributes", "is_anonymous", "retained_messages"} <= set(vars(session))
    assert session.attributes == {}
    assert session.retained_messages.empty()
    assert session.transitions.state == "new"
    session.transitions.connect()
    assert session.transitions.is_connected()
    session.transitions.disconnect()
    assert session.transitions.state == "disconnected"
    offline = Session()
    offline.transitions.disconnect()
    assert offline.transitions.state == "disconnected"
    offline.client_id = session.client_id = "same"
    assert offline == session


async def test_codecs_read_a_packet_from_bytes() -> None:
    reader = BufferReader(b"\x33\x0b\x00\x03a/b\x00\x07data")
    header = await MQTTFixedHeader.from_stream(reader)
    packet = await packet_class(header).from_stream(reader, fixed_header=header)
    assert isinstance(packet, PublishPacket)
    assert (packet.topic_name, packet.packet_id, packet.data, packet.qos, packet.retain_flag) == (
        "a/b",
        7,
        b"data",
        1,
        True,
    )


def test_an_incoming_message_builds_its_packet() -> None:
    packet = IncomingApplicationMessage(7, "a/b", 1, b"data", True).build_publish_packet()
    assert packet.to_bytes() == b"\x33\x0b\x00\x03a/b\x00\x07data"


def test_adapters_are_what_external_listeners_hand_over() -> None:
    assert issubclass(StreamReaderAdapter, ReaderAdapter)
    assert issubclass(StreamWriterAdapter, WriterAdapter)


def test_a_broker_error_is_an_exception_with_a_text() -> None:
    assert str(BrokerError("one line")) == "one line"


def test_websockets_reads_its_maximum_size_for_each_frame() -> None:
    protocol = ServerProtocol(max_size=5)
    assert protocol.max_size == 5
    protocol.max_size = 6  # looked at for each frame: raised once a client was let in
    assert "max_size = self.max_size" in inspect.getsource(Protocol.parse)
