"""What brokers record of sessions and messages, as bytes: in journals (decision 21), on the streams
to standbys, and when a session goes to another broker. Pure.

    record   u8 kind, u32 size, body

All numbers are big-endian; times are ms since the epoch, 0 for never.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from mqttree.broker.base.broker_id import ID_BYTES
from mqttree.broker.base.sequence_set import Ranges, decode_pairs, encode_pairs
from mqttree.broker.cluster.link.message_batch import MessageBatch

RECORD: Final = struct.Struct(">BI")

LOCAL: Final = bytes(16)
"""The origin, in an ENTRY, of messages without a name: their numbers are those of this journal."""


class JournalError(ValueError):
    """A journal that cannot be used; the text is one line."""


class Kind:
    """What a record says; its first byte. Plain numbers: to write a member of an enumeration takes
    longer."""

    ORIGIN: Final = 1
    """The index by which the records behind it in this segment name an origin."""
    ENTRY: Final = 2
    """Messages of one origin with consecutive numbers, as links carry them."""
    SESSION: Final = 3
    """A session without its subscriptions and messages; a new one has none."""
    END: Final = 4
    SUBSCRIBED: Final = 5
    UNSUBSCRIBED: Final = 6
    GOT: Final = 7
    """Sessions have messages, as they were published: in flight, or in their queue."""
    GOT_AS: Final = 8
    """A session has a message in another way."""
    GOT_RUN: Final = 9
    """Messages with consecutive numbers are in flight, with consecutive packet identifiers."""
    SENT: Final = 10
    """The first messages of the queue are in flight, with consecutive packet identifiers."""
    ACKNOWLEDGED: Final = 11
    """The packets that acknowledge: PUBACK, PUBREC and PUBCOMP of messages in flight, PUBREL of
    incoming ones."""
    INCOMING: Final = 12
    """Packet identifiers of QoS 2 messages that the client has sent."""
    RETAINED: Final = 13
    """A write of a retained topic: its message, or its deletion."""
    STANDBYS: Final = 14
    """The brokers that are sent this journal: of each the boot number of its owner and the epoch,
    the standbys ahead of the coming one."""
    SEEN: Final = 15
    """Which messages of other brokers have been here."""
    SNAPSHOT_END: Final = 16
    """The segment contains the whole state of its beginning: older segments are not needed."""
    SHARED: Final = 17
    """Outcomes of messages that were assigned to members of shared subscriptions at other brokers,
    or by other brokers (`shared_records`)."""
    START_VECTOR: Final = 18
    """Where the subscriptions of a session begin: for each origin the sequence number behind which
    messages are for it (`subscription_start`)."""
    START_TIME: Final = 19
    """When they began, and for which of these origins the number may still rise. It comes behind
    START_VECTOR, which leaves that open."""
    DELIVERED: Final = 20
    """Which messages were evaluated for a session at other brokers: they may arrive still
    (`evaluated`)."""
    MEMBERS: Final = 23
    """All other brokers that this one keeps messages for, reachable or not. Its presence says that
    this broker has met another one."""
    OWED: Final = 24
    """Which messages a session alone is owed: all others here have had them (`evaluated`).
    SEEN says of them that they have been here."""
    ABSORBED: Final = 25
    """Which older sessions at other brokers have been merged into a session, though their brokers
    may not know yet."""
    GIVEN: Final = 26
    """Which messages a session got from logs and older sessions, if a broker with an older one may
    come back (`merge`); without any: those that are in it. It is in heads alone
    (`session_head`)."""
    LACKING: Final = 28
    """Which messages are in the queue of an older copy of a session, and have yet to come from
    there (`merge`), though they were evaluated for it; and whether it is held until then."""
    LAST_ID: Final = 27
    """The packet identifier that a message to the session was given last, also if it has been
    acknowledged."""


ABOUT: Final = frozenset(
    (
        Kind.SUBSCRIBED,
        Kind.UNSUBSCRIBED,
        Kind.ACKNOWLEDGED,
        Kind.INCOMING,
        Kind.START_VECTOR,
        Kind.START_TIME,
        Kind.DELIVERED,
        Kind.OWED,
        Kind.ABSORBED,
        Kind.GIVEN,
        Kind.LACKING,
        Kind.LAST_ID,
    )
)
"""Kinds of records that say something of one session: its number, and what they say."""


def read_records(frame: bytes) -> list[tuple[int, bytes]]:
    """Read the records of a frame: kind and body. Raises JournalError: their sizes do not add
    up."""
    return list(each_record(frame, len(frame)))


def each_record(data: bytes, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield kind and body of the records up to the byte `end` of `data`. Raises JournalError, at
    the end: their sizes do not add up."""
    at = 0
    unpack = RECORD.unpack_from
    while at + RECORD.size <= end:
        kind, size = unpack(data, at)
        at += RECORD.size + size
        yield kind, data[at - size : at]
    if at != end:
        raise JournalError("holds a record that is cut off")


