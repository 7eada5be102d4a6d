"""What a target reads its programme from: any bytes are a valid programme, and one that is cut off
ends early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")
Target = Callable[[bytes], None]
"""Plays one input. Raises for whatever must not happen."""


class Wrong(AssertionError):
    """Something that must not happen, whatever the input."""


def check(condition: object, what: str) -> None:
    """Raise `Wrong` unless `condition`."""
    if not condition:
        raise Wrong(what)


class Tape:
    """Bytes that are used up from the front; behind the end there are zeros."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    @property
    def left(self) -> int:
        """Bytes not yet used."""
        return max(0, len(self.data) - self.at)

    def byte(self) -> int:
        """One byte."""
        self.at += 1
        return self.data[self.at - 1] if self.at <= len(self.data) else 0

    def bytes(self, number: int) -> bytes:
        """So many bytes, or what is left."""
        self.at += number
        return self.data[self.at - number : self.at]

    def string(self) -> bytes:
        """A length byte and that many bytes."""
        return self.bytes(self.byte())

    def pick(self, choices: Sequence[T]) -> T:
        """One of these."""
        return choices[self.byte() % len(choices)]

    def cut(self, data: bytes) -> list[bytes]:
        """`data` in pieces, cut at places that the tape names (a count below 4, then 16-bit
        places)."""
        if len(data) < 2:
            return [data] if data else []
        places = {
            int.from_bytes(self.bytes(2), "big") % len(data) for _ in range(self.byte() % 4)
        } - {0}
        edges = [0, *sorted(places), len(data)]
        return [data[a:b] for a, b in pairwise(edges)]
