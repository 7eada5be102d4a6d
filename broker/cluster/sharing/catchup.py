"""Shared subscriptions of other brokers that become known late get the messages that were published
here meanwhile (docs/decisions/0015).

A broker that has just started, or was cut off, serves clients before it knows the groups of other
brokers. The messages that it publishes are in its log. For each group it remembers for which of
these messages the group was known (covered). When a broker posts a group, and not all messages in
the log are covered, it is asked how old the group is; then the messages that were published since
and are not covered are given to its members, in order, in steps. Until that is done the members get
no new messages, which would overtake the old ones. The old messages are kept here even when they
leave the log: large messages empty it before an answer arrives behind them over a slow link.

    GROUP_ASK    to one broker: u48 time, group ids
    GROUP_AGES   its answer: the same time; for each, group id and u32 age (ms)

The time (ms) is that of the question, by the clock of the broker that asks: the age in an answer
counts from its own question, even if another one was sent since, as members came and went.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, takewhile
from math import ceil
from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import (
    LAST,
    MAX_GAPS,
    Ranges,
    find,
    intersect,
    merge,
    subtract,
)
from mqttree.broker.cluster.delivery.replay_log import LogEntry
from mqttree.broker.cluster.sharing.assignment_ledger import Ref
from mqttree.broker.core.receiver_assignment import MAX_CHOICES
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.routing.group_selection import GROUP_ID_SIZE, parse_key
from mqttree.routing.subscription_trie import SubscriptionTrie

if TYPE_CHECKING:
    from mqttree.broker.base.timers import Timer
    from mqttree.broker.cluster.delivery.forwarder import Forwarder
    from mqttree.broker.cluster.delivery.ports import Above, TakeEntries
    from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
    from mqttree.broker.cluster.ports import MemberBroker
    from mqttree.broker.cluster.sharing.group_table import GroupTable
    from mqttree.broker.cluster.sharing.ports import Giver
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.message import Message
    from mqttree.routing.link_state import LinkStateDatabase

GROUP_ASK, GROUP_AGES = 13, 14
"""Kinds of messages to one broker."""

STEP = 500
"""messages that are given to groups in one turn at most, about 10 ms of work."""
LOOKS = 2_000
"""entries of the log, or messages of a batch, that are looked at in one turn at most."""
MAX_KEPT_BYTES = 128 * 1024 * 1024
"""bytes of entries that have left the log and are kept until groups that are just known have got
them: four times the log. The oldest go first [replay_log_reserve_full]."""
PAUSE = 0.001
"""s between two turns."""
ASKED = 500
"""groups that a broker is asked for in one message, and that are caught up together."""
FORGOTTEN = 5_000
"""groups without members that are looked at in one turn."""
RETRY = 1.0
"""s without an answer after which a broker is asked again."""
PATIENCE_S = 5.0
"""s without an answer after which a group counts as new."""
OLDEST = 0xFFFFFFFF
TIME_SIZE = 6
"""bytes of the time of a question."""
_ITEM = GROUP_ID_SIZE + 4


class Job:
    """Groups of one broker that are being caught up."""

    __slots__ = (
        "broker",
        "entries",
        "first",
        "group_ids",
        "last",
        "looked",
        "missed",
        "pieces",
        "reading",
        "trie",
    )

    def __init__(self, broker: bytes, group_ids: dict[bytes, float]) -> None:
        """`group_ids`: with when (s) each group began."""
        self.broker = broker
        self.group_ids = group_ids
        self.trie: SubscriptionTrie[bytes] | None = None  # group ids by filter, once it has begun
        # What reads the parts of the log's tail, which come before the log; None: all have come.
        self.pieces: Iterator[Callable[[TakeEntries], None]] | None = None
        self.reading = False  # the tail is being read
        self.entries: Iterator[LogEntry] = iter(())  # to look at
        self.last: LogEntry | None = None  # of these
        self.missed: deque[LogEntry] = deque()  # and what has left the log and comes before these
        # Origin -> the last number that has been looked at.
        self.looked: dict[bytes, int] = {}
        # Mark, origin -> the lowest number that the group is owed.
        self.first: dict[tuple[bytes, bytes], int] = {}

    def next(self) -> LogEntry | None:
        """Return the next entry to be looked at, None if there is none for now. The entries of an
        origin come in order."""
        while entry := self.missed.popleft() if self.missed else next(self.entries, None):
            if entry.sequence > self.looked.get(entry.key, 0):
                self.looked[entry.key] = entry.sequence + entry.count - 1
                return entry
        return None

    def was_read(self, entries: list[LogEntry] | None) -> None:
        """Take a part of the log's tail; None: it cannot be read."""
        self.reading = False
        self.missed.extend(entries or ())

    def drops(self, entry: LogEntry) -> None:
        """Note that an entry leaves the log."""
        if (
            self.trie is not None
            and self.pieces is None
            and entry.sequence > self.looked.get(entry.key, 0)
        ):
            self.missed.append(entry)


