"""Garbage, faults and mistakes: one clear line, a counter, nothing lost, no other client
disturbed."""

from __future__ import annotations

import http.client
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mqttree.bench.lab.ports import free_ports
from mqttree.broker.base.broker_key import make_key
from mqttree.broker.base.link_keys import NONCE_BYTES, transcript
from mqttree.broker.base.log_limit import MAX_CAUSES_PER_HOST
from mqttree.broker.cluster.link.control_records import (
    ASK_SEEN,
    BPDU,
    SEEN,
)
from mqttree.broker.cluster.link.handshake import IDENTITY
from mqttree.broker.wire import Auth, Connack, Connect, Publish, encode_packet
from mqttree.broker.wire.properties import Property
from mqttree.broker.wire.reader import PacketReader
from mqttree.broker.wire.varint import read_length
from tests.kit.brokers import Broker, Cluster
from tests.kit.clients import Make
from tests.kit.link_harness import bridge, ping
from tests.kit.raw_client import RawClient
from tests.kit.waiting import PATIENCE, until


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("three"), link_timeout=10.0) as cluster:
        for _ in range(3):
            cluster.add()
        yield cluster


@pytest.fixture
def three(shared: Cluster) -> Iterator[Cluster]:
    shared.agree(shared.brokers)
    yield shared
    shared.show()


class Undisturbed:
    """A publisher at one broker and a subscriber at another, who notice nothing; and a tree that
    stays as it is."""

    def __init__(self, cluster: Cluster, make: Make) -> None:
        self.cluster = cluster
        one, other = cluster.two_hops()
        self.publisher, self.subscriber = make(one.port), make(other.port)
        self.subscriber.subscribe("undisturbed", 2)
        self.sent = 0
        self.facts = self._facts()
        self.check()

    def _facts(self) -> list[Any]:
        views = [broker.view() for broker in self.cluster.brokers]
        return [
            (v["root"], v["counters"]["links_closed"], sorted(link["peer"] for link in v["links"]))
            for v in views
        ]

    def check(self) -> None:
        """Publish, see it arrive, and look at the tree."""
        self.publisher.publish("undisturbed", str(self.sent), 2)
        self.sent += 1
        assert self.subscriber.got(self.sent) == [str(n).encode() for n in range(self.sent)]
        assert not self.publisher.lost.is_set()
        assert not self.subscriber.lost.is_set()
        assert self._facts() == self.facts


def connect(protocol: int) -> bytes:
    return encode_packet(Connect("MQTT", protocol, True, 0, f"raw-{protocol}"), protocol)


# ------------------------------------------------------------------ the client port

GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "zeros": bytes(64),
    "ones": b"\xff" * 64,
    "endless length": b"\x10\xff\xff\xff\xff\xff",
    "enormous CONNECT": b"\x10\xff\xff\xff\x7f" + bytes(1000),
    "wrong protocol name": b"\x10\x10\x00\x04MQTX\x04\x02\x00\x3c\x00\x04abcd",
    "publish first": b"\x30\x05\x00\x01axyz",
    "CONNECT cut off": b"\x10\x05\x00\x04MQT",
    "bad utf-8": b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04a\xff\xfe\xfd",
    "second CONNECT": connect(4) + connect(4),
    "reserved type": connect(4) + b"\x00\x00",
    "reserved type, 5": connect(5) + b"\xf5\x00",
    "QoS 3": connect(4) + b"\x36\x07\x00\x01a\x00\x01xy",
    "wildcard in topic": connect(5) + b"\x30\x05\x00\x01#\x00x",
    "topic alias unknown": connect(5) + b"\x30\x07\x00\x00\x03\x23\x00\x07x",
    "SUBSCRIBE to nothing": connect(4) + b"\x82\x02\x00\x01",
    "PUBREL of nothing, wrong flags": connect(4) + b"\x60\x02\x00\x01",
}


def test_garbage_of_a_client_closes_its_connection_alone(three: Cluster, make: Make) -> None:
    broker = three.brokers[0]
    watch = Undisturbed(three, make)
    for what, data in GARBAGE.items():
        view = broker.view()
        counted = view["counters"]["malformed"] + view["counters"]["protocol_errors"]
        warned = len(broker.lines("WARNING"))
        with RawClient(broker.port, first=data) as raw:
            answer = raw.rest()
        assert len(answer) < 64, what
        counters = broker.view()["counters"]
        assert counters["malformed"] + counters["protocol_errors"] == counted + 1, what
        # The same cause is logged once.
        assert len(broker.lines("WARNING")) in (warned, warned + 1), what
    assert len(broker.lines("WARNING", "; closed")) > len(GARBAGE) // 2
    watch.check()
    rng = random.Random(7)
    for number in range(100):
        data = rng.randbytes(rng.randrange(1, 300))
        with RawClient(broker.port, first=connect(4 + number % 2) + data if number % 3 else data):
            pass
    until(
        lambda: broker.view()["open_connections"] <= len(three.brokers) - 1 + 2, "they are all gone"
    )
    watch.check()
    assert len(broker.lines("WARNING", "127.0.0.1:")) <= (MAX_CAUSES_PER_HOST + 1) * three.minutes()
    assert not broker.lines("Traceback")


# ------------------------------------------------------------------ links


KEY = make_key(os.urandom(32))


