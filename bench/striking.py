"""Carries out the faults of a cell, undoes them in time, and notes both in the trace."""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from dataclasses import replace

from bench.netlab.lab import Lab, LabError
from bench.observe import Observer
from bench.scenario import ON_BROKERS, SELECTORS, Fault
from bench.trace import Writer

UNDONE = {"kill": "restart", "pause": "resume"}


class Striker:
    """Who does it."""

    def __init__(self, lab: Lab, observer: Observer, trace: Writer, seed: int) -> None:
        self._lab, self._observer, self._trace = lab, observer, trace
        self._random = random.Random(f"{seed}/faults")
        self._last = ""
        self.struck: list[tuple[int, str, str]] = []
        """(ns, kind, target) of what has been done."""

    def resolve(self, faults: tuple[Fault, ...]) -> list[Fault]:
        """Put names in the place of root, leaf, random and same, as things stand now, so that clients can be spared."""
        resolved = []
        last = self._last
        for fault in sorted(faults, key=lambda fault: fault.at):
            links = tuple(self._ends(one, other, last) for one, other in fault.links)
            if fault.broker:
                last = self._named(fault.broker, last)
                fault = replace(fault, broker=last)
            resolved.append(replace(fault, links=links))
        self._last = last
        return resolved

    def _ends(self, one: str, other: str, last: str) -> tuple[str, str]:
        if one == "random" != other:  # the one that is given comes first: what is drawn is another
            return self._ends(other, one, last)[::-1]
        end = self._named(one, last)
        return end, self._named(other, last, but=end)

    def _named(self, name: str, last: str, but: str = "") -> str:
        if name not in SELECTORS:
            return name
        if name == "same":
            return last or next(iter(self._lab.brokers))
        if name == "random":
            return self._random.choice([broker for broker in self._lab.brokers if broker != but] or list(self._lab.brokers))
        return self._observer.root() if name == "root" else self._observer.leaf()

    async def carry_out(self, faults: list[Fault], start: float) -> None:
        """Do everything when its time has come, counted from `start` (s, monotonic)."""
        plan: list[tuple[float, int, Fault]] = []
        for number, fault in enumerate(faults):
            heapq.heappush(plan, (fault.at, 2 * number, fault))
            if fault.duration:
                undone = replace(fault, do=UNDONE.get(fault.do, "heal"), at=fault.at + fault.duration, wire={})
                heapq.heappush(plan, (undone.at, 2 * number + 1, undone))
        while plan:
            at, _, fault = heapq.heappop(plan)
            await asyncio.sleep(max(0.0, start + at - time.monotonic()))
            self.strike(fault)

    def strike(self, fault: Fault) -> None:
        """Do one thing, now. Raises LabError where the lab cannot, or where it comes to nothing."""
        at = time.monotonic_ns()
        target, detail = fault.broker, ""
        if fault.do in ON_BROKERS:
            self._on_broker(fault)
        else:
            pairs = self._pairs(fault)
            if not pairs:
                raise LabError(f"{fault.do}: there is no link between {' and '.join(fault.links[0]) if fault.links else 'them'}")
            target = f"{pairs[0][0]}-{pairs[0][1]}" if len(pairs) == 1 else "all" if not fault.groups else "partition"
            detail = "|".join("+".join(group) for group in fault.groups) or " ".join(f"{k}={v}" for k, v in fault.wire.items())
            self._on_links(fault, pairs)
        self._trace.fault(at, fault.do, target, detail)
        self.struck.append((at, fault.do, target))
        if fault.do not in ("slow", "lossy"):
            self._observer.struck(at)

    def _on_broker(self, fault: Fault) -> None:
        broker = self._lab.brokers.get(fault.broker)
        if broker is None:
            raise LabError(f"{fault.do}: there is no broker at {fault.broker}")
        if fault.do == "kill":
            self._observer.allowed_dead.add(fault.broker)
            broker.kill()
        elif fault.do == "pause":
            broker.pause()
        elif fault.do == "resume":
            broker.resume()
        elif not broker.running:
            broker.start()

    def _pairs(self, fault: Fault) -> list[tuple[str, str]]:
        if fault.groups:
            rest = set(self._lab.topology.hosts) - {host for group in fault.groups for host in group}
            groups = [*map(list, fault.groups[:-1]), [*fault.groups[-1], *sorted(rest)]]
            return [(a, b) for i, one in enumerate(groups) for other in groups[i + 1 :] for a in one for b in other]
        pairs = []
        for one, other in fault.links:
            if "all" in (one, other):
                end = other if one == "all" else one
                pairs += [(end, host) for host in self._lab.topology.hosts if host != end]
            elif one != other:
                pairs.append((one, other))
        return pairs

    def _on_links(self, fault: Fault, pairs: list[tuple[str, str]]) -> None:
        observer = self._observer
        ends = {frozenset(pair) for pair in pairs}
        if fault.do in ("cut", "partition"):
            self._lab.set_links(pairs, open=False)
            observer.cut |= ends
        elif fault.do == "half-open":
            self._lab.set_links(pairs, both=False, open=False)
            observer.cut |= ends
        elif fault.do == "heal":
            self._lab.set_links(pairs, heal=True)
            observer.cut -= ends
        else:
            self._lab.set_links(pairs, wire=fault.wire)
