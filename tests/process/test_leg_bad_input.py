"""Legs that get bad input: each time one clear line, a counter, nothing lost, and no busy loop."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from mqttree.bench.lab import launcher
from tests.kit.brokers import Broker, Cluster
from tests.kit.clients import clients
from tests.kit.foreign import MOSQUITTO, MosquittoBroker
from tests.kit.waiting import until
from tests.process.certificates import Authority
from tests.process.test_leg_faults import gateway
from tests.process.test_legs import legs, text_of, up, url

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="Mosquitto is not installed")


def metric(broker: Broker, text: str) -> bool:
    """Whether the page of metrics has a line that begins so and does not end with 0."""
    lines = text_of(broker, "/metrics").splitlines()
    return any(line.startswith(text) and not line.endswith(" 0") for line in lines)


def test_a_rule_that_cannot_be_is_refused_in_one_line() -> None:
    command = launcher.gateway("--broker", "mqtt://127.0.0.1:1", "--topic", "$share/g/# in")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    (line,) = (done.stdout + done.stderr).strip().splitlines()
    assert "$share" in line and "Traceback" not in line


def test_a_filter_that_the_foreign_broker_refuses_is_named_and_all_else_works(
    tmp_path: Path,
) -> None:
    """The foreign broker is one of another federation, whose rules do not let the leg read all."""
    rules = tmp_path / "rules"
    rules.write_text("anonymous\nallow all a/#\nallow all mqttree/#\n")
    config = tmp_path / "foreign.yaml"
    config.write_text(f"access:\n  anonymous: yes\n  rules: {rules}\n")
    with (
        Cluster(tmp_path / "theirs") as theirs,
        Cluster(tmp_path / "ours") as ours,
        clients() as make,
    ):
        foreign = theirs.add("--discovery", "off", "-c", str(config)).up()
        two = ("--topic", "a/# both 1", "--topic", "secret/# both 1")
        broker = gateway(ours, "g", url(foreign.port), "--discovery", "off", *two)
        up(broker, "g")
        assert len(broker.lines("leg g: the foreign broker refuses the filter 'secret/#'")) == 1
        assert legs(broker)["g"]["refused_filters"] == ["secret/#"]
        assert "secret/#" in text_of(broker, "/healthz")
        here, there = make(broker.port), make(foreign.port)
        here.subscribe("#", 1)
        there.done(there.publish("a/1", b"1", 1))
        assert here.got(1, "a/") == [b"1"]
        here.done(here.publish("secret/1", b"2", 1))
        until(lambda: legs(broker)["g"]["dropped"]["refused_there"] == 1, "a refusal")
        until(lambda: broker.lines("leg g: the foreign broker refuses messages"), "a line")
        assert metric(broker, "mqttree_leg_dropped_total")
        assert legs(broker)["g"]["failures"] == 0


def test_a_foreign_broker_that_hangs_loses_nothing(tmp_path: Path) -> None:
    """It is silent for longer than the keep-alive, and then goes on."""
    with (
        Cluster(tmp_path / "ours") as cluster,
        MosquittoBroker(tmp_path, "theirs") as foreign,
        clients() as make,
    ):
        flags = ("--discovery", "off", "--keep-alive", "5")
        broker = gateway(cluster, "g", url(foreign.port), *flags)
        up(broker, "g")
        here, there = make(broker.port), make(foreign.port, client_id="c", clean=False, expiry=600)
        there.subscribe("t", 2)
        foreign.pause()
        sent = [b"%d" % number + bytes(5_000) for number in range(200)]
        here.done(*[here.publish("t", payload, 2) for payload in sent])
        until(lambda: broker.lines("leg g to", "it is silent"), "a silent broker")
        foreign.resume()
        up(broker, "g")
        assert there.got(200) == sent
        assert len(broker.lines("leg g to", "it is silent")) == 1
        assert metric(broker, "mqttree_leg_failures_total")


def test_two_gateways_of_one_name_in_two_federations_take_turns_slowly(tmp_path: Path) -> None:
    with (
        Cluster(tmp_path / "ours") as cluster,
        MosquittoBroker(tmp_path, "theirs") as foreign,
    ):
        same = ("--discovery", "off", "--name", "plant")
        first = gateway(cluster, "g", url(foreign.port), *same)
        up(first, "plant")
        second = gateway(cluster, "h", url(foreign.port), *same)
        up(second, "plant")
        # Mosquitto 2.0 does not say that another client has the session.
        words = "another client may be 'mqttree-plant'"

        def named() -> list[str]:
            return first.lines("leg plant", words) + second.lines("leg plant", words)

        line = until(named, "a line", 120)[0]
        assert int(line.split("dialled again in ")[1].split()[0]) >= 15


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
