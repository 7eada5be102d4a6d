"""The pace of a snapshot: the whole state is recorded once more, so that older segments can be
deleted (docs/decisions/0021). Pure.

It is recorded in steps, between the records of other changes. Each session and each topic is
recorded as it is at that moment; its later changes are records of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from mqttree.broker.persistence.limits import PersistenceLimits

BYTES_PER_STEP = 1024 * 1024
"""bytes of other records for which one more step is taken, so that a snapshot ends however much is
recorded meanwhile."""

MAX_STEPS = 4
"""steps in one turn, at most."""


class Frame(Protocol):
    """The frame that is being filled."""

    @property
    def size(self) -> int:
        """Bytes of the records that are in the frame by now."""


class Snapshot:
    """A snapshot that is being recorded. `size`: bytes that it has recorded; `bytes_since_step`:
    bytes of other records since its last step."""

    def __init__(self, frame: Frame, plan: Iterator[int], limits: PersistenceLimits) -> None:
        """Make one that has recorded nothing.

        `frame`: the one that is being filled; `plan`: records everything in it, a little each time,
        and yields how many items that was (1 or more); `limits`: of a step.
        """
        self._frame = frame
        self._limits = limits
        self._plan = plan
        self.size = self.bytes_since_step = 0

    def go_on(self) -> bool:
        """Record a little more, and as much more as other records have grown. Returns whether the
        snapshot is complete."""
        steps = min(MAX_STEPS, max(1, self.bytes_since_step // BYTES_PER_STEP))
        self.bytes_since_step = max(0, self.bytes_since_step - steps * BYTES_PER_STEP)
        return any(self.step() for _ in range(steps))

    @property
    def is_late(self) -> bool:
        """Whether other records have grown faster than the snapshot."""
        return self.bytes_since_step >= BYTES_PER_STEP

    def step(self) -> bool:
        """Record a little more. Returns whether the snapshot is complete."""
        frame, most = self._frame, self._limits.snapshot_step_items
        end = frame.size + self._limits.snapshot_step_bytes
        begin, items = frame.size, 0
        count = 1
        while count and items < most and frame.size < end:
            count = next(self._plan, 0)
            items += count
        self.size += frame.size - begin
        return not count
