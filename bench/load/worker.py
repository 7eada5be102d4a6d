"""One process of the load generator: its share of the peers and the loop that drives them."""

from __future__ import annotations

import contextlib
import ctypes
import select
import socket
import time
from collections.abc import Callable, MutableSequence
from dataclasses import dataclass, field

from mqttree.bench.load import peers
from mqttree.bench.load.histogram import Histogram
from mqttree.bench.load.spec import LoadError, LoadSpec, Tally

# Seconds without any arrival after which what is outstanding no longer holds the window closed.
_STALL = 1.0
_SPIN_NS = 20_000  # a sleep ends late by about this; the last stretch before a due time is spun
_PR_SET_TIMERSLACK = 29
_BURST = 64  # overdue messages that an open-loop step sends before it listens again


@dataclass(slots=True)
class Report:
    """What a worker measured between the end of the warm-up and the end of the run."""

    received: int = 0
    published: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    sent: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Final:
    """What a worker knows when everything has arrived or nothing more comes."""

    tally: Tally = field(default_factory=Tally)
    unacknowledged: int = 0
    latency: Histogram = field(default_factory=Histogram)
    lag: Histogram = field(default_factory=Histogram)


def share(count: int, process: int, processes: int) -> range:
    """Return the indices of those of `count` peers that the process number `process` of `processes`
    drives."""
    return range(process, count, processes)


