"""The state that the records of a journal add up to (docs/decisions/0021). Pure.

Records are changes, so they are applied in their order. A record about a session or message that is
not known is skipped: the beginning of a journal may be missing once the whole state has been
recorded again, session by session.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from mqttree.broker.base.broker_id import ID_BYTES
from mqttree.broker.persistence.published_record import PublishedRecord, decode_published
from mqttree.broker.persistence.records import (
    NEW,
    JournalError,
    Kind,
    LoggedRecord,
    MessageRecord,
    OutgoingRecord,
    RetainedRecord,
    RunRecord,
    SessionRecord,
    StartTimeRecord,
    SubscribedRecord,
    decode_dequeued,
    decode_number,
    decode_sent_run,
    decode_snapshot_end,
    encode_absorbed,
    encode_acknowledged,
    encode_delivered,
    encode_incoming,
    encode_members,
    encode_owed,
    encode_retained,
    encode_seen,
    encode_shared,
    encode_start_vector,
    read_records,
)
from mqttree.broker.wire.publish_header import PACKET_IDS, PUBREC, PUBREC_HEAD, PUBREL, packet_id_at

Waiting = tuple[int, int, bool, bytes, bytes]
"""A message of a session: number, QoS, RETAIN, subscription identifiers, filter of its shared
subscription."""


class RecordedSession:
    """A session as the records describe it."""

    __slots__ = (
        "absorbed",
        "delivered",
        "head",
        "incoming",
        "inflight",
        "last",
        "owed",
        "queue",
        "start_time",
        "start_vector",
        "subscriptions",
    )

    def __init__(self, head: SessionRecord) -> None:
        self.head = head
        self.subscriptions: dict[bytes, SubscribedRecord] = {}
        # An encoded version vector.
        self.start_vector = b""
        self.start_time: StartTimeRecord | None = None
        # The same, of what it has had at other brokers.
        self.delivered = b""
        # Bodies of OWED and ABSORBED, without its number.
        self.owed = self.absorbed = b""
        self.queue: deque[Waiting] = deque()
        # None: PUBREC has come.
        self.inflight: dict[int, Waiting | None] = {}
        self.incoming: set[int] = set()
        # The last packet identifier that was used.
        self.last = 0


class Image:
    """The state that a journal describes."""

    def __init__(self) -> None:
        self.sessions: dict[int, RecordedSession] = {}
        self.messages: dict[int, bytes | RunRecord | PublishedRecord] = {}
        # Topic -> body of its record.
        self.retained: dict[bytes, bytes] = {}
        self.logged: list[LoggedRecord] = []
        # Id and boot number of an origin -> its part of an encoded vector.
        self.seen: dict[bytes, bytes] = {}
        # Ids of the other brokers that messages are kept for; None: no other broker was ever met.
        self.members: list[bytes] | None = None
        # Bodies of records.
        self.shared: list[bytes] = []
        # Number of these in segments older than the present one.
        self._older_shared = 0
        # The time of day of the last frame (ms).
        self.alive = 0
        # The highest numbers of a message and of a session.
        self.numbers = [0, 0]
        # Bytes of the last snapshot.
        self.size = 0
        # Records that cannot be read.
        self.skipped = 0
        # Number of `logged` in segments older than the present one.
        self.older_logged = 0
        # Sessions, topics and origins that the present segment has recorded completely; empty in
        # the first segment.
        self._recorded: dict[int, set[Any]] = {}
        # Frames of a segment that starts with a full snapshot, until the end of that is read.
        self._unconfirmed_frames: list[bytes] | None = None
        self._take: dict[int, Callable[[bytes], None]] = {
            Kind.MESSAGE: self._message,
            Kind.RUN: self._run,
            Kind.SESSION: self._session,
            Kind.END: self._end,
            Kind.SUBSCRIBED: self._subscribed,
            Kind.UNSUBSCRIBED: self._unsubscribed,
            Kind.QUEUED: self._queued,
            Kind.SENT: self._sent,
            Kind.SENT_RUN: self._sent_run,
            Kind.DEQUEUED: self._dequeued,
            Kind.ACKNOWLEDGED: self._acknowledged,
            Kind.INCOMING: self._incoming,
            Kind.RETAINED: self._retained,
            Kind.LOGGED: self._logged,
            Kind.SEEN: self._seen,
            Kind.SNAPSHOT_END: self._snapshot_end,
            Kind.SHARED: self.shared.append,
            Kind.START_VECTOR: self._start_vector,
            Kind.START_TIME: self._start_time,
            Kind.DELIVERED: self._delivered,
            Kind.PUBLISHED: self._published,
            Kind.MEMBERS: self._members,
            Kind.OWED: self._owed,
            Kind.ABSORBED: self._absorbed,
        }

    def begin(self, *, full_snapshot: bool = False) -> None:
        """Begin a segment; the frames that follow are its own.

        `full_snapshot`: a write had failed before, so the segment starts with a full snapshot. Its
        frames do not count before the end of that: they change a state that no record has.
        """
        self.older_logged, self._older_shared = len(self.logged), len(self.shared)
        there = self.sessions or self.retained or self.seen
        self._recorded = (
            {kind: set() for kind in (Kind.SESSION, Kind.RETAINED, Kind.SEEN)} if there else {}
        )
        self._unconfirmed_frames = [] if full_snapshot and (there or self.logged) else None

    def take(self, wall: int, frame: bytes) -> None:
        """Apply a frame. `wall`: the time of day when it was written (ms). Raises JournalError: it
        is no frame of records, and nothing is applied."""
        # The last time counts even if it is earlier: the clock was set, and the last time is
        # nearest to the truth.
        self.alive = wall
        records = read_records(frame)
        if self._unconfirmed_frames is not None:
            if all(kind != Kind.SNAPSHOT_END for kind, _ in records):
                self._unconfirmed_frames.append(frame)
                return
            late, self._unconfirmed_frames = self._unconfirmed_frames, None
            for before in late:
                self._handle(read_records(before))
        self._handle(records)

    def _handle(self, records: list[tuple[int, bytes]]) -> None:
        take = self._take
        for kind, body in records:
            handler = take.get(kind)
            if handler is None:
                raise JournalError(
                    f"holds a record of the kind {kind}, which this release does not know"
                )
            try:
                handler(body)
            except (struct.error, IndexError, UnicodeDecodeError):
                # The checksum is right, so this is a fault of the broker and not of the disk.
                self.skipped += 1

    # ---------------------------------------------------------------- one file of several

    def records(self, size: int) -> Iterator[list[bytes]]:
        """Yield the whole state as records, in pieces of about `size` bytes: applied to an empty
        image, they give the same image."""
        piece: list[bytes] = []
        found = 0
        for record in self._everything():
            piece.append(record)
            found += len(record)
            if found >= size:
                yield piece
                piece, found = [], 0
        if piece:
            yield piece

    def _everything(self) -> Iterator[bytes]:
        written: set[int] = set()
        for number, recorded in self.sessions.items():
            yield from self._session_records(number, recorded)
            yield from self._outgoing_records(number, recorded, written)
        for body in self.retained.values():
            yield encode_retained(body)
        for record in self.logged:
            yield record.encode()
        if self.members is not None:
            yield encode_members(self.members)
        yield from map(encode_shared, self.shared)
        yield encode_seen(b"".join(self.seen.values()))

    def _session_records(self, number: int, recorded: RecordedSession) -> Iterator[bytes]:
        yield recorded.head._replace(flags=recorded.head.flags | NEW).encode()
        for subscription in recorded.subscriptions.values():
            yield subscription.encode()
        if recorded.start_vector:
            yield encode_start_vector(number, recorded.start_vector)
        if recorded.start_time is not None:
            yield recorded.start_time.encode()
        if recorded.delivered:
            yield encode_delivered(number, recorded.delivered)
        if recorded.owed:
            yield encode_owed(number, recorded.owed)
        if recorded.absorbed:
            yield encode_absorbed(number, recorded.absorbed)
        if recorded.incoming:
            yield encode_incoming(
                number, b"".join(PACKET_IDS[packet_id] for packet_id in recorded.incoming)
            )

    def _outgoing_records(
        self, number: int, recorded: RecordedSession, written: set[int]
    ) -> Iterator[bytes]:
        """Yield what a session has queued and in flight. `number`: of the session, `recorded`;
        `written`: the numbers of messages that were yielded before."""
        for packet_id, waiting in [
            *recorded.inflight.items(),
            *((0, waiting) for waiting in recorded.queue),
        ]:
            if waiting is None:
                yield encode_acknowledged(number, PUBREC_HEAD + PACKET_IDS[packet_id])
            elif (message := self.message(waiting[0])) is not None:
                if message.number not in written:
                    written.add(message.number)
                    yield message.encode()
                yield OutgoingRecord(number, packet_id, *waiting).encode()

    # ---------------------------------------------------------------- messages

    def _message(self, body: bytes) -> None:
        number = int.from_bytes(body[:8], "big")
        self.messages[number] = body
        self.numbers[0] = max(self.numbers[0], number)

    def _run(self, body: bytes) -> None:
        run = RunRecord.decode(body)
        last = run.number + run.messages - 1
        self.messages.update(dict.fromkeys(range(run.number, last + 1), run))
        self.numbers[0] = max(self.numbers[0], last)

    def _published(self, body: bytes) -> None:
        record, deliveries = decode_published(body)
        number, qos = record.number, record.qos
        last = number + record.count - 1
        self.messages.update(dict.fromkeys(range(number, last + 1), record))
        self.numbers[0] = max(self.numbers[0], last)
        for place, session, packet_id in deliveries:
            if (recorded := self.sessions.get(session)) is not None:
                recorded.inflight[packet_id] = (number + place, qos, False, b"", b"")
                recorded.last = packet_id

    def message(self, number: int) -> MessageRecord | None:
        """Return a message by its number."""
        found = self.messages.get(number)
        if found is None or isinstance(found, bytes):
            return None if found is None else MessageRecord.decode(found)
        return found.message(number)

    # ---------------------------------------------------------------- sessions

    def _session(self, body: bytes) -> None:
        head = SessionRecord.decode(body)
        self.numbers[1] = max(self.numbers[1], head.number)
        known = self.sessions.get(head.number)
        if head.flags & NEW:
            self.sessions[head.number] = RecordedSession(head)
            if self._recorded:
                self._recorded[Kind.SESSION].add(head.number)
        elif known is not None:
            known.head = head

    def _end(self, body: bytes) -> None:
        self.sessions.pop(decode_number(body)[0], None)

    def _subscribed(self, body: bytes) -> None:
        record = SubscribedRecord.decode(body)
        if (recorded := self.sessions.get(record.session)) is not None:
            recorded.subscriptions[record.filter] = record

    def _unsubscribed(self, body: bytes) -> None:
        number, topic_filter = decode_number(body)
        if (recorded := self.sessions.get(number)) is not None:
            recorded.subscriptions.pop(topic_filter, None)

    def _start_vector(self, body: bytes) -> None:
        number, vector = decode_number(body)
        if (recorded := self.sessions.get(number)) is not None:
            recorded.start_vector, recorded.start_time = vector, None

    def _start_time(self, body: bytes) -> None:
        record = StartTimeRecord.decode(body)
        if (recorded := self.sessions.get(record.session)) is not None:
            recorded.start_time = record

    def _delivered(self, body: bytes) -> None:
        number, vector = decode_number(body)
        if (recorded := self.sessions.get(number)) is not None:
            recorded.delivered = vector

    def _owed(self, body: bytes) -> None:
        number, owed = decode_number(body)
        if (recorded := self.sessions.get(number)) is not None:
            recorded.owed = owed

    def _absorbed(self, body: bytes) -> None:
        number, absorbed = decode_number(body)
        if (recorded := self.sessions.get(number)) is not None:
            recorded.absorbed = absorbed

    def _queued(self, body: bytes) -> None:
        session, _, number, qos, retain, ids, shared = OutgoingRecord.decode(body)
        if (recorded := self.sessions.get(session)) is not None:
            recorded.queue.append((number, qos, retain, ids, shared))

    def _sent(self, body: bytes) -> None:
        session, packet_id, number, qos, retain, ids, shared = OutgoingRecord.decode(body)
        if (recorded := self.sessions.get(session)) is not None:
            recorded.inflight[packet_id] = (number, qos, retain, ids, shared)
            recorded.last = packet_id

    def _sent_run(self, body: bytes) -> None:
        session, packet_id, count, number, qos = decode_sent_run(body)
        if (recorded := self.sessions.get(session)) is not None:
            for index in range(count):
                recorded.inflight[packet_id + index] = (number + index, qos, False, b"", b"")
            recorded.last = packet_id + count - 1

    def _dequeued(self, body: bytes) -> None:
        """Messages at the head of the queue with other numbers had expired, or were too large."""
        session, packet_id, count, number = decode_dequeued(body)
        if (recorded := self.sessions.get(session)) is None or not any(
            waiting[0] == number for waiting in recorded.queue
        ):
            return
        while recorded.queue[0][0] != number:
            recorded.queue.popleft()
        for index in range(min(count, len(recorded.queue))):
            recorded.inflight[packet_id + index] = recorded.queue.popleft()
        recorded.last = packet_id + count - 1

    def _acknowledged(self, body: bytes) -> None:
        number, packets = decode_number(body)
        if (recorded := self.sessions.get(number)) is None or not packets:
            return
        kind = packets[0]
        for at in range(0, len(packets), 4):
            packet_id = packet_id_at(packets, at + 2)
            if kind == PUBREL:
                recorded.incoming.discard(packet_id)
            elif kind == PUBREC:
                recorded.inflight[packet_id] = None
            else:
                recorded.inflight.pop(packet_id, None)

    def _incoming(self, body: bytes) -> None:
        number, packet_ids = decode_number(body)
        if (recorded := self.sessions.get(number)) is not None:
            recorded.incoming.update(
                packet_id_at(packet_ids, at) for at in range(0, len(packet_ids), 2)
            )

    # ---------------------------------------------------------------- retained, logged, seen

    def _retained(self, body: bytes) -> None:
        topic = RetainedRecord.topic_of(body)
        self.retained[topic] = body
        if self._recorded:
            self._recorded[Kind.RETAINED].add(topic)

    def _logged(self, body: bytes) -> None:
        self.logged.append(LoggedRecord.decode(body))

    def _seen(self, body: bytes) -> None:
        at = 0
        while at + 19 <= len(body):
            end = at + 19 + 12 * body[at + 18]
            origin = body[at : at + 12]
            self.seen[origin] = body[at:end]
            if self._recorded:
                self._recorded[Kind.SEEN].add(origin)
            at = end

    def _members(self, body: bytes) -> None:
        self.members = [body[at : at + ID_BYTES] for at in range(0, len(body), ID_BYTES)]

    def _snapshot_end(self, body: bytes) -> None:
        """Drop all that is not in this segment: the snapshot in it replaces older segments, which
        may still be there."""
        self.size = decode_snapshot_end(body)[1]
        if self._recorded:
            _keep_only(self.sessions, self._recorded[Kind.SESSION])
            _keep_only(self.retained, self._recorded[Kind.RETAINED])
            _keep_only(self.seen, self._recorded[Kind.SEEN])
        del self.logged[: self.older_logged]
        del self.shared[: self._older_shared]
        self.older_logged, self._older_shared, self._recorded = 0, 0, {}


def _keep_only(found: dict[Any, Any], recorded: set[Any]) -> None:
    for name in found.keys() - recorded:
        del found[name]
