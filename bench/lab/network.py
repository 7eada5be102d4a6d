"""The network between namespaces as one process: it owns every TUN device and moves each IP packet
when its time has come."""

from __future__ import annotations

import gc
import heapq
import os
import random
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Connection
from typing import Any, Protocol

import psutil

from mqttree.bench.lab.federator_traffic import COUNTED, FederatorTraffic
from mqttree.bench.lab.gateways import PORT as GATEWAY_PORT
from mqttree.bench.lab.pipe import Pipe
from mqttree.bench.lab.priority import be_woken_in_time
from mqttree.bench.lab.tap import DATA, Seen, Tap
from mqttree.bench.lab.topology import Topology
from mqttree.bench.load.cpu import time_finely
from mqttree.bench.load.histogram import Histogram

MQTT_PORT = 1883
_READS = 32  # packets of one device before the next one has its turn
_SPIN_NS = 60_000  # the last stretch before a due time is spun: waking takes that long
_REPORT_NS = 1_000_000_000


class Recorder(Protocol):
    """What the network tells the keeper of the trace (`mqttree.bench.trace.Writer`)."""

    def forwarded(
        self, at: int, publisher: int, sequence: int, source: str, target: str, size: int
    ) -> None:
        """Take a PUBLISH of a load generator that was seen on a link at `at` (ns): `publisher` and
        `sequence` tell which message, `source` and `target` are the brokers, `size` is in bytes."""

    def control(self, at: int, source: str, target: str, kind: str, size: int) -> None:
        """Take any other MQTT packet, seen at `at` (ns) on its way from the broker `source` to
        `target`: its `kind` by name, its `size` in bytes."""

    def link(
        self,
        at: int,
        source: str,
        target: str,
        packets: int,
        bytes: int,
        control_bytes: int,
        data_bytes: int,
        dropped: int,
    ) -> None:
        """Take how one direction of a link stands at `at` (ns), from the host `source` to `target`,
        counted from the start: `packets` and `bytes` that arrived, of these `control_bytes` and
        `data_bytes` between brokers (PUBLISH is data), and packets `dropped`."""

    def resources(
        self, at: int, process: str, role: str, cpu_s: float, rss: int, threads: int
    ) -> None:
        """Take what the process named `process` has used until `at` (ns): its `role` ("network",
        ...), `cpu_s` seconds of CPU, `rss` bytes of memory, and its number of `threads`."""

    def tick(self) -> None:
        """Have time."""

    def close(self) -> None:
        """End well."""


class Meter:
    """Bytes by class and direction, from what the tap saw; tells the recorder."""

    def __init__(self, recorder: Recorder | None) -> None:
        self.recorder = recorder
        self.now = 0
        self.control: dict[tuple[str, str], int] = {}
        self.data: dict[tuple[str, str], int] = {}
        self.federators = FederatorTraffic()

    def seen(self, source: str, target: str, what: Seen) -> None:
        """Book one MQTT packet, `what`, that passed from the broker `source` to `target`."""
        data = what.kind in DATA
        if what.kind in COUNTED:
            self.federators.seen(self.now, source, target, what)
        book = self.data if data else self.control
        book[source, target] = book.get((source, target), 0) + what.size
        if self.recorder is None:
            return
        if data and what.publisher >= 0:
            self.recorder.forwarded(
                self.now, what.publisher, what.sequence, source, target, what.size
            )
        elif not data:
            self.recorder.control(self.now, source, target, what.kind, what.size)

    def report(self, pipes: dict[tuple[str, str], Pipe]) -> None:
        """Tell the recorder how every link stands that anything has happened on."""
        if self.recorder is None:
            return
        for (source, target), pipe in pipes.items():
            dropped = pipe.dropped_loss + pipe.dropped_queue + pipe.dropped_shut
            if pipe.packets or dropped:
                key = (source, target)
                self.recorder.link(
                    self.now,
                    source,
                    target,
                    pipe.packets,
                    pipe.bytes,
                    self.control.get(key, 0),
                    self.data.get(key, 0),
                    dropped,
                )

    def totals(self, pipes: dict[tuple[str, str], Pipe], late: Histogram) -> dict[str, Any]:
        """For the lab: counts of each direction of `pipes`, and how late (ns) what was moved."""
        self.now = time.monotonic_ns()
        self.report(pipes)
        links = {
            f"{source}>{target}": {
                "packets": pipe.packets,
                "bytes": pipe.bytes,
                "loss": pipe.dropped_loss,
                "queue": pipe.dropped_queue,
                "shut": pipe.dropped_shut,
                "control_bytes": self.control.get((source, target), 0),
                "data_bytes": self.data.get((source, target), 0),
            }
            for (source, target), pipe in pipes.items()
            if pipe.packets or pipe.dropped_shut
        }
        found = {f"p{point:g}": late.percentile(point) for point in (50, 99)}
        return {
            "links": links,
            "federators": self.federators.as_dict(),
            "moved": late.total,
            "late_ms": found | {"max": late.maximum / 1e6},
        }


