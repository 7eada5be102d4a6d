"""What came of a load: plain values that cross process borders."""

from __future__ import annotations

from dataclasses import dataclass


class LoadError(Exception):
    """The load could not be carried out: no broker listens, a refusal, a lost connection, a broken
    stream."""


@dataclass(slots=True)
class Tally:
    """What subscribers saw, by sequence numbers."""

    received: int = 0
    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0

    def add(self, other: Tally) -> None:
        """Add the numbers of another subscriber to these."""
        self.received += other.received
        self.lost += other.lost
        self.duplicated += other.duplicated
        self.out_of_order += other.out_of_order
