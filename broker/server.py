"""The Broker under its former name, for programs that import it from here; `broker.compat.broker` has it."""

from broker.compat.broker import Broker

__all__ = ["Broker"]
