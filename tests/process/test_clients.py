"""One broker and the clients that people use: paho-mqtt, gmqtt, mosquitto's; over TCP, TLS and
WebSocket."""

from __future__ import annotations

import itertools
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import gmqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from mqttree.bench.lab.ports import free_ports
from tests.kit.brokers import Broker, Cluster
from tests.kit.clients import Make, Mosquitto, mosquitto_pub
from tests.kit.waiting import PATIENCE, eventually
from tests.process.certificates import self_signed

pytestmark = pytest.mark.interop


_runs = itertools.count()

CONFIG = """
listeners:
  default:
    type: tcp
    bind: 127.0.0.1:{port}
  secure:
    bind: 127.0.0.1:{tls}
    ssl: on
    certfile: {folder}/cert.pem
    keyfile: {folder}/key.pem
  web:
    type: ws
    bind: 127.0.0.1:{ws}
  websecure:
    type: ws
    bind: 127.0.0.1:{wss}
    ssl: on
    certfile: {folder}/cert.pem
    keyfile: {folder}/key.pem
"""


class Served:
    """A broker with every kind of listener."""

    def __init__(self, broker: Broker, ports: list[int], ca: Path) -> None:
        self.broker = broker
        self.port = broker.port
        self.tls, self.ws, self.wss = ports
        self.ca = ca


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Cluster]]:
    folder = tmp_path_factory.mktemp("one")
    ca = self_signed(folder)
    with Cluster(folder) as cluster:
        config = folder / "config.yaml"
        broker = cluster.add(
            "--discovery", "off", "--config", str(config), listen=False, start=False
        )
        ports = free_ports(3)
        text = CONFIG.format(
            port=broker.port, tls=ports[0], ws=ports[1], wss=ports[2], folder=folder
        )
        config.write_text(text)
        broker.start().up()
        yield Served(broker, ports, ca), cluster


@pytest.fixture
def one(shared: tuple[Served, Cluster]) -> Iterator[Served]:
    yield shared[0]
    assert shared[0].broker.running
    shared[1].show()


@pytest.fixture
def base() -> str:
    return f"clients/{next(_runs)}"


# ------------------------------------------------------------------ paho-mqtt

LISTENERS: dict[str, Callable[[Served], dict[str, Any]]] = {
    "tcp": lambda one: {"port": one.port},
    "tls": lambda one: {"port": one.tls, "ca": one.ca},
    "ws": lambda one: {"port": one.ws, "transport": "websockets"},
    "wss": lambda one: {"port": one.wss, "transport": "websockets", "ca": one.ca},
}


@pytest.mark.statement("MQTT-4.2.0-1", "3.1.1/MQTT-7.0.0-2", "3.1.1/MQTT-7.1.1-1")
@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("listener", LISTENERS)
def test_paho_gets_every_message_on_every_listener(
    one: Served, make: Make, base: str, listener: str, protocol: int
) -> None:
    arguments = LISTENERS[listener](one)
    subscriber = make(**arguments, protocol=protocol, client_id=f"sub-{listener}-{protocol}")
    publisher = make(**arguments, protocol=protocol, client_id=f"pub-{listener}-{protocol}")
    for qos in (0, 1, 2):
        assert subscriber.subscribe(f"{base}/{qos}/#", qos) == [qos]
    sent = [(f"{base}/{n % 3}/{n}", str(n).encode() * 50, n % 3) for n in range(60)]
    sent += [(f"{base}/1/large", bytes(300_000), 1), (f"{base}/2/empty", b"", 2)]
    publisher.done(*[publisher.publish(*message) for message in sent])
    subscriber.got(len(sent))
    # In order for each QoS: paho itself lets QoS 0 overtake, and gives QoS 2 to its user at PUBREL
    # only.
    for qos in (0, 1, 2):
        found = [(m.topic, m.payload, m.qos) for m in subscriber.messages if m.qos == qos]
        assert found == [message for message in sent if message[2] == qos]
    subscriber.unsubscribe(f"{base}/0/#")
    publisher.publish(f"{base}/0/gone", b"x", 0)
    publisher.publish(f"{base}/1/end", b"end", 1)
    assert subscriber.got(len(sent) + 1)[-1] == b"end"


