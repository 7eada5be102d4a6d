"""How often topics are published to at this broker, as averages whose half-life is a minute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mqttree.broker.base import costs
from mqttree.broker.core.topic_tally import WEIGHT

HALF_LIFE: Final = 60.0
"""s after which what was counted weighs half."""

TOP: Final = 1000
"""topics, those that are published to most, that are told other brokers."""

PIECE: Final = 1000
"""topics that are handled at a time, about 1 ms."""

SHARE: Final = 0.9
"""of the topics that have room, so many stay when there are too many."""


class Average:
    """An average of rates, of which those of the last minute weigh as much as all older ones."""

    __slots__ = ("_began", "at", "value")

    def __init__(self, now: float) -> None:
        """`now`: s, when counting begins."""
        self._began = self.at = now
        self.value = 0.0

    def add(self, count: float, now: float) -> None:
        """Take in what was counted since the last time; `now`: s."""
        seconds = now - self.at
        if seconds > 0:
            left = _left(seconds)
            self.value = self.value * left + (1.0 - left) * count / seconds
            self.at = now

    @property
    def rate(self) -> float:
        """The average (1/s): before a minute has passed, of what there is."""
        seen = 1.0 - _left(self.at - self._began)
        return self.value / seen if seen > 0 else 0.0


class TopicRates:
    """The rates of many topics."""

    def __init__(self, most: int, now: float) -> None:
        """`most`: topics that have room; `now`: s, when counting begins."""
        self._most = most
        self._began = self._at = now
        self._values: dict[bytes, float] = {}
        self._since: dict[bytes, float] = {}  # when each was valid (s)
        self.top: list[tuple[float, bytes]] = []
        """Rate (1/s) and topic of the `TOP` topics that are published to most, the highest rate
        first, as of the last time that `take` came to its end."""

    def __len__(self) -> int:
        """Return the number of topics."""
        return len(self._values)

    @property
    def memory(self) -> int:
        """Bytes of memory that they take, about."""
        return len(self._values) * costs.RATE_MEMORY

    def take(self, exact: dict[bytes, int], sampled: dict[bytes, int], now: float) -> Iterator[int]:
        """Take in what was counted since the last time, in pieces; yields the steps of work of
        each.

        `exact`: messages by topic; `sampled`: the same of a part that stands for `WEIGHT` times as
        many; `now`: s.
        """
        seconds = now - self._at
        if seconds <= 0:
            return
        self._at = now
        gain = (1.0 - _left(seconds)) / seconds
        for counts, weight in ((exact, gain), (sampled, gain * WEIGHT)):
            for number, (topic, count) in enumerate(counts.items(), 1):
                if count > 0:
                    self._values[topic] = self._now(topic) + count * weight
                    self._since[topic] = now
                if not number % PIECE:
                    yield PIECE
        if len(self._values) > self._most:
            yield from self._shrink()
        yield from self._find_top()

    def _now(self, topic: bytes) -> float:
        value = self._values.get(topic)
        if value is None:
            return 0.0
        age = self._at - self._since[topic]
        return value * _left(age) if age else value

    def _shrink(self) -> Iterator[int]:
        """Forget topics that are published to rarely."""
        topics = list(self._values)
        some = sorted([self._now(topic) for topic in topics[:: 1 + len(topics) // PIECE]])
        over = 1.0 - SHARE * self._most / len(topics)
        limit = some[min(len(some) - 1, int(over * len(some)))]
        yield PIECE
        room = int(SHARE * self._most)
        for number, topic in enumerate(topics, 1):
            if len(self._values) <= room:
                break
            if self._now(topic) <= limit:
                del self._values[topic], self._since[topic]
            if not number % PIECE:
                yield PIECE

    def _find_top(self) -> Iterator[int]:
        top: list[tuple[float, bytes]] = []
        topics = list(self._values)
        for at in range(0, len(topics), PIECE):
            least = top[-1][0] if len(top) == TOP else 0.0
            found = [(self._now(topic), topic) for topic in topics[at : at + PIECE]]
            top += [entry for entry in found if entry[0] > least]
            top.sort(reverse=True)
            del top[TOP:]
            yield PIECE
        seen = 1.0 - _left(self._at - self._began)
        self.top = [(value / seen, topic) for value, topic in top]


def _left(seconds: float) -> float:
    """The part of its weight that a count has after so many seconds."""
    return float(0.5 ** (seconds / HALF_LIFE))
