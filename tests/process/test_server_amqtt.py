"""The server as amqtt's broker: its listeners, plugins, context and states, over real sockets on
the loopback address."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock, patch

import pytest
from amqtt import broker as amqtt_broker
from amqtt.adapters import StreamReaderAdapter, StreamWriterAdapter
from amqtt.broker import BrokerContext, RetainedApplicationMessage
from amqtt.client import MQTTClient
from amqtt.contexts import Action, BaseContext, BrokerConfig, ListenerConfig, ListenerType
from amqtt.errors import BrokerError, ConnectError, PluginImportError
from amqtt.events import BrokerEvents, MQTTEvents
from amqtt.plugins.base import BaseAuthPlugin, BasePlugin, BaseTopicPlugin
from amqtt.session import Session
from pwdlib import PasswordHash
from pwdlib.hashers.argon2 import Argon2Hasher

from mqttree.broker.cluster.state_view import federation_state
from mqttree.broker.compat import broker as broker_server
from mqttree.broker.compat.broker import Broker
from mqttree.broker.config.options import FederationSettings
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from mqttree.broker.wire.properties import Property
from tests.kit.raw_client import RawStreams
from tests.kit.waiting import PATIENCE, eventually
from tests.process.certificates import self_signed

ANONYMOUS = "amqtt.plugins.authentication.AnonymousAuthPlugin"
SYS = "amqtt.plugins.sys.broker.BrokerSysPlugin"
HERE = __name__


# -------------------------------------------------------------------- helpers


@contextlib.asynccontextmanager
async def raw(
    port: int, client_id: str = "c", version: int = 4, **options: Any
) -> AsyncIterator[RawStreams]:
    """A connected raw client; `connack` is its CONNACK."""
    connect = {
        name: options.pop(name)
        for name in ("username", "password", "will", "keep_alive")
        if name in options
    }
    clean = options.pop("clean", True)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, **options)
    client = RawStreams(reader, writer, version)
    keep_alive = connect.pop("keep_alive", 60)
    client.send(Connect("MQTT", version, clean, keep_alive, client_id, **connect))
    try:
        connack = await client.receive()
        assert isinstance(connack, Connack)
        client.connack = connack  # type: ignore[attr-defined]
        yield client
    finally:
        writer.close()


async def subscribe(client: RawStreams, *filters: str, qos: int = 0) -> list[int]:
    client.send(Subscribe(1, [SubscriptionRequest(name, qos) for name in filters]))
    suback = await client.receive()
    assert isinstance(suback, Suback)
    return list(suback.codes)


def listener(**options: Any) -> dict[str, Any]:
    return {"type": "tcp", "bind": "127.0.0.1:0"} | options


def secure(folder: Path) -> dict[str, Any]:
    """What a listener needs for TLS."""
    certificate = self_signed(folder)
    return {"ssl": True, "certfile": str(certificate), "keyfile": str(folder / "key.pem")}


@contextlib.asynccontextmanager
async def running(
    plugins: dict[str, Any] | None = None,
    listeners: dict[str, Any] | None = None,
    *,
    limits: Limits = DEFAULTS,
    **config: Any,
) -> AsyncIterator[Broker]:
    """A started broker; without `plugins` the default ones."""
    config["listeners"] = listeners or {"default": listener()}
    if plugins is not None:
        config["plugins"] = plugins
    broker = Broker(config, limits=limits)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.shutdown()


def mqtt_client(client_id: str | None = None) -> MQTTClient:
    return MQTTClient(client_id=client_id, config={"auto_reconnect": False})


# -------------------------------------------------------------------- plugins


class Recorder(BasePlugin[BrokerContext]):
    """Notes the events that it gets."""

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context)
        self.told: list[tuple[str, dict[str, Any]]] = []

    def names(self) -> list[str]:
        return [name for name, _ in self.told]

    def of(self, name: str) -> list[dict[str, Any]]:
        return [arguments for told, arguments in self.told if told == name]


def _recording(name: str) -> Any:
    async def told(self: Recorder, **arguments: Any) -> None:
        self.told.append((name, arguments))

    return told


for _event in [*BrokerEvents, *MQTTEvents]:
    setattr(Recorder, f"on_{_event}", _recording(str(_event)))


class Faulty(BasePlugin[BrokerContext]):
    """Raises whenever a message comes."""

    async def on_broker_message_received(self, **arguments: Any) -> None:
        raise ValueError("broken\nin two lines")


class Slow(BasePlugin[BrokerContext]):
    """Takes until it is let go."""

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context)
        self.go = asyncio.Event()

    async def on_broker_message_received(self, **arguments: Any) -> None:
        await self.go.wait()


class Auth(BaseAuthPlugin):
    """Knows one user; has no opinion on those without a name, and breaks on one."""

    async def authenticate(self, *, session: Session) -> bool | None:
        await asyncio.sleep(0)
        if session.username is None:
            return None
        if session.username == "breaks":
            raise RuntimeError("no database")
        session.attributes["seen"] = session.password
        return bool(session.username == "user" and session.password == "secret")


class Topics(BaseTopicPlugin):
    """Forbids by the topic's name; takes a different time for each."""

    async def topic_filtering(
        self,
        *,
        session: Session | None = None,
        topic: str | None = None,
        action: Action | None = None,
    ) -> bool | None:
        assert session is not None
        assert topic is not None
        for _ in range(hash(topic) % 5):
            await asyncio.sleep(0)
        if "breaks" in topic:
            raise RuntimeError("no database")
        return f"no-{action}" not in topic and not (
            action == Action.RECEIVE and f"not-{session.client_id}" in topic
        )


