"""The name of an origin on links: which broker numbered a message, and in which incarnation."""

from __future__ import annotations

import struct
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from typing import Final

from mqttree.broker.wire.errors import MalformedPacket

_split_number: Final = struct.Struct(">HI").unpack


def origin_key(broker_id: bytes, boot: int) -> bytes:
    """Return the 16 characters that name (8-byte id, boot number)."""
    return b2a_base64(broker_id + boot.to_bytes(4, "big"), newline=False)


def lone_key(broker_id: bytes, boot: int) -> bytes:
    """Return the key of what (8-byte id, boot number) publishes while it knows no other broker. No
    incarnation has it: boot numbers are s since the epoch and count on."""
    return origin_key(broker_id, boot ^ 1 << 31)


def split_key(key: bytes) -> tuple[bytes, int]:
    """Return (id, boot) of an origin's 16 characters.

    Raises:
        MalformedPacket: not base64.
    """
    try:
        raw = a2b_base64(key)
    except Base64Error:
        raise MalformedPacket("origin is not base64") from None
    if len(raw) != 12:
        raise MalformedPacket("origin has the wrong length")
    return raw[:8], int.from_bytes(raw[8:], "big")


def decode_sequence(text: bytes) -> int:
    """Return the sequence number of its 8 characters.

    Raises:
        MalformedPacket: not base64.
    """
    try:
        raw = a2b_base64(text)
    except Base64Error:
        raise MalformedPacket("sequence is not base64") from None
    if len(raw) != 6:
        raise MalformedPacket("sequence has the wrong length")
    high: int
    low: int
    high, low = _split_number(raw)
    return high << 32 | low
