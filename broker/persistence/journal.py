"""The journal of one broker: changes of sessions, retained messages, the replay log and shared
subscriptions are recorded, so that they survive a restart (docs/decisions/0021). Pure.

`write_ahead_log` makes frames of the records and releases output; each durable session records
itself (`session_recorder`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import LAST, Ranges, subtract
from mqttree.broker.cluster.link.origin_keys import origin_key, split_key
from mqttree.broker.cluster.link.version_vector import OriginWindow, Vector, encode_evaluated
from mqttree.broker.cluster.sessions.image import Image
from mqttree.broker.cluster.sessions.message_vectors import offered
from mqttree.broker.cluster.sessions.records import (
    Kind,
    RetainedRecord,
    encode_about,
    encode_record,
)
from mqttree.broker.core.client import Client
from mqttree.broker.core.connection import Connection
from mqttree.broker.core.effects import AppendFrame, BeginSegment
from mqttree.broker.persistence import shared_records
from mqttree.broker.persistence.durable_sessions import DurableSessions
from mqttree.broker.persistence.entries import Entries
from mqttree.broker.persistence.orphaned_wills import OrphanedWills
from mqttree.broker.persistence.recovery import BEAT_INTERVAL_S, Recovery
from mqttree.broker.persistence.stream import Stream
from mqttree.broker.persistence.write_ahead_log import WriteAheadLog

if TYPE_CHECKING:
    from mqttree.broker.cluster.cluster import Cluster
    from mqttree.broker.cluster.delivery.replay_log import LogEntry
    from mqttree.broker.cluster.sharing.assignment_ledger import Ref
    from mqttree.broker.core.effect_answers import EffectAnswers
    from mqttree.broker.core.receipts import Receipts
    from mqttree.broker.core.retained_index import RetainedVersion
    from mqttree.broker.core.session import Session
    from mqttree.broker.core.start_point import SubscriptionStart
    from mqttree.broker.persistence.absent_members import AbsentMembers
    from mqttree.broker.persistence.ports import JournalBroker

CLOCK_STEP_S = 5.0
"""s by which the clock has to be set for a new snapshot; below that, sessions live so much longer
or shorter after a restart."""

PASSED = 8
"""entries of the replay log that may be skipped at the cost of one that is recorded."""


class Journal:
    """The journal of one broker."""

    recording = True
    """As of the port (`mqttree.broker.core.ports`)."""
    receipts: Receipts
    """Takes who got messages."""
    published: Callable[[int, int, bytes, int, Connection], None]
    """As of the port, without another call."""

    def __init__(
        self,
        node: JournalBroker,
        cluster: Cluster,
        absent_members: AbsentMembers,
        *,
        sync: bool,
        disk: bool = True,
    ) -> None:
        """`node`, `cluster`: the broker whose state is recorded. `absent_members`: has the log
        tail. `sync`: frames that the driver reports as durable survive a power cut, so that
        acknowledgements wait while the disk cannot write. `disk`: whether there is one; without it
        records are for the standby alone."""
        self.node = node
        self._cluster = cluster
        self._absent_members = absent_members
        self._evaluated = cluster.evaluated
        self._origins = cluster.origins
        self.frames = WriteAheadLog(
            node,
            cluster.clock,
            sync=sync,
            disk=disk,
            all_records=self.everything,
            settle=absent_members.tail.settle,
        )
        self._stream = Stream(node, cluster, self.frames) if node.config.replicas else None
        self.frames.stream = self._stream
        self.entries = Entries(node, self.frames, cluster.origins, cluster.forwarder.lone)
        self.receipts = self.entries.receipts
        self.published = self.entries.published
        self.sessions = DurableSessions(node, self.frames, self.entries, self._evaluated)
        # Origins of which messages came since the last frame, and whether one of them is new.
        self._seen: dict[bytes, None] = {}
        self._met = False
        # Retained topics that were written since the last frame, by their places.
        self._retained: dict[bytes, RetainedVersion] = {}

    def begin(self, image: Image, segment: int, segments: int, size: int, now: float) -> None:
        """Give the broker the state of an image, and continue in a new segment.

        `image`: what earlier segments say. `segment`: the number of the new one, the first that is
        free. `segments`, `size`: how many earlier ones there are, and their bytes. `now`: s.
        """
        self.entries.last, self.sessions.last = image.local, image.last_session
        recovery = Recovery(self.node, self._cluster, self._absent_members, image, now)
        for number, session in recovery.run():
            disconnected_at = image.sessions[number].head.disconnected_at
            self.sessions.restored(session, number, disconnected_at, recovery.died)
        wills, alive = OrphanedWills(self.node, self._cluster), recovery.since(image.alive)
        for head in recovery.wills:
            end = partial(self.frames.record, encode_about(Kind.END, head.number))
            wills.add(head, alive, now, end)
        self.node.timers.schedule(now + BEAT_INTERVAL_S / 2, lambda at: self._beat(at, 0))
        if self._stream is not None and image.standbys:
            self._stream.fencing.started(image.standbys)
        self.frames.start(segment, segments, size, image.size)

    def begin_without_disk(self, now: float) -> None:
        """Begin at `now` (s) with what the broker has."""
        self.sessions.adopt_all()
        self.node.timers.schedule(now + BEAT_INTERVAL_S / 2, lambda at: self._beat(at, 0))

    def _beat(self, now: float, lsn: int) -> None:
        """Record that the broker lives, if nothing was recorded since frame `lsn`: if it is killed,
        its connections count as ended at the last record."""
        frames = self.frames
        if frames.lsn == lsn and self.sessions.recorders:
            frames.expect()
        beaten = frames.lsn + frames.due
        self.node.timers.schedule(now + BEAT_INTERVAL_S / 2, lambda at: self._beat(at, beaten))

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
    def durable(self) -> bool:
        """Whether what it keeps survives a restart."""
        return self.frames.disk

    @property
    def pending(self) -> int:
        """Bytes of frames that are not durable yet."""
        return self.frames.pending

    @property
    def healthy(self) -> bool:
        """Whether what is recorded is written, and nothing is missing before it."""
        return self.frames.healthy

    def due_lsn(self) -> int:
        """Return the number of the frame that will have what is recorded now."""
        return self.frames.lsn + self.frames.due

    def has(self, lsn: int) -> bool:
        """Return whether the frame `lsn` is durable, or cannot become so, as the disk fails."""
        return lsn <= self.frames.durable_lsn or not self.frames.healthy

    def require(self, source: Connection | None) -> None:
        """Hold back all further output of `source` until the records of this turn are durable."""
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
            self.frames.gate.on_closed(conn)

    def seal(self) -> None:
        """End this turn: its records become a frame."""
        frames = self.frames
        if self.sessions.changed:
            self.sessions.seal()
        if self.receipts.number:
            self.receipts.seal()
        if self._retained:
            versions, self._retained = self._retained, {}
            for version in versions.values():
                self._retained_now(version)
        if self._seen and (self._met or frames.due):
            self._met = False
            for key in self._seen:
                self.sessions.record_owed(key)
            self._record_seen(self._seen)
            self._seen.clear()
        if frames.due:
            frames.seal()

    def take_answers(self, answers: EffectAnswers) -> None:
        """Take the answers of the driver that writes the frames."""
        answers.take_by(AppendFrame, self.frames.written)
        answers.take_by(BeginSegment, self.frames.begun)

    def clock_set(self, step: int) -> None:
        """Take note that the time of day was set by `step` ms. Times that were recorded before
        would be wrong by as much, so a new snapshot records them again."""
        self.sessions.clock_step += step
        if abs(step) > CLOCK_STEP_S * 1000:
            self.frames.want_snapshot()
            self.frames.record(encode_record(Kind.SEEN, b""))

    # ---------------------------------------------------------------- sessions

    def session_connected(self, session: Session, *, present: bool) -> None:
        """A client is connected; `present`: its session was there before."""
        if session.recorder is None and session.expiry:
            self._becomes_durable()
        self.sessions.connected(session, present=present)

    def make_durable(self, session: Session) -> None:
        """Make a session durable, or record that its connection has ended."""
        if session.recorder is None:
            self._becomes_durable()
        self.sessions.make_durable(session)

    def _becomes_durable(self) -> None:
        # Messages without a durable subscriber have passed this broker as well.
        self._seen.update(dict.fromkeys(self._origins.vector))

    def keep_until_continued(self, session: Session) -> None:
        """Keep the records of a session that is about to end, until the one that goes on with all
        that it has is recorded, or has ended."""
        self.sessions.keep_until_continued(session)

    def session_ended(self, session: Session, source: Connection | None) -> None:
        """Record that a session has ended, or is no longer durable; `source` gets its
        acknowledgement once that is durable."""
        self.sessions.ended(session, source)

    def subscription_start_changed(self, start: SubscriptionStart) -> None:
        """Record once more where the subscriptions that begin at `start` begin: more is known by
        now."""
        self.sessions.start_changed(start)

    # ---------------------------------------------------------------- retained messages

    def retained_changed(self, version: RetainedVersion) -> None:
        """Note that a retained topic was written, or that its message has got its number. It is
        recorded once, at the end of this turn."""
        self._retained[version.place] = version
        self.frames.expect()

    def _retained_now(self, version: RetainedVersion) -> None:
        """Record the present message of a retained topic."""
        message = self.node.retained.message_of(version, self.node.now)
        properties, payload, expires = b"", b"", 0
        if message is not None:
            properties, payload = message.properties, message.payload
            expires = self.entries.expires(message)
        head = version.time, version.expires_at_ms, expires, version.sequence, version.qos
        record = RetainedRecord(*head, version.key, version.topic, properties, payload)
        self.frames.record(record.encode())

    # ---------------------------------------------------------------- messages

    def copied(self, entry: LogEntry) -> None:
        """Record messages as they came with a session, which is about to have them."""
        self.entries.copied(entry)

    def arriving(self, entry: LogEntry) -> None:
        """Expect a batch that a link has brought: `arrived` follows in this turn."""
        self.entries.arriving(entry)

    def arrived(self, entry: LogEntry, source: Connection) -> None:
        """Record a batch that was delivered here, if a durable session got one of its messages.
        `source`: its link, which waits while the disk is far behind."""
        if self.entries.arrived(entry):
            self.frames.require(source)

    # ---------------------------------------------------------------- the replay log

    def logged(self, entry: LogEntry, source: Connection | None) -> None:
        """Record messages published here that other brokers may lack; `source`: their publisher. If
        it resumes its session at QoS 2, links get the messages only when they are durable here:
        after a restart this broker would not recognise the publisher's repetition, and others would
        take it for another message."""
        frames = self.frames
        self.entries.batch(entry, logged=True)
        frames.require(source)
        client = None if source is None else source.owner
        session = client.session if isinstance(client, Client) else None
        if session is None or session.recorder is None:
            return
        if entry.qos == 2 and frames.healthy:
            for link in self._cluster.links.values():
                conn = link.conn
                conn.gate = frames.lsn + 1
            if frames.stream is not None:
                frames.stream.published(frames.lsn + 1, entry, session)

    def origin_seen(self, key: bytes) -> None:
        """Note that a message of another broker has come: after a restart, the messages behind it
        are missing. `key`: of its origin."""
        self._seen[key] = None

    def origin_added(self, key: bytes) -> None:
        """Note that an origin is known from now on. `key`: the origin's."""
        self._seen[key] = None
        self._met = True

    def members_changed(self, broker_ids: Iterable[bytes]) -> None:
        """Record the other brokers that messages are kept for, all of them."""
        self.frames.record(encode_record(Kind.MEMBERS, *broker_ids))

    def _record_seen(self, keys: Iterable[bytes]) -> None:
        """Record which messages of these origins have been offered to the sessions here. What
        single sessions are owed counts as offered: their own records have it."""
        vector = self._origins.vector
        seen = offered({key: vector[key] for key in keys if key in vector})
        fetched = self._evaluated.ranges_fetched_for_one_session
        for key, window in seen.items():
            if window.gaps and (owed := fetched(key)):
                window.gaps = subtract(window.gaps, owed)
        self.frames.record(encode_record(Kind.SEEN, encode_evaluated(self._since() | seen)))

    def _since(self) -> Vector:
        """Return the incarnation of this broker since which its sessions miss messages of other
        brokers."""
        key = origin_key(self.node.config.id, self._origins.since)
        window = self._origins.vector.get(key)
        return {key: OriginWindow(LAST if window is None else window.top, 0.0)}

    # ---------------------------------------------------------------- shared subscriptions

    def shared_closed(self, refs: list[Ref]) -> None:
        """Record that messages assigned to members of shared subscriptions at other brokers are
        acknowledged, or assigned to another broker. `refs`: which."""
        self.frames.record(shared_records.closed(refs))

    def shared_taken(self, refs: list[Ref]) -> None:
        """Record that messages which other brokers assigned were granted to members here. `refs`:
        which."""
        self.frames.record(shared_records.taken(refs))

    def shared_covered(
        self, group_id: bytes, key: bytes, ranges: Ranges, since: float | None
    ) -> None:
        """Record which messages of this broker a group got.

        `group_id`: of the group. `key`: of the origin. `ranges`: the sequence numbers. `since`:
        when (s) the group became known, None: not known.
        """
        at = 0
        if since is not None:
            at = max(1, self.frames.wall() - round((self.node.now - since) * 1000))
        self.frames.record(shared_records.covered(group_id, key, ranges, at))

    # ---------------------------------------------------------------- snapshots

    def everything(self) -> Iterator[int]:
        """Begin a snapshot. Returns its plan (`Snapshot`)."""
        self.entries.segment_begins()
        return self._everything()

    def _everything(self) -> Iterator[int]:
        yield from self.sessions.everything()
        digests = self.node.retained.digests
        for leaf in digests.present():
            versions = digests.versions(leaf)
            for version in versions:
                self._retained_now(version)
            yield 1 + len(versions)
        cluster = self._cluster
        shared = shared_records.everything(
            cluster.sharing, cluster.forwarder, cluster.clock, self.node.now
        )
        for record in shared:
            if record:
                self.frames.record(record)
            yield 1
        self._record_seen(self._origins.vector)
        if cluster.expects_others:
            self.members_changed(self._absent_members.expected)
        if self._stream is not None:
            self._stream.record_standbys()
        yield 1
        for number, entry in enumerate(chain.from_iterable(self._cluster.replay_log.pieces())):
            if entry.qos and split_key(entry.key)[0] == self.node.config.id:
                self.entries.batch(entry, logged=True)
                yield 1
            # Messages of other brokers are in their journals.
            elif not number % PASSED:
                yield 1
