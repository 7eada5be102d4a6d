"""The Broker under its former name, for programs that import it from here: see `compat.broker`."""

from mqttree.broker.compat.broker import Broker

__all__ = ["Broker"]
