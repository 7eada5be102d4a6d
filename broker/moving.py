"""One session for a client id in the whole federation: the newest connection takes it along (docs/decisions/0016).

Every broker posts which clients it has sessions for, with the time when their connection began. A client that connects where
nobody else knows it, or that wants a clean start, is accepted at once. Else its connection waits while the session is fetched:

    client    taker                                holder
    CONNECT ->  ASKING    TAKE, stamp, from where ->   closes its connection (0x8E), encodes the session, goes on queueing
                          <- parts, WINDOW at a time   (again from where it broke off, as often as it is asked)
                COVERING  waits until all that the session was offered there has been here
                          subscribes; takes from its log what was here and not there
                SETTLING  routing by interest: waits until the others know
                RESTING   REST ->                      what came there meanwhile, from its log
                          <- parts
                CLOSING   DONE ->                      forgets the session
                          <- ENDED
    <- CONNACK            posts its entry

A holder that does not know of the client: NOTHING; that gave the session away: MOVED, to whom; that knows of a newer connection:
NEWER. A holder that is silent for limits.MOVE_TIME is given up: the client begins anew.

Invariants: the holder keeps the session, and what comes for it, until DONE; it believes the DONE of the newest taker alone.
A message is offered to the session by the holder if the holder had it at TAKE, else by the taker: never by both. A broker that
sees an entry with a newer stamp than its own session has (of equal ones that of the higher id) ends that session.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from broker import limits
from broker.fanout import Delivery
from broker.listings import CLIENT, INTEREST
from broker.log import read_link_messages
from broker.message import Message, size_of
from broker.origin import Vector
from broker.session import Session, SharedOutgoing
from broker.sessionstate import SessionState, decode_state, encode_state, offered, only, restore, state_of
from broker.wire.constants import ReasonCode
from broker.wire.errors import MalformedPacket, WireError
from broker.wire.packets import Connect
from broker.wire.strings import shorten
from routing.topics import matches, split_shared

if TYPE_CHECKING:
    from broker.accept import Handshake
    from broker.federation import Federation
    from broker.node import Node

REQUEST, ANSWER, PART = 2, 3, 0x84
"""Kinds of messages to one broker; the high bit: not ahead of the messages that clients published."""

TAKE, REST, DONE = 1, 2, 3
"""Requests; of the first two there are parts."""
NOTHING, MOVED, NEWER, ENDED = 1, 2, 3, 4
"""Answers."""

KEPT, RESUMED = 1, 2
"""Flags of an entry: the session outlives its connection; it goes on with an older one."""

ASKING, COVERING, SETTLING, RESTING, CLOSING = range(5)
"""States of a move, see above."""

RETRY = 0.25
"""s between two requests for the same."""
COVER = 0.01
COVER_TIME = 0.3
"""s between two looks whether everything has come that the holder had, and the longest wait for it."""
SETTLE = 0.1
"""s in which all brokers know of a new filter (issue 4: a tree's diameter and 50 ms)."""
PART_SIZE = 60_000
WINDOW = 16
"""bytes of a part, and parts sent for one request: a link's other traffic gets in between."""
GIVEN_TIME = 5.0
"""s; as long we tell who asks to whom a session went, until everybody knows."""
SLICE = 2000
SLICE_TIME = 0.02
"""entries posted at a time when the first other broker is met, and s between."""

_HEAD = struct.Struct(">BQH")  # request or answer, stamp of the taker, length of the client id
_WHERE = struct.Struct(">III")  # export, bytes of all its parts, position of this one


class Known(NamedTuple):
    """A session at another broker."""

    stamp: int
    flags: int


class Export:
    """A session of ours that somebody takes."""

    __slots__ = ("at", "data", "number", "queued", "rest", "seen", "stamp", "taker")

    def __init__(self, taker: bytes, stamp: int, number: int, seen: Vector, queued: int, data: bytes, at: float) -> None:
        self.taker = taker
        self.stamp = stamp
        self.number = number
        self.seen = seen
        self.queued = queued  # messages in the queue that are part of it
        self.data = data
        self.rest = b""
        self.at = at


class Pull:
    """A session that we take."""

    __slots__ = (
        "client_id", "data", "export", "handshake", "heard", "holder", "seen", "session", "since", "stamp", "state", "taken",
        "waiting",
    )  # fmt: skip

    def __init__(self, handshake: Handshake, client_id: str, stamp: int, holder: bytes, now: float) -> None:
        self.handshake = handshake
        self.client_id = client_id
        self.stamp = stamp
        self.holder = holder
        self.state = ASKING
        self.since = self.heard = now  # in this state; from the holder
        self.export = (0, 0)  # number and bytes
        self.data = bytearray()
        self.taken: SessionState | None = None
        self.session: Session | None = None
        self.seen: Vector = {}  # what the holder has offered it,
        self.waiting = 0  # and what of that waited


class Moving:
    """Who has which client's session; takes and gives them."""

    __slots__ = ("_export_bytes", "_exports", "_federation", "_given", "_node", "_number", "_pulls", "active", "known")

    def __init__(self, node: Node, federation: Federation) -> None:
        self._node = node
        self._federation = federation
        self.active = False
        """Somebody else was there: entries are posted."""
        self.known: dict[str, dict[bytes, Known]] = {}
        """Sessions elsewhere: client id -> broker -> session."""
        self._pulls: dict[str, Pull] = {}
        self._exports: dict[str, Export] = {}
        self._export_bytes = 0
        self._number = 0
        self._given: dict[str, tuple[bytes, int]] = {}  # sessions that went: to whom, with which stamp
        listings = federation.listings
        listings.watch(CLIENT, self._posted)
        listings.on_way.append(self._way_changed)
        listings.receive(REQUEST, self._requested)
        listings.receive(ANSWER, self._answered)
        listings.receive(PART, self._part)

    # ---------------------------------------------------------------- our own sessions

    def stamp(self, client_id: str, now: float) -> int:
        """Return the stamp of a connection that begins: newer than all that we know of this client."""
        newest = 0
        if self.known and (others := self.known.get(client_id)):
            newest = max(known.stamp for known in others.values())
        if self._exports and (export := self._exports.get(client_id)):
            newest = max(newest, export.stamp)
        return self._federation.retention.clock.tick(now, newest)

    def came(self, session: Session, resumed: bool) -> None:
        """Tell the others of a client that is connected. `resumed`: its session was there before, here or elsewhere."""
        client_id = session.client_id
        self._forget_export(client_id)
        self._given.pop(client_id, None)
        if self.active:
            self._post(session, resumed)

    def _post(self, session: Session, resumed: bool) -> None:
        flags = (KEPT if session.expiry else 0) | (RESUMED if resumed else 0)
        value = bytes((flags,)) + session.stamp.to_bytes(8, "big")
        try:
            self._federation.listings.post(CLIENT + session.client_id.encode(), value)
        except ValueError:  # the listing is full: this client is known here alone
            self._federation.count("sessions_untold")

    def ended(self, session: Session) -> None:
        """Tell the others that a session is no more; one that went elsewhere is found until it is known there."""
        if self._exports:
            self._forget_export(session.client_id)
        if self.active and session.stamp and session.client_id not in self._given:
            self._federation.listings.withdraw(CLIENT + session.client_id.encode())

    def _way_changed(self, broker_id: bytes, via: bytes | None) -> None:
        if via is not None and not self.active:
            self.active = True
            self._post_all(list(self._node.sessions.values()))

    def _post_all(self, sessions: list[Session]) -> None:
        for session in sessions[:SLICE]:
            if self._node.sessions.get(session.client_id) is session and session.stamp:
                self._post(session, False)
        if rest := sessions[SLICE:]:
            self._node.schedule(self._node.now + SLICE_TIME, lambda now: self._post_all(rest))

    # ---------------------------------------------------------------- sessions elsewhere

    def _posted(self, broker_id: bytes, key: bytes, value: bytes | None) -> None:
        try:
            client_id = key.decode()
        except UnicodeDecodeError:
            return
        others = self.known.get(client_id)
        if value is None:
            if others is not None:
                others.pop(broker_id, None)
                if not others:
                    del self.known[client_id]
            return
        if len(value) < 9:
            return
        known = Known(int.from_bytes(value[1:9], "big"), value[0])
        if others is None:
            others = self.known[client_id] = {}
        others[broker_id] = known
        self._federation.retention.clock.merge(known.stamp, self._node.now)
        given = self._given.get(client_id)
        if given is not None and given[0] == broker_id and known.stamp >= given[1]:
            self._forget_given(client_id, given)
        session = self._node.sessions.get(client_id)
        if session is None or not session.stamp or client_id in self._pulls:
            return
        if (known.stamp, broker_id) > (session.stamp, self._federation.own.id):
            self._lose(session, known)

    def _lose(self, session: Session, winner: Known) -> None:
        """End a session because the client has a newer one elsewhere."""
        node = self._node
        node.counters.sessions_lost += 1
        if session.conn is not None:
            node.log("info", f"client {shorten(session.client_id)} at {session.conn.peer} has connected elsewhere; closed")
            node.take_over(session)
        if node.sessions.get(session.client_id) is session:
            if winner.flags & RESUMED:
                self._end_quietly(session, len(session.queue))  # it goes on there
            else:
                node.end_session(session)

    def _end_quietly(self, session: Session, queued: int) -> None:
        """Forget a session that is somewhere else, with the first `queued` of its waiting messages; no will is due."""
        session.will = None
        session.inflight.clear()
        for _ in range(min(queued, len(session.queue))):
            session.queue.popleft()
        self._node.end_session(session)

    def _forget_given(self, client_id: str, given: tuple[bytes, int]) -> None:
        if self._given.get(client_id) is given:
            del self._given[client_id]
            if client_id not in self._node.sessions:
                self._federation.listings.withdraw(CLIENT + client_id.encode())

    # ---------------------------------------------------------------- taking: a client comes

    def wait(self, handshake: Handshake, connect: Connect, now: float) -> bool:
        """Whether this client's connection has to wait for its session."""
        client_id = connect.client_id
        if (old := self._pulls.get(client_id)) is not None:
            self._give_up(old, now)
        if connect.clean_start or not (others := self.known.get(client_id)):
            return False
        kept = [(known.stamp, broker_id) for broker_id, known in others.items() if known.flags & KEPT]
        own = self._node.sessions.get(client_id)
        if not kept or (own is not None and (own.stamp, self._federation.own.id) > max(kept)):
            return False
        if len(self._pulls) >= limits.MAX_MOVES:
            handshake.turn_away(ReasonCode.SERVER_BUSY, "comes while too many sessions are being moved")
            return True
        handshake.conn.waiting = True
        pull = self._pulls[client_id] = Pull(handshake, client_id, self.stamp(client_id, now), max(kept)[1], now)
        self._ask(pull)
        self._node.schedule(now + RETRY, lambda at: self._check(pull, at))
        return True

    def _ask(self, pull: Pull) -> None:
        """Send the request that this state waits for the answer to."""
        request = {ASKING: TAKE, RESTING: REST, CLOSING: DONE}.get(pull.state)
        if request is not None:
            self._send(pull.holder, REQUEST, request, pull.stamp, pull.client_id, len(pull.data).to_bytes(4, "big"))

    def _send(self, broker_id: bytes, kind: int, what: int, stamp: int, client_id: str, rest: bytes = b"") -> None:
        name = client_id.encode()
        self._federation.listings.send(broker_id, kind, _HEAD.pack(what, stamp, len(name)) + name + rest)

    def _check(self, pull: Pull, now: float) -> None:
        """Look after a move now and then: what got lost is asked for again, but not for ever."""
        if self._pulls.get(pull.client_id) is not pull:
            return
        self._node.now = now
        if pull.state != CLOSING and (pull.handshake.conn.closed or pull.handshake.conn.closing):
            self._give_up(pull, now)
            return
        quiet = now - max(pull.heard, pull.since)
        if quiet >= limits.MOVE_TIME:
            self._silent(pull, now)
        elif quiet >= RETRY / 2:
            self._ask(pull)
        if self._pulls.get(pull.client_id) is pull:
            self._node.schedule(now + RETRY, lambda at: self._check(pull, at))

    def _silent(self, pull: Pull, now: float) -> None:
        client = shorten(pull.client_id)
        if pull.state == RESTING:  # what it has is most of it
            self._federation.log("warning", f"client {client}: the broker that had its session did not send the rest")
            self._close(pull, now)
        elif pull.state == CLOSING:  # it forgets the session when it sees that we have it
            self._finish(pull, now)
        elif pull.state == ASKING:
            self._node.counters.sessions_unmoved += 1
            self._federation.log("warning", f"client {client}: the broker that has its session does not answer; it begins anew")
            self._finish(pull, now)

    def _give_up(self, pull: Pull, now: float) -> None:
        """The client is gone, or has connected once more: before DONE, the holder still has the session; then it is ours."""
        if self._pulls.get(pull.client_id) is pull:
            if pull.state == CLOSING:
                self._finish(pull, now)
                return
            del self._pulls[pull.client_id]
            self._drop(pull)
            self._hang_up(pull)

    def _drop(self, pull: Pull) -> None:
        session, pull.session = pull.session, None
        if session is not None and self._node.sessions.get(session.client_id) is session:
            session.stamp = 0  # it was never ours
            self._end_quietly(session, len(session.queue))

    def _hang_up(self, pull: Pull) -> None:
        conn = pull.handshake.conn
        if not conn.closed:
            conn.waiting = False
            conn.close()
            self._node.forget(conn)

    # ---------------------------------------------------------------- taking: answers

    def _answered(self, sender: bytes, body: bytes, now: float) -> None:
        answer, stamp, client_id, rest = _split(body)
        pull = self._pulls.get(client_id)
        if pull is None or pull.holder != sender or pull.stamp != stamp:
            return
        pull.heard = now
        if answer == NEWER:
            del self._pulls[client_id]
            self._drop(pull)
            self._hang_up(pull)
        elif pull.state == CLOSING:
            if answer in (ENDED, NOTHING):
                self._finish(pull, now)
        elif answer == MOVED and len(rest) == 8 and rest != self._federation.own.id:
            pull.holder = rest
            pull.export, pull.data = (0, 0), bytearray()
            self._drop(pull)
            pull.state = ASKING
            self._ask(pull)
        elif answer in (NOTHING, MOVED):
            self._drop(pull)
            self._finish(pull, now)

    def _part(self, sender: bytes, body: bytes, now: float) -> None:
        what, stamp, client_id, rest = _split(body)
        pull = self._pulls.get(client_id)
        if pull is None or pull.holder != sender or pull.stamp != stamp or {TAKE: ASKING, REST: RESTING}.get(what) != pull.state:
            return
        if len(rest) < _WHERE.size:
            raise MalformedPacket("part of a session is truncated")
        number, total, at = _WHERE.unpack_from(rest)
        if total > limits.MAX_MOVED_BYTES:
            raise MalformedPacket("a session that is too large")
        if pull.export != (number, total):
            pull.export, pull.data = (number, total), bytearray()
        if at != len(pull.data):
            return  # one before it was lost, and is asked for again
        pull.data += rest[_WHERE.size :]
        pull.heard = now
        if len(pull.data) >= total:
            self._whole(pull, now)
        elif (at // PART_SIZE + 1) % WINDOW == 0:
            self._ask(pull)

    def _whole(self, pull: Pull, now: float) -> None:
        data, pull.data, pull.export = bytes(pull.data), bytearray(), (0, 0)
        try:
            if pull.state == RESTING:
                self._take_rest(pull, data, now)
                self._close(pull, now)
            else:
                pull.taken = decode_state(data, now)
                pull.state, pull.since = COVERING, now
                self._cover(pull, now)
        except WireError as error:
            self._federation.log("warning", f"client {shorten(pull.client_id)}: its session cannot be read: {error.message}")
            self._node.counters.sessions_unmoved += 1
            self._drop(pull)
            self._finish(pull, now)

    def _cover(self, pull: Pull, now: float) -> None:
        """Go on once nothing can come any more that the session has been offered at its holder."""
        if self._pulls.get(pull.client_id) is not pull or pull.state != COVERING:
            return
        self._node.now = now
        assert pull.taken is not None
        if not self._federation.interest.selective and only(pull.taken.seen, offered(self._node.relay.vector)):
            if now < pull.since + COVER_TIME:
                self._node.schedule(now + COVER, lambda at: self._cover(pull, at))
                return
            self._node.counters.sessions_uncertain += 1
        fresh = self._restore(pull, pull.taken, now)
        pull.taken = None
        if fresh:
            pull.state, pull.since = SETTLING, now
            self._node.schedule(now + SETTLE, lambda at: self._settled(pull, at))
        else:
            self._close(pull, now)

    def _restore(self, pull: Pull, state: SessionState, now: float) -> bool:
        """Make the session, and offer it what has been here and not at its holder. True: it has filters that are new here."""
        node = self._node
        client_id, connect = pull.client_id, pull.handshake.connect
        assert connect is not None
        old = node.sessions.get(client_id)
        if old is not None:
            self._end_quietly(old, len(old.queue))
        if (node.access is not None and state.username != connect.username) or len(node.sessions) >= limits.MAX_SESSIONS:
            return False  # what waits for one user is not for another
        posted = self._federation.listings.directory.own.entries
        filters = [inner for group, inner in (split_shared(s[0]) for s in state.subscriptions) if group is None]
        fresh = self._federation.interest.selective and any(INTEREST + f.encode() not in posted for f in filters)
        session = pull.session = node.sessions[client_id] = Session(node, client_id)
        session.permissions = node.permissions(connect.username, client_id, pull.handshake.conn.listener)
        restore(state, session, node.fanout)
        pull.waiting = len(session.queue)
        pull.seen = state.seen
        if not fresh:
            for _, _, message in self._since(pull.seen, now - limits.LOG_AGE):
                self._offer(session, message)
        return fresh

    def _since(self, seen: Vector, horizon: float) -> Iterator[tuple[bytes, int, Message]]:
        """Find what is in our log and not in `seen`, and came after `horizon` (s): origin, sequence number, message."""
        relay = self._node.relay
        if lacks := only(relay.vector, seen):
            for entry in relay.log.those(lacks, horizon):
                for number, message in enumerate(entry.messages(), entry.sequence):
                    yield entry.key, number, message

    def _offer(self, session: Session, message: Message) -> None:
        """Deliver what comes from a log."""
        topic = message.topic.decode()
        wanted = [s for s in session.subscriptions.values() if split_shared(s.filter)[0] is None and matches(s.filter, topic)]
        permitted = session.permissions is None or session.permissions.may_receive(topic)
        if wanted and permitted and not message.topic.startswith(b"$"):
            delivery = Delivery(session, wanted)
            retain = message.retain and delivery.retain_as_published
            session.deliver(message, min(message.qos, delivery.qos), retain, delivery.ids)

    def _settled(self, pull: Pull, now: float) -> None:
        if self._pulls.get(pull.client_id) is pull and pull.state == SETTLING:
            pull.state, pull.since = RESTING, now
            self._ask(pull)

    def _take_rest(self, pull: Pull, data: bytes, now: float) -> None:
        """Offer the session what came to its holder, and not to us, since it was encoded."""
        session = pull.session
        if session is None:
            return
        found = {(key, sequence): message for key, sequence, message in read_link_messages(data, now)}
        found |= {(key, sequence): message for key, sequence, message in self._since(pull.seen, now - 2 * limits.MOVE_TIME)}
        # What has come here already is in the log, and has to be sorted with what is older.
        late = [session.queue.pop() for _ in range(len(session.queue) - pull.waiting)]
        session.queued_bytes -= sum(size_of(outgoing.message) for outgoing in late)
        for _, message in sorted(found.items(), key=lambda item: item[0]):
            self._offer(session, message)
        for outgoing in reversed(late):
            if isinstance(outgoing, SharedOutgoing):
                session.put_by(outgoing, tell=False)

    # ---------------------------------------------------------------- taking: the end

    def _close(self, pull: Pull, now: float) -> None:
        if pull.handshake.conn.closed or pull.handshake.conn.closing:
            self._give_up(pull, now)
            return
        pull.state, pull.since = CLOSING, now
        if pull.session is not None:
            pull.session.stamp = pull.stamp
        self._ask(pull)

    def _finish(self, pull: Pull, now: float) -> None:
        """Let the client in, with its session or with a new one."""
        node = self._node
        del self._pulls[pull.client_id]
        session, pull.session = pull.session, None
        others = self.known.get(pull.client_id)
        if others and max(known.stamp for known in others.values()) > pull.stamp:
            if session is not None:
                self._end_quietly(session, len(session.queue))
            self._hang_up(pull)  # it is connected elsewhere by now
            return
        if session is not None:
            node.counters.sessions_moved += 1
            if pull.handshake.conn.closed or pull.handshake.conn.closing:
                self._post(session, True)
                node.expire_later(session)
                return
        pull.handshake.moved(pull.stamp, now)

    # ---------------------------------------------------------------- giving

    def _requested(self, sender: bytes, body: bytes, now: float) -> None:
        request, stamp, client_id, rest = _split(body)
        node = self._node
        if (pull := self._pulls.get(client_id)) is not None and pull.stamp < stamp:
            self._give_up(pull, now)
        session = node.sessions.get(client_id)
        export = self._exports.get(client_id)
        given = self._given.get(client_id)
        if session is None or not session.stamp:
            self._absent(sender, request, stamp, client_id, given)
        elif session.stamp > stamp or (export is not None and export.stamp > stamp):
            self._send(sender, ANSWER, NEWER, stamp, client_id)
        elif request == DONE:
            if export is None or (export.taker, export.stamp) != (sender, stamp):
                self._send(sender, ANSWER, NEWER, stamp, client_id)
                return
            given = self._given[client_id] = (sender, stamp)
            self._end_quietly(session, export.queued)
            node.schedule(now + GIVEN_TIME, lambda at: self._forget_given(client_id, given))
            self._send(sender, ANSWER, ENDED, stamp, client_id)
        else:
            self._give(sender, request, stamp, session, int.from_bytes(rest[:4], "big"), now)

    def _absent(self, sender: bytes, request: int, stamp: int, client_id: str, given: tuple[bytes, int] | None) -> None:
        if given is None:
            self._send(sender, ANSWER, NOTHING, stamp, client_id)
        elif request == DONE:
            self._send(sender, ANSWER, ENDED if given == (sender, stamp) else NEWER, stamp, client_id)
        elif given[0] == sender:
            self._send(sender, ANSWER, NOTHING, stamp, client_id)
        else:
            self._send(sender, ANSWER, MOVED, stamp, client_id, given[0])

    def _give(self, sender: bytes, request: int, stamp: int, session: Session, at: int, now: float) -> None:
        """Send parts of a session, from `at` on."""
        node = self._node
        client_id = session.client_id
        if session.conn is not None:
            node.take_over(session)
            if client_id not in node.sessions:
                self._send(sender, ANSWER, NOTHING, stamp, client_id)
                return
        export = self._exports.get(client_id)
        same = export is not None and (export.taker, export.stamp) == (sender, stamp)
        if export is None or not same:
            export = self._encode(sender, stamp, session, now)
            at = 0
        if request == REST and not export.rest:
            export.rest = self._rest(session, export, now)
            at = 0
        data = export.data if request == TAKE else export.rest
        export.at = now
        for _ in range(WINDOW):
            where = _WHERE.pack(export.number, len(data), at)
            self._send(sender, PART, request, stamp, client_id, where + data[at : at + PART_SIZE])
            at += PART_SIZE
            if at >= len(data):
                break

    def _encode(self, taker: bytes, stamp: int, session: Session, now: float) -> Export:
        self._forget_export(session.client_id)
        if self._export_bytes > limits.MAX_EXPORT_BYTES:
            self._forget_old(now)
        node = self._node
        seen = offered(node.relay.vector)
        data = encode_state(state_of(session, seen, node.fanout), now)
        self._number = self._number + 1 & 0xFFFFFFFF
        export = self._exports[session.client_id] = Export(taker, stamp, self._number, seen, len(session.queue), data, now)
        self._export_bytes += len(data)
        return export

    def _rest(self, session: Session, export: Export, now: float) -> bytes:
        """Encode what came since the session was encoded and is not in it."""
        relay = self._node.relay
        parts = []
        filters = [f for f in session.subscriptions if split_shared(f)[0] is None]
        for entry in relay.log.those(only(relay.vector, export.seen), now - 2 * limits.MOVE_TIME):
            topic = entry.topic.decode()
            if any(matches(topic_filter, topic) for topic_filter in filters):
                for sequence in range(entry.sequence, entry.sequence + entry.count):
                    parts.append(entry.part(sequence, sequence).data(now))
        return b"".join(parts)

    def _forget_export(self, client_id: str) -> None:
        export = self._exports.pop(client_id, None)
        if export is not None:
            self._export_bytes -= len(export.data)

    def _forget_old(self, now: float) -> None:
        """Make room: who asks again gets it encoded again."""
        for client_id, export in list(self._exports.items()):
            if export.at + limits.MOVE_TIME < now:
                self._forget_export(client_id)


def _split(body: bytes) -> tuple[int, int, str, bytes]:
    """Return (what, stamp, client id, rest)."""
    if len(body) < _HEAD.size:
        raise MalformedPacket("message about a session is truncated")
    what, stamp, size = _HEAD.unpack_from(body)
    end = _HEAD.size + size
    try:
        name = body[_HEAD.size : end].decode()
    except UnicodeDecodeError:
        raise MalformedPacket("message about a session with a client id that is not UTF-8") from None
    if end > len(body):
        raise MalformedPacket("message about a session is truncated")
    return what, stamp, name, body[end:]
