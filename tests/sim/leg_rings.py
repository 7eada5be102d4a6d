"""Random schedules of foreign brokers that several legs lead to: rings, chains of honest bridges,
and gateways of one name.

    two legs   of a federation to one foreign broker
    chain      federation - f0 - another federation - f1, without a way back
    ring       the same, and a second leg of the federation to f1

In a chain each message comes everywhere once. In a ring with marks (MQTT 5) it comes a few times at
most, by each way round, and ends; without marks messages go round until a probe has shown
the ring, and its topics are muted: then it is looked at that traffic ends, and that a leg says so.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from mqttree.broker.cluster.drain import DrainOptions
from mqttree.broker.io.leg_turns import LegTurns
from mqttree.broker.io.legs import LOOK
from mqttree.broker.leg.leg_states import State
from tests.sim.clients import Got, Sent, matches
from tests.sim.disk import Disk
from tests.sim.foreign import BRIDGE_BIT, Foreign, SimLeg
from tests.sim.legs import REPAIR, RULES, TOPICS, LegClient, Legs, Way
from tests.sim.schedule import Result
from tests.sim.world import Host

SHAPES = ("two legs", "chain", "ring")
MOST = {"two legs": 3, "chain": 1, "ring": 3}
"""Times that a message comes at most, with marks: by the way that is meant, and once by each way
round the ring."""
STILL = 40.0
"""Virtual s without a message across any leg, after which a ring is at rest: a topic is muted for
30 s."""
TURN = 70.0
"""Virtual s in which two active gateways of one name take the session from each other at least
twice: they wait for 15 to 30 s. One that has just healed takes it once."""
ENDLESS = 600.0
"""Virtual s after which a ring that is not at rest counts as endless."""


@dataclass(frozen=True, slots=True)
class Joint:
    """A leg: its name, the broker that it is of, and where it leads."""

    name: str
    host: Host
    foreign: Foreign


class Rings(Legs):
    """One seed's story."""

    def __init__(self, seed: int, verbose: int = 0) -> None:
        super().__init__(seed, verbose)
        self.joints: list[Joint] = []
        self.shape = self.rng.choice(SHAPES)
        self.marks = self.shape == "chain" or self.rng.random() < 0.8
        if not self.marks:
            # A message goes round some hundred times before its topic is muted.
            self.length = self.rng.uniform(1.0, 3.0)
        self.disks: dict[Host, Disk] = {}

    # ---- building

    def build(self) -> None:
        """Hosts, foreign brokers, legs and clients."""
        rng, world = self.rng, self.world
        # A foreign broker here is one of mqttree: it would refuse the bridges of a ring.
        bridges = self.shape == "chain" and rng.random() < 0.3
        versions = (4 | BRIDGE_BIT, 4) if bridges else (5, 4)
        world.on_start.append(self._started)
        routing = rng.choice(("flood", "interest", "topic"))
        self.count = rng.choice((1, 2, 3))
        for _ in range(self.count):
            host = world.add(discovery="multicast", routing=routing)
            self.disks[host] = Disk(world, host, sync=rng.random() < 0.2)
            world.kept.add(host.index)
        ours = world.hosts
        for number in range(1 if self.shape == "two legs" else 3):
            foreign = Foreign(world, number, versions)
            self.foreign.append(foreign)
            world.kept.add(foreign.index)
        if self.shape == "two legs":
            (f0,) = self.foreign
            self.joints = [Joint("a", ours[0], f0), Joint("b", ours[-1], f0)]
        else:
            # The last one is of another federation: its clients are clients of a broker that has
            # legs itself.
            f0, f1, other = self.foreign
            self.joints = [Joint("a", ours[0], f0), Joint("c", other, f0), Joint("d", other, f1)]
            if self.shape == "ring":
                self.joints.append(Joint("b", ours[-1], f1))
        self.up = [[] for _ in self.joints]
        self.legs = [None] * len(self.joints)  # type: ignore[list-item]
        for host in (*self.foreign, *world.hosts):
            host.start()
        self._clients()
        world.after(0.1, self._look)

    def _started(self, host: Host) -> None:
        disk = host.disk if isinstance(host, Foreign) else self.disks[host]
        disk.started()
        for number, joint in enumerate(self.joints):
            if joint.host is host:
                settings = replace(
                    self._settings(joint.name, host, joint.foreign, [RULES[0]]), marks=self.marks
                )
                leg = SimLeg(host, joint.foreign, settings, marks=True)
                self.legs[number] = leg
                leg.call(leg._tick)

    def _gateway(self, number: int) -> Host:
        return self.joints[number % len(self.joints)].host

    def _retain(self, publisher: LegClient, qos: int) -> None:
        """Publish an ordinary message: what is retained is compared in other schedules."""
        publisher.publish(TOPICS[0], qos)

    def faults(self) -> None:
        """Plan what goes wrong. No foreign broker loses anything here."""
        rng, world = self.rng, self.world
        calm = (self._kill_gateway, self._cut_leg, self._restart, self._leave)
        wild = (*calm, self._kill, self._pause, self._split, self._stall)
        for _ in range(rng.choice((0, 1, 3, 6))):
            at, lasts = rng.uniform(0.5, self.length), rng.choice((0.05, 0.5, 3.0))
            world.after(at, rng.choice(calm if self.calm else wild), lasts, rng.getrandbits(32))

    # ---- checks

    def _check_retained(self) -> None:
        """Wait until the ring is at rest."""
        last: tuple[int, float] = (-1, self.world.now)

        def still() -> bool:
            nonlocal last
            crossed = sum(leg.leg.messages_in + leg.leg.messages_out for leg in self.legs)
            if crossed != last[0]:
                last = (crossed, self.world.now)
            return self.world.now - last[1] >= STILL

        # A client that publishes nothing more has nothing that goes round.
        if not self.marks and not self.world.run(ENDLESS, still, every=1.0):
            self.world.violation("ring", f"{self.shape}: messages go round without end")
        if self.shape != "chain" and not any(
            leg.leg.relay.crossing.rings or leg.leg.relay.crossing.loops for leg in self.legs
        ):
            self.world.violation("ring", f"{self.shape}: no leg has noticed it")

    def _probe(self) -> None:
        if self.marks:
            super()._probe()

    def name_at(self, sent: Sent, client: Any) -> str | None:
        """Return the topic of a message at a client's broker: names are the same everywhere."""
        return sent.topic

    def check(self, probes: int) -> None:
        """Everything about all messages; those from number `probes` on came when it was quiet."""
        for client in (*self.clients, *self.publishers):
            for error in client.errors:
                self.world.violation("client", f"{client.name}: {error}")
        if not self.marks:
            return
        for client in self.clients:
            copies: dict[int, list[Got]] = defaultdict(list)
            for got in client.got:
                copies[got.number].append(got)
            for sent in self.ledger.sent:
                self._count(client, sent, copies[sent.number], sent.number >= probes)

    def _count(self, client: LegClient, sent: Sent, copies: list[Got], quiet: bool) -> None:
        """Check how often a message came."""
        interest, count = client.interests[0], len(copies)
        if not matches(interest.filter, sent.topic):
            if count:
                self._report("unwanted", client, sent, "came")
            return
        qos = min(sent.qos, interest.qos)
        # At QoS 1 on a part of its way it is sent again when a connection is lost.
        again = 1 in (sent.qos, qos) and (
            sent.repeated or client.epoch > 1 or any(len(spans) > 1 for spans in self.up)
        )
        again = again or (qos == 0 and count > 1 and self._killed_between(client, copies))
        if count > MOST[self.shape] and not again:
            self._report("twice", client, sent, f"came {count} times, at QoS {qos}")
        if quiet and not count and sent.client.state == "up":
            self._report("probe", client, sent, "did not come")
        elif not count and qos and sent.acked is not None and sent.at > interest.since:
            self._report("lost", client, sent, f"did not come, at QoS {qos}")

    def _killed_between(self, client: LegClient, copies: list[Got]) -> bool:
        """Whether the client's broker was killed after it had sent a message at QoS 0. It may have
        written nothing of it, and the leg sends it again (docs/promises.md)."""
        kills = client.host.kills if isinstance(client.host, Foreign) else self.killed[client.host]
        return any(copies[0].at < at < copies[-1].at for at in kills)


