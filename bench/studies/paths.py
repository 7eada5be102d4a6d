"""What a way between brokers costs, and how fast it opens and closes: `mqttree bench paths`.

The brokers are processes on the loopback, and once more in a line, each linked to the next ones
only, through relays that delay. Measured by a wall clock, in rounds:

* hop: median latency at 1,000 messages/s from a broker to a client of its neighbour, less that to a
  client of its own, in turn;
* open: from SUBSCRIBE, and from SUBACK, at one end of the tree until a message is published at the
  other end that arrives (one about every ms);
* close: from UNSUBACK there until the last message that crosses the first link of the way, or the
  last one (counters, polled).
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import uvloop

from mqttree.bench.lab.agreement import ask
from mqttree.bench.lab.brokers import KINDS, ROUTINGS
from mqttree.bench.lab.lab import Lab, LabError
from mqttree.bench.lab.topology import Topology, Wire
from mqttree.bench.load import LoadError, Probe
from mqttree.bench.load.mix import run_mix
from mqttree.bench.load.mixture import MixSpec
from mqttree.broker.cli.command_line import Parser

PATIENCE = 30.0
"""s; a phase that takes longer has failed, and is printed as such."""
GAP = 0.001
"""s between two probes."""
POLL = 0.01
"""s between two looks at counters."""
SETTLED = 1.0
"""s for which a tree has to stay as it is."""
SPREAD = 0.8
"""s after which all brokers know what is wanted, or is not any more (which is announced half a
second late)."""
STILL = 1.0
"""s without a message over a link: it is closed."""
OPEN_MS = 50.0
"""What opening may take beyond the round trip through the tree."""
CLOSE_MS = 1000.0
HOP_MS = 0.3

State = dict[str, Any]
Samples = dict[str, list[float]]
Polled = list[tuple[float, int]]
"""(time, s; value of a counter)."""


class PathsError(Exception):
    """A phase did not end; one line."""


# ---------------------------------------------------------------- arithmetic


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """Two brokers, how many links are between them in the tree, and the round trip over these
    (ms)."""

    one: str
    other: str
    hops: int
    rtt_ms: float


def edges(states: Sequence[State]) -> dict[tuple[str, str], float]:
    """Return the tree's links as the children tell them: (child, parent) -> round trip (ms).
    PathsError: it is no tree yet."""
    found = {}
    for state in states:
        if state["parent"] is None:
            continue
        rtt = next(
            (link["rtt_ms"] for link in state["links"] if link["peer"] == state["parent"]), None
        )
        if rtt is None:
            raise PathsError(f"{state['name']} does not know how far its parent is")
        found[state["id"], state["parent"]] = float(rtt)
    if len(found) != len(states) - 1 or len({state["root"] for state in states}) != 1:
        raise PathsError("the brokers are not in one tree")
    return found


def ways(tree: dict[tuple[str, str], float], start: str) -> list[Way]:
    """Return the ways from a broker to all others."""
    near: dict[str, dict[str, float]] = {}
    for (child, parent), rtt in tree.items():
        near.setdefault(child, {})[parent] = rtt
        near.setdefault(parent, {})[child] = rtt
    found = {start: Way(start, start, 0, 0.0)}
    edge = [start]
    for at in edge:
        for other, rtt in near.get(at, {}).items():
            if other not in found:
                found[other] = Way(start, other, found[at].hops + 1, found[at].rtt_ms + rtt)
                edge.append(other)
    return [way for way in found.values() if way.hops]


def diameter(tree: dict[tuple[str, str], float]) -> Way:
    """Return the longest way, by links and then by round trip."""
    everybody = {broker for pair in tree for broker in pair}
    return max(
        (way for broker in sorted(everybody) for way in ways(tree, broker)),
        key=lambda way: (way.hops, way.rtt_ms),
    )


def last_change(samples: Polled, since: float) -> float:
    """Return how many s after `since` a counter had its last value first; 0: before."""
    last = since
    for (_, before), (at, value) in pairwise(samples):
        if value != before:
            last = at
    return max(0.0, last - since)


Row = tuple[str, str, float | None, list[float]]
"""What, in which unit, wanted (below), one value a round."""


def table(rows: Iterable[Row]) -> list[str]:
    """Format rows as Markdown, with median and spread."""
    lines = ["| what | wanted | median | min | max | rounds |", "|---|---|---|---|---|---|"]
    for what, unit, wanted, values in rows:
        aim = "" if wanted is None else f"< {wanted:.4g} {unit}"
        if not values:
            lines.append(f"| {what} | {aim} | none | | | 0 |")
            continue
        missed = " (missed)" if wanted is not None and statistics.median(values) >= wanted else ""
        figures = (
            f"{value:.3f}" for value in (statistics.median(values), min(values), max(values))
        )
        middle, least, most = figures
        lines.append(
            f"| {what} | {aim} | {middle} {unit}{missed} | {least} | {most} | {len(values)} |"
        )
    return lines


def line_of(count: int, delay_ms: float) -> Topology:
    """Brokers in a line; each reaches the next ones only."""
    names = tuple(f"b{number}" for number in range(count))
    return Topology(
        "line",
        names,
        default=None,
        links={frozenset(pair): Wire(delay_ms=delay_ms) for pair in pairwise(names)},
    )


def loopback_of(count: int) -> Topology:
    """Brokers that reach each other without a network between."""
    return Topology("loopback", tuple(f"b{number}" for number in range(count)), network=False)


async def publish(probe: Probe, topic: str) -> None:
    """Publish the time at QoS 0, until cancelled."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        while due <= loop.time():
            probe.publish(topic, time.monotonic_ns())
            due += GAP
        await asyncio.sleep(due - loop.time())


