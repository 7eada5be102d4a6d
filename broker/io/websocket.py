"""WebSocket connections (MQTT-6.0) without a task: bytes in, bytes out, as in `driver`.

The protocol itself is the sans-I/O half of the `websockets` package. Also connections that another
program accepted and hands over as a reader and a writer (amqtt's external listeners); those need a
task in each direction.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from websockets.exceptions import InvalidState
from websockets.frames import OP_BINARY, OP_CONT, OP_TEXT, CloseCode, Frame
from websockets.http11 import Request
from websockets.protocol import CONNECTING, OPEN, Event
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from mqttree.broker.core.connection import CLOSE_TIMEOUT_S
from mqttree.broker.io.driver import Driver
from mqttree.broker.io.epoll_transport import HIGH_WATER
from mqttree.broker.io.listeners import Places
from mqttree.broker.io.loop_turns import MAX_READ_S
from mqttree.broker.io.proxy_protocol import ProxyHeader
from mqttree.broker.io.stream_protocol import describe, keep_end_behind_bytes, kernel_holds
from mqttree.broker.io.websocket_frames import (
    binary_head,
    find_frame,
    is_message,
    unmasked,
    unmasked_part,
)
from mqttree.broker.wire.constants import MAX_PACKET_SIZE

if TYPE_CHECKING:
    from mqttree.broker.core.connection import Connection

SUBPROTOCOLS = [Subprotocol("mqtt"), Subprotocol("mqttv3.1")]
"""MQTT-6.0.0-3; the second is what clients of MQTT 3.1 ask for."""

HANDSHAKE_TIMEOUT = 10.0
"""s; from accept to the end of the upgrade [websocket_refused]. MQTT's own limit begins
after it."""

FIRST_MESSAGE_SIZE = 1024 * 1024
"""bytes of the largest message in several frames before CONNECT is accepted, and of what comes from
a client that waits for a place: CONNECT itself, and a little that it sent behind it without
waiting. Only accepted clients may make the broker buffer more."""

CLOSE_TIMEOUT = 1.0
"""s; for the peer's close frame after ours [websocket_close_timeout]."""

NOTHING_YET, UNKNOWN = -2, -1
"""Instead of bytes to come of a frame: nothing has come at all; it is not known where a frame
begins, so that the package gets all that comes."""

HEADERS_END = b"\r\n\r\n"
"""What an upgrade request ends with."""

_quiet = logging.getLogger("mqttree.websocket")
_quiet.setLevel(logging.WARNING)  # the package logs every frame at debug

WAITING_POLL = 0.005
"""s between two checks whether plugins have answered, for connections that other programs
accepted."""


