"""How much is done in one turn of the event loop, so that no peer keeps the others, links and
timers waiting.

What costs much more than its bytes - a topic without a route, a packet that no run takes, hundreds
of filters in one packet - is counted as work, in steps of about a microsecond. A connection that
has caused so much of it in one turn rests: nothing more is read from it, and what has been read of
it is handled in a later turn, in order. Work that belongs to no packet any more is planned in
pieces (`later`). One that rests, or one piece after the other, has a turn; links come every other
time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from broker.base import limits
from broker.base.counters import Counters
from broker.base.timers import Scheduler

PAUSE = 0.0001
"""s until the next turn: what the sockets have brought comes in between."""

Piece = Callable[[float], None]
"""Some work, at most a tenth of a turn's; called with now (s)."""


class Peer(Protocol):
    """A connection, as far as its share of a turn is concerned."""

    last_heard: float

    @property
    def closed(self) -> bool:
        """Whether it is gone."""

    @property
    def link(self) -> object | None:
        """Not None: another broker speaks on it."""


class Reading(Scheduler, Protocol):
    """What is asked of the broker whose turns these are. Connections are those that it hands in
    itself."""

    @property
    def counters(self) -> Counters:
        """What is counted."""

    @property
    def hold(self) -> Callable[[Any, object], None]:
        """Called with a connection and a reason: it is not read until that is released."""

    def release_publishers(self, reason: object, /) -> None:
        """Read what was held for a reason."""


class Rest:
    """Why a connection is not read: it has had its share of this turn."""

    __slots__ = ("_turns", "conn")

    def __init__(self, conn: Peer, turns: Turns) -> None:
        self.conn = conn
        self._turns = turns

    def __call__(self, now: float) -> None:
        """Go on with it: that is all there is in this turn."""
        conn = self.conn
        if not conn.closed:
            conn.last_heard = now  # what waits here shows that it lives
            self._turns.go_on(self)


class Turns:
    """The turns of one node's event loop."""

    __slots__ = ("_links", "_node", "_others", "_planned", "_turn_of_links", "longest", "work")

    def __init__(self, node: Reading) -> None:
        self._node = node
        self._links: deque[Rest] = deque()
        self._others: deque[Piece] = deque()
        self._planned = False
        self._turn_of_links = False
        self.longest = 0.0
        """s"""
        self.work = 0
        """steps in this turn"""

    def took(self, seconds: float) -> None:
        """Note how long a turn was."""
        self.longest = max(self.longest, seconds)
        if seconds > limits.TURN_LONG:
            self._node.counters.turns_long += 1

    def full(self) -> bool:
        """Return whether the rest of what is due is to wait for the next turn."""
        return self.work >= limits.TURN_WORK

    def rest(self, conn: Peer) -> None:
        """Read and handle no more of a connection in this turn."""
        node = self._node
        node.counters.turns_cut += 1
        rest = Rest(conn, self)
        node.hold(conn, rest)
        (self._links if conn.link is not None else self._others).append(rest)
        self._plan()

    def go_on(self, rest: Rest) -> None:
        """Read one that rested again."""
        self._node.release_publishers(rest)
        self.work = 0

    def later(self, piece: Piece) -> None:
        """Do something in a later turn."""
        self._others.append(piece)
        self._plan()

    def go(self, work: Iterator[int], stopped: Callable[[], bool]) -> None:
        """Do some work, as much now as goes into one turn and the rest in later ones, unless it is
        `stopped` by then. `work` does a part of it each time, and says how many steps that was."""
        for steps in work:
            self.work += steps
            if self.work >= limits.TURN_WORK:
                self.later(lambda now: None if stopped() else self.go(work, stopped))
                return

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._node.schedule(self._node.now + PAUSE, self._go_on)

    def _go_on(self, now: float) -> None:
        self._planned = False
        self.work = 0
        self._turn_of_links = not self._turn_of_links
        if self._links and (self._turn_of_links or not self._others):
            self._links.popleft()(now)
        else:
            for _ in range(len(self._others)):
                piece = self._others.popleft()
                piece(now)
                if isinstance(piece, Rest) or self.work >= limits.TURN_WORK:
                    break
        if self._links or self._others:
            self._plan()
