"""`--routing ort` at one broker: what it tells its neighbours, byte for byte, and which links
messages take."""

from __future__ import annotations

from typing import Any

import pytest

from mqttree.broker.base.address import Address
from mqttree.broker.cluster.link.control_records import TOPIC_PINGREQ, TOPIC_PINGRESP
from mqttree.broker.cluster.strategy.ort import Ort
from mqttree.broker.cluster.strategy.published_topics import NOT_NOTED
from mqttree.broker.limits import Limits
from mqttree.stp.priority_vector import RootVector
from mqttree.stp.topic_ping import (
    FORMING,
    LEAVING,
    TopicPing,
    decode_pings,
    decode_topics,
    encode_ping,
    encode_topics,
)
from tests.kit.link_harness import OWN, Neighbour, bid, lone, message, ping
from tests.kit.node_harness import World

TT = 0.2


def alone(limits: Limits | None = None, **config: Any) -> World:
    return lone(routing="ort", link_timeout=1000.0, limits=limits or Limits(), **config)


def child(world: World, number: int = 1) -> Neighbour:
    return Neighbour(world, number, routing="ort").child()


def with_child(limits: Limits | None = None, **config: Any) -> tuple[World, Neighbour]:
    world = alone(limits, **config)
    return world, child(world)


def with_two() -> tuple[World, Neighbour, Neighbour]:
    world = alone()
    return world, child(world, 1), child(world, 2)


def root(number: int, capability: float = 1.0) -> RootVector:
    return RootVector(bid(number), 1, round(capability * 10), Address(f"10.0.0.{number}", 1883))


def claim(number: int, topic: str = "t", **values: Any) -> bytes:
    """What broker `number` says; without more, that it is the root."""
    told = TopicPing(topic.encode(), root(number), 1, 0, bid(number), 10, 0, 0)
    return encode_ping(told._replace(**values))


def follows(number: int, topic: str = "t", **values: Any) -> bytes:
    """What broker `number` says which follows this one."""
    own = RootVector(OWN, 1, 0, Address("10.0.0.77", 1883))
    return claim(number, topic, root=own, parent=OWN, path_cost_us=100, **values)


def pings(neighbour: Neighbour) -> list[TopicPing]:
    """The topic PINGREQs that came since the last look; what is due is sent at the next tick."""
    neighbour.world.advance(0.01)
    return [one for body in neighbour.records(TOPIC_PINGREQ) for one in decode_pings(body)]


def strategy(world: World) -> Ort:
    found = world.node.cluster.strategy
    assert isinstance(found, Ort)
    return found


def test_the_first_message_of_a_topic_sends_a_topic_pingreq_to_all_neighbours() -> None:
    world, one, other = with_two()
    client = world.connect("client")
    client.publish("a/b", b"1")
    for neighbour in (one, other):
        (told,) = pings(neighbour)
        assert (told.topic, told.flags, told.root.id, told.parent) == (b"a/b", FORMING, OWN, OWN)
        assert (told.path_cost_us, told.rooted, told.clients) == (0, 0, 1)
    client.publish("a/b", b"2")
    client.publish("a/b", b"3", qos=1)
    assert pings(one) == []


def test_a_subscription_to_a_topic_does_so_too_and_one_with_wildcards_does_not() -> None:
    world, neighbour = with_child()
    client = world.connect("client").subscribed("a/b")
    assert [told.topic for told in pings(neighbour)] == [b"a/b"]
    client.subscribe("x/#")
    client.subscribe("$SYS/#")
    assert pings(neighbour) == []
    neighbour.send(ping((TOPIC_PINGREQ, claim(1, "x/y"))))
    assert [told.topic for told in pings(neighbour)] == [b"x/y"]


def test_a_topic_pingreq_is_answered_only_where_the_topic_has_a_client() -> None:
    world, neighbour = with_child()
    world.connect("client").subscribe("a/b")
    pings(neighbour)
    neighbour.send(ping((TOPIC_PINGREQ, claim(1, "a/b") + claim(1, "a/c"))))
    world.advance(0.01)
    answers = neighbour.records(TOPIC_PINGRESP)
    assert answers == [encode_topics([b"a/b"])]


