"""The recent QoS 1 and 2 (and retained) messages that crossed this broker, kept for neighbours that
missed them."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import islice
from operator import attrgetter
from typing import Final, TypeVar

from mqttree.broker.base import costs
from mqttree.broker.base.counters import Counters
from mqttree.broker.base.sequence_set import Ranges, find, intersect
from mqttree.broker.cluster.limits import ClusterLimits
from mqttree.broker.cluster.link.message_batch import (
    MessageBatch,
    age_batch,
    choice_of,
    encode_message,
    is_topic_name,
)
from mqttree.broker.cluster.link.version_vector import OriginWindow, Vector
from mqttree.broker.cluster.strategy.routing_strategy import every_topic
from mqttree.broker.core.connection import Connection
from mqttree.broker.core.message import Message
from mqttree.broker.core.receiver_assignment import ReceiverAssignment
from mqttree.broker.wire.errors import MalformedPacket

A = TypeVar("A")

NEVER: Final = 1 << 62
"""bytes, or a sequence number, that no log reaches."""

VOID: Final = b"$void"
"""The topic of messages that are void: wildcards do not match it."""

Numbers = dict[bytes, Ranges]
"""Some messages: origin -> ascending inclusive pairs of sequence numbers."""


class Looked:
    """How many entries of the log were gone through."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries = 0


class LogEntry:
    """A batch in the log: `count` messages of the origin `key` from number `sequence` on, which
    came at `at` (s). One piece of bytes, which is not looked into before one of its messages or
    topics is asked for."""

    __slots__ = ("_data", "at", "count", "key", "sequence", "size")

    def __init__(self, key: bytes, sequence: int, count: int, data: bytes, at: float) -> None:
        """`key`, `sequence`, `count`, `at`: as above; `data`: the batch as links carry it
        (`message_batch`)."""
        self.key = key
        self.sequence = sequence
        self.count = count
        self.at = at
        self._data = data
        self.size = len(data)

    def parts(self, ranges: Ranges) -> list[LogEntry]:
        """Return the messages with the numbers in each of these `ranges`, which are all its own, as
        entries that are in no log."""
        if ranges == [(self.sequence, self.sequence + self.count - 1)]:
            return [self]
        return [self._of(part) for part in MessageBatch.read(self._data).parts(ranges)]

    def _of(self, batch: MessageBatch) -> LogEntry:
        """Return an entry for a part of this one."""
        return LogEntry(batch.key, batch.sequence, batch.count, batch.encode(), self.at)

    def divide(self, ask: Callable[[bytes], A]) -> list[tuple[A, LogEntry]]:
        """Return parts of messages that follow each other and for whose topics `ask` answers the
        same, each with that answer; the entry itself if the answer is the same for all."""
        parts = MessageBatch.read(self._data).divide(ask)
        if len(parts) == 1:
            return [(parts[0][0], self)]
        return [(answer, self._of(part)) for answer, part in parts]

    def topics(self) -> Iterator[bytes]:
        """Return the topic name of each message."""
        return MessageBatch.read(self._data).topics()

    def messages(self) -> Iterator[tuple[int, Message]]:
        """Return each message, decoded, with its sequence number."""
        return MessageBatch.read(self._data).messages(self.at)

    @property
    def choice(self) -> ReceiverAssignment | None:
        """Which members of shared subscriptions get it, when it says so: a single message may."""
        return choice_of(self._data)

    @property
    def passed(self) -> bool:
        """Whether it is one message that was given to another member of a group: it is for that
        group alone, and had another number before."""
        choice = self.choice
        return choice is not None and choice.passed

    @property
    def qos(self) -> int:
        """The QoS that they were published at."""
        return self._data[0] >> 1 & 3

    @property
    def retain(self) -> bool:
        """Whether it is a retained message."""
        return self._data[0] & 1 != 0

    def data(self, now: float) -> bytes:
        """Return the batch as links carry it at `now` (s), which counts for what expires."""
        later = round((now - self.at) * 1000)
        return age_batch(self._data, later) if later > 0 else self._data

    def kept(self) -> bytes:
        """Return the batch as links carried it when it came, at `at`."""
        return self._data

    def void(self) -> None:
        """Have its numbers stand for messages that no client gets. It takes as much room as
        before."""
        qos = self.qos
        packet = Message(VOID, b"", qos, False, b"", None, None).packet(4, qos, False, 1)
        packets = packet * self.count
        batch = MessageBatch(self.key, self.sequence, packets, self.count, 4, qos)
        self._data = batch.encode()


