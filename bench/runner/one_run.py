"""One run of one cell, in a process of its own: lab up, tree, clients, load, faults, lab down,
everything in the run's folder."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mqttree.bench.lab.brokers import KINDS
from mqttree.bench.lab.federators import Plan, connections_lost
from mqttree.bench.lab.lab import Lab, LabError
from mqttree.bench.lab.network import lacking
from mqttree.bench.lab.priority import kept_awake, prefer
from mqttree.bench.lab.yardstick import Yardstick, yardstick
from mqttree.bench.load import LoadError, packets
from mqttree.bench.load.cpu import cores, on_cores
from mqttree.bench.runner import crowd, run_folder, traffic
from mqttree.bench.runner.book import Flow
from mqttree.bench.runner.fault_injector import FaultInjector
from mqttree.bench.runner.observer import Observer, mean_use
from mqttree.bench.scenarios.scenario import Cell
from mqttree.bench.scenarios.workload import ClientSpec, clients, placed, shares
from mqttree.bench.trace import TraceError, Writer
from mqttree.bench.trace.repair import repair, repairs

BRIDGE_SECONDS = 30.0
LEAD = 0.05
"""s from the order to the first message: until then the clients' process has it."""
_PR_SET_PDEATHSIG = 1
_fork = multiprocessing.get_context("fork")


class RunError(Exception):
    """The run cannot go on; one line."""


class UnavailableError(RunError):
    """What is asked for does not exist here: a program, or a routing that this version does not
    have."""


class Generator:
    """A process of clients, and what it says."""

    def __init__(
        self,
        lab: Lab,
        cell: Cell,
        specs: Any,
        folder: Path,
        names: dict[str, Any],
        own: list[int],
        name: str = "generator-0",
    ) -> None:
        """Start the process of the clients; `lab`, `cell`, `specs`, `folder`, `names` and `name`
        are those of `crowd.run`; `own`: its cores, [] for those of the calling process."""
        self.name = name
        self.heard: Callable[[dict[str, Any]], None] = lambda _: None
        """Takes each event that is not waited for."""
        apart = cell.main.apart
        self._conn, theirs = _fork.Pipe()
        kept = self._conn

        def child() -> None:
            lab.let_go()
            kept.close()
            if own:
                os.sched_setaffinity(0, own)
            if apart:
                os.setsid()
                prefer(os.getpid())
            crowd.run(lab, cell, specs, folder, names, theirs, name)

        sys.stdout.flush()
        self.process = _fork.Process(target=child, name=name)
        self.process.start()
        theirs.close()

    async def hear(self, event: str, patience: float) -> dict[str, Any]:
        """Wait for an event, and return it; RunError when the process ends instead or takes too
        long."""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            try:
                while self._conn.poll(0):
                    message: dict[str, Any] = self._conn.recv()
                    if message["event"] == "failed":
                        raise RunError(f"{self.name}: {message['failure']}")
                    if message["event"] == event:
                        return message
                    self.heard(message)
            except (EOFError, OSError):
                await asyncio.sleep(0.05)
                self.process.join(2)
                code = self.process.exitcode
                dead = code is not None and code < 0
                how = (
                    f"was killed by {signal.Signals(-(code or 0)).name}"
                    if dead
                    else f"ended with code {code}"
                )
                raise RunError(f"the generator {how}") from None
            await asyncio.sleep(0.005)
        raise RunError(f"the generator did not say {event!r} within {patience:g} s")

    def say(self, what: Any) -> None:
        """Send an order."""
        with suppress(OSError):
            self._conn.send(what)

    def end(self) -> str:
        """End the process: by itself, so that its trace is complete; else by force. Returns what it
        says went wrong."""
        self.say(None)
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        failure = ""
        with suppress(EOFError, OSError):
            while self._conn.poll(0):
                message = self._conn.recv()
                if message["event"] == "failed":
                    failure = f"{self.name}: {message['failure']}"
        self._conn.close()
        return failure


