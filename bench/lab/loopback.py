"""Brokers as processes on 127.0.0.1, and some that are one federation, for what is measured on this
machine."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mqttree.bench.lab.agreement import View, agreed
from mqttree.bench.lab.launcher import Program, mqttree
from mqttree.bench.lab.ports import free_ports
from mqttree.bench.load.cpu import process_time
from mqttree.broker.base.address import Address
from mqttree.broker.cli.admin_client import AdminPort, StatusError

PATIENCE = 60.0
"""s until brokers are one federation."""

PAUSE = 0.05
"""s between two looks."""


class LoopbackError(ValueError):
    """Brokers do not come up, or end; one line."""


class Broker(Program):
    """One broker with default settings, but for its flags."""

    def __init__(self, name: str, log: Path | None, *flags: str) -> None:
        """`name`: for people; `log`: the file for its output, None: there is none; `flags`: beside
        those of its ports. Nothing is started yet."""
        self.port, self.admin = free_ports(2)
        ports = ("--listen", self.address, "--admin", f"127.0.0.1:{self.admin}")
        super().__init__(name, mqttree(*ports, *flags), log)

    @property
    def address(self) -> str:
        """HOST:PORT for clients."""
        return f"127.0.0.1:{self.port}"

    def get(self, path: str) -> dict[str, Any] | None:
        """Return what its admin port answers, None if it does not. `path`: below `/api/v1`."""
        try:
            return AdminPort(Address("127.0.0.1", self.admin)).get(path, timeout=5)
        except StatusError:
            return None

    def cpu(self) -> float:
        """Return the CPU time of its threads (s). Raises LoopbackError: it has ended."""
        if self.process is None:
            raise LoopbackError(f"{self.name} was not started")
        try:
            return process_time(self.process.pid)
        except OSError:
            raise LoopbackError(f"{self.name} has ended: {self.said()}") from None


@contextlib.contextmanager
def federation(count: int, config: str = "") -> Iterator[list[Broker]]:
    """Start `count` brokers with a `config` (YAML); yields them when they are one federation, and
    ends them. Raises LoopbackError: they do not become one."""
    folder = Path(tempfile.mkdtemp(prefix="mqttree-placement-"))
    file = folder / "mqttree.yaml"
    file.write_text(config)
    flags = ["--cluster", "placement", "--discovery", "static", "--log-level", "warning"]
    flags += ["--config", str(file)]
    brokers: list[Broker] = []
    try:
        for name in (f"b{number}" for number in range(count)):
            seed = ["--seed", brokers[0].address] if brokers else []
            log = folder / f"{name}.log"
            brokers.append(Broker(name, log, "--name", name, *flags, *seed))
            brokers[-1].launch(session=True)
        _settle(brokers)
        yield brokers
    finally:
        for broker in brokers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                broker.end(signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def _settle(brokers: list[Broker]) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for broker in brokers:
            if not broker.running:
                raise LoopbackError(f"{broker.name} has ended: {broker.said()}")
        views: list[View | None] = [broker.get("/federation") for broker in brokers]
        if agreed(views):
            return
        time.sleep(PAUSE)
    raise LoopbackError(f"{len(brokers)} brokers are no federation after {PATIENCE:g} s")


def root_of(brokers: list[Broker]) -> Broker:
    """Return which of the `brokers` is the root of the tree, and decides. Raises LoopbackError:
    they do not answer."""
    for broker in brokers:
        view = broker.get("/federation")
        if view is not None and view["root"] == view["id"]:
            return broker
    raise LoopbackError("no broker is the root")
