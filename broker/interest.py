"""`--routing interest`: a message crosses only links behind which somebody wants it (Overlays 4.1; docs/decisions/0013).

Every broker posts the filters that its clients want, each on the first and the last subscription, in the federation's directory:
that is the PRT, a filter's brokers; the neighbour that leads to each of them is the SRT, turned round. A topic's links are those
that lead to a broker with a matching filter, looked up once for each change of either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.listings import INTEREST
from routing.topics import well_formed
from routing.trie import SubscriptionTrie

if TYPE_CHECKING:
    from broker.federation import Federation
    from broker.link import Link
    from broker.node import Node

LINGER = 0.5
"""s for which a filter is posted when nobody wants it any more: a client that comes back at once finds the ways open."""

EVERYTHING = b"#"
"""What a broker posts that floods: it is part of every way."""


class Interest:
    """Who wants what, and which links lead there."""

    __slots__ = ("_closing", "_federation", "_filters", "_node", "generation", "selective")

    def __init__(self, node: Node, federation: Federation) -> None:
        self._node = node
        self._federation = federation
        self._filters: SubscriptionTrie[bytes] = SubscriptionTrie()  # of the other brokers; value: id
        self._closing: dict[str, float] = {}  # filters that nobody here wants any more -> until when (s) they are posted
        self.selective = federation.config.routing != "flood"
        self.generation = 0
        """Grows when links found for a topic may not be right any more."""
        federation.listings.watch(INTEREST, self._posted)
        federation.listings.on_way.append(self._way_changed)
        if not self.selective:
            federation.listings.post(INTEREST + EVERYTHING)

    # ---------------------------------------------------------------- what is wanted here

    def changed(self, topic_filter: str, wanted: bool) -> None:
        """Note the first subscription to a filter here, or that the last one has gone."""
        if self.selective:
            if wanted:
                self._closing.pop(topic_filter, None)
                self._federation.listings.post(INTEREST + topic_filter.encode())
            else:
                if not self._closing:
                    self._node.schedule(self._node.now + LINGER, self._close)
                self._closing[topic_filter] = self._node.now + LINGER

    def _close(self, now: float) -> None:
        for topic_filter, until in list(self._closing.items()):
            if until > now:
                self._node.schedule(until, self._close)
                break
            del self._closing[topic_filter]
            self._federation.listings.withdraw(INTEREST + topic_filter.encode())
        self._federation.hurry(now)

    # ---------------------------------------------------------------- what others want

    def _posted(self, broker_id: bytes, key: bytes, value: bytes | None) -> None:
        if not self.selective:
            return
        try:
            topic_filter = key.decode()
        except UnicodeDecodeError:
            topic_filter = ""
        if not topic_filter or "\0" in topic_filter or not well_formed(topic_filter):
            self._federation.count("interest_refused")
            return
        if value is None:
            self._filters.remove(topic_filter, broker_id)
        else:
            self._filters.insert(topic_filter, broker_id, broker_id)
        self.generation += 1

    def _way_changed(self, broker_id: bytes, via: bytes | None) -> None:
        self.generation += 1

    def links(self, topic: bytes) -> list[Link]:
        """Return the links in the live stream that a message of this topic (valid) has to take."""
        node = self._node
        if not self.selective:
            return node.forwarding
        route = node.fanout.routes.get(topic) or node.fanout.route(topic)
        if route.generation != self.generation:
            wanted = self.brokers_wanting(topic)
            via = self._federation.listings.directory.via
            ways = {via(broker_id) for broker_id in wanted}
            route.links = [k for k in node.forwarding if not k.selective or (k.peer is not None and k.peer.id in ways)]
            route.generation = self.generation
        return route.links

    def brokers_wanting(self, topic: bytes) -> set[bytes]:
        """Return the ids of the other brokers with a filter that matches."""
        return set(self._filters.match(topic.decode()))

    def wanted_behind(self, link: Link) -> Callable[[bytes], bool]:
        """Return what tells whether somebody behind a link, live or not yet, wants a topic."""
        via = self._federation.listings.directory.via
        peer = link.peer
        if not link.selective or peer is None or not self._federation.listings.knows(link):
            return lambda topic: True
        return _remembering(lambda topic: any(via(broker_id) == peer.id for broker_id in self.brokers_wanting(topic)))

    def wanted_by(self, broker_id: bytes) -> Callable[[bytes], bool]:
        """Return what tells whether one broker wants a topic; who floods does not know, and says yes."""
        if not self.selective:
            return lambda topic: True
        return _remembering(lambda topic: broker_id in self.brokers_wanting(topic))


def _remembering(ask: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
    known: dict[bytes, bool] = {}

    def answer(topic: bytes) -> bool:
        found = known.get(topic)
        if found is None:
            found = known[topic] = ask(topic)
        return found

    return answer
