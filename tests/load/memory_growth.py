"""What brokers say that they keep, against what their processes grow by.

`python -m tests.load.memory_growth [SCENARIO ...]` prints a table.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import psutil

from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Connect, Publish, Subscribe, SubscriptionRequest
from tests.kit.brokers import Broker, Cluster
from tests.kit.waiting import PATIENCE, until

BATCH = 500
"""Packets that are sent before their answers are read."""
COUNT = 200_000
"""Messages, topics or filters."""
SESSIONS = 20_000


class Growth(NamedTuple):
    """How much a broker has grown by, in bytes: as it says, and as its process."""

    said: int
    real: int


def exchange(
    sock: socket.socket, packets: Iterator[bytes], answer: int, at_once: int = BATCH
) -> None:
    """Send packets, each of which is answered by `answer` bytes."""
    batch: list[bytes] = []

    def flush() -> None:
        sock.sendall(b"".join(batch))
        left = answer * len(batch)
        while left:
            left -= len(sock.recv(left))
        batch.clear()

    for packet in packets:
        batch.append(packet)
        if len(batch) == at_once:
            flush()
    flush()


def connect(broker: Broker, name: str, expiry: int = 0) -> socket.socket:
    """A client of MQTT 3.1.1 whose session is kept, or not (`expiry` 0)."""
    sock = socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE)
    sock.sendall(encode_packet(Connect("MQTT", 4, not expiry, 0, name, None, None), 4))
    assert len(sock.recv(4)) == 4
    return sock


def publishes(topic: str, first: int, count: int, **more: bool) -> Iterator[bytes]:
    for number in range(first, first + count):
        name = topic.format(number)
        yield encode_packet(Publish(name, b"12345678", 1, packet_id=number % 60_000 + 1, **more), 4)


def retained(broker: Broker, first: int, count: int) -> None:
    with connect(broker, "p") as sock:
        exchange(sock, publishes("house/{}/state", first, count, retain=True), 4)


def deleted(broker: Broker, first: int, count: int) -> None:
    """Each topic is deleted as soon as it is set."""

    def packets() -> Iterator[bytes]:
        for packet in publishes("house/{}/state", first, count, retain=True):
            yield packet
            yield packet[:-8].replace(packet[1:2], bytes([packet[1] - 8]), 1)

    with connect(broker, "p") as sock:
        exchange(sock, packets(), 4)


def small(broker: Broker, first: int, count: int, at_once: int = 1) -> None:
    """As of devices that send now and then: each message is an entry of the log."""
    with connect(broker, "p") as sock:
        exchange(sock, publishes("house/{}/power", first, count), 4, at_once)


def queued(broker: Broker, first: int, count: int) -> None:
    """For ten clients that are away."""
    for client in range(10):
        with connect(broker, f"away{first}-{client}", 1) as sock:
            filters = [SubscriptionRequest("house/#", 1)]
            exchange(sock, iter([encode_packet(Subscribe(1, filters), 4)]), 5)
    small(broker, first, count // 20, BATCH)


def sessions(broker: Broker, first: int, count: int) -> None:
    for number in range(first, first + count * SESSIONS // COUNT):
        connect(broker, f"device-{number:08}", 1).close()


def subscriptions(broker: Broker, first: int, count: int) -> None:
    """A hundred of each session, all different."""
    for begin in range(first, first + count, 100):
        with connect(broker, f"device-{begin:08}", 1) as sock:
            filters = [SubscriptionRequest(f"house/{begin}/{n}/state", 1) for n in range(100)]
            exchange(sock, iter([encode_packet(Subscribe(1, filters), 4)]), 4 + 100)


SCENARIOS: dict[str, tuple[Callable[[Broker, int, int], None], int]] = {
    "retained messages": (retained, 1),
    "deletions": (deleted, 1),
    "messages in the log": (small, 2),
    "queued messages": (queued, 1),
    "sessions": (sessions, 1),
    "subscriptions": (subscriptions, 1),
    "subscriptions, two brokers": (subscriptions, 2),
}
"""What happens, and at how many brokers."""


def measure(folder: Path, name: str) -> Growth:
    """Return how much a broker grows by in a scenario, after a tenth of it."""
    run, brokers = SCENARIOS[name]
    file = folder / "config.yaml"
    file.write_text("mqtt: {memory_limit: 2147483648}\n")
    flags = ("-c", str(file), "--durability", "none", "--discovery", "static")
    with redirect_stdout(StringIO()), Cluster(folder, *flags) as cluster:
        broker = cluster.add(data=False).up()
        for _ in range(1, brokers):
            cluster.add("--seed", broker.address, data=False).up()
        cluster.agree()
        run(broker, 0, COUNT // 10)
        before = figures(broker)
        run(broker, COUNT, COUNT)
        after = figures(broker)
    return Growth(after[0] - before[0], after[1] - before[1])


def figures(broker: Broker) -> tuple[int, int]:
    """What a broker says that it keeps, and what its process has (bytes)."""
    assert broker.process is not None
    process = psutil.Process(broker.process.pid)
    found: list[int] = []

    def settled() -> bool:
        with urlopen(f"http://127.0.0.1:{broker.admin}/metrics", timeout=PATIENCE) as page:
            text = page.read().decode()
        (line,) = (x for x in text.splitlines() if x.startswith("mqttree_memory_used_bytes"))
        found.append(int(float(line.split()[-1])))
        return len(found) > 20 and found[-1] == found[-20]

    until(settled, "a count of memory that settles")
    return found[-1], int(process.memory_info().rss)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", default=list(SCENARIOS))
    print("| | process, MB | it says, MB | it says / process |")
    for name in parser.parse_args().scenarios:
        with tempfile.TemporaryDirectory() as folder:
            said, real = measure(Path(folder), name)
        print(f"| {name} | {real / 1e6:.1f} | {said / 1e6:.1f} | {said / real:.2f} |", flush=True)


if __name__ == "__main__":
    main()
