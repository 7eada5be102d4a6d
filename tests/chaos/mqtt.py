"""A client that costs little: MQTT 3.1.1 or 5 over a socket, as an asyncio protocol. It answers everything and forgets it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK = 2, 3, 4, 5, 6, 7, 9


def _text(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


def _packet(first: int, body: bytes) -> bytes:
    size, length = b"", len(body)
    while True:
        length, low = length >> 7, length & 127
        size += bytes((low | (128 if length else 0),))
        if not length:
            return bytes((first,)) + size + body


class Wire(asyncio.Protocol):
    """One connection. `lost` is called when it ends, whoever ends it; `came(payload, qos)` for each message."""

    def __init__(self, client_id: str, version: int, came: Callable[[bytes, int], None], lost: Callable[[], None]) -> None:
        self.client_id = client_id
        self.version = version
        self.came = came
        self.lost = lost
        self.accepted: Callable[[int], None] = lambda _mid: None
        """Called with the packet identifier of what the broker took: PUBACK, PUBREC."""
        self.transport: asyncio.Transport | None = None
        self.connected = asyncio.get_running_loop().create_future()
        self.subscribed = asyncio.get_running_loop().create_future()
        self._rest = b""
        self._answers: list[bytes] = []
        self._mid = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are none of asyncio's classes
        more = b"\0" if self.version == 5 else b""
        body = _text(b"MQTT") + bytes((self.version, 2, 0, 0)) + more + _text(self.client_id.encode())
        self.transport.write(_packet(0x10, body))

    def connection_lost(self, _error: Exception | None) -> None:
        self.transport = None
        for future in (self.connected, self.subscribed):
            if not future.done():
                future.cancel()
        self.lost()

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Ask; `subscribed` says what was granted."""
        assert self.transport is not None
        more = b"\0" if self.version == 5 else b""
        self.transport.write(_packet(0x82, b"\x00\x01" + more + _text(topic_filter.encode()) + bytes((qos,))))

    def publish(self, topic: bytes, payload: bytes, qos: int) -> int:
        """Send; returns the packet identifier (1 to 60,000, in turn: there are never so many in flight)."""
        assert self.transport is not None
        self._mid = mid = self._mid % 60_000 + 1
        more = b"\0" if self.version == 5 else b""
        self.transport.write(_packet(0x30 | qos << 1, _text(topic) + mid.to_bytes(2, "big") + more + payload))
        return mid

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        at, size = 0, len(data)
        while size - at >= 2:
            length, shift, body = 0, 0, at + 1
            while body < size:
                byte = data[body]
                length |= (byte & 127) << shift
                shift += 7
                body += 1
                if byte < 128:
                    break
            else:
                break
            if size - body < length:
                break
            self._packet(data[at], data, body, body + length)
            at = body + length
        self._rest = data[at:]
        if self._answers:
            if self.transport is not None:
                self.transport.write(b"".join(self._answers))
            self._answers.clear()

    def _packet(self, first: int, data: bytes, at: int, end: int) -> None:
        kind = first >> 4
        if kind == PUBLISH:
            qos = first >> 1 & 3
            at += 2 + (data[at] << 8 | data[at + 1])
            if qos:
                mid = data[at : at + 2]
                at += 2
                self._answers.append((b"\x40\x02" if qos == 1 else b"\x50\x02") + mid)
            if self.version == 5:
                assert data[at] < 128, "long properties that nobody sent"
                at += 1 + data[at]
            self.came(data[at:end], qos)
        elif kind in (PUBACK, PUBREC):
            if kind == PUBREC:
                self._answers.append(b"\x62\x02" + data[at : at + 2])
            assert end - at < 3 or data[at + 2] < 0x80, f"refused: {data[at + 2]:#x}"
            self.accepted(data[at] << 8 | data[at + 1])
        elif kind == PUBREL:
            self._answers.append(b"\x70\x02" + data[at : at + 2])
        elif kind == CONNACK:
            assert data[at + 1] == 0, f"CONNACK {data[at + 1]:#x}"
            self.connected.set_result(None)
        elif kind == SUBACK:
            self.subscribed.set_result(data[end - 1])


async def connect(wire: Wire, port: int) -> Wire:
    """Return when the broker has accepted. Raises OSError, asyncio.CancelledError."""
    await asyncio.get_running_loop().create_connection(lambda: wire, "127.0.0.1", port)
    await wire.connected
    return wire
