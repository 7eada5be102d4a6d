"""Backpressure: which publishers are not read, as a subscriber is behind (docs/decisions/0006).

A reason to hold a publisher is whatever is behind: the connection of a slow subscriber, a link, the
journal, plugins, a turn that is full. Whoever gave a reason takes it back. A connection that makes
no progress for `HOLD_TIMEOUT_S` holds publishers no longer.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from mqttree.broker.base.turns import Rest
from mqttree.broker.core.serving_broker import ServingBroker

if TYPE_CHECKING:
    from mqttree.broker.base.timers import Timer
    from mqttree.broker.core.connection import Connection

HOLD_TIMEOUT_S = 0.5
"""s; longest time without progress for which one slow subscriber may hold back its publishers;
after it the subscriber is `stalled` and holds back no publisher until it has caught up (others
must not suffer)."""

HOLD_RECHECK_S = 0.02
"""s after which a subscriber without progress is looked at once more: this broker may have been
stopped, or without a processor, and what the subscriber sent meanwhile is read by then. A
broker that is as late as that for this look, too, looks again, five times at most."""


LOOKS = 5
"""at a subscriber without progress, at most, by a broker that is late for each of them."""


class FlowControl:
    """Which publishers are held, and for which reasons."""

    __slots__ = ("_broker", "_held", "_timers", "unheld")

    def __init__(self, broker: ServingBroker) -> None:
        self._broker = broker
        # Reason -> publishers that are not read, those that have waited longest first.
        self._held: dict[object, dict[Connection, None]] = {}
        self._timers: dict[object, Timer] = {}  # of connections that are watched
        self.unheld: deque[Connection] = deque()
        """Publishers that were held, and had been read further than was handled."""

    def hold_publishers(self, slow: Connection, source: Connection | None) -> None:
        """Do not read `source` until `slow` has caught up; for a client that is slow at most
        `HOLD_TIMEOUT_S` without progress, for a link as long as it lives (`LinkAcks` closes one
        that takes nothing)."""
        if source is not None and source is not slow and self.watched(slow):
            self.hold(source, slow)

    def watched(self, slow: Connection) -> bool:
        """Return whether publishers may wait for `slow`. It is looked at from now on: they do so
        until `HOLD_TIMEOUT_S` without progress."""
        if slow not in self._held and slow.link is None and not slow.stalled:
            slow.waiting_since = self._broker.now
            self._watch(slow)
            self._held[slow] = {}
        return not slow.stalled

    def hold(self, source: Connection | None, reason: object) -> None:
        """Do not read `source` until `release(reason)`. A link is read on: those are held whose
        messages it brings."""
        if source is None or source.closed:
            return
        publishers = self._held.setdefault(reason, {})
        if source.link is not None and not isinstance(reason, Rest):
            self._broker.cluster.remote_flow_control.note(reason, source.link.arrival)
        elif source not in publishers:
            publishers[source] = None
            source.hold()

    def holds(self, source: Connection) -> bool:
        """Return whether a connection is not read, for any reason."""
        return any(source in publishers for publishers in self._held.values())

    def _watch(self, slow: Connection) -> None:
        when = slow.waiting_since + HOLD_TIMEOUT_S
        self._timers[slow] = self._broker.timers.schedule(when, lambda now: self._check(slow, now))

    def _check(self, slow: Connection, now: float) -> None:
        """Judge a connection that publishers wait for, unless it has made progress at `now` (s)."""
        if slow.waiting_since + HOLD_TIMEOUT_S > now:
            self._watch(slow)
        else:
            self._look_again(slow, now, 1)

    def _look_again(self, slow: Connection, now: float, number: int) -> None:
        """Look at a connection without progress a moment after `now` (s): this broker may have been
        stopped, and what the peer has sent meanwhile is read before that. `number`: of the
        look."""
        due = now + HOLD_RECHECK_S
        self._timers[slow] = self._broker.timers.schedule(
            due, lambda at: self._looked(slow, at, due, number)
        )

    def _looked(self, slow: Connection, now: float, due: float, number: int) -> None:
        """Judge a connection at `now` (s), at a look (`number`) that was `due` (s): it has made no
        progress, or this broker has been stopped once more and looks again."""
        broker = self._broker
        if slow.waiting_since + HOLD_TIMEOUT_S > now:
            self._watch(slow)
        elif number < LOOKS and now > due + HOLD_RECHECK_S:
            self._look_again(slow, now, number + 1)
        else:
            slow.stalled = True
            text = f"{slow.peer} reads too slowly; publishers are no longer paused for it"
            broker.log_limit.line("info", "slow subscriber", slow.peer, text)
            self.release(slow)

    def release(self, reason: object) -> None:
        """Read the publishers again that waited for `reason` alone."""
        publishers = self._held.pop(reason, None)
        if publishers is not None:
            broker = self._broker
            broker.cluster.remote_flow_control.released(reason)
            if (timer := self._timers.pop(reason, None)) is not None:
                broker.timers.cancel(timer)
            for source in publishers:
                if not self.holds(source):
                    source.unhold()

    def closed(self, conn: Connection) -> None:
        """Note that a connection is closed: no publisher waits for it, and it waits for none."""
        self.release(conn)
        for publishers in self._held.values():
            publishers.pop(conn, None)
