"""The orderly stop of a broker: all peers get a DISCONNECT, some in each turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from mqttree.broker.core.client import disconnect
from mqttree.broker.core.client_registry import CLOSED_WORK
from mqttree.broker.core.serving_broker import ServingBroker
from mqttree.broker.wire.constants import ReasonCode

if TYPE_CHECKING:
    pass


class Shutdown:
    """Sends DISCONNECT to clients first, then to other brokers."""

    def __init__(self, broker: ServingBroker, leave: Callable[[float], None]) -> None:
        """`leave`: called with now (s) when the clients are gone, tells the other brokers."""
        self._broker = broker
        self._leave = leave
        self.under_way = False
        """Clients are being disconnected, and no other client is let in."""

    def begin(self, then: Callable[[], None]) -> None:
        """Tell MQTT 5 clients that the broker stops (0x8B), close all, and call `then` at the end.
        Of very many clients some are disconnected in each turn, and the others are served until
        theirs."""
        if not self.under_way:
            self.under_way = True
            self._broker.turns.go(self._say_goodbye(then), lambda: False)

    def _say_goodbye(self, then: Callable[[], None]) -> Iterator[int]:
        broker = self._broker
        steps = 0
        connected = [session for session in broker.sessions.values() if session.conn is not None]
        for session in connected:
            if steps:
                yield steps
            steps = 1
            if disconnect(session, ReasonCode.SERVER_SHUTTING_DOWN):
                steps = CLOSED_WORK
        # After the clients: their wills go to other brokers, too (MQTT-3.1.2-8).
        self._leave(broker.now)
        for conn in list(broker.connections):
            conn.close()
        self.under_way = False
        then()
