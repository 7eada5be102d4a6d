"""Brokers that cannot be reached: what was published here, is wanted there and leaves the log
meanwhile is kept in the log's tail on the disk (docs/decisions/0031); without one it is lost for
them, and counted to the message (docs/decisions/0027).

    broker     reachable -(the tree has lost it)-> absent, with the filters that it had posted
               -(the tree has it again)-> back: it asks for what it lacks
               -(it lacks nothing of the tail, and asks no more)-> served; or ABSENT_TIME has
               passed: what it lacks of what was lost is counted, and one line says how much
    link       up -(lost)-> whoever was reached over it is absent, or back if it is reached over
               another one, and may lack what was on its way

Every message has one origin, and that one keeps it, or counts it; what was on its way over a link
that is lost may have left the log of its origin by then, and is kept, or counted, by the broker
that had it last.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import TYPE_CHECKING

from broker.base import limits
from broker.base.sequence_set import Ranges, intersect, merge
from broker.cluster.delivery.ports import TailPiece
from broker.cluster.delivery.replay_log import NEVER
from broker.cluster.events import LinkDown, MemberGone, RouteChanged
from broker.cluster.link.codec import split_key
from broker.cluster.link.version_vector import Vector
from broker.cluster.strategy.directory import INTEREST
from broker.persistence.log_tail import LogTail, TailLoaded
from broker.persistence.tail_segment import Away, Part
from routing.subscription_trie import SubscriptionTrie
from routing.topic_filter import well_formed

if TYPE_CHECKING:
    from broker.cluster.cluster import Cluster
    from broker.cluster.delivery.replay_log import LogEntry
    from broker.core.connection import Connection
    from broker.core.local_broker import LocalBroker

EVERYTHING = b"#"


class AbsentMember:
    """One broker that is away."""

    __slots__ = (
        "_known",
        "_lost",
        "_trie",
        "asked_at",
        "back",
        "cut_at",
        "cut_from",
        "dropped",
        "filters",
        "lacking",
        "position",
        "since",
    )

    def __init__(self, filters: tuple[bytes, ...], position: int, now: float) -> None:
        """`filters`: those that it had posted. `position`: of the replay log, from which on it may
        lack messages. `now`: when it went away (s)."""
        self.wish(filters)
        self.position = position
        self.since = now
        self.back: float | None = None  # s; when it was seen again
        self.asked_at = now  # s; when it said last what it lacks
        # By our origins, what may be lost: first, last, count.
        self.dropped: dict[bytes, list[tuple[int, int, int]]] = {}
        self.lacking: dict[bytes, Ranges] = {}  # its last word for each origin, since it is back
        self._lost = 0  # messages that it was found to lack
        # position of the log from which on something may have been on its way over a link that was
        # lost
        self.cut_from = NEVER
        self.cut_at = now  # s

    def wish(self, filters: tuple[bytes, ...]) -> None:
        """Take these for what it wants."""
        self._trie: SubscriptionTrie[None] | None = None  # made when it is needed
        self._known: dict[bytes, bool] = {}
        self.filters = filters if len(filters) <= limits.ABSENT_FILTERS else (EVERYTHING,)

    def wants(self, topic: bytes) -> bool:
        """Whether somebody there wanted this topic when it was seen last."""
        found = self._known.get(topic)
        if found is None:
            if len(self._known) >= limits.HOLD_KNOWN:
                self._known.clear()
            if self._trie is None:
                self._trie = SubscriptionTrie()
                for number, data in enumerate(self.filters):
                    text = data.decode(errors="replace")
                    if well_formed(text):
                        self._trie.insert(text, number, None)
            found = self._known[topic] = bool(self._trie.match(topic.decode(errors="replace")))
        return found

    def passing(self, entry: LogEntry, position: int) -> bool:
        """Whether a message of another broker was on its way there when the link was lost, or came
        soon after: its origin had to hear of that first."""
        return position >= self.cut_from and entry.at < self.cut_at + limits.CUT_TIME

    def drop(self, key: bytes, first: int, last: int, count: int) -> None:
        """Note that messages are lost, as far as it lacks them.

        `key`: of the origin; `first`, `last`: their lowest and highest number; `count`: how
        many they are.
        """
        if key in self.lacking:
            self._lost += common(first, last, count, self.lacking[key])
            return
        dropped = self.dropped.setdefault(key, [])
        if dropped and (dropped[-1][1] == first - 1 or len(dropped) >= limits.ABSENT_RANGES):
            first, _, before = dropped[-1]
            dropped[-1] = (first, last, before + count)
        else:
            dropped.append((first, last, count))

    def lacks(self, key: bytes, lacked: Ranges) -> None:
        """Take its word for what it lacks. The first one counts for what was lost before: nobody
        sends that any more."""
        for first, last, count in self.dropped.pop(key, ()):
            self._lost += common(first, last, count, lacked)
        self.lacking[key] = lacked

    @property
    def memory(self) -> int:
        """Bytes of memory of what is noted of it, about."""
        ranges = sum(map(len, self.dropped.values()))
        return limits.SUBSCRIPTION_MEMORY * len(self.filters) + 150 * (len(self._known) + ranges)

    @property
    def lost(self) -> int:
        """Messages for it that are lost."""
        return self._lost + sum(
            count for dropped in self.dropped.values() for _, _, count in dropped
        )


def filters_of(keys: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the filters among what a broker has posted."""
    return tuple(key[1:] for key in keys if key[:1] == INTEREST)


