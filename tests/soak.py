"""Five real brokers under QoS 1 and 2 traffic while some are killed, stopped for a while, restarted
and flooded, round by round:
`python -m tests.soak [--minutes N] [--seed N] [--rate N] [--routing MODE] [--brokers N]
[--connections N]`.
Exit code 1 at the first broken promise.

Each round chooses two brokers that live through it, for the publishers and one subscriber; anything
may happen to the others, and the subscriber's broker may be stopped for a while. Then all come
back, and everything that the publishers saw acknowledged must have arrived: at QoS 2 once, in order
at both. More than a thousand messages a second (`--rate`) come from `mqttree bench load`.
"""

from __future__ import annotations

import argparse
import random
import resource
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.kit.brokers import Broker, Cluster
from tests.kit.clients import Client, clients
from tests.kit.waiting import until
from tests.load.generator import Load, whole
from tests.process.test_floods import open_halfway

RATE = 800
"""messages a second in all, half of them at QoS 1, half at QoS 2."""
BY_HAND = 1000
"""messages a second that the clients of the tests can do."""
SECONDS = 9
"""s of load beyond that, in each round: faults begin in the first two, and end within five."""
GROWTH = 300 << 20
"""bytes that a broker may need more than after its start: its log (32 MiB), the queues of a flood,
and what malloc keeps."""


Fault = tuple[float, Broker, float]
"""When (s after the beginning), who, and for how many s."""


class Broken(Exception):
    """A promise."""


