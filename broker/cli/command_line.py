"""What all commands of the command line share: the parser, error lines, the default admin port."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import NoReturn

DEFAULT_ADMIN = "127.0.0.1:8080"
"""Where a broker's admin port is if it is free, and where `status` and `drain` look for it."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Write `message` to the standard error. Raises SystemExit with code 2."""
        complain(f"{message} (see {self.prog} --help)", "mqttree")
        raise SystemExit(2)


def complain(text: str, program: str = "mqttree") -> None:
    """Write one line to the standard error if that is open: `program`, then `text`."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{program}: {' '.join(text.split())}\n")
        sys.stderr.flush()
