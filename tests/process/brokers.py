"""Brokers as processes, for tests: started, killed, stopped, continued and restarted; and clients
that remember what came.

Nothing sleeps for luck: `until` polls a condition and fails after PATIENCE with what it was waiting
for.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties

from bench.converge import agreed
from bench.netlab.ports import free_ports

PATIENCE = 60.0
"""s; until a condition that has not come true fails the test. Far more than ever needed, as the
machine may be busy."""
FORMING = 1.5
"""s; a tree goes on getting better for two hellos (1 s) after its root is agreed on."""
LOG_LINES = 60
"""Lines of each broker's log that a failed test shows."""

_numbers = count()


def until(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Poll until `condition` gives something true, and return that."""
    end = time.monotonic() + patience
    while True:
        if result := condition():
            return result
        assert time.monotonic() < end, f"in vain: {what}"
        time.sleep(0.01)


class Broker:
    """One broker: the same ports, folder and flags through all of its starts."""

    def __init__(
        self, folder: Path, name: str, flags: list[str], *, cluster: str, listen: bool = True
    ) -> None:
        self.name = name
        self.port, self.admin = free_ports(2)
        self.data_dir = folder / name
        self.log_path = folder / f"{name}.log"
        self.flags = ["--admin", f"127.0.0.1:{self.admin}", "--cluster", cluster, "--name", name]
        if listen:
            self.flags += ["--listen", f"127.0.0.1:{self.port}"]
        self.flags += ["--data-dir", str(self.data_dir), "--log-level", "info", *flags]
        self.process: subprocess.Popen[bytes] | None = None
        self.stopped = False

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self.process is not None and self.process.poll() is None

    @property
    def address(self) -> str:
        """HOST:PORT for clients and brokers."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> Broker:
        """Start it; `up` waits until it answers."""
        assert not self.running
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MQTTREE_")}
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "broker.cli", "run", *self.flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )
        return self

    def up(self) -> Broker:
        """Wait until it serves."""

        def serves() -> bool:
            assert self.running, f"{self.name} ended: {self.log()}"
            return self.state() is not None

        until(serves, f"{self.name} answers")
        return self

    def end(self, number: signal.Signals) -> int:
        """End it by a signal; returns the exit code."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
            if self.stopped and number != signal.SIGKILL:
                self.process.send_signal(signal.SIGCONT)
        self.stopped = False
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """kill -9."""
        self.end(signal.SIGKILL)

    def terminate(self) -> int:
        """Ask it to end; returns the exit code."""
        return self.end(signal.SIGTERM)

    def stop(self) -> None:
        """SIGSTOP: alive, and deaf and dumb."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        self.stopped = True

    def resume(self) -> None:
        """SIGCONT."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.stopped = False

    def state(self) -> dict[str, Any] | None:
        """What /api/federation says; None while nobody answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=5)
        try:
            connection.request("GET", "/api/federation", headers={"Connection": "close"})
            state: dict[str, Any] = json.loads(connection.getresponse().read())
            return state
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()

    def view(self) -> dict[str, Any]:
        """What /api/federation says; it has to answer."""
        return until(self.state, f"{self.name} answers")

    def counter(self, name: str) -> int:
        """One counter."""
        value: int = self.view()["counters"][name]
        return value

    def log(self) -> str:
        """Everything that it wrote so far."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def lines(self, *words: str) -> list[str]:
        """Lines of the log with all of these words; without a line that is still being written."""
        return [line for line in self.log().split("\n")[:-1] if all(word in line for word in words)]


def carrying(states: list[dict[str, Any] | None]) -> bool:
    """Whether the links of the tree let messages through at both ends, also those of QoS 0, which
    are not replayed."""
    known = [state for state in states if state is not None]
    live = {
        (state["id"], link["peer"])
        for state in known
        for link in state["links"]
        if link["forwarding"]
    }
    pairs = [(state["id"], state["parent"]) for state in known if state["parent"] is not None]
    return all((child, parent) in live and (parent, child) in live for child, parent in pairs)


class Cluster:
    """Some brokers that are meant to be one. At the end it ends them and prints their logs, which
    pytest shows on failure."""

    def __init__(self, folder: Path, *flags: str, link_timeout: float = 0.0) -> None:
        """`link_timeout` (s): not the default one, for tests where no link may be lost, however
        slow the machine is."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if link_timeout:
            (folder / "links.yaml").write_text(f"federation: {{link-timeout: {link_timeout}}}\n")
            flags = ("-c", str(folder / "links.yaml"), *flags)
        self.cluster = f"test-{os.getpid()}-{next(_numbers)}"
        self.flags = list(flags)
        self.brokers: list[Broker] = []
        self._shown: dict[str, int] = {}
        self._began = time.monotonic()
        self._tree: list[Any] = []
        self._still = 0.0

    def minutes(self) -> int:
        """Minutes since this was made, begun ones counted whole: a line that comes once a minute
        came so often at most."""
        return 1 + int((time.monotonic() - self._began) // 60)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for broker in self.brokers:
                if broker.running:
                    broker.end(signal.SIGKILL)
        finally:
            self.show()

    def add(
        self, *flags: str, cluster: str | None = None, listen: bool = True, start: bool = True
    ) -> Broker:
        """Make one more broker, and start it."""
        name = f"b{len(self.brokers)}"
        broker = Broker(
            self.folder, name, [*self.flags, *flags], cluster=cluster or self.cluster, listen=listen
        )
        self.brokers.append(broker)
        return broker.start() if start else broker

    def agree(self, brokers: list[Broker] | None = None) -> list[dict[str, Any]]:
        """Wait until these (else all that run) agree on one tree that they alone are in; returns
        their views."""
        asked = (
            [b for b in self.brokers if b.running and not b.stopped] if brokers is None else brokers
        )
        states: list[dict[str, Any] | None] = []

        def same() -> bool:
            assert all(broker.running for broker in asked), [
                broker.name for broker in asked if not broker.running
            ]
            states[:] = [broker.state() for broker in asked]
            return agreed(states) and carrying(states)

        try:
            until(same, f"agreement of {[broker.name for broker in asked]}")
        except AssertionError:
            for broker, state in zip(asked, states, strict=False):
                print(broker.name, json.dumps(state))
            raise
        return [state for state in states if state is not None]

    def tree(self) -> list[Any]:
        """Who is whose parent at the brokers that run, and how often anything about that has
        changed."""
        views = [b.view() for b in self.brokers if b.running and not b.stopped]
        return [
            (v["id"], v["boot"], v["parent"], v["epoch"], v["counters"]["topology_changes"])
            for v in views
        ]

    def settle(self) -> None:
        """Wait until they agree on a tree that has stood still for as long as a tree forms."""
        self.agree()

        def still() -> bool:
            if (found := self.tree()) != self._tree:
                self._tree, self._still = found, time.monotonic() + FORMING
            return time.monotonic() >= self._still

        until(still, "a tree that stands still")
        self.agree()

    def arrived(self, condition: Callable[[], Any], what: str) -> bool:
        """Wait for what came at QoS 0 as well. False: the tree moved after it was settled, so that
        QoS 0 was promised nothing."""
        until(lambda: condition() or self.tree() != self._tree, what)
        return bool(condition())

    def root(self) -> Broker:
        """The root, once those that run agree."""
        views = self.agree()
        return next(b for b in self.brokers if b.running and b.view()["id"] == views[0]["root"])

    def two_hops(self) -> tuple[Broker, Broker]:
        """Two brokers with another one between them."""
        views = {
            b.name: view for b, view in zip(self.brokers, self.agree(self.brokers), strict=True)
        }
        for one in self.brokers:
            for other in self.brokers:
                a, b = views[one.name], views[other.name]
                if one is not other and a["parent"] != b["id"] and b["parent"] != a["id"]:
                    return one, other
        raise AssertionError("no two brokers are that far from each other")

    def show(self) -> None:
        """Print what the brokers wrote since this was called last."""
        for broker in self.brokers:
            text = broker.log()
            new = text[self._shown.get(broker.name, 0) :].splitlines()
            self._shown[broker.name] = len(text)
            code = broker.process.poll() if broker.process is not None else "never started"
            print(f"---- {broker.name} {broker.address} exit code {code}: {len(new)} lines")
            print("\n".join(new[-LOG_LINES:]))


@contextmanager
def star_of(folder: Path, routing: str) -> Iterator[list[Broker]]:
    """Three brokers that are all linked: the one between the ends of the tree, and the ends."""
    with Cluster(folder, "--routing", routing) as cluster:
        for _ in range(3):
            cluster.add()
        cluster.settle()
        far = cluster.two_hops()
        middle = next(broker for broker in cluster.brokers if broker not in far)
        yield [middle, *far]
        cluster.show()


class Client:
    """paho-mqtt that waits for the answer to everything it asks and keeps every message."""

    def __init__(
        self,
        port: int,
        *,
        client_id: str = "",
        protocol: int = 5,
        clean: bool = True,
        expiry: int = 0,
        will: tuple[str, bytes, int, bool] | None = None,
        will_properties: Properties | None = None,
        transport: str = "tcp",
        ca: Path | None = None,
        keep_alive: int = 60,
        user: tuple[str, str] | None = None,
    ) -> None:
        """Connect. `expiry`: s that an MQTT 5 session is kept; `user`: name and password."""
        self.port = port
        self.messages: list[paho.MQTTMessage] = []
        self.acknowledged: set[int] = set()
        self.connack: Any = None
        self.session_present = False
        self._granted: dict[int, Any] = {}
        self._unsubscribed: set[int] = set()
        self._connected = threading.Event()
        self.lost = threading.Event()
        v5 = protocol == paho.MQTTv5
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean_session=None if v5 else clean,
            protocol=paho.MQTTProtocolVersion(protocol),
            transport=transport,  # type: ignore[arg-type]
            reconnect_on_failure=False,
        )
        self.paho.connect_timeout = PATIENCE
        self.paho.on_connect = self._on_connect
        self.paho.on_disconnect = self._on_disconnect
        self.paho.on_message = self._on_message
        self.paho.on_publish = self._on_publish
        self.paho.on_subscribe = self._on_subscribe
        self.paho.on_unsubscribe = self._on_unsubscribe
        if will is not None:
            self.paho.will_set(*will, properties=will_properties)
        if ca is not None:
            self.paho.tls_set(str(ca))
        if user is not None:
            self.paho.username_pw_set(*user)
        if v5:
            properties = Properties(1)  # of CONNECT
            properties.SessionExpiryInterval = expiry
            self.paho.connect(
                "127.0.0.1", port, keep_alive, clean_start=clean, properties=properties
            )
        else:
            self.paho.connect("127.0.0.1", port, keep_alive)
        self.paho.loop_start()
        assert self._connected.wait(PATIENCE), f"no CONNACK from {port}"
        assert not self.connack.is_failure, self.connack

    def _on_connect(
        self, _client: Any, _data: Any, flags: Any, reason: Any, _properties: Any
    ) -> None:
        self.connack = reason
        self.session_present = flags.session_present
        self._connected.set()

    def _on_disconnect(self, *_: Any) -> None:
        self.lost.set()

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        self.messages.append(message)

    def _on_publish(
        self, _client: Any, _data: Any, mid: int, reason: Any, _properties: Any
    ) -> None:
        if not reason.is_failure:
            self.acknowledged.add(mid)

    def _on_subscribe(
        self, _client: Any, _data: Any, mid: int, reasons: Any, _properties: Any
    ) -> None:
        self._granted[mid] = [reason.value for reason in reasons]

    def _on_unsubscribe(self, _client: Any, _data: Any, mid: int, *_: Any) -> None:
        self._unsubscribed.add(mid)

    def subscribe(self, topic_filter: str, qos: int = 0) -> list[int]:
        """Subscribe; returns what was granted."""
        _, mid = self.paho.subscribe(topic_filter, qos)
        assert mid is not None
        granted: list[int] = until(lambda: self._granted.get(mid), f"SUBACK for {topic_filter}")
        return granted

    def unsubscribe(self, topic_filter: str) -> None:
        """Unsubscribe."""
        _, mid = self.paho.unsubscribe(topic_filter)
        until(lambda: mid in self._unsubscribed, f"UNSUBACK for {topic_filter}")

    def publish(self, topic: str, payload: bytes | str, qos: int = 0, **more: Any) -> int:
        """Publish without waiting; returns the packet identifier."""
        mid: int = self.paho.publish(topic, payload, qos, **more).mid
        return mid

    def done(self, *mids: int) -> None:
        """Wait until these PUBLISHes are acknowledged (QoS 0: sent)."""
        until(lambda: self.acknowledged.issuperset(mids), "acknowledgements")

    def payloads(self, prefix: str = "") -> list[bytes]:
        """What came, in order, under topics that begin so."""
        return [bytes(m.payload) for m in list(self.messages) if m.topic.startswith(prefix)]

    def got(self, number: int, prefix: str = "") -> list[bytes]:
        """Wait for so many messages; returns all that came."""
        until(
            lambda: len(self.payloads(prefix)) >= number,
            f"{number} messages of '{prefix}' at {self.port}",
        )
        return self.payloads(prefix)

    def break_off(self) -> None:
        """Lose the connection without DISCONNECT."""
        sock = self.paho.socket()
        assert sock is not None
        sock.shutdown(socket.SHUT_RDWR)
        assert self.lost.wait(PATIENCE)
        self.paho.loop_stop()

    def close(self) -> None:
        """Disconnect; harmless when the connection is gone."""
        self.paho.disconnect()
        self.paho.loop_stop()


