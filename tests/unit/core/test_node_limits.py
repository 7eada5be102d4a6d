"""Garbage, floods and peers that do not read: one connection pays, memory stays bounded, a counter
moves."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.core.flow_control import HOLD_RECHECK_S, HOLD_TIMEOUT_S
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.wire.constants import MAX_TOPIC_LEVELS
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.errors import WireError
from mqttree.broker.wire.packets import (
    Connack,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from tests.kit.effort import examples
from tests.kit.node_harness import FakeClient, World, connect_packet, cut
from tests.unit.wire.wire_vectors import BAD, GOLDEN

ALL = pytest.mark.parametrize("version", [3, 4, 5])
# Packets that a client may not send at all: their own faults do not matter.
FROM_SERVERS = (0x20, 0x90, 0xB0, 0xD0)


def served(world: World) -> tuple[FakeClient, FakeClient]:
    """Two clients that want to be left in peace."""
    publisher, subscriber = world.connect("p"), world.connect("s").subscribed("peace/#", qos=1)
    return publisher, subscriber


def check_peace(publisher: FakeClient, subscriber: FakeClient) -> None:
    publisher.publish("peace/x", b"x", 1)
    assert publisher.take() == [Puback(1)]
    (packet,) = subscriber.take_publishes()
    subscriber.send(Puback(packet.packet_id))
    subscriber.send(Pingreq())
    assert subscriber.take() == [Pingresp()]


# ---------------------------------------------------------------- bad packets


@pytest.mark.statement("MQTT-2.1.3-1", "MQTT-2.2.1-3", "MQTT-3.3.1-4", "MQTT-3.3.2-14")
@pytest.mark.statement("MQTT-3.10.3-2", "MQTT-3.14.1-1", "MQTT-3.15.1-1", "MQTT-4.13.1-1")
@pytest.mark.statement("3.1.1/MQTT-2.2.2-2", "3.1.1/MQTT-2.3.1-1", "3.1.1/MQTT-3.3.1-4")
@pytest.mark.statement("3.1.1/MQTT-3.10.3-2", "3.1.1/MQTT-3.14.1-1", "3.1.1/MQTT-4.8.0-1")
@pytest.mark.parametrize("route", [False, True], ids=["", "route known"])
@ALL
def test_every_malformed_packet_closes_its_client_only(version: int, route: bool) -> None:
    """MQTT 5 hears why in a DISCONNECT."""
    world = World()
    peace = served(world)
    if route:
        for topic in ("a", "t", "a/b"):
            peace[0].publish(topic)
    for name, versions, data, reason in BAD:
        if version not in versions or data[0] >> 4 == 1:
            continue
        before = world.counters.malformed + world.counters.protocol_errors
        client = world.connect("a", version).subscribed("#", qos=2)
        client.send(Pingreq(), data)
        assert client.closed, name
        packets = client.take()
        assert packets[0] == Pingresp(), name
        if version == 5:
            (last,) = packets[1:]
            assert isinstance(last, Disconnect)
            assert last.reason in ({reason, 0x82} if data[0] in FROM_SERVERS else {reason}), name
        else:
            assert len(packets) == 1
        assert world.counters.malformed + world.counters.protocol_errors == before + 1, name
        assert len(world.logged[-1]) < 300
    check_peace(*peace)
    assert not world.node.dirty


@pytest.mark.statement("MQTT-3.14.0-1", "3.1.1/MQTT-3.1.2-22")
@ALL
def test_a_malformed_packet_before_connect_closes_its_connection(version: int) -> None:
    world = World()
    peace = served(world)
    for _, versions, data, _ in BAD:
        if version not in versions:
            continue
        client = world.open(version).sent(data)
        assert client.closed
        answer = bytes(client.transport.written)  # nothing, or a CONNACK that refuses
        assert answer == b"" or (answer[0] == 0x20 and answer[3])
    check_peace(*peace)
    assert world.counters.connects == 2


@pytest.mark.parametrize("kind", [Connack(False, 0), Pingresp()])
def test_a_packet_that_only_servers_send_closes_the_client(kind) -> None:
    client = World().connect()
    client.send(kind)
    assert client.last_reason() == 0x82


def test_a_long_client_id_does_not_fill_the_log() -> None:
    world = World()
    world.connect("x" * 60_000).send(b"\x00\x00")
    refused = World(allow_anonymous=False)
    refused.open().send(connect_packet("x" * 60_000 + "\n"))
    assert all(len(line) < 300 and "\n" not in line for line in world.logged + refused.logged)


# ---------------------------------------------------------------- any bytes


TOO_DEEP = "/" * MAX_TOPIC_LEVELS  # refused

packets = st.one_of(
    st.builds(
        Publish,
        st.sampled_from(["t", "u/v", "$x", "x" * 130]),
        st.binary(max_size=150),
        st.just(0),
        st.booleans(),
    ),
    st.builds(
        Publish,
        st.sampled_from(["t", "u/v"]),
        st.binary(max_size=150),
        st.integers(1, 2),
        st.booleans(),
        st.booleans(),
        st.integers(1, 5),
    ),
    st.builds(
        Subscribe,
        st.integers(1, 9),
        st.lists(
            st.builds(
                SubscriptionRequest,
                st.sampled_from(["t", "#", "u/+", TOO_DEEP, "$share/g/w"]),
                st.integers(0, 2),
            ),
            min_size=1,
        ),
    ),
    st.builds(
        Unsubscribe,
        st.integers(1, 9),
        st.lists(st.sampled_from(["t", "#", "u/+", TOO_DEEP]), min_size=1),
    ),
    st.builds(Puback, st.integers(100, 200)),
    st.just(Pingreq()),
    st.lists(st.binary(max_size=20)).map(lambda bodies: [Publish("t", body) for body in bodies]),
)


@given(
    st.lists(packets, max_size=30),
    st.lists(st.integers(0, 10_000), max_size=20),
    st.sampled_from([3, 4, 5]),
)
def test_packets_may_be_cut_anywhere(stream: list, places: list[int], version: int) -> None:
    """The same outboxes and the same state, however the bytes come."""
    flat = [p for item in stream for p in (item if isinstance(item, list) else [item])]
    data = b"".join(encode_packet(p, version) for p in [connect_packet("a", version), *flat])
    outcome = []
    for chunks in ([data], cut(data, places), [data[i : i + 1] for i in range(len(data))]):
        world = World()
        watcher = world.connect("w").subscribed("#", qos=1)
        client = world.open(version)
        client.chunks(chunks)
        world.advance(1)
        # Of the messages and of the answers the order is that of the stream; how they interleave is
        # free.
        said = client.take()
        outcome.append(
            (
                [p for p in said if isinstance(p, Publish)],
                [p for p in said if not isinstance(p, Publish)],
                watcher.take(),
                world.counters.published,
                world.counters.delivered,
                set(world.session("a").subscriptions),
                world.session("a").incoming,
                client.closed,
            )
        )
    assert outcome[0] == outcome[1] == outcome[2]
    assert not outcome[0][-1]


@settings(max_examples=examples(200))
@given(
    st.lists(st.sampled_from([v for v in GOLDEN if len(v[3]) < 200]), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4),
    st.lists(st.integers(0, 2000), max_size=4),
    st.sampled_from([3, 4, 5]),
)
def test_good_packets_with_bytes_changed(
    vectors: list, changes: list[tuple[int, int]], places: list[int], version: int
) -> None:
    world = World()
    peace = served(world)
    client = world.connect("a", version, keep_alive=5).subscribed("#", qos=2)
    data = bytearray(b"".join(v[3] for v in vectors))
    for place, value in changes:
        data[place % len(data)] = value
    client.chunks(cut(bytes(data), places))
    world.advance(20)
    try:
        client.take()
    except WireError as error:
        raise AssertionError("the node sent what is not MQTT") from error
    peace[1].take()
    check_peace(*peace)


# ---------------------------------------------------------------- peers that do not read


def test_a_subscriber_that_never_reads() -> None:
    """QoS 0 beyond the backlog is dropped and counted; the publisher waits `HOLD_TIMEOUT_S` once;
    another subscriber gets all."""
    world = World(limits=Limits(client_backlog_bytes=400_000, hold_backlog_bytes=100_000))
    publisher, slow, quick = world.connect("p"), world.connect("slow"), world.connect("quick")
    slow.subscribe("t")
    quick.subscribe("t")
    slow.transport.capacity = 0
    payload = b"x" * 1000
    sent = held = 0
    for _ in range(2000):
        if not publisher.transport.reading:
            held += 1
            before = world.now
            world.advance(HOLD_TIMEOUT_S + HOLD_RECHECK_S + 0.01)
            assert publisher.transport.reading
            assert world.now - before <= HOLD_TIMEOUT_S + HOLD_RECHECK_S + 0.02
        publisher.publish("t", payload)
        sent += 1
        assert slow.conn.backlog_bytes <= DEFAULTS.client_backlog_bytes
    assert held == 1
    assert len(quick.take_publishes()) == sent
    assert world.counters.dropped_slow_consumer > 1000
    got = len(slow.read())
    assert got + world.counters.dropped_slow_consumer == sent
    assert not slow.conn.stalled
    publisher.publish("t", b"again")
    assert slow.payloads() == [b"again"]


def test_memory_for_a_subscriber_that_never_reads() -> None:
    world = World(limits=Limits(client_backlog_bytes=1_000_000))
    publisher, slow = world.connect("p"), world.connect("slow").subscribed("t", qos=1)
    slow.transport.capacity = 0
    tracemalloc.start()
    try:
        for number in range(8000):
            publisher.publish("t", b"%07d" % number + b"x" * 993, number % 2, packet_id=1)
            publisher.transport.written.clear()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 12_000_000
    assert world.counters.dropped_slow_consumer or world.counters.slow_consumer_closed


@pytest.mark.statement("3.1.1/MQTT-4.8.0-2")
def test_a_client_that_does_not_take_its_answers() -> None:
    world = World(limits=Limits(client_backlog_bytes=10_000))
    peace = served(world)
    client = world.connect("a", will=None)
    client.transport.capacity = 0
    for _ in range(20_000):
        if client.closed:
            break
        client.send(Pingreq())
    assert client.closed
    assert world.counters.slow_consumer_closed == 1
    check_peace(*peace)


@ALL
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_slow_subscriber_loses_nothing(version: int, qos: int, mixed: bool) -> None:
    """What was read of a publisher when a subscriber fell behind waits with it: one read holds more
    than a queue may."""
    world = World(max_inflight_messages=10, limits=Limits(hold_queued=50, max_queued=100))
    slow = world.connect("s", version).subscribed("t/#", qos=qos)
    publishers = [world.connect(f"p{n}", version) for n in range(3)]
    want = [
        [b"%d-%s" % (n, b"x" * (i % 7 if mixed else 5)) + b"%03d" % i for i in range(300)]
        for n in range(3)
    ]
    for publisher, payloads in zip(publishers, want, strict=True):
        publisher.send(
            *[
                Publish(f"t/{i % 2 * mixed}", p, qos, packet_id=i + 1)
                for i, p in enumerate(payloads)
            ]
        )
    assert not any(p.transport.reading for p in publishers)
    assert len(world.session("s").queue) < 60
    got: list[bytes] = []
    while packets := slow.take():
        for packet in packets:
            if isinstance(packet, Publish):
                got.append(packet.payload)
                slow.send(Puback(packet.packet_id) if qos == 1 else Pubrec(packet.packet_id))
            elif isinstance(packet, Pubrel):
                slow.send(Pubcomp(packet.packet_id))
        assert len(world.session("s").queue) < 60
    assert [[p for p in got if p.startswith(b"%d-" % n)] for n in range(3)] == want
    assert world.counters.dropped_queue_full == 0
    assert all(p.transport.reading for p in publishers)
    assert [len([a for a in p.take() if isinstance(a, Puback | Pubrec)]) for p in publishers] == [
        300
    ] * 3


def test_a_publisher_that_was_held_and_is_gone() -> None:
    """Nothing of it is handled any more, and nothing waits for it."""
    world = World(max_inflight_messages=1, limits=Limits(hold_queued=5))
    slow, publisher = world.connect("s").subscribed("t", qos=1), world.connect("p")
    publisher.send(*[Publish("t", b"x", 1, packet_id=i + 1) for i in range(50)])
    assert not publisher.transport.reading
    publisher.vanish()
    got = 0
    while packets := slow.take_publishes():
        got += len(packets)
        slow.send(*[Puback(packet.packet_id) for packet in packets])
    assert 5 <= got <= 10
    assert not world.node.flow_control.unheld


def test_a_publisher_that_is_held_for_two_waits_for_both() -> None:
    world = World(limits=Limits(hold_backlog_bytes=10_000))
    publisher = world.connect("p")
    slow = [world.connect(f"s{n}") for n in range(2)]
    for client in slow:
        client.subscribe("t")
        client.transport.capacity = 1000
    for _ in range(15):
        publisher.publish("t", b"x" * 1000)
    assert not publisher.transport.reading
    slow[0].transport.capacity = None
    slow[0].read()
    assert not publisher.transport.reading
    slow[1].vanish()
    assert publisher.transport.reading


def test_a_client_slow_and_quick_in_turn_leaves_no_timers() -> None:
    world = World(limits=Limits(hold_backlog_bytes=1000))
    publisher, slow = world.connect("p"), world.connect("s").subscribed("t")
    slow.transport.capacity = 500
    for _ in range(3000):
        publisher.publish("t", b"x" * 1000)
        publisher.publish("t", b"x" * 1000)
        slow.read()
        assert publisher.transport.reading
    assert len(world.node.timers) < 2100
    assert world.counters.dropped_slow_consumer == 0


# ---------------------------------------------------------------- peers that ask for too much


def test_the_number_of_subscriptions_is_bounded() -> None:
    world = World(limits=Limits(max_subscriptions=3))
    client = world.connect("a")
    assert client.subscribe("a", "b", "c", "d") == [0, 0, 0, 0x97]
    assert client.subscribe("a", "e") == [0, 0x97]
    client.unsubscribe("b")
    assert client.subscribe("e") == [0]
    assert world.connect("b", 4).subscribe("a", "b", "c", "d") == [0, 0, 0, 0x80]
    assert world.counters.subscriptions_refused == 3


def test_a_packet_that_announces_much_and_brings_little() -> None:
    """Nothing is reserved for what has not come."""
    world = World()
    tracemalloc.start()
    try:
        clients = [world.connect(f"c{n}", 4) for n in range(20)]
        for client in clients:
            client.send(b"\x30\xff\xff\xff\x7f\x00\x01t")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3_000_000
    assert not any(c.closed for c in clients)
