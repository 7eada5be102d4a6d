"""Every checker catches its fault: brokers are broken in memory, one way each, and the schedule has
to say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mqttree.broker.base.sequence_set import MAX_GAPS
from mqttree.broker.cluster.cluster import Cluster
from mqttree.broker.cluster.delivery.answers import Answers
from mqttree.broker.cluster.delivery.forwarder import Forwarder
from mqttree.broker.cluster.delivery.local_window import LocalWindow
from mqttree.broker.cluster.delivery.ordered_feed import OrderedFeed
from mqttree.broker.cluster.delivery.replay_log import LogEntry, ReplayLog
from mqttree.broker.cluster.delivery.resync import Resync
from mqttree.broker.cluster.directory.link_state_directory import CLIENT
from mqttree.broker.cluster.link.link_states import State
from mqttree.broker.cluster.link.version_vector import OriginWindow
from mqttree.broker.core.client_packets import ClientPackets
from mqttree.broker.core.connection import Connection
from mqttree.broker.core.effects import Datagram
from mqttree.broker.core.message import Message
from mqttree.broker.limits import Limits
from mqttree.broker.node import Node
from mqttree.discovery.membership import Membership
from mqttree.routing.subscription_trie import SubscriptionTrie, TopicTrie
from mqttree.stp.bpdu import Role
from mqttree.stp.priority_vector import RootVector
from tests.kit.core import needs_python
from tests.sim.checkers import (
    Meetings,
    Messages,
    Splits,
    bound_faults,
    directory_faults,
    log_faults,
    tree_faults,
    watch_crossings,
)
from tests.sim.clients import Got, Ledger, Sent, SimClient
from tests.sim.disk import Disk
from tests.sim.mutants import Mutant
from tests.sim.schedule import faults_of, quiet
from tests.sim.test_federation import Event, Scene, part, world_of
from tests.sim.world import End, Host, World

Patch = pytest.MonkeyPatch

CUT: list[Event] = [(1.2, part((0,), (1, 2))), (3.6, part())]
"""Long enough for links to die: what is published meanwhile comes again when it heals."""


class Small(Scene):
    """Three brokers and few messages, retained ones among them; each has a subscriber of some of
    them, too."""

    def __init__(self, events: list[Event] | None = None) -> None:
        super().__init__(1, 3, CUT if events is None else events)
        self.length = 3.5

    def build(self) -> None:
        super().build()
        for host in self.hosts:
            self._client(
                f"one{host.index}", host, filters=[("t/pub0", 1)], clean=True, receive_maximum=0
            )

    def _client(self, name: str, host: Host, **settings: Any) -> SimClient:
        return super()._client(name, host, version=5, **settings)

    def traffic(self) -> None:
        for publisher in self.publishers:
            for number in range(30):
                self.world.after(
                    0.6 + number * 0.1, publisher.publish, f"t/{publisher.name}", 1 + number % 2
                )
            self.world.after(1.0, publisher.publish, f"r/{publisher.name}", 1, True)


def texts(scene: Scene, kind: str) -> list[str]:
    return [text for found, text in scene.run().violations if found == kind]


@pytest.mark.parametrize("events", [CUT, []], ids=["cut", "whole"])
def test_sound_brokers_cause_no_violations(events: list[Event]) -> None:
    """What the mutants are compared with: nothing is reported, and the cut led to replays and
    duplicates."""
    scene = Small(events)
    result = scene.run()
    assert result.violations == []
    assert bool(result.counters["replayed"]) == bool(events)


# ---------------------------------------------------------------- messages


def replays_nothing(patch: Mutant) -> None:
    """Neither a neighbour, nor the origin for a broker that was away."""
    patch.setattr(Resync, "_replay", lambda *_: None)
    patch.setattr(Answers, "_logged", lambda self, asked, looked: (0, ()))


def replays_backwards(patch: Mutant) -> None:
    """And feeds do not set that right."""
    patch.setattr(OrderedFeed, "take", lambda self, link, first, count: count)
    replay = Resync._replay
    patch.setattr(
        Resync, "_replay", lambda self, link, entries, now: replay(self, link, entries[::-1], now)
    )


def takes_everything(patch: Mutant) -> None:
    def accept(self: LocalWindow, first: int, count: int, **more: Any) -> int:
        self.top = max(self.top, first + count - 1)
        return count

    patch.setattr(LocalWindow, "accept", accept)


def replays_all(patch: Mutant) -> None:
    takes_everything(patch)
    walk = Resync.walk
    patch.setattr(
        Resync,
        "walk",
        lambda self, link, seen, then: walk(
            self, link, dict.fromkeys(seen, OriginWindow(0, 0.0)), then
        ),
    )


def changes_received(patch: Mutant, change: Callable[[Forwarder, Message], list[Message]]) -> None:
    """Deliver something else than what came over a link."""
    received = Forwarder.received

    def wrong(self: Forwarder, link: Any, entry: LogEntry, message: Message, *rest: Any) -> None:
        for one in change(self, message):
            received(self, link, entry, one, *rest)

    patch.setattr(Forwarder, "received", wrong)
    # The messages of a batch, too, come there one by one.
    patch.setattr(Forwarder, "singly", lambda self, key, sequence: True)


def delivers(**fields: Any) -> Callable[[Mutant], None]:
    """Deliver messages with other `fields`."""

    def plant(patch: Mutant) -> None:
        def change(relay: Forwarder, message: Message) -> list[Message]:
            names = ("topic", "payload", "qos", "retain", "properties")
            values = [fields.get(name, getattr(message, name)) for name in names]
            return [Message(*values, None, None)]

        changes_received(patch, change)

    return plant


def delivers_twice(patch: Mutant) -> None:
    def change(relay: Forwarder, message: Message) -> list[Message]:
        relay.node.dispatcher.publish(message, None, ())
        return [message]

    changes_received(patch, change)


def matches_everything(patch: Mutant) -> None:
    match = SubscriptionTrie.match

    def wrong(self: SubscriptionTrie[Any], topic: str) -> list[Any]:
        return match(self, "t/pub0" if topic.startswith("t/") else topic)

    patch.setattr(SubscriptionTrie, "match", wrong)


def loses_retained(patch: Mutant) -> None:
    keep = TopicTrie.set
    patch.setattr(
        TopicTrie, "set", lambda self, topic, value: topic == "r/pub1" or keep(self, topic, value)
    )


def forwards_no_qos_0(patch: Mutant) -> None:
    send = Forwarder.forward_batch
    patch.setattr(
        Forwarder,
        "forward_batch",
        lambda self, packets, count, version, qos, links, source: (
            send(self, packets, count, version, qos, links, source) if qos else None
        ),
    )
    patch.setattr(Forwarder, "forward_packet", lambda *packet: None)
    forward = Forwarder.forward
    patch.setattr(
        Forwarder,
        "forward",
        lambda self, message, *more: forward(self, message, *more) if message.qos else None,
    )


def closes_publishers(patch: Mutant) -> None:
    packets = ClientPackets.packets

    def wrong(self: ClientPackets, data: bytes, now: float) -> int:
        used = packets(self, data, now)
        if now > 102.0 and "pub" in self.session.client_id:
            self.conn.abort("for fun")
        return used

    patch.setattr(ClientPackets, "packets", wrong)


def raises(patch: Mutant) -> None:
    patch.meant = (ZeroDivisionError,)

    def change(relay: Forwarder, message: Message) -> list[Message]:
        raise ZeroDivisionError

    changes_received(patch, change)


def keeps_twice(patch: Mutant) -> None:
    append = ReplayLog.append

    def wrong(self: ReplayLog, entry: LogEntry, *source: Connection) -> None:
        append(self, entry, *source)
        append(self, entry, *source)

    patch.setattr(ReplayLog, "append", wrong)


MUTANTS: dict[str, tuple[Callable[[Mutant], None], str, str]] = {
    "replays nothing": (replays_nothing, "lost", "did not reach"),
    "replays backwards": (replays_backwards, "order", "after message"),
    "takes what has been here": (replays_all, "crossed twice", "message"),
    "delivers twice at QoS 2": (delivers_twice, "QoS 2 twice", "sub"),
    "delivers twice at QoS 1": (delivers_twice, "duplicate", "one"),
    "changes the payload": (delivers(payload=b"0|!"), "client", "payload of message"),
    "changes the topic": (delivers(topic=b"t/other"), "client", "came as t/other"),
    "drops properties": (delivers(properties=b""), "client", "properties of message"),
    "matches other filters": (matches_everything, "unwanted", "one"),
    "loses retained messages": (loses_retained, "retained", "b"),
    "does not forward QoS 0": (forwards_no_qos_0, "probe", "0 times"),
    "closes clients": (closes_publishers, "client", "closed by a living broker"),
    "raises": (raises, "raised", "ZeroDivisionError"),
    "keeps messages twice": (keeps_twice, "bounds", "twice"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str, monkeypatch: Patch) -> None:
    plant, kind, text = MUTANTS[name]
    with Mutant(monkeypatch) as mutant:
        plant(mutant)
        found = texts(Small(), kind)
        assert any(text in line for line in found), found[:3]


def test_probe_without_a_subscription_is_caught(monkeypatch: Patch) -> None:
    """After the faults a broker begins to deliver to others, and each message twice."""
    scene = Small([])
    match = SubscriptionTrie.match

    def wrong(self: SubscriptionTrie[Any], topic: str) -> list[Any]:
        return match(
            self,
            "t/pub0"
            if topic[:2] != "t/" and scene.world.now - scene.world.started > 11.0
            else topic,
        )

    with Mutant(monkeypatch) as mutant:
        mutant.setattr(SubscriptionTrie, "match", wrong)
        assert any("unasked" in text for text in texts(scene, "probe"))


def test_probe_delivered_twice_is_caught(monkeypatch: Patch) -> None:
    scene = Small([])
    received = Forwarder.received

    def wrong(self: Forwarder, link: Any, entry: LogEntry, message: Message, *rest: Any) -> None:
        received(self, link, entry, message, *rest)
        if scene.world.now - scene.world.started > 11.0:
            self.node.dispatcher.publish(message, None, ())

    with Mutant(monkeypatch) as mutant:
        mutant.setattr(Forwarder, "received", wrong)
        mutant.setattr(Forwarder, "singly", lambda self, key, sequence: True)
        assert any("2 times" in text for text in texts(scene, "probe"))


def test_number_that_crosses_twice_in_a_run_is_caught() -> None:
    """Runs of QoS 0 are looked at, number by number."""
    needs_python("a compiled forwarder lets nobody look at what it accepts")
    world = world_of(1, 1)
    watch_crossings(world)
    host = world.hosts[0]
    host.start()
    relay = host.running.cluster.forwarder
    key = b"A" * 16
    assert relay.accept(key, 1, 5, world.now) == 5
    relay.vector[key].top = 3  # forgets the last two
    assert relay.accept(key, 4, 1, world.now) == 1
    assert [kind for kind, _ in world.violations] == ["crossed twice"]


# ---------------------------------------------------------------- what a client notices


def client_of(version: int = 5) -> SimClient:
    world = World(1)
    client = SimClient(world, Ledger(), "c", world.add(), version=version)
    client.state, client.epoch = "connecting", 1
    return client


CLOSED = b"\xe0\x02\x8b\x00"
PACKETS = {
    "refused": (b"\x20\x03\x00\x87\x00", "refused: 0x87"),
    "session that is not ours": (b"\x20\x03\x01\x00\x00", "Session Present"),
    "DISCONNECT": (b"\x20\x03\x00\x00\x00" + CLOSED, "DISCONNECT 0x8b"),
    "packet of a client": (b"\xd0\x00", "unexpected"),
    "subscription refused": (b"\x20\x03\x00\x00\x00\x90\x04\x00\x07\x00\x87", "refused: 0x87"),
    "publish refused": (b"\x20\x03\x00\x00\x00\x40\x04\x00\x08\x87\x00", "publish refused: 0x87"),
}


@pytest.mark.parametrize("name", PACKETS)
def test_client_reports_packets_of_a_faulty_broker(name: str) -> None:
    data, error = PACKETS[name]
    client = client_of()
    client.filters = [("a", 1)]
    client._packet_id = 6  # the next one is 7, that of SUBSCRIBE

    def publish(client: SimClient) -> None:
        client.publish("a", 1)

    client.on_up = publish
    client.data(data)
    assert any(error in text for text in client.errors), client.errors


# ---------------------------------------------------------------- trees


@pytest.fixture(scope="module")
def rest() -> World:
    """Four brokers that agree: b0 is the root, b1, b2 and b3 are next to it, and their other links
    are blocked."""
    world = world_of(2, 4)
    world.slowest, world.jitter = 0.0001, 0.0  # no way is shorter than the direct one
    for host in world.hosts:
        host.start()
    quiet(world)
    world.run(1.0)
    assert not world.violations
    assert faults_of(world) == []
    assert bound_faults(world.hosts) == []
    assert [host.running.cluster.tree.hops for host in world.hosts] == [0, 1, 1, 1]
    return world


def node(world: World, index: int) -> Node:
    return world.hosts[index].running


def port(world: World, here: int, there: int) -> Any:
    return node(world, here).cluster.tree.ports[world.hosts[there].id]


def other_root(world: World, patch: Patch) -> None:
    tree = node(world, 1).cluster.tree
    wrong = node(world, 2).cluster
    patch.setattr(tree, "root", RootVector.of(wrong.own, 9.0))


def earlier_root(world: World, patch: Patch) -> None:
    patch.setattr(node(world, 0).config, "boot", node(world, 0).config.boot + 1)


def still_forming(world: World, patch: Patch) -> None:
    patch.setattr(node(world, 3).cluster.membership, "state", "forming")


def stranger(world: World, patch: Patch) -> None:
    unknown = world.hosts[2].id
    known = Membership.is_member
    patch.setattr(
        Membership,
        "is_member",
        lambda self, broker_id: broker_id != unknown and known(self, broker_id),
    )


def no_link(world: World, patch: Patch) -> None:
    patch.delitem(node(world, 1).cluster.links, world.hosts[2].id)


def port_to_no_broker(world: World, patch: Patch) -> None:
    patch.setitem(node(world, 1).cluster.tree.ports, b"12345678", port(world, 1, 2))


def port_without_twin(world: World, patch: Patch) -> None:
    patch.delitem(node(world, 1).cluster.tree.ports, world.hosts[2].id)


def port_without_link(world: World, patch: Patch) -> None:
    patch.setattr(node(world, 1).cluster.links[world.hosts[2].id], "up", False)


def two_roots_ports(world: World, patch: Patch) -> None:
    patch.setattr(port(world, 0, 1), "role", Role.ROOT)


def two_blocked(world: World, patch: Patch) -> None:
    for here, there in ((1, 2), (2, 1)):
        patch.setattr(port(world, here, there), "role", Role.BLOCKED)


def one_way(world: World, patch: Patch) -> None:
    patch.setattr(port(world, 0, 1), "forwarding", False)


def not_live(world: World, patch: Patch) -> None:
    patch.setattr(node(world, 0).cluster.links[world.hosts[1].id], "live", False)


def loop(world: World, patch: Patch) -> None:
    for here, there in ((1, 2), (2, 1)):
        patch.setattr(port(world, here, there), "forwarding", True)
        patch.setattr(node(world, here).cluster.links[world.hosts[there].id], "live", True)


def split(world: World, patch: Patch) -> None:
    for here, there in ((0, 1), (1, 0)):
        patch.setattr(port(world, here, there), "forwarding", False)
        patch.setattr(node(world, here).cluster.links[world.hosts[there].id], "live", False)


def not_forwarding(world: World, patch: Patch) -> None:
    """The tree says that it forwards, and the relay does not send."""
    patch.setattr(node(world, 0), "forwarding", node(world, 0).forwarding[:1])


TREES: dict[str, tuple[Callable[[World, Patch], None], str, str]] = {
    "another root": (other_root, "root", "b1 follows"),
    "an earlier start of the root": (earlier_root, "root", "b1 follows"),
    "state": (still_forming, "state", "b3 is in state forming"),
    "member that is not known": (stranger, "membership", "does not know b2"),
    "no link": (no_link, "link", "b1 has no link to b2"),
    "port to no broker": (port_to_no_broker, "port", "to no broker"),
    "port without twin": (port_without_twin, "port", "b2 has a port to b1"),
    "port without link": (port_without_link, "port", "b1 has a port to b2"),
    "two root ports": (two_roots_ports, "roles", "ROOT, ROOT"),
    "two blocked ports": (two_blocked, "roles", "BLOCKED, BLOCKED"),
    "forwards one way": (one_way, "forwarding", "b0 - b1"),
    "not live": (not_live, "forwarding", "b0 - b1"),
    "loop": (loop, "tree", "(1, 2)"),
    "split": (split, "tree", "do not span"),
    "relay leaves a link out": (not_forwarding, "tree", "do not span"),
}


@pytest.mark.parametrize("name", TREES)
def test_fault_of_a_tree_is_caught(name: str, rest: World, monkeypatch: Patch) -> None:
    plant, kind, text = TREES[name]
    plant(rest, monkeypatch)
    found = tree_faults(rest, rest.hosts)
    assert any(text in line for one, line in found if one == kind), found
    monkeypatch.undo()
    assert tree_faults(rest, rest.hosts) == []


def test_listing_that_a_broker_lacks_is_caught(rest: World, monkeypatch: Patch) -> None:
    assert directory_faults(rest, rest.hosts) == []
    directory = node(rest, 2).cluster.directory.database
    monkeypatch.setattr(type(directory), "reachable", lambda self: [])
    assert any(
        "b2 does not know what [0, 1, 3]" in text for _, text in directory_faults(rest, rest.hosts)
    )


def test_tree_that_never_settles_is_caught() -> None:
    """Agreement that is younger than two seconds is none, and a root that no broker accepts is
    reported at the end."""
    world = world_of(1, 2)
    for host in world.hosts:
        host.start()
    quiet(world, 1.5)
    assert [kind for kind, _ in world.violations] == ["unstable"]
    world.violations.clear()
    world.hosts[0].pause()
    world.run(5.0)
    quiet(world, 3.0)
    assert "root" in {kind for kind, _ in world.violations}


# ---------------------------------------------------------------- bounds


def many_gaps(world: World, patch: Patch) -> None:
    window = LocalWindow(1000, 0.0, None, Limits().max_gaps)
    window.gaps = [(number, number) for number in range(1, 2 * MAX_GAPS + 3, 2)]
    patch.setitem(node(world, 1).cluster.forwarder.vector, b"A" * 16, window)


def backlog(world: World, patch: Patch) -> None:
    conn = next(conn for conn in node(world, 1).connections if conn.link)
    patch.setattr(conn, "backlog_bytes", 7)


def closed_link(world: World, patch: Patch) -> None:
    link = next(conn.link for conn in node(world, 1).connections if conn.link)
    patch.setattr(link, "state", State.CLOSED)


def many_links(world: World, patch: Patch) -> None:
    patch.setattr(node(world, 1), "limits", Limits(max_links=2))


def handshake(world: World, patch: Patch) -> None:
    cluster: Cluster = node(world, 1).cluster
    patch.setitem(cluster.link_registry.handshakes, next(iter(cluster.links.values())), None)


BOUNDS: dict[str, tuple[Callable[[World, Patch], None], str]] = {
    "gaps": (many_gaps, "gaps of"),
    "backlog": (backlog, "7 bytes wait"),
    "closed link": (closed_link, "1 closed links"),
    "links": (many_links, "3 links"),
    "handshake": (handshake, "1 unfinished handshakes"),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_exceeded_bound_is_caught(name: str, rest: World, monkeypatch: Patch) -> None:
    plant, text = BOUNDS[name]
    plant(rest, monkeypatch)
    assert any(text in line for _, line in bound_faults(rest.hosts))
    monkeypatch.undo()
    assert bound_faults(rest.hosts) == []


def stubborn(world: World) -> SimClient:
    """A publisher at b0 that does not take its acknowledgements, loses its connection, and repeats
    what it published."""
    ledger = Ledger()
    client = SimClient(world, ledger, "pub", world.hosts[0], clean=False)
    client.connect()
    assert world.run(1.0, lambda: client.state == "up", 0.001)
    client.read(False)
    for number in range(10):
        client.publish("t", 1 + number % 2)
    world.run(0.5)
    client.cut()
    world.run(2.0)
    assert client.state == "up"
    assert all(sent.acked is not None for sent in ledger.sent)
    return client


def test_repeated_qos_1_publish_may_be_logged_twice() -> None:
    """A QoS 1 PUBLISH that comes again is a message of its own (MQTT-4.3.2): a log may keep it
    twice, one of QoS 2 it may not."""
    world = world_of(1, 2)
    for host in world.hosts:
        host.start()
    world.run(3.0)
    ledger = stubborn(world).ledger
    log = world.hosts[1].running.cluster.forwarder.log
    assert [sent.copies for sent in ledger.sent] == [2] * 10
    assert len(log) == 15
    assert log_faults(world.hosts, ledger) == []
    ledger.sent[0].copies = 1
    assert [text for _, text in log_faults(world.hosts, ledger)] == [
        f"b{n} keeps 15 messages of 14" for n in range(2)
    ]
    ledger.sent[0].copies = 2
    log._bytes += 1
    assert ["counts" in text for _, text in log_faults(world.hosts, ledger)] == [True]


def test_clock_skew_excuses_only_what_no_broker_can_know() -> None:
    """A session's place may be in doubt if the next broker has not heard of the last connection and
    its clock is behind it."""
    world = world_of(1, 2)
    world.skew = 0.0
    for host in world.hosts:
        host.start()
    world.run(3.0)
    here, there = world.hosts
    client = SimClient(world, Ledger(), "client", here)
    client.connect()
    assert world.run(1.0, lambda: client.state == "up", 0.001)
    client.host = there
    listing = there.running.cluster.directory.database.listings[here.id]
    assert CLIENT + b"client" not in listing.entries  # not yet
    assert not client._misdated(here)  # the clocks tell
    there.ahead = -1.0
    assert client._misdated(here)
    world.run(0.5)
    assert not client._misdated(here)  # it has heard of it
    del listing.entries[CLIENT + b"client"]
    assert client._misdated(here)
    world.run(0.6)
    assert not client._misdated(here)  # the clock has passed it


def test_client_that_cannot_read_a_packet_is_caught(monkeypatch: Patch) -> None:
    """An exception outside of the brokers is a violation of this seed, and the next one is run all
    the same."""
    changes_received(
        monkeypatch,
        lambda relay, message: [Message(message.topic, b"no number", 1, False, b"", None, None)],
    )
    assert any("ValueError" in text for text in texts(Small(), "simulation"))


def test_livelocks_are_caught(monkeypatch: Patch) -> None:
    world = world_of(1, 1)
    host = world.hosts[0]
    host.start()
    take = Node.take_effects

    def never_satisfied(self: Node) -> list[Any]:
        effects = take(self)
        self.effects.append(Datagram(b""))
        return effects

    monkeypatch.setattr(Node, "take_effects", never_satisfied)
    host.running.effects.append(Datagram(b""))
    host.do(lambda n: None, host.running)
    assert ("livelock", "b0 asks for effects without end") in world.violations


def test_endless_events_are_caught() -> None:
    world = World(1)
    world.events = 3_000_000 - 10

    def again() -> None:
        world.after(0.0, again)

    again()
    assert not world.run(1.0)
    assert [kind for kind, _ in world.violations] == ["livelock"]


# ---------------------------------------------------------------- the network itself


class Ear:
    """Remembers what comes."""

    def __init__(self) -> None:
        self.heard = b""

    def data(self, data: bytes) -> None:
        self.heard += data

    def lost(self, reason: str) -> None: ...


@pytest.mark.parametrize("seed", range(6))
def test_streams_lose_and_reorder_nothing(seed: int) -> None:
    """What is written arrives, whole and in order, over cuts, small windows and readers that
    pause."""
    world = World(seed)
    world.cutting, world.window = 0.5, 8192
    hosts = [world.add(), world.add()]
    ear = Ear()
    one, two = world.pair(hosts[0], hosts[1])
    two.far = ear
    said = b""
    for number in range(200):
        piece = bytes((number,)) * world.rng.choice((1, 2, 50, 20_000))
        said += piece
        world.after(number * 0.01, one.write, piece)
    world.after(0.5, world.partition, [(0,)])
    world.after(0.9, world.partition, ())
    world.after(1.2, two.pause_reading)
    world.after(1.5, two.resume_reading)
    world.after(1.6, world.block, 0, 1)
    world.after(1.8, world.heal)
    world.run(60.0)
    assert ear.heard == said
    assert isinstance(one, End)
    assert not one.flying
    assert not one.buffer


A, B = (0, 1), (1, 1)
"""Lives of two brokers."""


@pytest.mark.parametrize(
    ("began", "up", "strayed"),
    [
        pytest.param(5.0, 5.1, False, id="together"),
        pytest.param(11.0, 11.1, True, id="apart"),
        pytest.param(12.5, 12.6, True, id="together for half a second"),
        pytest.param(14.0, 14.1, False, id="together again"),
        pytest.param(13.5, 20.5, True, id="apart before its session came"),
        pytest.param(26.0, 36.5, True, id="longer than it waits"),
    ],
)
def test_client_that_a_split_parts_from_its_session_may_get_qos_2_twice(
    began: float, up: float, strayed: bool
) -> None:
    """Such a client may get a QoS 2 message twice, and no other. The brokers are split from 10
    to 12 s, and from 20 to 25."""
    world = World(1)
    world.skew = 0.0
    messages = Messages(world, Ledger(), [], Meetings(world), Splits(world))
    messages.meetings._runs[frozenset((A, B))] = [[0.0, 10.0], [12.0, 20.0], [25.0, 60.0]]
    client = SimClient(world, messages.ledger, "c", world.add())
    client.visits = {
        1: (A, 1.0, 1.1, True),
        2: (B, began, up, True),
        3: (B, up + 1, up + 1.1, True),
    }
    assert messages._strayed(client, 1, 2) == strayed
    assert messages._strayed(client, 1, 3) == strayed
    assert not messages._strayed(client, 2, 3)


@pytest.mark.parametrize(
    ("began", "slow", "heard", "strayed"),
    [
        (1.5, False, False, False),
        (1.5, True, False, True),
        (1.5, True, True, False),
        (2.5, True, False, False),
    ],
)
def test_client_that_outruns_its_announcement_may_get_qos_2_twice(
    began: float, slow: bool, heard: bool, strayed: bool
) -> None:
    world = World(1)
    world.skew = 0.0
    messages = Messages(world, Ledger(), [], Meetings(world), Splits(world))
    messages.meetings._runs[frozenset((A, B))] = [[0.0, 10.0]]
    if slow:
        world.limit_rate(0, 1, 1e6)
    client = SimClient(world, messages.ledger, "c", world.add())
    client.visits = {1: (A, 1.0, 1.1, True), 2: (B, began, began + 0.1, heard)}
    assert messages._strayed(client, 1, 2) == strayed


@pytest.mark.parametrize(("met", "wrong"), [(4.0, True), (5.5, False), (None, False)])
def test_older_session_may_reorder_only_what_its_broker_could_not_know(
    met: float | None, wrong: bool
) -> None:
    """What was published at 5 s comes behind what was at 6: it may, from an older session, if the
    broker of the newer one had not met the publisher's by then."""
    world = World(1)
    messages = Messages(world, Ledger(), [], Meetings(world), Splits(world))
    if met is not None:
        messages.meetings.met[frozenset((A, B))] = met
    host = world.add()
    client, publisher = (SimClient(world, messages.ledger, name, host) for name in "cp")
    client.begun, client.visits = {1: 2.0}, {1: (A, 1.0, 1.1, True), 2: (B, 9.0, 9.1, True)}
    messages.ledger.sent += [
        Sent(number, publisher, 1, "a", 1, False, B, 5.0 + number) for number in (0, 1)
    ]
    client.got += [Got(number, "a", 1, False, 1, 1, 7.0 - number) for number in (1, 0)]
    messages._order(client)
    assert bool(world.violations) is wrong


