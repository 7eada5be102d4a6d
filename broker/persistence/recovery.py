"""The state that the records of a journal add up to, and a broker that is given it
(docs/decisions/0021). Pure.

Records are changes, so they are applied in their order. A record about a session or message that is
not known is skipped: the beginning of a journal may be missing once the whole state has been
recorded again, session by session.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from broker.base.sequence_set import subtract
from broker.cluster.delivery.local_window import LocalWindow
from broker.cluster.delivery.replay_log import LogEntry
from broker.cluster.link.codec import read_link_packets, split_key
from broker.cluster.link.version_vector import decode_vector
from broker.cluster.sessions.session_codec import (
    IN_FLIGHT,
    IS_RELEASED,
    WAITING,
    Item,
    SessionState,
    restore,
)
from broker.core.memory_limit import will_memory
from broker.core.message import Message
from broker.core.retained_index import RetainedVersion, place_of
from broker.core.session import NEVER, RELEASED, Session
from broker.persistence import shared_records
from broker.persistence.records import (
    CLEAN,
    HAS_WILL,
    NAMED,
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
    encode_acknowledged,
    encode_incoming,
    encode_retained,
    encode_seen,
    encode_shared,
    encode_start_vector,
    read_records,
)
from broker.wire.constants import WILL
from broker.wire.errors import WireError
from broker.wire.packets import Will
from broker.wire.properties import Property, decode_properties, encode_properties
from broker.wire.publish_header import PACKET_IDS, PUBREC, PUBREC_HEAD, PUBREL, packet_id_at

if TYPE_CHECKING:
    from broker.cluster.cluster import Cluster
    from broker.persistence.absent_members import AbsentMembers
    from broker.persistence.ports import Host

SAME_CLOCK = 5.0
"""s by which the offset between the time of day and the monotonic clock may differ from the
recorded one, as the time of day may have been set. If it differs by more, the machine has started
again or slept, and recorded monotonic times mean nothing."""

Waiting = tuple[int, int, bool, bytes, bytes]
"""A message of a session: number, QoS, RETAIN, subscription identifiers, filter of its shared
subscription."""


class RecordedSession:
    """A session as the records describe it."""

    __slots__ = (
        "head",
        "incoming",
        "inflight",
        "last",
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
        self.queue: deque[Waiting] = deque()
        # None: PUBREC has come.
        self.inflight: dict[int, Waiting | None] = {}
        self.incoming: set[int] = set()
        # The last packet identifier that was used.
        self.last = 0


class Image:
    """The state that a journal describes."""

    __slots__ = (
        "_older_shared",
        "_recorded",
        "_take",
        "_unconfirmed_frames",
        "alive",
        "logged",
        "messages",
        "numbers",
        "older_logged",
        "retained",
        "seen",
        "sessions",
        "shared",
        "size",
        "skipped",
    )

    def __init__(self) -> None:
        self.sessions: dict[int, RecordedSession] = {}
        self.messages: dict[int, bytes | RunRecord] = {}
        # Topic -> body of its record.
        self.retained: dict[bytes, bytes] = {}
        self.logged: list[LoggedRecord] = []
        # Id and boot number of an origin -> its part of an encoded vector.
        self.seen: dict[bytes, bytes] = {}
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
            yield recorded.head._replace(flags=recorded.head.flags | NEW).encode()
            for subscription in recorded.subscriptions.values():
                yield subscription.encode()
            if recorded.start_vector:
                yield encode_start_vector(number, recorded.start_vector)
            if recorded.start_time is not None:
                yield recorded.start_time.encode()
            if recorded.incoming:
                yield encode_incoming(
                    number, b"".join(PACKET_IDS[packet_id] for packet_id in recorded.incoming)
                )
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
        for body in self.retained.values():
            yield encode_retained(body)
        for record in self.logged:
            yield record.encode()
        yield from map(encode_shared, self.shared)
        yield encode_seen(b"".join(self.seen.values()))

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

    def message(self, number: int) -> MessageRecord | None:
        """Return a message by its number."""
        found = self.messages.get(number)
        if isinstance(found, RunRecord):
            return found.message(number)
        return None if found is None else MessageRecord.decode(found)

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


# ---------------------------------------------------------------- wills


def encode_will(will: Will | None) -> bytes:
    """Encode a will; b"" for none."""
    if will is None:
        return b""
    topic = will.topic.encode()
    head = bytes((will.qos | will.retain << 2,)) + len(topic).to_bytes(2, "big")
    return head + topic + encode_properties(will.properties) + will.payload


def decode_will(data: bytes) -> Will | None:
    """Decode a will. Raises WireError, IndexError, UnicodeDecodeError."""
    if not data:
        return None
    end = 3 + int.from_bytes(data[1:3], "big")
    properties, payload = decode_properties(data, end, WILL)
    return Will(data[3:end].decode(), data[payload:], data[0] & 3, data[0] & 4 != 0, properties)


# ---------------------------------------------------------------- the broker


def _published(record: LoggedRecord) -> tuple[int, int]:
    """Return the order of publication: boot number, sequence number."""
    return split_key(record.key)[1], record.sequence


class Recovery:
    """Gives a new broker, which has no connections yet, the state that an image has."""

    def __init__(
        self, node: Host, cluster: Cluster, absent_members: AbsentMembers, image: Image, now: float
    ) -> None:
        """`node`, `cluster`: the new broker. `absent_members`: which brokers were away. `image`:
        what the journal says. `now`: s."""
        self.node = node
        self.cluster = cluster
        self.absent_members = absent_members
        self.clock = cluster.clock
        self.image = image
        self.now = now
        self.wall = self.clock.physical(now)
        self.died = min(self.wall, image.alive + int(node.limits.journal_beat * 1000))
        """when the broker did at the latest (ms): connections that it had ended then"""
        self.made: dict[int, Message] = {}

    def run(self) -> list[tuple[int, Session]]:
        """Restore everything; returns the sessions with their numbers. Wills and ends of sessions
        that are due follow with the first tick."""
        node = self.node
        self._retain()
        found = []
        for number, recorded in self.image.sessions.items():
            session = self._session(recorded)
            if session is not None:
                found.append((number, session))
        self.made.clear()
        self._log()
        self._see()
        self.image.skipped += shared_records.restore(self.cluster, self.image.shared, node.now)
        return [
            (number, session)
            for number, session in found
            if node.sessions.get(session.client_id) is session
        ]

    def _log(self) -> None:
        """Put messages that were published here, and that other brokers may lack, back into the
        replay log. They keep their origin and numbers."""
        node, forwarder, origins = self.node, self.cluster.forwarder, self.cluster.origins
        origins.down = max(0, self.wall - self.image.alive) / 1000
        horizon = self.image.alive - node.limits.log_age * 1000
        away = self.absent_members.earliest()
        # Messages that had left the log may not have been written to its tail yet.
        if away is not None:
            horizon = min(
                horizon, self.wall - (self.now - away) * 1000 - node.limits.log_age * 1000
            )
        # A snapshot records entries again.
        known: set[tuple[bytes, int]] = set()
        latest = self.now - node.limits.log_age
        for record in sorted(self.image.logged, key=_published):
            if (
                record.at < horizon
                or record.key == forwarder.key
                or (record.key, record.sequence) in known
            ):
                continue
            known.add((record.key, record.sequence))
            try:
                message = next(
                    read_link_packets(record.data, self._expires(record.at) or self.now)
                )[2]
            except (WireError, StopIteration):
                self.image.skipped += 1
                continue
            # Entries age while the broker runs. The clock may have been set in between.
            at = self.now + (record.at - self.image.alive) / 1000
            at = latest = max(latest, min(self.now, at))
            if record.step:
                entry = LogEntry.run(
                    record.key, record.sequence, record.messages, record.data, record.step, at
                )
            else:
                entry = LogEntry(record.key, record.sequence, record.data, message, at)
            origins.remember(record.key, record.sequence + record.messages - 1, self.now)
            forwarder.log.append(entry)
            forwarder.log.chosen = forwarder.log.end
        if len(forwarder.ours) > 1:
            self.cluster.gap_recovery.tell_earlier()
        node.federated = node.federated or bool(self.image.logged)

    def _see(self) -> None:
        """Restore which messages of other brokers have come, if there is a session that misses
        messages published meanwhile."""
        node, origins = self.node, self.cluster.origins
        if not node.sessions:
            return
        try:
            seen = decode_vector(b"".join(self.image.seen.values()), self.now)
        except WireError:
            self.image.skipped += 1
            return
        for key, known in seen.items():
            broker_id, boot = split_key(key)
            if broker_id == node.config.id:
                origins.since = min(origins.since, boot)
            elif key not in origins.vector:
                window = LocalWindow(known.top, known.heard, node.counters)
                window.gaps = known.gaps
                origins.vector[key] = window
                if self.cluster.gap_recovery.active:
                    self.cluster.gap_recovery.met(key, window)
                else:
                    window.owed, window.begin = list(window.gaps), window.top
                # These messages are in no replay log here any more: others that lack them have to
                # ask elsewhere.
                if window.top:
                    window.history = subtract([(1, window.top)], window.gaps)

    def _expires(self, at: int) -> float | None:
        return None if not at else self.now + (at - self.wall) / 1000

    def _retain(self) -> None:
        node, retention = self.node, self.cluster.retained_sync
        if not node.config.retain_available:
            return
        store = node.retained
        now, wall = self.now, self.wall
        newest = 0
        bodies = self.image.retained
        for name in list(bodies):
            # The memory of each body is freed at once.
            record = RetainedRecord.decode(bodies.pop(name))
            newest = max(newest, record.time)
            topic = record.topic
            message = Message(
                topic,
                record.payload,
                record.qos,
                True,
                record.properties,
                self._expires(record.expires),
                None,
            )
            version = RetainedVersion(
                topic,
                place_of(topic),
                record.time,
                record.key,
                record.sequence,
                record.death,
                record.qos,
            )
            store.bring_back(message, version, now, wall)
        retention.clock.merge(newest, now)
        node.counters.retained_loaded += len(store)

    def _message(self, number: int) -> Message | None:
        """Return a message by its number: one object for all sessions that have it."""
        message = self.made.get(number)
        if message is None and (record := self.image.message(number)) is not None:
            expires_at = self._expires(record.expires)
            message = Message(
                record.topic,
                record.payload,
                record.qos,
                record.retain,
                record.properties,
                expires_at,
                None,
            )
            message.number = number
            self.made[number] = message
        return message

    def _items(self, recorded: RecordedSession, shared: dict[bytes, int]) -> Iterable[Item]:
        for packet_id, sent in recorded.inflight.items():
            if sent is None:
                yield Item(IS_RELEASED, packet_id, 2, False, b"", RELEASED.message)
            elif (message := self._message(sent[0])) is not None:
                yield Item(
                    IN_FLIGHT, packet_id, sent[1], sent[2], sent[3], message, shared.get(sent[4])
                )
        for number, qos, retain, ids, group in recorded.queue:
            if (message := self._message(number)) is not None:
                yield Item(WAITING, 0, qos, retain, ids, message, shared.get(group))

    def _session(self, recorded: RecordedSession) -> Session | None:
        node, head = self.node, recorded.head
        try:
            client_id, will = (
                head.client_id.decode(),
                decode_will(head.will) if head.flags & HAS_WILL else None,
            )
            username = head.username.decode() if head.flags & NAMED else None
            state = SessionState(username, head.expiry, recorded.last, {}, recorded.incoming)
            state.owner = None if head.owner is None else head.owner.decode()
            state.born, state.floor = head.ages[0] or head.stamp, head.ages[1]
            state.before = decode_vector(recorded.start_vector, self.now)
            if (
                recorded.start_time is not None
                and abs(recorded.start_time.offset - (self.wall / 1000 - self.now)) < SAME_CLOCK
            ):
                state.began, state.open = recorded.start_time.at, set(recorded.start_time.origins)
            shared: dict[bytes, int] = {}
            for topic_filter, s in recorded.subscriptions.items():
                if topic_filter.startswith(b"$share/"):
                    shared[topic_filter] = len(state.subscriptions)
                options = s.options
                subscription = (
                    topic_filter.decode(),
                    options & 3,
                    options & 4 != 0,
                    options & 8 != 0,
                    s.identifier,
                )
                state.subscriptions.append(subscription)
        except (WireError, UnicodeDecodeError, IndexError):
            self.image.skipped += 1
            return None
        state.items = list(self._items(recorded, shared))
        if (old := node.sessions.get(client_id)) is not None:
            old.will = None
            node.end_session(old)
        session = node.sessions[client_id] = node.new_session(client_id)
        session.listener = None if head.listener is None else head.listener.decode(errors="replace")
        # Permissions are looked up when the client connects.
        if session.listener is None:
            session.permissions = None
        else:
            session.permissions = node.permissions(username, client_id, session.listener)
        session.version = head.version
        session.clean = head.flags & CLEAN != 0
        restore(state, session, node.dispatcher, self.cluster.subscription_starts)
        session.stamp = head.stamp
        session.will = will
        session.will_memory = will_memory(will)
        self.clock.merge(head.stamp, self.now)
        self._arm(session, head.disconnected_at or self.died)
        node.counters.sessions_loaded += 1
        return session

    def _arm(self, session: Session, disconnected_at: int) -> None:
        """Schedule the end of the session and its will. `disconnected_at`: when its connection
        ended (ms since the epoch)."""
        node, since = self.node, self.now - max(0, self.wall - disconnected_at) / 1000
        if session.expiry != NEVER:
            session.expiry_timer = node.schedule(
                since + session.expiry, lambda now: node.expire(session)
            )
        if session.will is not None:
            delay = (session.will.properties or {}).get(Property.WILL_DELAY_INTERVAL, 0)
            session.will_timer = node.schedule(
                since + min(delay, session.expiry), lambda now: node.send_will(session)
            )
