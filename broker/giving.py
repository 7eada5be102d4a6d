"""Sessions that other brokers take: the holder's side of a move (`broker.moving` has the whole of it), and what both sides say.

    request  u8 TAKE, REST or DONE, u64 stamp of the taker's connection, client id, u32 from where on, digest of its user (8)
    answer   u8 NOTHING, MOVED, NEWER, ENDED, COMING or FOREIGN, stamp, client id, with MOVED the id of the broker that has it
             (its own: begin again)
    part     u8 TAKE or REST, stamp, client id, u32 number of the export, u32 bytes of all parts, u32 position, bytes

A client id is u16 size and UTF-8. All requests may be repeated; an export stays what it was, until it is taken or given up.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from broker import limits
from broker.listings import BEHIND, CLIENT
from broker.origin import Vector
from broker.ownership import KEPT, Entry, digest
from broker.session import Session
from broker.sessionstate import encode_state, offered, only, state_of
from broker.wire.errors import MalformedPacket
from routing.topics import matches, split_shared

if TYPE_CHECKING:
    from broker.federation import Federation
    from broker.node import Node

REQUEST, ANSWER, PART = 2, 3, 4 | BEHIND
"""Kinds of messages to one broker; parts come behind the messages that clients published before."""

TAKE, REST, DONE = 1, 2, 3
"""Requests; of the first two there are parts."""
NOTHING, MOVED, NEWER, ENDED, COMING, FOREIGN = 1, 2, 3, 4, 5, 6
"""Answers. FOREIGN: the session is another user's."""

PART_SIZE = 60_000
WINDOW = 16
"""bytes of a part, and parts sent for one request: a link's other traffic gets in between."""
GIVEN_TIME = 5.0
"""s; as long we tell who asks to whom a session went, until everybody knows."""
AGAIN = 1.0
"""s; who asks once more for parts that were sent within hears that they are coming: they may wait behind messages."""
LATE = 10.0
"""s; with routing by interest, what came to a broker so long before a move began has been offered to those there: no repair takes
longer, and what is held from them until it ends comes from the log."""
WHOLE_TIME = 3.0
"""s after the begin of a move in which we wait until what comes here is whole, before we say what came since: longer than it
takes to notice that a neighbour is silent (2 s), and to ask again (seed 7004453)."""
EXPORT_TIME = 30.0
"""s that an encoded session is kept for a taker that asks for no more of it."""

_HEAD = struct.Struct(">BQH")
WHERE = struct.Struct(">III")

Given = tuple[bytes, Entry]
"""Who has taken a session, and what it is going to post of it."""


def say(what: int, stamp: int, client_id: str, rest: bytes = b"") -> bytes:
    """Encode a request, an answer or a part."""
    name = client_id.encode()
    return _HEAD.pack(what, stamp, len(name)) + name + rest


def heard(body: bytes) -> tuple[int, int, str, bytes]:
    """Decode the same: (what, stamp, client id, rest).

    Raises:
        MalformedPacket: truncated, or the client id is not UTF-8.
    """
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


class Export:
    """A session of ours that somebody takes."""

    __slots__ = ("at", "began", "data", "number", "queued", "rest", "seen", "sent", "stamp", "taker")

    def __init__(self, taker: bytes, stamp: int, number: int, seen: Vector, queued: int, data: bytes, at: float) -> None:
        self.taker = taker
        self.stamp = stamp
        self.number = number
        self.seen = seen
        self.queued = queued  # messages in the queue that are part of it
        self.data = data
        self.rest = b""
        self.began = self.at = at  # s; of the last request
        self.sent = (0, 0, 0)  # the last request, and from where to where was sent


