"""Members of shared subscriptions on several brokers, and what must hold of a whole group: one
receiver for each message."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from math import inf

from tests.sim.checkers import Life, Meetings, Messages
from tests.sim.clients import LASTING, Ledger, Sent, SimClient, matches
from tests.sim.world import Host, World

GROUPS = (("g", "a/#"), ("h", "a/#"), ("g", "x/y/z"), ("g", "+/b"), ("i", "deep/#"), ("i", "a"))


class Groups:
    """The workers of one schedule."""

    def __init__(
        self, world: World, ledger: Ledger, meetings: Meetings, rng: random.Random
    ) -> None:
        self.world = world
        self.ledger = ledger
        self.meetings = meetings
        self.rng = rng
        self.members: dict[tuple[str, str], list[SimClient]] = {}
        self._first: dict[int, Life] = {}  # lives that brokers began with
        world.on_start.append(lambda host: self._first.setdefault(host.index, host.life))

    @property
    def workers(self) -> list[SimClient]:
        """All of them, each once."""
        return [client for members in self.members.values() for client in members]

    def build(self, hosts: list[Host]) -> None:
        """Some members of some groups, here and there."""
        rng = self.rng
        for number, group in enumerate(rng.sample(GROUPS, rng.choice((1, 2, 3)))):
            most = rng.choice((1, 2, 3))
            members = self.members[group] = []
            for host in rng.sample(hosts, rng.randint(1, len(hosts))):
                for index in range(rng.randint(1, most)):
                    members.append(self._member(f"work{number}.{host.index}.{index}", group, host))

    def _member(self, name: str, group: tuple[str, str], host: Host) -> SimClient:
        rng = self.rng
        client = SimClient(
            self.world,
            self.ledger,
            name,
            host,
            filters=[(f"$share/{group[0]}/{group[1]}", rng.choice((0, 1, 2, 2)))],
            version=rng.choice((3, 4, 5, 5)),
            clean=rng.random() < 0.6,
            receive_maximum=rng.choice((0, 1, 5, 100)),
        )
        self.world.after(rng.uniform(0.0, 0.5), client.connect)
        return client

    def faults(self, length: float) -> None:
        """Connections break, readers are slow, members join and leave permanently."""
        rng, world = self.rng, self.world
        for _ in range(rng.randint(0, 8)):
            client = rng.choice(self.workers)
            at = rng.uniform(0.3, length)
            fault = rng.choice(("cut", "cut", "slow", "leave", "back"))
            if fault == "cut":
                world.after(at, client.cut)
            elif fault == "leave":
                world.after(at, client.disconnect)
            else:
                world.after(at, client.read, False)
                at += rng.uniform(0.1, 2.0)
                world.after(at, client.read, True)
                # With what it has not read in flight, it goes and comes as another.
                if fault == "back":
                    world.after(at - 0.01, client.disconnect, client.host)

    # ---- checks

    def probed(self, first: int, messages: Messages) -> None:
        """When all is whole and quiet, each message from number `first` on has exactly one
        receiver, if there can be one on the publisher's own broker."""
        receivers = self._receivers()
        for sent in self.ledger.sent[first:]:
            if sent.will:
                continue
            for group, members in self._matching(sent):
                there = [
                    c
                    for c in members
                    if c.state == "up" and c.interests and messages.joined(c, sent.client)
                ]
                got = receivers[group].get(sent.number, [])
                home = [c for c in there if c.host is sent.client.host]
                if len(got) != bool(there):
                    text = (
                        f"probe {sent.number} (QoS {sent.qos}) came "
                        f"to {[c.name for c in got]} of {len(there)}"
                    )
                    self.world.violation("group", f"{group}: {text}")
                elif home and got[0] not in home:
                    self.world.violation(
                        "group not here",
                        f"{group}: probe {sent.number} left {sent.client.host.name}",
                    )

    def check(self, probes: int) -> None:
        """Everything about the messages before number `probes`, too."""
        for client in self.workers:
            for error in client.errors:
                self.world.violation("client", f"{client.name}: {error}")
        receivers = self._receivers()
        for group, members in self.members.items():
            topics = group[1]
            for client in members:
                for got in client.got:
                    if not matches(topics, got.topic):
                        self.world.violation("unwanted", f"{client.name} got {got.topic}")
            for number, clients in receivers[group].items():
                sent = self.ledger.sent[number]
                # Published at QoS 1 or 2, and delivered at less than 2, it may come to another
                # member, too, where a broker with one dies, hangs or is cut off.
                once = [
                    c for c in members for g in c.got if g.number == number and g.qos == sent.qos
                ]
                if len(once) > 1 and sent.qos != 1:
                    text = f"message {number} (QoS {sent.qos}) came to {[c.name for c in clients]}"
                    self.world.violation("group twice", f"{group}: {text}")
            self._losses(group, members, set(receivers[group]), probes)

    def _losses(
        self, group: tuple[str, str], members: list[SimClient], received: set[int], probes: int
    ) -> None:
        """What is acknowledged reaches a member, if no broker with members died, and no session of
        one ended."""
        if any(
            self._first.get(c.host.index) != c.host.life or not c.host.alive or c.host.left
            for c in members
        ):
            return
        if any(
            c.session != 1 or c.state != "up" or not c.interests or not c.interests[0].qos
            for c in members
        ):
            return
        # Host -> time; what brokers published before they met is not exchanged.
        since: dict[int, float] = {}
        for part in self.world.components():
            for host in part:
                near = [client for client in members if client.host in part]
                met = [
                    max(c.interests[0].since, self.meetings.first(host.index, c.host.index))
                    for c in near
                ]
                since[host.index] = min(met, default=inf)
        for sent in self.ledger.sent[:probes]:
            if (
                sent.qos
                and sent.acked is not None
                and not sent.will
                and (sent.expiry is None or sent.expiry >= LASTING)
                and matches(group[1], sent.topic)
            ):
                alive = (
                    self.world.hosts[sent.life[0]].life == sent.life
                    and self.world.hosts[sent.life[0]].alive
                )
                if alive and sent.at > since.get(sent.life[0], inf) and sent.number not in received:
                    self.world.violation(
                        "group lost",
                        f"{group}: message {sent.number} (QoS {sent.qos}) reached no member",
                    )

    def _matching(self, sent: Sent) -> list[tuple[tuple[str, str], list[SimClient]]]:
        return [
            (group, members)
            for group, members in self.members.items()
            if matches(group[1], sent.topic)
        ]

    def _receivers(self) -> dict[tuple[str, str], dict[int, list[SimClient]]]:
        """Who got each message: once for each time it was not a repetition within a session."""
        found: dict[tuple[str, str], dict[int, list[SimClient]]] = {}
        for group, members in self.members.items():
            numbers: dict[int, list[SimClient]] = defaultdict(list)
            for client in members:
                seen: set[tuple[int, int]] = set()
                for got in client.got:
                    if (got.number, got.session) not in seen or got.qos == 2:
                        numbers[got.number].append(client)
                    seen.add((got.number, got.session))
            found[group] = numbers
        return found


