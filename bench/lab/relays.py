"""The network where there are no namespaces: every connection between hosts runs through this
process, which delays its bytes.

Each broker advertises a port of this process; which broker dials there is read in the CONNECT
(mqttree's say their names). For bridges and clients, which do not, every (host, broker) has a port
of its own. As TCP would look: what is lost comes a retransmission later (with all that its
connection sends after it, and nothing else), what the queue has no room for is not read yet, a cut
or deaf direction keeps what is sent until it heals or is given up, and the other end learns
nothing.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import select
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any

import psutil

from mqttree.bench.lab.half import Half, dialler
from mqttree.bench.lab.network import Meter, Recorder, obey, settle, tell_use
from mqttree.bench.lab.pipe import Pipe
from mqttree.bench.lab.tap import Stream, Talk
from mqttree.bench.lab.topology import Topology
from mqttree.bench.load.histogram import Histogram

SEGMENT = 1448
"""bytes; what the loss of one packet hits."""
RETRANSMISSION = 200_000_000
"""ns; Linux' shortest retransmission timeout, to which the round trip is added."""
Routes = dict[int, tuple[str, str]]
"""Port -> (who calls there, "" for a broker that says its name; whom it calls)."""


class Fine(selectors.EpollSelector):
    """Waits to the microsecond; epoll's own timeout counts in ms, which would be added to every
    delay."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As the base class does."""
        if timeout is not None and timeout > 0:
            select.select([self.fileno()], [], [], timeout)
            timeout = 0
        return super().select(timeout)


class End(Half):
    """One half of a connection: what comes from `host` goes to the other half, through the pipe of
    this direction."""

    other: End | None

    def __init__(self, relays: Relays, host: str) -> None:
        super().__init__()
        self.relays, self.host = relays, host
        self.stream: Stream | None = None
        # From here to the other host; None: they are one host, or it is not known yet.
        self.pipe: Pipe | None = None
        self.early: deque[bytes] = deque()  # segments that may not go on yet
        # Segments that have not arrived yet; empty: the end.
        self.under_way: deque[bytes] = deque()
        self.last = 0  # when the last of them does (ns)
        self.ended = False
        self.waiting = False  # for room in the queue

    def connection_lost(self, _error: Exception | None) -> None:
        """The end is passed on behind what came before it."""
        self.transport = None
        self.ended = True
        if self.other is None:
            self.relays.ends.discard(self)
        else:
            self.go_on()

    def data_received(self, data: bytes) -> None:
        """Pass it on, when it may."""
        other, pipe = self.other, self.pipe
        if (
            pipe is not None
            and pipe.direct
            and pipe.open
            and other is not None
            and other.transport is not None
            and not (self.early or self.under_way)
        ):
            if self.stream is not None:
                self.relays.meter.now = time.monotonic_ns()
                self._tap(data)
            pipe.packets += 1
            pipe.bytes += len(data)
            other.transport.write(data)
            return
        self.keep(data)
        self.go_on()

    def keep(self, data: bytes) -> None:
        """Put it behind what may not go on yet."""
        self.early.extend(data[at : at + SEGMENT] for at in range(0, len(data), SEGMENT))

    def joined(self, other: End, talk: Talk) -> None:
        """Begin to pass on: the other half is there."""
        self.other = other
        self.pipe = self.relays.pipes.get((self.host, other.host))
        brokers = self.relays.tapped
        if self.host in brokers and other.host in brokers and self.pipe is not None:
            meter, source, target = self.relays.meter, self.host, other.host
            self.stream = Stream(talk, lambda seen: meter.seen(source, target, seen))
        self.go_on()

    def go_on(self) -> None:
        """Send on what may go, and keep or take up reading."""
        if self.other is None or (self.pipe is not None and not self.pipe.open):
            self.obey()
            return
        now = self.relays.meter.now = time.monotonic_ns()
        wait = 0.0
        while (self.early or self.ended) and not (wait := self._wait(now)):
            data = self.early.popleft() if self.early else b""
            if self.stream is not None and data:
                self._tap(data)
            self._send(now, data)
            if not data:
                self.ended = False
                self.relays.ends.discard(self)
        if wait and not self.waiting:
            self.waiting = True
            self.relays.loop.call_later(wait, self._again)
        self.obey()

    def _again(self) -> None:
        self.waiting = False
        self.go_on()

    def _wait(self, now: int) -> float:
        """Return s after which there may be room in the queue; drawn, so that no connection is
        always the first. 0: there is."""
        pipe = self.pipe
        if pipe is None or (backlog := pipe.backlog(now)) <= self.relays.most(pipe):
            return 0.0
        return max(
            1e-4, self.relays.random.random() * backlog * 8e-6 / (pipe.wire.rate_mbit or 1.0)
        )

    def _tap(self, data: bytes) -> None:
        assert self.stream is not None
        self.stream.feed(data)
        if self.stream.broken:
            self.relays.tap_broken += 1
            self.stream = None

    def _send(self, now: int, data: bytes) -> None:
        due, late, pipe = now, 0, self.pipe
        if pipe is not None:
            while (arrives := pipe.offer(now, len(data), self.relays.random)) is None:
                late += RETRANSMISSION + int(2e6 * pipe.wire.delay_ms)
            due = arrives + late
        self.last = max(due, self.last)
        self.under_way.append(data)
        self.relays.at(self.last, self._arrive)

    def _arrive(self) -> None:
        """The first that is under way has arrived: whichever timer says so, for timers of one time
        come in any order."""
        data, other = self.under_way.popleft(), self.other
        if other is None or other.transport is None:
            return
        if not data:
            other.transport.close()
        elif not other.transport.is_closing():
            other.transport.write(data)

    def abort(self) -> None:
        """Reset this half of the connection."""
        if self.transport is not None:
            self.transport.abort()

    def held(self) -> bool:
        """Whether the queue has no room, or this direction is cut."""
        return self.waiting or (self.pipe is not None and not self.pipe.open)


