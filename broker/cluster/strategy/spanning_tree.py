"""What those routing strategies have in common whose messages take the links of the spanning
tree."""

from __future__ import annotations

from typing import Any

from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
from mqttree.broker.cluster.events import EntriesHandled, LinkBehind, LinkDown
from mqttree.broker.cluster.link.link import Handler, Link
from mqttree.broker.cluster.strategy.ports import Delivery, Feed, LinkedBroker
from mqttree.broker.core.receiver_assignment import ID, ReceiverAssignment


class OverSpanningTree:
    """Links and brokers that come and go, where messages take the spanning tree."""

    __slots__ = ("_delivery", "_directory", "_node")

    ordered = True

    def __init__(
        self, node: LinkedBroker, directory: LinkStateDirectory, delivery: Delivery
    ) -> None:
        """`node`: this broker; `directory`: what brokers post; `delivery`: what is above."""
        self._node = node
        self._directory = directory
        self._delivery = delivery

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

    def announce_path_change(self, key: bytes, feed: Feed | None, link: Link) -> None:
        """Warn the brokers behind this one (BREAK) of a message of the origin `key` that came over
        `link`, which is not the source of its `feed`: it may be ahead of older ones."""
        if feed is not None and feed.source is not link and self._node.forwarding:
            self._delivery.gap_recovery.on_unexpected_link(feed, link)

    def live_hop(self, message: bytes) -> Link | None:
        """Return the link that leads to the receiver."""
        return self._directory.link_to(message[:8])

    def uses(self, link: Link) -> bool:
        """No message takes a blocked link."""
        return False

    # ---------------------------------------------------------------- links and brokers

    @property
    def source_rooted(self) -> bool:
        """Return False: messages take the spanning tree."""
        return False

    def on_link_closed(self, event: LinkDown | LinkBehind) -> None:
        """Do nothing: the spanning tree hears of it, and the link is not live any more."""

    def on_link_measured(self, link: Link) -> None:
        """Do nothing: the spanning tree measures round trips itself."""

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

    def on_entries_handled(self, event: EntriesHandled) -> None:
        """Do nothing: filters take the same links as messages."""

    def retire(self) -> None:
        """Do nothing: the spanning tree goes around this broker."""

    def report(self) -> dict[str, Any]:
        """Return nothing: the strategy adds nothing to /api/v1/federation."""
        return {}