async def until(what: str, ready: Callable[[], Any]) -> None:
    """Wait, without being in anybody's way. Raises PathsError."""
    end = time.monotonic() + PATIENCE
    while not ready():
        if time.monotonic() > end:
            raise PathsError(f"{what}: not within {PATIENCE:g} s")
        await asyncio.sleep(GAP)


# ---------------------------------------------------------------- measuring


class Network:
    """Brokers that run, and the tree that they have agreed on."""

    def __init__(self, lab: Lab, *, settled: float = SETTLED, still: float = STILL) -> None:
        """`lab`: started; `settled`: s for which the tree has to stay as it is; `still`: s without
        a message after which a link counts as closed."""
        self.lab = lab
        self._settled, self._still = settled, still
        self.states: list[State] = []
        self.tree: dict[tuple[str, str], float] = {}

    async def settle(self) -> None:
        """Wait for a tree of all brokers that stays as it is for `settled`. Raises PathsError."""
        end = time.monotonic() + PATIENCE
        since, reason = time.monotonic(), "no broker answers"
        while time.monotonic() < end:
            states = [
                state
                for place in self.lab.brokers.values()
                if (state := await ask(place.place.admin)) is not None
            ]
            try:
                tree = edges(states) if len(states) == len(self.lab.brokers) else {}
            except PathsError as error:
                tree, reason = {}, str(error)
            if (
                not tree
                or tree.keys() != self.tree.keys()
                or any(state["state"] != "runtime" for state in states)
            ):
                since = time.monotonic()
            self.states, self.tree = states, tree
            if time.monotonic() - since > self._settled:
                return
            await asyncio.sleep(0.05)
        raise PathsError(f"no agreement: {reason}")

    def _name(self, broker_id: str) -> str:
        name: str = next(state["name"] for state in self.states if state["id"] == broker_id)
        return name

    def address(self, broker_id: str) -> tuple[str, int]:
        """Return where a client beside the broker finds it."""
        name = self._name(broker_id)
        return self.lab.address(name, name)

    async def counters(self, broker_id: str) -> dict[str, int]:
        """Ask a broker. Raises PathsError."""
        state = await ask(self.lab.brokers[self._name(broker_id)].place.admin)
        if state is None:
            raise PathsError(f"{self._name(broker_id)} does not answer")
        counters: dict[str, int] = state["counters"]
        return counters

    # ------------------------------------------------------------ a hop

    async def hold(self, broker_id: str, topic_filter: str, wanted: bool) -> None:
        """Have `topic_filter` `wanted` at the broker `broker_id`, or not any more, by a session
        whose client is away; others know when this returns."""
        client = await Probe.open(self.address(broker_id), "holder", clean=not wanted)
        if wanted:
            await client.subscribe(topic_filter)
        client.close()
        await asyncio.sleep(SPREAD)

    def hop(self, seconds: float, samples: Samples) -> list[str]:
        """Measure the latency at one broker and over one link, QoS 0 and 1; returns what was
        wrong."""
        child, parent = next(iter(self.tree))
        host, port = self.address(child)
        wrong = []
        for qos in (0, 1):
            medians = []
            for subscriber in (child, parent):
                spec = MixSpec(
                    host,
                    port,
                    publishers=1,
                    subscribers=1,
                    topics=1,
                    least=64,
                    most=64,
                    qos=qos,
                    rate=1000.0,
                    seconds=seconds,
                    warmup=0.3,
                    drain=5.0,
                    subscriber_port=self.address(subscriber)[1],
                    topic="hop",
                )
                if subscriber != child:  # the way is open before anything is published
                    uvloop.run(self.hold(subscriber, "hop/#", wanted=True))
                result = run_mix(spec)
                if subscriber != child:
                    uvloop.run(self.hold(subscriber, "hop/#", wanted=False))
                medians.append(result.latency.percentile(50))
                if not result.complete:
                    wrong.append(f"QoS {qos}: {result.proof()}")
            samples.setdefault(f"here {qos}", []).append(medians[0])
            samples.setdefault(f"there {qos}", []).append(medians[1])
            samples.setdefault(f"hop {qos}", []).append(medians[1] - medians[0])
        return wrong

    # ------------------------------------------------------------ open and close

    async def open_and_close(self, number: int, samples: Samples) -> None:
        """Measure how long the longest way takes to open, and to close. Raises PathsError."""
        way = diameter(self.tree)
        near, far = (way.one, way.other) if number % 2 else (way.other, way.one)
        topic = f"paths/{os.getpid()}/{number}"
        subscriber = await Probe.open(self.address(near), f"near-{number}")
        publisher = await Probe.open(self.address(far), f"far-{number}")
        publishing = asyncio.ensure_future(publish(publisher, topic))
        try:
            await asyncio.sleep(0.1)
            asked = time.monotonic_ns()
            acknowledged = await subscriber.subscribe(topic)
            await until("a message arrives", lambda: subscriber.arrived)
            published, arrived = subscriber.arrived[0]
            samples.setdefault("suback", []).append((acknowledged - asked) / 1e6)
            samples.setdefault("asked", []).append(max(0, published - asked) / 1e6)
            samples.setdefault("open", []).append(max(0, published - acknowledged) / 1e6)
            samples.setdefault("first", []).append((arrived - asked) / 1e6)
            await asyncio.sleep(0.3)
            first: Polled = []
            last: Polled = []
            await self._look(far, near, first, last)
            unsubscribed = await subscriber.unsubscribe(topic)
            await self._watch(far, near, first, last)
            samples.setdefault("first link", []).append(
                1e3 * last_change(first, unsubscribed / 1e9)
            )
            samples.setdefault("last link", []).append(1e3 * last_change(last, unsubscribed / 1e9))
        finally:
            publishing.cancel()
            with suppress(asyncio.CancelledError):
                await publishing
            subscriber.close()
            publisher.close()

    async def _look(self, far: str, near: str, first: Polled, last: Polled) -> None:
        """Note how much the first broker has sent over links, and the last one got."""
        for broker_id, counter, samples in (
            (far, "forwarded", first),
            (near, "received_link", last),
        ):
            value = (await self.counters(broker_id))[counter]
            samples.append((time.monotonic(), value))

    async def _watch(self, far: str, near: str, first: Polled, last: Polled) -> None:
        """Look on until nothing crosses these links any more. Raises PathsError."""
        end = time.monotonic() + PATIENCE
        while True:
            await self._look(far, near, first, last)
            now = time.monotonic()
            if all(
                now - polled[0][0] - last_change(polled, polled[0][0]) > self._still
                for polled in (first, last)
            ):
                return
            if now > end:
                raise PathsError(
                    f"messages still cross links {PATIENCE:g} s after the last unsubscription"
                )
            await asyncio.sleep(POLL)


