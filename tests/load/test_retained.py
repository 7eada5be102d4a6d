"""Very many retained messages and filters: a broker that joins, one that wants to stop it. Times
are printed, not judged."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Publish, Subscribe, SubscriptionRequest
from tests.kit.brokers import Broker, Cluster
from tests.kit.raw_client import RawClient
from tests.kit.waiting import until

RETAINED = 300_000
NEW_TOPICS = 3_000


class Wire(RawClient):
    """A client of MQTT 3.1.1 that reads the answers as bytes."""

    def __init__(self, broker: Broker, name: str) -> None:
        super().__init__(broker.port, name, version=4)

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.sock.recv(min(65536, size - len(data)))
            assert more, "closed by the broker"
            data += more
        return data

    def acknowledged(self, topics: list[str], retain: bool) -> None:
        """Publish at QoS 1 to all of these and wait for the answers."""
        answers = threading.Thread(target=self.read, args=(4 * len(topics),), daemon=True)
        answers.start()
        for begin in range(0, len(topics), 500):
            few = enumerate(topics[begin : begin + 500], begin)
            self.sock.sendall(
                b"".join(
                    encode_packet(Publish(t, bytes(64), 1, retain, False, n % 65535 + 1, None), 4)
                    for n, t in few
                )
            )
        answers.join(120)
        assert not answers.is_alive()


class Pulse(threading.Thread):
    """A client that speaks to itself every 5 ms: how long a broker keeps others waiting."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(daemon=True)
        self.wire = Wire(broker, f"pulse-{broker.name}")
        self.over = False
        self.waits: list[float] = []
        self.name = broker.name

    def run(self) -> None:
        topic = f"pulse/{self.name}"
        self.wire.sock.sendall(encode_packet(Subscribe(1, [SubscriptionRequest(topic, 0)]), 4))
        self.wire.read(5)
        packet = encode_packet(Publish(topic, b"x", 0, False, False, None, None), 4)
        while not self.over:
            began = time.monotonic()
            self.wire.sock.sendall(packet)
            self.wire.read(len(packet))
            self.waits.append(time.monotonic() - began)
            time.sleep(0.005)


@contextmanager
def pulses(*brokers: Broker) -> Iterator[None]:
    """Measure meanwhile, and print it."""
    found = [Pulse(broker) for broker in brokers]
    for pulse in found:
        pulse.start()
    yield
    for broker, pulse in zip(brokers, found, strict=True):
        pulse.over = True
        pulse.join(60)
        waits = sorted(pulse.waits)
        assert waits, "a local client was never served"
        view = broker.view()
        p50, p99, most = (1000 * waits[at] for at in (len(waits) // 2, len(waits) * 99 // 100, -1))
        print(
            f"{broker.name}: client waits p50 {p50:.1f}, p99 {p99:.1f}, max {most:.1f} ms; "
            f"longest turn {view['longest_turn_ms']} ms, "
            f"{view['counters']['turns_long']} of more than 50 ms"
        )


def test_a_broker_that_joins_gets_very_many_retained_messages(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        first, third = cluster.add().up(), cluster.add().up()
        cluster.settle()
        Wire(first, "filler").acknowledged(
            [f"r/{n % 1000}/device/{n}" for n in range(RETAINED)], retain=True
        )
        until(lambda: third.counter("received_link") >= RETAINED, "all of them at the third broker")
        joining = cluster.add().up()
        began = time.monotonic()
        with pulses(first, third, joining):
            until(
                lambda: (
                    joining.counter("retained_restored") + joining.counter("received_link")
                    >= RETAINED
                ),
                "all of them",
            )
        print(f"{RETAINED} in {time.monotonic() - began:.1f} s")
        assert [broker.counter("links_closed") for broker in (first, third, joining)] == [0, 0, 0]


def test_one_client_with_overlapping_filters_slows_no_other(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        first, second = cluster.add().up(), cluster.add().up()
        cluster.settle()
        attacker, publisher = Wire(first, "attacker"), Wire(second, "publisher")
        filters = [
            "/".join(levels)
            for levels in itertools.product(*((word, "+") for word in "abcdefghijklmnop"))
        ]
        with pulses(first, second):
            granted = 0
            for begin in range(0, len(filters), 8_192):
                few = [SubscriptionRequest(f, 0) for f in filters[begin : begin + 8_192]]
                attacker.sock.sendall(encode_packet(Subscribe(1, few), 4))
                granted += attacker.read(1 + 2 + 2 + len(few))[5:].count(0)
            assert 0 < granted < 1000
            publisher.acknowledged(
                [f"a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p{n}" for n in range(NEW_TOPICS)], retain=False
            )
            until(
                lambda: first.counter("received_link") >= NEW_TOPICS,
                "all of them at the other broker",
            )
            attacker.sock.close()
            until(
                lambda: (
                    first.counter("received_link") and not first.view()["counters"]["link_timeouts"]
                ),
                "a link that is up",
            )
        assert [broker.counter("links_closed") for broker in (first, second)] == [0, 0]
