"""Some brokers as processes on 127.0.0.1 that are one federation, for what is measured of placement
on this machine."""

from __future__ import annotations

import contextlib
import http.client
import json
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

PATIENCE = 60.0
"""s until brokers are one federation."""

PAUSE = 0.05
"""s between two looks."""


class LoopbackError(ValueError):
    """Brokers do not come up, or end; one line."""


class Broker(Program):
    """One broker with default settings."""

    def __init__(self, name: str, folder: Path, seed: str) -> None:
        """`name`: for people; `folder`: for its log; `seed`: address of another broker, "": it is
        the first. Nothing is started yet."""
        self.port, self.admin = free_ports(2)
        flags = ["--listen", self.address, "--admin", f"127.0.0.1:{self.admin}", "--name", name]
        flags += ["--cluster", "placement", "--discovery", "static", "--log-level", "warning"]
        if seed:
            flags += ["--seed", seed]
        super().__init__(name, mqttree(*flags), folder / f"{name}.log")

    @property
    def address(self) -> str:
        """HOST:PORT for clients."""
        return f"127.0.0.1:{self.port}"

    def get(self, path: str) -> Any:
        """Return what its admin port answers, None if it does not. `path`: of the request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=5)
        try:
            connection.request("GET", path, headers={"Connection": "close"})
            answer = connection.getresponse()
            return json.loads(answer.read()) if answer.status == 200 else None
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()

    def cpu(self) -> float:
        """Return the CPU time of its threads (s). Raises LoopbackError: it has ended."""
        if self.process is None:
            raise LoopbackError(f"{self.name} was not started")
        try:
            return process_time(self.process.pid)
        except OSError:
            raise LoopbackError(f"{self.name} has ended: {self.said()}") from None


@contextlib.contextmanager
def federation(count: int) -> Iterator[list[Broker]]:
    """Start `count` brokers; yields them when they are one federation, and ends them. Raises
    LoopbackError: they do not become one."""
    folder = Path(tempfile.mkdtemp(prefix="mqttree-placement-"))
    brokers: list[Broker] = []
    try:
        for number in range(count):
            seed = brokers[0].address if brokers else ""
            brokers.append(Broker(f"b{number}", folder, seed))
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
        views: list[View | None] = [broker.get("/api/v1/federation") for broker in brokers]
        if agreed(views):
            return
        time.sleep(PAUSE)
    raise LoopbackError(f"{len(brokers)} brokers are no federation after {PATIENCE:g} s")


def root_of(brokers: list[Broker]) -> Broker:
    """Return which of the `brokers` is the root of the tree, and decides. Raises LoopbackError:
    they do not answer."""
    for broker in brokers:
        view = broker.get("/api/v1/federation")
        if view is not None and view["root"] == view["id"]:
            return broker
    raise LoopbackError("no broker is the root")
