"""One direction of a link: when does a packet that is sent now arrive, if it does. Pure: `now` and
randomness are handed in."""

from __future__ import annotations

import random
from typing import Any

from mqttree.bench.lab.topology import Wire, wire_from


class Pipe:
    """Delay, jitter, rate (a queue that is sent byte after byte), loss, and a tap that can be shut.

    Packets never overtake each other. Counts what went through and what was dropped, and why.
    Whatever is done to it is done by a number, and undone by that: it is open when nothing shuts it
    any more, and has all changes that last, later ones first.
    """

    def __init__(self, wire: Wire | None) -> None:
        """Take what the link is like; None: there is none, and nothing ever passes."""
        self.open = self._there = wire is not None
        self._shut: set[int] = set()
        self._changes: dict[int, dict[str, Any]] = {}
        self._busy_until = self._last = 0
        self.packets = self.bytes = self.dropped_loss = self.dropped_queue = self.dropped_shut = 0
        self.wire = self._first = wire or Wire()
        self._apply(self.wire)

    def _apply(self, wire: Wire) -> None:
        self.wire = wire
        # Nothing is delayed, lost or queued.
        self.direct = not (wire.delay_ms or wire.jitter_ms or wire.loss) and wire.rate_mbit is None
        self._delay = int(wire.delay_ms * 1e6)
        self._jitter = wire.jitter_ms * 1e6
        self._loss = wire.loss
        self._ns_per_byte = 8e3 / wire.rate_mbit if wire.rate_mbit is not None else 0.0
        self._queue = wire.queue_kb * 1024

    def shut(self, by: int = 0) -> None:
        """Let nothing pass."""
        self._shut.add(by)
        self.open = False

    def change(self, changes: dict[str, Any], by: int = 0) -> None:
        """Change some of the link's parameters; ValueError in one line. What is on its way stays on
        its way."""
        self._apply(wire_from(changes, self.wire))
        self._changes[by] = self._changes.get(by, {}) | changes

    def undo(self, by: int) -> None:
        """Undo what was done by this number, and nothing else."""
        self._shut.discard(by)
        self._changes.pop(by, None)
        self._stand()

    def heal(self) -> None:
        """Undo everything; a link that there is not stays shut."""
        self._shut.clear()
        self._changes.clear()
        self._stand()

    def _stand(self) -> None:
        self.open = self._there and not self._shut
        wire = self._first
        for changes in self._changes.values():
            wire = wire_from(changes, wire)
        self._apply(wire)

    def offer(self, now: int, size: int, source: random.Random) -> int | None:
        """Return when a packet of `size` bytes that is sent at `now` (ns) arrives (ns); None: it is
        dropped. Losses and jitter are drawn from `source`."""
        if not self.open:
            self.dropped_shut += 1
            return None
        if self._loss and source.random() < self._loss:
            self.dropped_loss += 1
            return None
        due = now
        if self._ns_per_byte:
            start = max(self._busy_until, now)
            if (start - now) / self._ns_per_byte + size > max(self._queue, size):
                self.dropped_queue += 1
                return None
            due = self._busy_until = start + int(size * self._ns_per_byte)
        due += self._delay
        if self._jitter:
            due += max(-self._delay, int(source.gauss(0.0, self._jitter)))
        due = self._last = max(due, self._last)
        self.packets += 1
        self.bytes += size
        return due

    def backlog(self, now: int) -> int:
        """Bytes that wait for the rate."""
        return int(max(0, self._busy_until - now) / self._ns_per_byte) if self._ns_per_byte else 0
