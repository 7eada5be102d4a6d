"""What the modules of `core` that serve clients may ask of their broker. Some have a Protocol with
more, by what they need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mqttree.broker.core.dispatcher import DispatcherBroker

if TYPE_CHECKING:
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.dispatcher import Dispatcher
    from mqttree.broker.core.ports import Journal
    from mqttree.broker.core.retained_store import RetainedStore
    from mqttree.broker.core.session import Session


class ServingBroker(DispatcherBroker, Protocol):
    """One broker, as those of its modules know it that serve clients."""

    federated: bool
    """Another broker was there: what is published is numbered and logged for it."""

    @property
    def journal(self) -> Journal:
        """Records what is to survive a restart of this broker."""

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
