"""What the driver of a `Node` does in asyncio: turns of the loop, and the epoll transport."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqttree.broker.io.epoll_transport import EpollTransport
from mqttree.broker.io.loop_turns import LoopTurns

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from mqttree.broker.node import Node


class Driver(LoopTurns):
    """Runs `node` in the event loop `loop`: flushes once in each turn of the loop, and ticks at the
    node's deadline. `on_effects` is called when the node has effects."""

    def __init__(
        self, node: Node, loop: asyncio.AbstractEventLoop, on_effects: Callable[[], None]
    ) -> None:
        super().__init__(node, loop, on_effects)
        self._poller: EpollTransport | None = None

    @property
    def poller(self) -> EpollTransport:
        """The epoll transport, made at its first use."""
        if self._poller is None:
            self._poller = EpollTransport(self)
        return self._poller

    def look(self, now: float) -> None:
        """Look for connections that were closed, if the epoll transport has not done so in this
        turn; `now`: s."""
        poller = self._poller
        if poller is not None and now > poller.due:
            poller.look(now)

    def stop(self) -> None:
        """End the ticks of the node, and all its connections."""
        super().stop()
        if self._poller is not None:
            self._poller.close()
            self._poller = None
