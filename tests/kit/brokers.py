"""Brokers as processes, for tests: started, killed, stopped, continued and restarted, one by one
or as a cluster."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from mqttree.bench.lab.agreement import agreed, carrying
from mqttree.bench.lab.launcher import Program, mqttree
from mqttree.bench.lab.ports import free_ports
from tests.kit.waiting import PATIENCE, until

FORMING = 1.5
"""s; a tree goes on getting better for two hellos (1 s) after its root is agreed on."""
LOG_LINES = 60
"""Lines of each broker's log that a failed test shows."""

_numbers = count()


class Broker(Program):
    """One broker: the same ports, folder and flags through all of its starts."""

    def __init__(
        self,
        folder: Path,
        name: str,
        flags: list[str],
        *,
        cluster: str,
        listen: bool = True,
        data: bool = True,
    ) -> None:
        """`data`: it has a data directory."""
        self.port, self.admin = free_ports(2)
        self.data_dir = folder / name
        said = ["--admin", f"127.0.0.1:{self.admin}", "--cluster", cluster, "--name", name]
        if listen:
            said += ["--listen", f"127.0.0.1:{self.port}"]
        if data:
            said += ["--data-dir", str(self.data_dir)]
        self.flags = [*said, "--log-level", "info", *flags]
        super().__init__(name, mqttree(*self.flags), folder / f"{name}.log")

    @property
    def address(self) -> str:
        """HOST:PORT for clients and brokers."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> Broker:
        """Start it; `up` waits until it answers."""
        assert not self.running
        self.command = mqttree(*self.flags)
        self.launch()
        return self

    def up(self) -> Broker:
        """Wait until it serves."""

        def serves() -> bool:
            assert self.running, f"{self.name} ended: {self.log()}"
            return self.state() is not None

        until(serves, f"{self.name} answers")
        return self

    def end(self, number: signal.Signals, patience: float = PATIENCE) -> int:
        """End it by a signal; returns the exit code."""
        code = super().end(number, patience)
        assert code is not None
        return code

    def kill(self) -> None:
        """kill -9."""
        self.end(signal.SIGKILL)

    def terminate(self) -> int:
        """Ask it to end; returns the exit code."""
        return self.end(signal.SIGTERM)

    def get(self, path: str) -> Any:
        """What its admin port says in JSON; None while it does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=5)
        try:
            connection.request("GET", path, headers={"Connection": "close"})
            return json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()

    def state(self) -> dict[str, Any] | None:
        """What /api/v1/federation says; None while it does not answer."""
        state: dict[str, Any] | None = self.get("/api/v1/federation")
        return state

    def has_standby(self) -> bool:
        """Whether its journal is at another broker."""
        return has_standby(self.state())

    def view(self) -> dict[str, Any]:
        """What /api/v1/federation says; it has to answer."""
        return until(self.state, f"{self.name} answers")

    def counter(self, name: str) -> int:
        """One counter."""
        value: int = self.view()["counters"][name]
        return value

    def log(self) -> str:
        """Everything that it wrote so far."""
        assert self.log_path is not None
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def lines(self, *words: str) -> list[str]:
        """Lines of the log with all of these words; without a line that is still being written."""
        return [line for line in self.log().split("\n")[:-1] if all(word in line for word in words)]


def has_standby(state: dict[str, Any] | None) -> bool:
    """Whether a broker, by its `state`, has a standby that has everything."""
    return bool(((state or {}).get("standby") or {}).get("standbys"))


