"""`mqttree drain` and restarts one after the other, with real processes: no client that stays
elsewhere misses anything."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttree.broker.wire.packets import Disconnect
from mqttree.broker.wire.properties import Property
from tests.kit.api import ask
from tests.kit.brokers import Broker, Cluster
from tests.kit.clients import clients
from tests.kit.command import mqttree
from tests.kit.raw_client import RawClient
from tests.kit.waiting import PATIENCE, until

"""s between two messages of a publisher."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as found:
        yield found


def command(broker: Broker, *flags: str) -> subprocess.CompletedProcess[str]:
    """mqttree drain."""
    return mqttree("drain", "--admin", f"127.0.0.1:{broker.admin}", *flags)


def ended(broker: Broker) -> int:
    assert broker.process is not None
    return broker.process.wait(PATIENCE)


def test_draining_sends_clients_to_the_other_brokers(cluster: Cluster) -> None:
    one, two = (cluster.add() for _ in range(2))
    cluster.agree([one.up(), two.up()])
    raw = RawClient(one.port, "five")
    with clients() as make:
        four, there = make(one.port, protocol=4).subscribed("#", 1), make(two.port)
        there.subscribe("#", 1)
        make(one.port).probe("probe", lambda: there.payloads("probe"))
        done = command(one)
        assert (done.returncode, done.stderr) == (0, "")
        assert (
            done.stdout.splitlines()[0].startswith("clients: ")
            and done.stdout.splitlines()[-1] == "gone"
        )
        assert ended(one) == 0
        farewell = raw.take()
        assert isinstance(farewell, Disconnect) and farewell.reason == 0x9C
        assert (farewell.properties or {})[Property.SERVER_REFERENCE] == two.address
        assert four.lost.wait(PATIENCE)
        assert not there.lost.is_set()
    assert len(one.lines("drained in", "3 clients sent away")) == 1
    assert not one.lines("left are")
    assert two.lines("link to b0", "closed by the other broker (0x8b)")


def test_a_drain_is_refused_from_elsewhere_shows_its_state_and_can_be_ended(
    cluster: Cluster,
) -> None:
    broker = cluster.add("--discovery", "off").up()
    assert broker.view()["draining"] is False
    assert ask(broker.admin, "GET", "/drain")[0] == 405
    for query, error in (
        ("rate=fast", "rate: 'fast' is not a number from 0.01 to 1e+06"),
        ("to=", "address '': host is empty"),
    ):
        assert ask(broker.admin, "POST", f"/drain?{query}") == (400, {"error": error})
    itself = (("--to", broker.address), ("--to", f"127.0.0.1:{broker.admin}"))
    for flags in (("--rate", "0"), ("--to", "0.0.0.0:1"), ("--within", "soon"), *itself):
        done = command(broker, *flags)
        assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert broker.view()["draining"] is False
    with clients() as make:
        held = [make(broker.port) for _ in range(3)]
        done = command(broker, "--rate", "0.01", "--no-wait")
        assert done.returncode == 0 and done.stdout.startswith("clients: ")
        view = until(
            lambda: (v := broker.view())["drain"]["clients_left"] == 2 and v,
            "the first one is disconnected",
        )
        assert view["draining"] is True and view["drain"]["state"] == "clients"
        status = mqttree("status", "--admin", f"127.0.0.1:{broker.admin}")
        assert "draining clients: waits for 2 clients, " in status.stdout
        status_code, state = ask(broker.admin, "POST", "/drain")
        assert status_code == 202 and state["draining"] is True
        assert ended(broker) == 0
        assert all(client.lost.wait(PATIENCE) for client in held)
    assert len(broker.lines("WARNING", "asked again to finish, left are 2 clients")) == 1
    assert command(broker).returncode == 1


def test_a_signal_stops_a_broker_that_drains(cluster: Cluster) -> None:
    broker = cluster.add("--discovery", "off").up()
    with clients() as make:
        make(broker.port), make(broker.port)
        assert command(broker, "--rate", "0.01", "--no-wait").returncode == 0
        assert broker.terminate() == 0
