"""Random schedules of a federation with legs to foreign brokers: what is acknowledged comes
everywhere, once at QoS 2, in order, and nothing comes back.

All brokers have journals, all clients keep their sessions and stay where they are. What is excused
is what docs/bridging.md says: what a foreign broker loses, and echoes of one that knows no No Local
after its gateway was killed.
"""

from __future__ import annotations

import random
import traceback
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mqttree.broker.leg.leg_settings import LegSettings
from mqttree.broker.leg.rules import Rules, parse_rule
from mqttree.broker.wire.packets import Publish
from tests.sim.checkers import ORDER, Splits, bound_faults, watch_crossings
from tests.sim.clients import Got, Interest, Ledger, Sent, matches
from tests.sim.disk import Disk, Stayer
from tests.sim.foreign import BRIDGE_BIT, Foreign, ForeignWorld, SimLeg
from tests.sim.schedule import Result, quiet, result_of
from tests.sim.walker import Roamer
from tests.sim.world import Host

TOPICS = ("a", "a/b", "a/c", "x/y", "x/z")
FILTERS = ("a", "a/#", "+/+", "#", "x/y", "x/#")
RULES = ("# both 2", "# both 2", '# both 2 {name}/ ""', "a/# in 2;x/# out 2", "# both 1")
"""Of a leg; {name}: of its foreign broker."""
VERSIONS = ((5, 4), (5, 4), (4 | BRIDGE_BIT, 4), (4,))
"""Of MQTT, with the bit of a bridge, that a foreign broker takes."""
START = 200.0
"""Virtual s until all legs are up at first: a leg that looks for the version of a foreign broker
dials several times."""
REPAIR = 150.0
"""Virtual s until all legs are up again."""
PASSED = 3.0
"""Virtual s of a leg that is up, after which what was at one of its sides is at the other one."""
MINE = "mqttree/"
"""What is in topics of legs themselves, which are none of the clients' business."""
KEPT = "kept/"
"""What is in topics in which messages are retained, each by one client. It is not looked at how
often these come, as a merge publishes them once more."""
MERGED = 8_000.0
"""Virtual s in which retained messages are equal: legs compare them every hour."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a topic is called at the other side of a leg, written without a look at its rules."""

    rules: str
    name: str

    def inwards(self, topic: str) -> str | None:
        """Return the name here of a topic of the foreign broker; None: it does not come in."""
        if self.rules == RULES[2]:
            return f"{self.name}/{topic}"
        if self.rules == RULES[3]:
            return topic if matches("a/#", topic) else None
        return topic

    def outwards(self, topic: str) -> str | None:
        """Return the name there of a topic of the federation; None: it does not go out."""
        if self.rules == RULES[2]:
            head, slash, rest = topic.partition("/")
            return rest if head == self.name and slash else None
        if self.rules == RULES[3]:
            return topic if matches("x/#", topic) else None
        return topic

    @property
    def qos(self) -> int:
        """The highest QoS."""
        return 1 if self.rules == RULES[4] else 2


class LegClient(Stayer, Roamer):
    """A client that hears messages by their names at its own broker."""

    legs: Legs

    def publish(self, topic: str, qos: int, *rest: Any, **more: Any) -> Sent | None:
        """Publish the next message, unless that would be more than its broker takes at a time."""
        limit = self.host.config.get("receive_maximum", 0)
        if qos and limit and len(self._out) + len(self._released) >= limit:
            return None
        return super().publish(topic, qos, *rest, **more)

    def _received(self, packet: Publish) -> None:
        if MINE not in packet.topic:
            super()._received(packet)

    def _compare(self, packet: Publish, sent: Sent) -> None:
        if packet.topic != self.legs.name_at(sent, self):
            self.errors.append(f"message {sent.number} came as {packet.topic}, was {sent.topic}")
        if sent.packet is not None and packet.payload != sent.packet.payload:
            self.errors.append(f"payload of message {sent.number} was changed")


