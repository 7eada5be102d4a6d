"""Retained messages on both sides of a leg to a real Mosquitto, compared after it was away."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.kit.brokers import Cluster
from tests.kit.clients import clients
from tests.kit.foreign import MOSQUITTO, MosquittoBroker
from tests.kit.waiting import until
from tests.process.test_legs import Gateway, legs, up, url

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="Mosquitto is not installed")


class Pair:
    """A gateway and its Mosquitto."""

    def __init__(self, folder: Path, *lines: str, flags: tuple[str, ...] = ()) -> None:
        """`lines`: of Mosquitto's file; `flags`: of the gateway."""
        store = folder / "store"
        store.mkdir()
        kept = ("persistence true", f"persistence_location {store}/", "autosave_on_changes true")
        self.foreign = MosquittoBroker(folder, "theirs", *(lines or (*kept, "autosave_interval 1")))
        self.cluster = Cluster(folder / "ours")
        flags = ("--discovery", "off", "--topic", "t/# both 2", *flags)
        self.gateway = Gateway(self.cluster.folder, "g", list(flags), cluster=self.cluster.cluster)
        self.gateway.foreign = url(self.foreign.port)
        self.cluster.brokers.append(self.gateway)

    def start(self) -> None:
        """Start the gateway, and wait until it has compared."""
        self.gateway.start().up()
        self.compared()

    def compared(self) -> None:
        """Wait until the leg is up and has compared once since its gateway began."""
        up(self.gateway, "g")
        until(lambda: legs(self.gateway)["g"]["retained_merges"] >= 1, "a merge", 120)

    def write(self, port: int, **values: bytes) -> None:
        """Retain messages at QoS 0, which no broker keeps for a leg that is away."""
        with clients() as make:
            client = make(port)
            for name, payload in values.items():
                client.publish(f"t/{name}", payload, 0, retain=True)
            client.done(client.publish("other", b"", 1))

    def retained(self, port: int, below: str = "t/") -> dict[str, bytes]:
        """What a new subscriber gets of the topics below one."""
        with clients() as make:
            client = make(port)
            client.subscribe(f"{below}#", 1)
            client.subscribe("end", 1)
            client.done(client.publish("end", b"end", 1))
            until(lambda: b"end" in client.payloads("end"), "all that is retained")
            return {m.topic: m.payload for m in client.messages if m.topic.startswith(below)}

    def noted(self) -> None:
        """Wait until it is written down that both sides have the same by now."""
        now = int(time.time() * 1000) << 16
        # It is after something retained has crossed.
        self.write(self.gateway.port, none=b"")

        def known() -> bool:
            found = self.retained(self.gateway.port, "mqttree/leg/g/")
            return int(found.get("mqttree/leg/g/common", b"0").split()[0]) > now

        until(known, "what both have in common", 60)

    def equal(self, **values: bytes) -> None:
        """Wait until both sides have these."""
        wanted = {f"t/{name}": payload for name, payload in values.items()}
        for port in (self.gateway.port, self.foreign.port):
            until(lambda port=port: self.retained(port) == wanted, f"{wanted} at {port}", 60)


def test_what_changed_while_the_gateway_was_down_is_merged(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    with pair.foreign, pair.cluster:
        pair.write(pair.foreign.port, a=b"1", b=b"1", c=b"1", d=b"1")
        pair.start()
        pair.equal(a=b"1", b=b"1", c=b"1", d=b"1")
        pair.noted()
        pair.gateway.kill()
        pair.write(pair.foreign.port, a=b"", b=b"2", new=b"3")
        pair.start()
        # That it was deleted there is not known after a restart.
        pair.equal(a=b"1", b=b"2", c=b"1", d=b"1", new=b"3")
        pair.noted()
        # Now Mosquitto is away.
        pair.foreign.end(signal.SIGTERM)
        until(lambda: legs(pair.gateway)["g"]["state"] != "up", "a leg that is down")
        pair.write(pair.gateway.port, b=b"", c=b"4", own=b"5")
        pair.foreign.start()
        pair.write(pair.foreign.port, d=b"6")
        up(pair.gateway, "g")
        pair.equal(a=b"1", c=b"4", d=b"6", new=b"3", own=b"5")