class Caller(End):
    """The half towards the end that dials; where that is a broker, its name is read before the
    other broker is called."""

    def __init__(self, relays: Relays, host: str, callee: str) -> None:
        """A connection that has come to one of the ports of `relays`: from `host` ("": a broker
        that says its name), for the broker `callee`."""
        super().__init__(relays, host)
        self.callee = callee
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio calls it."""
        super().connection_made(transport)
        self.relays.ends.add(self)
        if self.host:
            self._known()

    def data_received(self, data: bytes) -> None:
        """Pass it on, when it may."""
        if self.task is not None:
            super().data_received(data)
            return
        self.keep(data)
        name = dialler(b"".join(self.early))
        if name is None:
            return
        self.host = name
        self._known()

    def _known(self) -> None:
        """It is known who calls whom."""
        if frozenset((self.host, self.callee)) in self.relays.refused:
            self.abort()
        else:
            self.task = self.relays.loop.create_task(self._call())

    async def _call(self) -> None:
        end = End(self.relays, self.callee)
        try:
            await self.relays.loop.create_connection(
                lambda: end, "127.0.0.1", self.relays.targets[self.callee]
            )
        except OSError:
            self.abort()
            return
        if frozenset((self.host, self.callee)) in self.relays.refused:
            end.abort()
            self.abort()
            return
        self.relays.ends.add(end)
        talk = Talk()
        self.joined(end, talk)
        end.joined(self, talk)


class Relays:
    """All relayed connections, and what was ordered about them."""

    def __init__(
        self,
        topology: Topology,
        targets: dict[str, int],
        recorder: Recorder | None,
        seed: int,
        *,
        tap: bool = True,
    ) -> None:
        """`topology` says which hosts there are, and how the links between them are; `targets` at
        which port of the loopback each broker listens. `recorder` takes the trace, `seed` is of
        what is drawn. Without `tap` the packets between brokers are not looked at, nor counted by
        kind."""
        hosts = topology.hosts
        self.tapped = frozenset(targets) if tap else frozenset()
        self.targets = targets
        self.refused: set[frozenset[str]] = set()
        """Pairs of hosts whose connections are reset as they come."""
        self.pipes: dict[tuple[str, str], Pipe] = {}
        for one in hosts:
            for other in hosts:
                if one != other:
                    self.pipes[one, other] = Pipe(topology.wire(one, other))
        self.meter = Meter(recorder)
        self.random = random.Random(seed)
        self.ends: set[End] = set()
        self.late = Histogram()
        self.tap_broken = 0
        self.loop = asyncio.get_running_loop()

    def most(self, pipe: Pipe) -> float:
        """Bytes that may wait for a pipe's rate; far from what the pipe would drop."""
        return pipe.wire.queue_kb * 1024 / 4

    def at(self, due: int, call: Callable[[], None]) -> None:
        """Call at a time (ns)."""
        self.loop.call_at(due / 1e9, self._now, due, call)

    def _now(self, due: int, call: Callable[[], None]) -> None:
        self.late.add(time.monotonic_ns() - due)
        call()

    def reset(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Resets all connections between these pairs of hosts."""
        between = {frozenset(pair) for pair in pairs}
        for end in list(self.ends):
            if end.other is not None and frozenset((end.host, end.other.host)) in between:
                end.abort()

    def order(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carries out one order of the lab and returns the answer. "set", "fresh" and "totals" are
        those of `mqttree.bench.lab.network`; "reset" resets the connections between some pairs of
        hosts, "refuse" also those that come later, until "accept"."""
        if order["do"] == "set":
            try:
                obey(order, self.pipes)
            except ValueError as error:
                return {"refused order": str(error)}
            for end in list(self.ends):
                end.go_on()
        elif order["do"] == "reset":
            self.reset(order["pairs"])
        elif order["do"] == "refuse":
            self.refused |= {frozenset(pair) for pair in order["pairs"]}
            self.reset(order["pairs"])
        elif order["do"] == "accept":
            self.refused -= {frozenset(pair) for pair in order["pairs"]}
        elif order["do"] == "fresh":
            self.late = Histogram()
        elif order["do"] == "totals":
            return self.meter.totals(self.pipes, self.late) | {
                "unroutable": 0,
                "refused": 0,
                "tap_broken": self.tap_broken,
            }
        return {}


async def serve(
    topology: Topology,
    targets: dict[str, int],
    routes: Routes,
    orders: Connection,
    recorder: Recorder | None,
    seed: int,
    *,
    tap: bool = True,
) -> None:
    """Listens and obeys until the other end of `orders` is closed.

    `topology`, `targets`, `recorder`, `seed` and `tap` are those of `Relays`; `routes` says what a
    connection to each port means. `orders` takes orders and gives an answer to each; the first
    answer says that the network is there, or why not.
    """
    loop = asyncio.get_running_loop()
    relays = Relays(topology, targets, recorder, seed, tap=tap)
    try:
        for port, (host, callee) in routes.items():
            await loop.create_server(
                lambda host=host, callee=callee: Caller(relays, host, callee),  # type: ignore[misc]
                "127.0.0.1",
                port,
            )
    except OSError as error:
        orders.send({"failed": error.strerror or str(error)})
        return
    end: asyncio.Future[None] = loop.create_future()

    def order() -> None:
        try:
            orders.send(relays.order(orders.recv()))
        except (EOFError, OSError):
            loop.remove_reader(orders.fileno())
            end.set_result(None)

    loop.add_reader(orders.fileno(), order)
    orders.send({})
    own = psutil.Process(os.getpid())
    while not end.done():
        if recorder is not None:
            relays.meter.now = time.monotonic_ns()
            relays.meter.report(relays.pipes)
            tell_use(recorder, relays.meter.now, own)
            recorder.tick()
        await asyncio.wait([end], timeout=1.0)


def run(
    topology: Topology,
    targets: dict[str, int],
    routes: Routes,
    orders: Connection,
    recorder: Callable[[], Recorder] | None,
    seed: int,
) -> None:
    """The process of the network (forked). It ends when its `orders` do.

    `topology`, `targets` and `seed` are those of `Relays`, `routes` those of `serve`; `recorder`
    makes what takes the trace (None: there is none).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kept = recorder() if recorder is not None else None
    try:
        settle()
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(Fine())) as runner:
            runner.run(serve(topology, targets, routes, orders, kept, seed))
    finally:
        if kept is not None:
            kept.close()
