"""Routes of `/api/v1` and their OpenAPI document; pages; searches in pieces."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.io.api import clients, routes, schemas
from mqttree.broker.io.api.event_stream import encode
from mqttree.broker.io.api.openapi import document
from mqttree.broker.io.api.routes import ROUTES, RequestError, find, read_query
from mqttree.broker.io.api.search import Page, Searches
from mqttree.broker.io.api.service import Api


def route(path: str, method: str = "GET") -> routes.Route:
    return find(method, routes.PREFIX + path)[0]


def test_the_document_has_every_route_and_no_other() -> None:
    found = {
        (method.upper(), path)
        for path, methods in document("1")["paths"].items()
        for method in methods
    }
    assert found == {(each.method, routes.PREFIX + each.path) for each in ROUTES}
    assert json.loads(json.dumps(document("1"))) == document("1")


def test_every_route_has_a_handler_and_a_schema() -> None:
    for each in ROUTES:
        assert callable(getattr(Api, each.handler))
        assert each.schema in schemas.SCHEMAS
    handlers = [each.handler for each in ROUTES]
    assert len(handlers) == len(set(handlers))


def test_each_reference_of_the_document_leads_somewhere() -> None:
    made = document("1")
    text = json.dumps(made)
    for name in text.split('"#/components/schemas/')[1:]:
        assert name.partition('"')[0] in made["components"]["schemas"]


@pytest.mark.parametrize(
    ("method", "path", "handler", "names"),
    [
        ("GET", "/clients/a%2Fb", "client", {"client": "a/b"}),
        ("DELETE", "/clients/%00", "end_session", {"client": "\0"}),
        ("POST", "/clients/x/disconnect", "disconnect", {"client": "x"}),
        ("GET", "/retained/a/b%2Fc//", "retained_message", {"topic": "a/b/c//"}),
        ("GET", "/clients/disconnect", "client", {"client": "disconnect"}),
    ],
)
def test_parts_of_the_path_are_read(
    method: str, path: str, handler: str, names: dict[str, str]
) -> None:
    found, parts = find(method, routes.PREFIX + path)
    assert (found.handler, parts) == (handler, names)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/", 404),
        ("GET", "/clients/", 404),
        ("GET", "/clients/x/", 404),
        ("GET", "/clients/x/y/z", 404),
        ("POST", "/clients", 405),
        ("PUT", "/clients/x", 405),
        ("GET", "/clients/x/disconnect", 405),
    ],
)
def test_other_paths_and_methods_are_refused(method: str, path: str, status: int) -> None:
    with pytest.raises(RequestError) as caught:
        find(method, routes.PREFIX + path)
    assert caught.value.status == status


def test_parameters_have_defaults() -> None:
    values = {"search": "", "state": "all", "broker": "", "limit": 100, "after": ""}
    assert read_query(route("/clients"), "") == values
    assert read_query(route("/clients"), "limit=1&search=%3Cb%3E&after=") == values | {
        "limit": 1,
        "search": "<b>",
    }


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=1e2",
        "limit=",
        "limit=99999999999999999999",
        "limit=\u0663",
        "state=both",
        "nothing=1",
        "&".join(f"a{number}=1" for number in range(30)),
        f"search={'x' * 70_000}",
    ],
)
def test_a_wrong_parameter_is_refused_with_one_line(query: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_query(route("/clients"), query)
    assert caught.value.status == 400
    assert len(str(caught.value)) < 200


@given(
    keys=st.lists(st.text(min_size=1, max_size=3), unique=True, max_size=40),
    limit=st.integers(1, 10),
)
def test_all_pages_together_have_every_row_once_in_order(keys: list[str], limit: int) -> None:
    found: list[str] = []
    after: str | None = ""
    pages = 0
    while after is not None:
        page: Page[str] = Page(limit, after)
        for key in keys:
            if page.wants(key):
                page.put(key, key)
        rows, after = page.rows()
        found += rows
        pages += 1
        assert page.total == len(keys)
        assert len(rows) <= limit
    assert found == sorted(keys)
    assert pages == max(1, -(-len(keys) // limit))


@given(
    theirs=st.dictionaries(
        st.binary(min_size=1, max_size=1),
        st.lists(st.text(st.characters(exclude_characters="\0"), min_size=1), unique=True),
        max_size=4,
    ),
    limit=st.integers(1, 10),
)
def test_pages_of_several_brokers_have_every_client_once_in_order(
    theirs: dict[bytes, list[str]], limit: int
) -> None:
    """Whatever part of its clients each broker names at a time."""
    cluster = SimpleNamespace(database=SimpleNamespace(listings={}))
    node: Any = SimpleNamespace(config=SimpleNamespace(id=b"own"), sessions={}, cluster=cluster)
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        answers = {}
        for number, (broker, names) in enumerate(theirs.items(), 1):
            own: Page[dict[str, Any]] = Page(number, after)
            for name in names:
                if own.wants(f"{name}\0{broker.hex()}"):
                    own.put(f"{name}\0{broker.hex()}", {"id": name})
            rows, following = own.rows()
            answers[broker] = 200, {"clients": rows, "total": own.total, "next": following}
        page: Page[dict[str, Any]] = Page(limit, after)
        answered = clients.Answered(answers, clients.LastKnown())
        for _ in clients.search(node, page, answered, {"search": "", "state": "all", "broker": ""}):
            pass
        shown, after = answered.cut(*page.rows())
        found += [f"{row['id']}\0{row['broker']}" for row in shown]
        assert page.total == sum(map(len, theirs.values()))
    assert found == sorted(f"{name}\0{b.hex()}" for b, names in theirs.items() for name in names)


def pieces(number: int, done: list[int]) -> Iterator[None]:
    for each in range(number):
        done.append(each)
        yield


async def test_a_search_goes_on_in_later_turns_of_the_loop() -> None:
    searches = Searches(asyncio.get_running_loop(), 2, piece=0.0, pause=0.0)
    looked, ended = list[int](), asyncio.Event()
    searches.begin(pieces(5, looked), ended.set, lambda: True)
    assert looked == [0], "one piece, and then others have their turn"
    await asyncio.wait_for(ended.wait(), 60)
    assert looked == [0, 1, 2, 3, 4]
    assert searches.running == 0


async def test_searches_at_a_time_are_few_and_end_with_who_asked() -> None:
    searches = Searches(asyncio.get_running_loop(), 2, piece=0.0)
    waits, looked = [True], list[int]()
    for _ in range(2):
        searches.begin(pieces(10**9, looked), lambda: None, lambda: waits[0])
    with pytest.raises(RequestError) as caught:
        searches.begin(pieces(1, looked), lambda: None, lambda: True)
    assert caught.value.status == 429
    waits[0] = False
    async with asyncio.timeout(60):
        while searches.running:
            await asyncio.sleep(0.001)
    searches.begin(pieces(1, looked), lambda: None, lambda: True)


async def test_a_search_that_fails_leaves_its_place() -> None:
    def broken() -> Iterator[None]:
        yield
        raise ZeroDivisionError

    searches = Searches(asyncio.get_running_loop(), 1)
    with pytest.raises(ZeroDivisionError):
        searches.begin(broken(), lambda: None, lambda: True)
    assert searches.running == 0


def test_an_event_is_two_lines_whatever_its_texts_are() -> None:
    event = encode("change", {"text": "a\nb\r\n\u2028\x1b[31m<b>", "number": 1})
    head, data, *rest = event.split(b"\n")
    assert (head, rest) == (b"event: change", [b"", b""])
    assert json.loads(data.removeprefix(b"data: "))["text"] == "a\nb\r\n\u2028\x1b[31m<b>"
    assert b"\x1b" not in event
