"""What a client sent on its last connection comes before what it sends on the next one
(MQTT-3.1.4-3, MQTT-4.6.0).

A client may publish, send DISCONNECT, close and connect again at once. Its new CONNECT may be read
first, while the kernel, a slow plugin or backpressure still holds what it sent before. Then the
takeover waits until that is handled:

    CONNECT -> nothing is left of the old connection -> takeover, in the same turn
            -> something is left: waiting
                   -(handled, or the old connection has ended)-> takeover
                   -(`PREDECESSOR_SILENCE_S` s without progress, or `PREDECESSOR_MAX_S` s)
                   ---> takeover, and what is left is lost [takeover_unread]

Clients that connect with the same client id meanwhile wait in line, in the order in which they
came. A client that has connected to another broker is waited for in the same way, before its
connection here is closed (`leave`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from mqttree.broker.core.client import Client
from mqttree.broker.core.connection import Connection
from mqttree.broker.core.serving_broker import ServingBroker
from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.strings import shorten

if TYPE_CHECKING:
    from mqttree.broker.core.ports import Newcomer

PREDECESSOR_SILENCE_S = 1.0
PREDECESSOR_MAX_S = 5.0
"""s; for which a new connection of a client waits until what came on its old one is handled,
without and with progress there. Only a plugin, a slow subscriber or a peer that never stops
sending makes that longer than a turn of the loop; and clients wait some seconds for CONNACK.
What is left then is lost with the old connection; it was not acknowledged [takeover_unread]."""

MAX_SUCCESSORS = 16
"""connections of one client that wait so, in line; one more is refused as busy (0x89)
[connects_refused]."""

CHECK_DELAY = 0.001
CHECK_INTERVAL = 0.005
"""s until the first look at what is left, and between two more. A turn of the event loop is usually
enough."""


class Line:
    """The handshakes that wait for one client id, and how far the old connection has been read.
    `left`: what is to be done first, as the client has connected to another broker."""

    __slots__ = ("at", "began", "left", "old", "waiting")

    def __init__(self, now: float) -> None:
        self.waiting: deque[Newcomer] = deque()
        self.left: Callable[[float], object] | None = None
        self.begin(now)

    def begin(self, now: float) -> None:
        """Start the clocks of the first in line; `now`: s."""
        self.began = self.at = now
        self.old: object = None


class Predecessors:
    """Holds new connections back until the old ones of the same clients have been read to their
    end."""

    def __init__(self, node: ServingBroker) -> None:
        self._node = node
        self._lines: dict[str, Line] = {}

    def wait(self, handshake: Newcomer, client_id: str, now: float) -> bool:
        """Return whether the new connection (`handshake`) of a client has to wait until its older
        one is read; `Newcomer.on_predecessor_read` is called then. `client_id`: of the client;
        `now`: s."""
        line = self._lines.get(client_id)
        if line is None:
            old = self._old(client_id)
            if old is None or not self._unread(old):
                return False
            line = self._lines[client_id] = Line(now)
            self._node.timers.schedule(now + CHECK_DELAY, lambda at: self._look(client_id, at))
        if len(line.waiting) >= MAX_SUCCESSORS:
            handshake.turn_away(
                ReasonCode.SERVER_BUSY,
                "connects again while its older connections are still being handled",
            )
            return True
        line.waiting.append(handshake)
        handshake.conn.wait()
        return True

    def leave(self, client_id: str, then: Callable[[float], object], now: float) -> None:
        """Call `then` when what the client `client_id` sent on its connection here is handled, or
        has been waited for long enough: it has connected to another broker. Not at once: a client's
        packets are not handled in the middle of what a link brings. `now`: s."""
        line = self._lines.get(client_id)
        if line is None:
            line = self._lines[client_id] = Line(now)
            self._node.timers.schedule(now, lambda at: self._look(client_id, at))
        if line.left is None:
            line.left = then

    def is_leaving(self, client_id: str) -> bool:
        """Return whether a client that has connected to another broker is being waited for."""
        line = self._lines.get(client_id)
        return line is not None and line.left is not None

    def _old(self, client_id: str) -> Connection | None:
        session = self._node.sessions.get(client_id)
        return session.conn if session is not None else None

    def _unread(self, old: Connection) -> bool:
        """Have the driver hand over what has come; return whether something of it is still to be
        handled."""
        more = old.transport.unread()
        if old.closed or old.closing or not isinstance(old.owner, Client):
            return False
        return more or old.waiting or bool(old.ended) or old.backed_up

    def _look(self, client_id: str, now: float) -> None:
        line = self._lines[client_id]
        while line.left is not None or line.waiting:
            if line.left is None and (line.waiting[0].conn.closed or line.waiting[0].conn.closing):
                line.waiting.popleft()
                continue
            if not self._done(line, client_id, now):
                self._node.timers.schedule(
                    now + CHECK_INTERVAL, lambda at: self._look(client_id, at)
                )
                return
            if (then := line.left) is not None:
                line.left = None
                then(now)
            else:
                line.waiting.popleft().on_predecessor_read(now)
            line.begin(now)
        del self._lines[client_id]

    def _done(self, line: Line, client_id: str, now: float) -> bool:
        """Return whether the first in line need not wait any more."""
        old = self._old(client_id)
        if old is None or not self._unread(old):
            return True
        progress = (old, old.last_heard, old.unhandled)
        if progress != line.old:
            line.old, line.at = progress, now
        if now < min(line.at + PREDECESSOR_SILENCE_S, line.began + PREDECESSOR_MAX_S):
            return False
        self._node.counters.takeover_unread += 1
        what = "connects again: the older connection is closed before all its packets are handled"
        self._node.log("warning", f"client {shorten(client_id)} at {old.peer} {what}")
        return True