class Restorer(BasePlugin[BrokerContext]):
    """Brings back sessions and messages at the start, as amqtt's persistence plugin does."""

    async def on_broker_post_start(self) -> None:
        assert len(self.context.subscriptions) == 0
        assert not list(self.context.sessions)
        await self.context.add_subscription("away", None, None)
        await self.context.add_subscription("away", "a/#", 1)
        session = self.context.get_session("away")
        assert session is not None
        session.clean_session = False
        await session.retained_messages.put(
            RetainedApplicationMessage(None, "a/kept", b"missed", 1)
        )
        self.context.retained_messages["r/t"] = RetainedApplicationMessage(
            None, "r/t", b"retained", 1
        )


def plugin(broker: Broker, kind: type) -> Any:
    return broker.plugins_manager.get_plugin(kind.__name__)


def own(kind: type) -> str:
    return f"{HERE}.{kind.__name__}"


# -------------------------------------------------------------------- states


async def test_a_broker_goes_through_amqtts_states() -> None:
    broker = Broker(
        {"listeners": {"default": listener()}, "plugins": {ANONYMOUS: {}, own(Recorder): {}}}
    )
    recorder = plugin(broker, Recorder)
    assert broker.transitions.is_new()
    await broker.shutdown()  # nothing to do
    for _ in range(2):
        recorder.told.clear()
        await broker.start()
        assert broker.transitions.is_started()
        assert broker._sessions == {}
        assert set(broker._servers) == {"default"}
        with pytest.raises(BrokerError, match="can't be started"):
            await broker.start()
        async with raw(broker.ports["default"]):
            assert list(broker._sessions) == ["c"]
            await broker.shutdown()
        assert broker.transitions.is_stopped()
        assert broker._sessions == {}
        names = recorder.names()
        assert names[:2] == ["broker_pre_start", "broker_post_start"]
        assert names[-1] == "broker_post_shutdown"
        assert names.index("broker_pre_shutdown") < names.index("broker_client_disconnected")
        await broker.shutdown()


async def test_a_port_in_use_is_reported_in_one_line() -> None:
    async with running() as first:
        port = first.ports["default"]
        second = Broker(
            {"listeners": {"default": listener(), "busy": listener(bind=f"127.0.0.1:{port}")}}
        )
        with pytest.raises(BrokerError) as error:
            await second.start()
        assert (
            str(error.value)
            == f"listener 'busy': cannot listen on 127.0.0.1:{port}: address in use"
        )
        assert second.transitions.is_not_started()


@pytest.mark.parametrize(
    ("bind", "line"),
    [
        ("127.0.0.1:no", "listener 'default': cannot read bind value '127.0.0.1:no'"),
        ("127.0.0.1:99999", "listener 'default': cannot read bind value '127.0.0.1:99999'"),
        (
            "192.0.2.1:0",
            "listener 'default': cannot listen on 192.0.2.1:0: no such address on this machine",
        ),
        ("name.invalid:0", "listener 'default': cannot listen on name.invalid:0"),
    ],
)
async def test_an_address_that_cannot_be_used_is_reported_in_one_line(bind: str, line: str) -> None:
    broker = Broker({"listeners": {"default": listener(bind=bind)}})
    with pytest.raises(BrokerError) as error:
        await broker.start()
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


async def test_a_certificate_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    key = tmp_path / "key.pem"
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    for files in ((garbage, key), (certificate, garbage)):
        options = listener(ssl=True, certfile=str(files[0]), keyfile=str(files[1]))
        broker = Broker({"listeners": {"default": listener(), "secure": options}})
        with pytest.raises(
            BrokerError, match=r"^listener 'secure': cannot use .*cert.pem|garbage.pem"
        ) as error:
            await broker.start()
        assert "\n" not in str(error.value)
    broker = Broker({"listeners": {"default": listener(ssl=True)}})
    with pytest.raises(
        BrokerError, match=r"^listener 'default': ssl needs 'certfile' and 'keyfile'$"
    ):
        await broker.start()


async def test_configurations_of_every_form_are_taken() -> None:
    assert Broker().config.listeners["default"].bind == "0.0.0.0:1883"
    given = {"listeners": {"default": listener()}, "federation": {"cluster": "x"}, "max-qos": 1}
    broker = Broker(given)
    assert "federation" in given  # not changed
    assert broker.node.config.max_qos == 1
    config = BrokerConfig(
        listeners={"default": ListenerConfig(bind="127.0.0.1:0")}, plugins={ANONYMOUS: {}}
    )
    assert Broker(config).config is config
    with pytest.raises(ValueError, match="max-qos"):
        Broker({"max-qos": 3})
    with pytest.raises(PluginImportError):
        Broker({"plugins": {"no.such.Plugin": {}}})


async def test_a_listener_may_be_unbound_or_ipv6() -> None:
    listeners = {"default": listener(bind=None), "six": listener(bind="[::1]:0")}
    async with running(listeners=listeners) as broker:
        assert list(broker.ports) == ["six"]
        reader, writer = await asyncio.open_connection("::1", broker.ports["six"])
        client = RawStreams(reader, writer)
        client.send(Connect("MQTT", 4, True, 60, "six"))
        await client.receive()
        assert broker.sessions["six"][0].remote_address == "::1"
        writer.close()


