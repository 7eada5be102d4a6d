"""Connections of load clients: TCP as it is, TLS, or WebSocket. What they carry is MQTT."""

from __future__ import annotations

import select
import socket
import ssl
import struct

from mqttree.bench.load import packets
from mqttree.bench.load.mixture import MixSpec
from mqttree.bench.load.outcome import LoadError

_READ_BYTES = 1 << 16
_BINARY = 0x82
_CLOSE = 0x88
_TIMEOUT = 20.0
"""s for each step of a connection that is made."""


class Channel:
    """A connected client's socket; what it does not take at once waits and goes out when there is
    room."""

    def __init__(
        self, sock: socket.socket, epoll: select.epoll, events: int = select.EPOLLIN
    ) -> None:
        """Own `sock`; `epoll` is told to watch it for these `events`."""
        sock.setblocking(False)
        epoll.register(sock.fileno(), events)
        self.sock, self._epoll = sock, epoll
        self._waiting = bytearray()

    @property
    def blocked(self) -> int:
        """How many bytes wait to be written."""
        return len(self._waiting)

    def fileno(self) -> int:
        """Return the socket's file descriptor, for epoll."""
        return self.sock.fileno()

    def send(self, data: bytes | bytearray) -> None:
        """Send, or queue behind what is queued. Raises LoadError when the connection is lost."""
        if self._waiting:
            self._waiting += data
            return
        sent = self._write(data)
        if sent < len(data):
            self._waiting += memoryview(data)[sent:]
            self._epoll.modify(self.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def flush(self) -> None:
        """Send queued bytes, as far as there is room. Raises LoadError."""
        if self._waiting:
            del self._waiting[: self._write(self._waiting)]
            if not self._waiting:
                self._epoll.modify(self.sock.fileno(), select.EPOLLIN)

    def _write(self, data: bytes | bytearray) -> int:
        try:
            return self.sock.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return 0
        except OSError as error:
            raise LoadError(f"connection lost while sending: {error}") from error

    def receive(self) -> bytes:
        """Return what has arrived; b"" if nothing has. Raises LoadError when the connection is
        lost."""
        try:
            data = self.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise LoadError(f"connection lost while receiving: {error}") from error
        if not data:
            raise LoadError("the broker closed a connection")
        return data

    def close(self) -> None:
        """Close it."""
        self.sock.close()


class TlsChannel(Channel):
    """Through TLS: what was decrypted already, epoll does not tell."""

    def receive(self) -> bytes:
        """Return all that can be decrypted. Raises LoadError when the connection is lost."""
        parts = []
        try:
            while True:
                data = self.sock.recv(_READ_BYTES)
                if not data:
                    raise LoadError("the broker closed a connection")
                parts.append(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return b"".join(parts)
        except OSError as error:
            raise LoadError(f"connection lost while receiving: {error}") from error


class WebSocketChannel(Channel):
    """Through WebSocket (RFC 6455): one binary frame for each write."""

    def __init__(self, sock: socket.socket, epoll: select.epoll) -> None:
        super().__init__(sock, epoll)
        self._rest = b""

    def send(self, data: bytes | bytearray) -> None:
        """Send as a frame. Raises LoadError when the connection is lost."""
        super().send(frame(data))

    def receive(self) -> bytes:
        """Return what the frames have that arrived. Raises LoadError when the connection is
        lost."""
        payload, self._rest = unframed(self._rest + super().receive())
        return payload


def frame(data: bytes | bytearray) -> bytes:
    """Return the client's frame around `data`. Its mask is zero, which leaves the data as they
    are."""
    size = len(data)
    if size < 126:
        head = struct.pack("!BB", _BINARY, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", _BINARY, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", _BINARY, 0x80 | 127, size)
    return head + bytes(4) + data


def unframed(data: bytes) -> tuple[bytes, bytes]:
    """Return (the payload of all whole frames of a server in `data`, the rest). Raises LoadError
    for a close frame."""
    parts, pos, end = [], 0, len(data)
    while end - pos >= 2:
        if data[pos] == _CLOSE:
            raise LoadError("the broker closed a WebSocket")
        size, start = data[pos + 1] & 0x7F, pos + 2
        if size > 125:
            start += 2 if size == 126 else 8
            size = int.from_bytes(data[pos + 2 : start], "big")
        if start + size > end:
            break
        if data[pos] & 0x0F in (0, 1, 2):
            parts.append(data[start : start + size])
        pos = start + size
    return b"".join(parts), data[pos:]


def dial(
    spec: MixSpec, client_id: str, port: int, epoll: select.epoll, timeout: float = _TIMEOUT
) -> Channel:
    """Connect as `client_id` to `port` on the host of `spec`, by its transport, and have CONNECT
    accepted within `timeout` (s, for each step); `epoll` watches the channel from then on. Raises
    LoadError when that fails."""
    try:
        sock = socket.create_connection((spec.host, port), timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        kind: type[Channel] = Channel
        if spec.transport == "tls":
            sock, kind = _secured(sock, spec), TlsChannel
        elif spec.transport == "ws":
            _upgrade(sock, f"{spec.host}:{port}")
            kind = WebSocketChannel
    except OSError as error:
        raise LoadError(f"cannot connect to {spec.host}:{port}: {error}") from error
    channel = kind(sock, epoll)
    try:
        channel.send(packets.connect(client_id, spec.version, clean=spec.clean))
        body = answer(channel, packets.CONNACK, timeout)
        if len(body) < 2 or body[1]:
            raise LoadError(f"{spec.host}:{port} refused the connection with {body.hex()}")
    except LoadError:
        channel.close()
        raise
    return channel


def subscribe(channel: Channel, topic_filter: str, spec: MixSpec) -> None:
    """Subscribe on `channel` to `topic_filter` at the QoS of `spec`. Raises LoadError unless
    exactly this is granted."""
    channel.send(packets.subscribe(topic_filter, spec.qos, spec.version))
    granted = answer(channel, packets.SUBACK)[-1]
    if granted != spec.qos:
        raise LoadError(f"subscription to {topic_filter} was granted 0x{granted:02x}")


def answer(channel: Channel, kind: int, timeout: float = _TIMEOUT) -> bytes:
    """Wait for the one packet that the broker sends on `channel`, of this `kind`, and return its
    body. Raises LoadError for another one, and when none comes within `timeout` (s)."""
    data = b""
    readable = select.poll()  # select.select takes no file above 1,023
    readable.register(channel.fileno(), select.POLLIN)
    while True:
        head = packets.header(data, 0, len(data)) if data else None
        if head is not None and len(data) >= head[1]:
            break
        if not readable.poll(timeout * 1000):
            raise LoadError(f"no answer of packet type {kind} within {timeout:g} s")
        data += channel.receive()
    if data[0] >> 4 != kind or len(data) != head[1]:
        raise LoadError(f"packet type {data[0] >> 4} where {kind} was expected")
    return data[head[0] :]


def _secured(sock: socket.socket, spec: MixSpec) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=spec.trusted or None)
    return context.wrap_socket(sock, server_hostname=spec.host)


def _upgrade(sock: socket.socket, host: str) -> None:
    """Ask for a WebSocket and read the answer. Raises LoadError when there is none, OSError."""
    key = "bXF0dHJlZS1iZW5jaG1hcg=="
    sock.sendall(
        (
            f"GET /mqtt HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Protocol: mqtt\r\n\r\n"
        ).encode()
    )
    said = b""
    while not said.endswith(b"\r\n\r\n"):
        byte = sock.recv(1)
        if not byte:
            break
        said += byte
    if not said.startswith(b"HTTP/1.1 101"):
        raise LoadError(f"no WebSocket: {said.decode(errors='replace').splitlines()[:1]}")
