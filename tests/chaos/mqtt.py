"""A client that costs little: MQTT 3.1.1 or 5 over a socket, as an asyncio protocol.

It answers everything and forgets it, but for what a session needs: the identifiers of QoS 2
messages that it has had.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from mqttree.bench.load import packets


def message(
    topic: bytes, payload: bytes, qos: int, version: int, mid: int, dup: bool = False
) -> bytes:
    """One PUBLISH at QoS 1 or 2."""
    more = b"\0" if version == 5 else b""
    body = packets.string(topic) + mid.to_bytes(2, "big") + more + payload
    return packets.packet(packets.PUBLISH << 4 | dup << 3 | qos << 1, body)


class Wire(asyncio.Protocol):
    """One connection. `lost` is called when it ends, whoever ends it; `came(payload, qos)` for each
    message.

    `incoming`: a kept session's identifiers of QoS 2 messages that are not complete; None: the
    session ends with the connection.
    """

    def __init__(
        self,
        client_id: str,
        version: int,
        came: Callable[[bytes, int], None],
        lost: Callable[[], None],
        incoming: set[bytes] | None = None,
    ) -> None:
        self.client_id = client_id
        self.version = version
        self.came = came
        self.lost = lost
        self.clean = incoming is None
        self.accepted: Callable[[int], None] = lambda _mid: None
        """Called with the packet identifier of what the broker took: PUBACK, PUBREC."""
        self.completed: Callable[[int], None] = lambda _mid: None
        """Called with the packet identifier of PUBCOMP."""
        self.transport: asyncio.Transport | None = None
        self.full = False  # the socket takes no more
        self.present = False  # the broker had the session
        self.connected = asyncio.get_running_loop().create_future()
        self.subscribed = asyncio.get_running_loop().create_future()
        self._incoming: set[bytes] = set() if incoming is None else incoming
        self._parts: list[bytes] = []  # the beginning of a packet
        self._have = 0
        self._need = 0
        self._answers: list[bytes] = []
        self._mid = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are none of asyncio's classes.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(packets.connect(self.client_id, self.version, clean=self.clean))

    def connection_lost(self, _error: Exception | None) -> None:
        self.transport = None
        for future in (self.connected, self.subscribed):
            if not future.done():
                future.set_exception(ConnectionError(f"{self.client_id}: the connection ended"))
                future.exception()  # there may be no one who awaits it
        self.lost()

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Ask; `subscribed` says what was granted."""
        assert self.transport is not None
        self.transport.write(packets.subscribe(topic_filter, qos, self.version))

    def publish(self, topic: bytes, payload: bytes, qos: int) -> int:
        """Send; returns the packet identifier (1 to 60,000, in turn: there are never so many in
        flight)."""
        assert self.transport is not None
        self._mid = mid = self._mid % 60_000 + 1
        self.transport.write(message(topic, payload, qos, self.version, mid))
        return mid

    def data_received(self, data: bytes) -> None:
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        at, size, need = 0, len(data), 0
        while (head := packets.header(data, at, size)) is not None:
            first, (body, end) = data[at], head
            if end > size:
                need = end - at
                break
            if first >> 4 == packets.PUBLISH:
                self._publish(first >> 1 & 3, data, body, end)
            else:
                self._packet(first >> 4, data, body, end)
            at = end
        if at < size:
            self._parts.append(data[at:] if at else data)
            self._have, self._need = size - at, need
        if self._answers:
            if self.transport is not None:
                self.transport.write(b"".join(self._answers))
            self._answers.clear()

    def _publish(self, qos: int, data: bytes, at: int, end: int) -> None:
        at += 2 + (data[at] << 8 | data[at + 1])
        again = False
        if qos:
            mid = data[at : at + 2]
            at += 2
            if qos == 1:
                self._answers.append(packets.PUBACK_HEAD + mid)
            else:
                self._answers.append(packets.PUBREC_HEAD + mid)
                again = mid in self._incoming
                self._incoming.add(mid)
        if self.version == 5:
            assert data[at] < 128, "long properties that nobody sent"
            at += 1 + data[at]
        if not again:
            self.came(data[at:end], qos)

    def _packet(self, kind: int, data: bytes, at: int, end: int) -> None:
        if kind in (packets.PUBACK, packets.PUBREC):
            if kind == packets.PUBREC:
                self._answers.append(packets.PUBREL_HEAD + data[at : at + 2])
            assert end - at < 3 or data[at + 2] < 0x80, f"refused: {data[at + 2]:#x}"
            self.accepted(data[at] << 8 | data[at + 1])
        elif kind == packets.PUBCOMP:
            self.completed(data[at] << 8 | data[at + 1])
        elif kind == packets.PUBREL:
            self._incoming.discard(data[at : at + 2])
            self._answers.append(packets.PUBCOMP_HEAD + data[at : at + 2])
        elif kind == packets.CONNACK:
            self.present = data[at] == 1
            if not self.present:
                self._incoming.clear()
            if data[at + 1]:
                assert self.transport is not None
                self.transport.abort()
            elif not self.connected.done():
                self.connected.set_result(None)
        elif kind == packets.SUBACK and not self.subscribed.done():
            self.subscribed.set_result(data[end - 1])


async def connect(wire: Wire, port: int) -> Wire:
    """Return when the broker has accepted. Raises OSError."""
    await asyncio.get_running_loop().create_connection(lambda: wire, "127.0.0.1", port)
    try:
        await wire.connected
    except BaseException:
        if wire.transport is not None:
            wire.transport.abort()
        raise
    return wire
