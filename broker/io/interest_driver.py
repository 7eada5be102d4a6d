"""Has a thread read what foreign clients subscribe to, when a leg asks for it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from mqttree.broker.io.subscription_reader import BOUNDS, ReadError, SubscriptionReader

PATIENCE = BOUNDS.time + 10.0
"""s until a reading has failed, whatever its thread does: it may wait for a name to be resolved."""

Answered = Callable[[set[str] | ReadError], None]
"""Gets the filters of foreign clients, or why there are none."""


class InterestDriver:
    """Reads for one leg, one reading at a time."""

    def __init__(self, reader: SubscriptionReader, answered: Answered) -> None:
        """`reader`: what to read; `answered`: gets what was read, in the event loop."""
        self._reader = reader
        self._answered = answered
        self._reading = False  # whether a thread is at it
        self._timer: asyncio.TimerHandle | None = None  # as long as an answer is waited for

    def ask(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to read; the answer comes in a later turn of `loop`."""
        if self._reading:
            loop.call_soon(self._answered, ReadError("the last reading has not ended"))
            return
        self._reading = True
        self._timer = loop.call_later(PATIENCE, self._tell, ReadError("timed out"))
        # A daemon: it does not keep the broker from ending.
        threading.Thread(target=self._read, args=(loop,), name="interest", daemon=True).start()

    def stop(self) -> None:
        """Wait for no answer any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        answer: set[str] | ReadError
        try:
            answer = self._reader.read()
        except ReadError as error:
            answer = error
        # The loop may have ended.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._ended, answer)

    def _ended(self, answer: set[str] | ReadError) -> None:
        self._reading = False
        self._tell(answer)

    def _tell(self, answer: set[str] | ReadError) -> None:
        if self._timer is not None:
            self.stop()
            self._answered(answer)
