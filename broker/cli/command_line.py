"""What all commands of the command line share: the parser, error lines, the default admin port."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Collection, Sequence
from typing import NoReturn

DEFAULT_ADMIN = "127.0.0.1:8080"
"""Where a broker's admin port is if it is free, and where `status` and `drain` look for it."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def _get_formatter(self) -> argparse.HelpFormatter:
        """Return what formats help. It is asked for each option that is added, and without a width
        it would load a module for that alone (4 ms)."""
        return argparse.HelpFormatter(self.prog, width=_columns() - 2)

    def add_flags(self, *flags: tuple[str, str, str]) -> None:
        """Add flags with one value: name, what stands for the value, help."""
        for flag, metavar, text in flags:
            self.add_argument(flag, metavar=metavar, help=text)

    @property
    def flags(self) -> Collection[str]:
        """All flags that it takes ahead of a command."""
        return self._option_string_actions

    def error(self, message: str) -> NoReturn:
        """Write `message` to the standard error, with the word that was meant if one is close.
        Raises SystemExit with code 2."""
        complain(f"{message}{self._meant(message)} (see {self.prog} --help)", "mqttree")
        raise SystemExit(2)

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Return what `args` (else the program's own) say, put into `namespace`. The parser of a
        command complains of what it does not know. Raises SystemExit."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser: argparse.ArgumentParser = self
            for action in self._actions:
                if isinstance(action, argparse._SubParsersAction):
                    parser = action.choices[getattr(found, action.dest)]
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found

    def _meant(self, message: str) -> str:
        """Return a question after the flag or command that is closest to an unknown one."""
        import difflib
        import re

        if unknown := re.match(r"unrecognized arguments: (-[^\s=]+)", message):
            known = list(self._option_string_actions)
        elif unknown := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            known = re.findall(r"[\w-]+", unknown[2])
        else:
            return ""
        found = difflib.get_close_matches(unknown[1], known, 1)
        return f"; did you mean {found[0]}?" if found else ""


def _columns() -> int:
    """Return how wide the terminal is: what COLUMNS says, else the standard output, else 80."""
    with contextlib.suppress(ValueError):
        if (said := int(os.environ.get("COLUMNS", ""))) > 0:
            return said
    with contextlib.suppress(OSError):
        if (found := os.get_terminal_size().columns) > 0:
            return found
    return 80


def complain(text: str, program: str = "mqttree") -> None:
    """Write one line to the standard error if that is open: `program`, then `text`, which may be
    another program's answer."""
    from mqttree.broker.base.log_format import printable

    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{program}: {printable(' '.join(text.split()))}\n")
        sys.stderr.flush()