class Worker:
    """Set up, run, drain: the driver calls the three in turn, in this process or through a pipe."""

    def __init__(
        self, spec: LoadSpec, process: int, progress: MutableSequence[int], latency: bool = False
    ) -> None:
        """Drive this process's share of the peers of `spec`; it is the process number `process`.
        `progress` is shared by all processes (see `Subscriber`). With `latency` publishers keep to
        a schedule and delays are measured."""
        self._spec, self._process, self._progress, self._latency = spec, process, progress, latency
        self._final = Final()
        self._publishers: list[peers.Publisher] = []
        self._subscribers: list[peers.Subscriber] = []
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._epoll = select.epoll()
        self._heard = 0.0
        self._idle: socket.socket | None = None

    def setup(self) -> None:
        """Connect subscribers, then publishers; LoadError if the broker does not play along."""
        spec, process = self._spec, self._process
        version = spec.subscriber_version or spec.version
        histogram = self._final.latency if self._latency else None
        if spec.filters and not process:
            sock, _ = peers.dial(spec, f"{spec.topic}-filters", version)
            for number in range(spec.filters):
                peers.subscribe(
                    sock,
                    f"elsewhere/{number}/+/#" if number % 2 else f"elsewhere/+/{number}",
                    0,
                    version,
                )
            self._idle = sock
        for index in share(spec.subscribers, process, spec.processes):
            sock, _ = peers.dial(
                spec, f"{spec.topic}-s{index:05d}", version, port=spec.subscriber_port
            )
            for topic in peers.topics(spec, index):
                peers.subscribe(sock, topic, spec.qos, version)
            self._subscribers.append(
                peers.Subscriber(
                    sock, self._epoll, spec, index, progress=self._progress, latency=histogram
                )
            )
        for index in share(spec.publishers, process, spec.processes):
            sock, receive_maximum = peers.dial(spec, f"{spec.topic}-p{index:05d}", spec.version)
            self._publishers.append(
                peers.Publisher(sock, self._epoll, spec, index, receive_maximum=receive_maximum)
            )
        for peer in (*self._subscribers, *self._publishers):
            self._handlers[peer.sock.fileno()] = peer.ready

    def run(self, start: float) -> Report:
        """Publish from `start` (s, monotonic) through warm-up and measured time; report on the
        latter."""
        spec = self._spec
        measure, stop = start + spec.warmup, float("inf")
        before: tuple[int, int, float, float] | None = None
        step = self._scheduled(start) if self._latency else self._saturate
        while (now := time.monotonic()) < start:
            time.sleep(min(start - now, 0.05))
        self._heard = now
        while True:
            now = time.monotonic()
            if before is None and now >= measure:
                before = (*self._counts(), now, time.process_time())
                # Not from `start`: a busy machine may have let us wait since.
                stop = now + spec.seconds
            if now >= stop:
                break
            step(now)
        assert before is not None
        received, published = self._counts()
        return Report(
            received - before[0],
            published - before[1],
            now - before[2],
            time.process_time() - before[3],
            {publisher.index: publisher.sent for publisher in self._publishers},
        )

    def drain(self, sent: list[int]) -> Final:
        """Wait until every message has arrived and is acknowledged, or nothing has moved for
        `drain` seconds."""
        final, spec = self._final, self._spec
        moved, last = time.monotonic(), (-1, -1)
        while time.monotonic() - moved < spec.drain:
            missing = sum(
                subscriber.behind(sent) + subscriber.tally.lost for subscriber in self._subscribers
            )
            final.unacknowledged = self._unacknowledged()
            if missing <= 0 and not final.unacknowledged:
                break
            state = (self._counts()[0], final.unacknowledged)
            if state != last:
                moved, last = time.monotonic(), state
            self._poll(0.01)
        # What comes now was not asked for.
        while self._poll(0.05) and time.monotonic() - moved < spec.drain:
            pass
        for subscriber in self._subscribers:
            tally = subscriber.tally
            tally.lost += max(0, subscriber.behind(sent))
            final.tally.add(tally)
        return final

    def close(self) -> None:
        """Close every connection."""
        for peer in (*self._subscribers, *self._publishers):
            peer.sock.close()
        self._epoll.close()

    def _unacknowledged(self) -> int:
        return (
            sum(publisher.sent - publisher.acked for publisher in self._publishers)
            if self._spec.qos
            else 0
        )

    def _counts(self) -> tuple[int, int]:
        received = sum(subscriber.tally.received for subscriber in self._subscribers)
        return received, sum(publisher.sent for publisher in self._publishers)

    def _poll(self, timeout: float) -> bool:
        """Serve the sockets that are ready; True if there were any."""
        try:
            ready = self._epoll.poll(timeout)
            for descriptor, events in ready:
                self._handlers[descriptor](events)
        except ValueError as error:
            raise LoadError(f"broken stream: {error}") from error
        return bool(ready)

    def _saturate(self, now: float) -> None:
        """Fill every window, then wait for something to happen."""
        spec = self._spec
        sent = self._pump(eager=False)
        if spec.qos:
            if self._poll(0):
                self._heard = now
                return
            # Nothing more to batch. To keep silent now would leave a broker without TCP_NODELAY,
            # which holds its next acknowledgements back until our TCP has spoken, waiting for a
            # timer.
            sent += self._pump(eager=True)
        # A window can also be opened by another process, which no socket of ours tells.
        if self._poll(0.001 if spec.processes > 1 and not sent else 0.02) or sent:
            self._heard = now
        elif now - self._heard > _STALL and not self._unacknowledged():
            for publisher in self._publishers:
                publisher.floor = publisher.sent

    def _pump(self, eager: bool) -> int:
        """Let every publisher send what its window allows; return how many messages that was."""
        progress, sent = self._progress, 0
        width = self._spec.subscribers if self._spec.pattern == "mesh" else 1
        for publisher in self._publishers:
            at = publisher.index * width
            received = progress[at] if width == 1 else min(progress[at : at + width])
            sent += publisher.pump(received, eager)
        return sent

    def _scheduled(self, start: float) -> Callable[[float], None]:
        """Return the step of an open-loop run: this process's publishers take turns at their share
        of the rate."""
        publishers = self._publishers
        spec = self._spec
        # Linux rounds sleeps up by 50 us unless asked not to.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        # Nanoseconds between two of ours.
        interval = spec.publishers * 1e9 / (spec.rate * max(1, len(publishers)))
        origin = int(start * 1e9) + int(interval * self._process / spec.processes)
        turn = 0

        def step(_: float) -> None:
            nonlocal turn
            now = time.monotonic_ns()
            last = turn + _BURST
            while publishers and turn < last and (due := origin + int(turn * interval)) <= now:
                publisher = publishers[turn % len(publishers)]
                if not publisher.room():
                    break
                publisher.one(due)
                publisher.flush()
                self._final.lag.add(time.monotonic_ns() - due)
                turn += 1
            wait = (origin + int(turn * interval) - time.monotonic_ns() - _SPIN_NS) / 1e9
            if wait > 0:  # epoll's own timeout counts in ms
                select.select([self._epoll], [], [], min(wait, 0.02))
            self._poll(0)

        return step
