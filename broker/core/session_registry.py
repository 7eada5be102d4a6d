"""The sessions of one broker: how long each is kept without a connection, and what its end brings
about (MQTT-3.1.2-11, MQTT-3.1.2-23, MQTT-4.1.0)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mqttree.broker.base import costs
from mqttree.broker.core.serving_broker import ServingBroker
from mqttree.broker.core.session import NEVER, Session, SessionHost

if TYPE_CHECKING:
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.wills import Wills


class RegistryBroker(ServingBroker, SessionHost, Protocol):
    """What the session registry asks of its broker."""


class SessionRegistry:
    """All sessions of one broker."""

    def __init__(self, broker: RegistryBroker, wills: Wills) -> None:
        self._broker = broker
        self._wills = wills
        self.by_client_id: dict[str, Session] = {}
        """Client id -> session, connected or not."""

    def new(self, client_id: str) -> Session:
        """Return a new session, which is not registered yet."""
        return Session(self._broker, client_id)

    def expire_later(self, session: Session, away: float = 0.0) -> None:
        """Keep a session without a connection as long as it is to be kept (MQTT-3.1.2-23). `away`:
        for how long its client has been away (s)."""
        broker = self._broker
        broker.journal.make_durable(session)
        if session.expiry != NEVER:
            session.expiry_timer = broker.timers.schedule(
                broker.now + session.expiry - away, lambda now: self.expire(session)
            )

    def expire(self, session: Session) -> None:
        """End a session whose client has been away for too long. All clients of a network that
        failed may be, in one moment."""
        broker = self._broker
        broker.counters.sessions_expired += 1
        broker.turns.work += costs.PACKET_WORK
        broker.end_session(session, None)

    def end(self, session: Session, source: Connection | None) -> None:
        """Forget a session: a delayed will is due, subscriptions and messages go (MQTT-3.1.2-8,
        MQTT-4.1.0). `source`: the connection that is answered once the end is durable."""
        broker = self._broker
        if self.by_client_id.get(session.client_id) is session:
            del self.by_client_id[session.client_id]
            broker.cluster.posted_sessions.session_ended(session)
        broker.journal.session_ended(session, source)
        session.stop_timers()
        if session.conn is None:
            self._wills.send(session)
        broker.dispatcher.leave(session)
        for outgoing in session.unfinished():
            broker.dispatcher.pass_on(outgoing)
        session.queue.clear()
        session.missed = None
        session.inflight.clear()
        session.incoming.clear()
