"""Which sequence numbers of one origin have been at this broker, and what of them local
subscribers miss."""

from __future__ import annotations

from mqttree.broker.base.counters import Counters
from mqttree.broker.base.sequence_set import (
    LAST,
    MAX_SKIPS,
    Ranges,
    find,
    intersect,
    merge,
    subtract,
)
from mqttree.broker.cluster.delivery.ordered_feed import OrderedFeed, Verdict
from mqttree.broker.cluster.link.version_vector import OriginWindow


class LocalWindow(OriginWindow):
    """What has been at this broker of one origin.

    What was published before this broker met the origin, up to `begin`, is not delivered here.
    `history` is the part of it that is not missed either, and what no subscriber here or behind
    here wanted. It is taken all the same if it comes, to be passed on.
    """

    __slots__ = ("begin", "counters", "feed", "history", "most_gaps")

    def __init__(
        self,
        top: int,
        heard: float,
        counters: Counters | None,
        most_gaps: int,
    ) -> None:
        """Begin with an origin of which all numbers up to `top` have been here. `heard`: s, when it
        was last heard of; `counters`: where gaps that are given up are counted, None: nowhere;
        `most_gaps`: so many are remembered (`Limits.max_gaps`)."""
        super().__init__(top, heard)
        self.begin = 0
        self.history: Ranges = []
        # What local subscribers have had; None for an incarnation of this broker, and where topics
        # have paths of their own (`RoutingStrategy.ordered`).
        self.feed: OrderedFeed | None = None
        self.counters = counters
        self.most_gaps = most_gaps

    def accept(self, first: int, count: int) -> int:
        """Take `count` numbers from `first` on as seen; returns how many were new. Either all,
        none, or (then ask one by one) -1 and nothing is taken. The numbers between `top` and
        `first` were not wanted here, as far as is known; of an earlier incarnation of this broker
        they are missing, as no origin can be asked."""
        top = self.top
        if first == top + 1:
            self.top = top + count
            return count
        last = first + count - 1
        if first > top:
            if self.begin == LAST:
                self.gaps.append((top + 1, first - 1))
                self.limit()
            else:
                self.skip(top + 1, first - 1)
            self.top = last
            return count
        if last > top:
            return -1
        for ranges in (self.gaps, self.history):
            index = find(ranges, first, last)
            if index < 0:
                continue
            low, high = ranges[index]
            if first < low or last > high:
                return -1
            ranges[index : index + 1] = [
                g for g in ((low, first - 1), (last + 1, high)) if g[0] <= g[1]
            ]
            if ranges is self.gaps:
                self.limit()
            else:
                self._limit_history()
            return count
        return 0

    def skip(self, first: int, last: int) -> None:
        """Note the numbers from `first` to `last`, above all others, as not wanted here: they are
        history, in case a broker behind this one wants them."""
        history = self.history
        if history and history[-1][1] == first - 1:
            history[-1] = (history[-1][0], last)
            return
        history.append((first, last))
        self._limit_history()

    def _limit_history(self, most: int = MAX_SKIPS) -> None:
        """Give up the oldest of too many: they are not passed on any more, should they come."""
        history = self.history
        if len(history) > most:
            beyond = len(history) - most + most // 4
            old = history[:beyond]
            del history[:beyond]
            if self.feed is not None and old[-1][1] > self.feed.done:
                self.feed.add_outstanding(intersect(old, [(self.feed.done + 1, LAST)]))

    def limit(self) -> None:
        """Give up the oldest of too many gaps: what is in them counts as seen from now on."""
        beyond = len(self.gaps) - self.most_gaps
        if beyond > 0:
            del self.gaps[:beyond]
            if self.counters is not None:
                self.counters.gaps_forgotten += beyond

    @property
    def ranges(self) -> int:
        """How many ranges are kept."""
        count = len(self.gaps) + len(self.history)
        return (
            count if self.feed is None else count + len(self.feed.outstanding) + len(self.feed.kept)
        )

    def give_up(self, most: int) -> int:
        """Keep `most` ranges of each kind, the newest, and those gaps that it may have; return how
        many are given up."""
        before = self.ranges
        self._limit_history(most)
        if self.feed is not None:
            del self.feed.outstanding[:-most]
            del self.feed.kept[:-most]
        return before - self.ranges

    def miss(self, lacks: Ranges) -> Ranges:
        """Miss from now on, and return, the history that a neighbour `lacks` too; a second call
        finds none. It is from before this broker met the origin, so local subscribers do not get it
        when it comes (`begin`)."""
        if not self.history or not self.begin:
            return []
        found = intersect(intersect(lacks, self.history), [(1, self.begin)])
        if found:
            self.history = subtract(self.history, found)
            self.gaps = merge(self.gaps + found)
            self.limit()
        return found

    def verdict(self, sequence: int) -> Verdict:
        """Return what local subscribers get of a number that has just come, without a feed."""
        return Verdict.DELIVER if sequence > self.begin else Verdict.PAST


LocalVector = dict[bytes, LocalWindow]
"""The version vector of this broker: origin key -> what has been here."""
