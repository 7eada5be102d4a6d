"""Many brokers: `python -m tests.sim.scale --brokers 5 50 200 [--shape lan|line] [--seed N]` (`make
scale`).

They start together, one joins late, the root is killed; there are no clients: all bytes are
signalling. Times are virtual.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from dataclasses import dataclass

from mqttree.stp.priority_vector import RootVector, better_root
from tests.sim.world import Host, World

LIMIT = 60.0
"""Virtual s for any of it to come about."""
REST = 1.0
"""Virtual s for what is left to be announced, before signalling is measured."""
QUIET = 5.0
"""Virtual s over which signalling is measured."""
LASTING = 0.5
"""Virtual s for which brokers have to agree to count as doing so; not counted in the time it
took."""
LOOK = 0.01
"""Virtual s between two looks: times are no more exact than that."""


@dataclass(slots=True, frozen=True)
class Took:
    """Virtual s until all agreed for the first time, and until they did for LASTING: in between
    better paths are taken."""

    first: float
    last: float

    def __str__(self) -> str:
        return f"{self.first:.2f} / {self.last:.2f}"


@dataclass(slots=True)
class Measured:
    """One federation. Times in virtual s, bytes as sent on links by one broker a second, on
    average."""

    brokers: int
    links: float
    most_links: int
    diameter: int
    depth: int
    converge: Took
    join: Took
    repair: Took
    forming_bytes: float
    quiet_bytes: float
    quiet_datagrams: float
    cpu: float


class Scale:
    """A federation of which nothing is wanted but that it agrees."""

    def __init__(self, brokers: int, seed: int = 1, line: bool = False, **config: object) -> None:
        """On a LAN of some milliseconds where every twentieth datagram is lost; `line`: each
        reaches only two on either side."""
        self.world = world = World(seed, until=1e9)
        world.slowest, world.jitter, world.loss = 0.003, 0.0001, 0.05
        world.rate, world.cutting, world.lateness = 1.25e8, 0.0, 0.0001
        world.high_water, world.window = 262_144, 65_536
        self.line = line
        for index in range(brokers):
            self._add(index, **config)

    def _add(self, index: int, **config: object) -> Host:
        host = self.world.add(
            **{"discovery": "multicast", "capability": float(index * 7919 % 1009) / 10, **config}
        )
        if self.line:
            self.world.blocked |= {(other, index) for other in range(index - 2)}
        return host

    def root(self) -> Host:
        """Return the best of those that live."""
        best, vector = None, None
        for host in self.world.alive():
            config = host.running.config
            mine = RootVector.of(host.running.cluster.own, config.capability)
            if vector is None or better_root(mine, vector):
                best, vector = host, mine
        assert best is not None
        return best

    def agreed(self) -> bool:
        """Whether all live in one tree under the best root."""
        alive = self.world.alive()
        root = self.root()
        by_id = {host.id: host for host in alive}
        edges = 0
        for host in alive:
            cluster = host.running.cluster
            if (
                cluster.tree.root.id != root.id
                or cluster.tree.root.boot != root.boot
                or not cluster.tree.agreed
            ):
                return False
            for peer, port in cluster.tree.ports.items():
                if port.forwarding:
                    link = cluster.links.get(peer)
                    if peer not in by_id or link is None or not link.live:
                        return False
                    edges += 1
        return edges == 2 * (len(alive) - 1) and len(self.depths(root, forwarding=True)) == len(
            alive
        )

    def depths(self, start: Host, forwarding: bool = False) -> dict[bytes, int]:
        """Count the links from one broker to each that can be reached, over all links or those of
        the tree."""
        by_id = {host.id: host for host in self.world.alive()}
        found = {start.id: 0}
        edge = deque([start.id])
        while edge:
            broker = edge.popleft()
            cluster = by_id[broker].running.cluster
            for peer, link in cluster.links.items():
                if (
                    peer in by_id
                    and peer not in found
                    and link.up
                    and (link.live or not forwarding)
                ):
                    found[peer] = found[broker] + 1
                    edge.append(peer)
        return found

    def until_agreed(self) -> Took:
        """Run until all agree on one tree that spans all, and go on doing so. Raises
        TimeoutError."""
        world = self.world
        began, world.events = world.now, 0
        first: list[float] = []
        since: list[float] = []

        def lasting() -> bool:
            if not self.agreed():
                since.clear()
                return False
            if not first:
                first.append(world.now - began)
            since.append(world.now)
            return since[-1] - since[0] >= LASTING

        if not world.run(LIMIT, lasting, every=LOOK):
            raise TimeoutError(f"{len(world.alive())} brokers do not agree within {LIMIT:g} s")
        return Took(first[0], since[0] - began)

    def bytes(self) -> int:
        """Count the signalling bytes that the living have sent on links and received."""
        return sum(host.running.counters.link_bytes_control for host in self.world.alive())

    def run(self, seconds: float) -> None:
        """Let some virtual s pass."""
        self.world.events = 0
        self.world.run(seconds)


def measure(brokers: int, seed: int = 1, line: bool = False, **config: object) -> Measured:
    """Measure one federation from its start to the death of its root."""
    began = time.process_time()
    scale = Scale(brokers, seed, line, **config)
    world = scale.world
    for host in world.hosts:
        host.start()
    converge = scale.until_agreed()
    forming = scale.bytes() / (converge.last + LASTING)
    scale.run(REST)
    alive = world.alive()
    degrees = [len(host.running.cluster.links) for host in alive]
    diameter = max(max(scale.depths(host).values()) for host in alive)
    depth = max(scale.depths(scale.root(), forwarding=True).values())
    before, datagrams = scale.bytes(), world.datagrams
    scale.run(QUIET)
    quiet, beacons = (scale.bytes() - before) / QUIET, (world.datagrams - datagrams) / QUIET
    scale._add(brokers, **config).start()
    join = scale.until_agreed()
    scale.run(REST)
    scale.root().kill(reset=True)
    repair = scale.until_agreed()
    for kind, text in world.violations:
        raise RuntimeError(f"{kind}: {text}")
    return Measured(
        brokers,
        sum(degrees) / brokers,
        max(degrees),
        diameter,
        depth,
        converge,
        join,
        repair,
        forming / brokers,
        quiet / brokers,
        beacons / brokers,
        time.process_time() - began,
    )


def main(argv: list[str] | None = None) -> int:
    """Measure, print a table, return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.scale", description=__doc__)
    parser.add_argument("--brokers", type=int, nargs="+", default=[5, 50, 200])
    parser.add_argument("--shape", choices=("lan", "line"), default="lan")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--routing", choices=("flood", "interest", "topic"), default="flood")
    arguments = parser.parse_args(argv)
    print(
        "| brokers | links each, most | diameter | depth of the tree | one tree after, s "
        "| one joins, s | root killed, s | forming, B/s | quiet, B/s | CPU, s |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for brokers in arguments.brokers:
        m = measure(brokers, arguments.seed, arguments.shape == "line", routing=arguments.routing)
        print(
            f"| {m.brokers} | {m.links:.1f}, {m.most_links} | {m.diameter} "
            f"| {m.depth} | {m.converge} | {m.join} | {m.repair} "
            f"| {m.forming_bytes:,.0f} | {m.quiet_bytes:,.0f} | {m.cpu:.0f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
