"""What a placement costs: the four kinds of traffic at each broker, and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def overhead(internal: float, external: float) -> float:
    """Return a load with internal traffic as a multiple of the load without it (equation 13).

    `internal`: traffic between brokers, `external`: that of clients (both messages/s). 1 where
    clients have no traffic.
    """
    return 1 + internal / external if external else 1.0


def jain(loads: Sequence[float]) -> float:
    """Return Jain's index of fairness (equation 14): 1 for equal loads, 1/n if one has all, and 1
    where there is no load."""
    squares = sum(load * load for load in loads)
    total = sum(loads)
    return total * total / (len(loads) * squares) if squares else 1.0


def peak(loads: Sequence[float]) -> float:
    """Return the largest load as a multiple of the mean; 1 where there is no load."""
    total = sum(loads)
    return max(loads) * len(loads) / total if total else 1.0


@dataclass(frozen=True, slots=True)
class Figures:
    """The traffic of a placement in messages/s, by broker in the order of `brokers`."""

    brokers: tuple[str, ...]
    aei: tuple[float, ...]
    """in from publishers."""
    aeo: tuple[float, ...]
    """out to subscribers."""
    aii: tuple[float, ...]
    """in from other brokers."""
    aio: tuple[float, ...]
    """out to other brokers."""
    internal: float
    """between brokers, counted once (Ai)."""

    @property
    def loads(self) -> tuple[float, ...]:
        """Each broker's four kinds of traffic together (messages/s)."""
        kinds = zip(self.aei, self.aeo, self.aii, self.aio, strict=True)
        return tuple(sum(each) for each in kinds)

    @property
    def routing_overhead(self) -> float:
        """h_rt of equation 13: messages that come in, as a multiple of those of publishers."""
        return overhead(self.internal, sum(self.aei))

    @property
    def forwarding_overhead(self) -> float:
        """h_fw of equation 13: messages that go out, as a multiple of those to subscribers."""
        return overhead(self.internal, sum(self.aeo))

    @property
    def jain(self) -> float:
        """Jain's index of the brokers' loads (equation 14)."""
        return jain(self.loads)

    @property
    def peak(self) -> float:
        """The largest load of a broker as a multiple of the mean."""
        return peak(self.loads)

    def scaling(self, cost_in: float = 1.0, cost_out: float = 1.0) -> float:
        """Return the rate that all brokers together can carry, as a part of what as many brokers
        without traffic between them could: by the mean of their loads.

        `cost_in`, `cost_out`: CPU time of a message in and out, in any unit.
        """
        external = cost_in * sum(self.aei) + cost_out * sum(self.aeo)
        return external / (external + (cost_in + cost_out) * self.internal) if external else 1.0

    def bottleneck_scaling(self, cost_in: float = 1.0, cost_out: float = 1.0) -> float:
        """Return the same as `scaling` by the broker with the largest load.

        `cost_in`, `cost_out`: CPU time of a message in and out, in any unit.
        """
        external = cost_in * sum(self.aei) + cost_out * sum(self.aeo)
        kinds = zip(self.aei, self.aeo, self.aii, self.aio, strict=True)
        most = max(cost_in * (ei + ii) + cost_out * (eo + io) for ei, eo, ii, io in kinds)
        return external / (len(self.brokers) * most) if most else 1.0
