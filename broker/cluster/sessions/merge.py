"""Older sessions of a client at other brokers are merged into its newest one
(docs/decisions/0016).

A client whose broker is silent begins a new session at another broker. When the old broker is back,
two brokers have a session of this client. The broker with the newest connection asks the other one
for its session, adds the messages in its queue, except those that it has delivered itself, and has
the old session ended:

    newest broker                                  old broker
    WANTED   the entry is posted, a path exists, no newer
             one of its old sessions is to come
    ASKING   MERGE, need ->                        closes its connection (0x8E); waits until all
                                                   messages that were published before the newer
                                                   session subscribed (`need`) have come to the old
                                                   one; encodes it
                    <- parts
    READING  decodes it, in steps
             adds its queue, in one step
    CLOSING  DONE ->                               forgets the session
                    <- ENDED

A session that has come from another broker (`takeover`) has come without its queue: the copy there
is older, and merged into the one here, once all brokers know the subscriptions here. Until then the
session is *held*: its client gets no messages at QoS 1 and 2, as older ones come. If the holder is
dead, the client is let in ahead of that, else when its queue is there.

A broker that cannot be reached is answered for by its standby.

Which messages of the old session's queue the newer one gets, `queue_merge` decides.

The floor in a directory entry says since when nothing older is part of a session (a Clean Start):
an older session below it ends, and is not merged. A session that ends while others have older ones
leaves its entry, GONE, so that these do not come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import TYPE_CHECKING

from mqttree.broker.cluster.delivery.subscription_start import starts_of
from mqttree.broker.cluster.link.version_vector import encode_vector
from mqttree.broker.cluster.sessions.evaluated import MergedHistory
from mqttree.broker.cluster.sessions.handover import TAKEOVER_MAX_S
from mqttree.broker.cluster.sessions.message_vectors import need_of
from mqttree.broker.cluster.sessions.pending_merge import (
    MAX_RETRY_S,
    RETRY,
    Action,
    Input,
    Merge,
    State,
)
from mqttree.broker.cluster.sessions.session_entries import entries_of, key_of
from mqttree.broker.cluster.sessions.session_head import decoding
from mqttree.broker.cluster.sessions.session_history import put_in_order
from mqttree.broker.cluster.sessions.session_parts import Added
from mqttree.broker.cluster.sessions.takeover_messages import (
    DONE,
    ENDED,
    MERGE,
    MOVED,
    NEWER,
    NOTHING,
    SESSION_REQUEST,
    encode_takeover,
)
from mqttree.broker.core.session import Absorbed, Session
from mqttree.broker.core.session_owner import GONE, KEPT, Entry, digest
from mqttree.broker.wire.errors import WireError
from mqttree.broker.wire.strings import shorten
from mqttree.routing.topic_filter import split_shared

if TYPE_CHECKING:
    from mqttree.broker.base.timers import Timer
    from mqttree.broker.cluster.delivery.gap_recovery import GapRecovery
    from mqttree.broker.cluster.delivery.subscription_start import SubscriptionStarts
    from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
    from mqttree.broker.cluster.link.version_vector import Vector
    from mqttree.broker.cluster.sessions.evaluated import Evaluated
    from mqttree.broker.cluster.sessions.handover import Handover
    from mqttree.broker.cluster.sessions.ports import SessionBroker
    from mqttree.broker.cluster.sessions.posted_sessions import PostedSessions
    from mqttree.broker.cluster.sessions.queue_merge import QueueMerge
    from mqttree.broker.cluster.sessions.tombstones import Tombstones
    from mqttree.broker.cluster.strategy.subscription_barrier import SubscriptionBarrier
    from mqttree.routing.link_state import LinkStateDatabase

ACTIVE = 32
"""merges that ask their holders at a time; the others wait."""

CHECK_INTERVAL, IDLE_INTERVAL, TURN_S = 0.05, 1.0, 0.005
"""s between two checks which holders are to be asked; while no holder can be reached; and when a
merge has gone on."""

SUBSCRIBING_S = 0.25
"""s since a client's last SUBSCRIBE in which another one may follow."""

