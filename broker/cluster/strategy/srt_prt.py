"""`--routing srt`: SRT and PRT of the Overlays paper (5.1), for comparison (docs/decisions/0054).

A broker advertises a topic with its first message; subscriptions go towards publishers alone, and
messages back along them (`mqttree.routing.advertised_routes`). No broker knows the filters of all
others. What is published before a subscription has arrived is lost for it, and counted.

    record PUBADV   (u8 on, u16 length, topic)...: what the paper publishes to $PUBADV/<topic>
    record FILTERS  (u8 on, u32 age in ms, u16 length, filter)...: subscriptions that go towards
                    publishers
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
from mqttree.broker.cluster.events import LinkBehind, LinkDown, LinkDrained, LinkUp
from mqttree.broker.cluster.link.control_records import FILTERS, PUBADV
from mqttree.broker.cluster.link.link import Handler, Link
from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.cluster.strategy.interest_table import remembering
from mqttree.broker.cluster.strategy.ports import Delivery, Entry, LinkedBroker
from mqttree.broker.cluster.strategy.published_topics import (
    LOOKED_AT,
    NOT_NOTED,
    PACE,
    STEP,
    OverPublishedTopics,
)
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.broker.wire.strings import is_own
from mqttree.routing.advertised_routes import Arrival, Hop, RoutingTables, Told
from mqttree.routing.topic_filter import valid_topic_filter, valid_topic_name

MAX_AGE: Final = (1 << 32) - 1
"""ms; the highest age that a record can say."""


class SrtPrt(OverPublishedTopics):
    """Messages take the links over which a matching filter has come; filters take those over which
    a matching topic was advertised."""

    __slots__ = ("_hops", "_tables")

    def __init__(
        self, node: LinkedBroker, directory: LinkStateDirectory, delivery: Delivery
    ) -> None:
        """`node`: this broker; `directory`: what brokers post; `delivery`: what is above."""
        super().__init__(node, directory, delivery)
        self._tables = RoutingTables(node.limits.advertised_memory)
        self._hops: dict[Link, Hop] = {}

    @property
    def records(self) -> dict[int, Handler]:
        """What takes the records of this strategy."""
        return {PUBADV: self._advertised, FILTERS: self._filters_received}

    @property
    def memory(self) -> int:
        """Bytes that the tables take."""
        return self._tables.memory

    # ---------------------------------------------------------------- next hops

    def brokers_wanting(self, topic: str) -> tuple[bytes, ...]:
        """Return the neighbours that get a `topic`, behind NOT_NOTED and the topic while it is
        not advertised, so that topics do not share such a route."""
        tables = self._tables
        before = tables.steps
        found = tables.next_hops(topic)
        self._node.turns.work += tables.steps - before
        name = topic.encode()
        if self._begun and (name in self._doubted or not tables.publishes(topic)):
            return (NOT_NOTED, name, *found)
        return found

    def _links_to(self, neighbours: tuple[bytes, ...]) -> list[Link]:
        return [
            link
            for link in self._node.forwarding
            if link.peer is not None and link.peer.id in neighbours
        ]

    # ---------------------------------------------------------------- what is published here

    def _tell_of(self, topic: bytes, now: float) -> bool:
        tables = self._tables
        if tables.advertised(tables.here, topic.decode(), True):
            return True
        self._node.counters.advertisements_refused += 1
        return False

    def _tell_no_more(self, topic: bytes) -> None:
        self._tables.advertised(self._tables.here, topic.decode(), False)

    # ---------------------------------------------------------------- what is wanted

    def filter_changed(self, topic_filter: str, *, wanted: bool) -> None:
        """Note the first subscription to a filter here, or that the last one has gone."""
        if self._begun and not is_own(topic_filter):  # no such topic crosses a link
            self._want(topic_filter, wanted, self._node.now)
            self._hurry(self._node.now)

    def _want(self, topic_filter: str, wanted: bool, since: float) -> None:
        tables = self._tables
        if not wanted:
            tables.unwanted(tables.here, topic_filter)
        elif not tables.wanted(tables.here, topic_filter, since):
            self._node.counters.advertisements_refused += 1

    def wanted_behind(self, link: Link, *, gone: bool = False) -> Callable[[bytes], bool]:
        """Return a function that says whether the PRT has a topic for a link; `gone` does not
        matter."""
        return self._wanted_by_neighbour(None if link.peer is None else link.peer.id)

    def wanted_by(self, broker_id: bytes) -> Callable[[bytes], bool]:
        """Return a function that says whether the PRT has a topic for the link that leads to a
        broker: what the broker itself wants is not known."""
        return self._wanted_by_neighbour(self._directory.database.via(broker_id))

    def _wanted_by_neighbour(self, broker_id: bytes | None) -> Callable[[bytes], bool]:
        next_hops = self._tables.next_hops
        return remembering(lambda topic: broker_id in next_hops(topic.decode()))

    # ---------------------------------------------------------------- links

    def on_link_open(self, event: LinkUp | LinkDrained) -> None:
        """Note a neighbour. With the first one this broker begins to keep its part of the
        tables."""
        link = event.link
        if link.peer is None or link in self._hops:
            return
        if not self._begun:
            self._begun = True
            for topic_filter in self._node.dispatcher.filters():
                if not is_own(topic_filter):
                    self._want(topic_filter, True, self._node.now)
            # No topic was advertised so far.
            self._node.dispatcher.forget_routes()
        self._hops[link] = self._tables.open(link.peer.id)
        self.on_live_links_changed()

    def on_link_closed(self, event: LinkDown | LinkBehind) -> None:
        """Forget what a neighbour has said, if the link is gone."""
        if isinstance(event, LinkDown) and (hop := self._hops.pop(event.link, None)) is not None:
            self._tables.close(hop, event.now)
            self._hurry(event.now)

    def on_live_links_changed(self) -> None:
        """Use what live links have brought, and nothing else."""
        self.generation += 1
        live = self._node.forwarding
        for link, hop in self._hops.items():
            self._tables.set_live(hop, link in live)
        self._hurry(self._node.now)

    # ---------------------------------------------------------------- records

    def _advertised(self, link: Link, body: bytes, now: float) -> None:
        """Take the topics that a neighbour advertises or withdraws.

        Raises:
            MalformedPacket: the record cannot be read, or has an invalid topic.
        """
        hop = self._hops.get(link)
        for topic, on, _ in decoded(body, 0):
            if is_own(topic) or not valid_topic_name(topic):
                raise MalformedPacket("PUBADV record with an invalid topic")
            if hop is not None and not self._tables.advertised(hop, topic, on):
                self._node.counters.advertisements_refused += 1

    def _filters_received(self, link: Link, body: bytes, now: float) -> None:
        """Take the filters that a neighbour wants, or does not want any more.

        Raises:
            MalformedPacket: the record cannot be read, or has an invalid filter.
        """
        hop = self._hops.get(link)
        # On average an answer takes half of a round trip; without one it was just measured.
        under_way = (link.rtt_ms or 0.0) / 2000
        for topic_filter, on, age in decoded(body, 4):
            if is_own(topic_filter) or not valid_topic_filter(topic_filter):
                raise MalformedPacket("FILTERS record with an invalid topic filter")
            if hop is None:
                continue
            if not on:
                self._tables.unwanted(hop, topic_filter)
            elif not self._tables.wanted(hop, topic_filter, now - age - under_way):
                self._node.counters.advertisements_refused += 1

    # ---------------------------------------------------------------- time

    def next_deadline(self) -> float | None:
        """When `settle` is due (s); None: the tables are up to date."""
        return self._due

    def settle(self, now: float) -> bool:
        """Bring the tables up to date, and tell neighbours, a step at a time. Returns False: the
        tree and the directory have nothing to decide because of it."""
        more = self._tables.work(STEP)
        self._find_routes(self._tables.changed)
        self._tables.changed.clear()
        self._count_lost()
        for link, hop in self._hops.items():
            if hop.due and link.up:
                self._tell(link, *self._tables.due(hop, STEP, now))
                more = more or hop.due
        self._due = now + PACE if more else None
        return False

    def _tell(self, link: Link, topics: list[Told], filters: list[Told]) -> None:
        if topics:
            link.add_record(PUBADV, encoded(topics, 0))
        if filters:
            link.add_record(FILTERS, encoded(filters, 4))

    def report(self) -> dict[str, Any]:
        """Return what /api/v1/federation says of the tables."""
        tables = self._tables
        return {
            "srt_prt": {
                "advertised": tables.published,
                "topics": tables.topics,
                "filters": tables.filters,
            }
        }

    # ---------------------------------------------------------------- what is lost

    def _count_lost(self) -> None:
        """Count the messages that passed here, or were published here, after a client behind a
        neighbour had subscribed and before that was known here."""
        arrived, self._tables.arrived = self._tables.arrived, []
        by_hop: dict[Hop, dict[str, float]] = {}
        for arrival in arrived:
            note(by_hop.setdefault(arrival.hop, {}), arrival)
        for hop, filters in by_hop.items():
            first = min(filters.values())
            if first >= self._node.now:
                continue
            for entry in islice(self._delivery.replay_log.latest(), LOOKED_AT):
                if entry.at < first:
                    break
                self._node.counters.lost_before_path += self._lost(entry, hop, filters)

    def _lost(self, entry: Entry, hop: Hop, filters: dict[str, float]) -> int:
        """Return how many messages of an entry of the log only the `filters` of a neighbour match
        that have just arrived, each with the time (s) from which on its subscriber waits. What came
        from there, and retained messages, which go everywhere, are not among them."""
        if entry.retain or self._directory.database.via(split_key(entry.key)[0]) == hop.id:
            return 0
        lost = 0
        for topic in entry.topics():
            matching = [
                want.filter for want in self._tables.wanting(topic.decode()) if want.hop is hop
            ]
            known = any(topic_filter not in filters for topic_filter in matching)
            if not known and any(filters[found] <= entry.at for found in matching):
                lost += 1
        return lost


def note(filters: dict[str, float], arrival: Arrival) -> None:
    """Add a filter that has arrived to those of the same neighbour."""
    filters[arrival.filter] = arrival.since


def encoded(told: list[Told], age_bytes: int) -> bytes:
    """Return the body of a record of topics (`age_bytes` 0) or filters (4)."""
    parts: list[bytes] = []
    for text, on, age in told:
        data = text.encode()
        parts.append(b"\1" if on else b"\0")
        if age_bytes:
            parts.append(min(round(age * 1000), MAX_AGE).to_bytes(age_bytes, "big"))
        parts.append(len(data).to_bytes(2, "big") + data)
    return b"".join(parts)


def decoded(body: bytes, age_bytes: int) -> Iterator[tuple[str, bool, float]]:
    """Yield text, whether it is on, and age (s) of each entry of a record of topics (`age_bytes` 0)
    or filters (4).

    Raises:
        MalformedPacket: it is truncated, or no text.
    """
    at = 0
    while at < len(body):
        head = at + 1 + age_bytes
        begin = head + 2
        end = begin + int.from_bytes(body[head:begin], "big")
        if begin > len(body) or end > len(body) or body[at] > 1:
            raise MalformedPacket("record of routing tables is truncated")
        try:
            text = body[begin:end].decode()
        except UnicodeDecodeError:
            raise MalformedPacket("record of routing tables is no text") from None
        yield text, body[at] == 1, int.from_bytes(body[at + 1 : head], "big") / 1000
        at = end
