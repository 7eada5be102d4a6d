"""Gateways in a lab: a mqttree broker without clients beside each foreign broker, with a leg to it
(`mqttree federate`). They find each other by multicast, and all that the foreign brokers have
crosses."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

from mqttree.bench.lab.brokers import HostProcess, Place
from mqttree.bench.lab.launcher import gateway as command

PORT = 1884
"""Where gateways listen for each other, on the hosts of their brokers."""


def gateway(place: Place, cluster: str, brokers: int) -> HostProcess:
    """Return the gateway of the broker at `place`, not started yet. Gateways with the same
    `cluster` name federate; `brokers` is how many of them there will be."""
    words = command(
        "--broker",
        f"mqtt://{place.address}:{place.port}",
        "--listen",
        f"{place.address}:{PORT}",
        "--name",
        place.name,
        "--cluster",
        cluster,
        "--data-dir",
        str(place.folder / "gateway"),
        "--admin",
        f"127.0.0.1:{place.admin}",
        "--wait-for",
        str(brokers),
        "--log-level",
        "warning",
    )
    return HostProcess(f"gateway of {place.name}", place, words, "gateway.log")


def wait_federated(gateways: Sequence[HostProcess], patience: float) -> str:
    """Wait until each gateway has seen all others and its leg is up; return what went wrong, in one
    line, or nothing. `patience` is in s."""
    end = time.monotonic() + patience
    for awaited in gateways:
        while not _federated(awaited):
            if not awaited.running:
                return awaited.ended()
            if time.monotonic() > end:
                said = _get(awaited, "/readyz").rpartition(b"\r\n\r\n")[2].decode().strip()
                return f"{awaited.name} was not federated within {patience:g} s: {said or 'mute'}"
            time.sleep(0.05)
    return ""


def _federated(process: HostProcess) -> bool:
    if b" 200 " not in _get(process, "/readyz").split(b"\r\n", 1)[0]:
        return False
    with suppress(ValueError, IndexError, KeyError):
        legs = json.loads(_get(process, "/api/v1/legs").split(b"\r\n\r\n", 1)[1])["legs"]
        return bool(legs) and all(leg["state"] == "up" for leg in legs)
    return False


def _get(process: HostProcess, path: str) -> bytes:
    """Return what a gateway answers to a GET; nothing where it does not."""
    request = f"GET {path} HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n"
    answer = b""
    with suppress(OSError), process.place.inside(), socket.socket() as sock:
        sock.settimeout(1)
        sock.connect(("127.0.0.1", process.place.admin))
        sock.sendall(request.encode())
        while data := sock.recv(65536):
            answer += data
    return answer