# -------------------------------------------------------------------- listeners


async def exchange(broker: Broker, client: MQTTClient, uri: str, **tls: Any) -> None:
    """Connect with amqtt's own client, send messages of every QoS to oneself, one of them large."""
    await client.connect(uri, **tls)
    assert await client.subscribe([("a/+", 2)]) == [2]
    for qos, data in enumerate((b"zero", bytearray(b"x" * 200_000), b"two")):
        await client.publish(f"a/{qos}", data, qos)
        message = await client.deliver_message(timeout_duration=PATIENCE)
        assert message is not None
        assert (message.topic, message.data, message.qos) == (f"a/{qos}", data, qos)
    await client.unsubscribe(["a/+"])
    await client.disconnect()
    await eventually(lambda: not broker.sessions, "the session is gone")


@pytest.mark.statement("MQTT-4.2.0-1")
async def test_amqtts_client_is_served_on_every_listener(tmp_path: Path) -> None:
    tls = secure(tmp_path)
    listeners = {
        "default": listener(),
        "tls": listener(**tls),
        "ws": listener(type="ws"),
        "wss": listener(type="ws", **tls),
    }
    async with running(listeners=listeners) as broker:
        for name, scheme in (("default", "mqtt"), ("tls", "mqtts"), ("ws", "ws"), ("wss", "wss")):
            uri = f"{scheme}://localhost:{broker.ports[name]}"
            await exchange(broker, mqtt_client(), uri, cafile=tls["certfile"])
            await eventually(
                lambda name=name: broker._servers[name].conn_count == 0,
                "the connection is counted off",
            )


async def test_connections_are_counted_in_amqtts_server() -> None:
    async with running() as broker:
        server = broker._servers["default"]
        async with raw(broker.ports["default"], "a"), raw(broker.ports["default"], "b"):
            assert server.conn_count == 2
        await eventually(lambda: server.conn_count == 0, "both are gone")


async def test_external_listeners_hand_over_connections() -> None:
    config = BrokerConfig(
        listeners={"default": ListenerConfig(type=ListenerType.EXTERNAL)}, plugins={ANONYMOUS: {}}
    )
    broker = Broker(config)
    await broker.start()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await broker.external_connected(
            StreamReaderAdapter(reader), StreamWriterAdapter(writer), "default"
        )

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await exchange(broker, mqtt_client(), f"mqtt://127.0.0.1:{port}")
    async with raw(port, "garbage") as client:
        client.writer.write(b"\xff\xff\xff\xff\xff")
        assert await client.closed()
    async with raw(port, "leaves", will=Will("w", b"gone")) as watcher:
        assert await subscribe(watcher, "#") == [0]
        async with raw(port, "dies", will=Will("w", b"gone")):
            pass
        will = await watcher.receive()
        assert isinstance(will, Publish)
        assert (will.topic, will.payload) == ("w", b"gone")
    with pytest.raises(BrokerError, match="Invalid listener name 'nobody'"):
        await broker.external_connected(MagicMock(), MagicMock(), "nobody")
    await broker.shutdown()
    server.close()
    assert not broker.node.connections


# -------------------------------------------------------------------- authentication


async def codes(broker: Broker, *users: tuple[str | None, bytes | None]) -> list[int]:
    found = []
    for username, password in users:
        async with raw(
            broker.ports["default"], "c", username=username, password=password
        ) as client:
            found.append(client.connack.code)  # type: ignore[attr-defined]
    return found


async def test_authentication_plugins_all_have_to_agree(caplog: pytest.LogCaptureFixture) -> None:
    async with running({own(Auth): {}}) as broker:
        assert broker.node.hooks.authenticate
        asked = (
            ("user", b"secret"),
            ("user", b"wrong"),
            ("breaks", b"x"),
            (None, None),
            ("user", b"\xff"),
        )
        assert await codes(broker, *asked) == [0, 4, 4, 5, 4]
        assert broker.node.counters.plugin_errors == 1
        lines = [record.message for record in caplog.records if "plugin failed" in record.message]
        assert lines == ["plugin failed in Authenticate: RuntimeError: no database"]
        assert not broker.accounts._connecting
        async with raw(broker.ports["default"], "c", username="user", password=b"secret"):
            assert broker.sessions["c"][0].attributes == {"seen": "secret"}
    async with running({own(Auth): {}, ANONYMOUS: {"allow_anonymous": False}}) as broker:
        assert await codes(broker, ("user", b"secret"), ("other", b"x"), (None, None)) == [0, 4, 5]


async def test_without_authentication_plugins_no_client_gets_in() -> None:
    async with running({own(Recorder): {}}) as broker:
        assert await codes(broker, (None, None), ("user", b"secret")) == [5, 4]
        with pytest.raises(ConnectError):
            await mqtt_client().connect(f"mqtt://127.0.0.1:{broker.ports['default']}")
        assert broker._sessions == {}


async def test_the_anonymous_plugin_requires_a_user_name_if_configured() -> None:
    async with running({ANONYMOUS: {"allow_anonymous": False}}) as broker:
        assert await codes(broker, (None, None), ("anybody", None)) == [5, 0]
    async with running({ANONYMOUS: {"allow_anonymous": True}}) as broker:
        assert not broker.node.hooks.authenticate
        assert await codes(broker, (None, None), ("anybody", None)) == [0, 0]


