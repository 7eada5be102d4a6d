"""Topics and filters in tries: which filters match a topic, and which retained topics match a
filter, both without looking at all of them.

No walk recurses: a filter may have 32,768 levels, and its depth must cost time in proportion and no
stack. Each node has one parent, so the nodes reached at a level are distinct, and a look-up never
visits a node twice, however many wildcards a filter has.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Final, Generic, TypeVar

from mqttree.routing.sharded import ShardedDict
from mqttree.routing.topic_filter import is_wildcard, matches, well_formed

V = TypeVar("V")

# The subscribers of one filter, in order of arrival. Most filters have one: a pair takes a quarter
# of a dict's bytes.
_Bucket = tuple[Hashable, V] | dict[Hashable, V]


class _Node(Generic[V]):
    """A node: a level prefix of wildcard filters. Nothing follows '#', so it is a bucket at its
    parent and not a node."""

    __slots__ = ("bucket", "children", "multi", "plus")

    def __init__(self) -> None:
        self.children: dict[str, _Node[V]] | None = None
        self.plus: _Node[V] | None = None
        # The bucket of the filter prefix/#.
        self.multi: _Bucket[V] | None = None
        # The bucket of the filter that ends here.
        self.bucket: _Bucket[V] | None = None

    def is_empty(self) -> bool:
        """Whether no filter ends here or below."""
        return (
            not self.children and self.plus is None and self.multi is None and self.bucket is None
        )


NO_NODES: list[Any] = []

PREFIXES, LONGEST_PREFIX = 1024, 256
"""prefixes of topics of which a trie notes what they find, at most, and their characters."""

MAX_ALIKE = 16
"""values that are noted for a prefix, at most."""


class SubscriptionTrie(Generic[V]):
    """Topic filters with keyed values: which values belong to filters that match a topic?

    A filter without wildcards is found by one look-up in a dict; the others are in a trie with a
    level a step. Filters are taken literally: split `$share/` off first
    (`topic_filter.split_shared`).

    `steps` is the cost of all calls of `match`: nodes visited and values found.
    """

    __slots__ = ("_alike", "_exact", "_root", "_size", "_wild", "steps")

    def __init__(self) -> None:
        self._exact: dict[str, _Bucket[V]] = {}
        # The same buckets hang in the trie; found by filter here without a walk.
        self._wild: dict[str, _Bucket[V]] = {}
        self._root: Final[_Node[V]] = _Node()
        # Topics without their last level -> what wildcard filters find, whatever that level is.
        # Publishers go through many topics that only differ there.
        self._alike: dict[str, list[V]] = {}
        self._size = 0
        self.steps = 0

    def __len__(self) -> int:
        """Return the number of (filter, key) pairs."""
        return self._size

    def __contains__(self, filter: object) -> bool:
        """Return whether this very filter is here."""
        return filter in self._exact or filter in self._wild

    def filters(self) -> Iterator[str]:
        """Yield each filter once, in order of arrival, those without wildcards first. The trie must
        not change meanwhile."""
        yield from self._exact
        yield from self._wild

    def get(self, filter: str, key: Hashable) -> V | None:
        """Return the value of (filter, key), or None."""
        bucket = self._buckets(filter).get(filter)
        if bucket is None:
            return None
        if isinstance(bucket, tuple):
            return bucket[1] if bucket[0] == key else None
        return bucket.get(key)

    def only(self, filter: str, key: Hashable) -> bool:
        """Return whether a `filter` that is here has the one value of this `key`."""
        bucket = self._buckets(filter)[filter]
        return bucket[0] == key if isinstance(bucket, tuple) else bucket.keys() == {key}

    def insert(self, filter: str, key: Hashable, value: V) -> bool:
        """Set the value of (`filter`, `key`) to `value`. An old value is replaced, and keeps its
        place in the order.

        Returns True if the filter is new here, that is, if this is the first interest in it. Raises
        ValueError: a wildcard stands where none may (MQTT-4.7.1-1, -2).
        """
        buckets = self._buckets(filter)
        bucket = buckets.get(filter)
        if isinstance(bucket, dict):
            self._size += key not in bucket
            bucket[key] = value
        else:
            joined = bucket is not None and bucket[0] != key
            new: _Bucket[V] = (
                dict((bucket, (key, value))) if bucket is not None and joined else (key, value)
            )
            if buckets is self._wild:
                if bucket is None and not well_formed(filter):
                    raise ValueError(f"malformed topic filter: {filter[:80]!r}")
                self._plant(filter, new)
            buckets[filter] = new
            self._size += bucket is None or joined
        self._changed()
        return bucket is None

    def remove(self, filter: str, key: Hashable) -> bool:
        """Remove (filter, key), if it is there. Returns True if the filter is not here any more,
        that is, if this was the last interest in it."""
        buckets = self._buckets(filter)
        bucket = buckets.get(filter)
        if bucket is None:
            return False
        if isinstance(bucket, dict):
            if key not in bucket:
                return False
            del bucket[key]
            last = not bucket
        else:
            if bucket[0] != key:
                return False
            last = True
        if last:
            del buckets[filter]
            if buckets is self._wild:
                self._uproot(filter)
        self._size -= 1
        self._changed()
        return last

    def _changed(self) -> None:
        if self._alike:
            self._alike.clear()

    def match(self, topic: str) -> list[V]:
        """Return the values of all filters that match a valid topic name (4.7.1; MQTT-4.7.2-1), in
        a fixed order.

        Values of one filter come in order of arrival. A key that holds several matching filters
        appears once for each. The time is that of the nodes visited: at most those of the filters'
        prefixes that match the topic's.
        """
        found: list[V] = []
        bucket = self._exact.get(topic)
        if bucket is not None:
            _collect(found, bucket)
        if not self._wild:
            return found
        prefix, slash, _ = topic.rpartition("/")
        if slash and (alike := self._alike.get(prefix)) is not None:
            found += alike
            self.steps += len(found)
            return found
        exact = len(found)
        levels = iter(topic.split("/"))
        above = node = self._root
        nodes = NO_NODES
        guarded = topic[:1] == "$"  # the first level's wildcards do not match (MQTT-4.7.2-1)
        steps = 0
        # A walk with one node at each level, as most are, makes no lists.
        for level in levels:
            plus, children = node.plus, node.children
            if guarded:
                plus = None
                guarded = False
            elif node.multi is not None:
                _collect(found, node.multi)
            child = None if children is None else children.get(level)
            if child is None:
                if plus is None:
                    self.steps += steps + len(found)
                    return found
                child = plus
            elif plus is not None:
                nodes = [child, plus]
                break
            steps += 1
            above, node = node, child
        else:
            if node.bucket is not None:
                _collect(found, node.bucket)
            if node.multi is not None:  # '#' includes its parent level
                _collect(found, node.multi)
            if slash and above.children is None:
                self._note_alike(prefix, found[exact:])
        if nodes:
            self._match_below(nodes, levels, found)
        self.steps += steps + len(found)
        return found

    def _note_alike(self, prefix: str, found: list[V]) -> None:
        """Note what wildcard filters find for all topics of one more level than `prefix`."""
        if len(prefix) <= LONGEST_PREFIX and len(found) <= MAX_ALIKE:
            if len(self._alike) >= PREFIXES:
                self._alike.clear()
            self._alike[prefix] = found

    def _match_below(self, nodes: list[_Node[V]], levels: Iterator[str], found: list[V]) -> None:
        """Add to `found` the values of the filters below `nodes`, all of one level, that match the
        rest of a topic (`levels`)."""
        for level in levels:
            self.steps += len(nodes)
            reached: list[_Node[V]] = []
            for node in nodes:
                if node.multi is not None:
                    _collect(found, node.multi)
                if node.children is not None and (child := node.children.get(level)) is not None:
                    reached.append(child)
                if node.plus is not None:
                    reached.append(node.plus)
            if not reached:
                return
            nodes = reached
        self.steps += len(nodes)
        for node in nodes:
            if node.bucket is not None:
                _collect(found, node.bucket)
            if node.multi is not None:  # '#' includes its parent level
                _collect(found, node.multi)

    def _buckets(self, filter: str) -> dict[str, _Bucket[V]]:
        return self._wild if is_wildcard(filter) else self._exact

    def _plant(self, filter: str, bucket: _Bucket[V]) -> None:
        """Put the bucket of a well-formed wildcard filter into the trie, in place of an older
        one."""
        node = self._root
        for level in filter.split("/"):
            if level == "#":
                node.multi = bucket
                return
            if level == "+":
                if node.plus is None:
                    node.plus = _Node()
                node = node.plus
            else:
                if node.children is None:
                    node.children = {}
                child = node.children.get(level)
                if child is None:
                    child = node.children[level] = _Node()
                node = child
        node.bucket = bucket

    def _uproot(self, filter: str) -> None:
        """Remove a filter from the trie, with the branch that only it needed."""
        path: list[tuple[_Node[V], str]] = []  # (parent, level below it)
        node = self._root
        for level in filter.split("/"):
            if level == "#":
                node.multi = None
                break
            path.append((node, level))
            below = node.plus if level == "+" else (node.children or {}).get(level)
            assert below is not None, "a planted filter has all its nodes"
            node = below
        else:
            node.bucket = None
        while path and node.is_empty():
            node, level = path.pop()
            if level == "+":
                node.plus = None
            elif node.children is not None:
                del node.children[level]
                if not node.children:
                    node.children = None


def _collect(found: list[V], bucket: _Bucket[V]) -> None:
    """Append a bucket's values."""
    if isinstance(bucket, tuple):
        found.append(bucket[1])
    else:
        found.extend(bucket.values())


