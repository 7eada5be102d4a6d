"""How much is done in one turn of the event loop, so that no peer keeps the others, links and timers waiting.

What costs much more than its bytes - a topic without a route, a packet that no run takes - is counted as work, in steps of about
a microsecond. Who has caused so much of it in one turn rests: nothing more is read from it, and what has been read of it is
handled in a later turn, in order. Those that rest take turns, links and clients alternately.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from broker import limits

if TYPE_CHECKING:
    from broker.connection import Connection
    from broker.node import Node


class Turns:
    """The turns of one node's event loop."""

    __slots__ = ("_clients", "_links", "_node", "_planned", "longest", "work")

    def __init__(self, node: Node) -> None:
        self._node = node
        self._links: deque[Connection] = deque()
        self._clients: deque[Connection] = deque()
        self._planned = False
        self.longest = 0.0
        """s"""
        self.work = 0
        """steps in this turn"""

    def took(self, seconds: float) -> None:
        """Note how long a turn was."""
        self.longest = max(self.longest, seconds)
        if seconds > limits.TURN_LONG:
            self._node.counters.turns_long += 1