class Legs:
    """One seed's story."""

    def __init__(self, seed: int, verbose: int = 0) -> None:
        self.seed = seed
        self.rng = rng = random.Random(f"{seed} legs")
        self.world = world = ForeignWorld(seed, verbose)
        watch_crossings(world)
        self.splits = Splits(world)
        self.ledger = Ledger()
        self.clients: list[LegClient] = []
        self.publishers: list[LegClient] = []
        self.count = rng.choice((1, 2, 2, 3, 3, 4))
        self.length = rng.uniform(5.0, 20.0)
        self.calm = rng.random() < 0.3
        """Whether nothing splits, stops or stalls."""
        self.killed: dict[Host, list[float]] = defaultdict(list)
        self.foreign: list[Foreign] = []
        self.legs: list[SimLeg] = []
        self.ways: list[Way] = []
        self.up: list[list[list[float]]] = []
        """Of each leg, from when to when (s) it was up."""
        self.converge = 0.0
        self.retained: dict[LegClient, Sent] = {}
        """The last retained message of each client that publishes."""

    # ---- building

    def build(self) -> None:
        """Hosts, foreign brokers, legs and clients."""
        rng, world = self.rng, self.world
        disks: dict[Host, Disk] = {}

        def started(host: Host) -> None:
            if isinstance(host, Foreign):
                host.disk.started()
                return
            disks[host].started()
            for number, foreign in enumerate(self.foreign):
                if self._gateway(number) is host:
                    self._begin_leg(number, host, foreign)

        world.on_start.append(started)
        routing = rng.choice(("flood", "interest", "topic"))
        for _ in range(self.count):
            host = world.add(discovery="multicast", routing=routing)
            disks[host] = Disk(world, host, sync=rng.random() < 0.2)
            world.kept.add(host.index)
        for number in range(rng.choice((1, 1, 2, 3))):
            config: dict[str, Any] = {}
            if rng.random() < 0.4:
                config = {"receive_maximum": 20, "max_inflight_messages": 20}
            foreign = Foreign(world, number, rng.choice(VERSIONS), **config)
            self.foreign.append(foreign)
            world.kept.add(foreign.index)
            self.ways.append(Way(rng.choice(RULES), foreign.name))
            self.up.append([])
            if rng.random() < 0.3:
                rate = rng.choice((20_000.0, 100_000.0))
                world.limit_rate(self._gateway(number).index, foreign.index, rate)
        self.legs = [None] * len(self.foreign)  # type: ignore[list-item]
        for host in (*self.foreign, *world.hosts):
            host.start()
        self._clients()
        world.after(0.1, self._look)

    def _gateway(self, number: int) -> Host:
        return self.world.hosts[(number + self.seed) % self.count]

    def _begin_leg(self, number: int, host: Host, foreign: Foreign) -> None:
        lines = self.ways[number].rules.format(name=foreign.name).split(";")
        leg = SimLeg(host, foreign, self._settings(foreign.name, host, foreign, lines))
        self.legs[number] = leg
        leg.call(leg._tick)

    def _settings(
        self, name: str, host: Host, foreign: Foreign, lines: Sequence[str]
    ) -> LegSettings:
        """Return those of a leg of this `name` from `host` to `foreign`. `lines`: its rules."""
        return LegSettings(
            name,
            f"{foreign.address[0]}:{foreign.address[1]}",
            Rules([parse_rule(line) for line in lines]),
            version=foreign.versions[0] & ~BRIDGE_BIT if self.seed % 2 else 0,
            probes=True,
            state_topic=f"{MINE}leg/{name}/state",
            topic_alias_maximum=host.running.config.topic_alias_maximum,
        )

    def _clients(self) -> None:
        rng = self.rng
        for host in (*self.world.hosts, *self.foreign):
            for number in range(rng.choice((1, 2))):
                names = (*FILTERS, *(f"{foreign.name}/#" for foreign in self.foreign))
                filters = [(rng.choice(names), rng.choice((0, 1, 2, 2)))]
                client = self._client(f"sub-{host.name}-{number}", host, filters=filters)
                client.ack_delay = rng.choice((0.0, 0.0, 0.05))
                self.clients.append(client)
            self.publishers.append(self._client(f"pub-{host.name}", host))

    def _client(self, name: str, host: Host, **settings: Any) -> LegClient:
        rng = self.rng
        version = (
            rng.choice((4, 5)) if not isinstance(host, Foreign) or host.versions[0] == 5 else 4
        )
        client = LegClient(
            self.world, self.ledger, name, host, version=version, clean=False, **settings
        )
        client.legs = self
        self.world.after(rng.uniform(0.0, 0.3), client.connect)
        return client

    def _look(self) -> None:
        """Note which legs are up."""
        now = self.world.now
        for leg, spans in zip(self.legs, self.up, strict=True):
            if not leg.works:
                continue
            if not spans or spans[-1][1] < now - 0.15:
                spans.append([now, now])
            spans[-1][1] = now
        self.world.after(0.1, self._look)

    # ---- traffic and faults

    def traffic(self) -> None:
        """Plan publications of all clients that publish."""
        rng, world = self.rng, self.world
        all_qos = rng.choice(((0, 1, 2), (1,), (2,), (1, 2)))
        pause = rng.choice((0.02, 0.05, 0.2))
        at = 0.0
        while at < self.length:
            publisher, qos = rng.choice(self.publishers), rng.choice(all_qos)
            topic = self._topic(publisher)
            if rng.random() < 0.1:
                world.after(at, publisher.burst, topic, qos, rng.randrange(2, 40), 5)
            else:
                world.after(at, publisher.publish, topic, qos, False, rng.choice((0, 0, 300)))
            at += rng.expovariate(1 / pause)
        drawn = random.Random(f"{self.seed} retained")
        for _ in range(drawn.choice((0, 10, 40))):
            who, qos = drawn.choice(self.publishers), drawn.choice((1, 2))
            world.after(drawn.uniform(0.0, self.length), self._retain, who, qos)

    def _retain(self, publisher: LegClient, qos: int) -> None:
        sent = publisher.publish(f"{KEPT}{publisher.name}", qos, True)
        if sent is not None:
            self.retained[publisher] = sent

    def _topic(self, publisher: LegClient) -> str:
        topic = self.rng.choice(TOPICS)
        mapped = [way.name for way in self.ways if way.rules == RULES[2]]
        if mapped and not isinstance(publisher.host, Foreign) and self.rng.random() < 0.5:
            return f"{self.rng.choice(mapped)}/{topic}"
        return topic

    def faults(self) -> None:
        """Plan what goes wrong."""
        rng, world = self.rng, self.world
        calm = (self._kill_gateway, self._kill_gateway, self._cut_leg, self._restart, self._leave)
        wild = (*calm, self._kill, self._kill, self._pause, self._split, self._stall, self._unplug)
        lossy = rng.random() < 0.3
        for _ in range(rng.choice((1, 3, 6))):
            kinds = calm if self.calm else wild
            if lossy:
                kinds = (*kinds, *3 * (self._lose, self._forget))
            at, lasts = rng.uniform(0.5, self.length), rng.choice((0.05, 0.5, 3.0))
            world.after(at, rng.choice(kinds), lasts, rng.getrandbits(32))

    def _kill_host(self, host: Host, lasts: float, choice: int) -> None:
        if host.alive:
            self.killed[host].append(self.world.now)
            host.kill(reset=choice % 3 != 0)
        self.world.after(lasts, host.start)

    def _kill_gateway(self, lasts: float, choice: int) -> None:
        self._kill_host(self._gateway(choice % len(self.foreign)), lasts, choice >> 8)

    def _kill(self, lasts: float, choice: int) -> None:
        self._kill_host(self.world.hosts[choice % self.count], lasts, choice >> 8)

    def _leave(self, lasts: float, choice: int) -> None:
        host = self._gateway(choice % len(self.foreign))
        if host.alive and not host.paused:
            self.killed[host].append(self.world.now)
        host.leave()
        self.world.after(lasts + 0.1, host.start)

    def _pick(self, choice: int) -> Foreign:
        return self.foreign[choice % len(self.foreign)]

    def _restart(self, lasts: float, choice: int) -> None:
        """A foreign broker is ended or killed, and keeps all."""
        foreign = self._pick(choice)
        if choice >> 8 & 1:
            foreign.kill()
        else:
            foreign.leave()
        self.world.after(lasts + 0.1, foreign.start)

    def _lose(self, lasts: float, choice: int) -> None:
        """A foreign broker loses all, in the midst of something."""
        foreign = self._pick(choice)
        at = self._busy(foreign, choice)
        self.world.after(at, foreign.lose_all)
        self.world.after(at + lasts, foreign.start)

    def _forget(self, lasts: float, choice: int) -> None:
        """A foreign broker loses the session of the leg, in the midst of something."""
        foreign = self._pick(choice)
        self.world.after(
            self._busy(foreign, choice), foreign.end_session, f"mqttree-{foreign.name}"
        )

    def _busy(self, foreign: Foreign, choice: int) -> float:
        """Have a client of a foreign broker publish much at once; return after how long (s) some of
        it is on its way."""
        for publisher in self.publishers:
            if publisher.host is foreign:
                publisher.burst(TOPICS[choice % len(TOPICS)], 2, 15, 5)
        return (choice >> 8) % 100 / 100 * (0.002 + 4 * self.world.slowest)

    def _leg_ends(self, choice: int) -> list[Any]:
        index = self._pick(choice).index
        ends = self.world.streams.values()
        return [
            e
            for e in ends
            if e.host is not None
            and e.peer.host is not None
            and index in (e.host.index, e.peer.host.index)
        ]

    def _cut_leg(self, lasts: float, choice: int) -> None:
        self.world.say(f"leg {self._pick(choice).name} is cut")
        for end in self._leg_ends(choice):
            if end.state == "open":
                end.drop(reset=False)
                end._tell_lost("connection reset")

    def _stall(self, lasts: float, choice: int) -> None:
        """Nothing passes between a gateway and its foreign broker for a while."""
        number = choice % len(self.foreign)
        a, b = self._gateway(number).index, self.foreign[number].index
        self.world.block(a, b)
        self.world.after(lasts, self._unblock, a, b)

    def _unblock(self, a: int, b: int) -> None:
        self.world.blocked.discard((min(a, b), max(a, b)))
        self.world._heal_streams()

    def _unplug(self, lasts: float, choice: int) -> None:
        """A connection swallows everything, until it counts as dead."""
        if not self._pick(choice).no_local:
            return
        self.world.say(f"leg {self._pick(choice).name} swallows everything")
        for end in self._leg_ends(choice):
            end.black = True

    def _pause(self, lasts: float, choice: int) -> None:
        machines = (*self.world.hosts, *self.foreign)
        host = machines[choice % len(machines)]
        host.pause()
        self.world.after(lasts, host.resume)

    def _split(self, lasts: float, choice: int) -> None:
        side = [index for index in range(self.count) if choice >> index & 1]
        self.world.partition([side])
        self.world.after(lasts, self.world.partition, ())

    # ---- the whole

    def run(self) -> Result:
        """Play it, heal everything, wait for quiet, and check."""
        world = self.world
        try:
            self.build()
            self._settle(START, "did not come up")
            self.traffic()
            self.faults()
            world.run(self.length + 4.0)
            self._heal()
            self._settle(REPAIR, "did not come up again")
            quiet(world)
            world.run(15.0)
            for kind, text in bound_faults(world.alive()):
                world.violation(kind, text)
            self._check_retained()
            probes = len(self.ledger.sent)
            self._probe()
            self.check(probes)
        except Exception:
            world.violation("simulation", traceback.format_exc(limit=-6))
        return result_of(
            self.seed,
            self.world,
            self.count,
            self.ledger,
            self.clients,
            converge=self.converge,
            routing="legs",
        )

    def _heal(self) -> None:
        world = self.world
        machines = (*world.hosts, *self.foreign)
        for host in machines:
            host.resume()
        world.heal()
        for host in machines:
            host.start()

    def _settle(self, seconds: float, what: str) -> None:
        """Wait until all legs and clients are there, and have their subscriptions."""
        began = self.world.now
        everybody = (*self.clients, *self.publishers)

        def ready() -> bool:
            return (
                all(leg.up for leg in self.legs)
                and all(client.state == "up" for client in everybody)
                and all(client.interests for client in self.clients)
            )

        if not self.world.run(seconds, ready):
            for leg in self.legs:
                if not leg.up:
                    self.world.violation(
                        "leg",
                        f"{leg.foreign.name} {what}: {leg.leg.state.value}, {leg.leg.last_error}",
                    )
        quiet(self.world)
        self.world.run(2.0)
        self.converge = self.world.now - began

    def _probe(self) -> None:
        """Each client that publishes does so once at each QoS."""
        for qos in (0, 1, 2):
            for publisher in self.publishers:
                publisher.publish(self._topic(publisher), qos)
        self.world.run(8.0)

    # ---- checks

    def _site(self, client: Any) -> int:
        """Return the number of a client's foreign broker; -1: it is in the federation."""
        return client.host.number if isinstance(client.host, Foreign) else -1

    def name_at(self, sent: Sent, client: Any) -> str | None:
        """Return the topic of a message at a client's broker; None: it does not come there."""
        source, target = self._site(sent.client), self._site(client)
        topic: str | None = sent.topic
        if source == target:
            return topic
        if source >= 0:
            topic = self.ways[source].inwards(sent.topic)
        if topic is not None and target >= 0:
            topic = self.ways[target].outwards(topic)
        return topic

    def _crossed(self, sent: Sent, client: Any) -> list[int]:
        """Return the legs that a message takes to a client."""
        source, target = self._site(sent.client), self._site(client)
        return [] if source == target else [number for number in (source, target) if number >= 0]

    def check(self, probes: int) -> None:
        """Everything about all messages; those from number `probes` on came when it was quiet."""
        for client in (*self.clients, *self.publishers):
            for error in client.errors:
                self.world.violation("client", f"{client.name}: {error}")
        for client in self.clients:
            copies: dict[int, list[Got]] = defaultdict(list)
            for got in client.got:
                copies[got.number].append(got)
            for sent in self.ledger.sent:
                if not sent.retain:
                    self._check(client, sent, copies[sent.number], sent.number >= probes)
            if self.calm and len(self.killed) <= 1:
                self._order(client)

    def _check_retained(self) -> None:
        """What is retained is equal at all brokers, once legs have compared it."""
        if not self.world.run(MERGED, lambda: not self._unequal(), every=5.0):
            for text in self._unequal():
                self.world.violation("retained", text)

    def _unequal(self) -> list[str]:
        """Return how brokers differ in what is retained."""
        found = []
        for publisher, sent in self.retained.items():
            source = self._site(publisher)
            if source >= 0 and self.foreign[source].lost:
                continue
            assert sent.packet is not None
            for other in self.publishers:
                topic = self.name_at(sent, other)
                if topic is None:
                    continue
                message = other.host.running.retained.get(topic)
                payload = None if message is None else message.payload
                if payload != sent.packet.payload:
                    wanted = f"{sent.packet.payload!r} at {sent.at - self.world.started:.4f}"
                    found.append(f"{other.host.name} has {payload!r} of {topic}, not {wanted}")
        return found

    def _check(self, client: LegClient, sent: Sent, got: list[Got], quiet: bool) -> None:
        interest = client.interests[0]
        topic = self.name_at(sent, client)
        if topic is None or not matches(interest.filter, topic):
            if got:
                self._report("unwanted", client, sent, "came")
            return
        legs = self._crossed(sent, client)
        crossed = min([sent.qos, *(self.ways[number].qos for number in legs)])
        qos = min(crossed, interest.qos)
        again = crossed > 0 and qos < 2
        if len(got) > 1 and not self._again_excused(client, sent, legs, repeats=again):
            self._report("twice", client, sent, f"came {len(got)} times, at QoS {qos}")
        if quiet and len(got) != 1 and sent.client.state == "up":
            self._report("probe", client, sent, f"came {len(got)} times")
        elif not got and qos and sent.acked is not None and self._due(interest, sent, legs):
            self._report("lost", client, sent, f"did not come, at QoS {qos}")

    def _due(self, interest: Interest, sent: Sent, legs: list[int]) -> bool:
        """Whether a message that was acknowledged has to come: it is from after SUBACK, and no
        foreign broker has lost it."""
        if sent.at <= interest.since:
            return False
        source = self._site(sent.client)
        return source not in legs or not self._lost_by(source, sent)

    def _lost_by(self, number: int, sent: Sent) -> bool:
        """Whether a foreign broker lost a message before it had passed the leg, or the session of
        the leg before it was published, so that nothing was kept for the leg until that had
        subscribed again (docs/bridging.md)."""
        for at in self.foreign[number].lost:
            back = min((up for up, _ in self.up[number] if up > at), default=at)
            if at <= sent.at <= back:
                return True
            if sent.at < at and not self._passed(number, sent.at, at):
                return True
        return False

    def _passed(self, number: int, begin: float, end: float) -> bool:
        """Whether a leg was up for long enough between two times (s), for what was there at the
        first one to pass."""
        return any(min(down, end) - max(up, begin) >= PASSED for up, down in self.up[number])

    def _again_excused(
        self, client: LegClient, sent: Sent, legs: list[int], *, repeats: bool
    ) -> bool:
        """Whether a message may have come more than once. `repeats`: it was below QoS 2 on a part
        of its way, where it is delivered again when it is sent again as a connection is lost."""
        if repeats and (sent.repeated or client.epoch > 1):
            return True
        if repeats and any(len(self.up[number]) > 1 for number in legs):
            return True
        if any(sent.at <= at + REPAIR for n in legs for at in self.foreign[n].lost):
            return True
        return self._echoed(sent)

    def _echoed(self, sent: Sent) -> bool:
        """Whether a message may have come back from a foreign broker that knows no No Local, as its
        gateway was killed before (docs/bridging.md)."""
        for number, foreign in enumerate(self.foreign):
            if foreign.no_local or self._site(sent.client) == number:
                continue
            if any(at >= sent.at for at in self.killed[self._gateway(number)]):
                return True
            # At QoS 1 an echo is sent again when its acknowledgement is lost.
            if min(sent.qos, self.ways[number].qos) == 1 and self.up[number][-1][0] > sent.at:
                return True
        return False

    def _order(self, client: LegClient) -> None:
        """What was published on one connection to one topic, and never repeated, comes in its order
        the first time that it comes; but what waited in an older session of the client comes after
        what it has had meanwhile (docs/promises.md)."""
        last: dict[tuple[int, int, str], int] = {}
        seen: set[int] = set()
        for got in client.got:
            sent = self.ledger.sent[got.number]
            if got.number in seen or sent.repeated or not got.qos or not sent.qos or sent.retain:
                continue
            seen.add(got.number)
            if sent.at < client.begun.get(got.session, 0.0):
                continue
            if self.splits.longer_than(ORDER, sent.life, client.life) is not None:
                continue
            key = (id(sent.client), sent.epoch, sent.topic)
            if last.get(key, -1) > got.number:
                before = self.ledger.sent[last[key]]
                self._report("order", client, sent, f"came after {self._name(before)}")
            last[key] = max(last.get(key, -1), got.number)

    def _report(self, kind: str, client: LegClient, sent: Sent, what: str) -> None:
        self.world.violation(
            kind, f"{client.name} ({client.filters[0]}): {self._name(sent)} {what}"
        )

    def _name(self, sent: Sent) -> str:
        at = f"{sent.at - self.world.started:.4f}"
        return f"message {sent.number} ({sent.topic}, QoS {sent.qos}, {sent.client.name}, {at})"


def run_legs(seed: int, verbose: int = 0) -> Result:
    """Run one schedule."""
    return Legs(seed, verbose).run()
