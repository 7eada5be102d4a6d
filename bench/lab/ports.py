"""TCP ports of 127.0.0.1 for brokers and relays that are about to be started.

Below those that the kernel gives to connections: such a port stays free between being chosen
and being used, also after thousands of connections that leave theirs in TIME_WAIT, and a dial of a
dead broker does not reach itself. A port that was given is locked in a file of this user, one byte
for each port, until the process ends: two test runs side by side are given different ones.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

TRIES = 1000
"""Ports that are tried before there is none."""

_given: set[int] = set()
_random = random.SystemRandom()  # no seed makes two processes choose the same


class PortsError(OSError):
    """There are not so many free ports; one line."""


def _range() -> range:
    """Ports to choose from; where the kernel gives nearly all of them to clients, there is no
    better than the usual ones."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        first = 32768
    return range(15000, min(first, 32000) if first >= 20000 else 32000)


PORTS = _range()


@cache
def _locks() -> int:
    """The file of the locks; closing it would give them all back."""
    path = Path(tempfile.gettempdir()) / f"mqttree-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _choose(number: int) -> list[int]:
    """So many free ports, one after the other; none when TRIES found none."""
    for _ in range(TRIES):
        first = _random.choice(PORTS)
        ports = list(range(first, first + number))
        if _given.isdisjoint(ports):
            with suppress(OSError), ExitStack() as stack:
                for port in ports:
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
                    fcntl.lockf(_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                _given.update(ports)
                return ports
    return []


def _begin() -> None:
    """A process that makes one network after the other would have no ports left at some time: once
    half of them were given, they may be given again."""
    if len(_given) > len(PORTS) // 2:
        fcntl.lockf(_locks(), fcntl.LOCK_UN)
        _given.clear()


def ports_in_a_row(number: int) -> list[int]:
    """So many ports, one after the other, that no process listens on; none again before half of all
    were given. Raises PortsError."""
    _begin()
    ports = _choose(number)
    if len(ports) < number:
        raise PortsError(f"no {number} free ports in a row")
    return ports


def free_ports(number: int) -> list[int]:
    """So many ports that no process listens on; none again before half of all were given. Raises
    PortsError."""
    _begin()
    ports: list[int] = []
    while len(ports) < number:
        found = _choose(1)
        if not found:
            raise PortsError(f"no {number} free ports")
        ports += found
    return ports
