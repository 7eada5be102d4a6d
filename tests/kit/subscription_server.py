"""The HTTP interface of a foreign broker (EMQX 5, NanoMQ), as far as it says what clients subscribe
to."""

from __future__ import annotations

import base64
import json
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

USER, PASSWORD = "key", "secret"


class SubscriptionServer:
    """Answers at a port of this machine until it is closed; what it says can be changed."""

    def __init__(self, page: int = 1000) -> None:
        """`page`: subscriptions of a page, if fewer than were asked for."""
        self.subscriptions: list[tuple[str, str]] = []
        """Client id and filter of each."""
        self.body: bytes | None = None
        """What it says instead, if it is not None."""
        self.status = 200
        self.headers: dict[str, str] = {}
        self.asked: list[str] = []
        """Paths that were asked for."""
        self._page = page
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server._answer(self)

            def handle(self) -> None:
                # Clients leave when they like.
                with suppress(ConnectionError):
                    super().handle()

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._http.server_address[1])

    def __enter__(self) -> SubscriptionServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(handler.path)
        wanted = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        right = handler.headers.get("Authorization") == f"Basic {wanted}"
        status = self.status if right else 401
        body = self.body
        if body is None:
            body = json.dumps(self._object(handler.path)).encode()
        handler.send_response(status)
        for name, value in self.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def _object(self, path: str) -> dict[str, Any]:
        parts = urlsplit(path)
        data = [{"clientid": c, "topic": t, "qos": 1} for c, t in self.subscriptions]
        if parts.path == "/api/v4/subscriptions":
            return {"code": 0, "data": data}
        assert parts.path == "/api/v5/subscriptions"
        asked = parse_qs(parts.query)
        page, limit = int(asked["page"][0]), min(self._page, int(asked["limit"][0]))
        end = page * limit
        meta = {"page": page, "limit": limit, "count": len(data), "hasnext": end < len(data)}
        return {"data": data[end - limit : end], "meta": meta}
