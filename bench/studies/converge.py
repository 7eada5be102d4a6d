"""How fast a federation of real processes agrees on a tree and repairs it:
`mqttree bench converge`.

Each round starts the brokers on free loopback ports and measures, by a wall clock:

* start: from before the first process is started until every broker is in state runtime, under one
  root, every link up and both ends agreed (asked over each broker's admin port);
* crash: from kill -9 of the root until a message published after it on one survivor has reached a
  subscriber on every other;
* silence: the same from SIGSTOP of the root.

What is published before passes through the root: it is the parent of every survivor, which is
waited for, and routing is by flooding, which keeps to the tree. So crash and silence end when the
repaired tree carries messages. (`--routing topic`, the default of brokers, measures something else:
messages go from broker to broker and past the root.)

With `--sessions N` each broker has a standby (`replicas: 1`), and what a round measures is how fast
the sessions of a broker go on at the others when it dies (kill -9) or hangs (SIGSTOP; as if it was
cut off). All its clients come to the others in that moment. From then on:

* noticed: until no other broker has a link to it;
* connack: until each client has its CONNACK, with Session Present 1;
* queued: until all have the messages that were queued for them, half at QoS 1, half at QoS 2;
* standbys: until each other broker has a standby, which has everything.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from mqttree.bench.lab.agreement import agreed, ask
from mqttree.bench.lab.loopback import Broker
from mqttree.bench.load import LoadError, Probe
from mqttree.bench.load.client import LoadClient, ignore
from mqttree.broker.cli.command_line import Parser

PROBE = 0.005
"""s between two probes."""
PATIENCE = 30.0
"""s; after it a phase counts as failed and is printed as such."""
AT_ONCE = 50
"""clients that connect at a time, before the kill."""
WINDOW = 1000
"""messages that are not acknowledged, at most."""
SIZE = 64
"""bytes of a queued message."""


class ConvergeError(Exception):
    """A phase did not end within PATIENCE."""


async def until_agreed(brokers: list[Broker]) -> list[dict[str, Any]]:
    """Poll until the brokers agree; return their views. Raises ConvergeError when they do not in
    time."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        states = [await ask(broker.admin) for broker in brokers]
        if agreed(states):
            return [s for s in states if s is not None]
        await asyncio.sleep(0.01)
    raise ConvergeError("no agreement")


async def until_star(brokers: list[Broker]) -> Broker:
    """Poll until the brokers agree on a tree in which each of the others hangs below the root and
    lets messages through to it; return the root. From then on nothing gets from one of them to
    another but through it. Raises ConvergeError when they do not in time."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        states = await until_agreed(brokers)
        root = next(s["id"] for s in states if s["id"] == s["root"])
        others = [s for s in states if s["id"] != root]
        ways = {
            link["peer"]
            for s in states
            if s["id"] == root
            for link in s["links"]
            if link["forwarding"]
        }
        if all(s["parent"] == root and s["id"] in ways for s in others):
            return root_of(brokers, states)
        await asyncio.sleep(0.01)
    raise ConvergeError("no star around the root")


async def until_delivered(survivors: list[Broker], strike: Callable[[], None]) -> float:
    """Probe from the first survivor to all others, strike, and return the s until a later probe
    reached all of them. Raises ConvergeError when none does in time."""
    topic = "converge/probe"
    probes: list[Probe] = []
    try:
        for broker in survivors:
            probes.append(await Probe.open(("127.0.0.1", broker.port), f"probe-{broker.port}"))
        publisher, *subscribers = probes
        for subscriber in subscribers:
            await subscriber.subscribe(topic)
        number = 0
        struck: float | None = None
        first_after = 0
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if struck is None and all(s.newest >= 20 for s in subscribers):
                first_after = number
                struck = time.monotonic()
                strike()
            publisher.publish(topic, number)
            number += 1
            await asyncio.sleep(PROBE)
            if struck is not None and all(s.newest >= first_after for s in subscribers):
                return time.monotonic() - struck
        raise ConvergeError("no message came through")
    finally:
        for probe in probes:
            probe.close()


async def measure(count: int, number: int, routing: str) -> dict[str, float]:
    """Run the round `number` with `count` brokers and this `routing`; return what took how long
    (s)."""
    flags = ["--cluster", f"converge-{os.getpid()}-{number}", "--routing", routing]
    flags += ["--log-level", "error"]
    result = {}
    brokers = [Broker(f"b{index}", None, *flags) for index in range(count)]
    try:
        began = time.monotonic()
        for broker in brokers:
            broker.launch()
        await until_agreed(brokers)
        result["start"] = time.monotonic() - began
        root = await until_star(brokers)
        survivors = [b for b in brokers if b is not root]
        result["silence"] = await until_delivered(survivors, root.pause)
        root.resume()
        root = await until_star(brokers)
        survivors = [b for b in brokers if b is not root]
        result["crash"] = await until_delivered(survivors, lambda: root.signal(signal.SIGKILL))
    finally:
        for broker in brokers:
            broker.end(signal.SIGKILL)
    return result


class Sleeper:
    """A client with a session, and the messages that came to it."""

    def __init__(self, number: int) -> None:
        self.topic = b"sleeper/%d" % number
        self.client_id = f"sleeper{number}"
        self.version = 4 + number % 2
        self.came = 0
        self._incoming: set[bytes] = set()

    async def connect(self, port: int) -> LoadClient:
        """Connect; returns the connection. Raises OSError."""
        wire = LoadClient(self.client_id, self.version, self._take, _nothing, self._incoming)
        return await wire.connect("127.0.0.1", port)

    def _take(self, _payload: bytes, _qos: int) -> None:
        self.came += 1

    async def subscribe(self, port: int) -> None:
        """Begin the session, and leave it."""
        wire = await self.connect(port)
        await wire.subscribe(self.topic.decode(), 2)
        if wire.transport is not None:
            wire.transport.close()

    async def resume(self, port: int, since: float) -> float:
        """Come back; returns the time since then until CONNACK (s). Raises ConvergeError: the
        session is not there."""
        wire = await self.connect(port)
        took = time.monotonic() - since
        if not wire.present:
            raise ConvergeError(f"{self.client_id} has no session")
        return took


def _nothing() -> None:
    """Note that a connection has ended."""


async def queue(port: int, sleepers: list[Sleeper], queued: int) -> None:
    """Publish `queued` messages to the session of each of `sleepers` at the broker at `port`;
    return when all are acknowledged."""
    publisher = LoadClient("publisher", 5, ignore, _nothing)
    under_way: set[int] = set()
    publisher.accepted = under_way.discard
    await publisher.connect("127.0.0.1", port)
    for number in range(queued):
        for sleeper in sleepers:
            while len(under_way) >= WINDOW:
                await asyncio.sleep(0.001)
            under_way.add(publisher.publish(sleeper.topic, bytes(SIZE), 1 + number % 2))
    await until(lambda: not under_way, "all messages are acknowledged")


async def until(condition: Callable[[], bool], what: str) -> None:
    """Poll. Raises ConvergeError when it takes too long."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise ConvergeError(f"in vain: {what}")
        await asyncio.sleep(0.005)