def check_group(
    world: World,
    ledger: Ledger,
    group: tuple[str, str],
    members: list[SimClient],
    meetings: Meetings | None = None,
    *,
    once: bool = True,
) -> None:
    """Where all brokers have journals, and all members keep their sessions: each message has a
    receiver, and at QoS 2 (`once`) one alone, from when the group's first member was told that it
    is one. `meetings`: what brokers published before they met is owed to no member (README)."""
    if not all(client.interests for client in members):
        world.violation("session", f"{group}: not all are subscribed")
        return
    begins = [(client.interests[0].since, client.host.index) for client in members]
    copies = Counter(got.number for client in members for got in client.got)
    for sent in ledger.sent:
        if not matches(group[1], sent.topic):
            continue
        told = (
            f"{group}: message {sent.number} "
            f"(QoS {sent.qos}, {sent.life}, {sent.at - world.started:.4f})"
        )
        met = [
            max(at, meetings.first(sent.life[0], index) if meetings is not None else 0.0)
            for at, index in begins
        ]
        if sent.acked is not None and sent.qos and sent.at > min(met) and not copies[sent.number]:
            world.violation("lost", f"{told} came to no member")
        both = sent.will and world.replicas  # sides of a split may publish it
        if once and sent.qos == 2 and not both and copies[sent.number] > 1:
            who = {(c.name, got.qos) for c in members for got in c.got if got.number == sent.number}
            if all(qos == 2 for _, qos in who):
                world.violation("twice", f"{told} came to {sorted(who)}")