NODE = 350
"""estimated bytes of memory of a node of stored topics with its key."""

SPLIT_CHILDREN = 4096
"""children of one node from which on they are kept in parts: a dict of all of them would stop the
broker when it grows."""


class _TopicNode:
    """A node: a level prefix of several stored topics; `topic` is set where one ends. A topic that
    alone has a prefix stands there as it is, in place of a node: most of a million topics have no
    node of their own."""

    __slots__ = ("children", "topic")

    def __init__(self) -> None:
        self.children: dict[str, _TopicNode | str] | ShardedDict[_TopicNode | str] | None = None
        self.topic: str | None = None

    def put(self, level: str, child: _TopicNode | str) -> None:
        """Put a child below this node, in place of an older one of this level."""
        if self.children is None:
            self.children = {}
        elif len(self.children) == SPLIT_CHILDREN and isinstance(self.children, dict):
            parts: ShardedDict[_TopicNode | str] = ShardedDict()
            for known, node in self.children.items():
                parts[known] = node
            self.children = parts
        self.children[level] = child

    def alone(self) -> str | None:
        """Return the only topic that is left here or below, None if there are more."""
        if not self.children:
            return self.topic
        if self.topic is not None or len(self.children) > 1:
            return None
        (only,) = self.children.values()
        return only if isinstance(only, str) else None


