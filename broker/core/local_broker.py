"""What the floors above - cluster, persistence, drivers - may use of one broker
(docs/decisions/0032-floors.md). `Node` is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from mqttree.broker.core.serving_broker import ServingBroker

if TYPE_CHECKING:
    from mqttree.broker.core.access_control import AccessControl
    from mqttree.broker.core.client_registry import ClientRegistry
    from mqttree.broker.core.flow_control import FlowControl
    from mqttree.broker.core.publisher import Publisher
    from mqttree.broker.core.session_registry import SessionRegistry


class LocalBroker(ServingBroker, Protocol):
    """One broker, as far as its own clients are concerned."""

    # ---------------------------------------------------------------- what it is made of

    # ---------------------------------------------------------------- clients

    @property
    def session_registry(self) -> SessionRegistry:
        """Says how long a session is kept, and what its end brings about."""

    @property
    def clients(self) -> ClientRegistry:
        """The clients that are connected."""

    @property
    def access_control(self) -> AccessControl:
        """Says what clients may do."""

    # ---------------------------------------------------------------- messages

    @property
    def forwarding(self) -> Sequence[object]:
        """Links on which messages are forwarded."""

    @property
    def publisher(self) -> Publisher:
        """Takes over messages that were published here."""

    @property
    def flow_control(self) -> FlowControl:
        """Says which publishers are not read, as a subscriber is behind."""
