"""Clients that were at another broker a moment ago: what is on its way to this one when they come, they may have had there.

A subscription begins behind all that has been at its broker (`broker.positions`). With one broker nothing else was published
before it; with several, messages are on their way, for some ms, or for as long as a link hangs that nobody has noticed yet. To
most clients it is all the same whether they get one of those. One that was elsewhere, and begins a new session here, would get
it twice; so its SUBSCRIBE waits until every broker has said what it has published by then (`broker.propagation`).

    client   has an entry of another broker -(that is withdrawn)-> left -(LATELY)-> nowhere
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from broker import limits

if TYPE_CHECKING:
    from broker.node import Node

LATELY = 1.0
"""s beyond the time after which a link that hangs is closed, in which the tree is repaired."""


class Whereabouts:
    """Which clients were elsewhere lately."""

    __slots__ = ("_left", "_node")

    def __init__(self, node: Node) -> None:
        self._node = node
        self._left: OrderedDict[str, float] = OrderedDict()  # until when (s) it counts, the oldest first

    def __len__(self) -> int:
        return len(self._left)

    def left(self, client_id: str) -> None:
        """Note that a client has no session any more at a broker where it had one."""
        left, now = self._left, self._node.now
        left.pop(client_id, None)
        left[client_id] = now + self._node.federation.config.link_timeout + LATELY
        while left and (len(left) > limits.MAX_LEFT or next(iter(left.values())) < now):
            left.popitem(last=False)

    def lately(self, client_id: str) -> bool:
        """Whether a client left another broker lately."""
        return self._left.get(client_id, 0.0) >= self._node.now
