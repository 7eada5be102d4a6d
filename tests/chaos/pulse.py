"""A publisher and a subscriber on each broker that hear each other only, a hundred times a second,
as a process: how long does what is local to a broker stand still while others die? QoS 1.

Of each pause it is said how much of it this process itself was not run (its timer came late), and
how much of it the broker ran and waited for a processor (Linux's schedstat).
"""

from __future__ import annotations

import asyncio
import os
import time
from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from mqttree.bench.load.client import LoadClient, ignore
from tests.chaos.crowd import obey

RATE = 100
"""messages a second on each broker."""
TICK = 0.0025
"""s."""
LONG = 0.05
"""s; a pause that is kept with what is known of it."""


@dataclass(slots=True)
class Pause:
    """Nothing was delivered at a broker for `length` s until `end` (monotonic); of these s: `own`,
    `ran`, `waited` (above)."""

    broker: int
    end: float
    length: float
    own: float
    ran: float
    waited: float

    @property
    def net(self) -> float:
        """s without what this process was late itself."""
        return self.length - self.own


class Schedule:
    """How long a process has run and waited for a processor, in s; zeros where the system does not
    say."""

    def __init__(self, pid: int) -> None:
        self.file = -1
        with suppress(OSError):
            self.file = os.open(f"/proc/{pid}/schedstat", os.O_RDONLY)

    def read(self) -> tuple[float, float]:
        """Now."""
        with suppress(OSError, ValueError, IndexError):
            ran, waited = os.pread(self.file, 100, 0).split()[:2]
            return int(ran) / 1e9, int(waited) / 1e9
        return 0.0, 0.0

    def close(self) -> None:
        """Let go."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


@dataclass(slots=True)
class Heart:
    """One broker's pair."""

    broker: int
    schedule: Schedule
    sender: LoadClient | None = None
    hearer: LoadClient | None = None
    due: float = 0.0
    sent: int = 0
    heard: int = 0
    last: float = 0.0
    """When something came; 0 until then, and while the broker is away."""
    then: tuple[float, float] = (0.0, 0.0)
    away: bool = False


@dataclass(slots=True)
class Pulse:
    """All pairs, and what was measured."""

    ports: list[int]
    hearts: dict[int, Heart] = field(default_factory=dict)
    lags: list[tuple[float, float]] = field(default_factory=list)
    """(end, s late) of this process's timer, when it was late by more than a tick."""
    gaps: list[int] = field(default_factory=lambda: [0] * 2001)
    """How many pauses of so many ms."""
    nets: list[int] = field(default_factory=lambda: [0] * 2001)
    pauses: list[Pause] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    wanted: float = 0.0
    """When the timer is to come."""

    async def come(self, broker: int, pid: int) -> None:
        """Connect the pair of this broker."""
        heart = self.hearts[broker] = Heart(broker, Schedule(pid))
        heart.hearer = LoadClient(
            f"heard{broker}",
            4,
            lambda payload, _qos: self.came(heart, payload),
            lambda: self.lost(heart),
        )
        await heart.hearer.connect("127.0.0.1", self.ports[broker])
        await heart.hearer.subscribe(f"pulse/{broker}", 1)
        sender = LoadClient(f"sends{broker}", 5, ignore, lambda: self.lost(heart))
        heart.sender = await sender.connect("127.0.0.1", self.ports[broker])
        heart.due = time.monotonic() + broker / RATE / len(self.ports)

    def lost(self, heart: Heart) -> None:
        """A connection ended."""
        if not heart.away:
            self.broken.append(
                f"a local client lost its connection to b{heart.broker}, which lived"
            )
            self.away(heart)

    @staticmethod
    def away(heart: Heart) -> None:
        """Something is going to be done to the broker itself: its pauses do not count."""
        heart.away = True
        heart.last = 0.0

    def came(self, heart: Heart, payload: bytes) -> None:
        """A delivery."""
        now = time.monotonic()
        if (index := int(payload)) != heart.heard:
            self.broken.append(
                f"local QoS 1 at b{heart.broker}: {index} came after {heart.heard - 1}"
            )
        heart.heard = index + 1
        if heart.away:
            return
        then, heart.then = heart.then, heart.schedule.read()
        if heart.last:
            length = now - heart.last
            ran, waited = heart.then[0] - then[0], heart.then[1] - then[1]
            pause = Pause(heart.broker, now, length, self.own(heart.last, now), ran, waited)
            self.gaps[min(int(length * 1000), 2000)] += 1
            self.nets[min(max(int(pause.net * 1000), 0), 2000)] += 1
            if length > LONG:
                self.pauses.append(pause)
        heart.last = now

    def own(self, begin: float, end: float) -> float:
        """s between these times that this process came late."""
        total = 0.0
        for index in range(bisect_left(self.lags, (begin, 0.0)), len(self.lags)):
            at, late = self.lags[index]
            total += max(0.0, min(at, end) - max(at - late, begin))
        if end - self.wanted > TICK:  # the timer comes right after what is read now
            total += end - max(self.wanted, begin)
        return total

    async def beat(self) -> None:
        """For ever: send, and watch the own timer."""
        self.wanted = time.monotonic() + TICK
        while True:
            await asyncio.sleep(max(0.0, self.wanted - time.monotonic()))
            now = time.monotonic()
            if now - self.wanted > TICK:
                self.lags.append((now, now - self.wanted))
            self.wanted = now + TICK
            for heart in self.hearts.values():
                if heart.sender is None or heart.sender.transport is None:
                    continue
                while heart.due <= now:
                    heart.due += 1 / RATE
                    if heart.sent - heart.heard < 2000:
                        heart.sender.publish(b"pulse/%d" % heart.broker, b"%d" % heart.sent, 1)
                        heart.sent += 1

    async def order(self, what: str, *arguments: Any) -> Any:
        """What the conductor wants."""
        match what:
            case "away" | "down":
                if arguments[0] in self.hearts:
                    self.away(self.hearts[arguments[0]])
            case "back":
                self.hearts[arguments[0]].away = False
            case "up":
                if arguments[0] in self.hearts:
                    self.hearts[arguments[0]].schedule.close()
                await self.come(*arguments)
                self.away(self.hearts[arguments[0]])  # no survivor until all are one again
            case "tell":
                broken, self.broken = self.broken, []
                latest = max((late for _, late in self.lags), default=0.0)
                return broken, self.pauses, self.gaps, self.nets, len(self.lags), latest
        return None


async def serve(ports: list[int], pids: list[int], orders: Connection) -> None:
    """Come, send, and obey."""
    pulse = Pulse(ports)
    for broker, pid in enumerate(pids):
        await pulse.come(broker, pid)
    beating = asyncio.ensure_future(pulse.beat())
    await obey(orders, pulse.order)
    beating.cancel()


def run(ports: list[int], pids: list[int], orders: Connection) -> None:
    """The process."""
    import uvloop

    uvloop.run(serve(ports, pids, orders))
