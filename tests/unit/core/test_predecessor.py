"""A client's last connection is handled to its end before the next one takes over: what plugins,
backpressure or the kernel holds."""

from __future__ import annotations

import pytest

from mqttree.broker.cluster.sessions.takeover_messages import (
    MERGE,
    SESSION_REQUEST,
    TAKE,
    encode_takeover,
)
from mqttree.broker.core.effects import Authenticate, AuthorizePublish, AuthorizeReceive, Hooks
from mqttree.broker.core.predecessor import MAX_SUCCESSORS, PREDECESSOR_MAX_S, PREDECESSOR_SILENCE_S
from mqttree.broker.core.session_owner import ANONYMOUS, Entry
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import (
    Connack,
    Disconnect,
    Packet,
    Publish,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from mqttree.broker.wire.properties import Property
from tests.kit.link_harness import Neighbour, lone
from tests.kit.node_harness import FakeClient, World, connect_packet
from tests.unit.cluster.test_unicast_bus import routed

WILL = Will("will", b"gone")
SUBSCRIBE = Subscribe(1, [SubscriptionRequest("a", 1)])


def sent(*packets: Packet) -> bytes:
    return b"".join(encode_packet(packet, 5) for packet in packets)


def subscriber(world: World) -> FakeClient:
    return world.connect("s").subscribed("#")


def reconnects(world: World) -> FakeClient:
    return world.open().sent(connect_packet("c"))


def accepted(client: FakeClient) -> bool:
    """Whether nothing but CONNACK has come."""
    packets = client.take()
    return [type(packet) for packet in packets] == [Connack] and packets[0].code == 0  # type: ignore[union-attr]


@pytest.mark.statement("MQTT-3.14.4-3")
def test_bytes_in_the_kernel_are_read_before_the_takeover() -> None:
    world = World()
    listener = subscriber(world)
    old = world.connect("c", will=WILL)
    old.transport.early = [sent(Publish("t", b"1"), Disconnect())]
    new = reconnects(world)
    assert accepted(new), "at once"
    assert listener.payloads() == [b"1"]
    assert world.counters.taken_over == 0


def test_a_peer_that_never_stops_sending_is_taken_over_all_the_same() -> None:
    world = World()
    subscriber(world)
    old = world.connect("c")
    old.transport.early = [sent(Publish("t", b"x"))] * 10_000
    new = reconnects(world)
    world.advance(PREDECESSOR_MAX_S - 0.1)
    assert new.take() == []
    world.advance(0.2)
    assert accepted(new)
    assert old.closed
    assert world.counters.takeover_unread == world.counters.taken_over == 1
    assert "before all its packets are handled" in "".join(world.logged)


def test_packets_that_wait_for_a_plugin_are_waited_for() -> None:
    world = World(hooks=Hooks(topics=True))
    world.connect("c", will=WILL).send(Publish("t", b"1"), Publish("t", b"2"), Disconnect())
    new = reconnects(world)
    new.send(Publish("t", b"3"))
    for _ in range(2):
        world.advance(0.1)
        assert new.take() == []
        assert world.answer(AuthorizePublish, True) == 1
        world.answer(AuthorizeReceive, lambda effect: set(effect.receivers))
    world.advance(0.1)
    assert accepted(new)
    assert world.counters.wills == world.counters.taken_over == 0
    assert world.answer(AuthorizePublish, True) == 1
    assert world.counters.published == 3


def test_a_plugin_that_does_not_answer_is_not_waited_for_long() -> None:
    world = World(hooks=Hooks(topics=True))
    old = world.connect("c")
    old.send(Publish("t", b"1"))
    old.vanish()
    new = reconnects(world)
    world.advance(PREDECESSOR_SILENCE_S - 0.1)
    assert new.take() == []
    world.advance(0.2)
    assert accepted(new)
    assert world.counters.takeover_unread == 1


def test_packets_that_backpressure_holds_are_waited_for() -> None:
    world = World()
    listener = subscriber(world)
    old = world.connect("c", will=WILL)
    slow = world.connect("slow")
    old.conn.hold()
    world.node.flow_control._held[slow.conn] = {old.conn: None}
    old.transport.early = [sent(Publish("t", b"1"), Disconnect())]
    new = reconnects(world)
    world.advance(PREDECESSOR_SILENCE_S / 2)
    assert new.take() == []
    world.node.flow_control.release(slow.conn)
    world.advance(0.1)
    assert listener.payloads() == [b"1"]
    assert accepted(new)


def test_later_connections_of_a_client_wait_in_line() -> None:
    """Each of them published, too, and one has gone since."""
    world = World()
    listener = subscriber(world)
    old = world.connect("c", will=WILL)
    old.transport.early = [sent(Publish("t", b"0"))] * 3 + [sent(Disconnect())]
    second = reconnects(world)
    second.send(Publish("t", b"1"), Disconnect())
    second.vanish()
    third = reconnects(world)
    third.send(Publish("t", b"2"))
    world.advance(0.1)
    assert listener.payloads() == [b"0"] * 3 + [b"1", b"2"]
    assert accepted(third)
    assert not third.closed
    assert world.node.connection_registry.ended == world.counters.wills == 0
    assert not world.node.predecessors._lines


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize(
    ("behind", "began"),
    [
        pytest.param((), False, id="nothing"),
        pytest.param((Disconnect(),), False, id="DISCONNECT"),
        pytest.param((SUBSCRIBE,), True, id="SUBSCRIBE"),
        pytest.param((SUBSCRIBE, Disconnect()), True, id="SUBSCRIBE and DISCONNECT"),
    ],
)
def test_a_connection_that_ends_in_line_begins_no_session(
    behind: tuple[Packet, ...], *, began: bool, clean: bool
) -> None:
    """The client cannot learn that its session begins. So it does not begin, unless the client says
    something in it: at its next CONNECT a session would be present that it knows nothing of."""
    world = World()
    kept = {Property.SESSION_EXPIRY_INTERVAL: 60}
    old = world.connect("c")
    old.transport.early = [sent(Publish("t", b"0"))] * 3 + [sent(Disconnect())]
    world.open().sent(connect_packet("c", clean=clean, properties=kept), *behind).vanish()
    world.advance(0.1)
    assert old.closed
    assert not world.node.connections
    assert not world.node.predecessors._lines
    assert world.node.clients.connected == world.node.connection_registry.ended == 0
    third = world.connect("c", clean=False, properties=kept)
    assert third.connack.session_present is began


def test_the_will_of_a_client_that_goes_while_it_waits_is_sent() -> None:
    world = World()
    listener = subscriber(world)
    old = world.connect("c")
    old.transport.early = [sent(Publish("t", b"0"))] * 3 + [sent(Disconnect())]
    world.open().sent(connect_packet("c", will=WILL)).vanish()
    world.advance(0.1)
    assert listener.payloads() == [b"0"] * 3 + [b"gone"]


def test_the_line_of_waiting_connections_is_bounded() -> None:
    world = World()
    old = world.connect("c")
    old.transport.early = [sent(Publish("t", b"x"))] * 10_000
    waiting = [reconnects(world) for _ in range(MAX_SUCCESSORS)]
    (busy,) = reconnects(world).take()
    assert isinstance(busy, Connack)
    assert busy.code == 0x89
    world.advance(PREDECESSOR_MAX_S + 1)
    assert [client.closed for client in waiting] == [True] * (len(waiting) - 1) + [False]
    assert not world.node.predecessors._lines


def test_authentication_comes_before_the_wait_for_a_predecessor() -> None:
    """A stranger cannot make the broker read anybody's connection."""
    world = World(hooks=Hooks(authenticate=True))
    old = world.open().sent(connect_packet("c"))
    world.answer(Authenticate, True)
    old.transport.early = [sent(Publish("t", b"1"))] * 2
    stranger = reconnects(world)
    world.answer(Authenticate, False)
    assert len(old.transport.early) == 2
    assert not old.closed
    stranger.take()
    new = reconnects(world)
    world.answer(Authenticate, True)
    world.advance(0.1)
    assert accepted(new)
    assert world.counters.published == 2


def test_the_rest_of_a_partial_packet_is_not_waited_for() -> None:
    world = World()
    old = world.connect("c")
    old.transport.early = [sent(Publish("t", b"1"))[:-1]]
    new = reconnects(world)
    assert accepted(new)
    assert old.closed


def elsewhere(world: World, old: FakeClient, *, kept: bool) -> None:
    """The client connects at another broker, which asks for its session (`kept`), or announces its
    own."""
    neighbour = Neighbour(world, 101).child().known()
    stamp = world.session("c").stamp + 1
    assert not old.closed
    if kept:
        neighbour.send(routed(SESSION_REQUEST, encode_takeover(TAKE, stamp, "c", bytes(12))))
    else:
        neighbour.known((b"cc", Entry(0, stamp, stamp, stamp, ANONYMOUS).encode()), number=2)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("pieces", [1, 3])
def test_bytes_in_the_kernel_are_read_before_the_session_moves(pieces: int, kept: bool) -> None:
    world = lone()
    listener = subscriber(world)
    old = world.connect("c", will=WILL, properties={Property.SESSION_EXPIRY_INTERVAL: 60})
    old.transport.early = [sent(Publish("t", b"%d" % n)) for n in range(pieces)] + [
        sent(Disconnect())
    ]
    elsewhere(world, old, kept=kept)
    world.advance(0.1)
    assert listener.payloads() == [b"%d" % n for n in range(pieces)]
    assert world.counters.taken_over == world.counters.takeover_unread == 0


@pytest.mark.parametrize("kept", [False, True])
def test_a_peer_that_never_stops_sending_does_not_hold_its_session(kept: bool) -> None:
    world = lone()
    subscriber(world)
    old = world.connect("c", properties={Property.SESSION_EXPIRY_INTERVAL: 60})
    old.transport.early = [sent(Publish("t", b"x"))] * 10_000
    elsewhere(world, old, kept=kept)
    world.advance(PREDECESSOR_MAX_S - 0.1)
    assert not old.closed
    world.advance(0.2)
    assert old.closed
    assert world.counters.takeover_unread == world.counters.taken_over == 1


def test_garbage_is_found_before_the_client_is_waited_for() -> None:
    world = lone()
    old = world.connect("c", properties={Property.SESSION_EXPIRY_INTERVAL: 60})
    neighbour = Neighbour(world, 101).child().known()
    stamp = world.session("c").stamp + 1
    body = encode_takeover(MERGE, stamp, "c", bytes(12) + b"no vector")
    neighbour.send(routed(SESSION_REQUEST, body))
    world.advance(1)
    assert "SEEN record is truncated; dropped" in "".join(world.logged)
    assert not old.closed
