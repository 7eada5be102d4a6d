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

Which messages of the old session's queue the newer one gets, `queue_merge` decides.

The floor in a directory entry says since when nothing older is part of a session (a Clean Start):
an older session below it ends, and is not merged. A session that ends while others have older ones
leaves its entry, GONE, so that these do not come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from mqttree.broker.cluster.delivery.subscription_start import starts_of
from mqttree.broker.cluster.link.version_vector import encode_vector
from mqttree.broker.cluster.sessions.evaluated import MergedHistory
from mqttree.broker.cluster.sessions.message_vectors import need_of
from mqttree.broker.cluster.sessions.pending_merge import (
    MAX_RETRY_S,
    RETRY,
    Action,
    Input,
    Merge,
    State,
)
from mqttree.broker.cluster.sessions.session_entries import entries_of, key_of, posted_stamp
from mqttree.broker.cluster.sessions.session_head import decoding
from mqttree.broker.cluster.sessions.session_parts import Added
from mqttree.broker.cluster.sessions.takeover_messages import (
    DONE,
    ENDED,
    MERGE,
    NEWER,
    NOTHING,
    SESSION_REQUEST,
    encode_takeover,
)
from mqttree.broker.core.session import Absorbed, Session
from mqttree.broker.core.session_owner import GONE, KEPT, Entry, digest
from mqttree.broker.wire.errors import WireError
from mqttree.broker.wire.strings import shorten

if TYPE_CHECKING:
    from mqttree.broker.base.timers import Timer
    from mqttree.broker.cluster.delivery.gap_recovery import GapRecovery
    from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
    from mqttree.broker.cluster.ports import Reporting
    from mqttree.broker.cluster.sessions.handover import Handover
    from mqttree.broker.cluster.sessions.ports import SessionBroker
    from mqttree.broker.cluster.sessions.queue_merge import QueueMerge
    from mqttree.broker.cluster.sessions.tombstones import Tombstones
    from mqttree.routing.link_state import LinkStateDatabase

ACTIVE = 16
"""merges that ask their holders at a time; the others wait."""

CHECK_INTERVAL, IDLE_INTERVAL = 0.05, 1.0
"""s between two checks which holders are to be asked; and while no holder can be reached."""

SUBSCRIBING_S = 0.25
"""s since a client's last SUBSCRIBE in which another one may follow."""

UNSUBSCRIBED_S = 2.0
"""s for which a merge waits at most until the newer session's client subscribes."""
UNSETTLED_S = 10.0
"""s for which a merge waits at most until it is known where that session's subscriptions begin."""
ANSWERS = {NOTHING: Input.NOTHING, ENDED: Input.ENDED, NEWER: Input.NEWER}
"""The input that a holder's answer is for its merge. Other answers change nothing: the holder is
asked again."""


class SessionMerge:
    """Merges of older sessions at other brokers into local ones."""

    def __init__(
        self,
        node: SessionBroker,
        own_id: bytes,
        database: LinkStateDatabase,
        bus: UnicastBus,
        gap_recovery: GapRecovery,
        queues: QueueMerge,
        handover: Handover,
        tombstones: Tombstones,
        reporting: Reporting,
    ) -> None:
        """`node`: this broker, with the id `own_id`; `database`: what brokers post; `bus`: carries
        messages to them; `gap_recovery`: knows since when subscriptions get messages; `queues`:
        adds what was queued; `handover`: knows which sessions leave; `tombstones`: of sessions that
        have ended; `reporting`: counts and logs."""
        self._node = node
        self._limits = node.limits
        self._own = own_id
        self._database = database
        self._bus = bus
        self._gap_recovery = gap_recovery
        self._queues = queues
        self._handover = handover
        self._tombstones = tombstones
        self._reporting = reporting
        self._merges: dict[tuple[str, bytes], Merge] = {}
        self._timer: Timer | None = None
        self._actions: dict[Action, Callable[[Merge, float], None]] = {
            Action.ASK: self._ask,
            Action.ASK_AGAIN: self._ask_again,
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
            # Merged already, before its broker, or this one, was killed.
            merged = (a.by for a in session.absorbed if a[:2] == (broker_id, entry.stamp))
            by = next(merged, None)
            state, stamp = (State.WANTED, session.stamp) if by is None else (State.CLOSING, by)
            self._add(Merge(session.client_id, broker_id, stamp, state, self._node.now))

    def look(self, session: Session) -> None:
        """Begin to merge the older sessions of a client, also those at brokers that are away or
        were silent."""
        for broker_id, entry in list(entries_of(self._database, session.client_id)):
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
            self._timer = self._node.timers.schedule(self._node.now, self._turn)

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
            self._node.timers.cancel(self._timer)
            self._timer = self._node.timers.schedule(self._node.now, self._turn)

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
            elif merge.state is not State.CLOSING and self._handover.is_handing_over(
                merge.client_id
            ):
                continue  # the broker that takes the newer session merges the older ones, too
            elif merge.state is State.READING:
                soon = True
            elif asked < ACTIVE and self._database.reaches(merge.holder):
                soon = True
                if merge.state is State.WANTED and self._newer_first(merge):
                    continue
                asked += 1
                if merge.ask_at <= now:
                    self._proceed(merge, session, now)
        if self._merges:
            self._timer = self._node.timers.schedule(
                now + (CHECK_INTERVAL if soon else IDLE_INTERVAL), self._turn
            )

    def _newer_first(self, merge: Merge) -> bool:
        """Whether another old session of this client has to be merged first, as it is newer: it may
        have had the messages that are queued in this one."""
        if len(self._merges) == 1:
            return False
        database, client_id = self._database, merge.client_id

        def stamp(broker_id: bytes) -> int:
            return (
                posted_stamp(database, broker_id, client_id) if database.reaches(broker_id) else 0
            )

        mine = stamp(merge.holder)
        found = [
            self._merges.get((client_id, broker_id))
            for broker_id, _ in database.entries_of(key_of(client_id))
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
        at = merge.parts.position.to_bytes(4, "big") + digest(session.owner)
        if merge.state is State.ASKING:
            starts = [start for start in starts_of(session) if start is not None]
            need = need_of(s.tops for s in starts)
            body = encode_takeover(MERGE, merge.stamp, merge.client_id, at + encode_vector(need))
        else:
            body = encode_takeover(DONE, merge.stamp, merge.client_id, at)
        self._bus.send(merge.holder, SESSION_REQUEST, body, at_once=True)

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
        merged = MergedHistory(state)
        yield from merged.adding(state.subscriptions, self._limits.session_written)
        session, now = self._node.sessions.get(client_id), self._node.now
        if session is None or not session.stamp:
            self._step(merge, Input.WITHDRAWN, now)
        elif session.stamp != merge.stamp or self._handover.is_handing_over(client_id):
            self._step(merge, Input.CHANGED, now)
        else:
            if state.owner == session.owner:
                stamp = posted_stamp(self._database, merge.holder, client_id)
                session.absorb(Absorbed(merge.holder, stamp, merge.stamp), *state.absorbed)
                adopted = stamp + 1 in (session.stamp, session.former_stamp)
                self._queues.absorb(session, state, merged, adopted=adopted)
            self._step(merge, Input.DECODED, now)

    def _tell_done(self, merge: Merge, now: float) -> None:
        """Have the holder forget the older session."""
        merge.pause = RETRY
        merge.lsn = self._node.journal.due_lsn()
        self._ask(merge, now)


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
