"""What is refused and dropped when memory is short, in which order, and that it is counted."""

from __future__ import annotations

import tracemalloc
from operator import length_hint
from pathlib import Path

import pytest

from mqttree.broker.base import costs
from mqttree.broker.base.machine import default_memory_limit, files_for_clients
from mqttree.broker.cluster.delivery.replay_log import LogEntry
from mqttree.broker.cluster.directory.link_state_directory import INTEREST
from mqttree.broker.core.memory_limit import (
    IDLE_PERIOD,
    PAUSE,
    Pressure,
    client_memory,
    queue_memory,
)
from mqttree.broker.core.wildcard_forms import filter_memory
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Connack, Publish, Will
from mqttree.broker.wire.properties import Property
from tests.kit.node_harness import World, connect_packet

MIB = 1 << 20


def away(world: World, name: str, topic: str = "q/#") -> None:
    """A client with a kept session that is gone."""
    world.connect(name, clean=False, properties={0x11: 3600}).subscribed(topic, qos=1).vanish()


def fill(world: World, topic: str, messages: int, size: int = 100_000) -> None:
    publisher = world.connect("publisher")
    for number in range(messages):
        publisher.publish(topic, b"x" * size, 1, number % 65535 + 1)
    publisher.vanish()


def test_without_limits_nothing_is_counted_or_refused() -> None:
    world = World()
    away(world, "c")
    fill(world, "q/1", 200)
    assert len(world.session("c").queue) + len(world.session("c").inflight) == 200
    assert world.node.memory.pressure == Pressure.NONE


def test_short_of_memory_the_replay_log_has_no_room_for_large_messages() -> None:
    world = World(memory_limit=400 * MIB)
    log = world.node.cluster.forwarder.log
    for number in range(7):
        data = bytes(15 * MIB)
        log.append(LogEntry(world.node.cluster.forwarder.key, number + 1, 1, data, world.now), None)
    assert 2 * DEFAULTS.log_bytes < log.size <= 4 * DEFAULTS.log_bytes
    world.node.memory.limit = 110 * MIB
    world.advance(1.1)
    assert log.size <= DEFAULTS.log_bytes
    assert world.node.memory.pressure == Pressure.NONE


def test_queues_of_all_sessions_have_a_limit_together() -> None:
    world = World(max_queued_bytes=10 * MIB)
    for number in range(4):
        away(world, f"c{number}")
    fill(world, "q/1", 200)
    assert world.counters.dropped_memory > 0
    queued = sum(session.queued_bytes for session in world.node.sessions.values())
    assert 9 * MIB < queued <= 10 * MIB
    assert (
        world.counters.dropped_memory
        + sum(len(s.queue) + len(s.inflight) for s in world.node.sessions.values())
        == 4 * 200
    )


def test_room_that_has_become_free_is_used_again() -> None:
    world = World(max_queued_bytes=5 * MIB)
    away(world, "c")
    fill(world, "q/1", 100)
    dropped = world.counters.dropped_memory
    assert dropped
    world.connect("c", clean=True).vanish()
    world.advance(3.0)
    away(world, "d")
    fill(world, "q/1", 20)
    assert world.counters.dropped_memory == dropped


def test_memory_is_freed_in_the_documented_order() -> None:
    """High: no new retained topics, no new clients. Full: nothing for who is away. Over: the
    largest sessions end."""
    world = World(memory_limit=40 * MIB, max_queued_bytes=1 << 40, max_retained_bytes=1 << 40)
    retained = world.connect("r")
    for number in range(30):
        retained.publish(f"kept/{number}", b"x" * MIB, 1, number + 1, retain=True)
    assert world.node.memory.pressure == Pressure.NONE
    for number in range(2):
        retained.publish(f"more/{number}", b"x" * MIB, 1, number + 100, retain=True)
    world.advance(1.0)
    assert world.node.memory.pressure == Pressure.HIGH
    kept = len(world.node.retained)
    retained.publish("new/topic", b"x", 1, 200, retain=True)
    retained.publish("kept/1", b"another", 1, 201, retain=True)
    assert len(world.node.retained) == kept
    assert world.counters.retained_refused == 1
    stranger = world.open().sent(connect_packet("stranger", 5))
    assert stranger.closed
    assert any("memory is short" in line for line in world.logged)


