"""What a command is at, on standard error, so that a user knows what is waited for."""

from __future__ import annotations

import sys
import time
from typing import TextIO


class Stages:
    """Prints a line at the beginning of each stage: s since the command began, and its name."""

    def __init__(self, out: TextIO | None = None) -> None:
        """`out` takes the lines (None: standard error)."""
        self._out, self._began = out or sys.stderr, time.monotonic()

    def __call__(self, stage: str) -> None:
        """Say what begins."""
        print(f"{time.monotonic() - self._began:6.1f} s  {stage}", file=self._out, flush=True)
