"""A broker is killed while its disk lacks what its standby has, and starts again with that disk, in
simulation: what a client repeats there comes once, everywhere (docs/decisions/0063)."""

from __future__ import annotations

import pytest

from tests.sim.clients import Ledger, SimClient
from tests.sim.disk import Disk, Stayer
from tests.sim.successions import kill
from tests.sim.test_durability import check, check_order
from tests.sim.world import Host, World

BACK = (0.02, 0.12, 0.5, 4.0)
"""s until the broker is back: its standby has not noticed, has just taken its place, has that, and
has adopted its sessions."""


class Lagging:
    """Some brokers with standbys, a subscriber at each, and a publisher at the first."""

    def __init__(self, seed: int, routing: str, filters: str = "###") -> None:
        """`filters`: of the subscribers, a character each."""
        self.world, self.ledger = World(seed), Ledger()
        self.disks: list[Disk] = []
        world = self.world
        world.on_start.append(lambda host: self.disks[host.index].started())
        for _ in filters:
            host = world.add(
                discovery="multicast", routing=routing, replicas=1, standby_hosts="any"
            )
            self.disks.append(Disk(world, host, sync=True))
            host.start()
        self.subscribers = []
        for topic_filter, host in zip(filters, world.hosts, strict=True):
            client = self.client(f"sub{host.index}", topic_filter)
            client.host = host
            self.subscribers.append(client)
        self.publisher = self.client("pub", None)
        for client in (*self.subscribers, self.publisher):
            client.connect()
        world.run(3.0)

    def client(self, name: str, topic_filter: str | None) -> SimClient:
        """Return a client of the first broker, with a session that is kept."""
        filters = None if topic_filter is None else [(topic_filter, 2)]
        host = self.world.hosts[0]
        return Stayer(self.world, self.ledger, name, host, clean=False, filters=filters)

    def restart(self, after: float) -> None:
        """Kill the first broker, whose disk then lacks what it was about to write, and start it
        again `after` so long (s)."""
        kill(self.world, self.world.hosts[0], True)
        self.world.run(after)
        self.world.hosts[0].start()
        self.disks[0].lags = False
        self.world.run(2.0)

    def settled(self) -> None:
        """Run until all is quiet, and check that nothing is lost, and nothing came twice."""
        self.world.run(10.0)
        for client in self.subscribers:
            check(self.world, self.ledger, client)
            check_order(self.world, self.ledger, client)
        assert self.world.violations == []
        assert all(sent.acked is not None for sent in self.ledger.sent)


@pytest.mark.parametrize("back", BACK)
@pytest.mark.parametrize("routing", ["flood", "interest", "topic"])
@pytest.mark.parametrize("seed", range(2))
def test_a_message_that_its_publisher_repeats_comes_once(
    seed: int, routing: str, back: float
) -> None:
    story = Lagging(seed, routing)
    story.publisher.publish("a", 2)
    story.world.run(0.2)
    story.disks[0].lags = True
    story.publisher.burst("a", 2, 3, 5)
    story.world.run(0.1)
    assert story.ledger.sent[-1].acked is None
    story.restart(back)
    story.publisher.publish("a", 2)
    story.settled()
    for client in story.subscribers:
        assert [got.number for got in client.got] == list(range(5))


@pytest.mark.parametrize(
    ("routing", "seed", "back"),
    [
        ("interest", 11, 0.08),
        ("interest", 11, 0.1),
        ("topic", 1, 0.08),
        ("topic", 4, 0.08),
        ("topic", 9, 0.02),
        ("topic", 9, 0.12),
    ],
)
def test_a_message_that_nobody_wants_at_its_broker_reaches_all_others(
    routing: str, seed: int, back: float
) -> None:
    """Only the standby has it. Its broker is back, and is asked, before that has passed it on to
    all who want it."""
    story = Lagging(seed, routing, "baaa")
    story.publisher.publish("a", 2)
    story.world.run(0.2)
    story.disks[0].lags = True
    story.publisher.burst("a", 2, 2, 5)
    story.world.run(0.1)
    story.restart(back)
    story.settled()
    assert [len(client.got) for client in story.subscribers] == [0, 3, 3, 3]


