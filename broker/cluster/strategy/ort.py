"""`--routing ort`: t-ORT of the Overlays paper (4.1.2, 4.2.2, 5.2), an overlay for each topic, for
comparison (docs/decisions/0055).

The brokers with a publisher or subscriber of a topic elect a root and form a tree
(`mqttree.stp.topic_overlays`), in which messages of the topic are flooded. The spanning tree
carries only what concerns all brokers. What is published before a broker is part of the tree is
lost for it, and counted.

    record TOPIC_PINGREQ, TOPIC_PINGRESP   -> `mqttree.stp.topic_ping`
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from math import inf
from typing import Any, Final

from mqttree.broker.base.address import Address
from mqttree.broker.base.broker_id import Identity
from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
from mqttree.broker.cluster.events import LinkBehind, LinkDown, LinkDrained, LinkUp
from mqttree.broker.cluster.link.control_records import TOPIC_PINGREQ, TOPIC_PINGRESP
from mqttree.broker.cluster.link.link import Handler, Link
from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.cluster.strategy.path_costs import link_cost
from mqttree.broker.cluster.strategy.ports import Delivery, LinkedBroker
from mqttree.broker.cluster.strategy.published_topics import (
    LOOKED_AT,
    NOT_NOTED,
    PACE,
    STEP,
    OverPublishedTopics,
)
from mqttree.broker.core.dispatcher import topic_name
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.broker.wire.strings import is_own
from mqttree.stp.root_policy import OverlaySettings
from mqttree.stp.topic_overlays import Missed, TopicOverlays
from mqttree.stp.topic_ping import TopicPingError, decode_pings, decode_topics

RECORD: Final = 32 * 1024
"""bytes of topic PINGREQs in one record, about."""

OVERLAY: Final = 2000
"""bytes that an overlay takes, about, with some members."""

PINGS_WORK: Final = 2
"""steps of work for each topic PINGREQ."""


class Ort(OverPublishedTopics):
    """Messages take the links of their topic's overlay."""

    __slots__ = ("_loading", "_open", "overlays")

    ordered = False  # each topic has paths of its own

    def __init__(
        self, node: LinkedBroker, directory: LinkStateDirectory, delivery: Delivery
    ) -> None:
        """`node`: this broker; `directory`: what brokers post; `delivery`: what is above."""
        super().__init__(node, directory, delivery)
        config = node.config
        self.overlays = TopicOverlays(
            Identity(config.id, config.boot, Address(config.host, config.port)),
            config.capability,
            OverlaySettings(
                policy=config.overlay_policy,
                gamma=config.overlay_gamma,
                delta=config.overlay_delta,
                period_s=config.hello,
                answer_s=config.answer_time,
            ),
            limit=node.limits.max_topic_overlays,
            interested=self._interested,
        )
        """The overlays that this broker is a member of."""
        self._open: dict[bytes, Link] = {}
        # Filters from before the first neighbour, still to be looked at.
        self._loading: list[str] = []

    @property
    def records(self) -> dict[int, Handler]:
        """What takes the records of this strategy."""
        return {TOPIC_PINGREQ: self._pings_received, TOPIC_PINGRESP: self._pongs_received}

    @property
    def memory(self) -> int:
        """Bytes that the overlays take, about."""
        return OVERLAY * len(self.overlays.overlays)

    # ---------------------------------------------------------------- next hops

    def brokers_wanting(self, topic: str) -> tuple[bytes, ...]:
        """Return the neighbours in the t-ORT of a `topic`, behind NOT_NOTED and the topic while it
        is not known to be published here, so that topics do not share such a route."""
        name = topic.encode()
        found = self.overlays.neighbours(name)
        if self._begun and (name not in self._looked_at or name in self._doubted):
            return (NOT_NOTED, name, *found)
        return found

    def _links_to(self, neighbours: tuple[bytes, ...]) -> list[Link]:
        return [self._open[peer] for peer in neighbours if peer in self._open]

    def passes_on(self, key: bytes, source: Link) -> bool:
        """Whether there is a link besides the `source`; `key` does not matter."""
        return len(self._open) > self.uses(source)

    # ---------------------------------------------------------------- what is published here

    def _tell_of(self, topic: bytes, now: float) -> bool:
        if self.overlays.join(topic, now) is not None:
            return True
        self._node.counters.overlays_refused += 1
        return False

    # ---------------------------------------------------------------- what is wanted

    def _interested(self, topic: bytes, now: float) -> bool:
        """Whether a client here publishes or subscribes to a topic (valid), also by a filter with
        wildcards or a shared subscription; `now`: does not matter."""
        if topic in self._looked_at:
            return True
        dispatcher = self._node.dispatcher
        route = dispatcher.routes.get(topic) or dispatcher.route(topic, keep=False)
        return bool(route.deliveries or route.shared)

    def filter_changed(self, topic_filter: str, *, wanted: bool) -> None:
        """Note the first subscription to a filter here. One with wildcards is part of overlays of
        which this broker hears. That the last one has gone is noticed when the next topic PINGREQ
        is due."""
        if self._begun and wanted:
            self._want(topic_filter)

    def _want(self, topic_filter: str) -> None:
        if is_own(topic_filter) or "+" in topic_filter or "#" in topic_filter:
            return
        self._tell_of(topic_filter.encode(), self._node.now)
        self._hurry(self._node.now)

    def wanted_behind(self, link: Link, *, gone: bool = False) -> Callable[[bytes], bool]:
        """Return a function that says that no topic is wanted: nothing is replayed to a neighbour
        but retained messages, as in the paper."""
        return no_topic

    def wanted_by(self, broker_id: bytes) -> Callable[[bytes], bool]:
        """Return a function that says that no topic is wanted: nothing is kept for a broker that is
        away."""
        return no_topic

    # ---------------------------------------------------------------- links

    def uses(self, link: Link) -> bool:
        """Whether overlays may have a link, whatever its role in the spanning tree."""
        return link.peer is not None and self._open.get(link.peer.id) is link

    def on_link_open(self, event: LinkUp | LinkDrained) -> None:
        """Use a link. With the first neighbour this broker begins to form overlays."""
        link = event.link
        if not self._begun:
            self._begun = True
            self._loading = list(self._node.dispatcher.filters())
            # No publisher was noted so far.
            self._node.dispatcher.forget_routes()
        if link.peer is not None:
            self._open[link.peer.id] = link
            self.overlays.link_up(link.peer.id, link_cost(link), self._node.now)
            self.generation += 1
            self._hurry(self._node.now)

    def on_link_closed(self, event: LinkDown | LinkBehind) -> None:
        """Stop using a link that is gone, or until its queue has drained."""
        link = event.link
        if link.peer is not None and self._open.get(link.peer.id) is link:
            del self._open[link.peer.id]
            self.overlays.link_down(link.peer.id, self._node.now)
            self.generation += 1
            self._hurry(self._node.now)

    def on_live_links_changed(self) -> None:
        """Do nothing: live links are those of the spanning tree."""

    def on_link_measured(self, link: Link) -> None:
        """Take what a link costs now."""
        if link.peer is not None:
            self.overlays.measured(link.peer.id, link_cost(link))

    # ---------------------------------------------------------------- records

    def _pings_received(self, link: Link, body: bytes, now: float) -> None:
        """Take topic PINGREQs of a neighbour.

        Raises:
            MalformedPacket, ProtocolViolation: they cannot be read, or one has no topic name.
        """
        try:
            pings = decode_pings(body)
        except TopicPingError as error:
            raise MalformedPacket(str(error)) from None
        for ping in pings:
            if is_own(topic_name(ping.topic)):
                raise MalformedPacket("topic PINGREQ of a topic that stays at its broker")
        self._node.turns.work += PINGS_WORK * len(pings)
        if self.uses(link) and link.peer is not None:
            self.overlays.pings_received(link.peer.id, pings, now)
            self._hurry(now)

    def _pongs_received(self, link: Link, body: bytes, now: float) -> None:
        """Take topic PINGRESPs of a neighbour.

        Raises:
            MalformedPacket: they cannot be read.
        """
        try:
            topics = decode_topics(body)
        except TopicPingError as error:
            raise MalformedPacket(str(error)) from None
        self._node.turns.work += len(topics)
        if self.uses(link) and link.peer is not None:
            self.overlays.pongs_received(link.peer.id, topics, now)
            self._hurry(now)

    # ---------------------------------------------------------------- time

    def next_deadline(self) -> float | None:
        """When `settle` is due (s); None: it is not."""
        at = self.overlays.deadline()
        if self._due is not None:
            at = min(at, self._due)
        return None if at == inf or not self._begun else at

    def settle(self, now: float) -> bool:
        """Do what is due, and tell neighbours. Returns False: the tree and the directory have
        nothing to decide because of it."""
        due = self.next_deadline()
        if due is None or due > now:
            return False
        self._due = None
        for topic_filter in self._loading[-STEP:]:
            self._want(topic_filter)
        del self._loading[-STEP:]
        if self._loading:
            self._due = now + PACE
        self.overlays.set_clients(self._node.clients.connected)
        self.overlays.set_capability(self._delivery.tree.capability)
        self.overlays.tick(now)
        for out in self.overlays.take_output():
            link = self._open.get(out.peer)
            if link is not None:
                send(link, out.pings, out.pongs)
        changed = self.overlays.take_changed()
        self._count_lost(self.overlays.take_missed())
        self._find_routes(topic.decode() for topic in changed)
        return False

    def _count_lost(self, missed: list[Missed]) -> None:
        """Count the messages at QoS 1 and 2 that a member missed while it was not yet part of the
        tree here, and so those that it published meanwhile."""
        if not missed:
            return
        by_topic: dict[bytes, list[Missed]] = {}
        for one in missed:
            by_topic.setdefault(one.topic, []).append(one)
        first = min(one.since for one in missed)
        for entry in islice(self._delivery.replay_log.latest(), LOOKED_AT):
            if entry.at < first:
                break
            if entry.retain:
                continue
            origin = split_key(entry.key)[0]
            for topic in entry.topics():
                for one in by_topic.get(topic, ()):
                    if one.since <= entry.at and one.peer != origin:
                        self._node.counters.lost_before_path += 1

    def report(self) -> dict[str, Any]:
        """Return what /api/v1/federation says of the overlays."""
        overlays = self.overlays
        return {
            "topic_overlays": {
                "topics": len(overlays.overlays),
                "root_of": overlays.rooted,
                "forming": sum(not overlay.formed for overlay in overlays.overlays.values()),
                "in_parts": overlays.in_parts(),
            }
        }


def no_topic(topic: bytes) -> bool:
    """Say of any `topic` that it is not wanted."""
    return False


def send(link: Link, pings: list[bytes], pongs: bytes) -> None:
    """Send topic PINGREQs and PINGRESPs over a `link` with its next PINGREQ, in records that are
    not too long. `pings`: each as bytes; `pongs`: all in one."""
    # An answer says that the topic had a client when it was asked: that counts ahead of the topic
    # PINGREQ of a broker that has just joined by a filter with wildcards.
    if pongs:
        link.add_record(TOPIC_PINGRESP, pongs)
    part: list[bytes] = []
    size = 0
    for ping in pings:
        part.append(ping)
        size += len(ping)
        if size >= RECORD:
            link.add_record(TOPIC_PINGREQ, b"".join(part))
            part, size = [], 0
    if part:
        link.add_record(TOPIC_PINGREQ, b"".join(part))
