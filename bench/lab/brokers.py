"""Brokers under test as processes: how each kind is configured and started in a lab, and what can
be done to it."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from mqttree.bench.lab.launcher import END_SECONDS, Program, filled, mqttree, search_path
from mqttree.bench.lab.owner import MARK, owner, started

PATIENCE = 30.0
"""s until brokers have one tree."""
ROUTINGS = ("flood", "interest", "topic", "srt", "ort")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of broker under test. many: several of them act as one. routing: of mqttree.
    companion: what runs beside each broker, as a process of its own ("": nothing). options: of
    mqttree's configuration file, section `federation`. patience: s until it has one tree. command,
    config: of one that is not ours, with placeholders (`mqttree.bench.lab.foreign`)."""

    name: str
    program: str
    many: bool
    routing: str | None = None
    companion: str = ""
    options: tuple[tuple[str, str], ...] = ()
    patience: float = PATIENCE
    command: str = ""
    config: str = ""

    def missing(self) -> str:
        """Return why it cannot be started here, in one line; empty when it can."""
        if self.program == "mqttree" or shutil.which(self.program, path=search_path()):
            return ""
        return f"{self.program} is not installed"


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        *(Kind(f"mqttree-{routing}", "mqttree", True, routing) for routing in ROUTINGS),
        Kind(
            "mqttree-ort-balance", "mqttree", True, "ort", options=(("overlay-policy", "balance"),)
        ),
        *(
            Kind(
                f"mqttree-{routing}-paper",
                "mqttree",
                True,
                routing,
                options=(("timers", "paper"),),
                # A broker that falls silent is noticed after 39.6 s, and then a tree has to form.
                patience=120.0,
            )
            for routing in ("flood", "ort")
        ),
        Kind("mosquitto", "mosquitto", False),
        Kind("mosquitto-bridges", "mosquitto", True),
        Kind("mosquitto-federators", "mosquitto", True, companion="federator"),
        Kind("mosquitto-gateways", "mosquitto", True, companion="gateway"),
        Kind("amqtt", "amqtt", False),
    )
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a broker of a lab is: its host's address, its ports, and how to step inside its host.

    advertise: the address that others dial.
    bridges: where it dials others (name -> address).
    seeds: for mqttree without multicast.
    """

    name: str
    address: str
    port: int
    admin: int
    folder: Path
    inside: Callable[[], AbstractContextManager[None]]
    advertise: str | None = None
    seeds: tuple[str, ...] = ()
    bridges: dict[str, tuple[str, int]] = field(default_factory=dict)


def mosquitto_configuration(place: Place) -> str:
    """Return the file for Mosquitto: no limit in flight (2.0.11 loses beyond it), no Nagle, bridges
    for all topics at QoS 2."""
    lines = [
        f"listener {place.port} {place.address}",
        "allow_anonymous true",
        "persistence false",
        "set_tcp_nodelay true",
        "max_inflight_messages 0",
        "max_queued_messages 0",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
    ]
    for number, (address, port) in enumerate(place.bridges.values()):
        lines += [
            f"connection {place.name}-{number}",
            f"address {address}:{port}",
            "topic # both 2",
            "try_private true",
            "start_type automatic",
            "restart_timeout 1",
            "keepalive_interval 10",
            "notifications_local_only true",
            f"remote_clientid bridge-{place.name}-{number}",
            "cleansession false",
        ]
    return "\n".join(lines) + "\n"


def mqttree_configuration(kind: Kind) -> str:
    """Return the file for a mqttree with options that no flag has."""
    return "federation:\n" + "".join(f"  {name}: {value}\n" for name, value in kind.options)


def amqtt_configuration(address: str) -> str:
    """Return the file for an amqtt that listens at an `address` (HOST:PORT)."""
    return (
        "listeners:\n"
        "  default:\n"
        "    type: tcp\n"
        f"    bind: {address}\n"
        "    max_connections: 0\n"
        "plugins:\n"
        "  amqtt.plugins.authentication.AnonymousAuthPlugin:\n"
        "    allow_anonymous: true\n"
    )


def command(kind: Kind, place: Place, cluster: str) -> list[str]:
    """Write the configuration that a broker of this `kind` needs into the folder of its `place`,
    and return its command. Brokers with the same `cluster` name federate."""
    if kind.program == "mqttree":
        words = mqttree(
            "--listen",
            f"{place.address}:{place.port}",
            "--name",
            place.name,
            "--admin",
            f"127.0.0.1:{place.admin}",
            "--cluster",
            cluster,
            "--data-dir",
            str(place.folder / "data"),
            "--log-level",
            "warning",
            "--routing",
            kind.routing or "flood",
        )
        if place.seeds:
            words += ["--discovery", "static"] + [
                word for seed in place.seeds for word in ("--seed", seed)
            ]
        if place.advertise:
            words += ["--advertise", place.advertise]
        if kind.options:
            options = place.folder / "config"
            options.write_text(mqttree_configuration(kind))
            words += ["--config", str(options)]
        return words
    if kind.command:
        return _foreign_command(kind, place)
    config = place.folder / "config"
    config.write_text(
        mosquitto_configuration(place)
        if kind.program == "mosquitto"
        else amqtt_configuration(f"{place.address}:{place.port}")
    )
    return [shutil.which(kind.program, path=search_path()) or kind.program, "-c", str(config)]


def _foreign_command(kind: Kind, place: Place) -> list[str]:
    data = place.folder / "data"
    data.mkdir(exist_ok=True)
    data.chmod(0o777)  # brokers give up root before they write
    values = {
        "address": place.address,
        "port": str(place.port),
        "name": place.name,
        "dir": str(data),
        "config": str(place.folder / "config"),
    }

    if kind.config:
        (place.folder / "config").write_text(filled(kind.config, values))
    program, *words = (filled(word, values) for word in shlex.split(kind.command))
    return [shutil.which(program, path=search_path()) or program, *words]


class HostProcess(Program):
    """A process on a host of a lab: the same place and command through all of its starts."""

    def __init__(self, name: str, place: Place, command: Sequence[str], log: str) -> None:
        """`name` is for people, `place` where it runs, `command` the program and its arguments,
        `log` the file for its output, in the folder of the place. Nothing is started yet."""
        super().__init__(name, command, place.folder / log)
        self.place = place
        self.starts = 0
        self.ticks: int | None = None

    def start(self) -> None:
        """Start it on its host. Raises OSError."""
        with self.place.inside():
            self.launch({MARK: owner()}, session=True)
        self.starts += 1
        self.ticks = started(self.process.pid) if self.process is not None else None

    def kill(self) -> None:
        """kill -9, and wait for its end."""
        self.end(signal.SIGKILL)

    def ended(self) -> str:
        """How it ended, in one line."""
        code = self.process.poll() if self.process is not None else None
        if code is not None and code < 0:
            return f"{self.name} was killed by {signal.Signals(-code).name}"
        return f"{self.name} ended with code {code}" + (
            f": {said}" if (said := self.said()) else ""
        )


class BrokerProcess(HostProcess):
    """One broker."""

    def __init__(self, kind: Kind, place: Place, cluster: str) -> None:
        """Make the folder and the configuration: of which `kind` it is, at which `place`, in the
        cluster of the name `cluster`. Nothing is started yet."""
        self.kind = kind
        place.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        super().__init__(place.name, place, command(kind, place, cluster), "log")


def end_all(processes: Sequence[HostProcess]) -> None:
    """Kill all of them and wait; measured brokers have nothing to save."""
    for each in processes:
        each.signal(signal.SIGKILL)
    for each in processes:
        if each.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.process.wait(END_SECONDS)


def port_open(place: Place) -> bool:
    """Whether a process listens where the broker should (looked up by the kernel's table, so that
    no process is disturbed)."""
    wanted = f":{place.port:04X}"
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), place.inside():
            for line in Path(f"/proc/thread-self/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[1].endswith(wanted) and words[3] == "0A":
                    return True
    return False


def wait_listening(brokers: list[BrokerProcess], patience: float) -> str:
    """Wait until all listen; return what went wrong, in one line, or nothing."""
    end = time.monotonic() + patience
    for awaited in brokers:
        # A look takes its time from those that start: at one after the other.
        while not port_open(awaited.place):
            for broker in brokers:
                if not broker.running:
                    return broker.ended()
            if time.monotonic() > end:
                said = awaited.said()
                return f"{awaited.name} did not listen within {patience:g} s" + (
                    f": {said}" if said else ""
                )
            time.sleep(0.02)
    return ""
