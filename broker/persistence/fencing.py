"""A broker that stood still for so long that its standby may have given its sessions away: it does
nothing for clients before it knows which (docs/decisions/0063). Pure.

While in doubt it reads no client, sends no will and gives no session away; output that waits for
the journal goes on waiting (`stream`). The doubt ends when the standby has acknowledged a frame
sent since it began, or says that it has given nothing away; when its fence is carried out; or
after DOUBT_S.

A broker that starts with a journal that went to standbys is in doubt as well, about what these had
and its disk had not: it lets no client in before they have answered.

Fences also come unasked, as brokers that were cut off from each other meet again. Sessions in one
are other brokers' from then on: their connections are closed unread, and their wills not sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter, is_
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mqttree.broker.base.sequence_set import LAST, Ranges, intersect, merge
from mqttree.broker.cluster.delivery.replay_log import LogEntry
from mqttree.broker.cluster.link.origin_keys import origin_key, split_key
from mqttree.broker.cluster.sessions.fence_messages import (
    ASK_FENCE,
    UNHEARD,
    AskFence,
    Claim,
    FenceMessage,
)
from mqttree.broker.cluster.sessions.session_entries import newest_stamp
from mqttree.broker.core.client import Client
from mqttree.broker.core.delivery_queue import APART, Outgoing
from mqttree.broker.core.message import Name, size_of
from mqttree.broker.wire.strings import shorten

if TYPE_CHECKING:
    from mqttree.broker.cluster.cluster import Cluster
    from mqttree.broker.cluster.directory.link_state_directory import PostedStandby
    from mqttree.broker.cluster.sessions.records import Standby
    from mqttree.broker.core.session import Session
    from mqttree.broker.persistence.ports import JournalBroker
    from mqttree.broker.persistence.write_ahead_log import WriteAheadLog

DOUBT_S = 3.0
"""s after which a broker goes on that does not hear what its standby has given away: that one is
gone, too, or cut off."""

NEVER = 1 << 62
"""More than any LSN."""

LOOK_S = 0.02
"""s between two looks whether neighbours have told their directories."""

PULL_S = 0.5
"""s; longest wait for what neighbours have of this broker's messages that its journal has not."""

RESUMING_S = 0.1
"""s in which what has come while this broker stood still is read."""

ASK_S = 0.1
"""s between two times that the standby is asked."""


class Published(NamedTuple):
    """Messages at QoS 2 that have not left this broker before frame `lsn`."""

    lsn: int
    entry: LogEntry
    client: bytes
    stamp: int
    """Of the publisher's connection."""


class Former(NamedTuple):
    """What one had that was the standby of an earlier incarnation, and took its place."""

    stream: tuple[int, int]
    """Boot and epoch."""
    key: bytes
    """The origin of what this broker had published then."""
    last: int
    """Number of the last of these messages that it had."""
    incoming: dict[bytes, tuple[int, ...]]
    """By client, the packet identifiers of what that had sent at QoS 2."""


class FencedStream(Protocol):
    """What follows for the stream."""

    def cleared(self) -> None:
        """Note that no standby that can be reached has given anything away."""

    def fenced(self, standby: bytes, epoch: int) -> None:
        """Note that the fence of a broker, `standby`, is carried out, which had the image of this
        `epoch`."""

    def doubt_over(self) -> None:
        """Note that it was waited for long enough."""

    def former_heard(self) -> None:
        """Note that the standbys from before the start are not waited for any more."""


