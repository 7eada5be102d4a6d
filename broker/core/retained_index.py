"""Which write of each retained topic is here, as a table that two brokers can compare in a few
steps.

A topic's place is a hash of its name. The first byte of the place chooses one of 256 parts, the
second one of 256 leaves in it; the digest of a leaf, a part or the whole is the exclusive or of
hashes over (place, time, origin) of what is in it, so that it depends on no order and is kept up to
date at the cost of one write.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from mqttree.broker.base import costs

PLACE = 12
"""bytes of a place: to find a name with the place of another topic takes 2^96 attempts."""


def place_of(topic: bytes) -> bytes:
    """Return where a topic is in the table."""
    return blake2b(topic, digest_size=PLACE).digest()


class RetainedVersion:
    """One write of a topic: when (`time`, hybrid clock) and where (`key`, an origin's 16
    characters) it was published.

    `sequence`: its number there, 0 when it was never flooded; `expires_at_ms`: ms since the epoch
    when it was deleted, or expires, 0 for never; `tombstone`: nothing is left but this version, a
    tombstone.
    """

    __slots__ = ("expires_at_ms", "key", "place", "qos", "sequence", "time", "tombstone", "topic")

    def __init__(
        self,
        topic: bytes,
        place: bytes,
        time: int,
        key: bytes,
        sequence: int,
        expires_at_ms: int,
        qos: int,
    ) -> None:
        """`topic`: UTF-8; `place`: where it is in the table (`place_of`); `time`: of the write, by
        the hybrid clock; `key`, `sequence`: origin and number of the message; `expires_at_ms`: when
        it was deleted or expires (ms since the epoch), 0: never; `qos`: of the message."""
        self.topic = topic
        self.place = place
        self.time = time
        self.key = key
        self.sequence = sequence
        self.expires_at_ms = expires_at_ms
        self.qos = qos
        self.tombstone = False

    def before(self, time: int, key: bytes) -> bool:
        """Whether a write at `time` by `key` wins over this one."""
        return (self.time, self.key) < (time, key)

    def pack(self) -> bytes:
        """Return all but the place, as the table keeps it."""
        head = (
            self.time.to_bytes(8, "big")
            + self.key
            + self.sequence.to_bytes(6, "big")
            + self.expires_at_ms.to_bytes(6, "big")
        )
        return head + bytes((self.qos | self.tombstone << 7,)) + self.topic


WRITE = 24
"""bytes of time and origin at the beginning of a packed version."""

FIXED = 37
"""bytes ahead of its topic."""


def unpack(place: bytes, packed: bytes) -> RetainedVersion:
    """Return the version that was packed."""
    flags = packed[FIXED - 1]
    sequence, expires_at_ms = (
        int.from_bytes(packed[WRITE:30], "big"),
        int.from_bytes(packed[30:36], "big"),
    )
    version = RetainedVersion(
        packed[FIXED:],
        place,
        int.from_bytes(packed[:8], "big"),
        packed[8:WRITE],
        sequence,
        expires_at_ms,
        flags & 3,
    )
    version.tombstone = flags > 127
    return version


def _digest(place: bytes, packed: bytes) -> int:
    """Return what a version adds to the digests that it is part of."""
    return int.from_bytes(blake2b(place + packed[:WRITE], digest_size=8).digest(), "big")


class RetainedIndex:
    """The hash tree over all versions. A prefix is the first 0, 1 or 2 bytes of places. It is made
    of bytes in dicts and of no objects: with a million of them the garbage collector would take a
    second each time."""

    def __init__(self) -> None:
        self._leaves: dict[bytes, dict[bytes, bytes]] = {}  # prefix -> place -> packed
        self._values: dict[bytes, int] = {}  # prefix -> digest of a leaf
        self._parts = [0] * 256
        self._counts = [0] * 256
        self._size = 0
        self._bytes = 0  # of all that is packed
        self.whole = 0
        """The digest of everything."""

    def __len__(self) -> int:
        return self._size

    @property
    def memory(self) -> int:
        """Bytes of memory that it takes, about."""
        return (
            self._bytes + self._size * costs.VERSION_MEMORY + len(self._leaves) * costs.LEAF_MEMORY
        )

    def get(self, place: bytes) -> RetainedVersion | None:
        """Return the version at a place."""
        leaf = self._leaves.get(place[:2])
        packed = None if leaf is None else leaf.get(place)
        return None if packed is None else unpack(place, packed)

    def put(self, version: RetainedVersion) -> None:
        """Put a version in, in place of an older one."""
        prefix = version.place[:2]
        leaf = self._leaves.get(prefix)
        if leaf is None:
            leaf = self._leaves[prefix] = {}
        packed = version.pack()
        change = _digest(version.place, packed)
        old = leaf.get(version.place)
        if old is None:
            self._size += 1
            self._counts[prefix[0]] += 1
        else:
            change ^= _digest(version.place, old)
            self._bytes -= len(old)
        self._bytes += len(packed)
        leaf[version.place] = packed
        self._change(prefix, change)

    def remove(self, version: RetainedVersion) -> None:
        """Take out a version that is in it."""
        prefix = version.place[:2]
        leaf = self._leaves[prefix]
        packed = leaf.pop(version.place)
        self._size -= 1
        self._bytes -= len(packed)
        self._counts[prefix[0]] -= 1
        self._change(prefix, _digest(version.place, packed))
        if not leaf:
            del self._leaves[prefix], self._values[prefix]

    def _change(self, prefix: bytes, change: int) -> None:
        self._values[prefix] = self._values.get(prefix, 0) ^ change
        self._parts[prefix[0]] ^= change
        self.whole ^= change

    def digest(self, prefix: bytes) -> int:
        """Return the digest of a part (1 byte) or leaf (2 bytes); 0 when nothing is in it."""
        if len(prefix) == 1:
            return self._parts[prefix[0]]
        return self._values.get(prefix, 0)

    def count(self, prefix: bytes) -> int:
        """Return how many versions are in a part or leaf."""
        if len(prefix) == 1:
            return self._counts[prefix[0]]
        return len(self._leaves.get(prefix, ()))

    def leaves(self, prefix: bytes) -> Iterable[bytes]:
        """Return the prefixes of the leaves of a part, or of a leaf itself; there may be nothing in
        them."""
        return (
            (bytes((prefix[0], index)) for index in range(256)) if len(prefix) == 1 else (prefix,)
        )

    def present(self) -> list[bytes]:
        """Return the prefixes of all leaves in which something is."""
        return list(self._leaves)

    def versions(self, prefix: bytes) -> list[RetainedVersion]:
        """Return what is in a part or leaf."""
        found: list[RetainedVersion] = []
        for leaf in self.leaves(prefix):
            if leaf in self._leaves:
                found += [unpack(place, packed) for place, packed in self._leaves[leaf].items()]
        return found

    def places(self, prefix: bytes) -> list[bytes]:
        """Return the places in a part or leaf."""
        found: list[bytes] = []
        for leaf in self.leaves(prefix):
            if leaf in self._leaves:
                found += self._leaves[leaf]
        return found
