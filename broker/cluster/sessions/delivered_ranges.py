"""Messages that a session had at the broker from which it came, and that arrive here later
(docs/decisions/0016).

With routing by interest, messages may arrive here later than at the broker from which a session
came. A message that the session had there is then delivered to the other local sessions only.
Sequence numbers, by origin, say which messages these are.

The other way round, a session may be owed messages that all other local sessions have had: those
that were published before its broker got it, and that no local subscriber wanted then. Their origin
is asked for them, and while it is away the debt waits, also through restarts of this broker. A
number is owed for as long as the feed of its origin lacks it (`OrderedFeed.outstanding`): so what
has been delivered, or is nowhere, is no debt any more, without a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import Ranges, intersect, merge, roughly, subtract
from mqttree.broker.cluster.delivery.subscription_start import starts_of
from mqttree.broker.cluster.link.version_vector import OriginWindow, Vector
from mqttree.broker.core.route import NOTHING_BEYOND, Delivery, Route

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.origins import Origins
    from mqttree.broker.cluster.ports import MemberBroker, OldMessages
    from mqttree.broker.cluster.sharing.shared_subscriptions import SharedSubscriptions
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.message import Message
    from mqttree.broker.core.receiver_assignment import ReceiverAssignment
    from mqttree.broker.core.session import Session, Subscription


class DeliveredRanges:
    """The sequence numbers of each origin that sessions have had at other brokers."""

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
        self._counters = node.counters
        self._retained = node.retained
        self._limits = node.limits
        self._sharing = sharing
        self._old = old
        self._origins = origins
        self._sessions: dict[bytes, dict[Session, Ranges]] = {}
        # The same of what sessions alone are owed, or were.
        self._owed: dict[bytes, dict[Session, Ranges]] = {}
        # Origin -> the highest number that any session has had.
        self.highest = origins.highest

    def add(self, session: Session, had: Mapping[bytes, Ranges]) -> None:
        """Note what a session has had of each origin: ascending inclusive pairs."""
        for key, ranges in had.items():
            sessions = self._sessions.setdefault(key, {})
            if session not in sessions and len(sessions) >= self._limits.max_repeats:
                self._counters.session_takeovers_uncertain += 1
                continue
            sessions[session] = merge([*sessions.get(session, ()), *ranges])
            self.highest[key] = max(self.highest.get(key, 0), ranges[-1][1])
        if had:
            if (recorder := session.recorder) is not None:
                recorder.record_delivered()
            # Messages that have left all logs are delivered to no session.
            self._node.timers.schedule(
                self._node.now + self._limits.log_age_s, lambda now: self._forget(session, had)
            )

    def owe(self, session: Session, key: bytes, ranges: Ranges) -> None:
        """Note that `session` alone lacks the numbers `ranges` of the origin `key`: all other local
        sessions have had them, whether they wanted them or not. Of too many sessions, further ones
        go without."""
        owed = self._owed.setdefault(key, {})
        if len(owed) >= self._limits.max_repeats and session not in owed:
            self.forget_paid(key)
            owed = self._owed.get(key, {})
            if len(owed) >= self._limits.max_repeats:
                self._counters.session_takeovers_uncertain += 1
                return
        owed[session] = merge([*owed.get(session, ()), *ranges])
        self._owed[key] = owed
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
            if session in owed and (ranges := intersect(owed[session], self.outstanding(key)))
        }

    def owed_of(self, key: bytes) -> dict[Session, Ranges]:
        """Return the sessions that alone are owed messages of an origin, or were, and which."""
        return self._owed.get(key, {})

    def outstanding(self, key: bytes) -> Ranges:
        """Return the numbers that are missing here and are delivered whenever they come."""
        window = self._origins.vector.get(key)
        if window is None:
            return []
        return [] if window.feed is None else window.feed.outstanding

    def forget_all_paid(self) -> None:
        """Forget debts that are paid. To be called now and then."""
        for key in list(self._owed):
            self.forget_paid(key)

    def forget_paid(self, key: bytes) -> None:
        """Forget debts that are paid: before numbers of the origin `key` are outstanding once
        more, as another session lacks them."""
        outstanding = self.outstanding(key)
        owed = {
            session: left
            for session, ranges in self._owed.pop(key, {}).items()
            if (left := intersect(ranges, outstanding))
        }
        if owed:
            self._owed[key] = owed

    def _forget(self, session: Session, had: Mapping[bytes, Ranges], until: float = 0.0) -> None:
        now = self._node.now
        until = until or now + self._limits.absent_max_s
        # While brokers are away, a log's tail may have older messages.
        if now < until and self._old.expects_old_messages():
            self._node.timers.schedule(
                now + self._limits.log_age_s, lambda _: self._forget(session, had, until)
            )
            return
        for key in had:
            sessions = self._sessions.get(key, {})
            sessions.pop(session, None)
            if not sessions:
                self._sessions.pop(key, None)

    def sessions(self, key: bytes, sequence: int) -> set[Session]:
        """Return the sessions that have had a message."""
        known = self._sessions.get(key, {})
        return {
            session
            for session, ranges in known.items()
            if any(low <= sequence <= high for low, high in ranges)
        }

    def elsewhere(self, session: Session) -> dict[bytes, Ranges]:
        """Return the numbers that a session has had at other brokers."""
        return {
            key: ranges
            for key, known in self._sessions.items()
            if (ranges := known.get(session)) is not None
        }

    def of(self, session: Session) -> dict[bytes, Ranges]:
        """Return the numbers that a session has had at other brokers, and those that other sessions
        alone are owed."""
        found = self.elsewhere(session)
        for key, known in self._owed.items():
            if others := subtract(self.ranges_fetched_for_one_session(key), known.get(session, [])):
                found[key] = merge([*found.get(key, ()), *others])
        return found

    def complete(self, seen: Vector, session: Session) -> None:
        """Add to `seen`, what a session was offered here, the numbers that it has had at other
        brokers, and those that were published before it subscribed."""
        starts = starts_of(session)
        tops = (
            {}
            if None in starts or not starts
            else dict(starts[0].tops)
            if starts[0] is not None
            else {}
        )
        for start in starts:
            tops = (
                {key: min(top, start.tops.get(key, 0)) for key, top in tops.items()}
                if start is not None
                else {}
            )
        elsewhere = self.of(session)
        for key in {**elsewhere, **tops}:
            had = list(elsewhere.get(key, ()))
            if top := tops.get(key):
                had = merge([*had, (1, top)])
            if had:
                window = seen.get(key, OriginWindow(0, 0.0))
                all_of_it = merge(
                    [*subtract([(1, window.top)] if window.top else [], window.gaps), *had]
                )
                both = seen[key] = OriginWindow(all_of_it[-1][1], 0.0)
                both.gaps = roughly(subtract([(1, both.top)], all_of_it))

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
        dispatcher = self._node.dispatcher
        route = dispatcher.route(message.topic)
        had = self._sessions.get(key, {})
        alone = {
            session
            for session, ranges in self._owed.get(key, {}).items()
            if any(low <= sequence <= high for low, high in ranges)
        }
        few = []
        for delivery in route.deliveries:
            if alone and delivery.session not in alone:
                continue
            session = delivery.session
            ranges = had.get(session)
            if ranges is not None and any(low <= sequence <= high for low, high in ranges):
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
        known = self._retained.get(message.topic.decode())
        return known is not None and known.payload == message.payload

    def restored(self, key: bytes, sequence: int, message: Message) -> None:
        """Deliver a retained `message` that retained synchronisation brought to local subscribers
        that lack it. `key`, `sequence`: its origin and number. A subscription that began after it
        was published gets it, too: as the state of its topic, which was not here then."""
        dispatcher = self._node.dispatcher
        if sequence > self.highest.get(key, 0) or not (had := self.sessions(key, sequence)):
            dispatcher.publish(message, None, (), keep=False)
            return
        route = dispatcher.route(message.topic, keep=False)
        few = [delivery for delivery in route.deliveries if delivery.session not in had]
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
