"""The connections of one broker: new ones, silent ones, and those that have ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mqttree.broker.base import costs
from mqttree.broker.base.timer_wheel import TimerWheel
from mqttree.broker.core import unsent
from mqttree.broker.core.client import Client
from mqttree.broker.core.connect import ConnectHandshake
from mqttree.broker.core.connection import Nowhere
from mqttree.broker.core.connection_states import State
from mqttree.broker.core.serving_broker import ServingBroker

if TYPE_CHECKING:
    from mqttree.broker.core.connection import Connection, Transport
    from mqttree.broker.core.effects import Dial
    from mqttree.broker.core.flow_control import FlowControl

GONE_WORK = 5
"""steps for a connection that is gone."""

Open = Callable[[str, str, "Transport", float], "Connection"]
"""Makes a connection from the arguments of `ConnectionRegistry.made`."""


class ConnectionRegistry:
    """The connections of one broker that are not closed yet."""

    def __init__(
        self,
        broker: ServingBroker,
        flow_control: FlowControl,
        connection: Open,
        handshake: Callable[[Connection], ConnectHandshake],
    ) -> None:
        """`broker`: whose connections these are; `flow_control`: pauses publishers; `connection`:
        makes a connection; `handshake`: makes what expects the CONNECT on one."""
        self._broker = broker
        self._flow_control = flow_control
        self._open = connection
        self._greet = handshake
        self.connections: dict[Connection, None] = {}
        self.ended = 0
        """Connections whose peer has gone and whose last packets wait for an answer."""
        self._handshakes: TimerWheel[ConnectHandshake] = TimerWheel(
            broker.timers.schedule, self._check_handshake, broker.turns.full
        )

    def made(
        self,
        peer: str,
        listener: str,
        transport: Transport,
        now: float,
        dial: Dial | None = None,
    ) -> Connection:
        """Take a new connection, and return what its bytes are to be fed to
        (`Connection.receive`).

        `peer`: HOST:PORT; `listener`: its name; `transport`: takes what is sent; `now`: s; `dial`:
        the effect that asked for it.
        """
        broker = self._broker
        broker.now = now
        broker.counters.connections_accepted += 1
        conn = self._open(peer, listener, transport, now)
        self.connections[conn] = None
        if dial is not None:
            broker.cluster.link_registry.dialled(conn, dial, now)
        else:
            conn.owner = handshake = self._greet(conn)
            handshake.timer = self._handshakes.add(handshake, now + broker.config.connect_timeout)
        return conn

    def without_peer(self, listener: str) -> Connection:
        """Return a connection in the place of that of a client that is away. `listener`: the name
        of the one over which it came last."""
        nowhere = Nowhere()
        nowhere.conn = self._open("-", listener, nowhere, self._broker.now)
        return nowhere.conn

    def handshake_over(self, handshake: ConnectHandshake) -> None:
        """Note that a connection's CONNECT was accepted or refused, or that it is gone."""
        self._handshakes.discard(handshake.timer, handshake)
        handshake.end()

    def _check_handshake(self, handshake: ConnectHandshake, now: float) -> None:
        conn = handshake.conn
        if conn.owner is handshake and not conn.closed and not conn.waiting:
            broker = self._broker
            broker.counters.connect_timeout += 1
            what = "no CONNECT" if handshake.connect is None else "its authentication did not end"
            timeout = broker.config.connect_timeout
            text = f"{conn.peer}: {what} within {timeout:g} s; closed"
            broker.log_limit.line("info", what, conn.peer, text)
            conn.abort(what)
            broker.turns.work += costs.PACKET_WORK

    def connection_lost(self, conn: Connection, reason: str, now: float) -> None:
        """Note that `conn` is closed, by whomever; harmless when repeated.

        A client may connect, publish, disconnect and be gone while its password is being checked or
        a plugin is asked about its first message. What it sent counts all the same, its DISCONNECT
        above all (MQTT-3.14.4-3).

        `reason`: for the log; `now`: s.
        """
        if (
            conn.state in (State.WAITING, State.WAITING_HELD)
            and (
                isinstance(conn.owner, Client)
                or (isinstance(conn.owner, ConnectHandshake) and conn.owner.goes_on_without_peer)
            )
            and self.ended < self._broker.limits.max_ended
        ):
            self.ended += 1
            conn.peer_gone(reason or "closed")
            conn.writable(now)
            return
        self.on_closed(conn, reason, now)

    def on_closed(self, conn: Connection, reason: str, now: float) -> None:
        """Note that `conn` is closed, and nothing that came on it waits; harmless when repeated.
        `reason`: for the log; `now`: s."""
        if conn.closed:
            return
        broker = self._broker
        broker.now = now
        broker.turns.work += GONE_WORK
        if isinstance(conn.owner, Client):
            unsent.note_unsent(conn.owner)
        conn.on_closed()
        if conn.ended:
            self.ended -= 1
        self.connections.pop(conn, None)
        self._flow_control.closed(conn)
        if conn.owner is not None:
            conn.owner.on_connection_lost(reason, now)
        conn.link = None
        broker.journal.connection_closed(conn)
        conn.owner = conn.conn = None  # free at once, without the garbage collector

    def forget(self, conn: Connection) -> None:
        """Note that a connection that was refused has nothing more to say."""
        if isinstance(conn.owner, ConnectHandshake):
            self.handshake_over(conn.owner)
        conn.owner = None
