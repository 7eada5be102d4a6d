"""The frames of the journal: their numbers (LSN), group commit, failures, segments, and the output
that waits (docs/decisions/0021). Pure; `journal_writer` writes.

All records of one turn of the loop are one frame (with those of earlier turns that could wait,
`record_later`), and the number of a frame is its LSN. A connection whose packets caused a record
(`require`) is sent nothing more before the frame is durable. The driver reports that: the kernel
has the frame (`async`), or the disk has it (`sync`). No other connection waits for a disk. The
states are a table (`journal_states`).

A snapshot begins a new segment with the next frame. In steps, between the other records, the whole
state is recorded as it is now; a last record ends it. When that is durable, older segments are
deleted. A snapshot is due when the journal is SNAPSHOT_FACTOR times as large as the last one was.

Invariants: a connection with output held back has a `gate` that is not 0; the LSNs of output that
is held back never fall.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from mqttree.broker.base.hybrid_clock import HybridClock
from mqttree.broker.cluster.sessions.records import Kind, encode_record, encode_snapshot_end
from mqttree.broker.core.client import CONNACK, Client
from mqttree.broker.core.connection import Connection
from mqttree.broker.core.effects import AppendFrame, BeginSegment, DiscardSegments
from mqttree.broker.persistence.frames import encode_frame, encode_frames
from mqttree.broker.persistence.journal_states import HEALTHY, Action, Input, State, transition
from mqttree.broker.persistence.output_gate import OutputGate
from mqttree.broker.persistence.ports import JournalBroker
from mqttree.broker.persistence.snapshot import Snapshot

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.replay_log import LogEntry
    from mqttree.broker.core.session import Session

SNAPSHOT_FACTOR = 2.0
"""How many times the last snapshot's size a journal may have: each byte is written up to twice."""
STEP_PAUSE, SHORT_STEP_PAUSE = 0.01, 0.001
"""s between two steps of a snapshot, and when others write more than it records."""
RETRY = 1.0
"""s until a new segment is tried after a failure."""
SNAPSHOT_NOW = 1 << 62
"""bytes; more than any journal has: a snapshot is due."""
MANY_SEGMENTS = 8
"""segments (starts of the broker) after which a snapshot puts everything into one."""

Settle = Callable[[Callable[[], None]], None]
"""Calls back once what is kept beside the journal is on the disk."""

# Not looked up for each frame.
NEW: Final = State.NEW
WRITING: Final = State.WRITING

LINGERING: Final = (NEW, WRITING)
"""States in which records may wait."""

NOTHING = encode_record(Kind.SEEN, b"")
"""The record of a frame in which nothing has changed: an empty one counts as damaged."""


class Sink(Protocol):
    """Where frames go besides the disk."""

    @property
    def targets(self) -> tuple[object, ...]:
        """To whom; empty: there is no standby."""

    @property
    def pending(self) -> int:
        """Bytes of frames that have gone there and are not acknowledged."""

    @property
    def lsn(self) -> int:
        """The highest LSN that is acknowledged; more than any if nothing waits for that."""

    def send(self, frame: bytes, lsn: int) -> None:
        """Send a frame, the one behind the last that was sent."""

    def begin_anew(self) -> None:
        """Send the whole state once more, soon."""

    def published(self, lsn: int, entry: LogEntry, session: Session) -> None:
        """Note that a `session` has published an `entry` that goes out with frame `lsn`."""


