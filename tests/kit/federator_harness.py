"""Federators beside brokers that are joined by links with a delay, on a virtual clock."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from mqttree.bench.federator.federator import Federator, Log, Publish
from mqttree.bench.federator.mesh import Mesh
from mqttree.bench.federator.settings import Settings
from mqttree.bench.federator.topics import Kind, parse

TOPIC = "t"
Link = tuple[int, int]


def grid(side: int) -> list[Link]:
    """The links of a square grid that is numbered row by row from 0."""
    return [
        (each, other)
        for each in range(side * side)
        for other in (each + 1, each + side)
        if other < side * side and (other == each + side or other % side)
    ]


class World:
    """Brokers with a federator each. What is published at a neighbour's broker reaches the
    federator there after the link's delay; brokers themselves take no time."""

    def __init__(
        self,
        links: Iterable[Link],
        delay: float = 0.005,
        jitter: float = 0.0,
        own: dict[int, dict[str, Any]] | None = None,
        **settings: Any,
    ) -> None:
        """`links`: pairs of brokers; `delay` of each, to which up to `jitter` is added at random
        (s); `settings`: what all federators have in common; `own`: what some have instead."""
        self.links = list(links)
        self.delays = {pair: delay for a, b in self.links for pair in ((a, b), (b, a))}
        self.jitter = jitter
        self.random = random.Random(1)
        self.now = 1000.0
        self.common = settings
        self.own = own or {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self.federators: dict[int, Federator] = {}
        self.sent: Counter[Kind] = Counter()
        self.crossed: Counter[tuple[Kind, int, int]] = Counter()
        self.delivered: list[tuple[float, int, bytes]] = []
        self.logged: list[str] = []
        self._subscribed: set[int] = set()
        for node in sorted({node for link in self.links for node in link}):
            self.start(node)

    def neighbours(self, node: int) -> tuple[int, ...]:
        return tuple(sorted(b for a, b in self.delays if a == node))

    def start(self, node: int) -> Federator:
        """Start a federator, which knows nothing."""
        who = {"id": node, "neighbours": self.neighbours(node)}
        settings = Settings(**(who | self.common | self.own.get(node, {})))
        self.federators[node] = Federator(settings)
        return self.federators[node]

    def kill(self, node: int) -> None:
        """End a federator. Its broker stays."""
        del self.federators[node]

    def mesh(self, node: int) -> Mesh:
        found = self.federators[node].meshes().get(TOPIC)
        assert found is not None
        return found

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._number), what))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = until

    def publish(self, node: int, topic: str, payload: bytes) -> None:
        """Somebody publishes at the node's broker; its federator hears of it at once."""
        federator = self.federators.get(node)
        if federator is not None:
            federator.received(topic, payload, self.now)
            self._settle(node, federator)

    def subscribe(self, node: int) -> None:
        """A client subscribes at the node's broker, and publishes beacons from now on."""
        self._subscribed.add(node)

        def beacon() -> None:
            if node in self._subscribed:
                self.publish(node, Kind.BEACON.topic(TOPIC), b"")
                self.at(self.now + self.common.get("beacon_interval", 5.0), beacon)

        beacon()

    def unsubscribe(self, node: int) -> None:
        """The client ends."""
        self._subscribed.discard(node)

    def publish_many(self, node: int, number: int, interval: float) -> None:
        """A client publishes at the node's broker so often, with a pause of `interval` seconds."""
        for each in range(number):
            payload = b"%d" % each
            self.at(
                self.now + each * interval,
                lambda payload=payload: self.publish(node, Kind.FEDERATED.topic(TOPIC), payload),
            )

    def got(self, node: int) -> list[bytes]:
        """What the node's subscribers got."""
        return [payload for _, receiver, payload in self.delivered if receiver == node]

    def _settle(self, node: int, federator: Federator) -> None:
        for effect in federator.take_effects():
            if isinstance(effect, Log):
                self.logged.append(effect.text)
            elif isinstance(effect, Publish) and effect.broker == node:
                if node in self._subscribed:
                    self.delivered.append((self.now, node, effect.payload))
            else:
                self._send(node, effect)
        due = federator.deadline()
        if due < float("inf"):
            self.at(due, lambda: self._tick(node, federator))

    def _tick(self, node: int, federator: Federator) -> None:
        if self.federators.get(node) is federator and federator.deadline() <= self.now:
            federator.tick(self.now)
            self._settle(node, federator)

    def _send(self, node: int, effect: Publish) -> None:
        kind, _ = parse(effect.topic)
        self.sent[kind] += 1
        self.crossed[kind, node, effect.broker] += 1
        delay = self.delays.get((node, effect.broker))
        if delay is not None:
            later = self.now + delay + self.random.uniform(0.0, self.jitter)
            self.at(later, lambda: self.publish(effect.broker, effect.topic, effect.payload))
