"""Strangers against brokers as processes: on the way between two with a secret, and on their
network."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.discovery.drivers.multicast import GROUP, PORT
from tests.kit.brokers import Broker, Cluster, secret_file
from tests.kit.clients import Client, Make
from tests.kit.link_harness import message
from tests.kit.waiting import until
from tests.process.stranger import Stranger
from tests.process.test_federation import overhear

PAYLOAD = b"what nobody on the way is to read"


@contextlib.contextmanager
def between(folder: Path, *flags: str) -> Iterator[tuple[Cluster, Stranger, Stranger]]:
    """Two brokers that know each other only by way of a stranger."""
    with Cluster(folder, "--discovery", "static", *flags) as cluster:
        called = cluster.add(start=False)
        dialler = cluster.add(start=False)
        strangers = [Stranger(broker.port) for broker in (called, dialler)]
        try:
            for broker, stranger in zip((called, dialler), strangers, strict=True):
                broker.flags += ["--advertise", stranger.address]
            dialler.flags += ["--seed", strangers[0].address]
            for broker in (called, dialler):
                broker.start().up()
            cluster.agree()
            yield cluster, strangers[0], strangers[1]
        finally:
            for stranger in strangers:
                stranger.close()


def publishes(make: Make, cluster: Cluster, subscriber: Client, payload: bytes) -> None:
    cluster.agree()
    make(cluster.brokers[1].port).publish("plant/valve", payload, 1)
    until(lambda: any(m.payload == payload for m in subscriber.messages), f"{payload!r} arrives")


def tampered(broker: Broker) -> int:
    return broker.counter("link_tampered")


def test_a_stranger_on_a_link_can_neither_read_nor_forge_messages(
    tmp_path: Path, make: Make
) -> None:
    with between(
        tmp_path, "--secret-file", secret_file(tmp_path, "secret", "correct horse battery\n")
    ) as (cluster, *ways):
        called, dialler = cluster.brokers
        subscriber = make(called.port)
        subscriber.subscribe("plant/valve", 1)
        publishes(make, cluster, subscriber, PAYLOAD)
        for way in ways:
            for heard in way.heard.values():
                assert PAYLOAD not in heard
                assert b"plant/valve" not in heard
        recorded = bytes(ways[0].heard[">"] or ways[1].heard[">"])

        # He says something: in plain, as a record, again what was said.
        key = origin_key(bytes.fromhex(dialler.view()["id"]), int(dialler.view()["boot"]))
        for said in (
            message(b"plant/valve", b"OPEN", key=key, sequence=999),
            b"\0\x30" + bytes(48),
            recorded,
        ):
            before = tampered(called) + tampered(dialler)
            for way in ways:
                way.inject(">", said)
                way.inject("<", said)
            until(
                lambda b=before: tampered(called) + tampered(dialler) > b,
                "what he says ends the link, counted",
            )
            publishes(make, cluster, subscriber, b"after %d" % len(said))

        # He alters a bit of every chunk that is longer than a hello for a while.
        before = tampered(called) + tampered(dialler)

        def alter(direction: str, data: bytes) -> bytes:
            return (
                data
                if data[0] or len(data) < 40
                else data[:-7] + bytes((data[-7] ^ 4,)) + data[-6:]
            )

        for way in ways:
            way.tamper = alter
        until(
            lambda: tampered(called) + tampered(dialler) > before,
            "what was altered ends the link, counted",
        )
        for way in ways:
            way.tamper = None
        publishes(make, cluster, subscriber, b"after all")

        # He calls himself and says what a broker said: no link comes of it.
        opened = called.counter("links_opened")
        with socket.create_connection(("127.0.0.1", called.port)) as sock:
            sock.settimeout(10)
            sock.sendall(recorded)
            while sock.recv(4096):
                pass
        assert called.counter("links_opened") == opened
        assert not [m for m in subscriber.messages if m.payload == b"OPEN"]
        assert all(
            m.payload == PAYLOAD or m.payload.startswith(b"after") for m in subscriber.messages
        )
        for broker in (called, dialler):
            assert len(broker.lines("WARNING", "link to", "; closed")) <= 4 * cluster.minutes()
            assert not broker.lines("Traceback")


def announce_from(host: str, data: bytes) -> None:
    """Send a datagram to the group on the loopback interface from one of its addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((host, 0))
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, struct.pack("b", 1))
        sock.sendto(data, (GROUP, PORT))


def test_a_replayed_announcement_makes_no_broker_dial_its_sender(
    tmp_path: Path,
) -> None:
    secret = secret_file(tmp_path, "secret", "correct horse battery")
    with Cluster(tmp_path, "--secret-file", secret) as cluster, overhear() as group:
        one = cluster.add()
        one.up()
        datagrams: list[bytes] = []
        mark = cluster.cluster.encode()

        def heard() -> bool:
            data = group.recv(2048)
            if mark in data:
                datagrams.append(data)
            return len(datagrams) >= 4

        until(heard, "announcements of the one broker")
        other = cluster.add().up()
        for data in datagrams:
            announce_from("127.0.0.2", data)
        until(lambda: other.counter("discovery_replayed") >= 1, "counted")
        assert other.lines("datagram from 127.0.0.2 ignored", "for another address")
        cluster.agree()
        assert not any("127.0.0.2" in str(view["members"]) for view in (one.view(), other.view()))
