"""What the allocator keeps of freed memory: more while large messages come."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mqttree.broker.base.machine import give_freed_memory_back, keep_freed_memory

if TYPE_CHECKING:
    import asyncio

QUIET = 10.0
"""s without a large message, after which nothing is kept for the next one."""


class FreedMemory:
    """The memory that this process has freed, and will need again for the next large message."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        keep: Callable[[], int] = keep_freed_memory,
        give_back: Callable[[], None] = give_freed_memory_back,
    ) -> None:
        """`loop`: tells the time; `keep` has the allocator keep more, and returns how many bytes
        (0: that cannot be said); `give_back` ends that."""
        self._loop = loop
        self._keep = keep
        self._give_back = give_back
        # s; when the last large message came.
        self._last = 0.0
        self._kept: int | None = None

    def large_message(self) -> None:
        """Keep memory from now on: a large message has come."""
        self._last = self._loop.time()
        if self._kept is None:
            self._kept = self._keep()
            if self._kept:
                self._loop.call_later(QUIET, self._look)

    def _look(self) -> None:
        due = self._last + QUIET
        if self._loop.time() < due:
            self._loop.call_at(due, self._look)
            return
        self._kept = None
        self._give_back()
