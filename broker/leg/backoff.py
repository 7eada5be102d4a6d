"""How long a leg waits before it dials again, and whether another client has its name at the
foreign broker. Pure."""

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
CLOSED = "it closes"
"""What a driver says of a connection that was closed without a reason, as Mosquitto 2.0 does when
another client takes the session."""
RESET = "it resets the connection"
"""What a driver says of one that was reset, as by a broker that has not read all that was sent."""
BRIEF = 60.0
"""s that a connection has to be up for not to be brief."""
ROW = 3
"""Brief connections in a row that were closed without a reason, at which another client is likely
to take the session."""


class Backoff:
    """The pauses of one leg."""

    def __init__(self, rng: random.Random) -> None:
        """`rng`: draws the pauses."""
        self._rng = rng
        self._pause = SHORTEST
        self._up_since = 0.0
        self._brief = 0  # connections in a row

    def on_up(self, now: float) -> None:
        """Note that the leg is up at `now` (s)."""
        self._up_since = now

    def is_taken_over(self, why: str, now: float) -> bool:
        """Return whether it is likely that another client takes the session. `why`: the reason for
        which a connection was lost that was up; `now`: s."""
        self._brief = self._brief + 1 if why == CLOSED and now - self._up_since < BRIEF else 0
        return self._brief >= ROW

    def next_pause(self, now: float) -> float:
        """Return s until the next dial, as the leg was lost at `now` (s)."""
        if self._up_since and now - self._up_since >= STABLE:
            self._pause = SHORTEST
        self._up_since = 0.0
        self._pause = min(LONGEST, self._rng.uniform(SHORTEST, 3 * self._pause))
        return self._pause