async def test_a_client_that_leaves_during_authentication_leaves_nothing() -> None:
    async with running({own(Auth): {}}) as broker:
        release = asyncio.Event()

        async def think(*_: object) -> bool:
            await release.wait()
            return True

        with patch.object(broker, "_authenticate", think):
            _, writer = await asyncio.open_connection("127.0.0.1", broker.ports["default"])
            writer.write(encode_packet(Connect("MQTT", 4, True, 60, "gone"), 4))
            await eventually(lambda: broker.accounts._connecting, "the plugin is asked")
            writer.close()
            await eventually(lambda: not broker.node.connections, "the client is gone")
            release.set()
            await eventually(lambda: not broker._tasks, "the plugin has answered")
        assert not broker.accounts._connecting
        assert broker._sessions == {}


# -------------------------------------------------------------------- topics


async def test_topic_plugins_decide_on_each_action() -> None:
    async with running({ANONYMOUS: {}, own(Topics): {}}) as broker:
        port = broker.ports["default"]
        async with raw(port, "a", version=5) as a, raw(port, "b") as b:
            assert await subscribe(b, "t/#", "t/no-subscribe") == [0, 0x80]
            # One that raises has refused the packet.
            assert await subscribe(b, "t/breaks", "t/fine") == [0x80, 0x80]
            assert list(broker.subscriptions) == ["t/#"]
            a.send(
                Publish("t/no-publish", b"1", 1, packet_id=1),
                Publish("t/not-b", b"2", 1, packet_id=2),
            )
            a.send(
                Publish("t/breaks", b"3", 1, packet_id=3), Publish("t/fine", b"4", 1, packet_id=4)
            )
            answers = [await a.receive() for _ in range(4)]
            decided = [(p.packet_id, p.reason >= 0x80) for p in answers if isinstance(p, Puback)]
            assert decided == [(1, True), (2, False), (3, True), (4, False)]
            got = await b.receive()
            assert isinstance(got, Publish)
            assert got.topic == "t/fine"


# -------------------------------------------------------------------- events


async def test_plugins_get_every_event_with_its_arguments() -> None:
    async with running({ANONYMOUS: {}, own(Recorder): {}}) as broker:
        recorder: Recorder = plugin(broker, Recorder)
        client = mqtt_client("one")
        await client.connect(f"mqtt://127.0.0.1:{broker.ports['default']}")
        await client.subscribe([("t/#", 1), ("/" * 201, 0)])
        await client.publish("t/1", b"data", 1, retain=True)
        message = await client.deliver_message(timeout_duration=PATIENCE)
        assert message is not None
        await client.publish("t/1", b"", 0, retain=True)
        await client.deliver_message(timeout_duration=PATIENCE)
        await client.unsubscribe(["t/#"])
        await client.disconnect()
        await eventually(lambda: recorder.of("broker_client_disconnected"), "the end is told")
        await broker.shutdown()
        assert set(recorder.names()) == {*map(str, BrokerEvents), *map(str, MQTTEvents)}
        (connected,) = recorder.of("broker_client_connected")
        assert connected["client_id"] == "one"
        assert isinstance(connected["client_session"], Session)
        assert (
            connected["client_session"].remote_address,
            connected["client_session"].is_anonymous,
        ) == ("127.0.0.1", True)
        assert (
            recorder.of("broker_client_disconnected")[0]["client_session"]
            is connected["client_session"]
        )
        assert connected["client_session"].transitions.state == "disconnected"
        assert recorder.of("broker_client_subscribed") == [
            {"client_id": "one", "topic": "t/#", "qos": 1}
        ]
        assert recorder.of("broker_client_unsubscribed") == [{"client_id": "one", "topic": "t/#"}]
        received, cleared = recorder.of("broker_message_received")
        assert received["client_id"] == "one"
        found = received["message"]
        assert (found.topic, found.data, found.qos, found.retain) == ("t/1", b"data", 1, True)
        assert found.packet_id > 0
        assert found.publish_packet.retain_flag
        assert cleared["message"].packet_id is None
        assert recorder.of("broker_message_broadcast")[0]["message"] is found
        kept, forgotten = recorder.of("broker_retained_message")
        assert kept["client_id"] is None
        found = kept["retained_message"]
        assert (found.topic, found.data, found.qos) == ("t/1", b"data", 1)
        assert forgotten["retained_message"].data == b""
        into = [type(a["packet"]).__name__ for a in recorder.of("mqtt_packet_received")]
        assert into[:3] == ["ConnectPacket", "SubscribePacket", "PublishPacket"]
        assert into[-1] == "DisconnectPacket"
        out = [type(a["packet"]).__name__ for a in recorder.of("mqtt_packet_sent")]
        assert out[:2] == ["ConnackPacket", "SubackPacket"]
        assert {"PublishPacket", "PubackPacket", "UnsubackPacket"} <= set(out)
        assert all(a["session"].client_id == "one" for a in recorder.of("mqtt_packet_sent"))


async def test_packets_that_amqtt_cannot_read_cause_no_event() -> None:
    async with running({ANONYMOUS: {}, own(Recorder): {}}) as broker:
        recorder: Recorder = plugin(broker, Recorder)
        async with raw(broker.ports["default"], "five", version=5) as client:
            client.send(Publish("t", b"x", 1, packet_id=1))
            assert isinstance(await client.receive(), Puback)
        await eventually(lambda: recorder.of("broker_client_disconnected"), "the end is told")
        assert recorder.of("broker_message_received")[0]["message"].data == b"x"
        assert not recorder.of("mqtt_packet_received")
        assert broker.node.counters.plugin_errors == 0