async def until_all(brokers: list[Broker], what: str, condition: Callable[[Any], bool]) -> float:
    """Poll until the state of each of `brokers` meets a `condition`; return when it did (s,
    monotonic). Raises ConvergeError, with `what` is missing, when one does not in time."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        states = [await ask(broker.admin) for broker in brokers]
        if all(state is not None and condition(state) for state in states):
            return time.monotonic()
        await asyncio.sleep(0.01)
    raise ConvergeError(what)


async def until_standbys(brokers: list[Broker], without: str = "") -> float:
    """Poll until each broker has a standby, which is not the broker with the id `without`; return
    when. Raises ConvergeError when one has none in time."""

    def has(state: Any) -> bool:
        standbys = [standby["id"] for standby in state["standby"]["standbys"]]
        return standbys not in ([], [without])

    return await until_all(brokers, "a broker has no standby", has)


async def measure_sessions(
    count: int, number: int, routing: str, sessions: int, queued: int
) -> dict[str, float]:
    """Run the round `number` with `count` brokers and this `routing`, of which the first has
    `sessions` with `queued` messages each, and dies, then hangs; then the others have them, and
    nothing happens. Return what took how long (s)."""
    result: dict[str, float] = {}
    for how, fault in (("kill", signal.SIGKILL), ("hang", signal.SIGSTOP), ("none", None)):
        took = await measure_fault(fault, count, f"{number}{how}", routing, sessions, queued)
        if fault is None:
            del took["noticed"], took["standbys"]
        result |= {f"{how}: {what}": seconds for what, seconds in took.items()}
    return result


async def measure_fault(
    fault: signal.Signals | None, count: int, name: str, routing: str, sessions: int, queued: int
) -> dict[str, float]:
    """Start `count` brokers with this `routing`, of which the first has `sessions` with `queued`
    messages each, and gets the signal `fault`; None: the others have them. Return what took how
    long (s). `name`: of the cluster."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "replicas.yaml"
        config.write_text("federation: {replicas: 1}\n")
        flags = ["--config", str(config), "--cluster", f"converge-{os.getpid()}-{name}"]
        flags += ["--routing", routing, "--log-level", "error"]
        brokers = [
            Broker(f"b{index}", None, *flags, "--data-dir", f"{folder}/b{index}")
            for index in range(count)
        ]
        try:
            for broker in brokers:
                broker.launch()
            await until_agreed(brokers)
            await until_standbys(brokers)
            sleepers = [Sleeper(index) for index in range(sessions)]
            return await resume(brokers, sleepers, queued, fault)
        finally:
            for broker in brokers:
                broker.end(signal.SIGKILL)


