"""The root of a topic's overlay, elected by capability or by root balance (Overlays 4.2.2).

`capability`: the member with the highest capability, as in the single overlay. `balance`: the one
with the lowest RB = gamma * R + delta * clients, where R is the number of overlays of which it is
the root already, without the one that elects. Ties go to the lowest address.

A broker's *merit* is what these compare, as whole tenths in a u32, so that the higher merit is the
better root under both policies and `RootVector` orders them: its capability, or RB below the
highest number.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from mqttree.broker.base.broker_id import Identity
from mqttree.broker.base.record import Record
from mqttree.stp.config import HELLO_S
from mqttree.stp.priority_vector import RootVector, better_root, to_tenths

CAPABILITY: Final = "capability"
BALANCE: Final = "balance"

GAMMA, DELTA = 50.0, 2.0
"""Weights of the root balance. The paper leaves them open; these are those of the path policy
`balance` (`mqttree.broker.cluster.strategy.path_costs`)."""

ANSWER_S = 0.2
"""s; Tt, for which the paper has no number: more than a round trip."""

_MOST: Final = 0xFFFFFFFF


class OverlaySettings(Record):
    """Settings of all overlays of a broker; times in s. They should be the same at all brokers."""

    policy: str = CAPABILITY
    """How a root is elected: `CAPABILITY` or `BALANCE`."""
    gamma: float = GAMMA
    delta: float = DELTA
    """Weights of overlays that a broker is root of, and of its clients."""
    period_s: float = HELLO_S
    """Between two topic PINGREQs to all neighbours: the paper's keep-alive."""
    answer_s: float = ANSWER_S
    """Tt: answers are collected for so long before a root is elected."""
    gap_s: float = 0.05
    """Least time between two topic PINGREQs of one topic, where something has changed."""
    hysteresis_ms: float = 2.0
    hysteresis_ratio: float = 0.25
    """A parent is left for another path to the same root only if that saves at least so much, and
    this part of the path cost (as `TreeConfig`)."""


class Candidacy:
    """What this broker brings to the elections of all its overlays."""

    def __init__(self, own: Identity, capability: float, settings: OverlaySettings) -> None:
        """`own`: this broker; `capability`: its capability; `settings`: the root policy."""
        self._own = own
        self._settings = settings
        self.tenths = to_tenths(capability)
        """This broker's capability in tenths."""
        self.clients = 0
        """Clients that are connected here."""
        self.rooted = 0
        """R: overlays of which this broker is the root."""
        # One sequence for all overlays: an overlay that is left and joined again goes on with
        # numbers that are newer than those of before.
        self._seq = 0
        # Root id -> when (s) this broker took an overlay from it.
        self._taken: dict[bytes, deque[float]] = {}

    def set_capability(self, capability: float) -> None:
        """Note that this broker's capability is another one now. Raises ValueError: it is negative,
        or too high."""
        self.tenths = to_tenths(capability)

    def next_seq(self) -> int:
        """Return the next sequence number for this broker's claims."""
        self._seq = self._seq + 1 & _MOST
        return self._seq

    def root_balance(self, rooted: float) -> float:
        """Return RB = gamma * R + delta * clients; `rooted`: R."""
        return self._settings.gamma * rooted + self._settings.delta * self.clients

    def vector(self, *, holds: bool) -> RootVector:
        """Return this broker as a candidate; `holds`: it is the root of the overlay in question,
        which is left out of R."""
        if self._settings.policy != BALANCE:
            merit = self.tenths
        else:
            merit = _merit(self.root_balance(self.rooted - holds))
        return RootVector(self._own.id, self._own.boot, merit, self._own.address)

    def challenges(self, holder: RootVector, heard_at: float) -> bool:
        """Return whether this broker should be root instead of `holder`, whose merit is from
        `heard_at` (s).

        By root balance it counts what it has taken from the holder since then, and takes an overlay
        only if its RB is lower all the same: else all overlays of one root would move at once, to
        a broker that is the busiest one then, and back.
        """
        if self._settings.policy != BALANCE:
            return better_root(self.vector(holds=False), holder)
        taken = sum([at >= heard_at for at in self._taken.get(holder.id, ())])
        return _merit(self.root_balance(self.rooted + taken)) > holder.tenths

    def took(self, root_id: bytes, now: float) -> None:
        """Note at `now` (s) that this broker has become root instead of the broker `root_id`."""
        taken = self._taken.setdefault(root_id, deque())
        taken.append(now)
        while taken[0] < now - 2 * self._settings.period_s:
            taken.popleft()

    def forget(self, root_id: bytes) -> None:
        """Forget what was taken from a broker that is no neighbour any more."""
        self._taken.pop(root_id, None)


def _merit(root_balance: float) -> int:
    """Return the merit of a broker with this RB: the lower RB is, the higher."""
    if not math.isfinite(root_balance) or root_balance * 10 >= _MOST:
        return 0
    return _MOST - max(0, round(root_balance * 10))
