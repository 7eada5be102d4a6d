"""Path costs: what is posted of links and of hops through a broker, and what is believed
(path_costs.py, source_trees.py)."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from mqttree.broker.cluster.directory.link_state_directory import LINK
from mqttree.broker.cluster.link.control_records import PING, decode_records
from mqttree.broker.cluster.link.link import ROUND_TRIPS
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.strategy.path_costs import (
    DELTA,
    GAMMA,
    HELLOS,
    MIN_COST_US,
    REVIEW,
    THROUGH,
    UNKNOWN,
    link_cost,
)
from mqttree.broker.cluster.strategy.source_trees import NextHops, SourceTrees
from mqttree.routing.shortest_paths import MAX_COST, Tree
from tests.kit.core import needs_python
from tests.kit.link_harness import Neighbour, bid, lone

A, B = bid(1), bid(2)


def linked(**config: Any) -> tuple[SourceTrees, Any, Any]:
    """A node that routes by topic, with one neighbour that does."""
    world = lone(routing="topic", **config)
    neighbour = Neighbour(world, 1, routing="topic")
    return world.node.cluster.strategy.trees, world, neighbour.link()


def told(world: Any, peer: bytes) -> int | None:
    value = world.node.cluster.directory.database.own.entries.get(LINK + peer)
    return None if value is None else int.from_bytes(value, "big")


@pytest.mark.parametrize(
    ("rtt_ms", "cost"),
    [(None, UNKNOWN), (0.001, MIN_COST_US), (0.25, 250), (12.3456, 12346), (1e9, MAX_COST)],
)
def test_the_cost_of_a_link_follows_its_round_trip_time(rtt_ms: float | None, cost: int) -> None:
    _, _, link = linked()
    link.round_trips = [] if rtt_ms is None else [rtt_ms]
    assert link_cost(link) == cost


def test_a_neighbour_that_answers_late_at_times_costs_no_more() -> None:
    _, world, link = linked()
    for rtt_ms, cost in (
        (0.4, 400),
        *[(30.0, 400)] * (ROUND_TRIPS - 1),
        (30.0, 30_000),
        (5.0, 5000),
    ):
        link._pings[7] = world.now - rtt_ms / 1000
        link._pingresp((7).to_bytes(4, "big"), world.now)
        assert link_cost(link) == pytest.approx(cost, abs=1)


@pytest.mark.parametrize(
    ("was", "now", "tells"),
    [
        (10.0, 10.9, False),
        (10.0, 13.4, False),
        (10.0, 13.6, True),
        (10.0, 6.0, True),
        (0.2, 1.1, False),
        (0.2, 1.3, True),
    ],
)
def test_jitter_is_not_posted(was: float, now: float, tells: bool) -> None:
    overlays, world, link = linked()
    overlays._costs._post(A, round(was * 1000))
    link.round_trips = [now]
    overlays.tick(world.now + REVIEW)
    assert told(world, A) == round((now if tells else was) * 1000)


def test_the_first_measurement_is_posted_at_once() -> None:
    overlays, world, link = linked()
    overlays._costs._post(A, UNKNOWN)
    link.round_trips = [3.0]
    overlays.measured(link)
    assert told(world, A) == 3000
    link.round_trips = [300.0]
    overlays.measured(link)
    assert told(world, A) == 3000


def test_a_link_that_closes_is_withdrawn() -> None:
    overlays, world, link = linked()
    assert overlays.open == {A: link}
    overlays.close_link(link)
    assert overlays.open == {}
    assert told(world, A) is None
    overlays.close_link(link)  # once more is harmless


def test_links_to_those_that_route_otherwise_are_not_posted() -> None:
    world = lone(routing="topic")
    Neighbour(world, 1, routing="interest")
    assert world.node.cluster.strategy.trees.open == {}
    assert not world.node.cluster.strategy.trees.active


@pytest.mark.parametrize(
    ("capability", "cost"),
    [(0.0, 2 * THROUGH), (1.0, THROUGH + THROUGH // 2), (99.0, THROUGH + THROUGH // 100)],
)
def test_a_broker_with_more_capability_posts_a_lower_cost(capability: float, cost: int) -> None:
    overlays, world, _ = linked(capability=capability)
    overlays.tick(world.now + REVIEW)
    assert overlays._costs._told_relay == cost


def test_the_balance_policy_adds_origins_and_clients() -> None:
    """RB = gamma*R + delta*clients (Overlays 4.2.2)."""
    overlays, world, link = linked(path_policy="balance")
    through = NextHops(Tree(), {})
    through.children = [link]
    overlays._next_hops = {A: through, overlays._own: through}
    world.node.clients.connected = 1000
    overlays.tick(world.now + REVIEW)
    assert overlays._costs._told_relay == THROUGH + GAMMA + DELTA * 1000


def test_a_retiring_broker_posts_the_highest_cost() -> None:
    overlays, _, _ = linked()
    overlays.retire()
    assert overlays._costs._told_relay == MAX_COST


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"short", b"\0\0\0\1"), (bytes(8), b"\0"), (bytes(8), b""), (bytes(9), None)],
)
def test_malformed_cost_entries_are_refused(key: bytes, value: bytes | None) -> None:
    overlays, world, _ = linked()
    overlays._link_posted(B, key, value)
    assert world.node.counters.link_costs_refused == 1


def test_a_message_that_came_another_way_is_announced_once() -> None:
    """Those behind us hear of it before they get it, and again only after an answer or a message of
    the parent."""
    overlays, _, _ = linked()
    sent: list[tuple[Any, bytes, bytes]] = []
    bus = SimpleNamespace(
        send_over=lambda over, broker, kind, origin: sent.append((over, broker, origin)),
    )
    needs_python("gives it an object of no class")
    overlays._bus = bus  # type: ignore[assignment]
    parent, onward, stranger = object(), object(), object()
    hops = NextHops(Tree(), {})
    hops.parent, hops.next = parent, {B: onward, bid(3): stranger}  # type: ignore[assignment]
    overlays._next_hops = {A: hops}
    key = origin_key(A, 1)
    overlays.announce_path_change(key, parent)  # type: ignore[arg-type]
    assert sent == []
    for _ in range(3):
        overlays.announce_path_change(key, stranger)  # type: ignore[arg-type]
    assert sent == [(onward, B, A)]
    overlays.announce_path_change(key, parent)  # type: ignore[arg-type]
    overlays.announce_path_change(key, stranger)  # type: ignore[arg-type]
    assert len(sent) == 2


def measurements(world: Any) -> Counter[Any]:
    """What is planned for the next hellos, and how often."""
    horizon = world.now + HELLOS * world.node.config.hello
    return Counter(timer.call for when, _, timer in world.node.timers._heap if when < horizon)


def test_a_link_that_seems_far_is_measured_apart_from_hellos() -> None:
    """Around a near one no path can be shorter, so its round trip changes nothing."""
    world = lone(routing="topic")
    near, far = (Neighbour(world, number, routing="topic").link() for number in (1, 2))
    near.round_trips = [1.0, 2.9, 2.9]
    far.round_trips = [0.9, 3.0, 3.0]
    before = measurements(world)
    assert before[near.measure] == before[far.measure] == 0
    world.node.cluster.strategy.trees._costs._measure()
    assert measurements(world) - before == {far.measure: 1}


def test_a_measurement_apart_is_a_ping_with_nothing_else() -> None:
    world = lone(routing="topic")
    neighbour = Neighbour(world, 1, routing="topic")
    link = neighbour.link()
    neighbour.take()
    count = len(link.round_trips)
    link.measure(world.now)
    world.settle(neighbour.conn)
    [(first, body)] = neighbour.take()
    assert (first, [kind for kind, _ in decode_records(body)]) == (0xC0, [PING])
    world.now += 0.003
    neighbour.send(b"\xd0\x04" + body[4:8])
    assert len(link.round_trips) == count + 1
    assert link.round_trips[-1] == pytest.approx(3.0)
    link.conn.abort("test")
    neighbour.take()
    link.measure(world.now)
    assert neighbour.take() == []
