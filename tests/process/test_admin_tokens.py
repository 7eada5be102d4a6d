"""Who may use the admin port, over real connections: tokens, certificates, web pages."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from mqttree.bench.lab.ports import free_ports
from mqttree.broker.base.address import Address
from mqttree.broker.config.options import AdminTlsSettings
from mqttree.broker.io.admin_access import AdminAccess
from tests.kit.admin_server import AdminServer
from tests.kit.brokers import Broker, secret_file
from tests.kit.command import mqttree
from tests.kit.waiting import until
from tests.process.certificates import Authority

TOKEN = "0123456789abcdef"


async def test_every_path_but_health_needs_the_token(tmp_path: Path) -> None:
    async with AdminServer(
        AdminAccess(Path(secret_file(tmp_path, "token", TOKEN))), lambda _: {"drain": {}}
    ) as port:
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
                status, head, _ = await port.answer(line, *fields)
                assert status == 401, (line, fields)
                assert "\r\nWWW-Authenticate: Bearer\r\n" in head
            assert (await port.answer(line, right))[0] != 401, line
        assert port.node.counters.admin_unauthorized == 36
        assert port.node.counters.admin_refused >= 36
        assert port.lines.count("admin: 127.0.0.1 sent no token; refused") == 1
        assert (await port.answer("POST /api/v1/drain", right))[0] == 202


async def test_health_says_yes_or_no_to_everybody_and_more_with_the_token(tmp_path: Path) -> None:
    leg = {
        "name": "secret",
        "state": "up",
        "refused_filters": [],
        "same_broker": [],
        "last_error": "",
    }
    async with AdminServer(
        AdminAccess(Path(secret_file(tmp_path, "token", TOKEN))), lambda _: {"drain": {}}
    ) as port:
        port.admin._legs = lambda: [leg]
        assert await port.get("/healthz") == (200, "ok\n")
        assert await port.get("/readyz") == (200, "ready\n")
        with_token = await port.answer("GET /healthz", f"Authorization: Bearer {TOKEN}")
        assert with_token[2] == "ok\nleg secret: up\n"
        assert (await port.answer("POST /healthz"))[0] == 401


async def test_only_a_certificate_of_the_authority_opens_a_port_with_mutual_tls(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("localhost")
    access = AdminAccess(None, AdminTlsSettings(certificate, key, authority.ca))
    assert access.secured
    async with AdminServer(access, lambda _: {"drain": {}}) as port:
        mine = authority.client(authority.issue("operator"))
        assert (await port.answer("POST /api/v1/drain", ssl=mine))[0] == 202
        own = "Origin: https://localhost"
        assert (await port.answer("GET /api/v1/federation", own, ssl=mine))[0] == 200
        for bad in (authority.client(None), None):
            with contextlib.suppress(OSError):
                assert await port.ask(b"GET /healthz HTTP/1.0\r\n\r\n", bad) == b""


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
            2,
            f"mqttree: 127.0.0.1:{broker.admin} wants a token (--admin-token-file)\n",
        )
        assert "wants a token (--admin-token-file)" in refused("links", *where)[1]
        other = secret_file(tmp_path, "token", TOKEN)
        code, text = refused("status", *where, "--admin-token-file", other)
        assert (code, "does not take this token" in text) == (2, True)
        for command in ("status", "links"):
            assert refused(command, *where, "--admin-token-file", str(made)) == (0, "")
        # A new token holds after SIGHUP.
        made.write_text(TOKEN)
        os.kill(broker.process.pid, signal.SIGHUP)
        until(lambda: broker.lines("reloaded"), "the broker reloads")
        assert refused("status", *where, "--admin-token-file", other) == (0, "")
        assert refused("drain", *where, "--admin-token-file", other) == (0, "")
    finally:
        broker.end(signal.SIGKILL)