class ReplayLog:
    """A ring bounded in bytes and age. Order is that of acceptance, so per origin it is the
    origin's. `len`: entries.

    What is behind `floor` is not dropped before neighbours have it (`link_acks`), up to
    `log_kept_bytes`. Positions count the bytes that the log has taken.
    """

    __slots__ = (
        "_bytes",
        "_counters",
        "_entries",
        "_gone",
        "_large",
        "_limits",
        "_more",
        "begin",
        "chosen",
        "floor",
        "limit",
        "on_dropped",
        "on_full",
        "on_needed_dropped",
        "on_pressure",
        "room",
        "unsent",
        "warn",
    )

    def __init__(
        self,
        counters: Counters,
        limit: int | None = None,
        room: int = 0,
        *,
        limits: ClusterLimits,
    ) -> None:
        """Make one that is empty.

        `counters`: where is counted what is lost; `limit`: bytes, None: as many as `limits` say;
        `room`: as many more for large messages.
        """
        self._limits = limits
        self._entries: deque[LogEntry] = deque()
        self._bytes = 0
        self._gone = 0  # entries
        self._counters = counters
        self.limit = limits.log_bytes if limit is None else limit
        """bytes"""
        self.room = room
        # Large entries that found the log full: when (s), position behind, bytes.
        self._large: deque[tuple[float, int, int]] = deque()
        self._more = 0  # bytes of these: as much has not been pushed out
        self.begin = 0
        """Position of the oldest entry."""
        self.chosen = 0
        """Position behind the newest entry of this broker's with a receiver assignment."""
        self.floor = NEVER
        """Position from which on neighbours may lack entries,"""
        self.warn = NEVER
        """and from which on they are asked for acknowledgements when it is dropped."""
        self.unsent = 0
        """Bytes of the entry that is being appended: a message is logged first, and then sent."""
        self.on_pressure: Callable[[], None] = _nothing
        self.on_full: Callable[[Connection | None], None] = _no_hold
        self.on_needed_dropped: Callable[[LogEntry, int], None] = _no_need
        self.on_dropped: list[Callable[[LogEntry, int, Connection | None], None]] = []
        """Called with each entry that goes, its position, and whose message pushed it out."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes of all entries in the log."""
        return self._bytes

    @property
    def memory(self) -> int:
        """Bytes of memory that these take, about."""
        return self._bytes + len(self._entries) * costs.LOG_ENTRY_MEMORY

    @property
    def end(self) -> int:
        """Position of the next entry."""
        return self.begin + self._bytes

    @property
    def recent(self) -> int:
        """Where the log would begin without room for large messages."""
        return max(self.begin, min(self.floor, self.end - self.limit)) if self._more else self.begin

    @property
    def owed(self) -> int:
        """Bytes that neighbours may lack."""
        return self.begin + self._bytes - self.floor

    def append(self, entry: LogEntry, source: Connection | None) -> None:
        """Keep an entry; the oldest make room. `source`: the connection that its messages came on,
        which is held when there is no room; None: no connection has to wait."""
        self._entries.append(entry)
        self._bytes = size = self._bytes + entry.size
        if size > self.limit:
            self.unsent = entry.size
            if entry.size >= self._limits.log_large_bytes:
                self._large.append((entry.at, self.end, entry.size))
                self._more += entry.size
            if self._more:
                self._take_room(entry.at)
            if not self.trim(source) and self.owed > self.limit + self._limits.hold_log_bytes:
                self.on_full(source)
            self.unsent = 0

    def keep(
        self,
        key: bytes,
        sequence: int,
        message: Message,
        choice: ReceiverAssignment | None,
        now: float,
    ) -> None:
        """Keep a `message` that came to this broker alone, at `now` (s): number `sequence` of the
        origin `key`. `choice`: its receiver assignment."""
        data = encode_message(message, key, sequence, now, choice)
        self.append(LogEntry(key, sequence, 1, data, now), None)
        self.chosen = self.end

    def restore(self, entry: LogEntry) -> None:
        """Keep an entry of an earlier incarnation of this broker, which may name members of shared
        subscriptions."""
        self.append(entry, None)
        self.chosen = self.end

    def give_room(self, room: int) -> None:
        """Have so many bytes of room for large messages."""
        self.room = room
        if self._more > room:
            self._take_room()
            self.trim(None)

    def _take_room(self, now: float = 0.0) -> None:
        """Take back the room of large messages that have had it for long enough, or are gone; of
        the oldest if there are too many."""
        large = self._large
        while large and (
            large[0][0] + self._limits.log_large_s <= now
            or large[0][1] <= self.begin
            or self._more > self.room
        ):
            self._more -= large.popleft()[2]

    def trim(self, source: Connection | None) -> bool:
        """Drop the oldest entries, some at a time, as far as no neighbour may lack them; returns
        whether there is room then. `source`: as of `append`."""
        entries, dropped, floor = self._entries, self.on_dropped, self.floor
        size, begin, gone = self._bytes, self.begin, 0
        enough = self.limit + self._more if self._more else self.limit - (self.limit >> 9)
        if not dropped and floor - begin > size - enough:  # as ever: no neighbour lacks any of it
            free, most = 0, size - max(enough, entries[-1].size)
            popleft = entries.popleft
            while free < most:
                entry = popleft()
                free += entry.size
                gone += 1
            if free > floor - begin:
                entries.appendleft(entry)
                free -= entry.size
                gone -= 1
            size -= free
            begin += free
        while size > enough and len(entries) > 1:
            entry = entries[0]
            length = entry.size
            if begin + length > floor:
                if size <= self._limits.log_kept_bytes:
                    break
                self.on_needed_dropped(entry, begin)
            for call in dropped:
                call(entry, begin, source)
            del entries[0]
            size -= length
            begin += length
            gone += 1
        self._bytes, self.begin = size, begin
        self._gone += gone
        self._counters.replay_log_trimmed += gone
        if self.recent >= self.warn:
            self.on_pressure()
        return size <= self.limit

    def pieces(self, since: float = float("-inf")) -> Iterator[list[LogEntry]]:
        """The entries that are here now and came since (s), the oldest first, some at a time; those
        that go before their turn are left out. One list of all would be a burden for the garbage
        collector, which looks through all that is new."""
        at, end = self._gone, self._gone + len(self._entries)
        piece = self._limits.log_piece
        if self._entries and since > self._entries[0].at:
            at += bisect_left(self._entries, since, key=attrgetter("at"))
        while (at := max(at, self._gone)) < end:
            begin = at - self._gone
            yield list(self._some(begin, begin + min(piece, end - at)))
            at += piece

    def _some(self, begin: int, end: int) -> Iterable[LogEntry]:
        """Some entries, found from the nearer end: 10 ns for each that is passed."""
        count = len(self._entries)
        if begin <= count - end:
            return islice(self._entries, begin, end)
        return list(islice(reversed(self._entries), count - end, count - begin))[::-1]

    def forget_old(self, now: float) -> None:
        """Drop what is older than `log_age_s` and what no neighbour may lack, so much of it in
        one turn."""
        if self._more:
            self._take_room(now)
            self.trim(None)
        entries, left = self._entries, self._limits.log_old
        while (
            entries
            and left > 0
            and entries[0].at + self._limits.log_age_s < now
            and self.begin + entries[0].size <= self.floor
        ):
            entry = entries.popleft()
            self._gone += 1
            # Each of its messages is looked at by those that are told.
            left -= entry.count if self.on_dropped else 1
            for call in self.on_dropped:
                call(entry, self.begin, None)
            self._bytes -= entry.size
            self.begin += entry.size

    def old(self, now: float) -> bool:
        """Whether the oldest entry is there only because a neighbour may lack it."""
        return bool(self._entries) and self._entries[0].at + self._limits.log_age_s < now

    @property
    def next(self) -> int:
        """The number of the next entry, the first one ever being 0."""
        return self._gone + len(self._entries)

    def lacked(self, seen: Vector, first: int, most: int) -> tuple[list[LogEntry], int]:
        """Look at up to `most` entries, from number `first` on. Return those of which a neighbour
        with `seen` may lack something (`lacked_parts`), none of origins that it does not know, and
        the number of the entry behind all of them."""
        begin = max(0, first - self._gone)
        end = max(begin, min(len(self._entries), first + most - self._gone))
        least = {
            key: window.gaps[0][0] if window.gaps else window.top + 1
            for key, window in seen.items()
        }
        lacks = least.get
        # Hardly any, mostly.
        found = [e for e in self._some(begin, end) if e.sequence + e.count > lacks(e.key, NEVER)]
        return found, self._gone + end

    def latest(self) -> Iterator[LogEntry]:
        """Each entry, the newest first. No change while iterating."""
        return reversed(self._entries)

    def first_of(self, key: bytes) -> int:
        """Return the number of the oldest message of an origin; NEVER: there is none."""
        return next((entry.sequence for entry in self._entries if entry.key == key), NEVER)

    def own(self, key: bytes, numbers: Ranges, looked: Looked) -> Iterator[LogEntry]:
        """Those `numbers` of the origin `key` that were logged as they were numbered (of this
        broker), the oldest first. Looks no further than it is asked to; the entries that it went
        through are added to `looked`. No change while iterating."""
        entries = iter(self._entries)
        low, at = numbers[0][0], 0
        while piece := list(islice(entries, self._limits.log_piece)):
            looked.entries += len(piece)
            for entry in [e for e in piece if e.key == key and e.sequence + e.count > low]:
                last = entry.sequence + entry.count - 1
                while numbers[at][1] < entry.sequence:
                    at += 1
                    if at == len(numbers):
                        return
                if numbers[at][0] <= entry.sequence and last <= numbers[at][1]:
                    yield entry
                elif numbers[at][0] <= last:
                    yield from entry.parts(intersect([(entry.sequence, last)], numbers[at:]))

    def those(
        self, numbers: Numbers, horizon: float, looked: Looked | None = None
    ) -> list[LogEntry]:
        """Return the messages with these `numbers`, in the order of each origin, as far as they
        came after `horizon` (s). Costs no more than going back to the oldest of them; the entries
        that were gone through are added to `looked`."""
        found: list[LogEntry] = []
        for entry, ranges in self.holding(numbers, horizon, looked):
            found += entry.parts(ranges)[::-1]
        found.reverse()
        return in_order(found, numbers)

    def holding(
        self, numbers: Numbers, horizon: float, looked: Looked | None = None
    ) -> list[tuple[LogEntry, Ranges]]:
        """Return the entries that have any of these `numbers`, the newest first, each with those
        that it has. `horizon`, `looked`: as of `those`."""
        found: list[tuple[LogEntry, Ranges]] = []
        left = sum(high - low + 1 for ranges in numbers.values() for low, high in ranges)
        count = 0
        for entry in reversed(self._entries):
            if left <= 0 or entry.at < horizon:
                break
            count += 1
            if (ranges := numbers.get(entry.key)) is None:
                continue
            first, last = entry.sequence, entry.sequence + entry.count - 1
            index = find(ranges, first, last)
            if index < 0:
                continue
            if ranges[index][0] <= first and last <= ranges[index][1]:
                left -= entry.count
                found.append((entry, [(first, last)]))
            else:
                parts = intersect([(first, last)], ranges)
                left -= sum(high - low + 1 for low, high in parts)
                found.append((entry, parts))
        if looked is not None:
            looked.entries += count
        return found


