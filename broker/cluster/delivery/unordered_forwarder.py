"""Forwarding where each topic has paths of its own: messages of one origin overtake each other.

The numbers of an origin that come here are some of them, in any order. So a missing number is not
missed, and one that comes behind newer ones is taken, also at QoS 0; each is still taken once.
"""

from __future__ import annotations

from mqttree.broker.cluster.delivery.forwarder import Forwarder
from mqttree.broker.cluster.delivery.local_window import LocalWindow


class UnorderedForwarder(Forwarder):
    """A forwarder for `--routing ort`."""

    _unlogged: dict[bytes, LocalWindow] | None = None
    """Origin -> which of its numbers at QoS 0 have been here, once there are any."""

    def accept(self, key: bytes, first: int, count: int, now: float, late: bool = True) -> int:
        """Accept numbers as `Forwarder.accept`, and note those that newer ones have overtaken as
        not wanted here: these are taken if they come, and not asked for. `key`, `first`, `count`,
        `now`, `late`: as there."""
        if late:
            window = self.vector.get(key)
            if window is not None and window is not self.own and first > window.top + 1:
                window.skip(window.top + 1, first - 1)
                window.top = first - 1
        return super().accept(key, first, count, now, late)

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
        return max(0, window.accept(first, count, skipped=True))
