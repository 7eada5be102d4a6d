"""Entry points: run one load to its end, in this process or in several."""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import MutableSequence
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray
from typing import Any, cast

import psutil

from mqttree.bench.load import packets, peers
from mqttree.bench.load.process import WorkerProcess
from mqttree.bench.load.spec import (
    ConnectionsResult,
    LatencyResult,
    LoadError,
    LoadResult,
    LoadSpec,
)
from mqttree.bench.load.worker import Final, Report, Worker

_SETUP_SECONDS = 120.0


@dataclass(slots=True)
class _Totals:
    """What all workers reported, added up."""

    report: Report
    final: Final
    sent: list[int]
    expected: int
    broker_cpu: float | None


def run_throughput(spec: LoadSpec) -> LoadResult:
    """Publish as fast as the windows allow, count what arrives.

    Raises ValueError for a load that makes no sense and LoadError when it cannot be carried out.
    """
    spec.check()
    totals = _run(spec, latency=False)
    report, final = totals.report, totals.final
    return LoadResult(
        seconds=report.seconds,
        sent=sum(totals.sent),
        expected=totals.expected,
        tally=final.tally,
        unacknowledged=final.unacknowledged,
        rate=report.received / report.seconds,
        published_rate=report.published / report.seconds,
        generator_cpu=report.cpu / report.seconds,
        broker_cpu=totals.broker_cpu,
    )


def run_latency(spec: LoadSpec) -> LatencyResult:
    """Publish `rate` messages a second by the clock, whatever comes back; raises as run_throughput
    does.

    The warm-up is a load of its own, so that every message of the measured one is in the histogram.
    """
    spec.check(latency=True)
    if spec.warmup:
        _run(dataclasses.replace(spec, warmup=0.0, seconds=spec.warmup), latency=True)
    totals = _run(dataclasses.replace(spec, warmup=0.0), latency=True)
    report, final = totals.report, totals.final
    return LatencyResult(
        seconds=report.seconds,
        sent=sum(totals.sent),
        expected=totals.expected,
        tally=final.tally,
        unacknowledged=final.unacknowledged,
        rate=report.received / report.seconds,
        latency=final.latency,
        lag=final.lag,
    )


def run_connections(spec: LoadSpec, connections: int, batch: int = 100) -> ConnectionsResult:
    """Open so many MQTT `connections` to the broker of `spec`, `batch` of them in flight at a time,
    and hold them until all are up. Returns how fast that was and what one costs.

    Raises LoadError when one is refused, ValueError for fewer than one.
    """
    if connections < 1 or batch < 1:
        raise ValueError("at least one connection and a batch of one are needed")
    process = psutil.Process(spec.pid) if spec.pid is not None else None
    before = process.memory_info().rss if process else None
    held: list[socket.socket] = []
    try:
        start = time.monotonic()
        while len(held) < connections:
            fresh = [_open(spec, n) for n in range(len(held), min(len(held) + batch, connections))]
            held += fresh
            for sock in fresh:
                body = peers.expect(sock, packets.CONNACK)
                if len(body) < 2 or body[1]:
                    raise LoadError(f"connection {len(held)} was refused with {body.hex()}")
        seconds = time.monotonic() - start
        after = process.memory_info().rss if process else None
    except OSError as error:
        raise LoadError(f"connection {len(held)} failed: {error}") from error
    finally:
        for sock in held:
            sock.close()
    return ConnectionsResult(connections, seconds, connections / seconds, before, after)


def _open(spec: LoadSpec, number: int) -> socket.socket:
    """Connect and send CONNECT without waiting for the answer."""
    sock = socket.create_connection((spec.host, spec.port), 10.0)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(packets.connect(f"{spec.topic}-c{number:06d}", spec.version))
    return sock


def _run(spec: LoadSpec, latency: bool) -> _Totals:
    """Take the workers through set-up, run and drain."""
    entries = spec.publishers * (spec.subscribers if spec.pattern == "mesh" else 1)
    progress = RawArray("q", entries)
    crew: list[_Here | WorkerProcess] = []
    try:
        if spec.processes == 1:
            crew.append(_Here(spec, [0] * entries, latency))
        else:
            crew += [
                WorkerProcess(_worker, spec, process, progress, latency)
                for process in range(spec.processes)
            ]
        for member in crew:
            member.ask("setup")
        for member in crew:
            member.answer(_SETUP_SECONDS)
        start = time.monotonic() + (0.05 if len(crew) > 1 else 0.0)
        meter = _Meter(spec.pid)
        for member in crew:
            member.ask("run", start)
        reports = [
            cast(Report, member.answer(spec.warmup + spec.seconds + 30.0)) for member in crew
        ]
        broker_cpu = meter.read()
        sent = [0] * spec.publishers
        for report in reports:
            for index, count in report.sent.items():
                sent[index] = count
        for member in crew:
            member.ask("drain", sent)
        finals = [cast(Final, member.answer(spec.drain * 100 + 60.0)) for member in crew]
    finally:
        for member in crew:
            member.close()
    expected = sum(sent) * (spec.subscribers if spec.pattern == "mesh" else 1)
    return _Totals(_sum_reports(reports), _sum_finals(finals), sent, expected, broker_cpu)


def _sum_reports(reports: list[Report]) -> Report:
    return Report(
        sum(report.received for report in reports),
        sum(report.published for report in reports),
        sum(report.seconds for report in reports) / len(reports),
        sum(report.cpu for report in reports),
    )


def _sum_finals(finals: list[Final]) -> Final:
    total = Final()
    for final in finals:
        total.tally.add(final.tally)
        total.unacknowledged += final.unacknowledged
    total.latency.merge(final.latency for final in finals)
    total.lag.merge(final.lag for final in finals)
    return total


class _Meter:
    """CPU time of the broker over the whole of a run; the warm-up is the same load, so it may be
    in."""

    def __init__(self, pid: int | None) -> None:
        self._process = psutil.Process(pid) if pid is not None else None
        self._start = time.monotonic()
        self._before = self._used()

    def _used(self) -> float:
        if self._process is None:
            return 0.0
        try:
            used = self._process.cpu_times()
        except psutil.Error as error:
            raise LoadError(f"the broker is gone: {error}") from error
        return float(used.user + used.system)

    def read(self) -> float | None:
        """Return the CPUs used on average since the start, None without a pid."""
        if self._process is None:
            return None
        return (self._used() - self._before) / (time.monotonic() - self._start)


class _Here:
    """A worker in this process."""

    def __init__(self, spec: LoadSpec, progress: MutableSequence[int], latency: bool) -> None:
        self._worker = Worker(spec, 0, progress, latency)
        self._call: tuple[str, tuple[Any, ...]] = ("", ())

    def ask(self, method: str, *arguments: Any) -> None:
        self._call = method, arguments

    def answer(self, timeout: float) -> Any:
        method, arguments = self._call
        return getattr(self._worker, method)(*arguments)

    def close(self) -> None:
        self._worker.close()


def _worker(spec: LoadSpec, process: int, progress: Any, latency: bool) -> Worker:
    numbers = cast(MutableSequence[int], memoryview(progress).cast("B").cast("q"))
    return Worker(spec, process, numbers, latency)
