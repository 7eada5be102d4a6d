"""How often each topic was published to at this broker, since it was last asked.

A chunk with messages of one topic is counted exactly. Of the chunks with several topics, in which a
message costs little, one in `WEIGHT` is counted, drawn at random, and stands for so many.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from mqttree.broker.wire.publish_header import topic_end
from mqttree.broker.wire.strings import is_own_name
from mqttree.broker.wire.varint import read_length

WEIGHT: Final = 64
"""chunks with several topics for each one that is counted."""

LOOKED_AT: Final = 64
"""topics, the oldest ones, of which the rarer half makes room for new topics."""


class TopicTally:
    """Messages by topic. Whoever adds to `exact` calls `begin` for a topic that is not there."""

    __slots__ = ("_left", "_longest", "_most", "_state", "drawn", "exact", "sampled")

    def __init__(self, most: int, longest: int) -> None:
        """`most`: topics that have room; `longest`: bytes of a topic, longer ones are not
        counted."""
        self._most = most
        self._longest = longest
        self._left = WEIGHT  # chunks with several topics up to the next one that is drawn
        self._state = 1  # of the random numbers
        self.exact: dict[bytes, int] = {}
        """What was counted one by one."""
        self.sampled: dict[bytes, int] = {}
        """What was counted in chunks that were drawn."""
        self.drawn: dict[bytes, int] | None = None
        """`sampled`, if the next chunk with several topics is drawn."""

    def begin(self, topic: bytes, count: int) -> None:
        """Count `count` messages of a `topic` that is not in `exact`. If that is full, rare topics
        go, and the new one begins with the count of one of them, as it may have been there before
        (space-saving)."""
        least = self._make_room(self.exact) if len(self.exact) >= self._most else 0
        self.exact[topic] = least + count

    def _make_room(self, counts: dict[bytes, int]) -> int:
        """Let the rarer half of the oldest topics go; the others count as the newest. Returns the
        highest count of those that went."""
        oldest = list(islice(counts.items(), LOOKED_AT))
        for topic, _ in oldest:
            del counts[topic]
        oldest.sort(key=_count)
        half = (len(oldest) + 1) // 2
        counts.update(oldest[half:])
        return max(0, oldest[half - 1][1])

    def draw(self) -> None:
        """Note that a chunk with several topics is over."""
        self._left -= 1
        if self.drawn is not None:
            self.drawn = None
            while len(self.sampled) > self._most:
                self._make_room(self.sampled)
        if not self._left:
            # Publishers take turns, perhaps: a fixed step would meet always the same one.
            self._state = (self._state * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
            self._left = 1 + (self._state >> 8) % (2 * WEIGHT - 1)
            self.drawn = self.sampled

    def add(self, topic: bytes, count: int) -> None:
        """Count `count` messages of a `topic`."""
        if topic in self.exact:
            self.exact[topic] += count
        else:
            self.begin(topic, count)

    def add_packets(self, data: bytes, begin: int, end: int, count: int, topic: bytes) -> None:
        """Count `count` PUBLISH packets, `data[begin:end]`, of perhaps several topics. `topic`: of
        the last one."""
        if count == 1:
            self.add(topic, 1)
            return
        drawn = self.drawn
        while drawn is not None and begin < end:
            length, body = read_length(data, begin + 1)
            topic = data[body + 2 : topic_end(data, body)]
            drawn[topic] = drawn.get(topic, 0) + 1
            begin = body + length
        self.draw()

    def add_single(self, topic: bytes) -> None:
        """Count one message that did not take the fast path."""
        if len(topic) <= self._longest and not is_own_name(topic):
            self.add(topic, 1)

    def take(self) -> tuple[dict[bytes, int], dict[bytes, int]]:
        """Return `exact` and `sampled`, of which one message stands for `WEIGHT`, and begin again.
        Not to be called while a chunk is handled."""
        taken = self.exact, self.sampled
        self.exact = {}
        self.sampled = {}
        if self.drawn is not None:
            self.drawn = self.sampled
        return taken


def _count(entry: tuple[bytes, int]) -> int:
    return entry[1]
