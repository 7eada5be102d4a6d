"""Federators on the paper's 3x3 grid: who is in the mesh, and how many messages that takes; the
losses that the protocol has, as they were measured with it; and the theorems, over random graphs.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.bench.federator.mesh_states import State
from mqttree.bench.federator.settings import NonMember
from mqttree.bench.federator.topics import Kind
from tests.kit.federator_harness import TOPIC, Link, World, grid

PUBLIC_CODE = {"nonmember": NonMember.ALL, "relays_nearer": True, "doubles_distance": True}
PARENT_7 = {6: {"preferred_parent": 7}}
INTERVAL = 10.0


def paper(**options: Any) -> World:
    """The paper's scenario: 2 subscribes first, so it is the core, then 7."""
    world = World(grid(3), **options)
    world.subscribe(2)
    world.run(1)
    world.subscribe(7)
    world.run(20)
    return world


def begin(world: World) -> None:
    """What was before does not count."""
    world.sent.clear()
    world.crossed.clear()
    world.delivered.clear()


def duplicates(world: World) -> int:
    return sum(each.counts.duplicates for each in world.federators.values())


@pytest.mark.parametrize("variant", [{}, PUBLIC_CODE])
def test_the_mesh_is_that_of_the_paper(variant: dict[str, Any]) -> None:
    world = paper(**variant)
    meshes = {node: world.mesh(node) for node in range(9)}
    assert {node for node, mesh in meshes.items() if mesh.is_member(world.now)} == {
        1, 2, 4, 5, 7, 8
    }  # fmt: skip
    assert {mesh.core for mesh in meshes.values()} == {2}
    assert [node for node, mesh in meshes.items() if mesh.state is State.CORE] == [2]
    assert {node: set(mesh.parents) for node, mesh in meshes.items() if node != 2} == {
        1: {2}, 5: {2}, 4: {1, 5}, 8: {5}, 7: {4, 8}, 0: {1}, 3: {0, 4}, 6: {3, 7}
    }  # fmt: skip
    children = {node: mesh.live_children(world.now) for node, mesh in meshes.items()}
    assert {node: each for node, each in children.items() if each} == {
        2: [1, 5], 1: [4], 5: [4, 8], 4: [7], 8: [7]
    }  # fmt: skip


@pytest.mark.parametrize("variant", [{}, PUBLIC_CODE])
def test_a_round_takes_16_announcements_and_7_memberships(variant: dict[str, Any]) -> None:
    world = paper(**variant)
    begin(world)
    world.run(10 * INTERVAL)
    assert world.sent == {Kind.CORE_ANN: 160, Kind.MEMB_ANN: 70}
    # No link joins brokers at the same distance, and four are crossed both ways all the same.
    announced = {(a, b) for kind, a, b in world.crossed if kind is Kind.CORE_ANN}
    twice = {(a, b) for a, b in announced if a < b and (b, a) in announced}
    assert len(twice) == 4


@pytest.mark.parametrize(
    ("options", "messages", "hops"),
    [({"own": PARENT_7}, 10, {7: 1, 2: 4}), ({}, 12, {2: 4, 7: 5})],
    ids=["parent 7", "the lowest parent"],
)
def test_a_publication_takes_10_or_12_messages_by_the_parent_that_is_chosen(
    options: dict[str, Any], messages: int, hops: dict[int, int]
) -> None:
    world = paper(**options)
    before = duplicates(world)
    begin(world)
    world.publish(6, Kind.FEDERATED.topic(TOPIC), b"x")
    sent_at = world.now
    world.run(1)
    assert world.sent == {Kind.ROUTING: messages}
    assert duplicates(world) - before == 4
    found = {node: round((at - sent_at) / 0.005) for at, node, _ in world.delivered}
    assert found == hops


def test_the_public_code_takes_15_messages_for_a_publication() -> None:
    """Which copy comes first decides who sends it on to whom. On links with equal delays all copies
    are sent: 16."""
    world = paper(jitter=0.002, **PUBLIC_CODE)
    before = duplicates(world)
    begin(world)
    world.publish_many(6, 300, 0.1)
    world.run(40)
    assert len(world.got(2)) == len(world.got(7)) == 300
    assert 14.7 < world.sent[Kind.ROUTING] / 300 < 15.0
    assert 6.7 < (duplicates(world) - before) / 300 < 7.0


