"""The values of `--routing`, and which of them make one federation."""

from __future__ import annotations

from typing import Final

ROUTINGS: Final = ("flood", "interest", "topic", "srt", "ort")
"""In the order in which options and pages name them."""

ALONE: Final = frozenset(("srt", "ort"))
"""Modes that only forward what their own tables say: a broker of another mode behind such a broker
would get nothing, so they do not link (docs/decisions/0054)."""


def mixes(mode: str, other: str) -> bool:
    """Return whether brokers of these two modes may link."""
    return mode == other or not (mode in ALONE or other in ALONE)
