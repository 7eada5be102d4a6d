"""A dict in many parts: a dict with a million keys stops the broker for 40 to 90 ms each time it
grows, because it moves all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

V = TypeVar("V")

SHARDS = 256
"""parts, a power of two; of a million keys each has 4,000, which it moves in 0.1 ms."""
_MASK = SHARDS - 1


class ShardedDict(Generic[V]):
    """Strings with values. Peers cannot predict the hash of a string, so no part gets more than its
    share."""

    __slots__ = ("_shards", "_size")

    def __init__(self) -> None:
        self._shards: list[dict[str, V]] = [{} for _ in range(SHARDS)]
        self._size = 0

    def __len__(self) -> int:
        """Return the number of keys."""
        return self._size

    def __contains__(self, key: object) -> bool:
        """Whether there is such a key."""
        return key in self._shards[hash(key) & _MASK]

    def __getitem__(self, key: str) -> V:
        """Return the value of a key that is there."""
        return self._shards[hash(key) & _MASK][key]

    def __setitem__(self, key: str, value: V) -> None:
        """Set the value of a key."""
        shard = self._shards[hash(key) & _MASK]
        before = len(shard)
        shard[key] = value
        self._size += len(shard) - before

    def __delitem__(self, key: str) -> None:
        """Remove a key that is there."""
        del self._shards[hash(key) & _MASK][key]
        self._size -= 1

    def get(self, key: str) -> V | None:
        """Return the value of a key, or None."""
        return self._shards[hash(key) & _MASK].get(key)

    def pop(self, key: str) -> V | None:
        """Remove a key and return its value; None if it is not there."""
        shard = self._shards[hash(key) & _MASK]
        if key not in shard:
            return None
        self._size -= 1
        return shard.pop(key)

    def parts(self) -> Iterator[list[tuple[str, V]]]:
        """Yield all keys with their values, a part at a time; keys may be added and removed in
        between."""
        for shard in self._shards:
            yield list(shard.items())

    def items(self) -> Iterator[tuple[str, V]]:
        """Yield all keys with their values; they may change meanwhile."""
        for part in self.parts():
            yield from part

    def values(self) -> Iterator[V]:
        """Yield all values; keys may change meanwhile."""
        for part in self.parts():
            for _, value in part:
                yield value