# ---------------------------------------------------------------- records

_SESSION = struct.Struct(">IBBdQQQQHIHI")
_ENTRY = struct.Struct(">BHI")
_NAMED = struct.Struct(">HHI")
_DELIVERY = struct.Struct(">HIH")
_GOT_AS = struct.Struct(">HHIIHBIH")
_GOT_RUN = struct.Struct(">HHIHIH")
_SENT = struct.Struct(">IHHHHI")
_STANDBY = struct.Struct(f">{ID_BYTES}sII")
# With the record's head, as these are written most often.
_WHOLE_ENTRY = struct.Struct(">BIBHI")
_GOT_HEAD = ">BIHHI"
FEW: Final = 16
_PACK_GOT = tuple(struct.Struct(f"{_GOT_HEAD}{count}Q").pack for count in range(FEW))
"""With few items, as most have: the format need not be looked up."""
_ABOUT = struct.Struct(">BII")
_RETAINED = struct.Struct(">QQQQB16sHI")
_SNAPSHOT_END = struct.Struct(">QQ")
_NUMBER = struct.Struct(">I")
_START_TIME = struct.Struct(">dd")
OPTIONS: Final = struct.Struct(">BI")
"""Of a subscription, ahead of its filter: QoS, 4 No Local, 8 Retain As Published; identifier."""


def encode_record(kind: int, *parts: bytes) -> bytes:
    """Return a record: its head, and a body of `parts`."""
    return b"".join((RECORD.pack(kind, sum(map(len, parts))), *parts))


def encode_about(kind: int, session: int, body: bytes = b"") -> bytes:
    """Return a record about a session. `kind`: END, or one of `ABOUT`; `session`: its number;
    `body`: what follows that."""
    return _ABOUT.pack(kind, 4 + len(body), session) + body


NEW, NAMED, CLEAN, CAME_IN, OWNED = 1, 2, 4, 16, 32
"""Flags of SESSION: it begins without messages and subscriptions; has a user name; its connection
began with Clean Start; says at which listener it came in; and whose it is."""
_OPTIONAL = NAMED, CAME_IN, OWNED


class EntryRecord(NamedTuple):
    """ENTRY. `logged`: other brokers may lack its messages, which were published here; others are
    for sessions alone. `at`: when they came (ms since the epoch), 0: in the turn of their frame;
    `data`: the batch, with their expiry relative to that."""

    logged: bool
    at: int
    data: bytes

    def encode(self) -> bytes:
        """Return ENTRY as bytes: the record's head and its body."""
        return encode_entry(*self)

    @classmethod
    def decode(cls, body: bytes, frame: int = 0) -> EntryRecord:
        """Decode a body. `frame`: time of day of its frame (ms). Raises struct.error."""
        form, high, low = _ENTRY.unpack_from(body)
        if not 1 <= form <= 2:
            raise struct.error("ENTRY of an unknown form")
        return cls(form == 1, high << 32 | low or frame, body[_ENTRY.size :])

    def batch(self) -> MessageBatch:
        """Return the batch; its origin is b"" for messages without a name. Raises MalformedPacket:
        it is none, or truncated."""
        batch = MessageBatch.read(self.data)
        if batch.key == LOCAL:
            batch.key = b""
        return batch


class SessionRecord(NamedTuple):
    """SESSION. `flags`: NEW, CLEAN; `disconnected_at`: when its connection ended (ms), 0 while it
    has one; `ages`: when it was created, and its floor (see `session_owner`); `will`: encoded by
    `encode_will`, b"" for none; `listener`: of its last connection, None: not known."""

    number: int
    flags: int
    version: int
    expiry: float
    stamp: int
    disconnected_at: int
    ages: tuple[int, int]
    client_id: bytes
    will: bytes = b""
    username: bytes | None = None
    listener: bytes | None = None
    owner: bytes | None = None

    def encode(self) -> bytes:
        """Return SESSION as bytes: the record's head and its body."""
        number, flags, *numbers = self[:6]
        optional = self[9:]
        for flag, text in zip(_OPTIONAL, optional, strict=True):
            flags |= 0 if text is None else flag
        texts = self.client_id, *(text or b"" for text in optional)
        head = _SESSION.pack(number, flags, *numbers, *self.ages, *map(len, texts))
        return encode_record(Kind.SESSION, head, *texts, self.will)

    @classmethod
    def decode(cls, body: bytes) -> SessionRecord:
        """Decode a body. Raises struct.error."""
        number, flags, version, expiry, stamp, ended, created, floor, *sizes = _SESSION.unpack_from(
            body
        )
        at, texts = _SESSION.size, []
        for size in sizes:
            texts.append(body[at : at + size])
            at += size
        optional = (
            text if flags & flag else None for flag, text in zip(_OPTIONAL, texts[1:], strict=True)
        )
        numbers = number, flags & (NEW | CLEAN), version, expiry, stamp, ended
        return cls(*numbers, (created, floor), texts[0], body[at:], *optional)


