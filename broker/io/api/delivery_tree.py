"""The links that messages of one broker take to the brokers that want them, as this broker knows
them: source-rooted trees are computed here as each broker computes its own part of them
(docs/decisions/0020)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mqttree.broker.cluster.directory.link_state_directory import LINK, WANTS_EVERYTHING
from mqttree.broker.cluster.strategy.path_costs import RELAY
from mqttree.broker.io.api.federation import spanning_tree
from mqttree.broker.io.api.routes import RequestError
from mqttree.broker.wire.errors import WireError
from mqttree.broker.wire.strings import shorten
from mqttree.routing.shortest_paths import Graph
from mqttree.routing.topic_filter import valid_topic_name

if TYPE_CHECKING:
    from mqttree.broker.node import Node
    from mqttree.routing.listing import Listing

KNOWN = ("flood", "interest", "topic")
"""Routing modes whose trees a broker knows as a whole."""


def delivery_tree(node: Node, origin: str, topic: str) -> dict[str, Any]:
    """Return the tree of the messages of a broker.

    `node`: this broker; `origin`: id of the one where messages are published, "": this one;
    `topic`: of the messages, "": of any, which all brokers want. Raises RequestError: there is no
    such broker, or its tree is not known.
    """
    own, routing = node.config.id, node.config.routing
    if routing not in KNOWN:
        raise RequestError(404, f"with routing {routing} no broker knows a whole tree")
    listings = (node.cluster.database.own, *node.cluster.database.reachable())
    known = {listing.id.hex(): listing.id for listing in listings}
    root = known.get(origin or own.hex())
    if root is None:
        raise RequestError(404, "no such broker, or it cannot be reached")
    by_source = node.cluster.strategy.source_rooted
    parents = _source_parents(listings, root) if by_source else _tree_parents(listings, root)
    receivers = _receivers(node, topic, known.values())
    links = _links(parents, [broker for broker in receivers if broker != root])
    return {
        "origin": root.hex(),
        "topic": topic,
        "kind": "source" if by_source else "spanning",
        "receivers": sorted(broker.hex() for broker in receivers),
        "links": [[above.hex(), below.hex()] for above, below in links],
    }


def _receivers(node: Node, topic: str, brokers: Iterable[bytes]) -> set[bytes]:
    """Return the brokers that get messages of a `topic`, of all `brokers`."""
    if not topic:
        return set(brokers)
    if not valid_topic_name(topic):
        raise RequestError(400, f"topic: {shorten(topic)} is no topic name")
    name = topic.encode()
    try:
        route = node.dispatcher.routes.get(name) or node.dispatcher.route(name, keep=False)
    except WireError as error:
        raise RequestError(400, f"topic: {error}") from None
    found = set(brokers) & set(node.cluster.strategy.brokers_wanting(topic))
    if route.deliveries or route.shared or WANTS_EVERYTHING in node.cluster.database.own.entries:
        found.add(node.config.id)
    return found


def _source_parents(listings: Iterable[Listing], root: bytes) -> dict[bytes, bytes]:
    """Return the broker before each one on the shortest paths from `root`."""
    graph, every = Graph(root), list(listings)
    for listing in every:
        for other in every:
            cost = listing.entries.get(LINK + other.id)
            if cost is not None:
                graph.post(listing.id, other.id, int.from_bytes(cost, "big"))
        relay = listing.entries.get(RELAY)
        if relay is not None:
            graph.relay(listing.id, int.from_bytes(relay, "big"))
    return graph.parents(root)


def _tree_parents(listings: Iterable[Listing], root: bytes) -> dict[bytes, bytes]:
    """Return the broker before each one on the spanning tree, as seen from `root`."""
    beside: dict[bytes, list[bytes]] = {}
    for one, other in spanning_tree(listings):
        beside.setdefault(one, []).append(other)
        beside.setdefault(other, []).append(one)
    parents: dict[bytes, bytes] = {}
    waiting = deque([root])
    while waiting:
        above = waiting.popleft()
        for below in beside.get(above, ()):
            if below != root and below not in parents:
                parents[below] = above
                waiting.append(below)
    return parents


def _links(parents: dict[bytes, bytes], receivers: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """Return the links of the part of a tree that leads to `receivers`, each from above to below.
    `parents`: the broker before each one."""
    found: set[tuple[bytes, bytes]] = set()
    for broker in receivers:
        below = broker
        while (above := parents.get(below)) is not None and (above, below) not in found:
            found.add((above, below))
            below = above
    return sorted(found)
