"""Links with neighbours that err or lie: a node, and a broker that sends what a test says."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

from mqttree.broker.base.address import Address
from mqttree.broker.base.sequence_set import LAST, MAX_GAPS
from mqttree.broker.cluster.agenda import Agenda
from mqttree.broker.cluster.delivery.resync import DIRECTORY_WAIT_S, SEEN_INTERVAL_S
from mqttree.broker.cluster.link.admission import MAX_HANDSHAKES
from mqttree.broker.cluster.link.control_records import (
    ASK_SEEN,
    BPDU,
    MEMBERS,
    ORIGINS,
    PING,
    SEEN,
)
from mqttree.broker.cluster.link.handshake import AUTHENTICATION
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.link.version_vector import OriginWindow, encode_vector
from mqttree.broker.cluster.topology import GOSSIP_INTERVAL_S, TOPOLOGY_CHANGES_PER_SECOND
from mqttree.broker.core.effects import Dial
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Connect, Subscribe, SubscriptionRequest
from mqttree.broker.wire.properties import Property
from mqttree.broker.wire.varint import encode_varint
from mqttree.discovery.gossip import encode_members
from mqttree.discovery.membership import MAX_GOSSIP_ONLY
from mqttree.stp.bpdu import ChangeNumber, Role
from mqttree.stp.priority_vector import RootVector
from tests.kit.link_harness import (
    FAR,
    OWN,
    Neighbour,
    batch_entry,
    bid,
    bridge,
    let_through,
    lone,
    message,
    ping,
    unharmed,
    warnings,
)
from tests.kit.node_harness import World

# ------------------------------------------------------------------ who is not proven


def membership_of(world: World) -> Any:
    membership = world.node.cluster.membership
    counters = {
        name: value
        for name, value in membership.counters.items()
        if name not in ("announcements_sent",)
    }
    return (
        membership.members(world.now),
        counters,
        set(membership._table.dialler.targets),
        dict(membership._table._selves),
    )


@pytest.mark.parametrize("secret", [None, b"a secret of the cluster"])
def test_a_caller_with_our_own_id_changes_nothing(secret: bytes | None) -> None:
    world = lone(secret=secret)
    before = membership_of(world)
    proof: Any = (
        {Property.AUTHENTICATION_METHOD: AUTHENTICATION, Property.AUTHENTICATION_DATA: b"n" * 16}
        if secret
        else {}
    )
    for number in range(50):
        address = ("10.0.0.200:1883", "10.0.0.7:1883", f"10.9.9.{number}:1883")[number % 3]
        fake = Neighbour(world, 1, link=False)
        said = bridge(1, boot=number * 40, client_id=OWN.hex(), address=address)
        assert said.properties is not None
        said.properties |= proof
        fake.send(packet_of(said))
        assert fake.conn.closed
        world.advance(0.1)
    assert membership_of(world) == before
    assert not world.node.cluster.link_registry.handshakes
    assert len(warnings(world)) == 1  # for one host, a minute
    world.advance(61.0)
    Neighbour(world, 1, link=False).send(packet_of(said))
    assert len(warnings(world)) == 2
    assert not [effect for effect in world.effects if isinstance(effect, Dial)]


BAD_CONNECTS = {
    "no cluster": bridge(1, cluster=""),
    "protocol": bridge(1, protocol="x"),
    "no address": bridge(1, address=""),
    "no capability": bridge(1, capability=""),  # type: ignore[arg-type]
    "id": bridge(1, client_id="xyz"),
    "short id": bridge(1, client_id="00ff"),
    "boot": bridge(1, boot=2**32),
    "negative boot": bridge(1, boot=-1),
    "boot of a million digits": bridge(1, boot="1" * 60_000),  # type: ignore[arg-type]
    "port": bridge(1, address="10.0.0.1:0"),
    "address": bridge(1, address="nowhere"),
    "control characters": bridge(1, address="a\nb:1883"),
    "nan": bridge(1, **{"capability": "nan"}),  # type: ignore[arg-type]
    "inf": bridge(1, **{"capability": "inf"}),  # type: ignore[arg-type]
    "name": bridge(1, name="two\nlines"),
    "cluster name": bridge(1, cluster="a\nb"),
    "another cluster": bridge(1, cluster="elsewhere"),
    "another protocol": bridge(1, protocol="99"),
}


def packet_of(connect: Connect) -> bytes:
    return encode_packet(connect, 5)


@pytest.mark.parametrize("name", BAD_CONNECTS)
def test_a_malformed_connect_leaves_nothing_behind(name: str) -> None:
    world = lone()
    fake = Neighbour(world, 1, link=False)
    fake.send(packet_of(BAD_CONNECTS[name]))
    node = world.node
    assert fake.conn.closed
    assert not node.cluster.link_registry.handshakes
    assert not node.cluster.links
    assert not any(conn.link for conn in node.connections)
    assert not node.connections
    due = node.next_deadline()
    assert due is not None
    assert due > world.now


def test_thousands_of_malformed_connects_do_not_keep_brokers_out() -> None:
    world = lone()
    whole = packet_of(bridge(1))
    for number in range(2_000):
        fake = Neighbour(world, 1, link=False)
        if number % 2:
            fake.send(packet_of(list(BAD_CONNECTS.values())[number // 2 % len(BAD_CONNECTS)]))
        else:
            fake.send(whole[: 1 + number % (len(whole) - 1)])
            fake.conn.node.connection_lost(fake.conn, "reset", world.now)
        world.peers.clear()
    assert not world.node.cluster.link_registry.handshakes
    assert not any(conn.link for conn in world.node.connections)
    assert len(warnings(world)) == 3  # malformed, another cluster, another protocol
    unharmed(world)


def test_callers_that_fall_silent_make_room_for_brokers() -> None:
    world = lone()
    for number in range(2_000):
        Neighbour(world, 1, link=False).send(packet_of(bridge(1 + number % 50)))
        assert len(world.node.cluster.link_registry.handshakes) <= MAX_HANDSHAKES
    unharmed(world)
    ticks = []
    tick = world.node.tick
    world.node.tick = lambda now: (ticks.append(now), tick(now))  # type: ignore[method-assign,assignment,func-returns-value]
    world.advance(1.0)
    assert len(ticks) < 50, "no storm of timers"
    world.advance(world.node.config.handshake_timeout)
    assert not world.node.cluster.link_registry.handshakes


# ------------------------------------------------------------------ bad messages

BAD_MESSAGES = {
    "sequence 0": message(sequence=0),
    "last sequence": message(sequence=LAST),
    "QoS 3": message(first=0x36),
    "QoS 3, DUP": message(first=0x3E),
    "DUP at QoS 0": message(first=0x38),
    "no UTF-8": message(b"a\xff"),
    "surrogate": message(b"\xed\xa0\x80"),
    "wildcard": message(b"a/#"),
    "wildcard, QoS 0": message(b"a/+", qos=0),
    "no topic": message(b""),
    "no topic, QoS 0": message(b"", qos=0),
    "NUL": message(b"a\0b"),
    "unknown property": message(properties=b"\x7f\x00"),
    "property of another packet": message(properties=b"\x11\0\0\0\1"),
    "property cut off": message(properties=b"\x03\x00\x09a"),
    "two content types": message(properties=b"\x03\x00\x01a\x03\x00\x01b"),
    "expiry cut off": message(properties=b"\x02\0\0"),
    "two expiries": message(properties=b"\x02\0\0\0\x09\x02\0\0\0\x09"),
    "expiry behind": message(properties=b"\x03\x00\x01a\x02\0\0\0\x09"),
    "topic alias": message(properties=b"\x23\x00\x07"),
    "subscription identifier": message(properties=b"\x0b\x07"),
    "response topic with a wildcard": message(properties=b"\x08\x00\x01#"),
    "origin that is no base64": message(key=b"!" * 16),
    "sequence that is no base64": message().replace(b"AAAAAAAB", b"????????"),
    "no origin": b"\x32\x06\x00\x01t\x00\x01\x00",
    "no batch": b"\x30\x05\x00\x01t\x00x",
    "no batch behind one": message(qos=0) + b"\x30\x05\x00\x01t\x00x",
    "numbers over the end": batch_entry(origin_key(FAR, 1), LAST - 2, [(b"t", b"y")] * 3).kept(),
    "wildcard in a batch": batch_entry(origin_key(FAR, 1), 1, [(b"t", b"y"), (b"#", b"y")]).kept(),
    "topic that stays at its broker": message(b"$SYS/x"),
    "retained, of no stamp": message(first=0x33),
    "cut off": b"\x32\x04\x00\x01t\x00",
}


@pytest.mark.parametrize("name", BAD_MESSAGES)
def test_a_bad_message_ends_its_link_alone(name: str) -> None:
    world = lone()
    bad, good = Neighbour(world, 1).child(), Neighbour(world, 2).child()
    client = world.connect("all").subscribed("#", qos=2)
    bad.send(BAD_MESSAGES[name])
    assert not bad.up
    assert bad.conn.closed
    assert world.counters.link_garbage == 1
    assert good.up
    assert not [m for m in good.messages() if m != b"x" or name != "no batch behind one"]
    client.take()
    assert not client.closed
    assert all(window.top < LAST for key, window in world.node.cluster.forwarder.vector.items())
    unharmed(world)


def vector_of(top: int, *gaps: tuple[int, int], count: int | None = None) -> bytes:
    data = (
        FAR
        + (1).to_bytes(4, "big")
        + top.to_bytes(6, "big")
        + (len(gaps) if count is None else count).to_bytes(2, "big")
    )
    return data + b"".join(low.to_bytes(6, "big") + high.to_bytes(6, "big") for low, high in gaps)


BAD_VECTORS = {
    "cut off": vector_of(9)[:-1],
    "gaps cut off": vector_of(9, (2, 3))[:-1],
    "too many gaps": vector_of(999, *((n, n) for n in range(1, 2 * MAX_GAPS + 3, 2))),
    "gaps out of order": vector_of(9, (5, 6), (2, 3)),
    "overlapping gaps": vector_of(9, (2, 5), (5, 6)),
    "backward gap": vector_of(9, (5, 2)),
    "gap beyond the top": vector_of(9, (5, 10)),
    "gap at 0": vector_of(9, (0, 3)),
    "too many origins": b"".join(
        n.to_bytes(12, "big") + bytes(7) for n in range(DEFAULTS.max_origins + 1)
    ),
}


@pytest.mark.parametrize("kind", [SEEN, ORIGINS])
@pytest.mark.parametrize("name", BAD_VECTORS)
def test_a_bad_vector_ends_its_link_alone(name: str, kind: int) -> None:
    world = lone()
    bad = Neighbour(world, 1)
    bad.send(ping((kind, BAD_VECTORS[name])))
    assert not bad.up
    assert world.counters.link_garbage == 1
    assert list(world.node.cluster.forwarder.vector) == [world.node.cluster.forwarder.key]
    unharmed(world)


@pytest.mark.parametrize("kind", [SEEN, ORIGINS])
def test_a_number_that_no_broker_reaches_is_not_believed(kind: int) -> None:
    """Behind it no other could be sent any more."""
    world = lone()
    liar = Neighbour(world, 1)
    liar.send(ping((kind, vector_of(LAST))))
    assert not liar.up
    assert world.counters.link_garbage == 1
    assert list(world.node.cluster.forwarder.vector) == [world.node.cluster.forwarder.key]
    unharmed(world)


@pytest.mark.parametrize("top", [0, 1, 999, 1_000, 1_001, LAST - 1])
@pytest.mark.parametrize("kind", [SEEN, ORIGINS])
def test_vectors_at_the_limits_are_taken_and_passed_on(kind: int, top: int) -> None:
    """What we pass on of a neighbour's is never what others refuse."""
    gaps = [(n, n) for n in range(1, min(2 * MAX_GAPS, top), 2)][:MAX_GAPS]
    world, other = lone(), lone(id=b"o" * 8, boot=1_000)
    liar, honest = Neighbour(world, 1), Neighbour(world, 2)
    reader = Neighbour(other, 3)  # the node over there hears what this one says to `honest`
    liar.send(ping((kind, vector_of(top, *gaps))))
    assert liar.up
    honest.send(ping((ASK_SEEN, b"")))
    packets = [body for first, body in honest.take() if first == 0xC0]
    for body in packets:
        reader.send(b"\xc0" + encode_varint(len(body)) + body)
    assert reader.up
    assert other.counters.link_garbage == 0
    unharmed(world)