async def resume(
    brokers: list[Broker], sleepers: list[Sleeper], queued: int, fault: signal.Signals | None
) -> dict[str, float]:
    """Send the signal `fault` to the first of `brokers`, which has the sessions of `sleepers`, each
    with `queued` messages; return how long they took to go on at the others (s), which have them
    before if there is no fault."""
    first, *others = brokers
    homes = [first] if fault is not None else others
    for at in range(0, len(sleepers), AT_ONCE):
        some = enumerate(sleepers[at : at + AT_ONCE], at)
        await asyncio.gather(*(s.subscribe(homes[i % len(homes)].port) for i, s in some))
    await queue(others[0].port, sleepers, queued)
    await until_standbys(brokers)
    state = await ask(first.admin)
    gone = state["id"] if state is not None and fault is not None else ""
    since = time.monotonic()
    if fault is not None:
        first.signal(fault)
    noticing = asyncio.ensure_future(
        until_all(
            others,
            "the others have a link to it",
            lambda state: all(link["peer"] != gone or not link["up"] for link in state["links"]),
        )
    )
    took = sorted(
        await asyncio.gather(
            *(s.resume(others[i % len(others)].port, since) for i, s in enumerate(sleepers))
        )
    )
    await until(lambda: all(s.came >= queued for s in sleepers), "all queued messages came")
    came = time.monotonic()
    return {
        "noticed": await noticing - since,
        "connack p50": took[len(took) // 2],
        "connack p99": took[len(took) * 99 // 100],
        "connack max": took[-1],
        "queued": came - since,
        "standbys": await until_standbys(others, gone) - since,
    }


def root_of(brokers: list[Broker], states: list[dict[str, Any]]) -> Broker:
    """Return the process that is root."""
    return brokers[[s["id"] == s["root"] for s in states].index(True)]


def report(results: list[dict[str, float]], failures: list[str], count: int, routing: str) -> str:
    """Return the table of the rounds' `results` (s) with their `failures`, of `count` brokers with
    this `routing`."""
    rows = [
        ("start", "start of all to one agreed tree", 1.5),
        ("crash", "kill -9 of the root to the next message", 0.3),
    ]
    rows.append(("silence", "SIGSTOP of the root to the next message", 3.0))
    for how, notice in (("kill", 0.0), ("hang", 2.0), ("none", 0.0)):
        begins = "no fault:" if how == "none" else "..."
        rows += [
            (f"{how}: noticed", f"{how}: noticed by the others", notice + 0.1),
            (f"{how}: connack p50", f"{begins} CONNACK with a session: p50", notice + 0.3),
            (f"{how}: connack p99", "... p99", notice + 0.3),
            (f"{how}: connack max", "... longest", notice + 1.0),
            (f"{how}: queued", "... the last queued message", notice + 10.0),
            (f"{how}: standbys", "... all others have standbys", notice + 10.0),
        ]
    lines = [
        f"{count} brokers, routing {routing}, {len(results)} rounds, "
        f"{os.cpu_count()} cores; seconds",
        "",
    ]
    lines.append(f"| {'what':40} | target | median |    min |    max |")
    lines.append(f"|{'-' * 42}|--------|--------|--------|--------|")
    for key, title, target in rows:
        values = [r[key] for r in results if key in r]
        if values:
            figures = (statistics.median(values), min(values), max(values))
            lines.append(
                f"| {title:40} | {target:6.1f} |" + "".join(f" {v:6.3f} |" for v in figures)
            )
    lines += ["", *failures]
    return "\n".join(lines)


async def run(
    count: int,
    rounds: int,
    routing: str,
    one_round: Callable[[int], Awaitable[dict[str, float]]],
) -> int:
    """Run all `rounds` with `count` brokers and this `routing`, each by `one_round`, and print the
    table; return the exit code."""
    results, failures = [], []
    for number in range(rounds):
        try:
            results.append(await one_round(number))
            print(
                f"round {number + 1}: " + "  ".join(f"{k} {v:.3f}" for k, v in results[-1].items()),
                flush=True,
            )
        except (ConvergeError, LoadError, OSError) as error:
            failures.append(f"round {number + 1} failed: {error}")
            print(failures[-1], flush=True)
    print(report(results, failures, count, routing))
    return 1 if failures else 0


def main(argv: Sequence[str]) -> int:
    """Carry out the command line; 0: done, 1: brokers did not agree."""
    parser = Parser(prog="mqttree bench converge", description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--brokers", type=int, default=5, metavar="N")
    parser.add_argument("--rounds", type=int, default=20, metavar="N")
    parser.add_argument(
        "--routing",
        choices=("flood", "interest", "topic"),
        default="flood",
        help="flood crosses the tree",
    )
    parser.add_argument(
        "--sessions", type=int, default=0, metavar="N", help="measure how so many sessions go on"
    )
    parser.add_argument(
        "--queued", type=int, default=100, metavar="N", help="messages for each session (100)"
    )
    options = parser.parse_args(argv)

    def one_round(number: int) -> Coroutine[Any, Any, dict[str, float]]:
        count, routing = options.brokers, options.routing
        if options.sessions:
            return measure_sessions(count, number, routing, options.sessions, options.queued)
        return measure(count, number, routing)

    return asyncio.run(run(options.brokers, options.rounds, options.routing, one_round))
