"""The messages of an image, for sessions that are restored from it, or given away. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from mqttree.broker.base.sequence_set import LAST, Ranges, merge
from mqttree.broker.cluster.link.message_batch import MessageBatch
from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.cluster.sessions.records import (
    encode_entry,
)
from mqttree.broker.wire.errors import WireError

if TYPE_CHECKING:
    from mqttree.broker.cluster.sessions.image import Image
    from mqttree.broker.cluster.sessions.records import EntryRecord
    from mqttree.broker.core.message import Message, Name


Entry = tuple[int, bool, int, "EntryRecord"]
"""An ENTRY: its first number, whether it is for sessions alone, its last number, and itself."""

ENTRY_WORK: Final = 3
"""steps of work for each entry whose numbers are read."""


class RecordedMessages:
    """The messages of an image by name: each is one object for all sessions that have it."""

    def __init__(self, image: Image, now: float, wall: int) -> None:
        """`image`: has them; `now`, `wall`: the time (s), and the time of day then (ms). They are
        there once `reading` is at its end."""
        self._image = image
        self._now, self._wall = now, wall
        self._entries: dict[bytes, list[Entry]] = {}
        # By the name of an entry's last message: its messages; its batch, and where packets end in
        # that.
        self._messages: dict[Name, dict[int, Message]] = {}
        self._split: dict[Name, tuple[MessageBatch, list[int]]] = {}
        self.published: dict[bytes, int] = {}
        """The highest number of each origin that other brokers may lack."""
        self.void: Name = b"", LAST
        """The last message of its origin that is not void."""
        self.ready = False

    def reading(self) -> Generator[int, None, None]:
        """Find out which messages the entries have, an entry at a time. Yields the steps of work
        that it took (`Turns.go`)."""
        found: dict[bytes, list[Entry]] = {}
        for record in self._image.entries:
            try:
                batch = record.batch()
                key, first, last = batch.key, batch.sequence, batch.sequence + batch.count - 1
                if is_void((key, first), self.void):
                    continue
                if record.logged and key:
                    if key not in self.published:
                        split_key(key)
                    self.published[key] = max(self.published.get(key, 0), last)
                found.setdefault(key, []).append((first, not record.logged, last, record))
            except WireError:
                self._image.skipped += 1
            yield ENTRY_WORK
        for key, entries in found.items():
            # What was recorded twice is needed once, and for others if one of the two is.
            entries.sort()
            top, kept = -1, self._entries.setdefault(key, [])
            for entry in entries:
                if entry[2] > top:
                    top = entry[2]
                    kept.append(entry)
                yield 1
        self.ready = True

    def logged(self) -> Iterator[tuple[bytes, int, int, EntryRecord]]:
        """Return the entries that other brokers may lack: origin, first and last number; of each
        origin in the order of publication, an earlier incarnation before a later one."""
        for key in sorted(self.published, key=lambda key: split_key(key)[1]):
            for first, own, last, record in self._entries[key]:
                if not own:
                    yield key, first, last, record

    def _find(self, name: Name) -> Entry | None:
        origin, number = name
        entries = self._entries.get(origin, ())
        at = bisect_left(entries, (number + 1,)) - 1
        return entries[at] if at >= 0 and number <= entries[at][2] else None

    def get(self, name: Name) -> Message | None:
        """Return the message with a `name`, None: it is not there (it is counted as skipped)."""
        message = None
        if (entry := self._find(name)) is not None:
            last = name[0], entry[2]
            if (messages := self._messages.get(last)) is None:
                messages = self._messages[last] = self._decode(entry[3])
            message = messages.get(name[1])
        if message is None:
            self._image.skipped += 1
        return message

    def copies(self, names: Iterable[Name]) -> Iterator[bytes]:
        """Yield messages with these `names` as records. Where many of a batch are wanted, all of it
        is there. Raises MalformedPacket: a batch cannot be read."""
        wanted: dict[Name, tuple[Entry, Ranges]] = {}
        for name in names:
            if (entry := self._find(name)) is not None:
                found = wanted.setdefault((name[0], entry[2]), (entry, []))
                found[1].append((name[1], name[1]))
        for key, ((first, _, last, record), pairs) in wanted.items():
            if 2 * len(pairs) > last - first:
                yield encode_entry(False, record.at, record.data)
                continue
            if (split := self._split.get(key)) is None:
                batch = MessageBatch.read(record.data)
                split = self._split[key] = batch, batch.ends()
            for part in split[0].parts(merge(pairs) if len(pairs) > 1 else pairs, split[1]):
                yield encode_entry(False, record.at, part.encode())

    def _decode(self, record: EntryRecord) -> dict[int, Message]:
        came = self._now + (record.at - self._wall) / 1000
        try:
            return dict(record.batch().messages(came))
        except WireError:
            return {}


def is_void(name: Name, last: Name) -> bool:
    """Whether a message with this name is void. `last`: the last one of its origin that is not."""
    return name[0] == last[0] and name[1] > last[1]
