"""Filters of foreign clients, and the filters here whose messages these clients want. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mqttree.broker.leg.rules import Rule, exchanged
from mqttree.routing.filter_aggregation import FilterAggregation
from mqttree.routing.topic_filter import SHARE_PREFIX, valid_topic_filter

SHARED = (SHARE_PREFIX, "$queue/", "$exclusive/")
"""How filters begin of which the part behind it is what the client wants: shared subscriptions, and
those that EMQX has besides."""
STEPS = 10_000
"""steps of aggregation at a time."""


def intersection(one: str, other: str) -> str | None:
    """Return the filter that matches the topics that both filters match, None if there are none.
    `one`, `other`: valid filters without `$share/`."""
    for first, second in ((one, other), (other, one)):
        if first.startswith("$") and second.startswith(("+", "#")):
            return None
    levels, others = one.split("/"), other.split("/")
    found: list[str] = []
    for depth in range(max(len(levels), len(others))):
        level = levels[depth] if depth < len(levels) else None
        second_level = others[depth] if depth < len(others) else None
        if level == "#":
            # It matches what is above it, too.
            return "/".join([*found, *others[depth:]])
        if second_level == "#":
            return "/".join([*found, *levels[depth:]])
        if level is None or second_level is None:
            return None
        if level == "+":
            found.append(second_level)
        elif second_level in ("+", level):
            found.append(level)
        else:
            return None
    return "/".join(found)


def wanted_topics(topic_filter: str) -> str | None:
    """Return the filter of the messages that a foreign client gets by a subscription to
    `topic_filter`, None if no message of a leg is among them, as its topics begin with `$`. Raises
    ValueError if it is no filter."""
    for prefix in SHARED:
        if topic_filter.startswith(prefix):
            topic_filter = topic_filter[len(prefix) :]
            if prefix == SHARE_PREFIX:
                topic_filter = topic_filter.partition("/")[2]
            break
    if not valid_topic_filter(topic_filter):
        raise ValueError(f"{topic_filter[:80]!r} is no topic filter")
    return None if topic_filter.startswith("$") else topic_filter


def to_local(rule: Rule, foreign: str) -> str | None:
    """Return the filter here of the messages that a rule lets out and that foreign clients want;
    None if there are none. `foreign`: what they subscribe to (`wanted_topics`)."""
    common = intersection(foreign, rule.remote)
    if common is None:
        return None
    local = exchanged(common, rule.remote_prefix, rule.local_prefix)
    if not local:
        return None
    # It may be too long here.
    return local if valid_topic_filter(local) else rule.local


def lets_out(rules: Iterable[Rule], topic_filter: str) -> bool:
    """Return whether any of the `rules` lets out messages that a foreign client gets by a
    subscription to `topic_filter`. Raises ValueError if it is no filter."""
    topics = wanted_topics(topic_filter)
    return topics is not None and any(to_local(rule, topics) is not None for rule in rules)


class WantedFilters:
    """The filters to which a leg subscribes here so that foreign clients get what they want."""

    __slots__ = ("_announced", "_counts", "_foreign", "_rules", "_sets", "size")

    def __init__(self, rules: Iterable[Rule]) -> None:
        """`rules`: those that let messages out."""
        self._rules = tuple(rules)
        self._foreign: dict[str, list[str | None]] = {}  # what each is here, rule by rule
        self._sets = tuple(FilterAggregation() for _ in self._rules)
        self._counts: tuple[dict[str, int], ...] = tuple({} for _ in self._rules)
        self._announced: tuple[dict[str, None], ...] = tuple({} for _ in self._rules)
        self.size = 0
        """bytes of all filters that were added."""

    def __contains__(self, foreign: object) -> bool:
        return foreign in self._foreign

    def __len__(self) -> int:
        return len(self._foreign)

    def foreign(self) -> Iterable[str]:
        """Return what foreign clients want, of what was added."""
        return self._foreign

    def add(self, foreign: str) -> bool:
        """Add what a foreign client wants (`wanted_topics`). Returns whether a rule lets out any of
        it; else nothing is kept."""
        if foreign in self._foreign:
            return True
        here = [to_local(rule, foreign) for rule in self._rules]
        if not any(here):
            return False
        self._foreign[foreign] = here
        self.size += len(foreign.encode(errors="replace"))
        for number, local in enumerate(here):
            if local is not None:
                count = self._counts[number].get(local, 0)
                self._counts[number][local] = count + 1
                if not count:
                    self._sets[number].add(local)
        return True

    def remove(self, foreign: str) -> None:
        """Remove what no foreign client wants any more; harmless if it is not there."""
        here = self._foreign.pop(foreign, None)
        if here is None:
            return
        self.size -= len(foreign.encode(errors="replace"))
        for number, local in enumerate(here):
            if local is not None:
                counts = self._counts[number]
                counts[local] -= 1
                if not counts[local]:
                    del counts[local]
                    self._sets[number].remove(local)

    def subscriptions(self) -> dict[str, int]:
        """Return the filters to which the leg subscribes, with their QoS: that of the rule, so that
        a message has it there as well if it is retained. A rule that makes the leg a member of a
        group is taken whole, as another filter would be another group."""
        found: dict[str, int] = {}
        for number, rule in enumerate(self._rules):
            if rule.group is None:
                filters: Iterable[str] = self._settled(number)
            else:
                filters = [rule.subscription] if self._counts[number] else []
            for topic_filter in filters:
                found[topic_filter] = max(rule.qos, found.get(topic_filter, 0))
        return found

    def _settled(self, number: int) -> Iterable[str]:
        """Return what stands for all filters of the rule with a `number`."""
        aggregation, announced = self._sets[number], self._announced[number]
        while True:
            new, old = aggregation.work(STEPS)
            announced.update(dict.fromkeys(new))
            for topic_filter in old:
                announced.pop(topic_filter, None)
            if not aggregation.busy:
                return announced
