"""A client with connections to several brokers, which die."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from mqttree.client_connection import ConnectionLostError, Message, SubscriptionRefusedError
from mqttree.multi_client import MultiClient, split_address
from tests.kit.brokers import Broker, Cluster
from tests.kit.clients import Client
from tests.kit.waiting import PATIENCE, eventually, until


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[Broker]]:
    """Three brokers, each of which has a standby."""
    config = tmp_path / "replicas.yaml"
    config.write_text("federation: {replicas: 1, standby-hosts: any}\n")
    with Cluster(tmp_path, "--config", str(config), "--discovery", "static") as cluster:
        first = cluster.add().up()
        for _ in range(2):
            cluster.add("--seed", first.address)
        for broker in cluster.brokers:
            broker.up()
        cluster.settle()
        for broker in cluster.brokers:
            until(broker.has_standby, f"{broker.name} has a standby")
        yield cluster.brokers


class Collected:
    """A client, and what has come to it."""

    def __init__(self, client: MultiClient) -> None:
        self.client = client
        self.messages: list[Message] = []
        self._task = asyncio.get_running_loop().create_task(self._collect())

    async def _collect(self) -> None:
        async for message in self.client.messages():
            self.messages.append(message)

    def payloads(self, topic: str) -> list[bytes]:
        return [message.payload for message in self.messages if message.topic == topic]

    def end(self) -> None:
        self._task.cancel()


@contextlib.asynccontextmanager
async def running(client: MultiClient) -> AsyncIterator[Collected]:
    async with client:
        found = Collected(client)
        yield found
        found.end()


async def traffic(brokers: list[Broker], topics: dict[str, Broker]) -> list[Client]:
    """Have each topic published at a broker until its traffic is known there."""
    loop = asyncio.get_running_loop()
    publishers = {
        topic: await loop.run_in_executor(None, Client, broker.port)
        for topic, broker in topics.items()
    }

    def known() -> bool:
        """Publish, and return whether the broker that decides knows how often."""
        for topic, client in publishers.items():
            for _ in range(20):
                client.publish(topic, b"before")
        state = brokers[0].get("/api/v1/placement") or {}
        return bool(state.get("topics", 0) >= len(topics))

    # Brokers read their counters every ten seconds, and are asked for them every ten.
    async with asyncio.timeout(PATIENCE):
        while not await loop.run_in_executor(None, known):
            await asyncio.sleep(0.5)
    return list(publishers.values())


async def test_messages_come_by_a_connection_to_each_broker(brokers: list[Broker]) -> None:
    publishers = await traffic(brokers, {"a": brokers[1], "b": brokers[2]})
    async with running(MultiClient(brokers[0].address, "multi")) as found:
        client = found.client
        await asyncio.gather(client.subscribe("a", 1), client.subscribe("b", 2))
        await eventually(lambda: len(client.connections) == 2, "two connections")
        assert set(client.connections.values()) == {brokers[1].address, brokers[2].address}
        for number in range(50):
            await client.publish("a", b"%d" % number, 1)
            await client.publish("b", b"%d" % number, 2)
        expected = [b"%d" % number for number in range(50)]
        for topic in ("a", "b"):
            await eventually(
                lambda topic=topic: len(found.payloads(topic)) >= 50, f"all messages of {topic}"
            )
            assert [p for p in found.payloads(topic) if p != b"before"] == expected
    for publisher in publishers:
        publisher.close()


async def publishing(
    broker: Broker, topic: str, qos: int, stop: asyncio.Event, name: str
) -> list[bytes]:
    """Publish all the time to a broker that lives; return what it has acknowledged."""
    loop = asyncio.get_running_loop()
    client = await loop.run_in_executor(None, Client, broker.port)
    sent = []
    while not stop.is_set():
        payload = f"{name} {len(sent)}".encode()
        await loop.run_in_executor(None, client.publish, topic, payload, qos)
        sent.append(payload)
        await asyncio.sleep(0.005)  # some hundred a second
    client.close()
    return sent


@pytest.mark.parametrize("qos", [1, 2])
async def test_nothing_is_missed_while_the_broker_of_a_client_dies(
    brokers: list[Broker], qos: int
) -> None:
    """Others publish all the time, at the broker where the client goes on and at another one. The
    dead broker does not come back."""
    addresses = [brokers[2].address, brokers[0].address]
    stop = asyncio.Event()
    async with running(MultiClient(addresses, "multi", sessions=1)) as found:
        await found.client.subscribe("news/+", qos)
        work = [
            asyncio.create_task(publishing(broker, f"news/{name}", qos, stop, name))
            for name, broker in (("a", brokers[0]), ("b", brokers[1]))
        ]
        await eventually(lambda: len(found.messages) >= 40, "messages")
        brokers[2].kill()
        await eventually(lambda: found.client.connections, "it goes on elsewhere")
        after = len(found.messages)
        await eventually(lambda: len(found.messages) >= after + 40, "messages at the other broker")
        stop.set()
        for name, sent in zip("ab", await asyncio.gather(*work), strict=True):
            await eventually(
                lambda name=name, sent=sent: set(sent) <= set(found.payloads(f"news/{name}")),
                lambda name=name, sent=sent: (
                    f"all that was acknowledged: {set(sent) - set(found.payloads(f'news/{name}'))}"
                    f" of {len(sent)} is missing"
                ),
            )
            got = found.payloads(f"news/{name}")
            # paho has no sooner sent a message than its publisher goes on.
            expected = sent if qos == 2 else list(dict.fromkeys(got))
            assert [p for p in dict.fromkeys(got) if p in set(sent)] == sent
            assert len(got) == len(set(got)) or qos == 1, "twice"
            assert expected[: len(sent)] == sent


async def test_messages_wait_at_the_broker_while_the_application_takes_none(
    brokers: list[Broker],
) -> None:
    loop = asyncio.get_running_loop()
    publisher = await loop.run_in_executor(None, Client, brokers[0].port)
    async with MultiClient(brokers[0].address, "multi", sessions=1, max_waiting=10) as client:
        for topic, qos in (("zero", 0), ("one", 1), ("two", 2)):
            await client.subscribe(topic, qos)
            for number in range(50):
                await loop.run_in_executor(None, publisher.publish, topic, b"%d" % number, qos)
        await client.publish("other", b"", 1)  # it is still answered
        assert client._queue.qsize() <= 20
        got: dict[str, list[bytes]] = {"zero": [], "one": [], "two": []}
        async with asyncio.timeout(PATIENCE):
            async for message in client.messages():
                assert client._queue.qsize() <= 20
                got[message.topic].append(message.payload)
                if b"49" in got["one"] and b"49" in got["two"]:
                    break
        assert got["one"] == got["two"] == [b"%d" % number for number in range(50)]
        assert len(got["zero"]) + client.dropped == 50
        assert client.dropped >= 40
    publisher.close()


async def test_without_a_controller_there_is_one_connection(tmp_path: Path) -> None:
    """A broker of another product does not know the topic of questions."""
    with Cluster(tmp_path, "--discovery", "off") as cluster:
        broker = cluster.add().up()
        async with running(MultiClient(broker.address, "multi")) as found:
            await found.client.subscribe("a/#", 1)
            await found.client.publish("a/b", b"1", 1)
            await eventually(lambda: found.payloads("a/b") == [b"1"], "the message")
            assert found.client.connections == {"multi": broker.address}
            await found.client.unsubscribe("a/#")
            await found.client.publish("a/b", b"2", 1)
            await found.client.subscribe("c", 1)
            await found.client.publish("c", b"3", 1)
            await eventually(lambda: found.payloads("c") == [b"3"], "the message")
            assert found.payloads("a/b") == [b"1"]


async def test_a_filter_that_is_refused_raises(tmp_path: Path) -> None:
    with Cluster(tmp_path, "--discovery", "off") as cluster:
        broker = cluster.add().up()
        async with MultiClient(broker.address, "multi") as client:
            with pytest.raises((SubscriptionRefusedError, ValueError)):
                await client.subscribe("a/" * 300, 1)
            await client.subscribe("a", 1)


async def test_a_client_without_any_broker_says_so() -> None:
    with pytest.raises(ConnectionLostError):
        await MultiClient("127.0.0.1:1", "multi").start()


@pytest.mark.parametrize("address", ["", ":1", "a:b", "a:0", "a:70000"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="no HOST:PORT"):
        split_address(address)


def test_addresses_are_split() -> None:
    assert split_address("a") == ("a", 1883)
    assert split_address("a:1") == ("a", 1)
    assert split_address("[::1]:2") == ("::1", 2)
    assert split_address("[::1]") == ("::1", 1883)
