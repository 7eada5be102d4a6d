"""Forwarding where each topic has paths of its own: messages of one origin overtake each other.

The numbers of an origin that come here are some of them, in any order. So one that comes behind
newer ones is taken at QoS 0, too; each is still taken once.
"""

from __future__ import annotations

from mqttree.broker.cluster.delivery.forwarder import Forwarder
from mqttree.broker.cluster.delivery.local_window import LocalWindow


class UnorderedForwarder(Forwarder):
    """A forwarder for `--routing ort`."""

    _unlogged: dict[bytes, LocalWindow] | None = None
    """Origin -> which of its numbers at QoS 0 have been here, once there are any."""

    def accept_unlogged(self, key: bytes, first: int, count: int) -> int:
        """Accept `count` numbers of the origin `key` at QoS 0, from `first` on, if none of them was
        here. Returns `count` or 0."""
        windows = self._unlogged
        if windows is None:
            windows = self._unlogged = {}
        window = windows.get(key)
        if window is None:
            if key == self.key:
                return 0
            if len(windows) >= self._limits.max_origins:
                for old in list(windows)[: self._limits.max_origins // 16]:
                    del windows[old]
            window = windows[key] = LocalWindow(first - 1, self.node.now, None, 0)
        return max(0, window.accept(first, count))
