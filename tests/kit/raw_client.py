"""Clients that send and read packets, or bytes, one by one: of one plain socket, and of a pair of
streams of asyncio. Nothing is answered by itself."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from tests.kit.decoder import Decoder
from tests.kit.waiting import PATIENCE


class RawClient:
    """One connection to a broker."""

    def __init__(
        self,
        port: int = 0,
        client_id: str = "",
        *,
        first: bytes = b"",
        version: int = 5,
        keep_alive: int = 0,
        host: str = "127.0.0.1",
        source: str = "",
        receive_buffer: int = 0,
        sock: Any = None,
        **connect: Any,
    ) -> None:
        """Connect to a `port` of `host` from the address `source` ("": any), with a receive buffer
        of so many bytes (0: the system's), or use a `sock` that is connected; send the bytes
        `first`, and with a `client_id` log in: `version`, `keep_alive` (s) and `connect` (fields of
        `Connect`) say how."""
        self.version = version
        self.decoder = Decoder(version)
        self.packets: list[Packet] = []
        self.sock = socket.socket() if sock is None else sock
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if sock is None:
            self.sock.settimeout(PATIENCE)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A port is found when it connects, even if thousands are in TIME_WAIT.
            if source:
                self.sock.bind((source, 0))
            self.sock.connect((host, port))
        if first:
            self.sock.sendall(first)
        if client_id:
            self.send(Connect("MQTT", version, True, keep_alive, client_id, **connect))
            connack = self.take()
            assert isinstance(connack, Connack)
            assert connack.code == 0

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection without DISCONNECT."""
        self.sock.close()

    def send(self, *packets: Packet) -> None:
        """Send packets."""
        self.sock.sendall(b"".join(encode_packet(packet, self.version) for packet in packets))

    def take(self) -> Packet:
        """Wait for the next packet."""
        while not self.packets:
            self._receive()
        return self.packets.pop(0)

    def _receive(self) -> None:
        data = self.sock.recv(1 << 16)
        assert data, "closed"
        self.packets += self.decoder.receive(data)

    def wait(self, kind: type[Packet]) -> Any:
        """Wait for the next packet of a `kind`; others stay."""
        while True:
            for index, packet in enumerate(self.packets):
                if isinstance(packet, kind):
                    return self.packets.pop(index)
            self._receive()

    def ask(self, packet: Packet) -> Packet:
        """Send a packet; returns the next one that comes."""
        self.send(packet)
        return self.take()

    def rest(self) -> bytes:
        """Everything until the broker closes."""
        found = b""
        try:
            while data := self.sock.recv(1 << 16):
                found += data
        except ConnectionResetError:
            pass
        return found

    def closed(self) -> int | None:
        """Wait until the broker has closed; returns the reason of its DISCONNECT or CONNACK, 0
        without one."""
        reason = 0
        try:
            while data := self.sock.recv(1 << 16):
                for packet in self.decoder.receive(data):
                    if isinstance(packet, Disconnect):
                        reason = packet.reason
                    elif isinstance(packet, Connack):
                        reason = packet.code
        except ConnectionError:
            pass
        return reason

    def subscribe(self, *filters: str, qos: int = 0) -> list[int]:
        """Subscribe; returns the codes."""
        answer = self.ask(Subscribe(1, [SubscriptionRequest(each, qos) for each in filters]))
        assert isinstance(answer, Suback), answer
        return answer.codes


class RawStreams:
    """A client over any pair of streams."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int = 4
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.version = version
        self.decoder = Decoder(version)
        self.packets: list[Packet] = []

    def send(self, *packets: Packet) -> None:
        """Send packets."""
        self.writer.write(b"".join(encode_packet(packet, self.version) for packet in packets))

    async def receive(self) -> Packet:
        """Wait for the next packet."""
        async with asyncio.timeout(PATIENCE):
            while not self.packets:
                data = await self.reader.read(1 << 16)
                assert data, "closed"
                self.packets += self.decoder.receive(data)
        return self.packets.pop(0)

    async def closed(self) -> bool:
        """Whether the broker closes without another byte."""
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(ConnectionError):
                return await self.reader.read() == b""
            return True