class Asking:
    """Groups of one broker that has been asked how old they are, or is going to be asked."""

    __slots__ = ("again", "group_ids", "new", "since")

    def __init__(self) -> None:
        # s; when the broker could be reached again: no question before that counts.
        self.since = float("-inf")
        # Marks, with when (s) the question was first, and when it is next.
        self.group_ids: dict[bytes, tuple[float, float]] = {}
        self.new: deque[bytes] = deque()  # to be asked for the first time
        # When (s) which is asked once more, in order.
        self.again: deque[tuple[float, bytes]] = deque()

    def ask(self, group_id: bytes, now: float) -> None:
        """Ask for a group, from now on, if it is not asked for already."""
        first, _ = self.group_ids.get(group_id, (None, None))
        if first is None or first < self.since:
            self.group_ids[group_id] = (now, now)
            self.new.append(group_id)

    def due(self, now: float) -> bool:
        """Whether any is to be asked for now."""
        return bool(self.new) or (bool(self.again) and self.again[0][0] <= now)

    def take(self, now: float, most: int) -> tuple[list[bytes], dict[bytes, float]]:
        """Return groups that are to be asked for now, and groups without an answer for too long,
        with the time (s) of the first question. They are kept in the order of time, so that no call
        looks at more than `most`."""
        asked: list[bytes] = []
        late: dict[bytes, float] = {}
        for _ in range(most):
            if not self.due(now):
                break
            when, group_id = (now, self.new.popleft()) if self.new else self.again.popleft()
            first, following = self.group_ids.get(group_id, (now, float("inf")))
            first = max(first, self.since)
            if following > when:
                continue  # it was answered, or asked for again
            if first + PATIENCE_S <= now:
                late[group_id] = first
                del self.group_ids[group_id]
            else:
                asked.append(group_id)
                self.group_ids[group_id] = (first, now + RETRY)
                self.again.append((now + RETRY, group_id))
        return asked, late


