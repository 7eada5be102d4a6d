"""`--routing srt` in simulation: what it promises, in random schedules, and what is lost, to the
message."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from mqttree.broker.base.limits import Limits
from tests.sim.clients import SimClient
from tests.sim.lossy_modes import EvenScene, NothingOwed, missing
from tests.sim.schedule import quiet
from tests.sim.srt import SrtSchedule, run_srt, table_faults
from tests.sim.test_federation import Event, kill, part, start
from tests.sim.world import World

SEEDS = int(os.environ.get("SEEDS", "12"))
FIRST = int(os.environ.get("FIRST", "0"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_random_schedules_keep_what_srt_promises(seed: int) -> None:
    result = run_srt(seed)
    assert result.violations == [], "\n".join(result.transcript)
    assert result.messages


class Line(EvenScene):
    """b0 - b1 - b2 - ..."""

    def __init__(self, brokers: int, events: list[Event] | None = None, **config: object) -> None:
        every = range(brokers)
        apart = [(a, b) for a in every for b in every if abs(a - b) > 1]
        super().__init__(brokers, events or [], apart, routing="srt", **config)

    def check(self) -> None:
        """All that is promised at any time, and the tables."""
        NothingOwed(self.world, self.ledger, self.clients, self.meetings, self.splits).check()
        for kind, text in table_faults(self.world):
            self.world.violation(kind, text)
        assert self.world.violations == []


@pytest.mark.parametrize("burst", (1, 3, 10))
def test_exactly_what_is_counted_is_lost_until_the_way_is_open(burst: int) -> None:
    """The subscriber waits two hops away. The topic's messages of the first round trip are lost;
    then none is."""
    scene = Line(3)
    subscriber = scene.client("sub", 2, "t/#")
    publisher = scene.client("pub", 0)
    world = scene.world
    for number in range(40):
        for _ in range(burst):
            world.after(number * 0.005, publisher.publish, "t/1", 1 + number % 2)
    world.run(2.0)
    lost = missing(publisher, subscriber)
    assert 0 < len(lost) < 20 * burst
    assert lost == list(range(len(lost)))
    assert scene.lost() == len(lost)
    # One more topic of the same filter: the way of the first one is its way, too.
    publisher.publish("t/2", 1)
    world.run(1.0)
    assert missing(publisher, subscriber) == lost
    assert scene.lost() == len(lost)
    scene.check()


def test_a_later_subscriber_misses_what_is_published_while_it_is_on_its_way() -> None:
    """b1 has passed the topic by already: it counts what has gone past, not the publisher's
    broker."""
    scene = Line(4)
    near = scene.client("near", 1, "t")
    publisher = scene.client("pub", 0)
    publisher.publish("t", 1)
    world = scene.world
    world.run(1.0)
    assert scene.lost() == 1
    before = len(missing(publisher, near))
    far = SimClient(world, scene.ledger, "far", scene.hosts[3], filters=[("t", 2)])
    scene.clients.append(far)
    for number in range(60):
        world.after(0.5 + number * 0.005, publisher.publish, "t", 1)
    world.after(0.6, far.connect)
    world.run(3.0)
    assert len(missing(publisher, near)) == before
    since = far.interests[0].since
    sent = {one.number: one.at for one in scene.ledger.sent}
    late = [number for number in missing(publisher, far) if sent[number] > since]
    counted = [host.running.counters.lost_before_path for host in scene.hosts]
    assert counted[1] > 0
    # What is under way in both directions meanwhile is counted to the ms, not to the message.
    assert abs(sum(counted) - 1 - len(late)) <= 2 + 2 * 30 // 5
    scene.check()


def test_no_broker_off_the_way_learns_of_a_subscription() -> None:
    scene = Line(5)
    scene.client("sub", 0, "t", "other")
    publisher = scene.client("pub", 2)
    publisher.publish("t", 1)
    scene.world.run(1.0)
    found = Counter(
        (host.index, row.filter)
        for host in scene.hosts
        for row in host.running.cluster.strategy._tables.wanting("t")
    )
    assert found == {(0, "t"): 1, (1, "t"): 1, (2, "t"): 1}
    for host in scene.hosts:
        entries = host.running.cluster.directory.database.own.entries
        assert not [key for key in entries if key[:1] == b"f"]
    scene.check()


CHANGES: dict[str, tuple[int, list[Event]]] = {
    "the broker in the middle dies and comes back": (3, [(0.5, kill(1)), (3.0, start(1))]),
    "the publisher's broker is cut off for a while": (3, [(0.5, part((0,))), (6.0, part())]),
    "all are cut off from each other": (4, [(0.5, part((0,), (1,), (2,), (3,))), (5.0, part())]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_after_a_change_of_the_tree_the_ways_open_again(name: str) -> None:
    brokers, events = CHANGES[name]
    scene = Line(brokers)
    subscriber = scene.client("sub", brokers - 1, "t/#")
    publisher = scene.client("pub", 0)
    world = scene.world
    for at, event in events:
        world.after(at, event, scene)
    for number in range(100):
        world.after(number * 0.2, publisher.publish, "t/1", 1)
    world.run(21.0)
    lost = missing(publisher, subscriber)
    sent = {one.number: one.at for one in scene.ledger.sent}
    # From some seconds after the last event on, nothing is.
    assert [number for number in lost if sent[number] > sent[0] + 15.0] == []
    scene.check()


def test_topics_that_are_not_used_are_withdrawn_everywhere() -> None:
    world_limits = Limits(advertised_time=20.0)
    scene = Line(3)
    for host in scene.hosts:
        host.kill()
    scene.world.limits = world_limits
    for host in scene.hosts:
        host.start()
    quiet(scene.world)
    subscriber = scene.client("sub", 2, "#")
    publisher = scene.client("pub", 0)
    publisher.publish("once", 1)
    for number in range(30):
        scene.world.after(5.0 * number, publisher.publish, "often", 1)
    scene.world.run(150.0)
    for host in scene.hosts[1:]:
        hops = scene.hosts[host.index].running.cluster.strategy._hops.values()
        assert {topic for hop in hops for topic in hop.topics} == {"often"}
    before = len(subscriber.got)
    publisher.publish("often", 1)
    scene.world.run(1.0)
    assert len(subscriber.got) == before + 1
    scene.check()


def test_a_schedule_is_the_same_each_time() -> None:
    assert SrtSchedule(5).run().digest == SrtSchedule(5).run().digest


def test_brokers_of_two_modes_stay_two_federations() -> None:
    world = World(1)
    hosts = [
        world.add(discovery="multicast", routing=mode) for mode in ("srt", "topic", "srt", "topic")
    ]
    for host in hosts:
        host.start()
    world.run(20.0)
    for host in hosts:
        found = {link.peer.id for link in host.running.cluster.links.values() if link.up}
        assert found == {hosts[(host.index + 2) % 4].id}
        refusals = host.running.counters.links_refused
        assert refusals
