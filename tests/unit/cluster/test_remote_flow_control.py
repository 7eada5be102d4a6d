"""Backpressure over links: what is asked of other brokers, and what they ask of us."""

from __future__ import annotations

import pytest

from mqttree.broker.base.costs import QUEUED_MEMORY
from mqttree.broker.cluster.delivery.remote_flow_control import (
    EVERYTHING,
    HOLD,
    HOLD_INTERVAL_S,
    HOLD_LIFE,
    HOLD_REPEAT_S,
    HOLD_TOPICS,
    Asked,
    decode_hold,
    encode_hold,
)
from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
from mqttree.broker.cluster.events import RouteChanged
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.core.effects import AuthorizeReceive, AuthorizeSubscribe, Hooks
from mqttree.broker.core.flow_control import HOLD_RECHECK_S, HOLD_TIMEOUT_S
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.wire.packets import Puback, Publish, Subscribe, SubscriptionRequest, Will
from mqttree.broker.wire.properties import Property
from mqttree.routing.link_state import LinkStateDatabase
from tests.kit.core import needs_python
from tests.kit.link_harness import FAR, OWN, Neighbour, bid, let_through, lone, message
from tests.kit.node_harness import FakeClient, World

ASKING = b"a" * 8
SMALL = Limits(hold_queued=10, max_queued=20)


