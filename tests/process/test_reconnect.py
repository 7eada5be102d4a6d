"""A client that publishes, closes and connects again at once: what it sent on the old connection
counts, on every transport.

The broker is stopped while the client does so: when it goes on, the kernel holds all of it, and may
show the new CONNECT first.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from mqttree.bench.lab.ports import free_ports
from mqttree.broker.auth.users_file import entries
from mqttree.broker.wire.packets import Connack, Connect, Disconnect, Packet, Publish, Will
from tests.kit.brokers import Cluster
from tests.kit.clients import Client, clients
from tests.kit.raw_client import RawClient
from tests.kit.waiting import PATIENCE, until
from tests.process.certificates import self_signed
from tests.process.test_clients import CONFIG, Served

TRANSPORTS = ("tcp", "unix", "tls", "ws", "wss")
ROUNDS = 5
BURST = 30


class Ways:
    """A broker with every kind of listener, and a Unix socket."""

    def __init__(self, served: Served, folder: Path) -> None:
        self.served = served
        self.path = folder / "mqtt.sock"

    def open(self, transport: str, version: int) -> RawClient:
        """Connect up to where CONNECT comes."""
        served = self.served
        context = (
            ssl.create_default_context(cafile=str(served.ca))
            if transport in ("tls", "wss")
            else None
        )
        if transport == "tls":
            # Without tickets behind the handshake: a client that does not read them resets the
            # connection when it closes, and its system drops what is not sent yet.
            context.maximum_version = ssl.TLSVersion.TLSv1_2
        if transport == "unix":
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(str(self.path))
        else:
            port = {"tcp": served.port, "tls": served.tls, "ws": served.ws, "wss": served.wss}[
                transport
            ]
            sock = socket.create_connection(("127.0.0.1", port), PATIENCE)
        sock.settimeout(PATIENCE)
        if context is not None:
            sock = context.wrap_socket(sock, server_hostname="127.0.0.1")
        if transport in ("ws", "wss"):
            page = Page(sock, f"{transport}://127.0.0.1:{port}/mqtt")
            return RawClient(sock=page, version=version)
        return RawClient(sock=sock, version=version)


class Page:
    """The client's end of a WebSocket. Its stream ends behind the last frame: it does not wait for
    the broker's close frame."""

    def __init__(self, sock: socket.socket, uri: str) -> None:
        self.sock = sock
        self.frames = ClientProtocol(parse_uri(uri), subprotocols=[Subprotocol("mqtt")])
        self.frames.send_request(self.frames.connect())
        self.pump()
        self.frames.receive_data(sock.recv(65536))
        assert self.frames.events_received()

    def pump(self) -> None:
        self.sock.sendall(b"".join(self.frames.data_to_send()))

    def sendall(self, data: bytes) -> None:
        self.frames.send_binary(data)
        self.pump()

    def recv(self, size: int) -> bytes:
        while True:
            self.frames.receive_data(self.sock.recv(size))
            if data := b"".join(
                bytes(e.data) for e in self.frames.events_received() if isinstance(e, Frame)
            ):
                return data

    def close(self) -> None:
        self.sock.close()


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ways]:
    folder = tmp_path_factory.mktemp("reconnect")
    ca = self_signed(folder)
    with Cluster(folder) as cluster:
        config = folder / "config.yaml"
        broker = cluster.add(
            "--discovery", "off", "--config", str(config), listen=False, start=False
        )
        ports = free_ports(3)
        unix = f"  local:\n    bind: unix:{folder}/mqtt.sock\n"
        config.write_text(
            CONFIG.format(port=broker.port, tls=ports[0], ws=ports[1], wss=ports[2], folder=folder)
            + unix
        )
        names = [f"{transport}{n}" for transport in TRANSPORTS for n in range(ROUNDS)]
        users = [line for name in names for line in entries(name, "right", os.urandom)]
        (folder / "users").write_text("\n".join(users))
        with config.open("a") as file:
            file.write(f"access:\n  users: {folder}/users\n  anonymous: yes\n")
        broker.start().up()
        yield Ways(Served(broker, ports, ca), folder)


def hello(version: int, name: str) -> Connect:
    will = Will(f"{name}/will", b"gone", 1)
    return Connect("MQTT", version, True, 60, name, None, None, will)


def burst(name: str, number: int, qos: int) -> list[Packet]:
    return [
        Publish(f"{name}/{qos}", b"%d %d" % (number, n), qos, packet_id=n + 1 if qos else None)
        for n in range(BURST)
    ]


def again(
    ways: Ways, old: RawClient, transport: str, last: list[Packet], connect: Connect
) -> RawClient:
    """Send `last` on the old connection, close it and connect on a new one, while the broker does
    not look."""
    broker = ways.served.broker
    # The rest needs the broker's answers.
    new = ways.open(transport, old.version) if transport not in ("tcp", "unix") else None
    broker.pause()
    try:
        old.send(*last)
        old.close()
        new = new or ways.open(transport, old.version)
        new.send(connect)
    finally:
        broker.resume()
    new.wait(Connack)
    return new


@pytest.mark.statement("MQTT-3.1.4-3")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_sent_before_a_reconnection_are_delivered(
    ways: Ways, transport: str, version: int
) -> None:
    name = f"again-{transport}-{version}"
    with clients() as make:
        subscriber: Client = make(ways.served.port, client_id=f"{name}-sub")
        subscriber.subscribe(f"{name}/#", 2)
        wire = ways.open(transport, version)
        wire.send(hello(version, name))
        assert wire.wait(Connack).code == 0
        expected = []
        for number in range(ROUNDS):
            qos = number % 2
            last = [*burst(name, number, qos), Disconnect()]
            wire = again(ways, wire, transport, last, hello(version, name))
            expected += [(f"{name}/{qos}", b"%d %d" % (number, n)) for n in range(BURST)]
        wire.send(Publish(f"{name}/end", b"", 1, packet_id=1))
        until(lambda: any(m.topic == f"{name}/end" for m in subscriber.messages), "the end")
        wire.send(Disconnect())
        found = [(m.topic, m.payload) for m in subscriber.messages if m.topic != f"{name}/end"]
        assert [m for m in found if m[0] != f"{name}/will"] == expected
        assert found == expected, "a will in spite of DISCONNECT"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_of_a_client_that_is_gone_before_its_password_is_checked_are_delivered(
    ways: Ways, transport: str
) -> None:
    """They are more than is read before the answer."""
    with clients() as make:
        subscriber: Client = make(ways.served.port, client_id=f"reads-{transport}")
        subscriber.subscribe(f"{transport}/#", 2)
        for number in range(ROUNDS):
            user = f"{transport}{number}"
            wire = ways.open(transport, 4)
            wire.send(
                Connect("MQTT", 4, True, 60, user, user, b"right"),
                *(Publish(f"{transport}/{number}/{n}", bytes(5_000)) for n in range(BURST)),
                Publish(f"{transport}/{number}/end", b"", 1, packet_id=1),
                Disconnect(),
            )
            wire.close()
        until(lambda: len(subscriber.messages) == ROUNDS * (BURST + 1), "all messages")
