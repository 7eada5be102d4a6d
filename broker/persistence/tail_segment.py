"""One segment of the log tail as bytes: messages that left the replay log while a broker that wants
them is away (docs/decisions/0031). Pure.

    file     header, frames: one segment; segments follow each other by their numbers
    header   "mqttree log tail", u16 version, broker id, u64 number, u32 CRC-32 of these
    frame    u8 kind, u32 size of its index, u32 size of its body, u32 CRC-32 of the body, u32
             CRC-32 of these and the index, index, body
    ENTRIES  index: for each broker and origin u64 id, 16 characters, u48 first, u48 last number,
             u32 count; body: ENTRY records
    AWAY     index: for each broker that is away: id, u64 since when (ms), u64 since when it lacks
             messages (ms), u16 count of filters, each with its u16 size; no body

When a file is read at the start, bodies are skipped: their checksums are compared when a broker
asks for them. A file is valid up to the first frame that is cut off or damaged. All numbers are
big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple
from zlib import crc32

from mqttree.broker.cluster.sessions.records import EntryRecord, JournalError, Kind, read_records
from mqttree.broker.persistence.frames import Cut

VERSION = 4
MAGIC = b"mqttree log tail"
ENTRIES, AWAY = 1, 2
"""Kinds of frames."""

_HEADER = struct.Struct(">16sH8sQ")
HEADER_SIZE = _HEADER.size + 4
_FRAME = struct.Struct(">BIIII")
FRAME_SIZE = _FRAME.size
_PART = struct.Struct(">8s16s6s6sI")
_BROKER = struct.Struct(">8sQQH")

MAX_INDEX = 1 << 28
"""bytes; a frame that says that its index is larger is damaged."""


class Part(NamedTuple):
    """The messages of one origin that a frame contains for one broker: `messages` of them, with
    numbers from `first` to `last`."""

    broker: bytes
    key: bytes
    first: int
    last: int
    messages: int


class Away(NamedTuple):
    """A broker that is away: since when, and since when it may lack messages (both ms since the
    epoch), and the filters that it had posted."""

    broker: bytes
    since: int
    lacks_since: int
    filters: tuple[bytes, ...]


class Found(NamedTuple):
    """A frame as it was found in a file."""

    at: int
    size: int
    parts: tuple[Part, ...]
    away: tuple[Away, ...] | None
    """None: it is a frame of messages."""


def encode_header(broker_id: bytes, number: int, version: int = VERSION) -> bytes:
    """Return the beginning of a file. `broker_id`: 8 bytes; `number`: of the segment; `version`: of
    its form."""
    head = _HEADER.pack(MAGIC, version, broker_id, number)
    return head + crc32(head).to_bytes(4, "big")


def _encode(kind: int, index: bytes, body: bytes) -> bytes:
    sizes = struct.pack(">BIII", kind, len(index), len(body), crc32(body))
    return b"".join((sizes, crc32(index, crc32(sizes)).to_bytes(4, "big"), index, body))


def encode_entries(parts: Iterable[Part], records: list[bytes]) -> bytes:
    """Return a frame of messages. `records`: ENTRY, encoded."""
    index = b"".join(
        _PART.pack(
            part.broker,
            part.key,
            part.first.to_bytes(6, "big"),
            part.last.to_bytes(6, "big"),
            part.messages,
        )
        for part in parts
    )
    return _encode(ENTRIES, index, b"".join(records))


def encode_away(brokers: Iterable[Away]) -> bytes:
    """Return a frame that names the brokers that are away."""
    index = b"".join(
        _BROKER.pack(away.broker, away.since, away.lacks_since, len(away.filters))
        + b"".join(
            len(topic_filter).to_bytes(2, "big") + topic_filter for topic_filter in away.filters
        )
        for away in brokers
    )
    return _encode(AWAY, index, b"")


def decode_entries(frame: bytes) -> list[EntryRecord]:
    """Return the messages of a frame. Raises JournalError: it is not what was written."""
    try:
        kind, index, body, check, _ = _FRAME.unpack_from(frame)
        data = frame[FRAME_SIZE + index :]
        if kind != ENTRIES or len(data) != body or crc32(data) != check:
            raise JournalError("is damaged")
        return [
            EntryRecord.decode(record) for kind, record in read_records(data) if kind == Kind.ENTRY
        ]
    except struct.error:
        raise JournalError("is damaged") from None


def read_frames(
    stream: BinaryIO, size: int, broker_id: bytes, number: int
) -> Iterator[Found | Cut]:
    """Yield each frame of a file of `size` bytes, without its messages, and last a Cut if data
    follows that is not a frame. Raises OSError.

    `stream`: stands at the beginning. `broker_id`, `number`: what the header must contain.
    """
    head = stream.read(HEADER_SIZE)
    if head != encode_header(broker_id, number):
        yield Cut(0, "is no beginning of a segment of this broker's")
        return
    at = HEADER_SIZE
    while at < size:
        stream.seek(at)
        head = stream.read(FRAME_SIZE)
        if len(head) < FRAME_SIZE:
            yield Cut(at, "is cut off")
            return
        kind, length, body, _, check = _FRAME.unpack(head)
        end = at + FRAME_SIZE + length + body
        index = stream.read(length) if length <= MAX_INDEX else b""
        if end > size or len(index) < length:
            yield Cut(at, "is cut off")
            return
        found = _decode_index(kind, index) if crc32(index, crc32(head[:-4])) == check else None
        if found is None:
            yield Cut(at, "is damaged")
            return
        yield Found(at, end - at, *found)
        at = end


def _decode_index(
    kind: int, index: bytes
) -> tuple[tuple[Part, ...], tuple[Away, ...] | None] | None:
    """Return the content of an index; None: it cannot be read."""
    try:
        if kind == ENTRIES:
            parts = (_PART.unpack_from(index, at) for at in range(0, len(index), _PART.size))
            return tuple(
                Part(b, k, int.from_bytes(f, "big"), int.from_bytes(n, "big"), c)
                for b, k, f, n, c in parts
            ), None
        return ((), _decode_away(index)) if kind == AWAY else None
    except struct.error:
        return None


def _decode_away(index: bytes) -> tuple[Away, ...]:
    found = []
    at = 0
    while at < len(index):
        broker, since, lacks_since, count = _BROKER.unpack_from(index, at)
        at += _BROKER.size
        filters = []
        for _ in range(count):
            end = at + 2 + int.from_bytes(index[at : at + 2], "big")
            if end > len(index):
                raise struct.error
            filters.append(index[at + 2 : end])
            at = end
        found.append(Away(broker, since, lacks_since, tuple(filters)))
    return tuple(found)
