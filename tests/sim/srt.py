"""Routing by SRT and PRT in simulation: random schedules with what `--routing srt` promises, and no
more (docs/guides/routing.md).

A message may be lost that is published before the way to a subscriber is open, or while the tree
changes. So nothing is owed to anybody until it is quiet. Then the tables of all brokers are what
the invariants of `mqttree.routing.advertised_routes` say, every message reaches all of its
subscribers, and it crosses the links on its ways and no others. At any time: no message comes
twice, and those of one publisher come in order; retained messages are everywhere, as in all modes.
"""

from __future__ import annotations

from tests.sim.checkers import Messages
from tests.sim.clients import matches
from tests.sim.lossy_modes import NothingOwed
from tests.sim.schedule import TOPICS, Result, Schedule
from tests.sim.world import Host, World

OPEN = 2.0
"""virtual s in which advertisements and subscriptions cross a tree that has come to rest."""


class SrtSchedule(Schedule):
    """One seed's story, with all brokers on `--routing srt`."""

    def _routing(self, index: int) -> str:
        return "srt"

    def _messages(self) -> Messages:
        return NothingOwed(self.world, self.ledger, self.clients, self.meetings, self.splits)

    def _probe(self, messages: Messages) -> None:
        """First every publisher advertises all topics, so that the ways open."""
        world = self.world
        for publisher in self.publishers:
            if publisher.state == "up":
                for topic in TOPICS:
                    publisher.publish(topic, 1)
        world.run(OPEN)
        for kind, text in table_faults(world):
            world.violation(kind, text)
        super()._probe(messages)


def own_topics(host: Host) -> set[str]:
    """The topics that a broker has advertised as published at it."""
    return set(host.running.cluster.strategy._tables.here.told_topics)


def own_filters(host: Host) -> set[str]:
    """The filters that clients of a broker want, by the broker's own subscriptions."""
    return {text for text in host.running.dispatcher.filters() if not text.startswith("$")}


def table_faults(world: World) -> list[tuple[str, str]]:
    """What is wrong with the tables of all brokers, in trees that have come to rest. The tree is
    that of the world: links that are live at both ends."""
    by_id = {host.id: host for host in world.alive()}
    near = {
        host.id: [
            by_id[link.peer.id]
            for link in host.running.forwarding
            if link.peer is not None and link.peer.id in by_id
        ]
        for host in by_id.values()
    }

    def behind(host: Host, source: Host) -> list[Host]:
        found = [host]
        for other in near[host.id]:
            if other is not source:
                found += behind(other, host)
        return found

    faults = []
    for host in by_id.values():
        strategy = host.running.cluster.strategy
        for link, hop in strategy._hops.items():
            topics: set[str] = set()
            filters: set[str] = set()
            if link.live:
                other = by_id[hop.id]
                far, side = behind(other, host), behind(host, other)
                topics = {topic for one in far for topic in own_topics(one)}
                ours = {topic for one in side for topic in own_topics(one)}
                filters = {
                    text
                    for one in far
                    for text in own_filters(one)
                    if any(matches(text, topic) for topic in ours)
                }
            for table, found, expected in (
                ("SRT", set(hop.topics), topics),
                ("PRT", set(hop.filters), filters),
            ):
                if found != expected:
                    more, less = sorted(found - expected), sorted(expected - found)
                    text = f"{host.name} towards {hop.id.hex()}: {more} too much, {less} missing"
                    faults.append((table, text))
    return faults


def run_srt(seed: int, brokers: int | None = None, verbose: int = 0) -> Result:
    """Run one schedule."""
    return SrtSchedule(seed, brokers, verbose).run()
