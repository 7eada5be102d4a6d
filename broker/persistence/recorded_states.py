"""The sessions of an image as brokers restore them and give them to each other (`SessionState`).
Pure."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
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
from mqttree.broker.core.message import Message
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
    from mqttree.broker.persistence.image import RecordedSession
    from mqttree.broker.persistence.records import MessageRecord
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


def message_of(record: MessageRecord, expires_at: float | None) -> Message:
    """Return the message of a `record`; `expires_at`: s, None: it does not expire."""
    texts = record.properties, expires_at, None
    message = Message(record.topic, record.payload, record.qos, record.retain, *texts)
    return message.named(*record.name)


def read_session(
    recorded: RecordedSession, message: Callable[[int], Message | None], now: float
) -> ReadSession | None:
    """Return the session that is `recorded`, None if it cannot be read. `message`: returns the
    one with a number, None: it is not known; `now`: s."""
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
    state.items = list(_items(recorded, message, shared))
    return found


def _items(
    recorded: RecordedSession,
    message: Callable[[int], Message | None],
    shared: dict[bytes, int],
) -> Iterable[Item]:
    waiting = ((0, WAITING, one) for one in recorded.queue)
    sent = ((packet_id, IN_FLIGHT, one) for packet_id, one in recorded.inflight.items())
    for packet_id, place, one in chain(sent, waiting):
        if one is None:
            yield Item(IS_RELEASED, packet_id, 2, False, b"", RELEASED.message)
        elif (found := message(one[0])) is not None:
            _, qos, retain, ids, group = one
            yield Item(place, packet_id, qos, retain, ids, found, shared.get(group))
