"""TCP ports for tests.

Below those that the kernel gives to whoever connects: such a port stays free between being chosen
and being used, also after thousands of connections that leave theirs in TIME_WAIT, and a dial of a
dead broker does not reach itself.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

_given: set[int] = set()
_random = random.SystemRandom()  # no seed of a test makes two runs choose the same


def _range() -> range:
    """Ports to choose from; where the kernel gives nearly all of them to clients, there is no
    better than the usual ones."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        first = 32768
    return range(15000, min(first, 32000) if first >= 20000 else 32000)


def ports_in_a_row(number: int) -> list[int]:
    """So many ports, one after the other, that are free on 127.0.0.1; never the same twice. Raises
    RuntimeError."""
    for _ in range(1000):
        first = _random.choice(_range())
        ports = list(range(first, first + number))
        if _given.isdisjoint(ports):
            with suppress(OSError), ExitStack() as stack:
                for port in ports:
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
                _given.update(ports)
                return ports
    raise RuntimeError(f"no {number} free ports in a row")


def free_ports(number: int) -> list[int]:
    """So many ports that are free on 127.0.0.1; never the same twice. Raises RuntimeError."""
    return [ports_in_a_row(1)[0] for _ in range(number)]