class Pair:
    """The two gateways of one name, seen as the one that is up."""

    def __init__(self, foreign: Foreign) -> None:
        self.foreign = foreign
        self.legs: dict[Host, SimLeg] = {}
        self.changes: list[float] = []
        """When (s) another one of both was up."""
        self._last: Host | None = None

    @property
    def active(self) -> SimLeg:
        """The leg that is up, or any."""
        legs = list(self.legs.values())
        return next((leg for leg in legs if leg.up), legs[0])

    @property
    def leg(self) -> Any:
        """Of the active one."""
        return self.active.leg

    @property
    def up(self) -> bool:
        """Whether one is up, and the other one is not."""
        return sum(leg.up for leg in self.legs.values()) == 1

    @property
    def works(self) -> bool:
        """Whether messages cross."""
        return any(leg.works for leg in self.legs.values())

    def look(self, now: float) -> None:
        """Note whether another one is up than before, or both are."""
        up = [host for host, leg in self.legs.items() if leg.up]
        if len(up) > 1 or (up and self._last not in (None, *up)):
            self.changes.append(now)
        if up:
            self._last = up[0]


class Standby(Legs):
    """Two gateways of one name for each foreign broker."""

    pairs: list[Pair]
    only_drain = False
    """Whether a drain is all that happens: then nothing comes twice at QoS 2."""

    def build(self) -> None:
        """Hosts, foreign brokers, legs and clients."""
        rng, world = self.rng, self.world
        self.pairs = []
        self.disks: dict[Host, Disk] = {}
        world.on_start.append(self._started)
        routing = rng.choice(("flood", "interest", "topic"))
        self.count = rng.choice((2, 2, 3, 4))
        for _ in range(self.count):
            host = world.add(discovery="multicast", routing=routing)
            self.disks[host] = Disk(world, host, sync=rng.random() < 0.2)
            world.kept.add(host.index)
        for number in range(rng.choice((1, 1, 2))):
            foreign = Foreign(world, number, rng.choice(((5, 4), (4 | BRIDGE_BIT, 4))))
            self.foreign.append(foreign)
            world.kept.add(foreign.index)
            self.ways.append(Way(rng.choice(RULES), foreign.name))
            self.up.append([])
            self.pairs.append(Pair(foreign))
        self.legs = self.pairs  # type: ignore[assignment]
        for host in (*self.foreign, *world.hosts):
            host.start()
        self._clients()
        world.after(0.1, self._look)

    def _started(self, host: Host) -> None:
        if isinstance(host, Foreign):
            host.disk.started()
            return
        self.disks[host].started()
        mine = [n for n, _ in enumerate(self.foreign) if host in self._gateways(n)]
        if not mine:
            return
        node, world = host.running, self.world
        turns = LegTurns(node, world.now, federates=True)
        legs = {}
        for number in mine:
            foreign = self.foreign[number]
            lines = self.ways[number].rules.format(name=foreign.name).split(";")
            settings = self._settings(foreign.name, host, foreign, lines)
            legs[foreign.name] = SimLeg(host, foreign, settings, marks=True, standby=True)
            self.pairs[number].legs[host] = legs[foreign.name]

        def look(_: object = None) -> None:
            turns.post(set(legs))
            for name, leg in legs.items():
                rival = turns.rival(name)
                if rival is not None:
                    leg.stand_by(f"{turns.title(rival)} has a leg of this name and is active")
                elif leg.leg.state is State.STANDBY and turns.settled(world.now):
                    leg.take_turn(heir=turns.shared)
            world.after(LOOK, host.do, look, node)

        host.do(look, node)

    def _gateways(self, number: int) -> tuple[Host, Host]:
        hosts = self.world.hosts
        first = (number + self.seed) % self.count
        return hosts[first], hosts[(first + 1) % self.count]

    def _gateway(self, number: int) -> Host:
        pair = self.pairs[number]
        return pair.active.host if pair.legs else self._gateways(number)[0]

    def _look(self) -> None:
        for pair in self.pairs:
            pair.look(self.world.now)
        super()._look()

    def faults(self) -> None:
        """Plan what goes wrong. No foreign broker loses anything here."""
        rng, world = self.rng, self.world
        calm = (self._kill_gateway, self._kill_gateway, self._cut_leg, self._restart, self._leave)
        wild = (*calm, self._kill, self._pause, self._split, self._stall)
        drawn = random.Random(f"{self.seed} drain")
        if drawn.random() < 0.4:
            at, lasts = drawn.uniform(0.5, self.length), drawn.choice((0.5, 8.0))
            world.after(at, self._drain, lasts, drawn.getrandbits(32))
            self.only_drain = drawn.random() < 0.5
        for _ in range(0 if self.only_drain else rng.choice((1, 3, 6))):
            at, lasts = rng.uniform(0.5, self.length), rng.choice((0.05, 3.0, 8.0))
            world.after(at, rng.choice(calm if self.calm else wild), lasts, rng.getrandbits(32))

    def _drain(self, lasts: float, choice: int) -> None:
        """The active gateway of a foreign broker drains, ends, and comes back after a while."""
        host = self._gateway(choice % len(self.foreign))
        if host.alive and not host.paused and host.running.drain is None:
            if not self.only_drain:
                self.killed[host].append(self.world.now)
            host.drain(DrainOptions())
            self._come_back(host, lasts)

    def _come_back(self, host: Host, lasts: float) -> None:
        """Start a broker some time after its drain has ended."""
        if host.alive:
            self.world.after(0.1, self._come_back, host, lasts)
        else:
            self.world.after(lasts, host.start)

    def _check_retained(self) -> None:
        """Look at it only if one gateway was active all the time: the other one does not know what
        both sides had last, so that of two values any may stay. First see that one stays active,
        now that it is quiet: two that are take the session from each other."""
        begin = self.world.now
        self.world.run(TURN)
        for pair in self.pairs:
            if sum(at > begin for at in pair.changes) > 1:
                self.world.violation("leg", f"{pair.foreign.name}: two gateways are active in turn")
        if not any(pair.changes for pair in self.pairs):
            super()._check_retained()

    def _again_excused(
        self, client: LegClient, sent: Sent, legs: list[int], *, repeats: bool
    ) -> bool:
        """Whether a message may have come more than once: another gateway was active since, or one
        was killed. That one may have a session here to which the messages went that the other one
        had brought in: these go back where they came from."""
        sites = {self._site(sent.client), self._site(client)} - {-1}
        if repeats or not self.only_drain:
            changes = [at for n in sites for at in self.pairs[n].changes]
            changes += [at for n in sites for host in self._gateways(n) for at in self.killed[host]]
            if any(sent.at <= at + REPAIR for at in changes):
                return True
        return super()._again_excused(client, sent, legs, repeats=repeats)

    def _order(self, client: LegClient) -> None:
        """Look at the order only if one gateway was active all the time."""
        if not any(pair.changes for pair in self.pairs):
            super()._order(client)


def run_rings(seed: int, verbose: int = 0) -> Result:
    """Run one schedule of `Rings`."""
    return Rings(seed, verbose).run()


def run_standby(seed: int, verbose: int = 0) -> Result:
    """Run one schedule of `Standby`."""
    return Standby(seed, verbose).run()


def run_any(seed: int, verbose: int = 0) -> Result:
    """Run one schedule of the kind that the seed draws: three of five are `Legs`."""
    drawn = random.Random(f"{seed} shape").random()
    kind = Legs if drawn < 0.6 else Rings if drawn < 0.8 else Standby
    return kind(seed, verbose).run()