UNSUBSCRIBED_S = 2.0
"""s for which a merge waits at most until the newer session's client subscribes."""
UNSETTLED_S = 10.0
"""s for which a merge waits at most until it is known where that session's subscriptions begin."""
SETTLE_S = 0.1
"""s for messages to reach the holder of an older copy that were sent there before the publishers'
brokers knew the session's subscriptions here."""
FETCH_S, AWAY_S = 3.0, 0.3
"""s for which a session is held at most for messages that its origins have yet to send, or for an
older session at a broker that was cut off, as one that hangs is noticed in less; and while none of
these can be reached. What comes later is out of order, or twice."""
ANSWERS = {
    NOTHING: Input.NOTHING,
    MOVED: Input.NOTHING,
    ENDED: Input.ENDED,
    NEWER: Input.NEWER,
}
"""The input that a holder's answer is for its merge. Other answers change nothing: the holder is
asked again."""


class Lost:
    """A broker that cannot be reached, or could not be until a moment ago."""

    __slots__ = ("back", "boot", "clients")

    def __init__(self, boot: int) -> None:
        """`boot`: its boot number."""
        self.boot = boot
        self.back = inf
        """When it was reached again (s)."""
        self.clients: set[str] = set()
        """Of which it has older sessions than there are here."""


class SessionMerge:
    """Merges of older sessions at other brokers into local ones."""

    def __init__(
        self,
        node: SessionBroker,
        database: LinkStateDatabase,
        bus: UnicastBus,
        gap_recovery: GapRecovery,
        queues: QueueMerge,
        handover: Handover,
        tombstones: Tombstones,
        *,
        posted: PostedSessions,
        evaluated: Evaluated,
        barrier: SubscriptionBarrier,
        starts: SubscriptionStarts,
    ) -> None:
        """`node`: this broker; `database`: what brokers post; `bus`: carries
        messages to them; `gap_recovery`: knows since when subscriptions get messages; `queues`:
        adds what was queued; `handover`: knows which sessions leave; `tombstones`: of sessions that
        have ended; `posted`: which brokers can be reached, and who answers for others; `evaluated`:
        what sessions lack; `barrier`: tells when all brokers know of subscriptions; `starts`: where
        these begin."""
        self._node = node
        self._limits = node.limits
        self._own = node.config.id
        self._database = database
        self._bus = bus
        self._gap_recovery = gap_recovery
        self._queues = queues
        self._handover = handover
        self._tombstones = tombstones
        self._posted = posted
        self._evaluated = evaluated
        self._barrier = barrier
        self._starts = starts
        # Sessions that are held, and until when (s).
        self._held: dict[Session, float] = {}
        # Of these, those whose clients wait for CONNACK, and what lets them in.
        self._waiting: dict[Session, Callable[[float], None]] = {}
        self._lost: dict[bytes, Lost] = {}
        self._merges: dict[tuple[str, bytes], Merge] = {}
        # By client, those of copies whose queues follow.
        self._rests: dict[str, Merge] = {}
        self._apart_until = 0.0  # s
        self._timer: Timer | None = None
        self._turn_at = 0.0  # s, when it fires
        self._actions: dict[Action, Callable[[Merge, float], None]] = {
            Action.ASK: self._ask,
            Action.ASK_AGAIN: self._ask_again,
            Action.READ: self._read,
            Action.ASK_LATER: self._ask_later,
            Action.TELL_DONE: self._tell_done,
            Action.DROP: self._drop,
            Action.DROP_GARBAGE: self._drop_garbage,
        }

    def __len__(self) -> int:
        return len(self._merges)

    @property
    def arriving(self) -> int:
        """Bytes of old sessions that have arrived."""
        return sum(merge.parts.position for merge in self._merges.values())

    # ---------------------------------------------------------------- which sessions

    def found(self, session: Session, broker_id: bytes, entry: Entry) -> None:
        """Begin to merge the older session that the broker `broker_id` has posted (`entry`) into
        `session`, of the same client."""
        mine = (
            entry.flags & KEPT and not entry.flags & GONE and entry.owner == digest(session.owner)
        )
        older = session.floor <= entry.stamp and (entry.stamp, broker_id) < (
            session.stamp,
            self._own,
        )
        if not (mine and older):
            return
        merge = self._merges.get((session.client_id, broker_id))
        # Merged already, before its broker, or this one, was killed.
        merged = (a.by for a in session.absorbed if a[:2] == (broker_id, entry.stamp))
        by, now = next(merged, None), self._node.now
        if (lost := self._lost.get(broker_id)) is not None:
            lost.clients.add(session.client_id)
            if by is not None and not self._posted.lives(broker_id):
                return
        if self._went_on(broker_id):
            if entry.created == session.created:
                by = None
            ended = merge is not None and merge.state is State.CLOSING and merge.asked == broker_id
            if by is None and not ended:  # what has been merged is its standby's copy, if any
                self._pause(session, now + FETCH_S)
        if merge is None:
            state, stamp = (State.WANTED, session.stamp) if by is None else (State.CLOSING, by)
            self._add(Merge(session.client_id, broker_id, entry.stamp, stamp, state, now))

    def _went_on(self, broker_id: bytes) -> bool:
        """Whether a broker that has just been reached again has served its sessions meanwhile: what
        its standby had of them is not all."""
        lost = self._lost.get(broker_id)
        return (
            lost is not None
            and self._node.now < lost.back + FETCH_S
            and lost.boot == self._database.boot(broker_id)
            and self._database.reaches(broker_id)
        )

    def _pause(self, session: Session, until: float) -> None:
        """Have a `session` wait until an older one has come, until (s) at most."""
        self._held[session] = max(self._held.get(session, 0.0), until)
        self._evaluated.pause(session)

    def look(self, session: Session) -> None:
        """Begin to merge the older sessions of a client, also those at brokers that are away or
        were silent."""
        for broker_id, entry in list(entries_of(self._database, session.client_id)):
            self.found(session, broker_id, entry)

    def follow(
        self, session: Session, holder: bytes, copy: int, now: float, then: Callable[[float], None]
    ) -> bool:
        """Have the queue of a `session` follow that has come from the broker `holder`. `copy`:
        stamp of the copy there; `now`: s. Returns whether that broker lives: then the client waits
        for its queue, and `then` is called. One that moved on before its queue was there would
        never get it."""
        client_id, asked = session.client_id, holder
        for broker_id, entry in entries_of(self._database, client_id):
            if entry.stamp == copy:
                holder = broker_id  # its standby has answered for it
        if (old := self._merges.get((client_id, holder))) is not None:
            self._step(old, Input.WITHDRAWN, now)
        merge = Merge(client_id, holder, copy, session.stamp, State.WANTED, now, rest=asked)
        self._rests[client_id] = merge
        self._hold(session, now)
        if waits := self._comes(merge):
            self._waiting[session] = then
        self._add(merge)
        ordinary = any(split_shared(each)[0] is None for each in session.subscriptions)
        if not (ordinary and self._barrier.expect((), lambda at: self._known(merge, at))):
            self._known(merge, now)
        return waits

    def _comes(self, merge: Merge) -> bool:
        """Whether the holder of a copy lives, so that messages may be under way to it."""
        holder = merge.holder
        return self._posted.lives(holder) and self._posted.has(holder, merge.client_id)

    def _known(self, merge: Merge, now: float) -> None:
        """Note that all brokers know the filters of a session here: messages that are published
        from now on come here."""
        merge.need = self._published()
        merge.ask_at = now + (SETTLE_S if self._comes(merge) else 0.0)
        self._go_on(merge.ask_at)

    def _published(self) -> Vector:
        """Return what has been published before a subscription that begins now."""
        start = self._starts.begin()
        return need_of(() if start is None else (start.tops,))

    def _hold(self, session: Session, now: float) -> None:
        if session not in self._held:
            self._held[session] = now + TAKEOVER_MAX_S
            self._evaluated.hold(session)

    def _release(self, coming: set[str], now: float) -> None:
        """Send what was held of sessions of which no older messages are to come; `coming`: clients
        of which some are. `now`: s."""
        for session, until in list(self._held.items()):
            if self._node.sessions.get(session.client_id) is not session:
                self._end_hold(session, now)
                continue
            if now < until:
                if session.client_id in coming:
                    continue
                if self._evaluated.lacking(session) and not self._of(session):
                    self._queues.give_up_copy(session, {})
                if owed := self._evaluated.owed(session):
                    comes = any(map(self._gap_recovery.can_ask, owed))
                    until = min(until, now + (FETCH_S if comes else AWAY_S))
                    self._held[session] = until
                    continue
            else:
                for merge in self._of(session):
                    if merge.rest:
                        self._step(merge, Input.WITHDRAWN, now)
            put_in_order(session)
            self._evaluated.release(session)
            self._end_hold(session, now)

    def _of(self, session: Session) -> list[Merge]:
        """Return the merges of older copies of a session that may still come."""
        return [
            merge
            for merge in self._merges.values()
            if merge.client_id == session.client_id and merge.state is not State.CLOSING
        ]

    def _end_hold(self, session: Session, now: float) -> None:
        del self._held[session]
        if (then := self._waiting.pop(session, None)) is not None:
            then(now)

    def withdrawn(self, client_id: str, broker_id: bytes) -> None:
        """Drop the merge with a broker that no longer has a session of a client."""
        merge = self._merges.get((client_id, broker_id))
        # A copy of a broker that has started again without it is still at its standby.
        if merge is not None and not merge.rest:
            self._step(merge, Input.WITHDRAWN, self._node.now)

    def _add(self, merge: Merge) -> None:
        self._merges[merge.client_id, merge.holder] = merge
        self._go_on(self._node.now)

    def _step(self, merge: Merge, given: Input, now: float) -> None:
        """Do what the table says for an input."""
        action = merge.step(given)
        if action is None:
            self._node.counters.session_takeovers_unexpected += 1
        else:
            self._actions[action](merge, now)

    def _drop(self, merge: Merge, now: float) -> None:
        self._merges.pop((merge.client_id, merge.holder), None)
        if self._rests.get(merge.client_id) is merge:
            del self._rests[merge.client_id]
        session = self._node.sessions.get(merge.client_id)
        if session is not None and session.stamp:
            if merge.rest and session.stamp == merge.stamp:
                need = self._published() if merge.need is None else merge.need
                self._queues.give_up_copy(session, need)
            for broker_id, entry in entries_of(self._database, merge.client_id):
                # The client has been there since, and has another session there now.
                if broker_id == merge.holder and (
                    entry.stamp != merge.copy
                    or (merge.asked != broker_id and self._went_on(broker_id))
                ):
                    self.found(session, broker_id, entry)
        self._go_on(now)

    def _go_on(self, at: float) -> None:
        """Have the next turn at `at` (s), and not for each of many merges."""
        if self._timer is not None:
            if self._turn_at <= at + TURN_S:
                return
            self._node.timers.cancel(self._timer)
            at += TURN_S
        self._turn_at = at
        self._timer = self._node.timers.schedule(at, self._turn)

    def _drop_garbage(self, merge: Merge, now: float) -> None:
        self._drop(merge, now)
        self._node.counters.routed_dropped += 1
        holder = merge.holder.hex()
        text = (
            f"broker {holder}: old session of client {shorten(merge.client_id)}: "
            f"{merge.why}; dropped"
        )
        self._node.log_limit.line("warning", "garbage from a broker", holder, text)

    # ---------------------------------------------------------------- asking

    def way_lost(self, broker_id: bytes) -> None:
        """Note that a broker cannot be reached any more."""
        now, boot_of, known = self._node.now, self._database.boot, self._lost
        self._lost = {
            key: lost for key, lost in known.items() if boot_of(key) and now < lost.back + FETCH_S
        }
        lost = self._lost.setdefault(broker_id, Lost(boot_of(broker_id)))
        if lost.back < inf:  # it will be back: the tree is being repaired
            lost.back = inf
            self._apart_until = now + AWAY_S

    def way_changed(self, broker_id: bytes) -> None:
        """Ask a broker at once that can be reached again."""
        if (lost := self._lost.get(broker_id)) is not None and lost.back == inf:
            lost.back = self._node.now
            if self._went_on(broker_id):
                self._pause_others(lost.back)
        for merge in self._merges.values():
            if merge.holder == broker_id:
                merge.ask_at, merge.pause = self._node.now, RETRY
        self._go_on(self._node.now)

    def _pause_others(self, now: float) -> None:
        """Pause the sessions whose former brokers are still to be reached, as one has been that was
        cut off: what was published beside them may come before these."""
        self._apart_until = now + AWAY_S
        for lost in self._lost.values():
            for client_id in list(lost.clients if lost.back == inf else ()):
                session = self._node.sessions.get(client_id)
                if session is None or not session.stamp:
                    lost.clients.discard(client_id)
                else:
                    self._pause(session, self._apart_until)

    def _turn(self, now: float) -> None:
        """Ask the holders whose time has come."""
        self._timer = None
        self._node.now = now
        asked, soon, coming = 0, bool(self._held), set[str]()
        for merge in list(self._merges.values()):
            session = self._node.sessions.get(merge.client_id)
            if session is None or not session.stamp:
                self._step(merge, Input.WITHDRAWN, now)
            elif session.conn is None and untouched(session):
                self._tombstones.discard(session)
                self._step(merge, Input.WITHDRAWN, now)
            elif (
                merge.state is not State.CLOSING
                and not merge.rest
                and self._handover.is_handing_over(merge.client_id)
            ):
                # The broker that takes the newer session merges the older ones, too: it waits for
                # the newer one, so that must not wait for them.
                continue
            elif merge.state is State.READING:
                soon = True
                coming.add(merge.client_id)
            elif (asks := self._asks(merge)) is not None:
                soon = True
                if asks != merge.asked:
                    if merge.state is State.CLOSING and self._went_on(merge.holder):
                        # It was its standby's copy that has been merged.
                        coming.add(merge.client_id)
                        self._drop(merge, now)
                        continue
                    merge.asked, merge.ask_at, merge.pause = asks, now, RETRY
                    merge.away = False
                    merge.parts.clear()
                if merge.state is not State.CLOSING and not merge.away:
                    coming.add(merge.client_id)
                if asked == ACTIVE or (merge.state is State.WANTED and self._newer_first(merge)):
                    continue
                asked += 1
                if merge.ask_at <= now:
                    self._proceed(merge, session, now)
        if now < self._apart_until:
            coming.update(*(lost.clients for lost in self._lost.values()))
        self._release(coming, now)
        if self._merges or self._held:
            self._go_on(now + (CHECK_INTERVAL if soon else IDLE_INTERVAL))

    def _asks(self, merge: Merge) -> bytes | None:
        """Return the broker that is to be asked for an older session; None: none can be. A copy
        comes from where its head came from, also if its broker is back without it, but not if that
        has gone on with it."""
        asked = merge.asked
        stays = merge.rest and not merge.away and not self._went_on(merge.holder)
        if stays and (asked == self._own or self._posted.lives(asked)):
            return asked
        return self._posted.holder(merge.holder)

    def _newer_first(self, merge: Merge) -> bool:
        """Whether another old session of this client has to be merged first, as it is newer: it may
        have had the messages that are queued in this one. So may have the copy whose queue is to
        follow."""
        if len(self._merges) == 1 or merge.rest:
            return False
        for broker_id, _ in self._database.entries_of(key_of(merge.client_id)):
            other = self._merges.get((merge.client_id, broker_id))
            if (
                other is not None
                and other is not merge
                and other.state is not State.CLOSING
                and (other.rest or other.copy > merge.copy)
                and self._posted.holder(broker_id) is not None
            ):
                return True
        return False

    def _proceed(self, merge: Merge, session: Session, now: float) -> None:
        """Ask the holder of an older session once it is known which messages the newer one
        lacks."""
        if merge.state is State.WANTED and merge.rest:
            if merge.need is not None:
                self._step(merge, Input.BEGUN, now)
        elif merge.state is State.WANTED:
            if self._begins(merge, session, now):
                self._step(merge, Input.BEGUN, now)
        elif merge.state is not State.CLOSING and merge.stamp != session.stamp:
            self._step(merge, Input.CHANGED, now)
        else:
            self._ask(merge, now)

    def _begins(self, merge: Merge, session: Session, now: float) -> bool:
        """Whether it is known where the subscriptions of a newer session begin, or that has been
        waited for too long."""
        asking = self._gap_recovery.asking
        starts = [start for start in starts_of(session) if start is not None]
        # Its SUBACK waits until all brokers know of the subscriptions.
        conn = session.conn
        waits = conn is not None and conn.waiting
        longest = UNSETTLED_S if session.subscriptions or waits else UNSUBSCRIBED_S
        subscribing = not session.subscriptions or any(
            now < s.at + SUBSCRIBING_S or asking(s.open) for s in starts
        )
        return not subscribing or now >= merge.began + longest

    def _ask(self, merge: Merge, now: float) -> None:
        """Send the request whose answer this state waits for; the last one when a kill of this
        broker does not lose the messages any more."""
        session = self._node.sessions[merge.client_id]
        if merge.state is State.CLOSING and not self._node.journal.has(merge.lsn):
            merge.ask_at = now
            return
        if merge.state is State.ASKING:
            merge.stamp = session.stamp
        merge.ask_at = now + merge.pause
        merge.pause = min(2 * merge.pause, MAX_RETRY_S)
        what = merge.parts.position.to_bytes(4, "big") + digest(session.owner)
        what += merge.copy.to_bytes(8, "big")
        request = DONE
        if merge.state is State.ASKING:
            request = MERGE
            starts = [start for start in starts_of(session) if start is not None]
            # What an older copy lacks, its origins are asked for.
            what += encode_vector({} if merge.rest else need_of(s.tops for s in starts))
        body = encode_takeover(request, merge.stamp, merge.client_id, what)
        self._bus.send(merge.asked, SESSION_REQUEST, body, at_once=True)

    def _ask_again(self, merge: Merge, now: float) -> None:
        """Ask for the older session again, as its client has connected here once more: the bytes
        for the connection before do not have what the newer session lacks now."""
        merge.parts.clear()
        self._ask(merge, now)

    def _ask_later(self, merge: Merge, now: float) -> None:
        merge.parts.clear()
        merge.ask_at = now

    # ---------------------------------------------------------------- answers

    def on_answer(self, sender: bytes, answer: int, stamp: int, client_id: str) -> None:
        """Take the `answer` of the holder `sender` to the request for the session of `client_id`
        with this `stamp`."""
        asked = self._asked(client_id, sender, stamp)
        merge = asked.get(State.CLOSING) or asked.get(State.ASKING)
        if merge is None or (given := ANSWERS.get(answer)) is None:
            return
        if given is Input.NOTHING and merge.state is State.ASKING and sender != merge.holder:
            # Its holder may have it, once it can be reached.
            merge.away, merge.pause = True, MAX_RETRY_S
            self._go_on(self._node.now)
        else:
            self._step(merge, given, self._node.now)

    def _asked(self, client_id: str, sender: bytes, stamp: int) -> dict[State, Merge]:
        """Return what the broker `sender` was asked for with this `stamp`: sessions of its own, and
        of a broker that it answers for."""
        holders = [sender, *(holder for holder, _ in entries_of(self._database, client_id))]
        merges = [self._merges.get((client_id, holder)) for holder in holders]
        # The broker of a copy may be back, and have no entry of it any more.
        merges.append(self._rests.get(client_id))
        return {
            merge.state: merge
            for merge in merges
            if merge is not None and (merge.asked, merge.stamp) == (sender, stamp)
        }

    def part(self, sender: bytes, stamp: int, client_id: str, rest: bytes, now: float) -> None:
        """Take a part (`rest`) of the old session of `client_id` from the holder `sender`. `stamp`:
        of the request; `now`: s.

        Raises:
            MalformedPacket: it is truncated, or the session is too large.
        """
        merge = self._asked(client_id, sender, stamp).get(State.ASKING)
        if merge is None:
            return
        added = merge.parts.add(rest)
        if added is Added.NOTHING:
            return
        merge.pause = RETRY
        session = self._node.sessions.get(client_id)
        if session is None or not session.stamp:
            self._step(merge, Input.WITHDRAWN, now)
        elif self._handover.is_handing_over(client_id):
            merge.parts.clear()  # another broker is taking the newer session without it
        elif added is Added.WHOLE:
            early = self._newer_first(merge)
            self._step(merge, Input.EARLY if early else Input.WHOLE, now)
        elif added is Added.WINDOW_ENDS:
            self._proceed(merge, session, now)

    def _read(self, merge: Merge, now: float) -> None:
        """Decode an old session in steps, and add it. It is asked for again if its client connects
        once more meanwhile, or goes to another broker."""
        work = merge.work = self._reading(merge, merge.parts.take())
        key = (merge.client_id, merge.holder)
        turns = self._node.turns
        turns.go(work, lambda: self._merges.get(key) is not merge or merge.work is not work)

    def _reading(self, merge: Merge, data: bytes) -> Iterator[int]:
        client_id = merge.client_id
        try:
            state = yield from decoding(data, self._node.now, self._limits)
        except WireError as error:
            merge.why = error.message
            self._step(merge, Input.UNUSABLE, self._node.now)
            return
        merged = None
        if merge.rest != merge.asked:  # it has gone on behind what its standby had of it
            merged = MergedHistory(state)
            yield from merged.adding(state.subscriptions, self._limits.session_written)
        session, now = self._node.sessions.get(client_id), self._node.now
        if session is None or not session.stamp:
            self._step(merge, Input.WITHDRAWN, now)
        elif session.stamp != merge.stamp or self._handover.is_handing_over(client_id):
            self._step(merge, Input.CHANGED, now)
        else:
            if state.owner == session.owner:
                # An adopted session is older than the one that its broker may come back with.
                mine = [Absorbed(merge.holder, merge.copy, merge.stamp)]
                session.absorb(*(mine if merge.copy < merge.stamp else ()), *state.absorbed)
                adopted = merge.copy + 1 in (session.stamp, session.former_stamp)
                copy, went_on = bool(merge.rest), self._went_on(merge.asked)
                self._queues.absorb(
                    session, state, merged, copy=copy, adopted=adopted, went_on=went_on
                )
                if merge.need is not None:
                    known = merge.need.keys() & state.seen.keys()
                    need = {key: merge.need[key] for key in known}
                    self._queues.fetch(session, need, state.seen)
            self._step(merge, Input.DECODED, now)

    def _tell_done(self, merge: Merge, now: float) -> None:
        """Have the holder forget the older session."""
        merge.pause = RETRY
        merge.lsn, merge.rest = self._node.journal.due_lsn(), b""
        self._ask(merge, now)
        self._go_on(now)


def untouched(session: Session) -> bool:
    """Return whether a session is empty and was never resumed: its CONNACK had no Session Present,
    and its client left before it did anything."""
    holds = (
        session.subscriptions
        or session.queue
        or session.inflight
        or session.incoming
        or session.will
    )
    return session.stamp == session.created and not holds
