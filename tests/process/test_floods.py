"""Floods: memory stays bounded, others are served meanwhile, and each is counted.

"Served" is progress, never a time: the witness' messages arrive while the flood goes on.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator

import psutil
import pytest

from mqttree.broker.wire.packets import Puback, Publish
from tests.kit.brokers import Broker, Cluster
from tests.kit.raw_client import RawClient
from tests.kit.waiting import until

MIB = 1 << 20


class Witness:
    """Another pair of clients, which wants to be served."""

    def __init__(self, port: int) -> None:
        self.subscriber, self.publisher = (
            RawClient(port, "witness"),
            RawClient(port, "witness-publisher"),
        )
        self.subscriber.subscribe("witness", qos=1)
        self.number = 0

    def served(self, times: int = 3) -> None:
        """Messages go through, in order and once."""
        for _ in range(times):
            self.number += 1
            self.publisher.send(
                Publish("witness", b"%d" % self.number, 1, packet_id=1 + self.number % 60_000)
            )
            message = self.subscriber.take()
            assert isinstance(message, Publish)
            assert message.payload == b"%d" % self.number
            assert message.packet_id
            self.subscriber.send(Puback(message.packet_id))
            answer = self.publisher.take()
            assert isinstance(answer, Puback)

    def close(self) -> None:
        """Close."""
        self.subscriber.close()
        self.publisher.close()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with Cluster(tmp_path_factory.mktemp("floods")) as cluster:
        yield cluster.add("--discovery", "off").up()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def broker(one: Broker) -> Iterator[Broker]:
    assert one.running
    yield one
    assert one.running
    until(lambda: one.view()["open_connections"] == 0, "all connections are gone")
    assert not one.lines("Traceback")


@pytest.fixture
def witness(broker: Broker) -> Iterator[Witness]:
    found = Witness(broker.port)
    found.served()
    yield found
    found.served()
    found.close()


def rss(broker: Broker) -> int:
    """bytes of memory."""
    assert broker.process is not None
    return int(psutil.Process(broker.process.pid).memory_info().rss)


# ------------------------------------------------------------------ storms


def test_a_storm_of_connections_leaves_no_memory_behind(broker: Broker, witness: Witness) -> None:
    """Clients that come, are taken over by their own next connection, or break off, thousands of
    times."""
    before, taken = rss(broker), broker.counter("taken_over")
    last: dict[int, RawClient] = {}
    for number in range(2_000):
        who = number % 20
        raw = RawClient(
            broker.port,
            f"storm-{who}",
            source=f"127.0.0.{2 + number % 200}",
            version=4 + number % 2,
        )
        # It will be closed with RST.
        raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        old = last.pop(who, None)
        if old is not None:
            old.close()
        if number % 3:
            last[who] = raw
        else:
            raw.close()
        if number % 100 == 0:
            witness.served(1)
    assert broker.counter("taken_over") > taken
    for raw in last.values():
        raw.close()
    assert rss(broker) - before < 30 * MIB
