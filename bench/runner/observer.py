"""Watches the brokers of a run: what each says of the tree, when all agree, and what they use.
Tells the trace."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from mqttree.bench.lab.agreement import View, ask, one_tree
from mqttree.bench.lab.brokers import BrokerProcess, HostProcess
from mqttree.bench.lab.lab import Lab
from mqttree.bench.load.cpu import process_time
from mqttree.bench.trace import Writer

FAST = 0.02
"""s between two looks at each broker while a tree is expected to form,"""
SLOW = 0.5
"""and otherwise."""
COUNTED = (
    "link_bytes_control",
    "link_bytes_data",
    "forwarded",
    "received_link",
    "replayed",
    "duplicates",
)


@dataclass(slots=True)
class Use:
    """What one broker has used: s of CPU in so many s between samples; rss: resident bytes, the sum
    of all samples."""

    seconds: float = 0.0
    used: float = 0.0
    rss: int = 0
    samples: int = 0
    last: tuple[int, float, int] | None = None

    def add(self, at: int, cpu_s: float, rss: int, starts: int = 0) -> None:
        """Take a sample at `at` (ns): `cpu_s` seconds of CPU since the process began, `rss` bytes
        of memory; `starts` says how often the process was started until then."""
        if (
            self.last is not None
            and at > self.last[0]
            and cpu_s >= self.last[1]
            and starts == self.last[2]
        ):
            self.seconds += (at - self.last[0]) / 1e9
            self.used += cpu_s - self.last[1]
        self.last = (at, cpu_s, starts)
        self.rss += rss
        self.samples += 1


def mean_use(brokers: Iterable[Use]) -> dict[str, float | None]:
    """Return broker_cpu and broker_rss (docs/reference/traces.md): means over brokers of each one's
    mean; None where nothing was seen."""
    seen = [use for use in brokers if use.samples]
    cpu = [use.used / use.seconds for use in seen if use.seconds]
    return {
        "broker_cpu": sum(cpu) / len(cpu) if cpu else None,
        "broker_cpu_max": max(cpu, default=None),
        "broker_rss": sum(use.rss / use.samples for use in seen) / len(seen) if seen else None,
    }


class Observer:
    """Asks every broker again and again; `views` has the last answers."""

    def __init__(self, lab: Lab, trace: Writer) -> None:
        """Watch the brokers of `lab` and note in `trace` what changes."""
        self.lab, self.trace = lab, trace
        self.views: dict[str, View] = {}
        self.failures: list[str] = []
        self.agreements: list[int] = []
        self.cut: set[frozenset[str]] = set()
        """Pairs between which the run lets nothing pass,"""
        self.allowed_dead: set[str] = set()
        """and processes that it has killed, by their names."""
        self.pause = SLOW
        """s between two looks at each broker while no tree is expected to form."""
        self.use: dict[str, Use] = {}
        """What each broker has used since this was emptied,"""
        self.rss: dict[str, int] = {}
        """and the most memory that it had."""
        self.beside: dict[str, Use] = {}
        """What the companion of each broker has used since this was emptied, by its name."""
        self._taken: dict[str, int] = {}
        self._since = 0  # views older than this (ns) say nothing
        self._agreed = False
        self._roles: dict[tuple[str, str], str] = {}
        self._processes: dict[str, tuple[int, psutil.Process]] = {}
        self._known_dead: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._unsettled = asyncio.Event()

    @property
    def asks(self) -> bool:
        """Whether these brokers can be asked at all."""
        return self.lab.kind.program == "mqttree"

    def start(self) -> None:
        """Begin. Needs a running event loop."""
        loop = asyncio.get_running_loop()
        if self.asks:
            self._tasks = [
                loop.create_task(self._watch(broker)) for broker in self.lab.brokers.values()
            ]
        self._tasks.append(loop.create_task(self._sample()))

    async def stop(self) -> None:
        """End."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def injected(self, at: int) -> None:
        """Something was done at a time (ns): what was seen before it counts no more."""
        self._since = at
        self._settle(False)
        self._judge()

    def _settle(self, agreed: bool) -> None:
        self._agreed = agreed
        self._changed.set()
        if agreed:
            self._unsettled.clear()
        else:
            self._unsettled.set()

    def root(self) -> str:
        """Return the name of the broker that is root; the first living one where no broker can be
        asked, or they do not agree."""
        living = self._living()
        roots = {view["root"] for name, view in self.views.items() if name in living}
        named = [name for name in living if name in self.views and self.views[name]["id"] in roots]
        return (named or living or list(self.lab.brokers))[0]

    def leaf(self) -> str:
        """A broker that no other has as its parent."""
        views = {name: self.views[name] for name in self._living() if name in self.views}
        parents = {view["parent"] for view in views.values()} | {
            view["root"] for view in views.values()
        }
        leaves = [name for name, view in sorted(views.items()) if view["id"] not in parents]
        return leaves[-1] if leaves else list(self.lab.brokers)[-1]

    async def agreed(self, patience: float) -> bool:
        """Wait until all living brokers agree."""
        end = time.monotonic() + patience
        while not self._agreed:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), end - time.monotonic())
            except TimeoutError:
                return False
        return True

    def dead(self) -> list[str]:
        """Brokers that do not run, or are stopped."""
        return [
            name for name, broker in self.lab.brokers.items() if broker.paused or not broker.running
        ]

    def _living(self) -> list[str]:
        dead = self.dead()
        return [name for name in self.lab.brokers if name not in dead]

    async def _watch(self, broker: BrokerProcess) -> None:
        while True:
            if broker.running and not broker.paused:
                asked = time.monotonic_ns()
                view = await self._ask(broker)
                if view is not None:
                    self._took(broker.name, view, asked)
            if not self._agreed:
                await asyncio.sleep(FAST)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._unsettled.wait(), self.pause)

    async def ask_all(self) -> dict[str, View]:
        """Return what all brokers that answer say now, by their names."""
        found = {}
        for name, broker in self.lab.brokers.items():
            view = await self._ask(broker)
            if view is not None:
                found[name] = view
        return found

    async def _ask(self, broker: BrokerProcess) -> View | None:
        def inside() -> socket.socket:
            with self.lab.inside(broker.name):
                return socket.socket()

        return await ask(broker.place.admin, inside)

    def _took(self, name: str, view: View, asked: int) -> None:
        at = time.monotonic_ns()
        self.views[name], self._taken[name] = view, asked
        roles = {(name, link["name"]): link["role"] for link in view["links"] if link["up"]}
        roles[name, ""] = f"state:{view['state']}"
        for (_, peer), role in roles.items():
            if self._roles.get((name, peer)) != role:
                self.trace.role(at, name, peer, role, self._name(view["root"]))
        for key in [key for key in self._roles if key[0] == name and key not in roles]:
            self.trace.role(at, name, key[1], "down", self._name(view["root"]))
            del self._roles[key]
        self._roles |= roles
        if self._agreed:
            for counter in COUNTED:
                self.trace.counted(at, name, counter, view["counters"].get(counter, 0))
        self._judge()

    def _name(self, broker_id: str) -> str:
        return next(
            (name for name, view in self.views.items() if view["id"] == broker_id), broker_id
        )

    def _judge(self) -> None:
        dead = self.dead()
        living = self._living()
        fresh = all(self._taken.get(name, -1) >= self._since for name in living) and bool(living)
        views = {name: self.views[name] for name in living} if fresh else {}
        agreed = one_tree(views, dead, self.cut)
        if agreed and not self._agreed:
            at = time.monotonic_ns()
            self.agreements.append(at)
            self.trace.agreed(at, len(living), self._name(views[living[0]]["root"]))
        if agreed is not self._agreed:
            self._settle(agreed)

    async def _sample(self) -> None:
        while True:
            self.sample()
            self.trace.tick()
            await asyncio.sleep(SLOW)

    def sample(self) -> None:
        """Note what every broker has used so far, and who has died uninvited."""
        at = time.monotonic_ns()
        for name, broker in self.lab.brokers.items():
            self._sample_one(at, name, "broker", broker, self.use)
        for companion in self.lab.companions.values():
            self._sample_one(at, companion.name, self.lab.kind.companion, companion, self.beside)
        for each in (*self.lab.brokers.values(), *self.lab.companions.values()):
            if (
                not each.running
                and each.name not in self._known_dead
                and each.name not in self.allowed_dead
            ):
                self._known_dead.add(each.name)
                self.failures.append(each.ended())

    def _sample_one(
        self, at: int, name: str, role: str, host_process: HostProcess, use: dict[str, Use]
    ) -> None:
        """Note at `at` (ns) in `use` what a process has used so far: `name` and `role` are those in
        the trace, `host_process` is the process."""
        process = host_process.process
        if process is None:
            return
        known = self._processes.get(name)
        try:
            if known is None or known[0] != host_process.starts:
                known = self._processes[name] = (host_process.starts, psutil.Process(process.pid))
            with known[1].oneshot():
                rss, threads = known[1].memory_info().rss, known[1].num_threads()
            # /proc counts in ticks of 10 ms: a broker at 1 % of a core has one in a second.
            used = process_time(process.pid)
        except (psutil.Error, OSError):
            return
        use.setdefault(name, Use()).add(at, used, rss, known[0])
        if role == "broker":
            self.rss[name] = max(rss, self.rss.get(name, 0))
        self.trace.resources(at, name, role, used, rss, threads)
