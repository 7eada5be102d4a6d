"""What those routing strategies have in common whose messages take the links of the spanning
tree."""

from __future__ import annotations

from typing import Any

from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
from mqttree.broker.cluster.events import EntriesHandled, LinkBehind, LinkDown, LinkDrained
from mqttree.broker.cluster.link.link import Handler, Link
from mqttree.broker.cluster.strategy.path_change import tell_break, tell_break_over
from mqttree.broker.cluster.strategy.ports import Delivery, Feed, LinkedBroker
from mqttree.broker.core.receiver_assignment import ID, ReceiverAssignment


class OverSpanningTree:
    """Links and brokers that come and go, where messages take the spanning tree."""

    __slots__ = ("_bus", "_delivery", "_directory", "_node")

    ordered = True

    def __init__(
        self, node: LinkedBroker, directory: LinkStateDirectory, bus: UnicastBus, delivery: Delivery
    ) -> None:
        """`node`: this broker; `directory`: what brokers post; `bus`: carries messages to one
        broker; `delivery`: what is above."""
        self._node = node
        self._directory = directory
        self._bus = bus
        self._delivery = delivery
        bus.strategy = self

    @property
    def records(self) -> dict[int, Handler]:
        """Return nothing: all that is told goes through the directory."""
        return {}

    # ---------------------------------------------------------------- next hops

    def everywhere(self, key: bytes) -> list[Link]:
        """Return the links that a message for all brokers takes from here."""
        return self._node.forwarding

    def passes_on(self, key: bytes, source: Link) -> bool:
        """Whether there is a live link besides the `source`; `key`: of the origin, which does not
        matter."""
        return len(self._node.forwarding) > source.live

    def with_chosen(self, found: list[Link], choice: ReceiverAssignment) -> list[Link]:
        """Add to the links `found` those that lead to the brokers that `choice` names."""
        for who, _ in choice.entries:
            link = self._directory.link_to(who[:ID])
            if link is not None and link.live and link not in found:
                found.append(link)
        return found

    def admit(self, key: bytes, feed: Feed | None, link: Link) -> None:
        """Warn the brokers behind this one (BREAK) of a message of the origin `key` that came over
        `link`, which is not the source of its `feed`: it may be ahead of older ones."""
        if feed is not None and feed.source is not link and self._node.forwarding:
            self._delivery.gap_recovery.on_unexpected_link(feed, link)

    def live_hop(self, message: bytes) -> Link | None:
        """Return the link that leads to the receiver."""
        return self._directory.link_to(message[:8])

    def passes_answer(self, receiver: bytes, sender: bytes) -> bool:
        """Note that the messages of `sender` behind this answer take the spanning tree again."""
        self._delivery.gap_recovery.on_answer_forwarded(sender)
        return True

    def carries(self, link: Link) -> bool:
        """Whether a link is live."""
        return link.live

    def uses(self, link: Link) -> bool:
        """No message takes a blocked link."""
        return False

    # ---------------------------------------------------------------- what is wanted

    def leads_to(self, link: Link, broker_id: bytes, *, gone: bool = False) -> bool:
        """Whether the spanning tree leads to the broker `broker_id` over `link`; `gone` does not
        matter."""
        return self._directory.link_to(broker_id) is link

    # ---------------------------------------------------------------- links

    def link_joining(self, link: Link) -> None:
        """Tell all brokers behind a link that messages take another path to them."""
        if link.peer is None:
            return
        reachable = self._directory.database.reachable()
        behind = {listing.id for listing in reachable if listing.via == link.peer.id}
        for broker_id in sorted(behind | {link.peer.id}):
            tell_break_over(self._bus, link, broker_id)

    def link_measured(self, link: Link) -> None:
        """Do nothing: the spanning tree measures round trips itself."""

    def capability_changed(self, capability: float) -> None:
        """Do nothing: the spanning tree hears of it."""

    def link_overflowed(self, event: LinkBehind) -> None:
        """Do nothing: the link is not live any more."""

    def link_drained(self, event: LinkDrained) -> None:
        """Do nothing: the link becomes live again after a replay."""

    def link_lost(self, event: LinkDown) -> None:
        """Do nothing: the spanning tree hears of it."""

    # ---------------------------------------------------------------- paths

    def path_changed(self, broker_id: bytes, old: Link | None) -> bool:
        """Tell a broker of a path change over the new path, and over the old one: messages for
        others may still take that one, and reach the broker ahead of older ones on the new path."""
        if old is not None and old.live:
            tell_break_over(self._bus, old, broker_id)
        tell_break(self._directory, self._bus, broker_id)
        return True

    def restarted(self, broker_id: bytes) -> bool:
        """Return True: another incarnation is at the end of the path."""
        return True

    def breaks(self, feed: Feed, link: Link | None) -> bool:
        """Whether the feed comes over this link."""
        return link in (feed.source, feed.behind)

    def precedes_directory(self) -> bool:
        """Return False: directory entries and messages take the same links."""
        return False

    def exchanging(self) -> list[Link]:
        """Return no links: neighbours have had the same messages."""
        return []

    def astray(self) -> list[bytes]:
        """Return no brokers: no link leads to one that the spanning tree has lost."""
        return []

    # ---------------------------------------------------------------- time

    def tick(self, now: float) -> None:
        """Do nothing: nothing is due."""

    def settle(self, now: float) -> bool:
        """Do nothing: the spanning tree finds the paths."""
        return False

    def next_deadline(self) -> float | None:
        """Return None: nothing is due at a time."""
        return None

    def entries_handled(self, event: EntriesHandled) -> None:
        """Do nothing: filters take the same links as messages."""

    def retire(self) -> None:
        """Do nothing: the spanning tree goes around this broker."""

    def report(self) -> dict[str, Any]:
        """Return nothing: the strategy adds nothing to /api/v1/federation."""
        return {}