class Giving:
    """Sessions of ours that others take, and those that they took."""

    __slots__ = ("_bytes", "_exports", "_federation", "_given", "_node", "_number")

    def __init__(self, node: Node, federation: Federation) -> None:
        self._node = node
        self._federation = federation
        self._exports: dict[str, Export] = {}
        self._bytes = 0  # in all of them
        self._number = 0
        self._given: dict[str, Given] = {}

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

    def known(self, client_id: str, broker_id: bytes, stamp: int) -> None:
        """Note that a broker tells everybody of a session: then nobody need ask us any more."""
        given = self._given.get(client_id)
        if given is not None and given[0] == broker_id and stamp >= given[1].stamp:
            self._found(client_id, given)

    def _found(self, client_id: str, given: Given) -> None:
        if self._given.get(client_id) is given:
            del self._given[client_id]
            if client_id not in self._node.sessions:
                self._federation.listings.withdraw(CLIENT + client_id.encode())

    # ---------------------------------------------------------------- requests

    def requested(self, sender: bytes, body: bytes, now: float) -> None:
        """Answer a request. Raises MalformedPacket."""
        request, stamp, client_id, rest = heard(body)
        node = self._node
        session = node.sessions.get(client_id)
        export = self._exports.get(client_id)
        mine = export is not None and (export.taker, export.stamp) == (sender, stamp)
        if session is None or not session.stamp:
            self._absent(sender, request, stamp, client_id, rest[4:])
        elif rest[4:] != digest(session.owner):
            self._answer(sender, FOREIGN, stamp, client_id)
        elif session.stamp > stamp or (export is not None and export.stamp > stamp) or (request == DONE and not mine):
            self._answer(sender, NEWER, stamp, client_id)
        elif request == DONE and export is not None:
            entry = Entry(KEPT, stamp, session.born, session.floor, digest(session.owner))
            given = self._given[client_id] = (sender, entry)
            end_quietly(node, session, export.queued)
            node.schedule(now + GIVEN_TIME, lambda at: self._found(client_id, given))
            self._answer(sender, ENDED, stamp, client_id)
        else:
            self._give(sender, request, stamp, session, int.from_bytes(rest[:4], "big"), now)

    def _answer(self, broker_id: bytes, answer: int, stamp: int, client_id: str, rest: bytes = b"") -> None:
        self._federation.listings.send(broker_id, ANSWER, say(answer, stamp, client_id, rest))

    def _absent(self, sender: bytes, request: int, stamp: int, client_id: str, owner: bytes) -> None:
        given = self._given.get(client_id)
        if given is None:
            self._answer(sender, NOTHING, stamp, client_id)
        elif owner != given[1].owner:
            self._answer(sender, FOREIGN, stamp, client_id)
        elif request == DONE:
            self._answer(sender, ENDED if (given[0], given[1].stamp) == (sender, stamp) else NEWER, stamp, client_id)
        elif given[0] == sender:
            self._answer(sender, NOTHING, stamp, client_id)
        else:
            self._answer(sender, MOVED, stamp, client_id, given[0])

    def _give(self, sender: bytes, request: int, stamp: int, session: Session, at: int, now: float) -> None:
        """Send parts of a session, from `at` on."""
        node = self._node
        client_id = session.client_id
        if session.conn is not None:
            node.take_over(session)
            if client_id not in node.sessions:
                self._answer(sender, NOTHING, stamp, client_id)
                return
        export = self._exports.get(client_id)
        same = export is not None and (export.taker, export.stamp) == (sender, stamp)
        if request == REST and not same:  # what it got is not known here any more, nor what came since: it has to begin again
            self._answer(sender, MOVED, stamp, client_id, self._federation.own.id)
            return
        if export is None or not same:
            export = self._encode(sender, stamp, session, now)
            at = 0
        if request == REST and not export.rest:
            if self._federation.streams.unsettled() and now < export.began + WHOLE_TIME:
                # What is on its way to us alone would be missing, and what is held for it out of order. It is asked again.
                self._answer(sender, COMING, stamp, client_id)
                return
            export.rest = self._rest(session, export, now)
            self._bytes += len(export.rest)
            at = 0
        self._answer(sender, COMING, stamp, client_id)
        sent, begin, end = export.sent
        if sent == request and begin <= at < max(end, 1) and now < export.at + AGAIN:
            return
        data = export.data if request == TAKE else export.rest
        export.sent, export.at = (request, at, at + WINDOW * PART_SIZE), now
        for _ in range(WINDOW):
            where = WHERE.pack(export.number, len(data), at)
            part = say(request, stamp, client_id, where + data[at : at + PART_SIZE])
            self._federation.listings.send(sender, PART, part)
            at += PART_SIZE
            if at >= len(data):
                break

    def _encode(self, taker: bytes, stamp: int, session: Session, now: float) -> Export:
        client_id = session.client_id
        self.forget(client_id)
        if self._bytes > limits.MAX_EXPORT_BYTES:
            self._forget_old(now)
        node = self._node
        seen = offered(node.relay.vector)
        self._federation.repeats.complete(seen, session)
        data = encode_state(state_of(session, seen, node.fanout), now)
        self._number = self._number + 1 & 0xFFFFFFFF
        export = self._exports[client_id] = Export(taker, stamp, self._number, seen, len(session.queue), data, now)
        self._bytes += len(data)
        node.schedule(now + EXPORT_TIME, lambda at: self._expire(client_id, export, at))
        return export

    def _expire(self, client_id: str, export: Export, now: float) -> None:
        if self._exports.get(client_id) is export:
            if export.at + EXPORT_TIME <= now:
                self.forget(client_id)
            else:
                self._node.schedule(export.at + EXPORT_TIME, lambda at: self._expire(client_id, export, at))

    def _rest(self, session: Session, export: Export, now: float) -> bytes:
        """Encode what came since the session was encoded and is not in it."""
        relay = self._node.relay
        parts = []
        filters = [f for f in session.subscriptions if split_shared(f)[0] is None]
        for entry in relay.log.those(only(relay.vector, export.seen), export.began - LATE):
            topic = entry.topic.decode()
            if any(matches(topic_filter, topic) for topic_filter in filters):
                for sequence in range(entry.sequence, entry.sequence + entry.count):
                    parts.append(entry.part(sequence, sequence).data(now))
        return b"".join(parts)

    def forget(self, client_id: str) -> None:
        """Drop what was encoded of a session."""
        export = self._exports.pop(client_id, None)
        if export is not None:
            self._bytes -= len(export.data) + len(export.rest)

    def _forget_old(self, now: float) -> None:
        """Make room: who asks again gets it encoded again."""
        for client_id, export in list(self._exports.items()):
            if export.at + limits.MOVE_TIME < now:
                self.forget(client_id)


def end_quietly(node: Node, session: Session, queued: int) -> None:
    """Forget a session that is somewhere else, with the first `queued` of its waiting messages; no will is due."""
    session.will = None
    session.inflight.clear()
    for _ in range(min(queued, len(session.queue))):
        session.queue.popleft()
    node.end_session(session)
