"""An attacker between two brokers: every byte of their links passes through, and may be changed."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable

from mqttree.bench.lab.ports import free_ports

Tamper = Callable[[str, bytes], bytes]
"""Takes the direction (">" from who dialled) and what was read; returns what is sent on."""


class Stranger:
    """A relay in front of a broker, in a thread of its own."""

    def __init__(self, target: int) -> None:
        """`target`: port of the broker on loopback."""
        self.target = target
        (self.port,) = free_ports(1)
        self.tamper: Tamper | None = None
        self.heard: dict[str, bytearray] = {">": bytearray(), "<": bytearray()}
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        self._ending = False
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def inject(self, direction: str, data: bytes) -> None:
        """Say something on every connection that stands."""
        for dialler, called in list(self.pairs):
            with contextlib.suppress(OSError):
                (called if direction == ">" else dialler).sendall(data)

    def close(self) -> None:
        self._ending = True
        self._thread.join(10)

    def _run(self) -> None:
        while not self._ending:
            ends = {one: (other, ">") for one, other in self.pairs} | {
                other: (one, "<") for one, other in self.pairs
            }
            ready, _, _ = select.select([self._listener, *ends], [], [], 0.05)
            for sock in ready:
                if sock is self._listener:
                    self._accept()
                elif any(sock in pair for pair in self.pairs):
                    self._pass(sock, *ends[sock])
        self._listener.close()
        for pair in list(self.pairs):
            self._drop(pair)

    def _accept(self) -> None:
        dialler, _ = self._listener.accept()
        try:
            called = socket.create_connection(("127.0.0.1", self.target), 5)
        except OSError:
            dialler.close()
        else:
            self.pairs.append((dialler, called))

    def _pass(self, sock: socket.socket, other: socket.socket, direction: str) -> None:
        try:
            data = sock.recv(65_536)
            if data:
                self.heard[direction] += data
                other.sendall(data if self.tamper is None else self.tamper(direction, data))
                return
        except OSError:
            pass
        for pair in [pair for pair in self.pairs if sock in pair]:
            self._drop(pair)

    def _drop(self, pair: tuple[socket.socket, socket.socket]) -> None:
        self.pairs.remove(pair)
        for sock in pair:
            sock.close()
