"""A client's session as bytes, for the broker that takes it over (docs/decisions/0016).

    u8 version, u8 flags (1: has a user name, 2: an owner, 4: began at a known time),
    f64 expiry (s), u16 next packet identifier,
    u64 stamp of its creation, u64 its floor, user name, owner
    vector: what the session was offered             vector: what was published before it subscribed
    flag 4: f64 when it began, by the clock of the broker that encodes it (s),
            u32 origins that may have published more before it began, 16 characters each
    u8 older sessions that were merged into it: id of their broker, u64 stamp, u64 stamp of the
       session that they were merged into, each
    numbers from logs: u32 origins, each 16 characters, u32 ranges, (u48 first, u48 last) each
    u32 QoS 2 identifiers received, u16 each
    u32 subscriptions: filter, u8 options, u32 identifier
    u32 messages: u8 place, u16 packet identifier, u8 flags, [u64 ms left],
                  [u32 number of its subscription], subscription identifiers as encoded, topic,
                  properties, payload, u48 its number at its origin, [origin key]; number 0: it has
                  no name

Texts and bytes are u32 size and content. All that another broker encodes is checked as if a client
had sent it.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite
from typing import TYPE_CHECKING

from mqttree.broker.base import costs
from mqttree.broker.base.sequence_set import LAST, MAX_ORIGINS, Ranges, encode_pairs
from mqttree.broker.cluster.delivery.subscription_start import oldest
from mqttree.broker.cluster.limits import ClusterLimits
from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.cluster.link.version_vector import (
    OriginWindow,
    Vector,
    decode_vector,
    encode_vector,
)
from mqttree.broker.core.delivery_queue import RELEASED, Outgoing, Repeat
from mqttree.broker.core.dispatcher import Dispatcher
from mqttree.broker.core.message import Message, size_of
from mqttree.broker.core.session import (
    ABSORBED,
    Absorbed,
    Session,
    SharedGroup,
    SharedOutgoing,
    Subscription,
)
from mqttree.broker.core.start_point import UNKNOWN
from mqttree.broker.wire.constants import MAX_TOPIC_LEVELS, PacketType
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.broker.wire.properties import Property, decode_properties
from mqttree.broker.wire.steps import finish
from mqttree.broker.wire.varint import encode_varint, read_length
from mqttree.routing.topic_filter import (
    SHARE_PREFIX,
    split_shared,
    valid_topic_filter,
    valid_topic_name,
)

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.subscription_start import SubscriptionStarts

VERSION = 5

IN_FLIGHT, IS_RELEASED, WAITING, REPEATED, MISSED = range(5)
"""Places of a message: sent; sent, and PUBREC came; not sent; sent on an earlier connection; missed
at QoS 0."""

MAX_GIVEN = 10_000
"""ranges of numbers of one origin that a session got from logs and older sessions, and that go with
it when it moves: as many as its queue may have messages. Of more the oldest are forgotten, and
their messages may come twice."""

LONGEST = 0xFFFFFFFF * 1000
"""ms; the longest time until a message expires (MQTT 5, 3.3.2.3.3)."""

LATEST = 1e10
"""s, 300 years; a later start is invalid."""

READ_WORK, PUT_WORK, WRITE_WORK = 3, 3, 1
"""steps of work for each subscription or message that is decoded, each message that is put into a
session, and each subscription that is encoded."""

EncodedSubscription = tuple[str, int, bool, bool, int]
"""A subscription: filter, QoS, No Local, Retain As Published, identifier."""

_HEAD = struct.Struct(">BBdHQQ")
_ITEM = struct.Struct(">BHB")
_OPTIONS = struct.Struct(">BI")
_BEGAN = struct.Struct(">dI")
_NOT_KEPT = frozenset(
    (Property.TOPIC_ALIAS, Property.SUBSCRIPTION_IDENTIFIER, Property.MESSAGE_EXPIRY_INTERVAL)
)
"""Properties that a kept message does not have: they are of one connection, or kept otherwise."""


@dataclass(slots=True, eq=False, repr=False)
class Item:
    """One message of a session. `shared`: number of its subscription, if that is a shared one."""

    place: int
    packet_id: int
    qos: int
    retain: bool
    ids: bytes
    message: Message
    shared: int | None = None


@dataclass(slots=True, eq=False, repr=False)
class SessionState:
    """A session without its connection. `seen`: which messages it was offered, whether they matched
    or not."""

    username: str | None = None
    expiry: float = 0.0
    next_packet_id: int = 0
    seen: Vector = field(default_factory=dict)
    incoming: set[int] = field(default_factory=set)
    subscriptions: list[EncodedSubscription] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    owner: str | None = None
    created: int = 0
    floor: int = 0
    before: Vector = field(default_factory=dict)
    """Messages of each origin up to `top` were not for it: see `subscription_start`."""
    began: float = UNKNOWN
    """When it began (s), by the clock of the broker that encodes it."""
    open: set[bytes] = field(default_factory=set)
    """Origins in `before` that may have published more before it subscribed."""
    absorbed: tuple[Absorbed, ...] = ()
    """Older sessions at other brokers that were merged into it."""
    given: dict[bytes, Ranges] = field(default_factory=dict)
    """Numbers that it got from logs and older sessions, if a broker with an older one may come
    back: see `merge`."""


# ---------------------------------------------------------------- to bytes


def _text(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def before(session: Session) -> Vector:
    """Return for each origin the numbers that were published before a session subscribed: up to
    `top` no message was for it."""
    start = oldest(session)
    return (
        {}
        if start is None
        else {key: OriginWindow(min(top, LAST), 0.0) for key, top in start.tops.items()}
    )


def state_of(
    session: Session, seen: Vector, dispatcher: Dispatcher, *, alone: bool = False
) -> SessionState:
    """Return the state of a `session`. `seen`: which messages it was offered; `dispatcher`: knows
    the groups of its shared subscriptions; `alone`: without its subscriptions
    (`subscriptions_of`)."""
    numbers: dict[SharedGroup, int] = {}
    state = SessionState(
        session.username, session.expiry, session.next_packet_id, seen, set(session.incoming)
    )
    state.owner, state.created, state.floor = session.owner, session.created, session.floor
    state.absorbed = session.absorbed
    state.before = before(session)
    if (start := oldest(session)) is not None:
        state.began, state.open = start.began, start.open & start.tops.keys()
    for number, topic_filter in enumerate(session.subscriptions):
        if topic_filter.startswith(SHARE_PREFIX):
            group, inner = split_shared(topic_filter)
            shared = dispatcher.group(group, inner) if group is not None else None
            if isinstance(shared, SharedGroup):
                numbers[shared] = number
    if not alone:
        state.subscriptions += subscriptions_of(session)

    def item(place: int, packet_id: int, o: Outgoing) -> Item:
        shared = numbers.get(o.group) if isinstance(o, SharedOutgoing) else None
        return Item(place, packet_id, o.qos, o.retain, o.ids, o.message, shared)

    for packet_id, sent in session.inflight.items():
        assert isinstance(sent, Outgoing)  # see `Session.unpack`
        state.items.append(item(IS_RELEASED if sent is RELEASED else IN_FLIGHT, packet_id, sent))
    for waiting in session.queue:
        if isinstance(waiting, Repeat):
            state.items.append(item(REPEATED, waiting.packet_id, waiting.original))
        else:
            state.items.append(item(WAITING, 0, waiting))
    state.items += [item(MISSED, 0, missed) for missed in session.missed or ()]
    return state


def subscriptions_of(session: Session) -> Iterator[EncodedSubscription]:
    """Return the subscriptions that a session has now, one after the other, even if it changes
    meanwhile."""
    return map(_told, list(session.subscriptions.values()))


def _told(s: Subscription) -> EncodedSubscription:
    return s.filter, s.qos, s.no_local, s.retain_as_published, s.identifier


def encode_state(state: SessionState, now: float) -> bytes:
    """Encode a session at `now` (s): of messages that expire, the time that they have left."""
    count = len(state.subscriptions)
    return finish(encoding(state, state.subscriptions, count, now, count + 1))


def encoding(
    state: SessionState,
    subscriptions: Iterable[EncodedSubscription],
    count: int,
    now: float,
    at_once: int,
) -> Generator[int, None, bytes]:
    """Encode a session (`state`) as it is at `now` (s), with `count` `subscriptions`, `at_once` of
    these at a time. Yields the steps of work that it took (`Turns.go`)."""
    name = (state.username or "").encode()
    flags = (
        (state.username is not None) | (state.owner is not None) << 1 | isfinite(state.began) << 2
    )
    parts = [
        _HEAD.pack(VERSION, flags, state.expiry, state.next_packet_id, state.created, state.floor)
    ]
    parts += [_text(name), _text((state.owner or "").encode())]
    parts += [_text(encode_vector(vector)) for vector in (state.seen, state.before)]
    if flags & 4:
        parts += [_BEGAN.pack(state.began, len(state.open)), *sorted(state.open)]
    parts.append(len(state.absorbed).to_bytes(1, "big"))
    parts += [ABSORBED.pack(*absorbed) for absorbed in state.absorbed]
    parts.append(len(state.given).to_bytes(4, "big"))
    for key, ranges in state.given.items():
        ranges = ranges[-MAX_GIVEN:]
        parts += [key, len(ranges).to_bytes(4, "big"), encode_pairs(ranges)]
    parts.append(len(state.incoming).to_bytes(4, "big"))
    parts += [packet_id.to_bytes(2, "big") for packet_id in sorted(state.incoming)]
    parts.append(count.to_bytes(4, "big"))
    items = _encode_items(state, now)
    done: list[bytes] = []
    for number, (topic_filter, qos, no_local, as_published, identifier) in enumerate(
        subscriptions, 1
    ):
        name = topic_filter.encode()
        parts += [
            len(name).to_bytes(4, "big"),
            name,
            _OPTIONS.pack(qos | no_local << 2 | as_published << 3, identifier),
        ]
        if not number % at_once:
            done.append(b"".join(parts))
            parts.clear()
            yield at_once * WRITE_WORK
    return b"".join((*done, *parts, *items))


def _encode_items(state: SessionState, now: float) -> list[bytes]:
    parts = [len(state.items).to_bytes(4, "big")]
    for item in state.items:
        message = item.message
        expires, shared = message.expires_at is not None, item.shared is not None
        kind = (
            item.qos
            | item.retain << 2
            | message.qos << 3
            | message.retain << 5
            | expires << 6
            | shared << 7
        )
        parts.append(_ITEM.pack(item.place, item.packet_id, kind))
        if message.expires_at is not None:
            parts.append(max(0, round((message.expires_at - now) * 1000)).to_bytes(8, "big"))
        if item.shared is not None:
            parts.append(item.shared.to_bytes(4, "big"))
        parts += [
            _text(item.ids),
            _text(message.topic),
            _text(message.properties),
            _text(message.payload),
            (message.sequence if message.origin else 0).to_bytes(6, "big"),
            message.origin,
        ]
    return parts


# ---------------------------------------------------------------- from bytes


class _Reader:
    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        at = self.at
        self.at = end = at + size
        if end > len(self.data):
            raise MalformedPacket("encoded session is truncated")
        return self.data[at:end]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def text(self) -> bytes:
        return self.take(self.number(4))

    def name(self) -> str:
        try:
            return self.text().decode()
        except UnicodeDecodeError:
            raise MalformedPacket("encoded session with a text that is not UTF-8") from None


def decode_state(data: bytes, now: float, limits: ClusterLimits) -> SessionState:
    """Decode a session, all at once. `data`, `now`, `limits`: as for `decoding`.

    Raises:
        MalformedPacket: see `decoding`.
    """
    return finish(decoding(data, now, limits))


def decoding(data: bytes, now: float, limits: ClusterLimits) -> Generator[int, None, SessionState]:
    """Decode a session, some of it at a time; yields the steps of work that it took (`Turns.go`).

    `data`: the session; `now`: s; `limits`: of its subscriptions.

    Raises:
        MalformedPacket: of another version, truncated, beyond the limits, or with a value that MQTT
        does not allow.
    """
    reader, at_once = _Reader(data), limits.session_read
    version, flags, expiry, next_packet_id, created, floor = _HEAD.unpack(reader.take(_HEAD.size))
    if version != VERSION:
        raise MalformedPacket(f"encoded session of the unknown version {version}")
    if not expiry >= 0:  # nor NaN
        raise MalformedPacket("encoded session with a negative expiry interval")
    name, owner = reader.name(), reader.name()
    if max(len(name.encode()), len(owner.encode())) > 65_535 or max(created, floor) >> 63:
        raise MalformedPacket("encoded session with a user name or a stamp out of range")
    state = SessionState(
        name if flags & 1 else None, expiry, next_packet_id, decode_vector(reader.text(), now)
    )
    state.owner, state.created, state.floor = owner if flags & 2 else None, created, floor
    state.before = decode_vector(reader.text(), now)
    if flags & 4:
        _start(reader, state)
    _past(reader, state)
    state.incoming = {reader.number(2) for _ in range(reader.number(4))}
    filters = reader.number(4)
    if filters > limits.max_subscriptions:
        raise MalformedPacket("encoded session with too many subscriptions")
    for _ in range(filters):
        topic_filter, options, identifier = reader.name(), reader.number(1), reader.number(4)
        sound = _sound(topic_filter, MAX_TOPIC_LEVELS)
        if not sound or options & 3 == 3 or identifier > 268_435_455:
            raise MalformedPacket("encoded session with an invalid subscription")
        state.subscriptions.append(
            (topic_filter, options & 3, bool(options & 4), bool(options & 8), identifier)
        )
        if not len(state.subscriptions) % at_once:
            yield at_once * READ_WORK
    for number in range(1, 1 + reader.number(4)):
        state.items.append(_item(reader, filters, now))
        if not number % at_once:
            yield at_once * READ_WORK
    if reader.at != len(data):
        raise MalformedPacket("encoded session with bytes behind its end")
    return state


def _start(reader: _Reader, state: SessionState) -> None:
    """Read when it began, and of which origins it may lack messages from before that."""
    state.began, unsettled = _BEGAN.unpack(reader.take(_BEGAN.size))
    if not abs(state.began) < LATEST or unsettled > len(state.before):
        raise MalformedPacket("encoded session with a start out of range")
    state.open = {reader.take(16) for _ in range(unsettled)}
    if not state.open <= state.before.keys():
        raise MalformedPacket(
            "encoded session with an open origin that is not in the vector of its start"
        )


def _past(reader: _Reader, state: SessionState) -> None:
    """Read which older sessions were merged into it, and what it got from those and from logs."""
    state.absorbed = tuple(
        Absorbed(*ABSORBED.unpack(reader.take(ABSORBED.size))) for _ in range(reader.number(1))
    )
    for _ in range(reader.number(4)):
        key, ranges = reader.take(16), []
        for _ in range(reader.number(4)):
            ranges.append((reader.number(6), reader.number(6)))
            if not 0 < ranges[-1][0] <= ranges[-1][1] or (
                len(ranges) > 1 and ranges[-2][1] >= ranges[-1][0]
            ):
                raise MalformedPacket("encoded session with sequence numbers out of order")
        if len(ranges) > MAX_GIVEN or len(state.given) >= MAX_ORIGINS:
            raise MalformedPacket("encoded session with too many ranges of sequence numbers")
        state.given[key] = ranges


def _sound(topic_filter: str, levels: int) -> bool:
    """Whether a client may have subscribed to this."""
    return topic_filter.count("/") < levels and valid_topic_filter(topic_filter)


def _item(reader: _Reader, filters: int, now: float) -> Item:
    place, packet_id, flags = _ITEM.unpack(reader.take(_ITEM.size))
    left = reader.number(8) if flags & 0x40 else None  # ms
    expires_at = None if left is None else now + left / 1000
    shared = reader.number(4) if flags & 0x80 else None
    ids, topic, properties, payload = reader.text(), reader.text(), reader.text(), reader.text()
    sequence = reader.number(6)
    origin = reader.take(16) if sequence else b""
    if sequence:
        split_key(origin)
    qos = flags & 3
    if (
        place > MISSED
        or qos == 3
        or flags >> 3 & 3 == 3
        or (shared is not None and shared >= filters)
        or (left or 0) > LONGEST
    ):
        raise MalformedPacket("encoded session with an invalid message")
    if (packet_id == 0) != (place in (WAITING, MISSED)) or not _identifiers(ids):
        raise MalformedPacket("encoded session with an invalid message")
    if place == IS_RELEASED:
        return Item(place, packet_id, 2, False, b"", RELEASED.message)
    try:
        sound = valid_topic_name(topic.decode()) and len(topic) < 65_536
    except UnicodeDecodeError:
        sound = False
    found, _ = decode_properties(encode_varint(len(properties)) + properties, 0, PacketType.PUBLISH)
    if (
        not sound
        or (place in (IN_FLIGHT, REPEATED) and not qos)
        or not _NOT_KEPT.isdisjoint(found or ())
    ):
        raise MalformedPacket("encoded session with an invalid message")
    message = Message(
        topic, payload, flags >> 3 & 3, bool(flags & 0x20), properties, expires_at, None
    )
    message.named(origin, sequence)
    return Item(place, packet_id, qos, bool(flags & 4), ids, message, shared)


def _identifiers(ids: bytes) -> bool:
    """Whether these are encoded Subscription Identifiers and nothing else."""
    at = 0
    while at < len(ids):
        if ids[at] != 0x0B:
            return False
        value, after = read_length(ids, at + 1)
        if after < 0 or not value:
            return False
        at = after
    return True


# ---------------------------------------------------------------- back into a session


def restore(
    state: SessionState, session: Session, dispatcher: Dispatcher, starts: SubscriptionStarts
) -> None:
    """Make a new session what it was at another broker. What is beyond the limits here is dropped
    and counted as there.

    Args:
        `state`: what it was.
        `session`: a new one.
        `dispatcher`: where it subscribes.
        `starts`: notes where the session's subscriptions begin.
    """
    for _ in restoring(state, session, dispatcher, starts, at_once=len(state.items) + 1):
        pass


def restoring(
    state: SessionState,
    session: Session,
    dispatcher: Dispatcher,
    starts: SubscriptionStarts,
    *,
    at_once: int,
) -> Iterator[int]:
    """Make a new `session` what it was at another broker (`state`), some of it at a time. Yields
    the steps of work that it took (`Turns.go`). `dispatcher`, `starts`: as for `restore`;
    `at_once`: subscriptions or messages of a step.

    No message is delivered to the session before it has all of its subscriptions: it counts as
    `ended` until the last step. The shared subscriptions are made in that step, at once, as their
    groups may have a message for it in that moment; with them the queue from the first message of
    theirs on.
    """
    node = session.node
    most = node.config.max_qos
    session.username = state.username
    session.owner, session.created, session.floor = state.owner, state.created, state.floor
    session.absorbed = state.absorbed
    session.expiry = state.expiry
    session.next_packet_id = state.next_packet_id
    session.incoming = set(state.incoming)
    session.ended = True
    tops = {key: window.top for key, window in state.before.items()}
    start = starts.adopt(tops, state.began, state.open)
    shared: list[tuple[int, Subscription]] = []
    for number, (topic_filter, qos, no_local, as_published, identifier) in enumerate(
        state.subscriptions, 1
    ):
        subscription = Subscription(
            session, topic_filter, min(qos, most), no_local, as_published, identifier
        )
        subscription.start = start
        if topic_filter.startswith(SHARE_PREFIX):
            shared.append((number - 1, subscription))
        else:
            dispatcher.subscribe(subscription, None, topic_filter)
        if not number % at_once:
            yield at_once * costs.PACKET_WORK
    items = iter(state.items)
    first: list[Item] = []
    for number, item in enumerate(items, 1):
        if item.shared is not None:
            first.append(item)
            break
        _put(session, item, None)
        if not number % at_once:
            yield at_once * PUT_WORK
    session.ended = False
    groups: dict[int, SharedGroup] = {}
    for number, subscription in shared:
        group, inner = split_shared(subscription.filter)
        dispatcher.subscribe(subscription, group, inner)
        if group is not None and (found := dispatcher.group(group, inner)) is not None:
            groups[number] = found
    for item in chain(first, items):
        _put(session, item, None if item.shared is None else groups.get(item.shared))


def _put(session: Session, item: Item, group: SharedGroup | None) -> None:
    """Put a message into a session."""
    if item.place == IS_RELEASED:
        session.inflight[item.packet_id] = RELEASED
        return
    outgoing = Outgoing(item.message, item.qos, item.retain, item.ids)
    if group is not None:
        outgoing = SharedOutgoing(item.message, item.qos, item.retain, item.ids, group, None)
    if item.place == IN_FLIGHT:
        session.inflight[item.packet_id] = outgoing
    elif item.place == REPEATED:
        session.queue.append(Repeat(outgoing, item.packet_id))
        session.queued_bytes += size_of(item.message)
    else:
        session.queue_offline(outgoing, None, tell=False)