def test_sessions_with_most_end_first() -> None:
    world = World(memory_limit=30 * MIB, max_queued_bytes=1 << 40)
    away(world, "small", "small")
    away(world, "large", "large")
    fill(world, "small", 50)
    fill(world, "large", 200)
    fill(world, "large", 150)
    world.advance(5.0)
    assert set(world.node.sessions) == {"small"}
    assert world.counters.sessions_shed == 1
    assert world.counters.dropped_memory == 350
    assert world.node.memory.pressure == Pressure.NONE
    assert (
        sum(
            "'large', which is not connected, ends with 350 queued messages" in line
            for line in world.logged
        )
        == 1
    )


def test_what_ends_in_a_round_is_not_counted_at_its_end() -> None:
    """A session, and a connection, that were counted before."""
    world = World(memory_limit=80 * MIB, max_queued_bytes=1 << 40, limits=Limits(memory_step=1))
    away(world, "large", "large")
    away(world, "small", "small")
    fill(world, "large", 40)
    fill(world, "small", 5, 100)
    loud, quiet = world.connect("loud"), world.connect("quiet")
    loud.send(b"\x30\xff\xff\xff\x7f" + b"x" * (6 * MIB))
    world.advance(5.0)
    node, memory = world.node, world.node.memory

    def count_until(pieces: int) -> None:
        while memory._pieces != pieces:
            world.now = max(world.now, node.next_deadline() or 0.0)
            node.tick(world.now)
            world.settle()

    count_until(5)
    assert memory._sessions_sum > 3 * MIB
    assert memory._connections_sum > 5 * MIB
    memory.limit = 4 * MIB
    count_until(0)
    assert set(node.sessions) == {"small", "quiet"}
    assert (loud.closed, quiet.closed) == (True, False)
    assert memory.queued == sum(map(queue_memory, node.sessions.values()))
    assert memory._waiting == quiet.conn.backlog_bytes + client_memory(quiet.owner)


def test_a_packet_that_never_ends_is_closed_at_last() -> None:
    world = World(memory_limit=20 * MIB)
    client = world.connect("c")
    head = b"\x30" + bytes((0xFF, 0xFF, 0xFF, 0x7F))
    client.send(head + b"x" * (12 * MIB))
    other = world.connect("d")
    other.send(head + b"x" * (14 * MIB))
    world.advance(3.0)
    assert (client.closed, other.closed) == (False, True)
    assert world.counters.memory_closed == 1


def test_a_sessions_queue_is_counted_with_its_overhead() -> None:
    world = World()
    away(world, "c")
    fill(world, "q/1", 50, 1000)
    assert 50 * 1000 < queue_memory(world.session("c")) < 50 * (1000 + costs.QUEUED_MEMORY + 100)


def test_the_default_limit_is_a_share_of_the_machines_memory(tmp_path: Path) -> None:
    machine = default_memory_limit(tmp_path / "no such file")
    assert machine > 0
    for text, limit in (("max\n", machine), ("1000000\n", 500_000), ("", machine)):
        (tmp_path / "memory.max").write_text(text)
        assert default_memory_limit(tmp_path / "memory.max") == limit
    assert files_for_clients() > 0


