"""Whether clients should come to this broker (`/readyz`), for load balancers and orchestrators;
`/healthz` says that it is alive.

    not ready -(the journal is written, so many brokers as it waits for have been seen once, it
                does not drain, no other broker has its id)-> ready
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqttree.broker.cluster.cluster import Cluster
    from mqttree.broker.node import Node


class Readiness:
    """The conditions, checked at each request."""

    def __init__(self, node: Node, brokers: int) -> None:
        """`brokers`: how many, this one included, must have been seen once before clients come."""
        self._node = node
        self._cluster: Cluster = node.cluster
        self._others = max(0, brokers - 1)
        self._met = not self._others

    def reasons(self) -> list[str]:
        """Return the reasons why clients should not come, each as one short line; empty: they
        should."""
        node = self._node
        found = []
        if node.drain is not None:
            found.append("draining")
        if not node.journal.healthy:
            found.append("the journal is not written")
        if self._cluster.id_conflict.refuses_clients:
            found.append("another broker has this one's id")
        if not self._met:
            # This counts once: when a broker dies later, the others serve its clients.
            there = self._cluster.in_reach
            self._met = there >= self._others
            if not self._met:
                found.append(f"sees {there + 1} of {self._others + 1} brokers")
        return found
