"""One process of a mixed load: its share of the clients, and the loop that drives them."""

from __future__ import annotations

import os
import random
import select
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from mqttree.bench.load.channel import Channel, dial, subscribe
from mqttree.bench.load.cpu import time_finely
from mqttree.bench.load.histogram import Histogram
from mqttree.bench.load.mix_peers import MixPublisher, MixSubscriber, PacedSubscriber
from mqttree.bench.load.mixture import MixSpec, Mixture
from mqttree.bench.load.outcome import LoadError, Tally

_SPIN_NS = 20_000
"""A sleep ends late by about this; the last stretch before a due time is waited for awake."""
_BURST = 64
"""Overdue messages that are sent before anything is read again."""
_SLICE = 32
"""Messages of one publisher in a turn, at QoS 0."""
_AHEAD = 100
"""Messages for each publisher that may have been acknowledged and have not arrived yet."""
_COALESCE, _FEW = 0.0003, 200
"""s that a turn at QoS 0 takes at least, unless it sent as many messages: to wake up for each
message alone would keep the generator busy with nothing."""

_DIALLERS = 64
"""Connections that are made at a time."""

SENT, RECEIVED, STOPPED, FIELDS = range(4)
"""What a process tells the others, at its number times FIELDS in the shared table."""


@dataclass(slots=True)
class MixReport:
    """What one process knows at the end."""

    tally: Tally = field(default_factory=Tally)
    """Of the messages that were looked at one by one."""
    sent: int = 0
    received: int = 0
    unacknowledged: int = 0
    latency: Histogram = field(default_factory=Histogram)
    lag: Histogram = field(default_factory=Histogram)


def shares(spec: MixSpec) -> list[tuple[range, range]]:
    """Return for each process the indices of its (publishers, subscribers).

    By the clock, publishers and subscribers are apart: neither must wait for the other. Otherwise
    every process has some of both, so that all have the same to do.
    """
    if spec.rate is not None and spec.processes > 1:
        receivers = spec.processes - 1
        none = range(0)
        return [(range(spec.publishers), none)] + [
            (none, range(number, spec.subscribers, receivers)) for number in range(receivers)
        ]
    return [
        (
            range(number, spec.publishers, spec.processes),
            range(number, spec.subscribers, spec.processes),
        )
        for number in range(spec.processes)
    ]