def test_messages_go_to_parent_and_children_once_tt_has_passed() -> None:
    world = alone()
    parent, below, other = child(world, 1), child(world, 2), child(world, 3)
    client = world.connect("client")
    client.publish("t", b"too early", qos=1)
    parent.send(ping((TOPIC_PINGREQ, claim(1, root=root(1, 99.0)))))
    below.send(ping((TOPIC_PINGREQ, follows(2))))
    other.send(ping((TOPIC_PINGREQ, claim(3, root=root(1, 99.0), parent=bid(1)))))
    client.publish("t", b"still too early", qos=1)
    world.advance(TT + 0.1)
    client.publish("t", b"first", qos=1)
    client.publish("t", b"second", qos=0)
    client.publish("u", b"another topic", qos=1)
    assert parent.messages() == below.messages() == [b"first", b"second"]
    assert other.messages() == []


def test_what_members_missed_is_counted_unless_it_is_qos_0() -> None:
    world = alone()
    below = child(world, 2)
    client = world.connect("client")
    for qos in (0, 1, 2):
        client.publish("t", b"while the overlay forms", qos=qos)
    below.send(ping((TOPIC_PINGRESP, encode_topics([b"t"]))))
    client.publish("t", b"goes everywhere", qos=1, retain=True)
    world.advance(TT + 0.1)
    assert world.counters.lost_before_path == 0
    below.send(ping((TOPIC_PINGREQ, follows(2))))
    world.advance(0.01)
    assert world.counters.lost_before_path == 2
    client.publish("t", b"arrives", qos=1)
    below.send(ping((TOPIC_PINGREQ, follows(2))))
    world.advance(0.01)
    assert world.counters.lost_before_path == 2


def test_messages_of_others_are_flooded_in_the_overlay_but_not_back() -> None:
    world, parent, below = with_two()
    world.connect("client").subscribe("t")
    parent.send(ping((TOPIC_PINGREQ, claim(1, root=root(1, 99.0)))))
    below.send(ping((TOPIC_PINGREQ, follows(2))))
    world.advance(TT + 0.1)
    parent.messages(), below.messages()
    below.send(message(b"t", b"down", sequence=5))
    assert (parent.messages(), below.messages()) == ([b"down"], [])
    parent.send(message(b"t", b"up", sequence=6))
    assert (parent.messages(), below.messages()) == ([], [b"up"])


def test_each_number_is_taken_once_in_whatever_order_it_comes() -> None:
    for qos in (0, 1, 2):
        world, one, other = with_two()
        client = world.connect("client").subscribed("#", qos=2)
        for number in (5, 9, 7, 5, 7, 6):
            sender = one if number % 2 else other
            sender.send(message(b"t%d" % number, b"%d" % number, qos=qos, sequence=number))
        assert client.payloads() == [b"5", b"9", b"7", b"6"], qos
        assert world.counters.duplicates == 2


def test_clients_of_before_the_first_neighbour_are_known_then() -> None:
    world = alone()
    client = world.connect("client").subscribed("w")
    client.subscribe("x/#")
    client.publish("t", b"x")
    neighbour = child(world)
    world.advance(0.6)  # a round
    assert {told.topic for told in pings(neighbour)} == {b"w"}
    client.publish("t", b"x")
    assert [told.topic for told in pings(neighbour)] == [b"t"]


def test_a_broker_without_a_client_of_the_topic_leaves_at_its_next_round() -> None:
    world, neighbour = with_child(Limits(advertised_s=10.0))
    client = world.connect("client").subscribed("s")
    client.publish("p", b"x")
    pings(neighbour)
    client.unsubscribe("s")
    world.advance(1.0)
    left = [told.topic for told in pings(neighbour) if told.flags & LEAVING]
    assert left == [b"s"]
    assert strategy(world).report()["topic_overlays"]["topics"] == 1
    world.advance(25.0)
    left = [told.topic for told in pings(neighbour) if told.flags & LEAVING]
    assert left == [b"p"]
    assert strategy(world).report()["topic_overlays"]["topics"] == 0
    client.publish("p", b"x")
    assert [told.topic for told in pings(neighbour)] == [b"p"]


