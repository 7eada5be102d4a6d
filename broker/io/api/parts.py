"""The parts of a broker that the interface looks at."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from broker.cluster.cluster import Cluster
    from broker.cluster.id_conflict import IdConflict
    from broker.cluster.sharing.group_table import GroupTable
    from broker.cluster.strategy.directory import Directory
    from broker.cluster.strategy.routing_strategy import RoutingStrategy
    from broker.core.dispatcher import Dispatcher
    from broker.core.memory_limit import MemoryLimit
    from broker.core.retained_store import RetainedStore
    from broker.node import Node
    from discovery.membership import Membership
    from routing.link_state import LinkStateDatabase
    from stp.tree import Tree


class Parts(NamedTuple):
    """What stays the same as long as the broker runs."""

    node: Node
    cluster: Cluster
    tree: Tree
    membership: Membership
    directory: Directory
    database: LinkStateDatabase
    strategy: RoutingStrategy
    id_conflict: IdConflict
    groups: GroupTable
    memory: MemoryLimit
    retained: RetainedStore
    dispatcher: Dispatcher


def parts_of(node: Node) -> Parts:
    """Return the parts of a broker."""
    cluster = node.cluster
    directory, sharing = cluster.directory, cluster.sharing
    return Parts(
        node,
        cluster,
        cluster.tree,
        cluster.membership,
        directory,
        directory.database,
        cluster.strategy,
        cluster.id_conflict,
        sharing.groups,
        node.memory,
        node.retained,
        node.dispatcher,
    )