class Generators:
    """All processes of clients, as one."""

    def __init__(
        self,
        lab: Lab,
        cell: Cell,
        specs: Sequence[ClientSpec],
        folder: Path,
        names: dict[str, Any],
        own: list[int],
    ) -> None:
        """Start them, as many as `cell` asks for and its clients allow; `lab`, `specs`, `folder`,
        `names` and `own` are those of `Generator`."""
        parts = shares(specs, cell.main.generators) or [list(specs)]
        self.all: list[Generator] = []
        for number, part in enumerate(parts):
            self.all.append(Generator(lab, cell, part, folder, names, own, f"generator-{number}"))

    async def hear(self, event: str, patience: float) -> list[dict[str, Any]]:
        """Wait until all have said `event`, and return what they did. Raises RunError as
        `Generator.hear` does, for the first of them that ends or takes longer than `patience` s."""
        end = time.monotonic() + patience
        return [await each.hear(event, max(end - time.monotonic(), 1.0)) for each in self.all]

    def tell(self, heard: Callable[[dict[str, Any]], None]) -> None:
        """Have `heard` called with each event that is not waited for."""
        for each in self.all:
            each.heard = heard

    def say(self, what: Any) -> None:
        """Send an order to all."""
        for each in self.all:
            each.say(what)

    def end(self) -> str:
        """End all; return what they say went wrong."""
        return "; ".join(filter(None, [each.end() for each in self.all]))


