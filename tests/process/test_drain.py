"""`mqttree drain` and restarts one after the other, with real processes: no client that stays
elsewhere misses anything."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from mqttree.broker.wire import Disconnect
from mqttree.broker.wire.properties import Property
from tests.kit.api import ask
from tests.kit.brokers import Broker, Cluster
from tests.kit.clients import Client, clients, repeated
from tests.kit.command import mqttree
from tests.kit.raw_client import RawClient
from tests.kit.waiting import PATIENCE, until

PAUSE = 0.005
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
        four, there = make(one.port, protocol=4), make(two.port)
        four.subscribe("#", 1)
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


# -------------------------------------------------------------------- one after the other


class Stream:
    """A client that publishes until it is stopped or disconnected: QoS 1 and 2 in turn, each
    message once."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self.sent: dict[int, tuple[int, bytes]] = {}  # packet identifier -> QoS, payload
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(PAUSE) and not self.client.lost.is_set() and number < 60_000:
            number += 1
            payload, qos = f"{self.name} {number}".encode(), 1 + number % 2
            self.sent[self.client.publish(f"load/{self.name}", payload, qos)] = qos, payload

    def end(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)

    def acknowledged(self, qos: int) -> list[bytes]:
        """Payloads that a broker took over."""
        return [
            payload
            for mid, (found, payload) in self.sent.items()
            if found == qos and mid in self.client.acknowledged
        ]


class Faithful:
    """paho that comes back to its broker on its own, and publishes what it has to."""

    def __init__(self, port: int, name: str) -> None:
        self.acknowledged: list[bytes] = []
        self._payloads: dict[int, bytes] = {}
        self.times = 0
        version = paho.MQTTProtocolVersion.MQTTv311
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2, name, protocol=version, clean_session=True
        )
        self.paho.reconnect_delay_set(1, 1)
        self.paho.on_connect = self._on_connect
        self.paho.on_publish = lambda _c, _d, mid, _r, _p: self.acknowledged.append(
            self._payloads[mid]
        )
        self.paho.connect("127.0.0.1", port)
        self.paho.loop_start()
        until(lambda: self.times, "connected")

    def _on_connect(self, *found: object) -> None:
        self.times += 1

    def publish(self, payload: bytes) -> None:
        info = self.paho.publish("load/faithful", payload, 1)
        self._payloads[info.mid] = payload

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


def drained_and_back(leaving: Broker, faithful: Faithful, streams: dict[Broker, Stream]) -> None:
    """Drain a broker and start it again while all publish."""
    for number in range(50):
        faithful.publish(f"before {number}".encode())
    until(lambda: all(len(stream.sent) > 100 for stream in streams.values()), "some traffic")
    done = command(leaving)
    assert (done.returncode, done.stderr) == (0, "")
    assert ended(leaving) == 0
    said = leaving.lines("drained in")[-1:]
    assert said and "left are" not in said[0]
    for number in range(50):
        faithful.publish(f"meanwhile {number}".encode())
    leaving.start().up()


def all_arrived(watchers: list[Client], faithful: Faithful, streams: dict[Broker, Stream]) -> None:
    """What was acknowledged is with those who stayed connected, at QoS 2 once."""
    due = [
        payload
        for stream in streams.values()
        for qos in (1, 2)
        for payload in stream.acknowledged(qos)
    ]
    due += faithful.acknowledged
    assert len(due) > 300
    once = {
        payload for stream in streams.values() for qos, payload in stream.sent.values() if qos == 2
    }
    for watcher in watchers:
        until(
            lambda w=watcher: set(due) <= set(w.payloads()), f"all of {len(due)} at {watcher.port}"
        )
        assert not watcher.lost.is_set()
        assert not once.intersection(repeated(watcher.payloads()))


@pytest.mark.parametrize(
    "routing",
    [
        pytest.param("flood", marks=pytest.mark.long),
        pytest.param("interest", marks=pytest.mark.long),
        "topic",
    ],
)
def test_a_rolling_restart_loses_nothing_for_clients_elsewhere(
    cluster: Cluster, routing: str
) -> None:
    """Each of three brokers is drained and started again; clients of the others get all that was
    acknowledged."""
    brokers = [cluster.add("--routing", routing) for _ in range(3)]
    for broker in brokers:
        broker.up()
    for leaving in brokers:
        cluster.agree()
        with clients() as make:
            watchers = {
                broker: make(broker.port, client_id=f"watcher {broker.name}") for broker in brokers
            }
            for watcher in watchers.values():
                watcher.subscribe("load/#", 2)
            hello = make(leaving.port)
            stay = [watcher for broker, watcher in watchers.items() if broker is not leaving]
            until(
                lambda hello=hello, stay=stay: (
                    hello.publish("load/hello", "x") and all(w.payloads() for w in stay)
                ),
                "carried",
            )
            faithful = Faithful(leaving.port, "faithful")
            streams = {broker: Stream(make(broker.port), broker.name) for broker in brokers}
            try:
                drained_and_back(leaving, faithful, streams)
                cluster.agree()
                until(
                    lambda faithful=faithful: len(set(faithful.acknowledged)) == 100,
                    "the faithful client is back",
                )
            finally:
                for stream in streams.values():
                    stream.end()
                faithful.close()
            going = [stream for broker, stream in streams.items() if broker is not leaving]
            until(
                lambda going=going: all(s.client.acknowledged.issuperset(s.sent) for s in going),
                "acknowledgements",
            )
            all_arrived(stay, faithful, streams)
