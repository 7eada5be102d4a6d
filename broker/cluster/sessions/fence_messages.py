"""What a broker and the one that was its standby tell each other about sessions that were given
away (docs/decisions/0063).

    ASK_FENCE  u32 boot, u32 epoch: of the stream that the asker posted last, or of the fence, u32
               how many of its claims are carried out (UNHEARD: it has not heard of any)
    FENCE      u32 boot, u32 epoch, u8 PROMOTED or 0, u64 LSN of the image's last frame, u64 number
               of the last message that its owner had published then, u32 claims in all, u32 number
               of the first that follows, claims: u16 size, client id, u64 stamp, u16 n, packet
               identifiers: n times u16
    CLAIMED    the owner's id, and what its FENCE would be: to the standby behind the sender

ASK_FENCE is answered unless all claims are carried out, and FENCE always. Both may be repeated. A
claim is never taken back, so its number says which it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from mqttree.broker.wire.errors import MalformedPacket

FENCE, ASK_FENCE, CLAIMED = 0x1F, 0x01, 0x12
"""Kinds of messages to one broker."""

PROMOTED: Final = 1
UNHEARD: Final = 0xFFFFFFFF

_ASK = struct.Struct(">III")
_HEAD = struct.Struct(">IIBQQII")
_SIZE = struct.Struct(">H")
_STAMP = struct.Struct(">QH")


class Claim(NamedTuple):
    """What a standby has done for a session."""

    client: bytes
    """Client id."""
    stamp: int
    """Of the connection that has the session; that of the session itself: its will was published.
    0: it has taken what the client had sent at QoS 2, as `incoming`; of others nothing."""
    incoming: tuple[int, ...] = ()
    """Packet identifiers."""


class AskFence(NamedTuple):
    """ASK_FENCE."""

    boot: int
    epoch: int
    done: int
    """Claims that are carried out, or UNHEARD."""

    def encode(self) -> bytes:
        """Return it as bytes."""
        return _ASK.pack(*self)

    @classmethod
    def decode(cls, body: bytes) -> AskFence:
        """Decode it. Raises MalformedPacket."""
        if len(body) != _ASK.size:
            raise MalformedPacket("question for a fence has another size")
        return cls(*_ASK.unpack(body))


class FenceMessage(NamedTuple):
    """FENCE."""

    boot: int
    epoch: int
    promoted: bool
    """Whether anything may have been given away."""
    lsn: int
    last: int
    """Number of the last message of this boot that is in the image."""
    total: int
    first: int
    claims: tuple[Claim, ...]

    def encode(self) -> bytes:
        """Return it as bytes."""
        head = self.boot, self.epoch, PROMOTED * self.promoted, self.lsn, self.last
        return _HEAD.pack(*head, self.total, self.first) + b"".join(_encoded(self.claims))

    @classmethod
    def decode(cls, body: bytes) -> FenceMessage:
        """Decode it. Raises MalformedPacket."""
        try:
            boot, epoch, flags, lsn, last, total, first = _HEAD.unpack_from(body)
            at, claims = _HEAD.size, []
            while at < len(body):
                (size,) = _SIZE.unpack_from(body, at)
                at += _SIZE.size
                client, at = body[at : at + size], at + size
                stamp, count = _STAMP.unpack_from(body, at)
                at += _STAMP.size
                claims.append(Claim(client, stamp, struct.unpack_from(f">{count}H", body, at)))
                at += 2 * count
        except struct.error:
            raise MalformedPacket("fence is truncated") from None
        promoted = flags & PROMOTED != 0
        return cls(boot, epoch, promoted, lsn, last, total, first, tuple(claims))


def _encoded(claims: Iterable[Claim]) -> Iterable[bytes]:
    for client, stamp, incoming in claims:
        yield _SIZE.pack(len(client)) + client + _STAMP.pack(stamp, len(incoming))
        yield struct.pack(f">{len(incoming)}H", *incoming)