def test_late_qos_0_is_dropped_and_late_qos_1_and_2_are_delivered() -> None:
    """QoS 0, which is numbered by itself, keeps its order or is dropped; QoS 1 and 2 are worth more
    than theirs."""
    world = lone()
    source, target = Neighbour(world, 1).child(), Neighbour(world, 2).child()
    key = origin_key(FAR, 2_000)
    client = world.connect("c").subscribed("t", qos=2)
    let_through(source, key)
    source.send(message(payload=b"5", sequence=5, key=key))
    source.send(
        message(payload=b"3", sequence=3, qos=0, key=key),
        message(payload=b"2", sequence=2, qos=2, key=key),
    )
    source.send(
        message(payload=b"5", sequence=5, key=key),
        message(payload=b"2", sequence=2, qos=2, key=key),
    )
    source.send(
        message(payload=b"6", sequence=6, qos=0, key=key),
        message(payload=b"4", sequence=4, qos=0, key=key),
    )
    assert client.payloads() == target.messages() == [b"5", b"3", b"2", b"6"]
    assert world.counters.duplicates == 3


# ------------------------------------------------------------------ floods of control


@pytest.mark.parametrize("kind", [ASK_SEEN, SEEN, MEMBERS, ORIGINS])
def test_a_neighbour_cannot_have_us_work_without_end(kind: int) -> None:
    world = lone()
    client = world.connect("c")
    world.node.federated = True
    for number in range(2_000):
        client.publish("t", b"x" * 100, qos=1, packet_id=1 + number)
    liar = Neighbour(world, 1).child()
    body = {
        SEEN: b"",
        ORIGINS: vector_of(1),
        MEMBERS: b"",
        ASK_SEEN: b"",
    }[kind]
    liar.send(ping(*[(kind, body)] * 20_000))
    assert not liar.up
    assert world.counters.link_garbage == 1
    assert world.counters.link_bytes_control < 4_000_000
    unharmed(world)


