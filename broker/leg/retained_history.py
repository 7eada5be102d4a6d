"""What a leg knows of the past of retained topics: until when both sides had the same, which values
came from the foreign broker since, and which topics were seen there. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import NamedTuple

CAME = 100_000
"""Topics of which it is known that their value came from the foreign broker; of more the oldest
count as written here."""
SEEN = 1_000_000
"""Topics that are known to have been at the foreign broker, some 60 bytes each; others are never
deleted here."""
MAX_GATEWAYS = 16
"""Gateways that are written down with `common`."""


class Write(NamedTuple):
    """The last write of a topic in this federation."""

    stamp: int
    """Hybrid clock; 0: none is known."""
    broker_id: bytes
    """Of the broker where it was published."""


class RetainedHistory:
    """The past of one leg's topics, by their names here."""

    def __init__(
        self, own_id: bytes, began: int, most_came: int = CAME, most_seen: int = SEEN
    ) -> None:
        """`own_id`: of this broker; `began`: the time (hybrid clock); `most_came`, `most_seen`:
        topics that are remembered."""
        self._most_came, self._most_seen = most_came, most_seen
        self._own_id = own_id
        self.common = 0
        """Until when (hybrid clock) both sides are known to have had the same, 0: never."""
        # Gateway -> until when it may have published here what came from the foreign broker, as
        # far as this process does not know.
        self._unsure_until = {own_id: began}
        # Topic -> stamp of the write here, the oldest first.
        self._came: OrderedDict[str, int] = OrderedDict()
        self._seen: set[int] = set()  # hashes of topics

    def advance(self, common: int) -> None:
        """Note that both sides had the same at a time (`common`, hybrid clock)."""
        self.common = max(self.common, common)
        for gateway in [g for g, until in self._unsure_until.items() if until <= self.common]:
            del self._unsure_until[gateway]
        came = self._came
        while came and next(iter(came.values())) <= self.common:
            came.popitem(last=False)

    def came_in(self, topic: str, stamp: int) -> None:
        """Note that the value of a `topic` came from the foreign broker, or its deletion, and was
        written here with a `stamp`."""
        self._came.pop(topic, None)
        if len(self._came) >= self._most_came:
            self._came.popitem(last=False)
        self._came[topic] = stamp
        self.saw(topic)

    def newer_here(self, topic: str, last: Write) -> bool:
        """Return whether a `topic` was written or deleted here after both sides had the same.
        `last`: its last write. What may have come from the foreign broker is not newer."""
        unsure_until = self._unsure_until.get(last.broker_id, 0)
        return (
            0 < self.common < last.stamp
            and unsure_until < last.stamp
            and self._came.get(topic) != last.stamp
        )

    @property
    def gateways(self) -> set[bytes]:
        """The ids of gateways that may have published here since `common` what came from the
        foreign broker."""
        return {self._own_id, *self._unsure_until}

    def take_over(self, gateways: Collection[bytes], until: int) -> None:
        """Note which `gateways` (ids) were active since `common`, until some time (hybrid clock)
        at most. What came in at this one is known since it began."""
        for gateway in gateways:
            if gateway != self._own_id and len(self._unsure_until) < MAX_GATEWAYS - 1:
                self._unsure_until[gateway] = until
            elif gateway in self._unsure_until:
                self._unsure_until[gateway] = min(until, self._unsure_until[gateway])

    def saw(self, topic: str) -> None:
        """Note that the foreign broker has a `topic`, and that the leg may read it there."""
        if len(self._seen) < self._most_seen:
            self._seen.add(hash(topic))

    def has_seen(self, topic: str) -> bool:
        """Return whether the foreign broker is known to have had a `topic`."""
        return hash(topic) in self._seen

    def forget_seen(self) -> None:
        """Note that the foreign broker may have lost everything."""
        self._seen.clear()
