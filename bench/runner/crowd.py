"""All clients of a scenario as one process: they publish by the clock or as fast as they are
answered, and note everything."""

from __future__ import annotations

import contextlib
import gc
import heapq
import resource
import select
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from mqttree.bench.lab.lab import Lab
from mqttree.bench.lab.priority import be_woken_in_time, have_a_larger_share
from mqttree.bench.load.cpu import cores, time_finely
from mqttree.bench.runner.book import Book, Receiver
from mqttree.bench.runner.clients import Client, Publisher, Subscriber, Surroundings
from mqttree.bench.scenarios.scenario import Cell
from mqttree.bench.scenarios.workload import ClientSpec
from mqttree.bench.trace import TraceError, Writer

CONNECT_PAUSE = 0.25
"""s between two attempts to connect."""
AT_ONCE = 100
"""Connections that are being opened at a time."""
JOIN_PAUSE = 0.3
"""s between two subscribers that join a mesh of federators: who is first is its core."""
SWEEP = 0.02
"""s between two looks at publishers whose windows nothing has opened."""


class Crowd(Surroundings):
    """All clients, and the loop that serves them."""

    def __init__(
        self,
        lab: Lab,
        cell: Cell,
        specs: Sequence[ClientSpec],
        trace: Writer,
        orders: Connection,
        name: str = "generator-0",
    ) -> None:
        """Make the clients of `specs` on the hosts of `lab`, with the flows of `cell`. `trace`
        takes what they note, `orders` says when to begin and to end; `name` is the process's."""
        self.name = name
        self.lab, self.cell, self.trace, self.orders = lab, cell, trace, orders
        self.book = Book(specs, {name: flow.qos for name, flow in cell.flows.items()})
        self.every = cell.main.every
        self.subscribers = [
            Subscriber(self, s, cell.flows[s.flow], self.book.receiver(s))
            for s in specs
            if s.number < 0
        ]
        self.publishers = [
            Publisher(self, s, cell.flows[s.flow], self.book.publishers[s.number])
            for s in specs
            if s.number >= 0
        ]
        self._by_number = {each.spec.number: each for each in self.publishers}
        self.connected: dict[int, Client] = {}
        self.epoll = select.epoll()
        self._timers: list[tuple[float, int, Any, Any]] = []
        self._numbers = 0
        self._opening: list[Client] = []
        self._calling = 0
        self.interruptions = 0
        self.skipped = 0
        self._notes = 0
        self.first_refusal = ""
        self._own = psutil.Process()
        self._sampled = 0.0
        self.idle: list[Client] = []
        self._until = 0.0  # as fast as possible until then (s, monotonic)

    def timer(self, when: float, call: Any, argument: Any) -> None:
        """Call at a time (s, monotonic)."""
        self._numbers += 1
        heapq.heappush(self._timers, (when, self._numbers, call, argument))

    def came(self, client: Client) -> None:
        """A client is there."""
        self._calling -= 1

    def went(self, client: Client, was: str, reason: str) -> None:
        """A client's connection was lost, or could not be made."""
        if client.left:
            return
        if was == "there":
            self.interruptions += 1
            self.note(f"{client.spec.name} at {client.spec.broker}: {reason}")
        else:
            self._calling -= 1
            self.first_refusal = (
                self.first_refusal or f"{client.spec.name} at {client.spec.broker}: {reason}"
            )
        self.timer(time.monotonic() + CONNECT_PAUSE, self._opening.append, client)

    def note(self, text: str) -> None:
        """Note something odd, a hundred times at most."""
        self._notes += 1
        if self._notes <= 100:
            self.trace.note(time.monotonic_ns(), text)

    def arrived(
        self,
        client: Client,
        receiver: Receiver,
        number: int,
        sequence: int,
        topic: str,
        now: int,
        what: tuple[int, int, bool],
    ) -> None:
        """A message has come."""
        if self.book.deliver(receiver, number, sequence, now):
            publisher = self._by_number[number]
            if (sequence + publisher.offset) % self.every == 0:
                spec = client.spec
                self.trace.delivered(now, number, sequence, spec.name, spec.broker, topic, *what)
            if not publisher.flow.rate and not publisher.flow.qos:
                self.more(publisher)
        else:
            self.note(f"{client.spec.name}: message {number}/{sequence} is none of its own")

    def step(self, wait: float) -> None:
        """Open what is to be opened, serve sockets and timers, wait at most so long."""
        while self._opening and self._calling < AT_ONCE:
            self._calling += 1
            self._opening.pop(0).open()
        now = time.monotonic()
        if self._timers:
            wait = min(wait, self._timers[0][0] - now)
        if wait > 0:
            select.select([self.epoll], [], [], wait)  # epoll's own timeout counts in ms
        for descriptor, events in self.epoll.poll(0):
            client = self.connected.get(descriptor)
            if client is not None:
                client.ready(events)
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, call, argument = heapq.heappop(self._timers)
            call(argument)
        if now - self._sampled > 0.5:
            self._sampled = now
            self._sample(now)

    def _sample(self, now: float) -> None:
        cpu = self._own.cpu_times()
        rss = self._own.memory_info().rss
        self.trace.resources(
            time.monotonic_ns(), self.name, "generator", cpu.user + cpu.system, rss, 1
        )
        for client in (*self.subscribers, *self.publishers):
            client.ping(now)
        self.trace.tick()

    def connect(self, clients: Sequence[Client], patience: float) -> str:
        """Open connections; return what went wrong, in one line, or nothing."""
        self._opening = list(clients)
        end = time.monotonic() + patience
        while any(client.state != "there" for client in clients):
            if time.monotonic() > end:
                away = sum(client.state != "there" for client in clients)
                return f"{away} of {len(clients)} clients could not connect" + (
                    f" ({self.first_refusal})" if self.first_refusal else ""
                )
            self.step(0.05)
        return ""

    def join(self) -> str:
        """Connect the subscribers, one after the other where federators form a mesh of them; return
        what went wrong, in one line, or nothing."""
        if not any(client.spec.beacon for client in self.subscribers):
            return self.connect(self.subscribers, 30)
        for client in self.subscribers:
            if wrong := self.connect([client], 30):
                return wrong
            end = time.monotonic() + JOIN_PAUSE
            while time.monotonic() < end:
                self.step(0.05)
        return ""

    def publish(self, start: float) -> float:
        """Publish everything, from `start` (s, monotonic), while orders say nothing else; return
        when that was over."""
        due: list[tuple[float, int, int]] = []
        fast: list[Publisher] = []
        end = start
        for number, publisher in enumerate(self.publishers):
            flow = publisher.flow
            end = max(end, start + flow.duration())
            if flow.rate:
                if flow.wanted(0, publisher.spec.start):
                    heapq.heappush(due, (start + publisher.spec.start, number, 0))
            else:
                fast.append(publisher)
        if not self.publishers:
            end = start + self.cell.main.duration()
        if ramp := self.cell.main.ramp:
            self.book.steady = ((start + ramp) * 1e9, (end - ramp) * 1e9)
        leaving = {fault.client: fault.at for fault in self.cell.faults if fault.client}
        for client in self.subscribers:
            if client.spec.name in leaving:
                self.timer(start + leaving[client.spec.name], Client.leave, client)
        swept = 0.0
        while not self.orders.poll(0):
            now = time.monotonic()
            self._publish_due(due, now, start)
            if now >= start:
                self._until = end
                if now >= swept:
                    swept = now + SWEEP
                    for publisher in fast:
                        self.more(publisher)
                if now >= end and not due:
                    break
            following = due[0][0] if due else start if now < start else end
            self.step(min(SWEEP if fast else 0.2, max(0.0, following - time.monotonic())))
        self._until = 0.0
        if self.skipped:
            self.note(
                f"{self.skipped} messages were not published as their publishers were not connected"
            )
        return time.monotonic()

    def _publish_due(self, due: list[tuple[float, int, int]], now: float, start: float) -> None:
        """Publish what is `due` (when, by which publisher, its how manieth) at `now`, and plan what
        follows; `start`: of the load; all in s."""
        while due and due[0][0] <= now:
            when, number, turn = heapq.heappop(due)
            publisher = self.publishers[number]
            if not publisher.one(int(when * 1e9)):
                self.skipped += 1
            following = when + publisher.pause()
            # A message that is not wanted would be waited for, and lengthen the load.
            if publisher.flow.wanted(turn + 1, following - start):
                heapq.heappush(due, (following, number, turn + 1))

    def more(self, publisher: Publisher) -> None:
        """Let a publisher that is as fast as it can be publish what its window allows."""
        flow = publisher.flow
        if time.monotonic() >= self._until or (
            flow.messages and len(publisher.published.times) >= flow.messages
        ):
            return
        for _ in range(min(publisher.room(), 1000)):
            if not publisher.one(0):
                return

    def drain(self) -> None:
        """Wait until everything has arrived, or nothing has for `drain` s, or orders say that it is
        over."""
        patience = max(flow.drain for flow in self.cell.flows.values())
        last, since = (-1, -1), time.monotonic()
        while True:
            flight = sum(len(publisher.flight) for publisher in self.publishers)
            if (self.book.outstanding <= 0 and not flight) or self.orders.poll(0):
                break
            state = (self.book.outstanding, flight)
            if state != last:
                last, since = state, time.monotonic()
            if time.monotonic() - since > patience:
                break
            self.step(0.02)
        end = time.monotonic() + 0.1  # what comes now comes twice
        while time.monotonic() < end:
            self.step(0.02)


