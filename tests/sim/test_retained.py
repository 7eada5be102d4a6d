"""Retained messages in a simulated federation: whatever happens, all brokers of a component end up
with the last writes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from mqttree.broker.core.message import Message
from mqttree.broker.core.retained_index import RetainedVersion, place_of
from mqttree.broker.limits import Limits
from mqttree.broker.node import Node
from tests.sim.checkers import bound_faults
from tests.sim.clients import Ledger, Sent, SimClient
from tests.sim.schedule import quiet
from tests.sim.world import Host, World

TOPICS = [f"r/{number}" for number in range(8)]
Version = tuple[int, bytes]


class Story:
    """Brokers, one client on each that subscribes to everything, and writes that are noted."""

    def __init__(self, seed: int, brokers: int, **config: Any) -> None:
        self.world = World(seed)
        self.rng = random.Random(seed * 31 + 7)
        self.ledger = Ledger()
        # Topic -> version -> (number, life)
        self.versions: dict[str, dict[Version, tuple[int, tuple[int, int]]]] = {}
        for index in range(brokers):
            self.world.add(discovery="multicast", capability=float(90 - index), **config)
        self.clients = [
            SimClient(
                self.world, self.ledger, f"c{host.index}", host, version=5, filters=[("#", 2)]
            )
            for host in self.world.hosts
        ]

    def start(self, *hosts: int) -> None:
        for index in hosts or range(len(self.world.hosts)):
            self.world.hosts[index].start()
            self.clients[index].connect()

    def write(
        self,
        broker: int,
        topic: str,
        *,
        delete: bool = False,
        expiry: float | None = None,
        qos: int = 1,
    ) -> int:
        """Publish a retained message on a broker; returns its number, -1 when the broker is not
        there."""
        host = self.world.hosts[broker]
        if host.node is None or host.paused:
            return -1
        sent = Sent(
            len(self.ledger.sent),
            self.clients[broker],
            0,
            topic,
            qos,
            True,
            host.life,
            self.world.now,
        )
        self.ledger.sent.append(sent)
        payload = b"" if delete else b"%d|" % sent.number
        expires_at = None if expiry is None else self.world.now + expiry
        before = self.version(host.node, topic)

        def publish(node: Node) -> None:
            node.now = self.world.now
            message = Message(topic.encode(), payload, qos, True, b"", expires_at, None)
            node.publisher.publish(message, None)

        host.do(publish, host.node)
        version = self.version(host.node, topic)
        assert version is not None
        assert before is None or before < version
        self.versions.setdefault(topic, {})[version] = (sent.number, host.life)
        return sent.number

    @staticmethod
    def version(node: Node, topic: str) -> Version | None:
        version = node.retained.digests.get(place_of(topic.encode()))
        return None if version is None else (version.time, version.key)

    def settle(self, seconds: float = 8.0) -> None:
        quiet(self.world)
        self.world.run(seconds, lambda: not self.faults(), every=0.5)
        self.world.run(0.5)

    def numbers(self, broker: int) -> dict[str, int]:
        """topic -> number of the message that a broker has."""
        node = self.world.hosts[broker].running
        return {
            m.topic.decode(): int(m.payload[:-1]) for m in node.retained.match("#", self.world.now)
        }

    def faults(self) -> list[str]:
        return [fault for group in self.world.components() for fault in self._faults(group)]

    def _faults(self, group: list[Host]) -> Iterator[str]:
        first, *others = group
        have = self.numbers(first.index)
        for other in others:
            if self.numbers(other.index) != have:
                yield f"{first.name} has {have}, {other.name} {self.numbers(other.index)}"
            if other.running.retained.digests.whole != first.running.retained.digests.whole:
                yield f"digests of {first.name} and {other.name} differ"
        lives = {host.life for host in group}
        for topic, versions in self.versions.items():
            version = self.version(first.running, topic)
            here = [v for v, (_, life) in versions.items() if life in lives]
            if here and (version is None or version < max(here)):
                yield f"{topic}: the last write is forgotten"
            if topic in have and (version is None or versions[version][0] != have[topic]):
                yield f"{topic}: the message is not that of its version"

    def check(self) -> None:
        """Equal stores, and clients that know what is in them, nothing twice."""
        violations = [*self.world.violations, *self.faults(), *bound_faults(self.world.alive())]
        for client in self.clients:
            now = [
                got
                for got in client.got
                if got.session == client.session and got.epoch == client.epoch
            ]
            twice = [
                n
                for n, times in Counter(got.number for got in now if not got.retain).items()
                if times > 1
            ]
            violations += [f"{client.name} got {twice} twice"] if twice else []
            violations += client.errors
            if client.state == "up" and client.interests:
                lacks = set(self.numbers(client.host.index).values()) - {got.number for got in now}
                violations += [f"{client.name} does not know {lacks}"] if lacks else []
        assert not violations

    def count(self, counter: str) -> int:
        return sum(int(getattr(host.running.counters, counter)) for host in self.world.alive())


@pytest.fixture
def short_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs forget at once: only comparing helps."""
    monkeypatch.setattr(World, "limits", Limits(log_age_s=0.0))


