"""Where a subscription begins: what others published before they knew of it is not for it.

`mqttree.broker.cluster.delivery.subscription_start` makes these; core only keeps them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqttree.broker.base.sequence_set import Ranges

ADOPTED = (-1, 0, 0)
"""State of a start that was made at another broker, or before this one was started."""

UNKNOWN = float("-inf")
"""When a start began that was made elsewhere, as long as that is not known."""


class SubscriptionStart:
    """Where subscriptions of one moment begin: messages with numbers up to `tops` are not for them.
    `open`: origins whose `tops` may be too low. `early`: numbers up to `tops` that were delivered
    before it was known that they are older. `passed`: numbers that had been here before the session
    came from another broker, so that they were not delivered to it here. `began`: when they began,
    by our clock; `at`: since when the start is known here; `was_open`: `open` as another broker
    sent it."""

    __slots__ = ("at", "began", "early", "open", "passed", "state", "tops", "was_open")

    def __init__(
        self, at: float, tops: dict[bytes, int], unsettled: set[bytes], state: tuple[int, int, int]
    ) -> None:
        """`at`: s, since when the start is known here; `tops`: origin -> the last number that is
        not for the subscriptions; `unsettled`: origins of which it may be more; `state`: of this
        broker at that moment, `ADOPTED` if the start was made elsewhere."""
        self.at = at
        self.began = UNKNOWN if state == ADOPTED else at
        self.tops = tops
        self.early: dict[bytes, Ranges] = {}
        self.passed: dict[bytes, Ranges] = {}
        self.open = unsettled
        self.was_open: frozenset[bytes] = frozenset()
        self.state = state  # of this broker: what else begins now begins here

    @property
    def adopted(self) -> bool:
        """Whether it was made at another broker, or before this one was started."""
        return self.state == ADOPTED
