"""The recent QoS 1 and 2 (and retained) messages that crossed this broker, kept for neighbours that missed them."""

from __future__ import annotations

from collections import deque

from broker import limits
from broker.counters import Counters
from broker.message import Message, size_of
from broker.origin import Vector, encode_for_links


class Entry:
    """One message for links. What was published here while no link was there is encoded only when somebody needs it."""

    __slots__ = ("_data", "_message", "at", "expires_at", "key", "sequence", "size")

    def __init__(self, key: bytes, sequence: int, data: bytes, message: Message, at: float) -> None:
        """`data`: the PUBLISH as links carry it, b"" to make it from `message` later; `at`: s."""
        self.key = key
        self.sequence = sequence
        self.at = at
        self.expires_at = message.expires_at
        self._data = data
        self._message = None if data else message
        self.size = len(data) or size_of(message)

    def data(self, now: float) -> bytes:
        """Return the PUBLISH as links carry it; `now` (s) counts for what expires."""
        if self._message is not None:
            self._data = encode_for_links(self._message, self.key, self.sequence, now)
            self._message = None
        return self._data


class MessageLog:
    """A ring bounded in bytes and age. Order is that of acceptance, so per origin it is the origin's."""

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
        """Return what a neighbour with `seen` lacks, in the order of each origin; nothing of origins that it does not know."""
        found: list[Entry] = []
        numbers: dict[bytes, list[Entry]] = {}
        for entry in self._entries:
            window = seen.get(entry.key)
            if window is None or (entry.expires_at is not None and now >= entry.expires_at):
                continue
            if window.missing(entry.sequence):
                found.append(entry)
                numbers.setdefault(entry.key, []).append(entry)
        # History that was fetched for somebody came after what is newer.
        ordered = {key: iter(sorted(entries, key=lambda e: e.sequence)) for key, entries in numbers.items()}
        return [next(ordered[entry.key]) for entry in found]
