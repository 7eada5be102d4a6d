"""Recorded sessions as brokers restore them, and take them from each other. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from mqttree.broker.base.sequence_set import merge
from mqttree.broker.cluster.link.message_batch import age_batch
from mqttree.broker.cluster.link.version_vector import decode_vector
from mqttree.broker.cluster.sessions.image import AS_PUBLISHED
from mqttree.broker.cluster.sessions.records import (
    LOCAL,
    NAMED,
    decode_absorbed,
    decode_owed,
    encode_entry,
)
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
    from mqttree.broker.cluster.link.message_batch import MessageBatch
    from mqttree.broker.cluster.sessions.image import Image, RecordedSession
    from mqttree.broker.cluster.sessions.records import EntryRecord
    from mqttree.broker.core.message import Message, Name


EVERYTHING: Final = 1 << 62
"""subscriptions or messages of a step; more than any session has: there is one step."""


class RecordedMessages:
    """The messages of an image by name: each is one object for all sessions that have it."""

    def __init__(self, image: Image, now: float, wall: int) -> None:
        """`image`: has them; `now`, `wall`: the time (s), and the time of day then (ms)."""
        self._image = image
        self._now, self._wall = now, wall
        # Per origin: the last numbers of its entries, ascending, and these.
        self._last: dict[bytes, list[int]] = {}
        self._entries: dict[bytes, list[tuple[EntryRecord, MessageBatch]]] = {}
        self._read: dict[tuple[bytes, int], dict[int, Message]] = {}
        batches = sorted(image.batches(), key=lambda one: one[1].sequence)
        image.skipped += len(image.entries) - len(batches)
        for record, batch in batches:
            last = self._last.setdefault(batch.key, [])
            # What was recorded twice is needed once.
            if not last or last[-1] < batch.sequence + batch.count - 1:
                last.append(batch.sequence + batch.count - 1)
                self._entries.setdefault(batch.key, []).append((record, batch))

    def get(self, name: Name) -> Message | None:
        """Return the message with a `name`, None: it is not there (it is counted as skipped)."""
        origin, number = name
        last = self._last.get(origin, [])
        at = bisect_left(last, number)
        message = None
        if at < len(last):
            messages = self._read.get((origin, at))
            if messages is None:
                messages = self._read[origin, at] = self._decode(*self._entries[origin][at])
            message = messages.get(number)
        if message is None:
            self._image.skipped += 1
        return message

    def copies(self, names: Iterable[Name], wall: int) -> Iterator[bytes]:
        """Yield messages with these `names` as records, as of the time of day `wall` (ms). Where
        many of a batch are wanted, all of it is there. Raises MalformedPacket: a batch cannot be
        read."""
        wanted: dict[tuple[bytes, int], list[int]] = {}
        for origin, number in set(names):
            last = self._last.get(origin, [])
            at = bisect_left(last, number)
            if at < len(last) and number >= self._entries[origin][at][1].sequence:
                wanted.setdefault((origin, at), []).append(number)
        for (origin, at), numbers in wanted.items():
            record, batch = self._entries[origin][at]
            data = [record.data]
            if 2 * len(numbers) < batch.count:
                parts = batch.parts(merge([(number, number) for number in numbers]))
                for part in parts:
                    part.key = origin or LOCAL
                data = [part.encode() for part in parts]
            for one in data:
                yield encode_entry(False, 0, age_batch(one, max(0, wall - record.at)))

    def _decode(self, record: EntryRecord, batch: MessageBatch) -> dict[int, Message]:
        came = self._now + (record.at - self._wall) / 1000
        try:
            return dict(batch.messages(came))
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
    state.before = decode_vector(recorded.start_vector, now)
    state.absorbed = decode_absorbed(recorded.absorbed)
    state.given = decode_owed(recorded.given)
    for number, s in enumerate(recorded.subscriptions.values(), 1):
        options = s.options
        flags = options & 3, options & 4 != 0, options & 8 != 0
        state.subscriptions.append((s.filter.decode(), *flags, s.identifier))
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
