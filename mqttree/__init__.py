"""An MQTT broker for your own program or test, in your own event loop:

    from mqttree import Broker

    async with Broker(listen="127.0.0.1:0") as broker:
        ...  # clients connect to 127.0.0.1, port broker.port

`MultiClient` is a client of a federation, with a connection to each broker where its topics are. It
needs `pip install 'mqttree[client]'`.

This package is all that is public; other packages of the distribution change without notice.
`python -m mqttree` is the command `mqttree`.
"""

from typing import TYPE_CHECKING, Any

from broker.base.limits import Limits
from broker.config.yaml_file import ConfigError
from mqttree.embedded_broker import Broker

if TYPE_CHECKING:
    from mqttree.multi_client import MultiClient

__all__ = ["Broker", "ConfigError", "Limits", "MultiClient"]


def __getattr__(name: str) -> Any:
    """Import what needs a client library when it is asked for."""
    if name == "MultiClient":
        from mqttree.multi_client import MultiClient

        return MultiClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
