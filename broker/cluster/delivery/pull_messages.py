"""How a broker asks another one for messages that it lacks of one origin (PULL), and what is
answered, in parts (ENTRIES, ENTRIES_PIECE; docs/decisions/0013)."""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from struct import Struct
from typing import NamedTuple

from mqttree.broker.base.sequence_set import LAST, MAX_GAPS, Ranges, decode_pairs, encode_pairs
from mqttree.broker.cluster.delivery.subscription_start import times_of
from mqttree.broker.cluster.directory.unicast_bus import BEHIND, KNOWN, LIVE
from mqttree.broker.wire.errors import MalformedPacket

PULL, ENTRIES, ENTRIES_PIECE = 5, BEHIND | LIVE | KNOWN | 6, BEHIND | 8
"""Kinds of messages to one broker."""

NO_TIMES = b"\0"
"""A question without times of subscriptions."""

_PART = Struct(">IIB")
_HEAD = 29
"""bytes of a PULL ahead of the times of subscriptions."""


class Pull(NamedTuple):
    """A question for messages of the origin `key`."""

    state: bytes
    """Of the asking broker's listing, 12 bytes."""
    number: int
    key: bytes
    behind: bool
    """Whether brokers behind the asking one, a neighbour, want them as well."""
    times: bytes
    """When subscriptions began (`SubscriptionStarts.question`)."""
    lacks: Ranges

    def encode(self) -> bytes:
        """Return the body of the PULL."""
        head = self.state + self.number.to_bytes(4, "big") + a2b_base64(self.key)
        return head + bytes((self.behind,)) + self.times + encode_pairs(self.lacks)

    def times_s(self) -> list[float]:
        """Return the times of subscriptions (s)."""
        return times_of(self.times)[0]


def decode_pull(body: bytes) -> Pull:
    """Decode a question.

    Raises:
        MalformedPacket: it is truncated or too large.
    """
    if len(body) < _HEAD:
        raise MalformedPacket("PULL is truncated")
    data = times_of(body[_HEAD:])[1]
    if len(data) > 12 * MAX_GAPS:
        raise MalformedPacket("PULL is too large")
    return Pull(
        body[:12],
        int.from_bytes(body[12:16], "big"),
        b2a_base64(body[16:28], newline=False),
        body[28] != 0,
        body[_HEAD : len(body) - len(data)],
        decode_pairs(data, "PULL"),
    )


class EntriesPart(NamedTuple):
    """A part of an answer."""

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
        """Return the body of the message. `state`: the directory's of the broker that asked, as it
        came with the question."""
        flags = self.last | self.more << 1
        return (
            state
            + _PART.pack(self.number, self.position, flags)
            + b"".join((self.top.to_bytes(6, "big"), self.gone.to_bytes(6, "big"), self.data))
        )


def decode_entries_part(body: bytes) -> EntriesPart:
    """Decode a part of an answer.

    Raises:
        MalformedPacket: it is truncated, or has a sequence number out of range.
    """
    if len(body) < 33:
        raise MalformedPacket("ENTRIES is truncated")
    number, position, flags = _PART.unpack_from(body, 12)
    top, gone = int.from_bytes(body[21:27], "big"), int.from_bytes(body[27:33], "big")
    if top >= LAST:
        raise MalformedPacket("ENTRIES with a sequence number out of range")
    return EntriesPart(number, position, flags & 1 != 0, flags & 2 != 0, top, gone, body[33:])
