"""What those routing strategies have in common in which a broker begins to tell others of a topic
with its first message: `srt_prt` and `ort`, the papers' own.

The route of a topic that is not told of yet says so in place of its first broker. That is found out
where the links of a route are looked up, which happens once, so other messages do not pay for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
from mqttree.broker.cluster.events import RouteChanged
from mqttree.broker.cluster.link.link import Link
from mqttree.broker.cluster.strategy.ports import Delivery, LinkedBroker
from mqttree.broker.cluster.strategy.spanning_tree import OverSpanningTree
from mqttree.broker.core.receiver_assignment import ReceiverAssignment
from mqttree.broker.core.route import Route

STEP: Final = 500
"""topics and filters that are handled at a time: some ms of work, and 32 KiB of usual ones."""

PACE: Final = 0.01
"""s between two such steps."""

LOOKED_AT: Final = 10_000
"""entries of the log in which messages are looked for that were lost: some 10 ms. What is older is
not counted."""

NOT_NOTED: Final = b""
"""In place of the first broker of a route: when a message to the topic, which follows, is published
here, that is to be noted. Brokers have longer ids."""


class OverPublishedTopics(OverSpanningTree):
    """Links of topics, which depend on what is published here."""

    __slots__ = ("_begun", "_doubted", "_due", "_looked_at", "_routes_changed", "generation")

    posting = False

    def __init__(
        self, node: LinkedBroker, directory: LinkStateDirectory, delivery: Delivery
    ) -> None:
        """`node`: this broker; `directory`: what brokers post; `delivery`: what is above."""
        super().__init__(node, directory, delivery)
        self.generation = 0
        """Grows when messages may take other links than before."""
        self._begun = False  # a first neighbour has come
        self._due: float | None = None
        # Topics published here, whose kept routes are to be found again.
        self._routes_changed: dict[bytes, None] = {}
        # Topic -> when it was looked at last whether it is still published to (s), in this order;
        # those that were not published to since.
        self._looked_at: dict[bytes, float] = {}
        self._doubted: dict[bytes, None] = {}

    # ---------------------------------------------------------------- next hops

    def links_of(self, route: Route) -> list[Link]:
        """Return the links of a `route` to whose topic a message is published here, and note the
        topic if that is new."""
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
        return self._links_to(brokers[2:] if brokers[:1] == (NOT_NOTED,) else brokers)

    def _links_to(self, neighbours: tuple[bytes, ...]) -> list[Link]:
        """Return the links to those neighbours of a topic that messages may take now."""
        raise NotImplementedError

    def assigned(self, choice: ReceiverAssignment, links: list[Link], key: bytes) -> list[Link]:
        """Return the `links` of a topic, and those of the spanning tree that lead to the brokers
        that `choice` names: all brokers know where members of shared subscriptions are. `key` does
        not matter."""
        return self.with_chosen([] if choice.passed else list(links), choice)

    # ---------------------------------------------------------------- what is published here

    def _published(self, topic: bytes) -> None:
        """Tell of a topic, or note that it is still published to here."""
        now = self._node.now
        if not self._tell_of(topic, now):
            return
        self._doubted.pop(topic, None)
        self._looked_at.setdefault(topic, now)
        # Its next message finds the route that it shares with others.
        self._routes_changed[topic] = None
        self._hurry(now)

    def _tell_of(self, topic: bytes, now: float) -> bool:
        """Begin to tell neighbours of a topic. Returns whether there is room for it, and counts it
        if there is none."""
        raise NotImplementedError

    def _tell_no_more(self, topic: bytes) -> None:
        """Stop telling of a topic that was not published to for long."""

    def tick(self, now: float) -> None:
        """Forget topics that were not published to for long, some at a time. A topic is doubted
        first: then its next message notes it as if it was new, at no cost to all others."""
        until = now - self._node.limits.advertised_s
        for topic, looked_at in list(islice(self._looked_at.items(), STEP)):
            if looked_at > until:
                break
            del self._looked_at[topic]
            if topic in self._doubted:
                del self._doubted[topic]
                self._tell_no_more(topic)
            else:
                self._doubted[topic] = None
                self._looked_at[topic] = now
            self._routes_changed[topic] = None
        if self._routes_changed:
            self._hurry(now)

    # ---------------------------------------------------------------- what is wanted

    def on_route_changed(self, event: RouteChanged) -> None:
        """Do nothing: what is told is about links, not about the brokers behind them."""

    # ---------------------------------------------------------------- time

    def _hurry(self, now: float) -> None:
        self._due = now if self._due is None else min(self._due, now)
        self._delivery.hurry(now)

    def _find_routes(self, changed: Iterable[str]) -> None:
        """Have the routes found again of topics published here, and of the topics and filters that
        have `changed`."""
        invalidate = self._node.dispatcher.invalidate
        for text in dict.fromkeys([*(topic.decode() for topic in self._routes_changed), *changed]):
            invalidate(text)
        self._routes_changed.clear()
