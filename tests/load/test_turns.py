"""The longest turns of one node (CPU, printed, not judged) by what others bring about; no
sockets."""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mqttree.broker.auth.acl_file import parse_rules
from mqttree.broker.auth.authorization import Access
from mqttree.broker.cli.run import GC_THRESHOLDS
from mqttree.broker.cluster.delivery.pull_messages import ENTRIES_PIECE, PULL
from mqttree.broker.cluster.delivery.replay_log import LogEntry
from mqttree.broker.cluster.directory.link_state_directory import CLIENT, GROUP, INTEREST
from mqttree.broker.cluster.link.control_records import DIRECTORY, SEEN
from mqttree.broker.cluster.link.message_batch import encode_message
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.link.version_vector import OriginWindow, encode_vector
from mqttree.broker.cluster.sessions.pending_takeover import State
from mqttree.broker.cluster.sessions.session_parts import PART_SIZE, split
from mqttree.broker.cluster.sessions.session_state import WAITING, Item, SessionState
from mqttree.broker.cluster.sessions.takeover_messages import (
    MERGE,
    SESSION_PART,
    SESSION_REQUEST,
    TAKE,
    encode_takeover,
)
from mqttree.broker.cluster.sharing.assignment_ledger import encode_refs
from mqttree.broker.cluster.sharing.assignments import DECLINE, REPORT
from mqttree.broker.core.client_packets import MAX_FILTERS_PACKET_BYTES
from mqttree.broker.core.message import Message
from mqttree.broker.core.session_owner import ANONYMOUS, KEPT, digest
from mqttree.broker.core.session_owner import Entry as Posted
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Publish, Subscribe, SubscriptionRequest, Will
from mqttree.broker.wire.properties import MAX_REPEATED, Property
from mqttree.routing.group_selection import encode_standing, group_id_of, group_key
from mqttree.routing.link_state import ASK_LISTINGS
from mqttree.routing.listing import NEIGHBOUR, UP
from mqttree.stp.bpdu import Role
from tests.kit.heads import encode_head
from tests.kit.link_harness import FAR, OWN, Neighbour, bid, listing, lone, ping, pull_body, routed
from tests.kit.node_harness import World, connect_packet

COUNT = 300_000
"""messages of 64 bytes, a full log"""
KEY = origin_key(FAR, 2_000)


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """The garbage collector as a broker has it."""
    old = gc.get_threshold()
    yield
    gc.set_threshold(*old)
    gc.unfreeze()


def logged(world: World, key: bytes) -> None:
    relay = world.node.cluster.forwarder
    for number in range(1, COUNT + 1):
        one = Message(b"t/%d" % (number % 500), bytes(64), 1, False, b"", None, None)
        if key == relay.key:
            relay.own.top = number
        else:
            relay.accept(key, number, 1, world.now)
        relay.log.append(
            LogEntry(key, number, 1, encode_message(one, key, number, 0.0), world.now), None
        )


