"""A mixed load from beginning to end: processes are started, led through it, and measured."""

from __future__ import annotations

import math
import multiprocessing.connection
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray
from typing import Any, cast

from mqttree.bench.load.cpu import CpuMeter, cores
from mqttree.bench.load.histogram import Histogram
from mqttree.bench.load.limit import limit_of_pace, limit_of_rate
from mqttree.bench.load.mix_worker import FIELDS, RECEIVED, MixReport, MixWorker
from mqttree.bench.load.mixture import MixSpec
from mqttree.bench.load.outcome import Tally
from mqttree.bench.load.process import WorkerProcess

_SETUP_SECONDS = 120.0


@dataclass(slots=True, kw_only=True)
class MixResult:
    """What a mixed load came to.

    seconds: the measured time.
    sent: messages published in the whole run.
    unacknowledged: QoS 1 and 2 messages whose handshake did not end.
    rate: arrivals a second while measuring.
    broker_cpu: CPUs that each broker used meanwhile (1.0: one core full), all its threads.
    broker_waited: CPUs that it would have used besides, if others had not had them.
    microseconds: CPU time of each broker for a message that arrived (us).
    generator_cpu: CPUs that each process of the generator used meanwhile.
    new_topics: part of the messages that were measured whose topic came for the first time, as far
        as one expects it of random ones: a broker that is slower, or measured shorter, meets more.
    looked_at: messages that were read one by one; all others were counted.
    latency: from when messages were sent, of a paced load should have been, to their arrival (ns).
    lag: how late a paced generator was itself (ns).
    limited: why the generator may have been the limit; empty if it was not.
    """

    seconds: float
    sent: int
    tally: Tally
    unacknowledged: int
    rate: float
    broker_cpu: list[float]
    broker_waited: list[float]
    microseconds: list[float]
    generator_cpu: list[float]
    new_topics: float
    looked_at: int
    latency: Histogram
    lag: Histogram
    limited: str

    @property
    def complete(self) -> bool:
        """Whether every message arrived exactly once and in order, and was acknowledged."""
        tally = self.tally
        faults = tally.lost or tally.duplicated or tally.out_of_order or self.unacknowledged
        return tally.received == self.sent and not faults

    def proof(self) -> str:
        """Return one line: how many messages were sent, received, lost, repeated and out of
        order."""
        tally = self.tally
        return (
            f"sent {self.sent:,} received {tally.received:,} lost {tally.lost:,} "
            f"duplicated {tally.duplicated:,} out of order {tally.out_of_order:,} "
            f"unacknowledged {self.unacknowledged:,}"
        )


def run_mix(spec: MixSpec, pids: Sequence[int] = ()) -> MixResult:
    """Put the load `spec` on brokers, whose processes are `pids` (the publishers' broker first),
    and return what came of it.

    Raises ValueError for a load that makes no sense and LoadError when it cannot be carried out.
    """
    spec.check()
    brokers = [CpuMeter(pid) for pid in pids]
    table = RawArray("q", spec.processes * FIELDS)
    crew: list[WorkerProcess] = []
    try:
        crew += [WorkerProcess(_worker, spec, number, table) for number in range(spec.processes)]
        _all(crew, "subscribe", _SETUP_SECONDS)
        time.sleep(spec.settle)
        _all(crew, "connect", _SETUP_SECONDS)
        meters = [CpuMeter(member.pid) for member in crew]
        begin = time.monotonic() + 0.05 + spec.warmup
        end = begin + spec.seconds
        for member in crew:
            member.ask("run", begin, end)
        before = _look(crew, table, [*brokers, *meters], begin)
        after = _look(crew, table, [*brokers, *meters], end)
        for member in crew:
            member.answer(30.0)
        reports = cast(list[MixReport], _all(crew, "finish", spec.drain * 100 + 60.0))
    finally:
        for member in crew:
            member.close()
    return _result(spec, reports, len(brokers), (before, after))


def _look(
    crew: list[WorkerProcess], table: Any, meters: list[CpuMeter], when: float
) -> tuple[float, ...]:
    """Wait until `when` (s, monotonic); return (the time, arrivals, CPU times of all meters,
    their waiting times)."""
    while (left := when - time.monotonic()) > 0.0:
        # A process that speaks before its time has failed, or is as good as through.
        silent = [member.pipe for member in crew if not member.spoke]
        multiprocessing.connection.wait(silent, left)
        for member in crew:
            member.listen()
    received = sum(table[RECEIVED::FIELDS])
    spent = [meter.read() for meter in meters]
    return time.monotonic(), float(received), *spent, *(meter.waited() for meter in meters)


def _result(
    spec: MixSpec,
    reports: list[MixReport],
    brokers: int,
    looks: tuple[tuple[float, ...], tuple[float, ...]],
) -> MixResult:
    """Put together what processes say, and what was seen of them and of so many `brokers`."""
    seconds, received, *times = (end - begin for begin, end in zip(*looks, strict=True))
    each_second = [each / seconds for each in times]
    meters = len(times) // 2
    of_brokers, of_generator = each_second[:brokers], each_second[brokers:meters]
    waited = each_second[meters : meters + brokers]
    tally = Tally()
    latency, lag = Histogram(), Histogram()
    for report in reports:
        tally.add(report.tally)
    latency.merge(report.latency for report in reports)
    lag.merge(report.lag for report in reports)
    looked_at, sent = tally.received, sum(report.sent for report in reports)
    tally.received = sum(report.received for report in reports)
    # All are counted, not all are looked at.
    tally.lost = max(tally.lost, sent + tally.duplicated - tally.received)
    tally.duplicated = max(tally.duplicated, tally.received - sent)
    rate = received / seconds
    if spec.rate is None:
        available = len(set(spec.cores)) or max(1, len(cores()) - brokers)
        wanted = [used + more for used, more in zip(of_brokers, waited, strict=True)]
        limited = limit_of_rate(of_generator, available, wanted)
    else:
        late, delay = lag.percentile(99), latency.percentile(99)
        limited = limit_of_pace(of_generator[1:], rate, spec.rate, late, delay)
    return MixResult(
        seconds=seconds,
        sent=sent,
        tally=tally,
        unacknowledged=sum(report.unacknowledged for report in reports),
        rate=rate,
        broker_cpu=of_brokers,
        broker_waited=waited,
        microseconds=[each / received * 1e6 if received else 0.0 for each in times[:brokers]],
        generator_cpu=of_generator,
        new_topics=new_topics(spec.topics, looks[0][1], looks[1][1]),
        looked_at=looked_at,
        latency=latency,
        lag=lag,
        limited=limited,
    )


def new_topics(topics: int, first: float, last: float) -> float:
    """Return which part of the messages from number `first` to number `last` one expects to have a
    topic that none before them had, when each has a random one of so many `topics`."""
    if last <= first:
        return 0.0
    return topics * (math.exp(-first / topics) - math.exp(-last / topics)) / (last - first)


def _all(crew: list[WorkerProcess], method: str, timeout: float) -> list[Any]:
    for member in crew:
        member.ask(method)
    return [member.answer(timeout) for member in crew]


def _worker(spec: MixSpec, number: int, table: Any) -> MixWorker:
    return MixWorker(spec, number, memoryview(table).cast("B").cast("q"))