@pytest.mark.parametrize("kept", (False, True))
def test_restarted_broker_has_met_others_if_it_has_a_journal(kept: bool) -> None:
    """A broker that is started again with its journal remembers the others, without a session,
    too: it asks for what they published since."""
    world = world_of(1, 2)
    meetings = Meetings(world)
    one, other = world.hosts
    if kept:
        disk = Disk(world, one, sync=False)
        world.kept.add(one.index)
        world.on_start.append(lambda host: disk.started() if host is one else None)
    for host in world.hosts:
        host.start()
    world.run(2.0)
    since, met = one.running.cluster.origins.since, meetings.since(other.life, one.life)
    one.kill()
    one.start()
    world.run(2.0)
    assert (meetings.since(other.life, one.life) == met) is kept
    assert (one.running.cluster.origins.since == since) is kept


def test_brokers_have_met_only_when_bytes_passed() -> None:
    """A link that a cut has stopped is in the tree at both ends until they notice, and brings
    nothing before it sends again."""
    world = world_of(1, 2)
    meetings = Meetings(world)
    for host in world.hosts:
        host.start()
    world.run(2.0)
    assert meetings.together(*(host.life for host in world.hosts), world.now - 1.0, world.now)
    world.partition([[0], [1]])
    world.run(1.0)
    world.heal()
    healed = world.now
    end = next(end for end in world.streams.values() if end.resent)
    while end.resent:
        world.run(0.001)
        assert not meetings.together(*(host.life for host in world.hosts), healed, world.now)