class Catchup:
    """Knows which messages were published here while each group was known, and gives groups the
    others later."""

    def __init__(
        self,
        node: MemberBroker,
        database: LinkStateDatabase,
        bus: UnicastBus,
        forwarder: Forwarder,
        groups: GroupTable,
        giver: Giver,
        above: Above,
    ) -> None:
        """`node`: this broker; `groups`: which groups have members where; `giver`: gives messages
        to groups; `above`: has what was kept for brokers that were away; `database`,
        `bus`, `forwarder`: the modules below that it uses."""
        self._node = node
        self._turns = node.turns
        self._database = database
        self._bus = bus
        self._forwarder = forwarder
        self._groups = groups
        self._giver = giver
        self._above = above
        # Mark -> origin (an incarnation of this broker) -> numbers.
        self._covered: dict[bytes, dict[bytes, Ranges]] = {}
        self._since: dict[bytes, float] = {}  # id of a group that is known -> since when (s)
        self._asked: dict[bytes, Asking] = {}  # by broker
        self._jobs: deque[Job] = deque()
        # Messages that have left the log and are for groups that wait for old ones.
        self._kept: deque[LogEntry] = deque()
        self._size = 0  # bytes
        self._watches = False  # what leaves the log
        self.held = False
        """Whether messages that an earlier incarnation of this broker published may come still, and
        reports on them."""
        self._timer: Timer | None = None
        self._at = 0.0  # s; when that is due
        bus.receive(GROUP_ASK, self._ask_received)
        bus.receive(GROUP_AGES, self._ages_received)

    # ---------------------------------------------------------------- known groups

    def known(self, group_id: bytes) -> None:
        """Note that a group is known from now on: it gets the messages that are published here."""
        if group_id not in self._since:
            self._since[group_id] = self._node.now
            forwarder = self._forwarder
            self._cover(group_id, forwarder.key, forwarder.own.top + 1)

    def unknown(self, group_id: bytes) -> None:
        """Note that a group has no member at any broker."""
        if self._since.pop(group_id, None) is None:
            return
        forwarder = self._forwarder
        for key, ranges in self._covered[group_id].items():
            if ranges and ranges[-1][1] == LAST:
                top = forwarder.vector[key].top if key in forwarder.vector else 0
                low = ranges.pop()[0]
                if low <= top:
                    ranges.append((low, top))
                self._record(group_id, key)

    def _cover(self, group_id: bytes, key: bytes, first: int, last: int = LAST) -> None:
        """Note that a group gets, or has got, the messages of an origin with these numbers."""
        covered = self._covered.setdefault(group_id, {})
        covered[key] = merge([*covered.get(key, ()), (first, last)])[-MAX_GAPS:]
        self._record(group_id, key)

    def _record(self, group_id: bytes, key: bytes) -> None:
        self._node.journal.shared_covered(
            group_id, key, self._covered[group_id][key], self._since.get(group_id)
        )

    def covered(self) -> Iterable[tuple[bytes, bytes, Ranges, float | None]]:
        """Return group id, origin, numbers and since when (s) the group is known, of all groups."""
        for group_id, origins in self._covered.items():
            for key, ranges in origins.items():
                yield group_id, key, ranges, self._since.get(group_id)

    def restore(
        self, found: Iterable[tuple[bytes, bytes, Ranges, float | None]], closed: Iterable[Ref]
    ) -> None:
        """Take over which groups earlier incarnations knew (`found`), and which messages they gave
        late (`closed`). For groups with local members also since when."""
        forwarder = self._forwarder
        for group_id, key, ranges, since in found:
            if key == forwarder.key:
                continue
            top = (
                forwarder.vector[key].top
                if key in forwarder.ours and key in forwarder.vector
                else 0
            )
            if ranges := intersect(ranges, [(1, top)] if top else []):
                self._covered.setdefault(group_id, {})[key] = ranges
            if since is not None and group_id in self._since:
                self._since[group_id] = min(self._since[group_id], since)
        given: dict[tuple[bytes, bytes], Ranges] = {}
        for key, sequence, group_id in closed:
            given.setdefault((group_id, key), []).append((sequence, sequence))
        for (group_id, key), ranges in given.items():
            covered = self._covered.setdefault(group_id, {})
            covered[key] = merge([*covered.get(key, ()), *ranges])

    def forget_old(self) -> None:
        """Forget groups without members when no log has messages for them."""
        # What the tail has for a broker that is away may be for a group that it has.
        if len(self._above.absent_members):
            return
        oldest: dict[bytes, int] = {}
        if all(group_id in self._since for group_id in self._covered):
            return
        forwarder = self._forwarder
        for entry in chain.from_iterable(forwarder.log.pieces()):
            if (
                entry.key in forwarder.ours
                and oldest.setdefault(entry.key, entry.sequence)
                and len(oldest) == len(forwarder.ours)
            ):
                break
        self._forget_some(
            [group_id for group_id in self._covered if group_id not in self._since], oldest
        )

    def _forget_some(self, group_ids: list[bytes], oldest: dict[bytes, int]) -> None:
        self._turns.work += FORGOTTEN
        for group_id in group_ids[:FORGOTTEN]:
            origins = self._covered.get(group_id)
            if origins is None or group_id in self._since:
                continue
            for key in [
                k
                for k, ranges in origins.items()
                if not ranges or ranges[-1][1] < oldest.get(k, LAST)
            ]:
                del origins[key]
            if not origins:
                del self._covered[group_id]
        if rest := group_ids[FORGOTTEN:]:
            self._turns.later(lambda now: self._forget_some(rest, oldest))

    # ---------------------------------------------------------------- groups that others post

    def _top(self, key: bytes) -> int:
        """Return the last number of an incarnation of this broker, 0: none."""
        forwarder = self._forwarder
        if key == forwarder.key:
            return forwarder.own.top
        window = forwarder.vector.get(key)
        return 0 if window is None else window.top

    def wanted(self, group_id: bytes) -> bool:
        """Whether the log may have messages for a group that another broker posts only now."""
        if self.held:
            return True
        forwarder = self._forwarder
        covered = self._covered.get(group_id, {})
        for key in forwarder.ours:
            top = self._top(key)
            if top and subtract([(1, top)], covered.get(key, [])):
                return len(forwarder.log) > 0 or len(self._above.absent_members) > 0
        return False

    def release(self) -> None:
        """Give old messages, as all of them are here: what this broker's journal did not have goes
        to local members, too. Sessions that are other brokers' have what was given to them."""
        self.held, now = False, self._node.now
        here = {group_id: self._since[group_id] for group_id in self._groups.here}
        lacking = {group_id: at for group_id, at in here.items() if self.wanted(group_id)}
        if lacking:
            self._jobs.append(Job(self._database.own.id, lacking))
        self._soon(now)

    def ask(self, broker_id: bytes, group_id: bytes) -> None:
        """Ask a broker how old its group is. Its members get no new messages before it has answered
        and they have got the old ones."""
        now = self._node.now
        self._asked.setdefault(broker_id, Asking()).ask(group_id, now)
        self.expect()
        self._soon(now)

    def expect(self) -> None:
        """Keep entries that leave the log and may be for groups that wait for old messages, or that
        are still to be looked at."""
        if not self._watches:
            self._watches = True
            self._forwarder.log.on_dropped.append(self._dropped)

    def _dropped(self, entry: LogEntry, position: int, source: Connection | None) -> None:
        """Keep an entry that leaves the log, if it is for a group that waits for old messages; the
        oldest ones are dropped if there is no room."""
        if (
            entry.key not in self._forwarder.ours
            or not entry.qos
            or not any(self._groups.waits(topic.decode()) for topic in entry.topics())
        ):
            return
        self._kept.append(entry)
        self._size += entry.size
        if self._jobs:
            self._jobs[0].drops(entry)
        while self._size > MAX_KEPT_BYTES and len(self._kept) > 1:
            oldest = self._kept.popleft()
            self._size -= oldest.size
            self._node.counters.replay_log_reserve_full += oldest.count

    @property
    def keeps(self) -> int:
        """Bytes that have left the log and are kept for groups that wait for old messages."""
        return self._size

    def rest(self) -> None:
        """Keep nothing if no group waits for old messages."""
        if self._watches and not (self._jobs or self._asked or self._groups.looks):
            self._watches = False
            self._forwarder.log.on_dropped.remove(self._dropped)
            self._kept.clear()
            self._size = 0

    def busy(self, broker_id: bytes) -> bool:
        """Whether groups of a broker are still to get old messages."""
        return broker_id in self._asked or any(job.broker == broker_id for job in self._jobs)

    def back(self, broker_id: bytes) -> None:
        """Ask a broker again that can be reached again, as if it had not been asked before."""
        if (asking := self._asked.get(broker_id)) is not None:
            asking.since = self._node.now

    def forget(self, broker_id: bytes, group_id: bytes) -> None:
        """Stop asking a broker for a group of which it has no member, or as it cannot be
        reached."""
        if (asking := self._asked.get(broker_id)) is not None:
            asking.group_ids.pop(group_id, None)
        for job in self._jobs:
            if job.broker == broker_id:
                self._leave(job, group_id, job.looked)

    def _leave(self, job: Job, group_id: bytes, looked: Mapping[bytes, int]) -> None:
        """Give a group no more old messages: the rest of them when its members are back. `looked`:
        the last number of each origin that it has got, if it is owed that."""
        if job.group_ids.pop(group_id, None) is not None:
            for (which, key), first in job.first.items():
                if which == group_id and first <= looked[key]:
                    self._cover(group_id, key, first, looked[key])

    def _soon(self, when: float) -> None:
        if self._timer is not None:
            if self._at <= when:
                return
            self._node.timers.cancel(self._timer)
        self._at = when
        self._timer = self._node.timers.schedule(when, self._step)

    def _step(self, now: float) -> None:
        self._timer = None
        more = False
        for broker_id, asking in list(self._asked.items()):
            if not asking.group_ids:
                del self._asked[broker_id]
            elif self._database.reaches(broker_id):
                asked, late = asking.take(now, ASKED)
                if late:
                    self._jobs.append(Job(broker_id, late))
                if asked:
                    body = encode_time(now) + b"".join(asked)
                    self._bus.send(broker_id, GROUP_ASK, body, at_once=True)
                more = more or asking.due(now)
            # Otherwise it was cut off before it could answer: it is asked once more when it is
            # back, and gets the same messages.
        if self._jobs and not self.held and self._resume(self._jobs[0]):
            self._jobs.popleft()
        if (self._jobs and not self.held) or more:
            self._soon(now + PAUSE)
        elif self._asked:
            self._soon(now + RETRY)
        else:
            self.rest()

    def _ask_received(self, sender: bytes, body: bytes, now: float) -> None:
        size = len(body) - TIME_SIZE
        if size < 0 or size % GROUP_ID_SIZE or size > MAX_CHOICES * GROUP_ID_SIZE:
            raise MalformedPacket("GROUP_ASK for the age of groups is truncated")
        found = [body[:TIME_SIZE]]
        for at in range(TIME_SIZE, len(body), GROUP_ID_SIZE):
            group_id = body[at : at + GROUP_ID_SIZE]
            age = 0.0 if group_id not in self._since else now - self._since[group_id]
            found.append(group_id + max(0, min(OLDEST, ceil(age * 1000))).to_bytes(4, "big"))
        self._bus.send(sender, GROUP_AGES, b"".join(found))

    def _ages_received(self, sender: bytes, body: bytes, now: float) -> None:
        if len(body) < TIME_SIZE or (len(body) - TIME_SIZE) % _ITEM:
            raise MalformedPacket("GROUP_AGES with the age of groups is truncated")
        asking = self._asked.get(sender, Asking())
        asked = min(now, int.from_bytes(body[:TIME_SIZE], "big") / 1000)
        group_ids: dict[bytes, float] = {}
        for at in range(TIME_SIZE, len(body), _ITEM):
            group_id = body[at : at + GROUP_ID_SIZE]
            if (
                group_id in asking.group_ids and len(group_ids) < ASKED
            ):  # no more are asked for at a time
                del asking.group_ids[group_id]
                group_ids[group_id] = (
                    asked - int.from_bytes(body[at + GROUP_ID_SIZE : at + _ITEM], "big") / 1000
                )
        if group_ids:
            self._jobs.append(Job(sender, group_ids))
            self._soon(now)

    # ---------------------------------------------------------------- old messages for groups

    def _resume(self, job: Job) -> bool:
        """Give some more messages. Returns whether that was all."""
        if job.trie is None:
            job.trie = SubscriptionTrie()
            for group_id in job.group_ids:
                if (name := self._groups.key_of(group_id)) is not None:
                    group, topic_filter = parse_key(name)
                    job.trie.insert(topic_filter, group, group_id)
            job.pieces = self._above.absent_members.pieces(job.broker)
        given, looks = 0, LOOKS
        while given < STEP and looks > 0 and not job.reading:
            entry = job.next()
            if entry is None and self._more(job):
                continue
            if entry is None:
                self._end(job)
                return True
            looks -= entry.count
            if entry.key in self._forwarder.ours and entry.qos and not entry.passed:
                for number, message in entry.messages():
                    given += self._give(job, entry, number, message)
        return False

    def _more(self, job: Job) -> bool:
        """Find more entries to look at: in the tail, then in the log. Returns whether there may be
        any."""
        if job.pieces is None:
            return self._gather(job, float("-inf"))
        read = next(job.pieces, None)
        if read is not None:
            job.reading = True
            read(job.was_read)
        else:
            job.pieces = None
            self._gather(job, min(job.group_ids.values(), default=self._node.now))
        return True

    def _gather(self, job: Job, since: float) -> bool:
        """Find the entries that were added to the log since `since` (s) and were not found before.
        Returns whether there are any."""
        log, last = self._forwarder.log, job.last
        if last is None:
            job.entries = chain.from_iterable(log.pieces(since))
            job.missed.extend(entry for entry in self._kept if entry.at >= since)
        else:
            job.entries = iter(
                list(
                    takewhile(lambda entry: entry is not last and entry.at >= last.at, log.latest())
                )[::-1]
            )
        job.last = next(log.latest(), None)
        return job.last is not last

    def _give(self, job: Job, entry: LogEntry, number: int, message: Message) -> int:
        """Give the `message` with this `number` of an `entry` to the groups that want it. Returns
        how often."""
        if job.trie is None:
            return 0
        key, given, choice = entry.key, 0, entry.choice
        chosen = {group_id for _, group_id in choice.entries} if choice is not None else ()
        for group_id in job.trie.match(message.topic.decode()):
            if entry.at < job.group_ids.get(group_id, float("inf")):
                continue
            job.first.setdefault((group_id, key), number)
            covered = self._covered.get(group_id, {}).get(key, [])
            if find(covered, number, number) >= 0 or message.expired(self._node.now):
                continue
            # The journal may lack what an earlier incarnation did.
            if group_id in chosen or self._giver.is_closed((key, number, group_id)):
                continue
            if self._giver.give_late(group_id, message):
                given += 1
                self._node.journal.shared_closed([(key, number, group_id)])
            elif job.broker != self._database.own.id:
                # They went meanwhile, and are asked once more when they are back.
                self._leave(job, group_id, {**job.looked, key: number - 1})
                self.ask(job.broker, group_id)
        return given

    def _end(self, job: Job) -> None:
        """Let groups get new messages like all others, as they have got the old ones."""
        forwarder = self._forwarder
        for group_id, since in job.group_ids.items():
            self._since[group_id] = min(self._since.get(group_id, self._node.now), since)
            for key in forwarder.ours:
                self._cover(
                    group_id, key, min(job.first.get((group_id, key), LAST), self._top(key) + 1)
                )
            self._groups.caught_up(job.broker, group_id)


def encode_time(now: float) -> bytes:
    """Encode the time of a question (ms), rounded down."""
    return int(now * 1000).to_bytes(TIME_SIZE, "big")
