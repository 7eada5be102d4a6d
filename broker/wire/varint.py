"""Variable Byte Integers (MQTT 5, 1.5.5): seven bits a byte, least significant first, at most four
bytes."""

from __future__ import annotations

from typing import Final

from mqttree.broker.wire.constants import MAX_REMAINING_LENGTH
from mqttree.broker.wire.errors import MalformedPacket

_ONE_BYTE: Final = tuple(bytes((n,)) for n in range(128))


def encode_varint(n: int) -> bytes:
    """Encode ``n`` (0 to 268,435,455) in the fewest bytes. Raises ValueError beyond that range."""
    if 0 <= n < 128:
        return _ONE_BYTE[n]
    if 128 <= n < 16_384:
        return bytes((n & 0x7F | 0x80, n >> 7))
    if not 0 <= n <= MAX_REMAINING_LENGTH:
        raise ValueError(f"{n} does not fit in a Variable Byte Integer")
    out = bytearray()
    while n > 127:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def decode_varint(data: bytes, pos: int) -> tuple[int, int]:
    """Decode the integer at ``pos``: (value, position behind it).

    Raises MalformedPacket when it is truncated, longer than four bytes, or longer than needed
    (MQTT-1.5.5-1).
    """
    value = shift = 0
    for at in range(pos, min(pos + 4, len(data))):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise MalformedPacket("Variable Byte Integer is longer than needed")
            return value, at + 1
        shift += 7
    if shift == 28:
        raise MalformedPacket("Variable Byte Integer is longer than four bytes")
    raise MalformedPacket("Variable Byte Integer is truncated")


def read_length(data: bytes, pos: int) -> tuple[int, int]:
    """Read a Remaining Length that may still be on its way: (value, position behind it), or (0, -1)
    until it is whole.

    Raises MalformedPacket when it is longer than four bytes (MQTT-2.1.4).
    """
    if pos + 1 < len(data):  # what nearly all packets have: one byte, or two
        value = data[pos]
        if value < 128:
            return value, pos + 1
        if data[pos + 1] < 128:
            return value - 128 + (data[pos + 1] << 7), pos + 2
    value = shift = 0
    for at in range(pos, min(pos + 4, len(data))):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    if shift == 28:
        raise MalformedPacket("Remaining Length is longer than four bytes")
    return 0, -1