def left_by(world: World, what: str, number: int) -> int | None:
    """Have a client leave much with the broker besides messages; returns the code of the answer to
    its last packet."""
    name = f"c{number}"
    if "filters" in what and not number:
        world.connect(name)
    if what == "long filters":
        return world.peers[0].subscribe(*(f"{number}/{each}/" + "x" * 60_000 for each in range(5)))[
            -1
        ]
    if what == "deep filters":
        return world.peers[0].subscribe(
            *(f"{number}-{each}" + "/a" * 199 + "/+" for each in range(5))
        )[-1]
    if what == "shared filters":
        return world.peers[0].subscribe(
            *(f"$share/g/{number}/{each}/" + "x" * 60_000 for each in range(5))
        )[-1]
    client = world.open()
    if what == "wills":
        said = {Property.USER_PROPERTY: [("", "")] * 2000}
        client.send(
            connect_packet(name, 5, will=Will("t" * 60_000, b"x" * 60_000, properties=said))
        )
    elif what == "names":
        client.send(connect_packet(name + "i" * 60_000, 5, username="u" * 60_000))
    else:
        client.send(connect_packet(name, 5))
    connack = next(packet for packet in client.take() if isinstance(packet, Connack))
    if connack.code:
        return connack.code
    if what == "aliases":
        for alias in range(1, 11):
            client.send(
                Publish(
                    f"{number}/{alias}/" + "x" * 60_000,
                    b"",
                    0,
                    properties={Property.TOPIC_ALIAS: alias},
                )
            )
    elif what == "identifiers":
        client.send(
            b"".join(
                encode_packet(Publish("q", b"", 2, packet_id=each), 5) for each in range(1, 10_001)
            )
        )
    return 0


@pytest.mark.parametrize(
    "what",
    ["long filters", "deep filters", "shared filters", "wills", "names", "aliases", "identifiers"],
)
def test_all_that_clients_leave_here_is_counted_and_has_an_end(what: str) -> None:
    limit = 8 * MIB
    world = World(memory_limit=limit, receive_maximum=65_535)
    codes = []
    tracemalloc.start()
    try:
        for number in range(100):
            codes.append(left_by(world, what, number))
            world.advance(0.2)
            if codes[-1]:
                break
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert codes[0] == 0
    assert codes[-1] == (0x97 if "filters" in what else 0x89)
    assert world.node.memory.pressure >= Pressure.HIGH
    assert 0.4 * limit < taken < 1.6 * limit, "what is counted is about what it takes"


def test_memory_of_a_client_that_leaves_is_given_back() -> None:
    world = World(memory_limit=100 * MIB)
    world.advance(2.0)
    before = world.node.memory.used
    client = world.connect("c", clean=True, will=Will("t" * 1000, b"x" * 1000))
    client.subscribe("a/+/" + "x" * 1000, "$share/g/a/" + "x" * 1000)
    client.subscribe("a/+/" + "x" * 1000)
    client.unsubscribe("$share/g/a/" + "x" * 1000)
    client.disconnect()
    world.advance(5.0)
    assert world.node.memory.used == before
    assert world.node.dispatcher.memory == 0


def test_filters_of_one_session_have_a_limit_of_their_own() -> None:
    world = World(limits=Limits(max_filters_memory=MIB))
    client = world.connect("c")
    filters = [f"{number}/" + "x" * 60_000 for number in range(20)]
    codes = client.subscribe(*filters)
    assert set(codes) == {0, 0x97}
    assert client.subscribe(filters[0]) == [0], "it has that one"
    client.unsubscribe(filters[0])
    assert client.subscribe(filters[-1]) == [0]
    assert world.connect("d").subscribe(*filters[:5]) == [0] * 5


def test_user_properties_of_a_connect_are_not_kept() -> None:
    world = World()
    client = world.open()
    client.send(connect_packet("c", 5, properties={Property.USER_PROPERTY: [("a", "b")] * 1000}))
    assert not (client.owner.connect.properties or {}).get(Property.USER_PROPERTY)


def test_the_client_with_the_most_memory_is_closed_at_last() -> None:
    """A client that has a session is let in and may go on, also when memory is short: in the end it
    is closed."""
    world = World(memory_limit=4 * MIB)
    for number in range(10):
        away(world, f"c{number}")
    for number in range(10):
        client = world.connect(
            f"c{number}",
            clean=False,
            properties={0x11: 3600},
            will=Will("t" * 60_000, b"x" * 60_000),
        )
        for alias in range(1, 11):
            client.send(Publish("x" * 60_000, b"", 0, properties={Property.TOPIC_ALIAS: alias}))
    world.advance(5.0)
    assert world.counters.memory_closed > 0
    assert world.node.memory.used < 1.1 * 4 * MIB


