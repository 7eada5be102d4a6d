"""The queue of an older session is added to the newer session of the same client.

Together the two sessions have every message: the older one has those up to the point where the
subscriptions of the newer one begin (see `subscription_start`), the newer one those behind it.
Messages that both had are found by name: those of the newer session are in its broker's log. QoS 2
messages that were sent and not acknowledged are not sent again: the client may have had them (only
gateways send them again). The subscriptions of the newer session hold; all queued messages are
delivered.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import Ranges, intersect, subtract
from mqttree.broker.base.sequence_set import merge as joined
from mqttree.broker.cluster.link.version_vector import Vector
from mqttree.broker.cluster.sessions.evaluated import Evaluated, MergedHistory
from mqttree.broker.cluster.sessions.message_vectors import (
    numbered,
    ranges_of,
    union,
    without,
)
from mqttree.broker.cluster.sessions.session_history import SessionHistory, in_order
from mqttree.broker.cluster.sessions.session_state import (
    IN_FLIGHT,
    WAITING,
    Item,
    SessionState,
    behind_start,
)
from mqttree.broker.core.delivery_queue import Outgoing, Repeat
from mqttree.broker.core.message import Name, size_of
from mqttree.broker.core.route import Delivery
from mqttree.broker.core.session import Session, SharedGroup, SharedOutgoing
from mqttree.broker.leg.session_pair import SESSION
from mqttree.broker.wire.strings import shorten
from mqttree.routing.topic_filter import SHARE_PREFIX, split_shared

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.gap_recovery import GapRecovery
    from mqttree.broker.cluster.delivery.subscription_start import SubscriptionStarts
    from mqttree.broker.cluster.sessions.ports import SessionBroker
    from mqttree.broker.core.start_point import SubscriptionStart


class QueueMerge:
    """Adds queues of older sessions to newer ones."""

    def __init__(
        self,
        node: SessionBroker,
        *,
        gap_recovery: GapRecovery,
        subscription_starts: SubscriptionStarts,
        evaluated: Evaluated,
        history: SessionHistory,
    ) -> None:
        """`node`: this broker; the modules that know what a session was offered: `gap_recovery`,
        `subscription_starts`, `evaluated`, `history`."""
        self._node = node
        self._gap_recovery = gap_recovery
        self._starts = subscription_starts
        self._evaluated = evaluated
        self._history = history

    def absorb(
        self,
        session: Session,
        old: SessionState,
        merged: MergedHistory | None,
        there: Vector | None = None,
        *,
        copy: bool = False,
        adopted: bool = False,
        went_on: bool = False,
    ) -> None:
        """Add the queue of an older session `old` to the newer `session` of the same client.
        `merged`: what the older one has had, by its subscriptions, None: the newer one, a copy of
        it, has had that, too; `there`: what the newer one was offered at another broker, if it has
        just come from there; `copy`: it has come from there, without its queue; `adopted`: the
        older one is the copy that this broker's standby has adopted; `went_on`: its broker was cut
        off."""
        node, history, evaluated = self._node, self._history, self._evaluated
        here = self._evaluated.here()
        # Two brokers have taken one session, and both have its queue. What an origin published that
        # is not known here, as its broker was alone, is older than that.
        twin = old.created == session.created
        groups = adopted or went_on  # have given it more
        waiting, uncertain = _to_be_sent(session, old, twin=twin, groups=groups)
        seen = here if there is None else there
        if session.held:
            seen = evaluated.seen(session)
        history.note(session)
        both = set() if merged is None else self._take_back(session, old, merged, twin=twin)
        kept: deque[Item] = deque()
        for item in reversed(waiting):
            name, topic = item.message.name, item.message.topic
            if name is None:
                had = twin
            elif groups and item.shared is not None:
                had = evaluated.had_as_member(session, item.shared, name, published=adopted)
            elif name in both or evaluated.lacks(session, *name):
                had = False
            else:
                # What comes while it is held is in its queue, and found there twice
                # (`put_in_order`).
                had = (twin and not copy and name[0] not in here) or evaluated.had(
                    session, seen, *name, topic
                )
            if not had:
                kept.appendleft(item)
                if name is not None:
                    evaluated.give(session, *name)
        owed = self._set_back(session, old, seen, None if copy else merged)
        self._find_lacking(session, old, twin=twin, copy=copy)
        evaluated.inherit(session, old)
        if kept and session.recorder is not None:
            for entry in old.entries:
                node.journal.copied(entry)
        self._put(session, kept, twin=twin)
        self._offer_owed(session, owed, here)
        if copy:
            return
        node.counters.merged_uncertain += uncertain
        node.counters.sessions_merged += 1
        node.counters.merged_messages += len(kept)
        if kept:
            client = shorten(session.client_id)
            self._node.log(
                "info", f"client {client}: {len(kept)} messages of its older session are added"
            )

    def _take_back(
        self, session: Session, old: SessionState, merged: MergedHistory, *, twin: bool
    ) -> set[Name]:
        """Take what an older session has had, too, out of the queue of the newer `session`: it has
        been delivered, or is in the older one's queue (`old`). Returns the names. `twin`: what that
        one has sent goes on."""
        flying = set() if twin else {i.message.name for i in old.items if i.place == IN_FLIGHT}
        both: set[Name] = set()
        kept: deque[Outgoing] = deque()
        for waiting in session.queue:
            name, ordinary = waiting.message.name, type(waiting) is Outgoing
            if (
                ordinary
                and name is not None
                and name not in flying
                and merged.had(*name, waiting.message.topic)
            ):
                both.add(name)
                session.queued_bytes -= size_of(waiting.message)
            else:
                kept.append(waiting)
        if both:
            session.queue = kept
            if (recorder := session.recorder) is not None:
                recorder.record_all()
        return both

    def _find_lacking(self, session: Session, old: SessionState, *, twin: bool, copy: bool) -> None:
        """Note which messages that a `session` lacked have come from the queue of an older one
        (`old`). `copy`: it has lacked them since it came from there; what is not there was given
        up, or has to come from its origin, as the copy has not got it either."""
        evaluated = self._evaluated
        if not (before := evaluated.lacking(session)):
            return
        names = (name for item in old.items if (name := item.message.name) is not None)
        lacking = without(before, numbered(names))
        if copy:
            there = ranges_of(old.seen)
            lost = without(lacking, there)
            lacking = without(lacking, without(there, old.lacking), lost)
            self._have_sent(session, lost)
        elif twin and session.subscriptions.keys() == {each[0] for each in old.subscriptions}:
            # It has had what matches these.
            lacking = without(lacking, without(behind_start(old), old.lacking))
        evaluated.lack(session, lacking)

    def give_up_copy(self, session: Session, need: Vector) -> None:
        """Have the origins send what a `session` lacks, and what it needs (`need`) and was not
        evaluated for it: there is no copy that has it."""
        self._have_sent(session, self._evaluated.lacking(session))
        self._evaluated.lack(session, {})
        self.fetch(session, need, {})

    def _have_sent(self, session: Session, lost: dict[bytes, Ranges]) -> None:
        self._evaluated.lose(session, lost)
        for key, ranges in lost.items():
            self._gap_recovery.fetch(session, key, ranges)

    def fetch(self, session: Session, need: Vector, there: Vector) -> None:
        """Give a `session` that has come from another broker what it needs (`need`), and what was
        evaluated neither there (`there`) nor here: from the log, or from its origins."""
        missing = without(ranges_of(need), ranges_of(there), self._evaluated.position(session))
        for key, ranges in missing.items():
            self._gap_recovery.fetch(session, key, ranges)
        if session.held:
            # Some were here, and held back, when the session came.
            self._history.offer(session, self._history.lacked(session))

    def _set_back(
        self, session: Session, old: SessionState, seen: Vector, merged: MergedHistory | None
    ) -> dict[bytes, Ranges]:
        """Have a session get from now on the messages that the older one would have got: those that
        were published after the older one subscribed, at brokers that could not be reached when it
        was encoded. They arrive later, although they are older than the newer subscriptions.
        Returns which these are. `seen`: what was evaluated for the newer one."""
        starts: dict[SubscriptionStart, SubscriptionStart] = {}
        inherited: dict[SubscriptionStart, dict[bytes, Ranges]] = {}
        owed: dict[bytes, Ranges] = {}
        has, mine = ranges_of(old.seen), self._evaluated.elsewhere(session)
        only_old = without(behind_start(old), ranges_of(seen), mine)
        for s in session.subscriptions.values():
            known = s.start
            if known is None or s.filter.startswith(SHARE_PREFIX):
                continue
            if known not in starts:
                tops = dict(known.tops)
                passed = union(self._evaluated.inherited(session, known), only_old)
                # An origin of which it had nothing yet is in `before` alone.
                for key in [key for key in {**old.before, **old.seen} if key in tops]:
                    top, before = tops[key], old.before.get(key)
                    tops[key] = low = min(top, 0 if before is None else before.top)
                    between = subtract(
                        [(low + 1, top)] if low < top else [], joined(known.early.get(key, []))
                    )
                    theirs = has.get(key, [])
                    owed[key] = joined([*owed.get(key, ()), *subtract(between, theirs)])
                    passed[key] = joined([*passed.get(key, ()), *intersect(between, theirs)])
                start = known
                if tops != known.tops:
                    start = self._starts.adopt(tops) or known
                    start.at = known.at
                starts[known] = start
                inherited[start] = passed
            s.start = starts[known]
        self._evaluated.merged(session, merged, inherited)
        if (recorder := session.recorder) is not None:
            recorder.record_starts()
        return owed

    def _group(self, session: Session, topic_filter: str) -> SharedGroup | None:
        """Return the group of a shared subscription that a session has, None: it has none."""
        if topic_filter not in session.subscriptions:
            return None
        name, inner = split_shared(topic_filter)
        return None if name is None else self._node.dispatcher.group(name, inner)

    def _offer_owed(self, session: Session, owed: dict[bytes, Ranges], here: Vector) -> None:
        """Give a session what neither it nor an older one has had (`owed`). The older session's
        broker waited for it in vain, and no local subscriber wanted it."""
        for key, pairs in owed.items():
            if pairs:
                self._gap_recovery.fetch(session, key, pairs)
        has = ranges_of(here)
        owed = {key: intersect(pairs, has.get(key, [])) for key, pairs in owed.items()}
        self._history.offer(session, owed)

    def _put(self, session: Session, items: deque[Item], *, twin: bool) -> None:
        """Put messages into a queue, ahead of those that are there: they are older. But the older
        of two copies of one session (`twin`) may be the one that was offered more: what there is of
        an origin keeps the order of its numbers, and what was sent its packet identifier."""
        node = self._node
        if not items:
            return
        added = []
        sent: list[Outgoing] = []
        known: dict[bytes, bytes | None] = {}
        for item in items:
            topic = item.message.topic
            if topic not in known:
                known[topic] = _identifiers(session, topic.decode())
            if (ids := known[topic]) is None:
                continue
            qos = min(item.qos, node.config.max_qos)
            outgoing = Outgoing(item.message, qos, item.retain, ids)
            if item.shared is not None and (group := self._group(session, item.shared)):
                outgoing = SharedOutgoing(item.message, qos, item.retain, item.ids, group, None)
            if twin and outgoing.qos == 2 and item.place == IN_FLIGHT:
                sent.append(Repeat(outgoing, item.packet_id))
            else:
                added.append(outgoing)
        session.queued_bytes += sum(size_of(outgoing.message) for outgoing in (*added, *sent))
        sent += [
            session.queue.popleft()
            for _ in range(sum(isinstance(outgoing, Repeat) for outgoing in session.queue))
        ]
        waiting = in_order([*added, *session.queue])
        session.queue.clear()
        session.queue.extend([*sent, *waiting])
        if (recorder := session.recorder) is not None:
            recorder.record_all()
        if session.conn is not None:
            session.fill_window()


def _identifiers(session: Session, topic: str) -> bytes | None:
    """Return the encoded identifiers of the subscriptions of a `session` that match a `topic`;
    None: it may not have its messages."""
    if not session.may_receive(topic):
        return None
    wanted = list(session.wanting(topic))
    return Delivery(session, wanted).ids if wanted else b""


def _to_be_sent(
    session: Session, old: SessionState, *, twin: bool, groups: bool
) -> tuple[list[Item], int]:
    """Return the messages of an older session (`old`) that its client may lack, and how many it may
    have, so that they are not sent again. `twin`: it is a copy of `session`; `groups`: which
    has been given messages of groups by itself."""
    waiting: list[Item] = []
    uncertain = 0
    # Another gateway may have had these sent to the foreign broker, which keeps its session, or
    # not: twice is better than never (docs/bridging.md).
    repeats = session.client_id.startswith(SESSION)
    # What a copy of this session has sent its client knows by its packet identifier.
    used = {one.packet_id for one in session.queue if isinstance(one, Repeat)}
    used.update(session.inflight)
    for item in old.items:
        known = twin and (groups or item.shared is None) and item.packet_id not in used
        again = item.place == IN_FLIGHT and (item.qos == 1 or repeats or known)
        if again or (item.place == WAITING and item.qos):
            waiting.append(item)
        else:
            uncertain += item.place == IN_FLIGHT
    return waiting, uncertain
