"""The network between brokers that run as processes: the relays of the lab, controlled by what is
wrong with a pair of brokers.

Brokers advertise ports of this process. Who dials is read in the CONNECT of the link, so that each
pair of brokers is a cable of its own.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

from mqttree.bench.lab import relays
from mqttree.bench.lab.topology import Topology, Wire

SLOW = {"rate_mbit": 20.0, "queue_kb": 1024}
"""A slow cable, each way; a quarter of the queue is what it takes at once."""


def orders(one: str, other: str, what: str) -> list[dict[str, Any]]:
    """Return what to tell the network about the cable between `one` and `other`, so that nothing is
    wrong with it but `what`: `cut` (connections are reset, those that come later as well), `stall`
    (nothing passes, nothing is lost), `half-open` (`other` is not heard), `slow`, `heal` (nothing
    is wrong), `reset` (connections are reset, once)."""
    both = [(one, other), (other, one)]
    if what == "cut":
        return [{"do": "refuse", "pairs": both}]
    whole: list[dict[str, Any]] = [
        {"do": "accept", "pairs": both},
        {"do": "set", "pairs": both, "heal": True},
    ]
    wrong: dict[str, list[dict[str, Any]]] = {
        "heal": [],
        "stall": [{"do": "set", "pairs": both, "open": False}],
        "half-open": [{"do": "set", "pairs": [(other, one)], "open": False}],
        "slow": [{"do": "set", "pairs": both, "wire": SLOW}],
        "reset": [{"do": "reset", "pairs": both}],
    }
    return whole + wrong[what]


def run(targets: dict[str, int], ports: dict[str, int], orders: Connection) -> None:
    """The process. It listens at `ports` (of each broker, by name) and passes on to `targets`;
    `orders` gives it orders, one at a time, and takes the answers."""
    import uvloop

    cables = Topology("cables", tuple(targets), default=Wire())
    routes = {port: ("", name) for name, port in ports.items()}
    uvloop.run(relays.serve(cables, targets, routes, orders, None, 1, tap=False))
