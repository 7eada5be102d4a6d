"""Which publications of one topic have been here, so that each is taken and passed on once."""

from __future__ import annotations

from mqttree.bench.federator.messages import PublicationId


class DuplicateLog:
    """The newest publications. One that comes again when it is forgotten counts as new, and goes
    round the mesh once more: `size` has to be more than the topic's rate times the difference
    between the slowest and the fastest way."""

    __slots__ = ("_at", "_time")

    def __init__(self, log_time: float) -> None:
        """`log_time`: how long (s) one is kept at least if there is room."""
        self._time = log_time
        # Id -> when it came, the oldest first. An id that comes again keeps its place: the public
        # implementations do not refresh it either.
        self._at: dict[PublicationId, float] = {}

    def __len__(self) -> int:
        return len(self._at)

    def add(self, id_: PublicationId, now: float) -> bool:
        """Return whether the publication is new, and remember it."""
        if id_ in self._at:
            return False
        self._at[id_] = now
        return True

    def trim(self, size: int, most: int, now: float) -> None:
        """Forget the oldest until `size` are left, or those which came less than the log's time
        before `now` (s); of these no more than `most` stay either."""
        at = self._at
        while len(at) > size:
            oldest = next(iter(at))
            if len(at) <= most and now - at[oldest] < self._time:
                return
            del at[oldest]
