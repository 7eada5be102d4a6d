"""What the sessions here get besides what comes over links, messages of the log, and what others
that take them have to know of them (docs/decisions/0016). `session_head` has the state of a session
as bytes, and `handover` sends it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from operator import itemgetter
from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import find
from mqttree.broker.cluster.delivery.replay_log import LogEntry, Numbers, ReplayLog
from mqttree.broker.cluster.delivery.replay_log import in_order as entries_in_order
from mqttree.broker.cluster.delivery.subscription_start import older, starts_of
from mqttree.broker.cluster.sessions.message_vectors import (
    been_here,
    numbered,
    union,
    without,
)
from mqttree.broker.cluster.sessions.session_entries import entries_of
from mqttree.broker.cluster.sessions.session_state import (
    IN_FLIGHT,
    WAITING,
    SessionState,
    put_off_queue,
    state_of,
)
from mqttree.broker.core.delivery_queue import Outgoing, Repeat
from mqttree.broker.core.message import Message, Name, size_of
from mqttree.broker.core.route import Delivery
from mqttree.broker.core.session import Session
from mqttree.broker.wire.strings import is_own

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.origins import Origins
    from mqttree.broker.cluster.ports import MemberBroker
    from mqttree.broker.cluster.sessions.evaluated import Evaluated
    from mqttree.routing.link_state import LinkStateDatabase

Found = Iterator[tuple[Name, Message]]
"""Messages of the log, with their names."""

Numbered = tuple[int, Message]
"""A message with its number."""

DECODED_S = 1.0
"""s for which entries of the log stay decoded, for sessions that come in that time."""
MAX_DECODED_BYTES = 8 * 1024 * 1024
"""bytes of these entries, at most."""

MAX_SYNCED_RETAINED = 10_000
"""retained messages of the last `log_age_s` that came by a comparison and were delivered, some
200 bytes each: they say what a session that is merged has had. Of more, the oldest are
forgotten, and may come twice."""

SyncedMessage = tuple[float, bytes, int, bytes]
"""A retained message that retained synchronisation brought: when it was delivered (s), its origin,
number and topic."""


class SessionHistory:
    """Gives sessions what they lack from the log, and says what they have had."""

    def __init__(
        self,
        node: MemberBroker,
        *,
        database: LinkStateDatabase,
        origins: Origins,
        log: ReplayLog,
        evaluated: Evaluated,
    ) -> None:
        """`node`: this broker; `database`: which brokers have older sessions; `origins`: which
        numbers have been here; `log`: the messages of the last minutes; `evaluated`: the records of
        sessions."""
        self._node = node
        self._limits = node.limits
        self._database = database
        self._origins = origins
        self._log = log
        self._evaluated = evaluated
        self._synced: deque[SyncedMessage] = deque(maxlen=MAX_SYNCED_RETAINED)
        # Entries that were decoded, with their bytes then, and the bytes of all.
        self._topics: dict[LogEntry, tuple[bytes, dict[bytes, list[Numbered]]]] = {}
        self._size = 0

    # ---------------------------------------------------------------- from the log

    def lacked(self, session: Session) -> Numbers:
        """Return which messages have been here and were not evaluated for a session that has come
        from elsewhere."""
        return without(been_here(self._origins.vector), self._evaluated.position(session))

    def logged(self, session: Session, numbers: Numbers) -> Found:
        """Find those of the messages `numbers` in the log that match a subscription of a `session`,
        but for those that a group was given again: these are for that group alone, and had another
        number before."""
        horizon = self._node.now - self._limits.log_age_s
        held = self._log.holding(numbers, horizon) if numbers else ()
        for entry in entries_in_order([entry for entry, _ in reversed(held)], numbers):
            key, ranges = entry.key, numbers[entry.key]
            for number, message in sorted(self._wanted(session, entry), key=itemgetter(0)):
                if find(ranges, number, number) >= 0:
                    yield (key, number), message

    def _wanted(self, session: Session, entry: LogEntry) -> Iterator[Numbered]:
        topics = self._topics_of(entry)
        if session.forms is None and len(session.subscriptions) < len(topics):
            for topic_filter in session.subscriptions:
                yield from topics.get(topic_filter.encode(), ())
        else:
            for topic, found in topics.items():
                if any(session.wanting(topic.decode())):
                    yield from found

    def _topics_of(self, entry: LogEntry) -> dict[bytes, list[Numbered]]:
        """Return the messages of an `entry` by topic. Many sessions may come in one moment, as a
        broker has died, and lack the same: it is decoded once for all of them."""
        data = entry.kept()
        if (known := self._topics.get(entry)) is not None and known[0] is data:
            return known[1]
        topics: dict[bytes, list[Numbered]] = {}
        for number, message in () if entry.passed else entry.messages():
            topics.setdefault(message.topic, []).append((number, message))
        if not self._topics:
            self._size = 0
            self._node.timers.schedule(self._node.now + DECODED_S, lambda _: self._topics.clear())
        if self._size < MAX_DECODED_BYTES:
            self._size += entry.size
            self._topics[entry] = data, topics
        return topics

    def offer(self, session: Session, numbers: Numbers) -> None:
        """Deliver messages of the log (`numbers`) to a `session`, by those of its subscriptions
        that match, and if it has not got them. One that matches no subscription is not noted: an
        older session that is merged later may have had it."""
        evaluated = self._evaluated
        for name, message in self.logged(session, numbers):
            topic = message.topic.decode()
            permitted = not is_own(topic) and session.may_receive(topic)
            wanted = list(session.wanting(topic)) if permitted else []
            if (
                wanted
                and not older(session, *name)
                and not evaluated.was_given(session, *name, message.topic)
            ):
                evaluated.give(session, *name)
                delivery = Delivery(session, wanted)
                retain = message.retain and delivery.retain_as_published
                qos = min(message.qos, delivery.qos)
                # At QoS 0 it may have got it, and nothing says so.
                if qos or not session.held:
                    session.deliver(message, qos, retain, delivery.ids, None)

    # ---------------------------------------------------------------- what sessions have had

    def retained_synced(self, key: bytes, number: int, message: Message) -> None:
        """Note a retained `message` that retained synchronisation brings to local subscribers,
        whether it is older than their subscriptions or not. `key`, `number`: its origin and
        sequence number."""
        self._synced.append((self._node.now, key, number, message.topic))

    def note(self, session: Session) -> None:
        """Note what a session has had of which other brokers, or older sessions, know nothing: the
        retained messages that a comparison brought, and what was delivered before it was known that
        it is older than a subscription."""
        evaluated, since = self._evaluated, self._node.now - self._limits.log_age_s
        for at, key, number, topic in reversed(self._synced):
            if at < since:
                break
            if any(s.known_since <= at for s in session.wanting(topic.decode())):
                evaluated.give(session, key, number)
        early = union(*(start.early for start in starts_of(session) if start is not None))
        here = evaluated.here() if early else {}
        for name, message in self.logged(session, early):
            if evaluated.had(session, here, *name, message.topic):
                evaluated.give(session, *name)

    def state(self, session: Session, *, merged: bool) -> SessionState:
        """Return what a taker has to know of a `session`. `merged`: it adds it to a newer one, with
        its queue; without, it is to have what can be made of it at once, and the queue later."""
        state = state_of(session, self._evaluated.seen(session))
        # Brokers that are away may have older sessions of the client.
        others = entries_of(self._database, session.client_id)
        if merged or any(entry.stamp < session.stamp for _, entry in others):
            self.note(session)
            queued = (name for item in state.items if (name := item.message.name) is not None)
            state.given = numbered({*self._evaluated.names(session), *queued})
        state.lacking = self._evaluated.lacking(session)
        if not merged:
            put_off_queue(state)
        for item in state.items if merged else ():
            # Its client cannot have got the message.
            if item.place == IN_FLIGHT and item.packet_id in session.unsent:
                item.place, item.packet_id = WAITING, 0
        return state


def put_in_order(session: Session) -> None:
    """Have the queue of a `session` in the order of each origin, and no message twice: it has
    come from several brokers."""
    queue = session.queue
    names: set[Name] = set()
    repeats = [one for one in queue if isinstance(one, Repeat)]
    waiting: list[Outgoing] = []
    for one in queue:
        if isinstance(one, Repeat):
            continue
        name = one.message.name
        if name is not None and name in names:
            session.queued_bytes -= size_of(one.message)
            continue
        if name is not None:
            names.add(name)
        waiting.append(one)
    ordered = [*repeats, *in_order(waiting)]
    if ordered != list(queue):
        session.queue.clear()
        session.queue.extend(ordered)
        if (recorder := session.recorder) is not None:
            recorder.record_all()


def in_order(waiting: list[Outgoing]) -> list[Outgoing]:
    """Return the messages that are `waiting` with those of each origin in the order of their
    numbers."""
    ordered: dict[bytes, list[Outgoing]] = {}
    for outgoing in sorted(waiting, key=lambda each: each.message.sequence):
        ordered.setdefault(outgoing.message.origin, []).append(outgoing)
    turns = {origin: iter(same) for origin, same in ordered.items()}
    return [next(turns[outgoing.message.origin]) for outgoing in waiting]