def longest(world: World, what: str, begin: Callable[[], Any], over: Callable[[], Any]) -> None:
    """Have something begin and wait until it is over; print the longest turn."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    most, turns = 0.0, 0
    step = begin
    while turns == 0 or not over():
        assert turns < 10_000
        began = time.thread_time()
        step()
        most, turns = max(most, time.thread_time() - began), turns + 1
        due = world.node.next_deadline()
        if due is None:
            assert over()
            break
        world.now = max(world.now, due)
        world.node.turns.work = 0

        def step() -> None:
            world.node.tick(world.now)
            world.settle()

    print(f"{what}: longest turn {1000 * most:.1f} ms of {turns}")


@pytest.mark.parametrize("lacks", [0, COUNT])
def test_a_link_joins(lacks: int) -> None:
    world = lone(link_timeout=1000.0)
    logged(world, KEY)
    one = Neighbour(world, 1)
    one.bpdu(world.node.cluster.tree.root, Role.ROOT, Role.DESIGNATED, path_cost_us=50)
    relay = world.node.cluster.forwarder
    seen = ping(
        (SEEN, encode_vector({relay.key: relay.own, KEY: OriginWindow(COUNT - lacks, 0.0)}))
    )
    longest(
        world,
        f"a neighbour joins that lacks {lacks} of {COUNT} messages",
        lambda: one.send(seen),
        lambda: one.link().live,
    )


@pytest.mark.parametrize("begin", [1, COUNT - 20_000])
def test_an_origin_is_asked(begin: int) -> None:
    world = lone(routing="interest", link_timeout=1000.0)
    one = Neighbour(world, 101).child().known((b"ft/7", b""), number=2)
    logged(world, world.node.cluster.forwarder.key)
    question = routed(PULL, pull_body(world.node.cluster.forwarder.key, (begin, COUNT)))
    what = f"an answer from number {begin} on, of {COUNT}, of which one in 500 is wanted"
    longest(world, what, lambda: one.send(question), lambda: True)


@pytest.mark.parametrize("filters", ["ft/7", "f#"])
def test_a_neighbour_asks_for_messages_of_others(filters: str) -> None:
    world = lone(routing="interest", link_timeout=1000.0)
    one = Neighbour(world, 101).child().known((filters.encode(), b""), number=2)
    logged(world, KEY)
    question = routed(PULL, pull_body(KEY, (1, COUNT), behind=True))
    answers: list[bytes] = []
    longest(
        world,
        f"a neighbour asks for {COUNT} messages of another origin, for {filters[1:]}",
        lambda: one.send(question),
        lambda: answers.extend(one.routed(ENTRIES_PIECE)) or bool(answers),
    )


def test_groups_are_given_back() -> None:
    world = lone(link_timeout=1000.0, limits=Limits(hold_queued=1_000_000))
    one = Neighbour(world, 101).child()
    Neighbour(world, 102).child()
    sharing, count = world.node.cluster.sharing, 9_900
    sharing.groups._posted(bid(101), group_key("g", "t"), encode_standing(1))
    publisher = world.connect("p")
    for number in range(count):
        publisher.publish("t", b"|%d" % number, qos=1, packet_id=number + 1)
    sharing.groups._posted(bid(102), group_key("g", "t"), encode_standing(1))
    said = encode_refs(
        (DECLINE, (world.node.cluster.forwarder.key, number, group_id_of(group_key("g", "t"))))
        for number in range(1, count + 1)
    )
    report = routed(REPORT, *said)
    what = f"{count} messages of a group are given back"
    longest(
        world, what, lambda: one.send(report), lambda: world.counters.shared_reassigned == count
    )


def test_a_listing_is_asked_for() -> None:
    world = lone(routing="interest", link_timeout=1000.0)
    one = Neighbour(world, 1).child()
    for number in range(20_000):
        world.node.cluster.directory.post(INTEREST + b"device/%d/state" % number)
    world.advance(1.0)
    one.take()
    question = ping((DIRECTORY, bytes((ASK_LISTINGS,)) + (OWN + bytes(12)) * 100))
    size = 20_000 * 20
    what = "a listing of 20,000 filters is asked for 100 times"
    longest(world, what, lambda: one.send(question), lambda: len(one.transport.written) > size)
    print(f"  {len(one.transport.written):,} bytes in all")


FILTERS = 100_000
"""of one session"""


def test_sessions_expire_together() -> None:
    world, count = lone(routing="topic", link_timeout=1000.0), 10_000
    Neighbour(world, 101).child()
    clients = [
        world.connect(f"c{n}", properties={Property.SESSION_EXPIRY_INTERVAL: 60})
        for n in range(count)
    ]
    for number, client in enumerate(clients):
        client.send(Subscribe(1, [SubscriptionRequest(f"t/{number}", 1)]))
    world.advance(10)  # the neighbour does not say that it has heard of them
    world.peers.clear()
    for client in clients:
        world.node.connection_lost(client.conn, "reset", world.now)
    world.settle()
    world.advance(3)
    longest(
        world,
        f"{count} sessions expire in one moment",
        lambda: None,
        lambda: not world.node.sessions,
    )


@pytest.mark.parametrize("what", ["keep alives end", "stopped"])
def test_very_many_clients_are_closed_together(what: str) -> None:
    world, count = World(), 20_000
    for number in range(count):
        will = Will(f"w/{number}", b"x", 1, True)
        world.open().send(connect_packet(f"c{number}", clean=False, keep_alive=10, will=will))
        world.peers.clear()
    longest(
        world,
        f"{count} clients, {what}",
        lambda: what == "stopped" and (world.node.stop(world.now), world.settle()),
        lambda: not world.node.clients.connected,
    )
    longest(
        world,
        "they do not close their connections",
        lambda: None,
        lambda: not world.node.connections,
    )


def test_the_most_user_properties() -> None:
    world = World()
    for count in (MAX_REPEATED, MAX_REPEATED + 1, 100 * MAX_REPEATED):
        client = world.connect("c")
        packet = encode_packet(
            Publish(
                "t", b"x", 1, packet_id=1, properties={Property.USER_PROPERTY: [("", "")] * count}
            ),
            5,
        )
        send = functools.partial(client.send, packet)
        longest(world, f"a PUBLISH with {count} User Properties", send, lambda: True)


def moves(number: int) -> bytes:
    return f"plant/{number % 100}/device/{number}".encode()


def test_a_session_comes_from_another_broker() -> None:
    state = SessionState(
        None,
        1e9,
        0,
        {},
        set(),
        [(f"{moves(n).decode()}/#", 1, False, False, 0) for n in range(FILTERS)],
    )
    data = encode_head(state, 1000.0)
    parts = list(split(data, 1, 0, len(data)))
    world = lone(routing="topic", link_timeout=1000.0)
    one = Neighbour(world, 101).child()
    one.known((CLIENT + b"k", Posted(KEPT, 5 << 16, 5 << 16, 0, ANONYMOUS).encode()))
    world.open().send(
        connect_packet("k", clean=False, properties={Property.SESSION_EXPIRY_INTERVAL: 1000})
    )
    pull = world.node.cluster.takeover._pending["k"]

    def part(data: bytes) -> None:
        one.send(routed(SESSION_PART, encode_takeover(TAKE, pull.stamp, "k", data)))

    for data in parts[:-1]:
        part(data)
    what = f"a session of {FILTERS} subscriptions comes"
    longest(world, what, lambda: part(parts[-1]), lambda: pull.state in (State.ENDING, State.OVER))


@pytest.mark.parametrize("filters", [1, FILTERS])
def test_an_old_session_is_added_to_a_newer_one(filters: int) -> None:
    """`filters`: of the newer one."""
    world = lone(routing="topic", link_timeout=30_000.0)
    one = Neighbour(world, 101).child().known()
    client = world.connect("k", clean=False, properties={Property.SESSION_EXPIRY_INTERVAL: 1000})
    for begin in range(0, filters, 10_000):
        numbers = range(begin, min(filters, begin + 10_000))
        client.send(
            Subscribe(1, [SubscriptionRequest(f"{moves(n).decode()}/#", 1) for n in numbers])
        )
        while not client.transport.written:
            world.advance(0.01)
        client.transport.written.clear()
    one.known((CLIENT + b"k", Posted(KEPT, 5 << 16, 5 << 16, 0, ANONYMOUS).encode()), number=2)
    messages = [
        Message(b"plant/0/device/0/x", b"%d" % n, 1, False, b"", None, None) for n in range(100)
    ]
    state = SessionState(
        None,
        1e9,
        0,
        {},
        set(),
        [(f"{moves(n).decode()}/#", 1, False, False, 0) for n in range(FILTERS)],
    )
    state.items = [Item(WAITING, 0, 1, False, b"", each) for each in messages]
    data = encode_head(state, world.now)
    parts = list(split(data, 1, 0, len(data)))
    world.advance(3.0)
    (merge,) = world.node.cluster.session_merge._merges.values()

    def part(data: bytes) -> None:
        one.send(routed(SESSION_PART, encode_takeover(MERGE, merge.stamp, "k", data)))

    for data in parts[:-1]:
        part(data)
    what = f"a session of {FILTERS} subscriptions is added to one of {filters}"
    longest(world, what, lambda: part(parts[-1]), lambda: world.counters.sessions_merged)


def test_what_came_meanwhile_for_a_session_that_leaves() -> None:
    # 250 filters at a time wait for a silent neighbour.
    world, stamp = lone(routing="topic", link_timeout=30_000.0), 1 << 60
    one = Neighbour(world, 101).child().known()
    client = world.connect("k", clean=False, properties={Property.SESSION_EXPIRY_INTERVAL: 1000})
    for begin in range(0, FILTERS, 10_000):
        client.send(
            Subscribe(
                1,
                [
                    SubscriptionRequest(f"{moves(n).decode()}/#", 1)
                    for n in range(begin, begin + 10_000)
                ],
            )
        )
        while not client.transport.written:
            world.advance(0.01)
        client.transport.written.clear()
    client.vanish()

    def ask(request: int, rest: bytes) -> None:
        body = encode_takeover(request, stamp, "k", bytes(4) + digest(None) + rest)
        one.send(routed(SESSION_REQUEST, body))

    sent = len(one.transport.written)
    longest(
        world,
        f"a session of {FILTERS} subscriptions is encoded",
        lambda: ask(TAKE, b""),
        lambda: len(one.transport.written) > sent + PART_SIZE,
    )


def all_but_the_last(
    world: World, one: Neighbour, entries: list[tuple[bytes, bytes | None]]
) -> bytes:
    """A neighbour tells these; returns the last part of that."""
    one.known(number=2)
    entries = [(NEIGHBOUR + OWN, UP + b"\xff" * 12), *entries]
    starts = range(0, len(entries), 1500)
    parts = [
        listing(101, entries[at : at + 1500], 3, (at == 0) | (at == starts[-1]) << 1)
        for at in starts
    ]
    for part in parts[:-1]:
        one.send(part)
        world.advance(0.01)
    return parts[-1]


def lost(world: World, one: Neighbour) -> None:
    world.node.connection_lost(one.conn, "reset", world.now)
    world.settle()


@pytest.mark.parametrize("routing", ["topic", "interest"])
def test_a_broker_with_very_many_filters(routing: str) -> None:
    world = lone(routing=routing, link_timeout=1000.0)
    one = Neighbour(world, 101).child()
    last = all_but_the_last(
        world, one, [(INTEREST + moves(number), b"") for number in range(FILTERS)]
    )
    interest = world.node.cluster.strategy.table
    what = f"a listing of {FILTERS} filters comes ({routing})"
    longest(world, what, lambda: one.send(last), lambda: not interest._unhandled)
    longest(
        world,
        f"its broker is lost ({routing})",
        lambda: lost(world, one),
        lambda: not interest._unhandled,
    )


def test_a_broker_with_very_many_sessions() -> None:
    world = lone(routing="topic", link_timeout=1000.0)
    one = Neighbour(world, 101).child()
    stamps = range(5 << 16, (5 << 16) + FILTERS)
    entries: list[tuple[bytes, bytes | None]] = [
        (CLIENT + b"client%d" % stamp, Posted(KEPT, stamp, 5 << 16, 0, ANONYMOUS).encode())
        for stamp in stamps
    ]
    last, until = all_but_the_last(world, one, entries), world.now + 3.0
    longest(
        world,
        f"a listing of {FILTERS} sessions comes",
        lambda: one.send(last),
        lambda: world.now > until,
    )
    until = world.now + 3.0
    longest(world, "its broker is lost", lambda: lost(world, one), lambda: world.now > until)


@pytest.mark.parametrize("published", [False, True])
def test_a_broker_with_very_many_groups(published: bool) -> None:
    """`published`: something was, so that it is asked how old each of them is."""
    world = lone(routing="topic", link_timeout=1000.0)
    if published:
        world.connect("p").publish("t", b"x", 1)
    one = Neighbour(world, 101).child()
    groups = [group_key(f"g{number % 100}", moves(number).decode()) for number in range(FILTERS)]
    last = all_but_the_last(world, one, [(GROUP + group, encode_standing(1)) for group in groups])
    sharing, until = world.node.cluster.sharing, world.now + 10.0
    what = f"a listing of {FILTERS} groups comes" + ", and they are caught up" * published
    longest(world, what, lambda: one.send(last), lambda: world.now > until)
    assert len(sharing.groups.pools) == FILTERS
    until = world.now + DEFAULTS.log_age_s + 5.0
    longest(
        world,
        "its broker is lost, and they are forgotten",
        lambda: lost(world, one),
        lambda: world.now > until,
    )
    assert not sharing.groups.pools


def test_one_client_with_very_many_shared_subscriptions() -> None:
    world, count = lone(routing="topic", link_timeout=1000.0), 20_000
    Neighbour(world, 101).child().known()
    client = world.connect("k", clean=False, properties={Property.SESSION_EXPIRY_INTERVAL: 60})
    for begin in range(0, count, 10_000):
        numbers = range(begin, begin + 10_000)
        filters = [
            SubscriptionRequest(f"$share/g/{moves(number).decode()}", 1) for number in numbers
        ]
        longest(
            world,
            "10000 shared subscriptions",
            lambda filters=filters: client.send(Subscribe(1, filters)),
            client.take,
        )  # type: ignore[misc]

    def later(what: str, begin: Callable[[], Any], seconds: float) -> None:
        until = world.now + seconds
        longest(
            world,
            f"a client with {count} shared subscriptions {what}",
            begin,
            lambda: world.now > until,
        )

    later("disconnects", client.vanish, 2.0)
    later(
        "is back",
        lambda: world.connect("k", clean=False, properties={Property.SESSION_EXPIRY_INTERVAL: 60}),
        2.0,
    )
    later("disconnects again, and its session expires", world.peers[-1].vanish, 70.0)


def test_many_that_wait_for_a_broker_that_hangs() -> None:
    world, count = lone(routing="topic", link_timeout=1000.0), 10_000
    Neighbour(world, 101).child().known()
    clients = [world.connect(f"c{number}") for number in range(count)]
    world.peers.clear()
    for number, client in enumerate(clients):
        client.send(Subscribe(1, [SubscriptionRequest(f"t/{number}", 1)]))
    last = clients[-1].transport
    longest(
        world,
        f"{count} SUBSCRIBEs wait for a broker that says nothing",
        lambda: None,
        lambda: last.written,
    )


@pytest.mark.parametrize("version", [4, 5])
def test_the_largest_subscribe(version: int) -> None:
    world, count = World(), MAX_FILTERS_PACKET_BYTES // 4 - 2
    client = world.connect("k", version=version)
    packet = encode_packet(
        Subscribe(1, [SubscriptionRequest("abcdefgh"[number % 8], 0) for number in range(count)]),
        version,
    )
    what = f"a SUBSCRIBE with {count} filters of one character (version {version})"
    longest(world, what, lambda: client.send(packet), lambda: client.transport.written)


def test_new_rules() -> None:
    world, count = lone(link_timeout=1000.0), 20_000
    for number in range(count):
        world.connect(f"c{number}", username=f"u{number % 1000}").subscribe(f"t/{number}")
        world.peers.clear()
    own = "".join(f"user u{number}\nallow all own/{number}/#\n" for number in range(1000))
    access = Access(
        None, parse_rules("rules", own + "everyone\nallow all t/#\ndeny all #\n", limits=Limits())
    )
    sessions = list(world.node.sessions.values())
    what = f"new rules for {count} clients"
    longest(
        world,
        what,
        lambda: world.node.set_access(access, world.now),
        lambda: sessions[-1].permissions is not None,
    )
