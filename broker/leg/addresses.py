"""Which of several addresses of a foreign broker a leg dials next, as bridges of Mosquitto choose
them. Pure.

Home first: the first address is tried first after each loss, the others in turn while it does not
answer. While a leg is connected elsewhere it looks every minute whether the first one answers, and
goes back to it. In turn (round robin): the next one after each loss, and no going back.
"""

from __future__ import annotations

HOME_PAUSE = 60.0
"""s between two looks whether the first address answers."""
HOME_LONGEST = 1800.0
"""s of that pause at most: it doubles while the first address answers and lets no leg in."""


class Addresses:
    """The addresses of one leg, as numbers from 0."""

    def __init__(self, count: int, round_robin: bool) -> None:
        """`count`: how many there are; `round_robin`: all are equal."""
        self.place = 0
        """The one that is dialled, or connected to."""
        self._count = count
        self._turn = round_robin
        self._pause = HOME_PAUSE
        self._look_at = 0.0

    def on_up(self, now: float) -> None:
        """Note that the leg is up at `now` (s)."""
        if self.place == 0:
            self._pause = HOME_PAUSE
        self._look_at = now + self._pause

    def on_lost(self, *, was_up: bool) -> None:
        """Choose the next address. `was_up`: the leg was up at the last one."""
        self.place = 0 if was_up and not self._turn else (self.place + 1) % self._count

    @property
    def more(self) -> bool:
        """Whether the next address is not the first one, so that it can be dialled without a long
        pause."""
        return self.place != 0

    def looks_home(self, now: float) -> bool:
        """Return whether it is to be found out at `now` (s) whether the first address answers."""
        if self.place == 0 or self._turn or now < self._look_at:
            return False
        self._look_at = now + self._pause
        return True

    def go_home(self) -> None:
        """Dial the first address next, as it answers."""
        self.place = 0
        self._pause = min(HOME_LONGEST, 2 * self._pause)
