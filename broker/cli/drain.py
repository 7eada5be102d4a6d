"""`mqttree drain`: asks a broker on this machine to drain, and watches until it is gone."""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from mqttree.broker.base.address import parse_address
from mqttree.broker.base.log_format import printable
from mqttree.broker.cli.admin_client import StatusError, admin_port
from mqttree.broker.cli.status import waits_for
from mqttree.broker.cluster.drain import read_drain
from mqttree.broker.config.yaml_file import ConfigError

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


def drain(arguments: argparse.Namespace) -> int:
    """Drain a broker, and return the exit code. Raises ConfigError for values that cannot be used,
    and StatusError if the broker refuses or does not answer."""
    port = admin_port(arguments)
    names = ("rate", "to", "within")
    values = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    try:
        to = read_drain(values).to
        if to and parse_address(to) == port.address:
            raise ConfigError(f"to: {to} is the admin address of this broker itself")
        _reach(to)
        found = port.post("/drain", values, ANSWER_TIMEOUT)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if arguments.no_wait:
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
