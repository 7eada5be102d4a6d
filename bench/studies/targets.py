"""Brokers to measure: how each is started on free ports of the loopback, awaited and ended."""

from __future__ import annotations

import contextlib
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mqttree.bench.lab.brokers import amqtt_configuration
from mqttree.bench.lab.launcher import Program, filled, search_path
from mqttree.bench.lab.ports import free_ports
from mqttree.bench.load import LoadError, packets
from mqttree.bench.load.channel import dial, subscribe
from mqttree.bench.load.cpu import on_cores
from mqttree.bench.load.mixture import MixSpec
from mqttree.bench.runner import run_folder
from mqttree.bench.studies import configurations
from mqttree.bench.studies.certificate import make_certificate
from mqttree.bench.studies.configurations import Launch, Launches

_READY_SECONDS = 60.0
_PORTS = ("port", "tls", "ws", "extra", "more")


@dataclass(frozen=True, slots=True)
class Target:
    """A broker to start, and how."""

    name: str
    launches: Launches

    @property
    def command(self) -> str:
        """How it listens on one plain port."""
        return self.launches.plain.command

    @property
    def journals(self) -> bool:
        """Whether `{durability}` or `{persistence}` says that it keeps messages on the disk."""
        whole = self.command + self.launches.plain.config
        return "{durability}" in whole or "{persistence}" in whole

    def available(self) -> bool:
        """Whether the program is installed."""
        program = shlex.split(self.command)[0]
        return program == "{python}" or shutil.which(program, path=search_path()) is not None

    def said_version(self) -> str:
        """Ask the program for its version; empty when it does not say."""
        if not self.launches.version:
            return ""
        words = shlex.split(filled(self.launches.version, {"python": sys.executable}))
        lines = run_folder.said(words).splitlines()
        return lines[0][:100] if lines else ""


def mqttree(name: str, program: str) -> Target:
    """Return the target `name` for another installation of mqttree: `program` is its program, or
    the Python interpreter that has it, with words before it (env A=B) if need be. Raises
    ValueError, in one line, for words that cannot be told apart."""
    try:
        words = shlex.split(program)
    except ValueError as error:
        raise ValueError(f"target {name}: {error}") from error
    if not words:
        raise ValueError(f"target {name}: no program")
    if Path(words[-1]).name.startswith("python"):
        # Not the packages of the folder that we were started in.
        words += ["-P", "-m", "mqttree.broker.cli"]
    return Target(name, configurations.mqttree(shlex.join(words)))


def other(name: str, path: str) -> Target:
    """Return the target for the broker `name`, one of `configurations.OTHERS`, whose program is at
    `path`. Raises ValueError, in one line, for an unknown name."""
    if name not in configurations.OTHERS:
        raise ValueError(f"unknown broker {name!r}: one of {', '.join(configurations.OTHERS)}")
    return Target(name, configurations.OTHERS[name](shlex.quote(path)))


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("mqttree", configurations.mqttree("{python} -m mqttree.broker.cli")),
        Target("mosquitto", configurations.mosquitto("mosquitto", nodelay=False)),
        Target("mosquitto-nodelay", configurations.mosquitto("mosquitto")),
        Target(
            "amqtt", Launches(Launch("amqtt -c {config}", amqtt_configuration("127.0.0.1:{port}")))
        ),
        Target("sketch", Launches(Launch("{python} -m mqttree.bench.studies.sketch {port}"))),
    )
}


@dataclass(frozen=True, slots=True)
class Running:
    """A broker that accepts connections. tls, ws: its other ports, if it listens there; trusted:
    file with its certificate."""

    name: str
    port: int
    pid: int
    tls: int = 0
    ws: int = 0
    trusted: str = ""


def target(text: str) -> Target:
    """Look a target up by name, or make one from NAME=COMMAND; ValueError in one line for anything
    else."""
    name, equals, command = text.partition("=")
    if equals and name and command.strip():
        try:
            shlex.split(command)
        except ValueError as error:
            raise ValueError(f"target {name}: {error}") from error
        if "{port}" not in command:
            raise ValueError(f"target {name}: the command needs {{port}}")
        return Target(name, Launches(Launch(command)))
    if text not in TARGETS:
        raise ValueError(
            f"unknown target {text!r}: one of {', '.join(TARGETS)}, "
            "or NAME=COMMAND with {port} in it"
        )
    return TARGETS[text]


@contextlib.contextmanager
def running(
    what: Target, *, wide: bool = False, journal: bool = True, cores: list[int] | None = None
) -> Iterator[Running]:
    """Start the broker `what`, wait until it completes an MQTT handshake, and end it (by its pid)
    whatever happens inside.

    `wide`: with TLS and WebSocket; `journal`: with messages on the disk, if it knows that; `cores`:
    it runs on the first of them (None or empty: on any). Raises LoadError, with the last line that
    the program printed, when it does not get that far.
    """
    launch = what.launches.wide if wide else what.launches.plain
    if launch is None:
        raise LoadError(f"{what.name} has no TLS and WebSocket here")
    with _folder() as folder:
        values = _values(folder, journal) | _ports() | {"name": what.name}
        with _started(what.name, launch, values, folder, (cores or [])[:1]) as (program, broker):
            _await(program, broker.port)
            yield broker


