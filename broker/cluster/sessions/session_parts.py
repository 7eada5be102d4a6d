"""A session on its way to another broker, in parts: how they are sent, and put together
(docs/decisions/0016).

    part     u32 number of the export, u32 bytes of all parts, u32 position, bytes

The receiver asks for WINDOW parts at a time, from its position on, and repeats the request until a
part arrives. Parts are sent behind messages, and may be queued for minutes on a slow link. So a
repeated request brings no part twice while others arrive, and one part only when none has arrived
for a while, twice as long each time. Parts that the queue of a link had no room for were not sent:
the next request brings them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum

from mqttree.broker.wire.errors import MalformedPacket

PART_SIZE = 60_000
WINDOW = 16
"""bytes of a part, and parts sent for one request: a link's other traffic gets in between."""

RESEND_PAUSE, MAX_RESEND_PAUSE = 1.0, 30.0
"""s without progress until a part is sent once more; twice as long each time, up to this."""

MAX_MOVED_BYTES = 512 * 1024 * 1024
"""bytes of one session on its way: `Limits.max_queued_bytes` waiting, as much in flight, and what
is around it. A client with a larger one gets a new session."""

WHERE = struct.Struct(">III")


class Added(Enum):
    """What the arrival of a part means."""

    NOTHING = 1
    MORE = 2
    WINDOW_ENDS = 3
    """more has to be asked for"""
    WHOLE = 4


class SessionParts:
    """The parts of one session that have arrived."""

    __slots__ = ("_data", "_export")

    def __init__(self) -> None:
        self._export = (0, 0)  # number and bytes
        self._data = bytearray()

    @property
    def position(self) -> int:
        """Bytes of the session that have arrived: where the next part begins."""
        return len(self._data)

    def clear(self) -> None:
        """Drop the parts that have arrived."""
        self._export, self._data = (0, 0), bytearray()

    def take(self) -> bytes:
        """Return all bytes, and begin again."""
        data = bytes(self._data)
        self.clear()
        return data

    def add(self, part: bytes) -> Added:
        """Take a part. One that is not the next, as an earlier one was lost, is dropped and asked
        for again.

        Raises:
            MalformedPacket: truncated, or of a session that is too large.
        """
        if len(part) < WHERE.size:
            raise MalformedPacket("part of a session is truncated")
        number, total, at = WHERE.unpack_from(part)
        if total > MAX_MOVED_BYTES:
            raise MalformedPacket("encoded session is too large")
        if self._export != (number, total):
            self._export, self._data = (number, total), bytearray()
        if at != len(self._data):
            return Added.NOTHING
        self._data += part[WHERE.size :]
        if len(self._data) >= total:
            return Added.WHOLE
        return Added.WINDOW_ENDS if (at // PART_SIZE + 1) % WINDOW == 0 else Added.MORE


class Sending:
    """The parts of one session that have been sent."""

    __slots__ = ("_at", "_begin", "_end", "_pause", "_reached")

    def __init__(self) -> None:
        self._begin = self._end = 0  # from where to where it was sent last,
        self._reached = 0  # how far the receiver had come,
        self._at = 0.0  # s; and when that was, or it was sent
        self._pause = RESEND_PAUSE

    def due(self, at: int, now: float) -> int:
        """Return how many parts a request for those from byte `at` on brings at `now` (s)."""
        if not self._begin <= at < self._end:
            self._begin, self._end = at, at + WINDOW * PART_SIZE
            self._reached, self._at, self._pause = at, now, RESEND_PAUSE
            return WINDOW
        if at > self._reached:
            self._reached, self._at, self._pause = at, now, RESEND_PAUSE
        if now < self._at + self._pause:
            return 0
        self._at, self._pause = now, min(2 * self._pause, MAX_RESEND_PAUSE)
        self._begin, self._end = at, at + PART_SIZE
        return 1

    def refused(self, at: int) -> None:
        """Note that the link took no parts from `at` on: the next request brings them."""
        self._end = at


def split(data: bytes, number: int, at: int, most: int) -> Iterator[bytes]:
    """Return up to `most` parts of `data` from byte `at` on; of an empty session there is one.
    `number`: of what is encoded."""
    for begin in range(at, max(len(data), at + 1), PART_SIZE):
        if most <= 0:
            return
        most -= 1
        yield WHERE.pack(number, len(data), begin) + data[begin : begin + PART_SIZE]
