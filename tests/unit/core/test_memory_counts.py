"""What counts as memory besides messages: the index of retained topics, and requests that wait for
their turn."""

from __future__ import annotations

from mqttree.broker.core.memory_limit import client_memory
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Subscribe, SubscriptionRequest
from mqttree.routing.subscription_trie import NODE
from tests.kit.node_harness import World


def test_topics_with_many_levels_are_counted() -> None:
    """Two that share 190 levels need as many nodes."""
    world = World(memory_limit=1 << 30)
    client = world.connect("c")
    world.advance(3.0)
    before = world.node.memory.used
    for end in "bc":
        client.publish("a/" * 190 + end, b"x", 1, 1, retain=True)
    world.advance(3.0)
    grown = world.node.memory.used - before
    assert 189 * NODE < grown < 220 * NODE
    for end in "bc":
        client.publish("a/" * 190 + end, b"", 1, 1, retain=True)
    assert world.node.retained.index == 0


def test_filters_that_wait_for_their_turn_are_counted() -> None:
    world = World(memory_limit=1 << 30)
    client = world.connect("c")
    packet = encode_packet(
        Subscribe(1, [SubscriptionRequest(f"filter/{n}", 0) for n in range(2000)]), 5
    )
    client.conn.receive(packet, world.now)
    assert client.conn.waiting
    assert client_memory(client.owner) > len(packet)
    world.advance(3.0)
    assert not client.conn.waiting
    assert client_memory(client.owner) < 1000
