"""LEG_BASE: of some retained topics a digest of the value that a leg and its foreign broker had
last (docs/decisions/0047). Pure.

    u8 flags, u64 mapping, u16 size of the session's client id, client id
    entries: u64 key of the topic, u64 digest and standing (0: there is none)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from mqttree.broker.persistence.records import LEG_BASE_KIND

_RECORD = struct.Struct(">BI")
_HEAD = struct.Struct(">BQH")
_ENTRY = struct.Struct(">QQ")

CLEARED, DOUBTED, ENDED = 1, 2, 4
"""Flags: what was recorded before does not count; the foreign broker has forgotten the session
since the last merge; the leg is not wanted any more."""


class LegBaseRecord(NamedTuple):
    """LEG_BASE. `session`: the client id of the leg's session here; `mapping`: as of
    `RetainedBase`; `entries`: key of a topic, digest and standing."""

    flags: int
    mapping: int
    session: bytes
    entries: tuple[tuple[int, int], ...] = ()

    def encode(self) -> bytes:
        """Return LEG_BASE as bytes: the record's head and its body."""
        head = _HEAD.pack(self.flags, self.mapping, len(self.session)) + self.session
        body = head + b"".join([_ENTRY.pack(key, entry) for key, entry in self.entries])
        return _RECORD.pack(LEG_BASE_KIND, len(body)) + body

    @classmethod
    def decode(cls, body: bytes) -> LegBaseRecord:
        """Decode a body. Raises struct.error."""
        flags, mapping, size = _HEAD.unpack_from(body)
        end = _HEAD.size + size
        if len(body) < end:
            raise struct.error("the session is cut off")
        found = tuple(_ENTRY.iter_unpack(body[end:]))
        return cls(flags, mapping, body[_HEAD.size : end], found)


class RecordedBase:
    """The base of one leg as the records describe it."""

    __slots__ = ("_newer", "_older", "flags", "mapping", "recorded")

    def __init__(self) -> None:
        self.flags = 0
        self.mapping = 0
        # The present segment has a record of it.
        self.recorded = False
        # Entries of older segments, and those of the present one, 0: it is gone.
        self._older: dict[int, int] = {}
        self._newer: dict[int, int] = {}

    def take(self, record: LegBaseRecord) -> None:
        """Apply a record."""
        self.flags, self.mapping, self.recorded = record.flags, record.mapping, True
        if record.flags & CLEARED:
            self._older.clear()
            self._newer.clear()
        self._newer.update(record.entries)

    def begin(self) -> None:
        """Note that a segment begins."""
        self._older, self._newer, self.recorded = self.entries(), {}, False

    def keep_newer(self) -> None:
        """Drop all that is not in the present segment."""
        self._older = {}

    def entries(self) -> dict[int, int]:
        """Return what the records add up to: key of a topic -> digest and standing."""
        found = self._older | self._newer if self._newer else self._older
        return {key: entry for key, entry in found.items() if entry}


def pieces(entries: Iterable[tuple[int, int]], most: int) -> Iterable[tuple[tuple[int, int], ...]]:
    """Yield `entries` in pieces of `most`."""
    piece: list[tuple[int, int]] = []
    for entry in entries:
        piece.append(entry)
        if len(piece) >= most:
            yield tuple(piece)
            piece = []
    if piece:
        yield tuple(piece)
