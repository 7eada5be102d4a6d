"""A client for measurements of single messages: it publishes numbers, and notes when which number
arrived."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from mqttree.bench.load.client import LoadClient
from mqttree.bench.load.outcome import LoadError

PATIENCE = 30.0
"""s until an answer that has not come is given up."""


class Probe:
    """One MQTT 3.1.1 connection at QoS 0."""

    def __init__(self, name: str, clean: bool) -> None:
        self.arrived: list[tuple[int, int]] = []
        """Each number and when it was received (ns)."""
        self.newest = -1
        """The greatest number that has arrived."""
        self._client = LoadClient(name, 4, self._on_message, incoming=None if clean else set())

    @classmethod
    async def open(cls, address: tuple[str, int], name: str, clean: bool = True) -> Probe:
        """Connect to the broker at `address` (host, port) as the client `name`; `clean`: without a
        session. Raises LoadError."""
        probe = cls(name, clean)
        await _in_time("CONNACK", probe._client.connect(*address))
        return probe

    def _on_message(self, payload: bytes, _qos: int) -> None:
        number = int(payload)
        self.arrived.append((number, time.monotonic_ns()))
        self.newest = max(self.newest, number)

    async def subscribe(self, topic_filter: str) -> int:
        """Subscribe; returns when SUBACK came (ns). Raises LoadError."""
        return await _in_time("SUBACK", self._client.subscribe(topic_filter, 0))

    async def unsubscribe(self, topic_filter: str) -> int:
        """Unsubscribe; returns when UNSUBACK came (ns). Raises LoadError."""
        return await _in_time("UNSUBACK", self._client.unsubscribe(topic_filter))

    def publish(self, topic: str, number: int) -> None:
        """Publish one number. Raises LoadError."""
        try:
            self._client.publish(topic.encode(), b"%d" % number, 0)
        except ConnectionError as error:
            raise LoadError(str(error)) from error

    def close(self) -> None:
        """Close the connection."""
        if self._client.transport is not None:
            self._client.transport.close()


async def _in_time(what: str, asking: Coroutine[Any, Any, Any]) -> int:
    """Return when the answer came (ns). Raises LoadError."""
    try:
        await asyncio.wait_for(asking, PATIENCE)
    except TimeoutError:
        raise LoadError(f"no {what} within {PATIENCE:g} s") from None
    except OSError as error:
        raise LoadError(f"no {what}: {error}") from error
    return time.monotonic_ns()
