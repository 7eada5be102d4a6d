"""Which topic filters of a client belong together, as they can match a common topic. Pure.

A message that two subscriptions of one session match comes once, or is marked with both. In two
sessions it would come twice, and nothing in MQTT says that it is one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from routing.topic_filter import is_wildcard, overlaps

MOST_LOOKS: Final = 50_000
"""pairs of filters that are compared, about 50 ms; those that are left count as overlapping."""


def filter_units(filters: Sequence[str]) -> list[list[str]]:
    """Return the `filters`, all different, in groups: no filter can match a topic that a filter of
    another group matches, too. Both are in the order in which they came. Filters without
    `$share/`; very many that are alike may be one group without need."""
    if not any(map(is_wildcard, filters)):
        return [[name] for name in filters]
    parents = {name: name for name in filters}
    # By the levels ahead of the first wildcard: of two filters that overlap, those of one begin
    # those of the other.
    wild: dict[tuple[str, ...], list[str]] = {}
    for name in filters:
        if is_wildcard(name):
            wild.setdefault(_literal(name), []).append(name)
    looks = 0
    for name in filters:
        literal = _literal(name)
        for size in range(len(literal) + 1):
            for other in wild.get(literal[:size], ()):
                looks += 1
                if looks > MOST_LOOKS or overlaps(name, other):
                    _join(parents, name, other)
    units: dict[str, list[str]] = {}
    for name in filters:
        units.setdefault(_root(parents, name), []).append(name)
    return list(units.values())


def _literal(name: str) -> tuple[str, ...]:
    levels = name.split("/")
    for depth, level in enumerate(levels):
        if level in ("+", "#"):
            return tuple(levels[:depth])
    return tuple(levels)


def _root(parents: dict[str, str], name: str) -> str:
    while parents[name] != name:
        parents[name] = name = parents[parents[name]]
    return name


def _join(parents: dict[str, str], one: str, other: str) -> None:
    parents[_root(parents, one)] = _root(parents, other)
