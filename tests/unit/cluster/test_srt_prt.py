"""`--routing srt` at one broker: what it tells its neighbours, byte for byte, and which links
messages take."""

from __future__ import annotations

import pytest

from mqttree.broker.cluster.link.control_records import FILTERS, PUBADV
from mqttree.broker.cluster.placement.topic_knowledge import TopicKnowledge
from mqttree.broker.cluster.strategy.published_topics import NOT_NOTED
from mqttree.broker.cluster.strategy.srt_prt import SrtPrt, decoded
from mqttree.broker.config.routing_modes import ALONE, ROUTINGS, mixes
from mqttree.broker.limits import Limits
from mqttree.broker.wire.encode import encode_packet
from tests.kit.link_harness import Neighbour, bridge, lone, ping, warnings
from tests.kit.node_harness import World

Entry = tuple[str, bool]


def alone(limits: Limits | None = None) -> World:
    return lone(routing="srt", link_timeout=1000.0, limits=limits or Limits())


def child(world: World, number: int = 1) -> Neighbour:
    return Neighbour(world, number, routing="srt").child()


def with_child(limits: Limits | None = None) -> tuple[World, Neighbour]:
    world = alone(limits)
    return world, child(world)


def with_two() -> tuple[World, Neighbour, Neighbour]:
    world = alone()
    return world, child(world, 1), child(world, 2)


def entry(text: str, on: bool = True) -> bytes:
    return bytes((on,)) + len(text).to_bytes(2, "big") + text.encode()


def wish(text: str, on: bool = True, age: int = 0) -> bytes:
    return bytes((on,)) + age.to_bytes(4, "big") + len(text).to_bytes(2, "big") + text.encode()


def bodies(neighbour: Neighbour, kind: int) -> list[bytes]:
    """The records of a kind that came since the last look; what is due is sent at the next tick."""
    neighbour.world.advance(0.01)
    return neighbour.records(kind)


def told(neighbour: Neighbour) -> tuple[list[Entry], list[Entry]]:
    """The topics and filters that came since the last look."""
    neighbour.world.advance(0.01)
    found: dict[int, list[Entry]] = {PUBADV: [], FILTERS: []}
    for kind, body in neighbour.control():
        if kind in found:
            rows = decoded(body, 4 if kind == FILTERS else 0)
            found[kind] += [(text, on) for text, on, _ in rows]
    return found[PUBADV], found[FILTERS]


def strategy(world: World) -> SrtPrt:
    found = world.node.cluster.strategy
    assert isinstance(found, SrtPrt)
    return found


def test_the_first_message_of_a_topic_advertises_it_byte_for_byte() -> None:
    world, neighbour = with_child()
    client = world.connect("client")
    client.publish("a/b", b"1")
    assert bodies(neighbour, PUBADV) == [bytes.fromhex("01 0003") + b"a/b"]
    client.publish("a/b", b"2")
    client.publish("a/b", b"3", qos=1)
    assert bodies(neighbour, PUBADV) == []


def test_a_subscription_follows_an_advertisement_byte_for_byte() -> None:
    world, near, other = with_two()
    world.connect("client").subscribe("a/#")
    assert told(near) == told(other) == ([], [])
    world.advance(0.23)
    near.send(ping((PUBADV, entry("a/b"))))
    assert bodies(near, FILTERS) == [bytes.fromhex("01 000000fa 0003") + b"a/#"]
    assert told(other) == ([("a/b", True)], [])
    near.send(ping((PUBADV, entry("a/b", False))))
    assert bodies(near, FILTERS) == [bytes.fromhex("00 00000000 0003") + b"a/#"]
    assert told(other) == ([("a/b", False)], [])


def test_messages_take_the_links_over_which_filters_came() -> None:
    world, one, other = with_two()
    client = world.connect("client")
    client.publish("a/b", b"too early", qos=1)
    one.send(ping((FILTERS, wish("a/+"))))
    client.publish("a/b", b"first", qos=1)
    client.publish("a/c", b"second", qos=0)
    client.publish("b", b"unwanted", qos=1)
    one.send(ping((FILTERS, wish("a/+", False))))
    client.publish("a/b", b"too late", qos=1)
    assert one.messages() == [b"first", b"second"]
    assert other.messages() == []


def test_what_only_passes_through_is_not_advertised_as_published_here() -> None:
    world, one, other = with_two()
    other.send(ping((FILTERS, wish("t"))))
    one.send(ping((PUBADV, entry("t"))))
    told(one)
    route = world.node.dispatcher.route(b"t")
    assert route.brokers[:2] == (NOT_NOTED, b"t")
    found = strategy(world).links_onward(route, b"", one.link())
    assert [link.peer.id for link in found if link.peer] == [(2).to_bytes(8, "big")]
    assert told(one) == ([], [])
    world.connect("client").publish("t", b"x")
    assert told(one) == ([("t", True)], [])
    world.advance(0.01)
    # Topics with the same receivers share a route again.
    assert world.node.dispatcher.route(b"t").brokers == ((2).to_bytes(8, "big"),)


def test_clients_of_before_the_first_neighbour_are_known_then() -> None:
    world = alone()
    client = world.connect("client").subscribed("w")
    client.publish("t", b"x")
    neighbour = child(world)
    neighbour.send(ping((PUBADV, entry("w"))))
    assert told(neighbour) == ([], [("w", True)])
    client.publish("t", b"x")
    assert told(neighbour) == ([("t", True)], [])


