"""`--routing topic`: a message takes the shortest paths from where it is published to the brokers
that want it (Overlays 4.2, 5.2; docs/decisions/0020).

The paths of each origin are a source-rooted tree (`source_trees`). While some broker of the
federation routes otherwise, or there are very many, messages take the spanning tree as with
`interest`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
from mqttree.broker.cluster.events import (
    EntriesHandled,
    LinkBehind,
    LinkDown,
    LinkDrained,
    LinkUp,
    RouteChanged,
)
from mqttree.broker.cluster.link.link import Link
from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.cluster.strategy.interest import Interest
from mqttree.broker.cluster.strategy.ports import Delivery, Feed, LinkedBroker
from mqttree.broker.cluster.strategy.source_trees import SourceTrees
from mqttree.broker.core.receiver_assignment import ID, ReceiverAssignment
from mqttree.broker.core.route import Route


class Topic(Interest):
    """Messages take source-rooted trees, or the spanning tree where these cannot be used."""

    __slots__ = ("_ids", "trees")

    def __init__(
        self,
        node: LinkedBroker,
        directory: LinkStateDirectory,
        bus: UnicastBus,
        delivery: Delivery,
    ) -> None:
        """`node`: this broker; `directory`: what brokers post; `bus`: carries messages to one
        broker; `delivery`: what is above."""
        self.trees = SourceTrees(node, directory, bus, delivery)
        """The paths of all origins."""
        # The broker ids of origins: decoding one for each batch costs more than finding it.
        self._ids: dict[bytes, bytes] = {}
        super().__init__(node, directory, delivery, self.trees)
        self.trees.others = self.table

    # ---------------------------------------------------------------- next hops

    def _find(self, route: Route) -> None:
        if self.trees.active:
            route.generation = self.table.generation
            route.links = self._behind(route, self._directory.own_id)
            route.onward = {}
        else:
            super()._find(route)

    def passes_on(self, key: bytes, source: Link) -> bool:
        """Whether messages of the origin `key`, which came over `source`, may take a link from
        here: the tree of the origin goes on, or is not known."""
        if not self.trees.active:
            return super().passes_on(key, source)
        hops = self.trees.next_hops(self._ids.get(key) or self._broker_of(key))
        return hops.lost or bool(hops.children)

    def _broker_of(self, key: bytes) -> bytes:
        """Return, and keep, the id of the broker of an origin.

        Raises:
            MalformedPacket: `key` is not base64.
        """
        ids = self._ids
        if len(ids) >= self._node.limits.max_origins:
            ids.clear()
        ids[key] = found = split_key(key)[0]
        return found

    def links_onward(self, route: Route, key: bytes, source: Link) -> list[Link]:
        """Return the links on the tree of the origin `key` that lead to the brokers of a `route`.
        `source`: the link over which the messages came."""
        if not self.trees.active:
            return self.links_of(route)
        if route.generation != self.table.generation:
            self._find(route)
        found = route.onward.get(key)
        if found is None:
            if len(route.onward) >= self._node.limits.route_cache_origins:
                route.onward.clear()
            found = route.onward[key] = self._behind(route, split_key(key)[0])
        return found

    def _behind(self, route: Route, origin: bytes) -> list[Link]:
        hops = self.trees.onward(origin)
        if not hops:
            return []
        return list({hops[broker_id]: None for broker_id in route.brokers if broker_id in hops})

    def everywhere(self, key: bytes) -> list[Link]:
        """Return the links of the origin's tree."""
        if not self.trees.active:
            return super().everywhere(key)
        hops = self.trees.next_hops(split_key(key)[0])
        return self._node.forwarding if hops.lost else hops.children

    def assigned(self, choice: ReceiverAssignment, links: list[Link], key: bytes) -> list[Link]:
        """Return the `links` of a topic, and those that lead to the brokers that `choice` names, on
        the tree of the origin `key`."""
        if not self.trees.active:
            return super().assigned(choice, links, key)
        hops = self.trees.onward(split_key(key)[0])
        chosen = (hops.get(who[:ID]) for who, _ in choice.entries)
        return list(
            dict.fromkeys(
                (*(() if choice.passed else links), *(link for link in chosen if link is not None))
            )
        )

    def announce_path_change(self, key: bytes, feed: Feed | None, link: Link) -> None:
        """Warn the brokers behind this one (BREAK) of a message of the origin `key` that came over
        `link`, which does not lead to the parent in the origin's tree; `feed`: the origin's."""
        if self.trees.active:
            self.trees.announce_path_change(key, link)
        elif feed is not None and feed.source is not link:
            super().announce_path_change(key, feed, link)

    def live_hop(self, message: bytes) -> Link | None:
        """Return the link on the tree of the sender."""
        return self.trees.link_for(message) if self.trees.active else super().live_hop(message)

    def uses(self, link: Link) -> bool:
        """Whether both ends have announced that messages may take a link."""
        return link.peer is not None and self.trees.open.get(link.peer.id) is link

    # ---------------------------------------------------------------- what is wanted

    def wanted_behind(self, link: Link, *, gone: bool = False) -> Callable[[bytes], bool]:
        """Return a function that says whether the neighbour wants a topic. Messages for brokers
        behind it take other paths, and these brokers ask the origin for them. Messages of an origin
        that is `gone` take the spanning tree."""
        if self.trees.active and not gone and link.peer is not None:
            return self.wanted_by(link.peer.id)
        return super().wanted_behind(link, gone=gone)

    # ---------------------------------------------------------------- links

    def on_route_changed(self, event: RouteChanged) -> None:
        """Keep the paths of a broker that the spanning tree has lost for a while."""
        self.trees.on_route_changed(event)
        super().on_route_changed(event)

    def on_link_open(self, event: LinkUp | LinkDrained) -> None:
        """Note a neighbour, and let trees use the link."""
        super().on_link_open(event)
        self.trees.open_link(event.link)

    def on_link_closed(self, event: LinkDown | LinkBehind) -> None:
        """Stop using the link in trees."""
        self.trees.close_link(event.link)

    def on_link_measured(self, link: Link) -> None:
        """Take the first round trip of a link as its cost."""
        self.trees.measured(link)

    # ---------------------------------------------------------------- paths

    @property
    def source_rooted(self) -> bool:
        """Whether messages take the trees."""
        return self.trees.active

    def astray(self) -> list[bytes]:
        """Return the brokers that the spanning tree has lost and that links still lead to."""
        return self.trees.astray()

    # ---------------------------------------------------------------- time

    def tick(self, now: float) -> None:
        """Post the costs of links that have changed."""
        self.trees.tick(now)

    def settle(self, now: float) -> bool:
        """Find the trees again if anything has changed. Returns False if nothing was done."""
        return self.trees.settle(now)

    def next_deadline(self) -> float | None:
        """When `settle` is due (s); None: it is not."""
        return self.trees.next_deadline()

    def on_entries_handled(self, event: EntriesHandled) -> None:
        """Have brokers ask for messages that passed here before their filters were known."""
        self.trees.tell_late(event.now)

    def retire(self) -> None:
        """Have others go around this broker."""
        self.trees.retire()

    def report(self) -> dict[str, Any]:
        """Return what /api/v1/federation says of source-rooted trees."""
        return {"source_trees": self.trees.report()}
