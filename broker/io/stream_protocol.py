"""Connections by the event loop's own transports (TLS; all where there is no epoll): an asyncio
protocol around a connection of a `Node`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from mqttree.broker.core.connection import Connection
from mqttree.broker.io.epoll_transport import HIGH_WATER, in_kernel, unacknowledged
from mqttree.broker.io.loop_turns import MAX_READ_S
from mqttree.broker.io.proxy_protocol import ProxiedCertificate, ProxyHeader

if TYPE_CHECKING:
    from mqttree.broker.core.effects import Dial
    from mqttree.broker.io.driver import Driver


class StreamProtocol(asyncio.Protocol):
    """One TCP, TLS or Unix connection, accepted at the listener named `listener` or dialled for the
    effect `dial`. Also the node's `Transport` for it.

    `driver` runs the node. `on_open`: called when the connection is open, returns False to close
    it. `on_close`: called when it has ended. `proxied`: its PROXY header, None without one.
    """

    __slots__ = (
        "_asked",
        "_on_close",
        "_on_open",
        "_proxied",
        "conn",
        "dial",
        "driver",
        "listener",
        "transport",
        "write",
    )

    def __init__(
        self,
        driver: Driver,
        listener: str,
        dial: Dial | None = None,
        on_open: Callable[[StreamProtocol], bool] | None = None,
        on_close: Callable[[StreamProtocol], None] | None = None,
        proxied: ProxyHeader | None = None,
    ) -> None:
        self.driver = driver
        self.listener = listener
        self.dial = dial
        self.conn: Connection | None = None
        self._on_open = on_open
        self._on_close = on_close
        self._proxied = proxied
        self._asked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tell the node of the connection."""
        # uvloop has classes of its own.
        transport = cast(asyncio.Transport, transport)
        self.transport = transport
        self.write = transport.write
        transport.set_write_buffer_limits(HIGH_WATER)
        keep_end_behind_bytes(transport)
        if self._on_open is not None and not self._on_open(self):
            transport.abort()
            return
        driver = self.driver
        peer, secure = describe(transport, self._proxied)
        self.conn = driver.node.connection_registry.made(
            peer, self.listener, self, driver.time(), self.dial
        )
        self.conn.secure = secure
        driver.wake()

    def data_received(self, data: bytes) -> None:
        """Give the node the bytes."""
        conn = self.conn
        if conn is not None:
            driver = self.driver
            began = driver.time()
            driver.resumed(began)
            conn.receive(data, began)
            if not driver.flushing or driver.node.paused:
                driver.wake(conn)
            if driver.time() - began > MAX_READ_S:
                self._rest()

    def _rest(self) -> None:
        """Read no more of this connection in this turn of the loop: handling its bytes took long,
        and others wait."""
        self.pause_reading()
        self.driver.loop.call_soon(self._resume)

    def _resume(self) -> None:
        conn = self.conn
        if conn is not None and not (conn.held or conn.closed):
            self.resume_reading()

    def eof_received(self) -> bool:
        """Close the connection: a half-closed one is not kept."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the node that the connection has ended."""
        if self._on_close is not None:
            self._on_close(self)
        if self.conn is not None:
            reason = "closed by peer" if exc is None else (str(exc) or type(exc).__name__)
            self.driver.node.connection_lost(self.conn, reason, self.driver.time())
            self.driver.wake()
            if self.dial is None:
                # See `Node.connection_lost`.
                self.conn = None

    def pause_writing(self) -> None:
        """Tell the node that the transport's buffer is full."""
        if self.conn is not None:
            self.conn.pause()

    def resume_writing(self) -> None:
        """Tell the node that there is room again."""
        if self.conn is not None:
            self.conn.writable(self.driver.time())
            self.driver.wake()

    def close(self) -> None:
        """Close once all bytes have gone out. After an error: close the connection for writing, and
        read on for a while, so that the peer gets to read the reason (TLS knows no half-closed
        connections)."""
        transport = self.transport
        if isinstance(transport.get_protocol(), Lingering):
            return
        if (
            self.conn is not None
            and self.conn.linger
            and transport.can_write_eof()
            and not transport.is_closing()
        ):
            transport.set_protocol(Lingering(self, transport, self.driver.loop))
            self.resume_reading()
            transport.write_eof()
        else:
            transport.close()

    def abort(self) -> None:
        """Close the connection at once; what has not gone out is lost."""
        self.transport.abort()

    def pause_reading(self) -> None:
        """Stop reading. A transport that is closing raises RuntimeError, which is ignored here and
        below."""
        with suppress(RuntimeError):
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the peer again after `pause_reading`."""
        with suppress(RuntimeError):
            self.transport.resume_reading()

    def unread(self) -> bool:
        """Return whether there may be more to read: the first time always, as bytes that TLS has
        decrypted may come in a later turn of the loop."""
        first, self._asked = not self._asked, True
        return not self.transport.is_closing() and (first or kernel_holds(self.transport))

    def unsent(self) -> int:
        """Return the bytes that the peer's system has not taken yet, with TLS as they go over the
        wire."""
        sock = self.transport.get_extra_info("socket")
        number = -1 if sock is None else sock.fileno()
        return self.transport.get_write_buffer_size() + (
            unacknowledged(number) if number >= 0 else 0
        )


class Lingering(asyncio.Protocol):
    """Replaces the protocol `of` on a `transport` that is being closed: bytes that still come in
    are ignored, and after `linger_s` (s, on `loop`) the transport is closed."""

    __slots__ = ("_of", "_timer")

    def __init__(
        self, of: StreamProtocol, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._of = of
        self._timer = loop.call_later(of.driver.limits.linger_s, transport.close)

    def eof_received(self) -> bool:
        """Close: the peer has read the reason, or is gone."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the node that the connection has ended."""
        self._timer.cancel()
        self._of.connection_lost(exc)

    def pause_writing(self) -> None:
        """Tell the node that the transport's buffer is full."""
        self._of.pause_writing()

    def resume_writing(self) -> None:
        """Tell the node that there is room again."""
        self._of.resume_writing()


def keep_end_behind_bytes(transport: asyncio.Transport) -> None:
    """Have a TLS transport read nothing ahead while it is paused: at the end of the stream uvloop
    drops what it has read and not handed over."""
    if transport.get_extra_info("ssl_object") is not None:
        transport.set_read_buffer_limits(1, 0)  # type: ignore[attr-defined]


def kernel_holds(transport: asyncio.Transport) -> bool:
    """Return whether bytes have come on a connection that the event loop has not read yet."""
    sock = transport.get_extra_info("socket")
    return sock is not None and in_kernel(sock.fileno()) > 0


def describe(transport: asyncio.BaseTransport, proxied: ProxyHeader | None) -> tuple[str, Any]:
    """Return the name of the other end and its TLS object; behind a load balancer, as its PROXY
    header says."""
    secure = transport.get_extra_info("ssl_object")
    if proxied is None:
        return peer_name(transport), secure
    if proxied.common_name is not None:
        secure = ProxiedCertificate(proxied.common_name)
    return proxied.peer or peer_name(transport), secure


def peer_name(transport: asyncio.BaseTransport) -> str:
    """Return HOST:PORT of the other end, or the path of a Unix socket."""
    return socket_name(transport.get_extra_info("peername"))


def socket_name(name: object) -> str:
    """Return a socket's address as HOST:PORT; of a Unix socket its path, or "unix" without one."""
    if isinstance(name, tuple):
        host = f"[{name[0]}]" if ":" in name[0] else name[0]
        return f"{host}:{name[1]}"
    return str(name or "unix")
