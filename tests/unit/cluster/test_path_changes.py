"""Paths that change: which brokers hear of it, and when (source_trees.py; docs/decisions/0020)."""

from __future__ import annotations

from typing import Any

import pytest

from mqttree.broker.cluster.delivery.gap_recovery import CHANGED
from mqttree.broker.cluster.directory.link_state_directory import LINK, ROUTING
from mqttree.broker.cluster.link.control_records import ROUTED
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.strategy.path_costs import RELAY
from mqttree.broker.limits import Limits
from tests.kit.link_harness import OWN, Neighbour, bid, lone, message
from tests.kit.node_harness import World


def known(world: World, neighbour: Neighbour) -> None:
    neighbour.post(
        (ROUTING, neighbour.boot.to_bytes(4, "big") + b"topic"),
        (RELAY, (3000).to_bytes(4, "big")),
        (LINK + OWN, (500).to_bytes(4, "big")),
    )


def told(neighbour: Neighbour) -> list[bytes]:
    """Origins whose messages come another way to the neighbour."""
    return [
        body[18:]
        for body in neighbour.records(ROUTED)
        if body[:8] == bid(neighbour.number) and body[17] == CHANGED
    ]


def active(**config: Any) -> tuple[World, Neighbour]:
    world = lone(routing="topic", link_timeout=1000.0, **config)
    neighbour = Neighbour(world, 101, routing="topic").child()
    known(world, neighbour)
    world.advance(1)
    assert world.node.cluster.strategy.trees.active
    assert world.node.cluster.strategy.trees.link_to(OWN, bid(101)) is neighbour.link()
    neighbour.take()
    return world, neighbour


def test_a_queue_that_overflowed_is_announced_when_it_has_drained() -> None:
    """However soon: what was dropped meanwhile is missing there, and looks as if no subscriber
    wanted it."""
    world, neighbour = active()
    link = neighbour.link()
    link.overflowed()
    link.drained(world.now)
    world.advance(1)
    assert OWN in told(neighbour)


@pytest.mark.parametrize("limit", ("max_overlay_brokers", "max_overlay_links"))
def test_beyond_the_limit_of_brokers_or_links_messages_keep_to_the_tree(limit: str) -> None:
    """They may be made up: messages keep to the tree."""
    world = lone(routing="topic", link_timeout=1000.0, limits=Limits(**{limit: 0}))
    neighbour = Neighbour(world, 101, routing="topic").child()
    known(world, neighbour)
    world.advance(1)
    assert not world.node.cluster.strategy.trees.active
    client = world.connect("c")
    neighbour.take()
    client.publish("t", b"x", 1, 1)
    assert neighbour.up


def test_made_up_origins_fill_no_route() -> None:
    world, neighbour = active(limits=Limits(route_cache_origins=20))
    for number in range(100):
        neighbour.send(message(qos=0, key=origin_key(b"made%04d" % number, 1)))
    assert neighbour.up
    assert len(world.node.dispatcher.routes[b"t"].onward) <= 20
