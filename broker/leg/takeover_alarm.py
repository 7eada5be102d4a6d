"""Notices that another client has the name of a leg at its foreign broker, where that does not say
so: Mosquitto 2.0 closes the older connection without a reason. Pure."""

from __future__ import annotations

CLOSED = "it closes"
"""What a driver says of a connection that was closed without a reason."""
BRIEF = 60.0
"""s that a connection has to be up for not to be brief."""
ROW = 3
"""Brief connections in a row that were closed without a reason, at which there is an alarm."""


class TakeoverAlarm:
    """Counts brief connections of one leg."""

    __slots__ = ("_brief", "_up_since")

    def __init__(self) -> None:
        self._brief = 0
        self._up_since = 0.0

    def came_up(self, now: float) -> None:
        """Note that the leg is up at `now` (s)."""
        self._up_since = now

    def lost(self, why: str, now: float) -> bool:
        """Return whether it is likely that another client takes the session. `why`: the reason for
        which a connection was lost that was up; `now`: s."""
        self._brief = self._brief + 1 if why == CLOSED and now - self._up_since < BRIEF else 0
        return self._brief >= ROW