def obey(order: dict[str, Any], pipes: dict[tuple[str, str], Pipe]) -> None:
    """Carry out an order about some directions: {"pairs": [[from, to]...]} and one of the
    following.

    "open": false or "wire": {...}, with "by": N if it is to be undone alone;
    "undo": N;
    "heal": true, which undoes everything.

    Raises ValueError, in one line, for a direction that there is not; nothing is done then.
    """
    for source, target in order["pairs"]:
        if (source, target) not in pipes:
            raise ValueError(f"there is no link from {source} to {target}")
    for source, target in order["pairs"]:
        pipe = pipes[source, target]
        by = order.get("by", 0)
        if order.get("heal"):
            pipe.heal()
        if "undo" in order:
            pipe.undo(order["undo"])
        if order.get("open") is False:
            pipe.shut(by)
        if "wire" in order:
            pipe.change(order["wire"], by)


def lacking(totals: object) -> list[str]:
    """Return what the figures of a run lack, by a network's totals (or what a run.json has in their
    place), one line each."""
    said = {
        "tap_broken": (
            "packets between brokers were of streams that could no longer be read: "
            "bytes of links are too few"
        ),
        "refused": "packets were not taken by the host that they had come to",
        "unroutable": "packets were for addresses that no host has",
    }
    if not isinstance(totals, Mapping):
        return []
    return [
        f"{count:,} {text}"
        for key, text in said.items()
        if isinstance(count := totals.get(key), int) and count > 0
    ]


