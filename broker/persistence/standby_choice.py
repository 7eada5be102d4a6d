"""Which neighbour becomes a broker's standby (docs/decisions/0062). Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple


class Candidate(NamedTuple):
    """A neighbour that can become the standby."""

    id: bytes
    other_host: bool
    """Whether it is on another host than the owner, where that is wanted."""
    capability: float
    heavy: bool = False
    """Whether it has more than twice the mean bytes of images."""
    slow: bool = False
    """Whether it was given up as too slow, twice in a minute, lately."""

    @property
    def burdened(self) -> bool:
        """Whether any other one would be better."""
        return self.slow or self.heavy


def choose(owner: bytes, candidates: Iterable[Candidate]) -> Candidate | None:
    """Return the standby for the broker with the id `owner`: one that is not slow first, then one
    on another host, then one that is not heavy, then by weighted rendezvous hashing. None: there
    are no candidates."""
    return min(
        candidates,
        key=lambda found: (
            found.slow,
            not found.other_host,
            found.heavy,
            _weight(owner, found),
            found.id,
        ),
        default=None,
    )


def _weight(owner: bytes, found: Candidate) -> float:
    drawn = int.from_bytes(blake2b(owner + found.id, digest_size=6).digest(), "big")
    return -math.log((drawn + 1) / (1 << 48)) / max(found.capability, 1e-6)
