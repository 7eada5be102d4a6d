"""Chaos: `python -m tests.chaos [--minutes 5] [--brokers 7] [--clients 100] [--faults 20] [--seed
N] [--rate N] [--draw] ...`.

Brokers as processes on loopback, their links through a relay that can be cut and slow; publishers
at QoS 1 and 2 and subscribers on all of them, all the time, 10 messages a second each or `--rate`
in all. Brokers are killed (kill -9), also with their data directories, drained and restarted,
stopped and continued, join late; each has a standby (`replicas: 1`). Links are cut, stalled,
half-open, reset, slow; the federation is split, a broker is restarted inside a split, or cut off
for a minute; faults overlap (`--overlap`). After each fault all must be one again, and everything
that was acknowledged must be with everybody who stayed connected, with sessions that roam, and with
one member of a group: at QoS 2 once, and in order; what devices that roam (`--devices`) wrote last
has to be retained; no broker may need ever more memory. A broker that dies while nothing else
fails, its data with it or not, takes nothing with it: clients find their sessions at any other
broker at once. What is excused: order between two brokers that really were apart for five seconds
and more; order between what a broker published, and what it published after it lost its data, as it
is another broker then; with `--diskless`, when faults overlap, what a broker alone had, and, if it
was started inside a split, what others published before it met them; QoS 2 twice to a client that
moves while brokers do not reach each other (docs/promises.md). All of it is counted. Exit code 1
when a promise was broken. How long local traffic of the others paused is measured and told.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

from mqttree.bench.lab.agreement import carrying
from mqttree.bench.lab.ports import free_ports
from tests.chaos import crowd, pulse
from tests.chaos.crowds import Crowds, Helper, spin
from tests.chaos.devices import Devices
from tests.chaos.judge import ANOTHER, CROSSED
from tests.chaos.plan import ROUTINGS, Draw, draw, plan
from tests.chaos.pulse import Pause
from tests.chaos.world import SHAPES, Pair, World, cables
from tests.kit import relay
from tests.kit.api import ask
from tests.kit.brokers import Cluster, has_standby
from tests.kit.waiting import PATIENCE as ENDING

KINDS = (
    "kill",
    "stop",
    "cut",
    "kill root",
    "stall",
    "half-open",
    "wipe",
    "split",
    "stop",
    "reset",
    "drain",
    "restart",
    "alone",
)
"""Drawn in turn, reshuffled each time. `wipe`: a broker is killed, and its data directory deleted;
`restart`: one is restarted inside a split; `alone`: one is cut off for a minute."""
DEATHS = ("kill", "kill root", "wipe")
APART = ("alone", "restart", "split", "stop")
"""A client that moves meanwhile may find an older session of its own."""
MORE = ("slow", "join")
"""Drawn, too, where the run has them."""
MINUTE = 60.0
"""s for which `alone` lasts."""
INSIDE = 15.0
"""s for which `restart` lasts at least: a broker that never met another one keeps nothing for
others after 10 s."""
LONG = 5.0
"""s that two brokers have to be split before what was missing may come behind what is newer."""
TWO = 0.25
"""How often two come at once, where nothing else is said."""
RATE = 10.0
"""messages a second of each publisher, where no rate is given."""
PATIENCE = 90.0
"""s until brokers that do not become one, or have no standby, are a broken promise."""
ALLOWED = 0.1
"""s that local traffic may pause (the figure is printed, it fails nothing: a shared machine pauses
by itself)."""


GROWTH = 300 << 20
"""bytes that a broker may need more than when it was first looked at: its log (32 MiB; 128 in a
fault's first seconds), queues, and what malloc keeps. Messages of 50 MB need more."""
MOST = 4
"""faults at once."""

Steps = list[tuple[float, Callable[[], None]]]
"""What is done, and at which part of a fault's time."""


class Conductor:
    """One run."""

    def __init__(self, arguments: argparse.Namespace, like: Draw, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.slot = 60 * arguments.minutes / arguments.faults
        self.faults: int = arguments.faults
        self.begin = time.monotonic()
        self.like = like
        (folder / "replicas.yaml").write_text("federation: {replicas: 1}\n")
        config = str(folder / "replicas.yaml")
        self.cluster = Cluster(folder, "--config", config, "--routing", like.routing)
        more = [kind for kind, wanted in zip(MORE, (like.slow, like.late), strict=True) if wanted]
        self.kinds: list[str] = [*arguments.kinds, *more]
        self.world = World(like.shape, like.brokers)
        self.helpers: list[Helper] = []
        self.names: dict[str, str] = {}
        self.bag: list[str] = []
        self.back: list[int] = []
        # Without data, and started inside a split.
        self.strangers: list[int] = []
        # Nothing has failed that may cost a session, or order.
        self.covered = True
        self.load = 0.0
        self.broken: list[str] = []
        self.done: Counter[str] = Counter()
        self.healing: list[float] = []
        self.waited: list[float] = []
        self.events: list[tuple[float, float, str]] = []
        self.counts: Counter[str] = Counter()
        self.wrongs: dict[Pair, list[str]] = {}  # what is done to each cable
        self.sizes: dict[int, tuple[int, int]] = {}  # process -> its first and last bytes of memory
        self.ports = {f"b{index}": port for index, port in enumerate(free_ports(like.brokers))}
        for port in self.ports.values():
            data = not like.diskless
            self.cluster.add("--advertise", f"127.0.0.1:{port}", start=False, data=data)
        self.overlap: float = arguments.overlap
        rest = like.clients - 2 * like.brokers
        publishers = max(2, rest // 4)
        self.plan = plan(
            like,
            [broker.port for broker in self.cluster.brokers],
            publishers,
            max(1, rest - publishers),
        )
        self.devices = Devices(self.cluster.brokers, seed) if arguments.devices else None
        self.there: list[int] = list(self.plan.present)
        self.later = [index for index in range(like.brokers) if index not in self.there]

    def start(self) -> None:
        """Start everything."""
        brokers = self.cluster.brokers
        targets = {broker.name: broker.port for broker in brokers}
        every = cables("mesh", len(brokers))
        never = [
            tuple(f"b{index}" for index in pair)
            for pair in every - cables(self.like.shape, len(brokers))
        ]
        self.relay = self.helper(relay.run, targets, self.ports)
        self.relay.answer()
        self.relay.ask({"do": "refuse", "pairs": never})
        for index in self.there:
            brokers[index].start()
        pids = []
        for index in self.there:
            process = brokers[index].up().process
            assert process is not None
            pids.append(process.pid)
        self.world.set(time.monotonic(), down=self.later, by=1)
        self.views = self.agree()
        self.pulse = self.helper(pulse.run, [broker.port for broker in brokers], pids)
        self.crowds = Crowds(self.plan)
        self.helpers += self.crowds.helpers
        self.crowds("listen")
        self.crowds("speak")
        if self.devices is not None:
            self.devices.start()

    def helper(self, run: Callable[..., None], *arguments: Any) -> Helper:
        """Start one more process."""
        self.helpers.append(Helper(run, *arguments))
        return self.helpers[-1]

    def say(self, text: str) -> None:
        """A line with the time of the brokers' logs and since the start."""
        print(
            f"{time.strftime('%H:%M:%S')} {time.monotonic() - self.begin:6.1f} {text}", flush=True
        )

    def wrong(self, text: str) -> None:
        """A promise was broken."""
        self.broken.append(text)
        self.say(f"BROKEN {text}")

    def agree(self) -> list[dict[str, Any]]:
        """Wait until all are one again, each with a standby."""
        end = time.monotonic() + PATIENCE
        brokers = [self.cluster.brokers[index] for index in self.there]
        while True:
            states = [broker.state() for broker in brokers]
            if (
                self.world.whole(states, self.there)
                and carrying(states)
                and all(map(has_standby, states))
            ):
                self.views = [state for state in states if state is not None]
                for broker, view in zip(brokers, self.views, strict=True):
                    self.names[view["id"]] = broker.name
                return self.views
            if time.monotonic() > end:
                roots = [
                    state
                    and (
                        self.names.get(state["root"], state["root"]),
                        state["state"],
                        state["standby"],
                    )
                    for state in states
                ]
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
        """One fault, or several that overlap, and the healing of them."""
        plan: list[tuple[float, Callable[[], None]]] = []
        spared = list(self.there)
        names: list[str] = []
        latest = 0.0
        # Its standby alone has what it had: no other fault overlaps.
        wiped = apart = False
        while not names or (len(names) < MOST and self.rng.random() < self.overlap):
            if not self.bag:
                self.bag = self.rng.sample(self.kinds, len(self.kinds))
            kind = self.bag.pop()
            if (kind == "join" and not self.later) or (
                kind == "wipe" and (names or not self.wipeable(spared))
            ):
                kind = "kill"
            if len(spared) < 2 or wiped:
                break  # one broker is left as it is
            wiped = kind == "wipe"
            duration = self.rng.uniform(0.5, max(1.0, 0.35 * self.slot))
            duration = max(duration, {"restart": INSIDE, "alone": MINUTE}.get(kind, 0.0))
            what, steps = self.fault(kind, spared)
            self.done[kind] += 1
            apart = apart or kind in APART
            names.append(f"{what} for {duration:.1f} s")
            # It begins before the one before has ended.
            late = self.rng.uniform(0, latest)
            latest = late + duration
            plan += [(late + share * duration, step) for share, step in steps]
        if wiped:
            self.agree()
        died = next((index for index in self.there if index not in spared), -1)
        self.covered = kind in DEATHS and len(names) == 1 and self.world.joined_without(died)
        self.crowds("covered", self.covered)
        self.crowds("apart", apart)
        self.say(f"fault {number + 1}: {', '.join(names)}")
        begin, busy = time.monotonic(), self.busy()
        for at, do in sorted(plan, key=lambda each: each[0]):
            time.sleep(max(0.0, begin + at - time.monotonic()))
            do()
        healed = time.monotonic()
        self.return_clients()
        self.agree()
        for index in self.strangers:
            self.crowds("met", index)
        self.strangers.clear()
        self.healing.append(time.monotonic() - healed)
        used = sum(seconds - busy.get(pid, 0.0) for pid, seconds in self.busy().items())
        self.load = used / (time.monotonic() - begin)
        for index in self.there:
            if index not in spared:
                self.pulse("back", index)
        self.events.append((begin, time.monotonic(), ", ".join(names)))
        self.check(f"fault {number + 1}")
        self.covered = True
        self.crowds("covered", True)
        self.crowds("apart", False)

    def busy(self) -> dict[int, float]:
        """s that each broker that runs has used of processors, by process."""
        used = {}
        for broker in self.cluster.brokers:
            if broker.running and broker.process is not None:
                times = psutil.Process(broker.process.pid).cpu_times()
                used[broker.process.pid] = times.user + times.system
        return used

    def wipeable(self, spared: list[int]) -> list[int]:
        """Brokers that may lose their data: without each of them, the others are one."""
        return [index for index in spared if self.world.joined_without(index)]

    def fault(self, kind: str, spared: list[int]) -> tuple[str, Steps]:
        """What it is called, and what is done when; who suffers is no longer spared."""
        brokers = self.cluster.brokers
        if kind == "join":
            index = self.later.pop(0)
            return f"b{index} joins", [(0.0, lambda: self.join(index))]
        if kind.startswith(("kill", "stop", "drain", "wipe")):
            index = self.rng.choice(self.wipeable(spared) if kind == "wipe" else spared)
            root = next(
                i for i, b in enumerate(brokers) if b.name == self.names[self.views[0]["root"]]
            )
            if kind == "kill root" and root in spared:
                index = root
            spared.remove(index)
            if kind == "stop":
                return f"b{index} stopped", [
                    (0.0, lambda: self.stop(index)),
                    (1.0, lambda: self.resume(index)),
                ]
            if kind == "drain":
                return f"b{index} drained", [
                    (0.0, lambda: self.drain(index)),
                    (1.0, lambda: self.drained(index)),
                ]
            wipe = kind == "wipe"
            root_too = " (root)" * (index == root)
            return f"b{index} killed{', its data deleted' if wipe else root_too}", [
                (0.0, lambda: self.kill(index, wipe=wipe)),
                (1.0, lambda: self.restart(index)),
            ]
        if kind in ("split", "restart", "alone"):
            return self.split(kind, spared)
        if kind == "slow":
            return "all links slow", self.cut(list(self.world.shape), kind)
        tree = [
            (self.names[v["id"]], self.names[v["parent"]])
            for v in self.views
            if v["parent"] is not None
        ]
        one, other = (int(name[1:]) for name in self.rng.choice(tree))
        pair, deaf = frozenset((one, other)), self.rng.choice((one, other))
        return f"b{min(pair)}-b{max(pair)} {kind}", self.cut([pair], kind, deaf)

    def cut(self, pairs: list[Pair], how: str, deaf: int = -1) -> Steps:
        """Do something to cables, and end it."""
        return [
            (0.0, lambda: self.cable(pairs, how, 1, deaf)),
            (1.0, lambda: self.cable(pairs, how, -1, deaf)),
        ]

    def split(self, kind: str, spared: list[int]) -> tuple[str, Steps]:
        """Some brokers are cut off from the others; with `restart` one of them, or of the others,
        is killed and started inside, and its clients come back to it there."""
        count = 1 if kind == "alone" else self.rng.randint(1, len(self.there) - 1)
        some = set(self.rng.sample(self.there, count))
        pairs = [pair for pair in self.world.shape if len(pair & some) == 1]
        how = self.rng.choice(("cut", "stall"))
        what = f"{'+'.join(f'b{index}' for index in sorted(some))} split off ({how})"
        steps = self.cut(pairs, how)
        if kind == "restart":
            index = self.rng.choice(spared)
            spared.remove(index)
            begin = self.rng.uniform(0.05, 0.3)
            steps += [
                (begin, lambda: self.kill(index)),
                (begin + 0.1, lambda: self.restart(index)),
                (begin + 0.1, self.return_clients),
            ]
            if self.like.diskless:
                self.strangers.append(index)
            what += f", b{index} restarted inside,"
        return what, steps

    def cable(self, pairs: Iterable[Pair], what: str, by: int, deaf: int = -1) -> None:
        """Do something to cables, or end it: what has begun last is done to each."""
        for pair in pairs:
            wrongs = self.wrongs.setdefault(pair, [])
            if by > 0:
                wrongs.append(what)
            else:
                wrongs.remove(what)
            one, other = sorted(pair, key=lambda index: index == deaf)
            now = wrongs[-1] if wrongs and what != "reset" else what if by > 0 else "heal"
            for order in relay.orders(f"b{one}", f"b{other}", now):
                self.relay.ask(order)
        if what not in ("slow", "reset"):
            self.world.set(time.monotonic(), cut=pairs, by=by)

    def stop(self, index: int) -> None:
        self.pulse("away", index)
        self.world.set(time.monotonic(), down=[index], by=1)
        self.cluster.brokers[index].pause()

    def resume(self, index: int) -> None:
        self.cluster.brokers[index].resume()
        self.world.set(time.monotonic(), down=[index], by=-1)

    def kill(self, index: int, *, wipe: bool = False) -> None:
        self.pulse("down", index)
        self.crowds("down", index)
        broker = self.cluster.brokers[index]
        broker.kill()
        self.world.set(time.monotonic(), down=[index], by=1)
        if wipe or self.like.diskless:
            self.crowds("wiped", index)
        if wipe and broker.data_dir.exists():
            shutil.rmtree(broker.data_dir)

    def drain(self, index: int) -> None:
        """Send its clients elsewhere, and let it end."""
        self.pulse("down", index)
        self.crowds("down", index)
        ask(self.cluster.brokers[index].admin, "POST", "/drain?within=4")

    def drained(self, index: int) -> None:
        process = self.cluster.brokers[index].process
        assert process is not None
        if process.wait(ENDING):
            self.wrong(f"b{index} was drained and ended with exit code {process.returncode}")
        self.world.set(time.monotonic(), down=[index], by=1)
        if self.like.diskless:
            self.crowds("wiped", index)
        self.restart(index)

    def restart(self, index: int) -> None:
        """Start it again; its clients come back when all faults of the moment have ended."""
        self.cluster.brokers[index].start()
        self.back.append(index)

    def join(self, index: int) -> None:
        """A broker that has not been there yet."""
        self.there = sorted([*self.there, index])
        self.restart(index)

    def return_clients(self) -> None:
        """Of brokers that were killed: as soon as these answer."""
        for index in self.back:
            broker = self.cluster.brokers[index].up()
            assert broker.process is not None
            self.world.set(time.monotonic(), down=[index], by=-1)
            self.crowds("up", index)
            self.pulse("up", index, broker.process.pid)
        self.back.clear()

    def check(self, when: str) -> None:
        """Everything is where it has to be."""
        begin = time.monotonic()
        found = self.crowds.check()
        now = time.monotonic()
        if self.devices is not None:
            there = [self.cluster.brokers[index] for index in self.there]
            found.broken += self.devices.check(there)
        self.counts = found.counts
        broken = found.broken
        if found.alone:
            self.done[
                "messages lost with all data of the broker that alone had them (excused)"
            ] += found.alone
            self.say(
                f"  excused: {found.alone} messages that a broker alone had whose data was deleted"
            )
        for each in found.disorder:
            apart = self.world.apart(each.origin, each.broker, now)
            text = (
                f"out of order: {each.what}; "
                f"{each.times} times, brokers apart for {apart:.1f} s at most"
            )
            if apart >= LONG and not self.covered:
                self.done["out of order after a long split (excused)"] += each.times
                self.say(f"  excused: {text}")
            else:
                broken.append(text)
        self.world.forget()
        for text in broken + found.missing[:20] + self.grown():
            self.wrong(f"after {when}: {text}")
        self.waited.append(now - begin)
        healing = (
            f"one again after {self.healing[-1]:.1f} s, brokers at {self.load:.1f} of a processor, "
            if self.healing
            else ""
        )
        delivered = self.counts["delivered"]
        self.say(
            f"  {healing}all compared after {now - begin:.1f} s; "
            f"{delivered:,} delivered, {len(self.broken)} broken"
        )

    def grown(self) -> list[str]:
        """Look at the memory of all brokers; return those that need much more than before."""
        found = []
        for broker in self.cluster.brokers:
            if broker.running and broker.process is not None:
                pid = broker.process.pid
                used = psutil.Process(pid).memory_info().rss
                first, _ = self.sizes.get(pid, (used, used))
                self.sizes[pid] = first, used
                if used - first > GROWTH and not self.like.large:
                    found.append(f"{broker.name} grew from {first >> 20} to {used >> 20} MiB")
        return found

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
        keys = (
            "acknowledged at QoS 1",
            "acknowledged at QoS 2",
            "delivered",
            "compared",
            "again at QoS 1",
            "again at QoS 2",
            "out of order",
            CROSSED,
            ANOTHER,
            "connections lost",
            "sessions roamed",
            "sessions lost",
            crowd.LATE,
        )
        rows += [(key, f"{counts[key]:,}") for key in keys]
        rows += [
            (
                "local traffic, ms between two: p50, p99, p99.9, most",
                spread_ms(gaps, [p.length for p in pauses]),
            ),
            (
                "... without what the measuring process was late",
                spread_ms(nets, [p.net for p in pauses]),
            ),
            ("... the measuring process was late, ms: times, most", f"{lags}, {1000 * latest:.0f}"),
            (
                (
                    f"pauses > {1000 * ALLOWED:.0f} ms: as seen, net, "
                    "of waits for a processor too, the broker ran"
                ),
                self.long(pauses),
            ),
            (
                "a broker's memory grew by MiB: median, most",
                spread([(last - first) / (1 << 20) for first, last in self.sizes.values()]),
            ),
            ("promises broken, times", f"{max(counts['broken'], len(self.broken)):,}"),
        ]
        width = max(len(name) for name, _ in rows)
        print()
        for name, value in rows:
            print(f"{name:{width}}  {value}")
        for pause in sorted(pauses, key=lambda p: (p.waited - p.net, -p.ran))[:8]:
            during = [
                what
                for begin, end, what in self.events
                if begin <= pause.end and pause.end - pause.length <= end
            ]
            parts = (
                f"own {1000 * pause.own:.0f}, the broker ran {1000 * pause.ran:.0f}, "
                f"waited {1000 * pause.waited:.0f}"
            )
            when = pause.end - self.begin
            print(
                f"  pause at b{pause.broker} until {when:.2f}: {1000 * pause.length:.0f} ms, "
                f"{parts}; {during or 'no fault'}"
            )

    @staticmethod
    def long(pauses: list[Pause]) -> str:
        """How many are too long: as seen, without what we were late, without what the broker waited
        for a processor either (both may be the same ms, so these are at least so many), and how
        often it was busy for that long."""
        net = [p for p in pauses if p.net > ALLOWED]
        least = sum(p.net - p.waited > ALLOWED for p in net)
        return (
            f"{sum(p.length > ALLOWED for p in pauses)}, {len(net)}, {least}, "
            f"{sum(p.ran > ALLOWED for p in pauses)}"
        )

    def end(self) -> None:
        """Leave nothing behind."""
        if self.devices is not None:
            self.devices.stop()
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
    most = (
        1000 * max(long)
        if long
        else float(max((ms for ms, number in enumerate(gaps) if number), default=0))
    )
    return ", ".join([*text, f"{most:.0f}"])


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--brokers", type=int, default=7)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None, help="default: the time")
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=sorted({*KINDS, *MORE}),
        default=KINDS,
        help="of faults; default: all",
    )
    parser.add_argument("--routing", choices=ROUTINGS, default="topic")
    parser.add_argument("--shape", choices=SHAPES, default="mesh", help="who is next to whom")
    parser.add_argument(
        "--rate",
        type=float,
        default=0.0,
        help="messages a second in all; default: 10 for each publisher",
    )
    parser.add_argument(
        "--large", action="store_true", help="now and then a message of up to 50 MB"
    )
    parser.add_argument("--roam", action="store_true", help="clients whose sessions roam")
    parser.add_argument("--stay", action="store_true", help="clients whose sessions stay")
    parser.add_argument(
        "--devices", action="store_true", help="devices that roam, with retained wills"
    )
    parser.add_argument(
        "--shared", action="store_true", help="a shared subscription, with a quarter of the rate"
    )
    parser.add_argument(
        "--late",
        type=int,
        default=0,
        metavar="N",
        help="so many of the brokers join during the run",
    )
    parser.add_argument("--slow", action="store_true", help="links of 20 Mbit/s now and then")
    parser.add_argument("--diskless", action="store_true", help="brokers without data directories")
    parser.add_argument(
        "--overlap",
        type=float,
        default=TWO,
        metavar="P",
        help="how often one more fault begins before the last one has ended (default: %(default)s)",
    )
    parser.add_argument(
        "--busy", type=int, default=0, metavar="N", help="so many busy loops beside it"
    )
    parser.add_argument(
        "--draw", action="store_true", help="brokers, shape, routing and all of these from the seed"
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run, tell, and return the exit code."""
    parser = options()
    arguments = parser.parse_args(argv)
    seed = arguments.seed if arguments.seed is not None else int(time.time())
    if arguments.draw:
        like = draw(random.Random(seed), arguments.clients, arguments.rate)
    else:
        names = (
            "brokers",
            "clients",
            "rate",
            "shape",
            "routing",
            "large",
            "roam",
            "shared",
            "late",
            "slow",
            "diskless",
            "stay",
        )
        like = Draw(**{name: getattr(arguments, name) for name in names})
    like.rate = like.rate or RATE * max(2, (like.clients - 2 * like.brokers) // 4)
    if like.diskless and (like.large or like.roam or like.stay or like.shared):
        parser.error("--diskless goes without --large, --roam, --stay and --shared")
    if (
        like.brokers - like.late < 2
        or like.clients < 2 * like.brokers + 3
        or arguments.faults < 1
        or arguments.minutes <= 0
    ):
        parser.error(
            "needs two brokers, two clients for each and three more, a fault, and some time"
        )
    folder = Path(tempfile.mkdtemp(prefix="mqttree-chaos-"))
    print(f"seed {seed}: {like}; logs in {folder}", flush=True)
    conductor = Conductor(arguments, like, folder, seed)
    conductor.helpers += [Helper(spin) for _ in range(arguments.busy)]
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
        print(
            f"seed {seed}: {len(conductor.broken)} broken, "
            f"first: {conductor.broken[0]}; logs in {folder}"
        )
        return 1
    print("all promises kept")
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
