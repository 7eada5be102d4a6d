"""Placements of wildcards among the filters of one session.

Of all filters with wildcards at the same levels at most one matches a given topic, whatever their
words are. So the number of such forms, and not that of filters, says how many filters of one
session a topic can match, and what it costs to find them.
"""

from __future__ import annotations

from collections.abc import Iterator

from mqttree.broker.base import costs
from mqttree.routing.topic_filter import SHARE_PREFIX, is_wildcard, split_shared


def form_of(topic_filter: str) -> str | None:
    """Return the form of a valid filter; None for one that matches a single topic and is not
    shared."""
    group, inner = split_shared(topic_filter)
    if not is_wildcard(inner):
        return None if group is None else group + "/"
    form = "/".join([level if level in {"+", "#"} else "" for level in inner.split("/")])
    return form if group is None else f"{group}//{form}"


def filter_memory(topic_filter: str) -> int:
    """Return the bytes of memory that a subscription with this filter takes at most, about."""
    # Here, and as bytes in the listing for other brokers; of a group once more each.
    text = topic_filter.__sizeof__()
    size = costs.SUBSCRIPTION_MEMORY + (4 if topic_filter.startswith(SHARE_PREFIX) else 2) * text
    if is_wildcard(topic_filter):
        size += (topic_filter.count("/") + 1) * costs.LEVEL_MEMORY
    return size


class WildcardForms:
    """How many filters of a session have each form."""

    __slots__ = ("_count", "_levels")

    def __init__(self) -> None:
        self._count: dict[str, int] = {}
        self._levels: dict[str, list[str]] = {}  # of each form that is not of a group

    def __len__(self) -> int:
        return len(self._count)

    def __contains__(self, form: object) -> bool:
        return form in self._count

    def add_filter(self, topic_filter: str) -> None:
        """Count a filter by the form of its wildcards; one without wildcards is not counted."""
        if (form := form_of(topic_filter)) is not None:
            self.add(form)

    def add(self, form: str) -> None:
        """Count a filter of this form."""
        count = self._count[form] = self._count.get(form, 0) + 1
        # Any other form begins with the name of a group.
        if count == 1 and (levels := form.split("/"))[0] in {"", "+", "#"}:
            self._levels[form] = levels

    def remove(self, form: str) -> None:
        """Count one filter of this form less."""
        left = self._count[form] - 1
        if left:
            self._count[form] = left
        else:
            del self._count[form]
            self._levels.pop(form, None)

    def matching(self, topic: str) -> Iterator[str]:
        """The filters that match a topic name, if the session has them: one of each form at most,
        and the topic itself. None that is shared."""
        if not topic.startswith(SHARE_PREFIX):
            yield topic
        words = topic.split("/")
        own = topic.startswith("$")
        for levels in self._levels.values():
            endless = levels[-1] == "#"
            count = len(levels) - endless
            if (len(words) < count if endless else len(words) != count) or (own and levels[0]):
                continue
            found = [level or word for level, word in zip(levels, words, strict=False)]
            yield "/".join(found if len(found) == len(levels) else [*found, "#"])
