"""The traffic of a broker in the link-state database, for whoever decides where clients connect,
and how many clients it has, for people who look at the federation.

entry STATE "traffic"   five f32: messages/s in from publishers, out to subscribers, in from
                        links, out to links; and the capability
entry STATE "counts"    two u32: clients that are connected, sessions
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from mqttree.broker.cluster.directory.link_state_directory import STATE, LinkStateDirectory

if TYPE_CHECKING:
    from mqttree.broker.core.traffic_meter import Sums

TRAFFIC: Final = STATE + b"traffic"
"""Key of the entry."""

COUNTS: Final = STATE + b"counts"
"""Key of the entry with what is counted."""

CHANGE: Final = 0.1
"""part by which a sum or a count has to change until it is posted again."""

MIN_CHANGE_PER_S: Final = 0.1
"""messages/s; smaller changes do not count."""


class Traffic(NamedTuple):
    """What a broker posts; messages/s, and its capability."""

    aei: float
    aeo: float
    aii: float
    aio: float
    capability: float


def encode_traffic(traffic: Traffic) -> bytes:
    """Return the value of the entry."""
    return struct.pack(">5f", *[min(number, 3e38) for number in traffic])


def read_traffic(value: bytes | None) -> Traffic | None:
    """Return what an entry says, None if there is none, or if it says nothing that can be."""
    if value is None or len(value) < 20:
        return None
    found = Traffic(*struct.unpack_from(">5f", value))
    if not all(math.isfinite(number) and number >= 0 for number in found):
        return None
    return found


class Counts(NamedTuple):
    """How many clients a broker has."""

    connected: int
    sessions: int
    """With those of clients that are away."""


def encode_counts(counts: Counts) -> bytes:
    """Return the value of the entry."""
    return struct.pack(">2I", *[min(number, 0xFFFFFFFF) for number in counts])


def read_counts(value: bytes | None) -> Counts | None:
    """Return what an entry says, None if there is none, or if it is too short."""
    return None if value is None or len(value) < 8 else Counts(*struct.unpack_from(">2I", value))


class TrafficEntry:
    """Posts the traffic of this broker, and its counts."""

    __slots__ = ("_counts", "_directory", "_posted")

    def __init__(self, directory: LinkStateDirectory) -> None:
        self._directory = directory
        self._posted: Traffic | None = None
        self._counts: Counts | None = None

    def update(self, sums: Sums, capability: float) -> None:
        """Post the `sums` and the `capability` of this broker if they have changed much."""
        published, delivered, link_in, link_out = sums
        now = Traffic(published, delivered, link_in, link_out, capability)
        old = self._posted
        if old is None or any(
            abs(new - before) > max(MIN_CHANGE_PER_S, CHANGE * before)
            for new, before in zip(now, old, strict=True)
        ):
            self._posted = now
            self._directory.post(TRAFFIC, encode_traffic(now))

    def count(self, counts: Counts) -> None:
        """Post the `counts` of this broker if they have changed much."""
        old = self._counts
        if old is None or any(
            abs(new - before) > CHANGE * before for new, before in zip(counts, old, strict=True)
        ):
            self._counts = counts
            self._directory.post(COUNTS, encode_counts(counts))
