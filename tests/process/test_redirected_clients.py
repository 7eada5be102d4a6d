"""Real clients that are sent to another broker: one that follows, one that comes back, one of MQTT
3.1.1, some that say nonsense, and `MultiClient`. More of each: tests/sim/test_redirection.py."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections.abc import AsyncIterator
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import gmqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from mqttree import Broker, Limits
from mqttree.bench.lab.ports import free_ports
from mqttree.client_connection import ConnectionLostError
from mqttree.multi_client import MultiClient, referred
from tests.kit.waiting import eventually

LIMITS = Limits(redirect_settle_s=0.5, redirect_quiet_s=1.0)


def node_of(broker: Broker) -> Any:
    assert broker._broker is not None
    return broker._broker.node


@contextlib.asynccontextmanager
async def federation(
    access: dict[str, str] | None = None, **federation: Any
) -> AsyncIterator[list[Broker]]:
    """Two brokers that know each other, with ports of their own. `access`: users and rules."""
    ports = free_ports(2)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    config: dict[str, Any] = {"federation": {"redirect-clients": True, **federation}}
    if access is not None:
        config["access"] = access
    async with (
        Broker(listen=addresses[0], seeds=[], cluster="r", config=config, limits=LIMITS) as one,
        Broker(
            listen=addresses[1], seeds=addresses[:1], cluster="r", config=config, limits=LIMITS
        ) as other,
    ):
        await eventually(
            lambda: all(node_of(each).cluster.database.reachable() for each in (one, other)),
            "they find each other",
        )
        yield [one, other]


def expiry(seconds: int = 3600, **user: str) -> Properties:
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = seconds
    if user:
        properties.UserProperty = list(user.items())
    return properties


class Follower:
    """A paho client that subscribes, and follows a Server Reference or not."""

    def __init__(
        self,
        client_id: str,
        topic: str,
        *,
        version: int = 5,
        follows: bool = True,
        topics: str = "",
    ) -> None:
        self.port = 0
        self.topic = topic
        self.follows = follows
        self.topics = topics
        self.reasons: list[int] = []
        self.payloads: list[bytes] = []
        self.subscribed = threading.Event()
        self.version = version
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean_session=None if version == 5 else False,
            protocol=MQTTProtocolVersion(version),
            reconnect_on_failure=True,
        )
        self.paho.reconnect_delay_set(1, 1)
        self.paho.on_connect = self._on_connect
        self.paho.on_disconnect = self._on_disconnect
        self.paho.on_message = lambda *given: self.payloads.append(given[2].payload)
        self.paho.on_subscribe = lambda *given: self.subscribed.set()

    def start(self, port: int) -> None:
        self.connect_to(port)
        self.paho.loop_start()

    def connect_to(self, port: int) -> None:
        self.port = port
        if self.version == 5:
            said = {"mqttree-topics": self.topics} if self.topics else {}
            properties = expiry()
            if said:
                properties.UserProperty = list(said.items())
            self.paho.connect_async("127.0.0.1", port, clean_start=False, properties=properties)
        else:
            self.paho.connect_async("127.0.0.1", port)

    def _on_connect(self, client: Any, data: Any, flags: Any, reason: Any, given: Any) -> None:
        self.reasons.append(reason.value)
        if reason.value == 0x9C:
            self._elsewhere(given)
        elif not reason.is_failure and not flags.session_present:
            client.subscribe(self.topic, 2)

    def _on_disconnect(self, client: Any, data: Any, flags: Any, reason: Any, given: Any) -> None:
        if flags.is_disconnect_packet_from_server:
            self.reasons.append(reason.value)
            if reason.value == 0x9C:
                self._elsewhere(given)

    def _elsewhere(self, given: Any) -> None:
        _, _, port = given.ServerReference.split()[0].rpartition(":")
        if self.follows:
            self.connect_to(int(port))

    def stop(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


class Comes:
    """A gmqtt client: it connects again by itself, to where it was.

    It does not keep the Packet Identifiers of QoS 2 messages that it received, as MQTT-4.3.3-10
    asks of it. A message whose PUBREC was lost with the connection comes again, with DUP, and
    gmqtt hands it to its user again. So this class leaves out what has DUP and came before.
    """

    def __init__(self, client_id: str, topic: str) -> None:
        self.reasons: list[int] = []
        self.payloads: list[bytes] = []
        self.connected = 0
        self.subscribed = asyncio.Event()
        self.client = gmqtt.Client(client_id, clean_session=False, session_expiry_interval=3600)
        self.client.set_config({"reconnect_retries": -1, "reconnect_delay": 0.1})
        self.topic = topic
        self.client.on_connect = self._on_connect
        self.client.on_message = self._on_message
        self.client.on_subscribe = lambda *given, **named: self.subscribed.set()
        self.client.on_disconnect = lambda *given, **named: None

    def _on_connect(self, client: Any, flags: int, code: int, properties: Any) -> None:
        self.connected += 1
        if not flags & 1:
            client.subscribe(self.topic, qos=2)

    async def _on_message(
        self, client: Any, topic: str, payload: bytes, qos: int, properties: dict[str, Any]
    ) -> int:
        if not (properties["dup"] and payload in self.payloads):
            self.payloads.append(payload)
        return 0


class Publisher:
    """Publishes to some topics, twenty times a second each."""

    def __init__(self, port: int, *topics: str) -> None:
        self.paho = paho.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        self.paho.connect("127.0.0.1", port)
        self.paho.loop_start()
        self.topics = topics
        self.count = 0
        self._task = asyncio.get_running_loop().create_task(self._publish())

    async def _publish(self) -> None:
        while True:
            for topic in self.topics:
                self.paho.publish(topic, b"%d" % self.count, 2)
            self.count += 1
            await asyncio.sleep(0.05)

    def stop(self) -> None:
        self._task.cancel()
        self.paho.disconnect()
        self.paho.loop_stop()


async def known(broker: Broker) -> None:
    """Wait until the traffic of a broker is known, which is read every ten seconds."""
    await eventually(lambda: node_of(broker).traffic.sums.published > 1, "its traffic is known")


def numbers(payloads: list[bytes]) -> list[int]:
    return [int(payload) for payload in payloads]


def whole(payloads: list[bytes]) -> None:
    """Exactly once, in order, without a gap."""
    found = numbers(payloads)
    assert found == list(range(found[0], found[0] + len(found)))


async def test_one_client_follows_one_comes_back_and_one_cannot_know() -> None:
    async with federation() as (here, there):
        publisher = Publisher(there.port, "follows", "comes", "old")
        await known(there)
        follower = Follower("f", "follows")
        old = Follower("o", "old", version=4)
        comes = Comes("c", "comes")
        loop = asyncio.get_running_loop()
        for client in (follower, old):
            await loop.run_in_executor(None, client.start, here.port)
        await comes.client.connect("127.0.0.1", here.port)
        await eventually(lambda: "f" in node_of(there).sessions, "it follows")
        await eventually(
            lambda: node_of(here).counters.redirects_ignored == 1, "the other one is back"
        )
        await eventually(lambda: comes.connected == 2, "it is let in")
        target = publisher.count + 40
        for payloads in (follower.payloads, comes.payloads, old.payloads):
            await eventually(
                lambda payloads=payloads: payloads and int(payloads[-1]) >= target, "all is served"
            )
            whole(payloads)
        assert follower.reasons == [0, 0x9C, 0]
        assert follower.port == there.port
        assert old.reasons == [0]
        assert node_of(here).counters.redirected == 2
        assert sorted(node_of(here).sessions) == ["c", "o"]
        publisher.stop()
        follower.stop()
        old.stop()
        await comes.client.disconnect()


async def test_a_client_that_says_its_topics_is_not_let_in_but_elsewhere() -> None:
    async with federation() as (here, there):
        publisher = Publisher(there.port, "a")
        await known(there)
        topics = json.dumps({"subscribe": ["a"]})
        follower = Follower("f", "a", topics=topics)
        stays = Follower("s", "a", topics=topics, follows=False)
        bad = Follower("b", "a", topics="[]")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, follower.start, here.port)
        await eventually(follower.subscribed.is_set, "it subscribes elsewhere")
        assert follower.reasons == [0x9C, 0]
        assert "f" in node_of(there).sessions
        assert "f" not in node_of(here).sessions
        await loop.run_in_executor(None, stays.start, here.port)
        await eventually(stays.subscribed.is_set, "whoever does not follow is let in")
        assert "s" in node_of(here).sessions
        await loop.run_in_executor(None, bad.start, here.port)
        await eventually(bad.subscribed.is_set, "what cannot be read is ignored")
        assert bad.reasons[0] == 0
        publisher.stop()
        for client in (follower, stays, bad):
            client.stop()


def filters(count: int) -> list[str]:
    """Different filters, short ones: ten thousand fit a User Property."""
    return ["".join(letters) for letters in islice(product(ascii_lowercase, repeat=3), count)]


async def test_invalid_topics_are_counted_logged_once_and_the_client_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One host says nonsense again and again: one line."""
    rules = tmp_path / "rules"
    rules.write_text("anonymous\nallow all a\nallow all open/#\n")
    said = [
        json.dumps({"subscribe": filters(10_000)}, separators=(",", ":")),
        json.dumps({"subscribe": filters(1001)}),
        json.dumps({"subscribe": filters(201)}),
        json.dumps({"subscribe": ["secret/#"]}),
        json.dumps({"publish": ["secret"]}),
        json.dumps({"subscribe": ["#"]}),
        "[]",
        "{",
    ]
    caplog.set_level(logging.WARNING)
    checked = {"allow-unauthenticated-brokers": True}
    async with federation(access={"rules": str(rules)}, **checked) as (here, there):
        publisher = Publisher(there.port, "a")
        await known(there)
        for number, text in enumerate(said):
            client = Follower(f"c{number}", "a", topics=text, follows=False)
            await asyncio.get_running_loop().run_in_executor(None, client.start, here.port)
            await eventually(client.subscribed.is_set, "it is let in")
            await eventually(lambda client=client: client.payloads, "it is served")
            assert client.reasons[0] == 0
            client.stop()
        assert here.state()["redirection"]["topics_invalid"] == len(said)
        lines = [line for line in caplog.messages if "mqttree-topics" in line]
        assert len(lines) == 1
        assert "\n" not in lines[0]
        publisher.stop()