def measure(
    topology: Topology, options: argparse.Namespace, hop: bool
) -> tuple[list[Row], list[str]]:
    """Bring up the brokers of `topology` and measure all rounds as the command line's `options`
    say, with `hop` also what one more broker on the path costs. Returns the table's rows, and what
    was wrong. Raises LabError, PathsError."""
    samples: Samples = {}
    wrong: list[str] = []
    with Lab(topology, KINDS[f"mqttree-{options.routing}"], way="relays") as lab:
        lab.start()
        network = Network(lab)
        uvloop.run(network.settle())
        longest: Way | None = None
        for number in range(options.rounds + 1):  # the first one warms up
            kept: Samples = {}
            uvloop.run(network.settle())
            if hop:
                wrong += network.hop(options.seconds, kept)
                uvloop.run(network.settle())
            longest = diameter(network.tree)
            kept["rtt"] = [longest.rtt_ms]
            if options.routing != "flood":  # which has no ways that open or close
                try:
                    uvloop.run(network.open_and_close(number, kept))
                except (LoadError, PathsError) as error:
                    wrong.append(f"round {number}: {error}")
            if number:
                for key, values in kept.items():
                    samples.setdefault(key, []).extend(values)
                said = (f"{key} {values[0]:.3f}" for key, values in kept.items())
                print(
                    f"{topology.name}, round {number}, ms: " + "  ".join(said),
                    file=sys.stderr,
                    flush=True,
                )
        assert longest is not None
    return rows(samples, hop, longest.hops, options.routing != "flood"), wrong