def test_a_neighbour_cannot_have_the_log_replayed_without_end() -> None:
    """Whatever the tree is made to do."""
    world = lone(limits=Limits(max_replay=100_000, log_bytes=25_000))
    client = world.connect("c")
    for number in range(200):
        client.publish("t", b"x" * 100, qos=1, packet_id=1 + number)
    liar = Neighbour(world, 1)
    root, key = world.node.cluster.tree.root, world.node.cluster.forwarder.key
    wanted = encode_vector({key: OriginWindow(0, 0.0)})

    def join_again(neighbour: Neighbour) -> None:
        neighbour.bpdu(root, Role.BLOCKED, Role.DESIGNATED, path_cost_us=50)
        neighbour.bpdu(root, Role.ROOT, Role.DESIGNATED, path_cost_us=50)
        neighbour.send(ping((SEEN, wanted)))
        world.advance(DIRECTORY_WAIT_S)

    for _ in range(10):
        join_again(liar)
    assert liar.up
    assert 25_000 < world.counters.link_bytes_data <= 100_000 + 6 * 25_000
    before = world.counters.link_bytes_data
    for number in range(20):
        join_again(liar)
        join_again(liar)
        assert world.counters.link_bytes_data <= before + (number + 2) * 25_000
    world.advance(10.0)  # it has heard of nothing for as long as that
    again = Neighbour(world, 1)
    before = world.counters.link_bytes_data
    join_again(again)
    assert world.counters.link_bytes_data > before, "once in a while it may"


