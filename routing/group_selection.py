"""Shared subscriptions of a whole federation: which broker gives a message to one of a group's
members (MQTT 5, 4.8.2).

The choice is made once, where a message is published, from what every broker tells of its own
members.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from enum import IntEnum
from hashlib import blake2b
from typing import Final

from routing.topic_filter import is_wildcard, well_formed

MARK_SIZE: Final = 6
"""bytes that stand for a group and its filter on a link: few groups match one topic, so that two of
them share a mark once in many billions of years."""

HERE: Final = b""
"""Chosen: this broker. No broker has an empty id."""


class Own(IntEnum):
    """How the members on this broker are, the best of them."""

    NONE = 0
    AWAY = 1
    """Sessions without a connection: they keep QoS 1 and 2 until they are back."""
    BUSY = 2
    """Connected, but all are behind."""
    READY = 3


class Teller:
    """Another broker that tells of its groups. All of them are cut off in one moment, however many
    they are; what it tells when it is back may be looked at later, and what it tells no more then
    is forgotten later still (`shared_subscriptions`)."""

    __slots__ = ("cut", "id", "marks", "news", "stale", "told", "until")

    def __init__(self, broker_id: bytes) -> None:
        self.id = broker_id
        self.cut = False  # it cannot be reached
        self.until = 0.0  # s; then what it has told is forgotten, while it is cut off
        self.marks: set[bytes] = set()  # of its groups,
        self.stale: set[bytes] = set()  # and of those that it does not tell of any more
        # Group -> what it tells of it and is still to be looked at (None: no member).
        self.news: dict[bytes, bytes | None] = {}
        # What it told before, as entries of its listing: it comes first.
        self.told: deque[tuple[bytes, bytes | None]] = deque()

    def lost(self, until: float) -> None:
        """It cannot be reached. It tells all of its groups again when it can be."""
        if not self.cut:
            self.cut, self.until = True, until
            self.news.clear()
            self.told.clear()
            self.marks |= self.stale
            self.stale.clear()

    def back(self) -> None:
        """It can be reached, and tells all of its groups: what it does not tell again is no
        more."""
        self.cut = False
        self.forget()

    def forget(self) -> None:
        """What it has told holds no more, but for what it tells from now on."""
        self.stale |= self.marks
        self.marks = set()

    @property
    def busy(self) -> bool:
        """Whether something is still to be looked at, or forgotten."""
        return bool(self.told or self.news or self.stale)

    @property
    def tells(self) -> bool:
        """Whether something that it has told is still to be looked at."""
        return bool(self.told or self.news)


class Standing:
    """What another broker tells of its members of one group."""

    __slots__ = ("credit", "id", "pending", "teller", "weight")

    def __init__(self, teller: Teller) -> None:
        self.teller = teller
        self.id = teller.id
        self.weight = 0  # connected members, roughly; 0: all are away
        self.credit = 0  # of turns
        self.pending = False  # its members get what is older first


class Pool:
    """The brokers that have members of one shared subscription: of the group named `group` with the
    filter `topic_filter`. `mark` is the hash of both, which brokers use as its name."""

    __slots__ = ("brokers", "filter", "group", "mark")

    def __init__(self, mark: bytes, group: str, topic_filter: str) -> None:
        self.mark = mark
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
        reachable = [standing for standing in there if not standing.teller.cut]
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
    """Return what names a group and its filter; neither can contain the NUL between them
    (MQTT-1.5.4-2)."""
    return f"{group}\0{topic_filter}".encode()


def parse_key(key: bytes) -> tuple[str, str]:
    """Return (group, filter) of what another broker calls so.

    Raises:
        ValueError: it is none.
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


def mark_of(key: bytes) -> bytes:
    """Return the 6 bytes that stand for a `group_key` on links."""
    return blake2b(key, digest_size=MARK_SIZE).digest()


def encode_standing(connected: int) -> bytes:
    """Return what is told of a number of connected members: its power of two, so that it need not
    be told often."""
    return bytes((connected.bit_length(),))


def decode_standing(value: bytes) -> int:
    """Return about how many members are connected. What a later version adds is skipped; nothing,
    or nonsense, counts as none."""
    bits = min(value[0], 20) if value else 0
    return 1 << bits - 1 if bits else 0