def rows(samples: Samples, hop: bool, hops: int, opens: bool) -> list[Row]:
    """Return the rows of the table for `samples` (ms). `hop`: what one more broker costs is one of
    them, over `hops` of them; `opens`: so is how fast paths open."""
    found: list[Row] = []
    for qos in (0, 1) if hop else ():
        found.append(
            (f"QoS {qos}, median latency at one broker", "ms", None, samples.get(f"here {qos}", []))
        )
        found.append(
            (
                f"QoS {qos}, median latency at its neighbour",
                "ms",
                None,
                samples.get(f"there {qos}", []),
            )
        )
        found.append((f"QoS {qos}, what the hop adds", "ms", HOP_MS, samples.get(f"hop {qos}", [])))
    if opens:
        trips = samples.get("rtt", [])
        wanted = OPEN_MS + (statistics.median(trips) if trips else 0.0)
        links = f"{hops} link" + "s" * (hops > 1)
        found.append((f"round trip between the ends of the tree, {links}", "ms", None, trips))
        first = f"to the first message published {links} away that arrives"
        found.append((f"SUBSCRIBE {first}", "ms", wanted, samples.get("asked", [])))
        found.append((f"SUBACK {first}", "ms", wanted, samples.get("open", [])))
        found.append(("SUBSCRIBE to its arrival", "ms", None, samples.get("first", [])))
        found.append(("SUBSCRIBE to SUBACK", "ms", None, samples.get("suback", [])))
        text = "UNSUBACK to the last message that {}"
        found.append(
            (
                text.format("the publisher's broker sends on"),
                "ms",
                CLOSE_MS,
                samples.get("first link", []),
            )
        )
        found.append(
            (text.format("comes over the last link"), "ms", CLOSE_MS, samples.get("last link", []))
        )
    return found


def run(options: argparse.Namespace) -> int:
    """Measure and print; returns the exit code: 1 when something could not be measured, or a
    message was lost."""
    title = f"{options.brokers} brokers, --routing {options.routing}, {options.rounds} rounds"
    print(f"{title}, {os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}")
    failed = False
    networks = [(loopback_of(options.brokers), True, "\non the loopback\n")]
    if options.delay:
        text = f"\nin a line, {options.delay:g} ms from each to the next one\n"
        networks.append((line_of(options.brokers, options.delay), False, text))
    for topology, hop, title in networks:
        print(title)
        try:
            found, wrong = measure(topology, options, hop)
        except (LabError, LoadError, PathsError, OSError) as error:
            found, wrong = [], [str(error)]
        print(
            "\n".join([*(table(found) if found else []), *(f"wrong: {line}" for line in wrong)]),
            flush=True,
        )
        failed |= bool(wrong)
    return 1 if failed else 0


def main(argv: Sequence[str]) -> int:
    """Parse the command line; 2: bad input."""
    parser = Parser(prog="mqttree bench paths", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=_between(1, 1000), default=5, metavar="N", help="(5)")
    parser.add_argument("--routing", choices=ROUTINGS, default="interest", help="(interest)")
    parser.add_argument("--brokers", type=_between(2, 50), default=7, metavar="N", help="(7)")
    parser.add_argument(
        "--seconds", type=float, default=1.0, metavar="S", help="of each latency run (1)"
    )
    parser.add_argument(
        "--delay",
        type=float,
        default=5.0,
        metavar="MS",
        help="one way, from one of the line to the next; 0: no line (5)",
    )
    options = parser.parse_args(argv)
    if not 0.01 <= options.seconds <= 3600 or not 0 <= options.delay <= 1000:
        parser.error("--seconds must be 0.01 to 3600, --delay 0 to 1000")
    try:
        return run(options)
    except KeyboardInterrupt:
        return 130


def _between(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not {least} to {most}")
        return value

    return number