def test_thousands_of_made_up_members_are_neither_dialled_nor_gossiped() -> None:
    """A neighbour's made-up brokers: few are believed, few are dialled, and they are not gossiped
    one by one."""
    world = lone()
    liar, honest = Neighbour(world, 1), Neighbour(world, 2)
    membership = world.node.cluster.membership
    honest.take()
    rng = random.Random(1)
    dialled = 0
    lists = 0
    for second in range(20):
        places = [Address(f"10.{n % 250}.{second}.{n // 250}", 1883) for n in range(2_000)]
        fakes = [(rng.randbytes(8), 1, places[4 * n : 4 * n + 4], True) for n in range(500)]
        for start in range(0, 500, 50):
            liar.send(ping((MEMBERS, encode_members(fakes[start : start + 50]))))
            honest.send(ping())
            for effect in [e for e in world.effects if isinstance(e, Dial)]:
                world.effects.remove(effect)
                dialled += 1
                world.node.answer(effect, "connection refused", world.now)
                world.settle()
            lists += len(honest.records(MEMBERS))
            world.advance(0.1)
        assert len(membership.members(world.now)) <= MAX_GOSSIP_ONLY + 2
    assert dialled <= 100 + 20 * 50 + 10
    assert dialled > 200, "yet it goes on"
    assert lists <= 20 / GOSSIP_INTERVAL_S
    assert liar.up
    assert honest.up


