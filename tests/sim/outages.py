"""Long outages, restarts inside them, and what one session alone is owed: `python -m tests.sim
--kind outages`. All brokers keep journals unless it is said; a seed draws one of three stories.

    outage  brokers are killed or cut off for 9 s to 50 minutes, one, several or all of them;
            others are restarted meanwhile, also just before the end; it is published wherever a
            broker is up. With members of shared subscriptions, retained messages and wills, and
            now and then a broker without a data directory, which is cut off for 100 s at most and
            never killed.
    merge   a client begins a new session as its broker is dead, or takes its session along; the
            broker where it was published dies; then brokers are killed at any step of the merge or
            takeover. Clients beside it have had everything.
    join    a broker that has just started is cut off from its neighbours, one after the other, up
            to 0.3 s after its first link.

Nothing is forgiven: what was acknowledged comes to each session, at QoS 2 once, and to one member
of a group; retained values are the last ones everywhere; in `join` order holds.
"""

from __future__ import annotations

import random
import traceback
from typing import Any

from tests.sim.checkers import Meetings, moves
from tests.sim.clients import Ledger, Sent, SimClient, matches
from tests.sim.disk import Disk, Stayer
from tests.sim.groups import check_group
from tests.sim.schedule import Result, faults_of, quiet, result_of
from tests.sim.world import Host, World

STORIES = ("outage", "outage", "merge", "join")
MODES = ("flood", "interest", "topic")
TOPICS = ("a", "a/b", "c")
FILTERS = ("a", "a/#", "#", "c")
GROUP = ("g", "a/#")
LENGTHS = (9.0, 11.0, 30.0, 60.0, 150.0, 360.0)
"""s of an outage, most of the time."""
LONGEST = 3000.0
SELDOM = 0.03
"""Part of the outages that take as long as that."""
AWAY = 3400.0
"""s in which all outages of a schedule end: a broker may be away in two in a row, and what it lacks
is kept for an hour."""
LOGGED = 100.0
"""s for which a broker without a data directory keeps what others lack, at least."""
SETTLED = 120.0
"""virtual s in which everything has arrived."""