def common(first: int, last: int, count: int, lacked: Ranges) -> int:
    """Return how many of `count` messages between two numbers are lacked, at most.

    `first`, `last`: the lowest and the highest; `lacked`: ranges of numbers.
    """
    return min(count, sum(high - low + 1 for low, high in intersect([(first, last)], lacked)))


class AbsentMembers:
    """All of them."""

    __slots__ = ("_clock", "_cluster", "_node", "absent", "tail")

    def __init__(self, node: LocalBroker, cluster: Cluster) -> None:
        self._node = node
        self._cluster = cluster
        self.absent: dict[bytes, AbsentMember] = {}
        self._clock = cluster.clock
        self.tail = LogTail(node, self._clock, self._lost, self.away)

    def settle(self, then: Callable[[], None]) -> None:
        """Call `then` once what is in the tail is on the disk."""
        self.tail.settle(then)

    def begin(self, loaded: TailLoaded) -> None:
        """Go on with the tail of an earlier incarnation of this broker, and with who was away
        then."""
        node = self._node
        wall = self._clock.physical(node.now)
        for away in self.tail.begin(loaded)[: limits.ABSENT_BROKERS]:
            since = node.now - max(0, wall - away.since) / 1000
            self.absent[away.broker] = AbsentMember(away.filters, 0, since)
            self._watch()
        for key in self.tail.origins():
            if split_key(key)[0] == node.config.id:
                self._cluster.origins.remember(key, self.tail.last(key), node.now)

    def away(self) -> Iterable[Away]:
        """Tell who is away, for the next start."""
        wall = self._clock.physical(self._node.now)
        for broker_id, absent in self.absent.items():
            since = wall - round((self._node.now - absent.since) * 1000)
            yield Away(broker_id, max(0, since), absent.filters)

    def link_down(self, event: LinkDown) -> None:
        """A link is lost: what was on its way over it may be in no other log any more, wherever it
        comes from. What was on its way over one that kept up was little, and is there."""
        link, now = event.link, event.now
        position = link.kept_from
        if position is None or link.peer is None or not (link.unsent or link.marks):
            return
        listings = self._cluster.directory.database.listings
        for broker_id in dict.fromkeys((link.peer.id, *self._cluster.gap_recovery.behind(link))):
            absent = self.absent.get(broker_id)
            if (
                absent is None
                and len(self.absent) < limits.ABSENT_BROKERS
                and broker_id in listings
            ):
                keys = listings[broker_id].entries
                few = len(keys) <= limits.ABSENT_FILTERS
                filters = filters_of(keys) if few else (EVERYTHING,)
                absent = self.absent[broker_id] = AbsentMember(filters, position, now)
                absent.back = now  # unless the tree says that it is gone
                self._watch()
            if absent is not None:
                absent.cut_from = min(absent.cut_from, position)
                absent.cut_at = absent.asked_at = now
                absent.lacking.clear()

    def member_gone(self, event: MemberGone) -> None:
        """Note what a broker wanted that the tree has lost."""
        broker_id, keys = event.broker_id, event.keys
        known = self.absent.get(broker_id)
        filters = filters_of(keys)
        acks = self._cluster.acks
        if known is not None:
            known.back = None
            known.lacking.clear()
            known.wish(tuple(dict.fromkeys((*known.filters, *filters))))
        elif len(self.absent) < limits.ABSENT_BROKERS:
            self.absent[broker_id] = AbsentMember(
                filters, acks.lacked_from(broker_id), self._node.now
            )
            self._watch()  # before the log is free to drop what was kept for that broker
        if self.tail.usable:
            acks.parted(broker_id)
        else:
            acks.went(broker_id)
        self.tail.changed()
        if self.tail.usable:
            self.tail.flush()  # whoever starts next as this broker has to know

    def _watch(self) -> None:
        dropped = self._cluster.forwarder.log.dropped
        if self._dropped not in dropped:
            dropped.append(self._dropped)

    def route_changed(self, event: RouteChanged) -> None:
        """Note that a broker is back: it is about to ask for what it lacks."""
        broker_id, via = event.broker_id, event.via
        absent = self.absent.get(broker_id)
        if absent is not None and via is not None and absent.back is None:
            absent.back = absent.asked_at = self._node.now
            if self._cluster.gap_recovery.active and not self.tail.usable:  # it is about to ask
                self._cluster.acks.part(broker_id, self._cluster.forwarder.log.begin)

    def _dropped(self, entry: LogEntry, position: int, source: Connection | None) -> None:
        """Take an entry that leaves the log, at `position` in it; `source`: as of
        `ReplayLog.append`. While a broker asks for what it lacks, what it has not
        asked for yet goes on to the tail."""
        if not entry.qos:
            return
        topic, key = entry.topic, entry.key
        kept, ours = self.tail.usable, key in self._cluster.forwarder.ours
        origin = b"" if ours else split_key(key)[0]
        wanting = [
            broker_id
            for broker_id, absent in self.absent.items()
            # `lacking` has [] where it has been sent everything.
            if (absent.back is None or ((kept or not ours) and absent.lacking.get(key) != []))
            and (
                position >= absent.position
                if ours
                else absent.passing(entry, position) and broker_id != origin
            )
            and absent.wants(topic)
        ]
        if wanting and not self.tail.add(entry, wanting, source):
            for broker_id in wanting:
                if self.absent[broker_id].back is None or not ours:
                    self.absent[broker_id].drop(
                        entry.key, entry.sequence, entry.sequence + entry.count - 1, entry.count
                    )

    def _lost(self, part: Part) -> None:
        """Take note of what the tail could not keep."""
        absent = self.absent.get(part.broker)
        if absent is not None:
            absent.drop(part.key, part.first, part.last, part.messages)

    def earliest(self) -> float | None:
        """Return since when (s) somebody is away, None when nobody is."""
        return min((absent.since for absent in self.absent.values()), default=None)

    @property
    def memory(self) -> int:
        """Bytes of memory of all notes, about."""
        return sum(absent.memory for absent in self.absent.values())

    # ---------------------------------------------------------------- the end of it

    def holds(self, broker_id: bytes, key: bytes) -> bool:
        """Whether anything of an origin is kept, or has been lost, for a broker."""
        absent = self.absent.get(broker_id)
        return absent is not None and (key in absent.dropped or key in self.tail.left(broker_id))

    def __len__(self) -> int:
        return len(self.absent)

    def oldest_piece(self, broker_id: bytes, key: bytes, lacks: Ranges) -> TailPiece | None:
        """Return the oldest messages of an origin in the tail that a broker lacks.

        `broker_id`: who lacks them; `key`: of the origin; `lacks`: the numbers.
        """
        frame = self.tail.first(broker_id, key, lacks)
        if frame is None:
            return None
        part = frame.parts[broker_id, key]
        return TailPiece(part.first, part.last, lambda take: self.tail.read(frame, take))

    def tail_begins(self, broker_id: bytes, key: bytes) -> int:
        """Return the first number of an origin that the tail has for a broker."""
        return self.tail.begins(broker_id, key)

    def to_offer(
        self, asked: Container[bytes], pause: float, now: float
    ) -> Iterator[tuple[bytes, bytes, Ranges]]:
        """Return what is to be offered to brokers that have been back, and silent, for `pause` s:
        broker, origin, numbers. `asked`: origins that are asked for theirs.

        `now`: s.
        """
        for broker_id, absent in self.absent.items():
            if absent.back is None or now < absent.back + pause or now < absent.asked_at + pause:
                continue
            left = self.tail.left(broker_id)
            for key in {*left, *absent.dropped}:
                if key in asked:
                    continue
                numbers = [(part.first, part.last) for part in left.get(key, ())]
                numbers += [(first, last) for first, last, _ in absent.dropped.get(key, ())]
                if numbers and absent.lacking.get(key) != []:
                    yield broker_id, key, merge(numbers)

    def lacks(self, broker_id: bytes, key: bytes, lacked: Ranges) -> None:
        """Record which numbers of an origin a broker has said that it lacks. `broker_id`: the
        broker; `key`: of the origin; `lacked`: the numbers, as ranges."""
        absent = self.absent.get(broker_id)
        if absent is not None and absent.back is not None:
            absent.lacks(key, lacked)
            absent.asked_at = self._node.now

    def sent(self, broker_id: bytes, key: bytes) -> None:
        """Note that a broker has been sent everything that it said it lacks; what comes now it gets
        like all others."""
        absent = self.absent.get(broker_id)
        if absent is not None and key in absent.lacking:
            absent.lacking[key] = []

    def seen(self, broker_id: bytes, vector: Vector) -> None:
        """Take a neighbour's word for what has been there. From the tail it is served when it asks
        (`late`)."""
        absent = self.absent.get(broker_id)
        if (
            absent is not None
            and absent.back is not None
            and not self._cluster.gap_recovery.active
            and not self.tail.usable
        ):
            for key in self._cluster.forwarder.ours:
                window = vector.get(key)
                if window is not None and key not in absent.lacking:
                    absent.lacks(key, window.lacks)

    def served(self, broker_id: bytes) -> bool:
        """Whether nothing is in the tail that a broker may lack."""
        absent = self.absent.get(broker_id)
        return absent is None or not self.tail.holds(broker_id, absent.lacking)

    def tick(self, now: float) -> None:
        """Once a second: who is back and asks for nothing more, or stays away."""
        for broker_id, absent in list(self.absent.items()):
            if absent.back is not None:
                patience = limits.ABSENT_BACK if self.served(broker_id) else limits.TAIL_BACK
                if now > absent.asked_at + patience:
                    self._end(broker_id, absent, "was away for")
            elif now > absent.since + limits.ABSENT_TIME:
                self._end(broker_id, absent, "has been away for")
        if self.tail.usable:
            self.tail.flush()

    def _end(self, broker_id: bytes, absent: AbsentMember, what: str) -> None:
        for key, parts in self.tail.left(broker_id).items():
            for part in parts:
                absent.drop(key, part.first, part.last, part.messages)
        del self.absent[broker_id]
        self.tail.ended(broker_id)
        if not self.absent:
            self._cluster.forwarder.log.dropped.remove(self._dropped)
        if lost := absent.lost:
            self._node.counters.replay_log_lost += lost
            name = self._cluster.membership.name_of(broker_id) or broker_id.hex()
            kept = f"{limits.LOG_BYTES >> 20} MiB, {limits.LOG_AGE:g} s"
            if self.tail.usable:
                kept += f", and the log tail ({self._node.config.log_tail >> 20} MiB)"
            away = (absent.back or self._node.now) - absent.since
            text = (
                f"broker {name} {what} {away:.0f} s: {lost} messages of this broker that it lacked "
                f"are lost, as they left the replay log ({kept})"
            )
            self._cluster.log("warning", text)
