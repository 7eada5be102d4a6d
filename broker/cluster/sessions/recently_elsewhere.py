"""Clients that were at another broker a moment ago: they may have had there the messages that are
under way to this broker when they connect.

A subscription begins behind all messages that have been at its broker (`subscription_start`). At a
lone broker these are all that were published before it. In a federation, older messages may be
under way, for some ms, or for as long as a link hangs. To most clients it does not matter whether
they get one of those. But a client that was at another broker, and begins a new session here, would
get it twice. So its SUBSCRIBE waits until every broker has said what it has published by then
(`subscription_barrier`).

    client   posted by another broker -(withdrawn there)-> left -(REPAIR_S)-> not known
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from mqttree.broker.cluster.directory.link_state_directory import CLIENT
from mqttree.broker.cluster.sessions.session_entries import entries_of
from mqttree.broker.core.session_owner import GONE

if TYPE_CHECKING:
    from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
    from mqttree.broker.cluster.ports import MemberBroker
    from mqttree.broker.core.session import Session

REPAIR_S = 1.0
"""s beyond the time after which a link that hangs is closed, in which the tree is repaired."""


class RecentlyElsewhere:
    """Knows which clients were at other brokers a moment ago."""

    def __init__(self, node: MemberBroker, directory: LinkStateDirectory) -> None:
        self._node = node
        self._directory = directory
        # Until when (s) it counts, the oldest first.
        self._left: OrderedDict[bytes, float] = OrderedDict()
        self.waits: dict[Session, Callable[[float], None]] = {}
        """Sessions with a SUBSCRIBE that waits, and what ends the wait: it is called when the
        session is about to go to another broker."""
        directory.watch(CLIENT, self._posted)

    def __len__(self) -> int:
        return len(self._left)

    def _posted(
        self, broker_id: bytes, key: bytes, value: bytes | None, gone: bool = False
    ) -> None:
        """Note that another broker no longer has a session of a client."""
        if value is None:
            left, now = self._left, self._node.now
            left.pop(key, None)
            left[key] = now + self._node.config.link_timeout + REPAIR_S
            while left and (
                len(left) > self._node.limits.max_left or next(iter(left.values())) < now
            ):
                left.popitem(last=False)

    def on_handover(self, session: Session, now: float) -> None:
        """Note that a session is about to go to another broker, with its subscriptions; `now`:
        s."""
        hurry = self.waits.pop(session, None)
        if hurry is not None:
            hurry(now)

    def subscribing(self, session: Session, hurry: Callable[[float], None]) -> None:
        """Note that a client waits for the answer to a SUBSCRIBE."""
        self.waits[session] = hurry

    def subscribed(self, session: Session, hurry: Callable[[float], None]) -> None:
        """Note that a client no longer waits for the answer to a SUBSCRIBE."""
        if self.waits.get(session) == hurry:
            del self.waits[session]

    def elsewhere(self, client_id: str) -> bool:
        """Whether a client has a session at another broker, or had one until a moment ago, so that
        it may have had messages there that are under way to here. That may also be so while
        listings have not arrived that a neighbour has named: they come behind its replay."""
        key = client_id.encode()
        directory = self._directory
        if (
            self._left.get(key, 0.0) >= self._node.now
            or directory.database.lacks
            or directory.is_deferred(CLIENT + key)
        ):
            return True
        return any(not entry.flags & GONE for _, entry in entries_of(directory.database, client_id))
