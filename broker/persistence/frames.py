"""The files of a journal as bytes: segments and frames (docs/decisions/0021). Pure.

    file     header, frames: one segment; segments follow each other without gaps
    header   "mqttree journal\\n", u16 version, broker id, u64 segment, u32 CRC-32 of these
    frame    u32 size of its records, u32 CRC-32 of time and records, u64 time of day (ms), records

A frame is all that one turn of the event loop changed, or a few turns: it counts whole or not at
all. Of a file everything counts up to the first frame that is cut off or damaged. All numbers are
big-endian; times are ms since the epoch.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple
from zlib import crc32

from mqttree.broker.cluster.sessions.records import RECORD, JournalError, Kind

VERSION = 8
"""Each has its own records; a broker reads the files of its own version."""
FULL_SNAPSHOT = 0x8000
"""Added to the version of a segment that began after a failed write. Its records do not continue
those of the segment before, so it starts with a full snapshot: without a SNAPSHOT_END it is
ignored, unless it is the first segment."""
MAGIC = b"mqttree journal\n"

_HEADER = struct.Struct(">16sH8sQ")
HEADER_SIZE = _HEADER.size + 4
_FRAME = struct.Struct(">IIQ")
FRAME_SIZE = _FRAME.size

MAX_FRAME = 1 << 31
"""bytes; a frame that claims to be larger is damaged: one turn of the loop reads some MB, and a
packet has 256 MiB at most."""

BULK = frozenset((Kind.ORIGIN, Kind.ENTRY, Kind.RETAINED))
"""Kinds that refer to nothing. They may be moved ahead, as other records refer to them."""


def encode_header(
    broker_id: bytes, segment: int, *, full_snapshot: bool = False, version: int = VERSION
) -> bytes:
    """Return the beginning of a file.

    `broker_id`: 8 bytes. `segment`: the number of the segment. `full_snapshot`: it begins after a
    failed write (`FULL_SNAPSHOT`). `version`: of the records that follow.
    """
    head = _HEADER.pack(
        MAGIC, version | FULL_SNAPSHOT if full_snapshot else version, broker_id, segment
    )
    return head + crc32(head).to_bytes(4, "big")


def decode_header(data: bytes, broker_id: bytes, segment: int) -> bool:
    """Check the beginning of a file. Returns False if it is cut off or damaged, so that the file is
    ignored.

    `data`: HEADER_SIZE bytes or fewer. `broker_id`, `segment`: what it must contain.

    Raises JournalError: it is no journal, of another version, or of another broker.
    """
    if not any(data):
        # A power cut may leave a new file with its size and zeros in it.
        return False
    if not data.startswith(MAGIC) and not MAGIC.startswith(data[: len(MAGIC)]):
        raise JournalError("is not a journal of mqttree")
    if len(data) < HEADER_SIZE or crc32(data[: _HEADER.size]) != int.from_bytes(
        data[_HEADER.size : HEADER_SIZE], "big"
    ):
        return False
    _, version, whose, number = _HEADER.unpack_from(data)
    version &= ~FULL_SNAPSHOT
    if version != VERSION:
        other = "a newer" if version > VERSION else "an older"
        raise JournalError(
            f"has version {version}, and this release reads {VERSION}:"
            f" it was written by {other} one"
        )
    if whose != broker_id:
        raise JournalError(f"is of broker {whose.hex()}, and this one is {broker_id.hex()}")
    if number != segment:
        raise JournalError(f"is segment {number}: it was renamed")
    return True


def is_full_snapshot(header: bytes) -> bool:
    """Return whether the segment with this (valid) header starts with a full snapshot."""
    return header[len(MAGIC)] & FULL_SNAPSHOT >> 8 != 0


def encode_frame(records: list[bytes], wall: int) -> bytes:
    """Return a frame of encoded records. `wall`: the time of day (ms)."""
    body = b"".join(records)
    return _FRAME.pack(len(body), crc32(body, crc32(wall.to_bytes(8, "big"))), wall) + body


def encode_frames(records: list[bytes], wall: int, most: int) -> bytes:
    """Return encoded records as several frames, for more than one frame may hold. Messages come
    first, as the other records refer to them. `records`, `wall`, `most`: as for `frames_of`."""
    bulk = [record for record in records if record[0] in BULK]
    rest = (record for record in records if record[0] not in BULK)
    return b"".join(frames_of((*bulk, *rest), wall, most))


def frames_of(records: Iterable[bytes], wall: int, most: int) -> Iterator[bytes]:
    """Yield encoded `records` as frames. `wall`: the time of day (ms); `most`: bytes of a frame,
    more if one record is larger."""
    found: list[bytes] = []
    size = 0
    for record in records:
        if found and size + len(record) > most:
            yield encode_frame(found, wall)
            found, size = [], 0
        found.append(record)
        size += len(record)
    yield encode_frame(found, wall)


class Cut(NamedTuple):
    """The place in a file from which on it cannot be read."""

    at: int
    why: str


def read_frames(stream: BinaryIO, at: int) -> Iterator[tuple[int, bytes] | Cut]:
    """Yield (time of day in ms, records) of each frame of `stream` from `at` on, which is where it
    stands, and last a Cut if data follows that is not a frame. Raises OSError."""
    while True:
        head = stream.read(FRAME_SIZE)
        if not head:
            return
        if len(head) < FRAME_SIZE:
            yield Cut(at, "is cut off")
            return
        size, check, wall = _FRAME.unpack(head)
        if not size or size > MAX_FRAME:
            yield Cut(at, "is damaged")
            return
        body = stream.read(size)
        if len(body) < size:
            yield Cut(at, "is cut off")
            return
        if crc32(body, crc32(head[8:])) != check:
            yield Cut(at, "is damaged")
            return
        yield wall, body
        at += FRAME_SIZE + size


_LIKE_A_FRAME = re.compile(rb"(?s)(?=.{8}\x00\x00.{6}[\x01-\x1b])")


def frame_within(data: bytes) -> bool:
    """Return whether a complete frame begins anywhere in `data`, which follows a cut. If so, the
    file is damaged there; if not, its end was torn off by a crash."""
    tried = 0
    view = memoryview(data)
    for found in _LIKE_A_FRAME.finditer(data):
        at = found.start()
        size, check, _ = _FRAME.unpack_from(data, at)
        begin = at + FRAME_SIZE
        if (
            size < RECORD.size
            or begin + size > len(data)
            or RECORD.unpack_from(data, begin)[1] > size - RECORD.size
        ):
            continue
        if crc32(view[begin : begin + size], crc32(view[at + 8 : begin])) == check:
            return True
        tried += 1
        if tried > 1000:
            # Too many places look like a frame to try them all: do not throw the data away.
            return True
    return False
