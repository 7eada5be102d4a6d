"""Numbers of the command line: what is none, or not of the right size, is one line of argparse. Pure."""

from __future__ import annotations

import argparse
import math

LONGEST = 7 * 86_400.0
"""s: nothing that is measured takes longer than a week."""


def seconds(text: str) -> float:
    """Return a time in s, more than zero and at most LONGEST; raises argparse.ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= LONGEST:
        raise argparse.ArgumentTypeError(f"{text} is not a time of more than 0 and at most {LONGEST:,.0f} seconds")
    return value


def count(text: str, least: int = 1, most: int = 10**12) -> int:
    """Return a whole number from least to most; raises argparse.ArgumentTypeError."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from {least:,} to {most:,}")
    return value
