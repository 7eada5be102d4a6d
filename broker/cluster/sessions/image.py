"""The state that the records of a journal add up to (docs/decisions/0021). Pure.

Records are changes, so they are applied in their order. A record about a session or message that is
not known is skipped: the beginning of a journal may be missing once the whole state has been
recorded again, session by session.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mqttree.broker.base.broker_id import ID_BYTES
from mqttree.broker.cluster.link.version_vector import decode_vector
from mqttree.broker.cluster.sessions.records import (
    NEW,
    EntryRecord,
    GotAsRecord,
    JournalError,
    Kind,
    RetainedRecord,
    SessionRecord,
    StartTimeRecord,
    SubscribedRecord,
    decode_got,
    decode_got_run,
    decode_last_id,
    decode_number,
    decode_sent,
    decode_snapshot_end,
    encode_absorbed,
    encode_acknowledged,
    encode_delivered,
    encode_given,
    encode_got,
    encode_incoming,
    encode_last_id,
    encode_members,
    encode_origin,
    encode_owed,
    encode_retained,
    encode_seen,
    encode_shared,
    encode_start_vector,
    read_records,
)
from mqttree.broker.wire.errors import WireError
from mqttree.broker.wire.publish_header import PACKET_IDS, PUBREC, PUBREC_HEAD, PUBREL, packet_id_at

if TYPE_CHECKING:
    from mqttree.broker.cluster.link.message_batch import MessageBatch
    from mqttree.broker.cluster.link.version_vector import Vector
    from mqttree.broker.core.message import Name

AS_PUBLISHED = 3
"""The QoS of a message that a session has as it was published."""

Waiting = tuple["Name", int, bool, bytes, bytes]
"""A message of a session: name (without one: b"" and its number here), QoS, RETAIN, subscription
identifiers, filter of its shared subscription."""


class RecordedSession:
    """A session as the records describe it."""

    __slots__ = (
        "absorbed",
        "delivered",
        "given",
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
        # Bodies of OWED, ABSORBED and GIVEN, without its number.
        self.owed = self.absorbed = self.given = b""
        self.queue: deque[Waiting] = deque()
        # None: PUBREC has come.
        self.inflight: dict[int, Waiting | None] = {}
        self.incoming: set[int] = set()
        # The last packet identifier that was used.
        self.last = 0

    def got(self, packet_id: int, waiting: Waiting) -> None:
        """Add a message; `packet_id`: 0: it is queued."""
        if packet_id:
            self.inflight[packet_id] = waiting
            self.last = packet_id
        else:
            self.queue.append(waiting)

    def names(self) -> list[Name]:
        """Return the names of the messages that it has."""
        waiting = (*self.inflight.values(), *self.queue)
        return [one[0] for one in waiting if one is not None]


def session_records(number: int, recorded: RecordedSession) -> Iterator[bytes]:
    """Yield what is recorded of the session with a `number`, but for its messages."""
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
    if recorded.given:
        yield encode_given(number, recorded.given)
    if recorded.incoming:
        packet_ids = b"".join(PACKET_IDS[packet_id] for packet_id in recorded.incoming)
        yield encode_incoming(number, packet_ids)


def got_records(
    number: int, recorded: RecordedSession, indexes: dict[bytes, int]
) -> Iterator[bytes]:
    """Yield what a session has queued and in flight. `number`: of the session, `recorded`;
    `indexes`: of origins."""
    for packet_id, waiting in [
        *recorded.inflight.items(),
        *((0, waiting) for waiting in recorded.queue),
    ]:
        if waiting is None:
            yield encode_acknowledged(number, PUBREC_HEAD + PACKET_IDS[packet_id])
            continue
        (origin, sequence), qos, retain, ids, shared = waiting
        index = indexes[origin]
        if qos == AS_PUBLISHED:
            yield encode_got(index, sequence, [number << 16 | packet_id])
        else:
            how = qos, retain, ids, shared
            yield GotAsRecord(index, sequence, number, packet_id, *how).encode()
    if recorded.last:
        yield encode_last_id(number, recorded.last)


class Image:
    """The state that a journal describes."""

    def __init__(self) -> None:
        self.sessions: dict[int, RecordedSession] = {}
        # Topic -> body of its record.
        self.retained: dict[bytes, bytes] = {}
        self.entries: list[EntryRecord] = []
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
        # The highest number of a message without a name.
        self.local = 0
        # The highest number of a session.
        self.last_session = 0
        # Origins by their indexes in the present segment.
        self._origins = {0: b""}
        # Bytes of the last snapshot.
        self.size = 0
        # Records that cannot be read.
        self.skipped = 0
        # Number of `entries` in segments older than the present one.
        self._older_entries = 0
        # Sessions, topics and origins that the present segment has recorded completely; empty in
        # the first segment.
        self._recorded: dict[int, set[Any]] = {}
        # Frames of a segment that starts with a full snapshot, until the end of that is read.
        self._unconfirmed_frames: list[tuple[int, bytes]] | None = None
        self._take: dict[int, Callable[[bytes], None]] = {
            Kind.ORIGIN: self._origin,
            Kind.ENTRY: self._entry,
            Kind.SESSION: self._session,
            Kind.END: self._end,
            Kind.SUBSCRIBED: self._subscribed,
            Kind.UNSUBSCRIBED: self._unsubscribed,
            Kind.GOT: self._got,
            Kind.GOT_AS: self._got_as,
            Kind.GOT_RUN: self._got_run,
            Kind.SENT: self._sent,
            Kind.ACKNOWLEDGED: self._acknowledged,
            Kind.INCOMING: self._incoming,
            Kind.RETAINED: self._retained,
            Kind.SEEN: self._seen,
            Kind.SNAPSHOT_END: self._snapshot_end,
            Kind.SHARED: self.shared.append,
            Kind.START_VECTOR: self._start_vector,
            Kind.START_TIME: self._start_time,
            Kind.DELIVERED: self._delivered,
            Kind.MEMBERS: self._members,
            Kind.OWED: self._owed,
            Kind.ABSORBED: self._absorbed,
            Kind.GIVEN: self._given,
            Kind.LAST_ID: self._last_id,
        }

    def begin(self, *, full_snapshot: bool = False) -> None:
        """Begin a segment; the frames that follow are its own.

        `full_snapshot`: a write had failed before, so the segment starts with a full snapshot. Its
        frames do not count before the end of that: they change a state that no record has.
        """
        self._older_entries, self._older_shared = len(self.entries), len(self.shared)
        self._origins = {0: b""}
        there = self.sessions or self.retained or self.seen
        self._recorded = (
            {kind: set() for kind in (Kind.SESSION, Kind.RETAINED, Kind.SEEN)} if there else {}
        )
        self._unconfirmed_frames = [] if full_snapshot and (there or self.entries) else None

    def take(self, wall: int, frame: bytes) -> None:
        """Apply a frame. `wall`: the time of day when it was written (ms). Raises JournalError: it
        is no frame of records, and nothing is applied."""
        # The last time counts even if it is earlier: the clock was set, and the last time is
        # nearest to the truth.
        self.alive = wall
        records = read_records(frame)
        if self._unconfirmed_frames is not None:
            if all(kind != Kind.SNAPSHOT_END for kind, _ in records):
                self._unconfirmed_frames.append((wall, frame))
                return
            late, self._unconfirmed_frames = self._unconfirmed_frames, None
            for self.alive, before in late:
                self._handle(read_records(before))
            self.alive = wall
        self._handle(records)

    def _handle(self, records: list[tuple[int, bytes]]) -> None:
        for kind, body in records:
            self.apply(kind, body)

    def apply(self, kind: int, body: bytes) -> None:
        """Apply a record. Raises JournalError: it is of an unknown kind."""
        handler = self._take.get(kind)
        if handler is None:
            raise JournalError(
                f"holds a record of the kind {kind}, which this release does not know"
            )
        try:
            handler(body)
        except (struct.error, LookupError, UnicodeDecodeError):
            # The checksum is right, so this is a fault of the broker and not of the disk.
            self.skipped += 1

    def vector(self, now: float) -> Vector:
        """Return which messages its SEEN say to have been here. Raises MalformedPacket. `now`:
        s."""
        return decode_vector(b"".join(self.seen.values()), now)

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
        indexes: dict[bytes, int] = {b"": 0}
        names = self.names()
        for origin in {origin for origin, _ in names} - {b""}:
            indexes[origin] = len(indexes)
            yield encode_origin(indexes[origin], origin)
        for record, batch in self.batches():
            numbers = range(batch.sequence, batch.sequence + batch.count)
            if record.logged or any((batch.key, number) in names for number in numbers):
                yield record.encode()
        for number, recorded in self.sessions.items():
            yield from session_records(number, recorded)
            yield from got_records(number, recorded, indexes)
        for body in self.retained.values():
            yield encode_retained(body)
        if self.members is not None:
            yield encode_members(self.members)
        yield from map(encode_shared, self.shared)
        yield encode_seen(b"".join(self.seen.values()))

    # ---------------------------------------------------------------- messages

    def names(self) -> set[Name]:
        """Return the names of the messages that sessions have."""
        return {name for recorded in self.sessions.values() for name in recorded.names()}

    def batches(self) -> Iterator[tuple[EntryRecord, MessageBatch]]:
        """Yield the entries that can be read, and their batches."""
        for record in self.entries:
            with suppress(WireError):
                yield record, record.batch()

    def _entry(self, body: bytes) -> None:
        record = EntryRecord.decode(body)
        self.entries.append(record if record.at else record._replace(at=self.alive))

    def _origin(self, body: bytes) -> None:
        self._origins[int.from_bytes(body[:2], "big")] = body[2:]

    def _names(self, index: int, first: int, count: int) -> list[Name]:
        """Return the names of messages of an origin by its index. Raises KeyError: the segment does
        not say which it is."""
        origin = self._origins[index]
        if not origin:
            self.local = max(self.local, first + count - 1)
        return [(origin, number) for number in range(first, first + count)]

    def _got(self, body: bytes) -> None:
        index, first, items = decode_got(body)
        found: dict[int, Waiting] = {}
        for place, session, packet_id in items:
            if (recorded := self.sessions.get(session)) is None:
                continue
            if (waiting := found.get(place)) is None:
                [name] = self._names(index, first + place, 1)
                waiting = found[place] = name, AS_PUBLISHED, False, b"", b""
            recorded.got(packet_id, waiting)

    def _got_as(self, body: bytes) -> None:
        r = GotAsRecord.decode(body)
        if (recorded := self.sessions.get(r.session)) is not None:
            [name] = self._names(r.origin, r.number, 1)
            recorded.got(r.packet_id, (name, r.qos, r.retain, r.ids, r.shared))

    def _got_run(self, body: bytes) -> None:
        index, first, count, session, packet_id = decode_got_run(body)
        if (recorded := self.sessions.get(session)) is not None:
            for more, name in enumerate(self._names(index, first, count)):
                recorded.got(packet_id + more, (name, AS_PUBLISHED, False, b"", b""))

    # ---------------------------------------------------------------- sessions

    def _session(self, body: bytes) -> None:
        head = SessionRecord.decode(body)
        self.last_session = max(self.last_session, head.number)
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

    def _given(self, body: bytes) -> None:
        number, given = decode_number(body)
        if (recorded := self.sessions.get(number)) is not None:
            recorded.given = given

    def _last_id(self, body: bytes) -> None:
        number, packet_id = decode_last_id(body)
        if (recorded := self.sessions.get(number)) is not None:
            recorded.last = packet_id

    def _absorbed(self, body: bytes) -> None:
        number, absorbed = decode_number(body)
        if (recorded := self.sessions.get(number)) is not None:
            recorded.absorbed = absorbed

    def _sent(self, body: bytes) -> None:
        """Messages at the head of the queue with other names had expired, or were too large."""
        session, packet_id, count, index, number = decode_sent(body)
        if (recorded := self.sessions.get(session)) is None:
            return
        [name] = self._names(index, number, 1)
        if not any(waiting[0] == name for waiting in recorded.queue):
            return
        while recorded.queue[0][0] != name:
            recorded.queue.popleft()
        for more in range(min(count, len(recorded.queue))):
            recorded.got(packet_id + more, recorded.queue.popleft())

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

    # ---------------------------------------------------------------- retained, seen

    def _retained(self, body: bytes) -> None:
        topic = RetainedRecord.topic_of(body)
        self.retained[topic] = body
        if self._recorded:
            self._recorded[Kind.RETAINED].add(topic)

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
        del self.entries[: self._older_entries]
        del self.shared[: self._older_shared]
        self._older_entries, self._older_shared, self._recorded = 0, 0, {}


def _keep_only(found: dict[Any, Any], recorded: set[Any]) -> None:
    for name in found.keys() - recorded:
        del found[name]
