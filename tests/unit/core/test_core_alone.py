"""One broker without the cluster: what core asks of other brokers is in its port, and a null
version of that is enough for all that clients do."""

from __future__ import annotations

from typing import Any, cast

import pytest

from mqttree.broker.cluster.cluster import Cluster as RealCluster
from mqttree.broker.core import ports
from mqttree.broker.core.ports import NullJournal
from mqttree.broker.persistence.journal import Journal
from mqttree.broker.wire import Connack, Property, Puback, Publish, Pubrec
from tests.kit.no_cluster import NoCluster
from tests.kit.node_harness import World, connect_packet


def alone(**config: Any) -> World:
    world = World(**config)
    world.node.cluster = cast(Any, NoCluster())
    world.node.federated = False
    return world


def named(protocol: type) -> set[str]:
    """What a Protocol asks for."""
    return {name for name in vars(protocol) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("protocol", "version"),
    [
        (ports.Cluster, NoCluster),
        (ports.Cluster, RealCluster),
        (ports.Journal, NullJournal),
        (ports.Journal, Journal),
    ],
)
def test_each_implementation_of_a_port_has_all_its_members(protocol: type, version: type) -> None:
    made = alone() if version is NoCluster else World()
    here = made.node.cluster if protocol is ports.Cluster else version
    assert named(protocol) <= {*dir(here), *getattr(here, "__annotations__", ())}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_are_delivered(qos: int) -> None:
    world = alone()
    subscriber, publisher = world.connect("s"), world.connect("p")
    assert subscriber.subscribe("a/+", qos=qos) == [qos]
    publisher.publish("a/b", b"x", qos)
    answers = [type(packet) for packet in publisher.take()]
    assert answers == [[], [Puback], [Pubrec]][qos]
    assert subscriber.payloads() == [b"x"]


def test_a_session_is_resumed_taken_over_and_expires() -> None:
    world = alone()
    forever = {Property.SESSION_EXPIRY_INTERVAL: 60}
    first = world.connect("c", properties=dict(forever))
    first.subscribe("t", qos=1)
    first.vanish()
    world.connect("p").publish("t", b"while away", 1)
    second = world.open()
    second.send(connect_packet("c", clean=False, properties=dict(forever)))
    packets = second.take()
    assert isinstance(packets[0], Connack)
    assert packets[0].session_present
    assert [p.payload for p in packets if isinstance(p, Publish)] == [b"while away"]
    world.connect("c", clean=False, properties=dict(forever))
    assert second.closed or second.transport.closing
    assert world.counters.taken_over == 1
    for peer in world.peers:
        if not peer.conn.closed:
            peer.vanish()
    world.advance(61.0)
    assert "c" not in world.node.sessions
