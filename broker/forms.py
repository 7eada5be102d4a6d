"""Placements of wildcards among the filters of one session.

Of all filters with wildcards at the same levels at most one matches a given topic, whatever their words are. So the number of
such forms, and not that of filters, says how many filters of one session a topic can match, and what it costs to find them.
"""

from __future__ import annotations

from broker import limits
from routing.topics import SHARE_PREFIX, is_wildcard, split_shared


def form_of(topic_filter: str) -> str | None:
    """Return the form of a valid filter; None for one that matches a single topic and is not shared."""
    group, inner = split_shared(topic_filter)
    if not is_wildcard(inner):
        return None if group is None else group + "/"
    form = "/".join([level if level in {"+", "#"} else "" for level in inner.split("/")])
    return form if group is None else f"{group}//{form}"


def filter_memory(topic_filter: str) -> int:
    """Return the bytes of memory that a subscription with this filter takes at most, about."""
    text = topic_filter.__sizeof__()  # here, and as bytes among what is told to other brokers; of a group once more each
    size = limits.SUBSCRIPTION_MEMORY + (4 if topic_filter.startswith(SHARE_PREFIX) else 2) * text
    if is_wildcard(topic_filter):
        size += (topic_filter.count("/") + 1) * limits.LEVEL_MEMORY
    return size


class Forms:
    """How many filters of a session have each form."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._count)

    def __contains__(self, form: object) -> bool:
        return form in self._count

    def add(self, form: str) -> None:
        """Count a filter of this form."""
        self._count[form] = self._count.get(form, 0) + 1

    def remove(self, form: str) -> None:
        """Count one less."""
        left = self._count[form] - 1
        if left:
            self._count[form] = left
        else:
            del self._count[form]
