"""Older sessions of a client at other brokers are merged into its newest one
(docs/decisions/0016).

A client whose broker is silent begins a new session at another broker. When the old broker is back,
two brokers have a session of this client. The broker with the newest connection asks the other one
for its session, adds the messages in its queue, except those that it has delivered itself, and has
the old session ended:

    newest broker                                  old broker
    WANTED   the entry is posted, a path exists
    ASKING   MERGE, need ->                        closes its connection (0x8E); waits until all
                                                   messages that were published before the newer
                                                   session subscribed (`need`) have come to the old
                                                   one; encodes it
                    <- parts
    HELD     as long as a newer one of its old sessions is to come
    READING  decodes it, in steps
             adds its queue, in one step
    CLOSING  DONE ->                               forgets the session
                    <- ENDED

Of each message one of the two sessions is sure to have it: the old one has the messages up to the
start of the newer one's subscriptions (see `subscription_start`), the newer one those behind it.
Messages that both had are found by number: those of the newer session are in its broker's log. A
message in a session does not say its origin and number. So the old broker looks in its own log for
the same topic and payload, and the newer one does for those that are not found there. QoS 2
messages that were sent and not acknowledged are not sent again: the client may have had them. The
subscriptions of the newer session hold; all queued messages are delivered.

The floor in a directory entry says since when nothing older is part of a session (a Clean Start):
an older session below it ends, and is not merged. A session that ends while others have older ones
leaves its entry, GONE, so that these do not come back.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from broker.base.sequence_set import Ranges, intersect, subtract
from broker.base.sequence_set import merge as joined
from broker.cluster.delivery.subscription_start import starts_of
from broker.cluster.link.version_vector import Vector, encode_vector
from broker.cluster.sessions.message_vectors import (
    lacking,
    need_of,
    offered,
    only,
    ranges_of,
)
from broker.cluster.sessions.pending_merge import (
    RETRY,
    RETRY_MOST,
    Action,
    Input,
    Merge,
    State,
)
from broker.cluster.sessions.session_codec import (
    IN_FLIGHT,
    REPEATED,
    WAITING,
    Item,
    SessionState,
    decoding,
    restore,
)
from broker.cluster.sessions.session_entries import entries_of, key_of, posted_stamp
from broker.cluster.sessions.session_history import (
    Absorbed,
    SessionHistory,
    delivered_numbers,
    had,
    ordinary_starts,
)
from broker.cluster.sessions.session_parts import Added
from broker.cluster.sessions.takeover_messages import (
    DONE,
    ENDED,
    MERGE,
    NEWER,
    NOTHING,
    REQUEST,
    say,
)
from broker.core.message import size_of
from broker.core.route import Delivery
from broker.core.session import Outgoing, Repeat, Session
from broker.core.session_owner import GONE, KEPT, Entry, digest
from broker.wire.errors import WireError
from broker.wire.strings import shorten
from routing.topic_filter import SHARE_PREFIX

if TYPE_CHECKING:
    from broker.auth.authorization import Permissions
    from broker.base.timers import Timer
    from broker.cluster.delivery.gap_recovery import GapRecovery
    from broker.cluster.delivery.origins import Origins
    from broker.cluster.delivery.replay_log import ReplayLog
    from broker.cluster.delivery.subscription_start import SubscriptionStarts
    from broker.cluster.ports import Reporting
    from broker.cluster.sessions.delivered_ranges import DeliveredRanges
    from broker.cluster.sessions.handover import Handover
    from broker.cluster.sessions.tombstones import Tombstones
    from broker.cluster.strategy.directory import Directory
    from broker.core.local_broker import LocalBroker
    from broker.core.start_point import SubscriptionStart

ACTIVE = 16
"""merges that ask their holders at a time; the others wait."""

PACE, IDLE = 0.05, 1.0
"""s between two checks which holders are to be asked; and while no holder can be reached."""

SUBSCRIBING = 0.25
"""s since a client's last SUBSCRIBE in which another one may follow."""

