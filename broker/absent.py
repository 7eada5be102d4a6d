"""Brokers that cannot be reached: what was published here, is wanted there and has left the log meanwhile is lost for them, and
counted to the message (docs/decisions/0027).

    broker     reachable -(the tree has lost it)-> absent, with the filters that it had posted -(it is back, and says what it
               lacks; or ABSENT_TIME)-> what it lacks and has left the log is counted, and one line says how much

Every message has one origin, and only that one counts it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker import limits
from broker.listings import INTEREST
from broker.origin import LAST, Ranges, Vector, intersect
from routing.topics import well_formed
from routing.trie import SubscriptionTrie

if TYPE_CHECKING:
    from broker.federation import Federation
    from broker.log import Entry
    from broker.node import Node

EVERYTHING = "#"


class Absent:
    """One broker that is away."""

    __slots__ = ("_filters", "_known", "asked", "back", "dropped", "position", "since")

    def __init__(self, keys: tuple[bytes, ...], position: int, now: float) -> None:
        """`keys`: of what it had posted; `position`: of the log, from which on it may lack messages."""
        self._filters: SubscriptionTrie[None] = SubscriptionTrie()
        self._known: dict[bytes, bool] = {}
        self.position = position
        self.since = now
        self.back: float | None = None  # s; when it was seen again
        self.dropped: dict[bytes, list[tuple[int, int, int]]] = {}  # by our origins, what has left the log: first, last, count
        self.asked: set[bytes] = set()  # origins of which it has said what it lacks
        filters = [key[1:] for key in keys if key[:1] == INTEREST]
        if len(filters) > limits.ABSENT_FILTERS:
            filters = [EVERYTHING.encode()]
        for number, data in enumerate(filters):
            text = data.decode(errors="replace")
            if well_formed(text):
                self._filters.insert(text, number, None)

    def wants(self, topic: bytes) -> bool:
        """Whether somebody there wanted this topic when it was seen last."""
        found = self._known.get(topic)
        if found is None:
            if len(self._known) >= limits.HOLD_KNOWN:
                self._known.clear()
            found = self._known[topic] = bool(self._filters.match(topic.decode(errors="replace")))
        return found

    def drop(self, entry: Entry) -> None:
        """Note that messages have left the log."""
        dropped = self.dropped.setdefault(entry.key, [])
        last = entry.sequence + entry.count - 1
        if dropped and (dropped[-1][1] == entry.sequence - 1 or len(dropped) >= limits.ABSENT_RANGES):
            first, _, count = dropped[-1]
            dropped[-1] = (first, last, count + entry.count)
        else:
            dropped.append((entry.sequence, last, entry.count))

    def lacks(self, key: bytes, lacked: Ranges) -> None:
        """Keep of what has left the log only what it lacks."""
        kept = []
        for first, last, count in self.dropped.get(key, ()):
            found = sum(high - low + 1 for low, high in intersect([(first, last)], lacked))
            if found:
                kept.append((first, last, min(count, found)))
        self.dropped[key] = kept
        self.asked.add(key)

    @property
    def lost(self) -> int:
        """Messages for it that have left the log."""
        return sum(count for dropped in self.dropped.values() for _, _, count in dropped)


class Absents:
    """All of them."""

    __slots__ = ("_federation", "_node", "absent")

    def __init__(self, node: Node, federation: Federation) -> None:
        self._node = node
        self._federation = federation
        self.absent: dict[bytes, Absent] = {}
        federation.listings.on_went.append(self.went)
        federation.listings.on_way.append(self._way_changed)

    def went(self, broker_id: bytes, keys: tuple[bytes, ...]) -> None:
        """The tree has lost a broker, which had posted this."""
        known = self.absent.get(broker_id)
        if known is not None:
            known.back = None
        elif len(self.absent) < limits.ABSENT_BROKERS:
            log = self._federation.relay.log
            self.absent[broker_id] = Absent(keys, self._federation.acks.parted(broker_id), self._node.now)
            log.dropped = self._dropped

    def _way_changed(self, broker_id: bytes, via: bytes | None) -> None:
        absent = self.absent.get(broker_id)
        if absent is not None and via is not None and absent.back is None:
            absent.back = self._node.now
            if self._federation.streams.active:  # it is about to ask
                self._federation.acks.part(broker_id, self._federation.relay.log.begin)

    def _dropped(self, entry: Entry, position: int) -> None:
        if entry.key not in self._federation.relay.ours or not entry.qos:
            return
        topic = entry.topic
        for absent in self.absent.values():
            if absent.back is None and position >= absent.position and absent.wants(topic):
                absent.drop(entry)

    # ---------------------------------------------------------------- the end of it

    def lacks(self, broker_id: bytes, key: bytes, lacked: Ranges) -> None:
        """Take a broker's word for which numbers of an origin of ours it lacks; its first one counts."""
        absent = self.absent.get(broker_id)
        if absent is not None and absent.back is not None and key not in absent.asked:
            absent.lacks(key, lacked)

    def seen(self, broker_id: bytes, vector: Vector) -> None:
        """Take a neighbour's word for what has been there."""
        if broker_id in self.absent and not self._federation.streams.active:
            for key in self._federation.relay.ours:
                window = vector.get(key)
                if window is not None:
                    self.lacks(broker_id, key, [*window.gaps, (window.top + 1, LAST)])

    def tick(self, now: float) -> None:
        """Once a second: who is back and asks for nothing, or stays away."""
        for broker_id, absent in list(self.absent.items()):
            if absent.back is not None and now > absent.back + limits.ABSENT_BACK:
                self._end(broker_id, absent, "was away for")
            elif now > absent.since + limits.ABSENT_TIME:
                self._end(broker_id, absent, "has been away for")

    def _end(self, broker_id: bytes, absent: Absent, what: str) -> None:
        del self.absent[broker_id]
        if not self.absent:
            self._federation.relay.log.dropped = None
        if lost := absent.lost:
            self._node.counters.log_lost += lost
            name = self._federation.membership.name_of(broker_id) or broker_id.hex()
            kept = f"{limits.LOG_BYTES >> 20} MiB, {limits.LOG_AGE:g} s"
            away = (absent.back or self._node.now) - absent.since
            text = f"broker {name} {what} {away:.0f} s: {lost} messages from here that it lacked have left the log ({kept})"
            self._federation.log("warning", text)