class Soak:
    """One run."""

    def __init__(self, cluster: Cluster, seed: int, connections: int, rate: int) -> None:
        self.cluster = cluster
        self.rate = rate
        self.rng = random.Random(seed)
        self.connections = connections
        self.done: Counter[str] = Counter()
        self.first: dict[int, int] = {}  # process -> bytes at its start
        self.halves: list[socket.socket] = []

    def round(self, number: int) -> None:
        """Choose, disturb, heal, compare."""
        rng, cluster = self.rng, self.cluster
        cluster.agree(cluster.brokers)
        self.memory()
        publishing, subscribing, *others = rng.sample(cluster.brokers, len(cluster.brokers))
        victims = rng.sample(others, rng.randint(1, len(others)))
        if rng.random() < 0.3:
            victims.append(subscribing)
        plan = sorted((rng.uniform(0.1, 2.0), index) for index in range(len(victims)))
        faults = [(at, victims[index], rng.uniform(0.2, 5.0)) for at, index in plan]
        if self.rate > BY_HAND:
            self.fast(number, publishing, subscribing, faults)
        else:
            self.slow(number, publishing, subscribing, faults)
        self.done.update(rounds=1)
        for broker in cluster.brokers:
            if broker.lines("Traceback"):
                raise Broken(f"round {number}: {broker.name} wrote a traceback")

    def faults(self, plan: list[Fault], gently: Broker) -> Callable[[float], bool]:
        """Return what does all that is due of a plan, s after its beginning, and says whether there
        is more to come."""
        back: list[tuple[float, Broker]] = []

        def go_on(now: float) -> bool:
            while plan and plan[0][0] <= now:
                _, victim, seconds = plan.pop(0)
                back.append((now + seconds, victim))
                self.disturb(victim, gently=victim is gently)
            for entry in [each for each in back if each[0] <= now]:
                back.remove(entry)
                self.restore(entry[1])
            return bool(plan or back)

        return go_on

    def fast(self, number: int, publishing: Broker, subscribing: Broker, plan: list[Fault]) -> None:
        """A round with more messages than the clients of the tests can do."""
        loads = {}
        for qos in (1, 2):
            more = ("--drain", "40", "--topic", "soak" + "ab"[qos - 1])
            loads[qos] = Load(publishing, subscribing, self.rate // 2, qos, SECONDS, *more)
        go_on, begin = self.faults(plan, subscribing), time.monotonic()
        while go_on(time.monotonic() - begin):
            time.sleep(0.005)
        self.close_halves()
        for qos, load in loads.items():
            line = load.result()
            if not whole(line):
                raise Broken(f"round {number}: QoS {qos}: {line}")
            self.done.update(messages=int(line.replace(",", "").split()[1]))
        self.cluster.agree(self.cluster.brokers)

    def slow(self, number: int, publishing: Broker, subscribing: Broker, plan: list[Fault]) -> None:
        """A round with clients that say which message is missing."""
        cluster = self.cluster
        with clients() as make:
            subscriber = make(subscribing.port)
            publishers = {qos: make(publishing.port) for qos in (1, 2)}
            for qos in publishers:
                subscriber.subscribe(f"soak/{qos}", qos)
            self.known(publishers[1], subscriber)
            sent: dict[int, list[int]] = {1: [], 2: []}
            go_on = self.faults(plan, subscribing)
            begin, now = time.monotonic(), 0.0
            while go_on(now) or now < 3.0:
                now = time.monotonic() - begin
                for qos, client in publishers.items():
                    if (
                        len(sent[qos]) < self.rate / 2 * now
                        and len(sent[qos]) - len(client.acknowledged) < 2000
                    ):
                        payload = b"%d %d %d" % (number, qos, len(sent[qos]))
                        sent[qos].append(client.publish(f"soak/{qos}", payload, qos))
                time.sleep(0.0005)
            self.close_halves()
            for qos, client in publishers.items():
                client.done(*sent[qos])
            cluster.agree(cluster.brokers)
            for qos, client in publishers.items():
                self.arrived(number, qos, len(sent[qos]), subscriber)
                if client.lost.is_set():
                    raise Broken(
                        f"round {number}: a publisher lost its connection to a broker that lived"
                    )
            if subscriber.lost.is_set():
                raise Broken(
                    f"round {number}: the subscriber lost its connection to a broker that lived"
                )
            self.done.update(messages=sum(map(len, sent.values())))

    def known(self, publisher: Client, subscriber: Client) -> None:
        """Wait until the way is there."""
        subscriber.subscribe("soak/begin", 1)

        def through() -> bool:
            publisher.publish("soak/begin", b"", 1)
            time.sleep(0.05)
            return bool(subscriber.payloads("soak/begin"))

        until(through, "a first message")
        publisher.acknowledged.clear()

    def arrived(self, number: int, qos: int, count: int, subscriber: Client) -> None:
        """Everything that was acknowledged is there."""
        prefix = f"soak/{qos}"
        expected = [b"%d %d %d" % (number, qos, index) for index in range(count)]
        try:
            until(
                lambda: len(set(subscriber.payloads(prefix))) >= count,
                f"round {number}: all at QoS {qos}",
            )
        except AssertionError:
            missing = sorted(set(expected) - set(subscriber.payloads(prefix)))
            what = f"{len(missing)} of {count} acknowledged at QoS {qos} are lost, as {missing[:3]}"
            raise Broken(f"round {number}: {what}") from None
        came = subscriber.payloads(prefix)
        if (came if qos == 2 else list(dict.fromkeys(came))) != expected:
            twice = [payload for payload, times in Counter(came).items() if times > 1]
            raise Broken(
                f"round {number}: QoS {qos}, {len(twice)} twice, or out of order: {twice[:3]}"
            )

    def disturb(self, broker: Broker, *, gently: bool) -> None:
        """Do something to a broker; `gently`: it must live."""
        # There is only one flood of half-open connections, because of the open files.
        choices = (
            "kill",
            "kill",
            "stop",
            "stop",
            "terminate",
            "kill" if self.halves else "half-open",
        )
        what = "stop" if gently else self.rng.choice(choices)
        self.done[what] += 1
        match what:
            case "kill":
                broker.kill()
            case "terminate":
                broker.terminate()
            case "stop":
                broker.pause()
            case _:
                self.halves += open_halfway(broker.port, self.connections)

    def restore(self, broker: Broker) -> None:
        """Bring it back."""
        if broker.paused:
            broker.resume()
        elif not broker.running:
            broker.start()

    def close_halves(self) -> None:
        """End the floods."""
        for sock in self.halves:
            sock.close()
        self.halves.clear()

    def memory(self) -> None:
        """No broker needs much more than at its start."""
        for broker in self.cluster.brokers:
            assert broker.process is not None
            used = psutil.Process(broker.process.pid).memory_info().rss
            if used > self.first.setdefault(broker.process.pid, used) + GROWTH:
                raise Broken(
                    f"{broker.name} uses {used >> 20} MiB, "
                    f"{self.first[broker.process.pid] >> 20} at its start"
                )


def main(argv: list[str] | None = None) -> int:
    """Run, tell, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="default: the time")
    parser.add_argument(
        "--rate", type=int, default=RATE, help=f"messages a second in all (default: {RATE})"
    )
    parser.add_argument("--brokers", type=int, default=5)
    parser.add_argument("--routing", choices=("topic", "interest", "flood"), default="topic")
    parser.add_argument(
        "--connections", type=int, default=10_000, help="half-open connections of a flood"
    )
    arguments = parser.parse_args(argv)
    seed = arguments.seed if arguments.seed is not None else int(time.time())
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    folder = Path(tempfile.mkdtemp(prefix="mqttree-soak-"))
    end = time.monotonic() + 60 * arguments.minutes
    cluster = Cluster(folder, "--routing", arguments.routing)
    soak = Soak(cluster, seed, arguments.connections, arguments.rate)
    print(
        f"seed {seed}, {arguments.rate} messages a second, {arguments.routing}, logs in {folder}",
        flush=True,
    )
    try:
        for _ in range(arguments.brokers):
            cluster.add()
        number = 0
        while time.monotonic() < end:
            soak.round(number)
            number += 1
            if number % 10 == 0:
                print(", ".join(f"{count} {what}" for what, count in soak.done.items()), flush=True)
    except (Broken, AssertionError) as error:
        print(f"seed {seed}, round {soak.done['rounds']}: {error}\nafter {dict(soak.done)}")
        return 1
    finally:
        soak.close_halves()
        for broker in cluster.brokers:
            if broker.running:
                broker.kill()
    print("all promises kept: " + ", ".join(f"{count} {what}" for what, count in soak.done.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
