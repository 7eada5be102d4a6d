"""Heads of HTTP requests: what they ask for, and forms that two programs may read differently."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.io import http_request
from mqttree.broker.io.http_request import (
    HeadReader,
    HttpRequest,
    has_bare_line_feed,
    parse_request,
)


def request(**fields: Any) -> HttpRequest:
    plain = HttpRequest("GET", "/healthz", True, "", "x", False, "", authority="x")
    return plain._replace(**fields)


def post(**fields: Any) -> HttpRequest:
    return request(method="POST", path="/a", **fields)


def head(*fields: bytes, line: bytes = b"GET /healthz HTTP/1.1") -> bytes:
    return b"\r\n".join((line, b"Host: x", *fields))


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (head(), request()),
        (b"GET /healthz HTTP/1.1", request(host="", authority="")),
        (b"GET /healthz HTTP/1.1\r\nHost: [::1]:8080", request(host="::1", authority="[::1]:8080")),
        (
            b"GET /healthz HTTP/1.1\r\nhOST:\t Broker.Example.:80 ",
            request(host="broker.example", authority="Broker.Example.:80"),
        ),
        (
            head(line=b"GET http://a@B:80/healthz?q=1 HTTP/1.1"),
            request(host="b", authority="B:80", query="q=1"),
        ),
        (head(b"Connection: Close"), request(keep=False)),
        (head(b"Connection: x, close", b"Connection: keep-alive"), request(keep=False)),
        (head(line=b"GET /healthz HTTP/1.0"), request(keep=False)),
        (head(b"Connection: keep-alive", line=b"GET /healthz HTTP/1.0"), request()),
        (head(b"Content-Length: 0", b"Content-Length: 0"), request()),
        (head(b"Cookie: \x01\xff"), request()),
        (
            head(b"Origin: null", line=b"POST /a HTTP/1.1"),
            request(method="POST", path="/a", origin="null"),
        ),
        (head(b"Origin:"), request(origin="null")),
        (head(b"Authorization: Bearer a.b"), request(authorization="Bearer a.b")),
        (
            head(b"Content-Length: 3", line=b"PUT /a HTTP/1.1"),
            request(method="PUT", path="/a", body=True, size=3),
        ),
    ],
)
def test_a_head_is_read_as_method_and_path(read: bytes, expected: HttpRequest) -> None:
    assert parse_request(read) == expected


SMUGGLED = [
    head(b"Content-Length: 3", b"Content-Length: 4"),
    head(b"Content-Length: 0", b"Content-Length: 4"),
    head(b"Content-Length: 0, 4"),
    head(b"Content-Length: +0"),
    head(b"Content-Length: 0x0"),
    head(b"Content-Length: -1"),
    head(b"Content-Length : 0"),
    head(b"Transfer-Encoding: chunked"),
    head(b"Transfer-Encoding: gzip, chunked"),
    head(b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked"),
    head(b"Transfer-Encoding: \x0bchunked"),
    head(b"Transfer-Encoding : chunked"),
    head(b"Transfer-Encoding: chunked", b"Content-Length: 0"),
    head(b"Content-Length: 0", b"Transfer-Encoding: chunked"),
    head(b"a: b", b" Transfer-Encoding: chunked"),
    head(b"a: b", b"\tfolded"),
    head(b"a: b", b" "),
    head(b"a: b\nTransfer-Encoding: chunked"),
    head(b"a: b\rTransfer-Encoding: chunked"),
    head(b"a: b\0"),
    head(b"a: b\r"),
    head(b"a: b", b"", b"GET / HTTP/1.1"),
    head(b"Host: y"),
    head(b"a: b\nHost: y"),
    b"GET / HTTP/1.1\nHost: x",
    b"GET / HTTP/1.1\n",
    b"\nGET / HTTP/1.1",
    b"",
]


@pytest.mark.parametrize("read", SMUGGLED)
def test_a_head_that_may_be_read_in_two_ways_is_refused(read: bytes) -> None:
    assert parse_request(read) == 400


@pytest.mark.parametrize("read", SMUGGLED[:14])
def test_a_post_with_a_body_is_refused_or_known_to_have_one(read: bytes) -> None:
    found = parse_request(read.replace(b"GET", b"POST", 1))
    assert found == 400 or (isinstance(found, HttpRequest) and found.body)


def test_a_line_that_ends_with_lf_alone_is_seen_before_the_head_is_whole() -> None:
    assert has_bare_line_feed(b"GET / HTTP/1.1\nHos")
    assert has_bare_line_feed(b"GET / HTTP/1.1\r\nHost: x\n")
    assert not has_bare_line_feed(b"GET / HTTP/1.1\r\nHost: x\r")


@pytest.mark.parametrize("end", [b"\x0b", b"\0", b"\r", b"\n", b"", b"\x01", b"\xff"])
@pytest.mark.parametrize("many", [b" ", b"\t", b"a", b"a ", b"a\t "])
def test_no_head_takes_long(many: bytes, end: bytes) -> None:
    """Twice the bytes: about twice the time, not the fourfold of a search that backtracks."""

    def cost(size: int) -> float:
        read = head(b"a:" + many * (size // len(many)) + end)
        taken = []
        for _ in range(5):
            began = time.process_time()
            parse_request(read)
            taken.append(time.process_time() - began)
        return min(taken)

    assert cost(8000) < 20 * max(cost(1000), 1e-4)


PIECES = st.lists(
    st.sampled_from(
        [
            b"\r\nContent-Length: 1",
            b"\r\nContent-Length: 2",
            b"\r\ncontent-length: 31",
            b"\r\nContent-Length: 0",
            b"\r\nContent-Length: 07",
            b"\r\nContent-Length: 12345678",
            b"\r\nContent-Length:3",
            b"\r\nContent-Length : 1",
            b"\r\nContent-Length: 1 ",
            b"\r\nContent-Length: 1, 2",
            b"\r\n Content-Length: 4",
            b"\nContent-Length: 5",
            b"\r\nTransfer-Encoding: chunked",
            b"\r\nTransfer-Encoding : chunked",
            b"\r\na: \r\nContent-Length: 6",
            b"\r\nHost: x",
            b"\r\nHost: y.example",
            b"\r\nOrigin: http://x",
            b"\r\nAuthorization: Bearer 1",
            b"\r\nConnection: close",
            b"\r\nX-Content-Length: 1",
            b"\r\n",
            b"\0",
        ]
    ),
    max_size=5,
)
LINES = st.sampled_from(
    [
        b"POST /api/v1/placement HTTP/1.1",
        b"POST /api/v1/placement HTTP/1.0",
        b"GET /metrics HTTP/1.1",
        b"DELETE /api/v1/placement/Content-Length:%201 HTTP/1.1",
        b"POST /a HTTP/2.0",
    ]
)


@given(st.lists(st.builds(lambda line, pieces: line + b"".join(pieces), LINES, PIECES), max_size=8))
def test_heads_of_a_connection_are_read_as_each_by_itself(heads: list[bytes]) -> None:
    reader = HeadReader()
    for each in heads:
        assert reader.read(each) == parse_request(each)


@given(st.lists(st.sampled_from(SMUGGLED), max_size=3), st.integers(1, 9_999_999))
def test_a_head_that_may_be_read_in_two_ways_is_refused_behind_others(
    smuggled: list[bytes], size: int
) -> None:
    reader = HeadReader()
    plain = head(b"Content-Length: %d" % size, line=b"POST /a HTTP/1.1")
    for each in smuggled:
        assert reader.read(plain) == post(body=True, size=size)
        assert reader.read(each) == 400


def test_the_same_head_with_another_length_is_not_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = HeadReader()
    lengths = [b"Content-Length: %d" % size for size in (7, 1, 512, 99)]
    heads = [head(length, b"X-A: 1", line=b"POST /a HTTP/1.1") for length in lengths]
    assert reader.read(heads[0]) == post(body=True, size=7)
    monkeypatch.setattr(http_request, "parse_request", lambda head: 400)
    assert [reader.read(each) for each in heads] == [
        post(body=True, size=size) for size in (7, 1, 512, 99)
    ]
    assert reader.read(head(line=b"POST /a HTTP/1.1")) == 400
