"""Brokers with standbys, that are killed with their data directories."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttree.broker.wire.packets import Connack, Connect, Pubcomp, Publish, Pubrec, Pubrel, Will
from mqttree.broker.wire.properties import Property
from tests.kit.brokers import Broker, Cluster
from tests.kit.clients import clients
from tests.kit.raw_client import RawClient
from tests.kit.waiting import until


@pytest.fixture(params=[True, False], ids=["data", "no data"])
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    config = tmp_path / "replicas.yaml"
    config.write_text("federation: {replicas: 1, standby-hosts: any}\n")
    with Cluster(tmp_path, "--config", str(config)) as found:
        for _ in range(3):
            found.add(data=request.param)
        found.agree()
        for broker in found.brokers:
            until(broker.has_standby, f"{broker.name} has a standby")
        yield found
        found.show()


def kill(broker: Broker) -> None:
    """Kill a broker, with its data directory."""
    broker.kill()
    shutil.rmtree(broker.data_dir, ignore_errors=True)


@pytest.mark.parametrize("where", [1, 2])
@pytest.mark.parametrize("away", [True, False])
def test_a_client_finds_its_session_elsewhere_when_its_broker_is_gone(
    cluster: Cluster, where: int, away: bool
) -> None:
    """One of the others is the standby, one is not."""
    first, other = cluster.brokers[0], cluster.brokers[where]
    with clients() as make:
        publisher = make(other.port)
        client = make(first.port, client_id="c", clean=False, expiry=600).subscribed("t", 2)
        publisher.done(publisher.publish("t", b"first", 2))
        client.got(1, "t")
        if away:
            client.close()
            publisher.done(*[publisher.publish("t", b"%d" % n, 2) for n in range(20)])
        kill(first)
        if away:
            publisher.done(*[publisher.publish("t", b"%d" % n, 2) for n in range(20, 40)])
        client = make(other.port, client_id="c", clean=False, expiry=600)
        assert client.session_present
        publisher.done(publisher.publish("t", b"last", 2))
        client.got(41 if away else 1, "t")
        wanted = [b"%d" % n for n in range(40)] if away else []
        assert client.payloads("t") == [*wanted, b"last"]


WILL = Will("will", b"gone", 1, False)


def enter(port: int) -> tuple[RawClient, Connack]:
    """Connect a client that answers by hand."""
    client = RawClient(port)
    keeps = {Property.SESSION_EXPIRY_INTERVAL: 600}
    client.send(Connect("MQTT", 5, False, 0, "c", None, None, WILL, keeps))
    return client, client.wait(Connack)


@pytest.mark.parametrize("where", [1, 2])
def test_a_broker_that_hangs_leaves_a_session_to_the_one_that_has_it(
    cluster: Cluster, where: int
) -> None:
    """Its client goes while messages are in flight in both directions."""
    hung, other, third = cluster.brokers[0], cluster.brokers[where], cluster.brokers[3 - where]
    with clients() as make:
        watcher, publisher = make(third.port).subscribed("up", 2), make(third.port)
        watcher.subscribe("will", 1)
        old, _ = enter(hung.port)
        assert old.subscribe("t", qos=2) == [2]
        publisher.done(*[publisher.publish("t", payload, 2) for payload in (b"0", b"1")])
        sent, released = (old.wait(Publish) for _ in range(2))
        old.send(Pubrec(released.packet_id))
        assert old.wait(Pubrel).packet_id == released.packet_id
        old.send(Publish("up", b"answered", 2, False, False, 76))
        old.wait(Pubrec)

        hung.process.send_signal(signal.SIGSTOP)
        goes_on = time.monotonic() + 4
        old.send(Publish("up", b"unread", 2, False, False, 77))
        publisher.done(publisher.publish("t", b"2", 2))
        client, connack = enter(other.port)
        assert connack.session_present
        again = client.wait(Publish)
        assert (again.payload, again.packet_id, again.dup) == (sent.payload, sent.packet_id, True)
        assert client.wait(Pubrel).packet_id == released.packet_id
        client.send(Publish("up", b"answered", 2, False, True, 76))
        client.send(Publish("up", b"unread", 2, False, True, 77))
        for _ in range(2):
            client.send(Pubrel(client.wait(Pubrec).packet_id))
        time.sleep(max(0.0, goes_on - time.monotonic()))
        hung.process.send_signal(signal.SIGCONT)

        assert old.closed() == 0
        until(lambda: hung.counter("fences") == 1, "it has heard of the fence")
        assert hung.counter("doubts") == 1
        client.send(Pubrec(again.packet_id), Pubcomp(released.packet_id))
        publisher.done(publisher.publish("t", b"3", 2))
        payloads = [client.wait(Publish).payload for _ in range(2)]
        assert payloads == [b"2", b"3"]
        watcher.got(2, "up")
        cluster.settle()
        assert sorted(watcher.payloads("up")) == [b"answered", b"unread"]
        assert watcher.payloads("will") == []
        assert client.packets == [] or not any(isinstance(p, Publish) for p in client.packets)
        old.close()
        client.close()


@pytest.mark.parametrize("pause", [0.0, 0.5])
def test_a_client_finds_its_session_when_its_broker_and_the_first_of_two_standbys_are_gone(
    tmp_path: Path, pause: float
) -> None:
    config = tmp_path / "replicas.yaml"
    config.write_text("federation: {replicas: 2, standby-hosts: any}\n")
    with Cluster(tmp_path, "--config", str(config)) as cluster, clients() as make:
        brokers = [cluster.add(data=True) for _ in range(4)]
        cluster.agree()

        def standbys(broker: Broker) -> list[Broker]:
            ids = [each["id"] for each in broker.view()["standby"]["standbys"]]
            return [next(b for b in brokers if b.view()["id"] == one) for one in ids]

        for broker in brokers:
            until(lambda b=broker: len(standbys(b)) == 2, f"{broker.name} has two standbys")
        owner = brokers[0]
        first, second = standbys(owner)
        [other] = [broker for broker in brokers if broker not in (owner, first, second)]
        publisher = make(other.port)
        client = make(owner.port, client_id="c", clean=False, expiry=600).subscribed("t", 2)
        client.close()
        publisher.done(*[publisher.publish("t", b"%d" % n, 2) for n in range(20)])
        kill(owner)
        time.sleep(pause)
        kill(first)
        publisher.done(*[publisher.publish("t", b"%d" % n, 2) for n in range(20, 40)])
        client = make(other.port, client_id="c", clean=False, expiry=600)
        assert client.session_present
        client.got(40, "t")
        assert client.payloads("t") == [b"%d" % n for n in range(40)]
        cluster.show()
