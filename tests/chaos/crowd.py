"""Publishers at QoS 1 and 2 and subscribers on all brokers, as a process: it says what came wrong, and asks nothing of the clock
but when to send.

Publisher p publishes to `chaos/<p % GROUPS>/<p>`. The first subscriber of each broker hears all of them, the others one group.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from tests.chaos.judge import Ear, Judge, Receipt, Sent
from tests.chaos.mqtt import Wire, connect

GROUPS = 5
TICK = 0.02
"""s between two rounds of publishing."""
WINDOW = 300
"""Messages of a publisher that are not acknowledged; it waits then."""
PATIENCE = 45.0
"""s until what has not come is called lost: much longer than any repair, as the machine may be busy."""


class Publisher:
    """One publisher's connection."""

    def __init__(self, crowd: Crowd, sent: Sent) -> None:
        self.crowd = crowd
        self.sent = sent
        self.topic = b"chaos/%d/%d" % (sent.number % GROUPS, sent.number)
        self.flying: dict[int, int] = {}
        self.wire: Wire | None = None
        self.owed = 0.0

    async def come(self) -> None:
        """Connect."""
        flying: dict[int, int] = {}
        self.flying = flying
        wire = Wire(f"pub{self.sent.number}", 4 + self.sent.number % 2, lambda _payload, _qos: None, self.lost)

        def accepted(mid: int) -> None:
            if (index := flying.pop(mid, None)) is not None:
                self.sent.acknowledged(index)

        wire.accepted = accepted
        self.wire = await connect(wire, self.crowd.ports[self.sent.broker])

    def lost(self) -> None:
        self.wire = None
        self.crowd.lost(f"publisher {self.sent.number}", self.sent.broker)

    def publish(self, share: float) -> None:
        """Send what is due."""
        self.owed = min(self.owed + share, 5.0)
        while self.owed >= 1 and self.wire is not None and self.wire.transport is not None and len(self.flying) < WINDOW:
            self.owed -= 1
            index = self.sent.next
            self.flying[self.wire.publish(self.topic, self.sent.sends(), self.sent.qos)] = index


class Subscriber:
    """One subscriber; `ear` is of its connection."""

    def __init__(self, crowd: Crowd, number: int, broker: int, group: int | None) -> None:
        self.crowd = crowd
        self.number = number
        self.broker = broker
        self.group = group
        self.ear: Ear | None = None

    async def come(self) -> None:
        """Connect and subscribe."""
        judge = self.crowd.judge
        hears = [number for number in judge.sent if self.group in (None, number % GROUPS)]
        ear = Ear(f"subscriber {self.number}", self.broker, {number: Receipt() for number in hears})

        def lost() -> None:
            self.ear = None
            self.crowd.lost(ear.name, self.broker)

        wire = Wire(f"sub{self.number}", 4 + self.number % 2, lambda payload, qos: judge.came(ear, payload, qos), lost)
        await connect(wire, self.crowd.ports[self.broker])
        wire.subscribe("chaos/#" if self.group is None else f"chaos/{self.group}/#", 2)
        assert await wire.subscribed == 2
        judge.ready(ear)  # what is published anywhere after SUBACK
        self.ear = ear


class Crowd:
    """All of them."""

    def __init__(self, ports: list[int], publishers: int, subscribers: int, rate: float) -> None:
        """`rate`: messages a second of each publisher."""
        self.ports = ports
        self.rate = rate
        self.judge = Judge()
        self.down: set[int] = set()
        number = len(ports)
        for p in range(publishers):
            self.judge.sent[p] = Sent(p, p % number, 1 + p % 2)
        groups = min(GROUPS, publishers)
        self.publishers = [Publisher(self, sent) for sent in self.judge.sent.values()]
        self.subscribers = [
            Subscriber(self, s, -(s + 1) % number, None if s < number else s % groups) for s in range(subscribers)
        ]

    def lost(self, who: str, broker: int) -> None:
        """A connection ended."""
        if broker not in self.down:
            self.judge.counts["connections lost"] += 1
            self.judge.broken.append(f"{who} lost its connection to b{broker}, which lived")

    async def come(self, broker: int | None) -> None:
        """Those of this broker (None: all) connect."""
        for subscriber in self.subscribers:
            if broker in (None, subscriber.broker) and subscriber.ear is None:
                await subscriber.come()
        for publisher in self.publishers:
            if broker in (None, publisher.sent.broker) and publisher.wire is None:
                if publisher.sent.next:
                    publisher.sent.reborn()
                await publisher.come()

    async def publish(self) -> None:
        """For ever."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            share = (now - last) * self.rate
            last = now
            for publisher in self.publishers:
                publisher.publish(share)

    async def check(self) -> dict[str, Any]:
        """Compare what was acknowledged by now with what came; the traffic goes on."""
        begin = time.monotonic()
        heard = "all subscribers hear everybody"
        await self.until(lambda: all(s.ear is not None and s.ear.open() for s in self.subscribers), heard)
        opened = time.monotonic() - begin
        await self.until(self.judge.begin, "a message acknowledged for each publisher")
        ears = [s.ear for s in self.subscribers if s.ear is not None]
        late: list[str] = []

        def all_here() -> bool:
            late[:] = self.judge.compare(ears)
            return not late

        if not await self.until(all_here):
            self.judge.counts["broken"] += len(late)
            self.judge.broken += late[:20]
        self.judge.settle(ears)
        broken, self.judge.broken = self.judge.broken, []
        total = {f"acknowledged at QoS {q}": sum(s.total for s in self.judge.sent.values() if s.qos == q) for q in (1, 2)}
        took = time.monotonic() - begin
        return {"broken": broken, "counts": {**self.judge.counts, **total}, "open": opened, "took": took}

    async def until(self, condition: Any, what: str = "") -> bool:
        """Poll; `what`, if any, is a broken promise when it takes too long."""
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                if what:
                    self.judge.counts["broken"] += 1
                    self.judge.broken.append(f"in vain: {what}")
                return False
            await asyncio.sleep(0.1)
        return True

    async def order(self, what: str, *arguments: Any) -> Any:
        """What the conductor wants."""
        match what:
            case "down":
                self.down.add(arguments[0])
            case "up":
                for _ in range(50):
                    with suppress(OSError, asyncio.CancelledError):
                        await self.come(arguments[0])
                        break
                    await asyncio.sleep(0.1)
                self.down.discard(arguments[0])
            case "check":
                return await self.check()
        return None


async def obey(orders: Connection, do: Any) -> None:
    """Answer orders one by one until there is nobody who gives any."""
    loop = asyncio.get_running_loop()
    there = asyncio.Event()
    loop.add_reader(orders.fileno(), there.set)
    os.set_blocking(orders.fileno(), True)  # uvloop has changed that; a long answer would break off
    while True:
        await there.wait()
        there.clear()
        while orders.poll():
            try:
                order = orders.recv()
            except (EOFError, OSError):
                loop.remove_reader(orders.fileno())
                return
            orders.send(await do(*order))


async def serve(ports: list[int], publishers: int, subscribers: int, rate: float, orders: Connection) -> None:
    """Come, send, and obey."""
    crowd = Crowd(ports, publishers, subscribers, rate)
    await crowd.come(None)
    sending = asyncio.ensure_future(crowd.publish())
    await obey(orders, crowd.order)
    sending.cancel()


def run(ports: list[int], publishers: int, subscribers: int, rate: float, orders: Connection) -> None:
    """The process."""
    import uvloop

    uvloop.run(serve(ports, publishers, subscribers, rate, orders))
