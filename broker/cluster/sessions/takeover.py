"""One session for a client id in the whole federation: the newest connection takes it over
(docs/decisions/0016). `pending_takeover` has the states as a table.

Every broker posts for which clients it has sessions, with the time when their connection began. A
client is accepted at once if no other broker has a session of it, or if it wants a clean start.
Otherwise its connection waits while the session is fetched:

    client    taker                                holder
    CONNECT ->  ASKING    TAKE, stamp, position ->     closes its connection (0x8E), encodes the
                                                       session, goes on queueing
                          <- parts, WINDOW at a time   (repeated from a position, as often as it is
                                                       asked)
                READING   decodes it, in steps
                COVERING  waits until all messages that the session was offered there have arrived
                RESTORING subscribes, in steps; then takes from its log those that were here only
                SETTLING  routing by interest: waits until the others know the subscriptions
                RESTING   REST ->                      messages that came there since, from its log
                                                       (flooding: if the taker's log lacks some)
                          <- parts
                CLOSING   DONE ->                      forgets the session
                          <- ENDED
    <- CONNACK            posts its entry

Other answers of a holder: NOTHING, it does not know the client; MOVED, another broker has the
session; NEWER, the session has a newer connection; COMING, the parts are queued behind messages. A
holder that is silent for `Limits.move_time` is given up (but see `_has_to_wait`).

Invariants: the holder keeps the session, and queues its messages, until DONE; it accepts DONE from
the newest taker only. The holder offers the session the messages that it had at TAKE, the taker all
others, from its own log or the holder's. A broker that sees an entry with a newer stamp than that
of its own session (or an equal stamp of a broker with a higher id) ends its session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from broker.base.hybrid_clock import LOGICAL, HybridClock
from broker.base.sequence_set import subtract
from broker.cluster.events import RouteChanged
from broker.cluster.link.codec import read_link_messages
from broker.cluster.link.version_vector import decode_vector, encode_vector
from broker.cluster.sessions.handover import Handover
from broker.cluster.sessions.message_vectors import (
    behind,
    lacking,
    numbered,
    offered,
    only,
    seen_by_both,
    trimmed,
    uncovered,
    whole,
)
from broker.cluster.sessions.pending_takeover import RETRY, Action, Input, PendingTakeover, State
from broker.cluster.sessions.session_codec import SessionState, decoding, restoring
from broker.cluster.sessions.session_entries import entries_of, key_of
from broker.cluster.sessions.session_history import REPAIR_TIME, MergedHistory, SessionHistory
from broker.cluster.sessions.session_parts import Added
from broker.cluster.sessions.takeover_messages import (
    ANSWER,
    COMING,
    DONE,
    ENDED,
    FOREIGN,
    MERGE,
    MOVED,
    NEWER,
    NOTHING,
    PART,
    REQUEST,
    REST,
    TAKE,
    heard,
    say,
)
from broker.cluster.sessions.tombstones import Tombstones, end_quietly
from broker.cluster.strategy.directory import CLIENT
from broker.core.message import size_of
from broker.core.session import Session, SharedOutgoing
from broker.core.session_owner import GONE, KEPT, RESUMED, Entry, decode_entry, digest
from broker.wire.constants import ReasonCode
from broker.wire.errors import WireError
from broker.wire.packets import Connect
from broker.wire.strings import shorten
from routing.topic_filter import split_shared

if TYPE_CHECKING:
    from broker.cluster.delivery.gap_recovery import GapRecovery
    from broker.cluster.delivery.origins import Origins
    from broker.cluster.delivery.pinned_entries import PinnedEntries
    from broker.cluster.delivery.replay_log import ReplayLog
    from broker.cluster.delivery.subscription_start import SubscriptionStarts
    from broker.cluster.link.link import Link
    from broker.cluster.ports import Neighbours, Reporting
    from broker.cluster.sessions.delivered_ranges import DeliveredRanges
    from broker.cluster.sessions.merge import SessionMerge
    from broker.cluster.sessions.ports import SessionBroker
    from broker.cluster.sessions.queue_merge import QueueMerge
    from broker.cluster.strategy.directory import Directory
    from broker.cluster.strategy.routing_strategy import RoutingStrategy
    from broker.cluster.strategy.subscription_barrier import SubscriptionBarrier
    from broker.core.ports import Claimant

COVER = 0.01
COVER_TIME = 0.3
"""s between two checks whether all messages have arrived that the holder had, and the longest wait
for them."""
SETTLE = 0.1
"""s for messages to reach the holder that were sent there before the publishers' brokers knew the
session's subscriptions here."""
MAX_HOPS = 16
"""brokers that may say one after another that yet another one has a session; more are a circle."""
SPREAD = 40503
"""Factor that spreads times over packet identifiers: 65536 / 1.618."""
SLICE = 2000
SLICE_TIME = 0.02
"""entries posted at a time when the first other broker is met, and s between."""

