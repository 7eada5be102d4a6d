"""The traffic of one broker: messages in from clients, out to clients, in from links, out to links,
and which topics clients publish to most. Read every ten seconds, from counters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from mqttree.broker.core.serving_broker import ServingBroker
from mqttree.broker.core.topic_rates import TOP, Average, TopicRates

if TYPE_CHECKING:
    pass

PERIOD: Final = 10.0
"""s between two readings."""


class Sums(NamedTuple):
    """Messages a second, averages over about a minute."""

    published: float
    """In from publishers."""
    delivered: float
    """Out to subscribers."""
    link_in: float
    """In from other brokers, those that this one only passes on included."""
    link_out: float
    """Out to other brokers."""


class TopicTraffic(NamedTuple):
    """One topic at one broker."""

    topic: bytes
    rate: float
    """Messages a second that clients of this broker publish to it."""
    receivers: int
    """Clients of this broker that get them."""


class Topics(NamedTuple):
    """All topics of one broker."""

    top: list[tuple[bytes, float]]
    """Those that are published to most, with their rates (messages/s)."""
    others: int
    """How many more there are."""
    rest: float
    """What is published to all others together (messages/s)."""


class TrafficMeter:
    """Reads the counters of one broker."""

    def __init__(self, host: ServingBroker) -> None:
        """Begin to count. `host`: the broker, which has no clients yet."""
        self._host = host
        self._tally = host.dispatcher.count_topics()
        now = host.now
        self.rates: TopicRates = TopicRates(host.limits.counted_topics, now)
        """Of each topic."""
        self._averages = [Average(now) for _ in range(4)]
        self._last = self._counted()
        self._read = now
        self.on_read: list[Callable[[float], None]] = []
        """Called with now (s) when there is something new."""
        host.timers.schedule(now + PERIOD, self._tick)

    def _counted(self) -> tuple[int, int, int, int]:
        counters = self._host.counters
        return (
            counters.published,
            counters.delivered,
            counters.received_link,
            counters.forwarded,
        )

    def _tick(self, now: float) -> None:
        host = self._host
        host.timers.schedule(now + PERIOD, self._tick)
        counted = self._counted()
        for average, new, old in zip(self._averages, counted, self._last, strict=True):
            average.add(new - old, now)
        self._last = counted
        self._read = now
        exact, sampled = self._tally.take()
        host.turns.go(self.rates.take(exact, sampled, now), lambda: False)
        for call in self.on_read:
            call(now)

    @property
    def read(self) -> float:
        """When the counters were read last (s)."""
        return self._read

    @property
    def sums(self) -> Sums:
        """All topics together."""
        return Sums(*[average.rate for average in self._averages])

    def topics(self, most: int = TOP) -> Topics:
        """Return the topics that are published to most, `most` of them at most, and what is left
        for the others."""
        top = [(topic, rate) for rate, topic in self.rates.top[:most]]
        rest = self.sums.published - sum([rate for _, rate in top])
        return Topics(top, max(0, len(self.rates) - len(top)), max(0.0, rest))

    def top(self, most: int = TOP) -> list[TopicTraffic]:
        """Return the topics that are published to most, `most` of them at most."""
        dispatcher = self._host.dispatcher
        found: list[TopicTraffic] = []
        for topic, rate in self.topics(most).top:
            route = dispatcher.routes.get(topic) or dispatcher.route(topic, keep=False)
            found.append(TopicTraffic(topic, rate, len(route.deliveries) + len(route.shared)))
        return found
