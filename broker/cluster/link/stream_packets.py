"""The packets of a stream, which an owner and its standby send each other on their link: PUBLISH at
QoS 1 to `$stream` (docs/decisions/0062).

They pass output that waits for the journal: it may wait for them.
"""

from __future__ import annotations

import struct
from typing import Final

from mqttree.broker.wire.errors import MalformedPacket
from mqttree.broker.wire.varint import encode_varint

BEGIN, FRAME, END, HAVE, DROP = 0, 1, 2, 3, 4
"""What an owner sends: a new image begins, with the frame behind this LSN; a frame; the same, and
the snapshot is complete with it. What a standby sends: it has all frames up to this one (0: it has
dropped the image). DROP: the owner does not need the image any more."""

TOPIC: Final = b"$stream"

_HEAD = struct.Struct(">H7sHBBIQ")
_PREFIX = len(TOPIC), TOPIC, 1, 0


def encode_stream(kind: int, epoch: int, lsn: int, frame: bytes = b"") -> bytes:
    """Return a packet of a stream. `kind`: BEGIN to DROP; `epoch`: of the stream; `lsn`: of the
    frame; `frame`: as in the journal."""
    head = _HEAD.pack(*_PREFIX, kind, epoch, lsn)
    return b"".join((b"\x32", encode_varint(len(head) + len(frame)), head, frame))


def decode_stream(data: bytes, body: int) -> tuple[int, int, int, bytes]:
    """Return kind, epoch, LSN and frame of a packet (`data`). `body`: where it begins behind its
    length.

    Raises:
        MalformedPacket: it is not a packet of a stream.
    """
    try:
        *prefix, kind, epoch, lsn = _HEAD.unpack_from(data, body)
    except struct.error:
        raise MalformedPacket("packet of a stream is truncated") from None
    if data[0] != 0x32 or tuple(prefix) != _PREFIX or kind > DROP:
        raise MalformedPacket("packet of a stream that no broker sends")
    return kind, epoch, lsn, data[body + _HEAD.size :]
