"""The shortest paths of each origin's messages to the brokers that want them (Overlays 4.2, 5.2;
docs/decisions/0020).

Every broker posts in the directory what its links cost and what a path through it costs
(`path_costs`); from that each broker computes the tree of every origin (`shortest_paths`). A
topic's messages take the part of the tree that leads to brokers with a matching filter. Brokers
tell each other nothing for a topic but the filters. Blocked links of the spanning tree carry
messages, too. While some broker of the federation uses another routing strategy, messages take the
spanning tree. A broker that the spanning tree has lost counts for a while (`astray_brokers`).

    message CHANGED (id of the origin), like BREAK
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any

from mqttree.broker.cluster.directory.link_state_directory import (
    LINK,
    ROUTING,
    STATE,
    LinkStateDirectory,
)
from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
from mqttree.broker.cluster.events import OriginLost, RouteChanged
from mqttree.broker.cluster.link.link import Link
from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.cluster.strategy.astray_brokers import AstrayBrokers
from mqttree.broker.cluster.strategy.interest_table import InterestTable
from mqttree.broker.cluster.strategy.new_filters import NewFilters
from mqttree.broker.cluster.strategy.path_change import (
    BREAK,
    CHANGED,
    tell_break,
    tell_changed_over,
)
from mqttree.broker.cluster.strategy.path_costs import RELAY, PathCosts
from mqttree.broker.cluster.strategy.ports import Delivery, LinkedBroker
from mqttree.routing.shortest_paths import Graph, Tree

CALM = 16
"""brokers up to which paths are computed with nearly every change; with more brokers, changes are
collected for a while."""

MIN_PAUSE_S = 0.01
"""s between two computations of paths, even if a broker posts changes all the time. A link of this
broker that closes does not wait."""

PAUSE = 0.02
"""s for which changes are collected with twice CALM brokers; it grows with their square, as the
work does."""

REPORTED, REPORTED_SETS = 4096, 64
"""Topics that a report looks at, and sets of brokers that it lists."""


class NextHops:
    """Where the messages of one origin go from here."""

    __slots__ = ("children", "lost", "next", "parent", "path_change_sent")

    def __init__(self, tree: Tree, open_links: dict[bytes, Link]) -> None:
        self.parent = None if tree.parent is None else open_links.get(tree.parent)
        self.next = {
            broker: open_links[step] for broker, step in tree.next.items() if step in open_links
        }
        self.children = list(dict.fromkeys(self.next.values()))
        # The brokers behind this one know that messages came over another link than the parent's.
        self.path_change_sent = False
        self.lost = False  # no links lead to the origin: its messages take the spanning tree


class SourceTrees:
    """The trees of all origins, as one broker sees them."""

    others: InterestTable
    """The filters of the other brokers; set before any path is computed."""

    def __init__(
        self,
        node: LinkedBroker,
        directory: LinkStateDirectory,
        bus: UnicastBus,
        delivery: Delivery,
    ) -> None:
        """`node`: this broker; `directory`: what brokers post; `bus`: carries messages to one
        broker; `delivery`: what is above."""
        self._node = node
        self._limits = node.limits
        self._directory = directory
        self._bus = bus
        self._delivery = delivery
        self._own = own = directory.own_id
        self.active = False
        """Whether messages take these trees: all brokers that can be reached route by topic, and
        are not too many."""
        self.open: dict[bytes, Link] = {}
        """Links that messages may take, by the neighbour's id."""
        self._graph = Graph(own)
        self._next_hops: dict[bytes, NextHops] = {}  # by the origin's id
        self._others: set[bytes] = set()  # reachable brokers that route by topic
        self._broken: set[Link] = set()  # links that have closed since paths were computed
        self._stale = False
        self._at = 0.0  # s; paths are computed no earlier
        self._astray = AstrayBrokers(node, self._graph, self._urgent, self._forgotten)
        self._new_filters = NewFilters()
        self._costs = PathCosts(
            node,
            directory=directory,
            graph=self._graph,
            open_links=self.open,
            relayed=self._relayed,
            changed=self._touch,
        )
        directory.watch(STATE, self._state_posted)
        directory.watch(LINK, self._link_posted)

    # ---------------------------------------------------------------- the graph

    def _link_posted(
        self, broker_id: bytes, key: bytes, value: bytes | None, gone: bool = False
    ) -> None:
        if len(key) != 8 or (value is not None and len(value) != 4):
            self._node.counters.link_costs_refused += 1
            return
        if value is None and self.keeps(broker_id, gone=gone):
            self._astray.link_withdrawn(broker_id, key)
            return
        self._astray.link_posted(broker_id, key)
        try:
            self._graph.post(
                broker_id, key, None if value is None else int.from_bytes(value, "big")
            )
        except ValueError:
            self._node.counters.link_costs_refused += 1
            return
        self._touch()

    def _state_posted(
        self, broker_id: bytes, key: bytes, value: bytes | None, gone: bool = False
    ) -> None:
        if value is None and self.keeps(broker_id, gone=gone):
            return
        if key == ROUTING[1:]:
            if value is not None and value[4:] == b"topic":
                self._others.add(broker_id)
            else:
                self._others.discard(broker_id)
                self._at = 0.0
            self._touch()
        elif key == RELAY[1:]:
            self._graph.relay(
                broker_id,
                int.from_bytes(value, "big") if value is not None and len(value) == 4 else None,
            )
            self._touch()

    def on_route_changed(self, event: RouteChanged) -> None:
        """Keep the entries of a broker that the spanning tree has lost, for a while."""
        broker_id, via = event.broker_id, event.via
        if via is None and self.keeps(broker_id, gone=True):
            self._astray.lost(broker_id)
        elif via is not None:
            self._astray.found(broker_id)
        self._touch()

    def astray(self) -> list[bytes]:
        """Return the brokers that the spanning tree has lost, but that messages still go to and
        come from."""
        lost = list(self._astray)
        if not lost:
            return []
        hops = self.next_hops(self._own).next
        return [broker_id for broker_id in lost if broker_id in hops]

    def keeps(self, broker_id: bytes, *, gone: bool = False) -> bool:
        """Whether the entries of a broker still count although the spanning tree does not lead to
        it: while the tree is repaired, messages still take its links. If the broker is dead, its
        neighbours post that. `gone`: the tree has lost it in this moment."""
        directory = self._directory
        known = broker_id in directory.database.listings
        return self.active and known and (gone or directory.database.via(broker_id) is None)

    def _forgotten(self, broker_id: bytes) -> None:
        """Forget what else is known here of a broker that the spanning tree has lost for long."""
        self._others.discard(broker_id)
        self.others.forget(broker_id)
        self._touch()

    def _urgent(self) -> None:
        """Have paths computed at once."""
        self._at = 0.0
        self._touch()

    def _touch(self) -> None:
        if not self._stale:
            self._stale = True
            self._delivery.hurry(max(self._node.now, self._at))

    # ---------------------------------------------------------------- links of this broker

    def open_link(self, link: Link) -> None:
        """Post a link that is up, or has drained: messages may take it once both ends have posted
        it."""
        peer = link.peer
        if peer is not None and peer.routing == "topic" and link.up and not link.behind:
            self.open[peer.id] = link
            self._delivery.acks.keep(link, self._delivery.replay_log.end)
            self._costs.opened(peer.id, link)

    def close_link(self, link: Link) -> None:
        """Withdraw a link that is gone, or whose queue overflowed."""
        peer = link.peer
        if peer is not None and self.open.get(peer.id) is link:
            del self.open[peer.id]
            if not link.forwarding:
                self._delivery.acks.free(link)
            self._costs.closed(peer.id)
            self._broken.add(link)
            self._urgent()

    def measured(self, link: Link) -> None:
        """Post the cost of a link whose first round trip has been measured."""
        self._costs.measured(link)

    def tick(self, now: float) -> None:
        """Post the costs that have changed; `now`: s."""
        self._costs.tick(now)

    def retire(self) -> None:
        """Let messages take paths around this broker, as it is going to stop."""
        self._costs.retire()

    def _relayed(self) -> int:
        """The number of other origins whose messages pass through this broker (R)."""
        own = self._own
        return sum(bool(hops.children) for origin, hops in self._next_hops.items() if origin != own)

    def report(self) -> dict[str, Any]:
        """Return what /api/v1/federation says of them; `receiver_sets`: sets of brokers, each of
        which wants the same topics."""
        others = self.others
        topics = list(islice(self._node.dispatcher.routes, REPORTED))
        sets = Counter(
            frozenset(wanting)
            for topic in topics
            if (wanting := others.brokers_wanting(topic.decode()))
        )
        return {
            "active": self.active,
            "policy": self._costs.policy,
            "relayed_origins": self._relayed(),
            "topics": sum(sets.values()),
            "receiver_sets": [
                {"brokers": sorted(broker.hex() for broker in brokers), "topics": count}
                for brokers, count in sets.most_common(REPORTED_SETS)
            ],
            "link_costs_ms": {peer.hex(): self._costs.posted(peer) / 1000 for peer in self.open},
        }

    # ---------------------------------------------------------------- paths

    def next_hops(self, origin: bytes) -> NextHops:
        """Return the next hops of an origin's messages from here."""
        hops = self._next_hops.get(origin)
        if hops is None:
            tree = self._graph.tree(origin)
            hops = NextHops(tree, self.open)
            hops.lost = self._own not in tree.hops
            if origin == self._own or origin in self._directory.database.listings:
                self._next_hops[origin] = hops
        return hops

    def onward(self, origin: bytes) -> dict[bytes, Link]:
        """Return the links that an origin's messages take from here, by the broker that they lead
        to. Messages of an origin that is gone take the spanning tree: only brokers that have them
        can be asked for them."""
        hops = self.next_hops(origin)
        if not hops.lost:
            return hops.next
        directory = self._directory
        found = {
            listing.id: directory.link_to(listing.id) for listing in directory.database.reachable()
        }
        return {
            broker_id: link for broker_id, link in found.items() if link is not None and link.live
        }

    def link_to(self, origin: bytes, broker: bytes) -> Link | None:
        """Return the link that an origin's messages for a broker take."""
        return self.next_hops(origin).next.get(broker)

    def next_deadline(self) -> float | None:
        """When `settle` is due (s); None: nothing has changed."""
        return self._at if self._stale else None

    def settle(self, now: float) -> bool:
        """Compute paths if anything has changed, and tell the brokers to which messages take
        another path; `now`: s. Returns False if nothing was done."""
        if not self._stale or now < self._at:
            return False
        self._stale = False
        database = self._directory.database
        reachable = dict.fromkeys(
            (*(listing.id for listing in database.reachable()), *self._astray)
        )
        crowd = len(reachable) / CALM
        self._at = now + (MIN_PAUSE_S if crowd <= 1 else PAUSE * crowd * crowd / 4)
        few = (
            0 < len(reachable) <= self._limits.max_overlay_brokers
            and self._graph.links() <= self._limits.max_overlay_links
        )
        before, after = self.active, few and reachable.keys() <= self._others
        if before or after:
            self.others.paths_changed()
        if before and not after:
            self._leave(reachable)
        elif after:
            if not before:
                self._enter(reachable)
            self._renew(not before)
        self._broken.clear()
        return True

    # ---------------------------------------------------------------- filters that others knew
    # before this broker

    def learnt(self, broker_id: bytes, topic_filter: str) -> None:
        """Note that a broker has a filter that was not known here."""
        if self.active:
            self._new_filters.learnt(broker_id, topic_filter)
            self._astray.filter_posted()

    def filter_posted(self) -> None:
        """Note that a filter has been posted, here or by another broker: those that the spanning
        tree does not reach do not hear of it."""
        self._astray.filter_posted()

    def tell_late(self, now: float) -> None:
        """Have brokers ask for messages that have passed here lately and did not go to them: the
        broker that sent them here may have known their filters earlier than this one, as filters
        take the spanning tree and messages do not. They hear of it ahead of all messages from now
        on."""
        own = self._own

        def origins_to(broker: bytes) -> Iterable[bytes]:
            return (
                origin
                for origin, hops in self._next_hops.items()
                if origin != own and broker in hops.next
            )

        missed = self._new_filters.take_missed(self._delivery.replay_log, now, origins_to)
        for broker, origin in missed:
            link = self.link_to(origin, broker)
            if link is not None:
                self._tell(link, broker, origin)

    def _tell(self, link: Link, broker: bytes, origin: bytes) -> None:
        """Tell a broker over this link that an origin's messages take another path to it from here
        on."""
        tell_changed_over(self._bus, link, broker, origin)

    # ---------------------------------------------------------------- computing paths

    def _renew(self, entered: bool) -> None:
        """Compute all paths. `entered`: up to now messages took the spanning tree."""
        own = self._own
        directory = self._directory
        gap_recovery = self._delivery.gap_recovery
        if entered:
            self._next_hops.clear()
            origins = dict.fromkeys(
                (own, *(split_key(key)[0] for key in self._delivery.origins.vector))
            )
        else:
            origins = dict.fromkeys(self._next_hops)
        for origin in origins:
            old = self._next_hops.pop(origin, None)
            new = self.next_hops(origin)
            was = (
                {b: directory.link_to(b) for b in new.next}
                if entered
                else {}
                if old is None
                else old.next
            )
            # A new parent does not send, or replay, the same messages for the brokers behind this
            # one as the old one would have.
            turned = origin != own and (
                old is None or new.parent is not old.parent or new.parent in self._broken
            )
            for broker in {**was, **new.next}:
                before, link = was.get(broker), new.next.get(broker)
                if link is before and link not in self._broken and not turned:
                    continue
                # Over the old path, too: messages for others may still take it, and reach the
                # broker ahead of older ones on the new path. Without a new path, over all that
                # remain: a broker there may know another one.
                if before in self._broken:
                    before = None
                for over in dict.fromkeys((before, link, *(new.children if link is None else ()))):
                    if over is not None and over.up:
                        self._tell(over, broker, origin)
            if turned:
                gap_recovery.path_changed(origin)
            if new.lost and old is not None and not old.lost:
                self._delivery.events.dispatch(OriginLost(origin))

    def _enter(self, reachable: Iterable[bytes]) -> None:
        """Leave the spanning tree: from now on messages over it may leave out those that other
        brokers there want. These hear of it ahead of them, over the tree."""
        for broker in reachable:
            tell_break(self._directory, self._bus, broker)
        self.active = True

    def _leave(self, reachable: Iterable[bytes]) -> None:
        """Go back to the spanning tree, as a broker uses another routing strategy. The brokers that
        get messages from here hear of it ahead of them: over the paths of up to now, which others
        may still use, and over those of the tree."""
        for origin, hops in self._next_hops.items():
            for broker, link in hops.next.items():
                if link not in self._broken and link.up:
                    self._tell(link, broker, origin)
        self.active = False
        self._next_hops.clear()
        self._astray.forget_all()
        for broker in reachable:
            tell_break(self._directory, self._bus, broker)
            self._delivery.gap_recovery.path_changed(broker)

    def announce_path_change(self, key: bytes, link: Link) -> None:
        """Note that a message at QoS 1 or 2 of the origin `key` that came over `link` is about to
        be passed on. If it did not come from the parent it may be ahead of older ones: a neighbour
        replays messages, or knows another graph. The brokers behind this one hear of it before they
        get it."""
        origin = split_key(key)[0]
        hops = self.next_hops(origin)
        if link is hops.parent:
            hops.path_change_sent = False
        elif not hops.path_change_sent:
            hops.path_change_sent = True
            for broker, onward in self.onward(origin).items():
                if onward is not link:
                    self._tell(onward, broker, origin)

    def link_for(self, message: bytes) -> Link | None:
        """Return the link for a message to one broker that has to take the path of an origin's
        messages."""
        receiver, sender, kind = message[:8], message[8:16], message[17]
        if kind == BREAK:
            # It is of a broker that uses the spanning tree: all that it passes on takes another
            # path to the receiver.
            for origin, hops in list(self._next_hops.items()):
                if (link := hops.next.get(receiver)) is not None:
                    self._tell(link, receiver, origin)
            return None
        if kind == CHANGED:
            return self.link_to(message[18:26], receiver)
        hops = self.next_hops(sender)
        hops.path_change_sent = False  # behind an answer all messages come from the parent again
        return hops.next.get(receiver)
