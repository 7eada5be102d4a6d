"""Topic names, searched by topic filter: does a filter match any of them? The counterpart of
`subscription_trie`, which is searched the other way round."""

from __future__ import annotations

from collections.abc import Iterator

from mqttree.routing.topic_filter import is_wildcard


class _Level:
    """One level of topics: `here` if one ends here, and the levels below. None is empty."""

    __slots__ = ("below", "here")

    def __init__(self) -> None:
        self.here = False
        self.below: dict[str, _Level] = {}


class TopicTree:
    """A set of topic names, in order of arrival. Wildcards match a first level that begins with
    `$`, too: a filter that is passed on without need costs little."""

    __slots__ = ("_root", "_topics", "steps")

    def __init__(self) -> None:
        self._root = _Level()
        self._topics: dict[str, None] = {}
        self.steps = 0
        """What all calls of `matches` have cost, in levels visited."""

    def __len__(self) -> int:
        """Return the number of topics."""
        return len(self._topics)

    def __contains__(self, topic: object) -> bool:
        """Return whether this very topic is here."""
        return topic in self._topics

    def __iter__(self) -> Iterator[str]:
        """Yield each topic. The tree must not change meanwhile."""
        yield from self._topics

    def add(self, topic: str) -> None:
        """Add a topic, if it is not here."""
        if topic in self._topics:
            return
        self._topics[topic] = None
        level = self._root
        for name in topic.split("/"):
            below = level.below.get(name)
            if below is None:
                below = level.below[name] = _Level()
            level = below
        level.here = True

    def remove(self, topic: str) -> None:
        """Remove a topic, if it is here."""
        if topic not in self._topics:
            return
        del self._topics[topic]
        path: list[tuple[_Level, str]] = []
        level = self._root
        for name in topic.split("/"):
            path.append((level, name))
            level = level.below[name]
        level.here = False
        for above, name in reversed(path):
            below = above.below[name]
            if below.here or below.below:
                return
            del above.below[name]

    def matches(self, topic_filter: str) -> bool:
        """Whether a filter matches any topic that is here (MQTT-4.7)."""
        if not is_wildcard(topic_filter):
            return topic_filter in self._topics
        if not self._topics:
            return False
        names = topic_filter.split("/")
        # Filters may have very many levels, so that this is no recursion.
        todo: list[tuple[_Level, int]] = [(self._root, 0)]
        while todo:
            level, depth = todo.pop()
            self.steps += 1
            if depth == len(names):
                if level.here:
                    return True
            elif names[depth] == "#":
                # No level is empty, and `#` matches the level above it, too (4.7.1.2).
                return True
            elif names[depth] == "+":
                todo.extend([(below, depth + 1) for below in level.below.values()])
            elif (found := level.below.get(names[depth])) is not None:
                todo.append((found, depth + 1))
        return False
