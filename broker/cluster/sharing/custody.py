"""The taker's side of shared subscriptions: the messages that other brokers gave to local members,
and its reports on them to these brokers (docs/decisions/0015).

At QoS 2 a message waits here, in memory, until a member has room for it. Then it is claimed, and
delivered when its giver has granted that; with a journal, the grant is recorded before the client
gets the message. At QoS 1 it is delivered at once. In both cases a report to the giver follows when
the client has acknowledged it, or when it is in the session of a client that is away.

    held -(a member has room)-> claimed -(granted)-> ready -(room)-> given
                                                           -(acknowledged)-> reported
    held, claimed -(their giver is lost)-> parked -(it, or its standby, answers)-> held
    given -(behind what our standby had, and not sent yet)-> held
    claimed -(no answer for SILENT_S)-> parked, and claimed every second -(an answer)-> held

Parked messages do not count against the room of members, and are dropped after `MEMBER_WAIT_S`;
while a broker is away, after as long as it may be.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import find
from mqttree.broker.cluster.events import RouteChanged
from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.cluster.sharing.assignment_ledger import (
    MAX_REASSIGNED,
    Ref,
    SequenceSet,
    decode_refs,
    encode_refs,
)
from mqttree.broker.cluster.sharing.assignments import (
    ASKED,
    CLAIM,
    DECLINE,
    DENY,
    DONE,
    GRANT,
    MEMBER_WAIT_S,
    QUERY,
    REFUSE,
    REPORT,
    RULING,
    UNKNOWN,
)
from mqttree.broker.core.delivery_queue import Repeat
from mqttree.broker.core.message import Message, size_of
from mqttree.broker.core.session import Session, SharedOutgoing
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.routing.link_state import MAX_BROKERS

if TYPE_CHECKING:
    from mqttree.broker.base.broker_id import Identity
    from mqttree.broker.base.timers import Timer
    from mqttree.broker.cluster.delivery.forwarder import Forwarder
    from mqttree.broker.cluster.delivery.ports import Above
    from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
    from mqttree.broker.cluster.ports import LeavingSessions, MemberBroker
    from mqttree.broker.cluster.sharing.deputies import Deputies
    from mqttree.broker.cluster.sharing.group_table import GroupTable
    from mqttree.broker.cluster.sharing.ports import Giver
    from mqttree.broker.core.session import SharedGroup

MAX_HELD_BYTES = 256 * 1024 * 1024
"""bytes of the messages that wait for members here, as `max_held_shared`."""

REPORT_DELAY = 0.002
"""s; reports within this time go in one message."""
ROOM_CHECK_INTERVAL = 0.05
"""s between two checks whether members have room, while messages wait for them."""
AHEAD = 16
"""messages that are claimed beyond the room of members: a round trip's worth for a member that
takes one at a time."""
DOUBT_S = 10.0
"""s after a giver can be reached again in which its messages at QoS 1 are claimed, too: it may have
given them to another broker."""
SILENT_S = 3.0
"""s without an answer after which a claim no longer counts: a silent giver must not keep the
messages of others waiting."""
CHECK_INTERVAL_S = 1.0
"""s between two checks of members that are away, and of claims without an answer."""


class Custody:
    """The messages for local members that are not acknowledged."""

    def __init__(
        self,
        node: MemberBroker,
        own: Identity,
        deputies: Deputies,
        bus: UnicastBus,
        forwarder: Forwarder,
        groups: GroupTable,
        giver: Giver,
        leaving: LeavingSessions,
        above: Above,
    ) -> None:
        """`node`: this broker, with the identity `own`; `deputies`: who answers for brokers that
        are gone; `groups`: which groups have members
        where; `giver`: delivers to local members; `leaving`: knows which sessions go to other
        brokers; `above`: knows which brokers are away; `bus`, `forwarder`: the modules below that
        it uses."""
        self._node = node
        self._counters = node.counters
        self._limits = node.limits
        self._own = own
        self._deputies = deputies
        self._bus = bus
        self._forwarder = forwarder
        self._groups = groups
        self._giver = giver
        self._leaving = leaving
        self._above = above
        self._held: dict[bytes, OrderedDict[Ref, Message]] = {}  # by id: not claimed
        self.size = 0  # bytes of these, and of those that are
        self._count = 0
        self._claimed: dict[Ref, tuple[Message, float]] = {}  # when (s)
        self._claims: dict[bytes, int] = {}  # of these, by id
        # By id: granted, and not delivered.
        self._ready: dict[bytes, OrderedDict[Ref, Message]] = {}
        # By giver, which does not answer: since when (s).
        self._parked: dict[bytes, OrderedDict[Ref, tuple[Message, float]]] = {}
        self._granted: OrderedDict[Ref, float] = OrderedDict()  # ahead of the message; when (s)
        # Whose they are, and the frame without which the client does not get them; 0: none.
        self._given: dict[Ref, tuple[Session, SharedOutgoing, int]] = {}
        # When (s), and how; its giver may not have heard it.
        self._declined: OrderedDict[Ref, tuple[float, int]] = OrderedDict()
        # Givers that could not be reached -> until when (s) that counts.
        self._returned: dict[bytes, float] = {}
        self._out: dict[bytes, list[tuple[int, Ref]]] = {}  # reports, by giver
        # Reports, and the frame that they wait for.
        self._unsaid: deque[tuple[int, dict[bytes, list[tuple[int, Ref]]]]] = deque()
        self._timer: Timer | None = None
        self._due = 0.0  # s; when the timer is
        self._frame = 0  # of the journal, that has what the reports say
        self._checked = 0.0
        self.taken = SequenceSet()
        """What was granted, with a journal."""
        bus.receive(RULING, self._ruling)
        bus.receive(QUERY, self._query)

    def route_changed(self, event: RouteChanged) -> None:
        """Note that a broker that gave messages can be reached again, or no longer."""
        broker_id, via = event.broker_id, event.via
        if via is None:
            self._returned.pop(broker_id, None)
            self._returned[broker_id] = float("inf")
            if len(self._returned) > MAX_BROKERS:
                del self._returned[next(iter(self._returned))]
            self._park(broker_id)
            return
        if broker_id in self._returned:
            self._returned[broker_id] = self._node.now + DOUBT_S
        self._unpark(broker_id)

    def _park(self, broker_id: bytes) -> None:
        """Park the messages of a broker that cannot be reached."""
        known: dict[bytes, bytes] = {}
        for ref, (message, at) in list(self._claimed.items()):
            if known.setdefault(ref[0], split_key(ref[0])[0]) == broker_id:
                self._answered(ref)
                self._aside(ref, message, at)
        for group_id, held in list(self._held.items()):
            for ref in [
                ref for ref in held if known.setdefault(ref[0], split_key(ref[0])[0]) == broker_id
            ]:
                message = held.pop(ref)
                self._weigh(message, -1)
                self._aside(ref, message, self._node.now)
            if not held:
                del self._held[group_id]

    def _unpark(self, broker_id: bytes) -> None:
        """Hold the parked messages of a broker again, as it can be reached, or answers again."""
        for ref, (message, _) in self._parked.pop(broker_id, {}).items():
            self._held.setdefault(ref[2], OrderedDict())[ref] = message
            self._soon(REPORT_DELAY)

    def _aside(self, ref: Ref, message: Message, at: float) -> None:
        self._weigh(message, 1)
        self._parked.setdefault(split_key(ref[0])[0], OrderedDict())[ref] = (message, at)
        self._soon(CHECK_INTERVAL_S)

    @property
    def count(self) -> int:
        """Messages that are here, or are known to be declined."""
        return self._count + len(self._granted) + len(self._given) + len(self._declined)

    def claims(self, key: bytes, qos: int) -> bool:
        """Whether a message of the giver `key` is claimed before it is delivered: at QoS 2,
        and if the giver could not reach this broker for a while, or is not known here, so that it
        may have given the message to another member."""
        if qos == 2 or not qos or not self._returned:
            return qos == 2
        broker_id = split_key(key)[0]
        until = self._returned.get(broker_id)
        if until is not None and until < self._node.now:
            del self._returned[broker_id]
            until = None
        return until is not None

    # ---------------------------------------------------------------- messages that arrive

    def hold(self, ref: Ref, message: Message) -> None:
        """Take a message for local members that is delivered when its giver has granted it."""
        if ref in self._granted:
            del self._granted[ref]
            self._granted_one(ref, message)
            self._serve(ref[2])
        elif self._count >= self._limits.max_held_shared or self.size >= MAX_HELD_BYTES:
            self._counters.shared_declined += 1
            self.decline(ref)
        elif self._deputies.of(split_key(ref[0])[0]) is None:
            self._aside(ref, message, self._node.now)
        else:
            self._held.setdefault(ref[2], OrderedDict())[ref] = message
            self._weigh(message, 1)
            self._soon(REPORT_DELAY)

    def _weigh(self, message: Message, count: int) -> None:
        self._count += count
        self.size += count * size_of(message)

    def delivered(self, session: Session, outgoing: SharedOutgoing, *, kept: bool) -> None:
        """Note that the message `outgoing` was delivered to the local member `session`, if another
        broker gave it. `kept`: it is in flight or in the queue."""
        group = outgoing.group
        ref = ref_of(outgoing.message, group.group_id)
        if ref is None:
            return
        if not kept or self._stays(session):
            self._given.pop(ref, None)
            self._say(DONE, ref)
            return
        self._soon(CHECK_INTERVAL_S)
        conn, frame = session.conn, 0
        if outgoing.qos == 2 and conn is not None and (journal := self._node.journal).recording:
            # The journal has it before the client gets the message.
            frame = conn.gate = journal.lsn + 1
        self._given[ref] = (session, outgoing, frame)

    def _stays(self, session: Session) -> bool:
        """Whether the queue of a session is certain to stay in it: its client is away, and no other
        broker is taking it. Messages that arrive after it was encoded for another broker are not
        taken there, and are given back when it ends here."""
        return session.conn is None and not self._leaving.is_handing_over(session.client_id)

    @property
    def holds_unacknowledged(self) -> bool:
        """Whether a local client has a message of another broker that it has not acknowledged."""
        return bool(self._given)

    def settled(self, outgoing: SharedOutgoing) -> None:
        """Note that a client has acknowledged a message, or will not get it."""
        group = outgoing.group
        ref = ref_of(outgoing.message, group.group_id)
        if ref is not None and self._given.pop(ref, None) is not None:
            self._say(DONE, ref)

    def gave(self, ref: Ref) -> None:
        """Note that a message was passed on from here: this broker is its giver now."""
        self._given.pop(ref, None)
        self._say(DONE, ref)

    def decline(self, ref: Ref, *, denied: bool = False) -> None:
        """Give a message back that no local member has seen, or (`denied`) may receive."""
        self._given.pop(ref, None)
        self._say(DENY if denied else DECLINE, ref)

    def _say(self, operation: int, ref: Ref) -> None:
        if operation in (DECLINE, DENY):
            self._declined[ref] = (self._node.now, operation)
            if len(self._declined) > MAX_REASSIGNED:
                self._declined.popitem(last=False)
        elif operation == DONE:
            self._frame = self._node.journal.lsn + 1
        self._out.setdefault(split_key(ref[0])[0], []).append((operation, ref))
        self._soon(REPORT_DELAY)

    def _soon(self, delay: float) -> None:
        due = self._node.now + delay
        if self._timer is not None:
            if self._due <= due:
                return
            self._node.timers.cancel(self._timer)
        self._due = due
        self._timer = self._node.timers.schedule(due, self._look)

    def claim_again(self, lsn: int) -> list[tuple[Session, SharedOutgoing]]:
        """Claim once more what members here were granted behind frame `lsn`, the last that this
        broker's successor had: it may be another member's by now. Returns what clients have not
        been sent yet, for it to leave their sessions."""
        for group_id, ready in self._ready.items():
            self._held.setdefault(group_id, OrderedDict()).update(ready)
        self._ready.clear()
        found = []
        for ref, (session, outgoing, frame) in list(self._given.items()):
            if frame > lsn:
                del self._given[ref]
                self.taken.discard(ref)
                self.hold(ref, outgoing.message)
                found.append((session, outgoing))
        self._soon(REPORT_DELAY)
        return found

    # ---------------------------------------------------------------- claims

    def _look(self, now: float) -> None:
        """Claim as many messages as members have room for, and send reports."""
        self._timer = None
        for group_id in list(self._ready):
            self._serve(group_id)
        for group_id in list(self._held):
            self._claim(group_id, now)
        if now >= self._checked + CHECK_INTERVAL_S:
            self._checked = now
            self._check(now)
        self._report()
        if self._held or self._ready:
            self._soon(ROOM_CHECK_INTERVAL)
        elif self._given or self._claimed or self._parked:
            self._soon(CHECK_INTERVAL_S)

    def _report(self) -> None:
        """Send the reports that the journal has made durable."""
        journal = self._node.journal
        if self._out:
            self._unsaid.append((self._frame, self._out))
            self._out = {}
        while self._unsaid:
            frame, out = self._unsaid[0]
            if journal.durable_lsn < frame <= journal.lsn:
                self._soon(REPORT_DELAY)
                return
            self._unsaid.popleft()
            for giver, reports in out.items():
                if (broker_id := self._deputies.of(giver)) is not None:
                    for body in encode_refs(reports):
                        self._bus.send(broker_id, REPORT, body)

    def _lacks_members(self, group_id: bytes) -> bool:
        """Whether a group has no local member for its messages, or only members that are away while
        other brokers have connected ones."""
        group = self._groups.here.get(group_id)
        return group is None or (not group.connected and self._groups.connected_elsewhere(group_id))

    def _give_back(self, waiting: OrderedDict[Ref, Message]) -> None:
        for ref, message in waiting.items():
            self._weigh(message, -1)
            self._say(DECLINE, ref)
        waiting.clear()

    def _takes(
        self, group_id: bytes, waiting: OrderedDict[Ref, Message], ahead: int, under_way: int
    ) -> int:
        """Return how many of the held messages the local members of a group have room for, and
        `ahead` more. Without members they are given back."""
        group = self._groups.here.get(group_id)
        if group is None or self._lacks_members(group_id):
            self._give_back(waiting)
            return 0
        if not group.connected:
            return len(waiting)
        return max(
            _room(group, under_way + len(waiting)) + ahead - under_way,
            len(waiting) - self._limits.hold_queued,
        )

    def _claim(self, group_id: bytes, now: float) -> None:
        """Claim as many messages as members have room for, and a few more."""
        held = self._held[group_id]
        room = self._takes(
            group_id,
            held,
            AHEAD,
            self._claims.get(group_id, 0) + len(self._ready.get(group_id, ())),
        )
        for _ in range(min(room, len(held))):
            ref, message = held.popitem(last=False)
            self._claimed[ref] = (message, now)
            self._claims[group_id] = self._claims.get(group_id, 0) + 1
            self._say(CLAIM, ref)
        if not held:
            del self._held[group_id]

    def _serve(self, group_id: bytes) -> None:
        """Deliver the granted messages for which members have room."""
        ready = self._ready[group_id]
        room = self._takes(group_id, ready, 0, 0)
        taken = [ready.popitem(last=False) for _ in range(min(room, len(ready)))]
        if not ready:
            del self._ready[group_id]
        self._take(taken)

    def _check(self, now: float) -> None:
        """Report messages in the sessions of clients that are away, and repeat claims without an
        answer."""
        for ref, (session, _, _) in list(self._given.items()):
            if self._stays(session):
                del self._given[ref]
                self._say(DONE, ref)
        for ref, (message, at) in list(self._claimed.items()):
            if at + SILENT_S <= now:
                self._answered(ref)
                self._aside(ref, message, at)
            elif at + CHECK_INTERVAL_S <= now:
                self._say(CLAIM, ref)
        absent = self._above.absent_members
        longest = absent.patience(MEMBER_WAIT_S)
        for broker_id, parked in list(self._parked.items()):
            for ref, (message, at) in list(parked.items()):
                # Its giver is gone, and no other broker knows whether it gave it to another one.
                if at + longest <= now:
                    del parked[ref]
                    self._weigh(message, -1)
                    self._counters.shared_undelivered += 1
                elif self._deputies.of(broker_id) is not None:
                    self._say(CLAIM, ref)
            if not parked:
                del self._parked[broker_id]
        horizon = now - absent.patience(2 * self._limits.log_age_s)
        self.taken.forget_old(horizon)
        while self._declined and next(iter(self._declined.values()))[0] < horizon:
            self._declined.popitem(last=False)
        while self._granted and next(iter(self._granted.values())) < horizon:
            self._granted.popitem(last=False)

    def _answered(self, ref: Ref) -> Message | None:
        """Take back a claim. Returns its message."""
        found = self._claimed.pop(ref, None)
        if found is None:
            return None
        self._weigh(found[0], -1)
        left = self._claims[ref[2]] - 1
        if left:
            self._claims[ref[2]] = left
        else:
            del self._claims[ref[2]]
        return found[0]

    # ---------------------------------------------------------------- rulings of givers

    def _ruling(self, sender: bytes, body: bytes, now: float) -> None:
        group_ids: dict[bytes, None] = {}
        said = list(decode_refs(body))
        givers = {split_key(ref[0])[0] for _, ref in said}
        if any(operation not in (GRANT, REFUSE) for operation, _ in said):
            raise MalformedPacket("RULING with an unknown operation")
        if not all(self._deputies.answers(sender, giver) for giver in givers):
            return  # it is not that giver's deputy any more
        for operation, ref in said:
            message = self._answered(ref)
            if message is None:
                message = self._unparked(split_key(ref[0])[0], ref)
            if message is None and operation == GRANT:
                message = self._ahead(ref)
            if message is not None and operation == GRANT:
                self._granted_one(ref, message)
                group_ids[ref[2]] = None
        for giver in givers:
            self._unpark(giver)
        for group_id in group_ids:
            self._serve(group_id)
        if self._ready:
            self._soon(ROOM_CHECK_INTERVAL)

    def _granted_one(self, ref: Ref, message: Message) -> None:
        self._weigh(message, 1)
        self._ready.setdefault(ref[2], OrderedDict())[ref] = message

    def _ahead(self, ref: Ref) -> Message | None:
        """Return a message that was granted although it was not claimed, as its giver stops; None:
        it is not here."""
        held = self._held.get(ref[2])
        message = None if held is None else held.pop(ref, None)
        if message is not None:
            self._weigh(message, -1)
        elif ref not in self._given and not self._came(ref):
            self._granted[ref] = self._node.now
            if len(self._granted) > self._limits.max_assigned:
                self._granted.popitem(last=False)
        return message

    def _unparked(self, broker_id: bytes, ref: Ref) -> Message | None:
        parked = self._parked.get(broker_id)
        found = None if parked is None else parked.pop(ref, None)
        if found is None:
            return None
        if not parked:
            del self._parked[broker_id]
        self._weigh(found[0], -1)
        return found[0]

    def _take(self, taken: list[tuple[Ref, Message]]) -> None:
        """Deliver messages to local members."""
        once = [ref for ref, message in taken if message.qos == 2]
        if once and self._node.journal.recording:
            for ref in once:
                self.taken.add(ref, self._node.now)
            self._node.journal.shared_taken(once)
        for (_, _, group_id), message in taken:
            self._weigh(message, -1)
            self._giver.deliver_here(group_id, message)

    def _query(self, sender: bytes, body: bytes, now: float) -> None:
        """Answer a giver that asks about messages of which it has no report; those that are under
        way are left out."""
        who, asked = body[:8], list(decode_refs(body[12:]))
        boot, own = int.from_bytes(body[8:12], "big"), self._own.boot
        if any(operation != ASKED for operation, _ in asked):
            raise MalformedPacket("QUERY with an unknown operation")
        if not all(self._deputies.answers(sender, split_key(ref[0])[0]) for _, ref in asked):
            return  # it is not that giver's deputy any more
        if who != self._own.id:
            self._answer_for(who, boot, [ref for _, ref in asked])
            return
        there: dict[Session, set[int]] = {}
        for _, ref in asked:
            waiting = (
                self._claimed,
                self._held.get(ref[2], ()),
                self._ready.get(ref[2], ()),
                self._parked.get(split_key(ref[0])[0], ()),
            )
            if any(ref in some for some in waiting):
                continue
            given = self._given.get(ref)
            if given is not None:
                session, outgoing, _ = given
                if session not in there:
                    there[session] = _held_ids(session)
                if id(outgoing) not in there[session]:  # dropped, or expired
                    del self._given[ref]
                    self._say(DONE, ref)
            elif ref in self._declined:
                self._say(self._declined[ref][1], ref)
            elif ref in self.taken or (boot == own and self._came(ref)):
                self._say(DONE, ref)
            elif boot != own and not self._node.journal.durable:
                # An earlier incarnation of this broker may have sent it, without a record.
                self._counters.shared_uncertain += 1
                self._say(DONE, ref)
            else:
                self._say(UNKNOWN, ref)

    def _answer_for(self, who: bytes, boot: int, refs: list[Ref]) -> None:
        """Answer a giver that asks what members at the broker `who` were granted, which had this
        `boot` number then: that one is gone, and this one has its image. What was recorded stays
        with the session that has it."""
        deputies = self._deputies
        if deputies.taken is None or (found := deputies.taken.taken_by(who)) is None:
            return
        known, taken = found
        for ref in refs:
            if ref not in taken and known != boot:
                self._counters.shared_uncertain += 1
            self._say(UNKNOWN if ref not in taken and known == boot else DONE, ref)

    def _came(self, ref: Ref) -> bool:
        """Whether a message has been offered to local subscribers in this incarnation of the
        broker."""
        window, number = self._forwarder.vector.get(ref[0]), ref[1]
        if window is None or window.missing(number):
            return False
        feed = window.feed
        if feed is None:
            return True
        # Numbers that did not arrive count as not wanted here, but the message may have been lost
        # on its path. An answer may have brought it since.
        left_out = find(window.history, number, number) >= 0 and find(feed.kept, number, number) < 0
        return number <= feed.done and not left_out


def _room(group: SharedGroup, most: int) -> int:
    """Return for how many messages the connected members of a group have room now, up to `most`."""
    room = 0
    for member in group.members.values():
        session = member.session
        conn = session.conn
        if conn is not None and not session.queue and not conn.backlog:
            room += max(0, session.receive_maximum - len(session.inflight))
            if room >= most:
                break
    return room


def _held_ids(session: Session) -> set[int]:
    """Return the ids (`id`) of the messages that a session has in flight or in its queue."""
    waiting = (
        outgoing.original if isinstance(outgoing, Repeat) else outgoing
        for outgoing in session.queue
    )
    return {id(outgoing) for outgoing in (*session.inflight.values(), *waiting)}


def ref_of(message: Message, group_id: bytes) -> Ref | None:
    """Return the name that a message has at the broker that gave it; None for all others."""
    choice = getattr(message, "choice", None)
    return (choice.key, choice.sequence, group_id) if choice is not None and choice.key else None
