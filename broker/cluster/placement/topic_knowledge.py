"""What is known of the federation, for whoever decides where clients connect: which brokers there
are, with which traffic, which topics are published where and how often, and where they are
wanted."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from mqttree.broker.cluster.directory.link_state_directory import (
    CLIENTS_AT,
    DRAINING,
    WANTS_EVERYTHING,
)
from mqttree.broker.cluster.placement.placement_messages import Rates
from mqttree.broker.cluster.placement.traffic_entry import TRAFFIC, read_traffic
from mqttree.broker.wire.errors import WireError
from mqttree.placement.broker_table import BrokerLoad
from mqttree.routing.subscription_trie import TopicTrie
from mqttree.routing.topic_filter import is_wildcard

if TYPE_CHECKING:
    from mqttree.broker.cluster.placement.ports import PlacingBroker
    from mqttree.broker.cluster.strategy.routing_strategy import WantedTopics
    from mqttree.routing.link_state import LinkStateDatabase
    from mqttree.routing.listing import Listing
    from mqttree.stp.tree import Tree

MAX_TOPICS: Final = 2000
"""known topics of one question that are looked at; filters behind them count as without topics."""

MAX_STEPS: Final = 20_000
"""steps of the search for them, some ms."""

FRESH_S: Final = 5.0
"""s after which it is known at the latest where a topic is wanted. What a client does because of an
answer counts as pending until then, and rates are twice as old at times."""

MIN_KEPT: Final = 2.5
MAX_LATE: Final = 0.5
"""s for which that is kept at least, some topics longer than others, so that questions do not wait
until a thousand topics were looked up at once; and s after which it is asked for again at most."""

MAX_KEPT: Final = 10_000
LONGEST_KEPT: Final = 256
MAX_SETS: Final = 1000
"""topics of which that is kept, characters of their names, and sets of brokers that want some."""

NOTHING: Final[dict[str, float]] = {}
"""Never changed."""


class TopicKnowledge:
    """What this broker knows; the `View` of a controller."""

    def __init__(
        self,
        host: PlacingBroker,
        tree: Tree,
        database: LinkStateDatabase,
        strategy: WantedTopics,
    ) -> None:
        """`host`: this broker; `tree`: has its capability; `database`: what brokers post;
        `strategy`: which topics they want."""
        self._host = host
        self._tree = tree
        self._database = database
        self._strategy = strategy
        # Topic -> rate by broker.
        self._known: TopicTrie[dict[str, float]] = TopicTrie()
        self._rates: dict[str, Rates] = {}
        # Broker -> rate and number of its other topics.
        self._others: dict[str, tuple[float, int]] = {}
        self._rare = 0.0
        # Stands for all that is known of topics, until some of it may have changed.
        self._state = object()
        # Brokers with a subscriber of a topic, and until when that is kept (s).
        self._wanted: dict[str, tuple[tuple[str, ...], float]] = {}
        self._state_until = 0.0
        # Each set of brokers once, so that a controller sees that it is the same.
        self._sets: dict[tuple[str, ...], tuple[str, ...]] = {}
        # All brokers, and the states of what they have posted from which that was read.
        self._loads: tuple[BrokerLoad, ...] = ()
        self._loads_of: list[object] = []

    def __len__(self) -> int:
        """Return how many topics are known."""
        return len(self._known)

    def take(self, broker: str, rates: Rates, rest: float, topics: int) -> None:
        """Take the `rates` (messages/s) of the topics of a `broker`, in place of older ones;
        `rest`, `topics`: rate and number of all its other topics."""
        self._state = object()
        known = self._known
        for topic in self._rates.get(broker, NOTHING):
            if topic not in rates and (by_broker := known.get(topic)) is not None:
                left = {other: rate for other, rate in by_broker.items() if other != broker}
                if left:
                    known.set(topic, left)
                else:
                    known.pop(topic)
        for topic, rate in rates.items():
            by_broker = known.get(topic)
            if by_broker is None:
                known.set(topic, {broker: rate})
            elif by_broker.get(broker) != rate:
                # What a controller has seen stays as it was.
                known.set(topic, {**by_broker, broker: rate})
        if rates or topics:
            self._rates[broker] = rates
            self._others[broker] = (rest, topics)
        else:
            self._rates.pop(broker, None)
            self._others.pop(broker, None)
        rest_of_all = sum([rate for rate, _ in self._others.values()])
        topics_of_all = sum([count for _, count in self._others.values()])
        self._rare = rest_of_all / topics_of_all if topics_of_all else 0.0

    def keep(self, brokers: Collection[str]) -> None:
        """Forget the topics of all but these `brokers`."""
        for broker in [known for known in self._rates if known not in brokers]:
            self.take(broker, {}, 0.0, 0)

    def topics(self, topic_filters: Sequence[str]) -> list[list[str]]:
        """Return for each filter of a question the known topics that it matches, a bounded number
        of them all together."""
        found: list[list[str]] = []
        topics = steps = 0
        for topic_filter in topic_filters:
            matched: list[str] = []
            if not is_wildcard(topic_filter) and topics < MAX_TOPICS and steps < MAX_STEPS:
                # One look-up.
                if topic_filter in self._known:
                    matched.append(topic_filter)
                steps += 1
                topics += len(matched)
                found.append(matched)
                continue
            if topics < MAX_TOPICS and steps < MAX_STEPS:
                for topic in self._known.search(topic_filter):
                    steps += 1
                    if topic is not None:
                        matched.append(topic)
                    if topics + len(matched) >= MAX_TOPICS or steps >= MAX_STEPS:
                        break
            topics += len(matched)
            found.append(matched)
        return found

    # ---------------------------------------------------------------- what a controller asks

    def brokers(self) -> Sequence[BrokerLoad]:
        """Return this broker and all others that can be reached: the same object as long as nothing
        has changed."""
        host = self._host
        drained = host.drain is not None
        traffic = host.traffic
        capability = self._tree.capability
        listings = self._reachable()
        # Sums change when counters are read.
        read_at = None if traffic is None else traffic.read
        read_of: list[object] = [drained, read_at, capability]
        for listing in listings:
            read_of += (listing.id, listing.boot, listing.version)
        if read_of != self._loads_of:
            config = host.config
            sums = (0.0, 0.0, 0.0, 0.0) if traffic is None else traffic.sums
            own = BrokerLoad(config.id.hex(), config.clients_at(), capability, drained, *sums)
            others = [self._load(listing.id, listing.entries) for listing in listings]
            self._loads, self._loads_of = (own, *others), read_of
        return self._loads

    def _reachable(self) -> list[Listing]:
        return self._database.reachable()

    def _load(self, broker_id: bytes, entries: Mapping[bytes, bytes]) -> BrokerLoad:
        traffic = read_traffic(entries.get(TRAFFIC))
        where = entries.get(CLIENTS_AT, b"").decode(errors="replace")
        drained = DRAINING in entries
        if traffic is None:
            # One that says nothing counts as strong as this one.
            capability = self._tree.capability
            return BrokerLoad(broker_id.hex(), where, capability, drained, 0.0, 0.0, 0.0, 0.0)
        aei, aeo, aii, aio, capability = traffic
        return BrokerLoad(broker_id.hex(), where, capability, drained, aei, aeo, aii, aio)

    def rates(self, topic: str) -> Mapping[str, float]:
        """Return how often a topic is published to (messages/s), by broker."""
        return self._known.get(topic) or NOTHING

    def wanted(self, topic: str) -> Collection[str]:
        """Return the brokers with a subscriber of a topic, as it was `FRESH_S` s ago at most: the
        same object for the same brokers."""
        now = self._host.now
        kept = self._wanted.get(topic)
        if kept is not None and now < kept[1]:
            return kept[0]
        found = self._wanting(topic)
        if len(self._sets) >= MAX_SETS:
            self._sets.clear()
        found = self._sets.setdefault(found, found)
        if len(topic) <= LONGEST_KEPT:
            if kept is None and len(self._wanted) >= MAX_KEPT:
                self._wanted.clear()
            part = zlib.crc32(topic.encode()) / (1 << 32)
            until = now + MIN_KEPT + part * (FRESH_S - MAX_LATE - MIN_KEPT)
            self._wanted[topic] = found, until
        return found

    def _wanting(self, topic: str) -> tuple[str, ...]:
        own = self._host.config.id.hex()
        # Where brokers do not post filters, any one may have subscribers.
        if not self._strategy.posting:
            return (own, *[listing.id.hex() for listing in self._reachable()])
        name = topic.encode()
        dispatcher = self._host.dispatcher
        try:
            route = dispatcher.routes.get(name) or dispatcher.route(name, keep=False)
        except WireError:
            return ()
        found = [broker_id.hex() for broker_id in route.brokers]
        if route.deliveries or route.shared or WANTS_EVERYTHING in self._database.own.entries:
            found.append(own)
        return tuple(found)

    def state(self) -> object:
        """Return what stands for all rates and subscribers: another object when rates have come,
        and each half second, as topics are looked up at times of their own."""
        now = self._host.now
        if now >= self._state_until:
            self._state_until = now + MAX_LATE
            self._state = object()
        return self._state

    def rare(self) -> float:
        """Return the mean rate (messages/s) of topics whose rates are not known."""
        return self._rare
