"""What foreign clients subscribe to, read over HTTP, and one line for all that can go wrong."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from mqttree.broker.config.broker_url import HttpUrl
from mqttree.broker.io.interest_driver import InterestDriver
from mqttree.broker.io.subscription_reader import ReadBounds, ReadError, SubscriptionReader
from mqttree.broker.leg.interest import Source
from mqttree.broker.leg.rules import Rules, parse_rule
from tests.kit.subscription_server import PASSWORD, USER, SubscriptionServer


@pytest.fixture
def server() -> Iterator[SubscriptionServer]:
    with SubscriptionServer(page=2) as found:
        yield found


def reader(
    port: int,
    source: Source = Source.EMQX,
    rule: str = "# out",
    password: bytes = PASSWORD.encode(),
    **bounds: Any,
) -> SubscriptionReader:
    url = HttpUrl("127.0.0.1", port, False, USER)
    rules = Rules([parse_rule(rule)])
    own = ("mqttree-n", "mqttree-n-sync")
    return SubscriptionReader(source, url, None, lambda: password, own, rules, ReadBounds(**bounds))


@pytest.mark.parametrize("source", [Source.EMQX, Source.NANOMQ])
def test_subscriptions_of_foreign_clients_are_read(
    server: SubscriptionServer, source: Source
) -> None:
    server.subscriptions = [
        ("one", "a/+"),
        ("mqttree-n", "#"),
        ("mqttree-n-sync", "#"),
        ("two", "$share/g/b"),
        ("three", "a/+"),
    ]
    assert reader(server.port, source).read() == {"a/+", "$share/g/b"}
    pages = [f"/api/v5/subscriptions?page={page}&limit=1000" for page in (1, 2, 3)]
    assert server.asked == (pages if source is Source.EMQX else ["/api/v4/subscriptions"])


def test_filters_that_no_rule_lets_out_are_left_out(server: SubscriptionServer) -> None:
    server.subscriptions = [("c", f) for f in ("a/1", "b", "$SYS/#", "+/+")]
    found = reader(server.port, rule="a/# out")
    assert found.read() == found.read() == {"a/1", "+/+"}


def test_an_answer_without_a_count_of_pages_ends_with_a_short_page(
    server: SubscriptionServer,
) -> None:
    """So does that of EMQX where sessions are durable."""
    server.body = json.dumps({"data": [{"topic": "a"}], "meta": {"page": 1}}).encode()
    assert reader(server.port).read() == {"a"}


def test_no_more_is_read_than_counts(server: SubscriptionServer) -> None:
    server.subscriptions = [("c", str(number)) for number in range(20)]
    assert len(reader(server.port, filters=3).read()) == 4
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"<html>", "is no JSON"),
        (b"\xff\xfe", "is no JSON"),
        (b"[" * 100_000, "recursion"),
        (b"[]", "is no JSON object"),
        (b"{}", "has no list of subscriptions"),
        (b'{"data": [1]}', "has no list of subscriptions"),
        (b'{"data": [{"topic": 7}]}', "a subscription without a topic"),
        (b'{"data": [{"topic": "a/#/b"}]}', "is no topic filter"),
        (b" " * 2000, "is larger than 1000 bytes"),
    ],
)
def test_an_answer_that_cannot_be_used_is_one_line(
    server: SubscriptionServer, body: bytes, why: str
) -> None:
    bounds = {"answer": 1000} if body.startswith(b" ") else {}
    server.body = body
    with pytest.raises(ReadError) as caught:
        reader(server.port, **bounds).read()
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_all_pages_together_are_bounded(server: SubscriptionServer) -> None:
    server.subscriptions = [("c", f"{number:0100}") for number in range(20)]
    with pytest.raises(ReadError, match="is larger than"):
        reader(server.port, size=1000).read()
    with pytest.raises(ReadError, match="more than 3 pages"):
        reader(server.port, pages=3).read()


def test_a_code_of_nanomq_is_a_failure(server: SubscriptionServer) -> None:
    server.body = b'{"code": 103}'
    with pytest.raises(ReadError, match="it answers with code '103'"):
        reader(server.port, Source.NANOMQ).read()


def test_a_wrong_password_and_a_redirection_are_failures(server: SubscriptionServer) -> None:
    with pytest.raises(ReadError, match="HTTP 401"):
        reader(server.port, password=b"wrong").read()
    server.status, server.headers = 302, {"Location": "http://192.0.2.1/"}
    with pytest.raises(ReadError, match="HTTP 302"):
        reader(server.port).read()


def test_a_server_that_is_gone_or_silent_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ReadError, match="timed out"):
            reader(port, answer_time=0.05).read()
    with pytest.raises(ReadError, match="refused"):
        reader(port).read()


def test_a_password_that_cannot_be_read_is_a_failure(server: SubscriptionServer) -> None:
    def fails() -> bytes:
        raise ValueError("cannot read f")

    url = HttpUrl("127.0.0.1", server.port, False, USER)
    rules = Rules([parse_rule("# out")])
    with pytest.raises(ReadError, match="cannot read f"):
        SubscriptionReader(Source.EMQX, url, None, fails, (), rules).read()


def test_a_driver_reads_in_a_thread_and_answers_in_the_loop(server: SubscriptionServer) -> None:
    server.subscriptions = [("c", "a")]

    async def ask() -> list[object]:
        answers: asyncio.Queue[object] = asyncio.Queue()
        driver = InterestDriver(reader(server.port), answers.put_nowait)
        loop = asyncio.get_running_loop()
        got = []
        for status in (200, 500, 200):
            server.status = status
            driver.ask(loop)
            got.append(await asyncio.wait_for(answers.get(), 30))
        driver.ask(loop)
        driver.ask(loop)
        got.append(await asyncio.wait_for(answers.get(), 30))
        got.append(await asyncio.wait_for(answers.get(), 30))
        driver.ask(loop)
        driver.stop()
        return got

    first, failed, again, *both = asyncio.run(ask())
    assert first == again == {"a"}
    assert "HTTP 500" in str(failed)
    assert {"a"} in both
    assert "has not ended" in str(both)