class MixWorker:
    """Set up, run, end: the driver calls the three in turn."""

    def __init__(self, spec: MixSpec, process: int, table: memoryview) -> None:
        """Drive the share of `spec` that the process number `process` has; `table` is shared by all
        of them (64-bit numbers)."""
        self._spec, self._process, self._table = spec, process, table
        self._mixture = Mixture(spec)
        self._epoll = select.epoll()
        self._publishers: list[MixPublisher] = []
        self._subscribers: list[MixSubscriber] = []
        self._publisher_of: dict[int, MixPublisher] = {}
        self._subscriber_of: dict[int, MixSubscriber] = {}
        self._report = MixReport()
        self._at = process * FIELDS
        self._cursor = 0
        self._held: set[MixPublisher] = set()
        if spec.cores:
            os.sched_setaffinity(0, {spec.cores[process % len(spec.cores)]})
        time_finely()

    def subscribe(self) -> None:
        """Connect this process's subscribers. Raises LoadError."""
        spec = self._spec
        kind = MixSubscriber if spec.rate is None else PacedSubscriber
        indices = shares(spec)[self._process][1]
        channels = self._dial("s", indices, spec.subscriber_port or spec.port)
        for index, channel in zip(indices, channels, strict=True):
            subscribe(channel, spec.filter(index), spec)
            subscriber = kind(channel, spec, self._mixture, index)
            subscriber.latency = self._report.latency
            self._subscribers.append(subscriber)
            self._subscriber_of[channel.fileno()] = subscriber

    def connect(self) -> None:
        """Connect this process's publishers. Raises LoadError."""
        indices = shares(self._spec)[self._process][0]
        channels = self._dial("p", indices, self._spec.port)
        for index, channel in zip(indices, channels, strict=True):
            publisher = MixPublisher(channel, self._mixture, index)
            self._publishers.append(publisher)
            self._publisher_of[channel.fileno()] = publisher
        random.Random(self._process).shuffle(self._publishers)

    def _dial(self, kind: str, indices: range, port: int) -> list[Channel]:
        """Connect clients of one kind. Several at a time: some brokers serve each new WebSocket a
        tenth of a second late."""

        def one(index: int) -> Channel:
            return dial(self._spec, f"{self._spec.topic}-{kind}{index:04d}", port, self._epoll)

        with ThreadPoolExecutor(_DIALLERS) as pool:
            return list(pool.map(one, indices))

    def run(self, begin: float, end: float) -> None:
        """Publish until `end` (s, monotonic); of a paced load, delays count of what was sent from
        `begin` on. Raises LoadError."""
        for subscriber in self._subscribers:
            if isinstance(subscriber, PacedSubscriber):
                subscriber.span = (int(begin * 1e9), int(end * 1e9))
        step = self._saturate if self._spec.rate is None else self._paced(begin, end)
        while time.monotonic() < end:
            step()
        self._table[self._at + STOPPED] = 1

    def finish(self) -> MixReport:
        """Wait until all has arrived and is acknowledged, or nothing has moved for `drain` seconds;
        return what came of it. Raises LoadError."""
        moved, last = time.monotonic(), (-1, -1, -1)
        while time.monotonic() - moved < self._spec.drain:
            sent, received, stopped = map(self._total, (SENT, RECEIVED, STOPPED))
            waiting = self._unacknowledged()
            if received >= sent and not waiting and stopped == self._spec.processes:
                break
            if (sent, received, waiting) != last:
                moved, last = time.monotonic(), (sent, received, waiting)
            self._poll(0.01)
        # What comes now was not asked for.
        while self._poll(0.05) and time.monotonic() - moved < self._spec.drain:
            pass
        report = self._report
        for subscriber in self._subscribers:
            report.tally.add(subscriber.seen.tally)
        report.sent = sum(publisher.sent for publisher in self._publishers)
        report.received = sum(subscriber.received for subscriber in self._subscribers)
        report.unacknowledged = self._unacknowledged()
        return report

    def close(self) -> None:
        """Close every connection."""
        for subscriber in self._subscribers:
            subscriber.channel.close()
        for publisher in self._publishers:
            publisher.channel.close()
        self._epoll.close()

    def _unacknowledged(self) -> int:
        if not self._spec.qos:
            return 0
        return sum(publisher.in_flight for publisher in self._publishers)

    def _total(self, which: int) -> int:
        return sum(self._table[which::FIELDS])

    def _poll(self, timeout: float) -> bool:
        """Serve the channels that are ready; True if there were any."""
        refill, received = [], 0
        try:
            ready = self._epoll.poll(timeout)
            for descriptor, events in ready:
                subscriber = self._subscriber_of.get(descriptor)
                if subscriber is not None:
                    received += subscriber.ready(events)
                else:
                    publisher = self._publisher_of[descriptor]
                    publisher.ready(events)
                    refill.append(publisher)
        except ValueError as error:
            raise LoadError(f"broken stream: {error}") from error
        if received:
            self._table[self._at + RECEIVED] += received
        if refill and self._spec.qos and self._spec.rate is None:
            self._refill(refill)
        return bool(ready)

    def _outstanding(self) -> int:
        """How many messages of all processes have not arrived."""
        return self._total(SENT) - self._total(RECEIVED)

    # ------------------------------------------------------------ as fast as the windows allow

    def _saturate(self) -> None:
        """Fill every window, then wait for something to happen."""
        if self._spec.qos:
            if not self._poll(0.002):
                self._refill(self._publishers)
            elif self._held:
                held, self._held = self._held, set()
                self._refill(list(held))
            return
        begin = time.monotonic()
        sent = self._pump()
        self._poll(0.001)
        left = _COALESCE - time.monotonic() + begin
        if left > 0 and sent < _FEW:
            time.sleep(left)

    def _refill(self, publishers: list[MixPublisher]) -> None:
        """QoS 1 and 2: let these publishers fill their windows, unless what was acknowledged is too
        far ahead of what has arrived."""
        if self._table[self._at + STOPPED]:
            return
        spec = self._spec
        if self._outstanding() > spec.publishers * max(spec.window, _AHEAD):
            self._held.update(publishers)
            return
        sent = 0
        for publisher in publishers:
            free = spec.window - publisher.in_flight
            if free > 0:
                publisher.publish(free)
                sent += free
        self._table[self._at + SENT] += sent

    def _pump(self) -> int:
        """QoS 0: send this process's part of what may still be in flight, in slices, from one
        publisher after the other; return how many messages that was."""
        publishers, spec = self._publishers, self._spec
        free = spec.window * spec.publishers - self._outstanding()
        free = free * len(publishers) // spec.publishers
        skipped = sent = 0
        while free > 0 and skipped < len(publishers):
            self._cursor = (self._cursor + 1) % len(publishers)
            publisher = publishers[self._cursor]
            if publisher.channel.blocked:
                skipped += 1
                continue
            count = min(_SLICE, free)
            publisher.publish(count)
            free -= count
            sent += count
        self._table[self._at + SENT] += sent
        return sent

    # ------------------------------------------------------------ by the clock

    def _paced(self, begin: float, end: float) -> Callable[[], None]:
        """Return the step of a paced load: whenever a message is due, a random publisher sends
        it."""
        publishers, lag = self._publishers, self._report.lag
        if not publishers:
            return lambda: self._wait(0.02)
        assert self._spec.rate is not None
        part = len(publishers) / self._spec.publishers
        interval = 1e9 / (self._spec.rate * part)
        origin, measured = time.monotonic_ns(), int(begin * 1e9)
        draw = random.Random(self._spec.seed + self._process)
        turn = 0

        def step() -> None:
            nonlocal turn
            last = turn + _BURST
            while turn < last and (due := origin + int(turn * interval)) <= time.monotonic_ns():
                publisher = self._choose(draw)
                if publisher is None:
                    break
                publisher.publish_at(due)
                turn += 1
                self._table[self._at + SENT] += 1
                if due >= measured:
                    lag.add(time.monotonic_ns() - due)
            wait = (origin + int(turn * interval) - time.monotonic_ns() - _SPIN_NS) / 1e9
            self._wait(min(wait, 0.02))

        return step

    def _choose(self, draw: random.Random) -> MixPublisher | None:
        """Return a random publisher that may send; None if a few that were drawn may not."""
        publishers, spec = self._publishers, self._spec
        for _ in range(8):
            publisher = publishers[int(draw.random() * len(publishers))]
            if not publisher.channel.blocked and (
                not spec.qos or publisher.in_flight < spec.window
            ):
                return publisher
        return None

    def _wait(self, seconds: float) -> None:
        """Serve what is ready, within so many seconds."""
        if seconds > 0:  # epoll's own timeout counts in ms
            select.select([self._epoll], [], [], seconds)
        self._poll(0)