def test_a_topic_without_messages_for_long_is_withdrawn() -> None:
    world, neighbour = with_child(Limits(advertised_s=10.0))
    client = world.connect("client")
    client.publish("often", b"x")
    client.publish("once", b"x")
    told(neighbour)
    for _ in range(4):
        world.advance(8.0)
        client.publish("often", b"x")
    assert told(neighbour) == ([("once", False)], [])
    client.publish("once", b"x")
    assert told(neighbour) == ([("once", True)], [])
    world.advance(30.0)
    assert sorted(told(neighbour)[0]) == [("often", False), ("once", False)]


def test_messages_before_the_subscription_arrived_are_counted_as_lost() -> None:
    world, neighbour = with_child()
    client = world.connect("client")
    for _ in range(2):
        client.publish("a/b", b"before the subscription", qos=1)
    world.advance(1.0)
    for qos in (0, 1, 2):
        client.publish("a/b", b"lost, and counted unless it is QoS 0", qos=qos)
    client.publish("a/b", b"goes everywhere", qos=1, retain=True)
    client.publish("unwanted", b"x", qos=1)
    neighbour.send(ping((FILTERS, wish("a/#", age=500) + wish("a/b", age=100))))
    assert world.counters.lost_before_path == 2
    # Messages that another filter of the same neighbour has brought there are not lost.
    client.publish("a/b", b"arrives", qos=1)
    neighbour.send(ping((FILTERS, wish("+/b", age=100))))
    assert world.counters.lost_before_path == 2


def test_what_came_from_the_subscriber_is_not_lost_for_it() -> None:
    world, one, other = with_two()
    world.connect("client").publish("t", b"x", qos=1)
    world.advance(0.1)
    for number, neighbour in enumerate((one, other), 1):
        neighbour.send(ping((FILTERS, wish("t", age=1000))))
        assert world.counters.lost_before_path == number


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (PUBADV, b"\1"),
        (PUBADV, b"\1\0"),
        (PUBADV, b"\1\0\2t"),
        (PUBADV, b"\2\0\1t"),
        (PUBADV, b"\1\0\0"),
        (PUBADV, b"\1\0\1\xff"),
        (PUBADV, entry("a/+")),
        (PUBADV, entry("$SYS/t")),
        (PUBADV, entry("a\0")),
        (FILTERS, b"\1\0\0\0\0\0"),
        (FILTERS, wish("")),
        (FILTERS, wish("a#")),
        (FILTERS, wish("$share/g/t")),
        (FILTERS, wish("t") + b"\1"),
    ],
)
def test_an_invalid_record_closes_the_link(kind: int, body: bytes) -> None:
    world, neighbour = with_child()
    neighbour.send(ping((kind, body)))
    assert not neighbour.up
    assert world.counters.link_garbage == 1


def test_what_has_no_room_is_counted_and_nothing_else_is_lost() -> None:
    world, neighbour = with_child(Limits(advertised_memory=1100))
    neighbour.send(ping((PUBADV, entry("a") + entry("b") + entry("c"))))
    assert world.counters.advertisements_refused == 1
    client = world.connect("client")
    for topic in ("1", "2", "3", "3"):
        client.publish(topic, b"x")
    assert world.counters.advertisements_refused >= 2
    assert told(neighbour) == ([("1", True), ("2", True)], [])
    client.subscribe("+")
    assert told(neighbour) == ([], [])
    assert neighbour.up


def test_placement_takes_any_broker_for_one_that_wants_a_topic() -> None:
    """The next hops of a topic are not the brokers that want it, and these are not known."""
    world = alone()
    child(world).known()
    cluster = world.node.cluster
    knowledge = TopicKnowledge(world.node, cluster.tree, cluster.database, cluster.strategy)
    assert set(knowledge.wanted("t")) == {
        world.node.config.id.hex(),
        *[listing.id.hex() for listing in cluster.database.reachable()],
    }
    assert len(knowledge.wanted("t")) > 1


def test_tables_are_forgotten_with_the_link() -> None:
    world, one, other = with_two()
    one.send(ping((PUBADV, entry("t")), (FILTERS, wish("u"))))
    world.connect("client").publish("u", b"x")
    assert strategy(world).report()["srt_prt"] == {"advertised": 1, "topics": 1, "filters": 1}
    told(other)
    world.node.connection_lost(one.conn, "gone", world.now)
    world.advance(0.1)
    assert ("t", False) in told(other)[0]
    assert strategy(world).report()["srt_prt"] == {"advertised": 1, "topics": 0, "filters": 0}
    assert strategy(world).memory > 0


@pytest.mark.parametrize("mode", [mode for mode in ROUTINGS if mode != "srt"])
def test_brokers_of_other_modes_are_refused_with_one_line(mode: str) -> None:
    for own, other in (("srt", mode), (mode, "srt")):
        world = lone(routing=own)
        neighbour = Neighbour(world, 1, link=False)
        neighbour.send(encode_packet(bridge(1, routing=other), 5))
        assert not neighbour.up
        assert [line.partition(" routes")[2] for line in warnings(world)] == [
            f" by {other}, which does not mix with {own}; link refused"
        ]
        assert world.counters.links_refused == 1


def test_modes_mix_both_ways_or_not_at_all() -> None:
    for one in ROUTINGS:
        assert mixes(one, one)
        for other in ROUTINGS:
            assert mixes(one, other) == mixes(other, one)
            assert mixes(one, other) == (one == other or not ALONE & {one, other})
