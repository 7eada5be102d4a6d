"""The resources of the admin port about traffic and placement: /api/traffic, /api/placement.

What changes or tells something about one client is for the broker's own machine only. Answers come
from the broker that decides, so some of them come later.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote

from mqttree.broker.cluster.placement.placement_messages import FORGET, PLACE, PLAN, STATUS, TOLD
from mqttree.broker.core.topic_rates import TOP
from mqttree.broker.core.traffic_meter import PERIOD

if TYPE_CHECKING:
    from mqttree.broker.node import Node

PLACEMENT: Final = "/api/placement"
CLIENT: Final = PLACEMENT + "/"
PLANNING: Final = "/api/placement/plan"
TRAFFIC: Final = "/api/traffic"

MAX_BODY: Final = 1024 * 1024
"""bytes of a body: ten thousand filters of 100 are still read, and refused with what is wrong."""

HttpAnswer = tuple[int, str, str]
"""Status, content type, text."""

Then = Callable[[HttpAnswer], None]
"""Takes an answer, now or within some seconds."""


def takes_body(method: str, path: str) -> bool:
    """Return whether a request with this `method` and `path` may have a body."""
    return method == "POST" and path in (PLACEMENT, PLANNING)


def is_own(method: str, path: str) -> bool:
    """Return whether a request with this `method` and `path` is for this module, and its answer
    may come later."""
    return path == PLACEMENT or path.startswith(CLIENT)


def for_own_machine(method: str, path: str) -> bool:
    """Return whether only the broker's own machine may send such a request, which is for this
    module."""
    return method != "GET" or path != PLACEMENT


class PlacementHttp:
    """Answers requests about traffic and placement."""

    __slots__ = ("_cpu", "_cpu_at", "_node", "_now", "_share", "_wake")

    def __init__(self, node: Node, now: Callable[[], float], wake: Callable[[], None]) -> None:
        """`node`: the broker; `now`: returns the time (s, monotonic); `wake`: has sent what the
        node wants to send."""
        self._node = node
        self._now = now
        self._wake = wake
        self._cpu = time.process_time()
        self._cpu_at = time.monotonic()
        self._share = 0.0
        meter = node.traffic
        if meter is not None:
            meter.on_read.append(self._read_cpu)

    def _read_cpu(self, now: float) -> None:
        cpu, at = time.process_time(), time.monotonic()
        self._share = (cpu - self._cpu) / max(1e-3, at - self._cpu_at)
        self._cpu, self._cpu_at = cpu, at

    def traffic(self, query: str) -> HttpAnswer:
        """Return the traffic of this broker. `query`: may say how many topics (`top`)."""
        meter = self._node.traffic
        if meter is None:
            return 404, "text/plain", "topics are not counted here (topic-rates)\n"
        values = dict(parse_qsl(query, keep_blank_values=True))
        text = values.pop("top", str(TOP))
        if values or not (text.isascii() and text.isdecimal() and len(text) < 9):
            return 400, "text/plain", f"the only parameter is top, a number up to {TOP}\n"
        top = meter.top(min(int(text), TOP))
        sums = meter.sums
        _, others, rest = meter.topics(len(top))
        return _json(
            200,
            {
                "boot": self._node.config.boot,
                "seconds": PERIOD,
                "topics": [
                    [each.topic.decode(errors="replace"), round(each.rate, 4), each.receivers]
                    for each in top
                ],
                "rest": {"topics": others, "in_per_s": round(rest, 4)},
                "in": round(sums.published, 4),
                "out": round(sums.delivered, 4),
                "link_in": round(sums.link_in, 4),
                "link_out": round(sums.link_out, 4),
                "cpu": round(self._share, 4),
            },
        )

    def ask(self, method: str, path: str, body: bytes, then: Then) -> None:
        """Answer a request that is for this module.

        `method`, `path`: of the request; `body`: b"" for none; `then`: takes the answer.
        """
        if method == "POST":
            self._post(path, body, then)
        elif path == PLACEMENT:
            if method == "GET":
                self._pass(STATUS, {}, then)
            else:
                then((405, "text/plain", "GET and POST only\n"))
        elif path == PLANNING:
            then((405, "text/plain", "POST only\n"))
        else:
            client = unquote(path.removeprefix(CLIENT))
            self._pass(FORGET if method == "DELETE" else TOLD, {"client": client}, then)

    def _post(self, path: str, body: bytes, then: Then) -> None:
        if not takes_body("POST", path):
            then((404, "text/plain", "not found\n"))
            return
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            then(_json(400, {"error": "the body is no JSON"}))
            return
        if path == PLANNING:
            self._pass(PLAN, value, then)
            return
        client = value.get("client", "") if isinstance(value, dict) else ""
        self._pass(PLACE, value, then, client if isinstance(client, str) else "")

    def _pass(self, operation: int, value: Any, then: Then, client: str = "") -> None:
        self._node.ask_placement(
            operation, value, lambda answer: then(_json(*answer)), client, self._now()
        )
        self._wake()


def _json(status: int, value: Any) -> HttpAnswer:
    return status, "application/json", json.dumps(value) + "\n"
