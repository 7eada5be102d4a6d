"""Legs that get bad input, and options that only a real connection shows. More of both, without
sockets: tests/unit/leg."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from mqttree.bench.lab import launcher
from tests.kit.brokers import Cluster
from tests.kit.clients import clients
from tests.kit.foreign import MOSQUITTO, MosquittoBroker
from tests.kit.waiting import until
from tests.process.certificates import Authority
from tests.process.test_leg_faults import gateway
from tests.process.test_legs import legs, up, url

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="Mosquitto is not installed")


def test_a_rule_that_cannot_be_is_refused_in_one_line() -> None:
    command = launcher.gateway("--broker", "mqtt://127.0.0.1:1", "--topic", "$share/g/# in")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    (line,) = (done.stdout + done.stderr).strip().splitlines()
    assert "$share" in line and "Traceback" not in line


def test_a_leg_asks_for_the_protocol_that_is_set(tmp_path: Path) -> None:
    """What listens is no broker: it notes the protocol that TLS has agreed on, and closes."""
    authority = Authority(tmp_path / "ca")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("theirs"))
    context.set_alpn_protocols(["mqtt", "http/1.1"])
    listener = socket.create_server(("127.0.0.1", 0))
    found: list[str | None] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with context.wrap_socket(connection, server_side=True) as secured:
            found.append(secured.selected_alpn_protocol())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with Cluster(tmp_path / "ours") as cluster, listener:
        where = f"mqtts://127.0.0.1:{listener.getsockname()[1]}"
        flags = ("--discovery", "off", "--cafile", str(authority.ca), "--alpn", "mqtt")
        broker = gateway(cluster, "g", where, *flags)
        until(lambda: found, "a connection")
        assert found == ["mqtt"]
        until(lambda: legs(broker)["g"]["last_error"], "a connection that is lost")


def test_a_leg_sends_no_faster_than_it_may(tmp_path: Path) -> None:
    """How long messages take at least follows from the rate, on a machine of any speed."""
    rate, count = 50, 150
    with (
        Cluster(tmp_path / "ours") as cluster,
        MosquittoBroker(tmp_path, "theirs") as foreign,
        clients() as make,
    ):
        flags = ("--discovery", "off", "--max-rate", str(rate))
        broker = gateway(cluster, "g", url(foreign.port), *flags)
        up(broker, "g")
        here, there = make(broker.port), make(foreign.port)
        there.subscribe("t", 1)
        sent = [b"%d" % number for number in range(count)]
        here.done(*[here.publish("t", payload, 1) for payload in sent])
        assert there.got(count) == sent
        times = [message.timestamp for message in there.messages]
        # A second's worth is in flight at most, and a tenth of it was saved up.
        assert times[-1] - times[0] >= (count - 1.2 * rate) / rate / 2
