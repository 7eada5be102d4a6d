"""Brokers with topic overlays and nothing else, joined by links with delays, on a virtual clock."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import count

from mqttree.broker.base.address import Address
from mqttree.broker.base.broker_id import Identity
from mqttree.stp.root_policy import OverlaySettings
from mqttree.stp.topic_overlays import TopicOverlays
from mqttree.stp.topic_ping import decode_pings, decode_topics

Edge = tuple[int, int]

SETTINGS = OverlaySettings()


def name(broker: int) -> bytes:
    """Return a broker's id."""
    return broker.to_bytes(8, "big")


class Net:
    """So many brokers, and the links between some of them."""

    def __init__(
        self,
        capabilities: Iterable[float],
        *,
        settings: OverlaySettings = SETTINGS,
        limit: int = 1000,
    ) -> None:
        """Make a broker for each of `capabilities`, with the lowest address first; `settings`,
        `limit`: of all overlays."""
        self.now = 0.0
        self.settings = settings
        self.wanted: list[set[bytes]] = []
        self.brokers: list[TopicOverlays] = []
        self.delays: dict[Edge, float] = {}
        self.pings = 0
        self.bytes = 0
        self._numbers = count()
        self._under_way: list[tuple[float, int, Edge, int, bytes, bytes]] = []
        self._lives: dict[Edge, int] = {}
        self._arrivals: dict[Edge, float] = {}
        for number, capability in enumerate(capabilities):
            wanted: set[bytes] = set()
            own = Identity(name(number), 1, Address(f"10.0.0.{number + 1}", 1883))
            self.wanted.append(wanted)
            self.brokers.append(
                TopicOverlays(
                    own,
                    capability,
                    settings,
                    limit=limit,
                    interested=lambda topic, now, wanted=wanted: topic in wanted,  # type: ignore[misc]
                )
            )

    def link(self, a: int, b: int, delay: float = 0.005) -> None:
        """Link two brokers; `delay`: s, one way."""
        self.delays[min(a, b), max(a, b)] = delay
        self._lives[min(a, b), max(a, b)] = self._lives.get((min(a, b), max(a, b)), 0) + 1
        for one, other in ((a, b), (b, a)):
            self.brokers[one].link_up(name(other), round(delay * 2e6), self.now)

    def cut(self, a: int, b: int) -> None:
        """End a link: what is under way on it is lost."""
        if self.delays.pop((min(a, b), max(a, b)), None) is not None:
            self._lives[min(a, b), max(a, b)] += 1
            self.brokers[a].link_down(name(b), self.now)
            self.brokers[b].link_down(name(a), self.now)

    def want(self, broker: int, topic: bytes) -> None:
        """Have a client at a broker publish or subscribe to a topic."""
        self.wanted[broker].add(topic)
        self.brokers[broker].join(topic, self.now)

    def unwant(self, broker: int, topic: bytes) -> None:
        """Have no client at a broker any more that does."""
        self.wanted[broker].discard(topic)

    def run(self, seconds: float) -> None:
        """Let so much time go by."""
        end = self.now + seconds
        while True:
            at = min([broker.deadline() for broker in self.brokers], default=end)
            if self._under_way:
                at = min(at, self._under_way[0][0])
            if at > end:
                break
            self.now = max(self.now, at)
            self.step()
        self.now = end

    def step(self) -> None:
        """Do all that is due now."""
        while self._under_way and self._under_way[0][0] <= self.now:
            _, _, (source, target), life, pings, pongs = heapq.heappop(self._under_way)
            if self._lives.get((min(source, target), max(source, target))) == life:
                broker = self.brokers[target]
                broker.pings_received(name(source), decode_pings(pings), self.now)
                broker.pongs_received(name(source), decode_topics(pongs), self.now)
        for number, broker in enumerate(self.brokers):
            broker.tick(self.now)
            for out in broker.take_output():
                self._send(number, int.from_bytes(out.peer, "big"), b"".join(out.pings), out.pongs)
                self.pings += len(out.pings)

    def _send(self, source: int, target: int, pings: bytes, pongs: bytes) -> None:
        edge = (min(source, target), max(source, target))
        if edge not in self.delays:
            return
        self.bytes += len(pings) + len(pongs)
        # Links keep the order.
        at = max(self.now + self.delays[edge], self._arrivals.get((source, target), 0.0))
        self._arrivals[source, target] = at
        heapq.heappush(
            self._under_way,
            (at, next(self._numbers), (source, target), self._lives[edge], pings, pongs),
        )

    # ---------------------------------------------------------------- what is looked at

    def root(self, broker: int, topic: bytes) -> int:
        """Return the root that a broker follows."""
        return int.from_bytes(self.brokers[broker].overlays[topic].root.id, "big")

    def table(self, broker: int, topic: bytes) -> list[int]:
        """Return a broker's t-ORT of a topic."""
        found = self.brokers[broker].neighbours(topic)
        return [int.from_bytes(peer, "big") for peer in found]

    def members(self, topic: bytes) -> set[int]:
        """Return the brokers with an overlay of a topic."""
        return {n for n, broker in enumerate(self.brokers) if topic in broker.overlays}

    def components(self, topic: bytes) -> list[set[int]]:
        """Return the members of a topic, in groups of those that links between members join."""
        left, found = self.members(topic), []
        while left:
            group, edge = set(), {min(left)}
            while edge:
                group |= edge
                edge = {
                    b
                    for pair in self.delays
                    for a, b in (pair, pair[::-1])
                    if a in edge and b in left
                } - group
            left -= group
            found.append(group)
        return found

    def looped(self, topic: bytes) -> bool:
        """Whether parents of one root make a loop."""
        for start in self.members(topic):
            root, at, steps = self.root(start, topic), start, 0
            while at in self.members(topic) and self.root(at, topic) == root:
                parent = self.brokers[at].overlays[topic].parent
                if parent is None:
                    break
                at, steps = int.from_bytes(parent, "big"), steps + 1
                if steps > len(self.brokers):
                    return True
        return False

    def reached(self, source: int, topic: bytes) -> list[int]:
        """Return the brokers that a message gets to by flooding inside the overlay, each as often
        as it gets there."""
        found: list[int] = []
        edge = [(source, -1)]
        while edge and len(found) < 1000:
            at, before = edge.pop()
            for other in self.table(at, topic):
                if other != before:
                    found.append(other)
                    edge.append((other, at))
        return sorted(found)
