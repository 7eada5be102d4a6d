"""Which of many topic filters stand for all of them: those that no other one covers (aggregation;
docs/decisions/0013).

A filter that another one covers need not be announced. Each such filter hangs below one that covers
it, so that it is looked at again when that one goes, and only then. Exchanging a filter for the
hundred thousand that it covered, or back, takes a while: it goes in pieces, and after each of them
what is announced matches all that is wanted. Pure, and nothing is found by looking at all filters:
what covers one is what matches a topic with a new word for each of its wildcards; what it covers
has its words.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from mqttree.routing.subscription_trie import SubscriptionTrie
from mqttree.routing.topic_filter import covers, is_wildcard

INDEXED = 8
"""levels that index filters by their words; further levels are compared."""

SPELLINGS: Final = {"+/#": "#", "/+/#": "/#", "": "#"}
"""Filters that match the same topics as others: no topic is empty. The empty one is no client's,
but the broker's own."""

_Bucket = str | dict[str, None]
"""Filters with a word at a level; most words are those of one filter."""


class FilterAggregation:
    """A set of filters (valid, without `$share/`), and what is to be announced for it.

    `add` and `remove` are harmless when the filter is there already, or is not. After them `work`
    tells what changes.
    """

    def __init__(self) -> None:
        # Filters of the set that no other one covers; all are announced.
        self._maximal: dict[str, None] = {}
        # Announced until the filters that they covered are.
        self._leaving: dict[str, None] = {}
        # Covered filters of the set -> the filter that covers them.
        self._over: dict[str, str] = {}
        # The reverse; also of filters that are leaving.
        self._under: dict[str, dict[str, None]] = {}
        # Filters of the set with wildcards.
        self._wild: SubscriptionTrie[str] = SubscriptionTrie()
        # Of the maximal ones: by level, by word.
        self._at: list[dict[str, _Bucket]] = [{} for _ in range(INDEXED)]
        self._spelt: dict[str, set[str]] = {common: set() for common in SPELLINGS.values()}
        self._tasks: deque[Iterator[None]] = deque()
        # Announced (True) or withdrawn filters that were not returned yet.
        self._changes: dict[str, bool] = {}

    def __contains__(self, topic_filter: object) -> bool:
        """Return whether a filter, in its usual spelling, is in the set."""
        return topic_filter in self._maximal or topic_filter in self._over

    def __len__(self) -> int:
        """Return how many filters are in the set."""
        return len(self._maximal) + len(self._over)

    @property
    def busy(self) -> bool:
        """Whether there is work left."""
        return bool(self._tasks)

    def add(self, topic_filter: str) -> None:
        """Add a filter to the set."""
        common = SPELLINGS.get(topic_filter, topic_filter)
        if common in self._spelt:
            self._spelt[common].add(topic_filter)
        if common not in self:
            if is_wildcard(common):
                self._wild.insert(common, None, common)
            self._place(common)

    def remove(self, topic_filter: str) -> None:
        """Remove a filter from the set."""
        common = SPELLINGS.get(topic_filter, topic_filter)
        if (spelt := self._spelt.get(common)) is not None:
            spelt.discard(topic_filter)
            if spelt:
                return
        if common not in self:
            return
        if is_wildcard(common):
            self._wild.remove(common, None)
        if common in self._maximal:
            self._demote(common)
            self._leaving[common] = None
            self._tasks.append(self._leave(common))
            return
        over = self._over[common]
        self._detach(common)
        if common not in self._leaving and (under := self._under.pop(common, None)):
            self._over.update(dict.fromkeys(under, over))
            self._under.setdefault(over, {}).update(under)

    def work(self, steps: int) -> tuple[list[str], list[str]]:
        """Do at most so many steps of some microseconds of the work. Returns the filters to
        announce, and those to withdraw after that."""
        while steps > 0 and self._tasks:
            if next(self._tasks[0], self) is self:
                self._tasks.popleft()
            steps -= 1
        changes, self._changes = self._changes, {}
        return [f for f, announced in changes.items() if announced], [
            f for f, announced in changes.items() if not announced
        ]

    # ---------------------------------------------------------------- one filter

    def _place(self, topic_filter: str) -> None:
        """Attach a filter that is nowhere to one that covers it; if there is none, it is
        maximal."""
        over = self._covering(topic_filter)
        if over is not None:
            self._attach(topic_filter, over)
            return
        self._maximal[topic_filter] = None
        for at, word in _words(topic_filter):
            bucket = self._at[at].get(word)
            if isinstance(bucket, dict):
                bucket[topic_filter] = None
            else:
                self._at[at][word] = (
                    topic_filter if bucket is None else {bucket: None, topic_filter: None}
                )
        if topic_filter in self._leaving:
            del self._leaving[topic_filter]
        else:
            self._tell(topic_filter, True)
        if is_wildcard(topic_filter):
            self._tasks.append(self._sweep(topic_filter))

    def _demote(self, topic_filter: str) -> None:
        """Note that a filter is not maximal any more."""
        del self._maximal[topic_filter]
        for at, word in _words(topic_filter):
            bucket = self._at[at][word]
            if isinstance(bucket, dict):
                del bucket[topic_filter]
            if bucket == topic_filter or not bucket:
                del self._at[at][word]

    def _attach(self, topic_filter: str, over: str) -> None:
        self._over[topic_filter] = over
        self._under.setdefault(over, {})[topic_filter] = None

    def _detach(self, topic_filter: str) -> None:
        over = self._over.pop(topic_filter)
        under = self._under[over]
        del under[topic_filter]
        if not under:
            del self._under[over]

    def _tell(self, topic_filter: str, announced: bool) -> None:
        # Else others know it already.
        if self._changes.pop(topic_filter, announced) is announced:
            self._changes[topic_filter] = announced

    def _covering(self, topic_filter: str) -> str | None:
        """Return a filter of the set that covers this one."""
        levels = _levels(topic_filter)
        endless = levels[-1] == "#"
        if endless:
            levels.pop()
        for found in self._wild.match(
            "/".join("\0" if level == "+" else level for level in levels)
        ):
            if found != topic_filter and (not endless or found[-1] == "#"):
                return found
        return None

    def _candidates(self, topic_filter: str) -> list[str]:
        """Return the maximal filters that have the words of this one where it has them."""
        buckets: list[dict[str, None]] = []
        for at, word in _words(topic_filter):
            bucket = self._at[at].get(word)
            if bucket is None:
                return []
            buckets.append({bucket: None} if isinstance(bucket, str) else bucket)
        if not buckets:
            return list(self._maximal)
        buckets.sort(key=len)
        found = list(buckets[0])
        for bucket in buckets[1:]:
            found = [candidate for candidate in found if candidate in bucket]
        return found

    # ---------------------------------------------------------------- work

    def _sweep(self, topic_filter: str) -> Iterator[None]:
        """Withdraw the filters that a filter covers which has become maximal."""
        if topic_filter not in self._maximal:
            return
        for found in self._candidates(topic_filter):
            if topic_filter not in self._maximal:
                return
            if found != topic_filter and found in self._maximal and covers(topic_filter, found):
                self._demote(found)
                self._attach(found, topic_filter)
                self._tell(found, False)
            yield

    def _leave(self, topic_filter: str) -> Iterator[None]:
        """Attach the filters that a formerly maximal filter covered to others; then withdraw that
        filter."""
        while under := self._under.get(topic_filter):
            for found in list(under):
                if topic_filter in self._maximal:
                    # It has been added again.
                    return
                if self._over.get(found) == topic_filter:
                    self._detach(found)
                    self._place(found)
                yield
        if topic_filter in self._leaving:
            del self._leaving[topic_filter]
            self._tell(topic_filter, False)


def _levels(topic_filter: str) -> list[str]:
    """Return the levels, so that `#` stands for topics below and never means an empty topic."""
    if topic_filter in ("#", "/#"):
        return [*topic_filter.split("/")[:-1], "+", "#"]
    return topic_filter.split("/")


def _words(topic_filter: str) -> list[tuple[int, str]]:
    """Return the indexed levels that are no wildcards: (depth, word)."""
    return [
        (at, level)
        for at, level in enumerate(_levels(topic_filter)[:INDEXED])
        if level not in ("+", "#")
    ]
