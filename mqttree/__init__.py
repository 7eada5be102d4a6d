"""An MQTT broker for your own program or test, in your own event loop:

    from mqttree import Broker

    async with Broker(listen="127.0.0.1:0") as broker:
        ...  # clients connect to 127.0.0.1, port broker.port

This package is all that is public; other packages of the distribution change without notice.
`python -m mqttree` is the command `mqttree`.
"""

from broker.base.limits import Limits
from broker.config.yaml_file import ConfigError
from mqttree.embedded_broker import Broker

__all__ = ["Broker", "ConfigError", "Limits"]
