"""Sockets that asyncio does not open: listening ones (plain, Unix, behind a load balancer with
PROXY headers), and those of dials."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
import stat
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from mqttree.broker.base.machine import files_for_clients
from mqttree.broker.io.epoll_transport import EpollStream
from mqttree.broker.io.proxy_protocol import ProxyError, ProxyHeader, parse, wanted
from mqttree.broker.io.stream_protocol import socket_name

if TYPE_CHECKING:
    from mqttree.broker.io.driver import Driver

ACCEPT_AT_ONCE = 100
"""connections accepted in one turn of the loop, so that open ones are read, too."""

ACCEPT_PAUSE = 1.0
"""s until the next attempt to accept when the system has no more file descriptors. Connections wait
in the kernel meanwhile."""

OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

SAID_AGAIN = 60.0
"""s between two log lines about that."""

NOT_HERE = (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.EADDRNOTAVAIL)
"""Errors of the system when IPv6 is switched off; "localhost" and "*" have addresses of both
families all the same."""

log = logging.getLogger("mqttree")


class UnixSocket:
    """A listening Unix socket, and its file."""

    def __init__(self, path: str, mode: int, backlog: int) -> None:
        """Bind to `path` with the permissions `mode` and listen with a queue of `backlog`. The file
        of a broker that is gone is replaced; that of a running broker, or a file that is not a
        socket, is not.

        Raises OSError.
        """
        self.path = path
        remove_stale(path)
        self.sock = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        # No process can connect before the permissions are set.
        before = os.umask(0o777)
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
        """Remove the file, unless it belongs to another process by now."""
        with contextlib.suppress(OSError):
            found = os.stat(self.path)
            if (found.st_dev, found.st_ino) == self._identity:
                os.unlink(self.path)


def remove_stale(path: str) -> None:
    """Remove the file of a Unix socket on which no process listens any more. Raises FileExistsError
    if a process listens or the file is not a socket, OSError if it cannot be removed."""
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
        # Its queue is full, so it lives.
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, "address in use")


async def resolve(host: str | None, port: int, *, passive: bool = False) -> list[Any]:
    """Return what `getaddrinfo` returns for `host` and the TCP port `port`; `passive`: for a
    listener.

    Addresses are parsed here, as uvloop's own `getaddrinfo` drops the interface in fe80::1%eth0.

    Raises OSError, ValueError (UnicodeError: no name can be like this) and OverflowError (no port).
    """
    if not 0 <= port <= 65535:
        # Of larger ones getaddrinfo takes the remainder.
        raise OverflowError("port must be 0-65535")
    flags = socket.AI_PASSIVE if passive else 0
    # For a text Python would load its tables of international names first (1 ms).
    numeric = host.encode() if host is not None and host.isascii() else host
    try:
        return socket.getaddrinfo(
            numeric, port, type=socket.SOCK_STREAM, flags=flags | socket.AI_NUMERICHOST
        )
    except socket.gaierror:
        loop = asyncio.get_running_loop()
        return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)


def bind_all(addresses: list[Any], backlog: int) -> list[socket.socket]:
    """Listen on each address (as `resolve` returns them) with a queue of `backlog`, as asyncio
    does: IPv6 sockets for IPv6 only. Address families that the system does not have are left out,
    if others are left. Raises OSError."""
    found: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, _kind, _protocol, _name, address in dict.fromkeys(addresses):
            try:
                sock = socket.create_server(address, family=family, backlog=backlog)
            except OSError as error:
                if error.errno not in NOT_HERE:
                    raise
                missing = missing or error
            else:
                sock.setblocking(False)
                found.append(sock)
        if missing is not None and not found:
            raise missing
    except BaseException:
        for sock in found:
            sock.close()
        raise
    return found


async def dial(host: str, port: int) -> tuple[socket.socket, str]:
    """Connect to the first address of a TCP port that takes us; return the socket, which does not
    block, and HOST:PORT.

    Raises OSError (what all addresses said, if they did not say the same), ValueError and
    OverflowError as `resolve`.
    """
    errors: list[OSError] = []
    for family, kind, protocol, _name, address in await resolve(host, port):
        try:
            sock = socket.socket(
                family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol
            )
        except OSError as error:
            errors.append(error)
            continue
        try:
            await _connect(sock, address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            sock.close()
            errors.append(error)
        except BaseException:
            sock.close()
            raise
        else:
            return sock, socket_name(address)
    if len({str(error) for error in errors}) == 1:
        raise errors[0]
    raise OSError("; ".join(error.strerror or str(error) for error in errors) or "no address")


async def _connect(sock: socket.socket, address: Any) -> None:
    try:
        sock.connect(address)
        return
    except (BlockingIOError, InterruptedError):
        pass
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.add_writer(sock, _set, done)
    try:
        await done
    finally:
        loop.remove_writer(sock)
    if code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(code, os.strerror(code))


def _set(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


class Waiting(Protocol):
    """A connection that waits for a place."""

    def admitted(self) -> None:
        """Begin: there is a place."""

    def abort(self) -> None:
        """Close: there will be none."""


class Places(Protocol):
    """The places of a listener (`listener.Listener`)."""

    def enter(self, protocol: Waiting) -> bool | None:
        """Take a place: True; None: none is free, `protocol.admitted` is called when one is; False:
        too many wait."""

    def leave(self, protocol: Waiting) -> None:
        """Give a place back to the one that waited longest, or stop waiting for one."""


class Acceptor:
    """Accepts connections in place of a listener's asyncio.Server: all that wait, in one turn of
    the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sockets: list[socket.socket]) -> None:
        """`sockets` listen already, and do not block."""
        self.loop = loop
        self.sockets = tuple(sockets)
        self._said = -SAID_AGAIN
        self._most = files_for_clients()
        self.on_crowded: Callable[[str], None] | None = None
        """Called with the address of each connection that is closed because the files that are left
        are not for clients."""
        for each in self.sockets:
            loop.add_reader(each, self._accept, each)

    def close(self) -> None:
        """Accept no more connections and close the sockets; those that were accepted go on."""
        for each in self.sockets:
            if each.fileno() >= 0:
                self.loop.remove_reader(each)
                each.close()

    async def wait_closed(self) -> None:
        """Wait for connections that are beginning."""

    def accepted(self, number: int, address: object) -> None:
        """Take a connection: `number` is its file, which does not block, `address` the peer's.
        Raises NotImplementedError: subclasses say what to do with it."""
        raise NotImplementedError

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPT_AT_ONCE):
            try:
                number, address = listening._accept()  # type: ignore[attr-defined]  # accept() makes an object that is not needed
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                if error.errno in OUT_OF_FILES:
                    self._pause(listening, error)
                    break
                # The connection was closed before it could be accepted.
                continue
            # The system gives the lowest free number.
            if number >= self._most:
                os.close(number)
                if self.on_crowded is not None:
                    self.on_crowded(socket_name(address))
                continue
            os.set_blocking(number, False)
            self.accepted(number, address)

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        self.loop.remove_reader(listening)
        self.loop.call_later(ACCEPT_PAUSE, self._again, listening)
        now = time.monotonic()
        if now - self._said >= SAID_AGAIN:
            self._said = now
            log.warning(
                "connections wait at %s: %s", socket_name(listening.getsockname()), error.strerror
            )

    def _again(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self.loop.add_reader(listening, self._accept, listening)


class StreamServer(Acceptor):
    """Plain TCP or a Unix socket: connections go to the driver's poller."""

    def __init__(
        self, sockets: list[socket.socket], driver: Callable[[], Driver], places: Places, name: str
    ) -> None:
        """`sockets`: listening. `driver`: returns the driver, which a restart replaces. `places`:
        the listener's limit of connections. `name`: the listener's."""
        for each in sockets:
            if each.family != socket.AF_UNIX:
                # Accepted connections inherit this.
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().__init__(driver().loop, sockets)
        self._driver = driver
        self._places = places
        self._name = name

    def _accept(self, listening: socket.socket) -> None:
        super()._accept(listening)
        self._driver().run()

    def accepted(self, number: int, address: object) -> None:
        """Serve the connection, have it wait for a place, or close it."""
        places = self._places
        poller = self._driver().poller
        stream = EpollStream(poller, number, socket_name(address), self._name, places.leave)
        admitted = places.enter(stream)
        if admitted:
            poller.admit(stream)
        elif admitted is None:
            stream.park()
        else:
            os.close(number)


Make = Callable[[ProxyHeader | None], asyncio.Protocol]
"""Makes the protocol of a connection: after its PROXY header has come, or None."""


class LoopServer(Acceptor):
    """Gives connections to the event loop's own transports, after a TLS handshake if there is a
    context. It reports why a handshake failed, which asyncio's servers do not."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: list[socket.socket],
        make: Make,
        *,
        context: ssl.SSLContext | None,
        tls_timeout: float,
        failed: Callable[[str, OSError], None],
    ) -> None:
        """`loop`: the event loop. `sockets`: listening. `make`: returns the protocol of a
        connection, given its PROXY header. `context`: of TLS, None for plain connections.
        `tls_timeout`: s for a handshake. `failed`: called with the peer's address and the error of
        a handshake."""
        for each in sockets:
            if each.family != socket.AF_UNIX:
                # What it accepts inherits it.
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._make = make
        self._tls: dict[str, Any] = (
            {} if context is None else {"ssl": context, "ssl_handshake_timeout": tls_timeout}
        )
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()
        super().__init__(loop, sockets)

    def close(self) -> None:
        """Accept no more, and close connections that are beginning."""
        super().close()
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait for connections that are beginning."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def accepted(self, number: int, address: object) -> None:
        """Serve the connection with the file descriptor `number`, whose peer has this `address`."""
        self.begin(socket.socket(fileno=number), None, socket_name(address))

    def begin(self, accepted: socket.socket, header: ProxyHeader | None, peer: str) -> None:
        """Serve the socket `accepted` by the event loop's transport. `header`: its PROXY header,
        None without one; `peer`: its address."""
        task = self.loop.create_task(self._begin(accepted, header, peer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin(self, accepted: socket.socket, header: ProxyHeader | None, peer: str) -> None:
        try:
            await self.loop.connect_accepted_socket(
                lambda: self._make(header), accepted, **self._tls
            )
        except OSError as error:
            accepted.close()
            if self._tls:
                self._failed(peer, error)
        except BaseException:
            accepted.close()
            raise


class ProxiedServer(LoopServer):
    """Reads the PROXY header of each connection before anything else, TLS included."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: list[socket.socket],
        make: Make,
        *,
        context: ssl.SSLContext | None,
        tls_timeout: float,
        header_timeout: float,
        failed: Callable[[str, OSError], None],
        refused: Callable[[str], None],
    ) -> None:
        """`loop`, `sockets`, `make`, `context`, `tls_timeout`, `failed`: as for `LoopServer`.
        `header_timeout`: s from accept to the end of the header; `refused`: called with a line
        about each wrong or missing one."""
        self.header_timeout = header_timeout
        self.refused = refused
        self.heads: set[_Head] = set()
        super().__init__(
            loop, sockets, make, context=context, tls_timeout=tls_timeout, failed=failed
        )

    def close(self) -> None:
        """Accept no more, and close connections whose header has not come."""
        super().close()
        for head in list(self.heads):
            head.end()

    def accepted(self, number: int, address: object) -> None:
        """Read the header of the connection."""
        _Head(self, socket.socket(fileno=number), socket_name(address))


class _Head:
    """A connection whose PROXY header has not come yet: reads the header and no byte behind it."""

    __slots__ = ("_data", "_peer", "_server", "_sock", "_timer")

    def __init__(self, server: ProxiedServer, sock: socket.socket, peer: str) -> None:
        self._server = server
        self._sock = sock
        self._peer = peer
        self._data = b""
        late = f"no PROXY header within {server.header_timeout:g} s"
        self._timer = server.loop.call_later(server.header_timeout, self._refuse, late)
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
            self._server.begin(self._sock, header, header.peer or self._peer)

    def _refuse(self, why: str) -> None:
        self._server.refused(f"{self._peer}: {why}; closed")
        self.end()

    def _leave(self) -> None:
        self._timer.cancel()
        self._server.heads.discard(self)
        self._server.loop.remove_reader(self._sock)

    def end(self) -> None:
        """Close the connection, and forget its timer."""
        self._leave()
        self._sock.close()