@pytest.mark.parametrize("kept", (False, True))
def test_client_that_missed_connack_finds_its_session(kept: bool) -> None:
    """It comes again, and CONNACK says Session Present, be it the one that it had or one that began
    with the CONNACK that it has not read (`kept`: the former). It has its subscription in either
    case, and what is published comes once."""
    world = world_of(1, 1)
    host = world.hosts[0]
    ledger = Ledger()
    if kept:
        disk = Disk(world, host, sync=False)
        world.on_start.append(lambda _: disk.started())
    host.start()
    client = SimClient(world, ledger, "c", host, version=5, clean=False, filters=[("a", 1)])
    publisher = SimClient(world, ledger, "p", host)
    client.connect()
    world.run(1.0)
    assert client.session == 1
    host.kill()
    host.start()
    assert world.run(1.0, lambda: client.state == "connecting", every=0.0)
    client.read(False)
    world.run(1.0)
    assert host.running.sessions["c"].conn is not None
    assert client.state == "connecting"
    client.disconnect(host)
    publisher.connect()
    world.run(1.0)
    assert [interest.session for interest in client.interests] == [1 if kept else 2]
    publisher.publish("a", 1)
    world.run(1.0)
    assert [got.number for got in client.got] == [0]
    assert not client.errors


def test_client_that_left_before_suback_is_owed_order_from_the_next_one() -> None:
    """It finds a session, perhaps an older one, and is owed the order of what is published after
    the next SUBACK: what was published before may come later, from a session that had the
    subscriptions."""
    world = world_of(1, 1)
    host = world.hosts[0]
    host.start()
    client = SimClient(world, Ledger(), "c", host, version=5, clean=False, filters=[("a", 1)])

    def leave(up: SimClient) -> None:
        up.on_up, up.doubt = None, True
        up.disconnect(host)

    client.on_up = leave
    client.connect()
    world.run(1.0)
    (interest,) = client.interests
    assert (interest.session, interest.epoch) == (2, 2)
    assert interest.since > client.visits[2][2]
    assert client.begun[2] == interest.since
