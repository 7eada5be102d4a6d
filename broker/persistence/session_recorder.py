"""The recorder of a durable session: each change of the session becomes records of the journal.
Pure.

A session is durable when its client wants it kept and the broker has a journal. Then it has a
recorder (`Session.recorder`), and tells it each change; a session without one costs nothing more
(docs/decisions/0021).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mqttree.broker.cluster.delivery.subscription_start import oldest
from mqttree.broker.cluster.link.version_vector import Vector, encode_evaluated
from mqttree.broker.cluster.sessions.records import (
    CLEAN,
    NEW,
    Kind,
    encode_about,
    encode_got_run,
    encode_sent,
    lacking_body,
    owed_body,
)
from mqttree.broker.cluster.sessions.session_records import attributes_of
from mqttree.broker.cluster.sessions.session_state import (
    EVERYTHING,
    encoded,
    shared_filter,
    start_of,
    state_of,
    subscriptions_of,
)
from mqttree.broker.core.delivery_queue import Outgoing
from mqttree.broker.core.session import Session
from mqttree.broker.persistence.will_record import encode_will
from mqttree.broker.wire.publish_header import PUBREC, PUBREL
from mqttree.broker.wire.steps import finish

if TYPE_CHECKING:
    from mqttree.broker.base.sequence_set import Ranges
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.message import Message
    from mqttree.broker.core.publish_run import PublishRun
    from mqttree.broker.core.start_point import SubscriptionStart
    from mqttree.broker.persistence.entries import Entries
    from mqttree.broker.persistence.write_ahead_log import WriteAheadLog


class RecordedSessions(Protocol):
    """What the recorders of all sessions share."""

    @property
    def frames(self) -> WriteAheadLog:
        """The log that makes frames of records."""

    @property
    def entries(self) -> Entries:
        """Records the messages."""

    @property
    def clock_step(self) -> int:
        """ms by which the time of day was set since the broker started."""

    def delivered_elsewhere(self, session: Session) -> Vector:
        """Return which messages a session has had at other brokers."""

    def lacking(self, session: Session) -> dict[bytes, Ranges]:
        """Return which of these are to come from the queue of an older copy."""

    def owed(self, session: Session) -> dict[bytes, Ranges]:
        """Return which messages a session alone is owed."""

    def delivered_changed(self, recorder: SessionRecorder) -> None:
        """Note that more is known of what the session of a `recorder` has had elsewhere."""

    def note_start(self, start: SubscriptionStart, number: int) -> None:
        """Note that the subscriptions of session `number` begin at `start`."""


class SessionRecorder:
    """Records one session (`mqttree.broker.core.delivery_queue.SessionRecorder` says when each
    method is called).

    Invariant: all records of a session have its `number`; nothing of an earlier session with that
    number is in the journal.
    """

    __slots__ = (
        "_entries",
        "_frames",
        "_frozen",
        "_group",
        "_receipts",
        "disconnected_at",
        "lacks",
        "number",
        "owes",
        "session",
    )

    def __init__(self, group: RecordedSessions, session: Session, number: int) -> None:
        """`group`: the recorders of all durable sessions. `session`: the one that is recorded.
        `number`: its number in the records."""
        self._group = group
        self._frames = group.frames
        self._entries = group.entries
        self._receipts = group.entries.receipts
        # What it had at other brokers, lacked, and was owed alone, when it was frozen.
        self._frozen: tuple[Vector, dict[bytes, Ranges], dict[bytes, Ranges]] | None = None
        self.lacks = False
        """Whether its last LACKING may say that it lacks something."""
        self.owes = False
        """Whether its last OWED may say that it is owed something."""
        self.session = session
        self.number = number
        self.disconnected_at = 0
        """When the session's connection ended (ms since the epoch, by the time of day as it was
        set when the broker started); 0 while it has one."""

    def freeze(self) -> None:
        """Go on with a copy of the session as it is, for snapshots: it is about to end."""
        session, group = self.session, self._group
        delivered, lacking = group.delivered_elsewhere(session), group.lacking(session)
        self._frozen = (delivered, lacking, group.owed(session))
        self.session = copy = Session(session.host, session.client_id)
        copy.version, copy.clean, copy.expiry = session.version, session.clean, session.expiry
        copy.stamp, copy.created, copy.floor = session.stamp, session.created, session.floor
        copy.username, copy.owner = session.username, session.owner
        copy.listener, copy.absorbed, copy.will = session.listener, session.absorbed, session.will
        copy.subscriptions.update(session.subscriptions)
        copy.incoming.update(session.incoming)
        copy.inflight.update(session.inflight)
        copy.queue.extend(session.queue)
        copy.held = session.held

    def _record(self, data: bytes) -> None:
        """Have a record written behind those of what sessions have got."""
        self._receipts.flush()
        self._frames.record(data)

    # ---------------------------------------------------------------- the session itself

    def record_attributes(self, flags: int = 0) -> None:
        """Record the session without its subscriptions and messages. `flags`: NEW for a session
        that the segment does not contain yet."""
        session = self.session
        conn = session.conn
        listener = session.listener if conn is None else conn.listener
        ended = self.disconnected_at
        record = attributes_of(session, self.number, flags | (CLEAN if session.clean else 0))
        record = record._replace(
            version=session.version,
            stamp=session.stamp,
            disconnected_at=max(1, ended + self._group.clock_step) if ended else 0,
            client_id=session.client_id.encode(),
            will=encode_will(session.will),
            listener=None if listener is None else listener.encode(),
        )
        self._record(record.encode())

    def record_all(self) -> None:
        """Record the whole session: earlier records of it are not needed any more."""
        self.record_attributes(NEW)
        self.record_delivered()
        self.record_owed()
        state = state_of(self.session, {})
        # Those at QoS 0 are not durable.
        state.items = [item for item in state.items if item.qos]
        offset = self._frames.clock_offset()
        subscriptions = subscriptions_of(self.session)
        finish(self._entries.whole(self.number, state, subscriptions, offset, EVERYTHING))
        if (start := oldest(self.session)) is not None:
            self._group.note_start(start, self.number)

    # ---------------------------------------------------------------- subscriptions

    def subscribed(self, topic_filter: str) -> None:
        """Record the subscription to a filter, new or with other options."""
        subscriptions = self.session.subscriptions
        self._entries.subscribed(self.number, encoded(subscriptions[topic_filter]))
        if next(iter(subscriptions)) == topic_filter:
            self.record_starts()
        self._frames.require(self.session.conn)

    def unsubscribed(self, topic_filter: str) -> None:
        """Record that a subscription is gone."""
        self._record(encode_about(Kind.UNSUBSCRIBED, self.number, topic_filter.encode()))
        self.record_starts()
        self._frames.require(self.session.conn)

    def record_starts(self) -> None:
        """Record where the subscriptions of the session begin, by its first one; nothing while this
        broker has not met another one."""
        if (start := oldest(self.session)) is not None:
            offset = self._frames.clock_offset()
            self._entries.starts(self.number, start_of(self.session), offset)
            self._group.note_start(start, self.number)

    def record_delivered(self) -> None:
        """Have recorded, once in this turn, what the session has had at other brokers."""
        self._group.delivered_changed(self)

    def delivered(self) -> None:
        """Record what the session has had at other brokers, if it has been at any, and what of it
        is to come."""
        frozen = self._frozen
        delivered = frozen[0] if frozen else self._group.delivered_elsewhere(self.session)
        if delivered:
            self._record(encode_about(Kind.DELIVERED, self.number, encode_evaluated(delivered)))
        lacking = frozen[1] if frozen else self._group.lacking(self.session)
        body = lacking_body(self.session.held, lacking)
        if body or self.lacks:
            self.lacks = bool(body)
            self._record(encode_about(Kind.LACKING, self.number, body))

    def record_absorbed(self) -> None:
        """Record which older sessions at other brokers have been merged into this one."""
        self._entries.absorbed(self.number, self.session.absorbed)

    def record_owed(self) -> None:
        """Record what the session alone is owed, if it is owed anything, or was."""
        owed = self._frozen[2] if self._frozen else self._group.owed(self.session)
        if owed or self.owes:
            self.owes = bool(owed)
            self._record(encode_about(Kind.OWED, self.number, owed_body(owed)))

    # ---------------------------------------------------------------- messages

    def _message(self, packet_id: int, outgoing: Outgoing) -> None:
        """Record a message in flight, or, with 0 for `packet_id`, in the queue."""
        self._entries.got(self.number, packet_id, outgoing, shared_filter(outgoing))

    def queued(self, outgoing: Outgoing, source: Connection | None) -> None:
        """Record that a message is the last one of the queue."""
        self._message(0, outgoing)
        self._frames.require(source)

    def sent(self, packet_id: int, outgoing: Outgoing, source: Connection | None) -> None:
        """Record that a message (`outgoing`) is in flight as `packet_id` that was not in the queue.
        `source`: as of `queued`."""
        self._message(packet_id, outgoing)
        if outgoing.qos == 2:
            self.hold_output()
        self._frames.require(source)

    def sent_run(self, packet_id: int, run: PublishRun, source: Connection | None) -> None:
        """Record that a `run` of messages is in flight, from `packet_id` on. `source`: as of
        `queued`."""
        self._receipts.place(run.origin, run.sequence + run.count - 1)
        index = self._entries.index(run.origin)
        self._record(encode_got_run(index, run.sequence, run.count, self.number, packet_id))
        if run.qos == 2:
            self.hold_output()
        self._frames.require(source)

    def dequeued(self, packet_id: int, count: int, first: Message, qos: int) -> None:
        """Record that the first `count` messages of the queue are in flight, with packet
        identifiers from `packet_id` on. `first`: the first of them that had not expired. `qos`: the
        highest of them."""
        index = self._entries.index(first.origin)
        self._record(encode_sent(self.number, packet_id, count, index, first.sequence))
        if qos == 2:
            self.hold_output()

    def acknowledged(self, packets: bytes) -> None:
        """Record acknowledgements of one type. The answers to PUBREC and PUBREL (PUBREL, PUBCOMP)
        wait until that is durable; PUBACK and PUBCOMP have none, and may wait for a frame that is
        needed."""
        record = encode_about(Kind.ACKNOWLEDGED, self.number, packets)
        if packets[0] in (PUBREC, PUBREL):
            self._record(record)
            self._frames.require(self.session.conn)
        else:
            self._receipts.flush()
            self._frames.record_later(record)

    def received(self, packet_ids: bytes) -> None:
        """Record packet identifiers of QoS 2 messages that the client has published."""
        self._record(encode_about(Kind.INCOMING, self.number, packet_ids))
        self._frames.require(self.session.conn)

    def hold_output(self) -> None:
        """Hold back QoS 2 messages until their packet identifiers are durable: after a restart the
        same message must not be sent with another one."""
        if (conn := self.session.conn) is not None:
            conn.gate = self._frames.lsn + 1
