"""Tells the service manager, systemd, that the broker serves, that it stops, and that its event
loop turns: the protocol of sd_notify(3), datagrams to the Unix socket of NOTIFY_SOCKET.

    starting -(READY=1)-> serving -(WATCHDOG=1, twice in each period)-> serving
                                  -(STOPPING=1)-> stopping
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from typing import Final

MAX_PERIOD_S: Final = 86_400.0
"""s of a watchdog's period that are taken seriously."""


class ServiceManager:
    """The socket of the service manager, and the timer of its watchdog."""

    def __init__(self, environment: Mapping[str, str], loop: asyncio.AbstractEventLoop) -> None:
        """`environment`: variables, as in os.environ; `loop`: has to turn."""
        self._loop = loop
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._period = _period(environment)
        self._timer: asyncio.TimerHandle | None = None
        self._sock: socket.socket | None = None
        if self._address:
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._sock.setblocking(False)

    def ready(self, status: str) -> None:
        """Say that the broker serves, and from now on that its loop turns; `status`: one line for
        `systemctl status`."""
        self._send(f"READY=1\nSTATUS={status}")
        if self._period and self._sock is not None:
            self._beat()

    def stopping(self) -> None:
        """Say that the broker stops. The watchdog goes on."""
        self._send("STOPPING=1\nSTATUS=stopping")

    def close(self) -> None:
        """Say nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _beat(self) -> None:
        self._send("WATCHDOG=1")
        self._timer = self._loop.call_later(self._period / 2, self._beat)

    def _send(self, text: str) -> None:
        if self._sock is None:
            return
        try:
            self._sock.sendto(text.encode(), self._address)
        except OSError:
            # A manager that is busy hears the next one; without one the broker serves all the same.
            return


def _address(text: str) -> str:
    """Return the address of a Unix socket, "" for what is none (sd_notify: a path, or a name behind
    @ for the abstract namespace)."""
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else ""


def _period(environment: Mapping[str, str]) -> float:
    """Return the period of the watchdog in s, 0 if there is none for this process."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    text = environment.get("WATCHDOG_USEC", "")
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        return 0.0
    return min(int(text) / 1e6, MAX_PERIOD_S)
