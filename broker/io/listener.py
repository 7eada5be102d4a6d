"""A listener: what accepts its connections, a limit that makes them wait, and errors that fit on
one line."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

from mqttree.broker.config.listener_options import ListenerOptions
from mqttree.broker.io.driver import Driver
from mqttree.broker.io.epoll_transport import AVAILABLE
from mqttree.broker.io.limits import IoLimits
from mqttree.broker.io.listeners import (
    LoopServer,
    Places,
    ProxiedServer,
    StreamServer,
    UnixSocket,
    Waiting,
    bind_all,
    resolve,
)
from mqttree.broker.io.proxy_protocol import ProxyHeader
from mqttree.broker.io.stream_protocol import StreamProtocol

BACKLOG = 4096
"""connections that the kernel completes before they are accepted; it caps this itself
(net.core.somaxconn)."""

TLS_TIMEOUT = 10.0
"""s for a TLS handshake: a connection that does nothing costs a socket."""

PARKED_BYTES = 64 * 1024
"""bytes buffered of a connection that waits: those that came before reading stopped. More:
closed."""

REASONS = {
    errno.EADDRINUSE: "address in use",
    errno.EACCES: "permission denied",
    errno.EADDRNOTAVAIL: "no such address on this machine",
}


class Listener:
    """One listener, named `listener_name`, with `max_connections` places (0 or less: any number),
    its `options` and `limits`. `server_instance` accepts its connections, None before it is
    opened."""

    def __init__(
        self,
        listener_name: str,
        server_instance: Any,
        max_connections: int = -1,
        options: ListenerOptions | None = None,
        *,
        limits: IoLimits,
    ) -> None:
        self._limits = limits
        self.listener_name = listener_name
        self.instance = server_instance
        self.max_connections = max_connections
        # Connections that have a place.
        self.conn_count = 0
        self.options = options or ListenerOptions()
        self.unix: UnixSocket | None = None
        self.parked: deque[Waiting] = deque()
        self.closing = False

    def opened(self, protocol: object) -> bool:
        """Count a connection of a listener without a limit."""
        self.conn_count += 1
        return True

    def closed(self, protocol: object) -> None:
        """Count a connection off again."""
        self.conn_count -= 1

    def enter(self, protocol: Waiting) -> bool | None:
        """Take a place: True; None: none is free, `protocol.admitted` is called when one is; False:
        too many wait."""
        if self.max_connections <= 0 or self.conn_count < self.max_connections:
            self.conn_count += 1
            return True
        if len(self.parked) >= self._limits.max_parked:
            return False
        self.parked.append(protocol)
        return None

    def leave(self, protocol: Waiting) -> None:
        """Give a place back to the connection that has waited longest, or stop waiting for one."""
        if protocol in self.parked:
            self.parked.remove(protocol)
        elif self.parked and not self.closing:
            self.parked.popleft().admitted()
        else:
            self.conn_count -= 1

    async def listen(
        self,
        accept: Callable[[ProxyHeader | None], asyncio.Protocol],
        where: tuple[str | None, int] | str,
        context: ssl.SSLContext | None,
        refused: Callable[[str], None],
        failed: Callable[[str, OSError], None],
        plain: Callable[[], Driver] | None = None,
    ) -> Any:
        """Open the listener at `where`: (host, port), or the path of a Unix socket. Returns what
        accepts its connections.

        `accept`: returns the protocol of a new connection, given its PROXY header. `context`: of
        TLS, None for plain connections. `refused`: called with a line about a wrong PROXY header.
        `failed`: called with a peer and the error of its TLS handshake. `plain`: returns the driver
        whose epoll transport takes connections that need no protocol; None: none do.

        Raises OSError.
        """
        loop = asyncio.get_running_loop()
        if isinstance(where, str):
            self.unix = UnixSocket(where, self.options.socket_mode, BACKLOG)
        plainly = plain is not None and context is None and AVAILABLE
        if self.options.proxy_protocol or plainly or context is not None:
            if self.unix is not None:
                sockets = [self.unix.sock]
            else:
                sockets = bind_all(
                    await resolve(where[0] or None, int(where[1]), passive=True), BACKLOG
                )
            if self.options.proxy_protocol:
                return ProxiedServer(
                    loop,
                    sockets,
                    accept,
                    context=context,
                    tls_timeout=TLS_TIMEOUT,
                    header_timeout=self._limits.proxy_timeout_s,
                    failed=failed,
                    refused=refused,
                )
            if context is not None or plain is None:
                return LoopServer(
                    loop, sockets, accept, context=context, tls_timeout=TLS_TIMEOUT, failed=failed
                )
            return StreamServer(sockets, plain, self, self.listener_name)
        if self.unix is not None:
            return await loop.create_unix_server(
                lambda: accept(None), sock=self.unix.sock, backlog=BACKLOG
            )
        sockets = bind_all(await resolve(where[0] or None, int(where[1]), passive=True), BACKLOG)
        return LoopServer(
            loop, sockets, accept, context=None, tls_timeout=TLS_TIMEOUT, failed=failed
        )

    async def close_instance(self) -> None:
        """Close, and remove the file of a Unix socket."""
        try:
            if self.instance is not None:
                self.instance.close()
                await self.instance.wait_closed()
        finally:
            if self.unix is not None:
                self.unix.remove()

    def close_listening(self) -> None:
        """Accept no more, and close connections that wait."""
        self.closing = True
        for protocol in list(self.parked):
            protocol.abort()
        if self.instance is not None:
            self.instance.close()


class ListenerProtocol(StreamProtocol):
    """A TCP or TLS connection that was accepted at a listener with a limit: it may have to wait for
    a place. `driver` runs the node; `listener` is the listener's name and `server` has its places;
    `proxied` is the PROXY header, None without one."""

    __slots__ = ("_entered", "_parked", "_server")

    def __init__(
        self, driver: Any, listener: str, server: Places, proxied: ProxyHeader | None = None
    ) -> None:
        super().__init__(driver, listener, proxied=proxied)
        self._server = server
        self._entered = False
        self._parked: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        """Begin, wait for a place, or close."""
        self.transport = transport
        admitted = self._server.enter(self)
        if admitted:
            self._entered = True
            super().connection_made(transport)
        elif admitted is None:
            self._entered = True
            transport.pause_reading()
        else:
            transport.abort()

    def admitted(self) -> None:
        """Begin, with the bytes that have come meanwhile."""
        super().connection_made(self.transport)
        for data in self._parked:
            self.data_received(data)
        self._parked.clear()
        self.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Give the node its bytes."""
        # It waits for a place: a read was under way, or the loop began to read after it was asked
        # not to.
        if self.conn is None:
            self._parked.append(data)
            if sum(map(len, self._parked)) > PARKED_BYTES:
                self.transport.abort()
            # asyncio before 3.12 forgets a pause in connection_made.
            else:
                self.transport.resume_reading()
                self.transport.pause_reading()
        else:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the node that the connection has ended, and give its place back."""
        super().connection_lost(exc)
        if self._entered:
            self._entered = False
            self._server.leave(self)


def listen_error(listener: str, bind: tuple[str | None, int] | str, error: Exception) -> str:
    """Return one line that says why the listener named `listener` cannot be opened at `bind`
    because of `error`."""
    if isinstance(bind, str):
        where = f"unix:{bind}"
    else:
        host, port = bind
        where = f"{'*' if host is None else f'[{host}]' if ':' in host else host}:{port}"
    reason = (
        REASONS.get(getattr(error, "errno", None) or 0)
        or getattr(error, "strerror", None)
        or str(error)
    )
    return f"listener '{listener}': cannot listen on {where}: {reason}"