def test_a_broker_that_joins_late_gets_all_retained_messages(short_log: None) -> None:
    story = Story(1, 3)
    story.start(0, 1)
    quiet(story.world)
    for number in range(300):
        story.write(
            number % 2, f"late/{number}", expiry=1000.0 if number % 3 else None, qos=number % 3
        )
    story.world.run(1.0)
    for number in range(0, 300, 5):
        story.write(1, f"late/{number}", delete=True)
    story.world.run(5.0)
    story.start(2)
    story.settle()
    story.check()
    assert len(story.numbers(2)) == 240
    left = story.world.hosts[2].running.retained.match("late/1", story.world.now)[0].expires_at
    kept = story.world.hosts[0].running.retained.match("late/1", story.world.now)[0].expires_at
    assert left is not None
    assert kept is not None
    assert abs(left - kept) <= 1.0
    assert story.count("retained_restored") == 300
    assert not story.clients[2].deleted


@pytest.mark.parametrize("log_age", [0.0, 120.0])
def test_after_a_split_the_last_write_is_everywhere(log_age: float) -> None:
    """Both sides write, delete, and let expire: the last write is everywhere, and clients on both
    sides hear of it once."""
    story = Story(2, 4)
    story.world.limits = Limits(log_age_s=log_age)
    story.start()
    quiet(story.world)
    for topic in TOPICS:
        story.write(0, topic)
    story.world.run(2.0)
    story.world.partition([[0, 1]])
    story.world.run(5.0)
    mine = [story.write(0, "r/0"), story.write(1, "r/1")]
    story.world.run(0.1)
    theirs = [story.write(2, "r/1"), story.write(3, "r/2")]
    story.write(2, "r/3", delete=True)
    story.write(1, "r/4", delete=True)
    story.world.run(3.0)  # longer than clocks differ
    last = story.write(3, "r/4")
    story.write(0, "r/5", expiry=2.0)
    story.world.run(5.0)
    story.world.heal()
    story.settle()
    story.check()
    have = story.numbers(1)
    assert (have["r/0"], have["r/2"], have["r/4"]) == (mine[0], theirs[1], last)
    assert have["r/1"] in (mine[1], theirs[0])
    assert "r/3" not in have
    assert "r/5" not in have
    assert story.clients[0].deleted.count("r/3") == 1
    assert story.clients[3].deleted.count("r/3") == 1
    assert all(client.epoch == 1 for client in story.clients)


def test_retained_messages_cross_a_chain_of_brokers(short_log: None) -> None:
    """What one end lacks comes over all between."""
    story = Story(4, 5)
    for a in range(5):
        for b in range(a + 2, 5):
            story.world.block(a, b)
    story.world.partition([[0, 1], [3, 4]])
    story.start()
    story.world.run(5.0)
    for number in range(5):
        story.write(number, f"chain/{number}")
        story.write(number, "chain/all")
    story.world.run(5.0)
    story.world.heal()
    for a in range(5):
        for b in range(a + 2, 5):
            story.world.block(a, b)
    story.settle()
    story.check()
    assert len(story.numbers(0)) == 6


