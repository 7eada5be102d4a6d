"""Shared subscriptions of a whole federation: which broker gives a message to one of a group's
members (MQTT 5, 4.8.2).

The choice is made once, where a message is published, from what every broker announces of its own
members.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from enum import IntEnum
from hashlib import blake2b
from typing import Final

from mqttree.routing.topic_filter import is_wildcard, well_formed

GROUP_ID_SIZE: Final = 6
"""bytes of the hash that names a group and its filter on links: few groups match one topic, so that
two of them share an id once in many billions of years."""

HERE: Final = b""
"""The choice of this broker. No broker has an empty id."""


class Own(IntEnum):
    """The state of the best members on this broker."""

    NONE = 0
    AWAY = 1
    """Sessions without a connection: they queue QoS 1 and 2 until their clients are back."""
    BUSY = 2
    """All connected members are behind."""
    READY = 3


class Announcer:
    """Another broker that announces its groups. All of its groups are cut off at one moment,
    however many they are. What it announces when it is back may be handled later, and what it no
    longer announces is forgotten later still (`shared_subscriptions`)."""

    __slots__ = ("cut", "earlier", "group_ids", "id", "stale", "until", "updates")

    def __init__(self, broker_id: bytes) -> None:
        self.id = broker_id
        # It cannot be reached.
        self.cut = False
        # When its announcements are forgotten while it is cut off (s).
        self.until = 0.0
        # Ids of its groups.
        self.group_ids: dict[bytes, None] = {}
        # Ids of groups that it no longer announces.
        self.stale: dict[bytes, None] = {}
        # Group -> announcement that is still to be handled (None: no member).
        self.updates: dict[bytes, bytes | None] = {}
        # Earlier announcements, as entries of its listing: they come first.
        self.earlier: deque[tuple[bytes, bytes | None]] = deque()

    def lost(self, until: float) -> None:
        """Note that the broker cannot be reached. It announces all of its groups again when it
        can."""
        if not self.cut:
            self.cut, self.until = True, until
            self.updates.clear()
            self.earlier.clear()
            self.group_ids.update(self.stale)
            self.stale.clear()

    def back(self) -> None:
        """Note that the broker can be reached. It announces all of its groups: those that it does
        not announce again are gone."""
        self.cut = False
        self.forget()

    def forget(self) -> None:
        """Forget what the broker has announced, but for what it announces from now on."""
        self.stale.update(self.group_ids)
        self.group_ids = {}

    @property
    def busy(self) -> bool:
        """Whether announcements are still to be handled, or to be forgotten."""
        return bool(self.earlier or self.updates or self.stale)

    @property
    def unhandled(self) -> bool:
        """Whether announcements are still to be handled."""
        return bool(self.earlier or self.updates)


class Standing:
    """The members of one group at another broker, as it has announced them."""

    __slots__ = ("announcer", "credit", "id", "pending", "weight")

    def __init__(self, announcer: Announcer) -> None:
        self.announcer = announcer
        self.id = announcer.id
        # About how many members are connected; 0: none.
        self.weight = 0
        # Credit of turns.
        self.credit = 0
        # Its members get older messages first.
        self.pending = False

    @property
    def cut(self) -> bool:
        """Whether its broker cannot be reached."""
        return self.announcer.cut


class Pool:
    """The brokers that have members of one shared subscription: of the group named `group` with the
    filter `topic_filter`. `group_id` is the hash of both, which brokers use as its name."""

    __slots__ = ("brokers", "filter", "group", "group_id")

    def __init__(self, group_id: bytes, group: str, topic_filter: str) -> None:
        self.group_id = group_id
        self.group = group
        self.filter = topic_filter
        self.brokers: dict[bytes, Standing] = {}

    def choose(
        self,
        own: Own,
        skip: Container[bytes] = (),
        *,
        busy: Callable[[bytes], bool] | None = None,
        again: bool = False,
    ) -> bytes | None:
        """Return whose members get the next message: `HERE`, the id of a broker, or None if there
        are no members.

        Members here that keep up come first, then connected ones elsewhere, members here that are
        behind, members here that are not connected, those not connected elsewhere, and last those
        of brokers that are cut off, for which the message waits in the replay log.

        `own`: which members there are here. `skip`: ids of brokers that are left out. `busy`:
        returns whether a broker has so many messages already that others come first. `again`: the
        message is assigned once more, so not to a broker that is cut off, and in any order.
        """
        if own is Own.READY:
            return HERE
        there = [
            standing
            for standing in self.brokers.values()
            if standing.id not in skip and (again or not standing.pending)
        ]
        reachable = [standing for standing in there if not standing.announcer.cut]
        connected = [standing for standing in reachable if standing.weight]
        if connected:
            if busy is not None and len(connected) > 1:
                connected = [
                    standing for standing in connected if not busy(standing.id)
                ] or connected
            return _turn(connected)
        if own is not Own.NONE:
            return HERE
        if again or reachable:
            there = reachable
        return _turn(there) if there else None


def _turn(candidates: list[Standing]) -> bytes:
    """Return the id of the next broker: each gets as many turns as its weight says, spread evenly
    (smooth weighted round robin)."""
    total = 0
    best = candidates[0]
    for standing in candidates:
        weight = standing.weight or 1
        total += weight
        standing.credit += weight
        if standing.credit > best.credit:
            best = standing
    best.credit -= total
    return best.id


def group_key(group: str, topic_filter: str) -> bytes:
    """Return the name of a group and its filter; neither can contain the NUL between them
    (MQTT-1.5.4-2)."""
    return f"{group}\0{topic_filter}".encode()


def parse_key(key: bytes) -> tuple[str, str]:
    """Return (group, filter) of a name from another broker.

    Raises ValueError: it is none.
    """
    group, nul, topic_filter = key.decode().partition("\0")
    if (
        not (group and nul and topic_filter)
        or "/" in group
        or is_wildcard(group)
        or "\0" in topic_filter
    ):
        raise ValueError("no shared subscription")
    if not well_formed(topic_filter):
        raise ValueError("a filter with a wildcard in the wrong place")
    return group, topic_filter


def group_id_of(key: bytes) -> bytes:
    """Return the 6 bytes that name a `group_key` on links."""
    return blake2b(key, digest_size=GROUP_ID_SIZE).digest()


def encode_standing(connected: int) -> bytes:
    """Return the announced weight of a number of connected members: its power of two, so that it
    changes seldom."""
    return bytes((connected.bit_length(),))


def decode_standing(value: bytes) -> int:
    """Return about how many members are connected. Fields of later versions are skipped; an empty
    or invalid value counts as none."""
    bits = min(value[0], 20) if value else 0
    return 1 << bits - 1 if bits else 0
