"""Which of several gateways of one name is active: the one with the lowest broker id among those
that can be reached and do not drain. Each posts the names of its legs in the link-state
database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqttree.broker.cluster.directory.link_state_directory import DRAINING, NAME, STATE

if TYPE_CHECKING:
    from mqttree.broker.node import Node

LEG = STATE + b"leg "
"""Ahead of the names of legs in the link-state database."""
SETTLE = 1.0
"""s beyond the time of discovery for which a broker looks for others of one name before it dials:
what these have posted takes some round trips."""


class LegTurns:
    """Posts the legs of this broker, and says which of them are to dial."""

    def __init__(self, node: Node, now: float, *, federates: bool) -> None:
        """`node`: this broker; `now`: s; `federates`: whether other brokers may be found."""
        self._node = node
        cluster = node.cluster
        self._directory = cluster.directory
        self._begin = now + node.config.discovery_time + SETTLE if federates else now
        self._names: set[str] = set()
        self._federates = federates

    def post(self, names: set[str]) -> None:
        """Post the `names` of all legs, and withdraw those that are not among them."""
        for name in self._names - names:
            self._directory.withdraw(LEG + name.encode())
        for name in names - self._names:
            self._directory.post(LEG + name.encode())
        self._names = names

    def rival(self, name: str) -> bytes | None:
        """Return the id of the broker that is to be active instead of this one for the leg `name`;
        None: this one is. One that drains is active only if there is no other one: so the session
        of the leg moves while its broker still runs."""
        database, own = self._directory.database, self._node.config.id
        drains = self._node.drain is not None
        others = (
            broker_id
            for broker_id, _ in database.entries_of(LEG + name.encode())
            if (drains or broker_id < own)
            and broker_id != own
            and database.reaches(broker_id)
            and database.entry(broker_id, DRAINING) is None
        )
        return min(others, default=None)

    def settled(self, now: float) -> bool:
        """Return whether other brokers would have been found by `now` (s)."""
        return now >= self._begin

    @property
    def shared(self) -> bool:
        """Whether another broker may have had a leg of the same name: it may have been before this
        one started, and be gone."""
        return self._federates

    def title(self, broker_id: bytes) -> str:
        """Return how a broker is called in log lines."""
        name = self._directory.database.entry(broker_id, NAME) or b""
        return f"{name.decode(errors='replace')} ({broker_id.hex()})".strip()
