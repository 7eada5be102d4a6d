"""Requests to `/api/v1` of a broker, and whether answers are what its OpenAPI document says."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any
from urllib.parse import quote

from tests.kit.waiting import PATIENCE, until


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
    """Status and content of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, f"/api/v1{path}", body, {"Connection": "close"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def get(port: int, path: str, **query: str | int) -> Any:
    """The content of a good answer."""
    fields = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in query.items())
    status, content = ask(port, "GET", f"{path}?{fields}" if fields else path)
    assert status == 200, (path, query, content)
    return content


class Events:
    """A reader of events."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.sock.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self._file = self.sock.makefile("rb")
        self.head = b""
        while not self.head.endswith(b"\r\n\r\n"):
            line = self._file.readline()
            assert line
            self.head += line

    def next(self) -> tuple[str, Any]:
        """Kind and data of the next event."""
        kind = ""
        while True:
            name, _, value = self._file.readline().decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                return kind, json.loads(value)
            assert name in ("event", "", "retry"), name

    def find(self, wanted: str) -> Any:
        """The data of the next event of a kind."""
        found: list[Any] = []

        def came() -> bool:
            kind, data = self.next()
            if kind == wanted:
                found.append(data)
            return bool(found)

        until(came, f"event {wanted}")
        return found[0]

    def close(self) -> None:
        self._file.close()
        self.sock.close()


TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}


def check(document: dict[str, Any], schema: dict[str, Any], value: Any, where: str) -> None:
    """Assert that a value is what a schema of an OpenAPI document says, and has no other keys."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    fits = [
        kind
        for kind in kinds
        if isinstance(value, TYPES[kind])  # type: ignore[arg-type]
        and (kind == "boolean" or not isinstance(value, bool))
    ]
    assert fits, f"{where}: {value!r} is no {kinds}"
    if fits == ["array"] and "items" in schema:
        for number, each in enumerate(value):
            check(document, schema["items"], each, f"{where}[{number}]")
    elif fits == ["object"] and "properties" in schema:
        properties = schema["properties"]
        assert set(schema["required"]) <= value.keys(), f"{where}: {value.keys()}"
        for key, each in value.items():
            if key in properties:
                check(document, properties[key], each, f"{where}.{key}")
        # Of these only some keys are described.
        some = where in ("Document", "Federation", "Leg", "Placed", "Placement", "Traffic")
        assert some or value.keys() == properties.keys(), where
    elif fits == ["object"] and "additionalProperties" in schema:
        for key, each in value.items():
            check(document, schema["additionalProperties"], each, f"{where}.{key}")
