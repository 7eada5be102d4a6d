"""Federators in a lab: one beside each broker, which publishes at the brokers of the hosts that its
own has a link with (`mqttree federate --protocol spohn`)."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mqttree.bench.lab.brokers import HostProcess, Place
from mqttree.bench.lab.launcher import federate

CONNECTED = re.compile(r"\bconnected to (broker \d+)")
"""What a federator logs for each broker that it has connected to, again when it was lost."""

LOST = "no connection to broker"
"""What a federator logs for a connection that was lost, or could not be made, with the reason."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How the federators of a lab are told to work.

    redundancy: parents of a member at most (the paper's R).
    nonmember: whom a broker outside of the mesh sends to - "lowest" (the parent with the lowest
        number), "all", or the name of a broker that is taken where it is a parent.
    core_interval, beacon_interval: s.
    qos: of all that they send.
    """

    redundancy: int = 2
    nonmember: str = "lowest"
    core_interval: float = 10.0
    beacon_interval: float = 5.0
    qos: int = 2


def federator(
    place: Place, number: int, neighbours: Mapping[str, tuple[int, tuple[str, int]]], plan: Plan
) -> HostProcess:
    """Return the federator of the broker at `place`, not started yet.

    `number` is the broker's id in the federation, `neighbours` has the id and the address of each
    other broker that it publishes at, by name; `plan` is the same for all federators of a lab.
    """
    words = federate(
        "--broker",
        f"mqtt://{place.address}:{place.port}",
        "--id",
        str(number),
        "--redundancy",
        str(plan.redundancy),
        "--core-interval",
        str(plan.core_interval),
        "--beacon-interval",
        str(plan.beacon_interval),
        "--qos",
        str(plan.qos),
    )
    for other, (host, port) in neighbours.values():
        words += ["--neighbour", f"{other}=mqtt://{host}:{port}"]
    if plan.nonmember == "all":
        words += ["--nonmember", "all"]
    elif plan.nonmember in neighbours:
        words += ["--prefer-parent", str(neighbours[plan.nonmember][0])]
    return HostProcess(f"federator of {place.name}", place, words, "federator.log")


def wait_connected(federators: Sequence[HostProcess], patience: float) -> str:
    """Wait until each federator is connected to its own broker and to those of its neighbours;
    return what went wrong, in one line, or nothing. `patience` is in s."""
    end = time.monotonic() + patience
    for awaited in federators:
        wanted = 1 + awaited.command.count("--neighbour")
        while len(set(CONNECTED.findall(_log(awaited)))) < wanted:
            if not awaited.running:
                return awaited.ended()
            if time.monotonic() > end:
                return f"{awaited.name} was not connected to all brokers within {patience:g} s"
            time.sleep(0.05)
    return ""


def connections_lost(federators: Iterable[HostProcess]) -> list[str]:
    """Return what `federators` said of connections that they lost or could not make, a line each:
    what came in the meantime is lost."""
    return [
        f"{each.name}: {line[line.index(LOST) :]}"
        for each in federators
        for line in _log(each).splitlines()
        if LOST in line
    ]


def _log(process: HostProcess) -> str:
    try:
        return process.log_path.read_text(errors="replace") if process.log_path is not None else ""
    except OSError:
        return ""