def _connections(crowd: Crowd, orders: Connection) -> dict[str, Any]:
    """Open the idle connections of a cell."""
    flow = crowd.cell.main
    if not flow.connections:
        return {}
    brokers = list(crowd.lab.brokers)
    specs = [
        ClientSpec(
            f"idle-{number}", "", brokers[number % len(brokers)], brokers[number % len(brokers)], ()
        )
        for number in range(flow.connections)
    ]
    idle = [Client(crowd, spec, flow) for spec in specs]
    orders.send({"event": "connecting"})
    began = time.monotonic()
    wrong = crowd.connect(idle, 30 + flow.connections / 100)
    seconds = time.monotonic() - began
    orders.send({"event": "connected"})
    crowd.idle = idle
    return {
        "connections": sum(c.state == "there" for c in idle),
        "seconds": seconds,
        "failure": wrong,
    }


def run(
    lab: Lab,
    cell: Cell,
    specs: Sequence[ClientSpec],
    folder: Path,
    names: dict[str, Any],
    orders: Connection,
    name: str = "generator-0",
) -> None:
    """A process of clients (forked): connect, say "ready", wait for the time to begin, publish,
    drain, send the figures.

    `lab`, `cell`, `specs`, `orders` and `name` are those of `Crowd`. The trace goes into `folder`;
    `names` are the names in it (run, scenario, host).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    time_finely()
    # Clients are on machines of their own, as far as the brokers are concerned. If they send as
    # much as they can, real-time priority would take the core from the broker at each packet, and
    # its packets would cost more.
    if cell.main.rate:
        be_woken_in_time()
    else:
        have_a_larger_share()
    gc.freeze()
    sys.setswitchinterval(0.0005)  # the trace's encoding thread must not keep messages waiting
    try:
        with Writer(folder, process=name, **names) as trace:
            crowd = Crowd(lab, cell, specs, trace, orders, name)
            with contextlib.suppress(EOFError, BrokenPipeError):  # the other end is gone
                _carry_out(crowd, orders)
    except (OSError, TraceError) as error:
        with contextlib.suppress(OSError):
            orders.send({"event": "failed", "failure": str(error)})


def _carry_out(crowd: Crowd, orders: Connection) -> None:
    began = time.monotonic()
    wrong = crowd.join() or crowd.connect(crowd.publishers, 30)
    seconds = time.monotonic() - began
    # The first process has the idle connections.
    opened = {} if wrong or not crowd.name.endswith("-0") else _connections(crowd, orders)
    settled = time.monotonic() + crowd.cell.main.settle
    while not wrong and time.monotonic() < settled:
        crowd.step(0.05)
    crowd.trace.rotate()  # what is loaded at the first time only would hold up messages later
    interested = max((client.first_beacon for client in crowd.subscribers), default=0)
    orders.send(
        {
            "event": "ready",
            "failure": wrong,
            "interested": interested,
            "seconds": seconds,
            "cores": cores(),
        }
    )
    while not orders.poll(0):
        crowd.step(0.05)
    start = orders.recv()
    if start is None:
        return
    before = crowd._own.cpu_times()
    over = crowd.publish(start)
    after = crowd._own.cpu_times()
    seconds = over - start
    since, until = crowd.book.steady
    steady = (min(over, until / 1e9) - max(start, since / 1e9)) if seconds else 0.0
    orders.send({"event": "published"})
    crowd.drain()
    orders.send(
        {
            "event": "done",
            "flows": crowd.book.closed(),
            "steady": steady,
            "subscribers": crowd.book.subscribers(),
            "seconds": seconds,
            "over": over,
            "interruptions": crowd.interruptions,
            "skipped": crowd.skipped,
            "opened": opened,
            "generator_cpu": (
                (after.user + after.system - before.user - before.system) / seconds
                if seconds
                else 0.0
            ),
        }
    )
    with contextlib.suppress(EOFError):
        orders.recv()  # the connections stay until they are not wanted any more
