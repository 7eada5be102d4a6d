"""The giver's side of shared subscriptions: a message stays here until the member's client has
acknowledged it (docs/decisions/0015).

    QoS 1   given -> DONE: closed
            the broker is gone: given to another member; it may come twice
    QoS 2   given -> CLAIM: granted -> DONE: closed
            gone before it claimed: given to another; claimed later: refused
            gone afterwards: stays with its client; asked when it is back, or its standby is

A claim says that a member has room for the message now. Before it, no client can have seen the
message, so it may be given to another member, whether the first broker is dead or cut off. After
it, only that broker knows (MQTT-4.8.2-5), and its standby. A broker that comes back with another
boot number is asked what its journal says, and the standby of one that is gone what its image says:
messages that were never taken are given to another member.

A broker rules on what a giver gave that is gone, if it is that one's standby (`succeed`).

    to one broker   RULING (giver -> taker): GRANT, REFUSE
                    QUERY  (giver -> taker): id and u32 boot that they were given to, refs
                    REPORT (taker -> giver): CLAIM, DONE, DECLINE, DENY, UNKNOWN

A message that is given back goes to other brokers at once, STEP of them in a turn, to each broker
once. If none is left it waits, and is given again when members come, or after a pause that grows
with the time that it has waited, `MEMBER_WAIT_S` in all. A message that no member may receive does
not wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from itertools import chain
from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import LAST
from mqttree.broker.cluster.events import RouteChanged
from mqttree.broker.cluster.link.link import Link
from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.cluster.sharing.assignment_ledger import (
    GRANTED,
    NO_MEMBER,
    OPEN,
    RETURNED,
    Assignment,
    Ledger,
    Ref,
    decode_refs,
    encode_refs,
)
from mqttree.broker.cluster.sharing.group_table import MEMBER_QUEUE_MESSAGES
from mqttree.broker.core.flow_control import HOLD_TIMEOUT_S
from mqttree.broker.core.message import Message
from mqttree.broker.core.receiver_assignment import ReceiverAssignment, Tries
from mqttree.broker.wire.errors import MalformedPacket

if TYPE_CHECKING:
    from mqttree.broker.base.broker_id import Identity
    from mqttree.broker.base.timers import Timer
    from mqttree.broker.cluster.delivery.forwarder import Forwarder
    from mqttree.broker.cluster.delivery.ports import Above
    from mqttree.broker.cluster.delivery.replay_log import LogEntry
    from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
    from mqttree.broker.cluster.ports import Alarm, MemberBroker
    from mqttree.broker.cluster.sharing.deputies import Deputies
    from mqttree.broker.cluster.sharing.group_table import GroupTable
    from mqttree.broker.cluster.sharing.ports import Giver
    from mqttree.broker.core.connection import Connection
    from mqttree.routing.link_state import LinkStateDatabase

MEMBER_WAIT_S = 120.0
"""s that a message waits for a member of a shared subscription whose broker is gone, when no
other can be reached; as long as the log has it [shared_undelivered, shared_uncertain]."""

MAX_ASSIGNED_BYTES = 64 * 1024 * 1024
"""bytes of the messages that are kept for members at other brokers, as `max_assigned`."""

REPORT, RULING, QUERY = 10, 11, 12
"""Kinds of messages to one broker."""

CLAIM, DONE, DECLINE, UNKNOWN, GRANT, REFUSE, ASKED, DENY = range(1, 9)
"""Operations. DONE: acknowledged, or kept by the taker; DECLINE: the taker has no member for it, or
no room; DENY: none of its members may receive it; UNKNOWN: the taker never had it."""

REPORTS = frozenset((CLAIM, DONE, DECLINE, UNKNOWN, DENY))
"""Operations of takers."""

SWEEP_S = 0.25
"""s between two checks which brokers are gone, while anything is assigned."""
PAUSE = 0.001
"""s between two turns in which much is given to other brokers."""
GONE = 2.0
"""s without a path to a broker after which its messages go to others: a repair of the tree takes
much less."""
SILENCE_S = 10.0
"""s after which a broker is asked about an assignment of which it has said nothing."""
REASK_S = 5.0
"""s between two such questions."""
SUCCESSOR_S = 0.5
"""s between two questions to the standby of a broker that is gone: it answers when it has taken
that one's place."""
QUEUE_TIME = 30.0
"""s after which a broker is believed that it never had an assignment: it can no longer be queued
behind other messages."""
MAX_RETRY_S = 16.0
"""s; longest pause until a broker that gave a message back gets it again."""
STEP = 500
"""assignments that are given to other brokers in one turn, about 10 ms of work."""


