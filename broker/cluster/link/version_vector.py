"""Version vectors: for each origin the sequence numbers that have been at a broker, and how links
carry them."""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping

from mqttree.broker.base.sequence_set import (
    LAST,
    MAX_GAPS,
    MAX_ORIGINS,
    Ranges,
    decode_pairs,
    encode_pairs,
    find,
)
from mqttree.broker.wire.errors import MalformedPacket


class OriginWindow:
    """Which sequence numbers of one origin have been at a broker: all up to `top` except those in
    `gaps` (inclusive pairs)."""

    __slots__ = ("gaps", "heard", "top")

    def __init__(self, top: int, heard: float) -> None:
        """`heard`: s, when the origin was last heard of."""
        self.top = top
        self.gaps: Ranges = []
        self.heard = heard

    @property
    def lacks(self) -> Ranges:
        """All numbers that have not been here, those to come included."""
        return [*self.gaps, (self.top + 1, LAST)]

    def missing(self, sequence: int) -> bool:
        """Whether this number has not been here."""
        return sequence > self.top or find(self.gaps, sequence, sequence) >= 0


VECTOR_HEAD = 20
"""bytes of an origin in a vector, ahead of its gaps; the last two say how many these are."""
MAX_EVALUATED_GAPS = 4096
"""gaps of an origin in what was evaluated for sessions. While links are repaired there are as many
as messages come from the origin at the same time: hundreds; 49 kB of a record."""
MAX_VECTOR_GAPS = 2048
"""gaps sent to a neighbour at once; beyond it only the newest of each origin. A few are usual,
thousands are made up."""

Vector = dict[bytes, OriginWindow]
"""A version vector: origin key -> what has been at a broker."""

VectorView = Mapping[bytes, OriginWindow]
"""A version vector that is only read; also one of windows of a more special type."""


def encode_vector(vector: VectorView) -> bytes:
    """Return what has been at a broker as bytes, for a neighbour (record SEEN)."""
    most = MAX_GAPS
    if (
        len(vector) * most > MAX_VECTOR_GAPS
        and sum(len(w.gaps) for w in vector.values()) > MAX_VECTOR_GAPS
    ):
        # The newest gaps of each origin; the older ones are left out.
        most = max(1, MAX_VECTOR_GAPS // len(vector))
    return encode_evaluated(vector, most)


def encode_evaluated(vector: VectorView, most: int = MAX_EVALUATED_GAPS) -> bytes:
    """Return what was evaluated for sessions as bytes, with all gaps, `most` of an origin: a number
    too many in a gap is a message twice, one too few a message lost."""
    parts = []
    for key, window in vector.items():
        gaps = window.gaps[-most:]
        parts.append(a2b_base64(key) + window.top.to_bytes(6, "big") + len(gaps).to_bytes(2, "big"))
        parts.append(encode_pairs(gaps))
    return b"".join(parts)


def decode_vector(data: bytes, now: float, most: int = MAX_GAPS) -> Vector:
    """Return the vector of a SEEN record (`data`) that came at `now` (s). `most`: gaps of an
    origin.

    Raises:
        MalformedPacket: truncated, or beyond the limits.
    """
    vector: Vector = {}
    at = 0
    while at < len(data):
        if at + VECTOR_HEAD > len(data):
            raise MalformedPacket("SEEN record is truncated")
        key = b2a_base64(data[at : at + 12], newline=False)
        window = OriginWindow(int.from_bytes(data[at + 12 : at + 18], "big"), now)
        gaps = int.from_bytes(data[at + 18 : at + VECTOR_HEAD], "big")
        at += VECTOR_HEAD
        if gaps > most or at + 12 * gaps > len(data) or len(vector) >= MAX_ORIGINS:
            raise MalformedPacket("SEEN record is truncated or too large")
        window.gaps = decode_pairs(data[at : at + 12 * gaps], "SEEN record")
        if gaps and window.gaps[-1][1] > window.top:
            raise MalformedPacket("SEEN record is out of order")
        at += 12 * gaps
        vector[key] = window
    return vector


def decode_evaluated(data: bytes, now: float) -> Vector:
    """Return what `encode_evaluated` made bytes of. `now`: s.

    Raises:
        MalformedPacket: truncated, or beyond the limits.
    """
    return decode_vector(data, now, MAX_EVALUATED_GAPS)
