"""How often something may happen."""

from __future__ import annotations


class Rate:
    """So many a second, with bursts of as many (a token bucket). Times in s."""

    __slots__ = ("_at", "_left", "per_second")

    def __init__(self, per_second: float, now: float) -> None:
        self.per_second = per_second
        self._left = max(1.0, per_second)
        self._at = now

    def take(self, now: float) -> bool:
        """Tell whether it may happen now, and count it if so."""
        full = max(1.0, self.per_second)
        self._left = min(full, self._left + max(0.0, now - self._at) * self.per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