def lacked_parts(entry: LogEntry, window: OriginWindow) -> list[LogEntry]:
    """Return the parts of an `entry` that a neighbour lacks which has had `window` of its origin.
    What has expired goes there, too: its number would be missing, and later messages wait for
    it."""
    last = entry.sequence + entry.count - 1
    if entry.sequence > window.top:
        return [entry]
    if last <= window.top and find(window.gaps, entry.sequence, last) < 0:
        return []
    return entry.parts(intersect([(entry.sequence, last)], window.lacks))


def wanted_parts(entry: LogEntry, wanted: Callable[[bytes], bool]) -> list[LogEntry]:
    """Return the parts of an `entry` whose topics are `wanted`. It is not looked into if all are
    (`every_topic`)."""
    if wanted is every_topic:
        return [entry]
    return [part for yes, part in entry.divide(wanted) if yes]


def restored_batch(data: bytes, at: float, *, whole: bool) -> LogEntry:
    """Return the entry of a batch that was read from the disk.

    `data`, `at`: as of `LogEntry`; `whole`: each of its messages is checked, too.

    Raises:
        MalformedPacket: it is not a batch at QoS 1 or 2.
    """
    batch = MessageBatch.read(data)
    if not batch.qos:
        raise MalformedPacket("batch on the disk is at QoS 0")
    if whole and not all(is_topic_name(message.topic) for _, message in batch.messages()):
        raise MalformedPacket("batch on the disk has no topic names")
    return LogEntry(batch.key, batch.sequence, batch.count, data, at)


def in_order(entries: list[LogEntry], origins: Container[bytes]) -> list[LogEntry]:
    """Return `entries` with those of each of these `origins` in the order of their numbers: history
    that was fetched for a neighbour is logged behind newer messages."""
    ordered: dict[bytes, list[LogEntry]] = {}
    for entry in entries:
        if entry.key in origins:
            ordered.setdefault(entry.key, []).append(entry)
    turns = {key: iter(sorted(same, key=lambda e: e.sequence)) for key, same in ordered.items()}
    return [next(turns[entry.key]) if entry.key in turns else entry for entry in entries]


def _nothing() -> None:
    """Ask no neighbour for acknowledgements."""


def _no_hold(source: Connection | None) -> None:
    """No publisher has to wait."""


def _no_need(entry: LogEntry, position: int) -> None:
    """No neighbour lacks the entry."""
