"""What every module of `core` may ask of its broker. Each module has a Protocol with more, by what
it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from mqttree.broker.base.timers import TimedBroker

if TYPE_CHECKING:
    from mqttree.broker.base.counters import Counters
    from mqttree.broker.base.log_limit import LogLimit
    from mqttree.broker.base.turns import Turns
    from mqttree.broker.config.node_config import NodeConfig
    from mqttree.broker.core.limits import CoreLimits


class CoreBroker(TimedBroker, Protocol):
    """One broker, as all of its modules know it."""

    @property
    def config(self) -> NodeConfig:
        """The settings that this broker was started with."""

    @property
    def limits(self) -> CoreLimits:
        """The limits of what this broker keeps and does at once."""

    @property
    def counters(self) -> Counters:
        """The counters of this broker, as `/metrics` shows them."""

    @property
    def log(self) -> Callable[[str, str], None]:
        """Called with a level and a line."""

    @property
    def log_limit(self) -> LogLimit:
        """Logs lines that peers cause."""

    @property
    def turns(self) -> Turns:
        """How much is done in one turn of the event loop."""
