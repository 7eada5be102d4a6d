"""What the modules of `core` that serve clients may ask of their broker. Some have a Protocol with
more, by what they need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mqttree.broker.core.core_broker import CoreBroker

if TYPE_CHECKING:
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.delivery_queue import DeliveryQueue
    from mqttree.broker.core.dispatcher import Dispatcher
    from mqttree.broker.core.effects import Effect, Hooks
    from mqttree.broker.core.ports import Cluster, Journal
    from mqttree.broker.core.retained_store import RetainedStore
    from mqttree.broker.core.session import Session


class ServingBroker(CoreBroker, Protocol):
    """One broker, as those of its modules know it that serve clients."""

    federated: bool
    """Another broker was there: what is published is numbered and logged for it."""

    @property
    def dirty(self) -> list[Connection | DeliveryQueue]:
        """Connections and sessions whose outbox is not empty."""

    @property
    def effects(self) -> list[Effect]:
        """What the driver is to do; append."""

    @property
    def hooks(self) -> Hooks:
        """The hooks that plugins implement."""

    @property
    def journal(self) -> Journal:
        """Records what is to survive a restart of this broker."""

    @property
    def cluster(self) -> Cluster:
        """The federation, as far as `core` needs it."""

    @property
    def connections(self) -> dict[Connection, None]:
        """All connections of this broker that are not closed yet."""

    @property
    def sessions(self) -> dict[str, Session]:
        """All sessions of this broker, connected or not, by client id."""

    @property
    def dispatcher(self) -> Dispatcher:
        """Subscriptions of all sessions, and the way of every message to them."""

    @property
    def retained(self) -> RetainedStore:
        """The retained messages of this broker."""

    def end_session(self, session: Session, source: Connection | None, /) -> None:
        """Forget a session. `source`: the connection that is answered once that is durable."""
