"""Random schedules whose brokers send clients elsewhere all the time, while brokers die and clients
roam: each client has one session, nothing is lost, and QoS 2 comes once.

SEEDS=n runs n schedules of each routing instead of the quick ones, FIRST=k begins with seed k.
"""

from __future__ import annotations

import os
from functools import partial

import pytest

from mqttree.broker.wire.packets import Connack, Disconnect, Packet
from mqttree.broker.wire.properties import Properties, Property
from tests.sim.clients import SimClient
from tests.sim.test_sessions import Roaming, show

SEEDS = int(os.environ.get("SEEDS", "0"))
FIRST = int(os.environ.get("FIRST", "0"))
QUICK = {"flood": (1, 3, 6), "interest": (0, 3, 9), "topic": (1, 2, 3)}


class SentClient(SimClient):
    """A client that follows where it is sent, or, every third time, comes back to its broker."""

    sent = 0

    def _packet(self, packet: Packet) -> None:
        code = packet.code if isinstance(packet, Connack) else 0
        if isinstance(packet, Disconnect):
            code = packet.reason
        if isinstance(packet, Connack | Disconnect) and code == 0x9C:
            self._go(packet.properties)
        else:
            super()._packet(packet)

    def _go(self, properties: Properties | None) -> None:
        address = (properties or {})[Property.SERVER_REFERENCE].partition(":")[0]
        self.sent += 1
        if self.sent % 3:
            self.host = next(host for host in self.world.hosts if host.address[0] == address)
        if self._end is not None:
            self._end.close()
        self._down("sent elsewhere")
        self.world.after(0.01, self.connect)


class Redirecting(Roaming):
    """A schedule in which clients are sent to random brokers."""

    client_type = SentClient

    def build(self) -> None:
        world = self.world
        world.limits = world.limits.replace(redirect_quiet_s=0.0, redirect_settle_s=0.2)
        world.add = partial(world.add, redirect_clients=True)  # type: ignore[method-assign]
        super().build()
        rng = self.rng
        for _ in range(40):
            world.after(rng.uniform(0.3, self.length), self._choose, rng.getrandbits(32))

    def _choose(self, choice: int) -> None:
        client = self.clients[choice % len(self.clients)]
        host, target = client.host, self.world.hosts[(choice >> 8) % self.count]
        if client.state != "up" or not host.alive or host.paused or target is host:
            return

        def choose(node: object) -> None:
            host.running.now = self.world.now
            host.running.cluster.placement.redirector.chosen(
                client.name, f"{target.address[0]}:{target.address[1]}"
            )

        host.do(choose, host.running)


@pytest.mark.parametrize("routing", QUICK)
def test_clients_that_are_sent_elsewhere_lose_nothing(routing: str) -> None:
    bad = []
    sent = ignored = 0
    for seed in range(FIRST, FIRST + SEEDS) if SEEDS else QUICK[routing]:
        result = Redirecting(seed, routing=routing, calm=seed % 3 == 0).run()
        sent += result.counters["redirected"]
        ignored += result.counters["redirects_ignored"]
        if result.violations:
            bad.append(seed)
            show(result)
    assert not bad
    assert sent
    assert ignored
