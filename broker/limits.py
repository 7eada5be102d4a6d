"""Every limit of the broker, as one record: those of all packages."""

from __future__ import annotations

from mqttree.broker.io.limits import IoLimits


class Limits(IoLimits, kw_only=True):
    """What one broker keeps to. All fields have defaults and are given by name."""

    plugin_calls: int = 5_000
    """calls of plugins' event methods under way; beyond it the clients that cause more are not read
    until half of them have ended. A plugin that takes longer than messages take to come would fill
    the memory."""

    plugin_timeout_s: float = 30.0
    """s; for plugins to answer a question. Who asked waits that long at most, then it counts as a
    no [plugin_errors]: longer than a slow directory takes, about as long as clients wait for their
    CONNACK."""


DEFAULTS = Limits()
