"""Brokers with standbys, that are killed with their data directories."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.brokers import Broker, Cluster
from tests.kit.clients import clients
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
        client = make(first.port, client_id="c", clean=False, expiry=600)
        client.subscribe("t", 2)
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


def test_a_device_whose_broker_is_gone_is_offline(cluster: Cluster) -> None:
    with clients() as make:
        watcher = make(cluster.brokers[1].port)
        watcher.subscribe("dev/+", 1)
        for name, clean in (("clean", True), ("kept", False)):
            will = (f"dev/{name}", b"offline", 1, True)
            make(
                cluster.brokers[0].port,
                client_id=name,
                clean=clean,
                expiry=0 if clean else 600,
                will=will,
            )
        kill(cluster.brokers[0])
        watcher.got(2)
        assert {message.topic for message in watcher.messages} == {"dev/clean", "dev/kept"}
