"""Recorded sessions as brokers restore them, and take them from each other. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from mqttree.broker.base.sequence_set import merge
from mqttree.broker.cluster.link.message_batch import MessageBatch
from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.cluster.link.version_vector import decode_vector
from mqttree.broker.cluster.sessions.records import (
    LOCAL,
    NAMED,
    OPTIONS,
    Kind,
    decode_absorbed,
    decode_owed,
    encode_entry,
)
from mqttree.broker.cluster.sessions.session_records import AS_PUBLISHED
from mqttree.broker.cluster.sessions.session_state import (
    IN_FLIGHT,
    IS_RELEASED,
    MISSED,
    WAITING,
    Item,
    SessionState,
)
from mqttree.broker.core.delivery_queue import RELEASED
from mqttree.broker.wire.errors import WireError

if TYPE_CHECKING:
    from mqttree.broker.cluster.sessions.image import Image, RecordedSession
    from mqttree.broker.cluster.sessions.records import EntryRecord
    from mqttree.broker.core.message import Message, Name


Entry = tuple[int, int, "EntryRecord"]
"""The last and the first number in an ENTRY, and that."""

Place = tuple[bytes, int]
"""Of an ENTRY: its origin and first number."""

ENTRY_WORK: Final = 3
"""steps of work for each entry whose numbers are read."""

EVERYTHING: Final = 1 << 62
"""subscriptions or messages of a step; more than any session has: there is one step."""


class RecordedMessages:
    """The messages of an image by name: each is one object for all sessions that have it."""

    def __init__(self, image: Image, now: float, wall: int) -> None:
        """`image`: has them; `now`, `wall`: the time (s), and the time of day then (ms). They are
        there once `reading` is at its end."""
        self._image = image
        self._now, self._wall = now, wall
        self._entries: dict[bytes, list[Entry]] = {}
        self._messages: dict[Place, dict[int, Message]] = {}
        self._batches: dict[Place, tuple[MessageBatch, list[int]]] = {}
        self.published: dict[bytes, int] = {}
        """The highest number of each origin that other brokers may lack."""
        self.ready = False

    def reading(self) -> Generator[int, None, None]:
        """Find out which messages the entries have, an entry at a time. Yields the steps of work
        that it took (`Turns.go`)."""
        found: dict[bytes, list[Entry]] = {}
        for record in self._image.entries:
            try:
                batch = record.batch()
                key, first, last = batch.key, batch.sequence, batch.sequence + batch.count - 1
                if record.logged and key:
                    if key not in self.published:
                        split_key(key)
                    self.published[key] = max(self.published.get(key, 0), last)
                found.setdefault(key, []).append((last, first, record))
            except WireError:
                self._image.skipped += 1
            yield ENTRY_WORK
        for key, entries in found.items():
            # What was recorded twice is needed once, and for others if one of the two is.
            entries.sort(key=lambda one: (one[1], not one[2].logged))
            top, kept = -1, self._entries.setdefault(key, [])
            for entry in entries:
                if entry[0] > top:
                    top = entry[0]
                    kept.append(entry)
            yield len(entries) // ENTRY_WORK
        self.ready = True

    def logged(self) -> Iterator[tuple[bytes, int, int, EntryRecord]]:
        """Return the entries that other brokers may lack: origin, first and last number; of each
        origin in the order of publication, an earlier incarnation before a later one."""
        for key in sorted(self.published, key=lambda key: split_key(key)[1]):
            for last, first, record in self._entries[key]:
                if record.logged and key:
                    yield key, first, last, record

    def _find(self, name: Name) -> Entry | None:
        origin, number = name
        entries = self._entries.get(origin, ())
        at = bisect_left(entries, (number,))
        return entries[at] if at < len(entries) and entries[at][1] <= number else None

    def get(self, name: Name) -> Message | None:
        """Return the message with a `name`, None: it is not there (it is counted as skipped)."""
        message = None
        if (entry := self._find(name)) is not None:
            place = name[0], entry[1]
            messages = self._messages.get(place)
            if messages is None:
                messages = self._messages[place] = self._decode(entry[2])
            message = messages.get(name[1])
        if message is None:
            self._image.skipped += 1
        return message

    def copies(self, names: Iterable[Name]) -> Iterator[bytes]:
        """Yield messages with these `names` as records. Where many of a batch are wanted, all of it
        is there. Raises MalformedPacket: a batch cannot be read."""
        wanted: dict[Place, tuple[Entry, list[int]]] = {}
        for name in names:
            if (entry := self._find(name)) is not None:
                wanted.setdefault((name[0], entry[1]), (entry, []))[1].append(name[1])
        for place, ((last, first, record), numbers) in wanted.items():
            if 2 * len(numbers) > last - first:
                yield encode_entry(False, record.at, record.data)
                continue
            batch, ends = self._batches.get(place) or self._split(place, record)
            how, packets = (batch.version, batch.qos, batch.age), batch.packets
            for low, high in merge([(number, number) for number in numbers]):
                some = packets[ends[low - first] : ends[high + 1 - first]]
                part = MessageBatch(place[0] or LOCAL, low, some, high - low + 1, *how)
                yield encode_entry(False, record.at, part.encode())

    def _split(self, place: Place, record: EntryRecord) -> tuple[MessageBatch, list[int]]:
        batch = record.batch()
        found = self._batches[place] = batch, batch.ends()
        return found

    def _decode(self, record: EntryRecord) -> dict[int, Message]:
        came = self._now + (record.at - self._wall) / 1000
        try:
            return dict(record.batch().messages(came))
        except WireError:
            return {}


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
    username = head.username.decode() if head.flags & NAMED else None
    state = SessionState(username, head.expiry, recorded.last, {}, recorded.incoming)
    state.owner = None if head.owner is None else head.owner.decode()
    state.created, state.floor = head.ages[0] or head.stamp, head.ages[1]
    part = recorded.parts.get
    state.before = decode_vector(part(Kind.START_VECTOR, b""), now)
    state.absorbed = decode_absorbed(part(Kind.ABSORBED, b""))
    state.given = decode_owed(part(Kind.GIVEN, b""))
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
            if place == WAITING and not qos:
                place = MISSED
            yield Item(place, packet_id, qos, retain, ids, message, shared.decode() or None)
