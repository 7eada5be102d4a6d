"""What a neighbour lacks is sent in steps, whole and in order, whatever comes between two of them
(replay.py)."""

from __future__ import annotations

import itertools

from mqttree.broker.cluster.events import LinkForwards
from mqttree.broker.cluster.link.control_records import ORIGINS, SEEN
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.link.version_vector import OriginWindow, Vector, encode_vector
from mqttree.broker.limits import Limits
from mqttree.stp.bpdu import Role
from tests.kit.link_harness import FAR, Neighbour, batch_entry, bid, lone, message, ping
from tests.kit.node_harness import World

KEY = origin_key(FAR, 2_000)
COUNT = 30_000
"""entries that are taken in one turn at most."""


def logged(world: World, numbers: range, key: bytes = KEY) -> None:
    """Have messages come that no neighbour passes on."""
    relay = world.node.cluster.forwarder
    for number in numbers:
        relay.accept(key, number, 1, world.now)
        relay.log.append(
            batch_entry(key, number, [(b"t", b"%d" % number)], at=world.now),
            None,
        )


def joining(world: World, seen: Vector, number: int = 1) -> Neighbour:
    """A neighbour that has just said what it has, whose link is to become live."""
    neighbour = Neighbour(world, number)
    neighbour.bpdu(world.node.cluster.tree.root, Role.ROOT, Role.DESIGNATED, path_cost_us=50)
    own = world.node.cluster.forwarder
    neighbour.send(ping((SEEN, encode_vector({own.key: own.own, **seen}))))
    return neighbour


def turns(world: World) -> None:
    """One turn of the loop."""
    due = world.node.next_deadline()
    assert due is not None
    world.now = max(world.now, due)
    world.node.turns.work = 0
    world.node.tick(world.now)
    world.settle()


def replayed(world: World) -> int:
    return int(world.counters.replayed)


def test_messages_between_two_steps_are_neither_lost_nor_reordered() -> None:
    world = lone(link_timeout=1000.0)
    logged(world, range(1, COUNT + 1))
    other = Neighbour(world, 2).child()
    neighbour = joining(world, {KEY: OriginWindow(0, world.now)})
    number, got = COUNT, []
    for _ in itertools.count():
        live = neighbour.link().live
        for _ in range(50):  # the other one brings more all the time, also when the link is live
            number += 1
            other.send(message(b"t", b"%d" % number, key=KEY, sequence=number))
        got += neighbour.messages()
        if live:
            break
        turns(world)
    assert [int(payload) for payload in got] == list(range(1, number + 1))
    assert number > COUNT + 500


def test_more_comes_than_is_sent_and_yet_it_ends() -> None:
    """Twice as many as a turn sends come in each: turns do more then."""
    world = lone(link_timeout=1000.0, limits=Limits(turn_work=400))
    logged(world, range(1, 1_000))
    neighbour = joining(world, {KEY: OriginWindow(0, world.now)})
    last = 999
    for _ in range(300):
        logged(world, range(last + 1, last + 201))
        last += 200
        turns(world)
        if neighbour.link().live:
            break
    assert neighbour.link().live
    assert [int(payload) for payload in neighbour.messages()] == list(range(1, last + 1))


def test_an_origin_that_becomes_known_meanwhile_is_replayed_too() -> None:
    world = lone(link_timeout=1000.0)
    logged(world, range(1, COUNT + 1))
    neighbour = joining(world, {KEY: OriginWindow(0, world.now)})
    turns(world)
    new = origin_key(bid(77), 3_000)
    logged(world, range(1, 11), new)
    while not neighbour.link().live:
        turns(world)
    found = neighbour.take()
    assert sum(first >> 4 == 3 for first, _ in found) == COUNT + 10
    told = [
        at
        for at, (first, body) in enumerate(found)
        if first == 0xC0 and bytes((ORIGINS,)) in body and bid(77) in body
    ]
    messages = [at for at, (first, _) in enumerate(found) if first >> 4 == 3]
    assert told
    assert told[0] < messages[-10], "it hears of the origin ahead of its messages"


def test_history_that_was_fetched_goes_before_what_is_newer() -> None:
    world = lone(link_timeout=1000.0)
    logged(world, range(10_001, 20_001))
    relay = world.node.cluster.forwarder
    for number in range(1, 10_001):
        relay.log.append(
            batch_entry(KEY, number, [(b"t", b"%d" % number)], at=world.now),
            None,
        )
    neighbour = joining(world, {KEY: OriginWindow(0, world.now)})
    while not neighbour.link().live:
        turns(world)
    assert [int(payload) for payload in neighbour.messages()] == list(range(1, 20_001))


def test_a_neighbour_that_leaves_the_tree_gets_no_more() -> None:
    world = lone(link_timeout=1000.0)
    logged(world, range(1, COUNT + 1))
    neighbour = joining(world, {KEY: OriginWindow(0, world.now)})
    while not replayed(world):
        turns(world)
    world.node.cluster.resync.link_forwards(LinkForwards(neighbour.link(), False, world.now))
    sent = replayed(world)
    assert 0 < sent < COUNT
    for _ in range(30):
        turns(world)
    assert replayed(world) == sent
    assert not neighbour.link().live
    # It comes back with what it has got.
    world.node.cluster.resync.link_forwards(LinkForwards(neighbour.link(), True, world.now))
    own = world.node.cluster.forwarder
    neighbour.send(
        ping((SEEN, encode_vector({own.key: own.own, KEY: OriginWindow(sent, world.now)})))
    )
    while not neighbour.link().live:
        turns(world)
    assert [int(payload) for payload in neighbour.messages()] == list(range(1, COUNT + 1))


def test_drain_looks_in_steps_for_what_a_neighbour_lacks() -> None:
    world = lone(link_timeout=1000.0)
    logged(world, range(1, COUNT + 1))
    neighbour = Neighbour(world, 1).child()
    got: list[str] = []
    link = neighbour.link()
    for lacks in (0, 1):
        seen = {KEY: OriginWindow(COUNT - lacks, world.now)}
        walk = world.node.cluster.walks.walk(
            link,
            seen,
            lambda *_: got.append("lacks"),
            lambda _: got.append("end"),
            once=True,
        )
        walk.begin(world.now)
        logged(world, range(COUNT + 1 + lacks, COUNT + 2 + lacks))
        while not walk.over:
            turns(world)
    assert got == ["end", "lacks", "end"]
