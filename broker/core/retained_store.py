"""Retained messages (MQTT-3.3.1-5 to -8), and which of several writes of a topic wins: the last by
(time, origin), in any order.

A deletion and a message that expired leave a tombstone, so that an older write that comes later is
known to be older. Tombstones are forgotten by the time of day, so on all brokers at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct

from mqttree.broker.base.counters import Counters
from mqttree.broker.base.deadlines import Deadlines, Entry
from mqttree.broker.base.hybrid_clock import LOGICAL
from mqttree.broker.core.limits import CoreLimits
from mqttree.broker.core.message import Message, size_of
from mqttree.broker.core.retained_index import RetainedIndex, RetainedVersion, place_of
from mqttree.broker.wire.strings import is_own
from mqttree.routing.subscription_trie import TopicTrie

TOMBSTONE_AGE_S = 86_400.0
"""s; as long they are remembered: a broker that was away for a night, or a day's journey, does
not bring back what is deleted."""


class Change(IntEnum):
    """What a write of a retained topic has changed here."""

    OLD = 0
    """Nothing: what is here is as new, or newer; or it was a deletion too old to remember."""
    REFUSED = 1
    """Nothing: there was no room."""
    DROPPED = 2
    """It wins, there was no room, and the topic is as deleted: what was there is older."""
    TAKEN = 3
    """It wins, and nothing that a client could see is different: there was nothing to delete."""
    NEW = 4
    """It wins."""


EXPIRES = 4
"""In the first byte of a packed message, behind its QoS: when it expires (s) follows, ahead of its
properties."""

_TIME = Struct(">d")


def _pack(message: Message) -> bytes:
    """Return a message without its topic as the store keeps it: properties (their length first) and
    payload. With objects for a million of them the garbage collector would take a second each
    time."""
    properties = message.properties
    size = len(properties).to_bytes(4, "big")
    if message.expires_at is None:
        return b"".join((bytes((message.qos,)), size, properties, message.payload))
    return b"".join(
        (
            bytes((message.qos | EXPIRES,)),
            _TIME.pack(message.expires_at),
            size,
            properties,
            message.payload,
        )
    )


def _unpack(topic: bytes, packed: bytes) -> Message:
    at = 9 if packed[0] & EXPIRES else 1
    expires_at = _TIME.unpack_from(packed, 1)[0] if at > 1 else None
    payload = at + 4 + int.from_bytes(packed[at : at + 4], "big")
    return Message(
        topic, packed[payload:], packed[0] & 3, True, packed[at + 4 : payload], expires_at, None
    )


def _expired(packed: bytes, now: float) -> bool:
    return bool(packed[0] & EXPIRES) and now >= _TIME.unpack_from(packed, 1)[0]


def _size(topic: bytes, packed: bytes) -> int:
    """Return what `size_of` says of the message."""
    return len(topic) + len(packed) - (13 if packed[0] & EXPIRES else 5)


class RetainedStore:
    """The last retained message of every topic. Topics that begin with `$`, which are the broker's
    own, count for no limit."""

    def __init__(self, counters: Counters, limit: int = 0, *, limits: CoreLimits) -> None:
        """Make one that is empty.

        `counters`: where is counted what it refuses and forgets; `limit`: bytes of all messages,
        0: as many as `limits` say.
        """
        self._counters = counters
        self._limits = limits
        self.limit = limit
        self.closed = False  # no new topics: memory is short
        self.reached = ""  # the limit that refused the last message that was refused
        self.clear()

    def clear(self) -> None:
        """Forget all retained messages and tombstones."""
        self._trie: TopicTrie[bytes] = TopicTrie()  # messages, packed
        self._bytes = 0
        self._own = 0  # topics that are the broker's own
        self._expiring = Deadlines(self._is_current)  # (when, ms; place; time of the version)
        self._tombstone_ends = Deadlines(
            self._tombstone
        )  # the same of tombstones: when they are forgotten
        self._floor = 0  # ms; tombstones that ended up to then were too many
        self.digests = RetainedIndex()
        self.tombstones = 0
        self.refused_at = float("-inf")  # s, when there was no room for something

    def __len__(self) -> int:
        """Return the number of messages, without the broker's own."""
        return len(self._trie) - self._own

    @property
    def own(self) -> int:
        """The number of the broker's own messages."""
        return self._own

    @property
    def index(self) -> int:
        """Bytes of memory of what finds them, about."""
        return self._trie.memory

    @property
    def size(self) -> int:
        """Bytes of all messages, as they are counted for the limit."""
        return self._bytes

    # ---------------------------------------------------------------- one topic

    def store(self, topic: str, message: Message) -> bool:
        """Keep `message`, or forget the topic's when its payload is empty (MQTT-3.3.1-6, -7), for
        this broker alone.

        False: refused (full).
        """
        if not message.payload:
            self._drop(topic)
            return True
        return self._set(topic, message)

    def write(self, message: Message, version: RetainedVersion, now: float, wall: int) -> Change:
        """Store a retained `message` that may not be the newest of its topic, if it is. `version`:
        its version; `now`: s; `wall`: ms since the epoch. A message that has expired is a tombstone
        already."""
        old = self.digests.get(version.place)
        if old is not None and not old.before(version.time, version.key):
            return Change.OLD
        topic = message.topic.decode()
        if message.payload and not message.expired(now):
            if not self._set(topic, message):
                self.refused_at = now
                return self._refuse(topic, old, version, wall)
            if old is not None and old.tombstone:
                self.tombstones -= 1
            self.digests.put(version)
            if version.expires_at_ms:
                self._expiring.add((version.expires_at_ms, version.place, version.time), len(self))
            return Change.NEW
        had = self._trie.get(topic)
        if had is not None:
            self._drop(topic)
        remembered = self.remembers(version.expires_at_ms, wall)
        if old is not None:
            self.tombstones -= old.tombstone
            self.digests.remove(old)
        if remembered:
            self._add_tombstone(version)
        elif old is None:
            return Change.OLD
        return Change.TAKEN if had is None or _expired(had, now) else Change.NEW

    def _refuse(
        self, topic: str, old: RetainedVersion | None, version: RetainedVersion, wall: int
    ) -> Change:
        """Forget what was at the topic, as it is older than what has no room.

        The version becomes a deletion right before the write: nothing older comes back, and
        the write itself may, when there is room. It has no number, and expires at once, as what
        expired: no subscriber gets it.
        """
        if old is None:
            return Change.REFUSED
        if (version.time - 1, version.key) > (old.time, old.key):
            version.time -= 1
        elif old.tombstone:
            return Change.REFUSED  # again
        else:
            version.time, version.key = old.time, old.key
        version.sequence, version.expires_at_ms = 0, (version.time >> LOGICAL) + 1
        self._drop(topic)
        self.tombstones -= old.tombstone
        self.digests.remove(old)
        if self.remembers(version.expires_at_ms, wall):
            self._add_tombstone(version)
        return Change.DROPPED

    def bring_back(self, message: Message, version: RetainedVersion, now: float, wall: int) -> None:
        """Store a `message` that was here before a restart, each topic once. `version`, `now`,
        `wall`: as of `write`."""
        if not message.payload or (message.expires_at is not None and now >= message.expires_at):
            self.write(message, version, now, wall)
        elif self._set(message.topic.decode(), message):
            self.digests.put(version)
            if version.expires_at_ms:
                self._expiring.add((version.expires_at_ms, version.place, version.time), len(self))

    def remembers(self, expires_at_ms: int, wall: int) -> bool:
        """Whether a tombstone with this `expires_at_ms` is kept at `wall` (ms)."""
        return expires_at_ms > self._floor and expires_at_ms + TOMBSTONE_AGE_S * 1000 > wall

    def _set(self, topic: str, message: Message) -> bool:
        old = self._trie.get(topic)
        if is_own(topic):
            self._own += old is None
        else:
            grown = (
                self._bytes + size_of(message) - (0 if old is None else _size(message.topic, old))
            )
            most = self.limit or self._limits.max_retained_bytes
            if grown > most or (
                old is None and (self.closed or len(self) >= self._limits.max_retained)
            ):
                self._counters.retained_refused += 1
                few = (
                    f"{self._limits.max_retained:,} retained messages"
                    if not self.closed
                    else "80 % of memory_limit"
                )
                self.reached = (
                    f"{most:,} bytes of retained messages (max_retained_bytes)"
                    if grown > most
                    else few
                )
                return False
            self._bytes = grown
        self._trie.set(topic, _pack(message))
        return True

    def _drop(self, topic: str) -> None:
        old = self._trie.pop(topic)
        if old is not None and is_own(topic):
            self._own -= 1
        elif old is not None:
            self._bytes -= _size(topic.encode(), old)

    # ---------------------------------------------------------------- reading

    def get(self, topic: str) -> Message | None:
        """Return the retained message of a topic, None if there is none."""
        packed = self._trie.get(topic)
        return None if packed is None else _unpack(topic.encode(), packed)

    def match(self, topic_filter: str, now: float) -> list[Message]:
        """Return the messages that a new subscription gets; those that expired are forgotten
        (MQTT-3.3.2-5)."""
        return [message for message in self.search(topic_filter, now) if message is not None]

    def search(self, topic_filter: str, now: float) -> Iterator[Message | None]:
        """Yield the messages that a new subscription gets, and None for each step that found none.
        Messages may come and go meanwhile."""
        everything = topic_filter == "#" and len(self) + self.tombstones == len(self.digests)
        for topic in self._all() if everything else self._trie.search(topic_filter):
            packed = None if topic is None else self._trie.get(topic)
            if topic is None or packed is None:
                yield None
            elif _expired(packed, now):
                self._expire(topic)
                yield None
            else:
                yield _unpack(topic.encode(), packed)

    def _all(self) -> Iterator[str]:
        """Each topic that does not begin with `$`, leaf by leaf."""
        for prefix in self.digests.present():
            for version in self.digests.versions(prefix):
                if version.topic[:1] != b"$":
                    yield version.topic.decode()

    def message_of(self, version: RetainedVersion, now: float) -> Message | None:
        """Return the message of a version; None when it is deleted or has expired."""
        if version.tombstone:
            return None
        topic = version.topic.decode()
        packed = self._trie.get(topic)
        if packed is None:
            return None
        if _expired(packed, now):
            self._expire(topic)
            return None
        return _unpack(version.topic, packed)

    def topics(self) -> list[str]:
        """Return the topics that have a retained message, the broker's own included."""
        return [topic for topic, _ in self._trie.items()]

    # ---------------------------------------------------------------- tombstones

    def _expire(self, topic: str) -> None:
        self._drop(topic)
        self._counters.expired += 1
        version = self.digests.get(place_of(topic.encode()))
        if version is not None and not version.tombstone:
            self._add_tombstone(version)

    def _add_tombstone(self, version: RetainedVersion) -> None:
        version.tombstone = True
        self.digests.put(version)
        self.tombstones += 1
        self._tombstone_ends.add(
            (
                version.expires_at_ms + int(TOMBSTONE_AGE_S * 1000),
                version.place,
                version.time,
            ),
            self.tombstones,
        )
        while (
            self.tombstones > self._limits.max_tombstones
            and (first := self._tombstone_ends.first()) is not None
        ):
            self._floor = max(self._floor, first - int(TOMBSTONE_AGE_S * 1000))
            self._counters.retained_tombstones_forgotten += self._forget_tombstone()

    def _tombstone(self, entry: Entry) -> RetainedVersion | None:
        version = self.digests.get(entry[1])
        return (
            version
            if version is not None and version.tombstone and version.time == entry[2]
            else None
        )

    def _is_current(self, entry: Entry) -> bool:
        version = self.digests.get(entry[1])
        return version is not None and not version.tombstone and version.time == entry[2]

    def _forget_tombstone(self) -> bool:
        """Forget the oldest tombstone; False when its topic had been written again."""
        version = self._tombstone(self._tombstone_ends.pop())
        if version is None:
            return False
        self.tombstones -= 1
        self.digests.remove(version)
        return True

    def sweep(self, now: float, wall: int, most: int = 250) -> bool:
        """Forget expired messages, and tombstones that are old enough, at most `most` of them;
        returns whether there may be more. `now`: s; `wall`: ms since the epoch."""
        while most and (first := self._tombstone_ends.first()) is not None and first <= wall:
            self._forget_tombstone()
            most -= 1
        while most and (first := self._expiring.first()) is not None and first <= wall:
            most -= 1
            _, place, time = self._expiring.pop()
            version = self.digests.get(place)
            if version is None or version.tombstone or version.time != time:
                continue
            # It came late, or our time of day was set: its own time counts.
            if self.message_of(version, now) is not None:
                self._expiring.add((wall + 1000, place, time), len(self))
        return not most
