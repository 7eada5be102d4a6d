"""Carries out the faults of a cell, undoes them in time, and notes both in the trace."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import time
from collections.abc import Collection
from dataclasses import replace

from mqttree.bench.lab.brokers import HostProcess
from mqttree.bench.lab.lab import Lab, LabError
from mqttree.bench.runner.observer import Observer
from mqttree.bench.scenarios.scenario import ON_BROKERS, SELECTORS, Fault
from mqttree.bench.trace import Writer

UNDONE = {"kill": "restart", "pause": "resume"}
POSSIBLE = {
    "kill": ("runs", "is stopped"),
    "pause": ("runs",),
    "resume": ("is stopped",),
    "restart": ("does not run",),
}
"""How a broker has to be for what is done to it to change anything."""


class FaultInjector:
    """Who does it."""

    def __init__(
        self, lab: Lab, observer: Observer, trace: Writer, seed: int, cpu: float = 0.0
    ) -> None:
        """Make faults of brokers and links of `lab`: `observer` learns of them, `trace` notes them,
        `seed` is of what is drawn. `cpu` is the share of a core that each broker has, also when it
        is back (0: no limit)."""
        self._lab, self._observer, self._trace = lab, observer, trace
        self._random = random.Random(f"{seed}/faults")
        self._last = ""
        self._numbers = itertools.count(1)
        self._cpu = cpu
        self._stopped: dict[str, int] = {}  # which fault has stopped a process, by its number
        # Directions that nothing passes in, by the number of the fault.
        self._shut: dict[int, set[tuple[str, str]]] = {}
        self.injected: list[tuple[int, str, str]] = []
        """(ns, kind, target) of what has been done."""

    def resolve(self, faults: tuple[Fault, ...]) -> list[Fault]:
        """Put names in the place of root, leaf, random and same, as things stand now, so that
        clients can be spared.

        random stops another broker each time, while there are any.
        """
        resolved = []
        stopped: list[str] = []
        last = self._last
        for fault in sorted(faults, key=lambda fault: fault.at):
            links = tuple(self._ends(one, other, last) for one, other in fault.links)
            if fault.broker:
                last = self._named(fault.broker, last, stopped if fault.do in UNDONE else ())
                stopped += [last] if fault.do in UNDONE else []
                fault = replace(fault, broker=last)
            resolved.append(replace(fault, links=links))
        self._last = last
        return resolved

    def _ends(self, one: str, other: str, last: str) -> tuple[str, str]:
        if one == "random" != other:  # the one that is given comes first: what is drawn is another
            return self._ends(other, one, last)[::-1]
        end = self._named(one, last)
        return end, self._named(other, last, (end,))

    def _named(self, name: str, last: str, but: Collection[str] = ()) -> str:
        if name not in SELECTORS:
            return name
        if name == "same":
            return last or next(iter(self._lab.brokers))
        if name == "random":
            return self._random.choice(
                [broker for broker in self._lab.brokers if broker not in but]
                or list(self._lab.brokers)
            )
        return self._observer.root() if name == "root" else self._observer.leaf()

    async def carry_out(self, faults: list[Fault], start: float) -> None:
        """Do everything when its time has come, counted from `start` (s, monotonic)."""
        plan: list[tuple[float, int, bool, Fault]] = []
        for fault in faults:
            number = next(self._numbers)
            heapq.heappush(plan, (fault.at, number, False, fault))
            if fault.duration:
                undone = replace(
                    fault, do=UNDONE.get(fault.do, "heal"), at=fault.at + fault.duration, wire={}
                )
                heapq.heappush(plan, (undone.at, number, True, undone))
        while plan:
            at, number, undoing, fault = heapq.heappop(plan)
            await asyncio.sleep(max(0.0, start + at - time.monotonic()))
            self.inject(fault, number, undoing)

    def inject(self, fault: Fault, number: int = 0, undoing: bool = False) -> None:
        """Do one `fault`, now. Raises LabError where the lab cannot, or where it comes to nothing.

        `number` is that by which it is undone alone (0: a new one). `undoing`: the fault with this
        number is undone, and no other.
        """
        at = time.monotonic_ns()
        target, detail = fault.broker, ""
        number = number or next(self._numbers)
        if fault.do in ON_BROKERS:
            processes = self._processes(fault)
            if undoing and self._stopped.get(processes[0].name) != number:
                return  # it was undone before, and who is stopped now was stopped by another
            target = processes[0].name
            detail = " ".join(each.name for each in processes[1:])
            for process in processes:
                self._on_process(fault, process, number)
        elif fault.do == "leave":  # which the clients do by themselves
            target = fault.client
        else:
            pairs = self._pairs(fault)
            if not pairs:
                raise LabError(
                    f"{fault.do}: there is no link between "
                    f"{' and '.join(fault.links[0]) if fault.links else 'them'}"
                )
            target = (
                f"{pairs[0][0]}-{pairs[0][1]}"
                if len(pairs) == 1
                else "all"
                if not fault.groups
                else "partition"
            )
            detail = "|".join("+".join(group) for group in fault.groups) or " ".join(
                f"{k}={v}" for k, v in fault.wire.items()
            )
            self._on_links(fault, pairs, number, undoing)
        self._trace.fault(at, fault.do, target, detail)
        self.injected.append((at, fault.do, target))
        if fault.do not in ("slow", "lossy"):
            self._observer.injected(at)

    def _processes(self, fault: Fault) -> list[HostProcess]:
        """Return the processes on a host that a fault is about, the broker first. Raises LabError
        where one of them does not exist."""
        wanted = [fault.process or "broker"]
        if fault.process == "both":
            wanted = ["broker", self._lab.kind.companion]
        found: list[HostProcess | None] = [
            self._lab.brokers.get(fault.broker)
            if each == "broker"
            else self._lab.companions.get(fault.broker)
            for each in wanted
        ]
        there = [each for each in found if each is not None]
        if len(there) < len(wanted):
            raise LabError(f"{fault.do}: there is no {wanted[len(there)]} at {fault.broker}")
        return there

    def _on_process(self, fault: Fault, process: HostProcess, number: int) -> None:
        """Do what `fault` says to one `process`; `number` is the fault's. Raises LabError where it
        comes to nothing."""
        stands = (
            "does not run" if not process.running else "is stopped" if process.paused else "runs"
        )
        if stands not in POSSIBLE[fault.do]:
            raise LabError(f"{fault.do}: {process.name} {stands}")
        limited = self._cpu and process is self._lab.brokers.get(fault.broker)
        if fault.do in UNDONE:
            self._stopped[process.name] = number
            if limited:  # who gives it a share of a core would wake it again
                self._lab.limit_cpu(fault.broker, 0)
        else:
            self._stopped.pop(process.name, None)
        if fault.do == "kill":
            self._observer.allowed_dead.add(process.name)
            process.kill()
        elif fault.do == "pause":
            process.pause()
        elif fault.do == "resume":
            process.resume()
        else:
            process.start()
            # If it dies from now on, that was not asked for.
            self._observer.allowed_dead.discard(process.name)
        if limited and fault.do not in UNDONE:
            self._lab.limit_cpu(fault.broker, self._cpu)

    def _pairs(self, fault: Fault) -> list[tuple[str, str]]:
        if fault.groups:
            rest = set(self._lab.topology.hosts) - {
                host for group in fault.groups for host in group
            }
            groups = [*map(list, fault.groups[:-1]), [*fault.groups[-1], *sorted(rest)]]
            pairs = [
                (a, b)
                for i, one in enumerate(groups)
                for other in groups[i + 1 :]
                for a in one
                for b in other
            ]
            return self._linked(pairs)
        pairs = []
        for one, other in fault.links:
            if "all" in (one, other):
                end = other if one == "all" else one
                pairs += [(end, host) for host in self._lab.topology.hosts if host != end]
            elif one != other:
                pairs.append((one, other))
        return self._linked(pairs)

    def _linked(self, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Those between which there is a link."""
        return [pair for pair in pairs if self._lab.topology.wire(*pair) is not None]

    def _on_links(
        self, fault: Fault, pairs: list[tuple[str, str]], number: int, undoing: bool
    ) -> None:
        both = fault.do != "half-open"
        directions = {*pairs, *((other, one) for one, other in pairs if both)}
        if undoing:
            self._lab.set_links(pairs, undo=number)
            self._shut.pop(number, None)
        elif fault.do == "heal":
            self._lab.set_links(pairs, heal=True)
            for shut in self._shut.values():
                shut -= directions
        elif fault.do in ("slow", "lossy"):
            self._lab.set_links(pairs, wire=fault.wire, by=number)
        else:
            if directions <= set().union(*self._shut.values()):
                raise LabError(f"{fault.do}: nothing passes there already")
            self._lab.set_links(pairs, both=both, open=False, by=number)
            self._shut[number] = directions
        self._observer.cut = {frozenset(ends) for shut in self._shut.values() for ends in shut}
