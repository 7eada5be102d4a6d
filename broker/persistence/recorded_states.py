"""The sessions of an image as brokers restore them and give them to each other (`SessionState`).
Pure."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from mqttree.broker.cluster.link.version_vector import decode_vector
from mqttree.broker.cluster.sessions.message_vectors import ranges_of
from mqttree.broker.cluster.sessions.session_codec import (
    IN_FLIGHT,
    IS_RELEASED,
    WAITING,
    Item,
    SessionState,
)
from mqttree.broker.core.delivery_queue import RELEASED
from mqttree.broker.persistence.records import (
    HAS_WILL,
    NAMED,
    decode_absorbed,
    decode_owed,
)
from mqttree.broker.persistence.will_record import decode_will
from mqttree.broker.wire.errors import WireError

if TYPE_CHECKING:
    from mqttree.broker.base.sequence_set import Ranges
    from mqttree.broker.cluster.link.message_batch import MessageBatch
    from mqttree.broker.core.message import Message, Name
    from mqttree.broker.persistence.image import Image, RecordedSession
    from mqttree.broker.persistence.records import EntryRecord
    from mqttree.broker.wire.packets import Will


class ReadSession(NamedTuple):
    """A recorded session."""

    client_id: str
    state: SessionState
    """Without what it was offered, and when it began."""
    will: Will | None
    delivered: dict[bytes, Ranges]
    """What it has had at other brokers, and its broker had not when it came."""
    owed: dict[bytes, Ranges]
    """What it alone is owed, although its broker has had it."""


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

    def _decode(self, record: EntryRecord, batch: MessageBatch) -> dict[int, Message]:
        came = self._now + (record.at - self._wall) / 1000
        try:
            return dict(batch.messages(came))
        except WireError:
            return {}


def read_session(
    recorded: RecordedSession, messages: RecordedMessages, now: float
) -> ReadSession | None:
    """Return the session that is `recorded`, None if it cannot be read. `messages`: of its
    image; `now`: s."""
    head = recorded.head
    try:
        username = head.username.decode() if head.flags & NAMED else None
        state = SessionState(username, head.expiry, recorded.last, {}, recorded.incoming)
        state.owner = None if head.owner is None else head.owner.decode()
        state.created, state.floor = head.ages[0] or head.stamp, head.ages[1]
        state.before = decode_vector(recorded.start_vector, now)
        state.absorbed = decode_absorbed(recorded.absorbed)
        shared: dict[bytes, int] = {}
        for topic_filter, s in recorded.subscriptions.items():
            if topic_filter.startswith(b"$share/"):
                shared[topic_filter] = len(state.subscriptions)
            options = s.options
            state.subscriptions.append(
                (
                    topic_filter.decode(),
                    options & 3,
                    options & 4 != 0,
                    options & 8 != 0,
                    s.identifier,
                )
            )
        found = ReadSession(
            head.client_id.decode(),
            state,
            decode_will(head.will) if head.flags & HAS_WILL else None,
            ranges_of(decode_vector(recorded.delivered, now)),
            decode_owed(recorded.owed),
        )
    except (WireError, UnicodeDecodeError, IndexError, struct.error):
        return None
    state.items = list(_items(recorded, messages, shared))
    return found


def _items(
    recorded: RecordedSession, messages: RecordedMessages, shared: dict[bytes, int]
) -> Iterable[Item]:
    waiting = ((0, WAITING, one) for one in recorded.queue)
    sent = ((packet_id, IN_FLIGHT, one) for packet_id, one in recorded.inflight.items())
    for packet_id, place, one in chain(sent, waiting):
        if one is None:
            yield Item(IS_RELEASED, packet_id, 2, False, b"", RELEASED.message)
        elif (message := messages.get(one[0])) is not None:
            qos, retain, ids, group = one[1] or message.qos, *one[2:]
            yield Item(place, packet_id, qos, retain, ids, message, shared.get(group))
