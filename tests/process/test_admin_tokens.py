"""Who may use the admin port, over real connections: tokens, certificates, web pages."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from mqttree.bench.lab.ports import free_ports
from mqttree.broker.base.address import Address
from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.config.options import AdminTlsSettings
from mqttree.broker.io.admin_access import AdminAccess
from mqttree.broker.io.admin_http import Admin, listen
from mqttree.broker.limits import DEFAULTS
from mqttree.broker.node import Node
from tests.kit.brokers import Broker
from tests.kit.command import mqttree
from tests.kit.waiting import PATIENCE, until
from tests.process.certificates import Authority

TOKEN = "0123456789abcdef"


class Port:
    """An admin port in this loop, and what it logged."""

    port: int

    def __init__(self, access: AdminAccess) -> None:
        loop = asyncio.get_running_loop()
        self.lines: list[str] = []
        config = NodeConfig(id=b"\1" * 8, host="127.0.0.1", port=1883, discovery="off")
        self.node = Node(config, loop.time(), 1e9, random.Random(1), log=self.log)
        self.admin = Admin(
            self.node, access=access, drain=lambda values: {"drain": {}}, limits=DEFAULTS
        )

    def log(self, level: str, text: str) -> None:
        if level != "debug":
            self.lines.append(text)

    async def ask(self, line: str, *fields: str, ssl: object = None) -> str:
        """The whole answer to one request."""
        head = "\r\n".join((f"{line} HTTP/1.1", "Host: localhost", "Connection: close", *fields))
        reader, writer = await asyncio.open_connection(
            "127.0.0.1",
            self.port,
            ssl=ssl,  # type: ignore[arg-type]
            server_hostname="localhost" if ssl else None,
        )
        writer.write(head.encode() + b"\r\n\r\n")
        try:
            async with asyncio.timeout(PATIENCE):
                return (await reader.read()).decode()
        finally:
            writer.close()

    async def status(self, line: str, *fields: str, ssl: object = None) -> int:
        return int((await self.ask(line, *fields, ssl=ssl)).split()[1])


@contextlib.asynccontextmanager
async def running(access: AdminAccess) -> AsyncIterator[Port]:
    port, socket = Port(access), listen("127.0.0.1", 0)
    port.port = socket.getsockname()[1]
    await port.admin.start(socket)
    try:
        yield port
    finally:
        await port.admin.close()


def token_file(folder: Path) -> Path:
    path = folder / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return path


async def test_every_path_but_health_needs_the_token(tmp_path: Path) -> None:
    async with running(AdminAccess(token_file(tmp_path))) as port:
        right, wrong = f"Authorization: Bearer {TOKEN}", "Authorization: Bearer 0123456789abcdeX"
        for line in (
            "GET /metrics",
            "GET /api/v1/federation",
            "GET /api/v1/legs",
            "GET /api/v1/traffic",
            "GET /api/v1/placement",
            "POST /api/v1/drain",
            "POST /api/v1/reload",
            "DELETE /api/v1/placement/x",
            "GET /nothing",
        ):
            for fields in ((), (wrong,), ("Authorization:",), ("Cookie: token=" + TOKEN,)):
                answer = await port.ask(line, *fields)
                assert answer.startswith("HTTP/1.1 401 "), (line, fields)
                assert "\r\nWWW-Authenticate: Bearer\r\n" in answer
            assert await port.status(line, right) != 401, line
        assert port.node.counters.admin_unauthorized == 36
        assert port.node.counters.admin_refused >= 36
        assert port.lines.count("admin: 127.0.0.1 sent no token; refused") == 1
        assert await port.status("POST /api/v1/drain", right) == 202


async def test_health_says_yes_or_no_to_everybody_and_more_with_the_token(tmp_path: Path) -> None:
    leg = {
        "name": "secret",
        "state": "up",
        "refused_filters": [],
        "same_broker": [],
        "last_error": "",
    }
    async with running(AdminAccess(token_file(tmp_path))) as port:
        port.admin._legs = lambda: [leg]
        assert (await port.ask("GET /healthz")).endswith("\r\n\r\nok\n")
        assert (await port.ask("GET /readyz")).endswith("\r\n\r\nready\n")
        with_token = await port.ask("GET /healthz", f"Authorization: Bearer {TOKEN}")
        assert with_token.endswith("ok\nleg secret: up\n")
        assert await port.status("POST /healthz") == 401


async def test_only_a_certificate_of_the_authority_opens_a_port_with_mutual_tls(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("localhost")
    access = AdminAccess(None, AdminTlsSettings(certificate, key, authority.ca))
    assert access.secured
    async with running(access) as port:
        mine = authority.client(authority.issue("operator"))
        assert await port.status("POST /api/v1/drain", ssl=mine) == 202
        own = "Origin: https://localhost"
        assert await port.status("GET /api/v1/federation", own, ssl=mine) == 200
        for bad in (authority.client(None), None):
            with contextlib.suppress(OSError):
                assert await port.ask("GET /healthz", ssl=bad) == ""


def refused(*words: str) -> tuple[int, str]:
    """The exit code and the standard error of a command."""
    done = mqttree(*words)
    return done.returncode, done.stderr


def test_a_broker_does_not_start_with_an_open_admin_port() -> None:
    port, admin = free_ports(2)
    listener = ("--listen", f"127.0.0.1:{port}", "--discovery", "off", "--log-level", "error")
    code, text = refused("run", *listener, "--admin", f"0.0.0.0:{admin}")
    assert code == 2
    assert text == (
        "mqttree: admin: 0.0.0.0 can be reached from other machines: it needs admin-token-file, "
        "or admin-tls with a cafile\n"
    )


def test_status_and_drain_bring_the_token(tmp_path: Path) -> None:
    made = tmp_path / "one" / "admin-token"
    flags = ["--discovery", "off", "--admin-token-file", str(made)]
    broker = Broker(tmp_path, "one", flags, cluster="token")
    where = ("--admin", str(Address("127.0.0.1", broker.admin)))
    broker.start()
    try:
        until(lambda: made.exists() and broker.lines("listens on"), "the broker made its token")
        assert refused("status", *where) == (
            1,
            f"mqttree: 127.0.0.1:{broker.admin} wants a token (--admin-token-file)\n",
        )
        other = token_file(tmp_path)
        code, text = refused("status", *where, "--admin-token-file", str(other))
        assert (code, "does not take this token" in text) == (1, True)
        assert refused("status", *where, "--admin-token-file", str(made)) == (0, "")
        # A new token holds after SIGHUP.
        made.write_text(TOKEN)
        os.kill(broker.process.pid, signal.SIGHUP)
        until(lambda: broker.lines("reloaded"), "the broker reloads")
        assert refused("status", *where, "--admin-token-file", str(other)) == (0, "")
        assert refused("drain", *where, "--admin-token-file", str(other)) == (0, "")
    finally:
        broker.end(signal.SIGKILL)
