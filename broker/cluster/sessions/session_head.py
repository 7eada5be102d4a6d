"""A *head*: a client's session as bytes, for the broker that takes it (docs/decisions/0016).

It is records (`records`), in any order, of one session: SESSION, and what there is of ORIGIN,
SUBSCRIBED, START_VECTOR, START_TIME, ABSORBED, INCOMING, GOT, GOT_AS, ACKNOWLEDGED (PUBREC alone)
and LAST_ID. SEEN says what it was offered, GIVEN what it got besides, LACKING what is in the queue
that the head leaves out; ENTRY has each of its messages. SNAPSHOT_END is last: when the head was
made, and the bytes before it.

All that another broker sends is checked as if a client had sent it.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Final

from mqttree.broker.base.sequence_set import MAX_ORIGINS
from mqttree.broker.cluster.delivery.replay_log import LogEntry
from mqttree.broker.cluster.link.message_batch import (
    MAX_BATCH_PACKETS,
    MAX_BYTES,
    check_properties,
    encode_batch,
    is_topic_name,
)
from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.cluster.link.version_vector import encode_evaluated
from mqttree.broker.cluster.sessions.image import Image
from mqttree.broker.cluster.sessions.message_vectors import numbered
from mqttree.broker.cluster.sessions.recorded_session import reading_session
from mqttree.broker.cluster.sessions.records import (
    ABOUT,
    LOCAL,
    NEW,
    EntryRecord,
    Kind,
    StartTime,
    decode_snapshot_end,
    each_record,
    encode_about,
    encode_entry,
    encode_record,
    encode_snapshot_end,
    lacking_body,
    owed_body,
    read_records,
)
from mqttree.broker.cluster.sessions.session_records import SessionRecords, attributes_of, single
from mqttree.broker.cluster.sessions.session_state import (
    IN_FLIGHT,
    IS_RELEASED,
    EncodedSubscription,
    Item,
    SessionState,
)
from mqttree.broker.core.message import Message, Name, encode_halves
from mqttree.broker.core.session import MAX_ABSORBED
from mqttree.broker.core.subscribe import acceptable
from mqttree.broker.wire.constants import MAX_TOPIC_LEVELS, PacketType
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.broker.wire.properties import Property, decode_properties
from mqttree.broker.wire.publish_header import PACKET_IDS
from mqttree.broker.wire.varint import encode_varint

if TYPE_CHECKING:
    from mqttree.broker.cluster.limits import ClusterLimits
    from mqttree.broker.cluster.sessions.recorded_messages import RecordedMessages
    from mqttree.broker.cluster.sessions.recorded_session import RecordedSession

MAX_GIVEN: Final = 10_000
"""ranges of numbers of one origin that a session got from logs and older sessions, and that go with
it when it moves: as many as its queue may have messages. Of more the oldest are forgotten, and
their messages may come twice."""

LATEST: Final = 1e10
"""s, 300 years; a later start is invalid."""

READ_WORK: Final = 3
"""steps of work for each subscription or message that is decoded."""

UNIT: Final = 8
"""bytes of a record that count as one of these: as of an item of GOT."""

NUMBER: Final = 1
"""The number of the session in a head."""

MADE: Final = 1 << 40
"""When a head of a session here is made (ms): the clock of its entries is its own."""

_KINDS: Final = ABOUT | {Kind.ORIGIN, Kind.SESSION, Kind.GOT, Kind.GOT_AS, Kind.SEEN}


class HeadRecords(SessionRecords):
    """Makes the records of a head."""

    def __init__(self, now: float) -> None:
        """`now`: s, when what is left of messages that expire is right."""
        self._records: list[bytes] = []
        super().__init__(self._records.append)
        self._now = now
        self._copied: set[Name] = set()
        self._nameless: dict[Message, int] = {}
        # Packets that become one ENTRY, as their messages follow each other.
        self._packets: list[bytes] = []
        self._size = 0
        # Their origin and QoS, and the number of the first one.
        self._alike = b"", 0, 0

    def require(self, message: Message) -> int:
        """Have a message recorded; returns its number."""
        key, qos = message.origin, message.qos
        number = message.sequence
        if not key:
            number = self._nameless.setdefault(message, len(self._nameless) + 1)
        if (key, number) in self._copied:
            return number
        self._copied.add((key, number))
        if message.retain or message.expires_at is not None:
            self._entry(*single(message, number, self._now))
            return number
        count = len(self._packets)
        full = self._size > MAX_BYTES or count == MAX_BATCH_PACKETS
        if full or (key, qos, number - count) != self._alike:
            self._end_batch()
            self._alike, self._size = (key, qos, number), 0
        topic, payload, properties = message.topic, message.payload, message.properties
        head, tail = encode_halves(topic, payload, 5, qos, False, properties)
        packet = head + PACKET_IDS[1] + tail if qos else head + tail
        self._packets.append(packet)
        self._size += len(packet)
        return number

    def _end_batch(self) -> None:
        packets, self._packets = self._packets, []
        if packets:
            key, qos, first = self._alike
            data = encode_batch(key or LOCAL, first, b"".join(packets), len(packets), 5, qos)
            self._entry(data, self._now)

    def _entry(self, batch: bytes, at: float) -> None:
        self.record(encode_entry(False, MADE - round((self._now - at) * 1000), batch))

    def end(self) -> bytes:
        """Return the head, of which all is recorded."""
        self._end_batch()
        return ended(self._records, MADE)


def ended(records: list[bytes], made: int) -> bytes:
    """Return a head of these `records`. `made`: when that is (ms), by the clock of its entries."""
    size = sum(map(len, records))
    return b"".join((*records, encode_snapshot_end(made, size)))


def encoding(
    state: SessionState, subscriptions: Iterable[EncodedSubscription], now: float, at_once: int
) -> Generator[int, None, bytes]:
    """Return the head of a session, made some of it at a time; yields the steps of work that it
    took (`Turns.go`).

    `state`: what the session is at `now` (s), with these `subscriptions`; `at_once`: subscriptions
    or messages of a step.
    """
    head = HeadRecords(now)
    head.record(attributes_of(state, NUMBER, NEW)._replace(stamp=state.stamp).encode())
    head.record(encode_record(Kind.SEEN, encode_evaluated(state.seen)))
    if state.given:
        newest = {key: ranges[-MAX_GIVEN:] for key, ranges in state.given.items()}
        head.record(encode_about(Kind.GIVEN, NUMBER, owed_body(newest)))
    if state.lacking:
        head.record(encode_about(Kind.LACKING, NUMBER, lacking_body(True, state.lacking)))
    yield from head.whole(NUMBER, state, subscriptions, 0.0, at_once)
    return head.end()


def recorded_head(
    recorded: RecordedSession, messages: RecordedMessages, seen: bytes, wall: int
) -> bytes:
    """Return the head of a session as it was `recorded`. `messages`: of its image; `seen`: what it
    was offered, encoded; `wall`: the time of day (ms). Raises MalformedPacket: a batch of its
    messages cannot be read."""
    records = [*messages.copies(recorded.names()), encode_record(Kind.SEEN, seen)]
    SessionRecords(records.append).again(NUMBER, recorded)
    return ended(records, wall)


# ---------------------------------------------------------------- from bytes


def decoding(data: bytes, now: float, limits: ClusterLimits) -> Generator[int, None, SessionState]:
    """Return the session in a head, decoded some of it at a time; yields the steps of work that it
    took (`Turns.go`).

    `data`: the head; `now`: s; `limits`: of its subscriptions.

    Raises:
        MalformedPacket, ProtocolViolation: it is truncated, beyond the limits, or has a value that
        MQTT does not allow.
    """
    at_once = limits.session_read
    image = Image()
    messages: dict[Name, Message] = {}
    entries: list[LogEntry] = []
    try:
        yield from _records(data, image, messages, entries, now, at_once)
        _check_messages(messages)
        if image.skipped or len(image.sessions) != 1:
            raise MalformedPacket("session with a record that cannot be read")
        (recorded,) = image.sessions.values()
        if len(recorded.subscriptions) > limits.max_subscriptions:
            raise MalformedPacket("session with too many subscriptions")
        state = yield from reading_session(recorded, messages.get, now, at_once)
        if (time := recorded.parts.get(Kind.START_TIME)) is not None:
            state.began, _, origins = StartTime.decode(time)
            state.open = set(origins)
            if not (abs(state.began) < LATEST and state.open <= state.before.keys()):
                raise MalformedPacket("session with a start out of range")
    except (ValueError, struct.error, LookupError) as error:
        raise MalformedPacket(f"session that cannot be read: {error}") from None
    state.stamp, state.entries = recorded.head.stamp, entries
    state.seen = image.vector(now)
    if recorded.parts.get(Kind.GIVEN) == b"":
        state.given = numbered(name for name in recorded.names() if name[0])
    _check(state)
    checks = chain(map(_check_subscription, state.subscriptions), map(_check_item, state.items))
    for number, _ in enumerate(checks, 1):
        if not number % at_once:
            yield at_once
    return state


def _records(
    data: bytes,
    image: Image,
    messages: dict[Name, Message],
    entries: list[LogEntry],
    now: float,
    at_once: int,
) -> Generator[int, None, None]:
    """Read the records of a head (`data`) into an `image`, its `messages`, and the `entries` that
    these come in."""
    end = len(data) - len(encode_snapshot_end(0, 0))
    [(last, body)] = read_records(data[max(0, end) :])
    made, size = decode_snapshot_end(body)
    if last != Kind.SNAPSHOT_END or size != end:
        raise MalformedPacket("session that is truncated")
    done = 0
    for kind, body in each_record(data, end):
        if kind == Kind.ENTRY:
            record = EntryRecord.decode(body)
            batch, at = record.batch(), now - (made - record.at) / 1000
            for number, message in batch.messages(at):
                messages[batch.key, number] = message
                if not batch.key:
                    # What names it is in this head alone.
                    message.sequence = 0
            if batch.key:
                entries.append(LogEntry(batch.key, batch.sequence, batch.count, record.data, at))
            done += batch.count
        elif kind in _KINDS:
            image.apply(kind, body)
        else:
            raise MalformedPacket(f"session with a record of the kind {kind}")
        done += 1 + len(body) // UNIT
        if done >= at_once:
            yield done * READ_WORK
            done = 0


def _check_messages(messages: dict[Name, Message]) -> None:
    """Refuse messages that no client could publish, and names that no broker gives."""
    for key in {key for key, _ in messages if key}:
        split_key(key)
    if not all(map(is_topic_name, {message.topic for message in messages.values()})):
        raise MalformedPacket("session with a message that has no topic name")
    for properties in {message.properties for message in messages.values()}:
        check_properties(properties)


def _check(state: SessionState) -> None:
    """Refuse what no session can be, but for its subscriptions and messages."""
    names = (state.username or "").encode(), (state.owner or "").encode()
    named = state.given, state.lacking
    if not state.expiry >= 0:  # nor NaN
        raise MalformedPacket("session with a negative expiry interval")
    if max(map(len, names)) > 65_535 or max(state.created, state.floor) >> 63:
        raise MalformedPacket("session with a user name or a stamp out of range")
    if len(state.absorbed) > MAX_ABSORBED or max(map(len, named)) > MAX_ORIGINS:
        raise MalformedPacket("session with too many older ones, or too many origins")
    for key, ranges in (*state.given.items(), *state.lacking.items()):
        split_key(key)
        if len(ranges) > MAX_GIVEN:
            raise MalformedPacket("session with too many ranges of sequence numbers")


def _check_subscription(subscription: EncodedSubscription) -> None:
    topic_filter, qos, _, _, identifier = subscription
    known = acceptable(topic_filter, MAX_TOPIC_LEVELS)
    if not known or qos == 3 or identifier > 268_435_455:
        raise MalformedPacket("session with an invalid subscription")


def _check_item(item: Item) -> None:
    sent = item.place in (IN_FLIGHT, IS_RELEASED)
    if item.qos == 3 or (sent and not (item.qos and item.packet_id)) or not _identifiers(item.ids):
        raise MalformedPacket("session with an invalid message")


def _identifiers(ids: bytes) -> bool:
    """Whether these are encoded Subscription Identifiers and nothing else."""
    if not ids:
        return True
    found, _ = decode_properties(encode_varint(len(ids)) + ids, 0, PacketType.PUBLISH)
    return found is not None and found.keys() == {Property.SUBSCRIPTION_IDENTIFIER}
