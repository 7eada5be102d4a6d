"""The parts of a broker that the interface looks at."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mqttree.broker.cluster.cluster import Cluster
    from mqttree.broker.cluster.gone_brokers import GoneBrokers
    from mqttree.broker.cluster.id_conflict import IdConflict
    from mqttree.broker.cluster.sharing.group_table import GroupTable
    from mqttree.broker.cluster.strategy.routing_strategy import WantedTopics
    from mqttree.broker.core.dispatcher import Dispatcher
    from mqttree.broker.core.memory_limit import MemoryLimit
    from mqttree.broker.core.retained_store import RetainedStore
    from mqttree.broker.node import Node
    from mqttree.discovery.membership import Membership
    from mqttree.routing.link_state import LinkStateDatabase
    from mqttree.stp.tree import Tree


class Parts(NamedTuple):
    """What stays the same as long as the broker runs."""

    node: Node
    cluster: Cluster
    tree: Tree
    membership: Membership
    database: LinkStateDatabase
    strategy: WantedTopics
    id_conflict: IdConflict
    groups: GroupTable
    memory: MemoryLimit
    retained: RetainedStore
    dispatcher: Dispatcher
    gone_brokers: GoneBrokers


def parts_of(node: Node) -> Parts:
    """Return the parts of a broker."""
    cluster = node.cluster
    return Parts(
        node,
        cluster,
        cluster.tree,
        cluster.membership,
        cluster.database,
        cluster.strategy,
        cluster.id_conflict,
        cluster.sharing.groups,
        node.memory,
        node.retained,
        node.dispatcher,
        cluster.gone_brokers,
    )
