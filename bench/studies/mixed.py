"""What several brokers make of mixed and paced loads, one after the other, round by round: rates,
their own CPU time for a message, delays."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from mqttree.bench.load import LoadError
from mqttree.bench.load.cpu import cores, share_out
from mqttree.bench.load.mix import MixResult, run_mix
from mqttree.bench.load.mixture import MixSpec
from mqttree.bench.studies.targets import Running, Target, running, running_path

_SETTLE = 0.5
"""s for a hop to hear of the subscriptions."""


@dataclass(frozen=True, slots=True)
class MixedWork:
    """A load with a name. path: publishers and subscribers are at two brokers, "hop", "leg",
    "legout" or "legs" (empty: at one), or at the first of two, "pair" or "standby"; journal:
    messages are kept on the disk; plain: name of the work that it is a variant of."""

    name: str
    title: str
    spec: MixSpec
    group: str
    path: str = ""
    journal: bool = False
    plain: str = ""

    @property
    def paced(self) -> bool:
        """Whether messages are sent by the clock."""
        return self.spec.rate is not None


def _paced(qos: int, rate: float) -> MixSpec:
    return MixSpec(qos=qos, publishers=1000, subscribers=50, window=20, rate=rate)


_PLAIN = (
    MixedWork("mix0", "mix QoS 0, 100 to 20", MixSpec(), "mix"),
    MixedWork("mix1", "mix QoS 1, window 10", MixSpec(qos=1, window=10), "mix"),
    MixedWork("mix1w1", "mix QoS 1, window 1", MixSpec(qos=1, window=1), "mix"),
    MixedWork("mix2", "mix QoS 2, window 10", MixSpec(qos=2, window=10), "mix"),
    MixedWork("paced0", "QoS 0, 1,000 to 50, 10,000/s", _paced(0, 10_000.0), "paced"),
    MixedWork("paced1", "QoS 1, 1,000 to 50, 10,000/s", _paced(1, 10_000.0), "paced"),
    MixedWork("paced0-1k", "QoS 0, 1,000 to 50, 1,000/s", _paced(0, 1000.0), "paced"),
    MixedWork("paced1-1k", "QoS 1, 1,000 to 50, 1,000/s", _paced(1, 1000.0), "paced"),
    MixedWork("paced0-20k", "QoS 0, 1,000 to 50, 20,000/s", _paced(0, 20_000.0), "paced"),
    MixedWork("paced1-20k", "QoS 1, 1,000 to 50, 20,000/s", _paced(1, 20_000.0), "paced"),
)
_PATHS = {
    "hop": "one hop",
    "leg": "from a Mosquitto over a leg or a bridge",
    "legout": "to a Mosquitto over a leg or a bridge",
    "legs": "from a Mosquitto to another one",
}
_OVER_PATHS = tuple(
    dataclasses.replace(
        work,
        name=f"{path}-{work.name}",
        title=f"{title}, {work.title}",
        group=path,
        path=path,
        spec=dataclasses.replace(work.spec, settle=_SETTLE),
    )
    for path, title in _PATHS.items()
    for work in _PLAIN
    if work.name in ("mix0", "mix1", "mix2", "paced0-1k")
)
_PAIRS = {"pair": "two brokers, sessions kept", "standby": "the same, with a standby"}
_IN_PAIRS = tuple(
    dataclasses.replace(
        work,
        name=f"{work.name}-{path}",
        title=f"{work.title}, {title}",
        group="standby",
        path=path,
        spec=dataclasses.replace(work.spec, clean=False, settle=2.0),
    )
    for path, title in _PAIRS.items()
    for work in _PLAIN
    if work.name in ("mix1", "mix1w1", "mix2")
)
_VARIANTS: tuple[tuple[str, str, Callable[[MixSpec], MixSpec]], ...] = (
    ("tls", "TLS", lambda spec: dataclasses.replace(spec, transport="tls")),
    ("ws", "WebSocket", lambda spec: dataclasses.replace(spec, transport="ws")),
    (
        "v5",
        "MQTT 5, 4 user properties",
        lambda spec: dataclasses.replace(spec, version=5, user_properties=4),
    ),
    (
        "v5expiry",
        "MQTT 5, messages that expire",
        lambda spec: dataclasses.replace(spec, version=5, expiry=3600),
    ),
    ("journal", "sessions kept, journal", lambda spec: dataclasses.replace(spec, clean=False)),
)
_VARIED = ("mix0", "mix1", "paced1")
WORKS: dict[str, MixedWork] = {
    work.name: work
    for work in (
        *_PLAIN,
        *_OVER_PATHS,
        *_IN_PAIRS,
        *(
            dataclasses.replace(
                work,
                name=f"{work.name}-{name}",
                title=f"{work.title}, {title}",
                group="variants",
                journal=name == "journal",
                plain=work.name,
                spec=vary(work.spec),
            )
            for work in _PLAIN
            if work.name in _VARIED
            for name, title, vary in _VARIANTS
            # Nothing of QoS 0 goes to the disk.
            if work.spec.qos or name != "journal"
        ),
    )
}
GROUPS: dict[str, tuple[str, ...]] = {
    group: tuple(name for name, work in WORKS.items() if work.group == group)
    for group in ("mix", "paced", *_PATHS, "standby")
}
GROUPS["variants"] = (
    *_VARIED,
    *(name for name, work in WORKS.items() if work.group == "variants"),
)
"""Works that are asked for together; variants with what they are variants of."""


@dataclass(slots=True)
class Run:
    """One run's figures. load: of the machine before, as the kernel counts it."""

    result: MixResult
    load: float

    def figures(self) -> dict[str, object]:
        """Return them as plain values."""
        result, tally = self.result, self.result.tally
        return {
            "rate": result.rate,
            "cpu_us": result.microseconds,
            "broker_cpu": result.broker_cpu,
            "broker_waited": result.broker_waited,
            "generator_cpu": result.generator_cpu,
            "limited": result.limited,
            "p50_ms": result.latency.percentile(50),
            "p99_ms": result.latency.percentile(99),
            "generator_late_p99_ms": result.lag.percentile(99),
            "seconds": result.seconds,
            "sent": result.sent,
            "received": tally.received,
            "new_topics": result.new_topics,
            "looked_at": result.looked_at,
            "lost": tally.lost,
            "duplicated": tally.duplicated,
            "out_of_order": tally.out_of_order,
            "unacknowledged": result.unacknowledged,
            "load_before": self.load,
        }


