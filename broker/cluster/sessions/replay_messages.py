"""What brokers tell each other for a client whose broker died (`session_replay`), each in a message
to one broker (`unicast_bus`).

RECENT       u32 number, u32 ms, then of each filter: u16 size, filter   new broker -> each other
RECENT_PART  u32 number, u32 piece, u8 flags, bytes                      each other -> new broker

The bytes of all pieces together are PUBLISH packets as links carry them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

from mqttree.broker.cluster.directory.unicast_bus import BEHIND
from mqttree.broker.wire.errors import MalformedPacket

RECENT: Final = BEHIND | 24
RECENT_PART: Final = BEHIND | 25
"""Kinds of messages to one broker."""

LAST: Final = 1
"""Flag of the last piece."""

CUT: Final = 2
"""Flag: there were more messages than one answer has."""

PIECE: Final = 60_000
"""bytes of the answer in one RECENT_PART."""

MAX_FILTERS: Final = 1000
"""filters of one RECENT."""

MAX_MS: Final = 60_000
"""ms that it looks back: half of what a replay log keeps."""


def encode_recent(number: int, ms: int, filters: Iterable[str]) -> bytes:
    """Return a RECENT. `number`: for its answer; `ms`: how far it looks back; `filters`: which
    messages it is about."""
    parts = [struct.pack(">II", number, ms)]
    for topic_filter in filters:
        name = topic_filter.encode()
        parts.append(len(name).to_bytes(2, "big") + name)
    return b"".join(parts)


def read_recent(data: bytes) -> tuple[int, int, list[str]]:
    """Return number, ms and filters of a RECENT. Raises MalformedPacket."""
    if len(data) < 8:
        raise MalformedPacket("question for recent messages is truncated")
    number, ms = struct.unpack_from(">II", data)
    if ms > MAX_MS:
        raise MalformedPacket("question for recent messages looks back too far")
    filters: list[str] = []
    at = 8
    while at < len(data):
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        if end > len(data) or end == at + 2 or len(filters) >= MAX_FILTERS:
            raise MalformedPacket("question for recent messages has too many filters, or half one")
        try:
            filters.append(data[at + 2 : end].decode())
        except UnicodeDecodeError:
            raise MalformedPacket("question for recent messages has no filter") from None
        at = end
    return number, ms, filters


def encode_parts(number: int, data: bytes, *, cut: bool) -> Iterator[bytes]:
    """Return the RECENT_PARTs of an answer.

    `number`: of the question; `data`: PUBLISH packets as links carry them; `cut`: there were more.
    """
    count = max(1, -(-len(data) // PIECE))
    for index in range(count):
        flags = (LAST if index == count - 1 else 0) | (CUT if cut else 0)
        head = struct.pack(">IIB", number, index, flags)
        yield head + data[index * PIECE : (index + 1) * PIECE]


def read_part(data: bytes) -> tuple[int, int, int, bytes]:
    """Return number, piece, flags and bytes of a RECENT_PART. Raises MalformedPacket."""
    if len(data) < 9:
        raise MalformedPacket("answer with recent messages is truncated")
    number, piece, flags = struct.unpack_from(">IIB", data)
    return number, piece, flags, data[9:]
