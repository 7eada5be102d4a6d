"""Forwarding where each topic has paths of its own: messages of one origin overtake each other.

The numbers of an origin that come here are some of them, in any order. So a missing number is not
missed, and one that comes behind newer ones is taken, also at QoS 0; each is still taken once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from broker.cluster.delivery.forwarder import Forwarder
from broker.cluster.delivery.local_window import LocalWindow

if TYPE_CHECKING:
    from broker.cluster.delivery.gap_recovery import GapRecovery
    from broker.cluster.delivery.origins import Origins
    from broker.cluster.delivery.ports import Above, DeliveringBroker
    from broker.cluster.delivery.remote_flow_control import RemoteFlowControl
    from broker.cluster.delivery.replay_log import ReplayLog
    from broker.cluster.link.link import Link
    from broker.cluster.strategy.routing_strategy import RoutingStrategy


class UnorderedForwarder(Forwarder):
    """A forwarder for `--routing ort`."""

    def __init__(
        self,
        node: DeliveringBroker,
        *,
        origins: Origins,
        log: ReplayLog,
        links: Mapping[bytes, Link],
        strategy: RoutingStrategy,
        gap_recovery: GapRecovery,
        flow_control: RemoteFlowControl,
        above: Above,
    ) -> None:
        """`node`, `origins`, `log`, `links`, `strategy`, `gap_recovery`, `flow_control`, `above`:
        as of `Forwarder`."""
        super().__init__(
            node,
            origins=origins,
            log=log,
            links=links,
            strategy=strategy,
            gap_recovery=gap_recovery,
            flow_control=flow_control,
            above=above,
        )
        # Origin -> which of its numbers at QoS 0 have been here.
        self._unlogged: dict[bytes, LocalWindow] = {}

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
        window = windows.get(key)
        if window is None:
            if key == self.key:
                return 0
            if len(windows) >= self._limits.max_origins:
                for old in list(windows)[: self._limits.max_origins // 16]:
                    del windows[old]
            window = windows[key] = LocalWindow(first - 1, self.node.now, None, 0)
        return max(0, window.accept(first, count, skipped=True))