UNSUBSCRIBED = 2.0
"""s for which a merge waits until the newer session's client subscribes,"""
UNSETTLED = 10.0
"""and until it is known where its subscriptions begin."""
HELD_TIME = 30.0
"""s for which an old session that is here waits for newer ones at most: as long as its holder keeps
its bytes."""

ANSWERS = {NOTHING: Input.NOTHING, ENDED: Input.ENDED, NEWER: Input.NEWER}
"""The input that a holder's answer is for its merge. Other answers change nothing: the holder is
asked again."""

Content = tuple[bytes, bytes]
"""Topic and payload."""

Known = tuple[bytes, int]
"""Origin and number of a message."""


class SessionMerge:
    """Merges of older sessions at other brokers into local ones."""

    __slots__ = (
        "_actions",
        "_delivered_ranges",
        "_directory",
        "_gap_recovery",
        "_handover",
        "_history",
        "_limits",
        "_log",
        "_merges",
        "_node",
        "_origins",
        "_own",
        "_reporting",
        "_starts",
        "_timer",
        "_tombstones",
    )

    def __init__(
        self,
        node: LocalBroker,
        own_id: bytes,
        directory: Directory,
        origins: Origins,
        log: ReplayLog,
        gap_recovery: GapRecovery,
        subscription_starts: SubscriptionStarts,
        delivered_ranges: DeliveredRanges,
        history: SessionHistory,
        handover: Handover,
        tombstones: Tombstones,
        reporting: Reporting,
    ) -> None:
        """`node`: this broker, with the id `own_id`; `handover`: knows which sessions leave;
        `tombstones`: of sessions that have ended; `reporting`: counts and logs; the modules that
        know what a session was offered: `directory`, `origins`, `log`, `gap_recovery`,
        `subscription_starts`, `delivered_ranges`, `history`."""
        self._node = node
        self._limits = node.limits
        self._own = own_id
        self._directory = directory
        self._origins = origins
        self._log = log
        self._gap_recovery = gap_recovery
        self._starts = subscription_starts
        self._delivered_ranges = delivered_ranges
        self._history = history
        self._handover = handover
        self._tombstones = tombstones
        self._reporting = reporting
        self._merges: dict[tuple[str, bytes], Merge] = {}
        self._timer: Timer | None = None
        self._actions: dict[Action, Callable[[Merge, float], None]] = {
            Action.ASK: self._ask,
            Action.ASK_AGAIN: self._ask_again,
            Action.HOLD: self._hold,
            Action.READ: self._read,
            Action.ASK_LATER: self._ask_later,
            Action.TELL_DONE: self._tell_done,
            Action.DROP: self._drop,
            Action.DROP_GARBAGE: self._drop_garbage,
            Action.LOOK_AGAIN: self._look_again,
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
        if mine and older and (session.client_id, broker_id) not in self._merges:
            self._add(
                Merge(session.client_id, broker_id, session.stamp, State.WANTED, self._node.now)
            )

    def look(self, session: Session) -> None:
        """Begin to merge the older sessions of a client, also those at brokers that are away or
        were silent."""
        for broker_id, entry in list(entries_of(self._directory, session.client_id)):
            self.found(session, broker_id, entry)

    def taken(self, client_id: str, holder: bytes, stamp: int) -> None:
        """Tell a holder that its session was taken, until it says that it has forgotten it.
        `client_id`: of the session; `holder`: the broker's id; `stamp`: of the connection that took
        it."""
        if (old := self._merges.get((client_id, holder))) is not None:
            self._step(old, Input.WITHDRAWN, self._node.now)
        self._add(Merge(client_id, holder, stamp, State.CLOSING, self._node.now))

    def withdrawn(self, client_id: str, broker_id: bytes) -> None:
        """Drop the merge with a broker that no longer has a session of a client."""
        if (merge := self._merges.get((client_id, broker_id))) is not None:
            self._step(merge, Input.WITHDRAWN, self._node.now)

    def _add(self, merge: Merge) -> None:
        self._merges[merge.client_id, merge.holder] = merge
        if self._timer is None:
            self._timer = self._node.schedule(self._node.now, self._turn)

    def _step(self, merge: Merge, given: Input, now: float) -> None:
        """Do what the table says for an input."""
        action = merge.step(given)
        if action is None:
            self._node.counters.session_takeovers_unexpected += 1
        else:
            self._actions[action](merge, now)

    def _drop(self, merge: Merge, now: float) -> None:
        self._merges.pop((merge.client_id, merge.holder), None)

    def _drop_garbage(self, merge: Merge, now: float) -> None:
        self._drop(merge, now)
        self._reporting.count("routed_dropped")
        holder = merge.holder.hex()
        text = (
            f"broker {holder}: old session of client {shorten(merge.client_id)}: "
            f"{merge.why}; dropped"
        )
        self._reporting.log("warning", text, cause="garbage from a broker", peer=holder)

    def _look_again(self, merge: Merge, now: float) -> None:
        """Find the older sessions again: the client has been at the old broker since, and has
        another session there now."""
        self._drop(merge, now)
        session = self._node.sessions.get(merge.client_id)
        if session is not None and session.stamp:
            self.look(session)

    # ---------------------------------------------------------------- asking

    def way_changed(self, broker_id: bytes) -> None:
        """Ask a broker at once that can be reached again."""
        for merge in self._merges.values():
            if merge.holder == broker_id:
                merge.ask_at, merge.pause = self._node.now, RETRY
        if self._timer is not None:
            self._node.cancel(self._timer)
            self._timer = self._node.schedule(self._node.now, self._turn)

    def _turn(self, now: float) -> None:
        """Ask the holders whose time has come."""
        self._timer = None
        self._node.now = now
        asked, soon = 0, False
        for merge in list(self._merges.values()):
            session = self._node.sessions.get(merge.client_id)
            if session is None or not session.stamp:
                self._step(merge, Input.WITHDRAWN, now)
            elif session.conn is None and untouched(session):
                self._tombstones.discard(session)
                self._step(merge, Input.WITHDRAWN, now)
            elif merge.state is not State.CLOSING and self._handover.leaves(merge.client_id):
                continue  # the broker that takes the newer session merges the older ones, too
            elif merge.state is State.READING:
                soon = True
            elif merge.state is State.HELD and merge.stamp == session.stamp:
                soon = True
                if now >= merge.ask_at or not self._newer_first(merge):
                    self._step(merge, Input.TURN, now)
            elif asked < ACTIVE and self._directory.reaches(merge.holder):
                asked += 1
                if merge.ask_at <= now:
                    self._proceed(merge, session, now)
        if self._merges:
            self._timer = self._node.schedule(now + (PACE if asked or soon else IDLE), self._turn)

    def _newer_first(self, merge: Merge) -> bool:
        """Whether another old session of this client has to be merged first, as it is newer: it may
        have had the messages that are queued in this one."""
        if len(self._merges) == 1:
            return False
        directory, client_id = self._directory, merge.client_id

        def stamp(broker_id: bytes) -> int:
            return (
                posted_stamp(directory, broker_id, client_id) if directory.reaches(broker_id) else 0
            )

        mine = stamp(merge.holder)
        found = [
            self._merges.get((client_id, broker_id))
            for broker_id, _ in directory.entries_of(key_of(client_id))
            if broker_id != merge.holder
        ]
        return any(
            m is not None and m.state is not State.CLOSING and stamp(m.holder) > mine for m in found
        )

    def _proceed(self, merge: Merge, session: Session, now: float) -> None:
        """Ask the holder of an older session once it is known which messages the newer one
        lacks."""
        if merge.state is State.WANTED:
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
        waits = session.conn is not None and session.conn.waiting
        longest = UNSETTLED if session.subscriptions or waits else UNSUBSCRIBED
        subscribing = not session.subscriptions or any(
            now < s.at + SUBSCRIBING or asking(s.open) for s in starts
        )
        return not subscribing or now >= merge.began + longest

    def _ask(self, merge: Merge, now: float) -> None:
        """Send the request whose answer this state waits for."""
        session = self._node.sessions[merge.client_id]
        if merge.state is State.ASKING:
            merge.stamp = session.stamp
        merge.ask_at = now + merge.pause
        merge.pause = min(2 * merge.pause, RETRY_MOST)
        at = merge.parts.position.to_bytes(4, "big") + digest(session.owner)
        if merge.state is State.ASKING:
            starts = [start for start in starts_of(session) if start is not None]
            need = need_of(s.tops for s in starts)
            body = say(MERGE, merge.stamp, merge.client_id, at + encode_vector(need))
        else:
            body = say(DONE, merge.stamp, merge.client_id, at)
        self._directory.send(merge.holder, REQUEST, body)

    def _ask_again(self, merge: Merge, now: float) -> None:
        """Ask for the older session again, as its client has connected here once more: the bytes
        for the connection before do not have what the newer session lacks now."""
        merge.parts.clear()
        self._ask(merge, now)

    def _ask_later(self, merge: Merge, now: float) -> None:
        merge.ask_at = now

    # ---------------------------------------------------------------- answers

    def answered(self, sender: bytes, answer: int, stamp: int, client_id: str) -> None:
        """Take the `answer` of the holder `sender` to the request for the session of `client_id`
        with this `stamp`."""
        merge, given = self._merges.get((client_id, sender)), ANSWERS.get(answer)
        if merge is not None and merge.stamp == stamp and given is not None:
            self._step(merge, given, self._node.now)

    def part(self, sender: bytes, stamp: int, client_id: str, rest: bytes, now: float) -> None:
        """Take a part (`rest`) of the old session of `client_id` from the holder `sender`. `stamp`:
        of the request; `now`: s.

        Raises:
            MalformedPacket: it is truncated, or the session is too large.
        """
        merge = self._merges.get((client_id, sender))
        if merge is None or merge.stamp != stamp or merge.state is not State.ASKING:
            return
        added = merge.parts.add(rest)
        if added is Added.NOTHING:
            return
        merge.pause = RETRY
        session = self._node.sessions.get(client_id)
        if session is None or not session.stamp:
            self._step(merge, Input.WITHDRAWN, now)
        elif self._handover.leaves(client_id):
            merge.parts.clear()  # another broker is taking the newer session without it
        elif added is Added.WHOLE:
            early = self._newer_first(merge)
            self._step(merge, Input.WHOLE_EARLY if early else Input.WHOLE, now)
        elif added is Added.WINDOW_ENDS:
            self._proceed(merge, session, now)

    def _hold(self, merge: Merge, now: float) -> None:
        merge.ask_at = now + HELD_TIME

    def _read(self, merge: Merge, now: float) -> None:
        """Decode an old session in steps, and add it. It is asked for again if its client connects
        once more meanwhile, or goes to another broker."""
        work = merge.work = self._reading(merge, merge.parts.take())
        key = (merge.client_id, merge.holder)
        self._node.turns.go(
            work, lambda: self._merges.get(key) is not merge or merge.work is not work
        )

    def _reading(self, merge: Merge, data: bytes) -> Iterator[int]:
        client_id = merge.client_id
        try:
            state = yield from decoding(data, self._node.now, self._limits)
        except WireError as error:
            merge.why = error.message
            self._step(merge, Input.UNUSABLE, self._node.now)
            return
        absorbed = Absorbed(state.seen)
        yield from absorbed.adding(state.subscriptions, self._limits.session_written)
        session, now = self._node.sessions.get(client_id), self._node.now
        if session is None or not session.stamp:
            self._step(merge, Input.WITHDRAWN, now)
        elif session.stamp != merge.stamp or self._handover.leaves(client_id):
            self._step(merge, Input.CHANGED, now)
        else:
            if state.owner == session.owner:
                self.absorb(session, state, now, absorbed)
            self._step(merge, Input.DECODED, now)

    def _tell_done(self, merge: Merge, now: float) -> None:
        """Have the holder forget the older session."""
        merge.pause = RETRY
        self._ask(merge, now)

    # ---------------------------------------------------------------- one session of two

    def absorb(
        self,
        session: Session,
        old: SessionState,
        now: float,
        absorbed: Absorbed,
        there: Vector | None = None,
    ) -> None:
        """Add the queue of an older session `old` to the newer `session` of the same client.
        `absorbed`: what the older one has had, by its subscriptions; `there`: what the newer one
        was offered at another broker, if it has just come from there; `now`: s."""
        node, history = self._node, self._history
        here = offered(self._origins.vector)
        waiting: list[tuple[Item, Known | None]] = []
        for item, known in zip(old.items, old.origins or [None] * len(old.items), strict=True):
            if item.place == WAITING or (item.place in (IN_FLIGHT, REPEATED) and item.qos == 1):
                waiting.append((item, known))
            else:
                node.counters.merged_uncertain += item.place in (IN_FLIGHT, REPEATED)
        seen = here if there is None else there
        numbers, both = self._both(session, old, seen, waiting, now)
        # Then the log may lack messages that were delivered: at another broker, or long ago.
        elsewhere = any(
            s.start is not None and s.start.adopted for s in session.subscriptions.values()
        )
        # Two brokers have taken one session: both have its queue.
        twin = old.created == session.created
        trimmed = node.counters.replay_log_trimmed > 0 or elsewhere or twin
        offered_here = history.numbers_of(session)
        kept: deque[Item] = deque()
        left_out = in_both(waiting, both)
        for index, (item, known) in reversed(list(enumerate(waiting))):
            topic = item.message.topic
            if known is not None:
                mine = (
                    known in numbers
                    or known in offered_here
                    or history.had_elsewhere(session, *known, topic)
                )
                mine = mine or (trimmed and had(session, seen, *known, topic))
                if not mine and not history.absorbed_had(session, *known, topic):
                    history.offers(session, *known)
                    kept.appendleft(item)
            elif not twin and index not in left_out:
                kept.appendleft(item)
        self._delivered_ranges.add(session, only(old.seen, here))
        self._delivered_ranges.add(session, lacking(old.given, here))
        self._history.inherit_given(session, old.given)
        self._history.absorbed(session, absorbed)
        node.counters.sessions_merged += 1
        node.counters.merged_messages += len(kept)
        self._put(session, kept)
        self._stand_for(session, old, here, now)
        if kept:
            client = shorten(session.client_id)
            self._reporting.log(
                "info",
                f"client {client}: {len(kept)} messages of its older session are added",
            )

    def _stand_for(self, session: Session, old: SessionState, here: Vector, now: float) -> None:
        """Have a session get from now on the messages that the older one would have got: those that
        were published after the older one subscribed, at brokers that could not be reached when it
        was encoded. They arrive later, although they are older than the newer subscriptions."""
        starts: dict[SubscriptionStart, SubscriptionStart] = {}
        owed: dict[bytes, Ranges] = {}
        seen = ranges_of(old.seen)
        for s in session.subscriptions.values():
            if s.start is None or s.filter.startswith(SHARE_PREFIX):
                continue
            if s.start not in starts:
                tops = dict(s.start.tops)
                for key in old.seen.keys() & tops.keys():
                    top, before = tops[key], old.before.get(key)
                    tops[key] = low = min(top, 0 if before is None else before.top)
                    has = [*seen.get(key, ()), *s.start.early.get(key, ())]
                    owed[key] = joined(
                        [
                            *owed.get(key, ()),
                            *subtract([(low + 1, top)] if low < top else [], joined(has)),
                        ]
                    )
                start = starts[s.start] = self._starts.adopt(tops) or s.start
                start.at = s.start.at
            s.start = starts[s.start]
        if session.recorder is not None:
            session.recorder.record_starts()
        # The older session's broker waited for them in vain, and no local subscriber wanted them.
        for key, pairs in owed.items():
            if pairs:
                self._gap_recovery.fetch(session, key, pairs)
        ranges = {
            key: found
            for key, pairs in owed.items()
            if (found := intersect(pairs, ranges_of(here).get(key, [])))
        }
        for entry in self._log.those(ranges, now - self._limits.log_age) if ranges else ():
            for number, message in enumerate(entry.messages(), entry.sequence):
                self._history.offer(session, entry.key, number, message)

    def put_back(
        self, client_id: str, stamp: int, permissions: Permissions | None, old: SessionState
    ) -> Session:
        """Restore an older session that was added to a newer one, as the takeover of the newer one
        has failed. It gets the messages that have arrived for it since, which no other session of
        the client has. `client_id`, `stamp`, `permissions`: of the session; `old`: what it was."""
        node = self._node
        session = node.sessions[client_id] = Session(node, client_id)
        session.permissions = permissions
        restore(old, session, node.dispatcher, self._starts)
        session.stamp = stamp
        self._history.inherit(session, old)
        self._delivered_ranges.add(session, only(old.seen, offered(self._origins.vector)))
        for key, number, message in self._history.since(old.seen, node.now - node.limits.log_age):
            here = self._origins.vector[key].for_local_subscribers(number)
            if here and (key not in old.before or number > old.before[key].top):
                self._history.offer(session, key, number, message)
        node.expire_later(session)
        return session

    def _both(
        self,
        session: Session,
        old: SessionState,
        here: Vector,
        waiting: list[tuple[Item, Known | None]],
        now: float,
    ) -> tuple[set[Known], Counter[Content]]:
        """Find the messages that both sessions had: those with numbers, and the contents of those
        for which the old one has no numbers."""
        numbers: set[Known] = set()
        both: Counter[Content] = Counter()
        topics = {item.message.topic for item, _ in waiting}
        numbered = {known for _, known in waiting if known is not None}
        if not topics or not (starts := ordinary_starts(session)):
            return numbers, both
        unknown = [
            (item.message.topic, item.message.payload) for item, known in waiting if known is None
        ]
        contents = {hash(content): content for content in unknown}
        for _, key, number, _, content in self._history.brought_to(session):
            numbers.add((key, number))
            if content in contents:
                both[contents[content]] += (key, number) not in numbered
        theirs = {
            key: subtract([(1, window.top)], window.gaps)
            for key, window in old.seen.items()
            if window.top
        }
        for key, number in numbered:
            theirs.setdefault(key, []).append((number, number))
        ranges = {
            key: intersect(joined(pairs), delivered_numbers(starts, here, key))
            for key, pairs in theirs.items()
        }
        for entry in self._log.those(ranges, now - self._limits.log_age):
            if (topic := entry.topic) not in topics:
                continue
            for number, message in enumerate(entry.messages(), entry.sequence):
                if had(session, here, entry.key, number, topic, logged=True):
                    numbers.add((entry.key, number))
                    both[topic, message.payload] += (entry.key, number) not in numbered
        return numbers, both

    def _put(self, session: Session, items: deque[Item]) -> None:
        """Put messages into a queue, ahead of those that are there: they are older."""
        node = self._node
        if not items:
            return
        added = []
        for item in items:
            name = item.message.topic.decode()
            if session.permissions is not None and not session.permissions.may_receive(name):
                continue
            wanted = list(session.wanting(name))
            ids = Delivery(session, wanted).ids if wanted else b""
            added.append(
                Outgoing(item.message, min(item.qos, node.config.max_qos), item.retain, ids)
            )
        sent = [
            session.queue.popleft()
            for _ in range(sum(isinstance(outgoing, Repeat) for outgoing in session.queue))
        ]
        session.queue.extendleft(reversed([*sent, *added]))
        session.queued_bytes += sum(size_of(outgoing.message) for outgoing in added)
        if session.recorder is not None:
            session.recorder.record_all()
        if session.conn is not None:
            session.pump()


def in_both(waiting: list[tuple[Item, Known | None]], both: Counter[Content]) -> set[int]:
    """Return the indices of the messages without numbers in the queue of an old session that the
    newer one had: as many of each content as `both` says, the newest first; retained copies last,
    as the newer session had the messages themselves."""
    found = set()
    for index in sorted(range(len(waiting)), key=lambda at: (waiting[at][0].retain, -at)):
        item, known = waiting[index]
        if known is None and both[content := (item.message.topic, item.message.payload)] > 0:
            both[content] -= 1
            found.add(index)
    return found


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
