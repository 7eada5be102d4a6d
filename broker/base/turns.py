"""Limits of the work in one turn of the event loop, so that no peer keeps the others, links and
timers waiting.

Work that costs much more than its bytes - a topic without a route, a packet that is in no run,
hundreds of filters in one packet - is counted in steps of about a microsecond. A connection that
has caused too many steps in one turn rests: nothing more is read from it, and its packets are
handled in a later turn, in order. Work that belongs to no packet is planned in pieces (`later`).
Resting connections and pieces take turns; links come every other time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from mqttree.broker.base.counters import Counters
from mqttree.broker.base.limits import BaseLimits
from mqttree.broker.base.timers import TimedBroker

LONG_TURN_S = 0.05
"""s; a turn of the event loop that took longer is counted [turns_long]: clients notice it."""

PAUSE = 0.0001
"""s until the next turn; sockets are read in between."""

Piece = Callable[[float], None]
"""A piece of work, at most a tenth of a turn's; called with the time (s)."""


class Peer(Protocol):
    """A connection, as `Turns` sees it."""

    last_heard: float

    @property
    def closed(self) -> bool:
        """Whether the connection is closed, so that nothing of it is to be handled."""

    @property
    def link(self) -> object | None:
        """Not None if it is a link to another broker."""


class Holding(Protocol):
    """Says which connections are not read."""

    @property
    def hold(self) -> Callable[[Any, object], None]:
        """Stops reading a connection for a reason, until that is released."""

    def release(self, reason: object, /) -> None:
        """Reads the connections again that were held for a reason."""


class Reading(TimedBroker, Protocol):
    """What turns ask of the broker. It passes in the connections itself."""

    @property
    def counters(self) -> Counters:
        """The counters of this broker: turns that were long or cut short are counted."""

    @property
    def limits(self) -> BaseLimits:
        """The limits of what this broker keeps and does at once."""

    @property
    def flow_control(self) -> Holding:
        """Says which connections are not read."""


class Rest:
    """The reason for which a connection is not read: it has had its share of this turn."""

    __slots__ = ("_turns", "conn")

    def __init__(self, conn: Peer, turns: Turns) -> None:
        self.conn = conn
        self._turns = turns

    def __call__(self, now: float) -> None:
        """Handle more of its packets. This is the only work of this turn."""
        conn = self.conn
        if not conn.closed:
            # Packets that wait here show that the peer lives.
            conn.last_heard = now
            self._turns.go_on(self)


class Turns:
    """The turns of one node's event loop."""

    __slots__ = (
        "_links",
        "_most",
        "_node",
        "_others",
        "_planned",
        "_turn_of_links",
        "longest",
        "noted",
        "work",
    )

    def __init__(self, node: Reading) -> None:
        self._node = node
        self._most = node.limits.turn_work
        self._links: deque[Rest] = deque()
        self._others: deque[Piece] = deque()
        self._planned = False
        self._turn_of_links = False
        self.longest = 0.0
        """s"""
        self.noted = 0.0
        """s; of a turn that took less, `took` need not be told."""
        self.work = 0
        """Steps in this turn."""

    def took(self, seconds: float) -> None:
        """Note how long a turn took (s)."""
        self.longest = max(self.longest, seconds)
        self.noted = min(self.longest, LONG_TURN_S)
        if seconds > LONG_TURN_S:
            self._node.counters.turns_long += 1

    def full(self) -> bool:
        """Return whether the rest of the due work has to wait for the next turn."""
        return self.work >= self._most

    def rest(self, conn: Peer) -> None:
        """Read and handle no more of a connection in this turn."""
        node = self._node
        node.counters.turns_cut += 1
        rest = Rest(conn, self)
        node.flow_control.hold(conn, rest)
        (self._links if conn.link is not None else self._others).append(rest)
        self._plan()

    def go_on(self, rest: Rest) -> None:
        """Handle a connection again that rested."""
        self._node.flow_control.release(rest)
        self.work = 0

    def later(self, piece: Piece) -> None:
        """Do a piece of work in a later turn."""
        self._others.append(piece)
        self._plan()

    def go(self, work: Iterator[int], stopped: Callable[[], bool]) -> None:
        """Do `work` in pieces: as much now as fits into one turn and the rest in later ones, unless
        `stopped` returns True by then. `work` does a piece each time, and returns its number of
        steps."""
        for steps in work:
            self.work += steps
            if self.work >= self._most:
                self.later(lambda now: None if stopped() else self.go(work, stopped))
                return

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._node.timers.schedule(self._node.now + PAUSE, self._resume)

    def _resume(self, now: float) -> None:
        self._planned = False
        self.work = 0
        self._turn_of_links = not self._turn_of_links
        if self._links and (self._turn_of_links or not self._others):
            self._links.popleft()(now)
        else:
            for _ in range(len(self._others)):
                piece = self._others.popleft()
                piece(now)
                if isinstance(piece, Rest) or self.work >= self._most:
                    break
        if self._links or self._others:
            self._plan()
