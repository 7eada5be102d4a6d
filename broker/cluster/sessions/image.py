"""The state that the records of a journal add up to (docs/decisions/0021). Pure.

Records are changes, so they are applied in their order. A record about a session or message that is
not known is skipped: the beginning of a journal may be missing once the whole state has been
recorded again, session by session.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mqttree.broker.base.broker_id import ID_BYTES
from mqttree.broker.cluster.link.version_vector import VECTOR_HEAD, decode_evaluated
from mqttree.broker.cluster.sessions.recorded_session import AS_PUBLISHED, RecordedSession, Waiting
from mqttree.broker.cluster.sessions.records import (
    ABOUT,
    NEW,
    EntryRecord,
    GotAsRecord,
    JournalError,
    Kind,
    RetainedRecord,
    SessionRecord,
    Standby,
    decode_got,
    decode_got_run,
    decode_number,
    decode_sent,
    decode_snapshot_end,
    decode_standbys,
    encode_record,
    encode_standbys,
    read_records,
)
from mqttree.broker.cluster.sessions.session_records import SessionRecords
from mqttree.broker.wire.errors import WireError

if TYPE_CHECKING:
    from mqttree.broker.cluster.link.message_batch import MessageBatch
    from mqttree.broker.cluster.link.version_vector import Vector
    from mqttree.broker.core.message import Name


class Image:
    """The state that a journal describes."""

    def __init__(self) -> None:
        self.sessions: dict[int, RecordedSession] = {}
        # The number of the last session of each client that has one.
        self._numbers: dict[bytes, int] = {}
        # Topic -> body of its record.
        self.retained: dict[bytes, bytes] = {}
        self.entries: list[EntryRecord] = []
        # Id and boot number of an origin -> its part of an encoded vector.
        self.seen: dict[bytes, bytes] = {}
        # Ids of the other brokers that messages are kept for; None: no other broker was ever met.
        self.members: list[bytes] | None = None
        self.standbys: list[Standby] = []
        """Who was sent this journal."""
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
            Kind.GOT: self._got,
            Kind.GOT_AS: self._got_as,
            Kind.GOT_RUN: self._got_run,
            Kind.SENT: self._sent,
            Kind.RETAINED: self._retained,
            Kind.SEEN: self._seen,
            Kind.SNAPSHOT_END: self._snapshot_end,
            Kind.SHARED: self.shared.append,
            Kind.MEMBERS: self._members,
            Kind.STANDBYS: self._standbys,
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
        is not a frame of records; nothing is applied."""
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
        if handler is None and kind not in ABOUT:
            raise JournalError(
                f"holds a record of the kind {kind}, which this release does not know"
            )
        try:
            if handler is not None:
                handler(body)
            else:
                number, what = decode_number(body)
                if (recorded := self.sessions.get(number)) is not None:
                    recorded.take(kind, what)
        except (struct.error, LookupError, UnicodeDecodeError):
            # The checksum is right, so this is a fault of the broker and not of the disk.
            self.skipped += 1

    def vector(self, now: float) -> Vector:
        """Return which messages its SEEN say to have been here. Raises MalformedPacket. `now`:
        s."""
        return decode_evaluated(b"".join(self.seen.values()), now)

    def away(self, head: SessionRecord, wall: int) -> float:
        """Return for how long the client of a session has been away (s): since its connection
        ended, or since the last frame. `head`: of the session; `wall`: the time of day (ms)."""
        return max(0, wall - (head.disconnected_at or self.alive)) / 1000

    def session_of(self, client: bytes) -> RecordedSession | None:
        """Return the session of a client, None: it has none."""
        return self.sessions.get(self._numbers.get(client, 0))

    def end(self, number: int) -> bool:
        """Forget a session; returns whether it was there."""
        if (recorded := self.sessions.pop(number, None)) is None:
            return False
        client = recorded.head.client_id
        if self._numbers.get(client) == number:
            del self._numbers[client]
        return True

    # ---------------------------------------------------------------- one file of several

    def records(self) -> Iterator[bytes]:
        """Yield the whole state as records: applied to an empty image, they give the same image."""
        names = self.names()
        for record, batch in self.batches():
            numbers = range(batch.sequence, batch.sequence + batch.count)
            if record.logged or any((batch.key, number) in names for number in numbers):
                yield record.encode()
        found: list[bytes] = []
        writer = SessionRecords(found.append)
        for number, recorded in self.sessions.items():
            writer.again(number, recorded)
            yield from found
            found.clear()
        for body in self.retained.values():
            yield encode_record(Kind.RETAINED, body)
        if self.members is not None:
            yield encode_record(Kind.MEMBERS, *self.members)
        if self.standbys:
            yield encode_standbys(self.standbys)
        for body in self.shared:
            yield encode_record(Kind.SHARED, body)
        yield encode_record(Kind.SEEN, *self.seen.values())

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
        self.entries.append(EntryRecord.decode(body, self.alive))

    def _origin(self, body: bytes) -> None:
        self._origins[int.from_bytes(body[:2], "big")] = body[2:]

    def _name(self, index: int, number: int) -> Name:
        """Return the name of a message of an origin by its index. Raises KeyError: the segment does
        not say which it is."""
        origin = self._origins[index]
        if not origin and number > self.local:
            self.local = number
        return origin, number

    def _got(self, body: bytes) -> None:
        index, first, items = decode_got(body)
        found: dict[int, Waiting] = {}
        for place, session, packet_id in items:
            if (recorded := self.sessions.get(session)) is None:
                continue
            if (waiting := found.get(place)) is None:
                name = self._name(index, first + place)
                waiting = found[place] = name, AS_PUBLISHED, False, b"", b""
            recorded.got(packet_id, waiting)

    def _got_as(self, body: bytes) -> None:
        r = GotAsRecord.decode(body)
        if (recorded := self.sessions.get(r.session)) is not None:
            name = self._name(r.origin, r.number)
            recorded.got(r.packet_id, (name, r.qos, r.retain, r.ids, r.shared))

    def _got_run(self, body: bytes) -> None:
        index, first, count, session, packet_id = decode_got_run(body)
        if (recorded := self.sessions.get(session)) is not None:
            for more in range(count):
                name = self._name(index, first + more)
                recorded.got(packet_id + more, (name, AS_PUBLISHED, False, b"", b""))

    # ---------------------------------------------------------------- sessions

    def _session(self, body: bytes) -> None:
        head = SessionRecord.decode(body)
        self.last_session = max(self.last_session, head.number)
        known = self.sessions.get(head.number)
        if head.flags & NEW:
            self.sessions[head.number] = RecordedSession(head)
            self._numbers[head.client_id] = head.number
            if self._recorded:
                self._recorded[Kind.SESSION].add(head.number)
        elif known is not None:
            known.head = head

    def _end(self, body: bytes) -> None:
        self.end(decode_number(body)[0])

    def _sent(self, body: bytes) -> None:
        """Messages at the head of the queue with other names had expired, or were too large."""
        session, packet_id, count, index, number = decode_sent(body)
        if (recorded := self.sessions.get(session)) is None:
            return
        name = self._name(index, number)
        if not any(waiting[0] == name for waiting in recorded.queue):
            return
        while recorded.queue[0][0] != name:
            recorded.queue.popleft()
        for more in range(min(count, len(recorded.queue))):
            recorded.got(packet_id + more, recorded.queue.popleft())

    # ---------------------------------------------------------------- retained, seen

    def _retained(self, body: bytes) -> None:
        topic = RetainedRecord.topic_of(body)
        self.retained[topic] = body
        if self._recorded:
            self._recorded[Kind.RETAINED].add(topic)

    def _seen(self, body: bytes) -> None:
        at = 0
        while at + VECTOR_HEAD <= len(body):
            gaps = int.from_bytes(body[at + 18 : at + VECTOR_HEAD], "big")
            end = at + VECTOR_HEAD + 12 * gaps
            origin = body[at : at + 12]
            self.seen[origin] = body[at:end]
            if self._recorded:
                self._recorded[Kind.SEEN].add(origin)
            at = end

    def _members(self, body: bytes) -> None:
        self.members = [body[at : at + ID_BYTES] for at in range(0, len(body), ID_BYTES)]

    def _standbys(self, body: bytes) -> None:
        self.standbys = decode_standbys(body)

    def _snapshot_end(self, body: bytes) -> None:
        """Drop all that is not in this segment: the snapshot in it replaces older segments, which
        may still be there."""
        self.size = decode_snapshot_end(body)[1]
        if self._recorded:
            for number in self.sessions.keys() - self._recorded[Kind.SESSION]:
                self.end(number)
            _keep_only(self.retained, self._recorded[Kind.RETAINED])
            _keep_only(self.seen, self._recorded[Kind.SEEN])
        del self.entries[: self._older_entries]
        del self.shared[: self._older_shared]
        self._older_entries, self._older_shared, self._recorded = 0, 0, {}


def _keep_only(found: dict[Any, Any], recorded: set[Any]) -> None:
    for name in found.keys() - recorded:
        del found[name]
