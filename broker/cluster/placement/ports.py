"""A Protocol for what placement asks of its broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mqttree.broker.cluster.ports import MemberBroker

if TYPE_CHECKING:
    from mqttree.broker.core.ports import Draining
    from mqttree.broker.core.traffic_meter import TrafficMeter


class PlacingBroker(MemberBroker, Protocol):
    """What placement asks of its broker."""

    @property
    def traffic(self) -> TrafficMeter | None:
        """Reads the counters of this broker; None: topics are not counted."""

    @property
    def drain(self) -> Draining | None:
        """What sends clients to other brokers, while it does."""
