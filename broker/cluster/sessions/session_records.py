"""Sessions as records: in the journal of their broker, and, as a *head*, for the broker that takes
one (`session_head`). Pure."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from mqttree.broker.cluster.link.message_batch import encode_message
from mqttree.broker.cluster.link.version_vector import encode_evaluated
from mqttree.broker.cluster.sessions.recorded_session import AS_PUBLISHED
from mqttree.broker.cluster.sessions.records import (
    LOCAL,
    NEW,
    OPTIONS,
    GotAsRecord,
    Kind,
    SessionRecord,
    StartTime,
    encode_about,
    encode_got,
    encode_origin,
)
from mqttree.broker.cluster.sessions.session_state import (
    IS_RELEASED,
    EncodedSubscription,
    Item,
    SessionState,
    Start,
)
from mqttree.broker.core.message import Stamp
from mqttree.broker.core.receipts import Receipts
from mqttree.broker.core.session import ABSORBED
from mqttree.broker.core.start_point import UNKNOWN
from mqttree.broker.wire.publish_header import PACKET_IDS, PUBREC_HEAD

if TYPE_CHECKING:
    from mqttree.broker.cluster.sessions.recorded_session import RecordedSession
    from mqttree.broker.core.delivery_queue import Outgoing
    from mqttree.broker.core.message import Message
    from mqttree.broker.core.session import Absorbed, Session

WRITE_WORK: Final = 1
"""steps of work for each subscription that becomes a record."""
COPY_WORK: Final = 3
"""steps of work for each message that does."""

MOST_INDEXES: Final = 65_535

NO_STAMP: Final = Stamp(0, 0)
"""Of a message with RETAIN that was not published: the state of its topic."""


class SessionRecords:
    """Makes records of sessions and their messages. What gets them has each message once, and names
    it by origin and number."""

    def __init__(self, record: Callable[[bytes], None]) -> None:
        """`record`: takes the records."""
        self.record = record
        self.receipts = Receipts(self._got)
        """Who got messages, and was not recorded yet."""
        self._indexes = {b"": 0}
        self._index = 0

    def index(self, origin: bytes) -> int:
        """Return the index of an origin. It is recorded if what gets the records does not have it
        yet."""
        index = self._indexes.get(origin)
        if index is None:
            if self._index == MOST_INDEXES:
                self._index, self._indexes = 0, {b"": 0}
            # None is used again soon: a frame may have records of two segments.
            index = self._index = self._indexes[origin] = self._index + 1
            self.record(encode_origin(index, origin))
        return index

    def _got(self, origin: bytes, first: int, items: list[int]) -> None:
        index = self._indexes.get(origin) or self.index(origin)
        self.record(encode_got(index, first, items))

    def require(self, message: Message) -> int:
        """Have a message that a session has recorded; returns its number: that of its name or, if
        it has none, one that it gets here.

        Raises NotImplementedError: what gets the records decides whether it has it.
        """
        raise NotImplementedError

    def put(self, data: bytes) -> None:
        """Record something of a session, behind the messages that it has got."""
        self.receipts.flush()
        self.record(data)

    def got(self, session: int, packet_id: int, o: Outgoing | Item, shared: str | None) -> None:
        """Record that a `session`, by its number, has a message (`o`) in flight as `packet_id`, or,
        with 0, in its queue. `shared`: as of `Item`."""
        message = o.message
        origin, number = message.origin, self.require(message)
        receipts = self.receipts
        place = receipts.place(origin, number)
        if o.qos == message.qos and not (o.retain or o.ids or shared):
            receipts.items.append(place | session << 16 | packet_id)
        else:
            how = o.qos, o.retain, o.ids, (shared or "").encode()
            self._got_as(origin, number, session, packet_id, *how)

    def _got_as(self, origin: bytes, *what: Any) -> None:
        self.put(GotAsRecord(self.index(origin), *what).encode())

    # ---------------------------------------------------------------- whole sessions

    def whole(
        self,
        session: int,
        state: SessionState,
        subscriptions: Iterable[EncodedSubscription],
        offset: float,
        at_once: int,
    ) -> Generator[int, None, None]:
        """Record all of a session but its attributes, some of it at a time. Yields the steps of
        work that it took (`Turns.go`).

        `session`: its number; `state`: what it is, with these `subscriptions`; `offset`: as of
        START_TIME; `at_once`: subscriptions or messages of a step.
        """
        for count, subscription in enumerate(subscriptions, 1):
            self.subscribed(session, subscription)
            if not count % at_once:
                yield at_once * WRITE_WORK
        if state.before or state.began > UNKNOWN:
            self.starts(session, (state.before, state.began, state.open), offset)
        if state.absorbed:
            self.absorbed(session, state.absorbed)
        self._incoming(session, state.incoming)
        for count, item in enumerate(state.items, 1):
            if item.place == IS_RELEASED:
                self._released(session, item.packet_id)
            else:
                self.got(session, item.packet_id, item, item.shared)
            if not count % at_once:
                yield at_once * COPY_WORK
        self.put(encode_about(Kind.LAST_ID, session, PACKET_IDS[state.next_packet_id]))

    def again(self, session: int, recorded: RecordedSession) -> None:
        """Record all of a session as it was `recorded`. What gets the records has its messages."""
        head, parts = recorded.head, recorded.parts
        self.put(head._replace(number=session, flags=head.flags | NEW).encode())
        for topic_filter, options in recorded.subscriptions.items():
            self.put(encode_about(Kind.SUBSCRIBED, session, options + topic_filter))
        for kind in sorted(parts):
            self.put(encode_about(kind, session, parts[kind]))
        self._incoming(session, recorded.incoming)
        receipts = self.receipts
        for packet_id, waiting in (*recorded.inflight.items(), *((0, w) for w in recorded.queue)):
            if waiting is None:
                self._released(session, packet_id)
                continue
            (origin, number), qos, *how = waiting
            if qos == AS_PUBLISHED:
                place = receipts.place(origin, number)
                receipts.items.append(place | session << 16 | packet_id)
            else:
                self._got_as(origin, number, session, packet_id, qos, *how)
        self.put(encode_about(Kind.LAST_ID, session, PACKET_IDS[recorded.last]))

    def _incoming(self, session: int, packet_ids: set[int]) -> None:
        if packet_ids:
            found = b"".join(PACKET_IDS[packet_id] for packet_id in packet_ids)
            self.put(encode_about(Kind.INCOMING, session, found))

    def _released(self, session: int, packet_id: int) -> None:
        packets = PUBREC_HEAD + PACKET_IDS[packet_id]
        self.put(encode_about(Kind.ACKNOWLEDGED, session, packets))

    def subscribed(self, session: int, subscription: EncodedSubscription) -> None:
        """Record a subscription of a `session`."""
        topic_filter, qos, no_local, as_published, identifier = subscription
        options = qos | no_local << 2 | as_published << 3
        body = OPTIONS.pack(options, identifier) + topic_filter.encode()
        self.put(encode_about(Kind.SUBSCRIBED, session, body))

    def starts(self, session: int, start: Start, offset: float) -> None:
        """Record where (`start`) the subscriptions of a `session` begin. `offset`: as of
        START_TIME."""
        before, began, unsettled = start
        self.put(encode_about(Kind.START_VECTOR, session, encode_evaluated(before)))
        if began > UNKNOWN:
            time = StartTime(began, offset, tuple(sorted(unsettled)))
            self.put(encode_about(Kind.START_TIME, session, time.encode()))

    def absorbed(self, session: int, absorbed: tuple[Absorbed, ...]) -> None:
        """Record which older sessions have been merged into a `session`."""
        body = b"".join(ABSORBED.pack(*one) for one in absorbed)
        self.put(encode_about(Kind.ABSORBED, session, body))


def attributes_of(one: Session | SessionState, number: int, flags: int) -> SessionRecord:
    """Return what is recorded of a session (`one`) without its subscriptions and messages, as far
    as that goes with it to other brokers. `number`, `flags`: as of `SessionRecord`."""
    names = (None if name is None else name.encode() for name in (one.username, None, one.owner))
    ages = one.created, one.floor
    return SessionRecord(number, flags, 0, one.expiry, 0, 0, ages, b"", b"", *names)


def single(message: Message, number: int, now: float) -> tuple[bytes, float]:
    """Return a `message` with this `number` as a batch of one, and when (s) the time that it says
    to be left was right: at `now`, or up to a second before."""
    if message.retain and getattr(message, "stamp", None) is None:
        message.stamp = NO_STAMP
    at = now
    if message.expires_at is not None:  # packets say it in whole seconds
        at = message.expires_at - max(1, ceil(message.expires_at - at))
    # Bytes for receivers are not kept for its sake.
    cache, message.cache = message.cache, None
    data = encode_message(message, message.origin or LOCAL, number, at)
    message.cache = cache
    return data, at
