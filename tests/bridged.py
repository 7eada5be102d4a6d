"""Three Mosquittos with a gateway each and two brokers, under traffic at QoS 2 both ways while
gateways, connections and brokers are killed and Mosquittos restarted:
`python -m tests.bridged [--kills N] [--seed N]`.
Exit code 1 if a message that was acknowledged is missing anywhere, or came twice.

Mosquitto has the settings of docs/bridging.md. All clients keep their sessions and send again what
was not acknowledged, so that in the end each message has been acknowledged.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import socket
import sys
import tempfile
import threading
from collections import Counter
from contextlib import nullcontext, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from bench.lab import launcher
from tests.kit.brokers import Broker, Cluster
from tests.kit.foreign import MosquittoBroker
from tests.kit.waiting import until

SITES = 3
"""Mosquittos."""
BURST = 15
"""Messages of each client around a fault."""
LINES = (
    "persistence true",
    "max_queued_messages 0",
    "max_inflight_messages 1000",
)
"""Of a Mosquitto's file."""
PATIENCE = 120.0
"""s until everything is there: a leg dials again after half a minute at most."""
FAULTS = ("gateway", "connection", "broker", "restart")


class Gateway(Broker):
    """A broker with a leg."""

    foreign = ""

    def start(self) -> Broker:
        """Start it; `up` waits until it answers."""
        self.command = launcher.gateway("--broker", self.foreign, *self.flags)
        self.launch()
        return self

    def crosses(self) -> bool:
        """Whether its leg is up."""
        with (
            suppress(OSError, ValueError),
            urlopen(f"http://127.0.0.1:{self.admin}/api/legs", timeout=5) as answer,
        ):
            return [leg["state"] for leg in json.load(answer)] == ["up"]
        return False


