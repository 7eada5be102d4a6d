"""A federation as one broker sees it, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mqttree.broker.cluster.directory.link_state_directory import DRAINING

if TYPE_CHECKING:
    from mqttree.broker.cluster.cluster import Cluster


def federation_state(cluster: Cluster) -> dict[str, Any]:
    """Return the answer to /api/v1/federation."""
    tree = cluster.tree
    config = cluster.config
    strategy = cluster.strategy
    node = cluster.node
    going = {listing.id for listing in cluster.database.reachable() if DRAINING in listing.entries}
    links = []
    for peer_id, link in sorted(cluster.links.items()):
        port = tree.ports.get(peer_id)
        peer = link.peer
        assert peer is not None
        links.append(
            {
                "peer": peer_id.hex(),
                "name": peer.name,
                "address": f"{peer.host}:{peer.port}",
                "up": link.up,
                "role": port.role.name.lower() if port is not None else "blocked",
                "forwarding": link.live,
                "source_trees": strategy.uses(link),
                "carries": link.live or strategy.uses(link),
                "draining": peer_id in going,
                "rtt_ms": round(link.rtt_ms, 3) if link.rtt_ms is not None else None,
            }
        )
    return {
        "id": config.id.hex(),
        "name": config.name,
        "boot": config.boot,
        "listen": f"{config.host}:{config.port}",
        "cluster": config.cluster,
        "state": str(cluster.membership.state),
        "capability": tree.capability,
        "root": tree.root.id.hex(),
        "root_address": f"{tree.root.address[0]}:{tree.root.address[1]}",
        "path_cost_ms": round(tree.path_cost_ms, 3),
        "parent": tree.parent.hex() if tree.parent is not None else None,
        "epoch": tree.epoch,
        "routing": cluster.config.routing,
        "draining": node.drain is not None,
        "standby": None if cluster.images.stream is None else cluster.images.stream.report(),
        "longest_turn_ms": round(node.turns.longest * 1000, 1),
        "id_conflict": str(cluster.id_conflict.other)
        if cluster.id_conflict.refuses_clients
        else None,
        "redirection": cluster.placement.redirector.report(),
        "links": links,
        "gone": cluster.gone_brokers.alarms(),
        "counters": node.counters.as_dict()
        | {f"discovery_{name}": value for name, value in cluster.membership.counters.items()},
        **strategy.report(),
        **({} if node.drain is None else {"drain": node.drain.as_dict()}),
    }
