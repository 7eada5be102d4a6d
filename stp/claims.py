"""Claims of neighbours about the root, and which of them may be believed (RFC 8966 3.5; 802.1D
17.21)."""

from __future__ import annotations

import math

from mqttree.stp.bpdu import Bpdu, Role, SeqRequest
from mqttree.stp.config import TreeConfig
from mqttree.stp.ports import Port
from mqttree.stp.priority_vector import MAX_COST_US, FeasibilityTable, RootVector


class Claims:
    """Judges the last BPDU of each port. A claim counts if it is usable, and may be newly followed
    if it is feasible, too."""

    def __init__(self, own_id: bytes, ports: dict[bytes, Port], config: TreeConfig) -> None:
        """`own_id`: this broker's id. `ports`: the tree's own, by the neighbour's id. `config`: the
        tree's settings."""
        self._own_id = own_id
        self._ports = ports
        self._config = config
        self.feasibility = FeasibilityTable(config.feasibility_expiry_s, config.feasibility_limit)
        self.parent: Port | None = None
        """The root port; None at the root."""
        self.grace_until = -math.inf
        """Until this time (s) the parent's claim counts, however old."""

    def fresh(self, port: Port, now: float) -> bool:
        """Return whether the root that a neighbour names was alive lately."""
        if now < port.fresh_at + self._config.max_age_s:
            return True
        return port is self.parent and now < self.grace_until

    def expiry(self, parent: Port) -> float:
        """When the parent's claim ceases to be fresh (s)."""
        return max(parent.fresh_at + self._config.max_age_s, self.grace_until)

    def usable(self, port: Port, now: float) -> bool:
        """Return whether a claim is usable: fresh, not about this broker, not through it, and of
        the root's latest incarnation."""
        bpdu = port.bpdu
        return (
            bpdu is not None
            and bpdu.role is not Role.ROOT
            and bpdu.root.id != self._own_id
            and bpdu.path_cost_us + port.link_cost_us <= MAX_COST_US
            and self.fresh(port, now)
            and not self.feasibility.stale(bpdu.root)
            and not self.contradicted(bpdu.root, now)
        )

    def contradicted(self, root: RootVector, now: float) -> bool:
        """Return whether the root is a live neighbour of another incarnation than the claim's. The
        root itself has sent it to this broker, so another one that disagrees is wrong. (Without
        that every broker would believe a higher boot number.)"""
        port = self._ports.get(root.id)
        return (
            port is not None
            and port.peer.boot != root.boot
            and port.heard_at + 2 * self._config.hello_s > now
        )

    def feasible(self, bpdu: Bpdu) -> bool:
        """Return whether following a claim cannot close a loop."""
        return self.feasibility.feasible(bpdu.root, bpdu.seq, bpdu.path_cost_us)

    def request(self, root: RootVector) -> SeqRequest:
        """Return the request for a sequence number under which all claims of a root are
        feasible."""
        return SeqRequest(root.id, root.boot, self.feasibility.seq(root) or 0)
