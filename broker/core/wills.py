"""Wills: when the broker publishes what a client left for the case that its connection ends
(MQTT-3.1.2-8, MQTT-3.1.3-9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from mqttree.broker.core.message import message_of
from mqttree.broker.core.serving_broker import ServingBroker
from mqttree.broker.wire.properties import Property
from mqttree.broker.wire.strings import is_own, shorten

if TYPE_CHECKING:
    from mqttree.broker.core.publisher import Publisher
    from mqttree.broker.core.session import Session
    from mqttree.broker.wire.packets import Will


CLAIMS_S = 0.5
"""s in which a broker that has met others hears from its standby which wills are published."""


class WillsBroker(ServingBroker, Protocol):
    """What wills ask of their broker."""

    @property
    def publisher(self) -> Publisher:
        """Takes over messages that were published here."""


class Wills:
    """Sends the wills of one broker's sessions."""

    def __init__(self, broker: WillsBroker) -> None:
        self._broker = broker
        self.restored_until = 0
        """The latest time (hybrid clock) that this broker knew before it was started: connections
        that began by then had ended with the broker."""
        self.orphans: dict[str, Session] = {}
        """By client id: sessions that are nowhere else, for wills of connections that ended with a
        broker and are due later. One without a will publishes nothing any more."""
        self.waits: Callable[[Session], None] | None = None
        """Takes sessions whose wills are due, while it is not known whether their clients have
        connected elsewhere."""

    def is_restored(self, session: Session) -> bool:
        """Whether the last connection of a session was one to this broker before its start."""
        return session.conn is None and session.stamp <= self.restored_until

    def connection_ended(self, session: Session) -> None:
        """Send the will of a session whose connection has ended, or wait for as long as its Will
        Delay Interval says; a session that ends with its connection has no delay."""
        will = session.will
        if will is None:
            return
        if session.expiry and delay_of(will):
            self.wait(session, self._broker.now)
        else:
            self.send(session)

    def wait(self, session: Session, since: float) -> None:
        """Send the will of a session when its Will Delay Interval is over, unless its client has
        connected again by then, at any broker (MQTT-3.1.3-9). `since`: when its connection ended
        (s)."""

        def over(now: float) -> None:
            if session.successor:
                session.will = None
            self.send(session)

        assert session.will is not None
        when = since + min(delay_of(session.will), session.expiry)
        session.will_timer = self._broker.timers.schedule(when, over)

    def send(self, session: Session) -> None:
        """Publish the will of a session, if it still has one and may publish it. One from before
        the start of this broker waits as new clients do, until the sessions at other brokers are
        known; if its client has connected since, it comes too late."""
        will = session.will
        if will is None:
            return
        broker = self._broker
        if self.waits is not None:
            self.waits(session)
        elif not self.is_restored(session):
            self.publish(session)
        elif broker.cluster.barrier.admits(
            broker.now, lambda now: self._send_restored(session, will)
        ):
            self._send_restored(session, will)

    def _send_restored(self, session: Session, will: Will) -> None:
        self.when_claimed(lambda now: self._unclaimed(session, will))

    def when_claimed(self, then: Callable[[float], None]) -> None:
        """Call `then` when this broker's standby has had the time to say which wills from before
        the start it has published."""
        broker = self._broker
        if broker.federated:
            broker.timers.schedule(broker.now + CLAIMS_S, then)
        else:
            then(broker.now)

    def _unclaimed(self, session: Session, will: Will) -> None:
        if session.will is not will:
            return
        newest = self._broker.sessions.get(session.client_id, session)
        if session.successor or newest is not session:
            _take_will(session)
        else:
            self.publish(session)

    def publish(self, session: Session) -> None:
        """Publish the will of a session, if it may publish it."""
        broker = self._broker
        will = _take_will(session)
        permissions = session.permissions
        if is_own(will.topic) or (
            permissions is not None and not permissions.may_publish(will.topic)
        ):
            broker.counters.publish_refused += 1
            name = shorten(session.client_id)
            text = f"the will of client {name} may not be published to {shorten(will.topic)}"
            level = "debug" if is_own(will.topic) else "info"
            broker.log_limit.line(level, "will refused", name, text)
            return
        broker.counters.wills += 1
        broker.publisher.publish(message_of(will, broker.now, session), None)


def _take_will(session: Session) -> Will:
    """Take its will from a session, for good."""
    will, session.will = session.will, None
    assert will is not None
    if session.recorder is not None and session.conn is None:
        session.recorder.record_attributes()
    return will


def delay_of(will: Will) -> int:
    """Return the Will Delay Interval of a will (s)."""
    delay: int = (will.properties or {}).get(Property.WILL_DELAY_INTERVAL, 0)
    return delay
