"""Which neighbours are to be sent a BPDU, and when (802.1D 17.21.18 txConfig, 17.13.12
TxHoldCount)."""

from __future__ import annotations

import math

from mqttree.stp.config import TreeConfig
from mqttree.stp.ports import Port


class Transmission:
    """The neighbours that have not been sent the newest state. A BPDU is made when it is sent, so
    that many changes make one BPDU."""

    def __init__(self, config: TreeConfig) -> None:
        self._config = config
        self._dirty: dict[bytes, Port] = {}
        # When those in `_dirty` are due.
        self._held_until = math.inf
        self.hold_until = -math.inf
        """Nothing is sent before (s)."""
        self.gap_s = 0.0
        """Least time between two BPDUs to one neighbour."""

    def announce(self, port: Port) -> None:
        """Plan a BPDU to one neighbour."""
        self._dirty[port.peer.id] = port

    def announce_all(self, ports: dict[bytes, Port]) -> None:
        """Plan a BPDU to all neighbours."""
        self._dirty.update(ports)

    def forget(self, peer_id: bytes) -> None:
        """Plan nothing more for a neighbour: its link is gone."""
        self._dirty.pop(peer_id, None)

    def due(self, now: float) -> list[Port]:
        """Return the neighbours that are due now, in order. A neighbour that was sent too many
        BPDUs lately is due later, with all changes in one."""
        if not self._dirty or now < self.hold_until:
            return []
        sent: list[Port] = []
        held: dict[bytes, Port] = {}
        self._held_until = math.inf
        for peer_id, port in self._dirty.items():
            wait_s = port.bpdu_after - now
            # The clock's rounding must not make it wait for nothing.
            if wait_s < 1e-6:
                wait_s = port.charge_bpdu(now, self._config.bpdus_burst, self._config.bpdus_per_s)
                port.bpdu_after = now + self.gap_s
            if wait_s > 0:
                held[peer_id] = port
                self._held_until = min(self._held_until, now + wait_s)
            else:
                sent.append(port)
        self._dirty = held
        return sent

    def next_deadline(self, now: float) -> float:
        """When `due` may have a BPDU that was held back (s); inf if none was."""
        if not self._dirty:
            return math.inf
        return self.hold_until if self.hold_until > now else self._held_until