class Said:
    """What was sent to one broker, and when (s)."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.reachable = True
        self.found: list[tuple[bytes, float, frozenset[bytes]]] = []

    def take(self) -> list[set[bytes]]:
        found, self.found = self.found, []
        assert all(receiver == FAR for receiver, _, _ in found)
        return [set(filters) for _, _, filters in found]


@pytest.fixture
def limits() -> Limits:
    return SMALL


@pytest.fixture
def world(limits: Limits) -> World:
    return lone(limits=limits)


@pytest.fixture
def said(world: World, monkeypatch: pytest.MonkeyPatch) -> Said:
    """All brokers can be reached, and what is sent to them is kept."""
    needs_python("replaces methods")
    found = Said(world)

    def send(
        self: UnicastBus, broker_id: bytes, kind: int, body: bytes, *, at_once: bool = True
    ) -> bool:
        if kind == HOLD:
            found.found.append((broker_id, world.now, decode_hold(body)[1]))
        return True

    monkeypatch.setattr(UnicastBus, "send", send)
    monkeypatch.setattr(
        LinkStateDatabase, "via", lambda self, broker_id: bid(101) if found.reachable else None
    )
    return found


class Far:
    """A neighbour behind which FAR publishes."""

    def __init__(self, world: World) -> None:
        self.neighbour = Neighbour(world, 101).child()
        let_through(self.neighbour)
        self.sequence = 0

    def publish(self, *topics: bytes, payload: bytes = b"x", qos: int = 1) -> None:
        packets = []
        for topic in topics:
            self.sequence += 1
            packets.append(message(topic, payload, qos=qos, sequence=self.sequence))
        self.neighbour.send(*packets)


def slow(world: World, topic_filter: str = "fast/#", client_id: str = "slow") -> FakeClient:
    client = world.connect(client_id, properties={Property.RECEIVE_MAXIMUM: 1})
    client.subscribe(topic_filter, qos=1)
    return client


def read(client: FakeClient, count: int) -> list[bytes]:
    """Take and acknowledge so many, one by one."""
    payloads = []
    while len(payloads) < count:
        packets = [p for p in client.take() if isinstance(p, Publish)]
        assert packets
        payloads += [p.payload for p in packets]
        client.send(*(Puback(p.packet_id or 0) for p in packets))
    return payloads


# ------------------------------------------------------------------ a slow subscriber here


def test_a_slow_subscriber_holds_publishers_at_their_brokers(world: World, said: Said) -> None:
    far, client = Far(world), slow(world)
    far.publish(*[b"fast/a"] * 10)
    assert not said.take()
    far.publish(*[b"fast/a"] * 3)
    assert said.take() == [{b"fast/a"}], "at once, and once"
    far.publish(*[b"fast/b"] * 2)
    far.publish(*[b"fast/c"] * 2)
    assert not said.take(), "not so soon again"
    far.publish(*[b"other"] * 5)
    world.advance(2 * HOLD_INTERVAL_S)
    assert said.take() == [{b"fast/a", b"fast/b", b"fast/c"}]
    world.advance(HOLD_REPEAT_S + HOLD_INTERVAL_S)
    assert said.take() == [{b"fast/a", b"fast/b", b"fast/c"}], "again, as long as it lasts"
    read(client, 10)
    assert not said.take()
    read(client, 5)
    assert said.take() == [set()], "it has caught up"
    world.advance(5.0)
    assert not said.take()
    assert world.counters.pause_requests_sent == 3
    assert not world.node.cluster.remote_flow_control._requests


def test_a_dead_subscriber_holds_publishers_for_hold_time(world: World, said: Said) -> None:
    far, client = Far(world), slow(world)
    far.publish(*[b"fast"] * 15)
    assert said.take() == [{b"fast"}]
    world.advance(HOLD_TIMEOUT_S + HOLD_RECHECK_S + HOLD_INTERVAL_S)
    assert said.take()[-1] == set()
    far.publish(*[b"fast"] * 100)
    assert not said.take()
    assert world.counters.dropped_queue_full == 15 + 100 - 1 - SMALL.max_queued
    read(client, 21)
    far.publish(*[b"fast"] * 15)
    assert said.take() == [{b"fast"}], "it had caught up"


@pytest.mark.parametrize("how", ["vanish", "disconnect"])
def test_a_subscriber_that_ends_releases_publishers(world: World, said: Said, how: str) -> None:
    far, client = Far(world), slow(world)
    far.publish(*[b"fast"] * 15)
    getattr(client, how)()
    world.advance(HOLD_INTERVAL_S)
    assert said.take()[-1] == set()


def test_two_slow_subscribers_hold_their_own_topics(world: World, said: Said) -> None:
    far, one, other = Far(world), slow(world, "a", "one"), slow(world, "+", "other")
    far.publish(*[b"a"] * 15)
    assert said.take() == [{b"a"}]
    world.advance(HOLD_INTERVAL_S)
    read(one, 15)
    assert not said.take(), "the other one still wants it"
    read(other, 15)
    assert said.take() == [set()]


def test_many_topics_become_filters(world: World, said: Said) -> None:
    far = Far(world)
    slow(world)
    far.publish(*[b"fast/%d" % n for n in range(SMALL.max_queued + HOLD_TOPICS)])
    world.advance(HOLD_INTERVAL_S)
    assert said.take()[-1] == {b"fast/#"}
    world.advance(HOLD_TIMEOUT_S)
    assert said.take()[-1] == set()
    assert not world.node.cluster.remote_flow_control._wanted


def test_a_broker_that_cannot_be_reached_gets_hold_when_it_can(world: World, said: Said) -> None:
    far, client = Far(world), slow(world)
    said.reachable = False
    far.publish(*[b"fast"] * 15)
    world.advance(HOLD_TIMEOUT_S / 2)
    assert not said.take()
    said.reachable = True
    read(client, 1)
    world.advance(HOLD_REPEAT_S + HOLD_INTERVAL_S)
    assert said.take() == [{b"fast"}]


def test_messages_of_our_earlier_incarnation_hold_no_publisher(world: World, said: Said) -> None:
    far = Far(world)
    slow(world)
    far.neighbour.send(
        *(message(b"fast", key=origin_key(OWN, 1), sequence=n + 1) for n in range(30))
    )
    assert not said.take()


# ------------------------------------------------------------------ what is on its way


def test_messages_on_their_way_are_kept_beyond_the_queue_limit(world: World, said: Said) -> None:
    far, client = Far(world), slow(world)
    far.publish(*[b"fast"] * 500)
    assert len(world.session("slow").queue) == 499
    assert world.counters.queued_over_limit == 499 - SMALL.max_queued
    backpressure = world.node.cluster.remote_flow_control
    assert backpressure.over >= 498 * QUEUED_MEMORY
    assert len(read(client, 500)) == 500
    world.advance(1.0)
    assert backpressure.over == 0
    assert world.counters.dropped_queue_full == 0


@pytest.mark.parametrize(
    "limits",
    [SMALL.replace(held_queue_bytes=100_000), SMALL.replace(held_queues_bytes=100_000)],
)
def test_messages_beyond_a_queue_are_bounded(world: World, said: Said) -> None:
    far = Far(world)
    slow(world)
    for _ in range(20):
        far.publish(*[b"fast"] * 50, payload=bytes(100))
    assert 90_000 < world.node.cluster.remote_flow_control.over <= 100_000
    assert len(world.session("slow").queue) * (QUEUED_MEMORY + 100) < 110_000
    assert world.counters.dropped_queue_full


def test_the_queue_of_an_absent_client_grows_no_further(world: World, said: Said) -> None:
    """What waited when it went is kept; it comes back to it all."""
    far = Far(world)
    client = world.connect(
        "slow",
        clean=False,
        properties={Property.RECEIVE_MAXIMUM: 1, Property.SESSION_EXPIRY_INTERVAL: 100},
    ).subscribed("fast", qos=1)
    far.publish(*[b"fast"] * 50)
    client.vanish()
    far.publish(*[b"fast"] * 50)
    assert world.counters.dropped_queue_full == 50
    world.advance(1.0)
    assert world.node.cluster.remote_flow_control.over
    client = world.connect(
        "slow",
        clean=False,
        properties={Property.RECEIVE_MAXIMUM: 1, Property.SESSION_EXPIRY_INTERVAL: 100},
    )
    client.inbox = [p for p in client.inbox if isinstance(p, Publish)]
    assert len(read(client, 50)) == 50
    world.advance(1.0)
    assert world.node.cluster.remote_flow_control.over == 0


# ------------------------------------------------------------------ plugins and links that are slow


def asking_plugins(limits: Limits) -> World:
    return World(
        hooks=Hooks(topics=True),
        limits=limits,
        discovery="static",
        seeds=(),
        id=OWN,
        boot=1000,
        capability=9.0,
        host="10.0.0.200",
    )


def test_a_slow_plugin_holds_publishers_elsewhere(said: Said) -> None:
    world = asking_plugins(SMALL)
    said.world = world
    far = Far(world)
    client = world.connect("c")
    client.send(Subscribe(7, [SubscriptionRequest("fast", 1)]))
    world.answer(AuthorizeSubscribe, [True])
    client.take()
    far.publish(*[b"fast"] * 15)
    assert said.take() == [{b"fast"}]
    while world.answer(AuthorizeReceive, lambda effect: set(effect.receivers)):
        pass
    world.advance(HOLD_INTERVAL_S)
    assert said.take()[-1] == set()


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("limits", [SMALL.replace(hold_link_bytes=10_000)])
def test_a_slow_link_holds_who_publishes_what_is_kept_for_it(world: World, qos: int) -> None:
    neighbour = Neighbour(world, 101).child()
    neighbour.transport.capacity = 1_000
    fast = world.connect("fast")
    for number in range(1, 30):
        fast.publish("t", bytes(1_000), qos, number if qos else None)
    assert fast.conn.held == bool(qos)
    assert neighbour.conn.backlog_bytes < DEFAULTS.link_backlog_bytes
    neighbour.transport.written.clear()
    neighbour.transport.capacity = None
    neighbour.conn.writable(world.now)
    world.settle()
    assert not fast.conn.held


# ------------------------------------------------------------------ a slow subscriber elsewhere


def asks(world: World, *filters: bytes, sender: bytes = ASKING, life: float = 0.5) -> None:
    world.node.cluster.remote_flow_control.received(
        sender, encode_hold(life, dict.fromkeys(filters, 1)), world.now
    )
    world.settle()


@pytest.fixture
def publisher(world: World, said: Said) -> FakeClient:
    """One whose messages go to another broker."""
    Neighbour(world, 101).child()
    assert said.reachable
    return world.connect("fast")


@pytest.mark.parametrize(
    ("filters", "topic", "qos", "held"),
    [
        ([b"a"], "a", 1, True),
        ([b"a"], "a", 2, True),
        ([b"a"], "a", 0, False),
        ([b"a"], "b", 1, False),
        ([b"x", b"a/+"], "a/b", 1, True),
        ([b"x", b"a/+"], "a/b/c", 1, False),
        ([EVERYTHING], "any/thing", 1, True),
    ],
)
def test_a_publisher_to_a_held_filter_is_not_read(
    world: World, publisher: FakeClient, filters: list[bytes], topic: str, qos: int, held: bool
) -> None:
    asks(world, *filters)
    for _ in range(2):
        publisher.publish(topic, qos=qos)
    assert publisher.conn.held == held
    assert publisher.transport.reading != held
    assert world.counters.publishers_paused == held
    asks(world)
    assert not publisher.conn.held
    assert publisher.transport.reading
    assert not world.node.cluster.remote_flow_control.held


def test_a_held_publisher_stops_within_a_read(world: World, publisher: FakeClient) -> None:
    """Runs that are handled as one piece are not too long, and what is behind waits."""
    publisher.publish("a", qos=1)
    asks(world, b"a")
    publisher.take()
    publisher.send(*(Publish("a", b"x", 1, packet_id=n) for n in range(1, 5000)))
    taken = len(publisher.take())
    assert 0 < taken <= 1024
    assert publisher.conn.held
    asks(world)
    assert len(publisher.take()) == 4999 - taken


@pytest.mark.parametrize("how", ["time", "cut off"])
def test_no_publisher_is_held_by_a_broker_that_is_gone(
    world: World, publisher: FakeClient, how: str
) -> None:
    asks(world, b"a", life=0.5)
    publisher.publish("a", qos=1)
    world.advance(0.3)
    asks(world, b"a", life=0.5)
    world.advance(0.4)
    assert publisher.conn.held
    if how == "time":
        world.advance(0.2)
    else:
        world.node.cluster.events.dispatch(RouteChanged(ASKING, None))
    assert not publisher.conn.held
    assert not world.node.cluster.remote_flow_control.held


def test_a_publisher_is_read_again_when_its_filter_is_released(
    world: World, publisher: FakeClient
) -> None:
    asks(world, b"a", b"b")
    publisher.publish("a", qos=1)
    asks(world, b"b")
    assert not publisher.conn.held
    publisher.publish("b", qos=1)
    assert publisher.conn.held


@pytest.mark.parametrize("limits", [SMALL.replace(hold_max_s=5.0)])
def test_a_broker_that_never_pauses_is_ignored(world: World, publisher: FakeClient) -> None:
    for _ in range(60):
        asks(world, EVERYTHING)
        publisher.publish("a", qos=1)
        world.advance(0.1)
    assert not publisher.conn.held
    assert world.counters.pause_requests_ignored == 1
    assert len([line for line in world.logged if "its pause requests are ignored" in line]) == 1
    asks(world)
    asks(world, b"a")
    publisher.publish("a", qos=1)
    assert publisher.conn.held, "it paused"


def test_a_hold_of_an_unknown_broker_is_ignored(
    world: World, publisher: FakeClient, said: Said
) -> None:
    said.reachable = False
    asks(world, b"a")
    assert not world.node.cluster.remote_flow_control.held


def test_a_will_holds_no_publisher(world: World, publisher: FakeClient) -> None:
    other = world.connect("other", will=Will("a", b"gone", 1, False))
    asks(world, b"a")
    publisher.publish("b", qos=1)
    other.vanish()
    assert not publisher.conn.held


# ------------------------------------------------------------------ words


@pytest.mark.parametrize(
    ("filters", "decoded"),
    [
        ([], []),
        ([b"a", b"b/#"], [b"a", b"b/#"]),
        (
            [b"%d" % n for n in range(HOLD_TOPICS)],
            [b"%d" % n for n in range(HOLD_TOPICS)],
        ),
        ([b"%d" % n for n in range(HOLD_TOPICS + 1)], [EVERYTHING]),
        ([bytes(9_000), bytes(9_001)], [EVERYTHING]),
    ],
)
def test_an_encoded_hold_decodes_to_the_same(filters: list[bytes], decoded: list[bytes]) -> None:
    assert decode_hold(encode_hold(0.5, dict.fromkeys(filters, 1))) == (0.5, frozenset(decoded))


@pytest.mark.parametrize("body", [b"\0\1\0", b"\0\1\0\5abcd", b"\xff\xff" + b"\0\1a" * 65])
def test_a_truncated_or_oversized_hold_covers_everything(body: bytes) -> None:
    life, filters = decode_hold(body)
    assert filters == {EVERYTHING}
    assert life <= HOLD_LIFE


def test_garbage_is_harmless() -> None:
    asked = Asked(0.0, 10)
    asked.take(frozenset((b"\xff/+", b"a/#/b", b"+x", b"")))
    assert [asked.wants(topic) for topic in (b"x", b"y/z", b"")] == [False, False, True]