@pytest.mark.parametrize("protocol", [4, 5])
def test_paho_gets_retained_messages_wills_and_its_session(
    one: Served, make: Make, base: str, protocol: int
) -> None:
    name = f"kept-{protocol}"
    again: dict[str, Any] = {"client_id": name, "protocol": protocol, "clean": False, "expiry": 100}
    first = make(one.port, **again)
    assert not first.session_present
    first.subscribe(f"{base}/#", 2)
    first.close()
    publisher = make(one.port, protocol=protocol, will=(f"{base}/will", b"will", 1, True))
    watcher = make(one.port, protocol=protocol).subscribed(f"{base}/#", 1)
    for number in range(30):
        publisher.publish(f"{base}/{number % 2}", str(number), 1 + number % 2)
    publisher.publish(f"{base}/retained", b"kept", 1, retain=True)
    watcher.got(31)
    publisher.break_off()
    assert watcher.got(32)[-1] == b"will"
    # what came while it was away, in order, each once
    second = make(one.port, **again)
    assert second.session_present
    second.got(32)
    even = [str(n).encode() for n in range(0, 30, 2)]
    odd = [str(n).encode() for n in range(1, 30, 2)]
    assert [m.payload for m in second.messages if m.qos == 1] == [*even, b"kept", b"will"]
    assert [m.payload for m in second.messages if m.qos == 2] == odd
    second.close()
    # a clean start ends the session
    third = make(one.port, client_id=name, protocol=protocol, clean=True)
    assert not third.session_present
    third.subscribe(f"{base}/+", 1)
    assert sorted(third.got(2)) == [b"kept", b"will"]
    assert all(m.retain for m in third.messages)
    third.publish(f"{base}/end", b"end", 1)
    assert third.got(3)[-1] == b"end"


def test_paho_gets_all_mqtt_5_properties(one: Served, make: Make, base: str) -> None:
    subscriber = make(one.port).subscribed(base, 1)
    publisher = make(one.port)
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [("b", "2"), ("a", "1"), ("b", "1")]
    properties.ContentType = "application/json"
    properties.ResponseTopic = "answer/here"
    properties.CorrelationData = b"\x00\x01\xff"
    properties.MessageExpiryInterval = 600
    properties.PayloadFormatIndicator = 1
    publisher.publish(base, "{}", 1, properties=properties)
    subscriber.got(1)
    found = subscriber.messages[0].properties
    assert 590 <= found.MessageExpiryInterval <= 600
    assert found.UserProperty == properties.UserProperty
    assert found.ContentType == properties.ContentType
    assert found.ResponseTopic == properties.ResponseTopic
    assert found.CorrelationData == properties.CorrelationData
    assert found.PayloadFormatIndicator == 1


# ------------------------------------------------------------------ gmqtt


@asynccontextmanager
async def gmqtt_client(
    one: Served, name: str, version: int, **more: Any
) -> AsyncIterator[tuple[Any, list[Any]]]:
    """Connect; gives the client, and the list that its messages go to."""
    arguments = {"clean_session": True} | more
    port, tls = arguments.pop("port", one.port), arguments.pop("ssl", False)
    client = gmqtt.Client(name, **arguments)
    client.set_config({"reconnect_retries": 0})
    messages: list[Any] = []
    subscribed: list[int] = []

    def on_message(
        _client: Any, topic: str, payload: bytes, qos: int, properties: dict[str, Any]
    ) -> int:
        messages.append((topic, payload, qos, properties))
        return 0

    client.on_message = on_message
    client.on_subscribe = lambda _c, mid, _qos, _properties: subscribed.append(mid)
    client.subscribed = subscribed
    await client.connect("127.0.0.1", port, ssl=tls, version=version, keepalive=30)
    try:
        yield client, messages
    finally:
        # asyncio's TLS objects to acknowledgements that are still on their way to us.
        with suppress(ssl.SSLError):
            await client.disconnect()


