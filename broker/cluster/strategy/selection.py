"""The choice of the routing strategy: the only place that asks for the value of `--routing`. The
papers' own modes are loaded when they are wanted, as they are a tenth of a start."""

from __future__ import annotations

from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
from mqttree.broker.cluster.strategy.flood import Flood
from mqttree.broker.cluster.strategy.interest import Interest
from mqttree.broker.cluster.strategy.ports import Delivery, LinkedBroker
from mqttree.broker.cluster.strategy.routing_strategy import RoutingStrategy
from mqttree.broker.cluster.strategy.topic import Topic


def strategy_for(
    node: LinkedBroker,
    directory: LinkStateDirectory,
    bus: UnicastBus,
    delivery: Delivery,
) -> RoutingStrategy:
    """Return the strategy that the settings of `node`, this broker, name. `directory`: what brokers
    post; `bus`: carries messages to one broker; `delivery`: what is above the strategy."""
    match node.config.routing:
        case "flood":
            return Flood(node, directory, delivery)
        case "srt":
            from mqttree.broker.cluster.strategy.srt_prt import SrtPrt

            return SrtPrt(node, directory, delivery)
        case "ort":
            from mqttree.broker.cluster.strategy.ort import Ort

            return Ort(node, directory, delivery)
        case "topic":
            return Topic(node, directory, bus, delivery)
        case _:
            return Interest(node, directory, delivery)
