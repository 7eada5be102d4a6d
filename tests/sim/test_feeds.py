"""Ordered feeds that hold thousands of messages: a broker hangs, or a way changes, at 20,000
messages a second and more."""

from __future__ import annotations

import pytest

from tests.sim.clients import Ledger, SimClient
from tests.sim.world import World

BURST = 100
"""messages that a publisher sends at a time, as one piece."""


class Feed:
    """Brokers that all reach each other; publishers at the first one, subscribers at the last
    one."""

    def __init__(
        self, routing: str, qos: int, brokers: int = 2, *, rate: int = 20_000, seconds: float = 3.0
    ) -> None:
        self.world = world = World(1)
        world.rate, world.window, world.high_water, world.loss, world.slowest = (
            1.25e8,
            65536,
            262144,
            0.0,
            0.0005,
        )
        world.cutting = 0.0
        world.limit = 1e9
        self.ledger = Ledger()
        for index in range(brokers):
            world.add(discovery="multicast", routing=routing, capability=float(90 - index)).start()
        world.run(4.0)
        self.subscribers = [
            SimClient(
                world,
                self.ledger,
                f"sub{n}",
                world.hosts[-1],
                filters=[("fast/#", qos)],
                version=version,
            )
            for n, version in enumerate((4, 5))
        ]
        self.publishers = [
            SimClient(world, self.ledger, f"pub{n}", world.hosts[0], version=4) for n in range(2)
        ]
        for client in (*self.subscribers, *self.publishers):
            client.connect()
        world.run(2.0)
        self.seconds = seconds
        pause = len(self.publishers) * BURST / rate
        for publisher in self.publishers:
            for number in range(int(seconds / pause)):
                topic = f"fast/{publisher.name}/{number % 2}"
                world.after(number * pause, publisher.burst, topic, qos, BURST, 50)

    def finish(self, seconds: float = 30.0) -> None:
        """Run until all has come, or nothing more does; everything acknowledged has come, once, in
        order."""
        world = self.world
        sent = self.ledger.sent
        world.run(self.seconds)
        assert len(sent) > 10_000
        world.run(
            seconds,
            lambda: (
                all(s.acked for s in sent)
                and all(len(c.got) >= len(sent) for c in self.subscribers)
            ),
        )
        assert not world.violations
        assert all(s.acked for s in sent), sum(not s.acked for s in sent)
        for client in (*self.subscribers, *self.publishers):
            assert not client.errors
        for client in self.subscribers:
            got = [g.number for g in client.got]
            assert len(got) == len(sent), f"{client.name}: {len(got)} of {len(sent)}"
            last: dict[str, int] = {}
            for g in client.got:
                assert last.get(g.topic, -1) < g.number, (
                    f"{client.name}: {g.number} after {last[g.topic]}"
                )
                last[g.topic] = g.number

    def counter(self, name: str) -> int:
        """A counter of all brokers together."""
        return sum(getattr(host.running.counters, name) for host in self.world.hosts)


@pytest.mark.parametrize(
    ("routing", "seconds", "qos"), [("interest", 2.6, 1), ("interest", 1.0, 2), ("topic", 2.6, 2)]
)
def test_a_broker_that_hung_gets_all_messages_in_order(
    routing: str, seconds: float, qos: int
) -> None:
    """All that was published meanwhile comes, in order, though it is more than a session may have
    waiting."""
    feed = Feed(routing, qos, seconds=seconds + 0.6)
    far = feed.world.hosts[-1]
    feed.world.after(0.3, far.pause)
    feed.world.after(0.3 + seconds, far.resume)
    feed.finish()
    assert feed.counter("dropped_queue_full") == 0
