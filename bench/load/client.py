"""A client in asyncio that costs little, of MQTT 3.1.1 and 5.

It answers everything and forgets it, but for what a session needs: the identifiers of QoS 2
messages that it has had.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from mqttree.bench.load import packets


def message(
    topic: bytes, payload: bytes, qos: int, version: int, packet_id: int, dup: bool = False
) -> bytes:
    """Return a PUBLISH of `payload` to `topic` at `qos`, in protocol `version` 4 or 5, with this
    `packet_id` (at QoS 1 and 2) and the flag `dup`."""
    identifier = packet_id.to_bytes(2, "big") if qos else b""
    properties = b"\0" if version == 5 else b""
    body = packets.string(topic) + identifier + properties + payload
    return packets.packet(packets.PUBLISH << 4 | dup << 3 | qos << 1, body)


def ignore(*_: object) -> None:
    """Do nothing."""


class LoadClient(asyncio.Protocol):
    """One connection."""

    def __init__(
        self,
        client_id: str,
        version: int,
        on_message: Callable[[bytes, int], None] = ignore,
        on_lost: Callable[[], None] = ignore,
        incoming: set[bytes] | None = None,
    ) -> None:
        """Make a client that is not connected.

        Args:
            `client_id`, `version`: of its CONNECT; 4 or 5.
            `on_message`: called with payload and QoS of each message.
            `on_lost`: called when the connection ends, whoever ends it.
            `incoming`: a kept session's identifiers of QoS 2 messages that are not complete; None:
                the session ends with the connection.
        """
        self.client_id = client_id
        self.version = version
        self.on_message = on_message
        self.on_lost = on_lost
        self.clean = incoming is None
        self.accepted: Callable[[int], None] = ignore
        """Called with the packet identifier of what the broker took: PUBACK, PUBREC."""
        self.completed: Callable[[int], None] = ignore
        """Called with the packet identifier of PUBCOMP."""
        self.transport: asyncio.Transport | None = None
        self.full = False
        """Whether the socket takes no more."""
        self.present = False
        """Whether the broker had the session."""
        self._answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._incoming: set[bytes] = set() if incoming is None else incoming
        self._parts: list[bytes] = []  # the beginning of a packet
        self._have = 0
        self._need = 0
        self._answers: list[bytes] = []
        self._packet_id = 0

    async def connect(self, host: str, port: int) -> LoadClient:
        """Connect to the broker at `host` and `port`; return when it has accepted. Raises
        OSError."""
        await asyncio.get_running_loop().create_connection(lambda: self, host, port)
        try:
            await self._answer
        except BaseException:
            if self.transport is not None:
                self.transport.abort()
            raise
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send CONNECT."""
        # uvloop's are none of asyncio's classes.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(packets.connect(self.client_id, self.version, clean=self.clean))

    def connection_lost(self, _error: Exception | None) -> None:
        """Tell whoever waits for an answer."""
        self.transport = None
        if not self._answer.done():
            self._answer.set_exception(ConnectionError(f"{self.client_id}: the connection ended"))
            self._answer.exception()  # there may be no one who awaits it
        self.on_lost()

    def pause_writing(self) -> None:
        """Note that the socket takes no more."""
        self.full = True

    def resume_writing(self) -> None:
        """Note that the socket takes more."""
        self.full = False

    def write(self, data: bytes) -> None:
        """Send `data`. Raises ConnectionError."""
        if self.transport is None:
            raise ConnectionError(f"{self.client_id} is not connected")
        self.transport.write(data)

    async def _ask(self, packet: bytes) -> int:
        self.write(packet)
        self._answer = asyncio.get_running_loop().create_future()
        return await self._answer

    async def subscribe(self, topic_filter: str, qos: int) -> int:
        """Subscribe to `topic_filter` at `qos`; return the code of SUBACK. Raises
        ConnectionError."""
        return await self._ask(packets.subscribe(topic_filter, qos, self.version))

    async def unsubscribe(self, topic_filter: str) -> int:
        """Unsubscribe from `topic_filter`; return the last byte of UNSUBACK. Raises
        ConnectionError."""
        return await self._ask(packets.unsubscribe(topic_filter, self.version))

    def publish(self, topic: bytes, payload: bytes, qos: int) -> int:
        """Send `payload` to `topic` at `qos`; return the packet identifier (1 to 60,000, in turn:
        there are never so many in flight). Raises ConnectionError."""
        self._packet_id = self._packet_id % 60_000 + 1
        self.write(message(topic, payload, qos, self.version, self._packet_id))
        return self._packet_id

    def data_received(self, data: bytes) -> None:
        """Take packets, and answer them."""
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
            assert data[at] < 128, "long properties that no client sent"
            at += 1 + data[at]
        if not again:
            self.on_message(data[at:end], qos)

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
            else:
                self._answered(0)
        elif kind in (packets.SUBACK, packets.UNSUBACK):
            self._answered(data[end - 1])

    def _answered(self, code: int) -> None:
        if not self._answer.done():
            self._answer.set_result(code)
