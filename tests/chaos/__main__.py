"""Chaos: `python -m tests.chaos [--minutes 5] [--brokers 7] [--clients 100] [--faults 20] [--seed N] [--routing ...]`.

Brokers as processes on loopback, their links through a relay that can be cut; publishers at QoS 1 and 2 and subscribers on all of
them, all the time. Brokers are killed (kill -9) and restarted, stopped and continued; links are cut, stalled, half-open, reset;
the federation is split. After each fault all must be one again, and everything that was acknowledged must be with everybody
who stayed connected: at QoS 2 once, and in order (design section 4). What a broker that was killed alone had is counted: it
is the one exception. Exit code 1 when a promise was broken. How long local traffic of the others paused is measured and told.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from bench.converge import agreed
from tests.chaos import crowd, pulse, relay
from tests.chaos.pulse import Pause
from tests.ports import free_ports
from tests.process.brokers import Cluster, carrying

KINDS = ("kill", "stop", "cut", "kill root", "stall", "half-open", "kill", "split", "stop", "reset")
"""Drawn in turn, shuffled anew each time; `kill` twice: it is what costs most."""
TWO = 0.25
"""How often two come at once."""
RATE = 10.0
"""messages a second of each publisher."""
PATIENCE = 90.0
"""s until brokers that do not become one are a broken promise."""
ALLOWED = 0.1
"""s that local traffic may pause (the figure is told, it fails nothing: a shared machine pauses by itself)."""


class Helper:
    """A process that obeys."""

    def __init__(self, run: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        own, end = context.Pipe()
        self.orders: Connection = own
        self.process = context.Process(target=run, args=(*arguments, end), daemon=True)
        self.process.start()
        end.close()

    def answer(self) -> Any:
        if not self.orders.poll(4 * PATIENCE):
            raise RuntimeError("a process of the measurement does not answer")
        return self.orders.recv()

    def __call__(self, *order: Any) -> Any:
        self.orders.send(order)
        return self.answer()

    def end(self) -> None:
        self.orders.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()


class Conductor:
    """One run."""

    def __init__(self, arguments: argparse.Namespace, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.slot = 60 * arguments.minutes / arguments.faults
        self.faults: int = arguments.faults
        self.begin = time.monotonic()
        self.cluster = Cluster(folder, "--routing", arguments.routing)
        self.clients: int = arguments.clients
        self.kinds: list[str] = list(arguments.kinds)
        self.helpers: list[Helper] = []
        self.names: dict[str, str] = {}
        self.bag: list[str] = []
        self.back: list[int] = []
        self.load = 0.0
        self.broken: list[str] = []
        self.done: Counter[str] = Counter()
        self.healing: list[float] = []
        self.waited: list[float] = []
        self.events: list[tuple[float, float, str]] = []
        self.counts: Counter[str] = Counter()
        for port in free_ports(arguments.brokers):
            self.cluster.add("--advertise", f"127.0.0.1:{port}", start=False)

    def start(self) -> None:
        """Start everything."""
        brokers = self.cluster.brokers
        targets = {broker.name: broker.port for broker in brokers}
        ports = {broker.name: int(broker.flags[-1].rpartition(":")[2]) for broker in brokers}
        self.relay = self.helper(relay.run, targets, ports)
        self.relay.answer()
        for broker in brokers:
            broker.start()
        for broker in brokers:
            broker.up()
        self.views = self.agree()
        listen = [broker.port for broker in brokers]
        pids = [broker.process.pid for broker in brokers if broker.process is not None]
        rest = self.clients - 2 * len(brokers)
        publishers = max(2, rest // 4)
        self.pulse = self.helper(pulse.run, listen, pids)
        self.crowd = self.helper(crowd.run, listen, publishers, max(1, rest - publishers), RATE)

    def helper(self, run: Callable[..., None], *arguments: Any) -> Helper:
        """Start one more process."""
        self.helpers.append(Helper(run, *arguments))
        return self.helpers[-1]

    def say(self, text: str) -> None:
        """A line with the time of the brokers' logs and since the start."""
        print(f"{time.strftime('%H:%M:%S')} {time.monotonic() - self.begin:6.1f} {text}", flush=True)

    def wrong(self, text: str) -> None:
        """A promise was broken."""
        self.broken.append(text)
        self.say(f"BROKEN {text}")

    def agree(self) -> list[dict[str, Any]]:
        """Wait until all are one again."""
        end = time.monotonic() + PATIENCE
        while True:
            states = [broker.state() for broker in self.cluster.brokers]
            if agreed(states) and carrying(states):
                self.views = [state for state in states if state is not None]
                for broker, view in zip(self.cluster.brokers, self.views, strict=True):
                    self.names[view["id"]] = broker.name
                return self.views
            if time.monotonic() > end:
                roots = [state and (self.names.get(state["root"], state["root"]), state["state"]) for state in states]
                raise RuntimeError(f"after {PATIENCE:g} s they are not one: {roots}")
            time.sleep(0.15)

    def run(self) -> None:
        """Everything."""
        self.check("the start")
        start = time.monotonic()
        for number in range(self.faults):
            begin = start + number * self.slot + self.rng.uniform(0, 0.2) * self.slot
            time.sleep(max(0.0, begin - time.monotonic()))
            self.disturb(number)
        time.sleep(max(0.0, start + self.faults * self.slot - time.monotonic()))
        self.check("the end")
        for broker in self.cluster.brokers:
            if broker.lines("Traceback"):
                self.wrong(f"{broker.name} wrote a traceback")

    def disturb(self, number: int) -> None:
        """One fault, or two at once, and the healing of it."""
        plan: list[tuple[float, Callable[[], None]]] = []
        spared = list(range(len(self.cluster.brokers)))
        names = []
        for _ in range(2 if self.rng.random() < TWO else 1):
            if not self.bag:
                self.bag = self.rng.sample(self.kinds, len(self.kinds))
            kind = self.bag.pop()
            duration = self.rng.uniform(0.5, max(1.0, 0.35 * self.slot))
            what, start, end = self.fault(kind, spared)
            self.done[kind] += 1
            names.append(f"{what} for {duration:.1f} s")
            late = self.rng.uniform(0, 1) if plan else 0.0
            plan += [(late, start), (late + duration, end)]
        self.say(f"fault {number + 1}: {', '.join(names)}")
        begin, busy = time.monotonic(), self.busy()
        for at, do in sorted(plan, key=lambda each: each[0]):
            time.sleep(max(0.0, begin + at - time.monotonic()))
            do()
        healed = time.monotonic()
        self.return_clients()
        self.agree()
        self.healing.append(time.monotonic() - healed)
        used = sum(seconds - busy.get(pid, 0.0) for pid, seconds in self.busy().items())
        self.load = used / (time.monotonic() - begin)
        for index in range(len(self.cluster.brokers)):
            if index not in spared:
                self.pulse("back", index)
        self.events.append((begin, time.monotonic(), ", ".join(names)))
        self.check(f"fault {number + 1}")

    def busy(self) -> dict[int, float]:
        """s that each broker that runs has used of processors, by process."""
        used = {}
        for broker in self.cluster.brokers:
            if broker.running and broker.process is not None:
                times = psutil.Process(broker.process.pid).cpu_times()
                used[broker.process.pid] = times.user + times.system
        return used

    def fault(self, kind: str, spared: list[int]) -> tuple[str, Callable[[], None], Callable[[], None]]:
        """What it is called, and how it begins and ends; who suffers is no longer spared."""
        brokers = self.cluster.brokers
        if kind.startswith(("kill", "stop")):
            index = self.rng.choice(spared)
            root = next(i for i, b in enumerate(brokers) if b.name == self.names[self.views[0]["root"]])
            if kind == "kill root" and root in spared:
                index = root
            spared.remove(index)
            if kind == "stop":
                return f"{brokers[index].name} stopped", lambda: self.stop(index), brokers[index].resume
            what = f"{brokers[index].name} killed{' (root)' * (index == root)}"
            return what, lambda: self.kill(index), lambda: self.restart(index)
        if kind == "split":
            some = {broker.name for broker in self.rng.sample(brokers, self.rng.randint(1, len(brokers) - 1))}
            pairs = [(a.name, b.name) for a in brokers for b in brokers if a.name in some and b.name not in some]
            how = self.rng.choice(("cut", "stall"))
            what = f"{'+'.join(sorted(some))} split off ({how})"
            return what, lambda: self.cable(pairs, how), lambda: self.cable(pairs, "heal")
        tree = [(self.names[v["id"]], self.names[v["parent"]]) for v in self.views if v["parent"] is not None]
        pair = self.rng.choice(tree)
        if self.rng.random() < 0.5:
            pair = pair[1], pair[0]
        return f"{pair[0]}-{pair[1]} {kind}", lambda: self.cable([pair], kind), lambda: self.cable([pair], "heal")

    def cable(self, pairs: list[tuple[str, str]], what: str) -> None:
        for one, other in pairs:
            self.relay(one, other, what)

    def stop(self, index: int) -> None:
        self.pulse("away", index)
        self.cluster.brokers[index].stop()

    def kill(self, index: int) -> None:
        self.pulse("down", index)
        self.crowd("down", index)
        self.cluster.brokers[index].kill()

    def restart(self, index: int) -> None:
        """Start it again; its clients come back when all faults of the moment have ended."""
        self.cluster.brokers[index].start()
        self.back.append(index)

    def return_clients(self) -> None:
        """Of brokers that were killed: as soon as these answer."""
        for index in self.back:
            broker = self.cluster.brokers[index].up()
            assert broker.process is not None
            self.crowd("up", index)
            self.pulse("up", index, broker.process.pid)
        self.back.clear()

    def check(self, when: str) -> None:
        """Everything is where it has to be."""
        result = self.crowd("check")
        self.counts = Counter(result["counts"])
        self.waited.append(result["took"])
        for text in result["broken"]:
            self.wrong(f"after {when}: {text}")
        healing = f"one again after {self.healing[-1]:.1f} s, brokers at {self.load:.1f} of a processor, " if self.healing else ""
        delivered = self.counts["delivered"]
        self.say(f"  {healing}all compared after {result['took']:.1f} s; {delivered:,} delivered, {len(self.broken)} broken")

    def table(self) -> None:
        """The figures."""
        broken, pauses, gaps, nets, lags, latest = self.pulse("tell")
        for text in broken:
            self.wrong(text)
        counts = self.counts
        rows: list[tuple[str, str]] = [
            ("faults", ", ".join(f"{number} {kind}" for kind, number in sorted(self.done.items()))),
            ("one tree again, s after the last fault ended: median, most", spread(self.healing)),
            ("all that was acknowledged is compared, s: median, most", spread(self.waited)),
        ]
        keys = ("acknowledged at QoS 1", "acknowledged at QoS 2", "delivered", "compared", "again at QoS 1", "again at QoS 2",
                "out of order", "late, from before its broker's death", "connections lost")  # fmt: skip
        rows += [(key, f"{counts[key]:,}") for key in keys]
        rows += [
            ("local traffic, ms between two: p50, p99, p99.9, most", spread_ms(gaps, [p.length for p in pauses])),
            ("... without what the measuring process was late", spread_ms(nets, [p.net for p in pauses])),
            ("... the measuring process was late, ms: times, most", f"{lags}, {1000 * latest:.0f}"),
            (f"pauses > {1000 * ALLOWED:.0f} ms: as seen, net, of waits for a processor too, the broker ran", self.long(pauses)),
            ("promises broken, times", f"{max(counts['broken'], len(self.broken)):,}"),
        ]
        width = max(len(name) for name, _ in rows)
        print()
        for name, value in rows:
            print(f"{name:{width}}  {value}")
        for pause in sorted(pauses, key=lambda p: (p.waited - p.net, -p.ran))[:8]:
            during = [what for begin, end, what in self.events if begin <= pause.end and pause.end - pause.length <= end]
            parts = f"own {1000 * pause.own:.0f}, the broker ran {1000 * pause.ran:.0f}, waited {1000 * pause.waited:.0f}"
            when = pause.end - self.begin
            print(f"  pause at b{pause.broker} until {when:.2f}: {1000 * pause.length:.0f} ms, {parts}; {during or 'no fault'}")

    @staticmethod
    def long(pauses: list[Pause]) -> str:
        """How many are too long: as seen, without what we were late, without what the broker waited for a processor either
        (both may be the same ms, so these are at least so many), and how often it was busy for that long."""
        net = [p for p in pauses if p.net > ALLOWED]
        least = sum(p.net - p.waited > ALLOWED for p in net)
        return f"{sum(p.length > ALLOWED for p in pauses)}, {len(net)}, {least}, {sum(p.ran > ALLOWED for p in pauses)}"

    def end(self) -> None:
        """Leave nothing behind."""
        for helper in reversed(self.helpers):
            helper.end()
        for broker in self.cluster.brokers:
            if broker.running:
                broker.kill()


