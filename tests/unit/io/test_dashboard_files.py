"""The files of the dashboard: small, of this host alone, without a way for texts to become HTML."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.io.admin_access import AdminAccess
from mqttree.broker.io.admin_http import Admin, listen
from mqttree.broker.io.dashboard import FILES, HEADERS, read_file
from mqttree.broker.limits import DEFAULTS
from mqttree.broker.node import Node


def test_the_files_are_small_and_ask_no_other_host() -> None:
    texts = {path: read_file(path)[1] for path in FILES}
    assert sum(len(text.encode()) for text in texts.values()) < 400_000
    for path, text in texts.items():
        for word in ("https://", "innerHTML", "outerHTML", "insertAdjacentHTML", "eval("):
            assert word not in text, (path, word)
        assert text.count("http://") == text.count("http://www.w3.org/2000/svg"), path
    folder = Path(__file__).parents[3] / "broker" / "io" / "dashboard"
    served = {name for name, _ in FILES.values()}
    assert {
        path.name for path in folder.iterdir() if path.suffix in (".html", ".css", ".js")
    } == served


async def test_every_file_has_a_policy_and_needs_no_token(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    node = Node(NodeConfig(id=b"\1" * 8, discovery="off"), loop.time(), 1e9, random.Random(1))
    access = AdminAccess(tmp_path / "token")
    admin, socket = Admin(node, access=access, limits=DEFAULTS), listen("127.0.0.1", 0)
    await admin.start(socket)
    try:
        for path, (_, kind) in FILES.items():
            reader, writer = await asyncio.open_connection(*socket.getsockname())
            writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            head, _, body = (await asyncio.wait_for(reader.read(), 60)).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert f"Content-Type: {kind}; charset=utf-8\r\n".encode() in head
            assert HEADERS.encode() in head
            assert body.decode() == read_file(path)[1]
            writer.close()
    finally:
        await admin.close()
