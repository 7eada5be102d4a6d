"""Sessions that other brokers take: the holder's side of a takeover (`takeover` has the whole of
it, `takeover_messages` what both sides say)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

from broker.base import limits
from broker.cluster.delivery.subscription_start import starts_of
from broker.cluster.link.codec import (
    LAST,
    OriginWindow,
    Ranges,
    Vector,
    decode_vector,
    encode_vector,
    intersect,
    merge,
    split_key,
    subtract,
)
from broker.cluster.sessions.message_vectors import (
    offered,
    only,
    ranges_of,
    uncovered,
    vector_of,
)
from broker.cluster.sessions.session_codec import (
    SessionState,
    encoding,
    state_of,
    subscriptions_of,
)
from broker.cluster.sessions.session_entries import entries_of, key_of, posted_stamp
from broker.cluster.sessions.session_parts import PART_SIZE, Sending, split
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
    REST,
    TAKE,
    heard,
    say,
)
from broker.cluster.sessions.tombstones import end_quietly
from broker.core.session import Session
from broker.core.session_owner import KEPT, Entry, digest

if TYPE_CHECKING:
    from broker.cluster.delivery.gap_recovery import GapRecovery
    from broker.cluster.delivery.origins import Origins
    from broker.cluster.delivery.orphans import Orphans
    from broker.cluster.delivery.replay_log import ReplayLog
    from broker.cluster.delivery.spared import SparedEntries
    from broker.cluster.sessions.delivered_ranges import DeliveredRanges
    from broker.cluster.sessions.session_history import SessionHistory
    from broker.cluster.sessions.whereabouts import Whereabouts
    from broker.cluster.strategy.directory import Directory
    from broker.cluster.strategy.routing_strategy import RoutingStrategy
    from broker.core.local_broker import LocalBroker

GIVEN_TIME = 5.0
"""s; as long we tell who asks to whom a session went, until everybody knows."""
LINGER = 1.0
"""s for which the entry of a session that went elsewhere stays when the new one is known here: a
broker that hears that the old one is withdrawn has heard of the new one by then. With neither, it
would begin a new session."""
LATE = 10.0
"""s; with routing by interest, what came to a broker so long before a takeover began has been
offered to its local subscribers: no repair takes longer, and what is held back from them until it
ends comes from the log."""
COMPLETE_TIME = 5.0
"""s for which a session that another broker takes waits for what was published before that one's
subscriptions: longer than it takes to notice that a neighbour is silent (2 s), and to ask again."""
MERGE_TIME = 30.0
"""s for which a session that is to be added to a newer one waits for that, as long as the
publisher's broker is there: nobody waits for it. What has not come then the newer session's broker
asks for."""
MERGE_AWAY = 10.0
"""s of these while that broker is away."""
EXPORT_TIME = 30.0
"""s that an encoded session is kept for a taker that asks for no more of it."""

Given = tuple[bytes, Entry]
"""Who has taken a session, and what it is going to post of it."""


class Export:
    """A session of ours that somebody takes."""

    __slots__ = (
        "at",
        "awaited",
        "began",
        "data",
        "merged",
        "number",
        "queued",
        "rest",
        "seen",
        "sending",
        "stamp",
        "taker",
    )

    def __init__(
        self, taker: bytes, stamp: int, number: int, seen: Vector, queued: int, at: float
    ) -> None:
        self.taker = taker
        self.stamp = stamp
        self.number = number
        self.seen = seen
        self.queued = queued  # messages in the queue that are part of it
        self.data: bytes | None = None  # while it is being encoded, in steps,
        self.awaited = False  # and whether it has been asked for meanwhile
        self.rest = b""
        self.merged = False  # encoded for a broker that has a newer session
        self.began = self.at = at  # s; of the last request
        self.sending = Sending()


class Handover:
    """Sessions of ours that others take, and those that they took."""

    __slots__ = (
        "_asked",
        "_delivered_ranges",
        "_directory",
        "_exports",
        "_gap_recovery",
        "_given",
        "_history",
        "_log",
        "_never",
        "_node",
        "_number",
        "_origins",
        "_orphans",
        "_own",
        "_spared",
        "_strategy",
        "_whereabouts",
        "size",
    )

    def __init__(
        self,
        node: LocalBroker,
        own_id: bytes,
        directory: Directory,
        strategy: RoutingStrategy,
        origins: Origins,
        log: ReplayLog,
        orphans: Orphans,
        gap_recovery: GapRecovery,
        spared: SparedEntries,
        delivered_ranges: DeliveredRanges,
        whereabouts: Whereabouts,
        history: SessionHistory,
    ) -> None:
        """`own_id`: of this broker; the others are its parts that have what a session needs."""
        self._node = node
        self._own = own_id
        self._directory = directory
        self._strategy = strategy
        self._origins = origins
        self._log = log
        self._orphans = orphans
        self._gap_recovery = gap_recovery
        self._delivered_ranges = delivered_ranges
        self._whereabouts = whereabouts
        self._history = history
        self._exports: dict[str, Export] = {}
        self.size = 0  # in all of them
        self._number = 0
        self._spared = spared
        self._given: dict[str, Given] = {}
        # Client -> stamp of who waits for its session to be complete, since when.
        self._asked: dict[str, tuple[int, float]] = {}
        # With flooding: what was waited for, and did not come.
        self._never: dict[bytes, Ranges] = {}

    # ---------------------------------------------------------------- our own clients

    def came(self, client_id: str) -> None:
        """Note that a client has connected here: nobody takes what was encoded before."""
        if self._exports:
            self.forget(client_id)
        if self._given:
            self._given.pop(client_id, None)

    def newest(self, client_id: str) -> int:
        """Return the stamp of the taker of a session, 0 when there is none."""
        export = self._exports.get(client_id) if self._exports else None
        return 0 if export is None else export.stamp

    def given(self, client_id: str) -> Given | None:
        """Return who has taken a session that not everybody finds without us."""
        return self._given.get(client_id)

    def takers(self, client_id: str, lives: Callable[[bytes], bool]) -> list[Given]:
        """Return who has taken a client's session, or has a newer one and is adding the one here to
        that: this broker may have heard of it by that alone."""
        found = [] if (given := self._given.get(client_id)) is None else [given]
        export = self._exports.get(client_id) if self._exports else None
        session = self._node.sessions.get(client_id)
        if (
            export is not None
            and session is not None
            and export.merged
            and export.stamp > session.stamp
            and lives(export.taker)
        ):
            found.append(
                (
                    export.taker,
                    Entry(KEPT, export.stamp, session.born, session.floor, digest(session.owner)),
                )
            )
        return found

    def known(self, client_id: str, broker_id: bytes, stamp: int) -> None:
        """Note that a broker tells everybody of a session: then nobody need ask us any more."""
        given = self._given.get(client_id)
        if given is not None and given[0] == broker_id and stamp >= given[1].stamp:
            self._withdraw_later(client_id, given, LINGER)

    def _withdraw_later(self, client_id: str, given: Given, seconds: float) -> None:
        self._node.schedule(self._node.now + seconds, lambda now: self._found(client_id, given))

    def _found(self, client_id: str, given: Given) -> None:
        if self._given.get(client_id) is given:
            del self._given[client_id]
            if client_id not in self._node.sessions:
                self._directory.withdraw(key_of(client_id))

    def leaves(self, client_id: str) -> bool:
        """Whether another broker is taking a session of ours."""
        return self.newest(client_id) > 0 or self._node.predecessors.leaves(client_id)

    # ---------------------------------------------------------------- requests

    def requested(self, sender: bytes, body: bytes, now: float, *, read: bool = False) -> None:
        """Answer a request. `read`: the client's connection here was read to its end. Raises
        MalformedPacket."""
        request, stamp, client_id, rest = heard(body)
        node = self._node
        session = node.sessions.get(client_id)
        newer = (
            session is not None
            and 0 < session.stamp <= stamp
            and rest[4:12] == digest(session.owner)
        )
        need = decode_vector(rest[12:], now) if request in (REST, MERGE) else {}
        if not read and session is not None and session.conn is not None and newer:
            node.predecessors.leave(
                client_id, lambda at: self.requested(sender, body, at, read=True), now
            )
            self._answer(sender, COMING, stamp, client_id)
            return
        export = self._exports.get(client_id)
        if (
            export is not None
            and export.taker == sender
            and export.stamp > stamp
            and request in (TAKE, MERGE)
        ):
            # It was started again, and its clock was ahead: who took it then is no more.
            self.forget(client_id)
            export = None
        mine = export is not None and (export.taker, export.stamp) == (sender, stamp)
        if session is None or not session.stamp:
            self._absent(sender, request, stamp, client_id, rest[4:12])
        elif rest[4:12] != digest(session.owner):
            self._answer(sender, FOREIGN, stamp, client_id)
        elif session.stamp > stamp or (
            export is not None and (export.stamp > stamp or (request == DONE and not mine))
        ):
            self._answer(sender, NEWER, stamp, client_id)
        elif (
            request == TAKE
            and (holder := self._holder(client_id, rest[4:12], sender, session.stamp, stamp))
            is not None
        ):
            # Who asks has not heard of the newer session.
            self._answer(sender, MOVED, stamp, client_id, holder)
        elif request == DONE:
            # if nothing of it is encoded: it was, before this broker was started again, or a while
            # ago
            entry = Entry(KEPT, stamp, session.born, session.floor, digest(session.owner))
            given = self._given[client_id] = (sender, entry)
            end_quietly(node, session, len(session.queue) if export is None else export.queued)
            self._withdraw_later(
                client_id,
                given,
                LINGER if posted_stamp(self._directory, sender, client_id) >= stamp else GIVEN_TIME,
            )
            self._answer(sender, ENDED, stamp, client_id)
        elif (
            request == MERGE
            and not (mine and export and export.merged)
            and self._lacks(client_id, stamp, need, now, merge=True)
        ):
            if session.conn is not None:
                node.take_over(session)
            self._answer(sender, COMING, stamp, client_id)
        else:
            self._give(sender, request, stamp, session, int.from_bytes(rest[:4], "big"), need, now)

    def _lacks(
        self,
        client_id: str,
        stamp: int,
        need: Vector,
        now: float,
        *,
        merge: bool = False,
        late: bool = False,
    ) -> bool:
        """Whether something is still to come to a session that was published before its taker's
        subscriptions (`need`), and has not been waited for too long (`late`). A link may have
        swallowed it, and nobody knows yet."""
        if self._asked.get(client_id, (0, now))[0] != stamp:
            self._asked[client_id] = (stamp, now)
        since = self._asked[client_id][1]
        vector = self._origins.vector
        waited = now - since
        if not merge and not self._strategy.leaves_out:
            waits = self._on_its_way(need, waited, late)
        else:
            known = {
                key: window
                for key, window in need.items()
                if key in vector and self._comes(key, waited, merge)
            }
            waits = (waited < COMPLETE_TIME and self._gap_recovery.unsettled()) or bool(
                only(known, offered(vector))
            )
        if waits and not late:
            if len(self._asked) > limits.MAX_MOVES:
                del self._asked[next(iter(self._asked))]
            return True
        del self._asked[client_id]
        return False

    def _on_its_way(self, need: Vector, waited: float, late: bool) -> bool:
        """Whether something of `need` is still to come, with flooding: over links, behind what they
        carry, though its origin may be gone. What newer messages have overtaken comes soon, in a
        replay, or not at all: one that had expired is not replayed. No later takeover waits for
        what did not come."""
        vector = self._origins.vector
        lacks = uncovered(need, dict.fromkeys(need, OriginWindow(0, 0.0)), self._offered())
        overtaken = {
            key: subtract(ranges, [(vector[key].top + 1, LAST)])
            for key, ranges in lacks.items()
            if key in vector
        }
        lasts = {key: ranges for key, ranges in lacks.items() if ranges != overtaken.get(key)}
        if waited < COMPLETE_TIME and not late and any(key in vector for key in lacks):
            return True
        if not late and any(self._there(key) for key in lasts):
            return True
        self._gave_up(overtaken)
        if lasts:
            # This taker hears that it lacks them.
            self._node.schedule(self._node.now, lambda now: self._gave_up(lasts))
        return False

    def _gave_up(self, lacks: dict[bytes, Ranges]) -> None:
        vector = self._origins.vector
        self._never = {
            key: intersect(old, vector[key].lacks)
            for key, old in self._never.items()
            if key in vector
        }
        for key, ranges in lacks.items():
            if ranges and key in vector:
                self._never[key] = merge([*self._never.get(key, ()), *ranges])[-limits.MAX_GAPS :]

    def _offered(self) -> Vector:
        """Return what has come to the sessions here, or does not come any more."""
        seen = offered(self._origins.vector)
        for key, never in self._never.items():
            if never and key in seen:
                seen |= vector_of({key: merge([*ranges_of({key: seen[key]}).get(key, ()), *never])})
        return seen

    def _there(self, key: bytes) -> bool:
        """Whether an origin can be reached."""
        broker_id, boot = split_key(key)
        return self._directory.reaches(broker_id) and self._directory.boot(broker_id) == boot

    def _comes(self, key: bytes, waited: float, merge: bool) -> bool:
        """Whether what is missing of an origin comes, if it can be had at all, and is to be waited
        for."""
        if self._there(key):
            return waited < (MERGE_TIME if merge else COMPLETE_TIME)
        stream = self._origins.vector[key].stream
        if not merge:
            return False
        if stream is None:  # links bring it, if they have it
            return waited < MERGE_AWAY
        return waited < (MERGE_TIME if self._orphans.reachable(stream) else MERGE_AWAY)

    def _answer(
        self, broker_id: bytes, answer: int, stamp: int, client_id: str, rest: bytes = b""
    ) -> None:
        self._directory.send(broker_id, ANSWER, say(answer, stamp, client_id, rest))

    def _absent(
        self, sender: bytes, request: int, stamp: int, client_id: str, owner: bytes
    ) -> None:
        given = self._given.get(client_id)
        if (
            given is None
            and request == TAKE
            and (holder := self._holder(client_id, owner, sender, 0, stamp)) is not None
        ):
            # Who asks has not heard of it yet.
            self._answer(sender, MOVED, stamp, client_id, holder)
        elif given is None:
            self._answer(sender, NOTHING, stamp, client_id)
        elif owner != given[1].owner:
            self._answer(sender, FOREIGN, stamp, client_id)
        elif request == DONE:
            self._answer(
                sender,
                ENDED if (given[0], given[1].stamp) == (sender, stamp) else NEWER,
                stamp,
                client_id,
            )
        elif given[0] == sender:
            self._answer(sender, NOTHING, stamp, client_id)
        else:
            self._answer(sender, MOVED, stamp, client_id, given[0])

    def _holder(
        self, client_id: str, owner: bytes, sender: bytes, above: int, below: int
    ) -> bytes | None:
        """Return who can be reached and has the newest session of a client that began between two
        stamps; None for nobody but who asks."""
        directory = self._directory
        kept = [
            (entry.stamp, broker_id)
            for broker_id, entry in entries_of(directory, client_id)
            if entry.flags & KEPT
            and entry.owner == owner
            and broker_id != sender
            and directory.reaches(broker_id)
        ]
        newest = max([one for one in kept if above < one[0] < below], default=None)
        return None if newest is None else newest[1]

    def _give(
        self,
        sender: bytes,
        request: int,
        stamp: int,
        session: Session,
        at: int,
        need: Vector,
        now: float,
    ) -> None:
        """Send parts of a session, from `at` on."""
        node = self._node
        client_id = session.client_id
        if session.conn is not None:
            node.take_over(session)
            if client_id not in node.sessions:
                self._answer(sender, NOTHING, stamp, client_id)
                return
        export = self._exports.get(client_id)
        same = export is not None and (export.taker, export.stamp, export.merged) == (
            sender,
            stamp,
            request == MERGE,
        )
        # What it got is not known here any more, nor what came since: it has to begin again.
        if request == REST and not same:
            self._answer(sender, MOVED, stamp, client_id, self._own)
            return
        if export is None or not same:
            export = self._encode(sender, stamp, session, now, merged=request == MERGE)
            at = 0
        if export.data is None:
            export.at, export.awaited = now, True
            self._answer(sender, COMING, stamp, client_id)
            return
        if request == REST and not export.rest:
            longest = export.began + limits.MOVE_LONGEST - limits.MOVE_TIME
            if self._lacks(client_id, stamp, need, now, late=now >= longest):
                # What is on its way to us alone would be missing, and what is held for it out of
                # order. It is asked again.
                self._answer(sender, COMING, stamp, client_id)
                return
            export.rest = self._rest(session, export, now)
            self.size += len(export.rest)
            at = 0
        self._answer(sender, COMING, stamp, client_id)
        export.at = now
        self._send(
            client_id, export, request, export.rest if request == REST else export.data, at, now
        )

    def _send(
        self, client_id: str, export: Export, request: int, data: bytes, at: int, now: float
    ) -> None:
        """Send parts of what is encoded, from `at` on, as many as are due."""
        for part in split(data, export.number, at, export.sending.due(request, at, now)):
            if not self._directory.send(
                export.taker, PART, say(request, export.stamp, client_id, part)
            ):
                export.sending.refused(at)
                return
            at += PART_SIZE

    def _encode(
        self, taker: bytes, stamp: int, session: Session, now: float, *, merged: bool
    ) -> Export:
        client_id = session.client_id
        if self.size > limits.MAX_EXPORT_BYTES:
            self._forget_old(now)
        node = self._node
        self._whereabouts.leaves(session, now)
        if merged:
            self._history.note(session)
            state = self._history.old_state(session, now, alone=True)
        else:
            seen = offered(self._origins.vector)
            self._delivered_ranges.complete(seen, session)
            state = state_of(session, seen, node.dispatcher, alone=True)
        if not merged and self._left_behind(client_id, session.stamp):
            state.given = self._given_here(session, state)
            self._tighten(session, state.before)
        self._number = self._number + 1 & 0xFFFFFFFF
        export = Export(taker, stamp, self._number, state.seen, len(session.queue), now)
        export.merged = merged
        self._spared.keep(export, session)  # what is spared for the last one is spared on
        self.forget(client_id)
        self._exports[client_id] = export
        node.schedule(now + EXPORT_TIME, lambda at: self._expire(client_id, export, at))
        work = encoding(state, subscriptions_of(session), len(session.subscriptions), now)
        node.turns.go(
            self._encoded(client_id, export, work),
            lambda: self._exports.get(client_id) is not export,
        )
        return export

    def _encoded(
        self, client_id: str, export: Export, work: Generator[int, None, bytes]
    ) -> Iterator[int]:
        """Encode a session in steps. What it is was fixed before; what comes for it from then on is
        part of the rest. A large one takes some turns: then its first parts are sent, as they have
        been asked for."""
        export.data = data = yield from work
        self.size += len(data)
        if export.awaited:
            export.at = self._node.now
            self._send(client_id, export, MERGE if export.merged else TAKE, data, 0, export.at)

    def _left_behind(self, client_id: str, stamp: int) -> bool:
        """Whether some broker that is away has an older session of a client."""
        return any(entry.stamp < stamp for _, entry in entries_of(self._directory, client_id))

    def _given_here(self, session: Session, state: SessionState) -> dict[bytes, Ranges]:
        """Return which messages a session has that its start does not tell of: what waits, and what
        it got from logs."""
        history = self._history
        history.note(session)
        has = ranges_of(offered(self._origins.vector))
        for origin in history.origins_of(state.items, has, self._node.now):
            if origin is not None:
                history.offers(session, *origin)
        return history.given(session)

    def _tighten(self, session: Session, before: Vector) -> None:
        """Say more exactly what was not for a session: what did not come here, as nobody wanted it
        before it subscribed. The next broker cannot find that in its log when it merges an older
        session with this one."""
        begun = [start for start in starts_of(session) if start is not None]
        if any(start.adopted for start in begun) or self._gap_recovery.unsettled():
            return
        starts = [start.at for start in begun]
        if not starts:
            return
        lowest: dict[bytes, int] = {}
        vector, log = self._origins.vector, self._log
        for entry in log.latest():
            if entry.at < min(starts):
                break
            lowest[entry.key] = min(entry.sequence, lowest.get(entry.key, entry.sequence))
        else:
            if self._node.counters.log_trimmed:
                return  # it does not go back so far: large messages empty it in milliseconds
        for key, window in before.items():
            if (here := vector.get(key)) is not None:
                window.top = max(window.top, min(lowest.get(key, here.top + 1) - 1, LAST))

    def _expire(self, client_id: str, export: Export, now: float) -> None:
        if self._exports.get(client_id) is export:
            if export.at + EXPORT_TIME <= now:
                self.forget(client_id)
            else:
                self._node.schedule(
                    export.at + EXPORT_TIME, lambda at: self._expire(client_id, export, at)
                )

    def _rest(self, session: Session, export: Export, now: float) -> bytes:
        """Encode what came since the session was encoded and is not in it, and how far that is
        all."""
        seen = encode_vector(self._offered())
        parts = [len(seen).to_bytes(4, "big"), seen]
        came = only(self._origins.vector, export.seen)
        for entry in self._log.those(came, export.began - LATE):
            if any(session.wanting(entry.topic.decode())):
                for sequence in range(entry.sequence, entry.sequence + entry.count):
                    parts.append(entry.part(sequence, sequence).data(now))
        return b"".join(parts)

    def forget(self, client_id: str) -> None:
        """Drop what was encoded of a session."""
        export = self._exports.pop(client_id, None)
        if export is not None:
            self._spared.release(export)
            self.size -= len(export.data or b"") + len(export.rest)

    def _forget_old(self, now: float) -> None:
        """Make room: who asks again gets it encoded again."""
        for client_id, export in list(self._exports.items()):
            if export.at + limits.MOVE_TIME < now:
                self.forget(client_id)