def test_filters_of_other_brokers_and_those_posted_to_them_count() -> None:
    world = World(routing="interest")
    interest = world.node.cluster.strategy.table
    for other in (b"broker-1", b"broker-2"):
        interest._posted(other, b"a/+/b", b"")
        interest._posted(other, b"a/+/b", b"")
    assert interest.memory == filter_memory("a/+/b")
    for other in (b"broker-1", b"broker-2", b"broker-2"):
        interest._posted(other, b"a/+/b", None)
    assert interest.memory == 0
    interest.begin()
    client = world.connect("c")
    for _ in range(2):
        client.subscribe("a/+", "a/+/c", "b")
        client.unsubscribe("a/+", "a/+/c")
        client.subscribe("a/+")
        client.unsubscribe("a/+", "b")
    assert world.node.cluster.memory >= interest.memory > 0
    world.advance(120.0)
    assert interest.memory == 0


def test_filters_too_long_to_be_posted_become_everything() -> None:
    world = World(routing="interest", limits=Limits(listing_own_bytes=10_000))
    cluster = world.node.cluster
    cluster.strategy.table.begin()
    client = world.connect("c")
    assert set(client.subscribe(*(f"{number}/" + "x" * 3000 for number in range(5)))) == {0}
    assert INTEREST + b"#" in cluster.directory.database.own.entries
    assert client.subscribe("#") == [0]
    client.unsubscribe("#")
    world.advance(120.0)
    assert INTEREST + b"#" in cluster.directory.database.own.entries, (
        "what it wants is still more than can be told"
    )
    assert world.counters.interest_widened > 0


def counted(world: World) -> int:
    """Have a message come that nobody reads on, and return what is counted for it."""
    world.connect("c").send(b"\x30" + bytes((0xFF, 0xFF, 0xFF, 0x7F)) + b"x" * MIB)
    return world.node.memory._waiting


def test_memory_is_counted_by_the_work_that_was_done() -> None:
    world = World(memory_limit=80 * MIB)
    world.advance(0.5)
    assert not counted(world)
    for _ in range(4):
        world.node.memory.worked(0.015)
    assert world.node.memory._waiting > MIB


def test_a_broker_that_has_little_to_do_counts_its_clients_once_a_second() -> None:
    world = World(memory_limit=80 * MIB)
    node = world.node
    counted(world)
    deadlines = []
    while world.now < 1010.0:
        due = node.next_deadline()
        assert due is not None
        deadlines.append(due)
        world.now = due
        node.tick(due)
        world.settle()
    assert len(deadlines) < 25
    assert node.memory._waiting > MIB


def test_no_turn_counts_many_clients_and_the_limit_is_noticed_soon() -> None:
    """Not later than in two rounds: one may be under way, and the growing client be behind it."""
    step, clients = 10, 100
    world = World(memory_limit=8 * MIB, limits=Limits(memory_step=step))
    for number in range(clients):
        world.connect(f"c{number}")
    node, memory = world.node, world.node.memory
    pieces = 2 * clients // step + 1
    for number in range(20):
        world.now += 0.77 * IDLE_PERIOD
        node.tick(world.now)
        world.settle()
        # 9 MiB that nobody reads on, which no counter tells of.
        client = world.peers[number]
        client.conn.receive(b"\x30\xff\xff\xff\x7f" + b"x" * (9 * MIB), world.now)
        began = world.now
        while memory.pressure < Pressure.OVER and not client.closed:
            left = length_hint(memory._sessions) + length_hint(memory._connections)
            due = node.next_deadline()
            assert due is not None
            world.now = max(world.now, due)
            node.tick(world.now)
            counted_now = left - length_hint(memory._sessions) - length_hint(memory._connections)
            assert counted_now <= step
            world.settle()
        assert world.now - began <= IDLE_PERIOD + 2 * pieces * PAUSE + 0.001
        world.advance(IDLE_PERIOD)
        assert client.closed
        assert memory.pressure == Pressure.NONE
    assert world.counters.memory_closed == 20


def test_without_a_limit_work_is_not_counted() -> None:
    world = World()
    world.node.memory.worked(10.0)
    assert not counted(world)
