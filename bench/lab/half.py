"""One half of a relayed connection, and who it is that dials: what every relay between brokers
needs."""

from __future__ import annotations

import asyncio
from typing import cast

NAME = b"\x26\x00\x04name"
"""A user property of CONNECT on links: what the dialling broker is called."""
MAX_UNNAMED_BYTES = 8192
"""bytes that a caller without a name may send before it is let through without one."""


def dialler(said: bytes | bytearray) -> str | None:
    """The name of the broker that began a connection with these bytes; "" when it says none, None
    when more of them are needed."""
    at = said.find(NAME)
    if at < 0:
        return "" if len(said) >= MAX_UNNAMED_BYTES else None
    start = at + len(NAME) + 2
    end = start + int.from_bytes(said[start - 2 : start], "big")
    return said[start:end].decode(errors="replace") if start <= len(said) >= end else None


class Half(asyncio.Protocol):
    """One half of a relayed connection. As TCP does it: what is not read stays with the sender,
    also that it closes; what one half does not take, the other one does not read."""

    def __init__(self) -> None:
        self.other: Half | None = None
        self.transport: asyncio.Transport | None = None
        self.full = False  # the other half does not take more

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, to which the other half writes."""
        # uvloop's are none of asyncio's classes.
        self.transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        """The other half is not read for a while."""
        if self.other is not None:
            self.other.full = True
            self.other.obey()

    def resume_writing(self) -> None:
        """Let the other half be read again: this one takes bytes again."""
        if self.other is not None:
            self.other.full = False
            self.other.obey()

    def held(self) -> bool:
        """Whether nothing may be read, for a reason of the network."""
        raise NotImplementedError

    def obey(self) -> None:
        """Read on, or do not."""
        if self.transport is None or self.transport.is_closing():
            return
        if self.full or self.held():
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()
