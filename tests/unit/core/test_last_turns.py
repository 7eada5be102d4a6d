"""What very many clients bring about in one moment takes several turns: keep alives that end, a
broker that stops, properties."""

from __future__ import annotations

import pytest

from mqttree.broker.core.client_registry import CLOSED_WORK
from mqttree.broker.limits import DEFAULTS
from mqttree.broker.wire.constants import WILL, PacketType, ReasonCode
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.errors import MalformedPacket, ProtocolViolation
from mqttree.broker.wire.packets import (
    Connack,
    Disconnect,
    Pingreq,
    Puback,
    Publish,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from mqttree.broker.wire.properties import (
    MAX_REPEATED,
    Properties,
    Property,
    decode_properties,
    encode_properties,
    forwardable,
)
from tests.kit.link_harness import Neighbour, lone
from tests.kit.node_harness import FakeClient, World, connect_packet

AT_ONCE = DEFAULTS.turn_work // CLOSED_WORK
"""clients that are closed in one turn"""
COUNT = 3 * AT_ONCE


def many(world: World, **options: object) -> list[FakeClient]:
    found = []
    for number in range(COUNT):
        client = world.open()
        client.send(connect_packet(f"c{number}", **options))  # type: ignore[arg-type]
        client.transport.written.clear()
        found.append(client)
    return found


def closed(clients: list[FakeClient]) -> int:
    return sum(client.transport.closing for client in clients)


def turn(world: World) -> None:
    """One turn of the loop."""
    due = world.node.next_deadline()
    assert due is not None
    world.now = max(world.now, due)
    world.node.tick(world.now)
    world.node.output.flush()
    world.node.take_effects()


# ---------------------------------------------------------------- keep alives


def test_keep_alives_that_end_together() -> None:
    """All clients of a network that failed; one of them says something between two turns."""
    world = World()
    watcher = world.connect("watcher").subscribed("w/#", qos=0)
    clients = many(world, keep_alive=10, will=Will("w/gone", b"x", 0, False))
    while not closed(clients):
        turn(world)
    assert closed(clients) == AT_ONCE
    lives = next(client for client in clients if not client.transport.closing)
    lives.conn.receive(encode_packet(Pingreq(), 5), world.now)
    before = 0
    while closed(clients) < COUNT - 1:
        assert closed(clients) - before <= AT_ONCE
        before = closed(clients)
        turn(world)
    world.settle()
    assert not lives.transport.closing
    assert len(watcher.payloads()) == COUNT - 1
    world.advance(20)
    assert closed(clients) == COUNT


def test_a_client_may_end_between_two_turns_of_a_shutdown() -> None:
    world = World()
    clients = many(world, keep_alive=10)
    while not closed(clients):
        turn(world)
    next(client for client in clients if not client.transport.closing).vanish()
    world.advance(1)
    assert closed(clients) == COUNT - 1
    assert world.counters.keep_alive_timeout == COUNT - 1


# ---------------------------------------------------------------- the end


def test_a_stop_with_very_many_clients() -> None:
    """Clients that are not disconnected yet go on: they publish, leave, get the wills of the
    others. No new one is let in."""
    world = lone()
    neighbour = Neighbour(world, 101).child().known()
    clients = many(world, will=Will("w", b"will", 0, False))
    late = world.open()
    last = world.connect("last", version=5).subscribed("#", qos=1)
    ended: list[float] = []
    world.node.stop(world.now, lambda: ended.append(world.now))
    world.settle()
    assert closed(clients) == AT_ONCE
    assert len(last.payloads()) == AT_ONCE
    assert neighbour.up
    world.node.stop(world.now, lambda: ended.append(-1.0))  # a second call
    late.send(connect_packet("late"))
    assert late.take() == [Connack(False, ReasonCode.SERVER_UNAVAILABLE)]
    waits, leaves, other = [client for client in clients if not client.transport.closing][:3]
    other.send(Publish("t", b"between", 1, packet_id=1))
    assert [type(packet) for packet in other.take()] == [Puback]
    leaves.disconnect()
    assert b"between" in last.payloads()
    assert not ended
    for _ in range(6):
        turn(world)
        world.settle()
    assert closed(clients) == COUNT
    assert waits.take() == [Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)]
    assert [type(packet) for packet in last.take()][-1] is Disconnect
    assert len(ended) == 1
    assert not neighbour.up
    assert world.counters.wills == COUNT - 1  # all but that of who has left by itself


# ---------------------------------------------------------------- properties


def properties(count: int) -> Properties:
    return {Property.USER_PROPERTY: [("", "")] * count}


@pytest.mark.statement(
    "choice/more than 32,768 User Properties, or Subscription Identifiers, in one packet"
)
@pytest.mark.parametrize(
    "kind", [PacketType.PUBLISH, PacketType.CONNECT, PacketType.SUBSCRIBE, WILL]
)
def test_too_many_user_properties_are_refused(kind: int) -> None:
    most = encode_properties(properties(MAX_REPEATED))
    assert decode_properties(most, 0, kind)[1] == len(most)
    with pytest.raises(ProtocolViolation) as raised:
        decode_properties(encode_properties(properties(MAX_REPEATED + 1)), 0, kind)
    assert raised.value.reason == ReasonCode.QUOTA_EXCEEDED


def test_a_connect_may_have_as_many_user_properties_as_a_publish() -> None:
    world = World()
    assert world.connect("c", properties=properties(MAX_REPEATED)).connack.code == 0
    client = world.open().sent(connect_packet("d", properties=properties(MAX_REPEATED + 1)))
    assert client.last_reason() == ReasonCode.QUOTA_EXCEEDED


def test_a_packet_with_too_many_filters_is_refused() -> None:
    client = World().connect("c")
    filters = [SubscriptionRequest("a" * 60_000, 0)] * 22
    client.send(Subscribe(1, filters))
    assert client.last_reason() == ReasonCode.QUOTA_EXCEEDED


def test_too_many_subscription_identifiers_are_refused() -> None:
    many = encode_properties({Property.SUBSCRIPTION_IDENTIFIER: [1] * (MAX_REPEATED + 1)})
    with pytest.raises(ProtocolViolation):
        decode_properties(many, 0, PacketType.PUBLISH)
    with pytest.raises((ProtocolViolation, MalformedPacket)):
        decode_properties(many, 0, PacketType.SUBSCRIBE)


@pytest.mark.statement(
    "choice/more than 32,768 User Properties, or Subscription Identifiers, in one packet"
)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_too_many_properties_close_a_client_and_many_end_its_turn(qos: int) -> None:
    world = World()
    client, other = world.connect("c"), world.connect("o").subscribed("t", qos=0)
    packet_id = 1 if qos else None
    at_most = Publish("t", b"x", qos, packet_id=packet_id, properties=properties(MAX_REPEATED))
    client.send(at_most, Publish("t", b"y", 0))
    assert other.payloads() == [b"x"], "the next one waits for a later turn"
    world.advance(0.1)
    assert other.payloads() == [b"y"]
    client.send(
        Publish("t", b"z", qos, packet_id=packet_id, properties=properties(MAX_REPEATED + 1))
    )
    assert client.last_reason() == ReasonCode.QUOTA_EXCEEDED
    assert other.payloads() == []


def test_packets_with_too_many_properties_are_not_forwarded_as_they_came() -> None:
    few, many = (encode_properties(properties(count))[2:] for count in (100, 2000))
    assert forwardable(few)
    assert forwardable(many)
    assert not forwardable(b"\x26\0\0\0\0" * (MAX_REPEATED + 1))