async def test_an_event_plugin_that_raises_disturbs_no_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running({ANONYMOUS: {}, own(Faulty): {}, own(Recorder): {}}) as broker:
        async with raw(broker.ports["default"]) as client:
            client.send(Publish("t", b"x", 1, packet_id=1))
            assert isinstance(await client.receive(), Puback)
            recorder: Recorder = plugin(broker, Recorder)
            await eventually(
                lambda: recorder.of("broker_message_received"), "the other plugin is told"
            )
            await eventually(lambda: broker.node.counters.plugin_errors == 1, "it is counted")
        lines = [
            record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR
        ]
        assert lines == [
            "plugin failed in Faulty.on_broker_message_received: ValueError: broken in two lines"
        ]


async def test_plugins_that_are_behind_hold_the_publishers_back() -> None:
    async with running({ANONYMOUS: {}, own(Slow): {}}, limits=Limits(plugin_calls=10)) as broker:
        slow: Slow = plugin(broker, Slow)
        async with raw(broker.ports["default"]) as client:
            conn = broker.node.sessions["c"].conn
            assert conn is not None
            sent = 0
            while not conn.held:
                sent += 1
                client.send(Publish("t", b"x", 1, packet_id=sent))
                assert isinstance(await client.receive(), Puback)
            assert sent >= 10
            client.send(Publish("t", b"x", 1, packet_id=sent + 1))
            slow.go.set()
            assert isinstance(await client.receive(), Puback)
            assert not conn.held


async def test_only_plugins_that_log_packets_turn_the_fast_path_off() -> None:
    loggers = {
        f"amqtt.plugins.logging_amqtt.{name}": {}
        for name in ("EventLoggerPlugin", "PacketLoggerPlugin")
    }
    for plugins in (None, {ANONYMOUS: {}, SYS: {}}, {ANONYMOUS: {}} | loggers):
        logging.getLogger("amqtt").setLevel(logging.WARNING)
        async with running(plugins) as broker:
            assert broker.node.hooks.events == set()
            assert broker.node.fast
            assert not broker.node.hooks.packets
            async with raw(broker.ports["default"]) as client:
                client.send(Publish("t", b"x", 1, packet_id=1))
                assert isinstance(await client.receive(), Puback)
                assert broker.node.sessions["c"].account is None
    try:
        logging.getLogger("amqtt").setLevel(logging.INFO)
        async with running({ANONYMOUS: {}} | loggers) as broker:
            assert broker.node.hooks.events == {
                "broker_client_connected",
                "broker_client_disconnected",
            }
            assert broker.node.fast
        logging.getLogger("amqtt").setLevel(logging.DEBUG)
        async with running({ANONYMOUS: {}} | loggers) as broker:
            assert broker.node.hooks.packets
            assert not broker.node.fast
    finally:
        logging.getLogger("amqtt").setLevel(logging.NOTSET)


async def test_a_mocked_plugin_manager_gets_every_event() -> None:
    with patch("amqtt.broker.PluginManager") as made:
        manager = made.return_value
        manager.fire_event = AsyncMock()
        manager.wait_fired_events = AsyncMock()
        manager.close = AsyncMock()
        manager.is_topic_filtering_enabled.return_value = False
        manager.map_plugin_auth = AsyncMock(return_value={BasePlugin(BaseContext()): True})
        async with running() as broker:
            client = mqtt_client("one")
            await client.connect(f"mqtt://127.0.0.1:{broker.ports['default']}")
            await client.subscribe([("/topic", 0)])
            assert [(s.client_id, qos) for s, qos in broker._subscriptions["/topic"]] == [
                ("one", 0)
            ]
            assert broker._subscriptions["/topic"][0][0] == client.session
            await client.unsubscribe(["/topic"])
            assert broker._subscriptions["/topic"] == []
            await client.publish("/topic", b"data", 1, retain=True)
            await client.disconnect()
            await eventually(lambda: not broker._sessions, "the client is gone")
            await eventually(lambda: not broker._tasks, "all is told")
            assert broker._retained_messages["/topic"].source_session == client.session
        events = [call.args[0] for call in manager.fire_event.call_args_list]
        assert set(events) == set(BrokerEvents)


# -------------------------------------------------------------------- context


async def test_the_context_acts_on_the_node() -> None:
    async with running({ANONYMOUS: {}, own(Recorder): {}}) as broker:
        context: BrokerContext = plugin(broker, Recorder).context
        async with raw(
            broker.ports["default"], "one", username="user", will=Will("w", b"x", 1, True)
        ) as client:
            assert await subscribe(client, "t/#", "$SYS/#", qos=1) == [1, 1]
            (session,) = context.sessions
            assert context.get_session("one") is session
            assert context.get_session("two") is None
            assert (session.username, session.will_topic, session.will_qos, session.keep_alive) == (
                "user",
                "w",
                1,
                60,
            )
            assert session.transitions.is_connected()
            assert context.subscriptions["t/#"] == [(session, 1)]
            assert len(context.subscriptions) == 2
            await context.broadcast_message("t/1", b"hello")
            assert await client.receive() == Publish("t/1", b"hello", 1, packet_id=1)
            await context.broadcast_message("t/1", b"less", 0)
            assert await client.receive() == Publish("t/1", b"less")
            await context.broadcast_message("$SYS/broker/x", b"here")
            assert await client.receive() == Publish("$SYS/broker/x", b"here")
            await context.retain_message("r/1", b"kept", 1)
            assert context.retained_messages["r/1"].data == b"kept"
            assert context.retained_messages["r/1"].source_session is None
            assert await subscribe(client, "r/#", qos=1) == [1]
            assert await client.receive() == Publish("r/1", b"kept", 1, True, packet_id=2)
            await context.retain_message("r/1", b"")
            await context.retain_message("r/never", b"")
            assert context.retained_messages == {}
            await context.add_subscription("one", "more/+", 2)
            assert [qos for _, qos in context.subscriptions["more/+"]] == [2]
            assert await broker.add_subscription(("no#", 0), session) == 0x80
            await broker.sessions["one"][1].mqtt_publish("only/you", b"x", 0, False)
            assert await client.receive() == Publish("only/you", b"x")
            await broker._cleanup_session("one")
            assert await client.closed()
        assert broker._sessions == {}
        assert list(broker.subscriptions) == []