async def test_a_multi_client_goes_where_it_is_sent() -> None:
    ports = free_ports(2)
    config = {"mqtt": {"server_reference": f"127.0.0.1:{ports[1]}"}}
    async with (
        Broker(listen=f"127.0.0.1:{ports[0]}", config=config),
        Broker(listen=f"127.0.0.1:{ports[1]}"),
        MultiClient(f"127.0.0.1:{ports[0]}", "m") as client,
    ):
        assert client.connections == {"m": f"127.0.0.1:{ports[1]}"}


async def test_a_multi_client_gives_up_when_brokers_send_it_in_a_circle() -> None:
    ports = free_ports(2)
    brokers = [
        Broker(
            listen=f"127.0.0.1:{ports[n]}",
            config={"mqtt": {"server_reference": f"127.0.0.1:{ports[1 - n]} nonsense:port"}},
        )
        for n in range(2)
    ]
    async with brokers[0], brokers[1]:
        client = MultiClient(f"127.0.0.1:{ports[0]}", "m")
        with pytest.raises(ConnectionLostError, match="no broker answers"):
            await client.start()
        await client.stop()
        assert [node_of(each).counters.redirected for each in brokers] == [1, 1]


def test_addresses_of_a_server_reference_are_those_that_can_be_used() -> None:
    assert referred("a:1 b [::1]:2") == ["a:1", "b", "[::1]:2"]
    assert referred("a:x :1 a:70000  b:2") == ["b:2"]
    assert referred("") == []
