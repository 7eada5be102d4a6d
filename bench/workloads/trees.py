"""What brokers carry for each other where messages follow a tree, as with the routing modes
`interest` and `flood`: also what passes through. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mqttree.bench.workloads.tree_network import TreeNetwork


def carried(
    parents: Sequence[int], published: Mapping[int, int], wanted: Mapping[int, Iterable[int]]
) -> tuple[list[float], list[float]]:
    """Return the messages that each broker gets from others, and sends to them, for one message of
    each topic.

    `parents`: of each broker on the tree, -1 of its root; `published`: topic -> broker of its
    publisher; `wanted`: topic -> brokers with subscribers. Raises ValueError for a circle.
    """
    network = TreeNetwork(parents)
    into, out = [0.0] * len(parents), [0.0] * len(parents)
    for topic, source in published.items():
        receivers = 0
        for broker in wanted.get(topic, ()):
            receivers |= 1 << broker
        network.carried({source: 1.0}, receivers, into, out)
    return into, out
