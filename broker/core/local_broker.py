"""What the floors above - cluster, persistence, drivers - may use of one broker
(docs/decisions/0032-floors.md). `Node` is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from mqttree.broker.core.core_broker import CoreBroker

if TYPE_CHECKING:
    from mqttree.broker.core.access_control import AccessControl
    from mqttree.broker.core.client_registry import ClientRegistry
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.dispatcher import Dispatcher
    from mqttree.broker.core.effects import Effect
    from mqttree.broker.core.flow_control import FlowControl
    from mqttree.broker.core.ports import Journal
    from mqttree.broker.core.publisher import Publisher
    from mqttree.broker.core.retained_store import RetainedStore
    from mqttree.broker.core.session import Session
    from mqttree.broker.core.session_registry import SessionRegistry


class LocalBroker(CoreBroker, Protocol):
    """One broker, as far as its own clients are concerned."""

    federated: bool
    """Another broker was there: what is published is numbered and logged for it."""

    # ---------------------------------------------------------------- what it is made of

    @property
    def effects(self) -> list[Effect]:
        """What the driver is to do; append."""

    @property
    def journal(self) -> Journal:
        """Records what is to survive a restart of this broker."""

    # ---------------------------------------------------------------- clients

    @property
    def sessions(self) -> dict[str, Session]:
        """All sessions of this broker, connected or not, by client id."""

    @property
    def session_registry(self) -> SessionRegistry:
        """Says how long a session is kept, and what its end brings about."""

    @property
    def clients(self) -> ClientRegistry:
        """The clients that are connected."""

    @property
    def access_control(self) -> AccessControl:
        """Says what clients may do."""

    def end_session(self, session: Session, source: Connection | None) -> None:
        """Forget a session. `source`: the connection that is answered once that is durable."""

    # ---------------------------------------------------------------- messages

    @property
    def dispatcher(self) -> Dispatcher:
        """Subscriptions of all sessions, and the way of every message to them."""

    @property
    def retained(self) -> RetainedStore:
        """The retained messages of this broker."""

    @property
    def forwarding(self) -> Sequence[object]:
        """Links on which messages are forwarded."""

    @property
    def publisher(self) -> Publisher:
        """Takes over messages that were published here."""

    @property
    def flow_control(self) -> FlowControl:
        """Says which publishers are not read, as a subscriber is behind."""
