"""Publishers at QoS 1 and 2 and subscribers on all brokers, as some processes: they say what came
wrong, and ask nothing of the clock but when to send.

Publishers keep their sessions and go on with them: what was not acknowledged is sent again. The
first subscriber of each broker hears all ordinary publishers, the others one group of them. How far
each publisher is stands in memory that all processes share: what is sent after a subscriber has its
SUBACK has to come.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import MutableSequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from mqttree.bench.load import packets
from mqttree.bench.load.client import LoadClient, ignore, message
from tests.chaos.judge import Ear, Judge, Receipt, Sent
from tests.chaos.plan import SIZE, Listener, Plan, Speaker

TICK = 0.01
"""s between two rounds of publishing."""
WINDOW = 300, 4000
"""Messages of a publisher that are not acknowledged; it waits then. Half a second's, within these
bounds."""
PATIENCE = 45.0
"""s until what has not come is called lost: much longer than any repair, as the machine may be
busy."""
LATE = "the crowd was late, ms: most"
ANSWER = 15.0
"""s until a client that roams takes a broker for one that does not answer, and tries another
one."""


class Publisher:
    """One publisher and its session."""

    def __init__(self, crowd: Crowd, speaker: Speaker) -> None:
        self.crowd = crowd
        self.speaker = speaker
        self.sent = Sent(speaker.number, speaker.broker, speaker.qos)
        self.flying: dict[int, int] = {}
        self.released: set[int] = set()
        self.sizes: dict[int, int] = {}  # of large messages that are flying
        self.wire: LoadClient | None = None
        self.owed = 0.0
        self.window = (
            int(min(max(speaker.rate / 2, WINDOW[0]), WINDOW[1])) if not speaker.large else 4
        )
        self.rng = random.Random(speaker.number)
        self.filling = bytes(SIZE - 12)
        self._mid = 0

    async def come(self) -> None:
        """Connect, and send again what was not acknowledged."""
        version = 4 + self.speaker.number // 2 % 2
        wire = LoadClient(f"pub{self.speaker.number}", version, ignore, self.lost, set())
        wire.accepted, wire.completed = self.accepted, self.released.discard
        await wire.connect("127.0.0.1", self.crowd.plan.ports[self.speaker.broker])
        if self.sent.next or not wire.present:
            wiped = self.speaker.broker in self.crowd.wiped
            excused = wiped and not self.crowd.covered
            if self.sent.next:
                self.sent.reborn(not wire.present, wiped, excused)
            if not wire.present:
                if self.sent.next and not excused:
                    what = (
                        f"b{self.speaker.broker} has lost the session "
                        f"of publisher {self.speaker.number}"
                    )
                    self.crowd.judge.broken.append(what)
                self.flying.clear()
                self.released.clear()
                self.sizes.clear()
        assert wire.transport is not None
        for mid, number in self.flying.items():
            wire.transport.write(self.encoded(wire, mid, number, True))
        wire.transport.write(
            b"".join(packets.PUBREL_HEAD + mid.to_bytes(2, "big") for mid in self.released)
        )
        self.wire = wire

    def lost(self) -> None:
        self.wire = None
        self.crowd.lost(f"publisher {self.speaker.number}", self.speaker.broker)

    def accepted(self, mid: int) -> None:
        number = self.flying.pop(mid, None)
        if number is not None:
            self.sent.acknowledged(number)
            self.sizes.pop(number, None)
            if self.speaker.qos == 2:
                self.released.add(mid)

    def encoded(self, wire: LoadClient, mid: int, number: int, dup: bool = False) -> bytes:
        """One PUBLISH."""
        size = self.sizes.get(number, SIZE)
        payload = self.sent.head(number, size) + (
            self.filling if size == SIZE else bytes(size - 12)
        )
        speaker = self.speaker
        return message(speaker.topic, payload, speaker.qos, wire.version, mid, dup)

    def publish(self, seconds: float) -> None:
        """Send what is due."""
        self.owed = min(self.owed + seconds * self.speaker.rate, max(5.0, 0.1 * self.speaker.rate))
        wire = self.wire
        if wire is None or wire.transport is None or wire.full:
            return
        flying, released = self.flying, self.released
        count = min(int(self.owed), self.window - len(flying) - len(released))
        if count <= 0:
            return
        self.owed -= count
        first = self.sent.sends(count)
        self.crowd.sent[self.speaker.number] = self.sent.next  # before it goes out
        out = []
        for number in range(first, first + count):
            mid = self._mid % 65_535 + 1
            while mid in flying or mid in released:
                mid = mid % 65_535 + 1
            self._mid = mid
            flying[mid] = number
            if self.speaker.large:
                self.sizes[number] = self.rng.randint(1 << 20, self.speaker.large)
            out.append(self.encoded(wire, mid, number))
        wire.transport.write(b"".join(out))


class Subscriber:
    """One subscriber; `ear` is of its connection."""

    def __init__(self, crowd: Crowd, listener: Listener) -> None:
        self.crowd = crowd
        self.listener = listener
        self.ear: Ear | None = None

    async def come(self) -> None:
        """Connect and subscribe."""
        crowd, listener = self.crowd, self.listener
        ear = Ear(listener.name, listener.broker, {number: Receipt() for number in listener.hears})

        def lost() -> None:
            self.ear = None
            crowd.lost(ear.name, listener.broker)

        def came(payload: bytes, qos: int) -> None:
            crowd.judge.came(ear, payload, qos)

        wire = LoadClient(f"sub{listener.number}", 4 + listener.number % 2, came, lost)
        await wire.connect("127.0.0.1", crowd.plan.ports[listener.broker])
        assert await wire.subscribe(listener.filter, 2) == 2
        crowd.ready(ear)
        self.ear = ear


class Member:
    """A client with a session that goes on: of the group, whose ear all members share, one that
    roams, or one that stays at its broker."""

    def __init__(self, crowd: Crowd, listener: Listener, ear: Ear) -> None:
        self.crowd = crowd
        self.listener = listener
        self.ear = ear
        self.broker = listener.broker
        self.incoming: set[bytes] = set()
        self.wire: LoadClient | None = None
        self.began = False
        self.rng = random.Random(listener.number)

    async def come(self) -> None:
        """Connect; subscribe if there is no session."""
        ear, judge = self.ear, self.crowd.judge
        name = self.listener.name.replace(" ", "")
        version = 4 + self.listener.number % 2
        wire = LoadClient(
            name,
            version,
            lambda payload, qos: judge.came(ear, payload, qos),
            self.lost,
            self.incoming,
        )
        covered = self.crowd.covered
        await wire.connect("127.0.0.1", self.crowd.plan.ports[self.broker])
        if not wire.present:
            if self.began:
                judge.counts["sessions lost"] += 1
                if covered and self.crowd.covered:
                    judge.broken.append(f"b{self.broker} has no session of {ear.name}")
                ear.ordered = False  # what waited elsewhere comes behind what is newer
            if await wire.subscribe(self.listener.filter, 2) != 2:
                raise OSError("SUBSCRIBE was refused")
            self.crowd.ready(ear)
        self.began = True
        self.wire = wire

    def lost(self) -> None:
        self.wire = None
        if self.listener.kind != "rover":
            self.crowd.lost(self.listener.name, self.broker)

    async def roam(self) -> None:
        """For ever: stay a while, go, come elsewhere."""
        while True:
            with suppress(OSError, TimeoutError):
                await asyncio.wait_for(self.come(), ANSWER)
            await asyncio.sleep(self.rng.uniform(0.5, 6.0))
            wire, self.wire = self.wire, None
            if wire is not None and wire.transport is not None:
                if self.rng.random() < 0.5:
                    wire.transport.write(packets.DISCONNECT_BYTES)
                wire.transport.close()
                self.crowd.judge.counts["sessions roamed"] += 1
            self.broker = self.rng.choice(
                [home for home in self.crowd.plan.homes if home not in self.crowd.down] or [0]
            )
            self.ear.crossed |= self.crowd.apart
            await asyncio.sleep(self.rng.uniform(0, 0.5))


class Crowd:
    """All of one process."""

    def __init__(self, plan: Plan, index: int, sent: MutableSequence[int]) -> None:
        """`sent`: how many messages each publisher has sent, shared by all processes."""
        self.plan = plan
        self.sent = sent
        self.judge = Judge(
            {speaker.number: (speaker.broker, speaker.qos) for speaker in plan.speakers}
        )
        self.down: set[int] = set(range(len(plan.ports))) - set(plan.present)
        self.wiped: set[int] = set()
        self.covered = True
        """Whether nothing has failed that may cost a session."""
        self.apart = False
        """Whether brokers may not reach each other."""
        self.publishers = [Publisher(self, s) for s in plan.speakers[index :: plan.processes]]
        mine = plan.listeners[index :: plan.processes]
        self.subscribers = [Subscriber(self, each) for each in mine if each.kind == "plain"]
        self.rovers = [
            Member(self, each, self.heard(each)) for each in mine if each.kind == "rover"
        ]
        group = [each for each in plan.listeners if each.kind == "member" and index == 0]
        self.group = [self.heard(group[0])] if group else []
        self.stayers = [
            Member(self, each, self.heard(each)) for each in mine if each.kind == "stayer"
        ]
        self.members = [Member(self, each, self.group[0]) for each in group] + self.stayers
        self.tasks: list[asyncio.Future[None]] = []

    @staticmethod
    def heard(listener: Listener) -> Ear:
        """What sessions that go on have."""
        group = listener.kind == "member"
        receipts = {number: Receipt() for number in listener.hears}
        return Ear(
            "the group" if group else listener.name, listener.broker, receipts, ordered=not group
        )

    def ready(self, ear: Ear) -> None:
        """It has SUBACK: everything that is sent from now on has to come."""
        for number, receipt in ear.receipts.items():
            if receipt.since < 0:
                receipt.since = receipt.settled = self.sent[number]

    def lost(self, who: str, broker: int) -> None:
        """A connection ended."""
        if broker not in self.down:
            self.judge.counts["connections lost"] += 1
            self.judge.broken.append(f"{who} lost its connection to b{broker}, which lived")

    async def listen(self, broker: int | None) -> None:
        """Subscribers of this broker (None: all that are there) connect."""
        there = set(self.plan.present) if broker is None else {broker}
        for subscriber in self.subscribers:
            if subscriber.listener.broker in there and subscriber.ear is None:
                await subscriber.come()
        for member in self.members:
            if member.broker in there and member.wire is None:
                await member.come()
        if broker is None:
            self.tasks += [asyncio.ensure_future(rover.roam()) for rover in self.rovers]
            await self.until(
                lambda: all(rover.began for rover in self.rovers),
                "clients that roam have subscribed",
            )

    async def speak(self, broker: int | None) -> None:
        """Publishers of this broker (None: all that are there) connect."""
        there = set(self.plan.present) if broker is None else {broker}
        for publisher in self.publishers:
            if publisher.speaker.broker in there and publisher.wire is None:
                await publisher.come()

    async def publish(self) -> None:
        """For ever."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            self.judge.counts[LATE] = max(
                self.judge.counts[LATE], round(1000 * (now - last - TICK))
            )
            for publisher in self.publishers:
                publisher.publish(now - last)
            last = now

    def ears(self) -> list[Ear]:
        """All that hear."""
        plain = [s.ear for s in self.subscribers if s.ear is not None]
        return plain + [one.ear for one in (*self.rovers, *self.stayers)] + self.group

    async def mark(self) -> dict[str, Any]:
        """Wait until all that was sent before this is acknowledged; the traffic goes on."""
        wanted = {p: p.sent.next for p in self.publishers if p.wire is not None}
        behind: list[Publisher] = []

        def done() -> bool:
            behind[:] = [p for p, number in wanted.items() if p.sent.mark() < number]
            return not behind

        if not await self.until(done):
            for p in behind:
                what = (
                    f"{wanted[p] - p.sent.upto} of {wanted[p]} from {p.sent.upto}, "
                    f"window {len(p.flying)} + {len(p.released)}"
                )
                self.judge.counts["broken"] += 1
                self.judge.broken.append(
                    f"not acknowledged: publisher {p.speaker.number} (b{p.speaker.broker}): {what}"
                )
        marks = {p.speaker.number: p.sent.upto for p in self.publishers}
        return {
            "marks": marks,
            "voids": {p.speaker.number: p.sent.voids for p in self.publishers if p.sent.voids},
            "doubts": {
                p.speaker.number: (p.sent.doubts[0][0], p.sent.doubts[-1][1])
                for p in self.publishers
                if p.sent.doubts
            },
        }

    def tell(
        self, marks: dict[int, int], voids: dict[int, list[tuple[int, int]]]
    ) -> dict[str, Any]:
        """All that was wrong since this was called last; what was compared is done with."""
        broken, disorder = list(self.judge.broken), list(self.judge.disorder.values())
        self.judge.settle(self.ears(), marks)
        for publisher in self.publishers:
            publisher.sent.doubts.clear()
            publisher.sent.voids = list(voids.get(publisher.speaker.number, publisher.sent.voids))
        total = {
            f"acknowledged at QoS {q}": sum(
                p.sent.state.count(1) for p in self.publishers if p.speaker.qos == q
            )
            for q in (1, 2)
        }
        return {"broken": broken, "disorder": disorder, "counts": {**self.judge.counts, **total}}

    async def until(self, condition: Any, what: str = "") -> bool:
        """Poll; `what`, if any, is a broken promise when it takes too long."""
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                if what:
                    self.judge.counts["broken"] += 1
                    self.judge.broken.append(f"in vain: {what}")
                return False
            await asyncio.sleep(0.05)
        return True

    async def order(self, what: str, *arguments: Any) -> Any:
        """What the conductor wants."""
        match what:
            case "listen":
                await self.listen(None)
            case "speak":
                await self.speak(None)
                self.tasks.append(asyncio.ensure_future(self.publish()))
            case "quiet":
                self.tasks.pop().cancel()
            case "down":
                self.down.add(arguments[0])
            case "wiped":
                self.wiped.add(arguments[0])
            case "covered":
                self.covered = arguments[0]
            case "apart":
                self.apart = arguments[0]
                if not self.apart:  # all was compared
                    for member in (*self.rovers, *self.members):
                        member.ear.crossed = False
            case "up":
                await self.up(arguments[0])
            case "met":
                self.met(arguments[0])
            case "mark":
                return await self.mark()
            case "lacks":
                return self.judge.lacks(self.ears(), *arguments)
            case "reach":
                return self.judge.reach(self.ears(), *arguments)
            case "tell":
                return self.tell(*arguments)
        return None

    def met(self, broker: int) -> None:
        """A broker without data has met the others: what these published before is not owed to its
        clients, which have subscribed while it was alone (docs/promises.md)."""
        for subscriber in self.subscribers:
            if subscriber.listener.broker != broker or subscriber.ear is None:
                continue
            for number, receipt in subscriber.ear.receipts.items():
                if self.judge.publishers[number][0] != broker:
                    receipt.since = receipt.settled = self.sent[number]

    async def up(self, broker: int) -> None:
        """A broker is back: its clients are, too."""
        for _ in range(100):
            with suppress(OSError):
                await self.listen(broker)
                await self.speak(broker)
                break
            await asyncio.sleep(0.1)
        self.down.discard(broker)
        self.wiped.discard(broker)


async def obey(orders: Connection, do: Any) -> None:
    """Answer orders one by one until the other end of the pipe closes."""
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


async def serve(plan: Plan, index: int, sent: MutableSequence[int], orders: Connection) -> None:
    """Come, send, and obey."""
    crowd = Crowd(plan, index, sent)
    await obey(orders, crowd.order)
    for task in crowd.tasks:
        task.cancel()


def run(plan: Plan, index: int, sent: MutableSequence[int], orders: Connection) -> None:
    """The process."""
    import uvloop

    uvloop.run(serve(plan, index, sent, orders))