def ready(said: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the processes `said` when their clients were there, as one: the first failure,
    what took longest, and all their cores."""
    failures = [each["failure"] for each in said if each["failure"]]
    return {
        "failure": failures[0] if failures else "",
        "interested": max(each["interested"] for each in said),
        "seconds": max(each["seconds"] for each in said),
        "cores": sorted({core for each in said for core in each["cores"]}),
    }


def done(said: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the processes `said` at their end, as one, for run.json."""
    flows: dict[str, Flow] = {}
    for each in said:
        for name, flow in each["flows"].items():
            flows.setdefault(name, Flow()).merge(flow)
    seconds = max(each["steady"] for each in said)
    used = [each["generator_cpu"] for each in said]
    return {
        "flows": {name: flow.figures(seconds) for name, flow in flows.items()},
        "subscribers": {name: one for each in said for name, one in each["subscribers"].items()},
        "interruptions": sum(each["interruptions"] for each in said),
        "skipped": sum(each["skipped"] for each in said),
        "opened": said[0]["opened"],
        "generator_cpu": sum(used),
        "generators": used,
    }


class Run:
    """One run; `record` is its run.json."""

    def __init__(self, cell: Cell, folder: Path, record: dict[str, Any], way: str) -> None:
        """A run of `cell` that leaves everything in `folder`. `record` becomes its run.json, `way`
        is how the lab makes a network."""
        self.cell, self.folder, self.record, self._way = cell, folder, record, way
        self.trace_folder = folder / "trace"
        self.names = {"run": record["run"], "scenario": record["scenario"], "host": run_folder.HOST}
        self.flow = cell.main
        self.kind = KINDS[self.flow.broker]
        # As long as this process may use all of them.
        self._of_brokers, self._of_generator = _cores_of(cell)
        self._yardstick: Yardstick | None = None
        self._boot = 0

    def carry_out(self) -> None:
        """Do it all, and write run.json before and after."""
        record = self.record
        run_folder.write(self.folder, record)
        self.trace_folder.mkdir(parents=True, exist_ok=True)
        try:
            with self._cores_apart():
                self._in_lab()
            record["status"] = run_folder.FAILED if record["failures"] else run_folder.COMPLETE
        except UnavailableError as error:
            record["status"] = run_folder.NOT_AVAILABLE
            record["failures"].append(str(error))
        except (RunError, LabError, LoadError, TraceError, OSError, ValueError) as error:
            record["status"] = run_folder.FAILED
            record["failures"].append(str(error))
        except (KeyboardInterrupt, asyncio.CancelledError):
            record["status"] = run_folder.INTERRUPTED
            record["failures"].append("interrupted")
        finally:
            record["ended"] = time.time()
            run_folder.write(self.folder, record)

    @contextmanager
    def _cores_apart(self) -> Iterator[None]:
        """Use the cores of brokers, if they have their own. None of the cores sleeps meanwhile."""
        if not self._of_brokers:
            yield
            return
        awake = kept_awake([*self._of_brokers, *self._of_generator])
        with awake, yardstick(self._of_brokers[0]) as self._yardstick, on_cores(self._of_brokers):
            yield

    def _in_lab(self) -> None:
        topology = self.cell.topology.drawn(self.record["seed"])
        if missing := self.kind.missing():
            raise UnavailableError(missing)
        on = (
            (self.flow.at,)
            if self.flow.at
            else topology.brokers
            if self.kind.many
            else topology.brokers[:1]
        )

        def recorder() -> Writer:
            return Writer(self.trace_folder, process="network", **self.names)

        self.record["topology"] = topology.as_dict()
        self.record["on"] = list(on)
        flow = self.flow
        plan = Plan(
            flow.redundancy, flow.nonmember, flow.core_interval, flow.beacon_interval, flow.qos
        )
        with Lab(
            topology,
            self.kind,
            on=on,
            way=self._way,
            seed=self.record["seed"],
            recorder=recorder,
            plan=plan,
        ) as lab:
            self.record["lab"] = lab.way
            if lab.why and self._way == "auto":
                self.record["lab_why"] = lab.why
            self._boot = time.monotonic_ns()
            try:
                lab.start()
            except LabError as error:
                if "not yet" in str(error):
                    raise UnavailableError(str(error)) from None
                raise
            if self.flow.apart:
                for broker in lab.brokers.values():
                    if broker.process is not None:
                        prefer(broker.process.pid)
            if lab.way == "namespaces":
                lab.order({"do": "fresh"})
            if self.flow.cpu:
                self.record["cpu_limit"] = {
                    "share": self.flow.cpu,
                    "way": [lab.limit_cpu(name, self.flow.cpu) for name in on],
                }
            writer = Writer(self.trace_folder, process="observer", **self.names)
            with writer as trace:
                for name in on:
                    trace.fault(self._boot, "start", name)
                # What faults start again belongs on the cores of brokers.
                with on_cores([] if self.cell.faults else self._of_generator):
                    asyncio.run(self._alive(lab, trace))

    async def _alive(self, lab: Lab, trace: Writer) -> None:
        observer = Observer(lab, trace)
        observer.start()
        main = asyncio.current_task()
        assert main is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
        try:
            await self._measure(lab, trace, observer)
        finally:
            self.record["failures"] += observer.failures
            await observer.stop()

    async def _measure(self, lab: Lab, trace: Writer, observer: Observer) -> None:
        cell, record, summary = self.cell, self.record, self.record["summary"]
        if observer.asks:
            if not await observer.agreed(self.kind.patience):
                raise RunError(
                    f"the brokers did not agree on a tree within {self.kind.patience:g} s"
                )
            summary["convergence_s"] = (observer.agreements[0] - self._boot) / 1e9
            summary["root"] = observer.root()
        elif self.kind.many:
            await asyncio.to_thread(wait_bridged, lab)
        injector = FaultInjector(lab, observer, trace, record["seed"], self.flow.cpu)
        faults = injector.resolve(cell.faults)
        spared = sorted({fault.broker for fault in faults if fault.do in ("kill", "pause")})
        if len(spared) == len(lab.brokers) or self.flow.publish_at or self.flow.subscribe_at:
            spared = []
        specs = clients(cell, list(lab.brokers), spared, record["seed"])
        names = {spec.name for spec in specs}
        if unknown := [each.client for each in faults if each.client and each.client not in names]:
            raise RunError(f"leave: there is no client {unknown[0]}")
        record["placement"] = (
            {spec.name: spec.broker for spec in specs} if len(specs) <= 500 else {}
        )
        record["hosts"] = {spec.name: spec.host for spec in specs} if len(specs) <= 500 else {}
        generator = Generators(lab, cell, specs, self.trace_folder, self.names, self._of_generator)
        record["processes"] = [
            *(
                {"name": each.name, "role": "generator", "pid": each.process.pid}
                for each in generator.all
            ),
            {"name": "observer", "role": "observer", "pid": os.getpid()},
            *(
                [{"name": "network", "role": "network", "pid": lab.network_pid}]
                if lab.way != "loopback"
                else []
            ),
        ]
        run_folder.write(self.folder, record)
        try:
            await self._load(lab, trace, observer, injector, faults, generator, specs)
        finally:
            if failure := await asyncio.to_thread(generator.end):
                record["failures"].append(failure)
        self._judge(observer, injector)

    async def _load(
        self,
        lab: Lab,
        trace: Writer,
        observer: Observer,
        injector: FaultInjector,
        faults: Any,
        generator: Generators,
        specs: Sequence[ClientSpec],
    ) -> None:
        cell, record, summary = self.cell, self.record, self.record["summary"]
        rss: dict[str, dict[str, int]] = {}

        def heard(message: dict[str, Any]) -> None:
            observer.rss.clear()
            observer.sample()
            rss[message["event"]] = dict(observer.rss)

        generator.tell(heard)
        patience = 60 + self.flow.settle + self.flow.connections / 50
        there = ready(await generator.hear("ready", patience))
        if there["failure"]:
            raise RunError(there["failure"])
        work = await self._began_workload(observer, specs, there)
        observer.use.clear()
        observer.beside.clear()
        observer.sample()
        before = lab.totals()  # the trace has both as well
        if self.flow.federated and before is not None:
            self._formed(before["federators"]["mesh_ns"], there["interested"])
        start = self._begin(generator)
        injecting = asyncio.create_task(injector.carry_out(faults, start))
        phases = asyncio.create_task(self._phases(lab, trace, start, before))
        try:
            await generator.hear("published", cell.duration() + 60)
            over = time.monotonic()
            if work:
                work.published()
            observer.sample()
            after, used = lab.totals(), mean_use(observer.use.values())
            if lab.companions:
                summary["companion_cpu"] = mean_use(observer.beside.values())["broker_cpu"]
            self._published(start)
            ended = done(await generator.hear("done", 120 + 3 * cell.drain))
            await asyncio.wait_for(injecting, cell.duration() + 60)
            await phases
        finally:
            for task in (injecting, phases):
                if not task.done():
                    task.cancel()
        if faults and observer.asks and not await observer.agreed(self.kind.patience):
            record["failures"].append(f"no tree {self.kind.patience:g} s after the last fault")
        keys = ("flows", "subscribers", "interruptions", "skipped")
        summary |= {key: ended[key] for key in keys}
        seconds = over - start
        summary["seconds"] = seconds
        summary |= used
        if lab.companions and (whole := lab.totals()) is not None:
            summary["federators"] = whole["federators"]  # with what came behind the last message
        summary["generator_cpu"], summary["generators"] = (
            ended["generator_cpu"],
            ended["generators"],
        )
        if ended["opened"]:
            self._opened(ended["opened"], rss)
        if before is not None and after is not None:
            self._carried(before, after)
        if work:
            summary["traffic"] = await work.summary(seconds)

    async def _began_workload(
        self, observer: Observer, specs: Sequence[ClientSpec], ready: dict[str, Any]
    ) -> traffic.Work | None:
        """Note how its clients connected, and begin to count what brokers carry; None without a
        workload, or where brokers cannot be asked.

        `specs`: the clients; `ready`: what the generator said when all were there.
        """
        flow, summary = self.flow, self.record["summary"]
        if not flow.workload:
            return None
        summary["sessions"] = sum(spec.number < 0 for spec in specs)
        summary["connect_ms"] = 1000 * ready["seconds"] / len(specs)
        if not observer.asks:
            return None
        # Each look costs a broker as much as many messages.
        observer.pause = self.cell.duration() + self.cell.drain
        await traffic.meshed(observer)
        self.record["cores"] = {
            "brokers": traffic.cores_of(observer),
            "generator": ready["cores"],
        }
        work = placed(flow, len(observer.lab.brokers), self.record["seed"])
        on_tree = self.kind.routing == "interest"
        idle, before = await traffic.idle_loads(observer, on_tree)
        return traffic.Work(observer, work, on_tree, idle, before, self._yardstick)

    def _begin(self, generator: Generators) -> float:
        """Have the clients begin to publish, and the measured time with them. Returns when (s)."""
        start = time.monotonic() + LEAD
        # Not now: rates would count a time without publishers.
        self.record["load_from_ns"] = round(start * 1e9)
        self.record["measure_from_ns"] = round((start + self.flow.ramp) * 1e9)
        generator.say(start)
        return start

    def _published(self, start: float) -> None:
        """Note when the load, which began at `start` (s), and the measured time were over."""
        now = time.monotonic_ns()
        self.record["load_to_ns"] = self.record["measure_to_ns"] = now
        if self.flow.ramp:
            end = start + max(flow.duration() for flow in self.cell.flows.values())
            self.record["measure_to_ns"] = min(now, round((end - self.flow.ramp) * 1e9))

    def _formed(self, mesh_ns: int | None, interested_ns: int) -> None:
        """Note how long federators took for their mesh: until the last way of a membership was
        taken first (`mesh_ns`; None: there is none), from the last subscriber's first beacon
        (`interested_ns`). One that was complete before took no time."""
        if mesh_ns is not None:
            self.record["summary"]["convergence_s"] = max(0, mesh_ns - interested_ns) / 1e9

    def _carried(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        """Note what links carried, and how late the network was."""
        summary = self.record["summary"]
        summary["links"] = _difference(before, after)
        summary["boot"] = _sums(before)
        summary["network"] = {
            key: after[key] for key in ("late_ms", "moved", "unroutable", "refused", "tap_broken")
        }
        if said := lacking(after):
            summary["lacking"] = said

    def _opened(self, opened: dict[str, Any], rss: dict[str, dict[str, int]]) -> None:
        summary = self.record["summary"]
        summary["connections"] = opened["connections"]
        summary["connections_per_s"] = (
            opened["connections"] / opened["seconds"] if opened["seconds"] else None
        )
        before, after = rss.get("connecting", {}), rss.get("connected", {})
        if after and opened["connections"]:
            growth = sum(after.values()) - sum(before.get(name, 0) for name in after)
            summary["bytes_per_connection"] = growth / opened["connections"]
        if opened["failure"]:
            self.record["failures"].append(opened["failure"])

    async def _phases(
        self, lab: Lab, trace: Writer, start: float, before: dict[str, Any] | None
    ) -> None:
        """Note the bytes of each phase."""
        if before is None or not self.cell.phases:
            return
        phases = self.record["summary"]["phases"] = [
            {"name": "boot", "seconds": start - self._boot / 1e9, **_sums(before)}
        ]
        last, since = before, 0.0
        for until, name in sorted(self.cell.phases):
            await asyncio.sleep(max(0.0, start + until - time.monotonic()))
            now = lab.totals()
            assert now is not None
            trace.note(time.monotonic_ns(), f"end of phase {name}")
            phases.append({"name": name, "seconds": until - since, **_difference(last, now)})
            last, since = now, until

    def _judge(self, observer: Observer, injector: FaultInjector) -> None:
        """Repair times, and promises of the broker under test that were broken: findings, while the
        run itself went well."""
        summary, record = self.record["summary"], self.record
        if observer.asks:
            summary["repairs"] = repairs(injector.injected, observer.agreements)
            summary["repair_s"], why = repair(summary["repairs"])
            if why and summary["repairs"]:
                summary["missing"] = {"repair_s": why}
        for name, flow in summary["flows"].items():
            qos = self.cell.flows[name].qos
            what = f"flow {name}: " if name else ""
            if qos and flow["lost"]:
                record["findings"].append(
                    f"{what}{flow['lost']} messages that were accepted at QoS {qos} were lost"
                )
            if qos == 2 and flow["duplicates"]:
                record["findings"].append(f"{what}{flow['duplicates']} duplicates at QoS 2")
        if self.flow.federated and not injector.injected:
            record["findings"] += connections_lost(observer.lab.companions.values())
        if summary.get("traffic", {}).get("tree_changed"):
            record["findings"].append(
                "the tree changed while messages were published: the model is of another one"
            )


def _cores_of(cell: Cell) -> tuple[list[int], list[int]]:
    """The cores of the brokers, and that of the generator; none where they are not apart."""
    there = cores()
    if not cell.main.apart or len(there) < 2:
        return [], []
    return there[:-1], there[-1:]


def _sums(totals: dict[str, Any]) -> dict[str, int]:
    links = totals["links"].values()
    return {
        key: sum(link[key] for link in links)
        for key in ("bytes", "control_bytes", "data_bytes", "packets")
    }


def _difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, int]:
    one, other = _sums(before), _sums(after)
    return {key: other[key] - one[key] for key in other}


def wait_bridged(lab: Lab) -> None:
    """Wait until every bridge made by hand is connected, as each broker's own $SYS says. Raises
    RunError."""
    end = time.monotonic() + BRIDGE_SECONDS
    for broker in lab.brokers.values():
        for number, _ in enumerate(broker.place.bridges):
            topic = f"$SYS/broker/connection/bridge-{broker.name}-{number}/state"
            while not _says(lab, broker.name, topic, b"1"):
                if time.monotonic() > end:
                    raise RunError(
                        f"a bridge of {broker.name} was not connected within {BRIDGE_SECONDS:g} s"
                    )
                time.sleep(0.05)


def _says(lab: Lab, broker: str, topic: str, wanted: bytes) -> bool:
    """Whether a retained message is there."""
    with lab.inside(broker), socket.socket() as sock:
        sock.settimeout(0.5)
        try:
            sock.connect(lab.address(broker, broker))
            sock.sendall(packets.connect("lab-bridged", 4) + packets.subscribe(topic, 0, 4))
            data = b""
            while topic.encode() not in data:
                more = sock.recv(4096)
                if not more:
                    return False
                data += more
            return data.endswith(wanted)
        except OSError:
            return False


def run(cell: Cell, folder: Path, record: dict[str, Any], way: str, tell: Connection) -> None:
    """The process of one run (forked). Its own group's Ctrl-C concerns its parent alone, which
    sends SIGTERM; when the parent has died, the kernel does.

    `cell`, `folder`, `record` and `way` are those of `Run`. `tell` takes why run.json
    cannot be written.
    """
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def interrupt(_signal: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        _end_with_parent()
        Run(cell, folder, record, way).carry_out()
    except KeyboardInterrupt:
        pass
    except OSError as error:
        with suppress(OSError):
            tell.send(run_folder.unwritable(error))


def _end_with_parent() -> None:
    """Be sent SIGTERM when the parent dies. Raises KeyboardInterrupt if it has died before that was
    asked for."""
    parent = multiprocessing.parent_process()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if parent is not None and os.getppid() != parent.pid:
        raise KeyboardInterrupt
