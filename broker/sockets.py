"""Listening sockets that asyncio does not open for us: Unix sockets, and those behind a load balancer (PROXY headers)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import stat
from collections.abc import Callable
from typing import Any

from broker import limits
from broker.proxy import ProxyError, ProxyHeader, parse, wanted
from broker.transport import socket_name

ACCEPT_AT_ONCE = 100
"""connections taken in one turn of the loop; the others' bytes have to be read, too."""

ACCEPT_PAUSE = 1.0
"""s; until we try again when the system has no more file descriptors for us. Those who wait, wait in the kernel."""

OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class UnixSocket:
    """A listening Unix socket, and its file."""

    def __init__(self, path: str, mode: int, backlog: int) -> None:
        """Bind and listen. A file that a broker left behind is replaced; one of a living broker, or no socket, is not.

        Raises OSError.
        """
        self.path = path
        remove_stale(path)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        before = os.umask(0o777)  # nobody connects before the permissions are what they should be
        try:
            self.sock.bind(path)
        except BaseException:
            self.sock.close()
            raise
        finally:
            os.umask(before)
        found = os.stat(path)
        self._identity = (found.st_dev, found.st_ino)
        os.chmod(path, mode)
        self.sock.listen(backlog)

    def remove(self) -> None:
        """Remove the file, unless it is somebody else's by now."""
        with contextlib.suppress(OSError):
            found = os.stat(self.path)
            if (found.st_dev, found.st_ino) == self._identity:
                os.unlink(self.path)


def remove_stale(path: str) -> None:
    """Remove a socket's file that nobody listens on. Raises OSError: somebody does, or it is no socket."""
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise FileExistsError(errno.EEXIST, "there is a file that is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:  # its queue is full: it lives
            pass
    raise OSError(errno.EADDRINUSE, "address in use")


def bind_all(addresses: list[Any], backlog: int) -> list[socket.socket]:
    """Listen on each address (as `getaddrinfo` gives them), as `asyncio` does: IPv6 sockets for IPv6 only. Raises OSError."""
    found: list[socket.socket] = []
    try:
        for family, _kind, _protocol, _name, address in addresses:
            sock = socket.create_server(address[:2], family=family, backlog=backlog)
            sock.setblocking(False)
            found.append(sock)
    except BaseException:
        for sock in found:
            sock.close()
        raise
    return found


Make = Callable[[ProxyHeader], asyncio.Protocol]
"""Makes the protocol of a connection whose header has come."""


class ProxiedServer:
    """Stands where a listener's asyncio.Server stands: takes the PROXY header from each connection before anything else is
    done with it, TLS included."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: list[socket.socket],
        make: Make,
        *,
        context: ssl.SSLContext | None,
        tls_timeout: float,
        refused: Callable[[str], None],
    ) -> None:
        """`sockets` listen already, and do not block. `refused`: called with a line about each bad or missing header."""
        self.loop = loop
        self.sockets = tuple(sockets)
        self.refused = refused
        self.heads: set[_Head] = set()
        self._make = make
        self._tls: dict[str, Any] = {} if context is None else {"ssl": context, "ssl_handshake_timeout": tls_timeout}
        self._tasks: set[asyncio.Task[None]] = set()
        for each in self.sockets:
            loop.add_reader(each, self._accept, each)

    def close(self) -> None:
        """Accept no more, and close whose header has not come."""
        for each in self.sockets:
            if each.fileno() >= 0:
                self.loop.remove_reader(each)
                each.close()
        for head in list(self.heads):
            head.end()
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait for connections that were beginning."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPT_AT_ONCE):
            try:
                accepted, _address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in OUT_OF_FILES:
                    self.loop.remove_reader(listening)
                    self.loop.call_later(ACCEPT_PAUSE, self._again, listening)
                    return
                continue  # that connection was gone before it was here
            accepted.setblocking(False)
            _Head(self, accepted)

    def _again(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self.loop.add_reader(listening, self._accept, listening)

    def begin(self, accepted: socket.socket, header: ProxyHeader) -> None:
        """Go on with a connection as if it had just been accepted."""
        task = self.loop.create_task(self._begin(accepted, header))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin(self, accepted: socket.socket, header: ProxyHeader) -> None:
        try:
            await self.loop.connect_accepted_socket(lambda: self._make(header), accepted, **self._tls)
        except OSError:  # a TLS handshake that failed
            accepted.close()
        except BaseException:
            accepted.close()
            raise


class _Head:
    """A connection whose PROXY header has not come yet: reads that and nothing behind it."""

    __slots__ = ("_data", "_server", "_sock", "_timer")

    def __init__(self, server: ProxiedServer, sock: socket.socket) -> None:
        self._server = server
        self._sock = sock
        self._data = b""
        late = f"no PROXY header within {limits.PROXY_TIMEOUT:g} s"
        self._timer = server.loop.call_later(limits.PROXY_TIMEOUT, self._refuse, late)
        server.heads.add(self)
        server.loop.add_reader(sock, self._read)
        self._read()

    def _read(self) -> None:
        try:
            while size := wanted(self._data):
                chunk = self._sock.recv(size)
                if not chunk:
                    self.end()
                    return
                self._data += chunk
            header = parse(self._data)
        except (BlockingIOError, InterruptedError):
            return
        except ProxyError as error:
            self._refuse(str(error))
        except OSError:
            self.end()
        else:
            self._leave()
            self._server.begin(self._sock, header)

    def _refuse(self, why: str) -> None:
        name: object = None
        with contextlib.suppress(OSError):
            name = self._sock.getpeername()
        self._server.refused(f"{socket_name(name)}: {why}; closed")
        self.end()

    def _leave(self) -> None:
        self._timer.cancel()
        self._server.heads.discard(self)
        self._server.loop.remove_reader(self._sock)

    def end(self) -> None:
        """Close."""
        self._leave()
        self._sock.close()