def caller(cluster_name: str, port: int) -> bytes:
    """The CONNECT of a broker with this key."""
    connect = bridge(
        1,
        cluster=cluster_name,
        address=f"127.0.0.1:{port}",
        client_id=KEY.id.hex(),
        name="false friend",
    )
    assert connect.properties is not None
    connect.properties[Property.AUTHENTICATION_METHOD] = IDENTITY
    connect.properties[Property.AUTHENTICATION_DATA] = os.urandom(NONCE_BYTES) + KEY.public
    return encode_packet(connect, 5)


# More of it, by one broker: tests/unit/cluster/test_link.py.
LINK_GARBAGE = {
    "records cut off": b"\xc0\x03\x02\x00\x00",
    "records too long": b"\xc0\x08" + b"\x02\x00\xff\xff" + b"abcd",
    "BPDU": ping((BPDU, b"nonsense")),
    "SEEN": ping((SEEN, b"\x00" * 18)),
    "PUBLISH without origin": encode_packet(Publish("t", b"x", 0), 5),
    "client's CONNECT": connect(5),
    "SUBSCRIBE": b"\x82\x07\x00\x01\x00\x00\x01a\x00",
    "reserved type": b"\x00\x00",
    "ones": b"\xff" * 100,
    "endless length": b"\xc0\xff\xff\xff\xff\xff",
    "requests without end": ping(*[(ASK_SEEN, b"")] * 10_000),
}


def false_friend(broker: Broker, cluster: str) -> RawClient:
    """Go through the whole handshake with a broker, as one of its own would."""
    said = caller(cluster, free_ports(1)[0])
    raw = RawClient(broker.port, first=said)
    reader = PacketReader()
    came: list[tuple[int, bytes]] = []
    sent = False
    while not any(first == 0x20 for first, _ in came):
        data = raw.sock.recv(65536)
        assert data, came
        came += reader.feed(data)
        if not sent and came:
            signature = KEY.sign(
                transcript(said[read_length(said, 1)[1] :], came[0][1]), dialler=True
            )
            answer: Any = {
                Property.AUTHENTICATION_METHOD: IDENTITY,
                Property.AUTHENTICATION_DATA: signature,
            }
            raw.sock.sendall(
                encode_packet(Auth(0x18, answer), 5) + encode_packet(Connack(False, 0), 5)
            )
            sent = True
    return raw


def test_garbage_closes_its_link_and_loses_nothing(three: Cluster, make: Make) -> None:
    broker = three.root()
    one, other = (b for b in three.brokers if b is not broker)
    publisher, subscriber = make(one.port), make(other.port)
    subscriber.subscribe("through", 2)
    for number, (what, data) in enumerate(LINK_GARBAGE.items()):
        counted = broker.counter("link_garbage")
        with false_friend(broker, three.cluster) as raw:
            raw.sock.sendall(data)
            raw.rest()
        assert broker.counter("link_garbage") == counted + 1, what
        publisher.publish("through", str(number), 2)
    expected = [str(number).encode() for number in range(len(LINK_GARBAGE))]
    assert subscriber.got(len(expected)) == expected
    # So many lines a minute are said of one host.
    assert len(broker.lines("WARNING", "link to", "closed")) <= 2 * three.minutes()
    assert not broker.lines("Traceback")
    three.agree(three.brokers)


# ------------------------------------------------------------------ datagrams


# ------------------------------------------------------------------ mistakes


def health(broker: Broker) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", broker.admin, timeout=PATIENCE)
    with closing(connection):
        connection.request("GET", "/readyz", headers={"Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_a_second_broker_of_one_id_is_named_and_disturbs_nobody(tmp_path: Path, make: Make) -> None:
    with Cluster(tmp_path, link_timeout=10.0) as cluster:
        trio = [cluster.add() for _ in range(3)]
        cluster.agree()
        original = trio[0]
        watch = Undisturbed(cluster, make)
        double = cluster.add(start=False)
        cluster.brokers.remove(double)  # of this cluster, and yet not
        shutil.copytree(original.data_dir, double.data_dir)
        try:
            double.start().up()
            assert double.view()["id"] == original.view()["id"]
            # Both say so; each hears the other's announcements or gets a refusal from those that it
            # dials.
            until(lambda: original.counter("discovery_duplicate_id") >= 2, "the original counts")
            until(
                lambda: double.counter("links_refused") + double.counter("discovery_duplicate_id"),
                "the double counts",
            )
            until(lambda: original.lines("WARNING", "one id"), "the original says so")
            until(lambda: double.lines("WARNING", " id "), "the double says so")
            watch.check()
            # The copy, which came later, serves no client and says so; nothing is acknowledged and
            # then lost.
            until(lambda: double.view()["id_conflict"] == original.address, "the double yields")
            assert len(double.lines("ERROR", "a copied data directory?")) == 1
            assert health(double) == (503, "another broker has this one's id\n")
            assert health(original) == (200, "ready\n")
            with RawClient(double.port, first=connect(5)) as raw:
                assert raw.rest()[3:4] == b"\x88"
            assert original.view()["id_conflict"] is None
            make(original.port).publish("through", b"the original goes on", 1)
            watch.check()
            for broker in trio:
                assert len(broker.lines("WARNING")) <= 3 * cluster.minutes(), broker.lines(
                    "WARNING"
                )
        finally:
            if double.running:
                double.kill()
            print(double.log())
        watch.check()
        cluster.agree(trio)
        # Without the original the copy is that broker.
        original.kill()
        double.start().up()
        make(double.port).subscribe("own/clients/are/served")
        until(lambda: len(double.view()["links"]) == 2, "the others link with it")
        double.kill()
