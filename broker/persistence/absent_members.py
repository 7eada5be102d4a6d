"""Brokers that cannot be reached: messages published here that they want and that leave the replay
log meanwhile are kept in the log tail on the disk (docs/decisions/0031). Without a tail they are
lost for these brokers, and counted exactly (docs/decisions/0027).

    broker     reachable -(the tree has lost it)-> absent, with the filters that it had posted
               -(the tree has it again)-> back: it asks for what it lacks
               -(it lacks nothing of the tail, and asks no more)-> served; or `absent_max_s` has
               passed: the lost messages that it lacks are counted, and one line gives the number
    link       up -(lost)-> each broker that was reached over it is absent; or, if another link
               leads to it, it is back, and may lack messages that were on their way

Each message has one origin, which keeps it or counts it. Messages on their way over a link that is
lost may have left their origin's log by then: the broker that had them last keeps or counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from mqttree.broker.base import costs
from mqttree.broker.base.sequence_set import Ranges, intersect, merge
from mqttree.broker.cluster.delivery.link_acks import MAX_ABSENT_BROKERS
from mqttree.broker.cluster.delivery.ports import TailPiece, TakeEntries
from mqttree.broker.cluster.delivery.remote_flow_control import MAX_KNOWN_TOPICS
from mqttree.broker.cluster.delivery.replay_log import NEVER
from mqttree.broker.cluster.directory.link_state_directory import GROUP, INTEREST
from mqttree.broker.cluster.events import LinkDown, MemberGone, RouteChanged
from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.core.effects import TailRead, TailSync, TailWrite
from mqttree.broker.persistence.log_tail import LogTail, TailLoaded
from mqttree.broker.persistence.tail_segment import Away, Part
from mqttree.routing.subscription_trie import SubscriptionTrie
from mqttree.routing.topic_filter import well_formed

if TYPE_CHECKING:
    from mqttree.broker.cluster.cluster import Cluster
    from mqttree.broker.cluster.delivery.replay_log import LogEntry
    from mqttree.broker.cluster.ports import MemberBroker
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.effect_answers import EffectAnswers

CUT_GRACE_S = 5.0
"""s for which messages of other brokers that come after a link was lost are kept for those
behind it: until these have heard of it, and keep them themselves."""

MAX_FILTERS = 10_000
"""filters of an absent broker; of more, it counts as one that wants everything."""

MAX_RANGES = 4096
"""ranges of numbers that an absent broker lacks and that are distinguished, so that what it has
got elsewhere does not count."""

RETURN_GRACE_S = 5.0
"""s for which a broker that is back may say what it lacks."""

TAIL_RETURN_S = 60.0
"""s; the same for one for which there is something in the log's tail, from its last question
on: a broker that asks for a piece lets its subscribers have it first, and these may be slow."""

EVERYTHING = b"#"


class AbsentMember:
    """One broker that is away."""

    def __init__(
        self,
        filters: tuple[bytes, ...],
        position: int,
        now: float,
        lacks_since: float | None = None,
    ) -> None:
        """`filters`: those that it had posted. `position`: of the replay log, from which on it may
        lack messages. `now`: when it went away (s). `lacks_since`: when
        it went away first and has not been sent everything since (s); None: `now`."""
        self.wish(filters)
        self.position = position
        self.since = now
        self.lacks_since = now if lacks_since is None else lacks_since
        # When it was seen again, and when it last said what it lacks (s).
        self.back: float | None = None
        self.asked_at = now
        # By origin, messages that may be lost: first, last, count.
        self.dropped: dict[bytes, list[tuple[int, int, int]]] = {}
        # What it has said last that it lacks, for each origin, since it is back.
        self.lacking: dict[bytes, Ranges] = {}
        # Number of lost messages that it was found to lack.
        self._lost = 0
        # Position of the log from which on messages may have been on their way over a link that was
        # lost, and when that was (s).
        self.cut_from = NEVER
        self.cut_at = now

    def wish(self, filters: tuple[bytes, ...]) -> None:
        """Set the topic filters that the broker wants."""
        # Made when it is needed.
        self._trie: SubscriptionTrie[None] | None = None
        self._known: dict[bytes, bool] = {}
        self.filters = filters if len(filters) <= MAX_FILTERS else (EVERYTHING,)

    def wants(self, topic: bytes) -> bool:
        """Return whether the broker had a subscriber to this topic when it was seen last."""
        found = self._known.get(topic)
        if found is None:
            if len(self._known) >= MAX_KNOWN_TOPICS:
                self._known.clear()
            if self._trie is None:
                self._trie = SubscriptionTrie()
                for number, data in enumerate(self.filters):
                    text = data.decode(errors="replace")
                    if well_formed(text):
                        self._trie.insert(text, number, None)
            # As a broker that asks for everything also wants what begins with `$`.
            found = self._known[topic] = (topic[:1] == b"$" and EVERYTHING in self.filters) or bool(
                self._trie.match(topic.decode(errors="replace"))
            )
        return found

    def passing(self, entry: LogEntry, position: int) -> bool:
        """Return whether a message of another broker was on its way to this one when the link was
        lost, or came soon after, before its origin had noticed that. `entry`: the message;
        `position`: its place in the replay log."""
        return position >= self.cut_from and entry.at < self.cut_at + CUT_GRACE_S

    def drop(self, key: bytes, first: int, last: int, count: int) -> None:
        """Note that messages are lost, as far as the broker lacks them.

        `key`: of the origin. `first`, `last`: their lowest and highest number. `count`: how many
        they are.
        """
        if key in self.lacking:
            self._lost += common(first, last, count, self.lacking[key])
            return
        dropped = self.dropped.setdefault(key, [])
        if dropped and (dropped[-1][1] == first - 1 or len(dropped) >= MAX_RANGES):
            first, _, before = dropped[-1]
            dropped[-1] = (first, last, before + count)
        else:
            dropped.append((first, last, count))

    def lacks(self, key: bytes, lacked: Ranges) -> None:
        """Note which numbers of an origin the broker says that it lacks. The first time, lost
        messages among them are counted: no broker sends them any more. `key`: of the origin."""
        for first, last, count in self.dropped.pop(key, ()):
            self._lost += common(first, last, count, lacked)
        self.lacking[key] = lacked

    @property
    def memory(self) -> int:
        """Estimated bytes of memory of the notes about the broker."""
        ranges = sum(map(len, self.dropped.values()))
        return costs.SUBSCRIPTION_MEMORY * len(self.filters) + 150 * (len(self._known) + ranges)

    @property
    def lost(self) -> int:
        """Number of messages that are lost for the broker."""
        return self._lost + sum(
            count for dropped in self.dropped.values() for _, _, count in dropped
        )


def filters_of(keys: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the filters among what a broker has posted, those of its shared subscriptions,
    too."""
    found = (
        key[1:] if key[:1] == INTEREST else key.partition(b"\0")[2]
        for key in keys
        if key[:1] in (INTEREST, GROUP)
    )
    return tuple(dict.fromkeys(found))


