"""What had not been written to a client when it went was certainly not received: a broker that has
a newer session of this client takes it, at QoS 2, too."""

from __future__ import annotations

from typing import Any

import pytest

from mqttree.broker.cluster.sessions.session_state import IN_FLIGHT, WAITING
from mqttree.broker.core.unsent import identifiers
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Disconnect, Publish
from mqttree.broker.wire.properties import Property
from mqttree.broker.wire.publish_header import PACKET_IDS
from tests.kit.node_harness import World

KEPT: Any = {Property.SESSION_EXPIRY_INTERVAL: 3600}


def gone(how: str, version: int = 5) -> tuple[World, list[int]]:
    """A session whose client went, and where what it was sent last is for another broker."""
    world = World()
    reader = world.connect(
        "reader", version, clean=False, properties=KEPT if version == 5 else None
    ).subscribed("a", qos=2)
    writer = world.connect("writer")
    if how == "backlog":
        reader.conn.pause()
    for number in range(3):
        writer.conn.receive(
            encode_packet(Publish("a", b"%d" % number, 2, packet_id=number + 1), 5), world.now
        )
    if how in ("written", "backlog"):
        world.settle()
    if how == "disconnected":
        reader.conn.receive(encode_packet(Disconnect(0, None), version), world.now)
    else:
        world.node.connection_lost(reader.conn, "reset", world.now)
    world.settle()
    assert bool(reader.transport.written) == (how == "written")
    state = world.node.cluster.session_history.state(world.session("reader"), merged=True)
    return world, [item.place for item in state.items]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("how", ["lost", "disconnected", "backlog"])
def test_unwritten_messages_wait_in_the_queue(how: str, version: int) -> None:
    assert gone(how, version)[1] == [WAITING] * 3


def test_written_messages_are_in_flight() -> None:
    assert gone("written")[1] == [IN_FLIGHT] * 3


def test_here_it_is_sent_again_with_its_identifiers() -> None:
    world, _ = gone("lost")
    reader = world.connect("reader", clean=False, properties=KEPT)
    packets = [packet for packet in reader.take() if isinstance(packet, Publish)]
    assert [(packet.packet_id, packet.payload) for packet in packets] == [
        (n + 1, b"%d" % n) for n in range(3)
    ]
    assert not world.session("reader").unsent


def test_packet_identifiers_of_unwritten_messages_are_found() -> None:
    """Of messages alone, and not of those that are sent once more: they may be there."""
    first = encode_packet(Publish("a", b"x" * 200, 2, packet_id=300), 5) + encode_packet(
        Publish("b", b"", 1, packet_id=7), 4
    )
    again = encode_packet(Publish("a", b"x", 2, packet_id=9, dup=True), 5)
    pubrel = b"\x62\x02" + PACKET_IDS[11]
    assert identifiers([first, pubrel + encode_packet(Publish("c", b"", 0), 5), again]) == {300, 7}