def test_a_flood_of_topology_changes_is_published_now_and_then() -> None:
    world = lone()
    liar, honest = Neighbour(world, 1), Neighbour(world, 2)
    client = world.connect("c").subscribed("$mqttree/topology")
    client.take()
    before = world.node.cluster.tree.epoch
    root = world.node.cluster.tree.root
    number = 0
    for _ in range(50):
        for _ in range(10):
            changes = tuple(ChangeNumber(FAR, 1, number + n) for n in range(1, 33))
            number += 32
            liar.bpdu(root, Role.BLOCKED, Role.DESIGNATED, path_cost_us=50, changes=changes)
        world.advance(0.1)
        honest.send(ping())
    assert liar.up
    assert honest.up
    told = [json.loads(payload) for payload in client.payloads()]
    assert len(told) <= 5 * TOPOLOGY_CHANGES_PER_SECOND + TOPOLOGY_CHANGES_PER_SECOND
    assert world.node.cluster.tree.epoch - before <= 256 + 5 * 50 + 10
    world.advance(0.3)
    told += [json.loads(payload) for payload in client.payloads()]
    assert told[-1]["epoch"] == world.node.cluster.tree.epoch, "the newest is told in the end"


def test_a_neighbour_that_changes_the_tree_costs_others_little() -> None:
    """A neighbour that changes its mind with every BPDU, and asks all the time: what that costs the
    others is bounded."""
    world = lone(capability=1.0)
    liar, honest = Neighbour(world, 1), Neighbour(world, 2).child()
    own = world.node.cluster.tree.root
    told: Counter[tuple[int, int]] = Counter()
    for number in range(2_000):
        better = RootVector(number.to_bytes(8, "big"), 1, 1_000_000, ("10.9.9.9", 1883))
        if number % 2:
            liar.bpdu(better, Role.DESIGNATED, Role.ROOT)
        else:
            liar.bpdu(own, Role.ROOT, Role.DESIGNATED, path_cost_us=50)
        honest.bpdu(own, Role.ROOT, Role.DESIGNATED, path_cost_us=50)
        if number % 10 == 0:
            liar.send(ping((ASK_SEEN, b"")))
        world.advance(0.001)
        for neighbour in (liar, honest):
            told.update((neighbour.number, kind) for kind, _ in neighbour.control())
    assert liar.up
    for neighbour in (liar, honest):
        assert 50 < told[neighbour.number, BPDU] <= 50 + 2 * 100 + 1
    assert 1 < told[liar.number, SEEN] <= 2 / SEEN_INTERVAL_S + 1


