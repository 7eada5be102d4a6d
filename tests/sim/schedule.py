"""Random schedules: brokers, clients, traffic and faults from one seed; then quiet, probes and
every checker."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.sim.checkers import (
    Meetings,
    Messages,
    Splits,
    bound_faults,
    directory_faults,
    log_faults,
    tree_faults,
    watch_crossings,
)
from tests.sim.clients import Ledger, SimClient, matches
from tests.sim.groups import Groups
from tests.sim.ways import Ways
from tests.sim.world import Host, World

TOPICS = ("a", "a/b", "a/c", "x/y/z", "x/y", "deep/1/2/3/4")
FILTERS = ("a", "a/b", "a/+", "a/#", "#", "x/+/z", "+/y", "+/+", "deep/#", "x/y/z")
QUIET = 30.0
"""Virtual s in which a healed federation has to agree: a beacon, a dial's backoff at its longest,
and some hellos."""


@dataclass(slots=True)
class Result:
    """What came of one schedule."""

    seed: int
    violations: list[tuple[str, str]]
    digest: str
    transcript: list[str]
    events: int
    brokers: int
    messages: int
    deliveries: int
    converge: float
    """Virtual s from the last healing to agreement."""
    counters: dict[str, int] = field(default_factory=dict)
    virtual: float = 0.0
    routing: str = ""
    """How its brokers route; "mixed": not all alike."""


def result_of(
    seed: int,
    world: World,
    brokers: int,
    ledger: Ledger,
    clients: Sequence[SimClient],
    *,
    converge: float,
    routing: str,
) -> Result:
    """Return what came of a schedule that has ended. `brokers`: how many there were; `ledger`: what
    was published; `converge`: virtual s from the last healing to agreement; `routing`: how brokers
    route."""
    counters: dict[str, int] = {}
    for host in world.alive():
        for name, value in host.running.counters.as_dict().items():
            counters[name] = counters.get(name, 0) + value
    return Result(
        seed,
        world.violations,
        world.digest,
        world.transcript,
        world.events,
        brokers,
        len(ledger.sent),
        sum(len(client.got) for client in clients),
        converge,
        counters,
        world.now - world.started,
        routing,
    )


class Schedule:
    """One seed's story."""

    client_type = SimClient

    def __init__(self, seed: int, brokers: int | None = None, verbose: int = 0) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed * 7919 + 1)
        self.world = World(seed, verbose)
        watch_crossings(self.world)
        self.splits = Splits(self.world)
        self.meetings = Meetings(self.world)
        self.ways = Ways(self.world)
        self.ledger = Ledger()
        self.clients: list[SimClient] = []
        self.publishers: list[SimClient] = []
        self.count = brokers or rng.choice((2, 3, 3, 3, 4, 4, 5, 5, 6, 7, 9))
        self.length = rng.uniform(3.0, 12.0)
        self.small = rng.random() < 0.25
        rng.random()
        # These pairs never reach each other: trees of several hops.
        self.apart: list[tuple[int, int]] = []
        if rng.random() < 0.3:
            pairs = [(a, b) for b in range(self.count) for a in range(b)]
            self.apart = [pair for pair in pairs if rng.random() < rng.choice((0.2, 0.5))]
        self.converge = 0.0
        self.expiries: tuple[int, ...] = ()  # as of `SimClient`
        self.groups: Groups | None = None  # in a third of the schedules
        if seed % 3 == 0:
            self.groups = Groups(
                self.world, self.ledger, self.meetings, random.Random(seed * 104729 + 3)
            )

    # ---- building

    def build(self) -> None:
        """Hosts, and who starts when."""
        rng, world = self.rng, self.world
        discovery = rng.choice(("multicast", "multicast", "multicast", "static", "both"))
        seeds = (("10.0.0.1", 1883),) if discovery != "multicast" else ()
        secret = b"secret" if rng.random() < 0.3 else None
        equal = rng.random() < 0.3
        for _ in range(self.count):
            world.add(
                discovery="static" if discovery == "static" else "multicast",
                seeds=seeds,
                secret=secret,
                capability=1.0 if equal else round(rng.uniform(0.0, 9.0), 1),
                routing=self._routing(len(world.hosts)),
            )
        together = rng.random() < 0.5
        for host in world.hosts:
            late = 0.0 if together else rng.choice((0.0, rng.uniform(0.0, 2.0)))
            if rng.random() < 0.1 and host.index:
                late = rng.uniform(0.3, 0.9) * self.length
            world.after(late, host.start)
        if discovery == "static":
            self.apart = [(a, b) for a, b in self.apart if a]  # all must reach the seed
        for a, b in self.apart:
            world.block(a, b)
        self._clients()
        if self.groups is not None:
            self.groups.build(world.hosts)

    def _routing(self, index: int) -> str:
        """Half of the schedules route by interest, a quarter by topic; in some, brokers of several
        kinds make one federation."""
        if self.seed % 8 == 7:
            return "interest" if index % 2 else "flood"
        if self.seed % 32 == 6:
            return ("topic", "interest", "topic", "flood")[index % 4]
        return "interest" if self.seed % 2 else "topic" if self.seed % 4 == 2 else "flood"

    def _clients(self) -> None:
        rng, world = self.rng, self.world
        for host in world.hosts:
            for number in range(rng.choice((1, 1, 2))):
                filters = [
                    (f, rng.choice((0, 1, 2, 2)))
                    for f in rng.sample(FILTERS, rng.choice((1, 2, 3)))
                ]
                client = self._client(f"sub{host.index}.{number}", host, filters=filters)
                client.ack_delay = (
                    rng.choice((0.0, 0.0, 0.05)) if client.receive_maximum in (0, 100) else 0.0
                )
            if rng.random() < 0.8 or host.index == 0:
                will = ("a/b", rng.choice((0, 1, 2)), False) if rng.random() < 0.3 else None
                self.publishers.append(self._client(f"pub{host.index}", host, will=will))

    def _client(self, name: str, host: Host, **settings: Any) -> SimClient:
        rng = self.rng
        settings.setdefault("version", rng.choice((3, 4, 5, 5)))
        settings.setdefault("clean", rng.random() < 0.8)
        settings.setdefault("receive_maximum", rng.choice((0, 1, 5, 100)))
        client = self.client_type(self.world, self.ledger, name, host, **settings)
        client.expiries = self.expiries
        self.clients.append(client)
        self.world.after(rng.uniform(0.0, 0.5), client.connect)
        return client

    # ---- traffic and faults

    def traffic(self) -> None:
        """Plan publications: streams of some rate, with a burst now and then."""
        rng, world = self.rng, self.world
        qos = rng.choice(((0, 1, 2), (1,), (2,), (1, 2), (0,)))
        big = rng.choice((0, 0, 200, 3000, 60000)) if world.rate > 2e6 else rng.choice((0, 0, 200))
        for publisher in self.publishers:
            topics = rng.sample(TOPICS, rng.choice((1, 2, 3)))
            pause = rng.choice((0.05, 0.1, 0.4)) if big < 10000 else 0.6
            at = rng.uniform(0.0, 1.0)
            while at < self.length:
                for _ in range(rng.choice((1, 1, 1, 1, 1, 1, 12))):
                    retain = rng.random() < 0.05
                    topic = f"r/{publisher.name}" if retain else rng.choice(topics)
                    padding = rng.randrange(big + 1)
                    world.after(at, publisher.publish, topic, rng.choice(qos), retain, padding)
                at += rng.expovariate(1 / pause)
        rng = random.Random(f"{self.seed} bursts")
        for publisher in self.publishers:
            for _ in range(rng.choice((0, 0, 1, 4))):
                topic, count = rng.choice(TOPICS), rng.randrange(4, 60)
                world.after(
                    rng.uniform(0.5, self.length),
                    publisher.burst,
                    topic,
                    rng.choice((1, 2)),
                    count,
                    rng.choice((0, 50)),
                )

    def faults(self) -> None:
        """Plan what goes wrong."""
        rng, world = self.rng, self.world
        for _ in range(rng.randint(3, 12)):
            at = rng.uniform(0.2, self.length)
            fault = rng.choice(
                (
                    self._kill,
                    self._kill,
                    self._pause,
                    self._pause,
                    self._partition,
                    self._partition,
                    self._reset,
                    self._reset,
                    self._black,
                    self._block,
                    self._garbage,
                    self._cut_client,
                    self._move_client,
                    self._slow,
                    self._leave,
                )
            )
            world.after(at, fault, rng.uniform(0.05, 4.0), rng.getrandbits(32))
        if self.groups is not None:
            self.groups.faults(self.length)

    def _pick(self, choice: int) -> Host | None:
        alive = self.world.alive()
        return alive[choice % len(alive)] if alive else None

    def _kill(self, length: float, choice: int) -> None:
        host = self._pick(choice)
        if host is not None:
            host.kill(reset=choice % 3 != 0)
            self.world.after(length, host.start)

    def _leave(self, length: float, choice: int) -> None:
        host = self._pick(choice)
        if host is not None:
            host.leave()
            self.world.after(length + 0.1, host.start)

    def _pause(self, length: float, choice: int) -> None:
        host = self._pick(choice)
        if host is not None:
            host.pause()
            self.world.after(length, host.resume)

    def _partition(self, length: float, choice: int) -> None:
        side = [index for index in range(self.count) if choice >> index & 1]
        self.world.partition([side])
        self.world.after(length, self.world.partition, ())

    def _block(self, length: float, choice: int) -> None:
        a, b = choice % self.count, (choice >> 8) % self.count
        if a != b:
            self.world.block(a, b)
            self.world.after(length, self._unblock, a, b)

    def _unblock(self, a: int, b: int) -> None:
        if (min(a, b), max(a, b)) not in self.apart:
            self.world.blocked.discard((min(a, b), max(a, b)))
        self.world.partition(())

    def _link_ends(self) -> list[Any]:
        return [
            e for e in self.world.streams.values() if e.host is not None and e.peer.host is not None
        ]

    def _reset(self, length: float, choice: int) -> None:
        ends = self._link_ends()
        if ends:
            end = ends[choice % len(ends)]
            self.world.say(f"connection between {end.host.name} and {end.peer.host.name} is reset")
            for one in (end, end.peer):
                if one.state == "open":
                    one.drop(reset=False)
                    one._tell_lost("connection reset")

    def _black(self, length: float, choice: int) -> None:
        ends = self._link_ends()
        if ends:
            end = ends[choice % len(ends)]
            end.black = True
            self.world.say(
                f"connection between {end.host.name} and {end.peer.host.name} swallows everything"
            )

    def _garbage(self, length: float, choice: int) -> None:
        host = self._pick(choice)
        if host is not None:
            rng = random.Random(choice)
            bridge = (
                bytes.fromhex("10") + bytes((rng.randrange(10, 120),)) + b"\0\x04MQTT\x85\x02\0\x02"
            )
            data = rng.choice((b"", bridge)) + rng.randbytes(rng.randrange(1, 300))
            end = self.world.connect(host, Deaf())
            if end is not None:
                end.write(data)
            source = self.world.hosts[0]
            junk = rng.randbytes(rng.randrange(100))
            host.do(
                lambda n: n.datagram_received(junk, (source.address[0], 1), self.world.now),
                host.running,
            )

    def _cut_client(self, length: float, choice: int) -> None:
        self.clients[choice % len(self.clients)].cut()

    def _move_client(self, length: float, choice: int) -> None:
        client = self.clients[choice % len(self.clients)]
        if client.state == "up":
            client.disconnect(self.world.hosts[(choice >> 8) % self.count])

    def _slow(self, length: float, choice: int) -> None:
        client = self.clients[choice % len(self.clients)]
        client.read(False)
        epoch = client.epoch
        self.world.after(length, lambda: client.read(True) if client.epoch == epoch else None)

    # ---- the end

    def run(self) -> Result:
        """Play it, heal everything, wait for quiet, probe, check."""
        world = self.world
        if self.small:
            small = 32 * 1024
            world.limits = world.limits.replace(link_backlog_bytes=small, link_kept_bytes=small)
        try:
            self.build()
            self.traffic()
            self.faults()
            world.run(self.length + 1.0)
            self._end()
        except Exception:
            # In a client, the network or a checker; what a node raises is caught at its host.
            world.violation("simulation", traceback.format_exc(limit=-6))
        return result_of(
            self.seed,
            self.world,
            self.count,
            self.ledger,
            self.clients,
            converge=self.converge,
            routing=self._kind(),
        )

    def _end(self) -> None:
        world = self.world
        for host in world.hosts:
            host.resume()
        world.heal()
        for host in world.hosts:
            if not host.alive and (host.index == 0 or self.rng.random() < 0.8):
                host.start()
        for a, b in self.apart:
            world.block(a, b)
        healed = world.now
        world.run(5.0)  # what was planned before the end: restarts, slow readers
        self._settle()
        quiet(world)
        self.converge = world.now - healed
        # Where 8 KiB on their way are all that a link takes, replays take seconds.
        world.run(10.0, self._drained)
        world.run(2.0)
        for kind, text in bound_faults(world.alive()):
            world.violation(kind, text)
        messages = self._messages()
        probes = len(self.ledger.sent)
        if not world.violations:
            self._probe(messages)
        self._judge(messages, probes)

    def _messages(self) -> Messages:
        """Return what judges who received what."""
        return Messages(self.world, self.ledger, self.clients, self.meetings, self.splits)

    def _drained(self) -> bool:
        """Whether nothing waits for a slow link."""
        links = [
            link for host in self.world.alive() for link in host.running.cluster.links.values()
        ]
        return not any(link.conn.backlog_bytes for link in links)

    def _settle(self) -> None:
        """Wait for what may take longer."""

    def _judge(self, messages: Messages, probes: int) -> None:
        """Check what came; messages from number `probes` on were published when it was quiet."""
        if self.groups is not None:
            self.groups.check(probes)
        messages.check()
        messages.retained()

    def _probe(self, messages: Messages) -> None:
        """Every broker publishes once at every QoS; every matching subscriber anywhere gets it
        once."""
        world, rng = self.world, self.rng
        first = len(self.ledger.sent)
        expected = {}
        self.ways.watch()
        ready = [p for p in self.publishers if p.state == "up"]
        for qos in (0, 1, 2):
            for publisher in ready:
                topic = rng.choice(TOPICS)
                sent = publisher.publish(topic, qos)
                assert sent is not None
                expected[sent.number] = {
                    c
                    for c in self.clients
                    if c.state == "up"
                    and any(matches(i.filter, topic) for i in c.interests)
                    and messages.joined(c, publisher)
                }
        world.run(5.0)
        messages.probes(first, expected, rested=self.ways.rested())
        if self.groups is None:
            self.ways.check(self.ledger.sent[first:])
        if self.groups is not None:
            self.groups.probed(first, messages)
        for kind, text in log_faults(world.alive(), self.ledger):
            world.violation(kind, text)

    def _kind(self) -> str:
        kinds = {self._routing(index) for index in range(self.count)}
        return kinds.pop() if len(kinds) == 1 else "mixed"


class Deaf:
    """A peer that only talks."""

    def data(self, data: bytes) -> None:
        """Ignore it."""

    def lost(self, reason: str) -> None:
        """Fine."""


def faults_of(world: World) -> list[tuple[str, str]]:
    """What is wrong with the trees of all components now."""
    groups = world.components()
    return [
        fault
        for group in groups
        for fault in tree_faults(world, group) + directory_faults(world, group)
    ]


def quiet(world: World, seconds: float = QUIET) -> float:
    """Run until every component agrees, and stays so for 2 s; reports what is still wrong after
    `seconds`. Returns s."""
    began = world.now
    since: list[float] = []

    def agreed() -> bool:
        if faults_of(world):
            since.clear()
            return False
        since.append(world.now)
        return since[-1] - since[0] >= 2.0

    if not world.run(seconds, agreed):
        for kind, text in faults_of(world) or [
            ("unstable", "the federation does not come to rest")
        ]:
            world.violation(kind, text)
    return world.now - began


def run_seed(seed: int, brokers: int | None = None, verbose: int = 0) -> Result:
    """Run one schedule."""
    return Schedule(seed, brokers, verbose).run()


Runner = Callable[[int], Result]
