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


MAX_VECTOR_GAPS = 2048
"""gaps sent to a neighbour at once; beyond it only the newest of each origin. A few are usual,
thousands are made up."""

Vector = dict[bytes, OriginWindow]
"""A version vector: origin key -> what has been at a broker."""

VectorView = Mapping[bytes, OriginWindow]
"""A version vector that is only read; also one of windows of a more special type."""


def encode_vector(vector: VectorView) -> bytes:
    """Return what has been at a broker as bytes, for a neighbour (record SEEN)."""
    parts = []
    most = MAX_GAPS
    if (
        len(vector) * most > MAX_VECTOR_GAPS
        and sum(len(w.gaps) for w in vector.values()) > MAX_VECTOR_GAPS
    ):
        # The newest gaps of each origin; the older ones are left out.
        most = max(1, MAX_VECTOR_GAPS // len(vector))
    for key, window in vector.items():
        gaps = window.gaps[-most:]
        parts.append(a2b_base64(key) + window.top.to_bytes(6, "big") + bytes((len(gaps),)))
        parts.append(encode_pairs(gaps))
    return b"".join(parts)


def decode_vector(data: bytes, now: float) -> Vector:
    """Return the vector of a SEEN record that came at `now` (s).

    Raises:
        MalformedPacket: truncated, or beyond the limits.
    """
    vector: Vector = {}
    at = 0
    while at < len(data):
        if at + 19 > len(data):
            raise MalformedPacket("SEEN record is truncated")
        key = b2a_base64(data[at : at + 12], newline=False)
        window = OriginWindow(int.from_bytes(data[at + 12 : at + 18], "big"), now)
        gaps = data[at + 18]
        at += 19
        if gaps > MAX_GAPS or at + 12 * gaps > len(data) or len(vector) >= MAX_ORIGINS:
            raise MalformedPacket("SEEN record is truncated or too large")
        window.gaps = decode_pairs(data[at : at + 12 * gaps], "SEEN record")
        if gaps and window.gaps[-1][1] > window.top:
            raise MalformedPacket("SEEN record is out of order")
        at += 12 * gaps
        vector[key] = window
    return vector