class Network:
    """Moves packets between TUN devices until its orders end."""

    def __init__(
        self,
        topology: Topology,
        tuns: dict[str, int],
        addresses: dict[str, str],
        orders: Connection,
        recorder: Recorder | None,
        seed: int,
        on: Iterable[str] | None = None,
    ) -> None:
        """`topology` says which hosts there are and how their links are, `tuns` the descriptor of
        each host's device, `addresses` its IPv4 address.

        `orders` brings the lab's orders, `recorder` takes the trace (None: there is none), `seed`
        is of what is drawn. `on` are the hosts that have a broker (None: as in the topology); what
        is said between others is not read along.
        """
        hosts = topology.hosts
        self.pipes = {(a, b): Pipe(topology.wire(a, b)) for a in hosts for b in hosts if a != b}
        self._tuns, self._orders = tuns, orders
        self._random = random.Random(seed)
        self._by_address = {
            bytes(map(int, address.split("."))): host for host, address in addresses.items()
        }
        self._brokers = frozenset(topology.brokers if on is None else on)
        self.meter = Meter(recorder)
        self._tap = Tap(self.meter.seen, frozenset((MQTT_PORT, GATEWAY_PORT)))
        self._queue: list[tuple[int, int, int, bytes, int]] = []
        # What is found in a device has come later than this (ns), or than what `_left` says,
        # where the device was not emptied.
        self._since = time.monotonic_ns()
        self._left: dict[int, int] = {}
        self._count = 0
        self.late = Histogram()
        self._unroutable = self._refused = 0

    def serve(self) -> None:
        """Run until the other end of the orders closes."""
        epoll = select.epoll()
        hosts = {descriptor: host for host, descriptor in self._tuns.items()}
        for descriptor in hosts:
            epoll.register(descriptor, select.EPOLLIN)
        orders = self._orders.fileno()
        epoll.register(orders, select.EPOLLIN)
        clock, queue = time.monotonic_ns, self._queue
        report = looked = clock()
        own = psutil.Process()
        while True:
            self._since, looked = looked, clock()
            now = looked
            found = epoll.poll(0)
            wait = 0.2 if not queue else min(0.2, (queue[0][0] - now - _SPIN_NS) / 1e9)
            if not found and wait > 0:
                select.select([epoll], [], [], wait)  # epoll's own timeout counts in ms
                self._since = looked = clock()
                found = epoll.poll(0)
            for descriptor, _ in found:
                host = hosts.get(descriptor)
                if host is not None:
                    self._read(descriptor, host)
                elif not self._order():
                    self._report(own)
                    return
            self._deliver()
            if now >= report:
                report = now + _REPORT_NS
                self._report(own)

    def _report(self, own: psutil.Process) -> None:
        recorder = self.meter.recorder
        if recorder is None:
            return
        self.meter.now = time.monotonic_ns()
        self.meter.report(self.pipes)
        tell_use(recorder, self.meter.now, own)
        recorder.tick()

    def _read(self, descriptor: int, source: str) -> None:
        since = self._left.pop(descriptor, self._since)
        for _ in range(_READS):
            try:
                data = os.read(descriptor, 65536)
            except (BlockingIOError, OSError):
                return
            now = self.meter.now = time.monotonic_ns()
            if len(data) < 20 or data[0] >> 4 != 4:
                continue
            if 224 <= data[16] < 240:
                for target in self._tuns:
                    if target != source:
                        self._send(now, source, target, data, now - since)
                continue
            target = self._by_address.get(data[16:20], "")
            if not target or target == source:
                self._unroutable += 1
                continue
            if (
                self._send(now, source, target, data, now - since)
                and source in self._brokers
                and target in self._brokers
            ):
                self._tap.packet(source, target, data)
        self._left[descriptor] = since

    def _send(self, now: int, source: str, target: str, data: bytes, waited: int) -> bool:
        """Return whether it will arrive. waited: ns for which it may have been there already."""
        due = self.pipes[source, target].offer(now, len(data), self._random)
        if due is None:
            return False
        self._count += 1
        heapq.heappush(self._queue, (due, self._count, self._tuns[target], data, waited))
        return True

    def _deliver(self) -> None:
        queue, clock = self._queue, time.monotonic_ns
        while queue:
            due = queue[0][0]
            now = clock()
            if due > now:
                if due - now > _SPIN_NS:
                    return
                while clock() < due:
                    pass
            _, _, descriptor, data, waited = heapq.heappop(queue)
            try:
                os.write(descriptor, data)
            except OSError:
                self._refused += 1
            self.late.add(clock() - due + waited)

    def _order(self) -> bool:
        try:
            order = self._orders.recv()
        except (EOFError, OSError):
            return False
        answer: dict[str, Any] = {}
        if order["do"] == "set":
            try:
                obey(order, self.pipes)
            except ValueError as error:
                answer = {"refused order": str(error)}
        elif order["do"] == "fresh":
            self.late = Histogram()
        elif order["do"] == "totals":
            answer = self.meter.totals(self.pipes, self.late) | {
                "unroutable": self._unroutable,
                "refused": self._refused,
                "tap_broken": self._tap.broken,
            }
        self._orders.send(answer)
        return True


def tell_use(recorder: Recorder, now: int, own: psutil.Process) -> None:
    """Tell the `recorder` what this process, `own`, has used until `now` (ns)."""
    cpu = own.cpu_times()
    recorder.resources(
        now, "network", "network", cpu.user + cpu.system, own.memory_info().rss, own.num_threads()
    )


def settle() -> None:
    """Make this process one that is woken in time: no garbage collection, fine timers, ahead of the
    brokers where it may."""
    gc.disable()
    time_finely()
    be_woken_in_time()


def run(
    topology: Topology,
    tuns: dict[str, int],
    addresses: dict[str, str],
    on: Iterable[str],
    orders: Connection,
    recorder: Callable[[], Recorder] | None,
    seed: int,
) -> None:
    """The process of the network (forked). It ends when its `orders` do.

    `topology`, `tuns`, `addresses`, `on` and `seed` are those of `Network`; `recorder` makes what
    takes the trace (None: there is none).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    kept = recorder() if recorder is not None else None
    settle()
    try:
        network = Network(topology, tuns, addresses, orders, kept, seed, on)
        orders.send({})
        network.serve()
    finally:
        if kept is not None:
            kept.close()
