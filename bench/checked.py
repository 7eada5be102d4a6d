"""Numbers of the command line: what is none, or not of the right size, is one line of argparse;
names in traces. Pure."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterable
from functools import partial

NAME = re.compile(r"[A-Za-z0-9][\w.,+-]*")
"""Of a scenario, run, host or process: part of a path in a trace."""
LONGEST = 7 * 86_400.0
"""s: nothing that is measured takes longer than a week."""


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def positive(text: str) -> float:
    """Return a finite number above 0; raises argparse.ArgumentTypeError."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value


def seconds(text: str) -> float:
    """Return a time in s, more than zero and at most LONGEST; raises argparse.ArgumentTypeError."""
    value = _number(text)
    if not 0 < value <= LONGEST:
        raise argparse.ArgumentTypeError(
            f"{text} is not a time of more than 0 and at most {LONGEST:,.0f} seconds"
        )
    return value


def count(text: str, least: int = 1, most: int | None = 10**12) -> int:
    """Return the whole number that `text` says, from `least` to `most` (None: without a limit).
    Raises argparse.ArgumentTypeError, in one line, for anything else."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least or (most is not None and value > most):
        if most is None:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least:,}")
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from {least:,} to {most:,}")
    return value


def add_counts(
    parser: argparse.ArgumentParser, options: Iterable[tuple[str, int, int, str]]
) -> None:
    """Add options that are whole numbers from 1 on to a `parser`. `options`: the name, default,
    greatest number and purpose of each."""
    for name, default, most, purpose in options:
        parser.add_argument(
            f"--{name}",
            type=partial(count, most=most),
            default=default,
            metavar="N",
            help=f"{purpose} ({default:,})",
        )
