"""Brokers that die, hang or are cut off while their standbys have their sessions, and clients that
go to another broker."""

from __future__ import annotations

import os
import random
from functools import partial
from math import inf
from typing import Any

from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.persistence.stream import Stream
from mqttree.broker.persistence.stream_states import State
from mqttree.broker.wire.packets import Packet, Publish, Pubrec
from tests.kit.journal_harness import Files
from tests.sim.checkers import log_faults
from tests.sim.clients import Ledger, Sent, matches
from tests.sim.disk import Disk, Stayer
from tests.sim.groups import check_group
from tests.sim.schedule import quiet
from tests.sim.test_durability import FILTERS, TOPICS, check, check_order
from tests.sim.world import Host, World

SETTLING_S = 0.3
"""s after it was answered in which a message may not be settled at its broker's standby."""

GROUPS = (("g", "a/#"), ("h", "#"), ("g", "c"))
"""Name and filter of shared subscriptions."""


class Refugee(Stayer):
    """A client that goes to another broker when its own dies or hangs."""

    waits = False
    """Whether it waits for its broker when that dies."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """As of `SimClient`."""
        super().__init__(*arguments, **named)
        self.crossings: list[float] = []
        """When it went to the other side of a split (s)."""
        self.answered: dict[int, float] = {}
        """When it first sent PUBREC for each message (s)."""
        self._coming: dict[int, int] = {}  # packet identifier -> number

    def _packet(self, packet: Packet) -> None:
        if isinstance(packet, Publish) and packet.packet_id and packet.qos == 2:
            self._coming[packet.packet_id] = int(packet.payload.partition(b"|")[0])
        super()._packet(packet)

    def _send(self, packet: Packet) -> None:
        if isinstance(packet, Pubrec):
            self.answered.setdefault(self._coming[packet.packet_id], self.world.now)
        super()._send(packet)

    def leave_for(self, seconds: float) -> None:
        """Disconnect, and come back where a broker is."""
        if self.state == "up" and self._end is not None:
            self._end.close()
            self._down("leaves for a while")
            self.world.after(seconds, self.connect)

    def flee(self, how: str) -> None:
        """Go to a broker that runs: `hop` keeps the old connection open, `close` ends it, `reset`
        resets it."""
        if self._end is None or not self.host.paused:
            return
        self.world.say(f"{self.name} flees from {self.host.name} ({how})")
        if how == "close":
            self._end.close()
        elif how == "reset":
            self._end.abort()
        self._down("flees")
        self.connect()

    def lost(self, reason: str) -> None:
        """After a split the client's connection on the other side may count as the newer one, as
        clocks differ."""
        if self.crossings:
            self._down(reason)
            self.world.after(self.retry, self.connect)
        else:
            super().lost(reason)

    def cross(self, host: Host) -> None:
        """Go to a broker on the other side of a split."""
        if self._end is not None and self.host is not host:
            self.crossings.append(self.world.now)
            self.world.say(f"{self.name} crosses from {self.host.name} to {host.name}")
            self._end.close()
            self._down("crosses")
            self.host = host
            self.connect()

    def connect(self) -> None:
        if (not self.host.alive and not self.waits) or self.host.paused:
            fit = [host for host in self.world.alive() if not host.paused]
            if not fit:
                self.world.after(self.retry, self.connect)
                return
            self.host = self.world.rng.choice(fit)
        super().connect()


class Succession:
    """One seed's story of a kind."""

    def __init__(self, seed: int, kind: str = "kills") -> None:
        self.seed = seed
        self.rng = random.Random(seed if kind == "kills" else f"{seed} {kind}")
        slow, self.shared = kind.startswith("slow "), "shared " in kind
        self.kind = kind.removeprefix("slow ").removeprefix("shared ")
        self.kills = self.kind in ("kills", "aimed", "lags", "doubles", "wipes")
        self.members: dict[tuple[str, str], list[Refugee]] = {}
        self.world = World(seed)
        if seed % 4 == 3:
            self.world.skew = 3600.0
        if seed % 2:  # while clients come, and brokers return
            self.world.limits = Limits(adoption_s=0.5)
        if slow or self.kind == "wipes":
            self.world.longest_turn = 0.05 if slow else 0.1
        self.world.verbose = int(os.environ.get("VERBOSE", "0"))
        self.ledger = Ledger()
        self.disks: dict[int, Disk] = {}
        self.world.on_start.append(lambda host: self.disks[host.index].started())
        self.clients: list[Refugee] = []
        self.publishers: list[Refugee] = []
        self.length = 0.0
        self.splits: list[float] = []
        """When each began (s)."""

    def build(self) -> None:
        """Hosts and clients."""
        rng, world, seed = self.rng, self.world, self.seed
        routing = (
            os.environ.get("ROUTING") or ("flood", "interest", "topic", "topic")[seed // 2 % 4]
        )
        doubles = self.kind == "doubles"
        replicas = 2 if doubles else 1
        fewest = 3 if doubles or self.kind == "wipes" else 2
        for _ in range(rng.choice(range(fewest, 6))):
            host = world.add(
                discovery="multicast", routing=routing, replicas=replicas, standby_hosts="any"
            )
            self.disks[host.index] = Disk(world, host, sync=seed % 2 == 0)
            host.start()
        for number in range(rng.choice((2, 4, 6))):
            filters = [(rng.choice(FILTERS), rng.choice((1, 2, 2)))]
            client = self._client(f"sub{number}", rng.choice(world.hosts), filters)
            client.ack_delay = rng.choice((0.0, 0.0, 0.05))
            self.clients.append(client)
        if self.shared:
            self._groups()
        self.publishers += [self._client(f"pub{host.index}", host, None) for host in world.hosts]
        for client in self.everybody:
            world.after(rng.uniform(0.0, 0.3), client.connect)
            stays = self.kind == "lags" or (self.kills and self.seed % 3 == 1)
            client.waits = self.kind == "wipes" or (stays and rng.random() < 0.5)
            if self.kind == "wipes":
                client.retry = 0.01

    def _groups(self) -> None:
        """Members of groups at several brokers."""
        rng, world = self.rng, self.world
        for number, group in enumerate(rng.sample(GROUPS, rng.choice((1, 2)))):
            members = self.members[group] = []
            for index in range(rng.choice((2, 3, 5))):
                topic_filter = f"$share/{group[0]}/{group[1]}", rng.choice((1, 2, 2))
                name, host = f"member{number}.{index}", rng.choice(world.hosts)
                member = self._client(name, host, [topic_filter])
                member.ack_delay = rng.choice((0.0, 0.05, 0.3))
                if member.version == 5 and member.ack_delay < 0.1:
                    member.receive_maximum = rng.choice((0, 5, 20))
                members.append(member)

    @property
    def subscribers(self) -> list[Refugee]:
        """Clients with ordinary subscriptions, and members of groups."""
        return self.clients + [member for group in self.members.values() for member in group]

    @property
    def everybody(self) -> list[Refugee]:
        """All clients."""
        return self.subscribers + self.publishers

    def _client(self, name: str, host: Host, filters: list[tuple[str, int]] | None) -> Refugee:
        rng = self.rng
        return Refugee(
            self.world,
            self.ledger,
            name,
            host,
            version=rng.choice((4, 5)),
            clean=False,
            filters=filters,
            will=("will", 2, False) if not self.kills else None,
        )

    def traffic(self) -> None:
        """Plan publications, and clients that are away for a while."""
        rng, world = self.rng, self.world
        length = self.length = 25.0 if self.kind == "wipes" else rng.choice((5.0, 15.0))
        sources = self.publishers
        if not self.kills:  # their sessions take longer to move
            sources = [*sources, *self.clients]
        at = 2.0
        while at < length:
            publisher, topic, qos = (
                rng.choice(sources),
                rng.choice(TOPICS),
                rng.choice((1, 2)),
            )
            if rng.random() < 0.2:
                world.after(at, publisher.burst, topic, qos, rng.randrange(2, 30), 5)
            else:
                world.after(at, publisher.publish, topic, qos)
            at += rng.expovariate(1 / (0.01 if self.kind == "wipes" else 0.03))
        for client in self.subscribers:
            if rng.random() < 0.3:
                world.after(rng.uniform(1.0, length), client.leave_for, rng.choice((0.1, 2.0, 6.0)))

    # ---------------------------------------------------------------- faults

    def faults(self) -> None:
        """Plan what goes wrong, one broker after the other."""
        rng, world = self.rng, self.world
        if self.kind == "wipes":
            for at in range(4, 24, 4):
                world.after(at + rng.uniform(0.0, 2.0), self._wipe_settled, rng.uniform(0.5, 1.5))
            return
        when = rng.uniform(2.0, self.length)
        if self.kind == "doubles":
            hit = self._aim_at_two if rng.random() < 0.5 else self._kill_two
            victim = rng.choice(world.hosts)
            world.after(when, hit, victim, rng.random() < 0.7)
            return
        if self.kills:
            count = rng.choice((1, 1, min(2, len(world.hosts) - 1)))
            for victim in rng.sample(world.hosts, count):
                hit = self._aim if self.kind == "aimed" else partial(kill, world)
                world.after(when, hit, victim, rng.random() < 0.7)
                back = when + rng.choice((0.5, 2.0, 5.0))
                if self.kind == "lags":
                    back = when + rng.choice((0.02, 0.12, 0.3, 1.0, 3.0))
                    lag, disk = rng.uniform(0.0, 0.1), self.disks[victim.index]
                    world.after(when - lag, setattr, disk, "lags", True)
                    world.after(back, victim.start)
                    world.after(back, setattr, disk, "lags", False)
                elif self.seed % 3 == 0:  # its disk is there
                    world.after(back, victim.start)
                elif self.seed % 3 == 1:
                    world.after(back, wipe, victim, self.disks[victim.index])
                when += 4.0
            return
        for _ in range(rng.choice((1, 1, 2))):
            fault = self._hang if self.kind == "hangs" else self._split
            world.after(when, fault, rng.choice(world.hosts), rng.uniform(0.6, 4.0))
            when += 8.0

    def _wipe_settled(self, lasts: float) -> None:
        """Kill a broker with its disk, unless a death now may take with it what another one had:
        all brokers run and have standbys, and all sessions have what is theirs."""
        world = self.world
        for host in world.hosts:
            if not host.alive:
                return
            stream, cluster = host.running.images.stream, host.running.cluster
            assert isinstance(stream, Stream)
            lacks = map(cluster.evaluated.lacking, host.running.sessions.values())
            if stream.unprotected or stream.coming or len(cluster.session_merge) or any(lacks):
                world.say(f"{host.name} has not settled")
                return
        victim = self.rng.choice(world.hosts)
        kill(world, victim, self.rng.random() < 0.7)
        world.after(lasts, wipe, victim, self.disks[victim.index])

    def _aim(self, host: Host, reset: bool, tries: int = 900) -> None:
        """Kill a broker while, or as soon as, what it has to say waits for its standby, and before
        it is to start again."""
        frames = getattr(host.running.journal, "frames", None) if host.alive else None
        if frames is not None and tries and not len(frames.gate):
            self.world.after(0.0005, self._aim, host, reset, tries - 1)
        else:
            self.world.after(self.rng.uniform(0.0, 0.003), kill, self.world, host, reset)

    def _aim_at_two(self, host: Host, reset: bool, tries: int = 900) -> None:
        """Kill a broker, and its first standby, as soon as one of its standbys has more than the
        other one."""
        stream = host.running.images.stream
        assert isinstance(stream, Stream)
        lsns = {target.lsn for target in stream.standbys}
        if tries and len(lsns) < 2:
            self.world.after(0.0005, self._aim_at_two, host, reset, tries - 1)
        else:
            self._kill_two(host, reset)

    def _kill_two(self, host: Host, reset: bool) -> None:
        """Kill a broker that has two standbys, and soon the first of them, with their disks. The
        first standby may start again, as another broker or without the images that it had."""
        rng, world = self.rng, self.world
        standbys = standbys_of(host)
        if len(standbys) < 2:
            world.say(f"{host.name} has no two standbys")
            return
        first = standbys[0]
        host.kill(reset)
        pause = rng.choice((rng.uniform(0.0, 0.3), rng.uniform(0.1, 3.0)))
        world.after(pause, kill, world, first, rng.random() < 0.7)
        back = pause + rng.choice((0.05, 0.5, 2.0, 5.0))
        if self.seed % 3 == 0:
            world.after(back, first.start)
        elif self.seed % 3 == 1:
            for each in (host, first):
                world.after(back, wipe, each, self.disks[each.index])

    def _hang(self, host: Host, lasts: float) -> None:
        """Stop a broker that has a standby, perhaps in the middle of a turn; its clients go, or
        stay."""
        rng, world = self.rng, self.world
        stream = host.running.images.stream
        if stream is None or stream.state is not State.SYNCED:  # type: ignore[attr-defined]
            world.say(f"{host.name} is alone")
            return
        if rng.random() < 0.5:
            host.pause_in_turn()
            world.after(0.05, host.pause)
        else:
            host.pause()
        world.after(lasts, host.resume)
        if rng.random() < 0.4:
            self._resume_when_lent(host, rng.uniform(0.0, 0.02))
        mine = [c for c in self.everybody if c.host is host]
        for client in mine:
            if rng.random() < 0.7:
                how = rng.choice(("hop", "close", "reset"))
                world.after(rng.uniform(0.06, lasts + 0.2), client.flee, how)

    def _resume_when_lent(self, host: Host, later: float) -> None:
        """Let a broker go on so much `later` (s) as its standby gives away a session of it; the one
        that takes it may stand still for a moment."""
        world = self.world
        takers = [
            each.export.taker
            for other in world.alive()
            for each in other.running.images._succession._lent.values()
            if each.owner == host.id
        ]
        if takers:
            world.after(later, host.resume)
            [taker] = [each for each in world.hosts if each.id == takers[0]]
            if self.seed % 2 == 0 and not taker.paused:
                taker.pause()
                world.after(later + 0.6, taker.resume)
        elif host.paused or host.stops_in_turn:
            world.after(0.005, self._resume_when_lent, host, later)

    def _split(self, host: Host, lasts: float) -> None:
        """Cut a broker off, perhaps with others; some clients cross, and some come back."""
        rng, world = self.rng, self.world
        others = [each for each in world.hosts if each is not host]
        side = [host, *rng.sample(others, rng.randrange(len(others)))]
        rest = [each for each in world.hosts if each not in side]
        self.splits.append(world.now)
        world.partition([[each.index for each in side]])
        world.after(lasts, world.heal)
        for client in self.everybody:
            if rng.random() < 0.3:
                there = rest if client.host in side else side
                world.after(rng.uniform(0.0, lasts), client.cross, rng.choice(there))
                if rng.random() < 0.3:
                    world.after(rng.uniform(lasts, lasts + 2.0), client.cross, client.host)

    # ---------------------------------------------------------------- the end

    def play(self) -> list[tuple[str, str]]:
        """Run it; returns what went wrong."""
        world = self.world
        self.build()
        self.traffic()
        self.faults()
        world.run(self.length + 12.0)
        if not self.kills:
            for host in world.hosts:
                host.resume()
            world.heal()
            world.run(4.0)
        quiet(world)
        world.run(8.0)
        for client in self.everybody:
            for error in client.errors:
                if not (client.crossings and error == "DISCONNECT 0x8e"):
                    world.violation("client", f"{client.name}: {error}")
        for client in self.clients:
            if self.kind == "splits":
                self._check_split(client)
            else:
                check(world, self.ledger, client)
                check_order(world, self.ledger, client)
        for group, members in self.members.items():
            self._check_group(group, members)
        if not self.kills:
            self._one_session_each()
        if self.kind != "splits":  # what a publisher repeats on the other side is another message
            for found, text in log_faults(world.alive(), self.ledger):
                world.violation(found, text)
        return world.violations

    def _check_split(self, client: Refugee) -> None:
        """Nothing is lost, and QoS 2 comes twice only if it was published before a split began, not
        settled then, and its client has crossed since; if its publisher has, and it was not
        answered; or if its client has come back to an older session."""
        if not client.interests:
            self.world.violation("session", f"{client.name} has no subscription")
            return
        interest = client.interests[0]
        times: dict[int, list[float]] = {}
        for got in client.got:
            times.setdefault(got.number, []).append(got.at)
        for sent in self.ledger.sent:
            if not matches(interest.filter, sent.topic):
                continue
            came = times.get(sent.number, [])
            told = f"{client.name} at {client.host.name}: message {sent.number} (QoS {sent.qos}"
            told += f", {sent.life}, {sent.at - self.world.started:.4f})"
            stayed = client.session == 1
            if sent.acked is not None and not came and sent.at > interest.since and stayed:
                self.world.violation("lost", f"{told} was acknowledged and did not come")
            if (
                len(came) > 1
                and sent.qos == interest.qos == 2
                and not self._may_repeat(client, sent)
            ):
                self.world.violation(
                    "twice", f"{told} came {[f'{at - self.world.started:.4f}' for at in came]}"
                )

    def _may_repeat(self, client: Refugee, sent: Sent) -> bool:
        publisher = sent.client
        assert isinstance(publisher, Refugee)
        came_back = client.session != 1 and len(client.crossings) > 1
        if sent.will or came_back:  # both sides may publish a will
            return True
        for began in self.splits:
            answered = client.answered.get(sent.number, inf)
            unsettled = sent.at <= began + SETTLING_S and answered > began - SETTLING_S
            unanswered = sent.acked is None or sent.acked > began
            if unsettled and any(began <= at for at in client.crossings):
                return True
            if unanswered and any(began <= at for at in publisher.crossings):
                return True
        return False

    def _check_group(self, group: tuple[str, str], members: list[Refugee]) -> None:
        """Each message has a receiver, and at QoS 2 one alone, but in a split. There members may
        begin new sessions on the other side."""
        for member in members:
            if member.session != 1 and not member.crossings:
                self.world.violation("session", f"{member.name} has lost its session")
        check_group(self.world, self.ledger, group, members, once=self.kind != "splits")
        for host in self.world.alive():
            if count := host.running.counters.shared_uncertain:
                self.world.violation("uncertain", f"{count} at {host.name}")

    def _one_session_each(self) -> None:
        for client in self.everybody:
            holders = [
                host.name for host in self.world.alive() if client.name in host.running.sessions
            ]
            if len(holders) != 1:
                self.world.violation("holders", f"{client.name} has sessions at {holders}")


def standbys_of(host: Host) -> list[Host]:
    """Return the standbys of a broker, in their order."""
    stream = host.running.images.stream
    assert isinstance(stream, Stream)
    hosts = {each.id: each for each in host.world.hosts}
    return [hosts[standby.broker_id] for standby in stream.standbys]


def standing(
    seed: int, count: int, replicas: int, routing: str = "flood", limits: Limits = DEFAULTS
) -> World:
    """A world in which each broker has its standbys."""
    world = World(seed)
    world.limits = limits
    disks: dict[int, Disk] = {}
    world.on_start.append(lambda host: disks[host.index].started())
    for _ in range(count):
        host = world.add(
            discovery="multicast", replicas=replicas, routing=routing, standby_hosts="any"
        )
        disks[host.index] = Disk(world, host, sync=False)
        host.start()
    world.run(4.0)
    return world


def wipe(host: Host, disk: Disk) -> None:
    """Start a broker that is dead without its disk: it is another one then."""
    if not host.alive:
        host.id = host.world.rng.randbytes(8)
        disk.files, disk.under_way = Files(), []
        disk.files.lazy = True
        host.start()


def kill(world: World, host: Host, reset: bool) -> None:
    """Kill a broker, with its disk, if it has a standby."""
    stream = host.running.images.stream if host.alive else None
    if stream is None or stream.alone or len(list(world.alive())) == 1:
        world.say(f"{host.name} is alone")
    else:
        host.kill(reset)


def play(seed: int, kind: str = "kills") -> list[tuple[str, str]]:
    """Run a schedule; returns what went wrong."""
    return Succession(seed, kind).play()
