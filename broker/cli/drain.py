"""`mqttree drain`: asks a broker on this machine to drain, and watches until it is gone."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from mqttree.broker.base.address import Address, parse_address
from mqttree.broker.base.log_format import printable
from mqttree.broker.cli.status import NONE, Credentials, StatusError, ask, fetch, waits_for
from mqttree.broker.cluster.drain import read_drain

POLL_INTERVAL = 0.2
"""s between two looks at the broker."""
SAY = 2.0
"""s between two lines that differ in numbers only."""
REACH = 3.0
"""s for the broker to which clients are sent to accept a connection."""
PATIENCE = 20.0
"""s beyond its own time that the broker may take to stop."""


def drain(
    admin: Address,
    values: Mapping[str, str],
    *,
    wait: bool = True,
    credentials: Credentials = NONE,
) -> int:
    """Drain the broker at the admin address `admin`, and return the exit code.

    `values`: parameters of the drain, as `read_drain` reads them. `wait`: return when the broker is
    gone; else as soon as it has agreed. `credentials`: what the admin port asks for.

    Raises ValueError for values that cannot be used, and StatusError if the broker refuses or does
    not answer; the text of both is one line.
    """
    to = read_drain(values).to
    if to and parse_address(to) == admin:
        raise ValueError(f"to: {to} is the admin address of this broker itself")
    _reach(to)
    found = post(admin, f"/api/drain?{urlencode(values)}", credentials=credentials)
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
            found = fetch(admin, credentials=credentials)
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
    raise StatusError(f"{admin} is still there")


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


def post(
    admin: Address, path: str, timeout: float = 5.0, credentials: Credentials = NONE
) -> dict[str, Any]:
    """POST to `path` at the admin address `admin`, with the `credentials` that it wants, and return
    the JSON of the answer, within about `timeout` s.

    Raises ValueError if the broker cannot use the request, StatusError for any other refusal and if
    no answer comes.
    """
    where, status, answer = ask(admin, "POST", path, timeout, 65_536, credentials=credentials)
    text = answer.decode(errors="replace")
    try:
        found = json.loads(text) if status == 202 else None
    except ValueError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("drain"), dict):
        refused = f"{where} refuses: {' '.join(text.split())[:200] or status}"
        raise ValueError(refused) if status == 400 else StatusError(refused)
    return found


def _say(state: Mapping[str, Any]) -> None:
    _print(waits_for(state.get("drain") or {}))


def _print(text: str) -> None:
    if sys.stdout is not None:
        print(printable(text), flush=True)
