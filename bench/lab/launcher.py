"""Programs as processes: started, paused, continued, killed and asked to end. A broker is
configured by its command alone; of our environment it gets nothing that would configure it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import Signals

END_SECONDS = 5.0
"""s until a program that was killed has ended."""
LINE = 300
"""characters of a line that is shown."""


def mqttree(*flags: str) -> list[str]:
    """The command of a mqttree broker with these flags."""
    return [sys.executable, "-m", "mqttree.broker.cli", "run", *flags]


def federate(*flags: str) -> list[str]:
    """The command of a federator of Spohn's protocol with these flags."""
    return [sys.executable, "-m", "mqttree.broker.cli", "federate", "--protocol", "spohn", *flags]


def gateway(*flags: str) -> list[str]:
    """The command of a gateway of a foreign broker with these flags."""
    return [sys.executable, "-m", "mqttree.broker.cli", "federate", *flags]


def search_path() -> str:
    """Look beside the interpreter first, then where the system keeps its daemons."""
    beside = str(Path(sys.executable).parent)
    return os.pathsep.join((beside, os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a `text` with these `values` in place of their names in braces; other braces stay."""
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text


class Program:
    """One program: the same command through all of its starts. What it writes goes to `log`;
    without one its output goes nowhere, and what it complains of to our standard error."""

    def __init__(self, name: str, command: Sequence[str], log: Path | None) -> None:
        """`name` is for people, `command` the program and its arguments, `log` the file for its
        output (None: there is none). Nothing is started yet."""
        self.name = name
        self.command = list(command)
        self.log_path = log
        self.process: subprocess.Popen[bytes] | None = None
        self.paused = False

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self.process is not None and self.process.poll() is None

    def launch(self, more: Mapping[str, str] | None = None, *, session: bool = False) -> None:
        """Start it. Raises OSError. `more`: what its environment has besides; `session`: Ctrl-C in
        our terminal is not for it."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MQTTREE_")}
        with (self.log_path or Path(os.devnull)).open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log if self.log_path is not None else None,
                env={**environment, **(more or {})},
                start_new_session=session,
            )
        self.paused = False

    def signal(self, number: Signals) -> None:
        """Send it a signal, if it is there."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    def pause(self) -> None:
        """SIGSTOP: alive, and deaf and dumb."""
        self.signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """Continue the stopped process (SIGCONT)."""
        self.signal(signal.SIGCONT)
        self.paused = False

    def end(self, number: Signals, patience: float = END_SECONDS) -> int | None:
        """End it by a signal, and wait for that; a paused one goes on to hear it. Returns the exit
        code; None: it was never started. Raises subprocess.TimeoutExpired."""
        self.signal(number)
        if self.paused and number != signal.SIGKILL:
            self.signal(signal.SIGCONT)
        self.paused = False
        return self.process.wait(patience) if self.process is not None else None

    def said(self) -> str:
        """The last line of its log."""
        try:
            text = self.log_path.read_text(errors="replace") if self.log_path is not None else ""
        except OSError:
            text = ""
        lines = text.strip().splitlines()
        return lines[-1][:LINE] if lines else ""
