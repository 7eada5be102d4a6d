"""Traffic that brokers count between each other, beside the model of placement: the same where all
links cost as much; more where some seem slow, as messages go around these."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest

from mqttree.bench.workloads import simulator
from mqttree.bench.workloads.named import named
from mqttree.bench.workloads.simulator import Placed
from tests.sim.clients import Ledger, SimClient
from tests.sim.test_topic import far, hops
from tests.sim.world import Host, World

BROKERS = 8

SLOW = {"b1_b3": 9.0, "b2_b6": 9.0, "b4_b7": 9.0}
"""Three of 28 links, ms; all others have 2 ms. A way through another broker costs some 2 ms more
than its links."""


class Federation:
    """Eight brokers that are all linked, with the clients of a placed workload."""

    def __init__(self, placed: Placed, **slow: float) -> None:
        self.placed = placed
        self.world = world = World(1, until=1e9)
        world.loss = world.jitter = world.cutting = 0.0
        for _ in range(BROKERS):
            world.add(discovery="multicast", routing="topic")
        for (a, b), delay in far(BROKERS, **slow).items():
            world._base[a, b] = world._base[b, a] = delay / 1000
        for host in world.hosts:
            host.start()
        world.run(12.0)
        self.ledger = Ledger()
        self.publishers = [self.client(f"p{n}", n) for n in range(BROKERS)]
        self.subscribers: list[SimClient] = []
        for number, sessions in enumerate(placed.clients):
            for broker, topics in sessions:
                filters = [(f"t/{topic}", 0) for topic in topics]
                name = f"s{number}~{broker}"
                self.subscribers.append(self.client(name, int(broker), filters=filters))
        world.run(8.0)

    def client(self, name: str, broker: int, **options: Any) -> SimClient:
        """A client that connects."""
        found = SimClient(self.world, self.ledger, name, self.hosts[broker], **options)
        self.world.after(0.001, found.connect)
        return found

    @property
    def hosts(self) -> list[Host]:
        """The brokers, by their numbers."""
        return self.world.hosts

    def counted(self) -> int:
        """Messages that brokers have got from each other."""
        return sum(host.running.counters.received_link for host in self.hosts)

    def publish(self) -> int:
        """Publish a message of each topic; return how many messages crossed links for them."""
        before = self.counted()
        for topic, broker in self.placed.published.items():
            self.publishers[broker].publish(f"t/{topic}", 0)
        self.world.run(3.0)
        assert not self.world.violations
        assert sum(len(client.got) for client in self.subscribers) == 1000
        return self.counted() - before

    def by_routes(self) -> int:
        """The links that messages take where brokers say that they go."""
        names = {host.name: number for number, host in enumerate(self.hosts)}
        onward = [[hops(host, origin) for host in self.hosts] for origin in self.hosts]
        crossed = 0
        wanted = self.placed.wanted()
        for topic, source in self.placed.published.items():
            links = set()
            for target in wanted.get(topic, ()):
                at = source
                while at != target:
                    then = names[onward[source][at][self.hosts[target].name]]
                    links.add((at, then))
                    at = then
            crossed += len(links)
        return crossed


@lru_cache
def placed(strategy: str) -> Placed:
    return simulator.place(named("social-100", 1), BROKERS, strategy)


@pytest.mark.parametrize("strategy", ["random", "load"])
def test_links_that_cost_the_same_carry_what_the_model_says(strategy: str) -> None:
    federation = Federation(placed(strategy))
    assert federation.publish() == placed(strategy).figures.internal


@pytest.mark.parametrize("strategy", ["random", "load"])
def test_messages_around_slow_links_cross_more_links_than_the_model_says(strategy: str) -> None:
    federation = Federation(placed(strategy), **SLOW)
    found = federation.publish()
    assert found == federation.by_routes()
    assert 1.02 < found / placed(strategy).figures.internal < 1.15