class TopicTrie(Generic[V]):
    """Topics with values, such as retained messages: which topics does a filter match?

    `memory` is the estimated number of bytes of nodes, without topics and values.
    """

    __slots__ = ("_root", "_values", "memory")

    def __init__(self) -> None:
        self._values: ShardedDict[V] = ShardedDict()
        self.memory = 0
        self._root: Final = _TopicNode()

    def __len__(self) -> int:
        """Return the number of topics."""
        return len(self._values)

    def __contains__(self, topic: object) -> bool:
        """Whether the topic is stored."""
        return topic in self._values

    def items(self) -> Iterator[tuple[str, V]]:
        """Yield all (topic, value). They may change meanwhile."""
        return self._values.items()

    def get(self, topic: str) -> V | None:
        """Return the topic's value, or None."""
        return self._values.get(topic)

    def set(self, topic: str, value: V) -> None:
        """Store the value of a valid topic name, in place of an older one."""
        if topic not in self._values:
            self._plant(topic)
        self._values[topic] = value

    def _plant(self, topic: str) -> None:
        node = self._root
        # The levels of the topic that was alone here.
        rest: list[str] = []
        for depth, level in enumerate(topic.split("/"), 1):
            child = None if node.children is None else node.children.get(level)
            if child is None:
                node.put(level, topic)
                return
            if isinstance(child, str):
                rest = rest or child.split("/")
                alone, child = child, _TopicNode()
                self.memory += NODE
                node.put(level, child)
                if len(rest) == depth:
                    child.topic = alone
                else:
                    child.children = {rest[depth]: alone}
            node = child
        node.topic = topic

    def pop(self, topic: str) -> V | None:
        """Remove a topic and return its value; None if it is not stored."""
        if topic not in self._values:
            return None
        path: list[tuple[_TopicNode, str]] = []  # (parent, level below it)
        node = self._root
        for level in topic.split("/"):
            assert node.children is not None, "a stored topic has all its nodes, or stands alone"
            child = node.children[level]
            if isinstance(child, str):
                del node.children[level]
                node.children = node.children or None
                break
            path.append((node, level))
            node = child
        else:
            node.topic = None
        while path and (alone := node.alone()) is not None:
            node, level = path.pop()
            self.memory -= NODE
            assert node.children is not None, "that hangs here"
            node.children[level] = alone
        return self._values.pop(topic)

    def match(self, filter: str) -> list[tuple[str, V]]:
        """Return (topic, value) of all topics that a valid filter matches (4.7.1; MQTT-4.7.2-1), in
        a fixed order."""
        values = self._values
        return [(topic, values[topic]) for topic in self.search(filter) if topic is not None]

    def search(self, filter: str) -> Iterator[str | None]:
        """Yield each topic that a valid filter matches, and None for each step that found none.
        Topics may change meanwhile.

        A filter without wildcards is one look-up, `#` alone one pass. Otherwise the steps are the
        nodes visited: each level of the filter looks at the nodes that its prefix matches, `#` at
        all that lie below them.
        """
        if not is_wildcard(filter):
            yield filter if filter in self._values else None
            return
        if filter == "#":
            for topic, _ in self._values.items():
                yield None if topic.startswith("$") else topic
            return
        levels = filter.split("/")
        # With the number of levels that are done.
        stack: list[tuple[Iterator[_TopicNode | str], int]] = [(iter((self._root,)), 0)]
        while stack:
            nodes, depth = stack[-1]
            node = next(nodes, None)
            level = levels[depth] if depth < len(levels) else ""
            if node is None:
                stack.pop()
            elif isinstance(node, str):
                yield node if level == "#" or matches(filter, node) else None
            elif depth == len(levels):
                yield node.topic
            else:
                yield node.topic if level == "#" else None
                if level in {"#", "+"}:
                    below = _children(node, guarded=node is self._root)
                    stack.append((below, depth + (level == "+")))
                elif node.children is not None and (child := node.children.get(level)) is not None:
                    stack.append((iter((child,)), depth + 1))


def _children(node: _TopicNode, guarded: bool) -> Iterator[_TopicNode | str]:
    """Yield all topics below a node; if `guarded`, without levels that begin with '$': wildcards
    skip these (MQTT-4.7.2-1)."""
    children = node.children
    if isinstance(children, ShardedDict):
        return _unguarded(children, guarded)
    return iter(
        [
            child
            for level, child in (children or {}).items()
            if not (guarded and level.startswith("$"))
        ]
    )


def _unguarded(
    children: ShardedDict[_TopicNode | str], guarded: bool
) -> Iterator[_TopicNode | str]:
    # There may be very many: they are found one at a time.
    for level, child in children.items():
        if not (guarded and level.startswith("$")):
            yield child
