"""What a broker posts of its clients' filters: those that no other one covers, and each exchange in
one message."""

from __future__ import annotations

import pytest

from mqttree.broker.cluster.directory.link_state_directory import INTEREST, POST_INTERVAL
from mqttree.broker.cluster.link.control_records import DIRECTORY
from mqttree.broker.cluster.strategy.interest_table import LINGER
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.wire.packets import Suback, Subscribe, SubscriptionRequest
from mqttree.routing.link_state import CHANGES
from mqttree.routing.listing import decode_changes
from tests.kit.link_harness import Neighbour, lone
from tests.kit.node_harness import FakeClient, World


def told(neighbour: Neighbour) -> list[list[tuple[str, bool]]]:
    """The messages about filters that came since the last look: (filter, posted)."""
    found = []
    for body in neighbour.records(DIRECTORY):
        if body[0] == CHANGES:
            changes = [
                (key[1:].decode(), value is not None)
                for key, value in decode_changes(body, 29)
                if key[:1] == INTEREST
            ]
            if changes:
                found.append(changes)
    return found


def subscribe(client: FakeClient, *filters: str) -> None:
    """Subscribe, and let the time pass for which SUBACK waits for a neighbour who does not say that
    he knows."""
    client.send(Subscribe(7, [SubscriptionRequest(topic_filter, 0) for topic_filter in filters]))
    client.world.advance(DEFAULTS.suback_wait_s)
    assert [type(packet) for packet in client.take()] == [Suback]


@pytest.fixture
def limits() -> Limits:
    return DEFAULTS


@pytest.fixture
def world(limits: Limits) -> World:
    return lone(routing="interest", link_timeout=1000.0, limits=limits)


def test_a_covered_filter_is_not_announced(world: World) -> None:
    """First and last local interest, and only if nothing covers it; what replaces a filter goes
    with its withdrawal."""
    neighbour = Neighbour(world, 101).child()
    world.advance(1)
    neighbour.take()
    one, two = world.connect("one"), world.connect("two")

    def after(seconds: float) -> list[list[tuple[str, bool]]]:
        world.advance(seconds)
        return told(neighbour)

    subscribe(one, "a/b", "a/c", "x")
    assert after(POST_INTERVAL) == [[("a/b", True), ("a/c", True), ("x", True)]]
    subscribe(two, "a/b")
    assert after(POST_INTERVAL) == []
    subscribe(two, "a/#")
    assert after(POST_INTERVAL) == [[("a/#", True), ("a/b", False), ("a/c", False)]]
    subscribe(one, "a/d")
    one.unsubscribe("a/c")
    assert after(2 * LINGER) == []
    two.unsubscribe("a/#")
    assert after(LINGER - 0.1) == []
    subscribe(two, "a/#")  # it is back: no broker hears of it
    assert after(2 * LINGER) == []
    two.disconnect()
    assert after(LINGER + POST_INTERVAL) == [[("a/b", True), ("a/d", True), ("a/#", False)]]
    one.unsubscribe("x")
    assert after(LINGER + POST_INTERVAL) == [[("x", False)]]


@pytest.mark.parametrize("limits", [Limits(interest_step=10)])
def test_many_are_exchanged_in_pieces(world: World) -> None:
    """No client waits for that; and what is wanted is posted at every moment."""
    neighbour = Neighbour(world, 101).child()
    filters = [f"site/{number}" for number in range(55)]
    one, all_of_it = world.connect("one"), world.connect("all")
    subscribe(one, *filters)
    world.advance(1)
    neighbour.take()
    subscribe(all_of_it, "#")
    world.advance(1)
    pieces = told(neighbour)
    assert pieces[0][0] == ("#", True)
    assert len(pieces) == 6
    assert sorted(name for piece in pieces for name, posted in piece if not posted) == sorted(
        filters
    )
    all_of_it.unsubscribe("#")
    one.unsubscribe("site/7")
    world.advance(2)
    pieces = told(neighbour)
    assert pieces[-1][-1] == ("#", False)
    assert sorted(name for piece in pieces for name, posted in piece if posted) == sorted(
        f for f in filters if f != "site/7"
    )
    assert max(map(len, pieces)) <= 11


@pytest.mark.parametrize("limits", [Limits(max_interests=10)])
def test_more_than_can_be_posted(world: World) -> None:
    """Everything is asked for instead, and not any more once half as many are left."""
    neighbour = Neighbour(world, 101).child()
    client = world.connect("one")
    subscribe(client, *(f"a/{number}" for number in range(10)))
    world.advance(1)
    neighbour.take()
    subscribe(client, "a/10", "a/11")
    world.advance(1)
    assert {name for piece in told(neighbour) for name, posted in piece if posted} <= {"a/10", "#"}
    assert world.counters.interest_widened == 1
    subscribe(client, "+/#", "#")
    client.unsubscribe("+/#", "#", *(f"a/{number}" for number in range(6)))
    world.advance(1)
    assert told(neighbour) == []
    client.unsubscribe("a/6")
    world.advance(1)
    assert sorted(told(neighbour)[0]) == [
        ("#", False),
        *((f"a/{number}", True) for number in (10, 11, 7, 8, 9)),
    ]


def test_topics_that_cross_no_link_are_not_announced(world: World) -> None:
    neighbour = Neighbour(world, 101).child()
    client = world.connect("one")
    subscribe(client, "$SYS/#", "$mqttree/x")
    client.unsubscribe("$mqttree/x")
    world.advance(1)
    assert told(neighbour) == []


@pytest.mark.parametrize("count", (3, 1201))
def test_alone_nothing_is_posted_and_then_all_of_it(count: int) -> None:
    """The first other broker gets what is wanted: everything, while many filters are looked
    through."""
    world = lone(routing="topic", link_timeout=1000.0)
    client = world.connect("early")
    filters = [f"f/{number}" for number in range(count)]
    for at in range(0, count, 400):
        subscribe(client, *filters[at : at + 400])
    own = world.node.cluster.directory.database.own
    assert not any(key[:1] == INTEREST for key in own.entries)
    neighbour = Neighbour(world, 101)
    if count > 500:
        assert own.entries.keys() >= {INTEREST + b"#"}
    neighbour.child()
    world.advance(1)
    assert {key[1:].decode() for key in own.entries if key[:1] == INTEREST} == set(filters)