@contextlib.contextmanager
def running_path(
    what: Target, kind: str, cores: list[int] | None = None
) -> Iterator[tuple[Running, ...]]:
    """Start the brokers of a path, and wait until messages go from the first one, which is the
    publishers', to the last one; as `running`, each on its own one of the first `cores`.

    `what`: the target; `kind`: "hop", "leg", "legout" or "legs". Raises LoadError.
    """
    launches = what.launches.paths.get(kind)
    if launches is None:
        raise LoadError(f"{what.name} has no {kind} here")
    count = len(launches)
    ports = [_ports() for _ in launches]
    ends = {"first_port": ports[0]["port"], "last_port": ports[-1]["port"]}
    with contextlib.ExitStack() as stack:
        started = []
        # The subscribers' broker first: a bridge dials it.
        for number in reversed(range(count)):
            name = f"{what.name}-{number + 1}"
            folder = stack.enter_context(_folder())
            values = _values(folder, journal=False) | ports[number] | ends | {"name": name}
            values["pair"] = f"{what.name}-{ports[0]['port']}"
            peer = ports[(number + 1) % count]
            values |= {f"peer_{key}": value for key, value in peer.items()}
            core = (cores or [])[number : number + 1]
            launched = _started(name, launches[number], values, folder, core)
            started.append(stack.enter_context(launched))
        for program, broker in started:
            _await(program, broker.port)
        brokers = tuple(broker for _, broker in reversed(started))
        _await_path(what.name, brokers[0].port, brokers[-1].port)
        yield brokers


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mqttree-bench-") as folder:
        directory = Path(folder)
        directory.chmod(0o755)  # Mosquitto gives up root before it reads on
        data = directory / "data"
        data.mkdir()
        data.chmod(0o777)
        yield directory


def _ports() -> dict[str, str]:
    return {name: str(port) for name, port in zip(_PORTS, free_ports(len(_PORTS)), strict=True)}


def _values(folder: Path, journal: bool) -> dict[str, str]:
    return {
        "config": str(folder / "config"),
        "dir": str(folder / "data"),
        "cert": str(folder / "cert.pem"),
        "key": str(folder / "key.pem"),
        "python": sys.executable,
        "durability": "async" if journal else "none",
        "persistence": "true" if journal else "false",
    }


@contextlib.contextmanager
def _started(
    name: str,
    launch: Launch,
    values: dict[str, str],
    folder: Path,
    cores: list[int],
) -> Iterator[tuple[Program, Running]]:
    """Start one broker with what stands for the placeholders; end it afterwards."""
    Path(values["config"]).write_text(filled(launch.config, values))
    if "{cert}" in launch.config:
        make_certificate(Path(values["cert"]), Path(values["key"]))
    command = [filled(word, values) for word in shlex.split(launch.command)]
    command[0] = shutil.which(command[0], path=search_path()) or command[0]
    program = Program(name, command, folder / "log")
    try:
        with on_cores(cores):
            program.launch()
    except OSError as error:
        raise LoadError(f"{name} cannot be started: {error}") from error
    assert program.process is not None
    port, tls, ws = (int(values[each]) for each in ("port", "tls", "ws"))
    broker = Running(name, port, program.process.pid, tls, ws, values["cert"])
    try:
        yield program, broker
    finally:
        _end(program)


def _await(program: Program, port: int) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    reason = "it did not answer"
    while time.monotonic() < deadline and program.running:
        try:
            with select.epoll() as epoll:
                dial(MixSpec(), "bench-ready", port, epoll, timeout=2.0).close()
            return
        except LoadError as error:
            reason = str(error)
            time.sleep(0.02)
    ended = program.process.poll() if program.process is not None else None
    how = (
        f"ended with code {ended}"
        if ended is not None
        else f"was not ready after {_READY_SECONDS:g} s ({reason})"
    )
    said = program.said()
    raise LoadError(f"{program.name} {how}{': ' + said if said else ''}")


def _await_path(name: str, near: int, far: int) -> None:
    """Wait until a message that is published at the port `near` arrives at the port `far`."""
    spec = MixSpec()
    probe = packets.publish("path/here", b"probe", 0, spec.version)[0]
    with contextlib.ExitStack() as stack:
        epoll = stack.enter_context(select.epoll())
        listener = stack.enter_context(contextlib.closing(dial(spec, "bench-far", far, epoll)))
        speaker = stack.enter_context(contextlib.closing(dial(spec, "bench-near", near, epoll)))
        subscribe(listener, "path/here", spec)
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline:
            speaker.send(probe)
            if listener.fileno() in dict(epoll.poll(0.05)):
                return
    raise LoadError(f"{name}: no message came over the hop within {_READY_SECONDS:g} s")


def _end(program: Program) -> None:
    try:
        program.end(signal.SIGTERM)
    except subprocess.TimeoutExpired:
        program.end(signal.SIGKILL)
