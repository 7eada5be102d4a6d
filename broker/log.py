"""The recent QoS 1 and 2 (and retained) messages that crossed this broker, kept for neighbours that missed them."""

from __future__ import annotations

from collections import deque

from broker import limits
from broker.counters import Counters
from broker.fanout import topic_of
from broker.message import Message, size_of
from broker.origin import LAST, Vector, encode_for_links, explicit, intersect


class Entry:
    """One message for links, or a run of them (`Entry.run`): `count` messages from `sequence` on.

    What was published here while no link was there is encoded only when somebody needs it.
    """

    __slots__ = ("_data", "_message", "_step", "at", "count", "expires_at", "key", "sequence", "size")

    def __init__(self, key: bytes, sequence: int, data: bytes, message: Message, at: float) -> None:
        """`data`: the PUBLISH as links carry it, b"" to make it from `message` later; `at`: s."""
        self.key = key
        self.sequence = sequence
        self.count = 1
        self.at = at
        self.expires_at = message.expires_at
        self._data = data
        self._step = 0  # bytes of each message of a run but the first
        self._message: Message | None = None if data else message
        self.size = len(data) or size_of(message)

    @classmethod
    def run(cls, key: bytes, sequence: int, count: int, data: bytes, step: int, at: float) -> Entry:
        """Return the entry of a run: its first PUBLISH names its origin, the others, `step` bytes each, continue it. One
        entry and one piece of bytes; a neighbour may lack a part of it (`part`)."""
        entry = cls.__new__(cls)
        entry.key = key
        entry.sequence = sequence
        entry.count = count
        entry.at = at
        entry.expires_at = None
        entry._data = data
        entry._step = step
        entry._message = None
        entry.size = len(data)
        return entry

    def part(self, low: int, high: int) -> Entry:
        """Return the messages numbered `low` to `high` (inclusive) of this entry as an entry, which is in no log."""
        first = self.sequence
        if low == first and high == first + self.count - 1:
            return self
        step = self._step
        begin = len(self._data) - (self.count - (low - first)) * step  # unless it is the first
        end = len(self._data) - (first + self.count - 1 - high) * step
        data = self._data[:end] if low == first else explicit(self._data[begin : begin + step], self.key, low)
        if low > first:
            data += self._data[begin + step : end]
        return Entry.run(self.key, low, high - low + 1, data, step, self.at)

    @property
    def topic(self) -> bytes:
        """The topic name of all its messages."""
        return topic_of(self._data) if self._message is None else self._message.topic

    @property
    def retain(self) -> bool:
        """Whether it is a retained message."""
        return self._message.retain if self._message is not None else self._data[0] & 1 != 0

    def data(self, now: float) -> bytes:
        """Return the PUBLISH as links carry it; `now` (s) counts for what expires."""
        if self._message is not None:
            self._data = encode_for_links(self._message, self.key, self.sequence, now)
            self._message = None
        return self._data


class MessageLog:
    """A ring bounded in bytes and age. Order is that of acceptance, so per origin it is the origin's. `len`: entries."""

    __slots__ = ("_bytes", "_counters", "_entries", "_limit")

    def __init__(self, counters: Counters, limit: int = limits.LOG_BYTES) -> None:
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        self._counters = counters
        self._limit = limit

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, entry: Entry) -> None:
        """Keep an entry; the oldest make room."""
        self._entries.append(entry)
        self._bytes += entry.size
        while self._bytes > self._limit and len(self._entries) > 1:
            self._bytes -= self._entries.popleft().size
            self._counters.log_trimmed += 1

    def forget_old(self, now: float) -> None:
        """Drop what is older than LOG_AGE."""
        entries = self._entries
        while entries and entries[0].at + limits.LOG_AGE < now:
            self._bytes -= entries.popleft().size

    def missed(self, seen: Vector, now: float) -> list[Entry]:
        """Return what a neighbour with `seen` lacks, in the order of each origin; nothing of origins that it does not know.
        Of a run that it has in part, the parts that it lacks."""
        found: list[Entry] = []
        numbers: dict[bytes, list[Entry]] = {}
        for entry in self._entries:
            window = seen.get(entry.key)
            if window is None or (entry.expires_at is not None and now >= entry.expires_at):
                continue
            last = entry.sequence + entry.count - 1
            if entry.sequence > window.top or (entry.count == 1 and window.missing(last)):
                parts = [entry]
            elif last > window.top or (entry.count > 1 and window.gaps):
                lacks = intersect([(entry.sequence, last)], [*window.gaps, (window.top + 1, LAST)])
                parts = [entry.part(low, high) for low, high in lacks]
            else:
                continue
            found += parts
            numbers.setdefault(entry.key, []).extend(parts)
        # History that was fetched for somebody came after what is newer.
        ordered = {key: iter(sorted(entries, key=lambda e: e.sequence)) for key, entries in numbers.items()}
        return [next(ordered[entry.key]) for entry in found]