async def test_sessions_and_messages_that_plugins_restore_are_there() -> None:
    async with running({ANONYMOUS: {}, own(Restorer): {}}) as broker:
        port = broker.ports["default"]
        async with raw(port, "other") as other:
            other.send(Publish("a/new", b"2", 1, packet_id=1))
            assert isinstance(await other.receive(), Puback)
        async with raw(port, "away", clean=False) as client:
            assert client.connack.session_present  # type: ignore[attr-defined]
            got = {
                (p.topic, p.payload)
                for p in (await client.receive(), await client.receive())
                if isinstance(p, Publish)
            }
            assert got == {("a/kept", b"missed"), ("a/new", b"2")}
            assert await subscribe(client, "r/+") == [0]
            assert await client.receive() == Publish("r/t", b"retained", 0, True)
        assert "away" in broker.sessions  # not clean, so it stays
        account = broker.sessions["away"][0]
        await eventually(
            lambda: account.transitions.state == "disconnected", "it is told of the end"
        )


async def test_an_account_stays_the_same_object_over_connections() -> None:
    async with running({own(Auth): {}}, session_expiry_interval=100) as broker:
        port = broker.ports["default"]
        async with raw(port, "c", clean=False, username="user", password=b"secret"):
            account = broker.sessions["c"][0]
            account.attributes["mine"] = 1
        await eventually(
            lambda: account.transitions.state == "disconnected", "it is told of the end"
        )
        async with raw(port, "c", clean=False, username="user", password=b"secret", keep_alive=7):
            assert broker.sessions["c"][0] is account
            assert account.attributes == {"mine": 1, "seen": "secret"}
            assert account.keep_alive == 7
            assert account.transitions.is_connected()
        assert broker.node.config.session_expiry_max == 100


async def test_keep_alive_is_longer_by_amqtts_delay() -> None:
    async with (
        running(timeout_disconnect_delay=7) as broker,
        raw(broker.ports["default"], "c", keep_alive=10),
    ):
        conn = broker.node.sessions["c"].conn
        assert conn is not None
        assert conn.owner.keep_alive == 22  # type: ignore[union-attr]
        assert broker.sessions["c"][0].keep_alive == 17


async def test_the_sys_topics_come_from_the_nodes_counters() -> None:
    async with running({ANONYMOUS: {}, SYS: {"sys_interval": 3600}}) as broker:  # we say when
        sys = plugin(broker, type("BrokerSysPlugin", (), {}))
        async with raw(broker.ports["default"], "one") as client:
            assert await subscribe(client, "$SYS/broker/#", "t") == [0, 0]
            version = await client.receive()
            assert isinstance(version, Publish)
            assert version.topic == "$SYS/broker/version"
            client.send(Publish("t", b"x"))
            await client.receive()
            sys.broadcast_dollar_sys_topics()
            found: dict[str, bytes] = {}
            while len(found) < 23:
                packet = await client.receive()
                assert isinstance(packet, Publish)
                found[packet.topic.removeprefix("$SYS/broker/")] = packet.payload
            assert found["clients/connected"] == b"1"
            assert found["messages/publish/received"] == b"1"
            assert found["messages/subscriptions/count"] == b"2"
            assert found["messages/retained/count"] == b"1"
            assert int(found["load/bytes/received"]) > 0
            assert broker.node.sessions["one"].account is None  # no object per session for a sum


# -------------------------------------------------------------------- federation


def settings(number: int, *seeds: int, **options: Any) -> FederationSettings:
    known = tuple(("127.0.0.1", port) for port in seeds)
    given: dict[str, Any] = {"discovery": "static", "seeds": known, "port": 0} | options
    return FederationSettings(
        name=f"b{number}", id=bytes([number]) * 8, boot=1, hello=0.1, discovery_time=0.1, **given
    )


@contextlib.asynccontextmanager
async def federated(given: FederationSettings) -> AsyncIterator[Broker]:
    broker = Broker({"listeners": {"default": listener()}}, settings=given)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.shutdown()


def linked(*brokers: Broker) -> bool:
    """Whether each has a link that forwards."""
    return all(
        any(link["forwarding"] for link in federation_state(b.node.cluster)["links"])
        for b in brokers
    )


