"""Legs that get bad input, and options that only a real connection shows. More of both, without
sockets: tests/unit/leg."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from mqttree.bench.lab import launcher
from mqttree.broker.leg.poison import ROW
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
        here, there = make(broker.port), make(foreign.port).subscribed("t", 1)
        sent = [b"%d" % number for number in range(count)]
        here.done(*[here.publish("t", payload, 1) for payload in sent])
        assert there.got(count) == sent
        times = [message.timestamp for message in there.messages]
        # A second's worth is in flight at most, and a tenth of it was saved up.
        assert times[-1] - times[0] >= (count - 1.2 * rate) / rate / 2


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_what_mosquitto_refuses_is_dropped_and_the_rest_crosses(
    version: str, tmp_path: Path
) -> None:
    """At MQTT 5 it answers 0x95."""
    with (
        Cluster(tmp_path / "ours") as cluster,
        MosquittoBroker(tmp_path, "theirs", "message_size_limit 100") as foreign,
        clients() as make,
    ):
        broker = gateway(cluster, "g", url(foreign.port), "--discovery", "off", "--mqtt", version)
        up(broker, "g")
        here, there = make(broker.port), make(foreign.port).subscribed("t/#", 2)
        for qos in (1, 2):
            here.done(here.publish(f"t/{qos}", bytes(200), qos))
            here.done(here.publish(f"t/{qos}", b"%d" % qos, qos))
        assert there.got(2) == [b"1", b"2"]
        until(lambda: legs(broker)["g"]["queued"] == 0, "an empty queue")
        leg = legs(broker)["g"]
        assert (leg["connects"], leg["failures"], leg["state"]) == (1, 0, "up")
        if version == "5":
            assert leg["dropped"]["refused_there"] == 2
            until(lambda: broker.lines("the foreign broker refuses messages"), "a line")


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_what_mosquitto_sends_and_is_not_taken_is_dropped_and_the_rest_crosses(
    version: str, tmp_path: Path
) -> None:
    config = tmp_path / "ours.yaml"
    config.write_text("mqtt: {max_packet_size: 1000}\n")
    with (
        Cluster(tmp_path / "ours") as cluster,
        MosquittoBroker(tmp_path, "theirs") as foreign,
        clients() as make,
    ):
        there = make(foreign.port)
        there.done(there.publish("t/kept", bytes(5000), 1, retain=True))
        flags = ("-c", str(config), "--discovery", "off", "--mqtt", version)
        broker = gateway(cluster, "g", url(foreign.port), *flags)
        up(broker, "g")
        here = make(broker.port).subscribed("t/#", 2)
        for qos in (1, 2):
            there.done(there.publish("t/large", bytes(500_000), qos))
            there.done(there.publish("t/" + "x/" * 199, b"deep", qos))
            there.done(there.publish("t/good", b"%d" % qos, qos))
        assert here.got(4) == [b"deep", b"1", b"deep", b"2"]
        until(lambda: legs(broker)["g"]["retained_merges"], "a comparison")
        leg = legs(broker)["g"]
        assert (leg["connects"], leg["failures"], leg["state"]) == (1, 0, "up")
        # At MQTT 5 Mosquitto sends no packet that is too large. What is retained comes twice.
        assert leg["dropped"]["refused_here"] == (0 if version == "5" else 4)


class PickyBroker:
    """A Mosquitto that closes the connection of a client that sends certain bytes, ahead of reading
    all that it has sent: a relay in front of it does."""

    def __init__(self, port: int, bad: bytes, *, killed: bool = False) -> None:
        """`port`: of the Mosquitto; `bad`: what it does not take; `killed`: it is gone then for a
        moment that is shorter than any pause between two dials."""
        self.bad = bad
        self.closed = 0
        self._killed = killed
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        listener = self._listener
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                broker = socket.create_connection(("127.0.0.1", self._to))
                for pair in ((client, broker), (broker, client)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError), source, target:
            while data := source.recv(1024):
                if self.bad in data:
                    self._refuse()
                    break
                target.sendall(data)
            # The other thread hears of it at once.
            for each in (source, target):
                each.shutdown(socket.SHUT_RDWR)

    def _refuse(self) -> None:
        if self._killed:
            self.close()
            threading.Timer(0.3, self._restart).start()
        self.closed += 1

    def _restart(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._serve()


@pytest.mark.long
@pytest.mark.parametrize("killed", [False, True])
def test_a_message_for_which_a_foreign_broker_closes(killed: bool, tmp_path: Path) -> None:
    """It is dropped, and what is behind it crosses; if the broker was killed nothing is dropped."""
    with (
        Cluster(tmp_path / "ours") as cluster,
        MosquittoBroker(tmp_path, "theirs") as foreign,
        contextlib.closing(PickyBroker(foreign.port, b"t/bad", killed=killed)) as picky,
        clients() as make,
    ):
        broker = gateway(cluster, "g", url(picky.port), "--discovery", "off", "--mqtt", "3.1.1")
        up(broker, "g")
        here, there = make(broker.port), make(foreign.port).subscribed("t/#", 2)
        here.done(here.publish("t/bad", bytes(100_000), 1), here.publish("t/good", b"1", 1))
        if killed:
            until(lambda: picky.closed > 2 + ROW, "connections", 180.0)
            picky.bad = b"other"
        until(lambda: legs(broker)["g"]["queued"] == 0, "an empty queue", 120.0)
        assert there.got(2 if killed else 1)[-1] == b"1"
        leg = legs(broker)["g"]
        assert (leg["dropped"]["refused_there"], leg["state"]) == (0 if killed else 1, "up")
        lines = broker.lines("closes the connection for a message to 't/bad' of 100")
        assert len(lines) == (0 if killed else 1)
        assert killed or picky.closed == 1 + ROW
