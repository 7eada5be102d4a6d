"""`--routing ort`: t-ORT of the Overlays paper (4.1.2, 4.2.2, 5.2), an overlay for each topic, for
comparison (docs/decisions/0055).

The brokers with a publisher or subscriber of a topic elect a root and form a tree
(`stp.topic_overlays`), in which messages of the topic are flooded. The spanning tree carries only
what concerns all brokers. What is published before a broker is part of the tree is lost for it, and
counted.

    record TOPIC_PINGREQ, TOPIC_PINGRESP   -> `stp.topic_ping`
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from math import inf
from typing import Any, Final, Protocol

from broker.base.address import Address
from broker.base.broker_id import Identity
from broker.cluster.events import LinkBehind, LinkDown, LinkDrained, LinkUp, RouteChanged
from broker.cluster.link.codec import split_key
from broker.cluster.link.control_records import TOPIC_PINGREQ, TOPIC_PINGRESP
from broker.cluster.link.link import Handler, Link
from broker.cluster.strategy.directory import Directory
from broker.cluster.strategy.path_costs import link_cost
from broker.cluster.strategy.ports import Delivery, LinkedBroker
from broker.cluster.strategy.spanning_tree import OverSpanningTree
from broker.core.dispatcher import topic_name
from broker.core.receiver_assignment import ID, ReceiverAssignment
from broker.core.route import Route
from broker.wire.errors import MalformedPacket
from stp.root_policy import OverlaySettings
from stp.topic_overlays import Missed, TopicOverlays
from stp.topic_ping import TopicPingError, decode_pings, decode_topics

NOT_NOTED: Final = b""
"""In place of the first broker of a route: when a message to the topic, which follows, is published
here, that is to be noted. Brokers have longer ids."""

STEP: Final = 500
"""filters that are handled at a time when the first neighbour comes, and topics that are looked at
at a time: some ms of work."""

PACE: Final = 0.01
"""s between two such steps."""

RECORD: Final = 32 * 1024
"""bytes of topic PINGREQs in one record, about."""

LOOKED_AT: Final = 10_000
"""entries of the log in which messages are looked for that a new member missed: some 10 ms. What is
older is not counted."""

OVERLAY: Final = 2000
"""bytes that an overlay takes, about, with some members."""

PINGS_WORK: Final = 2
"""steps of work for each topic PINGREQ."""


class OverlayConfig(Protocol):
    """The settings that overlays need."""

    @property
    def id(self) -> bytes:
        """The broker's id."""

    @property
    def boot(self) -> int:
        """The broker's boot number."""

    @property
    def host(self) -> str:
        """The address that breaks ties between brokers."""

    @property
    def port(self) -> int:
        """Its port."""

    @property
    def capability(self) -> float:
        """The capability of this machine (`stp.capability`)."""

    @property
    def hello(self) -> float:
        """s between two topic PINGREQs of a topic."""

    @property
    def answer_time(self) -> float:
        """Tt (s): for so long answers are collected before a root is elected."""

    @property
    def overlay_policy(self) -> str:
        """`capability` or `balance`: how the root of a topic's overlay is elected."""

    @property
    def overlay_gamma(self) -> float:
        """Weight of the overlays that a broker is root of."""

    @property
    def overlay_delta(self) -> float:
        """Weight of the clients that a broker has."""