async def test_multicast_that_cannot_be_used_causes_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with federated(settings(1, discovery="multicast", interfaces=("192.0.2.1",))) as broker:
        assert broker.transitions.is_started()
    lines = [record.getMessage() for record in caplog.records if "multicast" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("multicast cannot be used: ")


# -------------------------------------------------------------------- what amqtt's users rely on


async def test_the_module_exports_what_amqtts_broker_module_does() -> None:
    for name in ("BrokerContext", "RetainedApplicationMessage", "Server"):
        assert getattr(broker_server, name) is getattr(amqtt_broker, name)


async def test_amqtts_log_lines_about_listeners_and_clients_are_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "amqtt.broker")
    options = listener(max_connections=3)
    async with running(listeners={"default": options}, session_expiry_interval=0) as broker:
        async with raw(broker.ports["default"], "short", clean=False):
            pass
        await eventually(lambda: not broker.sessions, "the session has expired")
    lines = [record.getMessage() for record in caplog.records if record.name == "amqtt.broker"]
    assert [line for line in lines if "State transition" not in line] == [
        "Listener 'default' bind to 127.0.0.1:0 (max_connections=3)",
        "Expired 1 sessions: 'short'",
        "Shutting down broker...",
        "Broker closed",
    ]


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    """alice with the password "wonder", bob with "build"; the hashes are quick to check."""
    hasher = PasswordHash((Argon2Hasher(time_cost=1, memory_cost=8, parallelism=1),))
    file = tmp_path / "passwords"
    file.write_text(f"# name:hash\nalice:{hasher.hash('wonder')}\n\nbob:{hasher.hash('build')}\n")
    return file


FILE_AUTH = "amqtt.plugins.authentication.FileAuthPlugin"
ACL = "amqtt.plugins.topic_checking.TopicAccessControlListPlugin"
SUBSCRIBE_ACL = {"alice": ["home/#"], "bob": ["home/+/light"]}
PUBLISH_ACL = {"alice": ["home/#"]}


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_amqtts_password_file_and_access_lists_apply(
    legacy: bool, password_file: Path
) -> None:
    acl = {"acl": SUBSCRIBE_ACL, "publish-acl": PUBLISH_ACL}
    config: dict[str, Any] = {
        "auth": {"plugins": ["auth_file"], "password-file": str(password_file)},
        "topic-check": {"enabled": True, "plugins": ["topic_acl"], **acl},
    }
    if not legacy:
        lists = {"acl": SUBSCRIBE_ACL, "publish_acl": PUBLISH_ACL}
        config = {"plugins": {FILE_AUTH: {"password_file": str(password_file)}, ACL: lists}}
    async with running(**config) as broker:
        port = broker.ports["default"]
        wrong = ("alice", b"build"), ("bob", None), ("carol", b"wonder"), (None, None)
        assert await codes(broker, ("alice", b"wonder"), *wrong) == [0, 4, 4, 4, 5]
        alice = raw(port, "a", username="alice", password=b"wonder")
        bob = raw(port, "b", username="bob", password=b"build")
        async with alice as a, bob as b:
            assert await subscribe(b, "home/hall/light", "home/hall", "#", qos=1) == [1, 0x80, 0x80]
            b.send(Publish("home/hall/light", b"no", 1, packet_id=2))
            assert await b.receive() == Puback(2)  # 3.1.1 has no way to say no
            a.send(
                Publish("garden", b"no", 1, packet_id=1),
                Publish("home/hall/light", b"on", 1, packet_id=2),
            )
            assert await b.receive() == Publish("home/hall/light", b"on", 1, packet_id=1)
            assert broker.node.counters.publish_refused == 2


@pytest.mark.parametrize("version", [4, 5])
async def test_an_absent_client_gets_what_amqtt_keeps_for_it(version: int) -> None:
    async with running({own(Auth): {}, own(Recorder): {}}, session_expiry_interval=1000) as broker:
        port = broker.ports["default"]
        away = {"clean": False, "username": "user", "password": b"secret"}
        async with raw(port, "away", **away) as client:
            client.send(
                Subscribe(1, [SubscriptionRequest("one/#", 1), SubscriptionRequest("zero/#", 0)])
            )
            await client.receive()
        await eventually(lambda: broker.node.sessions["away"].conn is None, "the client has gone")
        recorder: Recorder = plugin(broker, Recorder)
        async with raw(port, "p", version, username="user", password=b"secret") as publisher:
            publisher.send(
                *[Publish("one/a", b"%d" % number) for number in range(3)],
                Publish("zero/b", b"lost"),
            )
            publisher.send(
                Publish("one/a", b"sure", 2, packet_id=1), Publish("zero/b", b"state", 0, True)
            )
            await publisher.receive()
            await eventually(
                lambda: len(recorder.of("broker_retained_message")) == 6, "plugins are told"
            )
        told = recorder.of("broker_retained_message")
        found = [call["retained_message"] for call in told if call["client_id"] == "away"]
        kept = [(message.topic, message.data, message.qos) for message in found]
        zero = [("one/a", b"0", 0), ("one/a", b"1", 0), ("one/a", b"2", 0), ("zero/b", b"state", 0)]
        assert sorted(kept) == sorted([("one/a", b"sure", 1), *zero])
        assert {message.source_session.client_id for message in found if message.qos} == {"p"}
        async with raw(port, "away", **away) as client:
            got = [await client.receive() for _ in range(5)]
        assert got[0] == Publish("one/a", b"sure", 1, packet_id=1)
        assert (
            sorted((p.topic, p.payload, p.qos) for p in got[1:] if isinstance(p, Publish)) == zero
        )