def test_a_broker_that_hears_a_core_joins_it_whatever_its_id() -> None:
    world = World(grid(3))
    world.subscribe(7)
    world.run(5)
    world.subscribe(2)
    world.run(30)
    assert {world.mesh(node).core for node in range(9)} == {7}


def test_the_smallest_of_cores_that_announce_at_once_stays() -> None:
    world = World(grid(3))
    world.subscribe(7)
    world.subscribe(2)
    world.run(1)
    assert {world.mesh(node).core for node in range(9)} == {2}
    world.run(20)
    begin(world)
    world.run(INTERVAL)
    assert world.sent == {Kind.CORE_ANN: 16, Kind.MEMB_ANN: 7}


def test_a_restarted_federator_loses_as_many_as_it_had_published() -> None:
    """Its numbers begin again, and the others have them in their logs."""
    world = paper()
    world.publish_many(6, 200, 0.1)
    world.run(30)
    assert len(world.got(2)) == len(world.got(7)) == 200
    world.kill(6)
    world.start(6)
    world.run(INTERVAL + 1)
    begin(world)
    world.publish_many(6, 300, 0.1)
    world.run(40)
    assert world.got(2) == world.got(7) == [b"%d" % each for each in range(200, 300)]


@pytest.mark.parametrize(("redundancy", "lost"), [(1, 142), (2, 0)])
def test_a_second_parent_makes_up_for_a_lost_one(redundancy: int, lost: int) -> None:
    """The only parent of 7 ends 3 seconds after the core's announcement. Its next one, 7 seconds
    later, finds another way."""
    world = paper(redundancy=redundancy)
    world.run(INTERVAL - 1 + 2.95)
    begin(world)
    world.publish_many(6, 400, 0.05)
    world.run(0.01)
    world.kill(4)
    world.run(60)
    assert 400 - len(world.got(7)) == lost
    assert len(world.got(2)) == 400


def split_by_core() -> World:
    """1 and 7 are interested, and their ways lead by the core, 4. The core's announcement was 0.4
    seconds ago, and the next beacon after it has been silent for 30 seconds comes 2.5 seconds
    later."""
    world = World(grid(3))
    world.subscribe(4)
    world.run(2.5)
    world.subscribe(1)
    world.run(0.5)
    world.subscribe(7)
    world.run(17 + 0.4)
    world.publish_many(1, 800, 0.1)
    begin(world)
    return world


def test_nothing_crosses_a_dead_core_for_32_seconds() -> None:
    world = split_by_core()
    world.kill(4)
    world.run(100)
    assert 800 - len(world.got(7)) in (321, 322)


def test_nothing_crosses_a_core_that_resigned_until_it_counts_as_silent() -> None:
    world = split_by_core()
    world.unsubscribe(4)
    world.run(100)
    # It goes on for 15 seconds, until its interest is over.
    assert 200 < 800 - len(world.got(7)) < 321
    assert {world.mesh(node).core for node in range(9)} == {1}


def test_a_restarted_core_is_ignored_until_its_old_life_counts_as_silent() -> None:
    """Its announcements have low numbers again."""
    world = paper()
    world.run(100)
    world.kill(2)
    world.start(2)
    begin(world)
    world.publish_many(7, 100, 0.1)
    world.run(5.5)
    # 2 has begun to announce at its first beacon; those who heard its old life do not follow.
    assert world.mesh(2).state is State.CORE
    assert world.mesh(1).seq > 5
    world.run(14.5)
    assert len(world.got(7)) == 0 and len(world.got(2)) < 100
    world.run(30)
    assert world.mesh(1).seq <= 5 and world.mesh(2).live_children(world.now) == [1, 5]


