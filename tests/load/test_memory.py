"""Memory that clients can make a broker take: kept sessions, retained messages, endless packets. It stays near its limit."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from broker.wire import Connect, Publish, Subscribe, SubscriptionRequest, encode_packet
from tests.process.brokers import PATIENCE, Broker

LIMIT = 256 << 20
MOST = 100 << 20
"""bytes that a broker takes before anybody comes, and what comes between two counts."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    file = tmp_path / "config.yaml"
    file.write_text(f"mqtt:\n  memory_limit: {LIMIT}\n")
    made = Broker(tmp_path, "b", ["-c", str(file), "--discovery", "off", "--durability", "none"], cluster="memory").start().up()
    yield made
    made.kill()


def client(broker: Broker, name: str, clean: bool) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE)
    sock.sendall(encode_packet(Connect("MQTT", 4, clean, 0, name, None, None, None, None), 4))
    return sock


def resident(broker: Broker) -> int:
    assert broker.process is not None
    return int(psutil.Process(broker.process.pid).memory_info().rss)


def watch(broker: Broker, most: float) -> int:
    now = resident(broker)
    assert now < most, f"{now:,} bytes, wanted below {most:,.0f}: {broker.log()}"
    return now


def publish(broker: Broker, data: list[bytes]) -> int:
    """Send packets and take what comes back; returns the most memory that the broker took meanwhile."""
    top = 0
    with client(broker, "publisher", True) as sock:
        assert sock.recv(4)[3] == 0
        for packet in data:
            sock.sendall(packet)
            assert len(sock.recv(1 << 20)) % 4 == 0
            top = max(top, watch(broker, 1.3 * LIMIT + MOST))
    return top


def test_kept_sessions(broker: Broker) -> None:
    for number in range(12):
        with client(broker, f"kept{number}", False) as sock:
            sock.sendall(encode_packet(Subscribe(1, [SubscriptionRequest("q/#", 1)]), 4))
            assert len(sock.recv(9)) >= 4
            sock.sendall(encode_packet(Publish("ready", b"", 1, packet_id=1), 4))
            while sock.recv(64)[-4:] != b"\x40\x02\x00\x01":
                pass
    packets = [encode_packet(Publish(f"q/{n % 97}", bytes(8000), 1, packet_id=n % 60000 + 1), 4) for n in range(20_000)]
    publish(broker, packets)
    assert broker.counter("dropped_memory") > 0
    with client(broker, "kept1", False) as sock:
        assert sock.recv(4)[:4] in (b"\x20\x02\x01\x00", b"\x20\x02\x00\x00")


def test_retained_messages(broker: Broker) -> None:
    big = 30 << 20
    packets = [encode_packet(Publish(f"r/{n}", bytes(big), 1, retain=True, packet_id=n + 1), 4) for n in range(12)]
    publish(broker, packets)
    assert broker.counter("retained_refused") > 0


def test_packets_that_never_end(broker: Broker) -> None:
    """Twenty megabytes each: those with most are closed, and others are served."""
    witness = client(broker, "witness", True)
    assert witness.recv(4)[3] == 0
    socks = [client(broker, f"endless{number}", True) for number in range(40)]
    for sock in socks:
        with suppress(ConnectionError):
            sock.sendall(b"\x30\xff\xff\xff\x7f")
            for _ in range(20):
                sock.sendall(bytes(1 << 20))
                watch(broker, 1.3 * LIMIT + MOST)
    assert broker.counter("memory_closed") > 0
    witness.sendall(encode_packet(Publish("a", b"served", 1, packet_id=1), 4))
    assert witness.recv(4) == b"\x40\x02\x00\x01"
    for sock in (witness, *socks):
        sock.close()
