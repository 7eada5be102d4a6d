"""The messages of durable sessions as records: a segment has each in an ENTRY, and other records
name it by origin and number. Pure.

Invariants: the frame of a record that names a message, or an earlier one of its segment, has the
ENTRY of that message. Indexes of origins are those of one segment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqttree.broker.cluster.delivery.replay_log import LogEntry
from mqttree.broker.cluster.link.message_batch import encode_batch
from mqttree.broker.cluster.sessions.records import encode_entry, encode_origin
from mqttree.broker.cluster.sessions.session_records import SessionRecords, single

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.origins import Origins
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.message import Message
    from mqttree.broker.core.ports import LoneNumbers
    from mqttree.broker.persistence.ports import JournalBroker
    from mqttree.broker.persistence.write_ahead_log import WriteAheadLog


class Entries(SessionRecords):
    """Records each message of sessions once in a segment."""

    def __init__(
        self, host: JournalBroker, frames: WriteAheadLog, origins: Origins, lone: LoneNumbers
    ) -> None:
        """`host`: the broker; `frames`: takes the records; `origins`, `lone`: have the numbers of
        what is published here, the latter while no other broker is known."""
        super().__init__(frames.record)
        self._host = host
        self._frames = frames
        self._origins = origins
        self._lone = lone
        self.last = 0
        """The highest number of a message without a name."""
        # The newest ENTRY, or the batch that is being delivered: origin, first and last number.
        self._key, self._low, self._high = b"", 0, -1
        # Messages by themselves, and of sessions that came, that this segment has, by origin.
        self._copied: dict[bytes, set[int]] = {}

    def segment_begins(self) -> None:
        """Note that further records go to another segment, with what this turn has recorded."""
        if self._frames.size:
            for origin, index in self._indexes.items():
                self._frames.record_first(encode_origin(index, origin))
        self._indexes = {b"": 0}
        self._high = -1
        self._copied = {}

    # ---------------------------------------------------------------- batches

    def batch(self, entry: LogEntry, *, logged: bool) -> None:
        """Record a batch. `logged`: as of `EntryRecord`."""
        at = self._frames.wall() - round((self._host.now - entry.at) * 1000)
        self._frames.record(encode_entry(logged, max(0, at), entry.kept()))
        self._key, self._low = entry.key, entry.sequence
        self._high = entry.sequence + entry.count - 1

    def published(
        self, first: int, count: int, packets: bytes, version: int, source: Connection
    ) -> None:
        """Record packets if a durable session got one; `first`, `count`, `packets`, `version` and
        `source` are as of the port `Journal`."""
        key, receipts = self._lone.origin, self.receipts
        if (receipts.number < first or receipts.origin != key) and not receipts.reaches(key, first):
            return
        qos = packets[0] >> 1 & 3
        data = encode_batch(key, first, packets, count, 5 if version == 5 else 4, qos)
        self._frames.record(encode_entry(False, 0, data))
        self._key, self._low, self._high = key, first, first + count - 1
        self._frames.require(source)

    def arriving(self, entry: LogEntry) -> None:
        """Expect a batch that a link has brought to be given to sessions: `arrived` follows in this
        turn."""
        self._key, self._low = entry.key, entry.sequence
        self._high = entry.sequence + entry.count - 1

    def copied(self, entry: LogEntry) -> None:
        """Record messages as they came with a session, unless this segment has them."""
        numbers = range(entry.sequence, entry.sequence + entry.count)
        known = self._copied.setdefault(entry.key, set())
        if not known.issuperset(numbers):
            known.update(numbers)
            self.batch(entry, logged=False)

    def arrived(self, entry: LogEntry) -> bool:
        """Record a batch if a durable session got one of its messages; returns whether."""
        if not self.receipts.reaches(entry.key, entry.sequence):
            self._high = -1
            return False
        self.batch(entry, logged=False)
        return True

    # ---------------------------------------------------------------- single messages

    def require(self, message: Message) -> int:
        """Have this segment contain a message that a durable session has; returns its number: that
        of its name or, if it has none, a number of its own."""
        origin, number = message.origin, message.sequence
        if number:
            if self._low <= number <= self._high and origin == self._key:
                return number
            # The entry of its chunk follows in this turn.
            if origin == self._origins.key and number > self._origins.own.top:
                return number
            if origin == self._lone.origin and number >= self._lone.next_number():
                return number
            if number in self._copied.get(origin, ()):
                return number
        else:
            number = message.sequence = self.last = self.last + 1
        data, at = single(message, number, self._host.now)
        self.batch(LogEntry(origin, number, 1, data, at), logged=False)
        self._copied.setdefault(origin, set()).add(number)
        return number

    def expires(self, message: Message) -> int:
        """Return when a message expires (ms since the epoch), 0: never."""
        if message.expires_at is None:
            return 0
        left = message.expires_at - self._host.now
        return max(1, self._frames.wall() + round(left * 1000))
