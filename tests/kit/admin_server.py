"""An admin port of a lone node in this loop, and how to ask it, byte by byte if need be."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl as tls
from collections.abc import Callable, Mapping
from typing import Any

from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.io.admin_access import AdminAccess
from mqttree.broker.io.admin_http import Admin, listen
from mqttree.broker.limits import DEFAULTS
from mqttree.broker.node import Node
from tests.kit.waiting import PATIENCE


class AdminServer:
    """The port, open within `async with`; `config` is the node's."""

    def __init__(
        self,
        access: AdminAccess | None = None,
        drain: Callable[[Mapping[str, str]], dict[str, Any]] | None = None,
        **config: Any,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.lines: list[str] = []
        lone: dict[str, Any] = {"discovery": "off", "host": "127.0.0.1", "port": 1883}
        settings = NodeConfig(id=b"\1" * 8, **(lone | config))
        self.node = Node(settings, loop.time(), 1e9, random.Random(1), log=self._log)
        self.admin = Admin(self.node, "1.2.3", access=access, drain=drain, limits=DEFAULTS)
        self.socket = listen("127.0.0.1", 0)
        self.port: int = self.socket.getsockname()[1]

    def _log(self, level: str, text: str) -> None:
        if level != "debug":
            self.lines.append(text)

    async def __aenter__(self) -> AdminServer:
        await self.admin.start(self.socket)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.admin.close()

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection."""
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, request: bytes, ssl: tls.SSLContext | None = None) -> bytes:
        """Send bytes and return all that comes back. Without TLS they are there when the connection
        is accepted, before any timer begins."""
        sock = socket.create_connection(("127.0.0.1", self.port))
        if ssl is None:
            sock.sendall(request)
        reader, writer = await asyncio.open_connection(
            sock=sock, ssl=ssl, server_hostname="localhost" if ssl else None
        )
        if ssl is not None:
            writer.write(request)
        try:
            return await asyncio.wait_for(reader.read(), PATIENCE)
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def answer(
        self, line: str, *fields: str, body: bytes | None = None, ssl: tls.SSLContext | None = None
    ) -> tuple[int, str, str]:
        """The status, the head and the body of the answer to a request line without a version."""
        lines = [f"{line} HTTP/1.1", "Host: localhost", "Connection: close", *fields]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        found = await self.ask("\r\n".join([*lines, "", ""]).encode() + (body or b""), ssl)
        head, _, text = found.decode().partition("\r\n\r\n")
        assert f"Content-Length: {len(text.encode())}\r\n" in f"{head}\r\n"
        return int(head.split()[1]), head, text

    async def get(self, path: str) -> tuple[int, str]:
        """The status and the body of the answer to a GET."""
        status, _, text = await self.answer(f"GET {path}")
        return status, text