class Cluster:
    """Some brokers that are meant to be one. At the end it ends them and prints their logs, which
    pytest shows on failure."""

    def __init__(self, folder: Path, *flags: str, link_timeout: float = 0.0) -> None:
        """`link_timeout` (s): not the default one, for tests where no link may be lost, however
        slow the machine is."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if link_timeout:
            (folder / "links.yaml").write_text(f"federation: {{link-timeout: {link_timeout}}}\n")
            flags = ("-c", str(folder / "links.yaml"), *flags)
        self.cluster = f"test-{os.getpid()}-{next(_numbers)}"
        self.flags = list(flags)
        self.brokers: list[Broker] = []
        self._shown: dict[str, int] = {}
        self._began = time.monotonic()
        self._tree: list[Any] = []
        self._still = 0.0

    def minutes(self) -> int:
        """Minutes since this was made, begun ones counted whole: a line that comes once a minute
        came so often at most."""
        return 1 + int((time.monotonic() - self._began) // 60)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for broker in self.brokers:
                if broker.running:
                    broker.end(signal.SIGKILL)
        finally:
            self.show()

    def add(
        self,
        *flags: str,
        cluster: str | None = None,
        listen: bool = True,
        start: bool = True,
        data: bool = True,
    ) -> Broker:
        """Make one more broker, and start it."""
        name = f"b{len(self.brokers)}"
        broker = Broker(
            self.folder,
            name,
            [*self.flags, *flags],
            cluster=cluster or self.cluster,
            listen=listen,
            data=data,
        )
        self.brokers.append(broker)
        return broker.start() if start else broker

    def agree(self, brokers: list[Broker] | None = None) -> list[dict[str, Any]]:
        """Wait until these (else all that run) agree on one tree that they alone are in; returns
        their views."""
        asked = (
            [b for b in self.brokers if b.running and not b.paused] if brokers is None else brokers
        )
        states: list[dict[str, Any] | None] = []

        def same() -> bool:
            assert all(broker.running for broker in asked), [
                broker.name for broker in asked if not broker.running
            ]
            states[:] = [broker.state() for broker in asked]
            return agreed(states) and carrying(states)

        try:
            until(same, f"agreement of {[broker.name for broker in asked]}")
        except AssertionError:
            for broker, state in zip(asked, states, strict=False):
                print(broker.name, json.dumps(state))
            raise
        return [state for state in states if state is not None]

    def tree(self) -> list[Any]:
        """Who is whose parent at the brokers that run, and how often anything about that has
        changed."""
        views = [b.view() for b in self.brokers if b.running and not b.paused]
        return [
            (v["id"], v["boot"], v["parent"], v["epoch"], v["counters"]["topology_changes"])
            for v in views
        ]

    def settle(self) -> None:
        """Wait until they agree on a tree that has stood still for as long as a tree forms."""
        self.agree()

        def still() -> bool:
            if (found := self.tree()) != self._tree:
                self._tree, self._still = found, time.monotonic() + FORMING
            return time.monotonic() >= self._still

        until(still, "a tree that stands still")
        self.agree()

    def arrived(self, condition: Callable[[], Any], what: str) -> bool:
        """Wait for what came at QoS 0 as well. False: the tree moved after it was settled, so that
        QoS 0 was promised nothing."""
        until(lambda: condition() or self.tree() != self._tree, what)
        return bool(condition())

    def root(self) -> Broker:
        """The root, once those that run agree."""
        views = self.agree()
        return next(b for b in self.brokers if b.running and b.view()["id"] == views[0]["root"])

    def two_hops(self) -> tuple[Broker, Broker]:
        """Two brokers with another one between them."""
        views = {
            b.name: view for b, view in zip(self.brokers, self.agree(self.brokers), strict=True)
        }
        for one in self.brokers:
            for other in self.brokers:
                a, b = views[one.name], views[other.name]
                if one is not other and a["parent"] != b["id"] and b["parent"] != a["id"]:
                    return one, other
        raise AssertionError("no two brokers are that far from each other")

    def show(self) -> None:
        """Print what the brokers wrote since this was called last."""
        for broker in self.brokers:
            text = broker.log()
            new = text[self._shown.get(broker.name, 0) :].splitlines()
            self._shown[broker.name] = len(text)
            code = broker.process.poll() if broker.process is not None else "never started"
            print(f"---- {broker.name} {broker.address} exit code {code}: {len(new)} lines")
            print("\n".join(new[-LOG_LINES:]))


def secret_file(folder: Path, name: str, text: str) -> str:
    """A file that its owner alone may read."""
    path = folder / name
    path.write_text(text)
    path.chmod(0o600)
    return str(path)