class Outage:
    """One seed's story."""

    def __init__(self, seed: int, verbose: int = 0, *, routing: str = "", story: str = "") -> None:
        """`routing`, `story`: instead of those that the seed draws."""
        self.seed = seed
        self.rng = rng = random.Random(f"{seed} outage")
        self.world = World(seed, verbose)
        self.routing = routing or MODES[seed % 3]
        self.story = story or rng.choice(STORIES)
        self.ledger = Ledger()
        self.meetings = Meetings(self.world)
        self.disks: dict[int, Disk] = {}
        self.subscribers: list[SimClient] = []
        self.publishers: list[SimClient] = []
        self.members: list[SimClient] = []
        self.wanderers: list[SimClient] = []
        self.length = 0.0
        self.in_order = False
        self.world.skew = rng.choice((0.0, 1.0))
        self.world.loss = min(self.world.loss, 0.05)
        self.world.on_start.append(self._started)

    def _started(self, host: Host) -> None:
        if host.index in self.disks:
            self.disks[host.index].started()

    # ---- building

    def build(self, count: int, *, without: int | None = None) -> None:
        """Start `count` brokers with journals, but for `without`."""
        rng, world = self.rng, self.world
        static = rng.random() < 0.3
        for index in range(count):
            host = world.add(
                discovery="static" if static else "multicast",
                seeds=(("10.0.0.1", 1883),) if static else (),
                routing=self.routing,
                capability=float(rng.randrange(1, 9)),
            )
            if index != without:
                self.disks[index] = Disk(world, host, sync=rng.random() < 0.2)
                world.kept.add(index)
            host.start()

    def subscriber(self, name: str, host: Host, topic_filter: str, **options: Any) -> SimClient:
        """A client with a session that it wants kept."""
        rng = self.rng
        client = Stayer(
            self.world,
            self.ledger,
            name,
            host,
            version=5,
            clean=False,
            filters=[(topic_filter, rng.choice((1, 2, 2)))],
            **options,
        )
        client.ack_delay = rng.choice((0.0, 0.0, 0.05))
        self.world.after(rng.uniform(0.1, 1.0), client.connect)
        return client

    def publisher(self, host: Host) -> SimClient:
        """A client that publishes, and sends again what was not acknowledged."""
        client = Stayer(self.world, self.ledger, f"pub{host.index}", host, version=5, clean=False)
        self.publishers.append(client)
        self.world.after(self.rng.uniform(0.1, 1.0), client.connect)
        return client

    def publishing(self, begin: float, end: float, most: int = 150) -> None:
        """Have about so many messages published in this time, by all publishers."""
        rng = self.rng
        pause = max(0.02, (end - begin) / rng.randrange(most // 3, most))
        at = begin
        while (at := at + rng.expovariate(1 / pause)) < end:
            publisher = rng.choice(self.publishers)
            topic, qos = rng.choice(TOPICS), rng.choice((1, 2))
            if rng.random() < 0.1:
                self.world.after(at, publisher.publish, f"r/{publisher.name}", qos, True)
            elif rng.random() < 0.05:
                self.world.after(at, publisher.burst, topic, qos, rng.randrange(2, 20), 5)
            else:
                self.world.after(at, publisher.publish, topic, qos)

    # ---- stories

    def outage(self) -> None:
        """Brokers are away for long, and restarted meanwhile."""
        rng, world = self.rng, self.world
        count = rng.choice((2, 2, 3, 3, 4))
        without = rng.randrange(count) if rng.random() < 0.2 else None
        self.build(count, without=without)
        if count > 2 and rng.random() < 0.3:
            for a in range(count):
                for b in range(a + 2, count):
                    world.block(a, b)
        for host in world.hosts:
            will = ("a/b", rng.choice((1, 2)), False) if rng.random() < 0.3 else None
            self.publisher(host)
            if host.index in self.disks:
                client = self.subscriber(f"sub{host.index}", host, rng.choice(FILTERS), will=will)
                self.subscribers.append(client)
        if rng.random() < 0.4:
            for host in rng.sample(world.hosts, rng.randint(1, count)):
                if host.index in self.disks:
                    self.members.append(
                        self.subscriber(
                            f"member{host.index}", host, f"$share/{GROUP[0]}/{GROUP[1]}"
                        )
                    )
        # SUBACK waits for brokers that are found and not reached. Subscriptions of a broker that is
        # cut off get what the memory has, and no more (docs/promises.md).
        begin = 6.0 if world.blocked else 3.0
        for _ in range(1 if without is not None else rng.choice((1, 1, 2))):
            lasts = LONGEST if rng.random() < SELDOM else rng.choice(LENGTHS)
            lasts = min(lasts * rng.uniform(0.95, 1.1), AWAY - begin)
            self._away(begin, lasts, without)
            begin += lasts + rng.choice((0.5, 2.0, 8.0))
        self.length = begin + 2.0
        self.publishing(2.0, self.length)
        for client in self.subscribers:
            if client.will is not None:
                for _ in range(rng.choice((0, 1, 2))):
                    world.after(rng.uniform(3.0, self.length), client.cut)

    def _away(self, begin: float, lasts: float, without: int | None) -> None:
        """Plan one outage."""
        rng, world = self.rng, self.world
        killable = [host for host in world.hosts if host.index != without]
        kind = rng.choice(("kill", "kill", "split", "all"))
        if without is not None:
            lasts = min(lasts, LOGGED)
        end = begin + lasts
        if kind == "split":
            side = rng.sample(range(len(world.hosts)), rng.randint(1, len(world.hosts) - 1))
            world.after(begin, world.partition, [side])
            world.after(end, world.partition, ())
        else:
            victims = killable if kind == "all" else rng.sample(killable, 1)
            for host in victims:
                world.after(begin + rng.choice((0.0, 0.3)), host.kill, rng.random() < 0.7)
            back = [end] * len(victims)
            if kind == "all":
                back = [begin + 0.5 + rng.choice((0.0, 9.0, 11.0, 60.0)) for _ in victims]
                back[rng.randrange(len(back))] = end
            for host, at in zip(victims, back, strict=True):
                world.after(at, host.start)
        for _ in range(rng.choice((0, 1, 1, 2))):
            host = rng.choice(killable)
            at = rng.choice(
                (rng.uniform(begin, end), end - rng.uniform(0.0, 2.0), end + rng.uniform(0.0, 1.0))
            )
            world.after(at, self._restart, host, rng.choice((0.05, 0.5, 3.0)))

    def _restart(self, host: Host, after: float) -> None:
        if host.alive:
            host.kill()
            self.world.after(after, host.start)

    def merge(self) -> None:
        """Brokers are killed while a session is merged or taken over, and its origin is away."""
        rng, world = self.rng, self.world
        self.build(3)
        origin, former, newer = rng.sample(world.hosts, 3)
        publisher = self.publisher(origin)
        for host in (former, newer):
            self.subscribers.append(self.subscriber(f"beside{host.index}", host, "#"))
        client = SimClient(
            world,
            self.ledger,
            "wanderer",
            former,
            version=5,
            clean=False,
            filters=[("a/#", 2)],
        )
        client.forked = True
        self.wanderers.append(client)
        world.after(0.5, client.connect)
        moved = rng.random() < 0.4
        world.after(1.5, client.disconnect)
        away = 2.0 + rng.choice((0.5, 2.0))
        for at in range(100):
            world.after(1.6 + at * (away / 60), publisher.publish, rng.choice(TOPICS), 2)
        if not moved:
            world.after(2.0, former.kill)
        world.after(2.0 + away, self._come, client, newer)
        gone = 2.0 + away + rng.choice((0.05, 0.4, 1.5))
        world.after(gone, origin.kill)
        back = gone + rng.choice((0.3, 1.5))
        world.after(back, former.start)
        victim = rng.choice((former, newer))
        self._kill_at_steps(victim, rng.choice((1, 1, 2)))
        until = back + rng.choice((5.0, 20.0, 45.0, 200.0))
        world.after(until, origin.start)
        self.length = until + 3.0
        if rng.random() < 0.5:
            world.after(until + rng.uniform(0.0, 0.5), self._restart, victim, 0.3)

    def _come(self, client: SimClient, host: Host) -> None:
        client._stay_down = False
        client.host = host
        client.connect()

    def _kill_at_steps(self, victim: Host, kills: int) -> None:
        """Have a broker killed at some steps of merges and takeovers, counted over all brokers. Of
        both brokers of a session only one dies (docs/promises.md)."""
        rng, world = self.rng, self.world
        at = sorted(rng.randrange(1, 12) for _ in range(kills))
        before: list[object] = []
        steps = 0

        def look() -> None:
            nonlocal before, steps
            if (now := [moving(host) for host in world.alive()]) != before:
                before = now
                steps += 1
            if at and steps >= at[0]:
                at.pop(0)
                self._restart(victim, rng.choice((0.05, 0.5, 2.0)))
            if at and world.now < world.started + self.length:
                world.after(0.001, look)

        world.after(2.1, look)

    def join(self) -> None:
        """A broker that has just started loses its first links again, for a moment."""
        rng, world = self.rng, self.world
        count = rng.choice((3, 4, 5))
        self.build(count)
        for host in world.hosts:
            self.publisher(host)
            self.subscribers.append(self.subscriber(f"sub{host.index}", host, rng.choice(FILTERS)))
        victim = rng.choice(world.hosts)
        down = rng.choice((0.5, 2.0, 4.0))
        world.after(3.0, victim.kill)
        world.after(3.0 + down, victim.start)
        world.on_start.append(lambda host: self._cut_soon(host, victim))
        self.length = 3.0 + down + 8.0
        self.publishing(2.0, self.length, 600)
        self.in_order = True

    def _cut_soon(self, host: Host, victim: Host) -> None:
        """Once the first link of a broker is up: cut off its first neighbour, and maybe others."""
        rng, world = self.rng, self.world
        if host is not victim or world.now < world.started + 2.0:
            return
        node = host.running

        def look() -> None:
            if host.node is not node:
                return
            peers = [link.peer.id for link in node.cluster.links.values() if link.up and link.peer]
            if not peers:
                world.after(0.001, look)
                return
            first = next(other for other in world.hosts if other.id == peers[0])
            others = [other for other in world.hosts if other not in (host, first)]
            at = rng.uniform(0.0, 0.3)
            for other in [first, *rng.sample(others, rng.randint(0, len(others)))]:
                lasts = rng.choice((0.3, 1.0, 2.5))
                world.after(at, world.block, host.index, other.index)
                world.after(at + lasts, self._mend, host.index, other.index)
                at += rng.uniform(0.0, 0.3)

        look()

    def _mend(self, a: int, b: int) -> None:
        self.world.blocked.discard((min(a, b), max(a, b)))
        self.world.partition(())

    # ---- the end

    def run(self) -> Result:
        """Play it, heal everything, wait, and check."""
        world = self.world
        try:
            {"outage": self.outage, "merge": self.merge, "join": self.join}[self.story]()
            world.run(self.length)
            world.heal()
            for a, b in [(a, b) for a, b in world.blocked]:
                self._mend(a, b)
            for host in world.hosts:
                host.start()
            healed = world.now
            world.run(SETTLED, self._complete, every=1.0)
            world.run(60.0, lambda: not any(moves(host) for host in world.alive()), every=1.0)
            quiet(world)
            self.converge = world.now - healed
            world.run(6.0)
            self._check()
        except Exception:
            world.violation("simulation", traceback.format_exc(limit=-6))
            self.converge = 0.0
        clients = [*self.subscribers, *self.members, *self.wanderers]
        return result_of(
            self.seed,
            world,
            len(world.hosts),
            self.ledger,
            clients,
            converge=self.converge,
            routing=self.routing,
        )

    def _complete(self) -> bool:
        """Whether nothing is missing any more."""
        if faults_of(self.world):
            return False
        clients = [*self.subscribers, *self.wanderers]
        return all(client.state == "up" for client in clients) and not any(
            True for client in clients for _ in self._missing(client)
        )

    def _missing(self, client: SimClient) -> list[Sent]:
        """Messages that are due to a client since its first SUBACK, and have not come."""
        if not client.ever:
            return list(self.ledger.sent)
        interest = client.ever[0]
        got = {got.number for got in client.got}
        return [
            sent
            for sent in self.ledger.sent
            if sent.acked is not None
            and sent.number not in got
            and matches(interest.filter, sent.topic)
            and sent.at > max(interest.since, self.meetings.first(*self._between(sent, client)))
        ]

    def _between(self, sent: Sent, client: SimClient) -> tuple[int, int]:
        return sent.life[0], client.ever[0].life[0]

    def _check(self) -> None:
        world = self.world
        for client in (*self.subscribers, *self.members, *self.publishers):
            for error in client.errors:
                world.violation("client", f"{client.name}: {error}")
        for client in (*self.subscribers, *self.wanderers):
            self._check_client(client)
        if self.members:
            check_group(world, self.ledger, GROUP, self.members, self.meetings)
        self._check_retained()
        for host in world.alive():
            if lost := host.running.counters.replay_log_lost:
                world.violation("counted", f"{host.name} counts {lost} messages as lost")

    def _check_client(self, client: SimClient) -> None:
        world = self.world
        if client not in self.wanderers and client.session != 1:
            world.violation("session", f"{client.name} has its session number {client.session}")
        for sent in self._missing(client):
            world.violation("lost", f"{self._name(sent)} did not come to {client.name}")
        seen: dict[int, int] = {}
        last: dict[tuple[SimClient, int, str], int] = {}
        for got in client.got:
            sent = self.ledger.sent[got.number]
            if got.retain:
                continue
            if got.number in seen:
                # Both sides of a split may publish a will.
                if got.qos == 2 and not (sent.will and world.replicas):
                    world.violation("twice", f"{self._name(sent)} came twice to {client.name}")
                continue
            seen[got.number] = 1
            if not self.in_order or sent.repeated or sent.will:
                continue
            key = (sent.client, sent.epoch, sent.topic)
            if last.get(key, -1) > got.number:
                before = self.ledger.sent[last[key]]
                world.violation(
                    "order", f"{client.name} got {self._name(sent)} after {self._name(before)}"
                )
            last[key] = max(last.get(key, -1), got.number)

    def _check_retained(self) -> None:
        """The last acknowledged value of each topic, which one client writes, is there
        everywhere."""
        last: dict[str, Sent] = {}
        for sent in self.ledger.sent:
            if sent.retain:
                last[sent.topic] = sent
        for topic, sent in last.items():
            if sent.acked is None or sent.repeated:
                continue
            for host in self.world.alive():
                found = host.running.retained.match(topic, self.world.now)
                numbers = [int(message.payload.partition(b"|")[0]) for message in found]
                if numbers != [sent.number]:
                    self.world.violation(
                        "retained", f"{host.name} keeps {numbers} of {topic}, not {sent.number}"
                    )

    def _name(self, sent: Sent) -> str:
        at = f"{sent.at - self.world.started:.3f}"
        return f"{'will' if sent.will else 'message'} {sent.number} (b{sent.life[0]}, {at})"


def moving(host: Host) -> object:
    """Return where a broker has got to with sessions that move: another value at each step."""
    cluster = host.running.cluster
    return (
        host.boot,
        [str(merge.state) for merge in cluster.session_merge._merges.values()],
        [str(pending.state) for pending in cluster.takeover._pending.values()],
        [(str(export.state), export.merged) for export in cluster.handover._exports.values()],
    )


def run_outage(seed: int, verbose: int = 0, *, routing: str = "", story: str = "") -> Result:
    """Run one schedule."""
    return Outage(seed, verbose, routing=routing, story=story).run()
