"""Brokers to measure: how each is started on a free port of the loopback, awaited and ended."""

from __future__ import annotations

import contextlib
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

from bench.lab.launcher import Program, search_path
from bench.lab.ports import free_ports
from bench.load import LoadError
from bench.load.peers import dial
from bench.load.spec import LoadSpec

_READY_SECONDS = 15.0

# 2.0.11 never delivers QoS 2 messages that once waited for a place in flight (more than 20 at a
# time, any client), and QoS 1 is faster for it without that limit too.
_MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence false
log_dest none
max_inflight_messages 0
"""
_AMQTT = """\
listeners:
  default:
    type: tcp
    bind: 127.0.0.1:{port}
    max_connections: 0
plugins:
  amqtt.plugins.authentication.AnonymousAuthPlugin:
    allow_anonymous: true
"""


@dataclass(frozen=True, slots=True)
class Target:
    """A broker to start.

    command: a template of a shell-like command line, in which {port}, {config} (a file with
    `config` in it, its own {port} filled in), {dir} (an empty folder that is removed afterwards)
    and {python} stand for their values.
    """

    name: str
    command: str
    config: str = ""

    def available(self) -> bool:
        """Whether the program is installed."""
        program = shlex.split(self.command)[0]
        return program == "{python}" or shutil.which(program, path=search_path()) is not None


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(
            "mqttree",
            "{python} -m broker.cli run --listen 127.0.0.1:{port} --discovery off --data-dir {dir}",
        ),
        Target("mosquitto", "mosquitto -c {config}", _MOSQUITTO),
        Target("mosquitto-nodelay", "mosquitto -c {config}", "set_tcp_nodelay true\n" + _MOSQUITTO),
        Target("amqtt", "amqtt -c {config}", _AMQTT),
        Target("sketch", "{python} -m bench.studies.sketch {port}"),
    )
}


@dataclass(frozen=True, slots=True)
class Running:
    """A broker that accepts connections."""

    name: str
    port: int
    pid: int


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
        return Target(name, command)
    if text not in TARGETS:
        raise ValueError(
            f"unknown target {text!r}: one of {', '.join(TARGETS)}, "
            "or NAME=COMMAND with {port} in it"
        )
    return TARGETS[text]


@contextlib.contextmanager
def running(what: Target) -> Iterator[Running]:
    """Start a broker, wait until it completes an MQTT handshake, and end it (by its pid) whatever
    happens inside.

    Raises LoadError, with the last line that the program printed, when it does not get that far.
    """
    with tempfile.TemporaryDirectory(prefix="mqttree-bench-") as folder:
        (port,) = free_ports(1)
        directory = Path(folder)
        directory.chmod(0o755)  # Mosquitto gives up root before it reads on
        config, log = directory / "config", directory / "log"
        config.write_text(what.config.replace("{port}", str(port)))
        (directory / "data").mkdir()
        values = {
            "port": str(port),
            "config": str(config),
            "dir": str(directory / "data"),
            "python": sys.executable,
        }
        command = [_fill(word, values) for word in shlex.split(what.command)]
        command[0] = shutil.which(command[0], path=search_path()) or command[0]
        program = Program(what.name, command, log)
        try:
            program.launch()
        except OSError as error:
            raise LoadError(f"{what.name} cannot be started: {error}") from error
        assert program.process is not None
        try:
            _await(program, port)
            yield Running(what.name, port, program.process.pid)
        finally:
            _end(program)


def _fill(word: str, values: dict[str, str]) -> str:
    for key, value in values.items():
        word = word.replace("{" + key + "}", value)
    return word


def _await(program: Program, port: int) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    reason = "it did not answer"
    while time.monotonic() < deadline and program.running:
        try:
            dial(LoadSpec(port=port), "bench-ready", 4, timeout=2.0)[0].close()
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


def _end(program: Program) -> None:
    try:
        program.end(signal.SIGTERM)
    except subprocess.TimeoutExpired:
        program.end(signal.SIGKILL)
