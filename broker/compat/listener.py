"""Our listener as amqtt's `Server`."""

from __future__ import annotations

from typing import Any

from amqtt.broker import Server

from mqttree.broker.config.listener_options import ListenerOptions
from mqttree.broker.io.limits import IoLimits
from mqttree.broker.io.listener import Listener


class AmqttListener(Listener, Server):  # type: ignore[misc]
    """A listener that has amqtt's methods, too. `listener_name`, `server_instance`,
    `max_connections`, `options`, `limits`: as of `Listener`."""

    def __init__(
        self,
        listener_name: str,
        server_instance: Any,
        max_connections: int = -1,
        options: ListenerOptions | None = None,
        *,
        limits: IoLimits,
    ) -> None:
        Server.__init__(self, listener_name, server_instance, max_connections)
        Listener.__init__(
            self, listener_name, server_instance, max_connections, options, limits=limits
        )