# ------------------------------------------------------------------ lies about the root


def test_another_life_of_a_neighbour_is_not_believed_while_it_is_here() -> None:
    world = lone(capability=1.0)
    root, liar = Neighbour(world, 1, boot=7, capability=50.0), Neighbour(world, 2, capability=2.0)
    true = RootVector(bid(1), 7, 500, ("10.0.0.1", 1883))
    root.bpdu(true, Role.DESIGNATED, Role.NONE)
    tree = world.node.cluster.tree
    assert tree.root == true
    for boot in (8, 2**32 - 1, 3):
        liar.bpdu(
            RootVector(bid(1), boot, 500, ("10.0.0.1", 1883)),
            Role.DESIGNATED,
            Role.DESIGNATED,
            seq=99,
        )
        assert tree.root == true
        assert tree.parent == bid(1)
    root.bpdu(true, Role.DESIGNATED, Role.ROOT, seq=2)
    assert tree.ports[bid(1)].forwarding


# ------------------------------------------------------------------ who was silent, or not heard


def test_a_silent_neighbour_is_not_forgiven_as_a_client_subscribes() -> None:
    """What is posted after a while is sent at once, and that is not late: this broker was not
    stopped meanwhile."""
    world = lone(routing="interest", link_timeout=2.0)
    Neighbour(world, 101).child()
    client = world.connect("c")
    world.advance(1.5)
    client.send(Subscribe(1, [SubscriptionRequest("t", 1)]))
    world.advance(0.7)
    assert world.counters.link_timeouts == 1


@pytest.mark.parametrize("at", [-50.0, -1.5, 0.0, 0.0001, 0.3, 50.0])
def test_a_hurried_tick_is_not_a_stop_and_not_many_ticks(
    monkeypatch: pytest.MonkeyPatch, at: float
) -> None:
    """`at` (s from now): long ago, now, or ahead. It is called then, or at once; no neighbour's
    silence is forgiven, nothing spins."""
    world = lone(link_timeout=2.0)
    Neighbour(world, 101).child()
    cluster = world.node.cluster
    ticks: list[float] = []
    settle = Agenda.settle
    monkeypatch.setattr(Agenda, "settle", lambda it, now: (ticks.append(now), settle(it, now)))
    world.advance(1.7)
    assert cluster.agenda.due <= world.now + cluster.config.hello
    del ticks[:]
    begin, due = world.now, cluster.agenda.due
    cluster.hurry(begin + at)
    assert world.node.next_deadline() == min(due, begin + at)
    world.advance(0.29)
    assert len(ticks) < 8
    assert ticks[0] == max(begin, min(due, begin + at))
    world.advance(0.02)
    assert world.counters.link_timeouts == 1


@pytest.mark.parametrize("reads_first", [False, True])
def test_a_broker_that_was_stopped_has_heard_no_neighbour(*, reads_first: bool) -> None:
    """For 3 s: its links stay up, whether it reads the input of one of them ahead of its timers or
    not. One from which nothing comes after that is closed when it has been silent for as long as
    any other."""
    world = lone(link_timeout=2.0)
    silent, other = Neighbour(world, 101).child(), Neighbour(world, 102).child()
    world.advance(0.4)
    world.now += 3.0
    if reads_first:
        other.send(ping((ASK_SEEN, b"")))
    world.advance(1.0)
    other.send(ping((PING, b"abcd")))
    world.advance(0.98)
    assert (silent.up, other.up) == (True, True)
    world.advance(0.04)
    assert (silent.up, other.up) == (False, True)