class Ort(OverSpanningTree):
    """Messages take the links of their topic's overlay."""

    __slots__ = (
        "_begun",
        "_doubted",
        "_due",
        "_loading",
        "_looked_at",
        "_open",
        "_routes_changed",
        "generation",
        "overlays",
    )

    name = "ort"
    posting = False

    def __init__(
        self, node: LinkedBroker, directory: Directory, delivery: Delivery, config: OverlayConfig
    ) -> None:
        """`node`: this broker; `directory`: what brokers post; `delivery`: what is above; `config`:
        who this broker is, and how roots are elected."""
        super().__init__(node, directory, delivery)
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
        self.generation = 0
        self._open: dict[bytes, Link] = {}
        self._begun = False  # a first neighbour has come
        # Filters of before that, still to be looked at.
        self._loading: list[str] = []
        self._due: float | None = None
        # Topics whose kept routes are to be found again.
        self._routes_changed: dict[bytes, None] = {}
        # Topic published here -> when it was looked at last whether it still is (s), in this order;
        # those that were not published to since.
        self._looked_at: dict[bytes, float] = {}
        self._doubted: dict[bytes, None] = {}

    @property
    def records(self) -> dict[int, Handler]:
        """What takes the records of this strategy."""
        return {TOPIC_PINGREQ: self._pings_received, TOPIC_PINGRESP: self._pongs_received}

    @property
    def memory(self) -> int:
        """Bytes that the overlays take, about."""
        return OVERLAY * len(self.overlays.overlays)

    # ---------------------------------------------------------------- what comes here

    def needs_feeds(self, routing: str) -> bool:
        """Return False: messages of one origin take several paths, so that no link brings all that
        is wanted here, in order; `routing` does not matter."""
        return False

    def overtaking(self) -> bool:
        """Return True: each topic has paths of its own."""
        return True

    def everything_arrives(self) -> bool:
        """Return False: messages come of the topics that have a client here."""
        return False

    def holder_keeps_receiving(self) -> bool:
        """Return False: a session that moves begins at its new broker, as with a lone one."""
        return False

    # ---------------------------------------------------------------- next hops

    def brokers_wanting(self, topic: str) -> tuple[bytes, ...]:
        """Return the neighbours in the t-ORT of a `topic`, behind NOT_NOTED and the topic while it
        is not known to be published here, so that topics do not share such a route."""
        name = topic.encode()
        found = self.overlays.neighbours(name)
        if self._begun and (name not in self._looked_at or name in self._doubted):
            return (NOT_NOTED, name, *found)
        return found

    def next_hops(self, topic: bytes) -> list[Link]:
        """Return the links of a topic (valid), which is published here."""
        dispatcher = self._node.dispatcher
        return self.links_of(dispatcher.routes.get(topic) or dispatcher.route(topic))

    def links_of(self, route: Route) -> list[Link]:
        """Return the links of a `route` to whose topic a message is published here; if it is the
        first one, this broker becomes a member of the topic's overlay."""
        if route.generation != self.generation:
            brokers = route.brokers
            if brokers[:1] == (NOT_NOTED,):
                self._published(brokers[1])
            route.links = self._links(brokers)
            route.generation = self.generation
        return route.links

    def links_onward(self, route: Route, key: bytes, source: Link) -> list[Link]:
        """Return the links of a `route`, whatever `key` and `source` are. The topic is not
        published here."""
        if route.generation == self.generation:
            return route.links
        if route.brokers[:1] == (NOT_NOTED,):
            return self._links(route.brokers)
        return self.links_of(route)

    def _links(self, brokers: tuple[bytes, ...]) -> list[Link]:
        hops = brokers[2:] if brokers[:1] == (NOT_NOTED,) else brokers
        return [self._open[peer] for peer in hops if peer in self._open]

    def onward(self, topic: bytes, key: bytes, source: Link) -> list[Link]:
        """Return the links of a `topic`, whatever its origin (`key`) and `source` are."""
        dispatcher = self._node.dispatcher
        route = dispatcher.routes.get(topic) or dispatcher.route(topic)
        return self.links_onward(route, key, source)

    def passes_on(self, key: bytes, source: Link) -> bool:
        """Whether there is a link besides the `source`; `key` does not matter."""
        return len(self._open) > 1

    def assigned(self, choice: ReceiverAssignment, links: list[Link], key: bytes) -> list[Link]:
        """Return the `links` of a topic, and those of the spanning tree that lead to the brokers
        that `choice` names: all brokers know where members of shared subscriptions are. `key` does
        not matter."""
        found = [] if choice.passed else list(links)
        for who, _ in choice.entries:
            link = self._directory.link_to(who[:ID])
            if link is not None and link.live and link not in found:
                found.append(link)
        return found

    # ---------------------------------------------------------------- what is published here

    def _published(self, topic: bytes) -> None:
        """Become a member of a topic's overlay, or note that it is still published to here."""
        now = self._node.now
        if self.overlays.join(topic, now) is None:
            self._delivery.count("overlays_refused")
            return
        self._doubted.pop(topic, None)
        self._looked_at.setdefault(topic, now)
        # Its next message finds the route that it shares with others.
        self._routes_changed[topic] = None
        self._hurry(now)

    def tick(self, now: float) -> None:
        """Forget topics that were not published to for long, some at a time. A topic is doubted
        first: then its next message notes it as if it was new, at no cost to all others."""
        until = now - self._node.limits.advertised_time
        for topic, looked_at in list(islice(self._looked_at.items(), STEP)):
            if looked_at > until:
                break
            del self._looked_at[topic]
            if topic in self._doubted:
                del self._doubted[topic]
            else:
                self._doubted[topic] = None
                self._looked_at[topic] = now
            self._routes_changed[topic] = None
        if self._routes_changed:
            self._hurry(now)

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
        if topic_filter.startswith("$") or "+" in topic_filter or "#" in topic_filter:
            return
        if self.overlays.join(topic_filter.encode(), self._node.now) is None:
            self._delivery.count("overlays_refused")
        self._hurry(self._node.now)

    def on_posted(self, call: Callable[[], None]) -> None:
        """Ignore `call`: filters are not posted for all brokers."""

    def knows_behind(self, link: Link) -> bool:
        """Return True: nothing is waited for."""
        return True

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

    def route_changed(self, event: RouteChanged) -> None:
        """Do nothing: the spanning tree decides nothing here."""

    def link_up(self, event: LinkUp) -> None:
        """Note a neighbour. With the first one this broker begins to form overlays."""
        event.link.selective = True
        if not self._begun:
            self._begun = True
            self._loading = list(self._node.dispatcher.filters())
            # No publisher was noted so far.
            self._node.dispatcher.forget_routes()
        self._opened(event.link)

    def _opened(self, link: Link) -> None:
        if link.peer is not None:
            self._open[link.peer.id] = link
            self.overlays.link_up(link.peer.id, link_cost(link), self._node.now)
            self.generation += 1
            self._hurry(self._node.now)

    def link_lost(self, event: LinkDown) -> None:
        """Stop using a link that is gone."""
        self._closed(event.link)

    def link_overflowed(self, event: LinkBehind) -> None:
        """Stop using a link until its queue has drained."""
        self._closed(event.link)

    def link_drained(self, event: LinkDrained) -> None:
        """Use the link again."""
        self._opened(event.link)

    def _closed(self, link: Link) -> None:
        if link.peer is not None and self._open.get(link.peer.id) is link:
            del self._open[link.peer.id]
            self.overlays.link_down(link.peer.id, self._node.now)
            self.generation += 1
            self._hurry(self._node.now)

    def live_changed(self) -> None:
        """Do nothing: live links are those of the spanning tree."""

    def link_measured(self, link: Link) -> None:
        """Take what a link costs now."""
        if link.peer is not None:
            self.overlays.measured(link.peer.id, link_cost(link))

    def capability_changed(self, capability: float) -> None:
        """Take the capability of this machine, for the next elections."""
        self.overlays.set_capability(capability)

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
            if topic_name(ping.topic).startswith("$"):
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

    def _hurry(self, now: float) -> None:
        self._due = now if self._due is None else min(self._due, now)
        self._delivery.hurry(now)

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
        self.overlays.set_clients(self._node.connected)
        self.overlays.tick(now)
        for out in self.overlays.take_output():
            link = self._open.get(out.peer)
            if link is not None:
                send(link, out.pings, out.pongs)
        changed = self.overlays.take_changed()
        self._count_lost(self.overlays.take_missed())
        invalidate = self._node.dispatcher.invalidate
        for topic in dict.fromkeys([*changed, *self._routes_changed]):
            invalidate(topic.decode())
        self._routes_changed.clear()
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
            each = 1 if entry.mixed else entry.count
            for topic in entry.topics():
                for one in by_topic.get(topic, ()):
                    if one.since <= entry.at and one.peer != origin:
                        self._node.counters.lost_before_path += each

    def report(self) -> dict[str, Any]:
        """Return what /api/federation says of the overlays."""
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
