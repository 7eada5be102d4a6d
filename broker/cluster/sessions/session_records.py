"""Sessions as records: in the journal of their broker, and, as a *head*, for the broker that takes
one (`session_head`). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import ceil
from typing import TYPE_CHECKING, Final

from mqttree.broker.cluster.link.message_batch import encode_message
from mqttree.broker.cluster.link.version_vector import encode_vector
from mqttree.broker.cluster.sessions.records import (
    LOCAL,
    GotAsRecord,
    StartTimeRecord,
    SubscribedRecord,
    encode_absorbed,
    encode_acknowledged,
    encode_got,
    encode_incoming,
    encode_last_id,
    encode_origin,
    encode_start_vector,
)
from mqttree.broker.cluster.sessions.session_state import (
    IS_RELEASED,
    EncodedSubscription,
    SessionState,
)
from mqttree.broker.core.message import Stamp
from mqttree.broker.core.receipts import Receipts
from mqttree.broker.core.session import ABSORBED
from mqttree.broker.core.start_point import UNKNOWN
from mqttree.broker.wire.publish_header import PACKET_IDS, PUBREC_HEAD

if TYPE_CHECKING:
    from mqttree.broker.cluster.link.version_vector import Vector
    from mqttree.broker.core.message import Message
    from mqttree.broker.core.session import Absorbed

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

    def got(
        self,
        session: int,
        packet_id: int,
        message: Message,
        qos: int,
        retain: bool,
        ids: bytes,
        shared: str | None,
    ) -> None:
        """Record that a `session`, by its number, has a `message` in flight as `packet_id`, or,
        with 0, in its queue. `qos`, `retain`, `ids`: as of `Outgoing`; `shared`: as of `Item`."""
        number = self.require(message)
        receipts = self.receipts
        place = receipts.place(message.origin, number)
        if qos == message.qos and not (retain or ids or shared):
            receipts.items.append(place | session << 16 | packet_id)
            return
        index = self.index(message.origin)
        how = qos, retain, ids, (shared or "").encode()
        self.put(GotAsRecord(index, number, session, packet_id, *how).encode())

    # ---------------------------------------------------------------- whole sessions

    def whole(
        self,
        session: int,
        state: SessionState,
        subscriptions: Iterable[EncodedSubscription],
        offset: float,
        at_once: int,
    ) -> Iterator[int]:
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
            self.starts(session, state.before, state.began, state.open, offset)
        if state.absorbed:
            self.absorbed(session, state.absorbed)
        if state.incoming:
            self.put(encode_incoming(session, b"".join(PACKET_IDS[p] for p in state.incoming)))
        for count, item in enumerate(state.items, 1):
            if item.place == IS_RELEASED:
                self.put(encode_acknowledged(session, PUBREC_HEAD + PACKET_IDS[item.packet_id]))
            else:
                how = item.qos, item.retain, item.ids, item.shared
                self.got(session, item.packet_id, item.message, *how)
            if not count % at_once:
                yield at_once * COPY_WORK
        self.put(encode_last_id(session, state.next_packet_id))

    def subscribed(self, session: int, subscription: EncodedSubscription) -> None:
        """Record a subscription of a `session`."""
        topic_filter, qos, no_local, as_published, identifier = subscription
        options = qos | no_local << 2 | as_published << 3
        self.put(SubscribedRecord(session, options, identifier, topic_filter.encode()).encode())

    def starts(
        self, session: int, before: Vector, began: float, unsettled: set[bytes], offset: float
    ) -> None:
        """Record where the subscriptions of a `session` begin. `before`, `began`: as of
        `SessionState`, and `unsettled` as its `open`; `offset`: as of START_TIME."""
        self.put(encode_start_vector(session, encode_vector(before)))
        if began > UNKNOWN:
            origins = tuple(sorted(unsettled))
            self.put(StartTimeRecord(session, began, offset, origins).encode())

    def absorbed(self, session: int, absorbed: tuple[Absorbed, ...]) -> None:
        """Record which older sessions have been merged into a `session`."""
        self.put(encode_absorbed(session, b"".join(ABSORBED.pack(*one) for one in absorbed)))


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
