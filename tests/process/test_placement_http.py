"""The admin port answers where clients should connect, and refuses what it cannot understand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.admin_server import AdminServer
from tests.kit.waiting import PATIENCE


class Server(AdminServer):
    """An admin port that is asked about placements."""

    async def json(self, line: str, body: bytes | None = None) -> tuple[int, Any]:
        status, _, text = await self.answer(line, body=body)
        return status, json.loads(text)

    async def place(self, value: Any) -> tuple[int, Any]:
        return await self.json("POST /api/v1/placement", json.dumps(value).encode())


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server(topic_rates=True) as made:
        yield made


async def test_a_question_is_answered_and_remembered(server: Server) -> None:
    status, body = await server.place({"client": "c/1", "subscribe": ["a/+"], "publish": ["x"]})
    assert status == 200
    assert body.keys() == {
        "version",
        "ttl_s",
        "sessions",
        "internal_per_s",
        "internal_single_per_s",
    }
    [session] = body["sessions"]
    assert session == {
        "broker": "01" * 8,
        "address": "127.0.0.1:1883",
        "client_id": "c/1",
        "subscribe": ["a/+"],
        "publish": ["x"],
    }
    status, told = await server.json("GET /api/v1/placement/c%2F1")
    assert (status, told["sessions"]) == (200, body["sessions"])
    assert (await server.json("DELETE /api/v1/placement/c%2F1"))[0] == 200
    assert (await server.json("GET /api/v1/placement/c%2F1"))[0] == 404
    assert (await server.json("DELETE /api/v1/placement/c%2F1"))[0] == 404


async def test_several_questions_on_one_connection_are_answered_in_order(server: Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for number in range(5):
        body = json.dumps({"client": f"c{number}"}).encode()
        head = f"POST /api/v1/placement HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
    for number in range(5):
        head_of = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
        size = int(head_of.lower().partition(b"content-length: ")[2].split()[0])
        body_of = json.loads(await reader.readexactly(size))
        assert body_of["sessions"][0]["client_id"] == f"c{number}"
    writer.close()


async def test_a_body_may_come_in_pieces(server: Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    body = json.dumps({"client": "c", "subscribe": ["a"]}).encode()
    head = f"POST /api/v1/placement HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    for byte in head.encode() + body:
        writer.write(bytes((byte,)))
        await writer.drain()
    answer = await asyncio.wait_for(reader.readuntil(b"}"), PATIENCE)
    assert answer.startswith(b"HTTP/1.1 200")
    writer.close()


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b"", 400, "JSON"),
        (b"{", 400, "JSON"),
        (b"[" * 50_000, 400, "JSON"),
        (b"[]", 400, "JSON object"),
        (b'{"client": 1}', 400, "client"),
        (b'{"client": "c", "subscribe": ["a/#/b"]}', 400, "no topic filter"),
        (b'{"client": "c", "subscribe": ["\\ud800"]}', 400, "no topic filter"),
        (b'{"client": "c", "publish": ["#"]}', 400, "no topic"),
        (b'{"client": "c", "sessions": 0}', 400, "sessions"),
        (b'{"client": "c", "avoid": ["broker of mine"]}', 400, "no broker id"),
        (b'{"client": "c", "colour": "red"}', 400, "colour"),
        (
            json.dumps({"client": "c", "subscribe": list(map(str, range(10**4)))}).encode(),
            429,
            "1000",
        ),
    ],
)
async def test_a_bad_question_is_refused_in_one_line(
    server: Server, body: bytes, status: int, why: str
) -> None:
    found, answer = await server.json("POST /api/v1/placement", body)
    assert found == status
    assert why in answer["error"]
    assert "\n" not in answer["error"]
    assert (await server.place({"client": "c"}))[0] == 200


async def test_a_client_may_be_asked_for_ten_times_a_second(server: Server) -> None:
    server.admin.api._loop = SimpleNamespace(time=lambda: 5.0)  # type: ignore[assignment]
    found = [(await server.place({"client": "c"}))[0] for _ in range(40)]
    assert set(found) == {200, 429}
    assert found[:10] == [200] * 10
    assert (await server.place({"client": "d"}))[0] == 200


async def test_a_broker_that_cannot_be_reached_may_be_avoided_and_then_there_is_none(
    server: Server,
) -> None:
    assert (await server.place({"client": "c", "avoid": ["ff" * 8]}))[0] == 200
    status, body = await server.place({"client": "c", "avoid": ["01" * 8]})
    assert status == 503
    assert "no broker" in body["error"]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /api/v1/placement HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST /api/v1/placement HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\n", 413),
        (b"POST /api/placement HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", 404),
    ],
)
async def test_what_is_no_such_request_is_refused(
    server: Server, request_: bytes, status: int
) -> None:
    assert (await server.ask(request_)).startswith(b"HTTP/1.1 %d " % status)
    assert (await server.place({"client": "c"}))[0] == 200


async def test_who_still_sends_a_body_that_is_too_large_gets_the_answer(server: Server) -> None:
    """To close at once would reset the connection, and the answer with it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = b"POST /api/v1/placement HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n"
    writer.write(head + bytes(4_000_000))
    await writer.drain()
    writer.write(bytes(4_000_000))
    await writer.drain()
    answer = await asyncio.wait_for(reader.read(), PATIENCE)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"bytes at most" in answer
    writer.close()
    assert (await server.place({"client": "c"}))[0] == 200


async def test_the_traffic_of_a_broker_can_be_read(server: Server) -> None:
    meter = server.node.traffic
    assert meter is not None
    list(meter.rates.take({b"a/b": 100, b"c": 10}, {}, meter.read + 10.0))
    status, body = await server.json("GET /api/v1/traffic?top=1")
    assert status == 200
    assert body["topics"] == [["a/b", 10.0, 0]]
    assert body["rest"]["topics"] == 1
    assert body["seconds"] == 10
    assert body.keys() >= {"boot", "in", "out", "link_in", "link_out", "cpu"}
    for query in ("top=x", "top=-1", "top=1&more=2"):
        assert (await server.json(f"GET /api/v1/traffic?{query}"))[0] == 400


async def test_a_broker_that_does_not_count_topics_says_so() -> None:
    async with Server(topic_rates=False) as server:
        assert (await server.get("/api/v1/traffic"))[0] == 404
        assert (await server.place({"client": "c"}))[0] == 200
