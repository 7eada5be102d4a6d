"""Numbers of queued messages of absent clients that have left the log (trimmed_numbers.py)."""

from __future__ import annotations

import pytest

from mqttree.broker.base.costs import TRIMMED_MEMORY
from mqttree.broker.cluster.delivery.trimmed_numbers import LOOK_S, TrimmedNumbers
from mqttree.broker.cluster.events import RouteChanged
from mqttree.broker.limits import Limits
from tests.kit.link_harness import bid, lone
from tests.kit.node_harness import FakeClient, World


def place(*, qos: int = 2, **more: int) -> tuple[World, FakeClient, TrimmedNumbers]:
    """A broker whose log has room for next to nothing, a publisher there, and a client that has
    left its session."""
    world = lone(limits=Limits(log_bytes=100, **more))
    world.node.cluster.trimmed_numbers.route_changed(RouteChanged(bid(101), bid(101)))
    away = world.connect("away", 5, clean=False, properties={17: 3600})
    away.subscribe("a/#", qos=qos)
    away.disconnect()
    return world, world.connect("p"), world.node.cluster.trimmed_numbers


def numbers(world: World) -> list[int | None]:
    origins = world.node.cluster.session_history.old_state(
        world.node.sessions["away"], world.now
    ).origins
    return [None if origin is None else origin[1] for origin in origins]


def test_a_queued_message_keeps_its_number_when_it_leaves_the_log() -> None:
    world, publisher, trimmed = place()
    for number, (topic, payload) in enumerate(
        (("a/1", b"x"), ("b", b"x"), ("a/1", b"y"), ("a/1", b"x"), ("a/2", b"x")), 1
    ):
        publisher.publish(topic, payload, qos=2, packet_id=number)
    publisher.publish("b", bytes(1000), qos=2, packet_id=10)
    assert numbers(world) == [1, 3, 4, 5]
    world.connect("away", 5, clean=False, properties={17: 3600})
    world.advance(LOOK_S)
    assert (trimmed.size, world.node.cluster.forwarder.log.on_dropped) == (0, [])


def test_the_oldest_numbers_are_dropped_when_there_is_no_room() -> None:
    room = 3 * (TRIMMED_MEMORY + 8)
    world, publisher, trimmed = place(unlogged_bytes=room)
    for number in range(1, 7):
        publisher.publish("a", b"%d" % number, qos=2, packet_id=number)
    publisher.publish("b", bytes(1000), qos=2, packet_id=10)
    assert numbers(world) == [None, None, None, 4, 5, 6]
    assert trimmed.size == room
    assert world.counters.queued_unnumbered == 3


@pytest.mark.parametrize(("granted", "published"), [(1, 2), (2, 1)])
def test_numbers_below_qos_2_are_not_noted(granted: int, published: int) -> None:
    world, publisher, trimmed = place(qos=granted)
    assert bool(world.node.cluster.forwarder.log.on_dropped) == (granted == 2)
    publisher.publish("a", b"x", qos=published, packet_id=1)
    publisher.publish("b", bytes(1000), qos=2, packet_id=2)
    assert (numbers(world), trimmed.size) == ([None], 0)
