"""The durable sessions of one broker: which they are, and when one begins and ends. Pure."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from mqttree.broker.cluster.delivery.subscription_start import oldest
from mqttree.broker.cluster.link.version_vector import Vector
from mqttree.broker.cluster.sessions.message_vectors import vector_of
from mqttree.broker.cluster.sessions.records import NEW, Kind, encode_about
from mqttree.broker.core.delivery_queue import RELEASED
from mqttree.broker.persistence.session_recorder import SessionRecorder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mqttree.broker.base.sequence_set import Ranges
    from mqttree.broker.cluster.sessions.evaluated import Evaluated
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.session import Session
    from mqttree.broker.core.start_point import SubscriptionStart
    from mqttree.broker.persistence.entries import Entries
    from mqttree.broker.persistence.ports import JournalBroker
    from mqttree.broker.persistence.write_ahead_log import WriteAheadLog


class DurableSessions:
    """The recorders of all durable sessions, by the numbers that the sessions have in records."""

    def __init__(
        self,
        host: JournalBroker,
        frames: WriteAheadLog,
        entries: Entries,
        evaluated: Evaluated,
    ) -> None:
        """`host`: the broker; `frames`: takes the records; `entries`: takes those of messages;
        `evaluated`: what sessions have had at other brokers."""
        self._host = host
        self._evaluated = evaluated
        self.frames = frames
        self.entries = entries
        self.recorders: dict[int, SessionRecorder] = {}
        self.last = 0
        """The number of the last session."""
        self.clock_step = 0
        """ms by which the time of day was set since the start. `disconnected_at` of recorders does
        not contain them."""
        # By client id: a session that has ended, and the recorder that has what was in it.
        self._continued: dict[str, tuple[Session, SessionRecorder]] = {}
        # Sessions that are not durable, and of which the will is recorded.
        self._wills: dict[Session, SessionRecorder] = {}
        self.changed: dict[SessionRecorder, None] = {}
        """Those of sessions of which more is known, since the last frame, that they had
        elsewhere."""
        # Sessions of the last minutes, by where their subscriptions begin.
        self._starts: dict[SubscriptionStart, dict[int, None]] = {}

    def restored(self, session: Session, number: int, disconnected_at: int, died: int) -> None:
        """Continue to record `session`, which is from an earlier incarnation of this broker.

        `number`: the session's number in the records. `disconnected_at`: when its connection had
        ended (ms since the epoch), 0 if it was connected until the broker died, at `died` (ms).
        """
        recorder = self._adopt(session, number)
        recorder.disconnected_at = disconnected_at or died
        recorder.owes = recorder.lacks = True
        if (start := oldest(session)) is not None and start.open:
            self._starts.setdefault(start, {})[number] = None
        if not disconnected_at:
            recorder.record_attributes()

    def adopt_all(self) -> None:
        """Take note of the sessions that are there. A snapshot records them."""
        for session in self._host.sessions.values():
            self.last += 1
            if session.expiry:
                recorder = self._adopt(session, self.last)
                recorder.disconnected_at = 0 if session.conn is not None else self.frames.wall()
            elif session.will is not None:
                self._wills[session] = SessionRecorder(self, session, self.last)

    def _adopt(self, session: Session, number: int) -> SessionRecorder:
        recorder = self.recorders[number] = SessionRecorder(self, session, number)
        session.recorder = recorder
        return recorder

    def connected(self, session: Session, *, present: bool) -> None:
        """Take note of a client that is connected; `present`: its session was there before."""
        recorder = self._recorder(session)
        if recorder is not None:
            recorder.disconnected_at = 0
        if not session.expiry:
            self.ended(session, session.conn)
            if session.will is not None:
                self.last += 1
                self._wills[session] = recorder = SessionRecorder(self, session, self.last)
                recorder.record_attributes(NEW)
        elif recorder is not None and present:
            recorder.record_attributes()
            self.frames.require(session.conn)
        else:
            self.make_durable(session)
            self.frames.require(session.conn)

    def make_durable(self, session: Session) -> None:
        """Make a session durable, or record that its connection has ended."""
        recorder = self._recorder(session)
        disconnected_at = 0 if session.conn is not None else self.frames.wall() - self.clock_step
        if recorder is not None:
            recorder.disconnected_at = disconnected_at
            recorder.record_attributes()
        else:
            self._forget_will(session)
            self.last += 1
            recorder = self._adopt(session, self.last)
            recorder.disconnected_at = disconnected_at
            recorder.record_all()
            self._forget_continued(session)

    def keep_until_continued(self, session: Session) -> None:
        """Keep the records of a session that is about to end, until the one of its client that goes
        on with all that it has is recorded, or has ended. If the broker dies before, the session is
        there again."""
        recorder = self._recorder(session)
        if recorder is not None:
            session.recorder = None
            recorder.freeze()
            self._continued[session.client_id] = (session, recorder)

    def _forget_continued(self, successor: Session) -> None:
        """Record that the session has ended that `successor` goes on with: in the same frame as
        what the successor has."""
        kept = self._continued.get(successor.client_id)
        if kept is not None and kept[0] is not successor:
            del self._continued[successor.client_id]
            self.frames.record(encode_about(Kind.END, kept[1].number))
            del self.recorders[kept[1].number]

    def ended(self, session: Session, source: Connection | None) -> None:
        """Record that a session has ended, or is no longer durable; `source` gets its
        acknowledgement once that is durable."""
        recorder = self._recorder(session)
        if recorder is not None:
            self.frames.record(encode_about(Kind.END, recorder.number))
            self.frames.require(source)
            del self.recorders[recorder.number]
            session.recorder = None
        self._forget_will(session)
        self._forget_continued(session)

    def _forget_will(self, session: Session) -> None:
        """Record that the will of a session that is not durable is none any more."""
        if self._wills and (recorder := self._wills.pop(session, None)) is not None:
            self.frames.record(encode_about(Kind.END, recorder.number))

    def _recorder(self, session: Session) -> SessionRecorder | None:
        """Return the recorder of a session, None if it is not durable."""
        recorder = session.recorder
        assert recorder is None or isinstance(recorder, SessionRecorder)
        return recorder

    def delivered_elsewhere(self, session: Session) -> Vector:
        """Return which messages a session has had at other brokers."""
        return vector_of(self._evaluated.elsewhere(session))

    def delivered_changed(self, recorder: SessionRecorder) -> None:
        """Have recorded with this turn's frame what a session has had at other brokers."""
        self.changed[recorder] = None
        self.frames.expect()

    def seal(self) -> None:
        """End this turn."""
        for recorder in self.changed:
            if self.recorders.get(recorder.number) is recorder:
                recorder.delivered()
        self.changed.clear()

    def lacking(self, session: Session) -> dict[bytes, Ranges]:
        """Return which of these are to come from the queue of an older copy."""
        return self._evaluated.lacking(session)

    def owed(self, session: Session) -> dict[bytes, Ranges]:
        """Return which messages a session alone is owed."""
        return self._evaluated.owed(session)

    def record_owed(self, key: bytes) -> None:
        """Record what sessions alone are still owed of an origin, ahead of what is recorded of all
        sessions."""
        for session in self._evaluated.owed_of(key):
            if (recorder := session.recorder) is not None:
                recorder.record_owed()

    def note_start(self, start: SubscriptionStart, number: int) -> None:
        """Note where the subscriptions of session `number` begin, for `start_changed`."""
        self._starts.setdefault(start, {})[number] = None
        for old in list(islice(self._starts, 2)):
            if old.at + self._host.limits.log_age_s < self._host.now:
                del self._starts[old]

    def start_changed(self, start: SubscriptionStart) -> None:
        """Record once more where the subscriptions that begin at `start` begin: more is known by
        now."""
        for number in list(self._starts.get(start, ())):
            if number in self.recorders:
                self.recorders[number].record_starts()

    def everything(self) -> Iterator[int]:
        """Record all sessions in steps; yields the number of items of each step."""
        for session in list(self._wills):
            if (recorder := self._wills.get(session)) is not None:
                recorder.record_attributes(NEW)
                yield 1
        for number in list(self.recorders):
            recorder = self.recorders.get(number)
            if recorder is None:
                continue
            session = recorder.session
            # Messages are recorded one by one, so that no frame holds a whole queue.
            for packet_id in list(session.inflight):
                sent = session.inflight.get(packet_id)
                if isinstance(sent, tuple):  # the message is to keep its number
                    sent = session.inflight[packet_id] = session.unpacked(sent)
                if sent is not None and sent is not RELEASED:
                    self.entries.require(sent.message)
                    yield 1
            for outgoing in list(session.queue):
                self.entries.require(outgoing.message)
                yield 1
            if self.recorders.get(number) is recorder:
                recorder.record_all()
                yield 1 + len(session.subscriptions) + len(session.queue) + len(session.inflight)
