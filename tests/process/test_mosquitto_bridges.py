"""A real Mosquitto that is bridged to real brokers with the fewest lines that its file needs."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.kit.brokers import Broker, Cluster
from tests.kit.clients import Client, clients
from tests.kit.foreign import MOSQUITTO, MosquittoBroker, bridge
from tests.kit.waiting import until

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="Mosquitto is not installed")

VERSIONS = pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv50"])


def bridged(broker: Broker, number: int = 1) -> None:
    """Wait until so many bridges have subscribed at a broker."""
    until(lambda: broker.view()["subscriptions"] >= number, f"{number} bridges")


def mark(sender: Client, receiver: Client) -> None:
    """Wait until a last message has come from the one to the other: all before it has, too."""
    before = len(receiver.payloads("mark"))
    sender.done(sender.publish("mark", b"", 2))
    receiver.got(before + 1, "mark")


@VERSIONS
def test_a_stock_bridge_carries_each_message_once_both_ways(tmp_path: Path, version: str) -> None:
    with Cluster(tmp_path / "ours") as cluster, clients() as make:
        broker = cluster.add().up()
        lines = bridge("up", broker.port)
        if version != "mqttv311":
            lines = (*lines, f"bridge_protocol_version {version}")
        with MosquittoBroker(tmp_path, "theirs", *lines) as foreign:
            bridged(broker)
            here, there = make(broker.port, client_id="h"), make(foreign.port, client_id="t")
            here.subscribe("#", 2)
            there.subscribe("#", 2)
            for number in range(100):
                here.publish(f"here/{number % 7}", b"%d" % number, number % 3)
                there.publish(f"there/{number % 7}", b"%d" % number, number % 3)
            for client in (here, there):
                got = client.got(200)
                assert Counter(got) == {b"%d" % number: 2 for number in range(100)}
            mark(here, there)
            mark(there, here)
            assert {len(client.payloads("here")) for client in (here, there)} == {100}
            assert {len(client.payloads("there")) for client in (here, there)} == {100}
            qos = {(m.topic[:4], m.qos) for m in here.messages if m.topic != "mark"}
            assert {("ther", 0), ("ther", 1), ("ther", 2)} <= qos
            assert not broker.lines("refused") + broker.lines("closed")


@VERSIONS
def test_retained_messages_stay_retained_over_a_stock_bridge(tmp_path: Path, version: str) -> None:
    """Those that were there before it connects, and those that are published later."""
    with Cluster(tmp_path / "ours") as cluster, clients() as make:
        broker = cluster.add().up()
        here = make(broker.port)
        here.done(here.publish("old/here", b"1", 2, retain=True))
        stored = ("persistence true", f"persistence_location {tmp_path}/")
        with MosquittoBroker(tmp_path, "theirs", *stored) as foreign:
            there = make(foreign.port)
            there.done(there.publish("old/there", b"2", 2, retain=True))
            foreign.end(signal.SIGTERM)
            lines = (*bridge("up", broker.port), f"bridge_protocol_version {version}")
            foreign.configure(*stored, *lines)
            foreign.start()
            bridged(broker)
            there = make(foreign.port)
            there.done(there.publish("new/there", b"4", 1, retain=True))
            here.done(here.publish("new/here", b"3", 1, retain=True))
            wanted = {"old/here": b"1", "old/there": b"2", "new/here": b"3", "new/there": b"4"}

            def retained(port: int) -> dict[str, bytes]:
                client = make(port).subscribed("+/+", 2)
                client.done(client.publish("end", b"", 2))
                return {m.topic: bytes(m.payload) for m in client.messages if m.retain}

            for port in (broker.port, foreign.port):
                until(lambda port=port: retained(port) == wanted, "all that is retained")
            here.done(here.publish("old/there", b"", 1, retain=True))
            del wanted["old/there"]
            for port in (broker.port, foreign.port):
                until(lambda port=port: retained(port) == wanted, "the deletion")


def rings(broker: Broker) -> list[str]:
    """Return the lines about rings that a broker has logged."""
    return broker.lines("WARNING", "lead to one broker, so that messages go round")


def loop(client: Client, counted: Broker) -> None:
    """Publish one message, which goes round until the ring is found."""
    client.done(client.publish("round", b"x", 2))
    until(lambda: counted.counter("bridge_loops") == 1, "a ring that is found")


def once(sender: Client, receivers: list[Client]) -> None:
    """Once a ring is open, each message comes once again."""
    wanted = [b"%d" % number for number in range(50)]
    sender.done(*(sender.publish("after", payload, 2) for payload in wanted))
    sender.done(sender.publish("mark", b"", 2))
    for receiver in receivers:
        receiver.got(1, "mark")
        assert receiver.payloads("after") == wanted
        assert len(receiver.payloads("mark")) == 1


def test_a_ring_of_two_mosquittos_that_are_bridged_to_each_other_is_opened(tmp_path: Path) -> None:
    with Cluster(tmp_path / "ours") as cluster, clients() as make:
        broker = cluster.add().up()
        with (
            MosquittoBroker(tmp_path, "one", *bridge("one", broker.port)) as one,
            MosquittoBroker(
                tmp_path, "two", *bridge("two", broker.port), *bridge("aside", one.port)
            ) as two,
        ):
            bridged(broker, 2)
            at_one, at_two = make(one.port), make(two.port)
            loop(at_one, broker)
            assert len(rings(broker)) == 1
            here = make(broker.port)
            for client in (here, at_one, at_two):
                client.subscribe("after", 2)
                client.subscribe("mark", 2)
            once(at_two, [here, at_one, at_two])