class Fencing:
    """What a broker does in doubt, and when it hears of a fence."""

    def __init__(
        self, node: JournalBroker, cluster: Cluster, stream: FencedStream, frames: WriteAheadLog
    ) -> None:
        """`node`, `cluster`: this broker; `stream`: its stream; `frames`: of its journal."""
        self._node = node
        self._cluster = cluster
        self._stream = stream
        self._frames = frames
        # What may have to be void: what is not durable yet, the oldest first.
        self._voidable: deque[Published] = deque()
        self._boot = node.config.boot
        self.doubts = False
        """Whether this broker is in doubt."""
        self.former: dict[bytes, Standby] = {}
        """Those that were sent the journal of an earlier incarnation of this broker, by their ids,
        and have not said yet what they made of it."""
        self.starts = False
        """Whether what they had, and this broker's disk has not, is not here yet."""
        self._had: dict[bytes, Former] = {}
        # Boot and epoch of the last stream of which no standby has said that.
        self._unheard = 0, 0
        # By the ids of the standbys that have not said what they have given away: epochs.
        self._asked: dict[bytes, int] = {}
        self._cleared = False  # one of them has said that it is nothing
        self._since = 0.0
        # Sessions with wills that are due.
        self._wills: list[Session] = []
        # By standby: boot and epoch of its last fence, and how many claims are carried out.
        self._done: dict[bytes, tuple[int, int, int]] = {}

    # ---------------------------------------------------------------- doubt

    def begin(self, standbys: Iterable[PostedStandby]) -> None:
        """Be in doubt, from now on, about what any of the `standbys` has given away. New clients
        are held as they are let in."""
        node = self._node
        self._asked = {standby.id: standby.epoch for standby in standbys}
        self._cleared, self._since = False, node.now
        if not self.doubts:
            node.counters.doubts += 1
            node.log(
                "info", "this broker stood still: clients wait until it is known what it missed"
            )
        self.doubts = True
        node.wills.waits = self._wills.append
        barrier = self._cluster.barrier
        self._cluster.resync.hold()
        self._cluster.answers.held = True
        barrier.closed, barrier.stale_until = True, node.now + RESUMING_S
        for conn in list(node.connection_registry.connections):
            if isinstance(conn.owner, Client):
                node.flow_control.hold(conn, self)
        self._ask(node.now, node.now)

    def _ask(self, since: float, now: float) -> None:
        if not self.doubts or since != self._since:
            return
        if now >= since + DOUBT_S:
            self._stream.doubt_over()
            return
        self._look_whether_cleared()
        for standby, epoch in self._asked.items():
            body = AskFence(self._boot, epoch, UNHEARD).encode()
            self._cluster.bus.send(standby, ASK_FENCE, body, at_once=True)
        self._node.timers.schedule(now + ASK_S, lambda at: self._ask(since, at))

    def cleared(self, standby: bytes) -> None:
        """Note that a standby has given nothing away."""
        self._asked.pop(standby, None)
        self._cleared = True
        self._look_whether_cleared()

    def _look_whether_cleared(self) -> None:
        """End the doubt once all standbys that can be reached have given nothing away."""
        if self._cleared and not any(map(self._cluster.posted_sessions.lives, self._asked)):
            self._stream.cleared()

    def end(self) -> None:
        """Serve clients again, as soon as neighbours have told which of them are elsewhere: what
        waits in sockets here must not win over what they have written there."""
        self._reopen(self._since, self._node.now)

    def _reopen(self, since: float, now: float) -> None:
        node = self._node
        if not self.doubts or since != self._since:
            return
        if now < since + DOUBT_S and not self._cluster.barrier.has_directory():
            node.timers.schedule(now + LOOK_S, lambda at: self._reopen(since, at))
            return
        node.now, database = now, self._cluster.database
        self.doubts = False
        for session in node.sessions.values():
            if session.conn is not None:
                newest = newest_stamp(database, session.client_id)
                if newest > session.stamp:
                    session.successor = max(session.successor, newest)
        node.wills.waits = None
        self._cluster.agenda.reads_late(node.now)
        self._cluster.barrier.closed = self._cluster.answers.held = self.starts
        if not self.starts:
            self._cluster.resync.release(node.now)
        node.flow_control.release(self)
        wills, self._wills = self._wills, []
        for session in wills:
            if session.will is None:
                continue
            if newest_stamp(database, session.client_id) > session.stamp:
                session.will = None
            else:
                node.wills.send(session)

    # ---------------------------------------------------------------- a start

    def started(self, standbys: list[Standby]) -> None:
        """Let no client in before the `standbys` that the journal names have said what they made of
        what the disk may lack."""
        now = self._node.now
        self.former = {standby.id: standby for standby in reversed(standbys)}
        cluster = self._cluster
        self.starts = True
        cluster.barrier.closed = cluster.catchup.held = cluster.answers.held = True
        cluster.resync.hold()
        self._node.timers.schedule(now, lambda at: self._ask_former(now + DOUBT_S, now, at))

    def _ask_former(self, until: float, again: float, now: float) -> None:
        """Ask those that can be reached, from `again` (s) on, and wait for others only until a
        neighbour says that they cannot be."""
        if not self.former:
            return
        cluster, barrier = self._cluster, self._cluster.barrier
        reached = [each for each in self.former.values() if cluster.database.reaches(each.id)]
        linked = any(each in cluster.links for each in self.former)
        known = bool(cluster.links) and not barrier.finds_others(now) and barrier.has_directory()
        if now >= until or (known and not linked and not reached):
            self._unheard = max(standby[1:] for standby in self.former.values())
            self.former.clear()
            self._fetch(now)
            return
        if now >= again:
            for standby in reached:
                body = AskFence(standby.boot, standby.epoch, UNHEARD).encode()
                cluster.bus.send(standby.id, ASK_FENCE, body, at_once=True)
                again = now + ASK_S
        self._node.timers.schedule(now + LOOK_S, lambda at: self._ask_former(until, again, at))

    def _former_told(self, standby: bytes) -> None:
        del self.former[standby]
        if not self.former:
            self._fetch(self._node.now)

    def _fetch(self, now: float) -> None:
        """Have the neighbours send what this broker had published and the journal has not, ahead of
        all that clients do here, and of questions for it. What they do not send then is nowhere."""
        if self._had:
            self._go_on_from(max(self._had.values(), key=attrgetter("stream")))
        origins = self._cluster.origins
        wanted: dict[bytes, Ranges] = {}
        for key, window in origins.vector.items():
            if window is not origins.own and split_key(key)[0] == origins.own_id:
                lacks = [*window.history, *window.lacks]
                wanted[key] = intersect(merge(lacks), [(window.begin + 1, LAST)])
                self._cluster.pulls.want(key, wanted[key], now)
        self._open(wanted, now + PULL_S, now)

    def _open(self, wanted: dict[bytes, Ranges], until: float, now: float) -> None:
        """Let clients in when that has come, or until `until` (s) at most."""
        if now < until and self._cluster.pulls.wants(wanted):
            self._node.timers.schedule(now + LOOK_S, lambda at: self._open(wanted, until, at))
            return
        self.starts = False
        self._cluster.barrier.closed = self._cluster.answers.held = self.doubts
        if not self.doubts:
            self._cluster.resync.release(now)
        self._cluster.catchup.release()
        self._stream.former_heard()

    # ---------------------------------------------------------------- fences

    def heard(self, sender: bytes, body: bytes, now: float) -> None:
        """Carry out what the broker `sender` says in `body` that it has given away, at `now` (s).
        Raises MalformedPacket."""
        fence = FenceMessage.decode(body)
        mine = fence.boot == self._boot
        former = self.former.get(sender)
        if former is not None and former[1:] > (fence.boot, fence.epoch):
            former = None
        if not fence.promoted:
            if former is not None:
                self._former_told(sender)
            if self.doubts and mine and self._asked.get(sender) == fence.epoch:
                self.cleared(sender)
            return
        boot, epoch, done = self._done.get(sender, (0, 0, 0))
        if (boot, epoch) != (fence.boot, fence.epoch):
            done = 0
            self._node.counters.fences += 1
            self._node.log("info", f"broker {sender.hex()} had this broker's sessions meanwhile")
        claims = fence.claims[max(0, done - fence.first) :] if fence.first <= done else ()
        stamps = {claim.client: claim.stamp for claim in claims if claim.stamp}
        self._void(fence.lsn if mine else NEVER, stamps)
        if mine:
            self._give_back(max(fence.lsn, self._frames.durable_lsn))
        if former is not None and sender not in self._had:
            key = origin_key(self._cluster.origins.own_id, fence.boot)
            self._had[sender] = Former((fence.boot, fence.epoch), key, fence.last, {})
        for claim in claims:
            if claim.stamp:
                self._carry_out(claim)
            elif former is not None:
                self._had[sender].incoming[claim.client] = claim.incoming
        done += len(claims)
        self._done[sender] = fence.boot, fence.epoch, done
        answer = AskFence(fence.boot, fence.epoch, done).encode()
        self._cluster.bus.send(sender, ASK_FENCE, answer, at_once=True)
        if done < fence.total:
            return
        if mine:
            self._stream.fenced(sender, fence.epoch)
        elif former is not None:
            self._former_told(sender)

    # ---------------------------------------------------------------- messages

    def published(self, lsn: int, entry: LogEntry, session: Session) -> None:
        """Note that a `session` has published an `entry` that goes out with frame `lsn`."""
        known, safe = self._voidable, self._frames.durable_lsn
        while known and known[0].lsn <= safe:
            known.popleft()
        known.append(Published(lsn, entry, session.client_id.encode(), session.stamp))

    def _void(self, lsn: int, stamps: dict[bytes, int]) -> None:
        """Void what claimed sessions published behind frame `lsn`, the last that their successor
        has, and what has not left this broker: their clients repeat it elsewhere, where it is
        another message. `stamps`: of the claims."""
        names: set[Name] = set()
        for one in self._voidable:
            if one.lsn > max(lsn, self._frames.durable_lsn) and one.stamp < stamps.get(
                one.client, 0
            ):
                one.entry.void()
                names.update(
                    (one.entry.key, one.entry.sequence + n) for n in range(one.entry.count)
                )
        self._discard(names)

    def _discard(self, names: set[Name]) -> None:
        """Leave out messages that are void."""
        if not names:
            return
        node = self._node
        node.counters.messages_voided += len(names)
        for conn in list(node.connection_registry.connections):
            if conn in self._frames.gate:
                conn.abort("what it was about to be sent is void")
        for session in node.sessions.values():
            _forget(session, lambda outgoing: outgoing.message.name in names)
        self._frames.want_snapshot()

    def _give_back(self, lsn: int) -> None:
        """Take back what members of groups here were granted by other brokers behind frame `lsn`,
        and what has not left this broker: their giver may have given it to another member."""
        for session, granted in self._cluster.custody.claim_again(lsn):
            if session.conn is not None:
                session.conn.abort("what it was about to be sent may be another member's")
            _forget(session, partial(is_, granted))
            self._frames.want_snapshot()

    def _carry_out(self, claim: Claim) -> None:
        """Leave a session to the broker that has it now. If it is still this broker's, its will was
        published: a client that is connected has to say again that it is there."""
        client, stamp, _ = claim
        node = self._node
        client_id = client.decode(errors="replace")
        due = [waiting for waiting in self._wills if waiting.client_id == client_id]
        if (orphan := node.wills.orphans.get(client_id)) is not None:
            due.append(orphan)
        for waiting in due:
            if waiting.stamp <= stamp:
                waiting.will = None
        session = node.sessions.get(client_id)
        if session is None or session.stamp > stamp:
            return
        session.will = None
        why = "its will was published"
        if session.stamp < stamp:
            why = "its session has gone to another broker"
            self._cluster.clock.merge(stamp, node.now)
            session.successor = max(session.successor, stamp)
        if (conn := session.conn) is not None:
            node.counters.sessions_superseded += 1
            text = f"client {shorten(session.client_id)} at {conn.peer}: {why} meanwhile; closed"
            node.log_limit.line("info", "went elsewhere", conn.peer, text)
            conn.abort(why)
        elif session.recorder is not None:
            session.recorder.record_attributes()

    def _go_on_from(self, former: Former) -> None:
        """Take what clients repeat, and the standby (`former`) has of that, for a repetition, and
        nothing else. What this broker had published and the standby has not is void: nobody was
        told that it came, so its client repeats it, here or elsewhere. A standby of a later
        stream that was not heard may have had more."""
        last = former.last if former.stream >= self._unheard else LAST
        names: set[Name] = set()
        for entry in self._cluster.replay_log.latest():
            if entry.key == former.key and entry.sequence > last:
                entry.void()
                names.update((entry.key, entry.sequence + n) for n in range(entry.count))
        for session in self._node.sessions.values():
            # Neither what the disk does not know to be in flight is met, nor what the standby sent.
            session.next_packet_id = session.next_packet_id + APART // 2 & 0xFFFF
            incoming = set(former.incoming.get(session.client_id.encode(), ()))
            if last == LAST:
                incoming |= session.incoming
            if session.incoming != incoming:
                session.incoming = incoming
                if session.recorder is not None:
                    session.recorder.record_all()
        self._discard(names)


def _forget(session: Session, is_void: Callable[[Outgoing], bool]) -> None:
    """Take messages out of a session."""
    session.unpack()
    flying = [
        packet_id
        for packet_id, sent in session.inflight.items()
        if isinstance(sent, Outgoing) and is_void(sent)
    ]
    waiting = [outgoing for outgoing in session.queue if is_void(outgoing)]
    for packet_id in flying:
        del session.inflight[packet_id]
    for outgoing in waiting:
        session.queue.remove(outgoing)
        session.queued_bytes -= size_of(outgoing.message)
    if (flying or waiting) and session.recorder is not None:
        session.recorder.record_all()
