"""Retained messages for new subscriptions (MQTT-3.3.1-9), a little in each turn: a filter may
match, or look through, a million.

What is found in the first steps goes out with the SUBACK. The rest follows no faster than the
client takes it, so that it does not fill its queue; a message that is written meanwhile comes as it
is then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from mqttree.broker.core.message import Message
from mqttree.broker.core.serving_broker import ServingBroker
from mqttree.broker.core.session import Session, Subscription
from mqttree.routing.topic_filter import split_shared

if TYPE_CHECKING:
    pass

SEARCH_STEPS_PER_TURN = 1000
"""steps of the search for retained messages that new subscriptions get, in one turn: a filter
may look through a million."""

BUSY = 0.02
"""s until a client that is behind is looked at again."""


class _Feed:
    __slots__ = ("found", "subscription", "waiting")

    def __init__(self) -> None:
        # By filter, one after the other.
        self.waiting: OrderedDict[str, Subscription] = OrderedDict()
        self.subscription: Subscription | None = None  # whose messages come now
        self.found: Iterator[Message | None] = iter(())


class RetainedFeeds:
    """The retained messages that are still to be sent to the sessions of a node."""

    def __init__(self, node: ServingBroker) -> None:
        self._node = node
        self._feeds: dict[Session, _Feed] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    def begin(self, session: Session, subscriptions: Iterable[Subscription]) -> None:
        """Send what is retained for new subscriptions of a session, behind what it is still to
        get."""
        new = {subscription.filter: subscription for subscription in subscriptions}
        if not new:
            return
        feed = self._feeds.get(session)
        if feed is not None:
            feed.waiting.update(new)
            return
        feed = self._feeds[session] = _Feed()
        feed.waiting.update(new)
        self._resume(session, self._node.now)

    def _resume(self, session: Session, now: float) -> None:
        node, feed = self._node, self._feeds[session]
        if session.ended:
            del self._feeds[session]
            return
        steps, room = SEARCH_STEPS_PER_TURN, node.limits.hold_queued // 2
        while steps > 0 and (feed.subscription is not None or feed.waiting):
            if not _has_room(session, room):
                node.timers.schedule(now + BUSY, lambda at: self._resume(session, at))
                return
            steps -= self._step(session, feed, now)
        node.turns.work += SEARCH_STEPS_PER_TURN - steps
        if feed.subscription is None and not feed.waiting:
            del self._feeds[session]
        else:
            node.turns.later(lambda at: self._resume(session, at))

    def _step(self, session: Session, feed: _Feed, now: float) -> int:
        """Send a message, or look for one; returns how much that was."""
        subscription = feed.subscription
        if subscription is None:
            filter_, feed.subscription = feed.waiting.popitem(last=False)
            feed.found = self._node.retained.search(split_shared(filter_)[1], now)
            return 1
        # It is another one by now, or gone.
        if session.subscriptions.get(subscription.filter) is not subscription:
            feed.subscription = None
            return 1
        try:
            message = next(feed.found)
        except StopIteration:
            feed.subscription = None
            return 1
        if message is None:
            return 1
        permissions = session.permissions
        if permissions is None or permissions.may_receive(message.topic.decode()):
            qos = min(message.qos, subscription.qos)
            session.deliver(message, qos, True, subscription.ids, None)
        return 5


def _has_room(session: Session, room: int) -> bool:
    """Whether a client takes what comes, as less than `room` messages wait for it; for one that is
    away what fits is kept."""
    conn = session.conn
    return conn is None or not (conn.paused or conn.backlog or len(session.queue) >= room)
