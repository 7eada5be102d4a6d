"""Work in steps: generators that yield how much they have just done, for `Turns.go`; here done at
once. Pure."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def finish(work: Generator[int, None, T]) -> T:
    """Do all steps of some work, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: T = end.value
            return found
