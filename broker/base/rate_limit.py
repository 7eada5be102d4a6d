"""Rate limits: how often something may happen."""

from __future__ import annotations

from collections import OrderedDict


class Budget:
    """Units of work that may be spent, counted from `now` (s): `burst` at once and `per_second` in
    the long run. Below zero nothing is left."""

    __slots__ = ("_at", "_burst", "_per_second", "left")

    def __init__(self, burst: float, per_second: float, now: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._at = now
        self.left = burst

    def earn(self, now: float, shares: int = 1) -> None:
        """Add what has accrued since the last call, for as many as spend it."""
        earned = max(0.0, now - self._at) * shares * self._per_second
        self.left = min(shares * self._burst, self.left + earned)
        self._at = now


class RateLimit:
    """A token bucket: a number of events a second, and bursts of that many. Times in s."""

    __slots__ = ("_at", "_left", "per_second")

    def __init__(self, per_second: float, now: float) -> None:
        self.per_second = per_second
        self._left = max(1.0, per_second)
        self._at = now

    def take(self, now: float) -> bool:
        """Return whether the event may happen now, and count it if so."""
        full = max(1.0, self.per_second)
        self._left = min(full, self._left + max(0.0, now - self._at) * self.per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class RateLimits:
    """A rate limit for each of many, as clients; `most` of them are remembered, and of more the
    oldest are forgotten."""

    def __init__(self, per_second: float, most: int = 10_000) -> None:
        self.per_second = per_second
        self._most = most
        self._limits: OrderedDict[str, RateLimit] = OrderedDict()

    def take(self, name: str, now: float) -> bool:
        """Return whether the event of `name` may happen at `now` (s), and count it if so."""
        limits = self._limits
        limit = limits.get(name)
        if limit is None:
            while len(limits) >= self._most:
                limits.popitem(last=False)
            limit = limits[name] = RateLimit(self.per_second, now)
        return limit.take(now)
