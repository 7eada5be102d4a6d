"""One session for a client id in the whole federation: the newest connection takes it over
(docs/decisions/0016). `pending_takeover` has the states as a table.

Every broker posts for which clients it has sessions, with the time when their connection began. A
client is accepted at once if no other broker has a session of it. One that begins a new session
waits until that broker has ended the older one (END): what is still published in that one's name,
the will above all, comes before all that the client does here. Otherwise the connection waits while
the session is fetched:

    client    taker                                holder
    CONNECT ->  ASKING    TAKE, stamp, position ->     closes its connection (0x8E), encodes the
                                                       session without its queue, goes on queueing
                          <- parts, WINDOW at a time   (repeated from a position, as often as it is
                                                       asked)
                READING   decodes it and subscribes, in steps
                posts its entry
    <- CONNACK  when the queue is there, or at once if the broker of the session is dead

The queue follows: the holder has an older copy of the session then, which is merged (`merge`).

Other answers of a holder: NOTHING, it does not know the client; MOVED, another broker has the
session; NEWER, the session has a newer connection; COMING, the parts are queued behind messages. A
holder that is silent for `TAKEOVER_SILENCE_S` is given up (but see `_has_to_wait`), and one to
which no path leads for REPAIR_S, before the first part has come.

Invariants: the holder keeps the session, and queues its messages, until they have been merged. The
session lacks, at the taker, what was in its queue at TAKE (`evaluated`), whatever happens to the
taker then. What happens to a session that has a newer one elsewhere:
`competing_sessions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from mqttree.broker.base.hybrid_clock import HybridClock
from mqttree.broker.cluster.events import RouteChanged
from mqttree.broker.cluster.sessions.handover import TAKEOVER_MAX_S, TAKEOVER_SILENCE_S, Handover
from mqttree.broker.cluster.sessions.messages_under_way import MAX_TAKEOVERS
from mqttree.broker.cluster.sessions.pending_takeover import (
    RETRY,
    Action,
    Input,
    PendingTakeover,
    State,
)
from mqttree.broker.cluster.sessions.session_entries import newest_stamp
from mqttree.broker.cluster.sessions.session_parts import Added
from mqttree.broker.cluster.sessions.takeover_messages import (
    COMING,
    END,
    FOREIGN,
    MERGE,
    MOVED,
    NEWER,
    NOTHING,
    SESSION_ANSWER,
    SESSION_ENDED,
    SESSION_PART,
    SESSION_REQUEST,
    TAKE,
    decode_takeover,
    encode_takeover,
)
from mqttree.broker.core.session_owner import KEPT, digest
from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.errors import WireError
from mqttree.broker.wire.packets import Connect
from mqttree.broker.wire.strings import shorten

if TYPE_CHECKING:
    from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
    from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
    from mqttree.broker.cluster.link.link import Link
    from mqttree.broker.cluster.sessions.competing_sessions import CompetingSessions
    from mqttree.broker.cluster.sessions.merge import SessionMerge
    from mqttree.broker.cluster.sessions.ports import SessionBroker
    from mqttree.broker.cluster.sessions.posted_sessions import PostedSessions
    from mqttree.broker.cluster.sessions.session_restoration import SessionRestoration
    from mqttree.broker.core.ports import Newcomer
    from mqttree.broker.core.session import Session

REPAIR_S = 0.1
"""s for which a holder that cannot be reached is waited for: most repairs of the tree are
shorter."""
MAX_HOPS = 16
"""brokers that may say one after another that yet another one has a session; more are a circle."""

ANSWERS = {
    NOTHING: Input.NOTHING,
    MOVED: Input.MOVED,
    NEWER: Input.NEWER,
    COMING: Input.COMING,
    FOREIGN: Input.FOREIGN,
}
"""The input that a holder's answer is for its takeover."""

REQUESTS = {
    State.ASKING: TAKE,
    State.ENDING: END,
}
"""The request whose answer a state waits for."""


