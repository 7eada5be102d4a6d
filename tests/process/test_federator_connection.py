"""The client by which a federator speaks to brokers, against a broker of a few lines."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import paho.mqtt.client as paho
import pytest

from mqttree.bench.federator.client_connection import MAX_WAITING, ClientConnection, ClientOptions
from mqttree.broker.config.broker_url import read_url
from mqttree.broker.wire.constants import V5
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Publish,
    Suback,
    Subscribe,
)
from mqttree.broker.wire.properties import Property
from tests.kit.decoder import Decoder

LIMITS: dict[int, Any] = {
    Property.RECEIVE_MAXIMUM: 2,
    Property.MAXIMUM_QOS: 1,
    Property.MAXIMUM_PACKET_SIZE: 100,
}


class Scene:
    """A broker that takes one client at a time, and that client."""

    def __init__(self) -> None:
        self.took: list[tuple[str, bytes]] = []
        self.packets: asyncio.Queue[Packet] = asyncio.Queue()
        self.connack = Connack(False, 0, LIMITS)
        self.writer: asyncio.StreamWriter
        self.client: ClientConnection

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        decoder = Decoder(V5)
        while data := await reader.read(65_536):
            for packet in decoder.receive(data):
                if isinstance(packet, Connect):
                    self.say(self.connack)
                if isinstance(packet, Subscribe):
                    self.say(Suback(packet.packet_id, [1] * len(packet.filters)))
                if not isinstance(packet, Pingreq):
                    self.packets.put_nowait(packet)
        writer.close()

    def say(self, packet: Packet) -> None:
        self.writer.write(encode_packet(packet, V5))

    async def next(self) -> Packet:
        async with asyncio.timeout(20):
            return await self.packets.get()

    async def publish(self, topic: str) -> Publish:
        """Publish until the client is connected; return what the broker gets first."""
        async with asyncio.timeout(20):
            while True:
                self.client.publish(topic, b"0")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        packet = await self.packets.get()
                        assert isinstance(packet, Publish)
                        return packet


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    found = Scene()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    url = read_url(f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    options = ClientOptions("c", filters=("a/#",))
    found.client = ClientConnection(
        "broker 1", url, options, lambda topic, payload: found.took.append((topic, payload))
    )
    task = asyncio.create_task(found.client.run())
    yield found
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    server.close()


async def test_a_client_keeps_to_what_the_broker_takes(scene: Scene) -> None:
    assert isinstance(await scene.next(), Connect)
    subscribe = await scene.next()
    assert isinstance(subscribe, Subscribe)
    [request] = subscribe.filters
    assert (request.filter, request.qos, request.no_local) == ("a/#", 1, True)
    assert request.retain_handling == 2
    first = await scene.publish("b")
    assert first.qos == 1
    before = scene.client.dropped
    scene.client.publish("b", bytes(100))
    assert scene.client.dropped == before + 1
    for number in range(1, MAX_WAITING + 10):
        scene.client.publish("b", b"%d" % number)
    assert scene.client.dropped > before + 1
    second = await scene.next()
    assert isinstance(second, Publish) and scene.packets.empty()
    assert first.packet_id is not None
    scene.say(Puback(first.packet_id))
    third = await scene.next()
    assert isinstance(third, Publish) and third.payload != second.payload
    scene.say(Publish("a/b", b"x"))
    while not scene.took:
        await asyncio.sleep(0.01)
    assert scene.took == [("a/b", b"x")]


async def test_what_is_not_acknowledged_is_counted_and_not_sent_again(scene: Scene) -> None:
    assert isinstance(await scene.next(), Connect)
    assert isinstance(await scene.next(), Subscribe)
    await scene.publish("b")
    before = scene.client.dropped
    scene.writer.close()
    assert isinstance(await scene.next(), Connect)
    assert scene.client.dropped > before
    assert isinstance(await scene.next(), Subscribe)
    assert (await scene.publish("c")).topic == "c"


async def test_a_client_that_is_refused_tries_again(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.connack = Connack(False, 0x87)
    assert isinstance(await scene.next(), Connect)
    while not isinstance(await scene.next(), Connect | Disconnect):
        pass
    assert "it refuses: Not authorized" in caplog.text


async def test_a_client_cancelled_while_it_dials_starts_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dials, may_go_on = threading.Event(), threading.Event()

    def connect(*_: Any, **__: Any) -> None:
        dials.set()
        may_go_on.wait(20)

    starts: list[int] = []
    monkeypatch.setattr(paho.Client, "connect", connect)
    monkeypatch.setattr(paho.Client, "loop_start", lambda _: starts.append(1))
    client = ClientConnection(
        "broker 1", read_url("mqtt://127.0.0.1:1"), ClientOptions("c"), lambda *_: None
    )
    task = asyncio.create_task(client.run())
    await asyncio.to_thread(dials.wait, 20)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    may_go_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()  # `_dial` is at its end
    assert not starts
