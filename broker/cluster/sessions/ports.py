"""What taking sessions over and handing them over asks of one broker, beyond what the whole cluster
does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mqttree.broker.cluster.ports import FederatedBroker

if TYPE_CHECKING:
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.predecessor import Predecessors
    from mqttree.broker.core.session import Session


class SessionBroker(FederatedBroker, Protocol):
    """One broker whose sessions may go to other brokers, and theirs come to it."""

    @property
    def predecessors(self) -> Predecessors:
        """New connections wait there until the old ones of their clients are read to the end."""

    def new_session(self, client_id: str) -> Session:
        """Return a new session, which is not registered yet."""

    def take_over(self, session: Session) -> None:
        """Disconnect a client that has connected once more, here or elsewhere."""

    def forget(self, conn: Connection) -> None:
        """A connection that was refused has nothing more to say."""

    def expire_later(self, session: Session) -> None:
        """Keep a session without a connection for as long as its client wants."""
