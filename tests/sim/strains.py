"""Federations under load and faults at once, one drawn from each seed: `python -m tests.sim` plays
one for a fourth of them.

A seed draws how many brokers there are (3, 5 or 7), whether they all reach each other or stand in a
line or a ring, how they route (all modes, also mixed), which of them have journals, which links
between them are slow, who joins late; what is the load:

    fast    20,000 messages a second and more, 12,000 of them and more, so that a broker that hangs
            or is cut off for a moment leaves more held elsewhere than may wait for a session
    large   messages of 1 to 50 MB, up to 100 MB in all
    away    more than may wait for a session comes for a client that is away, or takes nothing;
            nothing else happens
    plain   a few hundred messages a second

and beside that members of a shared subscription, clients that roam with their sessions, and faults
in the midst of it: kills of one broker, two at once or one twice, stops, cuts, splits, resets,
black holes and drains. All limits are those of the broker.
"""

from __future__ import annotations

import random
from math import inf
from typing import Any

from mqttree.broker.cluster.drain import DrainOptions
from mqttree.broker.limits import DEFAULTS
from tests.sim.checkers import Messages, moves
from tests.sim.clients import SimClient
from tests.sim.disk import Disk
from tests.sim.groups import Groups, check_group
from tests.sim.schedule import FILTERS, TOPICS, Result, Schedule
from tests.sim.walker import Walker
from tests.sim.world import Host

LOADS = ("fast", "fast", "fast", "large", "away", "plain")
BEGIN = 4.5
"""virtual s from the start of the first brokers until the load: clients are there, also where some
dials have failed."""
PIECE = 100
"""messages that a fast publisher sends at a time."""
MB = 1_000_000
MBIT = 125_000.0
"""bytes/s"""
WAIT = 10_000
"""messages that wait at least for a client that is away (README)."""
SLOWEST = 240.0
"""virtual s in which everything has arrived."""
FEW = tuple(f for f in FILTERS if f != "#")
"""Filters that take nothing of the load."""


