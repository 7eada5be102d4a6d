"""What routing costs on the network of Overlays 6: `python -m tests.sim.signalling [--seconds S]
[--timers paper]`. Times are virtual.

Five brokers, all linked, delays normal(10, 2.5) ms, 10 Mbit/s; 20 publishers and 20 subscribers at
random brokers with one topic each of 3, 30 or 60, a message of 1 kB a second. Bytes are those sent
on links: signalling (PINGREQ and PINGRESP with all that they carry) and messages, by routing; the
delay is from publisher to subscriber.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from mqttree.bench.tables.means import student
from mqttree.broker.config.options import PAPER_TIMERS
from tests.sim.clients import Ledger, SimClient
from tests.sim.world import World

BROKERS = 5
PUBLISHERS, SUBSCRIBERS = 20, 20
FORMING = 3.0
"""Virtual s until the tree has long been agreed on,"""
OPENING = 2.0
"""virtual s for clients to subscribe, and for what that leads to,"""
ROUNDS = 6.0
"""and so many times `hello` more for each, which is as much as that where it is not the paper's."""
SIZE = 1000
MODES: tuple[tuple[str, dict[str, str]], ...] = (
    ("flood", {}),
    ("interest", {}),
    ("topic", {}),
    ("srt", {}),
    ("ort", {"overlay_policy": "capability"}),
    ("ort", {"overlay_policy": "balance"}),
)
"""Values of `--routing` with settings; the first is what the others are compared with."""


@dataclass(slots=True)
class Measured:
    """One run: signalling while the federation formed, while clients came (bytes), and a second
    with messages; delay in ms."""

    forming: float
    opening: float
    signalling: float
    data: float
    delay: float
    lost: int
    seconds: float
    """With messages."""

    @property
    def whole(self) -> float:
        """All signalling, the start included (bytes)."""
        return self.forming + self.opening + self.signalling * self.seconds


def measure(
    routing: str,
    topics: int,
    seconds: float,
    seed: int = 1,
    topic_length: int = 0,
    **config: Any,
) -> Measured:
    """Run one federation; `config`: more settings of its brokers."""
    pause = ROUNDS * config.get("hello", 0.0)
    rng = random.Random(seed)
    world = World(seed, until=1e9)
    world.loss, world.cutting, world.lateness, world.jitter = 0.0, 0.0, 0.0001, 0.0005
    world.rate, world.high_water, world.window = 1.25e6, 262_144, 65_536
    for index in range(BROKERS):
        capability = float(rng.randrange(1, 90))
        world.add(discovery="multicast", capability=capability, routing=routing, **config)
        for other in range(index):
            delay = max(0.0005, rng.gauss(0.010, 0.0025))
            world._base[index, other] = world._base[other, index] = delay
    ledger = Ledger()
    for host in world.hosts:
        host.start()

    def signalled() -> tuple[int, int]:
        counters = [host.running.counters for host in world.alive()]
        received = sum(c.link_bytes_control for c in counters)  # both ends count a PINGREQ
        return received // 2, sum(c.link_bytes_data for c in counters)

    world.run(FORMING + pause)
    forming = signalled()[0]
    names = [f"topic-tree/{rng.getrandbits(64):016x}{'x' * topic_length}" for _ in range(topics)]
    publishers = [
        (SimClient(world, ledger, f"p{n}", rng.choice(world.hosts)), rng.choice(names))
        for n in range(PUBLISHERS)
    ]
    subscribers = [
        SimClient(world, ledger, f"s{n}", rng.choice(world.hosts), filters=[(rng.choice(names), 0)])
        for n in range(SUBSCRIBERS)
    ]
    for client in [p for p, _ in publishers] + subscribers:
        world.after(rng.uniform(0.0, 1.0), client.connect)
    world.run(OPENING + pause)
    opened = signalled()
    for publisher, topic in publishers:
        for second in range(int(seconds)):
            world.after(second + rng.random(), publisher.publish, topic, 0, False, SIZE)
    world.events = 0
    world.run(seconds + 1.0)
    after = signalled()
    got = [(ledger.sent[found.number], found) for client in subscribers for found in client.got]
    wanted = sum(
        sent.topic == topic
        for sent in ledger.sent
        for client in subscribers
        for topic, _ in client.filters
    )
    for kind, text in world.violations:
        raise RuntimeError(f"{kind}: {text}")
    return Measured(
        forming,
        opened[0] - forming,
        (after[0] - opened[0]) / (seconds + 1.0),
        (after[1] - opened[1]) / (seconds + 1.0),
        fmean((found.at - sent.at) * 1000 for sent, found in got),
        wanted - len(got),
        seconds,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.signalling", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--seeds", type=int, default=5, help="networks, of which the mean is printed"
    )
    parser.add_argument(
        "--timers", choices=("default", "paper"), default="default", help="as the option"
    )
    arguments = parser.parse_args(argv)
    timers = PAPER_TIMERS if arguments.timers == "paper" else {}
    print(
        "| topics | routing | forming, B | clients come, B | signalling, B/s | against flood "
        "| all of it against flood | messages, B/s | mean delay, ms | lost |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for topics in (3, 30, 60):
        flood: list[Measured] = []
        for routing, config in MODES:
            runs = [
                measure(routing, topics, arguments.seconds, seed, **config, **timers)
                for seed in range(1, arguments.seeds + 1)
            ]
            flood = flood or runs
            print(line(topics, " ".join((routing, *config.values())), runs, flood), flush=True)
    return 0


def line(topics: int, name: str, runs: list[Measured], flood: list[Measured]) -> str:
    """Return a line of the table: means over the `runs` of a routing mode `name` with so many
    `topics`, and what they signal more than those with `flood` in the same networks."""
    steady = more([r.signalling for r in runs], [r.signalling for r in flood])
    whole = more([r.whole for r in runs], [r.whole for r in flood])
    return (
        f"| {topics} | {name} | {fmean(r.forming for r in runs):,.0f} "
        f"| {fmean(r.opening for r in runs):,.0f} | {fmean(r.signalling for r in runs):,.0f} "
        f"| {steady} | {whole} | {fmean(r.data for r in runs):,.0f} "
        f"| {fmean(r.delay for r in runs):.2f} | {sum(r.lost for r in runs)} |"
    )


def more(values: Sequence[float], base: Sequence[float]) -> str:
    """Return by how much values are larger than those of the base, network by network: the mean,
    with half of its 95 % interval where there are several."""
    parts = [value / other - 1 for value, other in zip(values, base, strict=True)]
    if len(parts) < 2 or values == base:
        return f"{fmean(parts):+,.0%}"
    half = student(len(parts) - 1) * stdev(parts) / math.sqrt(len(parts))
    return f"{fmean(parts):+,.0%} ± {half:,.0%}"


if __name__ == "__main__":
    sys.exit(main())