class WriteAheadLog:
    """The frames of one broker's journal.

    `host`: the broker. `clock`: the time of day. `sync`: durable frames survive a power cut, so
    that acknowledgements wait while the disk cannot write. `disk`: whether there is one; without it
    frames are for the standby alone. `all_records`: called when a snapshot begins, returns its plan
    (`Snapshot`). `settle`: called before older segments are deleted.
    """

    healthy: bool
    """Whether what is recorded is written, and nothing is missing before it."""
    writes: bool
    """Whether records are written to the disk, and not dropped."""

    def __init__(
        self,
        host: JournalBroker,
        clock: HybridClock,
        *,
        sync: bool,
        disk: bool,
        all_records: Callable[[], Iterator[int]],
        settle: Settle,
    ) -> None:
        """Make a journal without a segment; `start` begins the first."""
        self._host = host
        self._limits = host.limits
        self._clock = clock
        self.sync = sync
        self.disk = disk
        self.stream: Sink | None = None
        """Sends the frames to a standby; None: none is wanted."""
        self.state = State.NEW
        self.healthy, self.writes = True, disk
        self.lsn = 0
        """Of the last frame."""
        self.durable_lsn = 0
        """The highest one that the driver has reported, and that the standby has."""
        self._disk_lsn = 0  # the highest one that the driver has reported
        self.size = 0
        """Bytes of the records for the next frame."""
        self._records: list[bytes] = []
        self.due = False
        """Whether this turn has a frame: what was recorded, or will be, cannot wait for a later
        one."""
        # A timer for records that wait runs.
        self._lingering = False
        # Frames that the driver has and has not reported: LSN, bytes, bytes that count as backlog.
        self._under_way: deque[tuple[int, int, int]] = deque()
        # Bytes of these frames; the same, but a frame counts `journal_backlog_bytes` at most.
        self._pending = self._backlog = 0
        # Publishers are held (one is, perhaps) while more bytes than this are pending.
        self._holding, self._backlog_limit = False, self._limits.journal_backlog_bytes
        self.gate = OutputGate(self._limits)
        # The highest LSN with an answer. Segments: the last one asked for, the last one with an
        # answer while it was that, the one that frames go to (0: none), the last one asked for
        # after a failure.
        self._answered = self._requested_segment = 0
        self._told = self._segment = self._replacement = 0
        # Bytes of frames since the last snapshot began, and of that snapshot.
        self._written = self._snapshot_size = 0
        self._all_records = all_records
        self._settle = settle
        self.snapshot: Snapshot | None = None
        """The one for the disk that is under way."""
        self._snapshots: dict[Snapshot, None] = {}  # all that are under way
        # LSN of the snapshot's end; 0: the end is not recorded yet.
        self._snapshot_end = 0
        # A timer for the next attempt to begin a segment runs.
        self._retrying = False
        self._actions: dict[Action, Callable[[str], None]] = {
            Action.NOTHING: lambda why: None,
            Action.BEGIN_SNAPSHOT: lambda why: self._begin_snapshot(),
            Action.BEGIN_SEGMENT: self._begin_segment,
            Action.END_SNAPSHOT: self._end_snapshot,
            Action.DROP_OLDER: self._drop_older,
            Action.PUT_OFF: self._put_off,
            Action.FAIL: self._fail,
            Action.FAIL_AGAIN: self._fail_again,
            Action.RETRY_LATER: self._retry_later,
            Action.REBUILD: self._rebuild,
            Action.REPLACE: self._replace,
            Action.RECOVER: self._recover,
        }

    def _on(self, given: Input, why: str = "") -> None:
        """Go to the next state, and take the action that the table gives. `why`: the text of an
        error."""
        action, self.state = transition(self.state, given)
        self.healthy = self.state in HEALTHY
        self.writes = self.disk and self.state is not State.FAILED
        self._actions[action](why)

    def start(self, segment: int, segments: int, size: int, snapshot_size: int) -> None:
        """Begin the first segment of this incarnation.

        `segment`: its number, the first that is free. `segments`, `size`: how many there are, and
        their bytes; `snapshot_size`: bytes of the last snapshot in them.
        """
        self._requested_segment = segment
        self._snapshot_size, self._written = snapshot_size, size
        if not self.disk:
            return
        self._host.effects.append(BeginSegment(segment))
        many = segments >= MANY_SEGMENTS
        self._on(Input.STARTED_WITH_MANY if many else Input.STARTED)

    @property
    def busy(self) -> bool:
        """Whether the driver still has something to write: a snapshot, or frames."""
        return self.snapshot is not None or self._snapshot_end > 0 or bool(self._under_way)

    @property
    def pending(self) -> int:
        """Bytes of frames that the driver has and has not reported."""
        return self._pending

    # ---------------------------------------------------------------- output that waits

    def require(self, conn: Connection | None) -> None:
        """Hold back what a connection is sent from now on, until what is recorded now is durable;
        hold its publisher while very much is not."""
        if conn is None:
            return
        if conn.link is None:
            conn.gate = self.lsn + 1
        stream = self.stream
        if self._pending > self._backlog_limit or (
            stream is not None and stream.pending > self._limits.stream_hold_bytes
        ):
            self._holding = True
            self._host.flow_control.hold(conn, self)

    def hold(self, conn: Connection, outbox: list[bytes], source: Connection | None) -> None:
        """Take the outbox of `conn`, whose gate is not 0; `outbox` is empty afterwards.
        `source`: as of `Connection.flush`."""
        if conn.gate <= self.durable_lsn or (
            conn.link is not None and not self.healthy and conn.gate <= self._standby_lsn
        ):
            conn.gate = 0
            conn.flush(outbox, source)
            return
        lsn = conn.gate = self.lsn + 1 if self.due else max(self.lsn, conn.gate)
        if outbox[0][:1] == CONNACK and isinstance(client := conn.owner, Client):
            client.connack_lsn = lsn
        if not self.gate.put(lsn, conn, outbox, source):
            self._host.counters.slow_consumer_closed += 1
            why = "too many bytes wait until the journal is durable on the disk"
            self._host.log_limit.line(
                "warning", "journal is slow", conn.peer, f"{conn.peer}: {why}; closed"
            )
            conn.abort(why)
        outbox.clear()

    @property
    def _standby_lsn(self) -> int:
        """The highest LSN that the standby has; without one, more than any."""
        return self.lsn + 1 if self.stream is None else self.stream.lsn

    def _release(self, lsn: int) -> None:
        """Send what waited for the frame `lsn`, which is on the disk, if the standby has it."""
        lsn = self._disk_lsn = max(self._disk_lsn, lsn)
        if self.stream is not None:
            lsn = min(lsn, self.stream.lsn)
        if lsn > self.durable_lsn:
            self.durable_lsn = lsn
            self.gate.release(lsn)

    def standby_has(self) -> None:
        """Note that the standby has more frames, or that there is none any more."""
        self._release(0)
        if not self.healthy:
            self.gate.release_links(self._standby_lsn)
        if self._holding:
            self._let_publishers_go()

    def _let_publishers_go(self) -> None:
        """Read publishers again once the disk and the standby have caught up."""
        stream = self.stream
        if self._pending < self._backlog_limit // 2 and (
            stream is None or stream.pending < self._limits.stream_hold_bytes // 2
        ):
            self._holding = False
            self._host.flow_control.release(self)

    # ---------------------------------------------------------------- frames

    def expect(self) -> None:
        """Have this turn end with a frame: records may follow."""
        self.due = True

    def record(self, data: bytes) -> None:
        """Have a record written with this turn's frame."""
        self._records.append(data)
        self.size += len(data)
        self.due = True

    def record_first(self, data: bytes) -> None:
        """Have a record written with this turn's frame, ahead of all others in it."""
        self._records.insert(0, data)
        self.size += len(data)
        self.due = True

    def record_later(self, data: bytes) -> None:
        """Have a record written with the next frame, `journal_linger_s` from now at the latest: no
        output waits for it, and if it is lost, a client acknowledges something once more."""
        self._records.append(data)
        self.size += len(data)
        limits = self._limits
        if self.due or self._lingering:
            return
        if not limits.journal_linger_s or self.state not in LINGERING:
            self.due = True
            return
        self._lingering = True
        self._host.timers.schedule(self._host.now + limits.journal_linger_s, self._lingered)

    def _lingered(self, now: float) -> None:
        self._lingering = False
        self.force()

    def force(self) -> None:
        """Have all that is recorded written with this turn's frame."""
        self.due = self.due or bool(self._records)

    def seal(self) -> None:
        """End this turn, which is due: its records become a frame."""
        records = self._records or [NOTHING]
        self._records, self.due = [], False
        self.lsn += 1
        stream = self.stream
        frame = b""
        if self.writes or (stream is not None and stream.targets):
            frame = self._encode(records)
        self.size = 0
        size, backlog = len(frame), self._backlog
        if self._snapshots:
            for snapshot in self._snapshots:
                snapshot.bytes_since_step += size
        if stream is not None and frame:
            stream.send(frame, self.lsn)
        if not self.writes:
            if not self.sync:
                self._release(self.lsn)
            return
        limits = self._limits
        counts = min(size, limits.journal_backlog_bytes)
        self._under_way.append((self.lsn, size, counts))
        self._pending += size
        self._backlog += counts
        self._written += size
        counters = self._host.counters
        counters.journal_frames += 1
        counters.journal_bytes += size
        self._host.effects.append(AppendFrame(frame, self.lsn))
        if backlog > 4 * limits.journal_backlog_bytes:
            self._on(Input.WRITE_FAILED, "the disk does not keep up")
        elif (
            self._written > limits.journal_smallest
            and self.state is WRITING
            and self._written > self._grown()
        ):
            self._on(Input.SNAPSHOT_DUE)

    def _grown(self) -> float:
        """Return how many bytes since the last snapshot make a new one due."""
        return max(self._limits.journal_smallest, SNAPSHOT_FACTOR * self._snapshot_size)

    def _encode(self, records: list[bytes]) -> bytes:
        if self.size <= self._limits.journal_frame_bytes:
            return encode_frame(records, self.wall())
        self._host.counters.journal_frames_split += 1
        self._host.log(
            "warning",
            f"{self.size:,} bytes of journal records in one turn are too many for one frame:"
            " they are written as several",
        )
        return encode_frames(records, self.wall(), self._limits.journal_frame_bytes)

    def wall(self) -> int:
        """Return the time of day (ms since the epoch)."""
        return self._clock.physical(self._host.now)

    def clock_offset(self) -> float:
        """Return by how much the time of day (s since the epoch) is ahead of the broker's clock."""
        return self.wall() / 1000 - self._host.now

    def written(self, effect: AppendFrame, error: str | None, now: float) -> bool:
        """Take the driver's word that all frames up to one are durable, or why they cannot be
        written; an error may also come later, for frames that were not on the disk yet. Returns
        False for an answer that cannot be meant: nothing has changed.

        `effect`: what the last of the frames was written by; `error`: None when all is well; `now`:
        s.
        """
        lsn = effect.lsn
        newer = lsn > self._answered
        if lsn > self.lsn or self.state is NEW or (error is None and not newer):
            return False
        if newer:
            self._answered = lsn
        under_way = self._under_way
        while under_way and under_way[0][0] <= lsn:
            _, size, counts = under_way.popleft()
            self._pending -= size
            self._backlog -= counts
        if error is not None:
            self._on(Input.WRITE_FAILED, error)
        elif self._snapshot_end and lsn >= self._snapshot_end:
            self._on(Input.END_DURABLE)
        if self.healthy or not self.sync:
            self._release(lsn)
        if self._holding:
            self._let_publishers_go()
        return True

    # ---------------------------------------------------------------- segments

    def begun(self, effect: BeginSegment, error: str | None, now: float) -> bool:
        """Take the driver's word that a segment has begun, or why it could not; an error may also
        come later, for one that was not on the disk yet. Returns False for an answer that cannot be
        meant: nothing has changed.

        `effect`: what it was asked for by; `error`: None when all is well; `now`: s.
        """
        segment = effect.segment
        repeated = segment == self._told
        if segment > self._requested_segment or (
            repeated and (error is None or segment != self._segment)
        ):
            return False
        if segment != self._requested_segment:
            # Another segment has been asked for since.
            return True
        self._told = segment
        if repeated and error is not None:
            self._on(Input.WRITE_FAILED, error)
        elif error is None:
            self._segment = segment
            replaces = not self.writes and segment == self._replacement
            self._on(Input.REPLACED if replaces else Input.SEGMENT_BEGUN)
        elif self._segment:
            self._on(Input.SEGMENT_REFUSED, error)
        else:
            self._on(Input.WRITE_FAILED, error)
        return True

    def _begin_segment(self, why: str) -> None:
        self._requested_segment += 1
        self._host.effects.append(BeginSegment(self._requested_segment))
        self._begin_snapshot()

    # ---------------------------------------------------------------- failures

    def _retry_later(self, error: str) -> None:
        self._host.counters.journal_errors += 1
        if not self._retrying:
            self._retrying = True
            self._host.timers.schedule(self._host.now + RETRY, self._retry)

    def _retry(self, now: float) -> None:
        self._retrying = False
        self._on(Input.RETRY_DUE)

    def _replace(self, why: str) -> None:
        self._requested_segment += 1
        self._replacement = self._requested_segment
        self._host.effects.append(BeginSegment(self._requested_segment, full_snapshot=True))

    def _rebuild(self, why: str) -> None:
        self._host.log(
            "info", f"the journal can be written again, in segment {self._requested_segment}"
        )
        self._begin_snapshot()

    def _fail(self, error: str, level: str = "error") -> None:
        self._retry_later(error)
        self._leave_snapshot()
        what = (
            "QoS 1 and 2 messages are not acknowledged"
            if self.sync
            else "changes from now on do not survive the end of this broker"
        )
        self._host.log(level, f"the journal cannot be written ({error}): until it can, {what}")
        if not self.sync:
            self._release(self.lsn)
        else:
            # A full disk must not cut this broker off from the others.
            self.gate.release_links(self._standby_lsn)

    def _fail_again(self, error: str) -> None:
        # No output depends on anything in this segment, and the next one repeats it.
        self._host.effects.append(DiscardSegments(self._requested_segment, incomplete=True))
        self._fail(error, "debug")

    def _recover(self, why: str) -> None:
        self._host.log("info", "the journal contains everything again")
        self._drop_older("")

    # ---------------------------------------------------------------- snapshots

    def want_snapshot(self) -> None:
        """Begin a snapshot with the next frame, or when the present one has ended, and another one
        for the standby."""
        self._written = SNAPSHOT_NOW
        if self.stream is not None:
            self.stream.begin_anew()

    def _begin_snapshot(self) -> None:
        self._host.counters.journal_snapshots += 1
        self._written = self._snapshot_end = 0
        self._backlog_limit = min(self._limits.snapshot_ahead, self._limits.journal_backlog_bytes)
        self.snapshot = self.record_all(lambda: self._pending, lambda: self._on(Input.ALL_RECORDED))

    def record_all(self, pending: Callable[[], int], then: Callable[[], None]) -> Snapshot:
        """Record the whole state, in steps between the other records. `pending`: returns how many
        bytes are on their way to where it goes, `then`: is called when all is recorded."""
        snapshot = Snapshot(self, self._all_records(), self._limits)
        self._snapshots[snapshot] = None
        self._host.timers.schedule(
            self._host.now, lambda now: self._step(snapshot, pending, then, now)
        )
        return snapshot

    def leave(self, snapshot: Snapshot) -> None:
        """Record nothing more of a snapshot; harmless when repeated."""
        self._snapshots.pop(snapshot, None)

    def _step(
        self,
        snapshot: Snapshot,
        pending: Callable[[], int],
        then: Callable[[], None],
        now: float,
    ) -> None:
        if snapshot not in self._snapshots:
            return
        ahead = self._limits.snapshot_ahead
        if (pending() <= ahead or snapshot.bytes_since_step >= ahead) and snapshot.go_on():
            self.leave(snapshot)
            then()
        else:
            pause = SHORT_STEP_PAUSE if snapshot.is_late else STEP_PAUSE
            self._host.timers.schedule(
                now + pause, lambda at: self._step(snapshot, pending, then, at)
            )

    def _end_snapshot(self, why: str) -> None:
        assert self.snapshot is not None
        self._snapshot_size = self.snapshot.size
        self.record(encode_snapshot_end(self._requested_segment, self._snapshot_size))
        self._leave_snapshot()
        self._snapshot_end = self.lsn + 1

    def _leave_snapshot(self) -> None:
        if self.snapshot is not None:
            self.leave(self.snapshot)
        self.snapshot, self._snapshot_end = None, 0
        self._backlog_limit = self._limits.journal_backlog_bytes

    def _put_off(self, error: str) -> None:
        """Try the snapshot again when the journal has grown: the present segment is in order."""
        self._leave_snapshot()
        self._written = int(self._grown()) - self._limits.journal_smallest
        self._host.log(
            "warning",
            f"no new segment of the journal can begin ({error}): "
            f"it continues in segment {self._segment}",
        )

    def _drop_older(self, why: str) -> None:
        self._snapshot_end = 0
        discard = DiscardSegments(self._requested_segment)
        self._settle(lambda: self._host.effects.append(discard))
