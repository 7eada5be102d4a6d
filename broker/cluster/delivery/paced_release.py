"""Messages that ordered feeds held back are delivered in steps, as fast as local subscribers keep
up (docs/decisions/0013).

A step is a few ms of work; between two steps, bytes are read and written, and other feeds have
their turn. While a feed holds many messages, the publishers at its origin are held
(docs/decisions/0018). Messages that arrive while there is no room for them are dropped: the origin
is asked for them again when there is room.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from mqttree.broker.base.sequence_set import discard
from mqttree.broker.cluster.delivery.ordered_feed import HeldBatch, HeldMessage
from mqttree.broker.core.client import Client

if TYPE_CHECKING:
    from mqttree.broker.base.timers import Timer
    from mqttree.broker.cluster.delivery.ordered_feed import OrderedFeed
    from mqttree.broker.cluster.delivery.origin_feeds import OriginFeeds
    from mqttree.broker.cluster.delivery.origins import Origins
    from mqttree.broker.cluster.delivery.ports import Above, DeliveringBroker
    from mqttree.broker.cluster.delivery.remote_flow_control import RemoteFlowControl
    from mqttree.broker.cluster.limits import ClusterLimits
    from mqttree.broker.core.session import Session

HOLD_FEEDS_BYTES = 8 * 1024 * 1024
"""bytes of these, of all brokers together; as much as of a link (`hold_link_bytes`)."""

STEP_INTERVAL = 0.001
"""s between two steps."""

SLOW_CHECK_INTERVAL = 0.005
"""s between two looks at sessions that have to catch up first."""

SLOW_WAIT = 0.1
"""s that a step waits for a session whose publishers can be held. Then it goes on: the slow session
has room in its own queue, and must not delay the others."""


class FeedKeeper(Protocol):
    """Finds out what is missing in feeds (`GapRecovery`)."""

    def lose(self, feed: OrderedFeed) -> None:
        """Take the source from a feed: a message of its origin may be missing."""

    def released(self, feed: OrderedFeed, now: float) -> None:
        """Note that local subscribers have had all messages of a feed that may be delivered."""


class PacedRelease:
    """The messages that all feeds of a broker hold back."""

    def __init__(
        self,
        node: DeliveringBroker,
        origins: Origins,
        feeds: OriginFeeds,
        flow_control: RemoteFlowControl,
        keeper: FeedKeeper,
        above: Above,
    ) -> None:
        """`node`: this broker; `origins`: which numbers sessions have had at other brokers;
        `feeds`: those of all origins; `flow_control`: holds publishers at origins; `keeper`: finds
        out what is missing; `above`: the floors above delivery."""
        self._node = node
        self._counters = node.counters
        self._dispatcher = node.dispatcher
        self._limits = node.limits
        self._highest = origins.highest
        self._flow_control = flow_control
        self._feeds = feeds
        self._keeper = keeper
        self._above = above
        # Feeds with messages that may be delivered.
        self._turns: deque[OrderedFeed] = deque()
        self._timer: Timer | None = None
        self.held_bytes = 0
        """Bytes that all feeds hold back."""

    # ---------------------------------------------------------------- messages that arrive

    def hold(self, feed: OrderedFeed, held: HeldBatch) -> None:
        """Hold back messages that have just arrived. While there are many, the publishers at their
        origin are held as well."""
        if self.held_bytes + held.size > self._limits.held_feeds_bytes and feed.waiting:
            self._refuse(feed, held)
            return
        self.put_by(feed, held)
        if feed.held_count >= self._limits.hold_feed or self.held_bytes >= HOLD_FEEDS_BYTES:
            for topic in set(held.entry.topics()):
                self._flow_control.note_for(feed, feed.key, topic)
        if held.sequence <= feed.settled:
            self._resume(feed)

    def put_by(self, feed: OrderedFeed, held: HeldBatch | HeldMessage) -> None:
        """Put messages into the queue of a feed."""
        feed.put_by(held)
        self.held_bytes += held.size

    def _refuse(self, feed: OrderedFeed, held: HeldBatch) -> None:
        """Drop messages for which there is no room: their origin is asked for them again."""
        self._counters.ordered_feed_full += held.entry.count
        origin = feed.broker_id.hex()
        text = (
            f"{self.held_bytes >> 20} MiB of messages wait for missing ones before them; "
            "further messages are dropped and asked for again later"
        )
        self._node.log_limit.line(
            "warning", "too many messages are held", origin, f"broker {origin}: {text}"
        )
        feed.refuse(held.sequence, held.last)
        if feed.fed:
            self._keeper.lose(feed)

    def drop(self, feed: OrderedFeed) -> None:
        """Drop the held messages of a feed: its origin is forgotten."""
        self.held_bytes -= feed.held_bytes
        feed.drop_held()
        self._flow_control.released(feed)

    # ---------------------------------------------------------------- messages that are delivered

    def _resume(self, feed: OrderedFeed) -> None:
        """Deliver the messages of a feed that may be delivered, in turn with all other feeds."""
        if feed not in self._turns:
            self._turns.append(feed)
        if self._timer is None:
            self._timer = self._node.timers.schedule(self._node.now + STEP_INTERVAL, self._turn)

    def begin(self, feed: OrderedFeed, now: float) -> None:
        """Deliver the messages of a feed that may be delivered: a step at once, the rest in turn
        with all other feeds."""
        if feed in self._turns:
            return
        self._step(feed, now)
        if feed.next_held() is not None:
            self._resume(feed)
        else:
            self._keeper.released(feed, now)

    def _turn(self, now: float) -> None:
        self._timer = None
        self._node.now = now
        worked = False
        for _ in range(len(self._turns)):
            feed = self._turns.popleft()
            worked = self._step(feed, now)
            if feed.next_held() is not None:
                self._turns.append(feed)
            else:
                self._keeper.released(feed, now)
            if worked:
                break
        if self._turns and self._timer is None:
            self._timer = self._node.timers.schedule(
                now + (STEP_INTERVAL if worked else SLOW_CHECK_INTERVAL), self._turn
            )

    def _step(self, feed: OrderedFeed, now: float) -> bool:
        """Deliver some messages of a feed. Returns False if a subscriber has to catch up first."""
        node = self._node
        if self._feeds.follows(feed):
            return False
        node.journal.origin_seen(feed.key)
        left = step = self._limits.release_step
        ready: set[bytes] = set()
        while left > 0 and (held := feed.next_held()) is not None:
            topic = held.message.topic
            if topic not in ready:
                if self._behind(feed, topic, now):
                    break
                ready.add(topic)
            self.held_bytes -= held.size
            feed.pop_held()
            before = self._counters.delivered
            self._deliver(feed, held, now)
            left -= max(1, self._counters.delivered - before)
        if feed.held_count < node.limits.hold_feed // 2 and (
            not feed.waiting or self.held_bytes < HOLD_FEEDS_BYTES // 2
        ):
            self._flow_control.released(feed)
        if left < step:
            feed.slow_since = 0.0
        return left < step

    def _deliver(self, feed: OrderedFeed, held: HeldMessage, now: float) -> None:
        # No connection waits: publishers at the origin are held, by name (`_behind`).
        sequence, message, choice = held.sequence, held.message, held.choice
        if sequence > feed.done:
            feed.advance(sequence, sequence)
        elif not held.late or not discard(feed.outstanding, sequence, sequence):
            return
        if message.expired(now):
            return
        if sequence <= self._highest.get(feed.key, 0):
            self._above.evaluated.deliver(feed.key, sequence, message, choice, None)
        elif choice is not None:
            self._above.sharing.received(message, choice, None, ordinary=True)
        else:
            self._dispatcher.publish(message, None, ())

    # ---------------------------------------------------------------- subscribers

    def _behind(self, feed: OrderedFeed, topic: bytes, now: float) -> bool:
        """Whether a subscriber to a topic has to catch up first. The publishers at the origin are
        held for these subscribers."""
        limits, dispatcher = self._limits, self._dispatcher
        if self._node.journal.pending > limits.journal_backlog_bytes // 2:
            return True
        if dispatcher.waiting >= limits.hold_queued:
            return True
        route = dispatcher.route(topic)
        found = [
            delivery.session
            for delivery in route.deliveries
            if delivery.qos and crowded(delivery.session, limits)
        ]
        for group in route.shared:
            members = [member.session for member in group.members.values() if member.qos]
            if members and all(
                crowded(session, limits) or session.conn is None for session in members
            ):
                found += [session for session in members if crowded(session, limits)]
        waits = False
        for session in found:
            conn = session.conn
            if conn is not None:
                self._flow_control.hold_origin(conn, feed.key, topic)
                waits |= not self._flow_control.spacious(session)
        if not found or waits:
            return waits
        if not feed.slow_since:
            feed.slow_since = now
        return now < feed.slow_since + SLOW_WAIT


def crowded(session: Session, limits: ClusterLimits) -> bool:
    """Whether the queue of a connected client that still reads is so long (`limits`) that nothing
    should be added for now."""
    conn = session.conn
    if conn is None or conn.stalled or not isinstance(conn.owner, Client):
        return False
    return (
        len(session.queue) >= limits.hold_queued or session.queued_bytes >= limits.hold_queued_bytes
    )
