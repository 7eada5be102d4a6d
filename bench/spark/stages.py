"""What a command is at, on standard error, so that a user knows what is waited for."""

from __future__ import annotations

import sys
import time


class Stages:
    """Prints a line at the beginning of each stage: s since the command began, and its name."""

    def __init__(self) -> None:
        """The command begins."""
        self._began = time.monotonic()

    def __call__(self, stage: str) -> None:
        """Say what begins."""
        print(f"{time.monotonic() - self._began:6.1f} s  {stage}", file=sys.stderr, flush=True)
