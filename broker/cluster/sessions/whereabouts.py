"""Clients that were at another broker a moment ago: what is on its way to this one when they come,
they may have had there.

A subscription begins behind all that has been at its broker (`subscription_start`). With one broker
nothing else was published before it; with several, messages are on their way, for some ms, or for
as long as a link hangs that nobody has noticed yet. To most clients it is all the same whether they
get one of those. One that was elsewhere, and begins a new session here, would get it twice; so its
SUBSCRIBE waits until every broker has said what it has published by then (`subscription_barrier`).

    client   has an entry of another broker -(that is withdrawn)-> left -(LATELY)-> nowhere
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.base import limits
from broker.cluster.sessions.session_entries import entries_of
from broker.cluster.strategy.directory import CLIENT
from broker.core.session_owner import GONE

if TYPE_CHECKING:
    from broker.cluster.strategy.directory import Directory
    from broker.core.local_broker import LocalBroker
    from broker.core.session import Session

LATELY = 1.0
"""s beyond the time after which a link that hangs is closed, in which the tree is repaired."""


class Whereabouts:
    """Which clients were elsewhere lately."""

    __slots__ = ("_directory", "_left", "_node", "waits")

    def __init__(self, node: LocalBroker, directory: Directory) -> None:
        self._node = node
        self._directory = directory
        # Until when (s) it counts, the oldest first.
        self._left: OrderedDict[bytes, float] = OrderedDict()
        self.waits: dict[Session, Callable[[float], None]] = {}
        """What sessions do not wait for any more that are about to go to another broker: their
        SUBSCRIBE."""
        directory.watch(CLIENT, self._posted)

    def __len__(self) -> int:
        return len(self._left)

    def _posted(
        self, broker_id: bytes, key: bytes, value: bytes | None, gone: bool = False
    ) -> None:
        """Note that a client has no session any more at a broker where it had one."""
        if value is None:
            left, now = self._left, self._node.now
            left.pop(key, None)
            left[key] = now + self._node.config.link_timeout + LATELY
            while left and (len(left) > limits.MAX_LEFT or next(iter(left.values())) < now):
                left.popitem(last=False)

    def leaves(self, session: Session, now: float) -> None:
        """Note that a session is about to go to another broker: what its client has subscribed to
        goes with it."""
        hurry = self.waits.pop(session, None)
        if hurry is not None:
            hurry(now)

    def subscribing(self, session: Session, hurry: Callable[[float], None]) -> None:
        """Note that a client waits for the answer to a SUBSCRIBE."""
        self.waits[session] = hurry

    def subscribed(self, session: Session, hurry: Callable[[float], None]) -> None:
        """Note that it does not wait any more."""
        if self.waits.get(session) == hurry:
            del self.waits[session]

    def elsewhere(self, client_id: str) -> bool:
        """Whether a client has a session at another broker, or had one until a moment ago: it may
        have had there what is on its way to us. So it may while listings have not come that a
        neighbour has told of: they are behind what it replays to us."""
        key = client_id.encode()
        directory = self._directory
        if (
            self._left.get(key, 0.0) >= self._node.now
            or directory.lacks
            or directory.late(CLIENT + key)
        ):
            return True
        return any(not entry.flags & GONE for _, entry in entries_of(directory, client_id))
