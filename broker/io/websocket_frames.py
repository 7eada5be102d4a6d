"""Frames of WebSocket connections as bytes (RFC 6455, 5.2): where one ends, and whole binary frames
without objects. Everything else about frames is the `websockets` package's."""

from __future__ import annotations

from typing import Final

try:
    from websockets.speedups import apply_mask
except ImportError:
    from websockets.utils import apply_mask

BINARY: Final = 0x82
"""First byte of a binary frame that is a message of its own."""

_MASKED: Final = 0x80
_TWO_BYTES, _EIGHT_BYTES = 126, 127


def find_frame(data: bytes, at: int) -> tuple[int, int]:
    """Return where in `data` the payload begins of the frame that begins at `at`, and where it
    ends, which may be behind the end of `data`; (-1, -1) while its header is not whole."""
    left = len(data) - at
    if left < 2:
        return -1, -1
    size = data[at + 1] & 0x7F
    body = at + (2 if size < _TWO_BYTES else 4 if size == _TWO_BYTES else 10)
    if data[at + 1] & _MASKED:
        body += 4
    if body > len(data):
        return -1, -1
    if size == _TWO_BYTES:
        size = data[at + 2] << 8 | data[at + 3]
    elif size == _EIGHT_BYTES:
        size = int.from_bytes(data[at + 2 : at + 10], "big")
    return body, body + size


def is_message(data: bytes, at: int) -> bool:
    """Whether the frame of `data` that begins at `at` is a binary message of a client."""
    return data[at] == BINARY and data[at + 1] & _MASKED != 0


def unmasked(data: bytes, body: int, end: int) -> bytes:
    """Return the payload of a client's frame: that of `data` from `body` to `end`, behind its mask
    of four bytes."""
    return apply_mask(data[body:end], data[body - 4 : body])


def unmasked_part(part: bytes, mask: bytes) -> tuple[bytes, bytes]:
    """Return a `part` of a payload without its `mask`, and the mask of what follows."""
    turn = len(part) % 4
    return apply_mask(part, mask), mask[turn:] + mask[:turn]


def binary_head(size: int) -> bytes:
    """Return what a binary frame of a server begins with, which is a message of its own; `size`: of
    its content (bytes)."""
    if size < _TWO_BYTES:
        return bytes((BINARY, size))
    if size < 65_536:
        return bytes((BINARY, _TWO_BYTES)) + size.to_bytes(2, "big")
    return bytes((BINARY, _EIGHT_BYTES)) + size.to_bytes(8, "big")
