"""`mqttree drain`: asks a broker on this machine to drain, and watches until it is gone."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from mqttree.broker.base.address import parse_address
from mqttree.broker.base.log_format import printable
from mqttree.broker.cli.admin_client import AdminPort, StatusError
from mqttree.broker.cli.status import waits_for
from mqttree.broker.cluster.drain import read_drain

ANSWER_TIMEOUT = 5.0
"""s for the broker to agree."""
POLL_INTERVAL = 0.2
"""s between two looks at the broker."""
SAY = 2.0
"""s between two lines that differ in numbers only."""
REACH = 3.0
"""s for the broker to which clients are sent to accept a connection."""
PATIENCE = 20.0
"""s beyond its own time that the broker may take to stop."""


def drain(port: AdminPort, values: Mapping[str, str], *, wait: bool = True) -> int:
    """Drain the broker at the admin port `port`, and return the exit code.

    `values`: parameters of the drain, as `read_drain` reads them. `wait`: return when the broker is
    gone; else as soon as it has agreed.

    Raises ValueError for values that cannot be used, and StatusError if the broker refuses or does
    not answer; the text of both is one line.
    """
    to = read_drain(values).to
    if to and parse_address(to) == port.address:
        raise ValueError(f"to: {to} is the admin address of this broker itself")
    _reach(to)
    found = port.post("/drain", values, ANSWER_TIMEOUT)
    if not wait:
        _say(found)
        return 0
    until = time.monotonic() + found["drain"]["seconds_left"] + PATIENCE
    shown: tuple[str, float] = ("", 0.0)
    silent = False
    while time.monotonic() < until:
        drain = found.get("drain") or {}
        if drain.get("state") != shown[0] or time.monotonic() > shown[1] + SAY:
            shown = (str(drain.get("state")), time.monotonic())
            _say(found)
        time.sleep(POLL_INTERVAL)
        try:
            found = port.federation()
        except StatusError:
            # It failed twice, so the broker is not merely busy.
            if silent:
                _print("gone")
                return 0
            silent = True
            continue
        silent = False
        if not found.get("draining"):
            _print("gone, and there again")
            return 0
    raise StatusError(f"{port.address} is still there")


def _reach(to: str) -> None:
    """Check that clients could go to an address. Raises ValueError if not."""
    if to:
        address = parse_address(to)
        try:
            socket.create_connection((address.host, address.port), REACH).close()
        except (OSError, UnicodeError) as error:
            raise ValueError(
                f"to: no broker answers at {to}: {getattr(error, 'strerror', None) or error}"
            ) from None


def _say(state: Mapping[str, Any]) -> None:
    _print(waits_for(state.get("drain") or {}))


def _print(text: str) -> None:
    if sys.stdout is not None:
        print(printable(text), flush=True)
