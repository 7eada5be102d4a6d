"""Which messages the sessions here have had, by name, as far as the start of their subscriptions
does not say it (docs/decisions/0016).

A message is *evaluated* for a session when a broker has compared it with the subscriptions. What
arrived here since a session subscribed has been (`subscription_start`). All else is in one record
of the session: what was evaluated where it was before, or in a session that was merged into it; the
names that it got from logs and older sessions, whether its subscriptions match or not; and what a
merged session had by its filters, as a third one with other filters may be owed the rest. So it is
given no message twice, by whatever way that comes: over a link, from a log, or from an older
session.

The other way round, a session may be owed messages that all other local sessions have had: those
that were published before its broker got it, and that no local subscriber wanted then. Their origin
is asked for them, and while it is away the debt waits, also through restarts of this broker. A
number is owed for as long as the feed of its origin lacks it (`OrderedFeed.outstanding`): so
what has been delivered, or exists nowhere, is not owed any more, and no record says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import Ranges, find, intersect, merge, subtract
from mqttree.broker.cluster.delivery.subscription_start import starts_of
from mqttree.broker.cluster.link.version_vector import Vector
from mqttree.broker.cluster.sessions.message_vectors import (
    numbered,
    offered,
    ranges_of,
    union,
    vector_of,
    without,
)
from mqttree.broker.cluster.sessions.session_state import behind_start
from mqttree.broker.core.route import NOTHING_BEYOND, Delivery, Route
from mqttree.broker.core.wildcard_forms import WildcardForms
from mqttree.routing.topic_filter import split_shared

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.origins import Origins
    from mqttree.broker.cluster.ports import MemberBroker, OldMessages
    from mqttree.broker.cluster.sessions.session_state import EncodedSubscription, SessionState
    from mqttree.broker.cluster.sharing.shared_subscriptions import SharedSubscriptions
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.message import Message, Name
    from mqttree.broker.core.receiver_assignment import ReceiverAssignment
    from mqttree.broker.core.session import Session, Subscription
    from mqttree.broker.core.start_point import SubscriptionStart


class MergedHistory:
    """What an old session had that has been merged into a newer one."""

    __slots__ = ("_evaluated", "_filters", "_forms")

    def __init__(self, old: SessionState) -> None:
        self._evaluated = behind_start(old)
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

    def had(self, key: bytes, number: int, topic: bytes) -> bool:
        """Whether it had the message with number `number` of the origin `key`, of this `topic`."""
        if find(self._evaluated.get(key, []), number, number) < 0:
            return False
        return not self._filters.isdisjoint(self._forms.matching(topic.decode()))


class Record:
    """What is known of one session."""

    __slots__ = (
        "_all",
        "as_member",
        "at",
        "came",
        "inherited",
        "lacking",
        "merged",
        "names",
        "ranges",
    )

    def __init__(self) -> None:
        self.at = 0.0
        """When it has changed (s)."""
        self.ranges: dict[bytes, Ranges] = {}
        """What was evaluated elsewhere, by origin."""
        self.names: set[Name] = set()
        """What it got from logs, comparisons and older sessions."""
        self.as_member: set[tuple[Name, str]] = set()
        """What it came with as a member of groups, by name and filter."""
        self.came = 0
        """The last number that was published here before it came, or a broker with a copy of it."""
        self.lacking: dict[bytes, Ranges] = {}
        """What was evaluated elsewhere, and is to come from the queue of an older copy."""
        self.merged: list[MergedHistory] = []
        """Older sessions."""
        self.inherited: dict[SubscriptionStart, dict[bytes, Ranges]] = {}
        """Where a subscription begins, if that was set back for an older session -> what of the
        numbers behind it that one evaluated in place of this one."""
        # Of `ranges` and so many `names`: their numbers.
        self._all: tuple[dict[bytes, Ranges], int, dict[bytes, Ranges]] = {}, 0, {}

    @property
    def numbers(self) -> dict[bytes, Ranges]:
        """All numbers in it. The names of a queue are many, and hardly change."""
        ranges, names, found = self._all
        if ranges is not self.ranges or names != len(self.names):
            found = union(self.ranges, numbered(self.names))
            self._all = self.ranges, len(self.names), found
        return found

    def has(self, key: bytes, number: int) -> bool:
        """Whether a number of the origin `key` was evaluated, or a message given."""
        known = find(self.ranges.get(key, []), number, number) >= 0
        return known or (key, number) in self.names


UNKNOWN = Record()
"""Of a session of which there is no record."""


class Evaluated:
    """The records of all sessions, and what single ones are owed."""

    def __init__(
        self,
        node: MemberBroker,
        origins: Origins,
        sharing: SharedSubscriptions,
        old: OldMessages,
    ) -> None:
        """`node`: this broker; `origins`: where the highest numbers are noted; `sharing`: delivers
        to members of shared subscriptions; `old`: knows whether old messages may arrive."""
        self._node = node
        self._limits = node.limits
        self._sharing = sharing
        self._old = old
        self._origins = origins
        self._records: dict[Session, Record] = {}
        # Origin -> what sessions alone are owed, or were.
        self._owed: dict[bytes, dict[Session, Ranges]] = {}
        # Origin -> the highest number of all.
        self.highest = origins.highest

    # ---------------------------------------------------------------- records

    def _record(self, session: Session) -> Record:
        """Return the record of a session, which is about to change."""
        record = self._records.get(session)
        if record is None:
            record = self._records[session] = Record()
            self._forget_at(session, self._node.now + self._limits.log_age_s)
        record.at = self._node.now
        return record

    def _forget_at(self, session: Session, at: float) -> None:
        self._node.timers.schedule(at, lambda now: self._forget(session, now))

    def _forget(self, session: Session, now: float) -> None:
        """Forget the record of a session: messages that have left all logs come no more. While
        brokers are away, a log's tail may have older ones that have not been here."""
        record, longest = self._records[session], self._limits.log_age_s
        if record.at + longest > now:
            self._forget_at(session, record.at + longest)
            return
        if record.lacking:
            self._forget_at(session, now + longest)
            return
        left: dict[bytes, Ranges] = {}
        if self._old.expects_old_messages() and now < record.at + self._limits.absent_max_s:
            left = without(self.elsewhere(session), ranges_of(self.here()))
        if left:
            record.ranges, record.names, record.as_member = left, set(), set()
            record.merged, record.inherited = [], {}
            self._forget_at(session, now + longest)
        else:
            del self._records[session]

    def add(self, session: Session, ranges: Mapping[bytes, Ranges]) -> None:
        """Note what was evaluated for a session elsewhere: ascending inclusive pairs."""
        if not ranges:
            return
        record = self._record(session)
        record.ranges = union(record.ranges, ranges)
        for key, pairs in ranges.items():
            self.highest[key] = max(self.highest.get(key, 0), pairs[-1][1])
        if (recorder := session.recorder) is not None:
            recorder.record_delivered()

    def give(self, session: Session, key: bytes, number: int) -> None:
        """Note that a `session` gets number `number` of the origin `key` from a log, a comparison
        or an older session."""
        self._record(session).names.add((key, number))
        self.highest[key] = max(self.highest.get(key, 0), number)

    def lack(self, session: Session, ranges: dict[bytes, Ranges]) -> None:
        """Note which messages of those that were evaluated for a `session` elsewhere are to come
        from the queue of an older copy."""
        if ranges or self.lacking(session):
            self._record(session).lacking = ranges
        if (recorder := session.recorder) is not None:
            recorder.record_delivered()

    def lacking(self, session: Session) -> dict[bytes, Ranges]:
        """Return which messages are to come from the queue of an older copy of a session."""
        return self._records.get(session, UNKNOWN).lacking

    def hold(self, session: Session) -> None:
        """Note that a `session` has come, and is held."""
        self._record(session).came = self._origins.own.top
        session.hold()
        self.lack(session, self.lacking(session))

    def pause(self, session: Session) -> None:
        """Note that a `session` waits for a copy at a broker that can be reached again."""
        if not session.paused:
            self._record(session).came = self._origins.own.top
            session.pause()

    def release(self, session: Session) -> None:
        """Send what was held of a `session`."""
        session.release()
        self.lack(session, self.lacking(session))

    def lacks(self, session: Session, key: bytes, number: int) -> bool:
        """Whether a `session` lacks the message with number `number` of the origin `key`."""
        return find(self.lacking(session).get(key, []), number, number) >= 0

    def lose(self, session: Session, ranges: dict[bytes, Ranges]) -> None:
        """Note that messages were not evaluated for a `session` elsewhere after all."""
        if ranges:
            record = self._record(session)
            record.ranges = without(record.ranges, ranges)

    def inherit(self, session: Session, state: SessionState) -> None:
        """Take over what a session has had that comes from another broker, or that is merged into
        this one (`state`)."""
        self.add(session, behind_start(state))
        shared = ((item.message.name, item.shared) for item in state.items)
        if as_member := {(name, where) for name, where in shared if name and where}:
            self._record(session).as_member |= as_member
        if state.lacking:
            lacking = without(state.lacking, numbered(self.names(session)))
            self.lack(session, union(self.lacking(session), lacking))
        for key, ranges in state.given.items():
            for low, high in ranges:
                for number in range(low, min(high, low + self._limits.max_queued) + 1):
                    self.give(session, key, number)

    def merged(
        self,
        session: Session,
        old: MergedHistory | None,
        inherited: dict[SubscriptionStart, dict[bytes, Ranges]],
    ) -> None:
        """Note that an old session (`old`; None: a copy) has been merged into a newer `session`.
        `inherited`: where the newer one's subscriptions begin now -> numbers behind that which only
        the old one evaluated."""
        record = self._record(session)
        if old is not None:
            record.merged.append(old)
        record.inherited = inherited

    def inherited(self, session: Session, start: SubscriptionStart) -> dict[bytes, Ranges]:
        """Return the numbers behind a `start` of a session that only older ones evaluated."""
        return self._records.get(session, UNKNOWN).inherited.get(start, {})

    def names(self, session: Session) -> set[Name]:
        """Return the names of what a session got from logs, comparisons and older sessions."""
        return self._records.get(session, UNKNOWN).names

    def elsewhere(self, session: Session) -> dict[bytes, Ranges]:
        """Return all numbers in the record of a session."""
        return self._records.get(session, UNKNOWN).numbers

    # ---------------------------------------------------------------- what a session has had

    def was_given(self, session: Session, key: bytes, number: int, topic: bytes) -> bool:
        """Whether a `session` got the message with number `number` of the origin `key`, of this
        `topic`, as `give` says, or one that was merged into it had it."""
        record = self._records.get(session, UNKNOWN)
        return (key, number) in record.names or any(
            old.had(key, number, topic) for old in record.merged
        )

    def had(self, session: Session, seen: Vector, key: bytes, number: int, topic: bytes) -> bool:
        """Whether a `session` has had the message with number `number` of the origin `key`, of this
        `topic`. `seen`: what was evaluated for it, besides what is recorded."""
        if self.was_given(session, key, number, topic):
            return True
        record, window = self._records.get(session, UNKNOWN), seen.get(key)
        elsewhere = record.has(key, number)
        if not elsewhere and (window is None or window.missing(number)):
            return False
        for start in {s.start for s in session.wanting(topic.decode())}:
            if start is None:
                return True
            # What turned out to be older only when the session was here had been delivered there.
            behind = number > start.tops.get(key, 0) or (elsewhere and start.adopted)
            ranges = record.inherited.get(start, {}) if behind else start.early
            if behind != any(low <= number <= high for low, high in ranges.get(key, ())):
                return True
        return False

    def had_as_member(
        self, session: Session, topic_filter: str, name: Name, *, published: bool
    ) -> bool:
        """Whether a local member of the group with the shared subscription `topic_filter` has had
        the message with a `name`, as far as this broker has recorded it. `published`: so it has
        what was published here before a copy of the member's `session` could be given that."""
        record = self._records.get(session, UNKNOWN)
        if (name, topic_filter) in record.as_member:
            return True
        if name[0] == self._origins.key and name[1] > record.came:
            published = False
        group_name, inner = split_shared(topic_filter)
        group = self._node.dispatcher.group(group_name or "", inner)
        ref = None if group is None else (*name, group.group_id)
        return ref is not None and self._sharing.took(ref, published=published)

    def position(self, session: Session) -> dict[bytes, Ranges]:
        """Return what is not for a session that arrives: the numbers in its record, and those that
        were published before it subscribed."""
        every = starts_of(session)
        starts = [start for start in every if start is not None]
        older: dict[bytes, Ranges] = {}
        if starts and len(starts) == len(every):
            for key in starts[0].tops:
                if top := min(start.tops.get(key, 0) for start in starts):
                    older[key] = [(1, top)]
        return union(self.elsewhere(session), older)

    def seen(self, session: Session) -> Vector:
        """Return what was evaluated for a session, here or elsewhere, or is not for it: its
        position, what was offered here, and what other sessions alone are owed."""
        if session.held:
            # What was here before it came was not compared with it, nor is it all there yet.
            queued = numbered(name for one in session.queue if (name := one.message.name))
            came, top = self._records.get(session, UNKNOWN).came, self._origins.own.top
            own = {self._origins.key: [(came + 1, top)]} if came < top else {}
            return vector_of(union(self.position(session), queued, own))
        here = self.here()
        others = {
            key: subtract(self.ranges_fetched_for_one_session(key), known.get(session, []))
            for key, known in self._owed.items()
        }
        return here | vector_of(union(ranges_of(here), self.position(session), others))

    def here(self) -> Vector:
        """Return what was offered to all sessions that are here."""
        return offered(self._origins.vector)

    # ---------------------------------------------------------------- debts

    def owe(self, session: Session, key: bytes, ranges: Ranges) -> None:
        """Note that `session` alone lacks the numbers `ranges` of the origin `key`: all other local
        sessions have had them, whether they wanted them or not. Of too many sessions, further ones
        go without."""
        known = self._owed.get(key, {})
        if len(known) >= self._limits.max_repeats or subtract(ranges, self._outstanding(key)):
            # Before numbers that have been paid are outstanding once more.
            self._forget_paid(key)
        if (window := self._origins.vector.get(key)) is not None and window.feed is not None:
            window.feed.add_outstanding(ranges)
        owed = self._owed.setdefault(key, {})
        if len(owed) >= self._limits.max_repeats and session not in owed:
            self._node.counters.session_takeovers_uncertain += 1
            return
        owed[session] = merge([*owed.get(session, ()), *ranges])
        self.highest[key] = max(self.highest.get(key, 0), ranges[-1][1])
        if (recorder := session.recorder) is not None:
            recorder.record_owed()

    def ranges_fetched_for_one_session(self, key: bytes) -> Ranges:
        """Return the numbers that single sessions are owed, and no other local session."""
        return merge([pair for ranges in self._owed.get(key, {}).values() for pair in ranges])

    def owed(self, session: Session) -> dict[bytes, Ranges]:
        """Return the numbers that `session` alone is owed, by origin."""
        return {
            key: ranges
            for key, owed in self._owed.items()
            if session in owed and (ranges := intersect(owed[session], self._outstanding(key)))
        }

    def owed_of(self, key: bytes) -> dict[Session, Ranges]:
        """Return the sessions that alone are owed messages of an origin, or were, and which."""
        return self._owed.get(key, {})

    def _outstanding(self, key: bytes) -> Ranges:
        """Return the numbers that are missing here and are delivered whenever they come."""
        window = self._origins.vector.get(key)
        if window is None:
            return []
        return [] if window.feed is None else window.feed.outstanding

    def forget_all_paid(self) -> None:
        """Forget debts that are paid. To be called now and then."""
        for key in list(self._owed):
            self._forget_paid(key)

    def _forget_paid(self, key: bytes) -> None:
        outstanding, owed = self._outstanding(key), self._owed.pop(key, {})
        left = {session: intersect(ranges, outstanding) for session, ranges in owed.items()}
        if owed := {session: ranges for session, ranges in left.items() if ranges}:
            self._owed[key] = owed

    # ---------------------------------------------------------------- delivery

    def deliver(
        self,
        key: bytes,
        sequence: int,
        message: Message,
        choice: ReceiverAssignment | None,
        source: Connection | None,
    ) -> None:
        """Deliver a message from a link to local subscribers that have not had it.

        `key`: its origin; `sequence`: its number there; `message`: what is delivered; `choice`:
        which members of shared subscriptions get it, None: there are none; `source`: as of
        `Dispatcher.publish`.
        """
        if choice is not None:
            self._sharing.received(message, choice, source, ordinary=False)
            if choice.passed:
                return
        dispatcher, records = self._node.dispatcher, self._records
        route = dispatcher.route(message.topic)
        alone = {
            session
            for session, ranges in self._owed.get(key, {}).items()
            if any(low <= sequence <= high for low, high in ranges)
        }
        few = []
        for delivery in route.deliveries:
            session = delivery.session
            if alone and session not in alone:
                continue
            if records and records.get(session, UNKNOWN).has(key, sequence):
                continue
            begun = since(delivery, key, sequence, message.topic)
            if begun is not None:
                few.append(begun)
            elif message.retain and self._state(message):
                # It was under way when the retained messages were sent.
                session.deliver(message, min(message.qos, delivery.qos), True, delivery.ids, source)
        few_route = Route(few, NOTHING_BEYOND, route.forward, {})
        dispatcher.publish_along(few_route, message, (), source)

    def _state(self, message: Message) -> bool:
        """Whether a retained message is the one that is kept for its topic."""
        known = self._node.retained.get(message.topic.decode())
        return known is not None and known.payload == message.payload

    def restored(self, key: bytes, sequence: int, message: Message) -> None:
        """Deliver a retained `message` that retained synchronisation brought to local subscribers
        that lack it. `key`, `sequence`: its origin and number. A subscription that began after it
        was published gets it, too: as the state of its topic, which was not here then."""
        dispatcher, records = self._node.dispatcher, self._records
        route = dispatcher.route(message.topic, keep=False)
        few = [
            delivery
            for delivery in route.deliveries
            if not records.get(delivery.session, UNKNOWN).has(key, sequence)
        ]
        few_route = Route(few, NOTHING_BEYOND, route.forward, {})
        dispatcher.publish_along(few_route, message, (), None)


def since(delivery: Subscription, key: bytes, sequence: int, topic: bytes) -> Subscription | None:
    """Return the part of `delivery` that a session gets by the subscriptions that were made before
    the message was published; None: nothing. `key`, `sequence`, `topic`: of the message."""
    session = delivery.session
    wanted = list(session.wanting(topic.decode()))
    begun = [s for s in wanted if s.gets(key, sequence)]
    if len(begun) == len(wanted):
        return delivery
    return Delivery(session, begun) if begun else None
