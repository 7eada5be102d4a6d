"""The load of answers that the brokers do not show yet. Pure: `now` is handed in, in seconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import NamedTuple


class Pending(NamedTuple):
    """Load of an answer that the brokers do not show yet. Rates in messages/s."""

    until: float
    topics: tuple[str, ...]
    """That are about to be subscribed to. Texts and numbers by themselves: the garbage collector
    leaves tuples of these alone."""
    brokers: tuple[str, ...]
    """For each of them, the broker where that is."""
    rates: tuple[float, ...]
    """For each of them, its rate."""
    published: tuple[tuple[str, float], ...]
    """Broker, rate that is about to be published there."""


class _Waiting:
    """Where a topic is about to be subscribed."""

    __slots__ = ("brokers", "counts")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """Broker -> clients."""
        self.brokers: tuple[str, ...] = ()
        """The same object as long as no broker comes or goes."""


class PendingLoad:
    """All pending answers together."""

    def __init__(self, most: int, entries: int) -> None:
        """`most`: answers, `entries`: topics in all of them; of more the oldest go."""
        self._most = most
        self._most_entries = entries
        # The oldest first. Python looks for the first key of a `dict` behind all that were deleted.
        self._clients: OrderedDict[str, Pending] = OrderedDict()
        self._entries = 0
        self._topics: dict[str, _Waiting] = {}
        self.aei: dict[str, float] = {}
        """Messages/s that are about to come in from publishers, by broker."""
        self.aeo: dict[str, float] = {}
        """The same out to subscribers."""

    def __len__(self) -> int:
        return len(self._clients)

    def brokers(self, topic: str) -> Collection[str]:
        """Return the brokers where a topic is about to be subscribed; the same object as long as
        these are the same."""
        found = self._topics.get(topic)
        return () if found is None else found.brokers

    def pop(self, client: str) -> Pending | None:
        """Take the answer of a client out and return it, None if there is none."""
        found = self._clients.pop(client, None)
        if found is not None:
            self._count(found, -1)
        return found

    def add(self, client: str, load: Pending) -> None:
        """Add the answer of a `client` that has none here; `load`: what it adds."""
        self._clients[client] = load
        self._count(load, 1)
        while len(self._clients) > self._most or self._entries > self._most_entries:
            self.pop(next(iter(self._clients)))

    def expire(self, now: float) -> None:
        """Drop answers whose time is up at `now` (s)."""
        while self._clients:
            client, load = next(iter(self._clients.items()))
            if load.until > now:
                return
            self.pop(client)

    def _count(self, load: Pending, sign: int) -> None:
        self._entries += sign * len(load.topics)
        topics, aeo = self._topics, self.aeo
        for topic, broker, rate in zip(load.topics, load.brokers, load.rates, strict=True):
            aeo[broker] = aeo.get(broker, 0.0) + sign * rate
            there = topics.get(topic)
            if there is None:
                there = topics[topic] = _Waiting()
            counts = there.counts
            before = counts.get(broker, 0)
            counts[broker] = now = before + sign
            if not now:
                del counts[broker]
                if not counts:
                    del topics[topic]
            if not now or not before:
                there.brokers = tuple(counts)
        for broker, rate in load.published:
            self.aei[broker] = self.aei.get(broker, 0.0) + sign * rate
        if not self._clients:
            # Sums of floats end near 0, not at it.
            self.aei.clear()
            self.aeo.clear()
