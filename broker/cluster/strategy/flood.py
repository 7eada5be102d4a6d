"""`--routing flood`: every broker asks for everything (`#`), so each message goes to every broker,
over the spanning tree (docs/decisions/0004)."""

from __future__ import annotations

from mqttree.broker.cluster.directory.link_state_directory import (
    EVERYTHING,
    INTEREST,
    LinkStateDirectory,
)
from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
from mqttree.broker.cluster.events import LinkUp
from mqttree.broker.cluster.strategy.interest import Interest
from mqttree.broker.cluster.strategy.ports import Delivery, LinkedBroker


class Flood(Interest):
    """Interest in everything, posted once, before any client subscribes."""

    __slots__ = ()

    name = "flood"

    def __init__(
        self, node: LinkedBroker, directory: LinkStateDirectory, bus: UnicastBus, delivery: Delivery
    ) -> None:
        """`node`: this broker; `directory`: what brokers post; `bus`: carries messages to one
        broker; `delivery`: what is above."""
        super().__init__(node, directory, bus, delivery)
        directory.post(INTEREST + EVERYTHING)

    @property
    def posting(self) -> bool:
        """Return True: `#` has been posted from the start."""
        return True

    def filter_changed(self, topic_filter: str, *, wanted: bool) -> None:
        """Do nothing: `#` covers every filter."""

    def link_up(self, event: LinkUp) -> None:
        """Do nothing: the neighbour learns what is wanted here as it learns of this broker."""