class WebSocketProtocol(asyncio.Protocol):
    """One accepted WebSocket connection. Also the node's `Transport` for it.

    `driver` runs the node; `listener` is the listener's name and `server` has its places; `proxied`
    is the PROXY header, None without one. Any path and any Origin is accepted: a web page can do
    here what the user name and password in its CONNECT allow, and nothing else.
    """

    __slots__ = (
        "_asked",
        "_buffer",
        "_closing",
        "_entered",
        "_frames",
        "_full",
        "_left",
        "_mask",
        "_pong",
        "_proxied",
        "_rest",
        "_server",
        "_timer",
        "conn",
        "driver",
        "listener",
        "transport",
    )

    def __init__(
        self, driver: Driver, listener: str, server: Places, proxied: ProxyHeader | None = None
    ) -> None:
        self.driver = driver
        self.listener = listener
        self.conn: Connection | None = None
        self.transport: asyncio.Transport
        self._server = server
        self._proxied = proxied
        self._entered: bool | None = False  # None: waits for a place
        self._frames = ServerProtocol(
            subprotocols=SUBPROTOCOLS, max_size=FIRST_MESSAGE_SIZE, logger=_quiet
        )
        self._timer: asyncio.TimerHandle | None = None
        self._buffer: list[bytes] = []
        self._closing = False  # our close frame, or the end of the stream, is on its way
        self._full = False
        self._asked = False
        self._pong = b""
        # Bytes to come of the frame that has begun, or one of the two constants.
        self._left = NOTHING_YET
        self._rest = b""  # the beginning of a frame's header
        # Of the frame whose content is taken as it comes; without one, `_frames` gets the bytes.
        self._mask = b""

    # ---------------------------------------------------------------- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the upgrade request."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(HIGH_WATER)
        keep_end_behind_bytes(self.transport)
        self._later(HANDSHAKE_TIMEOUT, self._no_upgrade)

    def data_received(self, data: bytes) -> None:
        """Give the node the content of binary frames."""
        driver = self.driver
        began = driver.time()
        self._widen()
        if self._left >= 0:
            self._cut(data, began)
        else:
            first, self._left = self._left == NOTHING_YET, UNKNOWN
            self._frames.receive_data(data)
            self._handle(self._frames.events_received(), began)
            # Mostly the request comes in one piece, and nothing behind it.
            if first and self._frames.state is OPEN and data.find(HEADERS_END) == len(data) - 4:
                self._left = 0
        if driver.time() - began > MAX_READ_S:
            self.pause_reading()
            driver.loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Read on in the next turn of the loop, as `StreamProtocol` does."""
        if self.conn is None or self._closing or not (self.conn.held or self.conn.closed):
            self.resume_reading()

    def _cut(self, data: bytes, now: float) -> None:
        """Take the content of binary frames as it comes, as a frame may hold any part of several
        packets, each of which has a limit; other frames go to the package, which knows the
        protocol."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        frames, size, at = self._frames, len(data), 0
        events: list[Event | bytes] = []
        while at < size and frames.state is OPEN:
            if not self._left:
                body, end = find_frame(data, at)
                if body < 0:
                    self._rest = data[at:]
                    break
                self._left = end - at
                if (
                    self.conn is not None
                    and frames.cur_size is None
                    and is_message(data, at)
                    and end - body <= MAX_PACKET_SIZE
                ):
                    if end <= size:
                        events.append(unmasked(data, body, end))
                        self._left, at = 0, end
                        continue
                    self._mask, self._left, at = data[body - 4 : body], end - body, body
            part = data[at : at + self._left]
            self._left -= len(part)
            at += len(part)
            if self._mask:
                content, mask = unmasked_part(part, self._mask)
                events.append(content)
                self._mask = mask if self._left else b""
            else:
                frames.receive_data(part)
                events += frames.events_received()
        self._handle(events, now)
        if at < size and not self._rest:
            self._behind(data[at:], now)

    def _behind(self, data: bytes, now: float) -> None:
        """Take what comes behind the last frame that is looked at."""
        if self._mask:
            # The rest of a frame of which the content is not wanted any more.
            skipped = min(self._left, len(data))
            self._left -= skipped
            self._mask = self._mask if self._left else b""
            data = data[skipped:]
        if data:
            self._frames.receive_data(data)
            self._handle(self._frames.events_received(), now)

    def _widen(self) -> None:
        """Let a client send large messages in several frames once it was let in, whenever that
        was."""
        if (
            self._frames.max_size == FIRST_MESSAGE_SIZE
            and self.conn is not None
            and self.conn.max_packet_size > self.driver.limits.max_connect_size
        ):
            self._frames.max_size = MAX_PACKET_SIZE

    def _handle(self, events: Sequence[Event | bytes], now: float) -> None:
        """Do what a client asks with these events; `bytes`: the content of a binary frame."""
        frames = self._frames
        if not events and self.conn is not None and not self._closing:
            # Part of a frame: a long one may take longer than a keep-alive.
            self.conn.last_heard = now
        found: list[bytes] = []
        for event in events:
            if isinstance(event, bytes):
                found.append(event)
                continue
            self._take(found)
            if self._closing:  # what came behind the reason for it
                break
            if isinstance(event, Request):
                frames.send_response(frames.accept(event))
                if frames.state is OPEN:
                    self._enter()
            elif isinstance(event, Frame):
                if event.opcode in (OP_BINARY, OP_CONT):
                    self._payload(bytes(event.data))
                elif event.opcode == OP_TEXT:  # MQTT-6.0.0-1
                    self.driver.counters.websocket_errors += 1
                    self._finish(CloseCode.UNSUPPORTED_DATA, "MQTT is binary")
        self._take(found)
        if self._full and frames.state is OPEN:
            # Only pongs are left. A peer that pings and does not read gets the last one when it
            # does (RFC 6455, 5.5.3).
            self._pong = (frames.data_to_send() or [self._pong])[-1]
        else:
            self._send()

    def _take(self, found: list[bytes]) -> None:
        """Give the node the content of binary frames that follow each other, in one piece; empties
        `found`."""
        if found and not self._closing:
            self._payload(b"".join(found) if len(found) > 1 else found[0])
        found.clear()

    def _enter(self) -> None:
        self._entered = self._server.enter(self)
        if self._entered:
            self._begin()
        elif self._entered is None:
            self._cancel()
        else:
            self.driver.counters.websocket_refused += 1
            self._finish(CloseCode.TRY_AGAIN_LATER)

    def admitted(self) -> None:
        """Begin after having waited for a place."""
        self._entered = True
        if self._closing:
            return
        self._begin()
        kept, self._buffer = self._buffer, []
        for data in kept:
            self._payload(data)

    def _begin(self) -> None:
        self._cancel()
        driver = self.driver
        peer, secure = describe(self.transport, self._proxied)
        self.conn = driver.node.connection_registry.made(peer, self.listener, self, driver.time())
        self.conn.secure = secure
        driver.wake()

    def _payload(self, data: bytes) -> None:
        if self.conn is not None:
            if data:
                now = self.driver.time()
                self.driver.resumed(now)
                self.conn.receive(data, now)
                if not self.driver.flushing or self.driver.node.paused:
                    self.driver.wake(self.conn)
        else:
            self._buffer.append(data)
            if sum(map(len, self._buffer)) > FIRST_MESSAGE_SIZE:
                self.transport.abort()

    def eof_received(self) -> bool:
        """Close the connection: a half-closed one is not kept."""
        self._frames.receive_eof()
        self._send()
        self._hang_up()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the node that the connection has ended, and give its place back."""
        self._cancel()
        if self.conn is not None:
            reason = "closed by peer" if exc is None else (str(exc) or type(exc).__name__)
            self.driver.node.connection_lost(self.conn, reason, self.driver.time())
            self.driver.wake()
            # See `Node.connection_lost`.
            self.conn = None
        if self._entered is not False:
            self._entered = False
            self._server.leave(self)

    def pause_writing(self) -> None:
        """Tell the node that the transport's buffer is full."""
        self._full = True
        if self.conn is not None:
            self.conn.pause()

    def resume_writing(self) -> None:
        """Tell the node that there is room again."""
        self._full = False
        if self._pong and not self._closing:
            self.transport.write(self._pong)
        self._pong = b""
        if self.conn is not None:
            self.conn.writable(self.driver.time())
            self.driver.wake()

    def _send(self) -> None:
        for data in self._frames.data_to_send():
            if data:
                self.transport.write(data)
            else:
                self._end()

    def _end(self) -> None:
        """End our side of the stream: after both close frames, or because of what the peer sent."""
        frames = self._frames
        if frames.state is CONNECTING:
            self.driver.counters.websocket_refused += 1
        elif frames.parser_exc is not None and not isinstance(frames.parser_exc, EOFError):
            # The system answers unread bytes with a reset, which would discard the close frame with
            # the reason.
            self.driver.counters.websocket_errors += 1
            self._closing = True
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self.resume_reading()
            self._later(self.driver.limits.linger_s, self._hang_up)
            return
        self._hang_up()

    def _finish(self, code: CloseCode, reason: str = "") -> None:
        """Say that we close and wait for the peer's close frame, for a while; what comes before
        that is not looked at."""
        if not self._closing:
            self._closing = True
            # The peer has begun to close, or has not begun at all.
            with contextlib.suppress(InvalidState):
                self._frames.send_close(code, reason)
            self.resume_reading()
            self._later(CLOSE_TIMEOUT, self._unanswered)
            self._send()

    def _unanswered(self) -> None:
        self.driver.counters.websocket_close_timeout += 1
        self._hang_up()

    def _hang_up(self) -> None:
        """Close the stream, and abort it if the peer does not take what was sent."""
        self._closing = True
        self.transport.close()
        self._later(CLOSE_TIMEOUT_S, self.transport.abort)

    def _no_upgrade(self) -> None:
        self.driver.counters.websocket_refused += 1
        self.transport.abort()

    def _later(self, delay: float, call: Callable[[], None]) -> None:
        self._cancel()
        self._timer = self.driver.loop.call_later(delay, call)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---------------------------------------------------------------- what the node asks for

    def write(self, data: bytes) -> None:
        """Send bytes, in one binary frame; what comes after the peer has begun to close goes
        nowhere."""
        if self._frames.state is OPEN:
            # As the library would, which has extensions and fragments to think of. The answer to
            # the upgrade, or a pong, may wait there.
            self._send()
            self.transport.write(binary_head(len(data)) + data)

    def close(self) -> None:
        """Close once everything written has gone out."""
        self._finish(CloseCode.NORMAL_CLOSURE)

    def abort(self) -> None:
        """Close the connection at once; what has not gone out is lost."""
        self.transport.abort()

    def pause_reading(self) -> None:
        """Stop reading; TCP slows the peer down."""
        with contextlib.suppress(RuntimeError):
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the peer again after `pause_reading`, and first what was read already."""
        with contextlib.suppress(RuntimeError):
            self.transport.resume_reading()
        if self._rest:
            self.driver.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self.conn is not None and not (self._closing or self.conn.closing):
            self.data_received(b"")

    def unread(self) -> bool:
        """Say whether there may be more, as `StreamProtocol` does."""
        first, self._asked = not self._asked, True
        return not (self._closing or self.transport.is_closing()) and (
            first or kernel_holds(self.transport)
        )

    def unsent(self) -> int:
        """Return the bytes that the system has not taken yet."""
        return self.transport.get_write_buffer_size()


class AdapterTransport:
    """A connection that came as amqtt's `reader` and `writer` adapters, at the listener named
    `listener`; `driver` runs the node. Also the node's `Transport` for it.

    `run` lasts as long as the connection. A second task writes: everything that came while the last
    write drained, at once.
    """

    def __init__(self, driver: Driver, listener: str, reader: Any, writer: Any) -> None:
        self.driver = driver
        self.listener = listener
        self.conn: Connection | None = None
        self._reader = reader
        self._writer = writer
        self._out: list[bytes] = []
        self._size = 0
        self._wanted = asyncio.Event()
        self._reading = asyncio.Event()
        self._reading.set()
        self._closing = False
        self._asked = False
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, peer: str, secure: object) -> None:
        """Serve the connection until it ends; `peer`: HOST:PORT."""
        driver = self.driver
        self.conn = driver.node.connection_registry.made(peer, self.listener, self, driver.time())
        self.conn.secure = secure
        driver.wake()
        self._tasks = [
            driver.loop.create_task(self._read()),
            driver.loop.create_task(self._write()),
        ]
        reason = "closed by peer"
        try:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled() and (error := task.exception()) is not None:
                    reason = str(error) or type(error).__name__
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            driver.node.connection_lost(self.conn, reason, driver.time())
            driver.wake()
            # Whatever an adapter raises on a connection that has ended.
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._writer.close(), CLOSE_TIMEOUT)

    async def _read(self) -> None:
        """Read packet by packet: an adapter's `read(n)` comes back with n bytes and not before."""
        conn = self.conn
        assert conn is not None
        while True:
            await self._reading.wait()
            data = await self._packet(conn.max_packet_size)
            if not data:
                return
            now = self.driver.time()
            self.driver.resumed(now)
            conn.receive(data, now)
            self.driver.wake(conn)
            # What may be sent is known when the plugins have answered.
            while conn.waiting and not conn.closed:
                await asyncio.sleep(WAITING_POLL)

    async def _packet(self, limit: int) -> bytes:
        data = await self._exactly(1)
        size = shift = 0
        more = bool(data)
        while more and shift < 28:
            byte = await self._exactly(1)
            if not byte:
                return b""
            data += byte
            size |= (byte[0] & 0x7F) << shift
            shift += 7
            more = byte[0] >= 0x80
        if not more and len(data) + size <= limit:  # else the beginning is enough to be refused
            data += await self._exactly(size)
        return data

    async def _exactly(self, size: int) -> bytes:
        if not size:
            return b""
        try:
            return bytes(await self._reader.read(size) or b"")
        except asyncio.IncompleteReadError as error:
            return error.partial

    async def _write(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._out:
                data = b"".join(self._out)
                self._out.clear()
                self._writer.write(data)
                await self._writer.drain()
                self._size -= len(data)
            if self._closing:
                return
            if self.conn is not None and self.conn.paused:
                self.conn.writable(self.driver.time())
                self.driver.wake()

    def write(self, data: bytes) -> None:
        """Queue bytes to be sent; the node learns when more than HIGH_WATER bytes wait."""
        self._out.append(data)
        self._size += len(data)
        self._wanted.set()
        if self._size > HIGH_WATER and self.conn is not None:
            self.conn.pause()

    def close(self) -> None:
        """Close once everything written has gone out."""
        self._closing = True
        self._wanted.set()

    def abort(self) -> None:
        """Close the connection at once; what has not gone out is lost."""
        for task in self._tasks:
            task.cancel()

    def pause_reading(self) -> None:
        """Read no further packet from the adapter until `resume_reading`."""
        self._reading.clear()

    def resume_reading(self) -> None:
        """Read from the peer again after `pause_reading`."""
        self._reading.set()

    def unread(self) -> bool:
        """Say whether there may be more: only the adapter knows, and it gets one look's time."""
        first, self._asked = not self._asked, True
        return first

    def unsent(self) -> int:
        """Return the bytes that the writer has not taken yet."""
        return self._size