def test_what_only_passes_through_is_not_published_here() -> None:
    world, neighbour = with_child()
    neighbour.send(ping((TOPIC_PINGREQ, claim(1))))
    route = world.node.dispatcher.route(b"t")
    assert route.brokers == (NOT_NOTED, b"t")
    assert strategy(world).links_onward(route, b"", neighbour.link()) == []
    assert pings(neighbour) == []


def test_topics_beyond_the_limit_are_counted_and_nothing_else_is_lost() -> None:
    world, neighbour = with_child(Limits(max_topic_overlays=2))
    client = world.connect("client").subscribed("#")
    for topic in ("1", "2", "3"):
        client.publish(topic, b"x")
    assert world.counters.overlays_refused >= 1
    assert {told.topic for told in pings(neighbour)} == {b"1", b"2"}
    assert neighbour.up
    assert client.payloads() == [b"x"] * 3


def test_overlays_are_forgotten_with_the_link() -> None:
    world, neighbour = with_child()
    client = world.connect("client")
    client.publish("t", b"x")
    neighbour.send(ping((TOPIC_PINGREQ, claim(1, root=root(1, 99.0)))))
    world.advance(TT + 0.1)
    assert strategy(world).overlays.neighbours(b"t") == (bid(1),)
    assert strategy(world).uses(neighbour.link())
    world.node.connection_lost(neighbour.conn, "gone", world.now)
    assert strategy(world).overlays.neighbours(b"t") == ()
    client.publish("t", b"x")
    assert strategy(world).memory > 0


@pytest.mark.parametrize(("policy", "parent"), [("capability", OWN), ("balance", bid(1))])
def test_the_policy_and_its_weights_are_those_of_the_configuration(
    policy: str, parent: bytes
) -> None:
    world, neighbour = with_child(
        overlay_policy=policy, overlay_gamma=1.0, overlay_delta=3.0, capability=50.0
    )
    world.connect("client").publish("t", b"x")
    # RB 2 is lower than that of this broker, which has one client.
    merit = 0xFFFFFFFF - 20 if policy == "balance" else 10
    theirs = RootVector(bid(1), 1, merit, Address("10.0.0.1", 1883))
    neighbour.send(ping((TOPIC_PINGREQ, claim(1, root=theirs))))
    world.advance(TT + 0.1)
    last = pings(neighbour)[-1]
    assert last.parent == parent
    assert last.tenths == 500


def test_a_capability_that_is_measured_again_counts_in_the_next_elections() -> None:
    world, neighbour = with_child(capability=1.0)
    world.connect("client").publish("t", b"x")
    neighbour.send(ping((TOPIC_PINGREQ, claim(1, root=root(1, 5.0)))))
    world.advance(TT + 0.1)
    assert pings(neighbour)[-1].root.id == bid(1)
    world.node.cluster.set_capability(9.0, world.now)
    world.advance(1.0)
    assert pings(neighbour)[-1].root.id == OWN


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (TOPIC_PINGREQ, b"\0"),
        (TOPIC_PINGREQ, claim(1)[:-1]),
        (TOPIC_PINGREQ, claim(1, "a/+")),
        (TOPIC_PINGREQ, claim(1, "$SYS/t")),
        (TOPIC_PINGREQ, claim(1, "a\0")),
        (TOPIC_PINGRESP, b"\0\0"),
        (TOPIC_PINGRESP, b"\0\2a"),
    ],
)
def test_an_invalid_record_closes_the_link(kind: int, body: bytes) -> None:
    world, neighbour = with_child()
    neighbour.send(ping((kind, body)))
    assert not neighbour.up
    assert world.counters.link_garbage == 1


def test_many_topics_go_in_records_that_are_not_too_long() -> None:
    world, neighbour = with_child()
    client = world.connect("client")
    for number in range(1000):
        client.publish(f"t/{number}", b"x")
    world.advance(0.01)
    bodies = neighbour.records(TOPIC_PINGREQ)
    assert len(bodies) > 1
    assert max(map(len, bodies)) < 40_000
    assert len([told for body in bodies for told in decode_pings(body)]) == 1000
    assert not [
        topic for body in neighbour.records(TOPIC_PINGRESP) for topic in decode_topics(body)
    ]