ANSWERS = {
    NOTHING: Input.NOTHING,
    MOVED: Input.MOVED,
    NEWER: Input.NEWER,
    ENDED: Input.ENDED,
    COMING: Input.COMING,
    FOREIGN: Input.FOREIGN,
}
"""The input that a holder's answer is for its takeover."""


class Takeover:
    """Knows which broker has a client's session; takes sessions, and hands them over."""

    __slots__ = (
        "_actions",
        "_barrier",
        "_clock",
        "_counters",
        "_delivered_ranges",
        "_directory",
        "_dispatcher",
        "_gap_recovery",
        "_handover",
        "_history",
        "_limits",
        "_links",
        "_log",
        "_log_limit",
        "_neighbours",
        "_node",
        "_origins",
        "_own",
        "_pending",
        "_predecessors",
        "_reporting",
        "_starts",
        "_strategy",
        "_turns",
        "active",
        "merging",
        "pinned_entries",
        "queues",
        "tombstones",
    )

    def __init__(
        self,
        node: SessionBroker,
        own_id: bytes,
        *,
        clock: HybridClock,
        links: Mapping[bytes, Link],
        directory: Directory,
        strategy: RoutingStrategy,
        barrier: SubscriptionBarrier,
        origins: Origins,
        log: ReplayLog,
        gap_recovery: GapRecovery,
        subscription_starts: SubscriptionStarts,
        pinned_entries: PinnedEntries,
        delivered_ranges: DeliveredRanges,
        history: SessionHistory,
        handover: Handover,
        merging: SessionMerge,
        queues: QueueMerge,
        tombstones: Tombstones,
        reporting: Reporting,
        neighbours: Neighbours,
    ) -> None:
        """`node`: this broker, with the id `own_id`; `clock`: makes all stamps; `links`: by the
        neighbour's id; `barrier`: tells when all brokers know of subscriptions; `pinned_entries`:
        keeps log entries for sessions that move; `handover`: the holder's side; `merging`: of older
        sessions, `queues`: of what they have queued; `tombstones`: of sessions that have ended;
        `reporting`: counts and logs; `neighbours`: get what is posted; the modules that know what a
        session was offered: `directory`, `strategy`, `origins`, `log`, `gap_recovery`,
        `subscription_starts`, `delivered_ranges`, `history`."""
        self._node = node
        self._dispatcher, self._predecessors = node.dispatcher, node.predecessors
        self._counters, self._log_limit = node.counters, node.log_limit
        self._turns, self._limits = node.turns, node.limits
        self._own = own_id
        self._clock = clock
        self._links = links
        self._directory = directory
        self._strategy = strategy
        self._barrier = barrier
        self._origins = origins
        self._log = log
        self._gap_recovery = gap_recovery
        self._starts = subscription_starts
        self._delivered_ranges = delivered_ranges
        self._history = history
        self._reporting = reporting
        self._neighbours = neighbours
        self.pinned_entries = pinned_entries
        self._handover = handover
        self._pending: dict[str, PendingTakeover] = {}
        self._actions = self._action_table()
        self.tombstones = tombstones
        self.merging = merging
        self.queues = queues
        self.active = False
        """Whether another broker has ever been reached: then entries are posted."""
        directory.watch(CLIENT, self._posted)
        directory.receive(REQUEST, self._requested)
        directory.receive(ANSWER, self._answered)
        directory.receive(PART, self._part)

    def _action_table(self) -> dict[Action, Callable[[PendingTakeover, float], None]]:
        """Return what is called for each action of the table of states."""
        return {
            Action.WAIT: self._wait,
            Action.ASK: self._ask,
            Action.READ: self._read,
            Action.COVER: self._cover,
            Action.RESTORE: self._restore,
            Action.TELL: self._tell,
            Action.TAKE_REST: self._take_rest,
            Action.CLOSE: self._close,
            Action.ASK_ELSEWHERE: self._ask_elsewhere,
            Action.START_NEW: self._start_new,
            Action.ADMIT_NEW: self._admit_new,
            Action.ADMIT: self._admit,
            Action.ADMIT_UNTOLD: self._admit_untold,
            Action.REFUSE: self._refuse,
            Action.HANG_UP: self._hang_up,
        }

    @property
    def exported(self) -> int:
        """Bytes of sessions that are encoded for other brokers."""
        return self._handover.size

    @property
    def arriving(self) -> int:
        """Bytes of sessions that have arrived and are not restored yet, old ones included."""
        return (
            sum(pending.parts.position for pending in self._pending.values())
            + self.merging.arriving
        )

    # ---------------------------------------------------------------- local sessions

    def begin(self, handshake: Claimant, connect: Connect, now: float) -> int:
        """Return the stamp for the connection of `handshake`, which is newer than all stamps that
        are known of its client; 0 if the connection has to wait for its session. `connect`: its
        CONNECT; `now`: s."""
        clock = self._clock
        if not self.active:
            return clock.tick(now)
        client_id = connect.client_id
        others = self._elsewhere(client_id)
        own = self._node.sessions.get(client_id)
        old = self._pending.get(client_id) if self._pending else None
        mine = digest(handshake.owner)
        if old is not None and old.handshake.owner != handshake.owner:
            handshake.foreign()
            return 0
        if own is None and any(entry.owner != mine for _, entry in others):
            handshake.foreign()
            return 0
        if old is not None:
            self._step(old, Input.LEFT, now)
        stamp = clock.tick(
            now, max([self._handover.newest(client_id), *(entry.stamp for _, entry in others)])
        )
        if connect.clean_start or not others:
            return stamp
        kept = [
            (entry.stamp, broker_id)
            for broker_id, entry in others
            if entry.flags & KEPT and entry.owner == mine
        ]
        if not kept or (own is not None and (own.stamp, self._own) > max(kept)):
            return stamp
        if len(self._pending) >= self._limits.max_moves:
            handshake.turn_away(
                ReasonCode.SERVER_BUSY, "connects while too many session takeovers are under way"
            )
            return 0
        pending = self._pending[client_id] = PendingTakeover(
            handshake, client_id, stamp, max(kept)[1], now
        )
        pending.conn.wait()
        self.pinned_entries.pin(pending, None)
        self._ask(pending, now)
        self._node.schedule(now + RETRY, lambda at: self._check(pending, at))
        return 0

    def came(self, session: Session, resumed: bool) -> None:
        """Post that a client is connected. `resumed`: its session existed before, here or at
        another broker."""
        if self.active:
            self._handover.came(session.client_id)
            if not resumed and session.expiry and self._elsewhere(session.client_id, away=True):
                # Its client may connect to an older session before they are merged: packet
                # identifiers of that one must not be taken for this one's.
                session.next_packet_id = session.created * SPREAD >> LOGICAL & 0xFFFF
            self._post(session, resumed)
            # Ahead of CONNACK, as the client may then connect to another broker at once.
            self._neighbours.tell(self._node.now)

    def _post(self, session: Session, resumed: bool) -> None:
        flags = (KEPT if session.expiry else 0) | (RESUMED if resumed else 0)
        entry = Entry(flags, session.stamp, session.created, session.floor, digest(session.owner))
        try:
            self._directory.post(key_of(session.client_id), entry.encode())
        except ValueError:  # the listing is full: other brokers do not know of this client
            self._reporting.count("sessions_unannounced")

    def ended(self, session: Session) -> None:
        """Withdraw the entry of a session that has ended. The entry of one that another broker has
        taken stays until that one has posted its own."""
        if self.active:
            self._handover.ended(session.client_id)
            if session.stamp and self._handover.given(session.client_id) is None:
                self.tombstones.ended(session)

    def route_changed(self, event: RouteChanged) -> None:
        """Go on with sessions of a broker that can be reached again."""
        if event.via is not None:
            self.merging.way_changed(event.broker_id)
        if event.via is not None and not self.active:
            self.active = True
            self._post_all(list(self._node.sessions.values()))
        if event.via is not None:
            for pending in self._pending.values():
                if pending.holder == event.broker_id:
                    self._ask(pending, self._node.now)

    def _post_all(self, sessions: list[Session]) -> None:
        for session in sessions[:SLICE]:
            if self._node.sessions.get(session.client_id) is session and session.stamp:
                self._post(session, False)
        if rest := sessions[SLICE:]:
            self._node.schedule(self._node.now + SLICE_TIME, lambda now: self._post_all(rest))

    # ---------------------------------------------------------------- sessions at other brokers

    def _elsewhere(self, client_id: str, *, away: bool = False) -> list[tuple[bytes, Entry]]:
        """Return the sessions that a client id has at other brokers that can be reached. A broker
        with a link to here counts as reachable, even while the tree finds another path to it.
        `away`: also those at brokers that cannot be reached."""
        found = [
            (broker_id, entry)
            for broker_id, entry in entries_of(self._directory, client_id)
            if not entry.flags & GONE and (away or self._lives(broker_id))
        ]
        return found + self._handover.takers(client_id, self._lives)

    def _posted(
        self, broker_id: bytes, key: bytes, value: bytes | None, gone: bool = False
    ) -> None:
        try:
            client_id = key.decode()
        except UnicodeDecodeError:
            return
        if (entry := decode_entry(value)) is None:
            if not gone:
                self._withdrawn(client_id, broker_id)
            return
        self._clock.merge(entry.stamp, self._node.now)
        self._handover.known(client_id, broker_id, entry.stamp)
        self._compare(broker_id, client_id, entry, read=False)

    def _compare(self, broker_id: bytes, client_id: str, entry: Entry, *, read: bool) -> None:
        """End or merge sessions of a client, as one here and one at another broker are known.
        `read`: its connection here was read to its end."""
        session = self._node.sessions.get(client_id)
        if session is None or not session.stamp or client_id in self._pending:
            return
        newer = (entry.stamp, broker_id) > (session.stamp, self._own)
        if newer and not read and session.conn is not None and entry.owner == digest(session.owner):
            leave = self._predecessors.leave
            leave(
                client_id,
                lambda now: self._compare(broker_id, client_id, entry, read=True),
                self._node.now,
            )
        elif entry.owner != digest(
            session.owner
        ):  # two users at once, at brokers that had not heard of each other
            if (entry.created, broker_id) < (session.created, self._own):
                self._lose(session, resumed=False)
        elif not newer:
            self.merging.found(session, broker_id, entry)
        elif entry.floor > session.stamp or not session.expiry or entry.flags & GONE:
            self._lose(session, resumed=bool(entry.flags & RESUMED))
        else:
            self._left(session)

    def _withdrawn(self, client_id: str, broker_id: bytes) -> None:
        self.merging.withdrawn(client_id, broker_id)
        self.tombstones.withdrawn(client_id, broker_id)

    def _left(self, session: Session) -> None:
        """Close the connection of a client that has a newer session at another broker, which is
        going to ask for this one."""
        node = self._node
        if (conn := session.conn) is not None:
            self._counters.sessions_superseded += 1
            node.log(
                "info",
                f"client {shorten(session.client_id)} at {conn.peer}"
                " has connected to another broker; closed",
            )
            node.take_over(session)

    def _lose(self, session: Session, *, resumed: bool) -> None:
        """End a session because the client has a newer one at another broker. `resumed`: that one
        continues this one, or another."""
        self._counters.sessions_superseded += 1
        if (conn := session.conn) is not None:
            peer = conn.peer
            client = shorten(session.client_id)
            text = f"client {client} at {peer} has connected to another broker; closed"
            self._log_limit.line("info", "connected to another broker", peer, text)
        self.tombstones.supersede(session, resumed=resumed)

    def leaves(self, client_id: str) -> bool:
        """Return whether another broker is taking the session of a client."""
        return self._handover.leaves(client_id)

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
        request = {State.ASKING: TAKE, State.RESTING: REST, State.CLOSING: DONE}.get(pending.state)
        if request is not None:
            whose = digest(pending.handshake.owner)
            body = say(
                request,
                pending.stamp,
                pending.client_id,
                pending.parts.position.to_bytes(4, "big") + whose,
            )
            if request == REST:
                body += encode_vector(pending.need)
            self._directory.send(pending.holder, REQUEST, body)

    def _check(self, pending: PendingTakeover, now: float) -> None:
        """Ask again for parts that were lost, until the holder has been silent for too long."""
        if self._pending.get(pending.client_id) is not pending:
            return
        self._node.now = now
        if pending.state is not State.CLOSING and _gone(pending):
            self._step(pending, Input.LEFT, now)
            return
        quiet = now - max(pending.heard, pending.since)
        if quiet >= self._limits.move_time or now >= pending.began + self._limits.move_longest:
            if self._has_to_wait(pending, now):
                self._ask(pending, now)
            else:
                pending.why = "the broker that has its session does not answer"
                self._step(pending, Input.SILENT, now)
        elif quiet >= RETRY / 2:
            self._ask(pending, now)
        if self._pending.get(pending.client_id) is pending:
            self._node.schedule(now + RETRY, lambda at: self._check(pending, at))

    def _has_to_wait(self, pending: PendingTakeover, now: float) -> bool:
        """Whether a client has to wait for a holder that can be reached but is silent."""
        if now >= pending.began + self._limits.move_longest or not self._lives(pending.holder):
            return False
        if pending.state is State.RESTING:
            return True
        if pending.state is not State.ASKING:
            return False
        link = self._links.get(pending.holder) or self._directory.link_to(pending.holder)
        older = (
            pending.client_id in self._node.sessions or len(self._elsewhere(pending.client_id)) > 1
        )
        return older or (link is not None and pending.slow(link.conn.last_heard))

    def _lives(self, broker_id: bytes) -> bool:
        """Whether a broker can be reached: over the tree, or over a link to here."""
        return self._directory.reaches(broker_id) or broker_id in self._links

    def _remove(self, pending: PendingTakeover) -> None:
        pending.work = None
        del self._pending[pending.client_id]
        self.pinned_entries.unpin(pending)

    def _drop(self, pending: PendingTakeover) -> None:
        session, pending.session = pending.session, None
        pending.work = None
        if session is not None and self._node.sessions.get(session.client_id) is session:
            session.stamp = 0  # it never belonged to this broker
            end_quietly(self._node, session, len(session.queue))
            if pending.left is not None:
                self._post(self.queues.put_back(pending.client_id, *pending.left), True)
                pending.left = None

    def _refuse(self, pending: PendingTakeover, now: float) -> None:
        """Refuse the client: the session is another user's, and stays where it is."""
        self._drop(pending)
        self._remove(pending)
        pending.conn.answered()
        if not pending.conn.closed:
            pending.handshake.foreign()

    def _hang_up(self, pending: PendingTakeover, now: float) -> None:
        """Close the client's connection: the session stays its holder's."""
        self._drop(pending)
        self._remove(pending)
        self._close_connection(pending)

    def _close_connection(self, pending: PendingTakeover) -> None:
        conn = pending.conn
        if not conn.closed:
            conn.answered()
            conn.close()
            self._node.forget(conn)

    # ---------------------------------------------------------------- taking: answers

    def _answered(self, sender: bytes, body: bytes, now: float) -> None:
        answer, stamp, client_id, rest = heard(body)
        pending = self._pending.get(client_id)
        if pending is None or pending.holder != sender or pending.stamp != stamp:
            self.merging.answered(sender, answer, stamp, client_id)
            return
        pending.heard = now
        given = ANSWERS.get(answer)
        if given is Input.MOVED:
            if len(rest) == 8 and rest != self._own and pending.hops < MAX_HOPS:
                pending.elsewhere = rest
            elif pending.state is not State.CLOSING:
                given = Input.NOTHING  # the broker that has it cannot be asked
        if given is not None:
            self._step(pending, given, now)

    def _ask_elsewhere(self, pending: PendingTakeover, now: float) -> None:
        pending.hops += 1
        pending.holder = pending.elsewhere
        pending.parts.clear()
        self._drop(pending)
        self._ask(pending, now)

    def _part(self, sender: bytes, body: bytes, now: float) -> None:
        what, stamp, client_id, rest = heard(body)
        pending = self._pending.get(client_id)
        if what == MERGE:
            self.merging.part(sender, stamp, client_id, rest, now)
            return
        if (
            pending is None
            or pending.holder != sender
            or pending.stamp != stamp
            or {TAKE: State.ASKING, REST: State.RESTING}.get(what) is not pending.state
        ):
            return
        added = pending.parts.add(rest)
        if added is Added.NOTHING:
            return
        pending.heard = now
        if added is Added.WHOLE:
            self._step(pending, Input.SESSION if what == TAKE else Input.REST, now)
        elif added is Added.WINDOW_ENDS:
            self._ask(pending, now)

    def _work(self, pending: PendingTakeover, work: Iterator[int]) -> None:
        """Do something in steps, unless the takeover ends or begins again meanwhile."""
        pending.work = work
        self._turns.go(work, lambda: pending.work is not work)

    def _read(self, pending: PendingTakeover, now: float) -> None:
        self._work(pending, self._reading(pending, pending.parts.take()))

    def _reading(self, pending: PendingTakeover, data: bytes) -> Iterator[int]:
        try:
            taken = yield from decoding(data, self._node.now, self._limits)
        except WireError as error:
            pending.why = f"its session cannot be read: {error.message}"
            self._step(pending, Input.UNUSABLE, self._node.now)
            return
        taken.began = self._starts.by_our_clock(taken.began, pending.holder)
        pending.taken = taken
        foreign = taken.owner != pending.handshake.owner
        self._step(pending, Input.FOREIGN if foreign else Input.DECODED, self._node.now)

    def _cover(self, pending: PendingTakeover, now: float) -> None:
        """Go on once no message can arrive here that the session was offered at its holder."""
        taken = pending.taken
        if (
            self._pending.get(pending.client_id) is not pending
            or pending.state is not State.COVERING
        ):
            return
        assert taken is not None
        self._node.now = now
        waits = self._strategy.everything_arrives() and now < pending.since + COVER_TIME
        if waits and only(taken.seen, offered(self._origins.vector)):
            self._node.schedule(now + COVER, lambda at: self._cover(pending, at))
        else:
            self._step(pending, Input.COVERED, now)

    def _restore(self, pending: PendingTakeover, now: float) -> None:
        taken, pending.taken = pending.taken, None
        assert taken is not None
        self._work(pending, self._restoring(pending, taken))

    def _restoring(self, pending: PendingTakeover, state: SessionState) -> Iterator[int]:
        """Make the session, and in the turn in which it is complete offer it the messages that were
        here and not at its holder."""
        node, keeps_receiving = self._node, self._strategy.holder_keeps_receiving()
        client_id, connect = pending.client_id, pending.handshake.connect
        assert connect is not None
        old = node.sessions.get(client_id)
        left = None
        if old is not None:
            if (
                old.stamp and old.expiry and old.stamp >= state.floor
            ):  # an older one, which no broker has taken
                if not (state.subscriptions or state.items or state.incoming):
                    # There is nothing in the newer one: go on with this.
                    self._complete(pending, node.now)
                    return
                old.unpack()
                left = self._history.old_state(old, node.now)
                pending.left = (old.stamp, old.permissions, left)
            self.tombstones.discard(old)
        if len(node.sessions) >= node.limits.max_sessions:
            self._complete(pending, node.now)
            return
        session = pending.session = node.sessions[client_id] = node.new_session(client_id)
        session.permissions = node.permissions(connect.username, client_id, pending.conn.listener)
        if keeps_receiving:
            self.pinned_entries.pin(pending, session)
        stepped = False
        merged = None if left is None else MergedHistory(left.seen)
        noting = (
            ()
            if merged is None or left is None
            else merged.adding(left.subscriptions, self._limits.session_written)
        )
        for steps in chain(noting, restoring(state, session, node.dispatcher, self._starts)):
            yield steps
            stepped = True
        if stepped:
            self._dispatcher.forget_routes()  # routes that were made meanwhile lack this session
        now = node.now
        self.pinned_entries.pin(pending, session)
        pending.seen = state.seen
        self._history.inherit(session, state)
        if left is not None and merged is not None:
            self.queues.absorb(session, left, now, merged, state.seen)
            pending.seen = seen_by_both(state, left)
        pending.waiting = len(session.queue)
        here = offered(self._origins.vector)
        self._delivered_ranges.add(session, behind(only(pending.seen, here), state.before))
        self._delivered_ranges.add(session, lacking(state.given, here))
        ordinary = any(split_shared(s[0])[0] is None for s in state.subscriptions)
        if keeps_receiving and ordinary:
            # Some messages go to the holder only, until all brokers know of its filters here.
            self._step(pending, Input.UNTOLD, now)
            return
        found = list(self._history.since(pending.seen, now - node.limits.log_age))
        pending.dropped = trimmed(self._origins.vector, pending.seen, state.before, found)
        if ordinary and pending.dropped:
            self._step(pending, Input.LACKING, now)
            return
        for key, number, message in found:
            self._history.offer(session, key, number, message)
        self._complete(pending, now)

    def _tell(self, pending: PendingTakeover, now: float) -> None:
        """Tell all brokers which filters the session has here."""
        if not self._barrier.expect((), lambda at: self._known(pending, at)):
            self._known(pending, now)

    def _known(self, pending: PendingTakeover, now: float) -> None:
        """Wait until messages have reached the holder that were sent before all brokers knew of the
        session's filters here."""
        pending.start = self._starts.begin()
        last_before = self._barrier.last_before
        pending.published = {key: last_before(key) or 0 for key in self._origins.vector}
        self._node.schedule(now + SETTLE, lambda at: self._settled(pending, at))

    def _settled(self, pending: PendingTakeover, now: float) -> None:
        if self._pending.get(pending.client_id) is pending and pending.state is State.SETTLING:
            self._step(pending, Input.SETTLED, now)

    def _take_rest(self, pending: PendingTakeover, now: float) -> None:
        """Offer the session the messages that came to its holder since, if they are complete: no
        other broker can be asked. Otherwise the client gets a new session, and this one is merged
        into it when it is complete."""
        try:
            whole = self._offer_rest(pending, pending.parts.take(), now)
        except WireError as error:
            whole, pending.why = False, f"its session cannot be read: {error.message}"
        else:
            pending.why = "the broker that has its session still waits for parts of it"
        if whole:
            self._complete(pending, now)
        else:
            self._step(pending, Input.UNUSABLE, now)

    def _offer_rest(self, pending: PendingTakeover, data: bytes, now: float) -> bool:
        """Offer the session the messages that came to its holder, and not here, since it was
        encoded. Returns False if some of `dropped` are missing."""
        if (session := pending.session) is None:
            return True
        end = 4 + int.from_bytes(data[:4], "big")
        seen = decode_vector(data[4:end], now)
        if (left := uncovered(pending.need, pending.seen, seen)) and pending.dropped:
            return False
        all_up_to, holds = (
            whole(pending.seen, seen),
            self._gap_recovery.holds,
        )  # messages behind it are held back here, and will be delivered
        rest = read_link_messages(data[end:], now)
        found = {
            (key, n): message
            for key, n, message in rest
            if n <= all_up_to.get(key, 0) or not holds(key, n)
        }
        self._delivered_ranges.add(session, lacking(numbered(found), offered(self._origins.vector)))
        everything = self._strategy.everything_arrives()
        horizon = now - self._limits.log_age if everything else pending.began - REPAIR_TIME
        found |= {
            (key, sequence): message
            for key, sequence, message in self._history.since(pending.seen, horizon)
        }
        # Messages that have arrived here are in the log, and have to be sorted with older ones.
        late = [session.queue.pop() for _ in range(len(session.queue) - pending.waiting)]
        session.queued_bytes -= sum(size_of(outgoing.message) for outgoing in late)
        for (key, number), message in sorted(found.items(), key=lambda item: item[0]):
            self._history.offer(session, key, number, message)
        for outgoing in reversed(late):
            if isinstance(outgoing, SharedOutgoing):
                session.put_by(outgoing, None, tell=False)
        given = self._history.given(
            session
        )  # the holder's log may have messages that it holds back and has not delivered
        for key, ranges in left.items():
            if lacks := subtract(ranges, given.get(key, [])):
                self._gap_recovery.fetch(session, key, lacks)
        return True

    # ---------------------------------------------------------------- taking: the end

    def _complete(self, pending: PendingTakeover, now: float) -> None:
        self._step(pending, Input.LEFT if _gone(pending) else Input.COMPLETE, now)

    def _close(self, pending: PendingTakeover, now: float) -> None:
        """Keep the session, before its holder is asked to forget it."""
        if (session := pending.session) is not None:
            session.stamp = pending.stamp
            if session.expiry:
                self._node.journal.make_durable(session)
        self._ask(pending, now)

    def _start_new(self, pending: PendingTakeover, now: float) -> None:
        """Let the client in with a new session, as its own cannot be fetched."""
        text = f"client {shorten(pending.client_id)}: {pending.why}; it starts a new session"
        self._reporting.log("warning", text)
        self._counters.session_takeovers_timed_out += 1
        self._admit_new(pending, now)

    def _admit_new(self, pending: PendingTakeover, now: float) -> None:
        self._drop(pending)
        self._admit(pending, now)

    def _admit_untold(self, pending: PendingTakeover, now: float) -> None:
        """Admit the client, although its holder has not said that it has forgotten the session: the
        holder is asked again when it is back."""
        if pending.session is not None:
            self.merging.taken(pending.client_id, pending.holder, pending.stamp)
        self._admit(pending, now)

    def _admit(self, pending: PendingTakeover, now: float) -> None:
        """Let the client in, with its session or with a new one."""
        node = self._node
        self._remove(pending)
        session, pending.session = pending.session, None
        newer = [
            (broker_id, entry)
            for broker_id, entry in self._elsewhere(pending.client_id)
            if entry.stamp > pending.stamp
        ]
        if newer:  # the client has connected to another broker by now
            if session is not None and session.conn is None:
                self._post(session, True)
                node.expire_later(session)
                for broker_id, entry in newer:
                    self._compare(broker_id, pending.client_id, entry, read=True)
            self._close_connection(pending)
            return
        self._counters.session_takeovers += session is not None
        pending.handshake.moved(pending.stamp, now)
        if (found := node.sessions.get(pending.client_id)) is not None:
            self.merging.look(found)
        if session is None or node.sessions.get(pending.client_id) is not session:
            return
        if (
            session.conn is None and session.expiry_timer is None
        ):  # its client is gone, or was refused at the last moment
            self._post(session, True)
            node.expire_later(session)

    def _requested(self, sender: bytes, body: bytes, now: float) -> None:
        """Take the request of a taker. If it has a newer connection of a client that waits here for
        the same session, the one here is given up."""
        _, stamp, client_id, rest = heard(body)
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
