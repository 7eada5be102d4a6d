"""A session that comes from another broker, its holder, is made here: what `session_history` has
read off it there, the older session that is here, and the messages of both logs are put together.

The session is offered each message once. What it was offered at its holder is in its queue, or was
delivered; what was here and not there comes from the log of this broker, and what came there
meanwhile from the holder's (the rest). `takeover` says when each of these is done.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from mqttree.broker.cluster.delivery.subscription_start import starts_of
from mqttree.broker.cluster.link.message_batch import read_messages
from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.cluster.link.version_vector import Vector
from mqttree.broker.cluster.sessions.evaluated import MergedHistory
from mqttree.broker.cluster.sessions.message_vectors import ranges_of, whole, without
from mqttree.broker.cluster.sessions.pending_takeover import Input, PendingTakeover
from mqttree.broker.cluster.sessions.session_head import decoding
from mqttree.broker.cluster.sessions.session_history import SessionHistory
from mqttree.broker.cluster.sessions.session_state import SessionState, restoring, subscriptions_of
from mqttree.broker.cluster.sessions.takeover_messages import decode_rest
from mqttree.broker.cluster.sessions.tombstones import Tombstones, end_quietly
from mqttree.broker.core.message import size_of
from mqttree.broker.core.session import Session, SharedOutgoing
from mqttree.broker.wire.steps import finish
from mqttree.routing.topic_filter import split_shared

if TYPE_CHECKING:
    from mqttree.broker.auth.authorization import Permissions
    from mqttree.broker.cluster.delivery.gap_recovery import GapRecovery
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
        gap_recovery: GapRecovery,
        subscription_starts: SubscriptionStarts,
        evaluated: Evaluated,
        history: SessionHistory,
        queues: QueueMerge,
        tombstones: Tombstones,
        posted: PostedSessions,
    ) -> None:
        """`node`: this broker; `queues`: adds the queue of an older session; `tombstones`:
        ends one; `posted`: posts one that is put back; the modules that know what a session was
        offered: `gap_recovery`, `subscription_starts`, `evaluated`,
        `history`."""
        self._node = node
        self._dispatcher = node.dispatcher
        self._limits = node.limits
        self._gap_recovery = gap_recovery
        self._starts = subscription_starts
        self._evaluated = evaluated
        self._history = history
        self._queues = queues
        self._tombstones = tombstones
        self._posted = posted

    def reading(self, pending: PendingTakeover, data: bytes) -> Generator[int, None, Input]:
        """Make the session that is taken (`pending`) as its holder described it (`data`), in steps.
        Returns what the takeover has to wait for, if anything.

        Raises:
            WireError: it cannot be read.
        """
        state = yield from decoding(data, self._node.now, self._limits)
        state.began = self._starts.by_our_clock(state.began, pending.holder)
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
                if not (state.subscriptions or state.items or state.incoming):
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
            self._dispatcher.forget_routes()  # routes that were made meanwhile lack this session
        self._evaluated.inherit(session, state)
        if left is not None and merged is not None:
            self._queues.absorb(session, left, merged, state.seen)
        pending.waiting = len(session.queue)
        note_passed(session, self._evaluated.here())
        ordinary = any(split_shared(s[0])[0] is None for s in state.subscriptions)
        if ordinary:
            # Some messages go to the holder only, until all brokers know of its filters here.
            return Input.UNTOLD
        self._history.offer(session, self._history.lacked(session))
        return Input.COMPLETE

    def begin(self, pending: PendingTakeover) -> None:
        """Note that messages come here from now on that the session wants, as all brokers know its
        filters."""
        pending.start = self._starts.begin()

    def read_rest(self, pending: PendingTakeover, data: bytes, now: float) -> None:
        """Read the messages (`data`) that came to the holder of the session that is taken
        (`pending`) since it was encoded, and ask the origins for what it lacked, ahead of newer
        messages. `now`: s.

        Raises:
            WireError: they cannot be read.
        """
        seen, batches = decode_rest(data, now)
        found = {
            (batch.key, n): message
            for batch, n, message in read_messages(batches, now)
            if not batch.passed
        }
        for key in {key for key, _ in found}:
            split_key(key)
        pending.rest = seen, found
        if (session := pending.session) is not None:
            need = ranges_of({key: pending.need[key] for key in pending.need if key in seen})
            lacks = without(need, ranges_of(seen), self._evaluated.position(session))
            for key, ranges in lacks.items():
                self._gap_recovery.fetch(session, key, ranges)

    def fetching(self, pending: PendingTakeover) -> tuple[bool, bool]:
        """Return whether origins have not sent yet what they were asked for, and whether any of
        these can be reached."""
        session = pending.session
        owed = self._evaluated.owed(session) if session is not None else {}
        return bool(owed), any(map(self._gap_recovery.can_ask, owed))

    def offer_rest(self, pending: PendingTakeover) -> None:
        """Offer the session that is taken (`pending`) the messages that came to its holder, and not
        here, since it was encoded."""
        rest, pending.rest, session = pending.rest, None, pending.session
        if session is None or rest is None:
            return
        # Messages behind it are held back here, and will be delivered.
        all_up_to = whole(self._evaluated.position(session), ranges_of(rest[0]))
        holds = self._gap_recovery.holds
        found = {
            (key, n): message
            for (key, n), message in rest[1].items()
            if n <= all_up_to.get(key, 0) or not holds(key, n)
        }
        found.update(self._history.lacked(session))
        # Messages that have arrived here have to be sorted with older ones.
        late = [session.queue.pop() for _ in range(len(session.queue) - pending.waiting)]
        late.reverse()
        session.queued_bytes -= sum(size_of(outgoing.message) for outgoing in late)
        last = []
        for outgoing in late:
            name = outgoing.message.name
            if name is None or isinstance(outgoing, SharedOutgoing):
                last.append(outgoing)
            else:
                found[name] = outgoing.message
        self._history.offer(session, sorted(found.items(), key=lambda item: item[0]))
        for outgoing in last:
            session.queue_offline(outgoing, None, tell=False)

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
