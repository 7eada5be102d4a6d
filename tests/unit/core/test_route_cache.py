"""Kept routes: shared by the topics with the same receivers, and forgotten when, and only when, a
subscription that matches changes."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.core.route_cache import RouteCache
from mqttree.broker.core.session import Session
from mqttree.broker.limits import Limits
from mqttree.routing.topic_filter import matches
from tests.kit.node_harness import World

TOPICS = ("a", "b", "a/b", "a/c", "b/b", "a/b/c", "/", "b//b")
FILTERS = ("a", "a/b", "a/+", "+/b", "#", "a/#", "+", "b//b", "$share/g/a/+", "$share/g/#")

changes = st.lists(
    st.one_of(
        st.tuples(st.just("subscribe"), st.integers(0, 2), st.sampled_from(FILTERS)),
        st.tuples(st.just("unsubscribe"), st.integers(0, 2), st.sampled_from(FILTERS)),
        st.tuples(st.just("publish"), st.integers(0, 2), st.sampled_from(TOPICS)),
        st.tuples(st.just("wait"), st.integers(0, 2), st.just("")),
        st.tuples(st.just("leave"), st.integers(0, 2), st.just("")),
    ),
    max_size=40,
)


def check(world: World) -> None:
    """Each route is what would be found now; what is counted is there."""
    dispatcher = world.node.dispatcher
    cache: RouteCache = dispatcher.cache
    for topic, route in cache.routes.items():
        assert (route.found, route.beyond) == dispatcher._receivers(topic.decode(), False), topic
    kept = [*cache.routes.values(), *cache._doubtful.values()]
    assert not cache.routes.keys() & cache._doubtful.keys()
    shared = [route for routes in cache._shared.values() for route in routes.values()]
    assert {id(route): kept.count(route) for route in kept} == {
        id(route): route.topics for route in shared
    }
    assert cache._shared_count == len(shared)
    assert all(cache._shared.values())
    assert cache._receivers == sum(len(route.deliveries) for route in shared)


@given(changes, st.sampled_from([4, 64]), st.sampled_from([2, 64]), st.sampled_from([6, 64]))
def test_a_kept_route_is_the_one_that_would_be_found(
    steps: list[tuple[str, int, str]], topics: int, filters: int, receivers: int
) -> None:
    limits = Limits(
        route_cache=topics,
        changed_filters=filters,
        route_cache_deliveries=receivers,
        routes_aged=2,
    )
    world = World(limits=limits)
    clients = [world.connect(f"c{number}") for number in range(3)]
    wanted: dict[int, set[str]] = {0: set(), 1: set(), 2: set()}
    for what, who, text in steps:
        if what == "subscribe":
            clients[who].subscribe(text)
            wanted[who].add(text)
        elif what == "unsubscribe":
            clients[who].unsubscribe(text)
            wanted[who].discard(text)
        elif what == "wait":
            world.advance(1.5)
        elif what == "leave":
            clients[who].disconnect()
            clients[who] = world.connect(f"c{who}")
            wanted[who] = set()
        else:
            for client in clients:
                client.take()
            clients[who].publish(text, b"x")
            for number, client in enumerate(clients):
                plain = any(matches(f, text) for f in wanted[number] if f[0] != "$")
                shared = sum(matches(f[9:], text) for f in wanted[number] if f[0] == "$")
                assert plain <= len(client.take_publishes()) <= plain + shared
        check(world)
    world.advance(30)
    check(world)
    assert not world.node.dispatcher.cache._doubtful


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_topics_with_the_same_receivers_share_a_route(qos: int) -> None:
    world = World()
    subscriber, publisher = world.connect("s").subscribed("a/+", qos=2), world.connect("p")
    for number in range(20):
        publisher.publish(f"a/{number}", b"x", qos, packet_id=qos and 2 * number + 1)
        publisher.publish(f"b/{number}", b"x", qos, packet_id=qos and 2 * number + 2)
    routes = world.node.dispatcher.routes
    assert len(routes) == 40
    assert len(set(routes.values())) == 2
    assert len(subscriber.take_publishes()) == 20


def test_a_wildcard_filter_that_does_not_match_leaves_a_route_alone() -> None:
    world = World()
    world.connect("s").subscribe("a/+", qos=1)
    world.connect("p").publish("a/1", b"x", 1)
    dispatcher = world.node.dispatcher
    before = dispatcher.routes[b"a/1"]
    steps = dispatcher.trie.steps
    other = world.connect("o")
    for topic_filter in ("b/+", "+/2/#", "a/1/+", "+"):
        other.subscribe(topic_filter)
        assert dispatcher.route(b"a/1") is before
    other.unsubscribe("b/+")
    assert dispatcher.route(b"a/1") is before
    assert dispatcher.trie.steps == steps
    other.subscribe("+/1")
    assert dispatcher.route(b"a/1") is not before


def test_very_many_changed_filters_forget_all_routes() -> None:
    world = World(limits=Limits(changed_filters=10))
    client = world.connect("c")
    client.publish("a/b")
    cache = world.node.dispatcher.cache
    for number in range(11):
        assert len(cache) == 1
        client.subscribe(f"x/{number}/+")
    assert len(cache) == 0


def test_routes_hold_no_session_for_long_that_has_ended() -> None:
    world = World()
    publisher = world.connect("p")
    client = world.connect("c").subscribed("+/b", "a/b")
    publisher.publish("a/b")
    client.disconnect()
    assert "c" not in world.node.sessions
    world.peers.remove(client)
    del client
    world.advance(3)
    gc.collect()
    kept = [one for one in gc.get_objects() if isinstance(one, Session)]
    assert "c" not in {one.client_id for one in kept if one.node is world.node}


def test_a_route_that_only_one_topic_has_takes_little_memory() -> None:
    """Before topics shared routes it took 522 bytes."""
    world = World()
    publisher = world.connect("p")
    count = 300
    for number in range(count):
        world.connect(f"c{number}").subscribe(f"a/{number}")
    publisher.publish("before")
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(count):
            publisher.publish(f"a/{number}")
        for peer in world.peers:
            peer.take()
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(set(world.node.dispatcher.routes.values())) == count + 1
    assert taken / count < 522
