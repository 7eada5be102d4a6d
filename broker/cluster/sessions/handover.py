"""Sessions of this broker that others take: the holder's side of a takeover.

`takeover` is the other side, `takeover_messages` has what both say, `pending_handover` the states
and the table of transitions, which is followed here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, NamedTuple

from mqttree.broker.cluster.link.version_vector import decode_vector
from mqttree.broker.cluster.sessions.pending_handover import (
    TRANSITIONS,
    Action,
    Asked,
    Input,
    PendingHandover,
    State,
)
from mqttree.broker.cluster.sessions.session_entries import entries_of, key_of, posted_stamp
from mqttree.broker.cluster.sessions.session_head import encoding
from mqttree.broker.cluster.sessions.session_history import put_in_order
from mqttree.broker.cluster.sessions.session_parts import PART_SIZE, split
from mqttree.broker.cluster.sessions.session_state import subscriptions_of
from mqttree.broker.cluster.sessions.takeover_messages import (
    COMING,
    DONE,
    END,
    ENDED,
    FOREIGN,
    MERGE,
    MOVED,
    NEWER,
    NOTHING,
    SESSION_ANSWER,
    SESSION_ENDED,
    SESSION_PART,
    TAKE,
    decode_takeover,
    encode_takeover,
)
from mqttree.broker.cluster.sessions.tombstones import end_quietly
from mqttree.broker.core.session import Session
from mqttree.broker.core.session_owner import KEPT, Entry, digest

if TYPE_CHECKING:
    from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
    from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
    from mqttree.broker.cluster.sessions.messages_under_way import MessagesUnderWay
    from mqttree.broker.cluster.sessions.ports import SessionBroker, Succession
    from mqttree.broker.cluster.sessions.recently_elsewhere import RecentlyElsewhere
    from mqttree.broker.cluster.sessions.session_history import SessionHistory

TAKEOVER_SILENCE_S = 1.0
"""s without a sign of the broker that has a client's session, until the client gets a new
session [session_takeovers_timed_out]: longer than a repair of the tree, much shorter than
clients wait for CONNACK."""

TAKEOVER_MAX_S = 10.0
"""s that a client waits for its session at most, if it is on its way, behind much else: most
clients wait longer for CONNACK."""

MAX_EXPORT_BYTES = 256 * 1024 * 1024
"""bytes of encoded sessions kept for those that take them; beyond it those that were not asked
for lately are encoded again."""

GIVEN_TIME = 5.0
"""s for which this broker tells others which one has taken a session, until all have heard."""
LINGER_S = 1.0
"""s for which the directory entry of a session that was given away stays when the taker's entry is
known here: a broker that hears of the withdrawal has heard of the taker's entry by then. A broker
that knew neither would begin a new session."""
EXPORT_TIME = 30.0
"""s for which an encoded session is kept for a taker that has stopped asking."""


class Given(NamedTuple):
    """A session that another broker has taken."""

    taker: bytes
    """The broker's id."""
    copy: int
    """Stamp of the session that was here."""
    entry: Entry
    """The directory entry that it is going to post."""


