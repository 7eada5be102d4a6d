"""The messages of durable sessions as records: each is in a segment once, and sessions refer to it
by its number. Pure.

Invariant: a record that refers to a message comes behind that message in the same segment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqttree.broker.persistence.published_record import encode_published
from mqttree.broker.persistence.records import RunRecord, encode_message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mqttree.broker.core.message import Message, Name
    from mqttree.broker.core.publish_run import PublishRun
    from mqttree.broker.persistence.ports import JournalBroker
    from mqttree.broker.persistence.write_ahead_log import WriteAheadLog


class MessageRecords:
    """Numbers messages, and records each once in a segment."""

    def __init__(self, host: JournalBroker, frames: WriteAheadLog) -> None:
        self._host = host
        self._frames = frames
        self.last = 0
        """The number of the last message."""
        # The number of the first message that is new in this segment, and older ones that were
        # recorded in it again.
        self._first = 1
        self._again: set[int] = set()

    def segment_begins(self) -> None:
        """Note that further records go to another segment."""
        self._first = self.last + 1
        self._again = set()

    def number_of(self, message: Message) -> int:
        """Return the number of a message. It is recorded if this segment does not contain it
        yet."""
        number: int = getattr(message, "number", 0)
        if number >= self._first or number in self._again:
            return number
        if number:
            self._again.add(number)
        else:
            self.last += 1
            number = message.number = self.last
        flags = message.qos | message.retain << 2
        expires = self.expires(message)
        record = encode_message(
            number,
            flags,
            expires,
            message.topic,
            message.properties,
            message.payload,
            message.origin,
            message.sequence,
        )
        self._frames.record(record)
        return number

    def published(
        self, packets: bytes, version: int, count: int, deliveries: Sequence[int], name: Name
    ) -> int:
        """Record new messages as the packets that came, and who has them in flight; returns the
        number of the first one.

        `packets`, `version`, `count`, `deliveries`, `name`: as of `encode_published`.
        """
        number = self.last + 1
        self.last += count
        self._frames.record(encode_published(number, version, count, packets, deliveries, name))
        return number

    def run(self, run: PublishRun) -> None:
        """Number and record a run of messages."""
        number = run.number = self.last + 1
        self.last += run.count
        texts = run.topic, run.properties, run.data
        name = run.origin, run.sequence
        record = RunRecord(number, run.qos, run.size, run.payload, *texts, name)
        self._frames.record(record.encode())

    def expires(self, message: Message) -> int:
        """Return when a message expires (ms since the epoch), 0: never."""
        if message.expires_at is None:
            return 0
        left = message.expires_at - self._host.now
        return max(1, self._frames.wall() + round(left * 1000))