async def test_a_run_kept_for_an_absent_client_is_cut_into_packets() -> None:
    async with running(limits=Limits(max_missed=3)) as broker:
        port = broker.ports["default"]
        for name, version in (("four", 4), ("five", 5)):
            options = {"properties": {Property.SESSION_EXPIRY_INTERVAL: 60}} if version == 5 else {}
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            client = RawStreams(reader, writer, version)
            client.send(Connect("MQTT", version, False, 60, name, **options))
            await client.receive()
            assert await subscribe(client, "t", qos=2) == [2]
            client.send(Disconnect())
            assert await client.closed()
            writer.close()
        async with raw(port, "p") as publisher:
            publisher.send(
                *[Publish("t", b"%d" % number * 200) for number in range(5)],
                Publish("end", b"", 1, packet_id=1),
            )
            assert await publisher.receive() == Puback(1)
        await eventually(lambda: broker.node.sessions["five"].missed is not None, "they are kept")
        for name, version in (("four", 4), ("five", 5)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            client = RawStreams(reader, writer, version)
            client.send(Connect("MQTT", version, False, 60, name))
            assert isinstance(await client.receive(), Connack)
            got = [await client.receive() for _ in range(3)]
            assert [p.payload for p in got if isinstance(p, Publish)] == [
                b"0" * 200,
                b"1" * 200,
                b"2" * 200,
            ]
            assert broker.node.sessions[name].missed is None
            writer.close()


async def test_restored_messages_are_not_given_to_plugins_again() -> None:
    async with running({ANONYMOUS: {}, own(Restorer): {}, own(Recorder): {}}) as broker:
        async with raw(broker.ports["default"], "p") as publisher:
            publisher.send(Publish("a/new", b"2", 1, packet_id=1))
            assert isinstance(await publisher.receive(), Puback)
        recorder: Recorder = plugin(broker, Recorder)
        await eventually(lambda: recorder.of("broker_retained_message"), "the new one is told")
        (told,) = recorder.of("broker_retained_message")
        assert (told["client_id"], told["retained_message"].data) == ("away", b"2")


class Silent(BaseAuthPlugin, BaseTopicPlugin):
    """Never answers when "never" is asked about."""

    async def authenticate(self, *, session: Session) -> bool | None:
        if session.client_id == "never":
            await asyncio.Event().wait()
        return True

    async def topic_filtering(
        self,
        *,
        session: Session | None = None,
        topic: str | None = None,
        action: Action | None = None,
    ) -> bool | None:
        assert session is not None
        if topic == f"never/{action}" and session.client_id != "else":
            await asyncio.Event().wait()
        return True


async def test_a_plugin_that_never_answers_has_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with running({own(Silent): {}}, limits=Limits(plugin_timeout_s=0.5)) as broker:
        port = broker.ports["default"]
        async with raw(port, "never") as refused:
            assert refused.connack.code == 5  # type: ignore[attr-defined]
        async with raw(port, "c", version=5) as client, raw(port, "else") as other:
            assert await subscribe(client, "never/subscribe") == [0x87]
            assert await subscribe(client, "#") == await subscribe(other, "#") == [0]
            client.send(
                Publish("never/publish", b"x", 1, packet_id=1),
                Publish("never/receive", b"y", 1, packet_id=2),
            )
            client.send(Publish("t", b"z"))
            answers = [await client.receive() for _ in range(2)]
            assert [(p.packet_id, int(p.reason)) for p in answers if isinstance(p, Puback)] == [
                (1, 0x87),
                (2, 0),
            ]
            assert await other.receive() == Publish("never/receive", b"y")
            # This one waited behind the one that was asked about.
            assert await client.receive() == Publish("t", b"z")
        assert broker.node.counters.plugin_errors == 4
        lines = [
            record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR
        ]
        assert lines[0] == "plugin failed in Authenticate: TimeoutError: no answer within 0.5 s"


async def test_other_brokers_retain_what_a_plugin_retains() -> None:
    async with (
        federated(settings(1)) as first,
        federated(settings(2, first.ports["default"])) as second,
    ):
        await eventually(lambda: linked(first, second), "the two are linked")
        context = BrokerContext(first)
        await context.retain_message("$SYS/mine", b"here")
        await context.retain_message("r/1", b"kept", 1)
        await eventually(lambda: "r/1" in second.retained_messages, "it is kept there")
        assert {"$SYS/mine", "r/1"} <= set(first.retained_messages)
        assert not {"$SYS/mine"} & set(second.retained_messages)
        assert second.retained_messages["r/1"].data == b"kept"
        await context.retain_message("r/1", b"")
        await eventually(lambda: "r/1" not in second.retained_messages, "it is forgotten there")
        assert "r/1" not in first.retained_messages


# -------------------------------------------------------------------- last words


async def test_a_client_that_does_not_close_is_aborted(tmp_path: Path) -> None:
    tls = listener(**secure(tmp_path))
    listeners = {"default": listener(max_connections=1), "secure": tls}
    async with running(listeners=listeners, limits=Limits(linger_s=0.05)) as broker:
        async with raw(broker.ports["default"], "c", version=5) as client:
            client.writer.write(b"\xf0\x00")
            assert isinstance(await client.receive(), Disconnect)
            await eventually(lambda: not broker.node.connections, "its place is free")
            assert broker._servers["default"].conn_count == 0
        context = ssl.create_default_context(cafile=tls["certfile"])
        async with raw(broker.ports["secure"], "s", version=5, ssl=context) as client:
            client.writer.write(b"\xf0\x00")
            assert isinstance(await client.receive(), Disconnect)
            await eventually(lambda: not broker.node.connections, "it is closed")