@contextmanager
def clients() -> Iterator[Callable[..., Client]]:
    """Give a maker of clients, and close all of them at the end."""
    made: list[Client] = []

    def make(port: int, **more: Any) -> Client:
        made.append(Client(port, **more))
        return made[-1]

    try:
        yield make
    finally:
        for client in made:
            client.close()


class Mosquitto:
    """A mosquitto_sub that runs; its lines are what came."""

    def __init__(self, folder: Path, port: int, *flags: str) -> None:
        self.out = folder / f"mosquitto-{next(_numbers)}.txt"
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                ["stdbuf", "-oL", "mosquitto_sub", "-p", str(port), "-d", *flags],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def __enter__(self) -> Mosquitto:
        """Wait until it has subscribed."""
        try:
            until(
                lambda: "Subscribed (mid" in self.out.read_text(errors="replace"),
                "mosquitto_sub has subscribed",
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def lines(self) -> list[str]:
        """What came; without a line that is still being written."""
        noise = ("Client ", "Subscribed (mid")
        return [
            line
            for line in self.out.read_text(errors="replace").split("\n")[:-1]
            if not line.startswith(noise)
        ]

    def got(self, number: int) -> list[str]:
        """Wait for so many lines; returns all."""
        until(lambda: len(self.lines()) >= number, f"{number} lines of mosquitto_sub")
        return self.lines()


def mosquitto_pub(port: int, *flags: str, lines: list[str] | None = None) -> None:
    """Publish by mosquitto_pub; `lines` go to its standard input."""
    text = "".join(f"{line}\n" for line in lines) if lines is not None else None
    done = subprocess.run(
        ["mosquitto_pub", "-p", str(port), *flags],
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def repeated(messages: list[bytes]) -> list[bytes]:
    """Those that came more than once."""
    return [message for message, times in Counter(messages).items() if times > 1]
