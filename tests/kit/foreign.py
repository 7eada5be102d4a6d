"""Brokers of others as processes, for tests: a Mosquitto with what its file says."""

from __future__ import annotations

import shutil
import signal
import socket
from contextlib import suppress
from pathlib import Path

from bench.lab.launcher import Program, search_path
from bench.lab.ports import free_ports
from tests.kit.waiting import until

MOSQUITTO = shutil.which("mosquitto", path=search_path())
"""The program, None if it is not installed."""


class MosquittoBroker(Program):
    """A Mosquitto that lets every client in. It can be ended and started again at its port."""

    def __init__(self, folder: Path, name: str, *lines: str) -> None:
        """`folder`: for its files; `name`: for people; `lines`: more of its configuration, such as
        a bridge."""
        assert MOSQUITTO is not None
        (self.port,) = free_ports(1)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.config = folder / f"{name}.conf"
        self.configure(*lines)
        super().__init__(name, [MOSQUITTO, "-c", str(self.config)], folder / f"{name}.log")

    def configure(self, *lines: str) -> None:
        """Write its file, which counts from its next start on. `lines`: behind its listener."""
        # As root it would become a user that may not write here.
        first = (f"listener {self.port} 127.0.0.1", "allow_anonymous true", "user root")
        self.config.write_text("\n".join((*first, *lines)) + "\n")

    def start(self) -> MosquittoBroker:
        """Start it, and wait until it listens."""
        self.launch()
        until(self._listens, f"{self.name} listens")
        return self

    def _listens(self) -> bool:
        assert self.running, f"{self.name} ended: {self.said()}"
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5):
            return True
        return False

    def __enter__(self) -> MosquittoBroker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.running:
            self.end(signal.SIGKILL)
        if self.log_path is not None and self.log_path.exists():
            print(f"---- {self.name}")
            print("\n".join(self.log_path.read_text(errors="replace").splitlines()[-40:]))


def bridge(name: str, port: int, *more: str) -> tuple[str, ...]:
    """Return what a Mosquitto's file says to be bridged with the broker at a `port` of this
    machine. `name`: of the connection; `more`: further lines of it."""
    return (f"connection {name}", f"address 127.0.0.1:{port}", "topic # both 2", *more)
