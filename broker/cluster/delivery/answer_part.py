"""What a broker that was asked for missing messages answers, in parts (FEED_ANSWER, FEED_PIECE)."""

from __future__ import annotations

from typing import NamedTuple

from mqttree.broker.base.sequence_set import LAST
from mqttree.broker.cluster.directory.unicast_bus import BEHIND, KNOWN, LIVE
from mqttree.broker.wire.errors import MalformedPacket

FEED_ASK, FEED_ANSWER, FEED_PIECE = 5, BEHIND | LIVE | KNOWN | 6, BEHIND | 8
"""Kinds of messages to one broker."""


class AnswerPart(NamedTuple):
    """A part of an answer (FEED_ANSWER)."""

    number: int
    """Of the question."""
    position: int
    """Which part of the answer it is, from 0."""
    last: bool
    more: bool
    """There are messages behind `top`, for the next question."""
    top: int
    """The number up to which the answer has all that is wanted."""
    gone: int
    """The messages up to this number have left the origin's log and may be under way."""
    data: bytes

    def encode(self, state: bytes) -> bytes:
        """Return the body of the FEED_ANSWER. `state`: the directory's of the broker that
        asked, as it came with the question."""
        flags = self.last | self.more << 1 | (4 if self.gone else 0)
        head = (
            state
            + self.number.to_bytes(4, "big")
            + self.position.to_bytes(4, "big")
            + bytes((flags,))
            + self.top.to_bytes(6, "big")
        )
        if self.gone:
            head += self.gone.to_bytes(6, "big")
        return head + self.data


def decode_feed_answer(body: bytes) -> AnswerPart:
    """Decode a part of an answer.

    Raises:
        MalformedPacket: it is truncated, or has a sequence number out of range.
    """
    if len(body) < 27:
        raise MalformedPacket("FEED_ANSWER is truncated")
    flags = body[20]
    top = int.from_bytes(body[21:27], "big")
    if top >= LAST:
        raise MalformedPacket("FEED_ANSWER with a sequence number out of range")
    gone, begin = 0, 27
    if flags & 4:
        if len(body) < 33:
            raise MalformedPacket("FEED_ANSWER is truncated")
        gone, begin = int.from_bytes(body[27:33], "big"), 33
    return AnswerPart(
        int.from_bytes(body[12:16], "big"),
        int.from_bytes(body[16:20], "big"),
        flags & 1 != 0,
        flags & 2 != 0,
        top,
        gone,
        body[begin:],
    )
