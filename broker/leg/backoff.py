"""How long a leg waits before it dials again. Pure."""

from __future__ import annotations

import random

SHORTEST, LONGEST = 1.0, 30.0
"""s between two dials: decorrelated jitter, so that legs that lost the same broker come back at
different times."""
STABLE = 60.0
"""s that a leg has been up after which the next dial comes as soon as the first one did."""
TAKEN_OVER_PAUSE = 15.0
"""s until the next dial at least, if another client has taken the foreign session over: two that
take it from each other do so rarely."""
OWN_PAUSE = 300.0
"""s until the next dial at least, if the foreign broker is none: dialling there again would make a
ring again."""


class Backoff:
    """The pauses of one leg."""

    __slots__ = ("_pause", "_rng", "_up_since")

    def __init__(self, rng: random.Random) -> None:
        """`rng`: draws the pauses."""
        self._rng = rng
        self._pause = SHORTEST
        self._up_since = 0.0

    def came_up(self, now: float) -> None:
        """Note that the leg is up at `now` (s)."""
        self._up_since = now

    def next_pause(self, now: float) -> float:
        """Return s until the next dial, as the leg was lost at `now` (s)."""
        if self._up_since and now - self._up_since >= STABLE:
            self._pause = SHORTEST
        self._up_since = 0.0
        self._pause = min(LONGEST, self._rng.uniform(SHORTEST, 3 * self._pause))
        return self._pause
