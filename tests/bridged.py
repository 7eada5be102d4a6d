"""Three Mosquittos with a gateway each and two brokers, under traffic at QoS 2 both ways while
gateways and brokers are killed, links and connections of legs cut, and Mosquittos restarted:
`python -m tests.bridged [--kills N] [--seed N]`.
Exit code 1 if a message that was acknowledged is missing anywhere, came twice or in another order,
or if brokers differ in what they retain.

Mosquitto has the settings of docs/bridging.md. All clients keep their sessions and send again what
was not acknowledged, so that in the end each message has been acknowledged. The links between
brokers of mqttree run through a process that cuts them.
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
import time
from collections import Counter
from contextlib import nullcontext, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from mqttree.bench.lab import launcher
from mqttree.bench.lab.ports import free_ports
from tests.chaos.crowds import Helper
from tests.kit import relay
from tests.kit.brokers import Broker, Cluster
from tests.kit.clients import clients
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
MERGED = 240.0
"""s until retained messages are equal everywhere: a leg compares them a minute after it has found
that it does not know which of two values came last."""
CUT = (0.2, 3.0)
"""s for which a broker is cut off: up to five seconds messages keep their order
(docs/promises.md)."""
KEPT = 5
"""Topics of each client in which it retains messages."""
COMMON = "kept/common"
"""A topic in which all clients retain messages: any of them may stay, the same one everywhere."""
FAULTS = ("gateway", "connection", "link", "broker", "restart")


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
            urlopen(f"http://127.0.0.1:{self.admin}/api/v1/legs", timeout=5) as answer,
        ):
            return [leg["state"] for leg in json.load(answer)["legs"]] == ["up"]
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


class OrderedClient(paho.Client):
    """A client whose messages leave in the order in which they were published, also over
    reconnects. The one of the library sends what is published as it connects ahead of what it has
    to send again."""

    def __init__(self, client_id: str) -> None:
        """`client_id`: of its session, which stays."""
        super().__init__(
            CallbackAPIVersion.VERSION2, client_id, clean_session=False, protocol=paho.MQTTv311
        )
        self._turn = threading.RLock()
        self._later: list[tuple[str, bytes, bool]] = []

    def publish_in_order(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Publish at QoS 2 behind all that was published before."""
        with self._turn:
            if self.is_connected():
                self.publish(topic, payload, 2, retain)
            else:
                self._later.append((topic, payload, retain))

    def _handle_connack(self) -> MQTTErrorCode:
        with self._turn:
            code = super()._handle_connack()
            if self.is_connected():
                later, self._later = self._later, []
                for topic, payload, retain in later:
                    self.publish(topic, payload, 2, retain)
        return code


class Peer:
    """A client with a session that publishes, and gets what all of them publish; it connects again
    whenever it has to."""

    def __init__(self, name: str, port: int) -> None:
        """`name`: of its topics; `port`: of its broker."""
        self.name, self.port = name, port
        self.sent: list[bytes] = []
        self.retained: dict[str, bytes] = {}
        """The last message of each of its own topics, without those that it has deleted."""
        self.got: dict[str, list[bytes]] = {}
        self._written = 0
        self._subscribed = threading.Event()
        self._paho = OrderedClient(f"peer-{name}")
        self._paho.max_queued_messages_set(0)
        self._paho.reconnect_delay_set(1, 1)
        self._paho.on_connect = self._on_connect
        self._paho.on_subscribe = lambda *_: self._subscribed.set()
        self._paho.on_message = self._on_message
        self._paho.connect("127.0.0.1", port)
        self._paho.loop_start()
        assert self._subscribed.wait(60), f"no SUBACK for {name}"

    def _on_connect(self, *_: Any) -> None:
        if not self._subscribed.is_set():
            self._paho.subscribe("load/#", 2)

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        self.got.setdefault(message.topic, []).append(bytes(message.payload))

    def publish(self, count: int) -> None:
        """Publish the next messages; they go out when there is a connection."""
        for _ in range(count):
            payload = b"%d" % len(self.sent)
            self.sent.append(payload)
            self._paho.publish_in_order(f"load/{self.name}", payload)

    def retain(self) -> None:
        """Set or delete the retained message of one of its topics, and set that of the common
        one."""
        number = self._written = self._written + 1
        topic = f"kept/{self.name}/{number % KEPT}"
        # Each topic is deleted now and then, and set again.
        payload = b"" if number // KEPT % 3 == 2 else b"%d" % number
        self.retained[topic] = payload
        if not payload:
            del self.retained[topic]
        self._paho.publish_in_order(topic, payload, retain=True)
        self._paho.publish_in_order(COMMON, b"%s %d" % (self.name.encode(), number), retain=True)

    def close(self) -> None:
        """Disconnect."""
        self._paho.disconnect()
        self._paho.loop_stop()


