"""Routing by interest: a message crosses the links on the ways to brokers that want it, each once,
and no others."""

from __future__ import annotations

from collections import Counter
from typing import Any

from mqttree.broker import CORE
from mqttree.broker.cluster.link.message_batch import MessageBatch
from tests.sim.clients import Sent
from tests.sim.world import Host, World

Way = tuple[int, int, str]
"""From this broker to that one, topic."""


class Ways:
    """What is published over which links while `watching`, against who wants it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.watching = False
        self.crossed: Counter[Way] = Counter()
        self.tree: list[tuple[int, list[int]]] = []
        self.sessions: list[tuple[int, list[str]]] = []
        # A compiled forwarder lets nobody look.
        self.looks = CORE.running == "python"
        if self.looks:
            world.on_start.append(self._started)

    def _started(self, host: Host) -> None:
        relay = host.running.cluster.forwarder
        send = relay.send

        def watched(data: bytes, count: int, links: list[Any], source: Any) -> None:
            if self.watching and not data[0] & 1:
                topics = [*MessageBatch.read(data).topics()]
                for link in links:
                    if link is not source:
                        there = self._index(link.peer.id)
                        for topic in topics:
                            self.crossed[host.index, there, topic.decode()] += 1
            send(data, count, links, source)

        relay.send = watched  # type: ignore[method-assign]

    def _index(self, broker_id: bytes) -> int:
        return next(host.index for host in self.world.hosts if host.id == broker_id)

    def watch(self) -> None:
        """Begin, in a tree that has come to rest."""
        self.watching = True
        self.tree, self.sessions = self._tree(), self._sessions()

    def _sessions(self) -> list[tuple[int, list[str]]]:
        """Return whose sessions are where: as long as several of a client are being made one, more
        brokers want what it wants."""
        return [(host.index, sorted(host.running.sessions)) for host in self.world.alive()]

    def _tree(self) -> list[tuple[int, list[int]]]:
        hosts = self.world.alive()
        keys = [host.running.cluster.forwarder.key for host in hosts]
        links = (
            (h.index, k.peer)
            for h in hosts
            for key in keys
            for k in h.running.cluster.strategy.everywhere(key)
        )
        return [(index, [self._index(peer.id)]) for index, peer in links if peer is not None]

    def rested(self) -> bool:
        """Whether all messages take the ways that they took when this began."""
        return self.tree == self._tree()

    def check(self, sent: list[Sent]) -> None:
        """Report links that these messages, all that were published meanwhile, crossed in vain, not
        at all or too often."""
        if not self.looks or not self.rested() or self.sessions != self._sessions():
            return
        expected: Counter[Way] = Counter()
        for message in sent:
            origin = self.world.hosts[message.life[0]]
            self._expect(
                origin, None, message.topic, expected, origin.running.cluster.forwarder.key
            )
        for way in sorted(expected.keys() | self.crossed.keys()):
            if expected[way] != self.crossed[way]:
                a, b, topic = way
                text = (
                    f"{topic} crossed from b{a} "
                    f"to b{b} {self.crossed[way]} times, not {expected[way]}"
                )
                self.world.violation("ways", text)

    def _expect(
        self, host: Host, source: Host | None, topic: str, expected: Counter[Way], key: bytes
    ) -> bool:
        """Walk the tree of an origin away from `source`; whether a subscriber from here on wants
        the topic."""
        node = host.running
        strategy = node.cluster.strategy
        wanted = node.config.routing == "flood" or bool(node.dispatcher.trie.match(topic))
        for link in strategy.everywhere(key):
            assert link.peer is not None
            other = self.world.hosts[self._index(link.peer.id)]
            if other is source:
                continue
            below: Counter[Way] = Counter()
            if self._expect(other, host, topic, below, key):
                expected[host.index, other.index, topic] += 1
                expected.update(below)
                wanted = True
        return wanted
