"""The journal of one broker: what its sessions, its retained messages, its replay log and its
shared subscriptions change is recorded, so that it is there after a restart (docs/decisions/0021).
Pure.

What becomes of the records, and who waits for them, is in `write_ahead_log`; each durable session
records itself (`session_recorder`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from broker.base import limits
from broker.base.sequence_set import Ranges
from broker.cluster.link.codec import origin_key, split_key
from broker.cluster.link.version_vector import OriginWindow, Vector, encode_vector
from broker.cluster.sessions.message_vectors import offered
from broker.core.client import Client
from broker.core.connection import Connection
from broker.persistence import shared_records
from broker.persistence.durable_sessions import DurableSessions
from broker.persistence.message_records import MessageRecords
from broker.persistence.records import LoggedRecord, RetainedRecord, encode_seen
from broker.persistence.recovery import Image, Recovery
from broker.persistence.write_ahead_log import WriteAheadLog

if TYPE_CHECKING:
    from broker.cluster.cluster import Cluster
    from broker.cluster.delivery.replay_log import LogEntry
    from broker.cluster.sharing.assignment_ledger import Ref
    from broker.core.effects import AppendFrame, BeginSegment
    from broker.core.publish_run import PublishRun
    from broker.core.retained_index import RetainedVersion
    from broker.core.route import Route
    from broker.core.session import Session
    from broker.core.start_point import SubscriptionStart
    from broker.persistence.absent_members import AbsentMembers
    from broker.persistence.ports import Host

CLOCK_STEP = 5.0
"""s by which the time of day is set before the journal is written anew; sessions may live so much
longer or shorter."""

PASSED = 8
"""entries of the replay log that are passed over at the cost of one that is recorded."""


class Journal:
    """The journal of one broker."""

    def __init__(
        self, node: Host, cluster: Cluster, absent_members: AbsentMembers, *, sync: bool
    ) -> None:
        """`node`, `cluster`: the broker whose state is recorded. `absent_members`: has the log
        tail. `sync`: frames that the driver reports as durable survive a power cut, so that
        acknowledgements wait while the disk cannot write."""
        self.node = node
        self._cluster = cluster
        self._absent_members = absent_members
        self._log = cluster.forwarder.log
        self._origins = cluster.origins
        self.frames = WriteAheadLog(
            node,
            cluster.clock,
            sync=sync,
            all_records=self.everything,
            settle=absent_members.settle,
        )
        self.messages = MessageRecords(node, self.frames)
        self.sessions = DurableSessions(node, self.frames, self.messages)
        self._seen: set[bytes] = set()  # origins of which something came since the last frame
        self._met = False  # and one that is new
        # Of retained topics that were written since the last frame, by their places.
        self._retained: dict[bytes, RetainedVersion] = {}

    def begin(self, image: Image, segment: int, segments: int, size: int, now: float) -> None:
        """Make the broker what an image says, and go on in a new segment.

        `segment`: its number, the first that is free; `segments`, `size`: how many there are, and
        their bytes; `now`: s.

        `image`: what earlier segments say.
        """
        self.messages.last, self.sessions.last = image.numbers
        recovery = Recovery(self.node, self._cluster, self._absent_members, image, now)
        for number, session in recovery.run():
            disconnected_at = image.sessions[number].head.disconnected_at
            self.sessions.restored(session, number, disconnected_at, recovery.died)
        self.node.schedule(now + limits.JOURNAL_BEAT / 2, lambda at: self._beat(at, 0))
        self.frames.start(segment, segments, size, image.size)

    def _beat(self, now: float, lsn: int) -> None:
        """Record that the broker lives, if nothing was recorded since frame `lsn`: connections that
        end with it end now, not earlier."""
        frames = self.frames
        if frames.lsn == lsn and self.sessions.recorders and frames.writes:
            frames.record(encode_seen(b""))
        beaten = frames.lsn + frames.open
        self.node.schedule(now + limits.JOURNAL_BEAT / 2, lambda at: self._beat(at, beaten))

    # ---------------------------------------------------------------- frames

    @property
    def lsn(self) -> int:
        """The LSN of the last frame."""
        return self.frames.lsn

    @property
    def durable_lsn(self) -> int:
        """The highest LSN that is durable."""
        return self.frames.durable_lsn

    @property
    def pending(self) -> int:
        """Bytes that are on their way to the disk."""
        return self.frames.pending

    @property
    def healthy(self) -> bool:
        """Whether what is recorded is written, and nothing is missing before it."""
        return self.frames.healthy

    @property
    def busy(self) -> bool:
        """Whether something is still to be written."""
        return self.frames.busy

    def require(self, source: Connection | None) -> None:
        """Hold back what `source` is sent from now on, until what is recorded now is durable."""
        self.frames.require(source)

    def gate_output(self, conn: Connection, outbox: list[bytes], source: Connection | None) -> None:
        """Take the outbox of `conn`, whose gate is not 0; `outbox` is empty afterwards.
        `source`: as of `Connection.flush`."""
        self.frames.hold(conn, outbox, source)

    def gates_output(self, conn: Connection) -> bool:
        """Whether output for a connection is held back."""
        return conn in self.frames.gate

    def gated_output(self, conn: Connection) -> list[bytes]:
        """Return the output that is held back for a connection."""
        return self.frames.gate.output_of(conn)

    def connection_closed(self, conn: Connection) -> None:
        """A connection is closed: what was held back for it is dropped."""
        if conn in self.frames.gate:
            self.frames.gate.gone(conn)

    def seal(self) -> None:
        """End this turn: its records become a frame."""
        frames = self.frames
        if self._retained:
            versions, self._retained = self._retained, {}
            for version in versions.values():
                self._retained_now(version)
        if self._seen and (self._met or frames.open):
            self._met = False
            vector = self._origins.vector
            seen = offered(
                {
                    key: vector[key]
                    for key in self._seen
                    if key in vector and key != self._origins.key
                }
            )
            frames.record(encode_seen(encode_vector(seen | self._since())))
            self._seen.clear()
        frames.seal()

    def written(self, effect: AppendFrame, error: str | None, now: float) -> bool:
        """Take the driver's word that all frames up to one are durable, or why not. Returns whether
        this answer was waited for.

        `effect`: what the last of the frames was written by; `error`: None when all is well; `now`:
        s.
        """
        return self.frames.written(effect.lsn, error)

    def begun(self, effect: BeginSegment, error: str | None, now: float) -> bool:
        """Take the driver's word that a segment has begun, or why it could not. Returns whether
        this answer was waited for.

        `effect`: what it was asked for by; `error`: None when all is well; `now`: s.
        """
        return self.frames.begun(effect.segment, error)

    def clock_set(self, step: int) -> None:
        """Take note that the time of day is another one by `step` ms, which have not passed: what
        was written with the earlier one would end too soon, or too late. So all of it is written
        again."""
        self.sessions.clock_step += step
        if abs(step) > CLOCK_STEP * 1000:
            self.frames.want_snapshot()
            self.frames.record(encode_seen(b""))

    # ---------------------------------------------------------------- sessions

    def session_connected(self, session: Session, *, present: bool) -> None:
        """A client is connected; `present`: its session was there before."""
        if session.recorder is None and session.expiry:
            self._becomes_durable()
        self.sessions.connected(session, present=present)

    def make_durable(self, session: Session) -> None:
        """Have a session durable from now on, or note that its connection is gone."""
        if session.recorder is None:
            self._becomes_durable()
        self.sessions.make_durable(session)

    def _becomes_durable(self) -> None:
        if not self.sessions.recorders:
            self._origins.since = self.node.config.boot
        # What nobody wanted so far has been here as well.
        self._seen.update(self._origins.vector)

    def session_ended(self, session: Session, source: Connection | None) -> None:
        """A session is over, or not to be durable any more; `source` hears of it once that is
        durable."""
        self.sessions.ended(session, source)

    def subscription_start_changed(self, start: SubscriptionStart) -> None:
        """Record once more where subscriptions begin: more is known of it by now."""
        self.sessions.start_changed(start)

    def run_published(self, route: Route, batch: PublishRun, source: Connection | None) -> None:
        """Record a run (`batch`) of messages if a durable session of its `route` gets them;
        `source`: their publisher."""
        for delivery in route.deliveries:
            if delivery.qos and delivery.session.recorder is not None:
                self.messages.run(batch)
                self.frames.require(source)
                return

    # ---------------------------------------------------------------- retained messages

    def retained_changed(self, version: RetainedVersion) -> None:
        """Note that a retained topic was written, or that its message has its number; it is
        recorded once, with this turn."""
        self._retained[version.place] = version
        self.frames.expect()

    def _retained_now(self, version: RetainedVersion) -> None:
        """Record what a retained topic is now."""
        message = self.node.retained.living(version, self.node.now)
        properties, payload, expires = b"", b"", 0
        if message is not None:
            properties, payload = message.properties, message.payload
            expires = self.messages.expires(message)
        head = version.time, version.death, expires, version.sequence, version.qos
        record = RetainedRecord(*head, version.key, version.topic, properties, payload)
        self.frames.record(record.encode())

    # ---------------------------------------------------------------- the replay log

    def logged(self, entry: LogEntry, source: Connection | None) -> None:
        """Record messages published here that other brokers may lack; `source`: their publisher.
        They get those of a publisher that goes on with its session at QoS 2 no earlier than they
        are durable here: they would take what it repeats for another message."""
        frames = self.frames
        frames.record(self._encoded(entry))
        frames.require(source)
        goes_on = (
            source is not None
            and isinstance(source.owner, Client)
            and source.owner.session.recorder is not None
        )
        if goes_on and entry.qos == 2 and frames.healthy:
            for link in self._cluster.links.values():
                link.conn.gate = frames.lsn + 1

    def _encoded(self, entry: LogEntry) -> bytes:
        at = self.frames.wall() - round((self.node.now - entry.at) * 1000)
        head = entry.key, entry.sequence, entry.count, entry.step
        return LoggedRecord(*head, max(0, at), entry.data(self.node.now)).encode()

    def origin_seen(self, key: bytes) -> None:
        """Note that something of another broker came: sessions miss what comes after it, should
        this broker be away. `key`: of its origin."""
        if self.sessions.recorders:
            self._seen.add(key)

    def origin_added(self, key: bytes) -> None:
        """Note that another broker is known from now on. `key`: of its origin."""
        if self.sessions.recorders:
            self._seen.add(key)
            self._met = True

    def _since(self) -> Vector:
        """Return since which incarnation sessions here miss what is published elsewhere."""
        return {origin_key(self.node.config.id, self._origins.since): OriginWindow(0, 0.0)}

    # ---------------------------------------------------------------- shared subscriptions

    def shared_closed(self, refs: list[Ref]) -> None:
        """Record that messages for members of shared subscriptions elsewhere are acknowledged, or
        another one's."""
        self.frames.record(shared_records.closed(refs))

    def shared_taken(self, refs: list[Ref]) -> None:
        """Record that messages of other brokers were granted to members here."""
        self.frames.record(shared_records.taken(refs))

    def shared_covered(self, mark: bytes, key: bytes, ranges: Ranges, since: float | None) -> None:
        """Record which messages published here a group got.

        `mark`: of the group; `key`: of the origin; `since`: when (s) the group became known, None:
        not known.

        `ranges`: the numbers.
        """
        at = 0
        if since is not None:
            at = max(1, self.frames.wall() - round((self.node.now - since) * 1000))
        self.frames.record(shared_records.covered(mark, key, ranges, at))

    # ---------------------------------------------------------------- snapshots

    def everything(self) -> Iterator[int]:
        """Begin to record everything; returns the plan of a snapshot (`Snapshot`)."""
        self.messages.segment_begins()
        return self._everything()

    def _everything(self) -> Iterator[int]:
        yield from self.sessions.everything()
        digests = self.node.retained.digests
        for leaf in digests.present():
            versions = digests.marks(leaf)
            for version in versions:
                self._retained_now(version)
            yield 1 + len(versions)
        for record in shared_records.everything(self._cluster, self.node.now):
            if record:
                self.frames.record(record)
            yield 1
        origins = self._origins
        seen = offered(
            {key: window for key, window in origins.vector.items() if key != origins.key}
        )
        self.frames.record(encode_seen(encode_vector(seen | self._since())))
        for number, entry in enumerate(chain.from_iterable(self._log.pieces())):
            if entry.qos and split_key(entry.key)[0] == self.node.config.id:
                self.frames.record(self._encoded(entry))
                yield 1
            elif not number % PASSED:  # other brokers record their own
                yield 1