@pytest.mark.long
@pytest.mark.parametrize("log_time", [0.0, 5.0])
def test_a_log_that_is_too_short_sends_publications_round_for_ever(log_time: float) -> None:
    """A copy that a slow link brings when its id is forgotten counts as new. The paper asks for a
    log with a size and a minimum time (`log_time`, s), which ends that."""
    world = paper(log_size=20, log_time=log_time)
    world.delays[7, 8] = 2.0
    begin(world)
    world.publish_many(7, 500, 0.02)
    world.run(60)
    if log_time:
        assert len(world.got(2)) == 500 and world.sent[Kind.ROUTING] < 6_000
    else:
        assert len(world.got(2)) > 5_000 and world.sent[Kind.ROUTING] > 50_000


def members(world: World) -> list[int]:
    return [node for node in range(9) if world.mesh(node).is_member(world.now)]


def test_a_membership_without_interest_fades_one_hop_after_the_other() -> None:
    """A member answers announcements as long as its children live, and is one itself for so long
    to its own parents."""
    world = paper()
    world.unsubscribe(7)
    world.run(15 + 5)
    assert members(world) == [1, 2, 4, 5, 8]
    world.run(3 * INTERVAL)
    assert members(world) == [1, 2, 5]
    world.run(6 * INTERVAL)
    assert members(world) == [2]
    begin(world)
    world.run(INTERVAL)
    assert world.sent == {Kind.CORE_ANN: 16}


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[Link], dict[Link, float]]:
    """A connected graph, and the delay of each link in each direction."""
    size = draw(st.integers(2, 9))
    links = {(draw(st.integers(0, node - 1)), node) for node in range(1, size)}
    for a in range(size):
        for b in range(a + 1, size):
            if draw(st.booleans()):
                links.add((a, b))
    delay = st.floats(0.001, 0.5)
    return sorted(links), {way: draw(delay) for a, b in links for way in ((a, b), (b, a))}


@given(networks(), st.data())
def test_the_theorems_hold(
    network: tuple[list[Link], dict[Link, float]], data: st.DataObject
) -> None:
    """Theorem 1: an announcement is published at most twice for each link; to be exact, once for
    each direction but those that it came by first. Theorem 2: the mesh joins all that are
    interested, and has no circle of parents. Whatever the delays."""
    links, delays = network
    size = max(max(link) for link in links) + 1
    redundancy = data.draw(st.integers(1, 3))
    interested = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    world = World(links, redundancy=redundancy)
    world.delays = delays
    for node in sorted(interested):
        world.subscribe(node)
    world.run(6 * INTERVAL)
    begin(world)
    world.run(INTERVAL)
    assert world.sent[Kind.CORE_ANN] == 2 * len(links) - size + 1
    # Each answers an announcement that came.
    assert world.sent[Kind.MEMB_ANN] <= world.sent[Kind.CORE_ANN]
    core = min(interested)
    for node in range(size):
        mesh = world.mesh(node)
        assert mesh.core == core
        assert len(mesh.parents) <= redundancy and (bool(mesh.parents) is (node != core))
        assert all(world.mesh(parent).dist < mesh.dist for parent in mesh.parents)
        assert node not in interested or mesh.is_member(world.now)
    begin(world)
    world.publish(data.draw(st.integers(0, size - 1)), Kind.FEDERATED.topic(TOPIC), b"x")
    world.run(size * 1.0)
    receivers = sorted(node for _, node, _ in world.delivered)
    origin = [node for node in interested if b"x" not in world.got(node)]
    # The origin's own broker gave it to its clients before its federator heard of it.
    assert len(origin) <= 1 and receivers == sorted(interested - set(origin))


def test_relaying_nearer_announcements_again_breaks_the_first_theorem() -> None:
    """A fan of ways to 5, the shorter the slower: 5 hears each way, and relays each."""
    links = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5), (1, 5), (2, 5), (3, 5), (5, 6), (5, 7)]
    sent = {}
    for again in (False, True):
        world = World(links, delay=0.001, relays_nearer=again)
        for number, slow in enumerate((3, 2, 1, 0)):
            world.delays[slow, 5] = 0.1 * (number + 1)
        world.subscribe(0)
        world.run(15)
        begin(world)
        world.run(INTERVAL)
        sent[again] = world.sent[Kind.CORE_ANN]
    assert sent[False] == 2 * len(links) - 8 + 1 == 15
    assert sent[True] > 2 * len(links)