def common(first: int, last: int, count: int, lacked: Ranges) -> int:
    """Return how many of `count` messages between two numbers are lacked, at most.

    `first`, `last`: the lowest and the highest; `lacked`: ranges of numbers.
    """
    return min(count, sum(high - low + 1 for low, high in intersect([(first, last)], lacked)))


class AbsentMembers:
    """All brokers that are away."""

    def __init__(self, node: MemberBroker, cluster: Cluster) -> None:
        self._node = node
        self._limits = node.limits
        self._cluster = cluster
        self.absent: dict[bytes, AbsentMember] = {}
        self.expected: dict[bytes, None] = {}
        """Other brokers that this one has met and not given up: those of them that cannot be
        reached after a restart are absent."""
        self._acks = cluster.acks
        self._clock = cluster.clock
        self._forwarder = cluster.forwarder
        self._log = cluster.replay_log
        self.tail = LogTail(node, self._clock, self._lost, self.away)

    def take_answers(self, answers: EffectAnswers) -> None:
        """Take the answers of the driver that reads and writes the tail."""
        answers.take_by(TailWrite, self.tail.written)
        answers.take_by(TailRead, self.tail.was_read)
        answers.take_by(TailSync, self.tail.synced)

    def begin(self, loaded: TailLoaded) -> None:
        """Restore the tail of an earlier incarnation of this broker, and the brokers that were away
        then."""
        node = self._node
        wall = self._clock.physical(node.now)
        for away in self.tail.begin(loaded)[:MAX_ABSENT_BROKERS]:
            since, lacks_since = (
                node.now - max(0, wall - at) / 1000 for at in (away.since, away.lacks_since)
            )
            self.absent[away.broker] = AbsentMember(away.filters, 0, since, lacks_since)
            self._watch()
        for key in self.tail.origins():
            if split_key(key)[0] == node.config.id:
                self._cluster.origins.remember(key, self.tail.last(key), node.now)

    def expect(self, broker_ids: Iterable[bytes], since: float) -> None:
        """Restore the brokers that an earlier incarnation of this one knew. Those that were
        reachable `since` (s), when it ended, are absent until they are back. What they wanted is
        not known any more, so everything is kept for them."""
        for broker_id in broker_ids:
            self.expected[broker_id] = None
            if broker_id not in self.absent and len(self.absent) < MAX_ABSENT_BROKERS:
                self.absent[broker_id] = AbsentMember((EVERYTHING,), 0, since)
                self._watch()
        self.tail.changed()

    def away(self) -> Iterable[Away]:
        """Yield the brokers that are away, for the next start."""
        time_of_day = self._clock.physical
        for broker_id, absent in self.absent.items():
            # One that is back may have other subscriptions by the time that this one ends.
            filters = absent.filters if absent.back is None else (EVERYTHING,)
            since, lacks_since = time_of_day(absent.since), time_of_day(absent.lacks_since)
            yield Away(broker_id, since, lacks_since, filters)

    def link_down(self, event: LinkDown) -> None:
        """Handle the loss of a link: messages on their way over it, of whatever origin, may be in
        no other log any more. A link that kept up had few, and they are in the log."""
        link, now = event.link, event.now
        position = link.kept_from
        if position is None or link.peer is None or not (link.unsent or link.marks):
            return
        behind = self._cluster.gap_recovery.brokers_behind(link)
        for broker_id in dict.fromkeys((link.peer.id, *behind)):
            absent = self.absent.get(broker_id)
            if (
                absent is None
                and len(self.absent) < MAX_ABSENT_BROKERS
                and (listing := self._cluster.database.listings.get(broker_id)) is not None
            ):
                keys = listing.entries
                few = len(keys) <= MAX_FILTERS
                filters = filters_of(keys) if few else (EVERYTHING,)
                absent = self.absent[broker_id] = AbsentMember(filters, position, now)
                # It counts as back unless the tree says that it is gone.
                absent.back = now
                self._watch()
            if absent is not None:
                absent.cut_from = min(absent.cut_from, position)
                absent.cut_at = absent.asked_at = now
                absent.lacking.clear()

    def member_gone(self, event: MemberGone) -> None:
        """Note the filters of a broker that the tree has lost."""
        broker_id, keys = event.broker_id, event.keys
        known = self.absent.get(broker_id)
        filters = filters_of(keys)
        acks = self._acks
        if known is not None:
            if known.back is not None:
                # It was back for a moment: its hour begins now.
                known.back, known.since = None, self._node.now
            known.lacking.clear()
            known.wish(tuple(dict.fromkeys((*known.filters, *filters))))
        elif len(self.absent) < MAX_ABSENT_BROKERS:
            self.absent[broker_id] = AbsentMember(
                filters, acks.lacked_from(broker_id), self._node.now
            )
            # Watch the log before it may drop what was kept for that broker.
            self._watch()
        if self.tail.usable:
            acks.parted(broker_id)
        else:
            acks.went(broker_id)
        self.tail.changed()
        if self.tail.usable:
            # The next incarnation of this broker has to know.
            self.tail.flush()

    def _watch(self) -> None:
        dropped = self._log.on_dropped
        if self._dropped not in dropped:
            dropped.append(self._dropped)

    def route_changed(self, event: RouteChanged) -> None:
        """Note that a broker is back: it is about to ask for what it lacks."""
        broker_id, via = event.broker_id, event.via
        if (
            via is not None
            and broker_id not in self.expected
            and len(self.expected) < MAX_ABSENT_BROKERS
        ):
            self.expected[broker_id] = None
            self._node.journal.members_changed(self.expected)
        absent = self.absent.get(broker_id)
        if absent is not None and via is not None and absent.back is None:
            absent.back = absent.asked_at = self._node.now
            self.tail.changed()
            # It is about to ask.
            if not self.tail.usable:
                self._acks.part(broker_id, self._log.begin)

    def _dropped(self, entry: LogEntry, position: int, source: Connection | None) -> None:
        """Take an entry that leaves the replay log. While a broker asks for messages, they go to
        the tail as well."""
        if not entry.qos:
            return
        key = entry.key
        kept, ours = self.tail.usable, key in self._forwarder.ours
        origin = b"" if ours else split_key(key)[0]
        lacking = {
            broker_id: absent
            for broker_id, absent in self.absent.items()
            # `lacking` has [] for an origin of which it has been sent everything. That may be in
            # its memory only, and it may be killed.
            if (absent.back is None or kept or (not ours and absent.lacking.get(key) != []))
            and (
                position >= absent.position
                if ours
                else absent.passing(entry, position) and broker_id != origin
            )
        }
        if not lacking:
            return

        def wanting(topic: bytes) -> list[bytes]:
            return [broker_id for broker_id, absent in lacking.items() if absent.wants(topic)]

        for brokers, part in entry.divide(wanting):
            if brokers and not self.tail.add(part, brokers, source):
                last = part.sequence + part.count - 1
                for broker_id in brokers:
                    if lacking[broker_id].back is None or not ours:
                        lacking[broker_id].drop(key, part.sequence, last, part.count)

    def _lost(self, part: Part) -> None:
        """Note messages that the tail could not keep."""
        absent = self.absent.get(part.broker)
        if absent is not None:
            absent.drop(part.key, part.first, part.last, part.messages)

    def earliest(self) -> float | None:
        """Return since when (s) a broker may lack messages, None if none is away."""
        return min((absent.lacks_since for absent in self.absent.values()), default=None)

    @property
    def memory(self) -> int:
        """Estimated bytes of memory of all notes."""
        return sum(absent.memory for absent in self.absent.values())

    # ---------------------------------------------------------------- brokers that are back

    def __len__(self) -> int:
        return len(self.absent)

    def expects(self, broker_id: bytes, *, newest: bool) -> bool:
        """Whether a broker is away and may be back, or (`newest`: in this incarnation) is there."""
        return broker_id in self.absent or (newest and broker_id in self.expected)

    def patience(self, least: float) -> float:
        """Return for how long (s) something is remembered for brokers that are away: `least` if
        none is."""
        return max(least, self._limits.absent_max_s) if self.absent else least

    def pieces(self, broker_id: bytes) -> Iterator[Callable[[TakeEntries], None]]:
        """Return for each part of what the tail has for a broker, the oldest first, what reads
        it."""
        for frame in self.tail.frames(broker_id):
            yield partial(self.tail.read, frame)

    def to_offer(self, pause: float, now: float) -> Iterator[tuple[bytes, bytes, Ranges]]:
        """Return what is to be offered to brokers that have been back, and silent, for `pause` s:
        broker, origin, numbers. Origins of this broker are offered until they are asked. `now`:
        s."""
        ours = self._forwarder.ours
        for broker_id, absent in self.absent.items():
            if absent.back is None or now < absent.back + pause or now < absent.asked_at + pause:
                continue
            left = self.tail.left(broker_id)
            for key in dict.fromkeys([*left, *absent.dropped]):
                if (key in ours and key in absent.lacking) or absent.lacking.get(key) == []:
                    continue
                numbers = [(part.first, part.last) for part in left.get(key, ())]
                numbers += [(first, last) for first, last, _ in absent.dropped.get(key, ())]
                if numbers:
                    yield broker_id, key, merge(numbers)

    def lacks(self, broker_id: bytes, key: bytes, lacked: Ranges) -> TailPiece | None:
        """Record which numbers of an origin a broker has said that it lacks. Returns the oldest of
        these in the tail; None: there are none. `broker_id`: the broker; `key`: of the origin;
        `lacked`: the numbers, as ranges."""
        absent = self.absent.get(broker_id)
        if absent is not None and absent.back is not None:
            absent.lacks(key, lacked)
            absent.asked_at = self._node.now
        frame = self.tail.first(broker_id, key, lacked)
        if frame is None:
            return None
        part = frame.parts[broker_id, key]
        ahead = part.first - 1 if part.first == self.tail.begins(broker_id, key) else 0
        return TailPiece(ahead, part.last, partial(self.tail.read, frame))

    def sent(self, broker_id: bytes, key: bytes) -> None:
        """Note that a broker has been sent all messages of an origin that it said it lacks; it gets
        later ones like all others. `key`: of the origin."""
        absent = self.absent.get(broker_id)
        if absent is not None and key in absent.lacking:
            absent.lacking[key] = []

    def served(self, broker_id: bytes) -> bool:
        """Return whether the tail has nothing that a broker may lack."""
        absent = self.absent.get(broker_id)
        return absent is None or not self.tail.holds(broker_id, absent.lacking)

    def tick(self, now: float) -> None:
        """Once a second: end the absence of brokers that are back and ask no more, or that have
        been away for too long. `now`: s."""
        catchup = self._cluster.catchup
        for broker_id, absent in list(self.absent.items()):
            if absent.back is not None and catchup.busy(broker_id):
                absent.asked_at = now
            elif absent.back is not None:
                patience = RETURN_GRACE_S if self.served(broker_id) else TAIL_RETURN_S
                if now > absent.asked_at + patience:
                    self._end(broker_id, absent, "was away for")
            elif now > absent.since + self._limits.absent_max_s:
                self._end(broker_id, absent, "has been away for")
                if broker_id in self.expected:
                    del self.expected[broker_id]
                    self._node.journal.members_changed(self.expected)
        if self.tail.usable:
            self.tail.flush()

    def _end(self, broker_id: bytes, absent: AbsentMember, what: str) -> None:
        for key, parts in self.tail.left(broker_id).items():
            for part in parts:
                absent.drop(key, part.first, part.last, part.messages)
        del self.absent[broker_id]
        self.tail.ended(broker_id)
        if not self.absent:
            self._log.on_dropped.remove(self._dropped)
        if lost := absent.lost:
            self._node.counters.replay_log_lost += lost
            name = self._cluster.membership.name_of(broker_id) or broker_id.hex()
            kept = f"{self._limits.log_bytes >> 20} MiB, {self._limits.log_age_s:g} s"
            if self.tail.usable:
                kept += f", and the log tail ({self._node.config.log_tail >> 20} MiB)"
            away = (absent.back or self._node.now) - absent.since
            text = (
                f"broker {name} {what} {away:.0f} s: {lost} messages of this broker that it lacked "
                f"are lost, as they left the replay log ({kept})"
            )
            self._node.log("warning", text)