def retained(port: int) -> dict[str, bytes]:
    """Return what a broker has retained below `kept/`, as a new subscriber gets it."""
    with clients() as make:
        client = make(port).subscribed("kept/#", 2)
        client.subscribe("end", 2)
        client.done(client.publish("end", b"end", 2))
        until(lambda: b"end" in client.payloads("end"), "all that is retained")
        return {m.topic: m.payload for m in client.messages if m.topic.startswith("kept/")}


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
        self.network: Helper | None = None
        """Between the brokers of mqttree."""
        self.cables: list[Cable] = []
        self.gateways: list[Gateway] = []
        self.brokers: list[Broker] = []
        self.peers: list[Peer] = []
        self.disturbed: set[str] = set()
        """Mosquittos that were restarted."""
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
        first = self.cluster.add("--discovery", "static", start=False)
        ports = dict(zip(("b0", "b1", "g0", "g1", "g2"), free_ports(2 + SITES), strict=True))
        seed = ("--discovery", "static", "--seed", f"127.0.0.1:{ports['b0']}")
        self.brokers = [first, self.cluster.add(*seed, start=False)]
        for number, cable in enumerate(self.cables):
            gateway = Gateway(
                self.cluster.folder, f"g{number}", list(seed), cluster=self.cluster.cluster
            )
            gateway.foreign = f"mqtt://127.0.0.1:{cable.port}"
            self.gateways.append(gateway)
            self.cluster.brokers.append(gateway)
        members = self.cluster.brokers
        for broker in members:
            broker.flags += ("--advertise", f"127.0.0.1:{ports[broker.name]}")
        self.network = Helper(relay.run, {each.name: each.port for each in members}, ports)
        self.network.answer()
        for broker in members:
            broker.start().up()
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
        if self.network is not None:
            self.network.end()

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
        if kind == "link":
            return self._cut()
        if kind == "broker":
            broker = self.brokers[number % len(self.brokers)]
            broker.kill()
            broker.start()
            return f"{broker.name} was killed"
        foreign = self.foreign[number]
        self.disturbed.add(foreign.name)
        foreign.end(signal.SIGTERM)
        foreign.start()
        return f"{foreign.name} was restarted"

    def _cut(self) -> str:
        """Reset a link, or cut a broker off from all others for a while; return a line about it."""
        assert self.network is not None
        names = [each.name for each in self.cluster.brokers]
        one, other, *rest = self.rng.sample(names, len(names))
        if self.rng.random() < 0.5:
            self._tell(one, [other], "reset")
            return f"the link between {one} and {other} was reset"
        others, seconds = [other, *rest], self.rng.uniform(*CUT)
        self._tell(one, others, "cut")
        for peer in self.peers:
            peer.publish(BURST)
        time.sleep(seconds)
        self._tell(one, others, "heal")
        return f"{one} was cut off for {seconds:.1f} s"

    def _tell(self, one: str, others: list[str], what: str) -> None:
        assert self.network is not None
        for other in others:
            for order in relay.orders(one, other, what):
                self.network.ask(order)

    def round(self, kind: str) -> str:
        """Publish before, during and after a fault, and wait until all is well again."""
        for peer in self.peers:
            peer.publish(BURST)
            peer.retain()
        line = self.fault(kind)
        for peer in self.peers:
            peer.publish(BURST)
            peer.retain()
        for broker in self.cluster.brokers:
            broker.up()
        self.settle()
        return line

    def check(self) -> list[str]:
        """Return what is missing, came twice or in another order, and what is not retained
        everywhere, once all is there that will be. Not looked at is the order of publishers at a
        Mosquitto that was restarted, which is its own matter."""
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
        return found + self._unequal()

    def _unequal(self) -> list[str]:
        """Return how the brokers differ in what they retain, once they are as equal as they get."""
        wanted = {topic: value for peer in self.peers for topic, value in peer.retained.items()}
        ports = {peer.name: peer.port for peer in self.peers}
        ports |= {gateway.name: gateway.port for gateway in self.gateways}
        found: list[str] = []

        def equal() -> bool:
            have = {name: retained(port) for name, port in ports.items()}
            common = {each.pop(COMMON, b"") for each in have.values()}
            found[:] = [f"{COMMON} is {sorted(common)}"] if len(common) > 1 else []
            for name, values in have.items():
                topics = sorted(t for t in wanted | values if wanted.get(t) != values.get(t))
                found.extend(
                    f"{name} retains {values.get(t)!r} of {t}, not {wanted.get(t)!r}"
                    for t in topics
                )
            return not found

        with suppress(AssertionError):
            until(equal, "retained messages are equal everywhere", MERGED)
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
