"""Reads what clients of a foreign broker subscribe to, over its HTTP interface: EMQX 5 or NanoMQ.
All of it blocks: it runs in a thread."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from mqttree.broker.config.broker_url import HttpUrl
from mqttree.broker.io.tls import describe_error
from mqttree.broker.leg.foreign_filters import lets_out
from mqttree.broker.leg.interest import MAX_FILTERS, Source
from mqttree.broker.leg.rules import Rules
from mqttree.broker.wire.strings import shorten

PAGE = 1000
"""Subscriptions of one page."""
CHUNK = 64 * 1024
"""bytes that are read at a time."""


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """What bounds one reading."""

    answer_time: float = 5.0
    """s for one answer."""
    time: float = 30.0
    """s for all pages."""
    pages: int = 10_000
    """Pages, as pages without an end would be asked for without an end."""
    answer: int = 8 * 1024 * 1024
    """bytes of one answer, which is parsed at once: 50,000 subscriptions, a tenth of a second."""
    size: int = 64 * 1024 * 1024
    """bytes of all answers."""
    filters: int = MAX_FILTERS
    """Filters behind which the rest is not read; one more than that is."""


BOUNDS = ReadBounds()


class ReadError(Exception):
    """What foreign clients subscribe to could not be read; one line says why."""


class SubscriptionReader:
    """Reads the subscriptions at one foreign broker."""

    def __init__(
        self,
        source: Source,
        url: HttpUrl,
        context: ssl.SSLContext | None,
        password: Callable[[], bytes],
        own: Collection[str],
        rules: Rules,
        bounds: ReadBounds = BOUNDS,
    ) -> None:
        """`source`: EMQX or NanoMQ; `url`: of its interface; `context`: of TLS, None: without;
        `password`: returns that of the user there, or raises ValueError with one line, and is
        called for each reading; `own`: client ids of the leg; `rules`: which messages it lets
        out; `bounds`: of each reading."""
        self._bounds = bounds
        self._source = source
        self._url = url
        self._context = context
        self._password = password
        self._own = frozenset(own)
        self._rules = rules.outward_rules
        self._known: dict[str, bool] = {}  # whether rules let out what a filter matches

    def read(self) -> set[str]:
        """Return the filters of foreign clients of which rules let out anything. If there are more
        than a leg takes the rest is not read. Raises ReadError."""
        try:
            found = self._read()
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            raise ReadError(f"{self._url}: {describe_error(error)}") from None
        return found

    def _read(self) -> set[str]:
        known, self._known = self._known, {}
        found: set[str] = set()
        for subscription in self._subscriptions():
            client, topic_filter = subscription.get("clientid"), subscription.get("topic")
            if not isinstance(topic_filter, str):
                raise ValueError("its answer has a subscription without a topic")
            if client in self._own:
                continue
            if topic_filter not in self._known:
                wanted = known.get(topic_filter)
                if wanted is None:
                    wanted = lets_out(self._rules, topic_filter)
                self._known[topic_filter] = wanted
            if self._known[topic_filter]:
                found.add(topic_filter)
                if len(found) > self._bounds.filters:
                    break
        return found

    def _subscriptions(self) -> Iterator[dict[str, Any]]:
        """Yield the subscriptions of all pages."""
        bounds = self._bounds
        until, left = time.monotonic() + bounds.time, bounds.size
        with _Session(self._url, self._context, self._password, bounds) as session:
            if self._source is Source.NANOMQ:
                data, _ = session.get("/api/v4/subscriptions", until, left)
                if data.get("code") != 0:
                    raise ValueError(f"it answers with code {shorten(str(data.get('code')))}")
                yield from _listed(data)
                return
            for page in range(1, bounds.pages + 1):
                path = f"/api/v5/subscriptions?page={page}&limit={PAGE}"
                data, size = session.get(path, until, left)
                left -= size
                listed = _listed(data)
                yield from listed
                meta = data.get("meta")
                more = meta.get("hasnext") if isinstance(meta, dict) else None
                # Some pages may be short, or empty, although more follow.
                if more is False or (more is None and len(listed) < PAGE):
                    return
        raise ValueError(f"it has more than {bounds.pages} pages")


class _Session:
    """A connection on which pages are asked for, one after the other."""

    def __init__(
        self,
        url: HttpUrl,
        context: ssl.SSLContext | None,
        password: Callable[[], bytes],
        bounds: ReadBounds,
    ) -> None:
        self._bounds = bounds
        wait = bounds.answer_time
        self._connection = (
            http.client.HTTPConnection(url.host, url.port, timeout=wait)
            if context is None
            else http.client.HTTPSConnection(url.host, url.port, timeout=wait, context=context)
        )
        self._headers = {"Accept": "application/json"}
        if url.user is not None:
            secret = base64.b64encode(url.user.encode() + b":" + password()).decode()
            self._headers["Authorization"] = f"Basic {secret}"

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def get(self, path: str, until: float, most: int) -> tuple[dict[str, Any], int]:
        """Return the JSON object at `path`, and its size (bytes). `until`: when all has to be read
        (s of the monotonic clock); `most`: bytes that it may have. Raises OSError, HTTPException
        and ValueError."""
        until = min(until, time.monotonic() + self._bounds.answer_time)
        most = min(most, self._bounds.answer)
        self._connection.request("GET", path, headers=self._headers)
        answer = self._connection.getresponse()
        # A redirection as well: a password is for one place.
        if answer.status != 200:
            raise ValueError(f"it answers with HTTP {answer.status} {shorten(answer.reason)}")
        parts, size = [], 0
        while part := answer.read1(CHUNK):
            parts.append(part)
            size += len(part)
            if size > most:
                raise ValueError(f"its answer is larger than {most} bytes")
            if time.monotonic() > until:
                raise TimeoutError("timed out")
        # So that the connection can be used for the next page.
        answer.close()
        try:
            data = json.loads(b"".join(parts))
        except ValueError:
            raise ValueError("its answer is no JSON") from None
        if not isinstance(data, dict):
            raise ValueError("its answer is no JSON object")
        return data, size


def _listed(data: dict[str, Any]) -> list[dict[str, Any]]:
    listed = data.get("data")
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise ValueError("its answer has no list of subscriptions")
    return listed
