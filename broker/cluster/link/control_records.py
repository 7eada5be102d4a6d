"""What brokers tell each other besides messages: typed records in the payload of a PINGREQ.

A record is u8 type, u24 length, body. Types that a broker does not know are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.base import limits
from broker.wire.errors import MalformedPacket

if TYPE_CHECKING:
    from broker.cluster.link.link import Link

Handler = Callable[["Link", bytes, float], None]
"""Takes the body of a record from a link at `now` (s); raises MalformedPacket for one that cannot
be read."""

PING, BPDU, MEMBERS, SEEN, ASK_SEEN, ORIGINS, WANT, DONE, DIRECTORY, ROUTED, UPTO = (
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
)
TOLD, HEARD = 12, 13
DIGEST, PARTS, LIST, FETCH = 16, 17, 18, 19
AGES = 24
"""Types of records. `Cluster` has the table of who takes which; PING is the number that the
PINGRESP repeats."""

COSTLY = frozenset((MEMBERS, SEEN, ASK_SEEN, ORIGINS, WANT, DIGEST))
"""Records that make us go through tables,"""
REPLAYING = frozenset((SEEN, WANT))
"""and these through the log."""
PACED = frozenset((DIRECTORY, ROUTED, TOLD, HEARD))
"""Records that honest neighbours send often, on behalf of all behind them, and whose number each
broker paces at its source."""


def encode_record(kind: int, body: bytes) -> bytes:
    """Encode one record of a PINGREQ."""
    return bytes((kind,)) + len(body).to_bytes(3, "big") + body


def decode_records(data: bytes) -> list[tuple[int, bytes]]:
    """Split the payload of a PINGREQ into (type, body).

    Raises:
        MalformedPacket: truncated or too large.
    """
    if len(data) > limits.MAX_PING_PAYLOAD:
        raise MalformedPacket("PINGREQ on a link is too large")
    records = []
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at + 1 : at + 4], "big")
        if at + 4 > len(data) or end > len(data):
            raise MalformedPacket("record in PINGREQ is truncated")
        records.append((data[at], data[at + 4 : end]))
        at = end
    return records


def work(kind: int, size: int) -> float:
    """Return what it costs us to answer a record of `size` bytes, in units of limits.LINK_REQUESTS;
    REPLAYING: and a `walk`."""
    # Most of it is passed on, or is messages, which cost no more than in a PUBLISH.
    if kind == ROUTED:
        return 0.1 + size / 500_000
    if kind in PACED:
        return 0.1 + size / 50_000
    return 1.0 + size // 1000 + (9 if kind in COSTLY else 0)


def walk(kept: int) -> float:
    """Return what it costs to go through a log of so many entries, in the same units."""
    return 1.0 + kept / 2000
