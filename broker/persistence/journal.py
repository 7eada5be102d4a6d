"""Durability: what this broker promises is written before it is said (docs/decisions/0021). Pure;
`journal_writer` writes.

What sessions, retained messages and the relay's log change is recorded, and all records of one turn
of the loop become one frame. Who caused a record waits: what its connection is sent from then on is
held until the frame is safe, all acknowledgements in their order. "Safe" is the driver's word:
handed to the kernel (async) or on the disk (sync). Nobody else waits for a disk.

    frames    OK: written
              a write fails -> BROKEN: dropped; acknowledgements go out (async) or wait (sync)
              BROKEN: a new generation is tried every second
              -> RECOVERING: written, and everything is said once (checkpoint)
              RECOVERING: the checkpoint is safe -> OK, and what waited goes out;
              or a write fails -> BROKEN, and it is deleted

    checkpoint  a new generation begins with the next frame; in steps, each session, each retained
                topic and each message of the relay's log is recorded as it is now, between the
                records of what goes on; WHOLE ends it. When that is safe, older generations are
                deleted. It is due when the journal is FACTOR times as large as the last one was.

Invariants: a connection with bytes held has a `gate` that is not 0; marks (numbers of frames) of
what is held never fall; a record that refers to a message comes behind that message in the same
generation.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from broker.base import limits
from broker.cluster.delivery.subscription_start import oldest
from broker.cluster.link.codec import OriginWindow, Ranges, Vector, encode_vector, origin_key
from broker.cluster.sessions.message_vectors import offered
from broker.core.client import CONNACK, Client
from broker.core.connection import Connection
from broker.core.effects import Append, Begin, Discard
from broker.core.message import Message
from broker.core.retained_index import RetainedVersion
from broker.core.session import Session
from broker.persistence import shared_records
from broker.persistence.output_gate import OutputGate
from broker.persistence.records import (
    LoggedRecord,
    MessageRecord,
    RetainedRecord,
    RunRecord,
    encode_end,
    encode_frame,
    encode_frames,
    encode_seen,
    encode_whole,
)
from broker.persistence.recovery import Image, Recovery
from broker.persistence.session_recorder import SessionRecorder
from broker.persistence.snapshot import Snapshot

if TYPE_CHECKING:
    from broker.cluster.delivery.replay_log import LogEntry
    from broker.cluster.delivery.subscription_start import SubscriptionStart
    from broker.cluster.sharing.assignment_ledger import Ref
    from broker.core.dispatcher import Route
    from broker.core.publish_run import PublishRun
    from broker.node import Node

OK, BROKEN, RECOVERING = range(3)

FACTOR = 2.0
"""How many times the last checkpoint's size a journal may have: each byte is written up to
twice."""
SMALLEST = 32 * 1024 * 1024
"""bytes; a journal that is smaller is read in a moment."""
STEP, SHORT_STEP = 0.01, 0.001
"""s between two steps of a checkpoint, and when others write more than it says."""
AHEAD = 8 * 1024 * 1024
"""bytes on their way to the disk with which a checkpoint waits; so publishers are held earlier
while there is one."""
RETRY = 1.0
"""s until a new generation is tried after a failure."""
CLOCK_STEP = 5.0
"""s by which the time of day is set before the journal is written anew; sessions may live so much
longer or shorter."""
ALL = 1 << 62
"""bytes; more than any journal has: a checkpoint is due."""
FILES = 8
"""generations (starts of the broker) after which a checkpoint puts everything into one."""


class Journal:
    """The journal of one node."""

    def __init__(self, node: Node, *, sync: bool) -> None:
        """`sync`: what the driver says is safe survives a power cut, so that acknowledgements wait
        while it cannot write."""
        self.node = node
        self.sync = sync
        self.state = OK
        self.mark = 0  # of the last frame
        self.safe = 0  # the highest mark that the driver has reported
        self.sessions: dict[int, SessionRecorder] = {}  # by their numbers
        self._records: list[bytes] = []
        self.size = 0  # bytes of these
        self._under_way: deque[tuple[int, int, int]] = (
            deque()
        )  # mark, bytes, and those that count of frames that the driver has
        self._pending = 0  # bytes of these
        self._crowd = 0  # the same, each frame as far as it counts
        self._most = limits.JOURNAL_BACKLOG_BYTES  # of these with which publishers are held
        self._withheld = OutputGate()
        self._number = 0  # of the last message,
        self._session = 0  # and the last session
        self._seen: set[bytes] = set()  # origins of which something came since the last frame
        self._met = False  # and one that is new
        self._beginning: dict[
            SubscriptionStart, dict[int, None]
        ] = {}  # sessions of the last minutes, by where their subscriptions begin
        self._marks: dict[bytes, RetainedVersion] = {}  # of retained topics that were written since
        self._generation = 0
        self._file = 0  # the one that is written; 0: none
        self._written = 0  # bytes since the last checkpoint began
        self._whole = 0  # bytes of the last one
        self._first = 1  # number of the first message that is in this generation
        self._again: set[int] = set()  # lower ones that are in it, too
        self._checkpoint: Snapshot | None = None  # that is under way
        self._until = 0  # mark of its end; 0: not yet
        self._retrying = False  # a new generation is going to be tried
        # that was tried last; a checkpoint's cannot end a failure: what was lost is missing before
        # it
        self._anew = 0
        # ms; by how much the time of day was set since the start: `left` of recorders does not know
        # of that
        self.clock_step = 0

    # ---------------------------------------------------------------- start

    def begin(self, image: Image, generation: int, files: int, size: int, now: float) -> None:
        """Make the node what an image says, and go on in `generation`, the first that is not there.
        `files`, `size`: generations that are there, and their bytes."""
        self._number, self._session = image.numbers
        self._first = 1
        self._generation = generation
        self._whole, self._written = image.size, size
        recovery = Recovery(self.node, image, now)
        for number, session in recovery.run():
            recorder = self._adopt(session, number)
            gone = image.sessions[number].head.gone
            recorder.left = gone or recovery.died
            if (start := oldest(session)) is not None and start.open:
                self._beginning.setdefault(start, {})[number] = None
            if not gone:
                recorder.attributes()
        self.node.effects.append(Begin(generation))
        self.node.schedule(now + limits.JOURNAL_BEAT / 2, lambda at: self._beat(at, 0))
        if files >= FILES:
            self._begin_checkpoint(begun=True)

    def _beat(self, now: float, mark: int) -> None:
        """Say that the broker lives, if nothing has since frame `mark`: connections that end with
        it end now, not earlier."""
        if self.mark == mark and self.sessions and self.state != BROKEN:
            self.record(encode_seen(b""))
        beaten = self.mark + bool(self._records or self._marks)
        self.node.schedule(now + limits.JOURNAL_BEAT / 2, lambda at: self._beat(at, beaten))

    def _adopt(self, session: Session, number: int) -> SessionRecorder:
        recorder = self.sessions[number] = SessionRecorder(self, session, number)
        session.recorder = recorder
        return recorder

    @property
    def busy(self) -> bool:
        """Whether something is still to be written: a checkpoint, or what the driver has."""
        return self._checkpoint is not None or self._until > 0 or bool(self._under_way)

    @property
    def pending(self) -> int:
        """Bytes that the driver has and has not reported."""
        return self._pending

    # ---------------------------------------------------------------- who waits

    def promise(self) -> None:
        """Hold what the connection whose bytes are being handled is sent from now on, until what is
        recorded now is safe."""
        conn = self.node.current
        if conn is None:
            return
        if conn not in self.node.links_by_connection:
            conn.gate = self.mark + 1
        if self._pending > self._most:
            self.node.hold(conn, self)

    def hold(self, conn: Connection, outbox: list[bytes]) -> None:
        """Take the outbox of a connection whose gate is not 0."""
        if conn.gate <= self.safe or (self.state != OK and conn in self.node.links_by_connection):
            conn.gate = 0
            conn.flush(outbox)
            return
        mark = conn.gate = (
            self.mark + 1 if self._records or self._marks else max(self.mark, conn.gate)
        )
        if outbox[0][:1] == CONNACK and isinstance(conn.owner, Client):
            conn.owner.hailed = mark
        if not self._withheld.put(mark, conn, outbox):
            self.node.counters.slow_consumer_closed += 1
            why = "its acknowledgements wait for the disk, and so does too much behind them"
            self.node.log_limit.line(
                "warning", "waits for the disk", conn.peer, f"{conn.peer}: {why}; closed"
            )
            conn.abort(why)
        outbox.clear()

    def holds(self, conn: Connection) -> bool:
        """Whether something for a connection waits."""
        return conn in self._withheld

    def withheld(self, conn: Connection) -> list[bytes]:
        """Return what waits for a connection."""
        return self._withheld.of(conn)

    def gone(self, conn: Connection) -> None:
        """A connection is closed: nothing waits for it any more."""
        if conn in self._withheld:
            self._withheld.gone(conn)

    def _release(self, mark: int) -> None:
        self.safe = max(self.safe, mark)
        self._withheld.release(mark)

    # ---------------------------------------------------------------- frames

    def record(self, data: bytes) -> None:
        """Have a record written with this turn's frame."""
        self._records.append(data)
        self.size += len(data)

    def seal(self) -> None:
        """End this turn: its records become a frame."""
        if self._marks:
            marks, self._marks = self._marks, {}
            for mark in marks.values():
                self.said(mark)
        records = self._records
        if not (records or self._met):
            return
        self._met = False
        if self._seen:
            vector = self.node.forwarder.vector
            seen = offered(
                {
                    key: vector[key]
                    for key in self._seen
                    if key in vector and key != self.node.forwarder.key
                }
            )
            records.append(encode_seen(encode_vector(seen | self.since())))
            self._seen.clear()
        self._records = []
        self.mark += 1
        if self.state == BROKEN:
            self.size = 0
            if not self.sync:
                self._release(self.mark)
            return
        frame = self._encode(records)
        size, counts, crowd = len(frame), min(len(frame), limits.JOURNAL_BACKLOG_BYTES), self._crowd
        self._under_way.append((self.mark, size, counts))
        self._pending += size
        self._crowd += counts
        self._written += size
        self.size = 0
        counters = self.node.counters
        counters.journal_frames += 1
        counters.journal_bytes += size
        self.node.effects.append(Append(frame, self.mark))
        if crowd > 4 * limits.JOURNAL_BACKLOG_BYTES:
            self._broke("the disk does not keep up")
        elif self._checkpoint is not None:
            self._checkpoint.passed += size
        elif not self._until and self._written > max(SMALLEST, FACTOR * self._whole):
            self._begin_checkpoint()

    def _encode(self, records: list[bytes]) -> bytes:
        if self.size <= limits.JOURNAL_FRAME_BYTES:
            return encode_frame(records, self._wall())
        self.node.counters.journal_split += 1
        self.node.log(
            "warning",
            f"{self.size:,} bytes for the journal in one turn are too many for a frame:"
            " written as several",
        )
        return encode_frames(records, self._wall(), limits.JOURNAL_FRAME_BYTES)

    def clock_offset(self) -> float:
        """Return by how much the time of day (s since the epoch) is ahead of the node's clock."""
        return self._wall() / 1000 - self.node.now

    def _wall(self) -> int:
        return self.node.cluster.clock.physical(self.node.now)

    def clock_set(self, step: int) -> None:
        """Take note that the time of day is another one by `step` ms, which have not passed: what
        was written with the earlier one would end too soon, or too late. So all of it is written
        again."""
        self.clock_step += step
        if abs(step) > CLOCK_STEP * 1000:
            self._written = ALL
            self.record(encode_seen(b""))

    def written(self, mark: int, error: str | None) -> None:
        """Take the driver's word that all frames up to `mark` are safe, or that they cannot be
        written."""
        under_way = self._under_way
        while under_way and under_way[0][0] <= mark:
            _, size, counts = under_way.popleft()
            self._pending -= size
            self._crowd -= counts
        if error is not None:
            self._broke(error)
        if self.state == RECOVERING and self._until and mark >= self._until:
            self.state = OK
            self.node.log("info", "the journal is whole again")
        if self.state == OK or not self.sync:
            self._release(mark)
        if self.state != BROKEN and self._until and mark >= self._until:
            self._until = 0
            discard = Discard(self._generation)
            self.node.absent_members.tail.settle(lambda: self.node.effects.append(discard))
        if self._pending < self._most // 2:
            self.node.release_publishers(self)

    def begun(self, generation: int, error: str | None) -> None:
        """Take the driver's word that a generation has begun, or that it could not."""
        if generation != self._generation:
            return
        if error is None:
            self._file = generation
            if self.state == BROKEN and generation == self._anew:
                self.state = RECOVERING
                self.node.log("info", f"the journal is written again, in generation {generation}")
                self._begin_checkpoint(begun=True)
        elif (
            self.state == OK and self._file
        ):  # which is all right: a checkpoint is tried again when it has grown
            self._end_checkpoint(0)
            self._written = int(max(SMALLEST, FACTOR * self._whole)) - SMALLEST
            self.node.log(
                "warning",
                f"the journal goes on in generation {self._file}: no other one can be begun"
                f" ({error})",
            )
        else:
            self._broke(error)

    def _broke(self, error: str) -> None:
        self.node.counters.journal_errors += 1
        if not self._retrying:
            self._retrying = True
            self.node.schedule(self.node.now + RETRY, self._retry)
        if self.state == BROKEN:
            return
        first = self.state == OK
        if (
            self.state == RECOVERING
        ):  # nothing was promised by what is in it, and the next one says it again
            self.node.effects.append(Discard(self._generation, failed=True))
        self.state = BROKEN
        self._end_checkpoint(0)
        what = (
            "QoS 1 and 2 messages are not acknowledged"
            if self.sync
            else "what comes from now on dies with this broker"
        )
        self.node.log(
            "error" if first else "debug",
            f"the journal cannot be written ({error}): until it can, {what}",
        )
        if not self.sync:
            self._release(self.mark)
        else:
            self._withheld.release_links(
                self.node.links_by_connection
            )  # it must not cut this broker off from the others

    def _retry(self, now: float) -> None:
        self._retrying = False
        if self.state == BROKEN:
            self._anew = self._generation = self._generation + 1
            self.node.effects.append(Begin(self._generation, anew=True))

    # ---------------------------------------------------------------- checkpoints

    def _begin_checkpoint(self, *, begun: bool = False) -> None:
        """Begin to say everything once more, in a new generation."""
        self.node.counters.checkpoints += 1
        if not begun:
            self._generation += 1
            self.node.effects.append(Begin(self._generation))
        self._first = self._number + 1
        self._again = set()
        self._written = self._until = 0
        self._most = min(AHEAD, limits.JOURNAL_BACKLOG_BYTES)
        self._checkpoint = checkpoint = Snapshot(self)
        self.node.schedule(self.node.now, lambda now: self._step(checkpoint, now))

    def _step(self, checkpoint: Snapshot, now: float) -> None:
        if self._checkpoint is not checkpoint:
            return
        if (self._pending <= AHEAD or checkpoint.passed >= AHEAD) and checkpoint.go_on():
            self._whole = checkpoint.size
            self.record(encode_whole(self._generation, self._whole))
            self._end_checkpoint(self.mark + 1)
        else:
            pause = SHORT_STEP if checkpoint.late else STEP
            self.node.schedule(now + pause, lambda at: self._step(checkpoint, at))

    def _end_checkpoint(self, until: int) -> None:
        """All is said, which is safe when frame `until` is; 0: it is given up."""
        self._checkpoint, self._until = None, until
        self._most = limits.JOURNAL_BACKLOG_BYTES

    # ---------------------------------------------------------------- sessions

    def came(self, session: Session, *, present: bool) -> None:
        """A client is connected; `present`: its session was there before."""
        recorder = self._recorder(session)
        if recorder is not None:
            recorder.left = 0
        if not session.expiry:
            self.ended(session)
        elif recorder is not None and present:
            recorder.attributes()
            self.promise()
        else:
            self.keep(session)
            self.promise()

    def keep(self, session: Session) -> None:
        """Have a session durable from now on, or note that its connection is gone."""
        recorder = self._recorder(session)
        left = 0 if session.conn is not None else self._wall() - self.clock_step
        if recorder is not None:
            recorder.left = left
            recorder.attributes()
            return
        if not self.sessions:
            self.node.cluster.origins.since = self.node.config.boot
        # What nobody wanted so far has been here as well.
        self._seen.update(self.node.forwarder.vector)
        self._session += 1
        recorder = self._adopt(session, self._session)
        recorder.left = left
        recorder.replaced()

    def ended(self, session: Session) -> None:
        """A session is over, or not to be durable any more."""
        recorder = self._recorder(session)
        if recorder is not None:
            self.record(encode_end(recorder.number))
            self.promise()
            del self.sessions[recorder.number]
            session.recorder = None

    def _recorder(self, session: Session) -> SessionRecorder | None:
        """Return the recorder of a durable session; there are no others than ours."""
        recorder = session.recorder
        assert recorder is None or isinstance(recorder, SessionRecorder)
        return recorder

    def begins_at(self, start: SubscriptionStart, number: int) -> None:
        """Note where the subscriptions of session `number` begin, for `raised`."""
        self._beginning.setdefault(start, {})[number] = None
        for old in list(islice(self._beginning, 2)):
            if old.at + limits.LOG_AGE < self.node.now:
                del self._beginning[old]

    def raised(self, start: SubscriptionStart) -> None:
        """Record once more where subscriptions begin: more is known of it by now."""
        for number in list(self._beginning.get(start, ())):
            if number in self.sessions:
                self.sessions[number].starts()

    # ---------------------------------------------------------------- messages of sessions

    def number_of(self, message: Message) -> int:
        """Return the number of a message, which is in this generation from now on."""
        number: int = getattr(message, "number", 0)
        if number >= self._first or number in self._again:
            return number
        if number:
            self._again.add(number)
        else:
            self._number += 1
            number = message.number = self._number
        self.record(
            MessageRecord(
                number,
                message.qos,
                message.retain,
                self._expires(message),
                message.topic,
                message.properties,
                message.payload,
            ).encode()
        )
        return number

    def _expires(self, message: Message) -> int:
        if message.expires_at is None:
            return 0
        return max(1, self._wall() + round((message.expires_at - self.node.now) * 1000))

    def batch(self, route: Route, batch: PublishRun) -> None:
        """Record a run of messages if a session that is kept gets them."""
        for delivery in route.deliveries:
            if delivery.qos and delivery.session.recorder is not None:
                break
        else:
            return
        number = batch.number = self._number + 1
        self._number += batch.count
        self.record(
            RunRecord(
                number,
                batch.qos,
                batch.size,
                batch.payload,
                batch.topic,
                batch.properties,
                batch.data,
            ).encode()
        )
        self.promise()

    # ---------------------------------------------------------------- retained messages, and the
    # relay's log

    def retained(self, mark: RetainedVersion) -> None:
        """Note that a retained topic was written, or that its message has its number; it is
        recorded once, with this turn."""
        self._marks[mark.place] = mark

    def said(self, mark: RetainedVersion) -> None:
        """Record what a retained topic is now."""
        message = self.node.retained.living(mark, self.node.now)
        properties, payload, expires = b"", b"", 0
        if message is not None:
            properties, payload, expires = (
                message.properties,
                message.payload,
                self._expires(message),
            )
        self.record(
            RetainedRecord(
                mark.time,
                mark.death,
                expires,
                mark.sequence,
                mark.qos,
                mark.key,
                mark.topic,
                properties,
                payload,
            ).encode()
        )

    def logged(self, entry: LogEntry) -> None:
        """Record messages published here that other brokers may lack. They get those of a publisher
        that goes on with its session at QoS 2 no earlier than we know that we have them: they would
        take what it repeats for another message."""
        self.record(self.encoded(entry))
        self.promise()
        conn = self.node.current
        goes_on = (
            conn is not None
            and isinstance(conn.owner, Client)
            and conn.owner.session.recorder is not None
        )
        if goes_on and entry.qos == 2 and self.state == OK:
            for link in self.node.cluster.links.values():
                link.conn.gate = self.mark + 1

    def encoded(self, entry: LogEntry) -> bytes:
        """Return an entry of the relay's log as a record."""
        at = self._wall() - round((self.node.now - entry.at) * 1000)
        return LoggedRecord(
            entry.key,
            entry.sequence,
            entry.count,
            entry.step,
            max(0, at),
            entry.data(self.node.now),
        ).encode()

    def shared_closed(self, refs: list[Ref]) -> None:
        """Record that messages for members of shared subscriptions elsewhere are acknowledged, or
        another one's."""
        self.record(shared_records.closed(refs))

    def shared_taken(self, refs: list[Ref]) -> None:
        """Record that messages of other brokers were granted to members here."""
        self.record(shared_records.taken(refs))

    def shared_covered(self, mark: bytes, key: bytes, ranges: Ranges, since: float | None) -> None:
        """Record which messages published here a group got, and since when (s) it is known."""
        at = 0 if since is None else max(1, self._wall() - round((self.node.now - since) * 1000))
        self.record(shared_records.covered(mark, key, ranges, at))

    def saw(self, key: bytes) -> None:
        """Note that something of another broker came: sessions miss what comes after it, should
        this broker be away."""
        if self.sessions:
            self._seen.add(key)

    def since(self) -> Vector:
        """Say since when sessions here miss what is published elsewhere."""
        since = self.node.cluster.origins.since
        return {origin_key(self.node.config.id, since): OriginWindow(0, 0.0)}

    def met(self, key: bytes) -> None:
        """Note that another broker is known from now on."""
        if self.sessions:
            self._seen.add(key)
            self._met = True
