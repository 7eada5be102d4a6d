"""A broker that drains, step by step: what its clients, its neighbours and those who look after it
are told."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mqttree.broker.base.broker_id import Identity
from mqttree.broker.cli.status import waits_for
from mqttree.broker.cluster.delivery.resync import DIRECTORY_WAIT_S
from mqttree.broker.cluster.directory.link_state_directory import CLIENTS_AT, DRAINING
from mqttree.broker.cluster.drain import (
    REPLAY,
    TREE_TIMEOUT_S,
    Drain,
    DrainOptions,
    check_elsewhere,
    read_drain,
)
from mqttree.broker.cluster.link.control_records import ASK_SEEN, SEEN
from mqttree.broker.cluster.link.version_vector import encode_vector
from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.packets import Connack, Disconnect
from mqttree.broker.wire.properties import Property
from mqttree.stp import bpdu as bpdus
from mqttree.stp.bpdu import Role
from mqttree.stp.config import TreeConfig
from mqttree.stp.priority_vector import RootVector
from mqttree.stp.tree import Tree
from tests.kit.core import needs_python
from tests.kit.link_harness import Neighbour, bid, lone, ping
from tests.kit.node_harness import FakeClient, World, connect_packet

# ------------------------------------------------------------------ what may be said


def test_drain_options_are_read() -> None:
    assert read_drain({}) == DrainOptions()
    assert read_drain({"rate": "2.5", "to": "example.org:1883", "within": "0"}) == DrainOptions(
        2.5, "example.org:1883", 0.0
    )
    assert read_drain({"to": "[::1]:1884"}).to == "[::1]:1884"


@pytest.mark.parametrize("to", ["127.0.0.1:1883", "localhost:1883", "[::1]:1883"])
def test_clients_are_not_redirected_to_the_draining_broker(to: str) -> None:
    config = NodeConfig(host="127.0.0.1", port=1883)
    with pytest.raises(ValueError, match="is this broker itself"):
        check_elsewhere(read_drain({"to": to}), config)
    check_elsewhere(read_drain({"to": to.replace("1883", "1884")}), config)
    check_elsewhere(read_drain({}), config)


@pytest.mark.parametrize(
    "values",
    [
        {"rate": "0"},
        {"rate": "nan"},
        {"rate": "x"},
        {"rate": ""},
        {"rate": "-1"},
        {"within": "-1"},
        {"within": "inf"},
        {"to": ""},
        {"to": "0.0.0.0:1883"},
        {"to": "a b"},
        {"to": "x:99999"},
        {"to": "nowhere"},
        {"to": "::1"},
        {"speed": "1"},
    ],
)
def test_impossible_drain_options_are_refused(values: dict[str, str]) -> None:
    with pytest.raises(ValueError) as caught:
        read_drain(values)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 120


# ------------------------------------------------------------------ clients


class Draining:
    """A broker that drains, perhaps one of several, and what becomes of it."""

    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        self.done: list[float] = []
        self.drain = Drain(
            world.node, DrainOptions(**options), world.now, lambda: self.done.append(world.now)
        )
        world.settle()


def alone(**config: Any) -> World:
    return World(**config)


def gone(client: FakeClient) -> bool:
    return client.closed


def test_clients_are_disconnected_at_the_given_rate() -> None:
    world = alone()
    clients = [world.connect(f"c{number}") for number in range(10)]
    found = Draining(world, rate=2.0, to="other:1883")
    counts = []
    world.advance(0.1)
    for _ in range(10):
        world.advance(0.5)
        counts.append(sum(map(gone, clients)))
    assert counts == [2, 3, 4, 5, 6, 7, 8, 9, 10, 10]
    for client in clients:
        packets = client.take()
        assert packets == [
            Disconnect(ReasonCode.USE_ANOTHER_SERVER, {Property.SERVER_REFERENCE: "other:1883"})
        ]
    world.advance(1.0)
    assert len(found.done) == 1
    assert found.drain.state == "done"
    assert world.counters.redirected == 10


def test_a_slow_rate_extends_the_time_limit() -> None:
    world = alone()
    for number in range(100):
        world.connect(f"c{number}")
    found = Draining(world, rate=1.0, to="x")
    world.advance(99.5)
    assert world.node.clients.connected == 0 and "left are" not in "".join(world.logged)
    world.advance(2.0)
    assert found.done


@pytest.mark.parametrize("version", (3, 4, 5))
def test_a_new_client_is_sent_to_another_broker(version: int) -> None:
    world = alone()
    world.connect("stays")
    world.connect("stays too")
    Draining(world, rate=0.01, to="other:1884")
    client = world.open(version).sent(connect_packet("late", version))
    (answer,) = client.take()
    assert isinstance(answer, Connack)
    if version == 5:
        assert answer.code == ReasonCode.USE_ANOTHER_SERVER
        assert (answer.properties or {})[Property.SERVER_REFERENCE] == "other:1884"
    else:
        assert answer.code == 3
    assert client.closed
    assert not [line for line in world.logged if "late" in line and "warning" in line]


def test_without_other_brokers_clients_learn_that_it_stops() -> None:
    world = alone()
    client, old = world.connect("c"), world.connect("old", 4)
    Draining(world)
    late = world.open(5).sent(connect_packet("late", 5))
    assert late.take()[0].code == ReasonCode.SERVER_UNAVAILABLE  # type: ignore[union-attr]
    world.advance(1.0)
    assert client.take() == [Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)]
    assert old.closed and old.take() == []


def test_sessions_that_no_broker_takes_end_after_a_while() -> None:
    world = lone()
    Neighbour(world, 1).child()
    world.connect("c", 4, clean=False).subscribed("t", qos=1).disconnect()
    world.connect("p").publish("t", b"x", 1, 1)
    found = Draining(world, to="x")
    assert found.drain.state == "clients"
    world.advance(1.0)
    assert "c" not in world.node.sessions  # no other broker could take it
    world.advance(TREE_TIMEOUT_S)
    assert found.done
    assert "1 session with 1 message ended here" in world.logged[-1]


# ------------------------------------------------------------------ neighbours


def test_clients_are_sent_to_brokers_that_do_not_drain() -> None:
    """In turn; neither one that drains itself, nor one that says nothing, nor nonsense."""
    world = lone()
    Neighbour(world, 1).child()
    directory = world.node.cluster.directory.database
    found = Draining(world)
    entries = {
        2: {CLIENTS_AT: b"10.0.0.2:1883"},
        3: {CLIENTS_AT: b"10.0.0.3:1884", DRAINING: b"1"},
        4: {},
        5: {CLIENTS_AT: b"\xff"},
        6: {CLIENTS_AT: b"a b"},
        7: {CLIENTS_AT: b"[::7]:1883"},
    }

    class Some:
        def __init__(self, number: int) -> None:
            self.id = bid(number)
            self.entries = entries[number]

    needs_python("replaces a method")
    directory.reachable = lambda: [Some(number) for number in entries]  # type: ignore[method-assign,assignment,misc]
    assert found.drain.targets() == ["10.0.0.2:1883", "[::7]:1883"]
    assert {found.drain.reference() for _ in range(4)} == {"10.0.0.2:1883", "[::7]:1883"}


def test_a_drain_is_posted_to_all_brokers() -> None:
    world = lone()
    own = world.node.cluster.directory.database.own.entries
    assert own[CLIENTS_AT] == b"10.0.0.200:1883"
    assert DRAINING not in own
    Draining(world)
    assert own[DRAINING]
    assert CLIENTS_AT not in lone(server_reference="x").node.cluster.directory.database.own.entries
    assert CLIENTS_AT not in lone(link_listener="tls").node.cluster.directory.database.own.entries
    told = lone(link_listener="tls", client_address="example.org:1883")
    assert told.node.cluster.directory.database.own.entries[CLIENTS_AT] == b"example.org:1883"


def test_a_drained_broker_stays_until_its_neighbour_has_all_messages() -> None:
    """The neighbour becomes the root, and says again and again that it lacks a message; then that
    it has it."""
    world = lone()
    neighbour = Neighbour(world, 1).child()
    world.connect("p").publish("t", b"x", 1, 1)
    before = encode_vector(world.node.cluster.forwarder.vector)
    world.connect("q").publish("t", b"y", 1, 1)
    found = Draining(world, to="x")
    root = RootVector.of(Identity(bid(1), 1, ("10.0.0.1", 1883)), 1.0)
    while not found.done and world.now < 1_004.0:
        neighbour.bpdu(root, Role.DESIGNATED, Role.ROOT, seq=round(world.now))
        world.advance(0.2)
    assert world.node.cluster.tree.root.id == bid(1)
    assert found.drain.state == "links" and not found.done
    assert found.drain.as_dict()["links_left"] == 1
    assert (ASK_SEEN, b"") in neighbour.control()
    neighbour.send(ping((SEEN, before)))
    world.advance(DIRECTORY_WAIT_S)
    neighbour.take()  # the link had to be let in again, as its role was another one
    for _ in range(REPLAY):
        neighbour.send(ping((SEEN, before)))
        world.advance(0.1)
    world.advance(DIRECTORY_WAIT_S)
    assert neighbour.messages() == [b"y"]  # what it lacks for so long it is sent again
    assert not found.done
    neighbour.send(ping((SEEN, encode_vector(world.node.cluster.forwarder.vector))))
    world.advance(0.1)
    assert len(found.done) == 1
    assert world.logged[-1].startswith("drained in") and "left are" not in world.logged[-1]


# ------------------------------------------------------------------ the end of patience


def test_a_drain_ends_when_its_time_is_over() -> None:
    world = lone()
    Neighbour(world, 1).child()
    for number in range(3):
        world.connect(f"c{number}")
    found = Draining(world, rate=0.01, within=1.0)
    world.advance(0.9)
    assert not found.done
    world.advance(0.2)
    assert len(found.done) == 1
    assert (
        "1 client sent away; time is up, left are 2 clients, 2 sessions, 1 neighbour that may lack"
        in world.logged[-1]
    )
    world.advance(5.0)
    assert len(found.done) == 1


def test_the_status_says_what_a_drain_waits_for() -> None:
    drain = {
        "state": "sessions",
        "clients_left": 0,
        "sessions_left": 1,
        "links_left": 2,
        "journal_left": 0,
        "seconds_left": 3,
    }
    assert waits_for(drain) == "sessions: waits for 1 session, 2 links; 3 s at most"
    drain |= {"sessions_left": 0, "links_left": 0, "journal_left": 1}
    assert (
        waits_for(drain)
        == "sessions: waits for 1 session in the journal that other brokers may fetch; 3 s at most"
    )
    drain |= {"journal_left": 0}
    assert (
        waits_for(drain | {"state": "tree"})
        == "tree: waits for the neighbours to turn to others; 3 s at most"
    )
    assert waits_for(drain | {"state": "done"}) == "done: waits for nothing; 3 s at most"


# ------------------------------------------------------------------ the tree


def test_a_retired_broker_is_never_chosen() -> None:
    rng = random.Random(1)
    own = Identity(bid(1), 1, ("10.0.0.1", 1883))
    tree = Tree(own, 9.0, TreeConfig(), 0.0, rng)
    tree.retire(0.0)
    assert tree.is_root and tree.root.tenths == 0 and tree.is_leaf
    tree.port_up(Identity(bid(2), 1, ("10.0.0.2", 1883)), 1.0, 0.0)
    root = RootVector.of(Identity(bid(2), 1, ("10.0.0.2", 1883)), 1.0)
    tree.bpdu_received(bid(2), bpdus.Bpdu(root, 1, 0, 10, Role.DESIGNATED, Role.DESIGNATED), 0.0)
    assert tree.parent == bid(2)
    assert tree.path_cost_us == TreeConfig().retired_cost_us + tree.ports[bid(2)].link_cost_us
    far = root.__class__(root.id, root.boot, root.tenths, root.address)
    # The way is so dear that ours is no way at all.
    for number, cost in enumerate(range(3_000_000_000, 3_600_000_001, 100_000_000)):
        tree.bpdu_received(
            bid(2), bpdus.Bpdu(far, 2 + number, cost, 10, Role.DESIGNATED, Role.ROOT), 0.1
        )
        for _, bpdu in tree.take_bpdus(0.1):
            bpdus.encode(bpdu)
