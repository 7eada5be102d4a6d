"""A fast publisher at one broker, a slow subscriber at another: what was acknowledged arrives, and
a dead reader stops no publisher."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttree.broker.limits import DEFAULTS
from mqttree.broker.wire import Puback, Publish, Pubrec, Pubrel
from mqttree.broker.wire import encode_packet as encode
from mqttree.broker.wire.properties import Property
from tests.kit.brokers import Broker, Cluster
from tests.kit.raw_client import RawClient
from tests.kit.waiting import PATIENCE, until
from tests.process.test_floods import Witness


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Broker, Broker]]:
    """Two linked brokers; no link is lost because the machine is slow."""
    with Cluster(tmp_path, "--discovery", "static", link_timeout=30.0) as cluster:
        first = cluster.add().up()
        second = cluster.add("--seed", first.address).up()
        cluster.settle()
        yield first, second


class Fast:
    """Publishes as fast as it is taken, without waiting for acknowledgements; `turn` never
    blocks."""

    def __init__(self, port: int, total: int, qos: int) -> None:
        self.raw = RawClient(port, "fast", version=4)
        self.raw.sock.setblocking(False)
        self.total = total
        self.qos = qos
        self.first = 0
        self.acknowledged = 0
        self.unsent = b""

    def turn(self) -> None:
        """Send and receive what can be."""
        while self.first < self.total and len(self.unsent) < 1 << 16:
            self.unsent += encode(
                Publish("fast", b"%064d" % self.first, self.qos, packet_id=1 + self.first % 60_000),
                4,
            )
            self.first += 1
        try:
            if self.unsent:
                self.unsent = self.unsent[self.raw.sock.send(self.unsent) :]
        except BlockingIOError:
            pass
        try:
            data = self.raw.sock.recv(1 << 16)
        except BlockingIOError:
            return
        assert data, "closed"
        for packet in self.raw.decoder.receive(data):
            if isinstance(packet, Pubrec):
                self.unsent += encode(Pubrel(packet.packet_id), 4)
            self.acknowledged += isinstance(packet, Puback | Pubrec)

    def all_of_it(self) -> None:
        """Publish all, and have it acknowledged."""
        while self.acknowledged < self.total:
            self.turn()
            if self.acknowledged < self.total:
                self.wait()

    def wait(self, *others: socket.socket) -> list[socket.socket]:
        """Wait for something to do; returns which of the others can be read."""
        sock = self.raw.sock
        busy = [sock] if self.unsent or self.first < self.total else []
        readable, writable, _ = select.select([sock, *others], busy, [], PATIENCE)
        assert readable or writable, f"{self.acknowledged} acknowledged"
        return [other for other in others if other in readable]


@pytest.mark.parametrize("qos", [1, 2])
def test_acknowledged_messages_reach_a_slow_subscriber_elsewhere(
    pair: tuple[Broker, Broker], qos: int
) -> None:
    """More than a queue has room for, to a client that reads a little at a time and takes twenty:
    all of it, in order, once."""
    here, there = pair
    total = 3 * DEFAULTS.max_queued
    slow = RawClient(there.port, "slow", properties={Property.RECEIVE_MAXIMUM: 20})
    slow.subscribe("fast", qos=qos)
    slow.sock.setblocking(False)
    witness = Witness(here.port)
    until(lambda: here.view()["links"][0]["forwarding"], "a link that carries messages")
    fast = Fast(here.port, total, qos)
    got: list[bytes] = []
    turns = 0
    while len(got) < total:
        fast.turn()
        turns += 1
        if fast.wait(slow.sock) and (turns % 4 == 0 or fast.first == total):
            answers = b""
            for packet in slow.decoder.receive(slow.sock.recv(4096)):
                if isinstance(packet, Publish):
                    got.append(packet.payload)
                    answers += encode(
                        Puback(packet.packet_id or 0)
                        if qos == 1
                        else Pubrec(packet.packet_id or 0),
                        5,
                    )
                elif isinstance(packet, Pubrel):
                    answers += b"\x70\x02" + packet.packet_id.to_bytes(2, "big")
            slow.sock.send(answers)
        if turns % 1000 == 0:
            witness.served(1)
    assert got == [b"%064d" % number for number in range(total)]
    assert there.counter("dropped_queue_full") == 0
    assert there.counter("pause_requests_sent")
    assert here.counter("publishers_paused")
    for one in (slow, fast.raw, witness):
        one.close()
