"""`--routing interest`: a message crosses only links of the spanning tree behind which it is wanted
(docs/decisions/0013).

All brokers know the filters of all others, and which neighbour leads to each broker. A topic's
links are those that lead to a broker with a matching filter, looked up once for each change of
either. The paper's own tables, SRT and PRT, are another mode (`srt_prt`).
"""

from __future__ import annotations

from collections.abc import Callable

from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
from mqttree.broker.cluster.events import LinkDrained, LinkUp, RouteChanged
from mqttree.broker.cluster.link.link import Link
from mqttree.broker.cluster.strategy.interest_table import InterestTable, remembering
from mqttree.broker.cluster.strategy.ports import Delivery, LinkedBroker, LostBrokers
from mqttree.broker.cluster.strategy.routing_strategy import every_topic
from mqttree.broker.cluster.strategy.spanning_tree import OverSpanningTree
from mqttree.broker.core.receiver_assignment import ReceiverAssignment
from mqttree.broker.core.route import Route


class Forgotten:
    """Nothing is kept of a broker that the spanning tree has lost, as it gets no messages."""

    __slots__ = ()

    def keeps(self, broker_id: bytes, *, gone: bool = False) -> bool:
        """Return False: no message goes to a broker that the tree has lost."""
        return False

    def learnt(self, broker_id: bytes, topic_filter: str) -> None:
        """Filters and messages take the same links."""

    def filter_posted(self) -> None:
        """Filters and messages take the same links."""


class Interest(OverSpanningTree):
    """Links that lead to brokers with a matching filter."""

    __slots__ = ("table",)

    def __init__(
        self,
        node: LinkedBroker,
        directory: LinkStateDirectory,
        delivery: Delivery,
        lost: LostBrokers | None = None,
    ) -> None:
        """`node`: this broker; `directory`: what brokers post; `delivery`: what is above; `lost`:
        what is kept of brokers that the spanning tree has lost, None: nothing."""
        super().__init__(node, directory, delivery)
        self.table = InterestTable(node, directory, delivery, lost or Forgotten())
        """The filters of all brokers."""

    @property
    def posting(self) -> bool:
        """Whether this broker posts the filters that are wanted here."""
        return self.table.posting

    @property
    def memory(self) -> int:
        """Bytes that the filters take, those of this broker and of others."""
        return self.table.memory

    # ---------------------------------------------------------------- next hops

    @property
    def generation(self) -> int:
        """Grows when messages may take other links to the same brokers than before."""
        return self.table.generation

    def links_of(self, route: Route) -> list[Link]:
        """Return the links that lead to the brokers of a `route`."""
        if route.generation != self.table.generation:
            self._find(route)
        return route.links

    def links_onward(self, route: Route, key: bytes, source: Link) -> list[Link]:
        """Return the links that lead to the brokers of a `route`, whatever `key` and `source`
        are."""
        return self.links_of(route)

    def _find(self, route: Route) -> None:
        """Look up the links of all topics that have a `route`."""
        via = self._directory.database.via
        neighbours = {via(broker_id) for broker_id in route.brokers}
        links = self._node.forwarding
        # What is wanted behind a link whose neighbour is not known yet may be anything: found again
        # for each message until then.
        unknown = [link for link in links if not self._directory.knows(link)]
        route.generation = -1 if unknown else self.table.generation
        route.links = [
            link
            for link in links
            if link.peer is not None and (link.peer.id in neighbours or link in unknown)
        ]

    def brokers_wanting(self, topic: str) -> tuple[bytes, ...]:
        """Return the other brokers with a filter that matches a `topic`."""
        return self.table.brokers_wanting(topic)

    def assigned(self, choice: ReceiverAssignment, links: list[Link], key: bytes) -> list[Link]:
        """Return the `links` of a topic, and those that lead to the brokers that `choice` names.
        `key`: the message's origin, which does not matter."""
        knows = self._directory.knows
        found = (
            [link for link in self._node.forwarding if not knows(link)]
            if choice.passed
            else list(links)
        )
        return self.with_chosen(found, choice)

    # ---------------------------------------------------------------- what is wanted

    def filter_changed(self, topic_filter: str, *, wanted: bool) -> None:
        """Note the first subscription to a filter here, or that the last one has gone."""
        self.table.changed(topic_filter, wanted)

    def wanted_behind(self, link: Link, *, gone: bool = False) -> Callable[[bytes], bool]:
        """Return a function that says whether a broker behind a link wants a topic."""
        via, peer = self._directory.database.via, link.peer
        if peer is None or not self._directory.knows(link):
            return every_topic
        wanting = self.table.brokers_wanting
        return remembering(
            lambda topic: any(via(broker_id) == peer.id for broker_id in wanting(topic.decode()))
        )

    def wanted_by(self, broker_id: bytes) -> Callable[[bytes], bool]:
        """Return a function that says whether one broker wants a topic."""
        return self.table.wanted_by(broker_id)

    # ---------------------------------------------------------------- links

    def on_route_changed(self, event: RouteChanged) -> None:
        """Find again over which links messages go."""
        self.table.route_changed(event)

    def on_link_open(self, event: LinkUp | LinkDrained) -> None:
        """Begin to tell what is wanted here with the first neighbour."""
        self.table.begin()

    def on_live_links_changed(self) -> None:
        """Forget the links that were looked up."""
        self.table.paths_changed()
