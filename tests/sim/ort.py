"""Routing by t-ORT in simulation: random schedules with what `--routing ort` promises, and no more
(docs/guides/routing.md).

A message may be lost that is published before its overlay has formed, or while one changes, and
messages of one publisher may change places then. So nothing is owed to anybody until it is quiet.
Then all members of a topic that links between members join have the same root, the best of them,
their t-ORT is one tree, every message reaches the subscribers in that part, and it crosses the
links of that tree and no others. At any time no message comes twice; retained messages are
everywhere, as in all modes.
"""

from __future__ import annotations

from collections import Counter

from mqttree.stp.priority_vector import better_root
from tests.sim.checkers import Messages
from tests.sim.clients import Sent, SimClient, matches
from tests.sim.lossy_modes import NothingOwed
from tests.sim.schedule import TOPICS, Result, Schedule
from tests.sim.ways import Way, Ways
from tests.sim.world import Host, World

FORMED = 3.0
"""virtual s in which overlays form among brokers that have come to rest: Tt, some rounds, and the
slowest links."""


class Unowed(NothingOwed):
    """All that is checked of messages but losses and order, which are not excluded here."""

    def _order(self, client: SimClient) -> None:
        """A message may overtake another one while overlays form and change."""


class OverlayWays(Ways):
    """What is published over which links, against the overlay of its topic."""

    def rested(self) -> bool:
        """Return True: it is called when it is quiet."""
        return True

    def check(self, sent: list[Sent]) -> None:
        """Report links that these messages crossed although they are not in the overlay, or not
        once in it."""
        if not self.looks or self.sessions != self._sessions():
            return
        expected: Counter[Way] = Counter()
        for message in sent:
            origin = self.world.hosts[message.life[0]]
            expected.update(crossings(self.world, origin, message.topic))
        for way in sorted(expected.keys() | self.crossed.keys()):
            if expected[way] != self.crossed[way]:
                a, b, topic = way
                times = f"{self.crossed[way]} times, not {expected[way]}"
                self.world.violation("ways", f"{topic} crossed from b{a} to b{b} {times}")


class OrtSchedule(Schedule):
    """One seed's story, with all brokers on `--routing ort`; half of them elect by root balance."""

    def __init__(self, seed: int, brokers: int | None = None, verbose: int = 0) -> None:
        super().__init__(seed, brokers, verbose)
        self.groups = None  # members of shared subscriptions get messages over the spanning tree
        self.ways = OverlayWays(self.world)

    def build(self) -> None:
        """Elect by root balance in half of the schedules."""
        super().build()
        if self.seed % 2:
            for host in self.world.hosts:
                host.config["overlay_policy"] = "balance"

    def _routing(self, index: int) -> str:
        return "ort"

    def _messages(self) -> Messages:
        return Unowed(self.world, self.ledger, self.clients, self.meetings, self.splits)

    def _probe(self, messages: Messages) -> None:
        """First every publisher publishes to all topics, so that overlays form."""
        world = self.world
        ready = [publisher for publisher in self.publishers if publisher.state == "up"]
        for publisher in ready:
            for topic in TOPICS:
                publisher.publish(topic, 1)
        world.run(FORMED)
        for kind, text in overlay_faults(world):
            world.violation(kind, text)
        first = len(self.ledger.sent)
        expected = {}
        self.ways.watch()
        for qos in (0, 1, 2):
            for publisher in ready:
                topic = self.rng.choice(TOPICS)
                sent = publisher.publish(topic, qos)
                assert sent is not None
                there = reached(world, publisher.host, topic)
                expected[sent.number] = {
                    client
                    for client in self.clients
                    if client.state == "up"
                    and any(matches(i.filter, topic) for i in client.interests)
                    and (client.host is publisher.host or client.host in there)
                }
        world.run(5.0)
        messages.probes(first, expected, rested=True)
        self.ways.check(self.ledger.sent[first:])


# ---------------------------------------------------------------- overlays


def table(host: Host, topic: str) -> list[bytes]:
    """The t-ORT of a topic at a broker."""
    return list(host.running.cluster.strategy.overlays.neighbours(topic.encode()))


def members(world: World, topic: str) -> list[Host]:
    """The brokers that are part of a topic's overlay."""
    return [
        host
        for host in world.alive()
        if topic.encode() in host.running.cluster.strategy.overlays.overlays
    ]


def wanting(host: Host, topic: str) -> bool:
    """Whether a client of a broker subscribes to a topic, or publishes to it."""
    node = host.running
    name = topic.encode()
    return name in node.cluster.strategy._looked_at or bool(node.dispatcher.trie.match(topic))


def crossings(world: World, origin: Host, topic: str) -> list[Way]:
    """The links that a message crosses which is flooded inside its overlay."""
    by_id = {host.id: host for host in world.alive()}
    found: list[Way] = []
    edge: list[tuple[Host, Host | None]] = [(origin, None)]
    while edge and len(found) < 1000:
        host, before = edge.pop()
        for peer in table(host, topic):
            other = by_id[peer]
            if other is not before:
                found.append((host.index, other.index, topic))
                edge.append((other, host))
    return found


def reached(world: World, origin: Host, topic: str) -> set[Host]:
    """The brokers that such a message gets to."""
    return {world.hosts[there] for _, there, _ in crossings(world, origin, topic)}


def parts(world: World, topic: str) -> list[list[Host]]:
    """The members of a topic, in groups of those that links between members join."""
    left, found = members(world, topic), []
    while left:
        group, edge = [left.pop(0)], 0
        while edge < len(group):
            links = group[edge].running.cluster.links
            near = [host for host in left if host.id in links and links[host.id].up]
            group += near
            left = [host for host in left if host not in near]
            edge += 1
        found.append(group)
    return found


def overlay_faults(world: World) -> list[tuple[str, str]]:
    """What is wrong with the overlays of all topics, among brokers that have come to rest."""
    faults: list[tuple[str, str]] = []
    for topic in TOPICS:
        inside = members(world, topic)
        should = [
            host
            for host in world.alive()
            if wanting(host, topic)
            and (host in inside or any(host.id in m.running.cluster.links for m in inside))
        ]
        if should != inside:
            names = [host.name for host in inside], [host.name for host in should]
            faults.append(("members", f"of {topic} are {names[0]}, not {names[1]}"))
        for part in parts(world, topic):
            faults += _part_faults(world, part, topic)
    return faults


def _part_faults(world: World, part: list[Host], topic: str) -> list[tuple[str, str]]:
    """What is wrong with one part of an overlay: it is to be one tree with one root."""
    overlays = {h: h.running.cluster.strategy.overlays.overlays[topic.encode()] for h in part}
    names = [host.name for host in part]
    faults: list[tuple[str, str]] = []
    roots = {overlay.root.id for overlay in overlays.values()}
    if len(roots) != 1:
        faults.append(("overlay root", f"{names} follow {len(roots)} roots for {topic}"))
    for host in part:
        cluster = host.running.cluster
        if cluster.config.overlay_policy == "capability" and better_root(
            cluster.strategy.overlays.own.vector(holds=False), overlays[host].root
        ):
            faults.append(("overlay root", f"{host.name} is better for {topic} than its root"))
        there = reached(world, host, topic)
        if len(crossings(world, host, topic)) != len(part) - 1 or there | {host} != set(part):
            found = sorted(one.name for one in there)
            faults.append(("overlay", f"{topic} from {host.name} reaches {found}, not {names}"))
    return faults


def run_ort(seed: int, brokers: int | None = None, verbose: int = 0) -> Result:
    """Run one schedule."""
    return OrtSchedule(seed, brokers, verbose).run()
