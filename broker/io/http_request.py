"""The head of one HTTP/1.1 request, read by h11: what it asks for, or the status that refuses it.

h11 reads one head, whole and by itself, so nothing of one request can become part of the next. What
other programs on the way may read differently (request smuggling) is refused, not guessed at.

A program sends the same head with each of its requests, but for the length of the body.
`HeadReader` has h11 read it once for each connection.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from h11 import Request as Head

_DOUBTFUL = re.compile(rb"[\0\v\f]|\r(?!\n)|(?<!\r)\n|\r\n[ \t\r]")
"""What h11 would take, or take long to refuse: control characters that end a line for some and not
for others (RFC 9112 2.2, RFC 9110 5.5), folded lines (RFC 9112 5.2), an empty line."""

_HOST = re.compile(rb"\r\nhost:", re.IGNORECASE)


_LENGTH = re.compile(rb"\r\nContent-Length: ([1-9][0-9]{0,6})(?=\r\n|\Z)", re.IGNORECASE)
"""The one form of a length in which only its digits differ from request to request."""


def has_bare_line_feed(head: bytes) -> bool:
    """Whether a line of a head, or of its beginning, ends with LF alone."""
    return head.count(b"\n") > head.count(b"\r\n")


class HttpRequest(NamedTuple):
    """The fields of a request head that matter here."""

    method: str
    path: str
    keep: bool
    """Whether the connection stays open behind it."""
    query: str
    host: str
    """Name or address that it is for, without the port; "" when it does not say."""
    body: bool
    """Whether a body follows."""
    origin: str
    """The web page that it comes from (Origin), "": none."""
    size: int = 0
    """Bytes of the body, -1: it does not say so ahead of it."""
    authority: str = ""
    """The Host field as it came, with its port."""
    authorization: str = ""


def parse_request(head: bytes) -> HttpRequest | int:
    """Read a head, without the empty line at its end; the status when it is refused."""
    if _DOUBTFUL.search(head):
        return 400
    read = _read(head)
    if read is None:
        return 400
    if read.http_version not in (b"1.1", b"1.0"):
        return 505
    method, target = read.method.decode(), bytes(read.target)
    host = _field(read, b"host") or b""
    if target.lower().startswith(b"http://"):
        authority, _, target = target[7:].partition(b"/")
        host = authority.rpartition(b"@")[2]
        target = b"/" + target
    if not target.startswith(b"/"):
        return 400 if method == "GET" else 405
    chunked = _field(read, b"transfer-encoding") is not None
    length = _field(read, b"content-length")
    body = chunked or length not in (None, b"0")
    # A GET has no use for a body.
    if body and method == "GET":
        return 400
    path, _, query = target.decode().partition("?")
    origin = _field(read, b"origin")
    return HttpRequest(
        method,
        path,
        _keeps(read),
        query,
        _name(host),
        body,
        # An empty field is an origin, too: not ours.
        "" if origin is None else origin.decode("latin-1") or "null",
        -1 if chunked else int(length or b"0"),
        host.decode("latin-1"),
        (_field(read, b"authorization") or b"").decode("latin-1"),
    )


class HeadReader:
    """Reads the heads of one connection, as `parse_request` does."""

    __slots__ = ("_last", "_request")

    def __init__(self) -> None:
        self._last = b""
        """The last head that was no error, with 1 as length of the body if it has one."""
        self._request: HttpRequest | None = None

    def read(self, head: bytes) -> HttpRequest | int:
        """Read a head, without the empty line at its end; the status when it is refused."""
        length = _LENGTH.search(head)
        size = -1
        if length is not None and head.lower().count(b"content-length") == 1:
            # Two fields of it may contradict each other: h11 sees both as they are.
            size = int(length[1])
            head = b"".join((head[: length.start(1)], b"1", head[length.end(1) :]))
        if head != self._last or self._request is None:
            read = parse_request(head)
            if isinstance(read, int):
                return read
            self._last, self._request = head, read
        request = self._request
        # A chunked body (-1) has no length, whatever Content-Length says.
        return request._replace(size=size) if size > 1 and request.size == 1 else request


def _read(head: bytes) -> Head | None:
    """Have h11 read a head. HTTP/1.1 without Host is served (health checks that someone wrote by
    hand), and so is given an empty one, which h11 wants to see."""
    # Imported with the first request, so that a broker's start does not wait for it.
    from h11 import SERVER, Connection, RemoteProtocolError, Request

    connection = Connection(SERVER)
    connection.receive_data(head + (b"\r\n\r\n" if _HOST.search(head) else b"\r\nHost:\r\n\r\n"))
    try:
        event = connection.next_event()
    except RemoteProtocolError:
        return None
    return event if isinstance(event, Request) else None


def _field(head: Head, name: bytes) -> bytes | None:
    """Return the value of the first field of that name."""
    return next((bytes(value) for found, value in head.headers if found == name), None)


def _keeps(head: Head) -> bool:
    """Whether the connection persists (RFC 9112 9.3)."""
    options = [
        option.strip()
        for name, value in head.headers
        if name == b"connection"
        for option in value.lower().split(b",")
    ]
    return b"close" not in options and (head.http_version == b"1.1" or b"keep-alive" in options)


def _name(host: bytes) -> str:
    """Return the name or address of "name", "name:port", "[address]:port" (RFC 9112 3.2)."""
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].removesuffix(".")
