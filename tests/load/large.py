"""Clients for large messages: publishers that note what was acknowledged, subscribers that note
what came. One thread each."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from contextlib import suppress

from mqttree.broker.wire import (
    Connack,
    Connect,
    Decoder,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from mqttree.broker.wire import encode_packet as encode

NUMBER = 8
"""Bytes of a payload that say its number; the rest is filling."""
READ = 1 << 20
Address = tuple[str, int]


class Wired(threading.Thread):
    """A connection of its own, read by a thread of its own until it is closed."""

    def __init__(self, address: Address, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.sock = socket.create_connection(address, 30)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.decoder = Decoder(4)
        self.waiting: list[Packet] = []
        self.said(Connect("MQTT", 4, True, 0, name, None, None, None, None))
        assert isinstance(self.next(), Connack)

    def said(self, *packets: Packet) -> None:
        """Send packets."""
        self.sock.sendall(b"".join(encode(packet, 4) for packet in packets))

    def next(self) -> Packet:
        """Return the next packet."""
        while not self.waiting:
            data = self.sock.recv(READ)
            if not data:
                raise OSError("closed")
            self.waiting += self.decoder.receive(data)
        return self.waiting.pop(0)

    def run(self) -> None:
        """Take packets until the connection ends."""
        with suppress(OSError):
            while True:
                self.took(self.next())

    def took(self, packet: Packet) -> None:
        """Take one packet."""

    def close(self) -> None:
        """End it."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


class Publisher(Wired):
    """Publishes `count` messages of `size` bytes to one topic, `window` of them unacknowledged at
    most (1: one at a time)."""

    def __init__(
        self,
        address: Address,
        topic: str,
        count: int,
        size: int,
        qos: int = 1,
        window: int = 60_000,
    ) -> None:
        super().__init__(address, f"from-{topic.replace('/', '-')}")
        self.topic, self.count, self.size, self.qos = topic, count, size, qos
        self.room = threading.Semaphore(window)
        self.acknowledged: set[int] = set()
        self.writing = threading.Lock()
        self.sender = threading.Thread(target=self._send, daemon=True)

    def start(self) -> None:
        """Begin to publish."""
        super().start()
        self.sender.start()

    def _send(self) -> None:
        filling = b"\0" * (self.size - NUMBER)
        with suppress(OSError):
            for number in range(self.count):
                self.room.acquire()
                payload = number.to_bytes(NUMBER, "big") + filling
                with self.writing:
                    self.said(Publish(self.topic, payload, self.qos, packet_id=1 + number % 65_000))

    def took(self, packet: Packet) -> None:
        """Take an acknowledgement."""
        if isinstance(packet, Pubrec):
            with self.writing:
                self.said(Pubrel(packet.packet_id))
        elif isinstance(packet, Puback | Pubcomp):
            self.acknowledged.add(packet.packet_id - 1)
            self.room.release()

    @property
    def done(self) -> bool:
        """Whether all is acknowledged."""
        return len(self.acknowledged) == self.count


class Subscriber(Wired):
    """Notes the numbers that come for each topic, in order."""

    def __init__(self, address: Address, topic_filter: str, qos: int = 1) -> None:
        super().__init__(address, f"to-{topic_filter.replace('/', '-')}")
        self.got: dict[str, list[int]] = {}
        self.said(Subscribe(1, [SubscriptionRequest(topic_filter, qos)]))
        assert isinstance(self.next(), Suback)

    def took(self, packet: Packet) -> None:
        """Note a message and acknowledge it."""
        if isinstance(packet, Publish):
            self.got.setdefault(packet.topic, []).append(
                int.from_bytes(packet.payload[:NUMBER], "big")
            )
            if packet.qos == 1:
                self.said(Puback(packet.packet_id))
            elif packet.qos == 2:
                self.said(Pubrec(packet.packet_id))
        elif isinstance(packet, Pubrel):
            self.said(Pubcomp(packet.packet_id))

    def lacks(self, publisher: Publisher) -> set[int]:
        """Return what was acknowledged and has not come."""
        return publisher.acknowledged - set(self.got.get(publisher.topic, ()))

    def twice(self, publisher: Publisher) -> list[int]:
        """Return what came more than once."""
        return [
            number
            for number, times in Counter(self.got.get(publisher.topic, ())).items()
            if times > 1
        ]

    def in_order(self, publisher: Publisher) -> bool:
        """Whether what came is in the order of its numbers."""
        got = self.got.get(publisher.topic, [])
        return got == sorted(got)
