"""The log tail: messages that leave the replay log while brokers that want them are away, on the
disk (docs/decisions/0031). Pure.

    message   in the log -(leaves it, wanted by a broker that is away)-> pending
              -(FRAME bytes, or a second)-> frame of a segment
              frame -(its brokers have it, or are given up)-> forgotten
                    -(the tail has its limit, the disk fails, the frame is damaged)->
                    lost, and counted for these brokers
    disk      OK -(a write fails)-> BROKEN: messages that leave the log are lost
              -(a write a second later works, in a new segment)-> OK

In memory are, for each frame, its place and which numbers it has for which broker. Each segment
names the brokers that are away, so that the last one does so after a restart (`tail_segment`).
While no broker is away, nothing is done here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import Ranges, intersect
from mqttree.broker.cluster.delivery.replay_log import LogEntry, restored_batch
from mqttree.broker.cluster.sessions.records import EntryRecord, JournalError
from mqttree.broker.core.effects import TailDrop, TailRead, TailSync, TailWrite
from mqttree.broker.persistence.tail_segment import (
    Away,
    Found,
    Part,
    decode_entries,
    encode_away,
    encode_entries,
    encode_header,
)
from mqttree.broker.wire.errors import WireError

if TYPE_CHECKING:
    from mqttree.broker.base.hybrid_clock import HybridClock
    from mqttree.broker.cluster.ports import MemberBroker
    from mqttree.broker.core.connection import Connection

SEGMENT_BYTES = 16 * 1024 * 1024
"""bytes of one file of it, about; an eighth of the tail at most."""

FRAME_BYTES = 256 * 1024
"""bytes that are written, and read, at a time, about: as much as an answer to a question
brings."""

RETRY = 1.0
"""s until a new segment is tried after a failure."""

Read = Callable[["list[LogEntry] | None"], None]
"""Takes the messages of a frame; None: it cannot be read."""

Parts = dict[tuple[bytes, bytes], Part]
"""By broker and origin."""

Lost = Callable[[Part], None]
"""Told of what the tail has lost."""


class Frame:
    """Messages that are written together, in a `segment` at `offset`, `size` bytes. `parts`: which
    numbers they have, for each broker and origin."""

    __slots__ = ("data", "offset", "parts", "segment", "size")

    def __init__(
        self, segment: Segment, offset: int, size: int, parts: Parts, data: bytes | None
    ) -> None:
        """`data`: its bytes, until they are written."""
        self.segment = segment
        self.offset = offset
        self.size = size
        self.parts = parts
        self.data = data


class Segment:
    """One file of the log's tail: its number, its size (bytes), and where its frames are."""

    __slots__ = ("frames", "number", "size")

    def __init__(self, number: int) -> None:
        self.number = number
        self.size = 0
        self.frames: list[Frame] = []


@dataclass(slots=True, eq=False, repr=False)
class TailLoaded:
    """What was there at the start."""

    segments: list[tuple[int, int, list[Found]]] = field(default_factory=list)
    """Of each file, in their order: number, bytes, frames."""
    cuts: list[str] = field(default_factory=list)
    """One line for each file whose end cannot be read."""


