"""Server-sent events (WHATWG HTML 9.2): what the monitor sees, to everybody who reads it.

Each event is encoded once. A reader that takes less than comes is closed, and comes back when it
likes: each event has all of what it is about, so that nothing has to be caught up.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mqttree.broker.base.counters import Counters

HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    b"retry: 3000\n\n"
)

BEHIND: Final = 1024 * 1024
"""bytes that wait for a reader; with more it is closed."""


def encode(kind: str, data: dict[str, Any]) -> bytes:
    """Return an event as bytes. JSON has no line breaks, so that it is one line of data. `kind`,
    `data`: of the event."""
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


class EventStream:
    """All readers of one admin port."""

    __slots__ = ("_counters", "_most", "readers")

    def __init__(self, counters: Counters, most: int) -> None:
        """`counters`: of the broker; `most`: readers at a time."""
        self._counters = counters
        self._most = most
        self.readers: dict[asyncio.Transport, None] = {}
        """Connections that get every event."""

    @property
    def full(self) -> bool:
        """Whether there is no room for another reader."""
        return len(self.readers) >= self._most

    def add(self, transport: asyncio.Transport, first: bytes) -> None:
        """Send every event to a `transport` from now on; `first`: those that it gets at once."""
        self.readers[transport] = None
        transport.set_write_buffer_limits(high=BEHIND)
        transport.write(HEAD + first)

    def remove(self, transport: asyncio.Transport) -> None:
        """Send nothing more to a transport; harmless if it reads no events."""
        self.readers.pop(transport, None)

    def tell(self, kind: str, data: dict[str, Any]) -> None:
        """Send an event to all readers; `kind`, `data`: of the event."""
        event = encode(kind, data)
        for transport in list(self.readers):
            if transport.get_write_buffer_size() + len(event) > BEHIND:
                self._counters.admin_readers_closed += 1
                self.remove(transport)
                transport.abort()
            else:
                transport.write(event)