class Assignments:
    """The messages that were given to members at other brokers and are not acknowledged."""

    def __init__(
        self,
        node: MemberBroker,
        own: Identity,
        deputies: Deputies,
        database: LinkStateDatabase,
        bus: UnicastBus,
        forwarder: Forwarder,
        groups: GroupTable,
        giver: Giver,
        alarm: Alarm,
        above: Above,
    ) -> None:
        """`node`: this broker, with the identity `own`; `deputies`: who answers for brokers that
        are gone; `groups`: which groups have members where; `giver`: gives messages that come back
        to other members; `alarm`: calls the cluster again; `above`: knows which
        brokers are away; `database`, `bus`, `forwarder`: the modules below that it uses."""
        self._node = node
        self._counters = node.counters
        self._turns = node.turns
        self._limits = node.limits
        self._own = own.id
        self._who = own.id + own.boot.to_bytes(4, "big")
        self._deputies = deputies
        self._database = database
        self._bus = bus
        self._forwarder = forwarder
        self._groups = groups
        self._giver = giver
        self._alarm = alarm
        self._above = above
        self.ledger = Ledger()
        self._gone: dict[bytes, float] = {}  # broker that cannot be reached -> since when (s)
        self._came: set[bytes] = set()  # ids of groups that have members again
        self._heard: set[bytes] = set()  # brokers that are back and have not been asked
        self._out: dict[bytes, list[tuple[int, Ref]]] = {}  # rulings, by broker
        self._timer: Timer | None = None
        # For each one that came back: what its broker said, and its state before.
        self._returned: deque[tuple[Assignment, int, bytes, int]] = deque()
        self._full = False  # publishers are held
        self._progress = 0.0  # s; when an assignment was closed, or publishers were held
        # Givers that cannot be reached and have this broker as their standby -> what was closed of
        # theirs since.
        self._succeeded: dict[bytes, list[Ref]] = {}
        # Origin (an earlier incarnation of this broker) -> the last number that its journal had.
        self._tops: dict[bytes, int] = {}
        bus.receive(REPORT, self._report)

    # ---------------------------------------------------------------- given

    def given(
        self,
        key: bytes,
        sequence: int,
        choice: ReceiverAssignment,
        message: Message,
        source: Connection | None,
    ) -> None:
        """Keep a `message` with number `sequence` of the origin `key` until the members that
        `choice` names have acknowledged it. Its publisher is held while they have many. `source`:
        its publisher; None: no connection has to wait."""
        hold = False
        for who, group_id in choice.entries:
            assignment = Assignment(
                (key, sequence, group_id),
                who,
                message,
                self._node.now,
                choice.visited,
                choice.retain,
            )
            assignment.tries = choice.tries
            hold |= self._add(assignment)
        node = self._node
        if hold and source is not None and not isinstance(source.owner, Link):
            if not self._full:
                self._full, self._progress = True, node.now
            node.flow_control.hold(source, self)

    def busy(self, broker_id: bytes) -> bool:
        """Whether a broker has so many messages that others are chosen first."""
        return (
            len(self.ledger.by_who.get(self._incarnation(broker_id), ())) >= MEMBER_QUEUE_MESSAGES
        )

    def _add(self, assignment: Assignment) -> bool:
        """Keep an assignment, unless there are too many. Returns whether there are many."""
        ledger = self.ledger
        same = len(ledger.by_who.get(assignment.who, ()))
        if not self._keep(assignment):
            self._counters.shared_untracked += 1
        return same >= self._limits.hold_queued or 2 * ledger.size >= MAX_ASSIGNED_BYTES

    def _keep(self, assignment: Assignment) -> bool:
        """Keep an assignment. Returns False if there are too many."""
        ledger = self.ledger
        if (
            len(ledger.by_who.get(assignment.who, ())) >= self._limits.max_assigned
            or ledger.size >= MAX_ASSIGNED_BYTES
        ):
            return False
        ledger.add(assignment)
        if self._timer is None:
            self._timer = self._node.timers.schedule(self._node.now + SWEEP_S, self._sweep)
        return True

    def _release(self, *, stalled: bool = False) -> None:
        ledger = self.ledger
        most = max((len(same) for same in ledger.by_who.values()), default=0)
        if self._full and (
            stalled
            or (most < self._limits.hold_queued // 2 and 4 * ledger.size < MAX_ASSIGNED_BYTES)
        ):
            self._full = False
            self._node.flow_control.release(self)

    # ---------------------------------------------------------------- reports of takers

    def _report(self, sender: bytes, body: bytes, now: float) -> None:
        ledger = self.ledger
        said = list(decode_refs(body))
        if any(operation not in REPORTS for operation, _ in said):
            raise MalformedPacket("REPORT with an unknown operation")
        rulings = self._out.setdefault(sender, [])
        closed: list[Ref] = []
        for operation, ref in said:
            found = ledger.refs.get(ref)
            mine = (
                found is not None
                and self._deputies.answers(sender, found.who[:8])
                and found.state != RETURNED
            )
            if operation == CLAIM:
                if found is not None and mine:
                    found.state = GRANTED
                giver = split_key(ref[0])[0]
                if giver not in self._succeeded and giver != self._own:
                    continue  # its assignments have not been read yet
                known = self._may_be_ours(ref) and not ledger.moved(ref)
                rulings.append((GRANT if mine or (found is None and known) else REFUSE, ref))
            elif operation == DONE:
                # If another broker says that, it had this one's place meanwhile.
                ledger.close(ref)
                closed.append(ref)
                if not mine:
                    ledger.note_moved(ref, now)
            elif found is None or not mine:
                ours = ref[0] == self._forwarder.key and not ledger.moved(ref)
                # There was no room to keep it.
                if found is None and ours and operation in (DECLINE, DENY):
                    self._counters.shared_undelivered += 1
            elif (
                operation != UNKNOWN
                or found.who != self._incarnation(sender)
                or found.at + QUEUE_TIME < now
            ):
                self._take_back(found, operation, sender)
        if closed:
            self._progress = now
            self._closed(*closed)
            self._release()
        if rulings:
            self._alarm.hurry(now)
        else:
            del self._out[sender]
        self.tell()

    def _may_be_ours(self, ref: Ref) -> bool:
        """Whether a message that is not in the ledger may have been given from here: there was no
        room to keep it, or the disk does not have it, as this broker was killed just then."""
        return ref[0] == self._forwarder.key or not self.published(ref)

    def published(self, ref: Ref) -> bool:
        """Whether a message was published here, as far as the journal says."""
        key = ref[0]
        return split_key(key)[0] == self._own and ref[1] <= self._tops.get(key, LAST)

    def tell(self) -> None:
        """Send the rulings that are due."""
        out, self._out = self._out, {}
        for broker_id, rulings in out.items():
            for body in encode_refs(rulings):
                self._bus.send(broker_id, RULING, body)

    def _incarnation(self, broker_id: bytes) -> bytes:
        """Return id and boot of a broker that can be reached, b"" of one that cannot."""
        if broker_id == self._own:
            return self._who
        if not self._database.reaches(broker_id):
            return b""
        return broker_id + self._database.boot(broker_id).to_bytes(4, "big")

    # ---------------------------------------------------------------- brokers that are gone

    def route_changed(self, event: RouteChanged) -> None:
        """Note that a broker that took messages can be reached again, or no longer."""
        broker_id, via = event.broker_id, event.via
        if via is not None:
            self._give_up_succession(broker_id)
            self._gone.pop(broker_id, None)
            if self.ledger.refs:
                self._heard.add(broker_id)
        elif self.ledger.refs:
            self._gone.setdefault(broker_id, self._node.now)

    def member_came(self, group_id: bytes) -> None:
        """Give messages that wait for members of a group, as it has new ones."""
        if NO_MEMBER in self.ledger.by_who:
            self._came.add(group_id)
            self._sweep_soon()

    def _sweep_soon(self) -> None:
        if self._timer is not None:
            self._node.timers.cancel(self._timer)
        self._timer = self._node.timers.schedule(self._node.now, self._sweep)

    def _sweep(self, now: float) -> None:
        """Check all brokers that have messages."""
        ledger = self.ledger
        ledger.forget_old(now - self._above.absent_members.patience(2 * self._limits.log_age_s))
        room = STEP
        for who in list(ledger.by_who):
            incarnation = self._incarnation(who[:8])
            if incarnation == who != NO_MEMBER:
                self._ask(who, now)
            elif (
                who == NO_MEMBER or incarnation or self._gone.setdefault(who[:8], now) + GONE <= now
            ):
                room = self._give_those_of(who, incarnation, room, now)
        self._heard.clear()
        if room > 0:
            self._came.clear()
        self._release(stalled=self._progress + HOLD_TIMEOUT_S <= now)
        self._gone = {
            broker: since
            for broker, since in self._gone.items()
            if any(who[:8] == broker for who in ledger.by_who)
        }
        self._timer = None
        if ledger.refs or self._full:
            self._timer = self._node.timers.schedule(
                now + (PAUSE if room <= 0 else SWEEP_S), self._sweep
            )
        self.tell()

    def _give_those_of(self, who: bytes, incarnation: bytes, room: int, now: float) -> int:
        """Give the messages of a broker that is gone, or back with another boot number
        (`incarnation`), to others. Returns the room that is left in this turn."""
        stuck: set[bytes] = set()  # ids of groups without any other member
        longest = self._above.absent_members.patience(MEMBER_WAIT_S)
        asked: list[Ref] = []
        for ref, assignment in list(self.ledger.by_who.get(who, {}).items()):
            if room <= 0:
                break
            if assignment.message.expired(now):
                self.ledger.close(ref)
                self._closed(ref)
                self._counters.expired += 1
            elif who == NO_MEMBER and assignment.at + longest <= now:
                self._give_up(assignment)
            elif who == NO_MEMBER and assignment.again_at > now and ref[2] not in self._came:
                continue
            elif assignment.state == GRANTED and assignment.message.qos == 2:
                again = REASK_S if incarnation else SUCCESSOR_S
                if self._deputies.of(who[:8]) is not None and (
                    who[:8] in self._heard or assignment.asked + again <= now
                ):
                    assignment.asked = now
                    asked.append(ref)
                elif not incarnation and self._gone.get(who[:8], now) + longest <= now:
                    # A client may have got it, so no other one may.
                    self.ledger.close(ref)
                    self._counters.shared_uncertain += 1
            elif ref[2] not in stuck:
                if self._give_to_another(assignment):
                    room -= 1
                elif assignment.tries is None or not assignment.tries.denied:
                    # Other messages of its group may go to the broker that denied it.
                    stuck.add(ref[2])
        self._query(who, asked)
        return room

    def _ask(self, who: bytes, now: float) -> None:
        """Ask a broker about assignments of which it has said nothing."""
        asked: list[Ref] = []
        again = who[:8] in self._heard
        for ref, assignment in self.ledger.by_who[who].items():
            if assignment.at + SILENCE_S > now and not again:
                break
            if again or assignment.asked + REASK_S <= now:
                assignment.asked = now
                asked.append(ref)
        self._query(who, asked)

    def _query(self, who: bytes, refs: list[Ref]) -> None:
        """Ask the broker `who`, or its successor, what became of messages."""
        if (broker_id := self._deputies.of(who[:8])) is not None:
            for body in encode_refs([(ASKED, ref) for ref in refs]):
                self._bus.send(broker_id, QUERY, who + body)

    def _give_to_another(self, old: Assignment) -> bool:
        """Give a message to another member, here or at another broker. Returns False if none can be
        reached."""
        giver, tries = self._giver, old.tries
        gave_back = () if tries is None else (*tries.refused, *tries.denied)
        target = giver.target(old.ref[2], old.message, (*old.visited, *gave_back))
        if target is None:
            return False
        self.ledger.move(old.ref, self._node.now)
        self._counters.shared_reassigned += 1
        giver.give(target, old.ref[2], old.message, old.visited, retain=old.retain, tries=tries)
        self._closed(old.ref)
        return True

    def _take_back(self, old: Assignment, said: int, sender: bytes) -> None:
        """Take back a message for which a broker has no member, or none that may receive it, or
        that it never had, and plan to give it to others.

        Until that turn it stays in the ledger, where its broker can no longer claim it. Messages go
        in the order in which they came back, so that none overtakes another; messages that are
        published meanwhile go ahead of them.
        """
        if not self._returned:
            self._turns.later(self._give_returned)
        self._returned.append((old, said, sender, old.state))
        old.state = RETURNED

    def _give_returned(self, now: float) -> None:
        """Reassign up to STEP returned messages, the rest in later turns."""
        for _ in range(min(STEP, len(self._returned))):
            self._give_again(now)
        if self._returned:
            self._turns.work += self._limits.turn_work
            self._turns.later(self._give_returned)

    def _give_again(self, now: float) -> None:
        """Give the message that came back first to another member; while there is none, it
        waits."""
        old, said, sender, state = self._returned.popleft()
        if self.ledger.refs.get(old.ref) is not old:
            # Its broker went meanwhile, so that it was given to another one, or it has expired.
            return
        if said == UNKNOWN:
            if not self._give_to_another(old):
                old.state = state
            return
        denied = said == DENY
        tries = old.tries = old.tries or Tries(now)
        if denied:
            tries.denied |= {sender}
        else:
            tries.refused |= {sender}
        if self._give_to_another(old):
            return
        if denied and not self._groups.others(old.ref[2], (*old.visited, *tries.denied)):
            self._give_up(old)
            return
        self.ledger.close(old.ref)  # it waits for a new member
        tries.refused = frozenset()
        old.who, old.state, old.at, old.visited = NO_MEMBER, OPEN, tries.since, ()
        old.again_at = now + min(MAX_RETRY_S, max(SWEEP_S, (now - tries.since) / 2))
        if not self._keep(old):
            self._give_up(old)

    def _give_up(self, old: Assignment) -> None:
        """Drop a message: no member gets it."""
        self.ledger.close(old.ref)
        self._closed(old.ref)
        self._counters.shared_undelivered += 1

    def _closed(self, *refs: Ref) -> None:
        self._node.journal.shared_closed(list(refs))
        for ref in refs if self._succeeded else ():
            if (theirs := self._succeeded.get(split_key(ref[0])[0])) is not None:
                theirs.append(ref)

    # ---------------------------------------------------------------- the end, and the beginning

    def leave(self) -> None:
        """Grant all assignments, as this broker stops: brokers that have its messages need not
        claim them."""
        while self._returned:
            self._give_again(self._node.now)
        for who, those in self.ledger.by_who.items():
            if who != NO_MEMBER and self._incarnation(who[:8]) == who:
                rulings = self._out.setdefault(who[:8], [])
                for assignment in those.values():
                    if assignment.state == OPEN:
                        assignment.state = GRANTED
                        rulings.append((GRANT, assignment.ref))
        self.tell()

    def restore(self, closed: set[Ref]) -> None:
        """Go on with the messages that earlier incarnations of this broker gave, if the log has
        them and they were not acknowledged (`closed`)."""
        forwarder = self._forwarder
        for key in forwarder.ours.keys() - {forwarder.key}:
            self._tops[key] = forwarder.vector[key].top if key in forwarder.vector else 0
        for entry in chain.from_iterable(forwarder.log.pieces()):
            if entry.key in forwarder.ours:
                self.restore_entry(entry, closed)

    def restore_entry(self, entry: LogEntry, closed: Container[Ref]) -> None:
        """Go on with the messages of an `entry` that this broker gave before, or a broker whose
        standby it is, but for those in `closed`."""
        if not entry.qos or (choice := entry.choice) is None:
            return
        for sequence, message in entry.messages():
            for who, group_id in choice.entries:
                ref = (entry.key, sequence, group_id)
                if ref in closed:
                    continue
                assignment = Assignment(ref, who, message, entry.at, choice.visited, choice.retain)
                # The other broker may have claimed it.
                assignment.state = GRANTED if message.qos == 2 else OPEN
                assignment.asked = self._node.now
                self._add(assignment)

    # ---------------------------------------------------------------- givers that are gone

    def standby_lost(self) -> None:
        """Count what takers may claim as granted: the standby that is lost may do that."""
        for assignment in self.ledger.refs.values():
            if assignment.state == OPEN and assignment.message.qos == 2:
                assignment.state = GRANTED

    def succeed(self, giver: bytes, closed: Iterable[Ref], since: list[Ref]) -> None:
        """Rule on the messages of a broker that cannot be reached, `giver`, as its standby, from
        now on: all that it gave have been restored but for those in `closed`. `since`: gets what is
        closed from now on."""
        self._succeeded[giver] = since
        for ref in closed:
            self.ledger.note_moved(ref, self._node.now)
        self._heard.update(who[:8] for who in self.ledger.by_who)

    def _give_up_succession(self, giver: bytes) -> None:
        """Leave the messages of a broker that is back to it: it is told which are closed."""
        if self._succeeded.pop(giver, None) is None:
            return
        for ref in [ref for ref in self.ledger.refs if split_key(ref[0])[0] == giver]:
            self.ledger.close(ref)
