"""Which topic filters of a client belong together, as they can match a common topic. Pure.

A message that two subscriptions of one session match comes once, or is marked with both. In two
sessions it would come twice, and nothing in MQTT says that it is one message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from mqttree.routing.topic_filter import is_wildcard

MAX_LOOKS: Final = 50_000
"""levels of filters that are noted or looked at, about 20 ms; if there are more, all are one
group."""
COUNTED: Final = 16
"""levels that are counted, and no more, in the time of one look."""


class _Level:
    """A level in the tree of the filters that have wildcards."""

    __slots__ = ("below", "name")

    def __init__(self) -> None:
        self.below: dict[str, _Level] = {}
        self.name: str | None = None  # the filter that ends here


def filter_units(filters: Sequence[str]) -> tuple[list[list[str]], int]:
    """Return the `filters`, all different, in groups: no filter can match a topic that a filter of
    another group matches, too; and the number of looks that it took. Groups and filters are in the
    order in which they came. Filters without `$share/`; very many that overlap may be one group
    without need."""
    wild = [name for name in filters if is_wildcard(name)]
    if not wild:
        return [[name] for name in filters], 0
    looks = sum([name.count("/") + 1 for name in wild])
    if looks > MAX_LOOKS:
        return [list(filters)], looks // COUNTED
    root = _Level()
    for name in wild:
        _add(root, name)
    parents = {name: name for name in filters}
    for name in filters:
        for other in _overlapping(root, name.split("/")):
            looks += 1
            if looks > MAX_LOOKS:
                return [list(filters)], looks
            if other is not None:
                parents[_root(parents, name)] = _root(parents, other)
    units: dict[str, list[str]] = {}
    for name in filters:
        units.setdefault(_root(parents, name), []).append(name)
    return list(units.values()), looks


def _add(level: _Level, name: str) -> None:
    for word in name.split("/"):
        level = level.below.setdefault(word, _Level())
    level.name = name


def _overlapping(root: _Level, words: list[str]) -> Iterator[str | None]:
    """Yield each filter of the tree that can match a topic that the filter of `words` matches, and
    None for each other level that is looked at: `topic_filter.overlaps`, for all at once."""
    special = words[0].startswith("$")
    left = [(root, 0)]
    while left:
        level, depth = left.pop()
        # Wildcards do not match a first level that begins with '$' (MQTT-4.7.2-1).
        guarded = level is root
        word = words[depth] if depth < len(words) else None
        yield level.name if word in (None, "#") else None
        if (hash_below := level.below.get("#")) is not None and not (guarded and special):
            yield hash_below.name  # '#' stands for the level above it, too
        if word is None:
            continue
        if word in ("+", "#"):
            deeper = depth + (word == "+")
            for name, below in level.below.items():
                if name != "#" and not (guarded and name.startswith("$")):
                    left.append((below, deeper))
            continue
        if (same := level.below.get(word)) is not None:
            left.append((same, depth + 1))
        if not (guarded and special) and (plus := level.below.get("+")) is not None:
            left.append((plus, depth + 1))


def _root(parents: dict[str, str], name: str) -> str:
    while parents[name] != name:
        parents[name] = name = parents[parents[name]]
    return name
