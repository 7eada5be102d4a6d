"""A session that comes from another broker, its holder, is made here: what `session_history` has
read off it there, the older session that is here, and the log are put together.

The session is offered each message once. What it was offered at its holder was delivered, or is in
its queue there, which follows (`merge`); what was here and not there comes from the log.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from mqttree.broker.cluster.delivery.subscription_start import starts_of
from mqttree.broker.cluster.link.version_vector import Vector
from mqttree.broker.cluster.sessions.evaluated import MergedHistory
from mqttree.broker.cluster.sessions.message_vectors import ranges_of
from mqttree.broker.cluster.sessions.pending_takeover import Input, PendingTakeover
from mqttree.broker.cluster.sessions.session_head import decoding
from mqttree.broker.cluster.sessions.session_history import SessionHistory
from mqttree.broker.cluster.sessions.session_state import SessionState, restoring, subscriptions_of
from mqttree.broker.cluster.sessions.tombstones import Tombstones, end_quietly
from mqttree.broker.core.session import Session
from mqttree.broker.wire.steps import finish

if TYPE_CHECKING:
    from mqttree.broker.auth.authorization import Permissions
    from mqttree.broker.cluster.delivery.subscription_start import SubscriptionStarts
    from mqttree.broker.cluster.sessions.evaluated import Evaluated
    from mqttree.broker.cluster.sessions.ports import SessionBroker
    from mqttree.broker.cluster.sessions.posted_sessions import PostedSessions
    from mqttree.broker.cluster.sessions.queue_merge import QueueMerge


class SessionRestoration:
    """Makes sessions here that come from other brokers."""

    def __init__(
        self,
        node: SessionBroker,
        *,
        subscription_starts: SubscriptionStarts,
        evaluated: Evaluated,
        history: SessionHistory,
        queues: QueueMerge,
        tombstones: Tombstones,
        posted: PostedSessions,
    ) -> None:
        """`node`: this broker; `queues`: adds the queue of an older session; `tombstones`:
        ends one; `posted`: posts one that is put back; the modules that know what a session was
        offered: `subscription_starts`, `evaluated`, `history`."""
        self._node = node
        self._limits = node.limits
        self._starts = subscription_starts
        self._evaluated = evaluated
        self._history = history
        self._queues = queues
        self._tombstones = tombstones
        self._posted = posted

    def reading(self, pending: PendingTakeover, data: bytes) -> Generator[int, None, Input]:
        """Make the session that is taken (`pending`) as its holder described it (`data`), in steps.
        Returns what has become of it: COMPLETE or FOREIGN.

        Raises:
            WireError: it cannot be read.
        """
        state = yield from decoding(data, self._node.now, self._limits)
        state.began = self._starts.by_our_clock(state.began, pending.holder)
        pending.copy = state.stamp
        if state.owner != pending.handshake.owner:
            return Input.FOREIGN
        return (yield from self._restoring(pending, state))

    def _restoring(
        self, pending: PendingTakeover, state: SessionState
    ) -> Generator[int, None, Input]:
        """Make the session, and in the turn in which it is complete offer it the messages that were
        here and not at its holder."""
        node = self._node
        client_id, connect = pending.client_id, pending.handshake.connect
        assert connect is not None
        old = node.sessions.get(client_id)
        left = None
        if old is not None:
            # An older one, which no broker has taken.
            if old.stamp and old.expiry and old.stamp >= state.floor:
                if not (state.subscriptions or state.items or state.incoming or state.lacking):
                    # There is nothing in the newer one: go on with this.
                    return Input.COMPLETE
                old.unpack()
                left = self._history.state(old, merged=True)
                left.subscriptions += subscriptions_of(old)
                pending.left = (old.stamp, old.permissions, left)
                node.journal.keep_until_continued(old)
            self._tombstones.discard(old)
        if len(node.sessions) >= node.limits.max_sessions:
            return Input.COMPLETE
        session = pending.session = node.sessions[client_id] = node.session_registry.new(client_id)
        session.version = connect.version  # ahead of routes that have it
        session.permissions = node.access_control.permissions(
            connect.username, client_id, pending.conn.listener
        )
        stepped = False
        at_once, merged = self._limits.session_read, None
        work: Iterator[int] = restoring(state, session, node.dispatcher, self._starts, at_once)
        if left is not None:
            merged = MergedHistory(left)
            work = chain(merged.adding(left.subscriptions, self._limits.session_written), work)
        for steps in work:
            yield steps
            stepped = True
        if stepped:
            # Routes that were made meanwhile lack this session.
            self._node.dispatcher.forget_routes()
        self._evaluated.inherit(session, state)
        if left is not None and merged is not None:
            self._queues.absorb(session, left, merged, state.seen)
        for item in state.items:
            if (name := item.message.name) is not None:
                self._evaluated.give(session, *name)
        note_passed(session, self._evaluated.here())
        self._history.offer(session, self._history.lacked(session))
        return Input.COMPLETE

    def undo(self, pending: PendingTakeover) -> None:
        """End the session that was made here; an older one that was added to it is put back."""
        session, pending.session = pending.session, None
        if session is not None and self._node.sessions.get(session.client_id) is session:
            session.stamp = 0  # it never belonged to this broker
            end_quietly(self._node, session, len(session.queue))
            if pending.left is not None:
                self._posted.post(self._put_back(pending.client_id, *pending.left), True)
                pending.left = None

    def _put_back(
        self, client_id: str, stamp: int, permissions: Permissions | None, old: SessionState
    ) -> Session:
        """Restore an older session that was added to a newer one, as the takeover of the newer one
        has failed. It gets the messages that have arrived for it since, which no other session of
        the client has. `client_id`, `stamp`, `permissions`: of the session; `old`: what it was."""
        node = self._node
        session = node.sessions[client_id] = node.session_registry.new(client_id)
        session.permissions = permissions
        finish(restoring(old, session, node.dispatcher, self._starts))
        session.stamp = stamp
        self._evaluated.inherit(session, old)
        self._history.offer(session, self._history.lacked(session))
        node.session_registry.expire_later(session)
        return session


def note_passed(session: Session, here: Vector) -> None:
    """Note which messages had been here when a `session` came from another broker: they were not
    delivered to it, whatever is learnt later about the start of its subscriptions. `here`: what was
    offered to the sessions of this broker."""
    for start in starts_of(session):
        if start is not None and start.was_open:
            start.passed = ranges_of({key: here[key] for key in here if key in start.was_open})