@pytest.mark.statement("3.1.1/MQTT-7.0.0-2")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("tls", [False, True])
async def test_gmqtt_gets_every_message(one: Served, base: str, version: int, tls: bool) -> None:
    more: dict[str, Any] = {}
    if tls:
        more = {"port": one.tls, "ssl": ssl.create_default_context(cafile=str(one.ca))}
    async with (
        gmqtt_client(one, f"gmqtt-sub-{version}-{tls}", version, **more) as (subscriber, messages),
        gmqtt_client(one, f"gmqtt-pub-{version}-{tls}", version, **more) as (publisher, _),
    ):
        before = one.broker.view()["retained"]
        publisher.publish(f"{base}/retained", b"old", qos=1, retain=True)
        await eventually(lambda: one.broker.view()["retained"] > before, "it comes")
        async with gmqtt_client(one, f"gmqtt-late-{version}-{tls}", version, **more) as (
            late,
            kept,
        ):
            late.subscribe(f"{base}/retained", qos=1)
            await eventually(lambda: kept, "it comes")
            assert kept[0][:3] == (f"{base}/retained", b"old", 1)
            assert kept[0][3]["retain"]
        subscriber.subscribe(f"{base}/+/x", qos=2)
        await eventually(lambda: subscriber.subscribed, "it comes")
        properties = {"user_property": [("a", "1"), ("b", "2")]} if version == 5 else {}
        for number in range(30):
            publisher.publish(f"{base}/{number % 3}/x", str(number), qos=number % 3, **properties)
        await eventually(lambda: len(messages) >= 30, "it comes")
        assert [m[:3] for m in messages] == [
            (f"{base}/{n % 3}/x", str(n).encode(), n % 3) for n in range(30)
        ]
        if version == 5:
            assert all(m[3]["user_property"] == [("a", "1"), ("b", "2")] for m in messages)
        subscriber.unsubscribe(f"{base}/+/x")


# ------------------------------------------------------------------ mosquitto's


@pytest.mark.statement("3.1.1/MQTT-7.0.0-2")
@pytest.mark.parametrize("version", ["31", "311", "5"])
@pytest.mark.parametrize("tls", [False, True])
def test_mosquittos_clients_get_every_message(
    one: Served, base: str, tmp_path: Path, version: str, tls: bool
) -> None:
    port = one.tls if tls else one.port
    common = ["-V", f"mqttv{version}"] + (["--cafile", str(one.ca)] if tls else [])
    mosquitto_pub(port, *common, "-t", f"{base}/retained", "-m", "old", "-r", "-q", "1")
    with Mosquitto(
        tmp_path, port, *common, "-t", f"{base}/#", "-q", "2", "-F", "%t %q %r %p"
    ) as subscriber:
        subscriber.got(1)
        for qos in (0, 1, 2):
            mosquitto_pub(
                port, *common, "-t", f"{base}/{qos}", "-q", str(qos), "-l", lines=["a", "b", "c"]
            )
        file = tmp_path / "large"
        file.write_text("x" * 500_000)
        mosquitto_pub(port, *common, "-t", f"{base}/large", "-f", str(file), "-q", "1")
        lines = subscriber.got(11)
    expected = [f"{base}/{qos} {qos} 0 {letter}" for qos in (0, 1, 2) for letter in "abc"]
    assert lines == [f"{base}/retained 1 1 old", *expected, f"{base}/large 1 0 {'x' * 500_000}"]


def test_mosquitto_rr_gets_its_response(one: Served, base: str, tmp_path: Path) -> None:
    """Request and response, as MQTT 5 means them."""
    with Mosquitto(tmp_path, one.port, "-V", "5", "-t", f"{base}/ask", "-F", "%R %D %p") as server:
        port, more = f"-p {one.port} -V 5", "-D publish correlation-data c1"
        command = f"mosquitto_rr {port} -t {base}/ask -e {base}/answer -m question -W 50 {more}"
        asking = subprocess.Popen(command.split(), stdout=subprocess.PIPE, text=True)
        try:
            assert server.got(1) == [f"{base}/answer c1 question"]
            mosquitto_pub(one.port, *f"-V 5 -t {base}/answer -m 42 {more}".split())
            assert asking.communicate(timeout=PATIENCE)[0] == "42\n"
        finally:
            asking.kill()
            asking.wait()
