"""The clients that are connected to one broker: what happens when one connects or disconnects, and
which have been silent for too long (MQTT-3.1.2-22)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Protocol

from mqttree.broker.base import costs
from mqttree.broker.base.timer_wheel import GRAIN, TimerWheel
from mqttree.broker.core.client import Client
from mqttree.broker.core.serving_broker import ServingBroker
from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Disconnect
from mqttree.broker.wire.properties import Property

if TYPE_CHECKING:
    from mqttree.broker.core.session import Session
    from mqttree.broker.core.session_registry import SessionRegistry
    from mqttree.broker.core.wills import Wills

CLOSED_WORK = 2 * costs.PACKET_WORK
"""steps for a client that gets DISCONNECT: its will is sent, its session may end."""


class ClientsBroker(ServingBroker, Protocol):
    """What connected clients ask of their broker."""

    def client_disconnected(self, client: Client) -> None:
        """A client's connection ended (`ClientRegistry.gone`, and what else goes with it)."""

    @property
    def session_registry(self) -> SessionRegistry:
        """Keeps the sessions of clients that are gone."""

    def event(self, name: str, **arguments: Any) -> None:
        """Tell plugins, if one listens to this."""


class ClientRegistry:
    """All clients that are connected."""

    def __init__(self, broker: ClientsBroker, wills: Wills, rng: random.Random) -> None:
        """`broker`: whose clients these are; `wills`: sends those of clients that are gone; `rng`:
        makes up client identifiers."""
        self._broker = broker
        self._rng = rng
        self._wills = wills
        self.connected = 0
        """How many there are."""
        self._keep_alives: TimerWheel[Client] = TimerWheel(
            broker.timers.schedule, self._check_keep_alive, broker.turns.full
        )

    def new_client_id(self) -> str:
        """Make a client id for a client that brought none (MQTT-3.1.3-6)."""
        return f"mqttree-{self._rng.getrandbits(80):020x}"

    def on_client_connected(self, client: Client, now: float) -> None:
        """Note that a client is connected; `now`: s."""
        broker = self._broker
        broker.counters.connects += 1
        self.connected += 1
        if broker.dispatcher.members:
            broker.cluster.sharing.groups.session_changed(client.session)
        if client.keep_alive:
            client.timer = self._keep_alives.add(client, now + client.keep_alive)
        broker.event("broker_client_connected", client=client)

    def _check_keep_alive(self, client: Client, now: float) -> None:
        again = client.check_keep_alive(now)
        if again is not None:
            client.timer = self._keep_alives.add(client, max(again, now + GRAIN / 2))
            self._broker.turns.work += 1
        else:
            self._broker.turns.work += CLOSED_WORK

    def on_client_disconnected(self, client: Client) -> None:
        """Note that a client's connection ended: its will, the expiry of its session
        (MQTT-3.1.2-8, MQTT-3.1.2-11). Harmless when repeated."""
        session = client.session
        if session.conn is not client.conn:
            return
        broker = self._broker
        self.connected -= 1
        if session.expiry:
            session.unpack()
        session.listener = client.conn.listener
        session.conn = None
        session.heard = client.conn.last_heard
        if broker.dispatcher.members:
            broker.cluster.sharing.groups.session_changed(session)
        session.outbox = []
        conn = client.conn
        conn.outbox = list(conn.outbox)
        if conn.outbox:
            # Perhaps only the session was listed, and its outbox is another one now.
            broker.dirty.append(conn)
        if client.timer is not None:
            self._keep_alives.discard(client.timer, client)
        client.forget_routes()
        self._wills.connection_ended(session)
        if session.expiry == 0:
            broker.end_session(session, None)
        else:
            broker.session_registry.expire_later(session)
        broker.event("broker_client_disconnected", client=client)

    def refused(self, client: Client) -> None:
        """Note that a client is refused for which a session was already found: it was never
        counted as connected."""
        self.connected += 1
        self._broker.client_disconnected(client)

    def take_over(self, session: Session) -> None:
        """Disconnect the connection that a newer one with its client id replaces, here or elsewhere
        (MQTT-3.1.4-3)."""
        conn = session.conn
        assert conn is not None
        broker = self._broker
        broker.counters.taken_over += 1
        owner = conn.owner
        # What was queued on the old connection still goes out there.
        conn.outbox = list(session.outbox)
        session.outbox = []
        if isinstance(owner, Client):
            if conn.outbox:
                broker.dirty.append(conn)
            last = (
                encode_packet(Disconnect(ReasonCode.SESSION_TAKEN_OVER), 5)
                if owner.version == 5
                else b""
            )
            conn.linger = True
            conn.close(last)
            broker.client_disconnected(owner)

    def redirect(self, client: Client, reference: str, permanent: bool) -> None:
        """Send a client to another broker (MQTT 5, 4.11): DISCONNECT with a Server Reference;
        before MQTT 5 it is only closed. Its will is sent, or waits, as at any end that is not the
        client's own.

        `client`: the one to redirect; `reference`: "HOST:PORT", several with spaces between;
        `permanent`: whether it is not to come back here.
        """
        self._broker.counters.redirected += 1
        reason = ReasonCode.SERVER_MOVED if permanent else ReasonCode.USE_ANOTHER_SERVER
        client.shut(reason, "", {Property.SERVER_REFERENCE: reference})
