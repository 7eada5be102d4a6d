"""What the brokers of a placed workload have carried in a run, by their own counters, beside what
the model of placement expects; and the CPU time that they took for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.lab.agreement import View, agreed
from bench.load import LoadError
from bench.load.cpu import CpuMeter
from bench.runner.observer import Observer
from bench.workloads import trees
from bench.workloads.simulator import Placed

KINDS = {
    "aei": "published",
    "aeo": "delivered",
    "aii": "received_link",
    "aio": "forwarded",
}
"""Traffic of a broker in the words of the model -> its counter: from publishers, to subscribers,
from brokers, to brokers. The last two have what it passes on for others, too."""


MESH_SECONDS = 30.0
MESH_PAUSE = 0.2
IDLE_SECONDS = 3.0
"""s in which brokers have nothing to do, before the load."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What each broker had counted at a time (s, monotonic), and the s of CPU that it had used; by
    its name."""

    at: float
    counters: Mapping[str, Mapping[str, int]]
    cpu: Mapping[str, float]


async def mark(observer: Observer) -> Mark:
    """Ask all brokers of an `observer` now. Raises LoadError when one of them does not answer."""
    counters = {name: view["counters"] for name, view in (await observer.ask_all()).items()}
    # Behind the answers, which take CPU time as well.
    at, cpu = time.monotonic(), used(observer)
    if missing := cpu.keys() - counters.keys():
        raise LoadError(f"{min(missing)} does not tell its counters")
    return Mark(at, counters, cpu)


async def meshed(observer: Observer) -> dict[str, View]:
    """Return what the brokers of an `observer` say once each of them is linked to all others, which
    takes longer than a tree does. Raises LoadError if they are not after a while."""
    end = time.monotonic() + MESH_SECONDS
    while True:
        views = await observer.ask_all()
        if agreed([views.get(name) for name in observer.lab.brokers]):
            return views
        if time.monotonic() > end:
            raise LoadError(f"not all brokers have linked to each other in {MESH_SECONDS:g} s")
        await asyncio.sleep(MESH_PAUSE)


def used(observer: Observer) -> dict[str, float]:
    """Return the s of CPU that each broker has used so far. Raises LoadError when one is gone."""
    found = {}
    for name, broker in observer.lab.brokers.items():
        if broker.process is None:
            raise LoadError(f"{name} does not run")
        found[name] = CpuMeter(broker.process.pid).read()
    return found


async def idle_loads(observer: Observer) -> dict[str, float]:
    """Return the share of a core that each broker needs while its clients are connected and nobody
    publishes. Raises LoadError when one is gone."""
    began, before = time.monotonic(), used(observer)
    await asyncio.sleep(IDLE_SECONDS)
    seconds, after = time.monotonic() - began, used(observer)
    return {name: (after[name] - before[name]) / seconds for name in before}


def carried(
    before: Mark, after: Mark, cpu: Mapping[str, float], seconds: float
) -> dict[str, dict[str, float]]:
    """Return what each broker did in a run: messages of each kind, and shares of a core.

    `before`, `after`: the run began, and all messages had arrived; `cpu`: the s of CPU that each
    broker had used when the last message was published; `seconds`: from `before` until then.
    """
    result: dict[str, dict[str, float]] = {}
    for name, counters in after.counters.items():
        earlier = before.counters.get(name, {})
        result[name] = {
            kind: counters.get(counter, 0) - earlier.get(counter, 0)
            for kind, counter in KINDS.items()
        }
        result[name]["cpu"] = (cpu[name] - before.cpu[name]) / seconds
    return result


def modelled(
    placed: Placed, names: Sequence[str], parents: Sequence[int] = ()
) -> dict[str, dict[str, float]]:
    """Return what each broker carries for one message of each topic, as `carried` has it.

    `placed`: a workload; `names`: of its brokers, in order; `parents`: of each of these, if
    messages follow a tree (else each broker that wants one gets it from the publisher's).
    """
    row = placed.row()
    if parents:
        row["aii"], row["aio"] = trees.carried(parents, placed.published, placed.wanted())
    return {name: {kind: row[kind][number] for kind in KINDS} for number, name in enumerate(names)}


def parents_of(views: Mapping[str, View], names: Sequence[str]) -> list[int]:
    """Return the place of each broker's parent on the tree, -1 of its root.

    `views`: what brokers say, by their names; `names`: of all, in order.
    """
    places = {views[name]["id"]: number for number, name in enumerate(names)}
    return [places.get(views[name]["parent"], -1) for name in names]


def summary(
    brokers: Mapping[str, Mapping[str, Any]],
    model: Mapping[str, Mapping[str, float]],
    seconds: float,
) -> dict[str, Any]:
    """Return what run.json says of a placed workload.

    `brokers`: what `carried` returned; `model`: what `modelled` did; `seconds`: of the load.
    """
    sums = {kind: sum(each[kind] for each in brokers.values()) for kind in KINDS}
    published = sum(each["aei"] for each in model.values())
    rounds = sums["aei"] / published if published else 0.0
    internal = sum(each["aii"] for each in model.values()) * rounds
    return {
        "brokers": brokers,
        "model": model,
        "rounds": rounds,
        "seconds": seconds,
        "internal": sums["aii"],
        "internal_model": internal,
        "internal_error": (sums["aii"] - internal) / internal if internal else None,
    }


class Work:
    """A placed workload while it is published."""

    def __init__(
        self,
        observer: Observer,
        model: Mapping[str, Mapping[str, float]],
        idle: Mapping[str, float],
        before: Mark,
    ) -> None:
        """`observer`: of its brokers; `model`: what `modelled` returned; `idle`: what `idle_loads`
        did; `before`: it begins."""
        self._observer, self._model, self._idle, self._before = observer, model, idle, before
        self._over, self._used = before.at, before.cpu

    def published(self) -> None:
        """Note the CPU time now that all is published. Raises LoadError when a broker is gone."""
        self._over, self._used = time.monotonic(), used(self._observer)

    async def summary(self, seconds: float) -> dict[str, Any]:
        """Return what run.json says, now that all has arrived; `seconds`: that publishing took.
        Raises LoadError when a broker does not answer."""
        after = await mark(self._observer)
        brokers = carried(self._before, after, self._used, self._over - self._before.at)
        for name, each in brokers.items():
            each["idle"] = self._idle[name]
        return summary(brokers, self._model, seconds)
