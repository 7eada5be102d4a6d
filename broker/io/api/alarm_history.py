"""What has needed attention before: each alarm from when it was first seen until it was not seen
any more."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

MAX_PAST: Final = 200
"""alarms that are over and remembered; of more, the oldest are forgotten."""


class AlarmHistory:
    """The alarms of one broker."""

    def __init__(self) -> None:
        self.past: deque[dict[str, Any]] = deque(maxlen=MAX_PAST)
        """Those that are over, the last one to end at the end."""
        self._open: dict[str, dict[str, Any]] = {}

    def look(self, alarms: Iterable[Mapping[str, Any]], now: float) -> None:
        """Note which alarms there are. `now`: s since the epoch."""
        # What follows the colon, a number or a reason, changes while an alarm lasts.
        seen = {each["id"] or each["text"].partition(": ")[0]: each for each in alarms}
        for key in self._open.keys() - seen.keys():
            self.past.append({**self._open.pop(key), "until": round(now, 3)})
        for key, each in seen.items():
            since = self._open[key]["since"] if key in self._open else each["since"] or now
            self._open[key] = {
                "level": each["level"],
                "text": each["text"],
                "since": round(since, 3),
            }
