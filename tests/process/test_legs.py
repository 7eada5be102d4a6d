"""`mqttree federate` beside a real Mosquitto."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mqttree.bench.lab.ports import free_ports
from tests.kit.api import ask, get
from tests.kit.brokers import Broker, Cluster
from tests.kit.clients import clients
from tests.kit.foreign import AMQTT, MOSQUITTO, AmqttBroker, MosquittoBroker
from tests.kit.waiting import until
from tests.process.certificates import Authority

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="Mosquitto is not installed")


class Gateway(Broker):
    """A broker with a leg to a foreign one."""

    foreign = ""

    def start(self) -> Broker:
        """Start it; `up` waits until it answers."""
        self.command = [
            sys.executable,
            "-m",
            "mqttree.broker.cli",
            "federate",
            "--broker",
            self.foreign,
            *self.flags,
        ]
        self.launch()
        return self


def url(port: int) -> str:
    return f"mqtt://127.0.0.1:{port}"


def text_of(broker: Broker, path: str) -> str:
    """What the admin port answers."""
    connection = http.client.HTTPConnection("127.0.0.1", broker.admin, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def legs(broker: Broker) -> dict[str, dict[str, Any]]:
    """The state of each leg, by name."""
    return {leg["name"]: leg for leg in get(broker.admin, "/legs")["legs"]}


def up(broker: Broker, *names: str) -> None:
    """Wait until exactly these legs are there, and up."""
    until(
        lambda: {n: leg["state"] for n, leg in legs(broker).items()} == dict.fromkeys(names, "up"),
        f"legs {names} are up",
    )


def test_a_leg_with_tls_and_a_password(tmp_path: Path) -> None:
    """The password is read again for each connection."""
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("theirs")
    users, password = tmp_path / "users", tmp_path / "password"
    subprocess.run(["mosquitto_passwd", "-b", "-c", users, "anna", "right"], check=True)
    users.chmod(0o600)
    password.write_text("wrong\n")
    password.chmod(0o600)
    (port,) = free_ports(1)
    secured = (
        f"listener {port} 127.0.0.1",
        f"certfile {certificate}",
        f"keyfile {key}",
        "allow_anonymous false",
        f"password_file {users}",
    )
    with (
        Cluster(tmp_path / "ours") as cluster,
        MosquittoBroker(tmp_path, "theirs", *secured),
        clients() as make,
    ):
        flags = ["--discovery", "off", "--password-file", str(password)]
        gateway = Gateway(
            cluster.folder, "g", [*flags, "--cafile", str(authority.ca)], cluster=cluster.cluster
        )
        gateway.foreign = f"mqtts://anna@127.0.0.1:{port}"
        cluster.brokers.append(gateway)
        gateway.start().up()
        until(lambda: legs(gateway)["g"]["last_error"], "a refusal")
        assert "it refuses: not authorized (code 0x87)" in legs(gateway)["g"]["last_error"]
        password.write_text("right\n")
        up(gateway, "g")
        here = make(gateway.port)
        there = make(port, ca=authority.ca, user=("anna", "right"))
        here.subscribe("a", 2)
        there.subscribe("b", 2)
        there.publish("a", b"1", 2)
        here.publish("b", b"2", 2)
        assert here.got(1) == [b"1"]
        assert there.got(1) == [b"2"]


def test_legs_of_a_file_are_reloaded_and_shown(tmp_path: Path) -> None:
    with (
        Cluster(tmp_path / "ours") as cluster,
        MosquittoBroker(tmp_path, "one") as one,
        MosquittoBroker(tmp_path, "two") as two,
        clients() as make,
    ):
        file = tmp_path / "broker.yaml"

        def write(*sections: str) -> None:
            file.write_text("\n".join(["legs:", *sections]) + "\n")

        first = f"  one: {{broker: '{url(one.port)}', topic: 'a/# both 2'}}"
        write(first)
        broker = Broker(
            cluster.folder, "b", ["--discovery", "off", "-c", str(file)], cluster=cluster.cluster
        )
        cluster.brokers.append(broker)
        broker.start().up()
        up(broker, "one")
        write(first, f"  two: {{broker: '{url(two.port)}', topic: 'a/# in 1 \"\" x/'}}")
        broker.signal(signal.SIGHUP)
        up(broker, "one", "two")
        assert legs(broker)["one"]["connects"] == 1
        here, at_one, at_two = (make(port) for port in (broker.port, one.port, two.port))
        here.subscribe("a/#", 2)
        at_one.publish("a/1", b"1", 2)
        at_two.publish("x/a/2", b"2", 2)
        at_two.publish("a/3", b"3", 2)
        assert sorted(here.got(2)) == [b"1", b"2"]
        assert text_of(broker, "/healthz") == "ok\nleg one: up\nleg two: up\n"
        labels = f'{{leg="one",broker="{url(one.port)}"}}'
        metrics = text_of(broker, "/metrics")
        assert f"mqttree_leg_up{labels} 1" in metrics
        assert f"mqttree_leg_messages_in_total{labels} 1" in metrics
        shown = subprocess.run(
            [
                sys.executable,
                "-m",
                "mqttree.broker.cli",
                "status",
                "--admin",
                f"127.0.0.1:{broker.admin}",
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert f"one ({url(one.port)})  up (MQTT 5), in 1, out 1" in shown
        write("  two: {broker: h, topic: 'a sideways'}")
        broker.signal(signal.SIGHUP)
        until(lambda: broker.lines("cannot reload", "'sideways'"), "a refusal")
        up(broker, "one", "two")
        file.write_text("legs:\n" + first + "\n")
        assert ask(broker.admin, "POST", "/reload") == (202, {"done": True})
        up(broker, "one")
        assert legs(broker)["one"]["connects"] == 1
        assert broker.view()["sessions"] == 2


@pytest.mark.skipif(AMQTT is None, reason="amqtt is not installed")
def test_a_foreign_broker_that_refuses_the_bit_of_a_bridge_is_connected_to(tmp_path: Path) -> None:
    """amqtt gives no answer to it."""
    with Cluster(tmp_path / "ours") as cluster, AmqttBroker(tmp_path, "theirs") as foreign:
        flags = ["--discovery", "off", "--mqtt", "3.1.1"]
        gateway = Gateway(cluster.folder, "g", flags, cluster=cluster.cluster)
        gateway.foreign = url(foreign.port)
        cluster.brokers.append(gateway)
        gateway.start().up()
        up(gateway, "g")
        assert gateway.lines("leg g to", "is up (MQTT 3.1.1 without the bit of a bridge)")


def rest(gateways: list[Gateway]) -> None:
    """Wait until no message comes in any more."""
    crossed = [-1, 0]

    def rests() -> bool:
        crossed.append(sum(legs(g)[g.name]["messages_in"] for g in gateways))
        return crossed[-1] == crossed[-2] == crossed[-3]

    until(rests, "rest")
