"""`--routing flood`: every broker asks for everything (`#`), so each message goes to every broker,
over the spanning tree (docs/decisions/0004)."""

from __future__ import annotations

from mqttree.broker.cluster.directory.link_state_directory import (
    WANTS_EVERYTHING,
    LinkStateDirectory,
)
from mqttree.broker.cluster.events import LinkDrained, LinkUp
from mqttree.broker.cluster.strategy.interest import Interest
from mqttree.broker.cluster.strategy.ports import Delivery, LinkedBroker


class Flood(Interest):
    """Interest in everything, posted once, before any client subscribes."""

    __slots__ = ()

    def __init__(
        self, node: LinkedBroker, directory: LinkStateDirectory, delivery: Delivery
    ) -> None:
        """`node`: this broker; `directory`: what brokers post; `delivery`: what is above."""
        super().__init__(node, directory, delivery)
        directory.post(WANTS_EVERYTHING)

    @property
    def posting(self) -> bool:
        """Return True: `#` has been posted from the start."""
        return True

    def filter_changed(self, topic_filter: str, *, wanted: bool) -> None:
        """Do nothing: `#` covers every filter."""

    def on_link_open(self, event: LinkUp | LinkDrained) -> None:
        """Do nothing: the neighbour learns what is wanted here as it learns of this broker."""