@dataclass(slots=True)
class Runs:
    """All runs of one work with one target, and what went wrong."""

    runs: list[Run] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    available: bool = True


MixedTable = dict[str, dict[str, Runs]]


def supports(work: MixedWork, target: Target) -> bool:
    """Whether the `target` can be started for the `work`."""
    if work.path:
        return work.path in target.launches.paths
    if work.spec.transport != "tcp":
        return target.launches.wide is not None
    return not work.journal or target.journals


def measure(
    works: Sequence[MixedWork],
    targets: Sequence[Target],
    rounds: int,
    seconds: float,
    *,
    pin: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> MixedTable:
    """Return what each of the `targets` does with each of the `works`, measured `rounds` times in
    turn for so many `seconds` each; `pin`: brokers and generator on cores of their own, where there
    are enough; `say` is told each figure as it comes.

    A target that fails a work is noted and tried again in the next round.
    """
    table: MixedTable = {
        work.name: {each.name: Runs(available=supports(work, each)) for each in targets}
        for work in works
    }
    for work in works:
        for turn in range(rounds):
            for each in targets:
                kept = table[work.name][each.name]
                if not kept.available:
                    continue
                try:
                    run = _once(work, each, seconds, pin)
                    kept.runs.append(run)
                    line = f"{figures(run.result)}; {run.result.proof()}"
                    if not run.result.complete:
                        kept.complaints.append(run.result.proof())
                except LoadError as error:
                    kept.complaints.append(str(error))
                    line = f"failed: {error}"
                say(f"{work.name} {turn + 1}/{rounds} {each.name}: {line}")
    return table


def _once(work: MixedWork, target: Target, seconds: float, pin: bool) -> Run:
    """Start the brokers, and put the load on them. Raises LoadError."""
    load = os.getloadavg()[0]
    count = len(target.launches.paths.get(work.path, ())) if work.path else 1
    of_brokers, of_generator = share_out(cores(), count, pin)
    # By the clock, one process publishes and one listens; otherwise each has some of both.
    processes = 2 if work.paced else min(8, max(1, len(cores()) - count))
    with ExitStack() as stack:
        brokers: tuple[Running, ...]
        if work.path:
            brokers = stack.enter_context(running_path(target, work.path, of_brokers))
        else:
            wide = work.spec.transport != "tcp"
            broker = running(target, wide=wide, journal=work.journal, cores=of_brokers)
            brokers = (stack.enter_context(broker),)
        first, last = brokers[0], brokers[-1]
        port = {"tls": first.tls, "ws": first.ws}.get(work.spec.transport, first.port)
        spec = dataclasses.replace(
            work.spec,
            port=port,
            subscriber_port=last.port if work.path in _PATHS else None,
            trusted=first.trusted,
            seconds=seconds,
            warmup=min(1.0, seconds / 4),
            processes=processes,
            cores=tuple(of_generator),
        )
        return Run(run_mix(spec, [broker.pid for broker in brokers]), load)


def figures(result: MixResult) -> str:
    """Return one line about a run."""
    cpu = "+".join(f"{each:.2f}" for each in result.microseconds)
    late = f", late p99 {result.lag.percentile(99):.2f} ms" if result.lag.total else ""
    limited = f"; {result.limited}" if result.limited else ""
    brokers = (
        f"CPU {cpu} us, brokers {_percent(result.broker_cpu)}, "
        f"waited {_percent(result.broker_waited)}, "
        if cpu
        else ""
    )
    return (
        f"{result.rate:,.0f}/s, p50 {result.latency.percentile(50):.3f} "
        f"p99 {result.latency.percentile(99):.3f} ms{late}; "
        f"{brokers}generator {_percent(result.generator_cpu)}; "
        f"new topics {result.new_topics:.0%}{limited}"
    )


def _percent(shares: list[float]) -> str:
    return " ".join(f"{each:.0%}" for each in shares)