@pytest.mark.parametrize("back", BACK)
@pytest.mark.parametrize("routing", ["flood", "interest", "topic"])
def test_a_message_waits_for_a_client_that_is_away(routing: str, back: float) -> None:
    """Its broker has it only from the standby, and a subscription that is made after the start does
    not get it."""
    story = Lagging(3, routing)
    world, away = story.world, story.subscribers[0]
    away.disconnect()
    world.run(0.5)
    story.disks[0].lags = True
    story.publisher.publish("a", 2)
    world.run(0.1)
    story.restart(back)
    later = story.client("later", "#")
    later.connect()
    away._stay_down = False
    away.connect()
    world.run(1.0)
    story.publisher.publish("a", 2)
    story.settled()
    assert [got.number for got in later.got] == [1]


@pytest.mark.parametrize("back", BACK)
@pytest.mark.parametrize("routing", ["flood", "interest", "topic"])
def test_what_a_client_has_settled_does_not_come_again(routing: str, back: float) -> None:
    story = Lagging(4, routing)
    world, client = story.world, story.subscribers[0]
    client.ack_delay = 0.05
    for number in range(3):
        story.publisher.publish("a", 2)
        while len(client.got) <= number:
            world.run(0.001)
    story.disks[0].lags = True
    world.run(0.1)
    story.restart(back)
    story.settled()


@pytest.mark.parametrize("routing", ["interest", "topic"])
def test_what_nobody_wants_is_not_missing(routing: str) -> None:
    """Between what comes from the standby are many numbers that nobody wants here: a session that
    goes on to another broker has had all that is wanted."""
    story = Lagging(7, routing, "aaa")
    world, client = story.world, story.subscribers[0]
    story.disks[0].lags = True
    for _ in range(100):
        story.publisher.publish("a", 2)
        story.publisher.publish("b", 2)
    world.run(0.1)
    story.restart(BACK[2])
    world.run(2.0)
    client.roam(world.hosts[1], "leave")
    story.settled()
    assert client.life[0] == 1


def test_a_broker_without_a_standby_starts_as_fast() -> None:
    """One that is alone now asks nobody, and waits for nobody."""
    story = Lagging(5, "flood")
    first, *others = story.world.hosts
    for host in others:
        host.kill(True)
    story.world.run(12.0)
    alone = came_up(story, first)
    for host in others:
        host.start()
    story.world.run(12.0)
    for host in others:
        host.kill(True)
    story.world.run(1.0)
    assert came_up(story, first) == pytest.approx(alone, abs=0.1)


@pytest.mark.parametrize("fault", ["dead", "hangs", "silent"])
def test_a_start_waits_for_its_standby_for_a_while(fault: str) -> None:
    """Until others say that it is dead; if it hangs, or there are no others, for three seconds:
    it may be about to be found."""
    story = Lagging(6, "flood")
    first, *others = story.world.hosts
    target = first.running.images.stream.standbys[0]  # type: ignore[attr-defined]
    standby = next(host for host in others if host.id == target.broker_id)
    first.kill(True)
    if fault == "dead":
        standby.kill(True)
    elif fault == "hangs":
        standby.pause()
    else:
        story.world.partition([[first.index]])
    took = came_up(story, first)
    if fault == "dead":
        assert took < 1.0
    else:
        assert 3.0 < took < 4.0


def came_up(story: Lagging, host: Host) -> float:
    """Start a broker, again if it runs, and return how long it took until it let its publisher in
    (s)."""
    if host.alive:
        host.kill(True)
    story.world.run(1.0)
    host.start()
    started = story.world.now
    while story.publisher.state != "up":
        story.world.run(0.01)
        assert story.world.now < started + 10.0
    return story.world.now - started
