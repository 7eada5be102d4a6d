"""What taking sessions over and handing them over asks of one broker, beyond what the whole cluster
does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mqttree.broker.cluster.ports import MemberBroker
from mqttree.broker.core.ports import Journal

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.replay_log import LogEntry
    from mqttree.broker.cluster.sessions.pending_handover import Asked
    from mqttree.broker.core.connection_registry import ConnectionRegistry
    from mqttree.broker.core.predecessor import Predecessors


class SessionJournal(Journal, Protocol):
    """The journal, which keeps the messages of sessions that come."""

    def copied(self, entry: LogEntry, /) -> None:
        """Record messages as they came with a session, which is about to have them."""


class SessionBroker(MemberBroker, Protocol):
    """One broker whose sessions may go to other brokers, and theirs come to it."""

    @property
    def journal(self) -> SessionJournal:
        """The journal, in which sessions and their messages are recorded."""

    @property
    def predecessors(self) -> Predecessors:
        """New connections wait there until the old ones of their clients are read to the end."""

    @property
    def connection_registry(self) -> ConnectionRegistry:
        """The connections of this broker."""


class Succession(Protocol):
    """Has the sessions of brokers for which this one is the standby."""

    def requested(self, asked: Asked, now: float) -> bool:
        """Answer a request (`asked`) at `now` (s), if it is for a session of a broker that cannot
        be reached; returns whether it is."""

    def has(self, client_id: str) -> bool:
        """Whether a session of `client_id` is here, of a broker that cannot be reached, or may
        be."""

    def on_client_connected(self, client_id: str, stamp: int) -> None:
        """Note that a client has connected here (`stamp`: of the connection)."""

    @property
    def doubts(self) -> bool:
        """Whether this broker does not know which of its own sessions its standby has given
        away."""
