"""A client for measurements of single messages: it publishes numbers, and notes when which number
arrived."""

from __future__ import annotations

import asyncio
import time
from typing import cast

from mqttree.bench.load.outcome import LoadError
from mqttree.broker.wire import (
    Connack,
    Connect,
    Decoder,
    Packet,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    encode_packet,
)

PATIENCE = 30.0
"""s until an answer that has not come is given up."""


class Probe(asyncio.Protocol):
    """One MQTT 3.1.1 connection at QoS 0; it speaks by the broker's own codec, which `bench load`
    does not."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.arrived: list[tuple[int, int]] = []  # (the number, when it was received in ns)
        self.newest = -1  # the greatest number that has arrived
        self._decoder = Decoder(4)
        self._waiting: dict[type, asyncio.Future[int]] = {}

    @classmethod
    async def open(cls, address: tuple[str, int], name: str, clean: bool = True) -> Probe:
        """Connect to the broker at `address` (host, port) as the client `name`; `clean`: without a
        session. Raises OSError, and LoadError when the broker does not answer."""
        _, probe = await asyncio.get_running_loop().create_connection(cls, *address)
        await probe._ask(Connect("MQTT", 4, clean, 0, name), Connack)
        return probe

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it."""
        # uvloop's are none of asyncio's classes.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Note what arrived."""
        now = time.monotonic_ns()
        for packet in self._decoder.receive(data):
            if isinstance(packet, Publish):
                number = int(packet.payload)
                self.arrived.append((number, now))
                self.newest = max(self.newest, number)
            elif (
                future := self._waiting.pop(type(packet), None)
            ) is not None and not future.done():
                future.set_result(now)

    async def _ask(self, packet: Packet, answer: type) -> int:
        """Send a packet and return when its answer came (ns). Raises LoadError."""
        future = self._waiting[answer] = asyncio.get_running_loop().create_future()
        self._send(packet)
        try:
            return await asyncio.wait_for(future, PATIENCE)
        except TimeoutError:
            raise LoadError(f"no {answer.__name__} within {PATIENCE:g} s") from None

    def _send(self, packet: Packet) -> None:
        assert self.transport is not None
        self.transport.write(encode_packet(packet, 4))

    async def subscribe(self, topic_filter: str) -> int:
        """Subscribe; returns when SUBACK came (ns). Raises LoadError."""
        return await self._ask(Subscribe(1, [SubscriptionRequest(topic_filter, 0)]), Suback)

    async def unsubscribe(self, topic_filter: str) -> int:
        """Unsubscribe; returns when UNSUBACK came (ns). Raises LoadError."""
        return await self._ask(Unsubscribe(2, [topic_filter]), Unsuback)

    def publish(self, topic: str, number: int) -> None:
        """Publish one number."""
        self._send(Publish(topic, str(number).encode()))

    def close(self) -> None:
        """Close the connection."""
        if self.transport is not None:
            self.transport.close()
