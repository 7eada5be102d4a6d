"""`--routing flood`: every message goes to every broker, over the spanning tree
(docs/decisions/0004)."""

from __future__ import annotations

from collections.abc import Callable

from mqttree.broker.cluster.events import LinkUp, RouteChanged
from mqttree.broker.cluster.link.link import Link
from mqttree.broker.cluster.strategy.directory import EVERYTHING, INTEREST, Changes, Directory
from mqttree.broker.cluster.strategy.ports import Delivery, LinkedBroker
from mqttree.broker.cluster.strategy.routing_strategy import every_topic
from mqttree.broker.cluster.strategy.spanning_tree import FLOOD, OverSpanningTree
from mqttree.broker.core.receiver_assignment import ReceiverAssignment
from mqttree.broker.core.route import Route


class Flood(OverSpanningTree):
    """Every message takes all links but the one over which it came."""

    __slots__ = ("generation",)

    name = FLOOD
    posting = False
    memory = 0

    def __init__(self, node: LinkedBroker, directory: Directory, delivery: Delivery) -> None:
        """`node`: this broker; `directory`: what brokers post; `delivery`: what is above."""
        super().__init__(node, directory, delivery)
        self.generation = 0
        directory.watch(INTEREST, self._posted, self._many_posted)
        # A broker that floods is part of every path of the others.
        directory.post(INTEREST + EVERYTHING)

    def _posted(
        self, broker_id: bytes, key: bytes, value: bytes | None, gone: bool = False
    ) -> None:
        """Filters of other brokers decide nothing here."""

    def _many_posted(self, broker_id: bytes, changes: Changes, gone: bool) -> None:
        """Very many filters decide nothing here, either."""

    # ---------------------------------------------------------------- what comes here

    def everything_arrives(self) -> bool:
        """Return True: every message takes all links."""
        return True

    def holder_keeps_receiving(self) -> bool:
        """Return False: what comes to the holder of a session comes here, too."""
        return False

    # ---------------------------------------------------------------- next hops

    def next_hops(self, topic: bytes) -> list[Link]:
        """Return all live links, whatever `topic` is."""
        return self._node.forwarding

    def links_of(self, route: Route) -> list[Link]:
        """Return all live links, and keep them in `route` for its next message."""
        route.generation, route.links = self.generation, self._node.forwarding
        return route.links

    def links_onward(self, route: Route, key: bytes, source: Link) -> list[Link]:
        """Return all live links, whatever `route`, `key` and `source` are."""
        return self._node.forwarding

    def brokers_wanting(self, topic: str) -> tuple[bytes, ...]:
        """Return no broker: which ones want a `topic` decides nothing."""
        return ()

    def onward(self, topic: bytes, key: bytes, source: Link) -> list[Link]:
        """Return all live links, whatever `topic`, `key` and `source` are."""
        return self._node.forwarding

    def assigned(self, choice: ReceiverAssignment, links: list[Link], key: bytes) -> list[Link]:
        """Return `links`: they lead to every broker, whatever `choice` and `key` are."""
        return links

    # ---------------------------------------------------------------- what is wanted

    def filter_changed(self, topic_filter: str, *, wanted: bool) -> None:
        """Do nothing: all messages are wanted here."""

    def on_posted(self, call: Callable[[], None]) -> None:
        """Ignore `call`: no filter is ever posted."""

    def knows_behind(self, link: Link) -> bool:
        """Return True: everything is wanted behind every link."""
        return True

    def wanted_behind(self, link: Link, *, gone: bool = False) -> Callable[[bytes], bool]:
        """Return a function that says that every topic is wanted."""
        return every_topic

    def wanted_by(self, broker_id: bytes) -> Callable[[bytes], bool]:
        """Return a function that says that every topic is wanted."""
        return every_topic

    # ---------------------------------------------------------------- links

    def route_changed(self, event: RouteChanged) -> None:
        """Do nothing: messages take all links."""

    def link_up(self, event: LinkUp) -> None:
        """Do nothing: every neighbour gets everything."""

    def live_changed(self) -> None:
        """Routes have other links from now on."""
        self.generation += 1
