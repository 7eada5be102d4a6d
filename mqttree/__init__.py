"""An MQTT broker for your own program or test, in your own event loop:

    from mqttree import Broker

    async with Broker(listen="127.0.0.1:0") as broker:
        ...  # clients connect to 127.0.0.1, port broker.port

`MultiClient` is a client of a federation, with a connection to each broker where its topics are. It
needs `pip install 'mqttree[client]'`.

The names in `__all__` are all that is public; the packages below this one change without notice:
`broker`, with `routing`, `stp` (the spanning tree), `discovery`, `placement` and `federator` beside
it, and `bench`, which measures. `python -m mqttree` is the command `mqttree`.
`embedded_broker` has the broker of a program, `multi_client` and `client_connection` that client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Says which core runs, before the first module that may be compiled is imported.
from mqttree.broker import CORE as CORE

if TYPE_CHECKING:
    from mqttree.broker.config.yaml_file import ConfigError
    from mqttree.broker.limits import Limits
    from mqttree.client_connection import ConnectionLostError, Message, SubscriptionRefusedError
    from mqttree.embedded_broker import Broker
    from mqttree.multi_client import MultiClient

_PUBLIC = {
    "Broker": "mqttree.embedded_broker",
    "ConfigError": "mqttree.broker.config.yaml_file",
    "ConnectionLostError": "mqttree.client_connection",
    "Limits": "mqttree.broker.limits",
    "Message": "mqttree.client_connection",
    "MultiClient": "mqttree.multi_client",
    "SubscriptionRefusedError": "mqttree.client_connection",
}
"""Where each public name is. It is imported when it is asked for: a command needs few of them, and
`MultiClient` a client library."""

__all__ = [
    "Broker",
    "ConfigError",
    "ConnectionLostError",
    "Limits",
    "Message",
    "MultiClient",
    "SubscriptionRefusedError",
]


def __getattr__(name: str) -> Any:
    """Import a public name, which says from then on that it is one of this package."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_PUBLIC[name]), name)
    found.__module__ = __name__
    return found


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
