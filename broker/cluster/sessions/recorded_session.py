"""A session as the records describe it, and as a broker restores it. Pure."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Generator, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from mqttree.broker.cluster.link.version_vector import decode_evaluated
from mqttree.broker.cluster.sessions.message_vectors import numbered, union
from mqttree.broker.cluster.sessions.records import (
    OPTIONS,
    Kind,
    SessionRecord,
    decode_owed,
    lacking_body,
)
from mqttree.broker.cluster.sessions.session_state import (
    IN_FLIGHT,
    IS_RELEASED,
    MAX_LACKING,
    WAITING,
    Item,
    SessionState,
)
from mqttree.broker.core.delivery_queue import RELEASED
from mqttree.broker.core.session import ABSORBED, Absorbed
from mqttree.broker.wire.publish_header import PUBREC, PUBREL, packet_id_at
from mqttree.routing.group_selection import group_id_of, group_key
from mqttree.routing.topic_filter import split_shared

if TYPE_CHECKING:
    from mqttree.broker.base.sequence_set import Ranges
    from mqttree.broker.cluster.sharing.assignment_ledger import Ref
    from mqttree.broker.core.message import Message, Name

_PACKET_ID = struct.Struct(">H")

AS_PUBLISHED: Final = 3
"""The QoS of a message that a session has as it was published."""

Waiting = tuple["Name", int, bool, bytes, bytes]
"""A message of a session: name (without one: b"" and its number here), QoS, RETAIN, subscription
identifiers, filter of its shared subscription."""


class RecordedSession:
    """A session as the records describe it."""

    __slots__ = ("head", "incoming", "inflight", "last", "parts", "queue", "subscriptions")

    def __init__(self, head: SessionRecord) -> None:
        self.head = head
        self.subscriptions: dict[bytes, bytes] = {}
        """Filter -> `OPTIONS`."""
        self.parts: dict[int, bytes] = {}
        """What START_VECTOR, START_TIME, DELIVERED, OWED, ABSORBED, GIVEN and LACKING said last."""
        self.queue: deque[Waiting] = deque()
        # None: PUBREC has come.
        self.inflight: dict[int, Waiting | None] = {}
        self.incoming: set[int] = set()
        self.last = 0
        """The last packet identifier that was used."""

    def got(self, packet_id: int, waiting: Waiting) -> None:
        """Add a message; `packet_id`: 0: it is queued."""
        if packet_id:
            self.inflight[packet_id] = waiting
            self.last = packet_id
        else:
            self.queue.append(waiting)

    def take(self, kind: int, body: bytes) -> None:
        """Apply a record of `ABOUT`, by its `body` behind the session's number. Raises
        struct.error, LookupError."""
        if kind == Kind.ACKNOWLEDGED:
            self._acknowledged(body)
        elif kind == Kind.INCOMING:
            self.incoming.update(packet_id_at(body, at) for at in range(0, len(body), 2))
        elif kind == Kind.SUBSCRIBED:
            OPTIONS.unpack_from(body)
            self.subscriptions[body[OPTIONS.size :]] = body[: OPTIONS.size]
        elif kind == Kind.UNSUBSCRIBED:
            self.subscriptions.pop(body, None)
        elif kind == Kind.LAST_ID:
            (self.last,) = _PACKET_ID.unpack(body)
        else:
            self.parts[kind] = body
            if kind == Kind.START_VECTOR:
                self.parts.pop(Kind.START_TIME, None)

    def _acknowledged(self, packets: bytes) -> None:
        kind = packets[0] if packets else 0
        for at in range(0, len(packets), 4):
            packet_id = packet_id_at(packets, at + 2)
            if kind == PUBREL:
                self.incoming.discard(packet_id)
            elif kind == PUBREC:
                self.inflight[packet_id] = None
            else:
                self.inflight.pop(packet_id, None)

    def part(self, kind: int) -> bytes:
        """Return one of `parts`, b"" if there is none."""
        return self.parts.get(kind, b"")

    def put_off_queue(self) -> None:
        """Leave out the queue: its messages are lacking. Those that have no name, and those of
        groups, stay."""
        kept, names = deque[Waiting](), []
        for one in self.queue:
            if one[0][0] and not one[4]:
                names.append(one[0])
            else:
                kept.append(one)
        lacking = numbered(names)
        if Kind.LACKING in self.parts:
            lacking = union(self.lacking(), lacking)
        if lacking and max(map(len, lacking.values())) <= MAX_LACKING:
            self.queue, self.parts[Kind.LACKING] = kept, lacking_body(True, lacking)

    @property
    def held(self) -> bool:
        """Whether not all has come to it that was in an older copy."""
        return self.part(Kind.LACKING)[:1] == b"\1"

    def lacking(self) -> dict[bytes, Ranges]:
        """Return what LACKING says. Raises MalformedPacket."""
        return decode_owed(self.part(Kind.LACKING)[1:])

    def names(self) -> list[Name]:
        """Return the names of the messages that it has."""
        waiting = (*self.inflight.values(), *self.queue)
        return [one[0] for one in waiting if one is not None]

    def as_member(self) -> Iterator[Ref]:
        """Return which messages it has as a member of groups."""
        for one in (*self.inflight.values(), *self.queue):
            if one is not None and one[4] and one[0][0]:
                group, inner = split_shared(one[4].decode(errors="replace"))
                yield (*one[0], group_id_of(group_key(group or "", inner)))


def reading_session(
    recorded: RecordedSession,
    message_of: Callable[[Name], Message | None],
    now: float,
    at_once: int,
) -> Generator[int, None, SessionState]:
    """Return the session that is `recorded`, without what it was offered, and when it began; read
    some of it at a time. Yields the steps of work that it took (`Turns.go`).

    `message_of`: returns the message with a name, None: it is left out; `now`: s; `at_once`:
    subscriptions or messages of a step.

    Raises:
        WireError, UnicodeDecodeError, IndexError, struct.error: it cannot be read.
    """
    head = recorded.head
    username = None if head.username is None else head.username.decode()
    state = SessionState(username, head.expiry, recorded.last, {}, recorded.incoming)
    state.owner = None if head.owner is None else head.owner.decode()
    state.created, state.floor = head.ages[0] or head.stamp, head.ages[1]
    state.before = decode_evaluated(recorded.part(Kind.START_VECTOR), now)
    absorbed = ABSORBED.iter_unpack(recorded.part(Kind.ABSORBED))
    state.absorbed = tuple(Absorbed(*one) for one in absorbed)
    state.given = decode_owed(recorded.part(Kind.GIVEN))
    state.lacking = recorded.lacking()
    for number, (topic_filter, how) in enumerate(recorded.subscriptions.items(), 1):
        options, identifier = OPTIONS.unpack(how)
        flags = options & 3, options & 4 != 0, options & 8 != 0
        state.subscriptions.append((topic_filter.decode(), *flags, identifier))
        if not number % at_once:
            yield at_once
    for number, item in enumerate(_items(recorded, message_of), 1):
        state.items.append(item)
        if not number % at_once:
            yield at_once
    return state


def _items(
    recorded: RecordedSession, message_of: Callable[[Name], Message | None]
) -> Iterator[Item]:
    waiting = ((0, WAITING, one) for one in recorded.queue)
    sent = ((packet_id, IN_FLIGHT, one) for packet_id, one in recorded.inflight.items())
    for packet_id, place, one in chain(sent, waiting):
        if one is None:
            yield Item(IS_RELEASED, packet_id, 2, False, b"", RELEASED.message)
        elif (message := message_of(one[0])) is not None:
            _, qos, retain, ids, shared = one
            if qos == AS_PUBLISHED:
                qos = message.qos
            yield Item(place, packet_id, qos, retain, ids, message, shared.decode() or None)
