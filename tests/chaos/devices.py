"""Devices with retained wills that go from broker to broker with clean sessions, and do not close
the connections that they leave: what the newest connection of each wrote has to be what is retained
for it, everywhere (docs/promises.md, Wills)."""

from __future__ import annotations

import random
import selectors
import socket
import threading
import time
from contextlib import suppress

from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import (
    Connect,
    Puback,
    Publish,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from tests.kit.brokers import Broker
from tests.kit.decoder import Decoder

COUNT = 12
PAUSE = 0.3
"""s between two moves, of any device."""
LEFT = 20
"""connections that were left and are still open; the oldest is closed."""
PATIENCE = 30.0
"""s until a wrong value is a broken promise."""
DEVICE = 60
"""s; Keep Alive."""


class Devices(threading.Thread):
    """All devices, each with its newest connection."""

    def __init__(self, brokers: list[Broker], seed: int) -> None:
        super().__init__(daemon=True)
        self._brokers = brokers
        self._rng = random.Random(seed)
        self._number = 0
        self._newest: dict[int, tuple[socket.socket, bytes]] = {}
        self._left: list[socket.socket] = []
        self._turn = threading.Lock()
        self._over = False

    def run(self) -> None:
        while not self._over:
            with self._turn:
                self._move(self._rng.randrange(COUNT))
            time.sleep(PAUSE)

    def stop(self) -> None:
        self._over = True
        if self.is_alive():
            self.join()
        for connection in (*self._left, *(newest for newest, _ in self._newest.values())):
            connection.close()

    def _move(self, device: int) -> bool:
        """Have a device connect to some broker and say Online there; returns whether that was
        acknowledged. One that is not stays where it was."""
        self._number += 1
        value = b"Online %d" % self._number
        topic = f"device/{device}"
        will = Will(topic, b"Offline %d" % self._number, 1, True)
        connect = Connect("MQTT", 4, True, DEVICE, f"device{device}", None, None, will, None)
        online = Publish(topic, value, 1, retain=True, packet_id=1)
        with suppress(OSError):
            broker = self._rng.choice(self._brokers)
            connection = socket.create_connection(("127.0.0.1", broker.port), 2.0)
            before = self._newest.get(device)
            # From here on it is unknown what is retained, until there is an answer.
            self._newest[device] = connection, b""
            if before is not None:
                self._left.append(before[0])
                if len(self._left) > LEFT:
                    self._left.pop(0).close()
            connection.sendall(encode_packet(connect, 4) + encode_packet(online, 4))
            connection.settimeout(12.0)
            decoder = Decoder(4)
            while data := connection.recv(1000):
                if any(isinstance(packet, Puback) for packet in decoder.receive(data)):
                    self._newest[device] = connection, value
                    return True
        return False

    def check(self, brokers: list[Broker]) -> list[str]:
        """Have all devices connected, and return what is wrong at these brokers."""
        with self._turn:
            for device in range(COUNT):
                for _ in range(20):
                    if self._connected(device) or self._move(device):
                        break
            end = time.monotonic() + PATIENCE
            wrong = [text for broker in brokers for text in self._wrong(broker)]
            while wrong and time.monotonic() < end:
                wrong = [text for broker in brokers for text in self._wrong(broker)]
            return wrong

    def _connected(self, device: int) -> bool:
        """Whether the newest connection of a device has been answered, and stands."""
        connection, value = self._newest.get(device, (None, b""))
        if connection is None or not value:
            return False
        with selectors.DefaultSelector() as selector:
            selector.register(connection, selectors.EVENT_READ)
            return not selector.select(0)  # there is nothing to be read but the end

    def _wrong(self, broker: Broker) -> list[str]:
        """Which devices have another value at a broker than they wrote last."""
        found: dict[str, bytes] = {}
        with suppress(OSError), socket.create_connection(("127.0.0.1", broker.port), 2.0) as asks:
            connect = Connect("MQTT", 4, True, DEVICE, "", None, None, None, None)
            subscribe = Subscribe(1, [SubscriptionRequest("device/+", 0)])
            asks.sendall(encode_packet(connect, 4) + encode_packet(subscribe, 4))
            asks.settimeout(1.0)
            decoder = Decoder(4)
            while len(found) < COUNT and (data := asks.recv(10_000)):
                for packet in decoder.receive(data):
                    if isinstance(packet, Publish):
                        found[packet.topic] = packet.payload
        return [
            f"{broker.name} has {found.get(f'device/{device}')!r} of device {device}, not {value!r}"
            for device, (_, value) in self._newest.items()
            if value and found.get(f"device/{device}") != value
        ]