class GotAsRecord(NamedTuple):
    """GOT_AS: a session has the message `number` of an origin. `packet_id`: 0 while it waits;
    `ids`: encoded Subscription Identifiers; `shared`: the filter of the shared subscription that it
    comes from, b"" for none."""

    origin: int
    number: int
    session: int
    packet_id: int
    qos: int
    retain: bool
    ids: bytes
    shared: bytes

    def encode(self) -> bytes:
        """Return GOT_AS as bytes: the record's head and its body."""
        head = _GOT_AS.pack(
            self.origin,
            self.number >> 32,
            self.number & 0xFFFFFFFF,
            self.session,
            self.packet_id,
            self.qos | self.retain << 2,
            len(self.ids),
            len(self.shared),
        )
        return encode_record(Kind.GOT_AS, head, self.ids, self.shared)

    @classmethod
    def decode(cls, body: bytes) -> GotAsRecord:
        """Decode a body. Raises struct.error."""
        origin, high, low, session, packet_id, flags, ids, _ = _GOT_AS.unpack_from(body)
        number, end = high << 32 | low, _GOT_AS.size + ids
        how = flags & 3, flags & 4 != 0, body[_GOT_AS.size : end], body[end:]
        return cls(origin, number, session, packet_id, *how)


class RetainedRecord(NamedTuple):
    """RETAINED. `time`, `key`, `sequence`, `expires_at_ms`: as in `retained_index.RetainedVersion`;
    `expires`: ms; an empty payload deletes."""

    time: int
    expires_at_ms: int
    expires: int
    sequence: int
    qos: int
    key: bytes
    topic: bytes
    properties: bytes
    payload: bytes

    def encode(self) -> bytes:
        """Return RETAINED as bytes: the record's head and its body."""
        *numbers, topic, properties, payload = self
        head = _RETAINED.pack(*numbers, len(topic), len(properties))
        return encode_record(Kind.RETAINED, head, topic, properties, payload)

    @classmethod
    def decode(cls, body: bytes) -> RetainedRecord:
        """Decode a body. Raises struct.error."""
        *numbers, topic, properties = _RETAINED.unpack_from(body)
        middle = _RETAINED.size + topic
        end = middle + properties
        texts = body[_RETAINED.size : middle], body[middle:end], body[end:]
        return cls._make((*numbers, *texts))

    @staticmethod
    def topic_of(body: bytes) -> bytes:
        """Return the topic alone of a body. Raises struct.error."""
        return body[_RETAINED.size : _RETAINED.size + _RETAINED.unpack_from(body)[6]]


def encode_entry(logged: bool, at: int, data: bytes) -> bytes:
    """Return ENTRY. `logged`, `at`, `data`: as of `EntryRecord`."""
    size, form = _ENTRY.size + len(data), 1 if logged else 2
    return _WHOLE_ENTRY.pack(Kind.ENTRY, size, form, at >> 32, at & 0xFFFFFFFF) + data


def encode_origin(index: int, key: bytes) -> bytes:
    """Return ORIGIN: `index` (u16) is that of the origin `key` from now on."""
    return encode_record(Kind.ORIGIN, index.to_bytes(2, "big"), key)


def encode_got(origin: int, first: int, items: Sequence[int]) -> bytes:
    """Return GOT. `origin`: index of the messages' origin; `first`: the lowest of their numbers;
    `items`: as of `Deliveries`."""
    count = len(items)
    pack = _PACK_GOT[count] if count < FEW else struct.Struct(f"{_GOT_HEAD}{count}Q").pack
    size = _NAMED.size + 8 * count
    return pack(Kind.GOT, size, origin, first >> 32, first & 0xFFFFFFFF, *items)


def encode_got_run(origin: int, first: int, count: int, session: int, packet_id: int) -> bytes:
    """Return GOT_RUN: the `count` messages of an origin from number `first` on are in flight to a
    session, from `packet_id` on. `origin`: its index; `session`: its number."""
    numbers = first >> 32, first & 0xFFFFFFFF, count, session, packet_id
    return encode_record(Kind.GOT_RUN, _GOT_RUN.pack(origin, *numbers))


