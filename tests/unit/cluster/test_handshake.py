"""The version of the link protocol that each broker says: those of another one are refused."""

from __future__ import annotations

from typing import Any

import pytest

from mqttree.broker.cluster.link.handshake import LINK_PROTOCOL
from mqttree.broker.core.effects import Dial
from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.decode import decode_packet
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Connack, Connect
from mqttree.broker.wire.properties import Property
from tests.kit.link_harness import Neighbour, bridge, lone, unharmed, warnings
from tests.kit.node_harness import FakeTransport, World

OTHERS = ("0", str(LINK_PROTOCOL - 1), str(LINK_PROTOCOL + 1), "65535")


class Called:
    """A broker that the node dials."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.transport = FakeTransport()
        peer = f"10.0.0.{number}:1883"
        self.conn = world.node.connection_registry.made(
            peer, "link", self.transport, world.now, Dial(f"10.0.0.{number}", 1883)
        )
        self.transport.conn = self.conn
        world.peers.append(self)  # type: ignore[arg-type]
        world.settle()

    def send(self, packet: Connack | Connect) -> None:
        self.conn.receive(encode_packet(packet, 5), self.world.now)
        self.world.settle()

    def take(self) -> list[Any]:
        """The packets that came since the last look."""
        return packets(self.transport)


def packets(transport: FakeTransport) -> list[Any]:
    data, found = bytes(transport.written), []
    transport.written.clear()
    while data:
        assert data[1] < 0x80 or data[2] < 0x80
        size = data[1] if data[1] < 0x80 else (data[1] & 0x7F) + (data[2] << 7)
        start = 2 if data[1] < 0x80 else 3
        found.append(decode_packet(data[0], data[start : start + size], 5))
        data = data[start + size :]
    return found


@pytest.mark.parametrize("other", OTHERS)
def test_a_caller_of_another_version_is_refused_in_one_line(other: str) -> None:
    world = lone()
    for _ in range(5):
        caller = Neighbour(world, 1, link=False)
        caller.send(encode_packet(bridge(1, protocol=other), 5))
        assert caller.conn.closed
        (answer,) = packets(caller.transport)
        assert answer.code == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
        assert (
            answer.properties[Property.REASON_STRING]
            == f"your broker speaks link protocol {other}, not {LINK_PROTOCOL}"
        )
    assert world.counters.links_refused == 5
    assert warnings(world) == [
        f"broker at 10.0.0.1:40000 speaks link protocol {other}, not {LINK_PROTOCOL}; link refused"
    ]
    assert not world.node.cluster.links
    unharmed(world)


@pytest.mark.parametrize("other", OTHERS)
def test_a_called_broker_of_another_version_is_refused_in_one_line(other: str) -> None:
    world = lone()
    called = Called(world, 1)
    called.take()
    called.send(bridge(1, protocol=other))
    assert called.conn.closed
    (answer,) = called.take()
    assert answer.code == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
    assert world.counters.links_refused == 1
    assert warnings(world) == [
        f"broker at 10.0.0.1:1883 speaks link protocol {other}, not {LINK_PROTOCOL}; link refused"
    ]
    assert not world.node.cluster.links
    unharmed(world)


def test_a_refusal_for_our_version_is_logged_and_counted() -> None:
    world = lone()
    called = Called(world, 1)
    why = f"your broker speaks link protocol {LINK_PROTOCOL}, not 99"
    refusal: Any = {Property.REASON_STRING: why}
    called.send(Connack(False, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, refusal))
    assert called.conn.closed
    assert world.counters.links_refused == 1
    assert warnings(world) == [f"broker at 10.0.0.1:1883 refused the link: {why}"]
    assert not world.node.cluster.link_registry.handshakes
    unharmed(world)