class Handover:
    """Sessions of this broker that others take, and notes of those that they have taken."""

    def __init__(
        self,
        node: SessionBroker,
        *,
        directory: LinkStateDirectory,
        bus: UnicastBus,
        history: SessionHistory,
        under_way: MessagesUnderWay,
        recently_elsewhere: RecentlyElsewhere,
    ) -> None:
        """`node`: this broker; `directory`: which brokers have sessions;
        `bus`: carries messages to them; `history`: what a taker has to know of a session;
        `under_way`: what is still to come to it; `recently_elsewhere`: notes sessions that
        leave."""
        self._node = node
        self._predecessors = node.predecessors
        self._own = node.config.id
        self._directory = directory
        self._bus = bus
        self._history = history
        self._under_way = under_way
        self._recently_elsewhere = recently_elsewhere
        self._exports: dict[str, PendingHandover] = {}
        self.size = 0
        """Bytes that are encoded."""
        self._number = 0
        self._given: dict[str, Given] = {}
        self.succession: Succession | None = None
        """Gives away the sessions of brokers that cannot be reached."""
        self._actions: dict[Action, Callable[[Asked, float], None]] = {
            Action.READ_CLIENT: self._read_client,
            Action.SAY_FOREIGN: lambda asked, now: self.answer(asked, FOREIGN),
            Action.SAY_NEWER: lambda asked, now: self.answer(asked, NEWER),
            Action.SAY_MOVED: self._say_moved,
            Action.SAY_NOTHING: lambda asked, now: self.answer(asked, NOTHING),
            Action.SAY_ENDED: lambda asked, now: self.answer(asked, ENDED),
            Action.SAY_COMING: lambda asked, now: self.answer(asked, COMING),
            Action.ENCODE: self._encode,
            Action.SEND_LATER: self._send_later,
            Action.SEND_FIRST: self._send_first,
            Action.SEND: lambda asked, now: self.send(asked, self._exports[asked.client_id], now),
            Action.GIVE: self._give,
            Action.END: self._end,
            Action.DROP: lambda asked, now: self._drop(asked.client_id),
            Action.DROP_NOTE: self._drop_note,
            Action.DROP_NOTE_SOON: lambda asked, now: self._found_after(asked.client_id, LINGER_S),
            Action.WITHDRAW: self._withdraw,
        }

    # ---------------------------------------------------------------- states

    def _state(self, client_id: str) -> State:
        session = self._node.sessions.get(client_id)
        if session is None or not session.stamp:
            return State.GIVEN if client_id in self._given else State.NONE
        export = self._exports.get(client_id)
        return State.HERE if export is None else export.state

    def _step(self, asked: Asked, state: State, given: Input, now: float) -> None:
        """Do what the table says for an input."""
        found = TRANSITIONS.get((state, given))
        if found is None:
            self._node.counters.session_takeovers_unexpected += 1
            return
        action, following = found
        export = self._exports.get(asked.client_id)
        if export is not None:
            export.state = following
        self._actions[action](asked, now)

    def _happens(self, client_id: str, state: State, given: Input) -> None:
        """Take an input that is no request of a taker."""
        self._step(Asked(b"", 0, 0, client_id, 0, b"", 0, {}), state, given, self._node.now)

    # ---------------------------------------------------------------- local clients

    def on_client_connected(self, session: Session) -> None:
        """Note that a client has connected here: what was encoded before is dropped."""
        client_id = session.client_id
        if self.succession is not None:
            self.succession.on_client_connected(client_id, session.stamp)
        export = self._exports.get(client_id) if self._exports else None
        if export is not None:
            self._happens(client_id, export.state, Input.CAME)
        if client_id in self._given:
            self._happens(client_id, State.GIVEN, Input.CAME)

    def ended(self, client_id: str) -> None:
        """Note that a session has ended here: what was encoded of it is dropped."""
        export = self._exports.get(client_id)
        if export is not None:
            self._happens(client_id, export.state, Input.ENDED)

    def newest(self, client_id: str) -> int:
        """Return the stamp of the taker of a session, 0 when there is none."""
        export = self._exports.get(client_id) if self._exports else None
        return 0 if export is None else export.stamp

    def is_successor_of(self, client_id: str) -> bool:
        """Whether a session of a client may be here that is of a broker that cannot be reached."""
        return self.succession is not None and self.succession.has(client_id)

    def given(self, client_id: str) -> Given | None:
        """Return the broker that has taken a session, until all brokers can find it there."""
        return self._given.get(client_id)

    def takers(self, client_id: str, lives: Callable[[bytes], bool]) -> list[tuple[bytes, Entry]]:
        """Return the brokers that have taken a client's session, or are taking it: this broker may
        know of a newer session there only by their requests. `lives`: says whether a broker can be
        reached."""
        given = self._given.get(client_id)
        found = [] if given is None else [(given.taker, given.entry)]
        export = self._exports.get(client_id) if self._exports else None
        session = self._node.sessions.get(client_id)
        if (
            export is not None
            and session is not None
            and export.stamp > session.stamp
            and lives(export.taker)
        ):
            ages = session.created, session.floor
            found.append((export.taker, Entry(KEPT, export.stamp, *ages, digest(session.owner))))
        return found

    def known(self, client_id: str, broker_id: bytes, stamp: int) -> None:
        """Note that the broker `broker_id` has announced the session of `client_id` with this
        `stamp` to all brokers: they need not ask this broker for it much longer."""
        given = self._given.get(client_id)
        if given is not None and given.taker == broker_id and stamp >= given.entry.stamp:
            self._happens(client_id, State.GIVEN, Input.POSTED)

    def _drop_note(self, asked: Asked, now: float) -> None:
        del self._given[asked.client_id]

    def _found_after(self, client_id: str, seconds: float) -> None:
        given = self._given[client_id]

        def found(now: float) -> None:
            if self._given.get(client_id) is given:
                self._happens(client_id, State.GIVEN, Input.FOUND)

        self._node.timers.schedule(self._node.now + seconds, found)

    def _withdraw(self, asked: Asked, now: float) -> None:
        del self._given[asked.client_id]
        if asked.client_id not in self._node.sessions:
            self._directory.withdraw(key_of(asked.client_id))

    def is_handing_over(self, client_id: str) -> bool:
        """Whether another broker is taking the session of a client."""
        return self.newest(client_id) > 0 or self._predecessors.is_leaving(client_id)

    # ---------------------------------------------------------------- requests

    def requested(self, sender: bytes, body: bytes, now: float) -> None:
        """Answer the request `body` of the broker `sender`. `now`: s.

        Raises:
            MalformedPacket: the request is invalid.
        """
        request, stamp, client_id, rest = decode_takeover(body)
        need = decode_vector(rest[20:], now) if request == MERGE else {}
        position, copy = int.from_bytes(rest[:4], "big"), int.from_bytes(rest[12:20], "big")
        asked = Asked(sender, request, stamp, client_id, position, rest[4:12], copy, need)
        self._ask(asked, now, read=False)

    def _ask(self, asked: Asked, now: float, *, read: bool) -> None:
        if self.succession is not None and self.succession.requested(asked, now):
            return
        if asked.request != DONE and self.succession is not None and self.succession.doubts:
            # Its standby may have given the session to another broker.
            self.answer(asked, COMING)
            return
        session = self._node.sessions.get(asked.client_id)
        state = self._state(asked.client_id)
        newer = session is not None and self._is_newer(asked, session)
        if session is not None and newer:
            session.successor = max(session.successor, asked.stamp)
        if session is None or state in (State.NONE, State.GIVEN):
            given = self._absent_input(asked)
        elif asked.copy not in (0, session.stamp):
            # Another session is meant: an older one, or one of a broker that this one answers for.
            given = Input.OUTDATED if session.stamp > asked.stamp else Input.ABSENT
        elif not read and session.conn is not None and newer:
            given = Input.CONNECTED
        else:
            export = self._exports.get(asked.client_id)
            if (
                export is not None
                and export.taker == asked.sender
                and export.stamp > asked.stamp
                and asked.request in (TAKE, MERGE)
            ):
                # What took the session then is gone.
                self._step(asked, state, Input.RESTARTED, now)
                state = self._state(asked.client_id)
            given = self._refusal(asked, session) or self._request_input(asked, session, now)
            state = self._state(asked.client_id)
        self._step(asked, state, given, now)

    def _is_newer(self, asked: Asked, session: Session) -> bool:
        """Whether a request is of a connection of the same user that is newer than the session."""
        return 0 < session.stamp <= asked.stamp and asked.owner == digest(session.owner)

    def _absent_input(self, asked: Asked) -> Input:
        """Return what a request for a session means that is not here."""
        given = self._given.get(asked.client_id)
        if given is None:
            elsewhere = asked.request == TAKE and self._holder(asked, 0) is not None
            return Input.ELSEWHERE if elsewhere else Input.ABSENT
        taker, copy, entry = given
        if asked.owner != entry.owner:
            return Input.FOREIGN
        if asked.request == DONE and asked.copy != copy:
            return Input.ABSENT
        if asked.request == DONE:
            mine = (taker, entry.stamp) == (asked.sender, asked.stamp)
            return Input.DONE if mine else Input.OUTDATED
        return Input.ABSENT if taker == asked.sender else Input.ELSEWHERE

    def _refusal(self, asked: Asked, session: Session) -> Input | None:
        """Return why a broker may not take a session that is here, None if it may."""
        export = self._exports.get(asked.client_id)
        if asked.owner != digest(session.owner):
            return Input.FOREIGN
        if session.stamp > asked.stamp:
            return Input.OUTDATED
        if export is not None and (
            export.stamp > asked.stamp
            or (
                asked.request == DONE
                and (export.taker, export.stamp) != (asked.sender, asked.stamp)
            )
        ):
            return Input.OUTDATED
        if asked.request == TAKE and self._holder(asked, session.stamp) is not None:
            return Input.ELSEWHERE
        return None

    def _request_input(self, asked: Asked, session: Session, now: float) -> Input:
        """Return what a request for a session means that may be taken. The client's connection here
        is closed if there is one."""
        if asked.request == DONE:
            # Nothing of it is encoded if that was long ago, or before this broker was restarted.
            return Input.DONE
        export = self._exports.get(asked.client_id)
        same = export is not None and export.serves(asked)
        # What is held lacks what is on its way from yet another copy.
        early = (
            asked.request == MERGE
            and not same
            and (session.held or self._under_way.awaited(asked, now))
        )
        if session.conn is not None:
            self._node.clients.take_over(session)
            if asked.client_id not in self._node.sessions:
                return Input.ABSENT
        if asked.request == END:
            return Input.CLEAN
        if early:
            return Input.EARLY
        return Input.MORE if same else Input.BEGIN

    def _read_client(self, asked: Asked, now: float) -> None:
        def read(at: float) -> None:
            self._ask(asked, at, read=True)

        self._predecessors.leave(asked.client_id, read, now)
        self.answer(asked, COMING)

    def _say_moved(self, asked: Asked, now: float) -> None:
        """Name the broker that has the session: the taker has not heard of it yet."""
        session = self._node.sessions.get(asked.client_id)
        given = self._given.get(asked.client_id)
        here = session is not None and session.stamp
        if session is not None and here:
            holder = self._holder(asked, session.stamp)
        else:
            holder = self._holder(asked, 0) if given is None else given.taker
        assert holder is not None
        self.answer(asked, MOVED, holder)

    def _give(self, asked: Asked, now: float) -> None:
        node, client_id = self._node, asked.client_id
        session = node.sessions[client_id]
        export = self._exports.get(client_id)
        queued = len(session.queue) if export is None else export.queued
        self._drop(client_id)
        entry = Entry(KEPT, asked.stamp, session.created, session.floor, digest(session.owner))
        self._given[client_id] = Given(asked.sender, session.stamp, entry)
        end_quietly(node, session, queued)
        posted = posted_stamp(self._directory.database, asked.sender, client_id) >= asked.stamp
        self._found_after(client_id, LINGER_S if posted else GIVEN_TIME)
        self.answer(asked, ENDED)

    def _end(self, asked: Asked, now: float) -> None:
        self._drop(asked.client_id)
        self._node.end_session(self._node.sessions[asked.client_id], None)
        self.answer(asked, NOTHING)

    def answer(self, asked: Asked, answer: int, rest: bytes = b"") -> None:
        """Answer a request (`asked`). `answer`: NOTHING to FOREIGN; `rest`: what follows."""
        ended = asked.request == END and answer == NOTHING
        body = encode_takeover(answer, asked.stamp, asked.client_id, rest)
        self._bus.send(asked.sender, SESSION_ENDED if ended else SESSION_ANSWER, body)

    def _holder(self, asked: Asked, above: int) -> bytes | None:
        """Return the broker that can be reached and has the newest session of a client, with a
        stamp between `above` and that of a request; None: no broker but the one that asks."""
        database = self._directory.database
        kept = [
            (entry.stamp, broker_id)
            for broker_id, entry in entries_of(database, asked.client_id)
            if entry.flags & KEPT
            and entry.owner == asked.owner
            and broker_id != asked.sender
            and database.reaches(broker_id)
        ]
        newest = max([one for one in kept if above < one[0] < asked.stamp], default=None)
        return None if newest is None else newest[1]

    # ---------------------------------------------------------------- encoding and sending

    def _send_later(self, asked: Asked, now: float) -> None:
        export = self._exports[asked.client_id]
        export.at, export.awaited = now, True
        self.answer(asked, COMING)

    def send(self, asked: Asked, export: PendingHandover, now: float) -> None:
        """Answer a request (`asked`) for parts of a session (`export`), and send those that are due
        at `now` (s)."""
        export.at = now
        if asked.sender != self._own:
            self.answer(asked, COMING)
        self._send_parts(export, asked.client_id, asked.position, now)

    def _send_first(self, asked: Asked, now: float) -> None:
        export = self._exports[asked.client_id]
        if export.awaited:
            export.at = now
            self._send_parts(export, asked.client_id, 0, now)

    def _send_parts(self, export: PendingHandover, client_id: str, at: int, now: float) -> None:
        """Send the taker of a session (`export`, of `client_id`) its parts from byte `at` on, as
        many as are due at `now` (s)."""
        request = MERGE if export.merged else TAKE
        for part in split(export.data or b"", export.number, at, export.sending.due(at, now)):
            body = encode_takeover(request, export.stamp, client_id, part)
            if not self._bus.send(export.taker, SESSION_PART, body):
                export.sending.refused(at)
                return
            at += PART_SIZE

    def _encode(self, asked: Asked, now: float) -> None:
        """Encode a session in steps, and send its first parts."""
        node, client_id = self._node, asked.client_id
        session = node.sessions[client_id]
        if self.size > MAX_EXPORT_BYTES:
            self._make_room(now)
        self._recently_elsewhere.on_handover(session, now)
        if session.held:
            put_in_order(session)
        state = self._history.state(session, merged=asked.request == MERGE)
        self._number = self._number + 1 & 0xFFFFFFFF
        export = PendingHandover(asked, self._number, len(session.queue), now)
        self._drop(client_id)
        self._exports[client_id] = export
        node.timers.schedule(now + EXPORT_TIME, lambda at: self._expire(client_id, export, at))
        at_once = self._node.limits.session_written
        work = encoding(state, subscriptions_of(session), now, at_once)
        self._node.turns.go(
            self._encoded(client_id, export, work),
            lambda: self._exports.get(client_id) is not export,
        )
        self._step(asked._replace(position=0), export.state, Input.MORE, now)

    def _encoded(
        self, client_id: str, export: PendingHandover, work: Generator[int, None, bytes]
    ) -> Iterator[int]:
        """Encode a session in steps. Its state was fixed before. A large session takes several
        turns: if the taker has asked for it meanwhile, its first parts are sent then."""
        export.data = data = yield from work
        self.size += len(data)
        self._happens(client_id, export.state, Input.ENCODED)

    def _expire(self, client_id: str, export: PendingHandover, now: float) -> None:
        if self._exports.get(client_id) is export:
            if export.at + EXPORT_TIME <= now:
                self._happens(client_id, export.state, Input.EXPIRED)
            else:
                self._node.timers.schedule(
                    export.at + EXPORT_TIME, lambda at: self._expire(client_id, export, at)
                )

    def _drop(self, client_id: str) -> None:
        export = self._exports.pop(client_id, None)
        if export is not None:
            self.size -= export.size

    def _make_room(self, now: float) -> None:
        """Drop sessions whose takers have not asked for `TAKEOVER_SILENCE_S`: they are encoded
        again when they do."""
        for client_id, export in list(self._exports.items()):
            if export.at + TAKEOVER_SILENCE_S < now:
                self._happens(client_id, export.state, Input.EXPIRED)