def spread(values: list[float]) -> str:
    """Median and most."""
    return f"{sorted(values)[len(values) // 2]:.1f}, {max(values):.1f}" if values else "-"


def spread_ms(gaps: list[int], long: list[float]) -> str:
    """Of a histogram by ms, and the exact longest."""
    total = sum(gaps)
    text = []
    for share in (0.5, 0.99, 0.999):
        seen = 0
        for ms, number in enumerate(gaps):
            seen += number
            if seen >= share * total:
                text.append(str(ms))
                break
    most = 1000 * max(long) if long else float(max((ms for ms, number in enumerate(gaps) if number), default=0))
    return ", ".join([*text, f"{most:.0f}"])


def main(argv: list[str] | None = None) -> int:
    """Run, tell, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--brokers", type=int, default=7)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None, help="default: the time")
    parser.add_argument("--kinds", nargs="+", choices=sorted(set(KINDS)), default=KINDS, help="of faults; default: all")
    parser.add_argument("--routing", choices=("flood", "interest", "topic"), default="topic")
    arguments = parser.parse_args(argv)
    if arguments.brokers < 2 or arguments.clients < 2 * arguments.brokers + 3 or arguments.faults < 1 or arguments.minutes <= 0:
        parser.error("needs two brokers, two clients for each and three more, a fault, and some time")
    seed = arguments.seed if arguments.seed is not None else int(time.time())
    folder = Path(tempfile.mkdtemp(prefix="mqttree-chaos-"))
    print(f"seed {seed}, {arguments.routing}, logs in {folder}", flush=True)
    conductor = Conductor(arguments, folder, seed)
    try:
        conductor.start()
        try:
            conductor.run()
        except (RuntimeError, AssertionError) as error:
            conductor.wrong(str(error))
        conductor.table()
    finally:
        conductor.end()
    if conductor.broken:
        print(f"seed {seed}: {len(conductor.broken)} broken, first: {conductor.broken[0]}; logs in {folder}")
        return 1
    print("all promises kept")
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