def test_a_large_store_is_compared_in_steps(short_log: None) -> None:
    """Of two thousand topics half are common: hardly anything is sent but what lacks."""
    story = Story(5, 2)
    world = story.world
    world.rate, world.window, world.high_water = 1e9, 1 << 30, 1 << 30
    for client in story.clients:
        client.filters = [("nothing", 0)]
    story.start()
    quiet(world)
    for number in range(1_000):
        story.write(0, f"both/{number}")
    world.run(1.0)
    world.partition([[0]])
    world.run(5.0)
    for number in range(1_000):
        story.write(number & 1, f"one/{number}")
    world.run(2.0)
    world.heal()
    story.settle(20.0)
    assert not story.faults()
    assert story.count("retained_restored") == 1_000
    # Some are sent twice: it begins again when the other end joins.
    assert story.count("retained_sent") <= 1_200
    assert not story.count("retained_dropped")


def _chaos(story: Story) -> None:
    rng, world = story.rng, story.world
    count = len(world.hosts)
    for _ in range(60):
        at = rng.uniform(0.5, 12.0)
        topic = rng.choice(TOPICS)
        delete, expiry, qos = (
            rng.random() < 0.25,
            rng.choice((None, None, None, 2.0)),
            rng.randrange(3),
        )
        world.after(
            at,
            partial(
                story.write, rng.randrange(count), topic, delete=delete, expiry=expiry, qos=qos
            ),
        )
    for _ in range(rng.randint(2, 6)):
        at, length = rng.uniform(0.5, 12.0), rng.uniform(0.1, 4.0)
        host = rng.choice(world.hosts)
        match rng.randrange(4):
            case 0:
                world.after(at, host.kill)
                world.after(at + length, host.start)
            case 1:
                world.after(at, host.pause)
                world.after(at + length, host.resume)
            case _:
                world.after(at, world.partition, [[i for i in range(count) if rng.random() < 0.5]])
                world.after(at + length, world.partition, ())


@pytest.mark.parametrize("seed", range(24))
def test_random_schedules_end_with_the_last_writes_everywhere(seed: int) -> None:
    """Random writes, deletions, partitions, crashes and pauses, with logs that help and logs that
    do not."""
    story = Story(100 + seed, 2 + seed % 4)
    story.world.limits = Limits(log_age_s=(0.0, 1.0, 120.0)[seed % 3], retained_check_s=5.0)
    story.start(*range(1 + seed % 2, len(story.world.hosts)))
    for index in range(1 + seed % 2):
        story.world.after(story.rng.uniform(0.0, 10.0), story.start, index)
    _chaos(story)
    story.world.run(17.0)
    for host in story.world.hosts:
        host.resume()
        host.start()
    story.world.heal()
    story.settle(15.0)
    # What was restored is held back while older messages of an origin that was killed may come.
    story.world.run(10.0)
    story.check()


def test_brokers_with_much_in_common_exchange_only_what_differs(short_log: None) -> None:
    """5,000 topics in common, and 50 that each side alone has written since: nothing else is sent,
    and little is said."""
    story = Story(5, 2)
    nodes = []
    for host in story.world.hosts:
        host.start()
        nodes.append(host.running)
    wall = nodes[0].cluster.clock.physical(nodes[0].now)
    for side, node in enumerate(nodes):
        for number in range(5000):
            topic = f"r/{number % 100}/{number}".encode()
            newer = number < 100 and number % 2 == side
            version = RetainedVersion(
                topic, place_of(topic), (wall - 100_000 + 1000 * newer) << 16, b"A" * 16, 1, 0, 1
            )
            payload = b"new" if newer else b"old"
            node.retained.write(
                Message(topic, payload, 1, True, b"", None, None), version, node.now, wall
            )
    same = partial(_same_digests, nodes)
    assert not same()
    story.world.run(30.0, same, every=0.1)
    assert same()
    assert [node.counters.retained_sent for node in nodes] == [50, 50]
    assert [node.counters.retained_restored for node in nodes] == [50, 50]
    assert sum(node.counters.link_bytes_control for node in nodes) < 100 * 2500


def _same_digests(nodes: list[Node]) -> bool:
    return nodes[0].retained.digests.whole == nodes[1].retained.digests.whole