def encode_sent(session: int, packet_id: int, count: int, origin: int, number: int) -> bytes:
    """Return SENT: `count` messages of a queue, from the one with `number` of an origin on, are in
    flight, from `packet_id` on. `session`: its number; `origin`: its index."""
    numbers = origin, number >> 32, number & 0xFFFFFFFF
    return encode_record(Kind.SENT, _SENT.pack(session, packet_id, count, *numbers))


def owed_body(owed: Mapping[bytes, Ranges]) -> bytes:
    """Return numbers, by origin, as in OWED, GIVEN and LACKING."""
    return b"".join(
        key + len(ranges).to_bytes(2, "big") + encode_pairs(ranges) for key, ranges in owed.items()
    )


def decode_owed(body: bytes) -> dict[bytes, Ranges]:
    """Return the numbers, by origin, of the body of OWED, GIVEN or LACKING behind the session's
    number. Raises MalformedPacket."""
    owed: dict[bytes, Ranges] = {}
    at = 0
    while at < len(body):
        end = at + 18 + 12 * int.from_bytes(body[at + 16 : at + 18], "big")
        owed[body[at : at + 16]] = decode_pairs(body[at + 18 : end], "record of owed messages")
        at = end
    return owed


def lacking_body(held: bool, lacking: Mapping[bytes, Ranges]) -> bytes:
    """Return the body of LACKING; b"": nothing is lacking."""
    return bytes((held,)) + owed_body(lacking) if held or lacking else b""


class StartTime(NamedTuple):
    """START_TIME, without the session. `at`: s of the broker's monotonic clock; `offset`: s by
    which the time of day is ahead of that; `origins`: those for which the start is still open."""

    at: float
    offset: float
    origins: tuple[bytes, ...]

    def encode(self) -> bytes:
        """Return the body behind the session's number."""
        return _START_TIME.pack(self.at, self.offset) + b"".join(self.origins)

    @classmethod
    def decode(cls, body: bytes) -> StartTime:
        """Decode what `encode` returns. Raises struct.error."""
        origins = tuple(body[at : at + 16] for at in range(_START_TIME.size, len(body), 16))
        at, offset = _START_TIME.unpack_from(body)
        return cls(at, offset, origins)


class Standby(NamedTuple):
    """A broker that is sent a journal."""

    id: bytes
    boot: int
    """Of the journal's broker."""
    epoch: int
    """Of the stream."""


def encode_standbys(standbys: Iterable[Standby]) -> bytes:
    """Return a record of who is sent the journal."""
    return encode_record(Kind.STANDBYS, *(_STANDBY.pack(*standby) for standby in standbys))


def decode_standbys(body: bytes) -> list[Standby]:
    """Return who is sent the journal, of the body of STANDBYS. Raises struct.error."""
    return [Standby(*found) for found in _STANDBY.iter_unpack(body)]


def encode_snapshot_end(segment: int, size: int) -> bytes:
    """Return SNAPSHOT_END. `segment`: its number. `size`: bytes of the snapshot."""
    return encode_record(Kind.SNAPSHOT_END, _SNAPSHOT_END.pack(segment, size))


def decode_number(body: bytes) -> tuple[int, bytes]:
    """Return the session's number and the rest of the body of END, or of a record of `ABOUT`.
    Raises struct.error."""
    return _NUMBER.unpack_from(body)[0], body[4:]


def decode_got(body: bytes) -> tuple[int, int, list[tuple[int, int, int]]]:
    """Return index of the origin, lowest number, and (place, session, packet identifier) of each
    item of the body of GOT. Raises struct.error."""
    origin, high, low = _NAMED.unpack_from(body)
    return origin, high << 32 | low, list(_DELIVERY.iter_unpack(body[_NAMED.size :]))


def decode_got_run(body: bytes) -> tuple[int, int, int, int, int]:
    """Return what `encode_got_run` was given. Raises struct.error."""
    origin, high, low, count, session, packet_id = _GOT_RUN.unpack(body)
    return origin, high << 32 | low, count, session, packet_id


def decode_sent(body: bytes) -> tuple[int, int, int, int, int]:
    """Return what `encode_sent` was given. Raises struct.error."""
    session, packet_id, count, origin, high, low = _SENT.unpack(body)
    return session, packet_id, count, origin, high << 32 | low


def decode_snapshot_end(body: bytes) -> tuple[int, int]:
    """Return segment and size of a SNAPSHOT_END. Raises struct.error."""
    found: tuple[int, int] = _SNAPSHOT_END.unpack(body)
    return found
