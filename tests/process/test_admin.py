"""The admin port: what it says, and what it makes of requests that are none."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.cli.status import render
from mqttree.broker.cluster.drain import Drain, DrainOptions
from mqttree.broker.core.ports import NullJournal
from mqttree.broker.io.admin_http import AdminProtocol, listen, same_machine
from mqttree.broker.io.http_request import parse_request
from mqttree.broker.io.readiness import Readiness
from mqttree.broker.limits import Limits
from mqttree.broker.persistence.journal import Journal
from tests.kit.admin_server import AdminServer
from tests.kit.core import needs_python
from tests.kit.waiting import PATIENCE

SHAPE = {
    "id",
    "name",
    "listen",
    "cluster",
    "state",
    "capability",
    "root",
    "root_address",
    "path_cost_ms",
    "parent",
    "epoch",
    "routing",
    "links",
    "counters",
}


@pytest.fixture
async def server() -> AsyncIterator[AdminServer]:
    async with AdminServer(name='a "b"\\') as made:
        yield made


async def test_the_health_check_answers_ok(server: AdminServer) -> None:
    assert await server.get("/healthz") == (200, "ok\n")
    assert await server.get("/healthz?x=1") == (200, "ok\n")


async def test_the_broker_is_ready_only_when_clients_should_come(server: AdminServer) -> None:
    """Alive is not ready: not without the journal, before the brokers that it waits for were there,
    while it drains."""
    node = server.admin.node
    assert await server.get("/readyz") == (200, "ready\n")
    journal = Journal(node, node.cluster, node.absent_members, sync=False)
    node.attach_journal(journal)
    journal.frames.healthy = False
    assert await server.get("/readyz") == (503, "the journal is not written\n")
    node.journal = NullJournal()
    server.admin.readiness = Readiness(node, 2)
    assert await server.get("/readyz") == (503, "sees 1 of 2 brokers\n")
    directory = node.cluster.directory.database
    needs_python("replaces a method")
    directory.reachable, reachable = lambda: [directory.own], directory.reachable  # type: ignore[method-assign]
    assert await server.get("/readyz") == (200, "ready\n")
    directory.reachable = reachable  # type: ignore[method-assign]
    assert await server.get("/readyz") == (200, "ready\n"), "once is enough: survivors serve"
    Drain(node, DrainOptions(), 0.0)
    assert await server.get("/readyz") == (503, "draining\n")
    assert await server.get("/healthz") == (200, "ok\n")
    assert json.loads((await server.get("/api/v1/federation"))[1])["ready"] is False


async def test_the_federation_state_has_all_keys(server: AdminServer) -> None:
    status, body = await server.get("/api/v1/federation")
    state = json.loads(body)
    assert status == 200
    assert state.keys() >= SHAPE
    assert state["id"] == state["root"] == "01" * 8
    assert state["parent"] is None
    assert state["counters"].keys() >= {
        "published",
        "delivered",
        "forwarded",
        "link_bytes_control",
        "link_bytes_data",
    }
    assert "this broker is alone" in render(state)


async def test_each_metric_has_a_help_line_a_type_and_a_valid_name(server: AdminServer) -> None:
    status, body = await server.get("/metrics")
    assert status == 200
    typed = re.findall(r"^# TYPE (\w+) (gauge|counter)$", body, re.M)
    assert len(typed) == len(dict(typed)) == len(re.findall(r"^# HELP \w+ .+$", body, re.M))
    assert all(
        name.startswith("mqttree_") and (kind == "counter") == name.endswith("_total")
        for name, kind in typed
    )
    for line in body.splitlines():
        assert line.startswith("# ") or re.fullmatch(
            r'(mqttree_\w+)(\{(\w+="([^"\\]|\\.)*",?)+\})? -?[\d.e+-]+', line
        ), line
    samples = [line.rpartition(" ")[0] for line in body.splitlines() if line[0] != "#"]
    assert len(samples) == len(set(samples))
    families = [name for name, _ in groupby(sample.partition("{")[0] for sample in samples)]
    assert families == [name for name, _ in typed if name in families], "each below its type"
    assert 'name="a \\"b\\"\\\\"' in body
    assert body.endswith("\n")
    gauges = {name for name, kind in typed if kind == "gauge"}
    assert gauges >= {
        f"mqttree_{name}"
        for name in ("connections", "sessions", "subscriptions", "retained", "links_up")
    }


async def test_only_a_plain_post_of_a_known_path_is_taken(server: AdminServer) -> None:
    """No broker drains here; and neither bodies nor web pages get that far."""
    for request, status in (
        (b"POST /api/v1/drain HTTP/1.0\r\n\r\n", 404),
        (b"POST /api/v1/reload HTTP/1.0\r\nContent-Length: 0\r\n\r\n", 404),
        (b"POST /api/v1/drain HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", 400),
        (b"POST /api/v1/drain HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /api/v1/drain HTTP/1.1\r\norigin: null\r\n\r\n", 403),
        (b"POST /healthz HTTP/1.1\r\n\r\n", 405),
        (b"PUT /api/v1/drain HTTP/1.1\r\n\r\n", 405),
    ):
        assert (await server.ask(request)).split()[1] == str(status).encode(), request


@pytest.mark.parametrize(
    ("here", "there", "same"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("::1", "::1", True),
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", True),
        ("10.0.0.1", "localhost.example", False),
    ],
)
def test_same_machine(here: str, there: str, same: bool) -> None:
    assert same_machine(here, there) is same


async def test_unknown_paths_are_not_found(server: AdminServer) -> None:
    assert (await server.get("/"))[0] == 200
    assert (await server.get("/nothing"))[0] == 404
    assert (await server.get("/healthz/"))[0] == 404
    said = '{"error": "not found; /api/v1/openapi.json has all paths"}\n'
    assert await server.get("/api/legs/x") == (404, said)


async def test_a_connection_serves_many_requests_one_after_the_other_and_at_once(
    server: AdminServer,
) -> None:
    reader, writer = await server.open()
    for _ in range(3):
        writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"ok\n"), PATIENCE)
        assert b"Connection: keep-alive" in head
    writer.write(
        b"GET /healthz HTTP/1.1\r\n\r\n" * 50
        + b"GET /nothing HTTP/1.0\r\n\r\n"
        + b"GET /healthz HTTP/1.1\r\n\r\n"
    )
    text = await asyncio.wait_for(reader.read(), PATIENCE)
    assert text.count(b"200 OK") == 50
    assert text.count(b"404") == 1
    writer.close()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /healthz HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"HEAD / HTTP/1.1\r\n\r\n", 405),
        (b"CONNECT a:1 HTTP/1.1\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"GET /\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
        (b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00\r\n\r\n", 400),
        (b"\x16\x03\x01\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 9000 + b"\r\n\r\n", 431),
        (b"A" * 20_000, 431),
    ],
)
async def test_garbage_is_refused_and_the_connection_closed(
    server: AdminServer, request_bytes: bytes, status: int
) -> None:
    found = await server.ask(request_bytes)
    # A reset may overtake the answer to a flood.
    assert found == b"" or found.startswith(f"HTTP/1.1 {status} ".encode())
    assert len(request_bytes) > 8192 or found
    assert (await server.get("/healthz"))[0] == 200


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (b"Content-Length: 0\r\nContent-Length: 28", 400),
        (b"x: y\r\n Content-Length: 28", 400),
        (b"Host: evil.example", 400),
        (b"x: y\r\n" * 2000 + b"x: y", 431),
        (b"x: y\n" * 4000 + b"x: y", 400),
    ],
)
@pytest.mark.parametrize("method", [b"GET", b"POST"])
async def test_no_second_request_is_read_behind_a_refused_one(
    server: AdminServer, method: bytes, fields: bytes, status: int
) -> None:
    """One answer, which closes the connection, to what may be one request or two."""
    found = await server.ask(
        method + b" /api/v1/drain HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n\r\n"
        b"GET /healthz HTTP/1.1\r\n\r\n"
    )
    # A reset may overtake the answer to a flood.
    assert found.startswith(f"HTTP/1.1 {status} ".encode()) or (found == b"" and len(fields) > 8192)
    assert found.count(b"HTTP/1.1 ") <= 1
    assert server.node.counters.admin_refused == 1


async def test_slow_and_idle_connections_are_ended(server: AdminServer) -> None:
    server.admin.limits = Limits(admin_header_timeout_s=0.05, admin_idle_timeout_s=0.05)
    assert (await server.ask(b"GET / HT")).startswith(b"HTTP/1.1 408 ")
    assert await server.ask(b"") == b""
    assert (await server.ask(b"GET /healthz HTTP/1.1\r\n\r\n")).endswith(b"ok\n")


async def test_a_header_that_comes_too_slowly_ends_the_connection(server: AdminServer) -> None:
    server.admin.limits = Limits(admin_header_timeout_s=0.2)
    reader, writer = await server.open()
    # A byte too late is answered by a reset, which read() would raise.
    answer = asyncio.ensure_future(reader.readuntil(b"\r\n"))
    for _ in range(1000):
        writer.write(b"G")
        await asyncio.sleep(0.01)
        if answer.done():
            break
    assert (await answer).startswith(b"HTTP/1.1 408 ")
    writer.close()


async def test_the_number_of_connections_is_bounded(server: AdminServer) -> None:
    """One more ends an idle one, else the oldest of the host that has most."""
    server.admin.limits = Limits(admin_connections=3)
    busy = [await server.open() for _ in range(3)]
    for _, writer in busy[:2]:
        writer.write(b"GET")
    while sum(not connection.idle for connection in server.admin.connections) < 2:
        await asyncio.sleep(0.01)
    assert (await server.get("/healthz"))[0] == 200  # the idle one has made room
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(busy[2][0].read(), PATIENCE) == b""
    busy[1][1].write(b" /healthz HTTP/1.1\r\n\r\n")
    await asyncio.wait_for(busy[1][0].readuntil(b"ok\n"), PATIENCE)
    for _, writer in busy:
        writer.close()


async def test_a_request_for_another_host_name_is_refused(server: AdminServer) -> None:
    for name in ("evil.example", "127.0.0.1.evil.example", "evil.example:8080", "evil.example."):
        for request in (
            f"GET / HTTP/1.1\r\nHost: {name}\r\n\r\n",
            f"GET http://{name}/ HTTP/1.1\r\nHost: x\r\n\r\n",
        ):
            assert (await server.ask(request.encode())).startswith(b"HTTP/1.1 421 "), request
        assert (
            await server.ask(f"POST /api/v1/drain HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
        ).startswith(b"HTTP/1.1 421 ")
    assert server.node.counters.admin_misdirected == 12
    server.admin.hosts = frozenset(("broker.example",))
    for name in ("localhost", "127.0.0.1:8080", "[::1]:8080", "broker1:8080", "Broker.Example:80"):
        request = f"GET /healthz HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
        assert (await server.ask(request.encode())).startswith(b"HTTP/1.1 200 "), name


async def test_a_peer_that_does_not_read_costs_no_memory(server: AdminServer) -> None:
    _, writer = await server.open()
    writer.transport.pause_reading()
    request = b"GET /metrics HTTP/1.1\r\n\r\n"
    for _ in range(300):
        writer.write(request * 100)
        await asyncio.sleep(0)
        if writer.transport.get_write_buffer_size() > 100_000:
            break
    connection: AdminProtocol = next(iter(server.admin.connections))
    assert connection.transport.get_write_buffer_size() < 1_000_000
    assert (await server.get("/healthz"))[0] == 200
    writer.transport.abort()


async def test_a_port_in_use_is_reported(server: AdminServer) -> None:
    with pytest.raises(OSError, match="in use"):
        listen("127.0.0.1", server.port)


@given(st.binary(max_size=200))
def test_any_head_is_a_request_or_refused(head: bytes) -> None:
    found = parse_request(head)
    assert found in (400, 405, 505) or (isinstance(found, tuple) and found[1].startswith("/"))