class Takeover:
    """Takes the sessions of clients that connect here from the brokers that have them."""

    def __init__(
        self,
        node: SessionBroker,
        *,
        pending: dict[str, PendingTakeover],
        clock: HybridClock,
        links: Mapping[bytes, Link],
        directory: LinkStateDirectory,
        bus: UnicastBus,
        posted: PostedSessions,
        competing: CompetingSessions,
        restoration: SessionRestoration,
        handover: Handover,
        merging: SessionMerge,
    ) -> None:
        """`node`: this broker; `pending`: the sessions that it takes, by
        client id; `clock`: makes all stamps; `links`: by the neighbour's id; `directory`: the path
        to other brokers; `bus`: carries messages to them; `posted`: where clients have sessions;
        `competing`: decides which of two stays; `restoration`: makes the session here; `handover`:
        the holder's side; `merging`: of older sessions."""
        self._node = node
        self._counters, self._turns = node.counters, node.turns
        self._own = node.config.id
        self._pending = pending
        self._clock = clock
        self._links = links
        self._directory = directory
        self._bus = bus
        self._posted = posted
        self._competing = competing
        self._restoration = restoration
        self._handover = handover
        self._merging = merging
        self._actions = self._action_table()
        bus.receive(SESSION_REQUEST, self._requested)
        bus.receive(SESSION_ANSWER, self._on_answer)
        bus.receive(SESSION_ENDED, self._on_answer)
        bus.receive(SESSION_PART, self._part)

    def _action_table(self) -> dict[Action, Callable[[PendingTakeover, float], None]]:
        """Return what is called for each action of the table of states."""
        return {
            Action.WAIT: self._wait,
            Action.ASK: self._ask,
            Action.READ: self._read,
            Action.ASK_ELSEWHERE: self._ask_elsewhere,
            Action.START_NEW: self._start_new,
            Action.ADMIT_NEW: self._admit_new,
            Action.ADMIT: self._admit,
            Action.REFUSE: self._refuse,
            Action.HANG_UP: self._hang_up,
        }

    @property
    def arriving(self) -> int:
        """Bytes of sessions that have arrived and are not restored yet."""
        return sum(pending.parts.position for pending in self._pending.values())

    # ---------------------------------------------------------------- local sessions

    def begin(self, handshake: Newcomer, connect: Connect, now: float) -> int:
        """Return the stamp for the connection of `handshake`, which is newer than all stamps that
        are known of its client; 0 if the connection has to wait: for its session, or until its
        older one has ended. `connect`: its CONNECT; `now`: s."""
        clock = self._clock
        if not self._posted.active:
            return clock.tick(now)
        client_id = connect.client_id
        others = self._posted.elsewhere(client_id)
        own = self._node.sessions.get(client_id)
        old = self._pending.get(client_id) if self._pending else None
        mine = digest(handshake.owner)
        if old is not None and old.handshake.owner != handshake.owner:
            handshake.turn_away_other_user()
            return 0
        if own is None and any(entry.owner != mine for _, entry in others):
            handshake.turn_away_other_user()
            return 0
        if old is not None:
            self._step(old, Input.LEFT, now)
        known = [self._handover.newest(client_id), *(entry.stamp for _, entry in others)]
        known.append(newest_stamp(self._directory.database, client_id))
        known.append(0 if own is None else own.stamp)
        # The connection of a session that was adopted had a stamp that is newer by one.
        stamp = clock.tick(now, max(known) + 1)
        older = [
            (entry.stamp, broker_id, bool(entry.flags & KEPT))
            for broker_id, entry in others
            if entry.owner == mine
        ]
        clean = connect.clean_start or not any(kept for _, _, kept in older)
        newest = max([one for one in older if clean or one[2]], default=None)
        if newest is None or (own is not None and (own.stamp, self._own) > newest[:2]):
            return stamp
        if len(self._pending) >= MAX_TAKEOVERS:
            if clean:
                return stamp
            handshake.turn_away(
                ReasonCode.SERVER_BUSY, "connects while too many session takeovers are under way"
            )
            return 0
        pending = self._begin(handshake, client_id, stamp, newest[1], now)
        if clean:
            self._step(pending, Input.CLEAN, now)
        else:
            self._ask(pending, now)
        return 0

    def _begin(
        self, newcomer: Newcomer, client_id: str, stamp: int, holder: bytes, now: float
    ) -> PendingTakeover:
        pending = PendingTakeover(newcomer, client_id, stamp, holder, now)
        self._pending[client_id] = pending
        pending.conn.wait()
        self._node.timers.schedule(now + RETRY, lambda at: self._check(pending, at))
        return pending

    def adopt(self, absentee: Newcomer, client_id: str, stamp: int, now: float) -> bool:
        """Take the session of `client_id` from an image here (`persistence.adoption`), with this
        `stamp`; `absentee` is in the place of the client. `now`: s. Returns False if there is
        another session of it here, or on its way."""
        if client_id in self._pending or client_id in self._node.sessions:
            return False
        self._ask(self._begin(absentee, client_id, stamp, self._own, now), now)
        return True

    @property
    def busy(self) -> bool:
        """Whether a session is on its way to here."""
        return bool(self._pending)

    def takes(self, client_id: str) -> bool:
        """Whether the session of a client is on its way to here."""
        return client_id in self._pending

    def route_changed(self, event: RouteChanged) -> None:
        """Go on with sessions of a broker that can be reached again, or no longer."""
        if event.via is None:
            self._merging.way_lost(event.broker_id)
        else:
            self._merging.way_changed(event.broker_id)
        if event.via is not None and not self._posted.active:
            self._posted.begin()
        for pending in self._pending.values():
            if pending.holder == event.broker_id:
                self._look_for_holder(pending, self._node.now)
                if event.via is not None:
                    self._ask(pending, self._node.now)

    def on_suspended(self, seconds: float, now: float) -> None:
        """Do not count `seconds` in which this broker did not run as a holder's silence. `now`:
        s."""
        for pending in self._pending.values():
            pending.began = min(now, pending.began + seconds)
            pending.heard = min(now, pending.heard + seconds)

    # ---------------------------------------------------------------- taking: a client connects

    def _step(self, pending: PendingTakeover, given: Input, now: float) -> None:
        """Do what the table says for an input."""
        action = pending.step(given, now)
        if action is None:
            self._counters.session_takeovers_unexpected += 1
        else:
            self._actions[action](pending, now)

    def _wait(self, pending: PendingTakeover, now: float) -> None:
        """Do nothing."""

    def _ask(self, pending: PendingTakeover, now: float) -> None:
        """Send the request whose answer this state waits for."""
        request = REQUESTS.get(pending.state)
        if request is not None:
            pending.asked_at = now
            whose = digest(pending.handshake.owner)
            body = encode_takeover(
                request,
                pending.stamp,
                pending.client_id,
                pending.parts.position.to_bytes(4, "big") + whose,
            )
            # The end of a session may overtake messages of its client. What is retained comes twice
            # then: as it is kept, and as it comes.
            self._bus.send(pending.holder, SESSION_REQUEST, body, at_once=request != END)

    def _check(self, pending: PendingTakeover, now: float) -> None:
        """Ask again for parts that were lost, until the holder has been silent for too long."""
        if self._pending.get(pending.client_id) is not pending:
            return
        self._node.now = now
        if _gone(pending):
            self._step(pending, Input.LEFT, now)
            return
        quiet = now - max(pending.heard, pending.since)
        if quiet >= TAKEOVER_SILENCE_S or now >= pending.began + TAKEOVER_MAX_S:
            if self._has_to_wait(pending, now):
                self._ask(pending, now)
            else:
                pending.why = "the broker that has its session does not answer"
                self._step(pending, Input.SILENT, now)
        elif quiet >= pending.patience / 2 and not self._on_its_way(pending):
            # A holder that many ask at once does not get faster by being asked more often.
            pending.patience = min(2 * pending.patience, TAKEOVER_SILENCE_S)
            self._ask(pending, now)
        if self._pending.get(pending.client_id) is pending:
            self._look_for_holder(pending, now)
            self._node.timers.schedule(now + RETRY, lambda at: self._check(pending, at))

    def _on_its_way(self, pending: PendingTakeover) -> bool:
        """Whether this broker is the holder, and has not come to the request yet: it loses none."""
        return pending.holder == self._own and pending.asked_at >= pending.heard

    def _look_for_holder(self, pending: PendingTakeover, now: float) -> None:
        """Note whether the holder can be reached. If it has just been lost, look again when the
        tree would have been repaired; a client that came then would not wait for it."""
        if self._posted.lives(pending.holder):
            pending.lost_at = 0.0
        elif not pending.lost_at:
            pending.lost_at = now
            self._node.timers.schedule(now + REPAIR_S, lambda at: self._holder_lost(pending, at))

    def _holder_lost(self, pending: PendingTakeover, now: float) -> None:
        """Ask a standby of a holder that has not been reached for REPAIR_S, however much has come
        from that one; without a standby, give it up if nothing has."""
        if self._pending.get(pending.client_id) is not pending or not pending.lost_at:
            return
        self._node.now = now
        if self._posted.lives(pending.holder):
            pending.lost_at = 0.0
        elif now >= pending.lost_at + REPAIR_S:
            standby = self._posted.next_holder(pending.holder, pending.client_id)
            if standby is not None and pending.hops < MAX_HOPS:
                pending.elsewhere = standby
                self._step(pending, Input.MOVED, now)
            elif pending.state in (State.ASKING, State.ENDING) and not pending.parts.position:
                pending.why = "the broker that has its session cannot be reached"
                self._step(pending, Input.SILENT, now)

    def _has_to_wait(self, pending: PendingTakeover, now: float) -> bool:
        """Whether a client has to wait for a holder that is silent."""
        posted, holder, client_id = self._posted, pending.holder, pending.client_id
        if now >= pending.began + TAKEOVER_MAX_S:
            return False
        asking = pending.state is State.ASKING
        if asking and any(map(posted.lives, posted.standbys(holder))):
            # If it hangs, a standby is asked once that is noticed: until then it may be slow.
            return True
        if not posted.lives(holder) or not asking:
            return False
        # A standby that can be reached has the session, and many clients may come at once.
        if not posted.has(holder, client_id):
            return True
        link = self._links.get(holder) or self._directory.link_to(holder)
        older = client_id in self._node.sessions or len(posted.elsewhere(client_id)) > 1
        return older or (link is not None and pending.slow(link.conn.last_heard))

    def _remove(self, pending: PendingTakeover) -> None:
        pending.work = None
        del self._pending[pending.client_id]

    def _drop(self, pending: PendingTakeover) -> None:
        """End the session as far as it was made here."""
        pending.work = None
        self._restoration.undo(pending)

    def _refuse(self, pending: PendingTakeover, now: float) -> None:
        """Refuse the client: the session is another user's, and stays where it is."""
        self._drop(pending)
        self._remove(pending)
        pending.conn.on_answer()
        if not pending.conn.closed:
            pending.handshake.turn_away_other_user()

    def _hang_up(self, pending: PendingTakeover, now: float) -> None:
        """Close the client's connection: the session stays its holder's."""
        self._drop(pending)
        self._remove(pending)
        self._close_connection(pending)

    def _close_connection(self, pending: PendingTakeover) -> None:
        conn = pending.conn
        if not conn.closed:
            conn.on_answer()
            conn.close()
            self._node.connection_registry.forget(conn)

    # ---------------------------------------------------------------- taking: answers

    def _on_answer(self, sender: bytes, body: bytes, now: float) -> None:
        answer, stamp, client_id, rest = decode_takeover(body)
        pending = self._pending.get(client_id)
        if pending is None or pending.holder != sender or pending.stamp != stamp:
            self._merging.on_answer(sender, answer, stamp, client_id)
            return
        pending.heard = now
        given = ANSWERS.get(answer)
        if given is Input.MOVED:
            if len(rest) == 8 and rest != self._own and pending.hops < MAX_HOPS:
                pending.elsewhere = rest
            else:
                given = Input.NOTHING  # the broker that has it cannot be asked
        if given is not None:
            self._step(pending, given, now)

    def _ask_elsewhere(self, pending: PendingTakeover, now: float) -> None:
        pending.hops += 1
        pending.holder, pending.heard = pending.elsewhere, now
        pending.lost_at = 0.0
        pending.parts.clear()
        self._drop(pending)
        self._ask(pending, now)

    def _part(self, sender: bytes, body: bytes, now: float) -> None:
        what, stamp, client_id, rest = decode_takeover(body)
        pending = self._pending.get(client_id)
        if what == MERGE:
            self._merging.part(sender, stamp, client_id, rest, now)
            return
        if (
            pending is None
            or pending.holder != sender
            or pending.stamp != stamp
            or pending.state is not State.ASKING
        ):
            return
        added = pending.parts.add(rest)
        if added is Added.NOTHING:
            return
        pending.heard = now
        if added is Added.WHOLE:
            self._step(pending, Input.SESSION, now)
        elif added is Added.WINDOW_ENDS:
            self._ask(pending, now)

    def _read(self, pending: PendingTakeover, now: float) -> None:
        """Make the session in steps, unless the takeover ends or begins again meanwhile."""
        work = pending.work = self._reading(pending, pending.parts.take())
        self._turns.go(work, lambda: pending.work is not work)

    def _reading(self, pending: PendingTakeover, data: bytes) -> Iterator[int]:
        try:
            given = yield from self._restoration.reading(pending, data)
        except WireError as error:
            self._unusable(pending, error, self._node.now)
            return
        if given is Input.COMPLETE and _gone(pending):
            given = Input.LEFT
        self._step(pending, given, self._node.now)

    def _unusable(self, pending: PendingTakeover, error: WireError, now: float) -> None:
        pending.why = f"its session cannot be read: {error.message}"
        self._step(pending, Input.UNUSABLE, now)

    # ---------------------------------------------------------------- taking: the end

    def _start_new(self, pending: PendingTakeover, now: float) -> None:
        """Let the client in with a new session, as its own cannot be fetched."""
        text = f"client {shorten(pending.client_id)}: {pending.why}; it starts a new session"
        self._node.log("warning", text)
        self._counters.session_takeovers_timed_out += 1
        self._admit_new(pending, now)

    def _admit_new(self, pending: PendingTakeover, now: float) -> None:
        self._drop(pending)
        self._admit(pending, now)

    def _admit(self, pending: PendingTakeover, now: float) -> None:
        """Let the client in, with its session or with a new one."""
        self._remove(pending)
        session, pending.session = pending.session, None
        if session is not None:
            session.stamp = pending.stamp
            if session.expiry:
                self._node.journal.make_durable(session)
            waiting = partial(self._let_in, pending, session)
            if self._merging.follow(session, pending.holder, pending.copy, now, waiting):
                self._posted.post(session, True)
                return
        self._let_in(pending, session, now)

    def _let_in(self, pending: PendingTakeover, session: Session | None, now: float) -> None:
        """Answer the client, whose `session` is here (None: it gets a new one), unless it has
        connected once more meanwhile."""
        node = self._node
        newer = [
            (broker_id, entry)
            for broker_id, entry in self._posted.elsewhere(pending.client_id)
            if entry.stamp > pending.stamp and broker_id != self._own
        ]
        present = session is None or (
            node.sessions.get(pending.client_id) is session and session.stamp == pending.stamp
        )
        if newer or not present:
            if session is not None and present and session.conn is None:
                self._keep(session)
                for broker_id, entry in newer:
                    self._competing.compare(broker_id, pending.client_id, entry, read=True)
            self._close_connection(pending)
            return
        self._counters.session_takeovers += session is not None
        pending.handshake.on_takeover(pending.stamp, now)
        if (found := node.sessions.get(pending.client_id)) is not None:
            self._merging.look(found)
        if session is None or node.sessions.get(pending.client_id) is not session:
            return
        if (
            session.conn is None and session.expiry_timer is None
        ):  # its client is gone, or was refused at the last moment
            self._keep(session)

    def _keep(self, session: Session) -> None:
        self._posted.post(session, True)
        self._node.session_registry.expire_later(session)

    def _requested(self, sender: bytes, body: bytes, now: float) -> None:
        """Take the request of a taker. If it has a newer connection of a client that waits here for
        the same session, the one here is given up."""
        _, stamp, client_id, rest = decode_takeover(body)
        pending = self._pending.get(client_id)
        if (
            pending is not None
            and pending.stamp < stamp
            and rest[4:12] == digest(pending.handshake.owner)
        ):
            self._step(pending, Input.LEFT, now)
        self._handover.requested(sender, body, now)


def _gone(pending: PendingTakeover) -> bool:
    """Whether the connection that waits for a session is closed, or is about to be."""
    return pending.conn.closed or pending.conn.closing
