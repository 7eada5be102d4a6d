"""Routing by topic where messages pass through other brokers, while clients subscribe to new
filters beside faults.

SEEDS=n runs n schedules instead of the default, FIRST=k begins with seed k.
"""

from __future__ import annotations

import os
import random

import pytest

from mqttree.broker.cluster.directory.link_state_directory import INTEREST, LINK
from tests.sim.clients import SimClient
from tests.sim.schedule import Schedule
from tests.sim.world import Host

SEEDS = int(os.environ.get("SEEDS", "12"))
FIRST = int(os.environ.get("FIRST", "0"))

DELAYS = (0.001, 0.002, 0.004, 0.008, 0.02, 0.04, 0.06)
"""s, drawn for each pair of brokers: ways through others are often shorter."""


class Relays(Schedule):
    """Everybody publishes for all the time on one topic, and beside that on topics that a broker
    has just begun to want."""

    def __init__(self, seed: int, just_behind: bool) -> None:
        super().__init__(seed, random.Random(seed).choice((4, 4, 5, 6)))
        self.just_behind = just_behind
        self.draw = draw = random.Random(f"{seed} {just_behind}")
        self.groups = None
        self.small = False
        self.length = 7.0
        self.apart = []
        self.world.jitter = self.world.loss = 0.0
        for b in range(self.count):
            for a in range(b):
                self.world._base[a, b] = self.world._base[b, a] = draw.choice(DELAYS)
        self.faulty = sorted(draw.uniform(1.5, self.length) for _ in range(draw.randint(2, 6)))

    def _routing(self, index: int) -> str:
        return "topic"

    def _clients(self) -> None:
        draw, world = self.draw, self.world
        for host in world.hosts:
            self._client(
                f"sub{host.index}",
                host,
                filters=[("t", 2)],
                clean=True,
                receive_maximum=0,
                version=4,
            )
            self.publishers.append(self._client(f"pub{host.index}", host, clean=True, version=4))
            late = self._client(
                f"late{host.index}", host, filters=[], clean=True, receive_maximum=0, version=4
            )
            for number, fault in enumerate(self.faulty):
                at = fault + draw.choice((draw.uniform(0.0, 0.15), draw.uniform(0.0, 2.5)))
                if not self.just_behind:
                    at = draw.uniform(1.5, self.length)
                self._late(late, f"new{host.index}/{number}", at)

    def _late(self, client: SimClient, topic: str, at: float) -> None:
        def subscribe() -> None:
            if client.state == "up" and (topic, 2) not in client.filters:
                client.filters.append((topic, 2))
                client.subscribe([(topic, 2)])

        self.world.after(at, subscribe)
        for host in self.world.hosts:
            for _ in range(5 if host is not client.host else 0):
                self.world.after(at + self.draw.uniform(0.0, 1.5), self._publish, host.index, topic)

    def _publish(self, index: int, topic: str) -> None:
        self.publishers[index].publish(topic, 1 + index % 2)

    def traffic(self) -> None:
        for publisher in self.publishers:
            for number in range(int((self.length + 1) / 0.1)):
                self.world.after(1.0 + number * 0.1, publisher.publish, "t", 2)

    def faults(self) -> None:
        kinds = (self._pause, self._block, self._black, self._kill, self._reset, self._partition)
        for at in self.faulty:
            self.world.after(
                at, self.draw.choice(kinds), self.draw.uniform(0.1, 3.0), self.draw.getrandbits(32)
            )

    def _end(self) -> None:
        super()._end()
        for group in self.world.components():
            for text in left_over(group):
                self.world.violation("left over", text)


def left_over(group: list[Host]) -> list[str]:
    """What brokers hold of others, once it is quiet, that these do not say, or that belongs to a
    repair."""
    found = []
    said = {host.id: host.running.cluster.directory.database.own.entries for host in group}
    links = {
        broker: {
            key[1:]: int.from_bytes(value, "big")
            for key, value in entries.items()
            if key[:1] == LINK
        }
        for broker, entries in said.items()
    }
    for host in group:
        cluster = host.running.cluster
        overlays, interest = cluster.strategy.trees, cluster.strategy.table
        astray = overlays._astray
        if astray._away or astray._unheard or overlays._graph._leaves or interest._kept:
            found.append(
                f"{host.name}: {astray._away}, {astray._unheard}, "
                f"{overlays._graph._leaves}, {interest._kept}"
            )
        if overlays._graph._said != {broker: costs for broker, costs in links.items() if costs}:
            found.append(f"{host.name} knows of other links than there are")
        wanted = {
            (key[1:].decode(), b)
            for b, entries in said.items()
            if b != host.id
            for key in entries
            if key[:1] == INTEREST
        }
        if len(interest._filters) != len(wanted) or any(
            interest._filters.get(*each) is None for each in wanted
        ):
            found.append(f"{host.name} knows of other filters than there are")
        if cluster.barrier._waiters:
            found.append(f"{host.name}: a client waits for SUBACK")
    return found


@pytest.mark.long
@pytest.mark.parametrize("just_behind", (False, True), ids=("at any time", "just behind a fault"))
def test_relays_lose_nothing_while_clients_subscribe_beside_faults(just_behind: bool) -> None:
    for seed in range(FIRST, FIRST + SEEDS):
        result = Relays(seed, just_behind).run()
        assert result.violations == [], f"{seed}: " + "\n".join(result.transcript)
