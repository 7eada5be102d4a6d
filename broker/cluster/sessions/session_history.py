"""Which messages the local sessions have had, by number: here, at other brokers, from logs and from
older sessions (docs/decisions/0016).

For the messages that arrived here since a session subscribed, the start of its subscriptions says
which they are (`subscription_start`). All others that a session got are noted here for as long as
logs have them. So a broker that takes the session, or merges an older one into it, delivers no
message twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import Ranges, find, merge, subtract
from mqttree.broker.cluster.delivery.subscription_start import older, starts_of
from mqttree.broker.cluster.link.version_vector import Vector
from mqttree.broker.cluster.sessions.message_vectors import (
    offered,
    only_here,
    ranges_of,
    union,
    vector_of,
)
from mqttree.broker.cluster.sessions.session_state import (
    IN_FLIGHT,
    WAITING,
    EncodedSubscription,
    SessionState,
    state_of,
)
from mqttree.broker.core.message import Message
from mqttree.broker.core.route import Delivery
from mqttree.broker.core.session import Session
from mqttree.broker.core.wildcard_forms import WildcardForms
from mqttree.broker.wire.strings import is_own

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.origins import Origins
    from mqttree.broker.cluster.delivery.replay_log import LogEntry, Numbers, ReplayLog
    from mqttree.broker.cluster.ports import MemberBroker
    from mqttree.broker.cluster.sessions.delivered_ranges import DeliveredRanges
    from mqttree.broker.core.start_point import SubscriptionStart

MAX_SYNCED_RETAINED = 10_000
"""retained messages of the last `log_age_s` that came by a comparison and were delivered, some
200 bytes each: they say what a session that is merged has had. Of more, the oldest are
forgotten, and may come twice."""

SyncedMessage = tuple[float, bytes, int, bytes]
"""A retained message that retained synchronisation brought: when it was delivered (s), its origin,
number and topic."""

REPAIR_TIME = 10.0
"""s; with routing by interest, messages that arrived so long before a takeover began have been
offered to local subscribers: no repair takes longer, and messages that are held back until its end
come from the log."""


class MergedHistory:
    """What an old session had that has been merged into a newer one."""

    __slots__ = ("_filters", "_forms", "_seen")

    def __init__(self, seen: Vector) -> None:
        self._seen = seen
        self._filters: set[str] = set()
        self._forms = WildcardForms()

    def adding(self, subscriptions: list[EncodedSubscription], at_once: int) -> Iterator[int]:
        """Add its subscriptions, `at_once` at a time. Yields the steps of work that it took."""
        for at in range(0, len(subscriptions), at_once):
            if at:
                yield at_once
            for topic_filter in {
                each[0] for each in subscriptions[at : at + at_once]
            } - self._filters:
                self._filters.add(topic_filter)
                self._forms.add_filter(topic_filter)

    def was_delivered(self, key: bytes, number: int, topic: bytes) -> bool:
        """Whether it had the message with number `number` of the origin `key`, of this `topic`."""
        window = self._seen.get(key)
        if window is None or window.missing(number):
            return False
        return not self._filters.isdisjoint(self._forms.matching(topic.decode()))


class SessionHistory:
    """The messages that the sessions of one broker have had and that do not follow from the start
    of their subscriptions."""

    def __init__(
        self,
        node: MemberBroker,
        origins: Origins,
        log: ReplayLog,
        delivered_ranges: DeliveredRanges,
    ) -> None:
        """`node`: this broker; `origins`: which numbers have been here; `log`: the messages of the
        last minutes; `delivered_ranges`: what sessions had at other brokers."""
        self._node = node
        self._limits = node.limits
        self._origins = origins
        self._log = log
        self._delivered_ranges = delivered_ranges
        # Merged sessions, for as long as another old one may have had the same messages.
        self._merged: dict[Session, list[MergedHistory]] = {}
        # Numbers that sessions got from logs and older sessions, for as long.
        self._offered: dict[Session, dict[bytes, set[int]]] = {}
        # What sessions had at the brokers from which they came, for as long.
        self._elsewhere: dict[Session, dict[bytes, Ranges]] = {}
        self._synced: deque[SyncedMessage] = deque(maxlen=MAX_SYNCED_RETAINED)

    # ---------------------------------------------------------------- from logs, and older sessions

    def offers(self, session: Session, key: bytes, number: int) -> bool:
        """Note that a `session` gets number `number` of the origin `key` from a log, or from an
        older session. Returns False if it has got it before."""
        known = self._offered.get(session)
        if known is None:
            known = self._offered[session] = {}
            self._forget_later(session)
        numbers = known.setdefault(key, set())
        new = number not in numbers
        numbers.add(number)
        return new

    def merged(self, session: Session, old: MergedHistory) -> None:
        """Note that an old session has been merged into a newer one."""
        self._merged.setdefault(session, []).append(old)
        self._forget_later(session)

    def delivered_to_merged(self, session: Session, key: bytes, number: int, topic: bytes) -> bool:
        """Whether an old session that was merged into `session` had number `number` of the origin
        `key`, of this `topic`."""
        return any(old.was_delivered(key, number, topic) for old in self._merged.get(session, ()))

    def given(self, session: Session) -> dict[bytes, Ranges]:
        """Return the numbers that a session got from logs and older sessions, for the broker that
        takes it."""
        known = self._offered.get(session, {})
        return {
            key: merge([(number, number) for number in numbers]) for key, numbers in known.items()
        }

    def numbers_of(self, session: Session) -> set[tuple[bytes, int]]:
        """Return origin and number of each message that a session got from logs and older
        sessions."""
        return {
            (key, number)
            for key, numbers in self._offered.get(session, {}).items()
            for number in numbers
        }

    def since(self, seen: Vector, horizon: float) -> Iterator[tuple[bytes, int, Message]]:
        """Find the messages in the log that are not in `seen` and arrived after `horizon` (s):
        origin, sequence number, message."""
        if lacks := only_here(self._origins.vector, seen):
            for entry in self.logged(lacks, horizon):
                for number, message in entry.messages():
                    yield entry.key, number, message

    def logged(self, numbers: Numbers, horizon: float) -> list[LogEntry]:
        """Find the messages `numbers` in the log that arrived after `horizon` (s), but for those
        that a group was given again: these are for that group alone, and had another number
        before."""
        return [entry for entry in self._log.those(numbers, horizon) if not entry.passed]

    def offer(self, session: Session, key: bytes, number: int, message: Message) -> None:
        """Deliver a `message` from a log to a `session` that has a matching subscription and has
        not got it. `key`, `number`: its origin and number. One that matches no subscription is not
        noted: an older session that is merged later may have had it."""
        topic = message.topic.decode()
        permitted = not is_own(topic) and session.may_receive(topic)
        wanted = list(session.wanting(topic)) if permitted else []
        if (
            wanted
            and not older(session, key, number)
            and not self.delivered_to_merged(session, key, number, message.topic)
            and self.offers(session, key, number)
        ):
            delivery = Delivery(session, wanted)
            retain = message.retain and delivery.retain_as_published
            session.deliver(message, min(message.qos, delivery.qos), retain, delivery.ids, None)

    # ---------------------------------------------------------------- at other brokers

    def inherit(self, session: Session, state: SessionState) -> None:
        """Take over from `state` what a session has had at the broker from which it came."""
        before = {key: [(1, window.top)] for key, window in state.before.items() if window.top}
        self._elsewhere[session] = {
            key: subtract(ranges, before.get(key, []))
            for key, ranges in ranges_of(state.seen).items()
        }
        self._forget_later(session)
        self.inherit_given(session, state.given)

    def inherit_given(self, session: Session, given: dict[bytes, Ranges]) -> None:
        """Note the numbers that a session got from logs and older sessions at the broker from which
        it came."""
        for key, ranges in given.items():
            for low, high in ranges:
                for number in range(low, min(high, low + self._limits.max_queued) + 1):
                    self.offers(session, key, number)

    def delivered_elsewhere(self, session: Session, key: bytes, number: int, topic: bytes) -> bool:
        """Whether a `session` had number `number` of the origin `key`, of this `topic`, at the
        broker from which it came, by the subscriptions that it had there."""
        ranges = self._elsewhere.get(session, {}).get(key)
        if not ranges or find(ranges, number, number) < 0:
            return False
        return any(s.start is None or s.adopted for s in session.wanting(topic.decode()))

    # ---------------------------------------------------------------- from retained synchronisation

    def retained_synced(self, key: bytes, number: int, message: Message) -> None:
        """Note a retained `message` that retained synchronisation brings to local subscribers,
        whether it is older than their subscriptions or not. `key`, `number`: its origin and
        sequence number."""
        self._synced.append((self._node.now, key, number, message.topic))

    def synced_to(self, session: Session) -> list[SyncedMessage]:
        """Return the retained messages that retained synchronisation brought to a session."""
        since = self._node.now - self._limits.log_age_s
        found = []
        for one in reversed(self._synced):
            if one[0] < since:
                break
            if any(s.known_since <= one[0] for s in session.wanting(one[3].decode())):
                found.append(one)
        return found

    # ---------------------------------------------------------------- for the next broker

    def note(self, session: Session) -> None:
        """Note, before a session goes to another broker, the retained messages that it got by
        retained synchronisation."""
        for _, key, number, _ in self.synced_to(session):
            self.offers(session, key, number)
        early = union(*(start.early for start in starts_of(session) if start is not None))
        here = offered(self._origins.vector) if early else {}
        found = self.logged(early, self._node.now - self._limits.log_age_s) if early else ()
        for entry in found:
            for number, topic in enumerate(entry.topics(), entry.sequence):
                if was_delivered(session, here, entry.key, number, topic):
                    self.offers(session, entry.key, number)

    def delivered(self, session: Session) -> dict[bytes, Ranges]:
        """Return the numbers that a session was offered, by origin: those behind the start of its
        subscriptions, those that it had at other brokers, and those that it got from older sessions
        and from logs."""
        starts = starts_of(session)
        vector = offered(self._origins.vector)
        elsewhere = self._delivered_ranges.of(session)
        given = self.given(session)
        found: dict[bytes, Ranges] = {}
        for key in dict.fromkeys([*vector, *elsewhere, *given]):
            has = [*elsewhere.get(key, ()), *given.get(key, ())]
            window = vector.get(key)
            if window is not None and starts:
                low = min(0 if start is None else start.tops.get(key, 0) for start in starts)
                has += subtract([(low + 1, window.top)] if window.top > low else [], window.gaps)
                has += [
                    pair
                    for start in starts
                    if start is not None
                    for pair in start.early.get(key, ())
                ]
            if has := merge(has):
                found[key] = has
        return found

    def old_state(self, session: Session) -> SessionState:
        """Return the state of a `session` that is to be merged into a newer one, without its
        subscriptions."""
        has = self.delivered(session)
        state = state_of(session, vector_of(has))
        for item in state.items:
            # Its client cannot have got the message.
            if item.place == IN_FLIGHT and item.packet_id in session.unsent:
                item.place, item.packet_id = WAITING, 0
        state.given = self.given(session)
        return state

    def _forget_later(self, session: Session) -> None:
        self._node.timers.schedule(
            self._node.now + self._limits.log_age_s, lambda at: self._forget(session)
        )

    def _forget(self, session: Session) -> None:
        self._merged.pop(session, None)
        self._elsewhere.pop(session, None)
        self._offered.pop(session, None)


def was_delivered(session: Session, here: Vector, key: bytes, number: int, topic: bytes) -> bool:
    """Whether the message with number `number` of the origin `key`, of this `topic`, was delivered
    to a `session` at its broker. `here`: what was offered to sessions there."""
    window = here.get(key)
    if window is None or window.missing(number):
        return False
    return any(begun(s.start, key, number) for s in session.wanting(topic.decode()))


def begun(start: SubscriptionStart | None, key: bytes, number: int) -> bool:
    """Whether the message with number `number` of the origin `key` came after `start`, where a
    subscription began, or before that was known."""
    if start is None:
        return True
    after = number > start.tops.get(key, 0)
    ranges = (start.inherited if after else start.early).get(key, ())
    return after != any(low <= number <= high for low, high in ranges)