class LogTail:
    """The log tail of one broker."""

    def __init__(
        self,
        node: MemberBroker,
        clock: HybridClock,
        lost: Lost,
        away: Callable[[], Iterable[Away]],
    ) -> None:
        """`node`: the broker. `clock`: the time of day. `lost`: called with what cannot be kept.
        `away`: returns which brokers are away."""
        self._node = node
        self._counters = node.counters
        self._log_limit = node.log_limit
        self._clock = clock
        self._lost = lost
        self._away = away
        self.usable = False
        """Whether there is a disk, and something may be written."""
        self.size = 0
        """Bytes of all segments."""
        self._segments: deque[Segment] = deque()
        self._current: Segment | None = None
        # The number of the last segment.
        self._number = 0
        # By broker and origin, ascending.
        self._index: dict[tuple[bytes, bytes], list[Frame]] = {}
        self._records: list[bytes] = []
        self._pending: Parts = {}
        self._pending_size = 0
        # The brokers that are away are not those that were written last.
        self._stale = False
        self._last_request = 0
        self._under_way: dict[int, tuple[Segment, Frame | None, int]] = {}
        # Bytes of these.
        self._unwritten = 0
        self._reads: dict[int, tuple[Frame, Read]] = {}
        self._syncs: dict[int, Callable[[], None]] = {}
        self._broken = False
        self._retry_at = 0.0

    def begin(self, loaded: TailLoaded) -> tuple[Away, ...]:
        """Restore the tail that `loaded` describes. Returns the brokers that were away."""
        self.usable = self._node.config.log_tail > 0
        away: tuple[Away, ...] = ()
        for number, size, frames in loaded.segments:
            segment = Segment(number)
            segment.size = size
            self._number = max(self._number, number)
            self._segments.append(segment)
            self.size += size
            for found in frames:
                if found.away is not None:
                    away = found.away
                elif found.parts:
                    parts = {(part.broker, part.key): part for part in found.parts}
                    self._put(Frame(segment, found.at, found.size, parts, None))
        known = {one.broker for one in away}
        for broker_id in dict.fromkeys([broker_id for broker_id, _ in self._index]):
            if broker_id not in known:
                self._forget_broker(broker_id)
        self._stale = bool(away) and self.usable
        if not self._stale:
            self._drop_all()
        return away if self.usable else ()

    def _put(self, frame: Frame) -> None:
        """Add a frame to the index, without numbers that an earlier frame has too."""
        for where, part in list(frame.parts.items()):
            if self._has(where, part.last):
                del frame.parts[where]
            else:
                self._index.setdefault(where, []).insert(self._place(where, part.last), frame)
        if frame.parts:
            frame.segment.frames.append(frame)

    # ---------------------------------------------------------------- messages that leave the log

    def add(self, entry: LogEntry, brokers: list[bytes], source: Connection | None) -> bool:
        """Keep `entry`, which leaves the log, for these `brokers`; False when that is not possible.
        `source`: whose message pushed them out: it is held while the disk is behind."""
        node = self._node
        if not self.usable or (self._broken and node.now < self._retry_at):
            return False
        last = entry.sequence + entry.count - 1
        new = False
        if self._parted(brokers, entry.key, last):
            self.flush()
        for broker_id in brokers:
            where = (broker_id, entry.key)
            part = self._pending.get(where)
            if self._has(where, last):
                continue
            if part is not None:
                if part.last < last:
                    self._pending[where] = part._replace(
                        last=last, messages=part.messages + entry.count
                    )
                    new = True
            else:
                self._pending[where] = Part(broker_id, entry.key, entry.sequence, last, entry.count)
                new = True
        if new:
            at = self._wall() - round((node.now - entry.at) * 1000)
            record = EntryRecord(True, max(0, at), entry.kept())
            self._records.append(record.encode())
            self._pending_size += entry.size
            if self._pending_size >= FRAME_BYTES:
                self.flush()
            if self._unwritten > node.limits.journal_backlog_bytes:
                node.flow_control.hold(source, self)
        return True

    def _place(self, where: tuple[bytes, bytes], number: int) -> int:
        """Return the place of the first frame that ends with a number, or behind it."""
        if self._last(where) < number:
            return len(self._index.get(where, ()))
        return bisect_left(self._index[where], number, key=lambda frame: frame.parts[where].last)

    def _has(self, where: tuple[bytes, bytes], number: int) -> bool:
        """Return whether a number is in a frame, or was not wanted. After a start the journal has
        messages that are in the tail, and, if a segment has been removed, older ones that are
        not."""
        return (
            number <= self._last(where)
            and self._index[where][self._place(where, number)].parts[where].first <= number
        )

    def _parted(self, brokers: list[bytes], key: bytes, last: int) -> bool:
        """Return whether a frame has numbers between those that are pending and `last`."""
        for broker_id in brokers:
            where = (broker_id, key)
            part = self._pending.get(where)
            if (
                part is not None
                and part.last < self._last(where)
                and self._place(where, part.last) != self._place(where, last)
            ):
                return True
        return False

    def _last(self, where: tuple[bytes, bytes]) -> int:
        frames = self._index.get(where)
        return frames[-1].parts[where].last if frames else 0

    def begins(self, broker_id: bytes, key: bytes) -> int:
        """Return the lowest sequence number of an origin that is here for a broker; 0: there is
        none. `broker_id`: the broker; `key`: the origin's."""
        frames = self._index.get((broker_id, key))
        return frames[0].parts[broker_id, key].first if frames else 0

    def last(self, key: bytes) -> int:
        """Return the highest sequence number of an origin that is here; 0: there is none."""
        return max((self._last(where) for where in self._index if where[1] == key), default=0)

    def origins(self) -> list[bytes]:
        """Return the origins of all messages that are here."""
        return list(dict.fromkeys([key for _, key in self._index]))

    def _wall(self) -> int:
        return self._clock.physical(self._node.now)

    def changed(self) -> None:
        """Note that the set of brokers that are away has changed."""
        self._stale = self.usable

    def flush(self) -> None:
        """Write the pending messages, and which brokers are away if that has changed. After an
        error nothing is written until it is time to try again."""
        if not (self._stale or self._records) or (self._broken and self._node.now < self._retry_at):
            return
        if self._stale and self._current is not None:
            self._stale = False
            self._write(self._current, encode_away(self._away()), None)
        elif self._stale:
            self._segment()
        if self._records:
            parts, records = self._pending, self._records
            self._pending, self._records, self._pending_size = {}, [], 0
            data = encode_entries(parts.values(), records)
            segment = self._segment()
            frame = Frame(segment, segment.size, len(data), parts, data)
            self._put(frame)
            self._write(segment, data, frame)
            self._trim()

    def _segment(self) -> Segment:
        """Return the segment that frames go to."""
        segment = self._current
        if segment is None or segment.size >= min(SEGMENT_BYTES, self._node.config.log_tail // 8):
            self._number += 1
            segment = self._current = Segment(self._number)
            self._segments.append(segment)
            self._stale = False
            self._write(
                segment,
                encode_header(self._node.config.id, self._number) + encode_away(self._away()),
                None,
            )
        return segment

    def _write(self, segment: Segment, data: bytes, frame: Frame | None) -> None:
        self._last_request += 1
        self._under_way[self._last_request] = (segment, frame, len(data))
        self._unwritten += len(data)
        self._node.effects.append(TailWrite(segment.number, segment.size, data, self._last_request))
        segment.size += len(data)
        self.size += len(data)
        counters = self._node.counters
        counters.log_tail_bytes += len(data)
        if self._unwritten > 4 * self._node.limits.journal_backlog_bytes:
            self._fail("the disk does not keep up")

    def written(self, effect: TailWrite, error: str | None, now: float) -> bool:
        """Take the driver's word that something is written, or cannot be. Returns True: this answer
        may be waited for.

        `effect`: what was to be written; `error`: None when it is; `now`: s.
        """
        if effect.request not in self._under_way:
            # The write was given up.
            return True
        if error is not None:
            self._fail(error)
        else:
            _, frame, size = self._under_way.pop(effect.request)
            self._unwritten -= size
            if frame is not None:
                frame.data = None
            if self._broken:
                self._broken = False
                self._node.log("info", "the log tail can be written again")
        if self._unwritten < self._node.limits.journal_backlog_bytes // 2:
            self._node.flow_control.release(self)
        return True

    def _fail(self, error: str) -> None:
        """Drop all messages that are not written yet: they are lost. Those that follow go to a new
        segment, as the file of this one may be gone."""
        self._current = None
        self._counters.log_tail_errors += 1
        self._retry_at = self._node.now + RETRY
        if not self._broken:
            self._broken = True
            self._node.log(
                "error",
                f"the log tail cannot be written ({error}): until it can, "
                "messages that leave the replay log are lost for brokers that are away",
            )
        under_way, self._under_way, self._unwritten = self._under_way, {}, 0
        for segment, frame, size in under_way.values():
            if frame is not None:
                self._lose(frame)
                segment.frames.remove(frame)
            segment.size -= size
            self.size -= size
            if not segment.size and segment in self._segments:
                self._drop(segment)
        pending, self._pending, self._records, self._pending_size = self._pending, {}, [], 0
        for part in pending.values():
            self._lost(part)
        self._current = None
        self._stale = True
        for then in list(self._syncs.values()):
            then()
        self._syncs.clear()

    # ---------------------------------------------------------------- reading

    def first(self, broker_id: bytes, key: bytes, lacks: Ranges) -> Frame | None:
        """Return the first frame with something of an origin that a broker lacks; None: there is
        none.

        `broker_id`: which lacks it; `key`: of the origin; `lacks`: its numbers.
        """
        where = (broker_id, key)
        frames = self._index.get(where)
        if self._pending and where in self._pending and lacks:
            part = self._pending[where]
            if intersect([(part.first, part.last)], lacks):
                self.flush()
                frames = self._index.get(where)
        if not frames or not lacks:
            return None
        at = bisect_left(frames, lacks[0][0], key=lambda frame: frame.parts[where].last)
        for frame in frames[at:]:
            part = frame.parts[where]
            if intersect([(part.first, part.last)], lacks):
                return frame
        return None

    def frames(self, broker_id: bytes) -> list[Frame]:
        """Return all frames with messages for a broker, in the order in which they were written."""
        if any(broker == broker_id for broker, _ in self._pending):
            self.flush()
        return [
            frame
            for segment in self._segments
            for frame in segment.frames
            if any(broker == broker_id for broker, _ in frame.parts)
        ]

    def read(self, frame: Frame, then: Read) -> None:
        """Have the messages of a frame handed to `then`."""
        if frame.data is not None:
            then(self._decode(frame, frame.data))
            return
        self._last_request += 1
        self._reads[self._last_request] = (frame, then)
        self._node.effects.append(
            TailRead(frame.segment.number, frame.offset, frame.size, self._last_request)
        )

    def was_read(self, effect: TailRead, result: bytes | str | None, now: float) -> bool:
        """Take what the driver has read, or why it could not. Returns whether this answer was
        waited for.

        `effect`: what was to be read; `result`: the bytes, None if the segment is gone, or the
        error's text; `now`: s.
        """
        if effect.request not in self._reads:
            return False
        frame, then = self._reads.pop(effect.request)
        if isinstance(result, bytes):
            then(self._decode(frame, result))
        elif result is None:
            self._lose_segment(frame.segment)
            then(None)
        else:
            self._damaged(frame, f"cannot be read ({result})")
            then(None)
        return True

    def _decode(self, frame: Frame, data: bytes) -> list[LogEntry] | None:
        try:
            return [self._entry(record) for record in decode_entries(data)]
        except JournalError as error:
            self._damaged(frame, str(error))
        except WireError:
            self._damaged(frame, "is damaged")
        return None

    def _entry(self, record: EntryRecord) -> LogEntry:
        """Return the entry that was recorded. Raises WireError: a batch that is none."""
        now = self._node.now
        at = min(now, now - (self._wall() - record.at) / 1000)
        return restored_batch(record.data, at, whole=False)

    def _damaged(self, frame: Frame, why: str) -> None:
        self._counters.log_tail_damaged += 1
        count = max((part.messages for part in frame.parts.values()), default=0)
        number = frame.segment.number
        where = f"segment {number} of the log tail {why} at byte {frame.offset}"
        text = f"{where}: {count} messages for brokers that were away are lost"
        self._log_limit.line("warning", "the log tail is damaged", f"segment {number}", text)
        self._lose(frame)

    def _lose_segment(self, segment: Segment) -> None:
        """Forget the contents of a file that has been removed."""
        if segment not in self._segments:
            return
        gone = [frame for frame in segment.frames if frame.data is None]
        self._counters.log_tail_damaged += len(gone)
        for frame in gone:
            self._lose(frame)
        # These writes fail, and say what they had.
        segment.frames = [frame for frame in segment.frames if frame.data is not None]
        if all(segment is not other for other, _, _ in self._under_way.values()):
            self._drop(segment)
        text = (
            f"segment {segment.number} of the log tail is gone: its messages for brokers that were "
            "away are lost"
        )
        self._log_limit.line("warning", "the log tail is gone", "the disk", text)

    # ---------------------------------------------------------------- deleting

    def _lose(self, frame: Frame) -> None:
        """Forget a frame that brokers still lack, and count it for them."""
        parts = frame.parts
        self._forget(frame, list(parts))
        for part in parts.values():
            self._lost(part)
        frame.parts = {}

    def _forget(self, frame: Frame, places: Iterable[tuple[bytes, bytes]]) -> None:
        for where in places:
            frames = self._index.get(where, [])
            if frame in frames:
                frames.remove(frame)
            if not frames:
                self._index.pop(where, None)

    def _trim(self) -> None:
        """Delete the oldest segments until the tail keeps its limit."""
        while self.size > self._node.config.log_tail and len(self._segments) > 1:
            segment = self._segments[0]
            for frame in segment.frames:
                self._lose(frame)
            segment.frames = []
            self._drop(segment)
            limit = self._node.config.log_tail >> 20
            text = (
                f"the log tail has reached its limit of {limit} MiB (log-tail): "
                "its oldest messages are lost for brokers that are away"
            )
            self._log_limit.line("warning", "log-tail is full", "", text)

    def left(self, broker_id: bytes) -> dict[bytes, list[Part]]:
        """Return the parts that are here for a broker, by origin."""
        found: dict[bytes, list[Part]] = {}
        for (broker, key), frames in self._index.items():
            if broker == broker_id:
                found[key] = [frame.parts[broker, key] for frame in frames]
        for (broker, key), part in self._pending.items():
            if broker == broker_id:
                found.setdefault(key, []).append(part)
        return found

    def holds(self, broker_id: bytes, lacks: dict[bytes, Ranges]) -> bool:
        """Return whether anything is here that a broker may lack. `lacks`: the numbers that it says
        it lacks, for each origin that it has asked for."""
        for (broker, key), frames in self._index.items():
            if (
                broker == broker_id
                and frames
                and (key not in lacks or self.first(broker_id, key, lacks[key]) is not None)
            ):
                return True
        return any(broker == broker_id and key not in lacks for broker, key in self._pending)

    def ended(self, broker_id: bytes) -> None:
        """Keep nothing for a broker any more."""
        self.changed()
        self._forget_broker(broker_id)
        if not any(True for _ in self._away()):
            self._drop_all()

    def _forget_broker(self, broker_id: bytes) -> None:
        for where in [where for where in self._pending if where[0] == broker_id]:
            del self._pending[where]
        if not self._pending:
            self._records, self._pending_size = [], 0
        for where in [where for where in self._index if where[0] == broker_id]:
            for frame in self._index.pop(where):
                del frame.parts[where]
        for segment in list(self._segments):
            segment.frames = [frame for frame in segment.frames if frame.parts]
            if not segment.frames and segment is not self._current:
                self._drop(segment)

    def _drop(self, segment: Segment) -> None:
        self._segments.remove(segment)
        self.size -= segment.size
        if segment is self._current:
            self._current = None
        self._node.effects.append(TailDrop(segment.number))

    def _drop_all(self) -> None:
        for segment in list(self._segments):
            self._drop(segment)
        self._stale = False

    # ---------------------------------------------------------------- the journal

    def settle(self, then: Callable[[], None]) -> None:
        """Call `then` when all messages that have left the log are on the disk, so that the journal
        need not keep them."""
        self.flush()
        if not self._segments or self._broken:
            then()
            return
        self._last_request += 1
        self._syncs[self._last_request] = then
        self._node.effects.append(TailSync(self._last_request))

    def synced(self, effect: TailSync, error: str | None, now: float) -> bool:
        """Take the driver's word for that. Returns True: this answer may be waited for.

        `effect`: what asked for it; `error`: None when all is on the disk; `now`: s.
        """
        then = self._syncs.pop(effect.request, None)
        if error is not None:
            self._fail(error)
        if then is not None:
            then()
        return True