class Cable:
    """A port that leads to another one, until its connections are reset."""

    def __init__(self, target: int) -> None:
        """`target`: the port of the other end."""
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                self._open |= {near, far}
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        for end in (one, other):
            self._open.discard(end)
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def reset(self) -> None:
        """Lose all connections, with what is on its way."""
        for end in list(self._open):
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it."""
        self._listener.close()
        self.reset()


class Peer:
    """A client with a session that publishes, and gets what all of them publish; it connects again
    whenever it has to."""

    def __init__(self, name: str, port: int) -> None:
        """`name`: of its topic; `port`: of its broker."""
        self.name = name
        self.sent: list[bytes] = []
        self.acknowledged = 0
        self.got: dict[str, list[bytes]] = {}
        self._subscribed = threading.Event()
        self._paho = paho.Client(
            CallbackAPIVersion.VERSION2, f"peer-{name}", clean_session=False, protocol=paho.MQTTv311
        )
        self._paho.max_queued_messages_set(0)
        self._paho.reconnect_delay_set(1, 1)
        self._paho.on_connect = self._on_connect
        self._paho.on_subscribe = lambda *_: self._subscribed.set()
        self._paho.on_publish = self._on_publish
        self._paho.on_message = self._on_message
        self._paho.connect("127.0.0.1", port)
        self._paho.loop_start()
        assert self._subscribed.wait(60), f"no SUBACK for {name}"

    def _on_connect(self, *_: Any) -> None:
        if not self._subscribed.is_set():
            self._paho.subscribe("load/#", 2)

    def _on_publish(self, *_: Any) -> None:
        self.acknowledged += 1

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        self.got.setdefault(message.topic, []).append(bytes(message.payload))

    def publish(self, count: int) -> None:
        """Publish the next messages; they go out when there is a connection."""
        for _ in range(count):
            payload = b"%d" % len(self.sent)
            self.sent.append(payload)
            self._paho.publish(f"load/{self.name}", payload, 2)

    def close(self) -> None:
        """Disconnect."""
        self._paho.disconnect()
        self._paho.loop_stop()


class Bridged:
    """One run."""

    def __init__(self, folder: Path, seed: int) -> None:
        """`folder`: for all files; `seed`: draws what is hit."""
        self.rng = random.Random(seed)
        self.foreign = [MosquittoBroker(folder, f"f{n}") for n in range(SITES)]
        for each in self.foreign:
            store = folder / f"{each.name}-data"
            store.mkdir()
            each.configure(*LINES, f"persistence_location {store}/")
        self.cluster = Cluster(folder / "ours")
        self.cables: list[Cable] = []
        self.gateways: list[Gateway] = []
        self.brokers: list[Broker] = []
        self.peers: list[Peer] = []
        self.disturbed: set[str] = set()
        """Brokers that were killed or restarted."""
        self.quiet = False
        """Whether no logs are printed at the end."""

    def __enter__(self) -> Bridged:
        """Start everything."""
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        for each in self.foreign:
            each.start()
            self.cables.append(Cable(each.port))
        self.brokers = [self.cluster.add("--discovery", "static").up()]
        seed = ("--discovery", "static", "--seed", self.brokers[0].address)
        self.brokers.append(self.cluster.add(*seed).up())
        for number, cable in enumerate(self.cables):
            gateway = Gateway(
                self.cluster.folder, f"g{number}", list(seed), cluster=self.cluster.cluster
            )
            gateway.foreign = f"mqtt://127.0.0.1:{cable.port}"
            self.cluster.brokers.append(gateway)
            self.gateways.append(gateway)
            gateway.start().up()
        self.settle()
        sites: list[MosquittoBroker | Broker] = [*self.foreign, *self.brokers]
        for site in sites:
            self.peers.append(Peer(site.name, site.port))

    def __exit__(self, *_: object) -> None:
        """End everything."""
        for peer in self.peers:
            peer.close()
        for cable in self.cables:
            cable.close()
        with redirect_stdout(StringIO()) if self.quiet else nullcontext():
            self.cluster.__exit__()
            for each in self.foreign:
                each.__exit__()

    def settle(self) -> None:
        """Wait until brokers agree, and all legs are up."""
        self.cluster.agree()
        until(lambda: all(map(Gateway.crosses, self.gateways)), "all legs are up", PATIENCE)

    def fault(self, kind: str) -> str:
        """Have one of `FAULTS` happen; return a line about it."""
        number = self.rng.randrange(SITES)
        if kind == "gateway":
            self.gateways[number].kill()
            self.gateways[number].start()
            return f"{self.gateways[number].name} was killed"
        if kind == "connection":
            self.cables[number].reset()
            return f"the connection of {self.gateways[number].name} was reset"
        if kind == "broker":
            broker = self.brokers[number % len(self.brokers)]
            self.disturbed.add(broker.name)
            broker.kill()
            broker.start()
            return f"{broker.name} was killed"
        foreign = self.foreign[number]
        self.disturbed.add(foreign.name)
        foreign.end(signal.SIGTERM)
        foreign.start()
        return f"{foreign.name} was restarted"

    def round(self, kind: str) -> str:
        """Publish before, during and after a fault, and wait until all is well again."""
        for peer in self.peers:
            peer.publish(BURST)
        line = self.fault(kind)
        for peer in self.peers:
            peer.publish(BURST)
        for broker in self.cluster.brokers:
            broker.up()
        self.settle()
        return line

    def check(self) -> list[str]:
        """Return what is missing, came twice, or in another order, once all is there that will be.
        Not looked at is the order of publishers whose broker was killed or restarted: they send
        again what was not acknowledged."""
        wanted = {f"load/{peer.name}": peer.sent for peer in self.peers}

        def whole() -> bool:
            return all(
                set(peer.got.get(topic, ())) >= set(sent)
                for peer in self.peers
                for topic, sent in wanted.items()
            )

        with suppress(AssertionError):
            until(whole, "everything is everywhere", PATIENCE)
        # What comes behind a last message that all have would be too much.
        for peer in self.peers:
            peer.publish(1)
        with suppress(AssertionError):
            until(whole, "a last message is everywhere", PATIENCE)
        found = []
        for peer in self.peers:
            for topic, sent in wanted.items():
                ordered = topic.removeprefix("load/") not in self.disturbed
                found += _wrong(peer.name, topic, sent, peer.got.get(topic, []), ordered)
        return found


def _wrong(name: str, topic: str, sent: list[bytes], got: list[bytes], ordered: bool) -> list[str]:
    times = Counter(got)
    missing = [payload.decode() for payload in sent if not times[payload]]
    twice = [payload.decode() for payload, count in times.items() if count > 1]
    found = []
    if missing:
        found.append(f"{name} lacks {len(missing)} of {topic}: {missing[:5]}")
    if twice:
        found.append(f"{name} got {len(twice)} of {topic} twice: {twice[:5]}")
    if ordered and not found and got != sent:
        place = next(n for n, (a, b) in enumerate(zip(got, sent, strict=True)) if a != b)
        around = [payload.decode() for payload in got[max(0, place - 2) : place + 6]]
        found.append(f"{name} got {topic} in another order: {around}")
    return found


def main(argv: list[str] | None = None) -> int:
    """Run, tell, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bridged", description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="of each kind (10)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(prefix="mqttree-bridged-") as folder,
        Bridged(Path(folder), arguments.seed) as run,
    ):
        kinds = [*FAULTS] * arguments.kills
        run.rng.shuffle(kinds)
        for number, kind in enumerate(kinds, 1):
            print(f"{number}/{len(kinds)}: {run.round(kind)}", flush=True)
        wrong = run.check()
        messages = sum(len(peer.sent) for peer in run.peers)
        print(f"{messages} messages to {len(run.peers)} subscribers: {len(wrong)} violations")
        print("\n".join(wrong))
        if not wrong:
            run.quiet = True
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
