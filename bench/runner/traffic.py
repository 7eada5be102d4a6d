"""What the brokers of a placed workload have carried in a run, by their own counters, beside what
the model of placement expects; and the CPU time that they took for it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mqttree.bench.lab.agreement import View, agreed
from mqttree.bench.lab.yardstick import Yardstick
from mqttree.bench.load import LoadError
from mqttree.bench.load.cpu import CpuMeter
from mqttree.bench.runner.observer import Observer
from mqttree.bench.workloads import trees
from mqttree.bench.workloads.simulator import Placed

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
    """What each broker had counted at a time (s, monotonic), and the s of CPU that it had used, by
    its name; and the place of each broker's parent on the tree (`parents_of`)."""

    at: float
    counters: Mapping[str, Mapping[str, int]]
    cpu: Mapping[str, float]
    parents: Sequence[int] = ()


async def mark(observer: Observer) -> Mark:
    """Ask all brokers of an `observer` now. Raises LoadError when one of them does not answer."""
    views = await observer.ask_all()
    counters = {name: view["counters"] for name, view in views.items()}
    # Behind the answers, which take CPU time as well.
    at, cpu = time.monotonic(), used(observer)
    if missing := cpu.keys() - counters.keys():
        raise LoadError(f"{min(missing)} does not tell its counters")
    return Mark(at, counters, cpu, parents_of(views, list(cpu)))


async def meshed(observer: Observer) -> None:
    """Wait until each broker of an `observer` is linked to all others, which takes longer than a
    tree does. Raises LoadError if they are not after a while."""
    end = time.monotonic() + MESH_SECONDS
    while True:
        views = await observer.ask_all()
        if agreed([views.get(name) for name in observer.lab.brokers]):
            return
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


def cores_of(observer: Observer) -> list[int]:
    """Return the cores that the brokers of an `observer` may use. Raises OSError when one is
    gone."""
    found = [broker.process for broker in observer.lab.brokers.values()]
    return sorted({core for each in found if each for core in os.sched_getaffinity(each.pid)})


async def idle_loads(observer: Observer, on_tree: bool) -> tuple[dict[str, float], Mark]:
    """Return the share of a core that each broker needs while its clients are connected and none
    publishes, and what was counted by then. Raises LoadError when a broker is gone.

    `observer`: of the brokers; `on_tree`: messages follow the tree, which has then stayed the same
    meanwhile, unless it does not for long.
    """
    end = time.monotonic() + MESH_SECONDS
    before = await mark(observer)
    while True:
        await asyncio.sleep(IDLE_SECONDS)
        seconds, cpu = time.monotonic() - before.at, used(observer)
        after = await mark(observer)
        if not on_tree or after.parents == before.parents or time.monotonic() > end:
            return {name: (cpu[name] - before.cpu[name]) / seconds for name in cpu}, after
        before = after


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
    tree_changed: bool = False,
) -> dict[str, Any]:
    """Return what run.json says of a placed workload.

    `brokers`: what `carried` returned; `model`: what `modelled` did; `seconds`: of the load;
    `tree_changed`: messages followed a tree that changed meanwhile, so the model is of another one.
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
        "internal_error": None
        if tree_changed or not internal
        else (sums["aii"] - internal) / internal,
        "tree_changed": tree_changed,
    }


class Work:
    """A placed workload while it is published."""

    def __init__(
        self,
        observer: Observer,
        workload: Placed,
        on_tree: bool,
        idle: Mapping[str, float],
        before: Mark,
        yardstick: Yardstick | None = None,
    ) -> None:
        """`observer`: of its brokers; `workload`: it; `on_tree`: whether messages follow the tree;
        `idle`, `before`: what `idle_loads` returned; `yardstick`: on the brokers' core, if there is
        one."""
        self._observer, self._on_tree, self._idle, self._before = observer, on_tree, idle, before
        self._model = modelled(workload, list(before.cpu), before.parents if on_tree else ())
        self._over, self._used = before.at, before.cpu
        self._yardstick, self._since = yardstick, yardstick.read() if yardstick else (0, 0.0)
        self._work_s: float | None = None

    def published(self) -> None:
        """Note the CPU time now that all is published. Raises LoadError when a broker is gone."""
        self._over, self._used = time.monotonic(), used(self._observer)
        if self._yardstick is not None:
            times, cost = self._yardstick.read()
            if times > self._since[0]:
                self._work_s = (cost - self._since[1]) / (times - self._since[0])

    async def summary(self, seconds: float) -> dict[str, Any]:
        """Return what run.json says, now that all has arrived; `seconds`: that publishing took.
        Raises LoadError when a broker does not answer."""
        after = await mark(self._observer)
        brokers = carried(self._before, after, self._used, self._over - self._before.at)
        for name, each in brokers.items():
            each["idle"] = self._idle[name]
        changed = self._on_tree and after.parents != self._before.parents
        found = summary(brokers, self._model, seconds, changed)
        if self._work_s is not None:
            found["yardstick_us"] = self._work_s * 1e6
        return found