class Strain(Schedule):
    """One seed's federation."""

    def __init__(
        self, seed: int, verbose: int = 0, *, load: str = "", faults: int | None = None
    ) -> None:
        """`load`, `faults` (how many): instead of those that the seed draws."""
        self.draw = draw = random.Random(f"{seed} strain")
        super().__init__(seed, draw.choice((3, 3, 5, 5, 7)), verbose)
        self.small = False
        self.load = load or draw.choice(LOADS)
        self.routing = draw.choice(("flood", "interest", "topic", "topic", "mixed"))
        self.shape = draw.choice(("mesh", "mesh", "line", "ring"))
        self.apart = [(a, b) for b in range(self.count) for a in range(b) if not self._beside(a, b)]
        self.data = draw.choice(("none", "some", "all", "all"))
        number = draw.choice((0, 1, 1, 2, 3)) if faults is None else faults
        self.number = 0 if self.load == "away" else number
        self.length = BEGIN + draw.choice((2.0, 4.0))
        self.busy: list[SimClient] = []  # subscribe to the load
        self.groups = None
        self.disks: dict[int, Disk] = {}
        self.late = draw.randrange(1, self.count) if draw.random() < 0.4 else 0
        """The broker that joins late, if it is not the first one."""
        world = self.world
        world.skew, world.cutting, world.loss = 0.0, 0.0, draw.choice((0.0, 0.05))
        world.rate, world.window, world.high_water = 1.25e8, 1 << 20, 1 << 18
        world.slowest, world.jitter = draw.choice((0.0005, 0.003)), draw.choice((0.0, 0.0001))
        world.on_start.append(self._with_journal)

    def _beside(self, a: int, b: int) -> bool:
        return (
            self.shape == "mesh" or b - a == 1 or (self.shape == "ring" and b - a == self.count - 1)
        )

    def _with_journal(self, host: Host) -> None:
        if host.index in self.disks:
            self.disks[host.index].started()

    def _routing(self, index: int) -> str:
        return (
            ("topic", "interest", "topic", "flood")[index % 4]
            if self.routing == "mixed"
            else self.routing
        )

    # ---- building

    def build(self) -> None:
        draw, world = self.draw, self.world
        equal = draw.random() < 0.3
        for index in range(self.count):
            capability = 1.0 if equal else round(draw.uniform(0.0, 9.0), 1)
            host = world.add(
                discovery="multicast", routing=self._routing(index), capability=capability
            )
            if self.data == "all" or (self.data == "some" and draw.random() < 0.5):
                self.disks[index] = Disk(world, host, sync=draw.random() < 0.2)
                world.kept.add(index)
            late = self.late and index == self.late
            world.after(
                BEGIN + draw.uniform(-0.2, 0.5) if late else draw.uniform(0.0, 0.2), host.start
            )
        for a, b in self.apart:
            world.block(a, b)
        if draw.random() < (0.6 if self.load == "large" else 0.3):
            a = draw.randrange(self.count - 1)
            world.limit_rate(a, a + 1, draw.choice((20, 40, 100)) * MBIT)
        self._clients()

    def _clients(self) -> None:
        draw = self.draw
        for host in self.world.hosts:
            filters = [(f, draw.choice((1, 2, 2))) for f in draw.sample(FEW, 2)]
            self._client(f"sub{host.index}", host, filters=filters, clean=draw.random() < 0.5)
            self.publishers.append(
                self._client(
                    f"pub{host.index}", host, filters=[], clean=draw.random() < 0.5, version=4
                )
            )
        if draw.random() < 0.5:
            self._group()
        if draw.random() < 0.4 and self.load != "away":
            for number in range(draw.choice((1, 2, 4))):
                filters = [(f, draw.choice((1, 2, 2))) for f in draw.sample(FEW, 2)]
                roamer = self._client(
                    f"roam{number}", draw.choice(self.world.hosts), filters=filters, clean=False
                )
                roamer.forked = bool(self.number)
                at = BEGIN - 0.5
                while at < self.length:
                    at += draw.uniform(0.1, 1.5)
                    self.world.after(
                        at,
                        self._roam,
                        roamer,
                        draw.choice(("leave", "cut", "hop")),
                        draw.getrandbits(16),
                    )

    def _client(self, name: str, host: Host, **settings: Any) -> SimClient:
        draw = self.draw
        settings.setdefault("version", draw.choice((3, 4, 5, 5)))
        settings.setdefault("receive_maximum", draw.choice((0, 0, 100)))
        client = Walker(self.world, self.ledger, name, host, **settings)
        self.clients.append(client)
        self.world.after(draw.uniform(0.5, 1.0), client.connect)
        return client

    def _group(self) -> None:
        """Members of a shared subscription, which keep their sessions where their brokers keep
        them."""
        draw, world = self.draw, self.world
        topics = draw.choice(("a/#", "load/#" if self.load == "fast" else "a", "+/b"))
        self.groups = Groups(world, self.ledger, self.meetings, draw)
        members = self.groups.members["g", topics] = []
        for host in draw.sample(world.hosts, draw.randint(2, self.count)):
            for number in range(draw.choice((1, 1, 2))):
                filters = [
                    (f"$share/g/{topics}", draw.choice((1, 2)) if self.load != "fast" else 1)
                ]
                member = Walker(
                    world,
                    self.ledger,
                    f"work{host.index}.{number}",
                    host,
                    filters=filters,
                    version=5,
                    clean=False,
                )
                world.after(draw.uniform(0.5, 1.0), member.connect)
                members.append(member)

    def _roam(self, client: SimClient, how: str, choice: int) -> None:
        alive = [host for host in self.world.alive() if host.running.drain is None]
        if alive:
            client.roam(alive[choice % len(alive)], how)

    # ---- load

    def _early(self, number: int) -> list[Host]:
        """Choose brokers that are there from the beginning."""
        hosts = self.world.hosts
        return self.draw.sample(
            [host for host in hosts if not self.late or host.index != self.late], number
        )

    def traffic(self) -> None:
        draw, world = self.draw, self.world
        for publisher in self.publishers:
            at = BEGIN - 0.5
            while at < self.length:
                retain = draw.random() < 0.03
                topic = f"r/{publisher.name}" if retain else draw.choice(TOPICS)
                world.after(
                    at,
                    publisher.publish,
                    topic,
                    draw.choice((0, 1, 1, 2, 2)),
                    retain,
                    draw.choice((0, 0, 2000)),
                )
                at += draw.expovariate(1 / 0.05)
        getattr(self, f"_{self.load}")()

    def _plain(self) -> None:
        for publisher in self.publishers[:2]:
            self._load(publisher, 200, 1.5, 50)

    def _fast(self) -> None:
        """12,000 to 15,000 messages from one broker or two."""
        draw = self.draw
        rate, seconds = draw.choice(((20_000, 0.6), (40_000, 0.3), (60_000, 0.25)))
        sources = self._early(draw.choice((1, 1, 2)))
        for host in sources:
            publisher = self._client(
                f"fast{host.index}", host, filters=[], version=draw.choice((4, 5))
            )
            self._load(publisher, rate // len(sources), seconds, 50)
        busy = self._subscribers(draw.choice((1, 2)))
        if self.number and draw.random() < 0.5:
            self.world.after(
                BEGIN + draw.uniform(0.0, 0.1),
                self._hang,
                draw.choice(busy),
                seconds + draw.uniform(0.5, 4.0),
            )

    def _large(self) -> None:
        draw = self.draw
        size, count = draw.choice(
            ((1 * MB, 30), (1 * MB, 80), (5 * MB, 10), (20 * MB, 4), (50 * MB, 2))
        )
        publisher = self._client("large", self._early(1)[0], filters=[], version=4)
        for number in range(count):
            self.world.after(
                BEGIN + number * 0.01,
                publisher.publish,
                "load/large/0",
                draw.choice((1, 2)),
                False,
                size,
            )
        self._subscribers(1)
        if size * count > DEFAULTS.log_bytes // 2:
            self.number = 0  # who is away loses what is more than the log holds

    def _away(self) -> None:
        """One subscriber leaves ahead of more than may wait for it, or does not read any more;
        another one is there."""
        draw = self.draw
        self._subscribers(1)
        host = self._early(1)[0]
        away = self._client(
            "away",
            host,
            filters=[("load/#", draw.choice((1, 2)))],
            clean=False,
            receive_maximum=100,
            version=5,
        )
        publisher = self._client("fast", self._early(1)[0], filters=[], version=4)
        rate, seconds = draw.choice(((20_000, 0.7), (40_000, 0.35)))
        self._load(publisher, rate, seconds, 50)
        if draw.random() < 0.5:
            self.world.after(BEGIN - 0.6, away.disconnect, host)
            away.back_at = BEGIN + 4.0
        else:
            self.world.after(BEGIN - 0.6, away.read, False)
            self.world.after(BEGIN + 4.0, away.read, True)
        self.clients.remove(away)
        self.busy.append(away)

    def _load(self, publisher: SimClient, rate: float, seconds: float, padding: int) -> None:
        """Have a client publish `rate` messages a second for so long."""
        piece = min(PIECE, max(1, int(rate) // 100))
        pause, qos = piece / rate, self.draw.choice((1, 1, 2))
        for number in range(int(seconds / pause)):
            self.world.after(
                BEGIN + number * pause,
                publisher.burst,
                f"load/{publisher.name}/{number % 2}",
                qos,
                piece,
                padding,
            )

    def _subscribers(self, number: int) -> list[Host]:
        """Have clients at so many brokers, and at the one that joins late, subscribe to the
        load."""
        draw = self.draw
        hosts = {
            *self._early(number),
            *(self.world.hosts[self.late : self.late + 1] if self.late else ()),
        }
        for host in sorted(hosts, key=lambda host: host.index):
            filters = [("load/#", draw.choice((1, 2)))]
            most = draw.choice((0, 100, 1000))
            self._client(
                f"busy{host.index}",
                host,
                filters=filters,
                version=draw.choice((4, 5, 5)),
                receive_maximum=most,
            )
        return sorted(hosts, key=lambda host: host.index)

    # ---- faults

    def faults(self) -> None:
        draw, world = self.draw, self.world
        kinds = (
            self._kill,
            self._kill,
            self._kill_two,
            self._kill_twice,
            self._pause,
            self._pause,
            self._pause,
            self._partition,
            self._partition,
            self._reset,
            self._black,
            self._block,
            self._drain,
        )
        for _ in range(self.number):
            length = draw.choice((draw.uniform(0.05, 1.0), draw.uniform(0.5, 5.0)))
            world.after(
                BEGIN + draw.uniform(-0.3, 1.0), draw.choice(kinds), length, draw.getrandbits(32)
            )

    def _hang(self, host: Host, length: float) -> None:
        """Stop the broker of a subscriber of the load: what comes meanwhile is held there, or
        elsewhere."""
        host.pause()
        self.world.after(length, host.resume)

    def _kill_two(self, length: float, choice: int) -> None:
        """Two brokers at once; they come back at about the same time."""
        self._kill(length, choice)
        self._kill(length + 0.01, choice >> 4)

    def _kill_twice(self, length: float, choice: int) -> None:
        """One broker, and soon again when it is back: three incarnations of it."""
        host = self._pick(choice)
        if host is not None:
            host.kill(reset=choice % 3 != 0)
            self.world.after(0.5, host.start)
            self.world.after(0.7 + length, host.kill)
            self.world.after(1.2 + length, host.start)

    def _drain(self, length: float, choice: int) -> None:
        host = self._pick(choice)
        if host is not None and not host.paused and host.running.drain is None:
            host.drain(DrainOptions(within=3.0))
            self.world.after(4.0 + length, host.start)

    # ---- the end

    def _settle(self) -> None:
        """Until nothing is under way any more."""
        world = self.world
        for host in world.hosts:
            host.start()
        world.run(
            60.0,
            lambda: not any(h.node is not None and h.node.drain is not None for h in world.hosts),
        )
        world.run(0.2)
        for host in world.hosts:
            host.start()
        world.run(5.0)
        if not world.run(SLOWEST, self._at_rest, every=1.0):
            world.violation("unrest", f"something is still under way: {self._unrest()}")

    def _at_rest(self) -> bool:
        return not self._unrest()

    def _unrest(self) -> str:
        for host in self.world.alive():
            node = host.running
            if any(conn.backlog_bytes for conn in node.connections):
                return f"{host.name} has not sent everything"
            if any(end.size or end.flying for end in host.ends.values() if end.state == "open"):
                return f"{host.name}: something is on its way"
            if len(node.cluster.assignments.ledger):
                return f"{host.name} waits for members elsewhere"
            for session in node.sessions.values():
                if session.conn is not None and (session.queue or session.inflight):
                    return (
                        f"{len(session.queue)} messages wait for {session.client_id} at {host.name}"
                    )
            if moves(host):
                return f"{host.name} moves sessions"
            waits = sum(feed.held_count for feed in node.cluster.gap_recovery.feeds.all())
            if waits:
                return f"{host.name} holds {waits}"
        return ""

    def _judge(self, messages: Messages, probes: int) -> None:
        super()._judge(messages, probes)
        for client in self.busy:
            self._counted(client)
        if self.groups is not None and self.data == "all":
            for group, members in self.groups.members.items():
                check_group(self.world, self.ledger, group, members, self.meetings)

    def _counted(self, client: SimClient) -> None:
        """Of what came for an absent client as much as may wait is there, and each message beyond
        is counted. What was published before the two brokers first met need not come (README); some
        of it does, as they meet between two looks."""
        since = min((interest.since for interest in client.interests), default=inf)
        acked = [sent for sent in self.ledger.sent if sent.acked is not None]
        load = [sent for sent in acked if sent.topic.startswith("load/") and sent.at > since]
        got = {got.number for got in client.got}
        came = {sent.number for sent in load} & got
        lives = {sent.life for sent in load}
        met = {
            life: [self.meetings.since(life, holder) for holder in client.holders] for life in lives
        }
        due = {
            sent.number
            for sent in load
            if all(at is not None and at < sent.at for at in met[sent.life])
        }
        dropped = sum(host.running.counters.dropped_queue_full for host in self.world.alive())
        text = (
            f"{client.name} got {len(came)} of {len(load)}, {len(due)} were due, "
            f"{dropped} are counted as dropped"
        )
        if not len(due - got) <= dropped <= len(load) - len(came):
            self.world.violation("uncounted", text)
        if len(came) < min(len(due), WAIT):
            self.world.violation("too few", text)

    def _kind(self) -> str:
        return self.routing


def run_strain(seed: int, verbose: int = 0) -> Result:
    """Run one of these."""
    return Strain(seed, verbose).run()
